"""Literal text: what is embedded in Markdown is shown as it is, on every platform."""

from __future__ import annotations

import html
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.channels.console.outgoing import page_html
from sayso.channels.markdown.convert import (
    plain,
    slack_mrkdwn,
    telegram_html,
    terminal_text,
    whatsapp_text,
)
from sayso.channels.markdown.dialects import GAP
from sayso.channels.markdown.literal import Markdown, as_kind_of, as_markdown, as_text

TEXTS = [
    "Deleted D:\\proj\\data\\_scratch\\out\\A0_raw.wav",
    "Deleted __init__.py and C:\\new_dir\\*.txt",
    "a*b*c **x** snake_case_ _x ~~y~~ `z`",
    "<tag> &amp; <https://e.org/x>",
    "[click](https://evil.example) ![i](x)",
    "# no heading\n> no quote\n- no bullet\n1. no number\n---\nno head\n===",
    "a | b\n---|---\n1 | 2",
    "```\nno code\n```",
    "    indented\n\n      more",
    "see https://e.org/_a_/b_c?x=1*2&copy=3).",
    "see https://e.org/?a=1&copy; and *https://e.org/a* or *https://e.org/?b",
    "**\u300cA\u300d**\u3067\u3059",
    "ends in \\",
]
#: What Markdown could act on, at the beginning of a line and inside.
SYNTAX = [
    *"*_`[]()<>&#+-=|\\!: \n\ta.",
    *("**", "~~", "](", "&amp;", "1.", "2)", "   ", "b_c", "http://e.org/", "\u4f60", "\u3002"),
]


def without_tags(page: str) -> str:
    """Return what people see of a page."""
    return html.unescape(
        re.sub(r"</?[a-z][^>]*>", "", page.replace("<br />", "\n").replace("</p>\n<p>", "\n\n"))
    )


