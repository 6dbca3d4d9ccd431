"""Gate: strangers and blocked people reach no mailbox, no model and no history, and a removed one confirms nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Turn
from sayso.pending.action import split_button_token
from sayso.testing.stores import MemoryPeople
from sayso.workers.access import (
    AccessConfig,
    AccessControl,
    AccessRules,
    UnknownSender,
    memory_quota,
    redis_quota,
    rules,
)
from sayso.workers.people import LETTERS, RedisPeople, Register
from sayso.workers.spool import Spool, SpoolFile
from tests.contracts.rigs import CHAT, MemoryRig, RedisRig, turn, voice
from tests.workers.fakes import Bot

ENGLISH = texts_for("en")


class Site:
    """A bot behind a gate, all of it in memory or in Redis."""

    def __init__(self, request, kind: str) -> None:
        client = request.getfixturevalue("redis_client") if kind == "redis" else None
        self.rig = RedisRig(client) if client else MemoryRig()
        self.people = RedisPeople(client) if client else MemoryPeople()
        self.quota = redis_quota(client, request.getfixturevalue("redis_url")) if client else memory_quota()
        self.register = Register(self.people)
        self.bot = Bot(self.rig, "A", "B")

    def open(self, **access) -> Site:
        """From now on these rules hold."""
        self.rules: AccessRules = rules(**access)
        config = AccessConfig({"chat": self.rules}, self.people, self.quota)
        self.access_control = AccessControl(self.rig.mailbox, voice, config)
        return self

    def hear(self, text: str = "hello", **fields) -> str:
        """What becomes of a turn at the gate."""
        given = turn(text, **fields)
        parts = split_button_token(given.tap.data) if given.tap else None
        return self.access_control.accept(given, tapped=parts[0] if parts else "").outcome

    def say(self, text: str = "hello", **fields) -> str:
        """A turn, and the last words that arrived."""
        self.hear(text, **fields)
        return self.bot.work()

    @property
    def heard(self) -> list[str]:
        """All that was said to people."""
        self.bot.work()
        return self.bot.channel.texts


@pytest.fixture(params=["memory", "redis"])
def site(request) -> Site:
    """A bot of either kind."""
    return Site(request, request.param)


def test_person_who_was_removed_confirms_nothing(site: Site):
    """Neither by a word nor by the button of a question that waits for them; the same after a block."""
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
    """The configuration was changed and the web started again."""
    site.open(allow=["ana"])
    assert "Delete A" in site.say("delete A")
    site.open(allow=["bob"])
    assert site.hear("yes") == site.hear(tap=site.bot.buttons[0].data) == "unknown_sender"
    site.bot.work()
    assert site.bot.deleted == []


def test_words_of_a_stranger_reach_nobody(site: Site):
    """No model, no history, no mailbox: only the answer is kept."""
    site.open(allow=["bob"])
    assert site.hear("my secret") == "unknown_sender"
    if isinstance(site.rig, RedisRig):
        client = site.rig.client
        kept = [key for key in client.scan_iter("*") if ":in:" in key or ":history:" in key or ":journal:" in key]
        assert kept == []
        assert not any("my secret" in str(client.dump(key)) for key in client.scan_iter("*"))
    assert site.heard == [ENGLISH.stranger()]
    assert site.bot.provider.requests == []


def test_blocked_person_hears_nothing(site: Site):
    """However they write, also while they are approved and listed."""
    site.open(allow=["ana"], block=["ana"])
    site.register.approve("chat", "ana")
    assert [site.hear(text) for text in ("hi", "/whoami", "/stop")] == ["ignored"] * 3
    site.open(allow=["ana"])
    site.register.block("chat", "ana")
    assert site.hear("hi") == site.hear(tap="x" * 40) == "ignored"
    assert site.heard == []


def test_stranger_is_told_once_an_hour(site: Site):
    """Not for each message, whatever they send."""
    site.open(allow=[])
    assert {site.hear(text) for text in ("a", "b", "/stop")} == {"unknown_sender"}
    assert site.heard == [ENGLISH.stranger()]
    site.rig.pass_time(61)
    site.hear("c")
    assert site.heard == [ENGLISH.stranger()]


def test_stranger_who_asks_is_told_their_id(site: Site):
    """Once a minute, so that an operator can add it."""
    site.open(allow=[])
    assert site.say("hello") == ENGLISH.stranger()
    site.rig.pass_time(61)
    for words in ("/whoami", "/start", "/whoami"):
        site.hear(words)
    assert site.heard == [ENGLISH.stranger(), f"{ENGLISH.stranger()}\n{ENGLISH.your_id('ana')}"]


def test_stranger_with_a_code_is_let_in(site: Site):
    """An operator approves the code; then their words are answered."""
    site.open(pairing=True)
    site.hear("hello", user="ana")
    (waits,) = site.people.waiting("chat")
    assert set(waits.code) <= set(LETTERS)
    assert site.heard == [f"{ENGLISH.stranger()}\n{ENGLISH.pairing_code(waits.code, 3600)}"]
    assert (waits.conversation, waits.language, waits.ids) == (CHAT, "en", ("ana",))
    site.register.approve("chat", waits.code)
    assert "Delete A" in site.say("delete A")


def test_too_many_strangers_get_no_code(site: Site):
    """They are told all the same that they are on no list."""
    site.open(pairing=True)
    site.people.code = lambda *_: ""
    site.hear()
    assert site.heard == [ENGLISH.stranger()]


def test_stranger_is_not_forgotten_when_the_word_finds_no_room(site: Site):
    """Another one was told in this room a moment ago: the next message is answered."""
    site.open(allow=[])
    site.hear(user="ana")
    site.hear(user="bob")
    site.rig.pass_time(61)
    site.hear(user="bob")
    assert len(site.heard) == 1  # the first one waited, and the newest takes its place
    assert site.people.was_notified("chat", "bob")


def test_chatter_of_strangers_in_a_group_is_not_answered(site: Site):
    """They talk to others."""
    site.open(pairing=True)
    assert site.hear(addressed=False) == "ignored"
    assert (site.heard, site.people.waiting("chat")) == ([], [])


def test_chatter_of_known_people_is_as_the_groups_rule_says(site: Site):
    """`mention`: as without rules. `always`: each is for the bot."""
    site.open(allow=["ana"])
    assert site.hear(addressed=False) == "ignored"
    site.open(allow=["ana"], groups="always")
    assert site.hear(addressed=False) == "new"


def test_person_who_is_too_fast_is_told_once_and_their_platform_does_not_repeat(site: Site):
    """Over all their conversations on this channel, together; nobody else's."""
    site.open(per_minute=2)
    assert [site.hear(text) for text in "abc"] == ["new", "new", "rate_limited"]
    elsewhere = replace(turn("d"), conversation=Conversation("chat", "elsewhere"))
    accepted = site.access_control.accept(elsewhere)
    assert (accepted.outcome, accepted.refused) == ("rate_limited", False)
    assert site.hear("e") == "rate_limited"
    assert site.hear(user="bob") == "new"
    assert site.heard.count(ENGLISH.too_fast()) == 1


