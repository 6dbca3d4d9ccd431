"""The pages of the pictures: every platform shows every sample by its own rules."""

from __future__ import annotations

import html
import re

import pytest

from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.browser import screens
from tests.browser.pictures import SAMPLES, page_of, terminal_page
from tests.channels.harness import EVERY, MemoryMedia, Platform


@pytest.mark.parametrize("platform", EVERY, ids=repr)
def test_each_platform_shows_each_sample(platform: Platform):
    """The real adapter sends each sample, and the picture shows none of its markup."""
    media = MemoryMedia()
    with FakePlatforms() as platforms:
        page = page_of(platform, media, platforms)
    media.close()
    check_samples(page)


def test_terminal_shows_each_sample():
    """The picture shows what `sayso chat` prints."""
    media = MemoryMedia()
    check_samples(terminal_page(media))
    media.close()


def check_samples(page: str) -> None:
    """Check that a page shows each sample without its markup."""
    words = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", "", page, flags=re.DOTALL))
    assert [title for title in SAMPLES if title not in words] == []
    for shown in (
        "To do",
        "return invoice.total_net - invoice.paid",
        "2*3*4 = 24",
        "Delete INV-42",
        "INV-42.pdf",
    ):
        assert shown in words
    assert "**" not in words.replace("**bold without end", "")


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ("*b* _i_ ~s~ snake_case_x 2*3*4", "<b>b</b> <i>i</i> <s>s</s> snake_case_x 2*3*4"),
        ("`a_b_` and ```\n*x*\n```", "<code>a_b_</code> and <pre>*x*</pre>"),
        ("> a\n> b\nc", "<blockquote>a\nb</blockquote>\nc"),
        ("*b\nc*", "*b\nc*"),
    ],
)
def test_marks_format_whole_words_on_one_line(sent: str, seen: str):
    """Slack and WhatsApp format marks by this rule."""
    assert screens.slack(sent) == seen
    assert screens.whatsapp(sent.replace("&gt;", ">")) == seen


def test_link_keeps_its_underscores():
    """Underscores in an address do not make text italic."""
    assert (
        screens.slack("<https://e.org/_a_|the _docs_>")
        == '<a href="https://e.org/_a_">the _docs_</a>'
    )
    assert (
        screens.whatsapp("(https://e.org/_a_)")
        == '(<a href="https://e.org/_a_">https://e.org/_a_</a>)'
    )


def test_terminal_shows_styles_and_escapes_tags():
    """Style codes become tags, and other tags are escaped."""
    assert screens.terminal("\x1b[1mb\x1b[22m <i>") == "<b>b</b> &lt;i&gt;"
