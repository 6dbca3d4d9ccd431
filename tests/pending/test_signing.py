"""Signing: a button works for one action, one intent and one person, and only with a valid signature."""

from __future__ import annotations

import string

import pytest

from sayso.channels.types import Conversation, Scope
from sayso.pending.action import ActionSigner, ButtonPress, PendingAction, split_button_token
from sayso.pending.audit.entries import EntrySigner

PID = "A" * 22
ANA = Scope("ana", Conversation("chat", "room"))
SEAL = ActionSigner(["key"])


@pytest.mark.parametrize("place", range(40))
def test_each_flipped_character_is_refused(place):
    """A button with one changed letter is refused."""
    good = SEAL.button_token(PID, "confirm", ANA)
    for letter in string.ascii_letters + string.digits + "-_ é\x00":
        forged = good[:place] + letter + good[place + 1 :]
        assert (SEAL.read_button(forged, ANA) is not None) == (forged == good)


@pytest.mark.parametrize(
    "other",
    [
        Scope("bob", ANA.conversation),
        Scope("ana", Conversation("chat", "elsewhere")),
        Scope("ana", Conversation("mail", "room")),
        Scope("ana", Conversation("chat", "room", "thread")),
    ],
)
def test_button_of_another_person_or_conversation_is_refused(other):
    """A copied button does nothing."""
    assert SEAL.read_button(SEAL.button_token(PID, "confirm", ANA), other) is None


@pytest.mark.parametrize(
    "data", ["", "1", "x" * 40, "1" + "A" * 21 + " y" + "B" * 16, "é" * 40, "1" * 41, "1" * 10_000]
)
def test_text_that_does_not_look_like_a_button_is_none(data):
    """The id of a button becomes part of the mailbox's format, so only letters of the alphabet may pass."""
    assert split_button_token(data) is None
    assert SEAL.read_button(data, ANA) is None


def test_button_of_another_key_is_refused():
    """A button cannot be made without the key."""
    assert ActionSigner(["other"]).read_button(SEAL.button_token(PID, "confirm", ANA), ANA) is None


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_button_holds_the_signed_values(intent):
    """It fits in Telegram's 64 bytes."""
    data = SEAL.button_token(PID, intent, ANA)
    assert SEAL.read_button(data, ANA) == ButtonPress(PID, intent)
    assert len(data.encode()) <= 64


@pytest.mark.parametrize("place", range(10))
def test_choice_button_holds_its_number(place):
    """It is no answer to a question, and does not work in another conversation."""
    data = SEAL.choice_token(PID, place, ANA)
    assert SEAL.read_button(data, ANA) == ButtonPress(PID, choice=place)
    assert SEAL.read_button(f"{data[:23]}{(place + 1) % 10}{data[24:]}", ANA) is None
    assert len(data.encode()) <= 64


@pytest.mark.parametrize("place", [-1, 10, 99])
def test_choice_without_a_number_has_no_button(place):
    """One character holds the number."""
    with pytest.raises(ValueError, match="ten places"):
        SEAL.choice_token(PID, place, ANA)


def test_ids_of_actions_fit_in_a_button():
    """A button of any action id can be read."""
    for _ in range(200):
        pid = PendingAction("ana", "k", "p").pending_action_id
        assert SEAL.read_button(SEAL.button_token(pid, "cancel", ANA), ANA).action_id == pid


def test_rotated_keys_accept_the_old_and_sign_with_the_new():
    """Open questions stay valid while the old key is listed."""
    rotated = ActionSigner(["new", "key"])
    assert rotated.read_button(SEAL.button_token(PID, "confirm", ANA), ANA)
    assert rotated.verify("record", SEAL.sign("record"))
    assert ActionSigner(["new"]).verify("record", rotated.sign("record"))
    assert not SEAL.verify("record", rotated.sign("record"))


@pytest.mark.parametrize("mac", ["", "0" * 64, "é", SEAL.sign("other")])
def test_wrong_mac_is_refused(mac):
    """This holds for a MAC that is not hexadecimal too."""
    assert not SEAL.verify("record", mac)


@pytest.mark.parametrize("signs", [ActionSigner, EntrySigner])
@pytest.mark.parametrize("keys", [[], [""], ["key", ""]])
def test_missing_key_is_refused(keys, signs):
    """Any attacker could sign with an empty key."""
    with pytest.raises(
        ValueError,
        match=r"^no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data",
    ):
        signs(keys)


def test_signatures_of_earlier_versions_are_valid():
    """Buttons in chats, open records and rows of a ledger outlive the code that signed them."""
    assert SEAL.button_token(PID, "confirm", ANA) == "1AAAAAAAAAAAAAAAAAAAAAAyYZwxq9pgT6VALM7t"
    assert SEAL.sign("text") == "9cbf5fd9ca48aac6a0255f4d9adb0e3726dfc1af2172179fe67a4b03a4ff2538"
    signed = EntrySigner(["key"]).sign("entry", 1, 2, "text", None, True)
    assert signed == "1a05b74c23d5cb72c2bda41f394fc5fe3cc34a247c058d8a6f3f635ac4edb27e"
