"""Access rules: who may talk, decided from the lists alone, blocked people first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.channels.types import Conversation, Tap, Turn
from sayso.workers.access import (
    AccessRules,
    Admitted,
    Ignored,
    UnknownSender,
    asks_for_id,
    role_names,
)


def turn(user: str = "ana", text: str = "hi", *, chat: str = "room", **more) -> Turn:
    """Return a turn of a person."""
    return Turn("e1", Conversation("chat", chat), user, text, **more)


NAMES = st.sampled_from(
    ["ana", "bob", "+4915", "whatsapp:+4915", "WhatsApp:+4915", "DE.12ab", "whatsapp:de.12AB", ""]
)
PEOPLE = st.lists(NAMES, max_size=4)


@given(
    allow=st.none() | PEOPLE, block=PEOPLE, chats=st.none() | PEOPLE, pairing=st.booleans(), id_prefix=st.sampled_from(["", "whatsapp:"]),
    groups=st.sampled_from(["mention", "always", "never"]), user=NAMES, aliases=PEOPLE, addressed=st.booleans(),
    in_group=st.booleans(), tap=st.booleans(), standing=st.sampled_from(["approved", "blocked", ""]),
)  # fmt: skip
def test_blocked_person_never_gets_in(
    allow,
    block,
    chats,
    pairing,
    id_prefix,
    groups,
    user,
    aliases,
    addressed,
    in_group,
    tap,
    standing,
):
    """This holds for any list, id, text or tap, and the person is never told why."""
    said = turn(
        user,
        aliases=tuple(aliases),
        addressed=addressed,
        in_group=in_group,
        tap=Tap("x") if tap else None,
        chat="c",
    )
    asked = AccessRules(
        allow=allow, block=block, pairing=pairing, groups=groups, chats=chats, id_prefix=id_prefix
    )
    verdict = asked.judge(said, lambda _: standing)
    if standing == "blocked" or set(block) & {name for name in (user, *aliases) if name}:
        assert isinstance(verdict, Ignored)
    if isinstance(verdict, Admitted) and (allow is not None or pairing):
        assert standing == "approved" or set(asked.ids(said)) & (asked.allow or set())


def test_block_beats_allow():
    """A person may be on both lists."""
    assert AccessRules(allow=["ana"], block=["ana"]).judge(turn(), lambda _: "approved") == Ignored(
        "blocked"
    )


def test_tap_of_a_blocked_person_is_ignored():
    """Their texts are ignored too."""
    assert AccessRules(block=["ana"]).judge(turn(tap=Tap("c:1"))) == Ignored("blocked")


def test_without_a_list_everybody_may_talk():
    """Rules for groups restrict no person."""
    assert AccessRules(groups="never").judge(turn()) == Admitted(turn())


def test_person_on_no_list_is_unknown():
    """This holds for texts and taps; an empty list lets no person in."""
    for allow in (["bob"], []):
        assert AccessRules(allow=allow).judge(turn()) == UnknownSender()
        assert AccessRules(allow=allow).judge(turn(tap=Tap("c:1"))) == UnknownSender()


def test_pairing_makes_every_person_unknown_first():
    """An operator's approval or the list lets them in."""
    asked = AccessRules(pairing=True)
    assert asked.judge(turn()) == UnknownSender()
    assert asked.judge(turn(), lambda _: "approved") == Admitted(turn())
    assert AccessRules(pairing=True, allow=["ana"]).judge(turn()) == Admitted(turn())


def test_turn_without_an_id_is_ignored():
    """Its person is neither let in nor told. An empty entry of a list matches no person."""
    assert AccessRules(allow=[""]).judge(turn("")) == Ignored("unknown_sender")
    assert AccessRules(allow=["whatsapp:"], id_prefix="whatsapp:").judge(
        turn("", chat="whatsapp:")
    ) == Ignored("unknown_sender")


