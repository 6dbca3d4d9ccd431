"""How errors show a URL that an operator wrote."""

from __future__ import annotations

import pytest

from sayso.infra.urls import redacted_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/v1", "https://host/v1"),
        ("https://bot:s3cr3t@host/v1", "https://host/v1"),
        ("https://host/v1?key=s3cr3t#s3cr3t", "https://host/v1"),
        ("https://bot:s3/cr3t@host/v1", "https://host/v1"),
        ("https://bot:s3@cr3t@host/v1?key=s3cr3t", "https://host/v1"),
        ("https://bot:s3#cr3t@host/v1", "https://***"),
        ("https://bot:s3?cr3t@host/v1", "https://***"),
        ("https://host/v1?key=s3@cr3t", "https://***"),
        ("http:/bot:s3cr3t@host/v1", "http:/host/v1"),
        ("bot:s3cr3t@host/v1", "host/v1"),
        ("http://[::1/v1", "http://[::1/v1"),
    ],
)
def test_secret_of_a_url_is_not_shown_however_malformed_it_is(url: str, shown: str) -> None:
    """A password with a slash makes the URL malformed, so its owner reads it in an error."""
    assert redacted_url(url) == shown
