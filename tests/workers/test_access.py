"""Access control: unknown and blocked people reach no mailbox, model or history, and removed ones confirm nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Received, Turn
from sayso.infra.letter_codes import LETTERS
from sayso.pending.action import split_button_token
from sayso.workers.access import (
    AccessConfig,
    AccessControl,
    AccessRules,
    UnknownSender,
    redis_quota,
)
from sayso.workers.people import PeopleDecisions, RedisPeople
from sayso.workers.spool import Spool, SpoolFile
from tests.contracts.rigs import CHAT, Rig, turn, voice
from tests.workers.fakes import Bot, FakeChannel

ENGLISH = texts_for("en")


class Site:
    """A bot behind access control."""

    def __init__(self, redis_url: str) -> None:
        self.rig = Rig()
        self.people = RedisPeople(self.rig.client)
        self.quota = redis_quota(self.rig.client, redis_url)
        self.register = PeopleDecisions(self.people)
        self.bot = Bot(self.rig, "A", "B")

    def open(self, **access) -> Site:
        """Apply these rules from now on."""
        self.rules: AccessRules = AccessRules(**access)
        config = AccessConfig({"chat": self.rules}, self.people, self.quota)
        self.access_control = AccessControl(self.rig.mailbox, voice, config)
        return self

    def hear(self, text: str = "hello", **fields) -> str:
        """Accept a turn; return the result."""
        given = turn(text, **fields)
        parts = split_button_token(given.tap.data) if given.tap else None
        return self.access_control.accept(given, tapped=parts[0] if parts else "").outcome

    def say(self, text: str = "hello", **fields) -> str:
        """Accept and process a turn; return the last text that arrived."""
        self.hear(text, **fields)
        return self.bot.work()

    @property
    def heard(self) -> list[str]:
        """Return all texts that people got."""
        self.bot.work()
        return self.bot.channel.texts


@pytest.fixture
def site(redis_url: str) -> Site:
    """Return a bot behind access control."""
    return Site(redis_url)


def test_person_who_was_removed_confirms_nothing(site: Site):
    """Neither a text nor a tap on an open question's button counts; the same holds after a block."""
    site.open(pairing=True)
    site.register.approve("chat", "ana")
    assert "Delete A" in site.say("delete A")
    yes = site.bot.buttons[0].data
    for remove in (site.register.forget, site.register.block):
        site.register.approve("chat", "ana")
        remove("chat", "ana")
        assert site.hear("yes") in ("unknown_sender", "ignored")
        assert site.hear(tap=yes) in ("unknown_sender", "ignored")
        site.bot.work()
    assert site.bot.deleted == []


def test_person_who_was_taken_off_the_list_confirms_nothing(site: Site):
    """The configuration changed and the web restarted."""
    site.open(allow=["ana"])
    assert "Delete A" in site.say("delete A")
    site.open(allow=["bob"])
    assert site.hear("yes") == site.hear(tap=site.bot.buttons[0].data) == "unknown_sender"
    site.bot.work()
    assert site.bot.deleted == []


def test_text_of_an_unknown_sender_is_not_stored(site: Site):
    """It reaches no model, history or mailbox; only the answer is stored."""
    site.open(allow=["bob"])
    assert site.hear("my secret") == "unknown_sender"
    client = site.rig.client
    kept = [
        key
        for key in client.scan_iter("*")
        if ":inbox:" in key or ":history:" in key or ":journal:" in key
    ]
    assert kept == []
    assert not any("my secret" in str(client.dump(key)) for key in client.scan_iter("*"))
    assert site.heard == [ENGLISH.stranger()]
    assert site.bot.provider.requests == []


def test_blocked_person_gets_no_reply(site: Site):
    """This holds for every kind of turn, and for people who are approved and listed too."""
    site.open(allow=["ana"], block=["ana"])
    site.register.approve("chat", "ana")
    assert [site.hear(text) for text in ("hi", "/whoami", "/stop")] == ["ignored"] * 3
    site.open(allow=["ana"])
    site.register.block("chat", "ana")
    assert site.hear("hi") == site.hear(tap="x" * 40) == "ignored"
    assert site.heard == []