@pytest.mark.parametrize("entry", ["ana", "+4915", "B12"])
def test_any_id_of_a_person_names_them(entry: str):
    """A person may have an account and a phone number."""
    asked = AccessRules(allow=[entry])
    assert asked.judge(turn(aliases=("+4915", "B12"))) == Admitted(turn(aliases=("+4915", "B12")))


def test_ids_are_compared_exactly():
    """Slack's ids are in upper case, and a prefix is another id."""
    assert AccessRules(allow=["u0ana", "U0AN"]).judge(turn("U0ANA")) == UnknownSender()


@pytest.mark.parametrize(
    "entry", ["+4915100000042", "whatsapp:+4915100000042", "WhatsApp:+4915100000042"]
)
def test_phone_numbers_match_with_and_without_their_platform(entry: str):
    """platforms.md 1, Identity: addresses are whatsapp:+E.164; a bare number of the YAML means the same."""
    asked = AccessRules(allow=[entry], id_prefix="whatsapp:")
    said = turn("whatsapp:+4915100000042", chat="whatsapp:+4915100000042")
    assert asked.judge(said) == Admitted(said)
    assert (
        asked.judge(turn("whatsapp:+49151000000421", chat="whatsapp:+49151000000421"))
        == UnknownSender()
    )


def test_whatsapp_address_is_an_id_of_its_person():
    """It counts beside the account that came with it; on other platforms a chat is no person."""
    assert AccessRules(block=["+4915"], id_prefix="whatsapp:").judge(
        turn("DE.1", chat="whatsapp:+4915")
    ) == Ignored("blocked")
    assert AccessRules(block=["+4915"]).judge(turn("DE.1", chat="+4915")) == Admitted(
        turn("DE.1", chat="+4915")
    )


def test_other_chats_are_ignored():
    """The bot was added where it should not answer."""
    assert AccessRules(chats=["C1"]).judge(turn(chat="C2")) == Ignored("chat")
    assert AccessRules(chats=["C1"]).judge(turn(chat="C1")) == Admitted(turn(chat="C1"))


@pytest.mark.parametrize(
    "more", [{"in_group": True}, {"addressed": False}, {"in_group": True, "tap": Tap("x")}]
)
def test_groups_are_ignored_with_never(more):
    """This includes messages that address the bot, and taps."""
    assert AccessRules(groups="never").judge(turn(**more)) == Ignored("group")


def test_every_message_of_a_group_counts_with_always():
    """It counts as addressed."""
    chatter = turn(in_group=True, addressed=False)
    assert AccessRules(groups="always").judge(chatter) == Admitted(turn(in_group=True))
    assert AccessRules(groups="mention").judge(chatter) == Admitted(chatter)


def test_unknown_people_who_talk_to_others_are_not_told():
    """A message in a group that does not address the bot, or an edit, needs no answer."""
    for groups in ("mention", "always"):
        asked = AccessRules(allow=[], groups=groups)
        assert asked.judge(turn(in_group=True, addressed=False)) == Ignored("unknown_sender")
    assert AccessRules(allow=[]).judge(turn(kind="edit")) == Ignored("unknown_sender")


@pytest.mark.parametrize(
    ("words", "asks"),
    [("/whoami", True), ("/start", True), (" /WhoAmI@my_bot x", True), ("/start abc", True), ("/starting", False),
     ("who am i", False), ("say /whoami", False), ("", False)],
)  # fmt: skip
def test_commands_ask_for_the_senders_id(words: str, asks: bool):
    """Only commands do; platforms.md 2: in groups Telegram appends the bot's name."""
    assert asks_for_id(turn(text=words)) is asks


def test_roles_of_phone_numbers_are_found_with_and_without_their_platform():
    """A turn may spell its user either way."""
    assert role_names([("+49", "a"), ("DE.1", "b")], prefix="whatsapp:") == {
        "+49": "a", "whatsapp:+49": "a", "DE.1": "b", "whatsapp:DE.1": "b",
    }  # fmt: skip
    assert role_names([("+49", "a")], prefix="") == {"+49": "a"}
