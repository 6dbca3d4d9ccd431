"""Admission: who may talk, decided from the lists alone, blocked people first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.channels.types import Conversation, Tap, Turn
from sayso.workers.access import Admitted, Ignored, UnknownSender, asks_for_id, role_names, rules


def turn(user: str = "ana", text: str = "hi", *, chat: str = "room", **more) -> Turn:
    """A turn of somebody."""
    return Turn("e1", Conversation("chat", chat), user, text, **more)


NAMES = st.sampled_from(["ana", "bob", "+4915", "whatsapp:+4915", "WhatsApp:+4915", "DE.12ab", "whatsapp:de.12AB", ""])
PEOPLE = st.lists(NAMES, max_size=4)


@given(
    allow=st.none() | PEOPLE, block=PEOPLE, chats=st.none() | PEOPLE, pairing=st.booleans(), phones=st.booleans(),
    groups=st.sampled_from(["mention", "always", "never"]), user=NAMES, aliases=PEOPLE, addressed=st.booleans(),
    in_group=st.booleans(), tap=st.booleans(), standing=st.sampled_from(["approved", "blocked", ""]),
)  # fmt: skip
def test_blocked_person_never_gets_in(
    allow, block, chats, pairing, phones, groups, user, aliases, addressed, in_group, tap, standing
):
    """Whatever else the lists say, by any of their ids, with words or a tap, and never told why."""
    said = turn(
        user, aliases=tuple(aliases), addressed=addressed, in_group=in_group, tap=Tap("x") if tap else None, chat="c"
    )
    asked = rules(allow=allow, block=block, pairing=pairing, groups=groups, chats=chats, phones=phones)
    verdict = asked.judge(said, lambda _: standing)
    if standing == "blocked" or set(block) & {name for name in (user, *aliases) if name}:
        assert isinstance(verdict, Ignored)
    if isinstance(verdict, Admitted) and (allow is not None or pairing):
        assert standing == "approved" or set(asked.ids(said)) & (asked.allow or set())


def test_block_beats_allow():
    """Somebody may be on both lists."""
    assert rules(allow=["ana"], block=["ana"]).judge(turn(), lambda _: "approved") == Ignored("blocked")


def test_tap_of_a_blocked_person_is_ignored():
    """As their words are."""
    assert rules(block=["ana"]).judge(turn(tap=Tap("c:1"))) == Ignored("blocked")


def test_without_a_list_everybody_may_talk():
    """The rules of groups alone restrict no person."""
    assert rules(groups="never").judge(turn()) == Admitted(turn())


def test_who_is_on_no_list_is_a_stranger():
    """Words and taps alike; an empty list lets nobody in."""
    for allow in (["bob"], []):
        assert rules(allow=allow).judge(turn()) == UnknownSender()
        assert rules(allow=allow).judge(turn(tap=Tap("c:1"))) == UnknownSender()


def test_pairing_makes_everybody_a_stranger_first():
    """Until an operator approves them, or the list names them."""
    asked = rules(pairing=True)
    assert asked.judge(turn()) == UnknownSender()
    assert asked.judge(turn(), lambda _: "approved") == Admitted(turn())
    assert rules(pairing=True, allow=["ana"]).judge(turn()) == Admitted(turn())


def test_one_without_an_id_is_nobody():
    """Neither let in nor told: an empty entry of a list is nobody either."""
    assert rules(allow=[""]).judge(turn("")) == Ignored("unknown_sender")
    assert rules(allow=["whatsapp:"], phones=True).judge(turn("", chat="whatsapp:")) == Ignored("unknown_sender")


@pytest.mark.parametrize("entry", ["ana", "+4915", "B12"])
def test_any_id_of_a_person_names_them(entry: str):
    """An account, a phone number beside it."""
    asked = rules(allow=[entry])
    assert asked.judge(turn(aliases=("+4915", "B12"))) == Admitted(turn(aliases=("+4915", "B12")))


def test_ids_are_compared_exactly():
    """Slack's are in upper case; a beginning is another id."""
    assert rules(allow=["u0ana", "U0AN"]).judge(turn("U0ANA")) == UnknownSender()


@pytest.mark.parametrize("entry", ["+4915100000042", "whatsapp:+4915100000042", "WhatsApp:+4915100000042"])
def test_phone_numbers_match_with_and_without_their_platform(entry: str):
    """platforms.md 1, Identity: addresses are whatsapp:+E.164; a bare number of the YAML means the same."""
    asked = rules(allow=[entry], phones=True)
    said = turn("whatsapp:+4915100000042", chat="whatsapp:+4915100000042")
    assert asked.judge(said) == Admitted(said)
    assert asked.judge(turn("whatsapp:+49151000000421", chat="whatsapp:+49151000000421")) == UnknownSender()


def test_whatsapp_address_is_an_id_of_its_person():
    """Beside the account that came with it; elsewhere a chat is no person."""
    assert rules(block=["+4915"], phones=True).judge(turn("DE.1", chat="whatsapp:+4915")) == Ignored("blocked")
    assert rules(block=["+4915"]).judge(turn("DE.1", chat="+4915")) == Admitted(turn("DE.1", chat="+4915"))


def test_other_chats_are_ignored():
    """Quietly: the bot was added where it has nothing to say."""
    assert rules(chats=["C1"]).judge(turn(chat="C2")) == Ignored("chat")
    assert rules(chats=["C1"]).judge(turn(chat="C1")) == Admitted(turn(chat="C1"))


@pytest.mark.parametrize("more", [{"in_group": True}, {"addressed": False}, {"in_group": True, "tap": Tap("x")}])
def test_groups_are_ignored_where_they_are_never_for_the_bot(more):
    """Also where it is addressed, and taps there."""
    assert rules(groups="never").judge(turn(**more)) == Ignored("group")


def test_every_message_of_a_group_may_be_for_the_bot():
    """It counts as addressed then."""
    chatter = turn(in_group=True, addressed=False)
    assert rules(groups="always").judge(chatter) == Admitted(turn(in_group=True))
    assert rules(groups="mention").judge(chatter) == Admitted(chatter)


def test_strangers_who_talk_to_others_are_not_told():
    """What is said in a group and not to the bot, or edited, asks for no answer."""
    for groups in ("mention", "always"):
        asked = rules(allow=[], groups=groups)
        assert asked.judge(turn(in_group=True, addressed=False)) == Ignored("unknown_sender")
    assert rules(allow=[]).judge(turn(kind="edit")) == Ignored("unknown_sender")


@pytest.mark.parametrize(
    ("words", "asks"),
    [("/whoami", True), ("/start", True), (" /WhoAmI@my_bot x", True), ("/start abc", True), ("/starting", False),
     ("who am i", False), ("say /whoami", False), ("", False)],
)  # fmt: skip
def test_who_asks_for_their_id(words: str, asks: bool):
    """Commands only; platforms.md 2: in groups Telegram puts the bot's name behind them."""
    assert asks_for_id(turn(text=words)) is asks


def test_roles_of_phone_numbers_are_found_with_and_without_their_platform():
    """A turn's user may be spelled either way."""
    assert role_names([("+49", "a"), ("DE.1", "b")], phones=True) == {
        "+49": "a", "whatsapp:+49": "a", "DE.1": "b", "whatsapp:DE.1": "b",
    }  # fmt: skip
    assert role_names([("+49", "a")], phones=False) == {"+49": "a"}
