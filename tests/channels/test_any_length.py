"""Any text of up to 100,000 characters arrives whole on all five channels, in pieces within their limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replies import KINDS, long_text
from sayso.channels.console.adapter import MAX_PIECE_CHARS, ConsoleChannel
from sayso.channels.console.outgoing import page_html
from sayso.channels.markdown.convert import (
    plain,
    slack_mrkdwn,
    telegram_html,
    telegram_length,
    terminal_text,
    whatsapp_text,
)
from sayso.channels.markdown.split import split
from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.outgoing import SECTION_LIMIT
from sayso.channels.telegram.outgoing import TEXT_LIMIT
from sayso.channels.telegram.outgoing import pieces_of as telegram_pieces_of
from sayso.channels.types import Reply
from sayso.channels.whatsapp.outgoing import TEXT_LIMIT as WHATSAPP_LIMIT
from sayso.channels.whatsapp.outgoing import pieces_of
from tests.channels.markdown.test_markup import MARKDOWN, SYNTAX, WORDS
from tests.channels.whatsapp.test_whatsapp_pieces import LINKS

Pieces = Callable[[Reply], Sequence[Reply]]
#: For each channel: its split, its measure of length, and the limit of a piece. No adapter is connected.
CHANNELS: dict[str, tuple[Pieces, Callable[[str], int], int]] = {
    "whatsapp": (
        partial(pieces_of, media=LINKS),
        lambda md: len(whatsapp_text(md)),
        WHATSAPP_LIMIT,
    ),
    "telegram": (telegram_pieces_of, telegram_length, TEXT_LIMIT),
    "slack": (
        SlackChannel.__new__(SlackChannel).split,
        lambda md: len(slack_mrkdwn(md)),
        SECTION_LIMIT,
    ),
    "console": (ConsoleChannel.__new__(ConsoleChannel).split, len, MAX_PIECE_CHARS),
}
#: The platforms that parse the text, and which of them gets the longest text of each kind.
PLATFORMS = ("telegram", "slack", "whatsapp")
LONGEST = [*zip(KINDS, cycle(PLATFORMS), strict=False)]
RENDERINGS = (telegram_html, slack_mrkdwn, whatsapp_text, page_html, plain, terminal_text)
#: Markup and words, repeated up to 100,000 characters.
LONG = st.builds(
    lambda parts, size: "".join(islice(cycle("".join(parts)), size)),
    st.lists(MARKDOWN | WORDS | st.sampled_from(SYNTAX), min_size=1, max_size=8).filter(any),
    st.sampled_from([1, 1000, 1601, 4097, 9000, 16_001]) | st.integers(1, 100_000),
)


def whole(text: str, name: str) -> None:
    """Check that each piece is within the limit, and that no character but space is lost or out of order."""
    cut, measure, limit = CHANNELS[name]
    pieces = [piece.text for piece in cut(Reply(text))]
    assert all(measure(piece) <= limit for piece in pieces)
    rest = iter("".join(pieces))
    assert all(char in rest for char in text if not char.isspace())


@pytest.mark.parametrize("depth", [5, 6, 7, 10, 11, 20, 21, 100])
@pytest.mark.parametrize("mark", ["> ", "- ", "1. ", "> - ", "- > "])
def test_no_depth_hides_text(mark: str, depth: int):
    """The parser alone would drop deep quotes and lists, but people must see what they agree to."""
    md = f"Send 5 EUR\n\n{mark * depth}and 5,000 to Mallory\n\nthanks"
    assert [render for render in RENDERINGS if "and 5,000 to Mallory" not in render(md)] == []


@pytest.mark.parametrize("columns", [2, 30, 300])
def test_table_with_missing_cells_is_shown_as_text(columns: int):
    """With all missing cells it would be hundreds of times longer than its source."""
    md = "a|" * columns + "\n" + "-|" * columns + "\n" + "b\n" * 500
    for render in RENDERINGS:
        assert render(md).count("b") >= 500
        assert len(render(md)) < 20 * len(md)


@pytest.mark.parametrize("row", ["| Total |", "| |", "||"])
def test_short_row_belongs_to_its_table(row: str):
    """A heading between rows has fewer cells, and the table stays one."""
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
def test_brackets_without_a_url_stay_brackets(md: str, seen: str):
    """Brackets around a link do not break it."""
    assert plain(md) == seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_hostile_characters_are_shown_by_the_console(kind: str):
    """It counts only the source."""
    whole(long_text(KINDS[kind]), "console")


@pytest.mark.parametrize(("kind", "name"), LONGEST)
def test_a_hundred_thousand_hostile_characters_arrive(kind: str, name: str):
    """These texts keep a parser busy longest and once took half a minute. Each platform gets some of them."""
    whole(long_text(KINDS[kind]), name)


@pytest.mark.parametrize(
    ("kind", "name"), [each for each in product(KINDS, PLATFORMS) if each not in LONGEST]
)
def test_hostile_texts_arrive_on_every_platform(kind: str, name: str):
    """The same texts go to the other platforms, for a few pieces."""
    whole(long_text(KINDS[kind], 9_000), name)


def test_lines_between_empty_blocks_are_counted():
    """Telegram counts the lines between blocks that show nothing, such as empty code."""
    assert telegram_length("a\n\n" + "~~~py\n~~~\n" * 5 + "b") == len("a" + "\n\n" * 6 + "b")


@settings(max_examples=25, deadline=None)
@given(LONG, st.sampled_from([*CHANNELS]))
def test_any_text_arrives_whole(text: str, name: str):
    """pains.md 7: any text of a model or a tool, up to 100,000 characters."""
    whole(text, name)


def test_each_character_is_parsed_a_few_times():
    """The parser sees each character a few times, not dozens of times, which keeps a worker's loop free."""
    seen: list[int] = []

    def measure(md: str) -> int:
        seen.append(len(md))
        return 2 * len(md) - md.count(" ")

    text = long_text("Some words, one [link](https://e.org) and a line.\n", 100_000)
    split(text, 4096, measure)
    assert sum(seen) < 2 * len(text)
