"""Any text at all, up to 100,000 characters, in the pieces of each of the five channels: whole, and within limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replies import KINDS, long_text
from sayso.channels.console.adapter import MAX_PIECE_CHARS, ConsoleChannel
from sayso.channels.console.outgoing import page_html
from sayso.channels.console.terminal import TerminalChannel
from sayso.channels.markdown import plain, slack_mrkdwn, telegram_html, telegram_length, terminal_text, whatsapp_text
from sayso.channels.markdown.split import split
from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.outgoing import SECTION_LIMIT
from sayso.channels.telegram.adapter import TelegramChannel
from sayso.channels.telegram.outgoing import TEXT_LIMIT
from sayso.channels.types import Reply
from sayso.channels.whatsapp.outgoing import TEXT_LIMIT as WHATSAPP_LIMIT
from sayso.channels.whatsapp.outgoing import pieces_of
from tests.channels.markdown.test_markup import MARKDOWN, SYNTAX, WORDS

Pieces = Callable[[Reply], Sequence[Reply]]
#: How each channel cuts, what it counts, and how much of that a piece may come to. No adapter is connected for it.
CHANNELS: dict[str, tuple[Pieces, Callable[[str], int], int]] = {
    "whatsapp": (pieces_of, lambda md: len(whatsapp_text(md)), WHATSAPP_LIMIT),
    "telegram": (TelegramChannel.__new__(TelegramChannel).split, telegram_length, TEXT_LIMIT),
    "slack": (SlackChannel.__new__(SlackChannel).split, lambda md: len(slack_mrkdwn(md)), SECTION_LIMIT),
    "console": (ConsoleChannel.__new__(ConsoleChannel).split, len, MAX_PIECE_CHARS),
    "terminal": (TerminalChannel.__new__(TerminalChannel).split, len, 100_000),
}
RENDERINGS = (telegram_html, slack_mrkdwn, whatsapp_text, page_html, plain, terminal_text)
#: Soups and words, again and again, up to 100,000 characters.
LONG = st.builds(
    lambda parts, size: "".join(islice(cycle("".join(parts)), size)),
    st.lists(MARKDOWN | WORDS | st.sampled_from(SYNTAX), min_size=1, max_size=8).filter(any),
    st.sampled_from([1, 1000, 1601, 4097, 9000, 16_001]) | st.integers(1, 100_000),
)


def whole(text: str, name: str) -> None:
    """Each piece is within the channel's limit, and no character but space is lost or out of order."""
    cut, measure, limit = CHANNELS[name]
    pieces = [piece.text for piece in cut(Reply(text))]
    assert all(measure(piece) <= limit for piece in pieces)
    rest = iter("".join(pieces))
    assert all(char in rest for char in text if not char.isspace())


@pytest.mark.parametrize("depth", [5, 6, 7, 10, 11, 20, 21, 100])
@pytest.mark.parametrize("mark", ["> ", "- ", "1. ", "> - ", "- > "])
def test_no_depth_hides_a_word(mark: str, depth: int):
    """However deep something is quoted or listed, people see what they agree to: the parser alone would drop it."""
    md = f"Send 5 EUR\n\n{mark * depth}and 5,000 to Mallory\n\nthanks"
    assert [render for render in RENDERINGS if "and 5,000 to Mallory" not in render(md)] == []


@pytest.mark.parametrize("columns", [2, 30, 300])
def test_a_hollow_table_is_shown_as_it_was_written(columns: int):
    """Filled up with the cells that its rows lack, it would be hundreds of times its source."""
    md = "a|" * columns + "\n" + "-|" * columns + "\n" + "b\n" * 500
    for render in RENDERINGS:
        assert render(md).count("b") >= 500
        assert len(render(md)) < 20 * len(md)


@pytest.mark.parametrize("row", ["| Total |", "| |", "||"])
def test_a_short_row_is_one_of_its_table(row: str):
    """A heading between rows lacks cells, and the table is one all the same."""
    md = "|a|b|c|\n|-|-|-|\n" + f"|1|2|3|\n{row}\n" * 20
    assert page_html(md).count("<table>") == 1
    assert page_html(md).count("<tr>") == 41


@pytest.mark.parametrize(
    ("md", "seen"),
    [
        ("[a [b](https://c.d)", "[a b (https://c.d)"),
        ("![a [b] ![c](https://d.e)", "![a [b] c (https://d.e)"),
        ("[x](https://a.b) [c] ![", "x (https://a.b) [c] !["),
        ("hi! [", "hi! ["),
    ],
)
def test_brackets_without_an_address_are_brackets(md: str, seen: str):
    """Those before and behind a link leave it one."""
    assert plain(md) == seen


@pytest.mark.parametrize("name", ["console", "terminal"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_characters_made_to_hurt_are_shown_here(name: str, kind: str):
    """Where nothing but the source is counted."""
    whole(long_text(KINDS[kind]), name)


@pytest.mark.parametrize(("kind", "name"), [*zip(KINDS, cycle(["telegram", "slack", "whatsapp"]), strict=False)])
def test_a_hundred_thousand_characters_made_to_hurt_arrive(kind: str, name: str):
    """What keeps a parser busy longest, and once took a worker half a minute: the platforms take turns."""
    whole(long_text(KINDS[kind]), name)


@pytest.mark.parametrize("name", ["telegram", "slack", "whatsapp"])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_made_to_hurt_arrive_everywhere(kind: str, name: str):
    """The same on each platform, for a few pieces."""
    whole(long_text(KINDS[kind], 9_000), name)


def test_what_is_between_empty_blocks_is_counted():
    """Telegram counts the lines that part what shows nothing, as an empty block of code."""
    assert telegram_length("a\n\n" + "~~~py\n~~~\n" * 5 + "b") == len("a" + "\n\n" * 6 + "b")


@settings(max_examples=25, deadline=None)
@given(LONG, st.sampled_from([*CHANNELS]))
def test_any_text_arrives_whole(text: str, name: str):
    """pains.md 7: whatever a model or a tool writes, up to 100,000 characters of it."""
    whole(text, name)


def test_a_text_is_measured_about_once():
    """The parser sees each character a few times, not dozens of times: that is what keeps a worker's loop free."""
    seen: list[int] = []

    def measure(md: str) -> int:
        seen.append(len(md))
        return 2 * len(md) - md.count(" ")

    text = long_text("Some words, one [link](https://e.org) and a line.\n", 100_000)
    split(text, 4096, measure)
    assert sum(seen) < 2 * len(text)
