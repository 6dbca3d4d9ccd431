"""Types: what a turn carries survives storage, and nothing odd gets in."""

from __future__ import annotations

import json

import pytest

from sayso.channels.types import Conversation, Turn

WHERE = Conversation("tg", "1")


def turn(language: str) -> Turn:
    """A turn with a language hint."""
    return Turn("e1", WHERE, "ana", "hi", language=language)


@pytest.mark.parametrize(
    "hint",
    [
        "*",
        "pt_BR",
        "pt BR",
        "-",
        "4",
        "e" * 17,
        "en\n",
        "en\u0000",
        "日本",
        "\ud800",
        "{preview}",
        "../en",
        "e" * 10**6,
    ],
)
def test_a_hint_that_is_no_language_tag_is_dropped(hint: str):
    """Platforms pass on what apps and browsers say."""
    assert turn(hint).language == ""


@pytest.mark.parametrize("hint", ["", "de", "pt-BR", "zh-Hant-TW", "es-419", "x" * 16])
def test_a_language_tag_is_kept_and_stored(hint: str):
    """The worker reads what the platform said."""
    assert turn(hint).language == hint
    assert Turn.from_json(turn(hint).to_json()) == turn(hint)


def test_a_turn_stored_before_there_were_hints_is_read():
    """The field is absent from the JSON when there is no hint."""
    stored = turn("").to_json()
    assert "language" not in json.loads(stored)
    assert Turn.from_json(stored).language == ""


def test_a_stored_hint_is_checked_again():
    """What was not written by us gets no further."""
    stored = json.loads(turn("de").to_json()) | {"language": "../de"}
    assert Turn.from_json(json.dumps(stored)).language == ""
