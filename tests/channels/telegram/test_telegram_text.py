"""Any text up to 100,000 characters, for Telegram: accepted, whole, in order."""

from __future__ import annotations

import re
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sayso.channels.markdown.convert import telegram_length
from sayso.channels.markdown.split import head, split
from sayso.channels.telegram.outgoing import BotApiCall, beginning
from sayso.channels.types import Button, Reply
from sayso.testing.platforms.telegram_text import buttons, check_length, plain_text
from tests.channels.harness import IMAGE, MemoryMedia, telegram
from tests.channels.markdown.test_markup import MARKDOWN, SYNTAX, WORDS

YES_NO = (Button("Yes", "y"), Button("No", "n"))
#: Repeated lines of plain text and of text that resembles Markdown, up to a length.
LONG = st.builds(
    lambda lines, size: "\n".join(
        islice(cycle(lines), 1 + size // max(1, sum(map(len, lines)) // len(lines)))
    )[:size],
    st.lists(
        MARKDOWN | WORDS | st.just("Words, **bold** and `code` & 5 < 6. 👍🏽"),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0, 1, 1024, 4096, 4097, 9000]),
)


def shown(piece: Reply) -> str:
    """Return the visible text of a piece. Raises RefusedError where Telegram would refuse it."""
    words, parse_mode = BotApiCall("1", None, piece).text_and_mode
    seen = plain_text(words, parse_mode)
    check_length(seen, 1024 if piece.media else 4096, "caption" if piece.media else "text")
    return seen


@pytest.mark.slow
@settings(max_examples=20)
@given(LONG, st.booleans(), st.booleans(), st.booleans())
def test_any_text_is_accepted_whole_and_in_order(text: str, media: bool, edits: bool, asks: bool):
    """platforms.md 2.3: 4096 and 1024 UTF-16 units after parsing, in HTML and plain; no character is lost."""
    reply = Reply(
        text, YES_NO if asks else (), IMAGE if media else None, edits="7" if edits else ""
    )
    pieces = telegram(MemoryMedia.__new__(MemoryMedia), None).split(reply)
    for piece in pieces:
        assert shown(piece).strip() or piece.media
        assert telegram_length(piece.text) <= (1024 if piece.media else 4096)
    told = iter("".join(piece.text for piece in pieces))
    assert all(char in told for char in text if not char.isspace())
    assert [piece.buttons for piece in pieces[:-1]] == [()] * (len(pieces) - 1 if pieces else 0)
    assert [piece.edits for piece in pieces] == [
        "7" if edits and not number else "" for number in range(len(pieces))
    ]
    assert sum(piece.media is not None for piece in pieces) == media


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([*SYNTAX, "WORD", "WORD", "WORD", "\n"]), max_size=60),
    st.integers(1, 12),
)
def test_every_word_of_a_split_text_is_visible(parts: list[str], times: int):
    """A cut inside formatting hides no word, whichever piece it falls in."""
    soup = parts * times
    words = [f"zq{number}x" for number in range(soup.count("WORD"))]
    rest = iter(words)
    text = "".join(f" {next(rest)} " if part == "WORD" else part for part in soup)
    pieces = telegram(MemoryMedia.__new__(MemoryMedia), None).split(Reply(text))
    seen = "\n".join(map(shown, pieces))
    assert [word for word in words if word not in seen] == []


@settings(max_examples=20)
@given(LONG)
def test_draft_of_any_text_is_accepted(text: str):
    """The draft begins like the answer, and fits."""
    sketch = beginning(text)
    assert telegram_length(sketch) <= 4096
    assert not sketch.strip() or shown(Reply(sketch))
    assert re.sub(r"\s", "", text).startswith(re.sub(r"\s", "", sketch.removesuffix("…"))[:100])


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["Words, **bold**, [a](https://b.c/_d_) & 5 < 6. 👍🏽\n", "x" * 99, "|a|b|\n"]
)
def test_hundred_thousand_characters_are_accepted(line: str):
    """No model gives a longer answer."""
    text = (line * 100_000)[:100_000]
    pieces = telegram(MemoryMedia.__new__(MemoryMedia), None).split(Reply(text, YES_NO))
    told = iter("".join(shown(piece) and piece.text for piece in pieces))
    assert all(char in told for char in text if not char.isspace())


def test_empty_code_block_is_shown_as_written():
    """Telegram refuses a message without visible text."""
    assert [shown(Reply(text)) for text in ("```\n```", "```\n")] == ["```\n```", "```\n"]


@settings(max_examples=20)
@given(LONG, st.integers(10, 5000))
def test_head_is_the_first_piece(text: str, limit: int):
    """`head` returns the first piece of `split` without making the others."""
    assert head(text, limit, telegram_length) == (split(text, limit, telegram_length) or [""])[0]


@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_any_number_of_buttons_is_a_keyboard(count: int):
    """platforms.md 2.3: a row has at most 8 buttons with 64 bytes of data each."""
    keys = [{"text": "b", "callback_data": "d" * 64}] * count
    assert (
        len(buttons({"inline_keyboard": [keys[at : at + 2] for at in range(0, count, 2)]})) == count
    )
