"""Link hosts: which links may hide behind a label, as the configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.channels.markdown.convert import telegram_html, trust_hosts
from sayso.config.settings.loader import ConfigError, load_settings

FILE = "channels: {desk: {platform: console}}\n"


def test_configured_hosts_need_not_show_their_address(tmp_path: Path):
    """Links to the hosts in the YAML may hide their URL; all others show it."""
    file = tmp_path / "sayso.yaml"
    file.write_text(f"link_hosts: [example.com]\n{FILE}")
    try:
        trust_hosts(load_settings(file).link_hosts)
        assert telegram_html("[a](https://docs.example.com/x)").endswith("</a>")
        assert telegram_html("[a](https://example.org/x)").endswith("</a> (https://example.org/x)")
    finally:
        trust_hosts([])


@pytest.mark.parametrize("host", ["https://example.com", "example.com/x", "'*'", "''"])
def test_invalid_host_is_refused(tmp_path: Path, host: str):
    """It would match no link, unnoticed."""
    file = tmp_path / "sayso.yaml"
    file.write_text(f"link_hosts: [{host}]\n{FILE}")
    with pytest.raises(ConfigError, match=r"is not a host: write it as in example\.com"):
        load_settings(file)
