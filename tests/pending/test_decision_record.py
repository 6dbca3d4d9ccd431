"""Records of decisions: every changed field breaks the seal, and nothing unreadable is half read."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from sayso.channels.types import Conversation, Tap, Turn
from sayso.pending.action import ActionSigner
from sayso.pending.decision_record import DecisionRecord

SIGNER = ActionSigner(["key"])
ROOM = Conversation("chat", "room")
TURN = Turn("e1", ROOM, "ana", "yes", "Ana", message_id="m7", replied_to="m5")
RECORD = DecisionRecord.of_turn(TURN, "A" * 22, "mac", "yes", at=1.5).sealed(SIGNER)


@pytest.mark.parametrize("name", [each.name for each in fields(DecisionRecord)])
def test_changed_field_breaks_the_seal(name):
    """The seal is over all fields."""
    value = 2.5 if name == "at" else "changed"
    assert not replace(RECORD, **{name: value}).is_genuine(SIGNER)


def test_seal_of_another_key_is_refused_and_of_an_old_key_accepted():
    """Keys rotate while actions wait."""
    assert RECORD.is_genuine(ActionSigner(["new", "key"]))
    assert not RECORD.is_genuine(ActionSigner(["new"]))


def test_record_is_read_as_it_was_written():
    """JSON keeps each field."""
    assert DecisionRecord.from_json(RECORD.to_json()) == RECORD
    assert "seal" in json.loads(RECORD.to_json())


def test_words_name_their_message_and_the_quoted_one():
    """A person may answer one of several messages by quoting it."""
    assert (RECORD.words, RECORD.message_id, RECORD.question_message_id) == ("yes", "m7", "m5")


def test_tap_names_the_message_with_the_button():
    """A tap has no message of its own, and no words."""
    turn = replace(TURN, text="", tap=Tap("token"))
    record = DecisionRecord.of_turn(turn, "A" * 22, "mac", "no", at=1.5)
    assert (record.form, record.words) == ("tap", "")
    assert (record.message_id, record.question_message_id) == ("", "m7")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "{}",
        '{"at": "now"}',
        "[" * 100_000,
        json.dumps({**json.loads(RECORD.to_json()), "surprise": 1}),
        json.dumps({**json.loads(RECORD.to_json()), "words": ["yes"]}),
    ],
)
def test_unreadable_record_is_refused(text):
    """It may have been changed in Redis."""
    with pytest.raises((ValueError, TypeError)):
        DecisionRecord.from_json(text)