def test_unknown_sender_is_told_once_an_hour(site: Site):
    """Not every message gets an answer."""
    site.open(allow=[])
    assert {site.hear(text) for text in ("a", "b", "/stop")} == {"unknown_sender"}
    assert site.heard == [ENGLISH.stranger()]
    site.rig.pass_time(61)
    site.hear("c")
    assert site.heard == [ENGLISH.stranger()]


def test_unknown_sender_can_ask_for_their_id(site: Site):
    """They get it once a minute, so that an operator can add it."""
    site.open(allow=[])
    assert site.say("hello") == ENGLISH.stranger()
    site.rig.pass_time(61)
    for words in ("/whoami", "/start", "/whoami"):
        site.hear(words)
    assert site.heard == [ENGLISH.stranger(), f"{ENGLISH.stranger()}\n{ENGLISH.your_id('ana')}"]


def test_unknown_sender_with_an_approved_code_is_let_in(site: Site):
    """After the operator's approval their messages are answered."""
    site.open(pairing=True)
    site.hear("hello", user="ana")
    (waits,) = site.people.waiting("chat")
    assert set(waits.code) <= set(LETTERS)
    assert site.heard == [f"{ENGLISH.stranger()}\n{ENGLISH.pairing_code(waits.code, 3600)}"]
    assert (waits.conversation, waits.language, waits.ids) == (CHAT, "en", ("ana",))
    site.register.approve("chat", waits.code)
    assert "Delete A" in site.say("delete A")


def test_too_many_unknown_senders_get_no_code(site: Site):
    """They are told that they are on no list."""
    site.open(pairing=True)
    site.people.code = lambda *_: ""
    site.hear()
    assert site.heard == [ENGLISH.stranger()]


def test_unknown_sender_is_told_later_if_there_was_no_room(site: Site):
    """Another one was told in this conversation a moment ago; the next message is answered."""
    site.open(allow=[])
    site.hear(user="ana")
    site.hear(user="bob")
    site.rig.pass_time(61)
    site.hear(user="bob")
    assert len(site.heard) == 1  # the first one waited, and the newest takes its place
    assert site.people.was_notified("chat", "bob")


def test_unaddressed_messages_of_unknown_people_in_a_group_are_not_answered(site: Site):
    """They talk to each other."""
    site.open(pairing=True)
    assert site.hear(addressed=False) == "ignored"
    assert (site.heard, site.people.waiting("chat")) == ([], [])


def test_unaddressed_messages_of_known_people_follow_the_rule_of_the_group(site: Site):
    """With `mention` it is as without rules; with `always` each one is for the bot."""
    site.open(allow=["ana"])
    assert site.hear(addressed=False) == "ignored"
    site.open(allow=["ana"], groups="always")
    assert site.hear(addressed=False) == "new"


def test_person_over_the_rate_limit_is_told_once_without_redeliveries(site: Site):
    """All their conversations on this channel count together; other people's do not."""
    site.open(per_minute=2)
    assert [site.hear(text) for text in "abc"] == ["new", "new", "rate_limited"]
    elsewhere = replace(turn("d"), conversation=Conversation("chat", "elsewhere"))
    accepted = site.access_control.accept(elsewhere)
    assert (accepted.outcome, accepted.refused) == ("rate_limited", False)
    assert site.hear("e") == "rate_limited"
    assert site.hear(user="bob") == "new"
    assert site.heard.count(ENGLISH.too_fast()) == 1


def test_yes_has_no_rate_limit(site: Site):
    """A tap and a stop have none either."""
    site.open(per_minute=1)
    assert "Delete A" in site.say("delete A")
    assert site.say("yes") == "deleted A"
    assert site.hear("and now?") == "rate_limited"
    assert site.hear(tap="x" * 40) == site.hear("/stop") == "new"


def test_turn_that_comes_twice_counts_once(site: Site):
    """Platforms repeat deliveries."""
    site.open(per_minute=2)
    assert [site.hear("a", event="e1") for _ in range(3)] == ["new", "duplicate", "duplicate"]
    assert site.hear("b", event="e2") == "new"
    assert [site.hear("b", event="e2"), site.hear("c")] == ["duplicate", "rate_limited"]


def test_unaddressed_messages_do_not_count_against_the_limit(site: Site):
    """Messages between people of a group are not for the bot."""
    site.open(per_minute=1)
    assert [site.hear(addressed=False) for _ in range(3)] == ["ignored"] * 3
    assert site.hear("bot!") == "new"