#: For each platform, what people see of Markdown.
PLATFORMS = {
    "telegram": lambda md: without_tags(telegram_html(md)),
    "slack": lambda md: html.unescape(re.sub(r"<(https?:[^>|]*)>", r"\1", slack_mrkdwn(md))),
    "whatsapp": whatsapp_text,
    "plain": plain,
    "terminal": terminal_text,
    "console": lambda md: without_tags(page_html(md)),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_platform_shows_each_character(platform: str, text: str):
    """A path, an identifier or a formula loses nothing. Slack and WhatsApp have no escape, but an invisible gap."""
    assert PLATFORMS[platform](as_markdown(text)).replace(GAP, "").strip("\n") == text


@pytest.mark.parametrize("text", TEXTS)
def test_nothing_in_a_text_is_formatted(text: str):
    """A result has no headings, lists, tables, code and bold words of its own."""
    for page in (telegram_html(as_markdown(text)), page_html(as_markdown(text))):
        assert not re.search(r"<(?:b|i|s|em|strong|code|pre|h1|ul|ol|table|blockquote)>", page)


@given(st.lists(st.sampled_from(SYNTAX), max_size=20).map("".join))
def test_any_text_is_shown_as_it_is(text: str):
    """Only spaces at the end of a line and further empty lines, which nobody sees, may go."""

    def tidy(each: str) -> str:
        return re.sub(
            r"\n{2,}", "\n\n", "\n".join(line.rstrip() for line in each.split("\n"))
        ).strip("\n")

    assert tidy(plain(as_markdown(text))) == tidy(text)


@given(
    st.lists(st.sampled_from([*SYNTAX, "`", "\r\n", "&#32;", "\u2003"]), max_size=20).map("".join)
)
def test_text_to_print_is_the_text_that_was_escaped(text: str):
    """Nothing is lost and nothing is added, whatever the text looks like."""
    assert as_text(as_markdown(text)) == re.sub(r"\r\n?", "\n", text)
    assert as_text(f"Done: {as_markdown(text)}") == re.sub(r"\r\n?", "\n", f"Done: {text}")


@pytest.mark.parametrize(
    ("md", "text"),
    [
        ("**a\\_b** `c\\_d` \\`e\\`", "**a_b** `c\\_d` `e`"),
        ("```\nx\\_y\n``` z\\_", "```\nx\\_y\n``` z_"),
        ("one ` and ``two\\_` x\\*", "one ` and ``two\\_` x*"),
        ("a &amp; b &#65; c&#32;d", "a &amp; b &#65; c d"),
    ],
)
def test_text_to_print_keeps_formatting_and_code(md: str, text: str):
    """A backslash in code is no escape."""
    assert as_text(md) == text


#: A pair of marks that Slack and WhatsApp take for formatting.
PAIR = r"`[^`\u200b\n]|(?<!\w)([*_~])(?=[^\s\u200b*_~]).*?(?<=\S)\1(?!\w)"
#: What each of them shows as formatting: a pair, and a quote or a bullet at the beginning of a line.
FORMATTING = {
    "slack": re.compile(rf"^\s*(?:>|&gt;)|{PAIR}", re.MULTILINE),
    "whatsapp": re.compile(rf"^\s*[>*-][ \t]|{PAIR}", re.MULTILINE),
}


def sent(platform: str, text: str) -> str:
    """Return a text as it is sent, with a word in place of each address."""
    wire = {"slack": slack_mrkdwn, "whatsapp": whatsapp_text}[platform](as_markdown(text))
    return re.sub(r"<https?:[^>]*>|https?://e[^\s<>\"`|\\\[\]]*", "address", wire)


@pytest.mark.parametrize(
    "text",
    [
        "> quoted\n  > too",
        "- a\n* b",
        "*a https://e.org/x b*",
        "_https://e.org/_",
        "_a `b` c_ ~d `e~",
        "see _x and `y` or z_",
        "~/.ssh and *.py, *.txt and x*",
    ],
)
@pytest.mark.parametrize("platform", FORMATTING)
def test_platform_without_an_escape_formats_nothing_in_a_text(platform: str, text: str):
    """A quote sign, a star and its partner behind an address stay characters: an invisible one parts them."""
    assert not FORMATTING[platform].search(sent(platform, text))


@pytest.mark.parametrize("platform", FORMATTING)
@given(
    st.lists(st.sampled_from([each for each in SYNTAX if "`" not in each]), max_size=20).map(
        "".join
    )
)
def test_no_platform_formats_any_text(platform: str, text: str):
    """Whatever marks stand beside each other in a line."""
    assert not FORMATTING[platform].search(sent(platform, text))


def test_text_with_one_mark_is_sent_without_an_invisible_character():
    """A path can be copied. Only a pair of marks would format."""
    for text in (
        "rm *.py",
        "cd ~/.ssh",
        "__init__.py",
        "a > b - c",
        "`",
        "x_y_z",
        "_x https://e.org/a_b",
    ):
        assert whatsapp_text(as_markdown(text)) == text
        assert GAP not in slack_mrkdwn(as_markdown(text))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("\u8bf7\u770bhttps://e.org/x\u3002\u8c22\u8c22", "https://e.org/x"),
        ("\uff08https://e.org/x\uff09\u3067\u3059", "https://e.org/x"),
        ("\u201chttps://e.org/x\u201d", "https://e.org/x"),
        ("\u00abhttps://e.org/x\u00bb", "https://e.org/x"),
        ("https://e.org/\u4e2d\u6587_(x)", "https://e.org/\u4e2d\u6587_(x)"),
        ("https://e.org/x\u061f", "https://e.org/x"),
        ("**https://e.org/x**\u3067\u3059", "https://e.org/x"),
        ("~~https://e.org/~u~~", "https://e.org/~u"),
    ],
)
def test_address_ends_before_the_sentence_goes_on(text: str, address: str):
    """Chinese and Japanese put no space after an address. One that is too long leads nowhere."""
    for md in (text, as_markdown(text)):
        assert f'href="{address}"' in telegram_html(md)
        assert f"<{address}>" in slack_mrkdwn(md)
        assert "href=" in page_html(md)


def test_address_in_a_text_stays_one_link():
    """An escape inside would end the link there, and it would lead elsewhere."""
    assert 'href="https://e.org/_a_/b*c"' in telegram_html(
        as_markdown("see https://e.org/_a_/b*c.")
    )


def test_markdown_that_says_so_stays_markdown():
    """The type survives what is made of the text, and an escaped text is not escaped again."""
    assert as_markdown(Markdown("**3**")) == "**3**"
    assert as_markdown(as_markdown("_x_")) == as_markdown("_x_") == "\\_x\\_"
    assert isinstance(as_kind_of(Markdown("**3**"), "**3"), Markdown)
    assert not isinstance(as_kind_of("3", "3"), Markdown)


@pytest.mark.timeout(60)  # a hang; it takes a fraction of a second
@pytest.mark.parametrize(
    "part", ["-", "*", "_", "https://", " http://a_", "|:-", ")", " ", "`", "\\", "1"]
)
def test_long_text_is_escaped_in_linear_time(part: str):
    """A result may have a hundred thousand characters, which take a tenth of a second."""
    began = time.process_time()
    as_markdown("https://e.org/" + part * 100_000 + "x")
    md = as_markdown(part * 100_000 + "x")
    as_text(md)
    as_text(part * 100_000 + "x")
    assert time.process_time() - began < 5
