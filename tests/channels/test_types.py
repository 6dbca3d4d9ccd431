"""Types: the fields of a turn survive storage, and invalid values are dropped."""

from __future__ import annotations

import json

import pytest

from sayso.channels.types import Button, Conversation, Media, Reply, Tap, Turn, readable_size

WHERE = Conversation("tg", "1")


def turn(language: str) -> Turn:
    """Return a turn with a language hint."""
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
def test_invalid_language_tag_is_dropped(hint: str):
    """Platforms pass on the claims of apps and browsers."""
    assert turn(hint).language == ""


@pytest.mark.parametrize("hint", ["", "de", "pt-BR", "zh-Hant-TW", "es-419", "x" * 16])
def test_a_language_tag_is_kept_and_stored(hint: str):
    """The worker reads the platform's tag."""
    assert turn(hint).language == hint
    assert Turn.from_json(turn(hint).to_json()) == turn(hint)


def test_turn_of_an_older_version_is_read():
    """Its JSON has no language field."""
    stored = turn("").to_json()
    assert "language" not in json.loads(stored)
    assert Turn.from_json(stored).language == ""


def test_reply_of_an_older_version_is_read():
    """Its JSON has no preview, and nothing in it is formatted."""
    reply = Reply("Delete A\n\nReply **yes**", preview="Delete A\ud800")
    assert Reply.from_json(reply.to_json()) == reply
    older = Reply.from_json('{"text":"Delete A"}')
    assert older == older.with_preview(str.upper) == Reply("Delete A")


def test_preview_that_is_not_in_the_text_is_not_formatted():
    """An adapter may have cut the text."""
    reply = Reply("Delete", preview="Delete A")
    assert reply.with_preview(str.upper) == reply


def test_a_stored_hint_is_checked_again():
    """Another client may have written it."""
    stored = json.loads(turn("de").to_json()) | {"language": "../de"}
    assert Turn.from_json(json.dumps(stored)).language == ""


def test_turn_with_lone_surrogates_is_stored():
    """Names of files, labels and what a person looks at come from apps of others."""
    broken = "a\ud83d"
    sent = Turn(
        "e1",
        WHERE,
        "ana",
        broken,
        tap=Tap(broken, label=broken),
        media=(Media("r1", f"image/{broken}", broken),),
        notes=(broken,),
        background=(broken,),
        form={broken: broken},
    )
    assert Turn.from_json(sent.to_json()) == sent
    assert sent.media[0].filename == sent.background[0] == "a?"


def test_reply_with_lone_surrogates_is_stored():
    """A tool may read the labels of choices, and the name of a file, from JSON."""
    broken = "a\ud83d"
    button = Button(broken, "token", effect=broken)
    reply = Reply(
        broken,
        (button,),
        Media("r1", "image/png", broken),
        cause=broken,
        decided_buttons=(button,),
    )
    assert Reply.from_json(reply.to_json()) == reply
    assert reply.buttons[0].label == "a?"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1024, "1 KB"),
        (1536, "1.5 KB"),
        (1020 * 1024, "1020 KB"),
        (1024**2 - 1, "1 MB"),
        (1000 * 1024**2, "1000 MB"),
        (5 * 1024**3, "5 GB"),
        (2000 * 1024**3, "2000 GB"),
    ],
)
def test_size_of_a_file_is_shown_in_plain_digits(size: int, words: str):
    """People read it beside the name of the file."""
    assert readable_size(size) == words