def test_unaddressed_messages_over_the_limit_are_not_answered(site: Site):
    """The bot was not addressed."""
    site.open(per_minute=1)
    assert [site.hear("hello"), site.hear("to others", addressed=False)] == ["new", "rate_limited"]
    assert ENGLISH.too_fast() not in site.heard


def test_channel_without_rules_makes_no_extra_call(site: Site):
    """Its turns go straight to the mailbox."""
    gate = AccessControl(
        site.rig.mailbox, voice, AccessConfig({"other": AccessRules(allow=[])}, None)
    )  # type: ignore[arg-type]
    assert (
        gate.accept(turn()).outcome
        == AccessControl(site.rig.mailbox, voice).accept(turn()).outcome
        == "new"
    )
    assert gate.ignores(turn()) == ""


def test_redis_outage_lets_no_person_in(site: Site):
    """The blocked people are unknown then."""
    site.open(allow=["ana"])

    def away(*_):
        raise RedisConnectionError("away")

    site.people.decision = away
    with pytest.raises(RedisConnectionError):
        site.hear()


def test_spooled_turn_is_judged_when_it_is_handed_over(site: Site, tmp_path):
    """After an outage, a person who is unknown by then is refused, and the rate limit does not apply."""
    site.open(allow=["ana"], per_minute=1)
    standing, spool = site.people.decision, Spool(SpoolFile(tmp_path), site.access_control)
    spool.watch = lambda: None  # type: ignore[method-assign]
    site.people.decision = lambda *_: away()
    kept: list[Turn] = [
        turn("a"),
        turn("b"),
        replace(turn("c", user="eve"), conversation=Conversation("chat", "eve")),
    ]
    assert [spool.accept(each).outcome for each in kept] == ["spooled"] * 3
    site.people.decision = standing
    assert (spool.forward(), spool.count()) == (3, 0)
    assert len(site.rig.mailbox.lease(CHAT.id, "w")[1].following) == 1
    assert site.people.was_notified("chat", "eve")


class Supergroup(FakeChannel):
    """A platform whose group -551 is now -1551, which it knows while Redis is there."""

    is_known = False

    def note_moves(self, received: Received) -> Received:
        """Return what was received."""
        return received

    def at_first_address(self, turn: Turn) -> Turn:
        """Return the turn as one of the group -551."""
        if not self.is_known:
            away()
        return replace(
            turn, conversation=Conversation("chat", "-551"), chat_now=turn.conversation.chat
        )


def test_turn_of_a_supergroup_waits_in_the_spool_while_its_first_id_is_unknown(tmp_path):
    """It is stored although the list of chats names the group that it was, and becomes a turn of that group."""
    rig, group = Rig(), Supergroup()
    config = AccessConfig({"chat": AccessRules(chats=["-551"])}, RedisPeople(rig.client))
    spool = Spool(
        SpoolFile(tmp_path), AccessControl(rig.mailbox, voice, config, channels={"chat": group})
    )
    spool.watch = lambda: None  # type: ignore[method-assign]
    said = replace(turn("hello"), conversation=Conversation("chat", "-1551"), in_group=True)
    assert spool.accept(said).outcome == "spooled"
    group.is_known = True
    assert (spool.forward(), spool.count()) == (1, 0)
    assert rig.mailbox.lease(Conversation("chat", "-551").id, "w")[1].turn.text == "hello"


def away():
    """Raise the error of an outage."""
    raise RedisConnectionError("away")


def test_judging_stores_and_sends_nothing(site: Site):
    """A poller asks before it stores an update; an unknown person gets no notice and no code by that."""
    site.open(pairing=True)
    assert isinstance(site.access_control.judge(turn()), UnknownSender)
    assert (site.heard, site.people.waiting("chat")) == ([], [])
    assert site.access_control.turn_status(turn(event="e1")) == "unknown"


@pytest.mark.parametrize("listed", ["-551", "-1551"])
def test_supergroup_is_on_the_list_under_either_id(listed: str):
    """The operator wrote the id of the group before it became a supergroup, or the one that it has now."""
    moved = replace(turn(), conversation=Conversation("chat", "-551"), chat_now="-1551")
    assert AccessRules(chats=[listed]).ignores(moved) == ""
    assert AccessRules(chats=["-7"]).ignores(moved) == "chat"
