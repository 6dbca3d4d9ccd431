"""Renderings: the promises that all five keep, for any text and any Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.channels.console.outgoing import page_html
from sayso.channels.markdown.convert import (
    plain,
    slack_mrkdwn,
    telegram_html,
    telegram_length,
    terminal_text,
    utf16_len,
    whatsapp_text,
)
from sayso.channels.markdown.split import split
from sayso.testing.platforms.telegram_text import plain_text
from tests.channels.markdown.test_markup import MARKDOWN, SYNTAX, WORDS

Render = Callable[[str], str]
RENDERINGS: dict[str, Render] = {
    "telegram": telegram_html,
    "slack": slack_mrkdwn,
    "whatsapp": whatsapp_text,
    "console": page_html,
    "terminal": lambda md: terminal_text(md, styled=True),
}
#: The rendering, the limit of one piece, and the measure of that limit.
LIMITS = [
    pytest.param(telegram_html, 4096, telegram_length, id="telegram"),
    pytest.param(slack_mrkdwn, 3000, lambda md: len(slack_mrkdwn(md)), id="slack"),
    pytest.param(whatsapp_text, 1600, lambda md: len(whatsapp_text(md)), id="whatsapp"),
    pytest.param(page_html, 16_000, len, id="console"),
]
#: Long texts as models write them, and tables that would fill the memory if they were aligned.
LONG = {
    "report": "## Part\n\nSome **words**, a [link](https://e.org/a_b) and `code`: 5 < 6 & 7. 👍🏽\n- x\n  - y\n\n",
    "table": "| Invoice | Amount |\n|---|--:|\n" + "| INV-42 | 1,200.00 |\n" * 200 + "\n",
    "code": "```py\n" + "x = [1, 2]  # **no** markup\n" * 300 + "```\n",
    "one word": "x",
    "flags": "🇩🇪",
    "quotes": "> > a\n> b\n",
}
HUGE_NAMES = f"|{'n' * 20_000}|b|\n|-|-|\n" + "|a|b|\n" * 500


def long_text(part: str, size: int = 100_000) -> str:
    """Return the part, repeated up to this number of characters."""
    return "".join(islice(cycle(part), size))


@pytest.fixture(params=RENDERINGS.values(), ids=list(RENDERINGS))
def render(request: pytest.FixtureRequest) -> Render:
    """Return each rendering in turn."""
    return request.param


@given(
    st.lists(st.sampled_from([*SYNTAX, "WORD", "WORD", "WORD"]), max_size=25),
    st.sampled_from([*RENDERINGS]),
)
def test_no_word_is_hidden(parts: list[str], name: str):
    """A question cannot hide a word, in any Markdown around it."""
    words = [f"zq{number}x" for number in range(parts.count("WORD"))]
    rest = iter(words)
    seen = RENDERINGS[name]("".join(next(rest) if part == "WORD" else part for part in parts))
    visible = re.sub(r'<(?!a )[^>]*>|(?<=<a )rel="[^"]*"', "", seen) if name == "console" else seen
    assert [word for word in words if word not in visible] == []


@given(MARKDOWN | WORDS, st.integers(1, 300), st.sampled_from([*RENDERINGS]))
def test_pieces_contain_the_whole_text(md: str, limit: int, name: str):
    """The pieces have all characters in order; splitting adds only fences, table heads and escapes."""
    pieces = split(md, limit, utf16_len)
    rest = iter("".join(pieces))
    assert all(char in rest for char in md)
    for piece in pieces:
        RENDERINGS[name](piece).encode()  # half a character has no UTF-8


@given(MARKDOWN | WORDS, st.integers(40, 200))
def test_no_piece_has_an_open_tag(md: str, limit: int):
    """platforms.md 2.3, pains.md 6: each piece is a message that Telegram parses and a page whose tags are closed."""
    for piece in split(md, limit, telegram_length):
        plain_text(telegram_html(piece), "HTML")
        opened = re.findall(r"<(\w+)", page_html(piece))
        assert sorted(set(opened) - {"br", "hr"}) == sorted(
            set(re.findall(r"</(\w+)>", page_html(piece)))
        )


@given(MARKDOWN | WORDS)
def test_page_has_only_allowed_tags(md: str):
    """The page has no element that runs, loads or is styled, and links only to the web, mail and phones."""
    made = page_html(md)
    tags = {tag.lower() for tag in re.findall(r"<\s*/?\s*([^\s>/]+)", made)}
    allowed = {
        "a",
        "blockquote",
        "br",
        "code",
        "em",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
        "s",
        "strong",
        "ul",
    }
    assert tags <= allowed | {
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        *(f"h{level}" for level in range(1, 7)),
    }
    assert all(
        re.match("(https?|mailto|tel):", href, re.IGNORECASE)
        for href in re.findall('href="([^"]*)', made)
    )


@pytest.mark.parametrize(
    "md", ["2*3*4 = 24 and a**b**c", "[x]: https://hidden.example\nyes", "|a|\n|-|\n|b|hidden|"]
)
def test_page_hides_nothing(md: str):
    """Arithmetic, reference lines and surplus cells stay as they were written."""
    seen = html.unescape(re.sub("<[^>]*>", "", page_html(md)))
    assert re.sub(r"[^\w*]", "", seen.replace("-", "")) == re.sub(
        r"[^\w*]", "", md.replace("-", "")
    )


@pytest.mark.slow
@pytest.mark.timeout(60)  # a hang; a slow run on a busy machine takes a tenth of it
@pytest.mark.parametrize("part", LONG.values(), ids=list(LONG))
@pytest.mark.parametrize(("render", "limit", "measure"), LIMITS)
def test_long_text_is_split_and_rendered_in_time(
    part: str, render: Render, limit: int, measure: Callable[[str], int]
):
    """The pieces of 100,000 characters fit the limit, lose no character and are ready in time."""
    md = long_text(part)
    pieces = split(md, limit, measure)
    assert all(measure(piece) <= limit for piece in pieces)
    rest = iter("".join(pieces))
    assert all(char in rest for char in md)
    assert all(render(piece).strip() for piece in pieces)


@pytest.mark.slow
def test_table_with_huge_names_stays_small(render: Render):
    """Aligned, or with its names on each line, it would be hundreds of times its source."""
    assert len(render(HUGE_NAMES)) < 20 * len(HUGE_NAMES)


def test_wide_table_becomes_a_paragraph_for_each_row():
    """On a phone its lines would wrap, and the columns would be unreadable."""
    md = f"|Invoice|Customer|Note|\n|-|-|-|\n|INV-42|Ada & Co|{'late ' * 8}|\n|INV-7||x|"
    late = "late " * 7 + "late"
    assert (
        whatsapp_text(md)
        == f"Invoice: *INV-42*\nCustomer: Ada & Co\nNote: {late}\n\nInvoice: *INV-7*\nCustomer:\nNote: x"
    )
    assert telegram_html(md).startswith("Invoice: <b>INV-42</b>\nCustomer: Ada &amp; Co\n")
    assert plain(md).count("|") == 6  # a computer screen is wide enough


def test_numbers_are_right_aligned():
    """A right-aligned column stays right-aligned in plain text."""
    assert plain("|a|b|\n|-|--:|\n|x|1,200|\n|y|5|") == "a |     b\n--+------\nx | 1,200\ny |     5"


def test_split_table_repeats_its_head():
    """pains.md 6: without the head, the rows of the next piece would be raw pipes."""
    md = "|Name|Sum|\n|-|-|\n" + "".join(f"|n{number}|{number}|\n" for number in range(20))
    pieces = split(md, 80)
    assert all(piece.startswith("|Name|Sum|\n|-|-|\n") for piece in pieces)
    assert all("Name | Sum" in plain(piece) for piece in pieces)
    assert max(map(len, pieces)) <= 80


@pytest.mark.parametrize("below", ["text | with a bar\n", "```\n|a|b|\n"])
def test_only_rows_of_a_table_get_its_head(below: str):
    """Text after a table, and pipes in code, are no rows of the table."""
    md = f"|a|b|\n|-|-|\n|1|2|\n\n{below * 12}"
    assert sum(piece.count("|a|b|\n|-|-|\n") for piece in split(md, 60)) == 1
