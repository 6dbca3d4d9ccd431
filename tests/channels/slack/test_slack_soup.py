"""Slack, property by property: any text of a model arrives whole, within the limits, and pings no user."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.outgoing import SECTION_LIMIT, message_of
from sayso.channels.types import Button, Conversation, Reply
from sayso.testing.platforms.slack import _are_valid, _message_error
from tests.channels.harness import slack
from tests.channels.markdown.test_markup import MARKDOWN, WORDS

THREAD = Conversation("sl", "C0OPS", "1795204800.000150")
#: Text that Slack would read as a ping, a link or an escape.
PINGS = (
    "<!channel>",
    "<!here>",
    "<@U0ADA>",
    "<#C1|x>",
    "<!subteam^S1>",
    "&",
    "&lt;!here&gt;",
    "@channel",
    "```",
    "\n\n",
)
SOUP = st.lists(MARKDOWN | WORDS | st.sampled_from(PINGS), max_size=6).map("".join)
#: Texts of up to 100,000 characters: a soup, repeated.
LONG = st.tuples(SOUP.filter(bool), st.integers(1, 100_000)).map(
    lambda soup: (soup[0] * 100_000)[: soup[1]]
)
BUTTONS = st.lists(
    st.builds(Button, st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=64)),
    max_size=40,
)


def channel() -> SlackChannel:
    """Return an adapter that sends nothing."""
    return slack(None, None)  # type: ignore[arg-type]


def message(reply: Reply) -> dict:
    """Return the parameters of chat.postMessage for one piece."""
    from sayso.channels.markdown.convert import slack_mrkdwn

    return message_of([slack_mrkdwn(reply.text)], reply.buttons, THREAD.chat, THREAD)


def checked(pieces: list[Reply]) -> None:
    """Check that Slack accepts each piece: its limits, its models, and no token that is not a link of ours."""
    for piece in pieces:
        raw = message(piece)
        assert _message_error("chat.postMessage", raw, raw["blocks"]) == ""
        assert _are_valid(raw["blocks"])
        assert len(raw["blocks"][0]["text"]["text"]) <= SECTION_LIMIT
        for token in re.findall(r"<([^>]*)>?", raw["text"]):
            assert re.match(r"(https?|mailto|tel):", token, re.IGNORECASE)
        assert raw["text"] == raw["blocks"][0]["text"]["text"]


def whole(text: str, pieces: list[Reply]) -> bool:
    """Return whether the pieces have every character of the text in order. Closed and reopened fences are extra."""
    rest = iter("".join(piece.text for piece in pieces))
    return all(char in rest for char in text if not char.isspace())


@given(SOUP, BUTTONS)
def test_any_markdown_with_buttons_arrives(text: str, buttons: list[Button]):
    """platforms.md 3.3: 3000 in a section, 75 on a button, 25 buttons; blocks pass slack_sdk.models unchanged."""
    pieces = list(channel().split(Reply(text, tuple(buttons))))
    checked(pieces)
    assert whole(text, pieces)
    shown = [button for piece in pieces for button in piece.buttons]
    assert shown == (buttons if len(buttons) <= 25 else [])
    if len(buttons) > 25:
        assert whole("".join(button.label for button in buttons), pieces)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(LONG)
def test_any_text_up_to_a_hundred_thousand_characters_arrives(text: str):
    """platforms.md 3.3: Slack would cut none of our pieces again."""
    pieces = list(channel().split(Reply(text)))
    checked(pieces)
    assert whole(text, pieces)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "<!channel> " * 9000,
        "&" * 100_000,
        "| a | b |\n|-|-|\n" * 6000,
        "*" * 100_000,
    ],
)
def test_hundred_thousand_characters_of_one_kind_arrive(text: str):
    """platforms.md 3.3: escapes count, tables are code, and splitting ends in time."""
    pieces = list(channel().split(Reply(text)))
    checked(pieces)
    assert whole(text, pieces)


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="`~"), max_size=300), max_size=60
    ).map(" ".join)
)
def test_joined_pieces_are_the_text(text: str):
    """Without fences the pieces are the text; only a list marker at the start of a cut is escaped."""
    joined = "".join(piece.text for piece in channel().split(Reply(text)))
    assert joined.replace("\\", "") == text.replace("\\", "") or not text.strip()