def test_yes_is_never_too_fast(site: Site):
    """Nor a tap, nor a stop: they wait for nobody."""
    site.open(per_minute=1)
    assert "Delete A" in site.say("delete A")
    assert site.say("yes") == "deleted A"
    assert site.hear("and now?") == "rate_limited"
    assert site.hear(tap="x" * 40) == site.hear("/stop") == "new"


def test_turn_that_comes_twice_counts_once(site: Site):
    """Platforms repeat themselves."""
    site.open(per_minute=2)
    assert [site.hear("a", event="e1") for _ in range(3)] == ["new", "duplicate", "duplicate"]
    assert site.hear("b", event="e2") == "new"
    assert [site.hear("b", event="e2"), site.hear("c")] == ["duplicate", "rate_limited"]


def test_chatter_uses_nothing_up(site: Site):
    """What people of a group say to each other is not for the bot."""
    site.open(per_minute=1)
    assert [site.hear(addressed=False) for _ in range(3)] == ["ignored"] * 3
    assert site.hear("bot!") == "new"


def test_hasty_chatter_is_not_answered(site: Site):
    """Nobody asked the bot."""
    site.open(per_minute=1)
    assert [site.hear("hello"), site.hear("to others", addressed=False)] == ["new", "rate_limited"]
    assert ENGLISH.too_fast() not in site.heard


def test_channel_without_rules_is_asked_nothing(site: Site):
    """Its turns go straight in."""
    gate = AccessControl(site.rig.mailbox, voice, AccessConfig({"other": rules(allow=[])}, None))  # type: ignore[arg-type]
    assert gate.accept(turn()).outcome == AccessControl(site.rig.mailbox, voice).accept(turn()).outcome == "new"
    assert gate.ignores(turn()) == ""


def test_redis_that_is_away_lets_nobody_in(site: Site):
    """Who is blocked is not known then."""
    site.open(allow=["ana"])

    def away(*_):
        raise RedisConnectionError("away")

    site.people.decision = away
    with pytest.raises(RedisConnectionError):
        site.hear()


def test_spool_keeps_what_is_judged_when_it_is_handed_over(site: Site, tmp_path):
    """Redis was away: whoever is a stranger by then is turned away, and the limit is not held against anybody."""
    site.open(allow=["ana"], per_minute=1)
    standing, spool = site.people.decision, Spool(SpoolFile(tmp_path), site.access_control)
    spool.watch = lambda: None  # type: ignore[method-assign]
    site.people.decision = lambda *_: away()
    kept: list[Turn] = [turn("a"), turn("b"), replace(turn("c", user="eve"), conversation=Conversation("chat", "eve"))]
    assert [spool.accept(each).outcome for each in kept] == ["spooled"] * 3
    site.people.decision = standing
    assert (spool.forward(), spool.count()) == (3, 0)
    assert len(site.rig.mailbox.lease(CHAT.id, "w")[1].following) == 1
    assert site.people.was_notified("chat", "eve")


def away():
    """What is asked while Redis is away."""
    raise RedisConnectionError("away")


def test_judging_keeps_and_says_nothing(site: Site):
    """Whoever reads a list afterwards asks first: a stranger does not hear of it, and gets no code."""
    site.open(pairing=True)
    assert isinstance(site.access_control.judge(turn()), UnknownSender)
    assert (site.heard, site.people.waiting("chat")) == ([], [])
    assert site.access_control.turn_status(turn(event="e1")) == "unknown"
