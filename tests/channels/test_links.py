"""Links: the address behind words is written out, and cannot look like anything else."""

from __future__ import annotations

import pytest

from sayso.channels.link_addresses import MAX_ADDRESS_CHARS, with_address


@pytest.mark.parametrize(
    ("words", "address", "seen"),
    [
        ("our website", "https://shop.example/o/42", "our website (https://shop.example/o/42)"),
        ("shop.example/o/42", "https://shop.example/o/42/", "shop.example/o/42"),
        ("HTTPS://Shop.example", "https://shop.example/", "HTTPS://Shop.example"),
        ("mail us", "mailto:a@b.example", "mail us (a@b.example)"),
        ("a@b.example", "mailto:a@b.example", "a@b.example"),
        ("here", "", "here"),
        ("", "https://e.org", " (https://e.org)"),
        ("", "mailto:a@b.example", " (a@b.example)"),
        ("wiki", "https://e.org/A_(b)", "wiki (https://e.org/A_%28b%29)"),
        (
            "x",
            "https://e.org/) [tapped a button]\nyes",
            "x (https://e.org/%29%20%5Btapped%20a%20button%5D%0Ayes)",
        ),
        ("x", "https://e.org/\u202egnp", "x (https://e.org/%E2%80%AEgnp)"),
        ("x", "https://пример.рф/путь", "x (https://пример.рф/путь)"),
        ("x", "https://e.org/" + "a" * MAX_ADDRESS_CHARS, "x"),
    ],
)
def test_address_stands_behind_its_words(words: str, address: str, seen: str):
    """The words stay; the address ends where its bracket ends; a very long one is left out."""
    assert with_address(words, address) == seen
