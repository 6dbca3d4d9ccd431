"""People: operators' decisions count at once and stay, codes last an hour. On one server and on a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from redis import Redis

from sayso.channels.types import Conversation
from sayso.infra.letter_codes import LETTERS, new_code
from sayso.workers import people as room
from sayso.workers.people import (
    PeopleDecisions,
    RedisPeople,
    TooManyPeople,
    UnknownPerson,
    WaitingSender,
)

CHAT = Conversation("wa", "whatsapp:+4915", "t1")
ANA = WaitingSender(("+4915", "DE.1"), "Ana ✨", CHAT, "de")


class PeopleRig:
    """The store in Redis. Its clock cannot be moved, so stored times move back instead."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.people = RedisPeople(client)
        self.register = PeopleDecisions(self.people)

    def pass_time(self, seconds: int) -> None:
        """Move back the start of each wait, and shorten the keys' TTLs."""
        for name, entry in self.client.hgetall("sayso:waiting:wa").items():
            at, _, rest = entry.partition(" ")
            self.client.hset("sayso:waiting:wa", name, f"{int(at) - seconds} {rest}")
        for key in self.client.scan_iter("sayso:notified:*"):
            self.client.expire(key, self.client.ttl(key) - seconds)


@pytest.fixture(params=["redis", "cluster"])
def rig(request):
    """Return a store of each kind with its clock."""
    return PeopleRig(request.getfixturevalue(f"{request.param}_client"))


@pytest.fixture
def people(rig):
    """Return the store alone."""
    return rig.people


@pytest.fixture
def register(rig):
    """Return the access list that operators use, over the store."""
    return rig.register


def test_blocked_beats_approved(people, register):
    """A person has two ids, and one of them is blocked."""
    register.approve("wa", "+4915")
    register.block("wa", "DE.1")
    assert (
        people.decision("wa", ["+4915", "DE.1"])
        == people.decision("wa", ["DE.1", "+4915"])
        == "blocked"
    )


def test_block_by_code_holds_for_every_id(people, register):
    """A person who comes back under the other id is blocked too."""
    code = people.code("wa", ANA)
    register.block("wa", code)
    assert [people.decision("wa", [name]) for name in ANA.ids] == ["blocked", "blocked"]
    assert people.waiting("wa") == []


def test_block_of_an_approved_person_holds_for_every_id(people, register):
    """The operator names one of them."""
    register.approve("wa", people.code("wa", ANA))
    register.block("wa", "DE.1")
    assert people.decision("wa", ["+4915"]) == "blocked"


def test_unknown_person_has_no_decision(people):
    """A person without ids has none, and waiting makes none."""
    people.code("wa", ANA)
    assert people.decision("wa", ["+4915"]) == people.decision("wa", []) == ""


def test_code_works_once(people, register):
    """It may be typed in any case. Afterwards it belongs to no waiting person and does not count as an id."""
    code = people.code("wa", ANA)
    told = register.approve("wa", code.lower())
    assert replace(told, at=0.0) == replace(ANA, code=code)
    assert people.decision("wa", ["DE.1"]) == "approved"
    register.forget("wa", "DE.1")
    with pytest.raises(UnknownPerson, match="a code is good for an hour"):
        register.approve("wa", code)
    assert people.listed("wa") == []


def test_code_of_another_channel_is_unknown(people, register):
    """Channels do not share people."""
    code = people.code("wa", ANA)
    with pytest.raises(UnknownPerson):
        register.approve("tg", code)
    register.approve("wa", code)
    assert people.decision("tg", ["+4915"]) == ""


def test_code_expires_after_an_hour(rig):
    """Then the person gets another code."""
    code = rig.people.code("wa", ANA)
    rig.pass_time(3500)
    assert [each.code for each in rig.people.waiting("wa")] == [code]
    rig.pass_time(200)
    assert rig.people.waiting("wa") == []
    with pytest.raises(UnknownPerson):
        rig.register.approve("wa", code)
    assert rig.people.code("wa", ANA) != code


def test_person_who_asks_again_gets_the_same_code(people):
    """This holds for any conversation; the first one is the one that is told."""
    code = people.code("wa", ANA)
    assert people.code("wa", replace(ANA, conversation=Conversation("wa", "group"))) == code
    assert [each.conversation for each in people.waiting("wa")] == [CHAT]


def test_a_hundred_wait_at_most(rig):
    """One more gets no code, the waiting ones keep theirs, and an hour later there is room."""
    codes = {rig.people.code("wa", replace(ANA, ids=(f"u{n}",))) for n in range(100)}
    assert len(codes) == 100
    assert rig.people.code("wa", ANA) == ""
    assert rig.people.code("wa", replace(ANA, ids=("u7",))) in codes
    rig.pass_time(3601)
    assert rig.people.code("wa", ANA) != ""


def test_unknown_person_is_told_once_an_hour(rig):
    """Each person has an hour of their own."""
    assert not rig.people.was_notified("wa", "+4915")
    rig.people.record_notified("wa", "+4915")
    assert rig.people.was_notified("wa", "+4915")
    assert not rig.people.was_notified("tg", "+4915")
    assert not rig.people.was_notified("wa", "+4916")
    rig.pass_time(3601)
    assert not rig.people.was_notified("wa", "+4915")


def test_decision_stays_until_it_is_removed(rig):
    """It lasts longer than any code, and the newest decision counts."""
    rig.register.approve("wa", "+4915")
    rig.pass_time(10**6)
    assert rig.people.decision("wa", ["+4915"]) == "approved"
    rig.register.block("wa", "+4915")
    rig.register.approve("wa", "+4915")
    assert rig.people.decision("wa", ["+4915"]) == "approved"
    rig.register.forget("wa", "+4915")
    assert rig.people.decision("wa", ["+4915"]) == ""


def test_waiting_person_can_be_refused(people, register):
    """The person has to ask again and gets another code."""
    code = people.code("wa", ANA)
    register.forget("wa", code)
    assert people.waiting("wa") == []
    assert people.code("wa", ANA) != code


def test_forgotten_person_is_notified_again(rig):
    """Nothing is left of them, so they get a code at their next message."""
    rig.people.code("wa", ANA)
    rig.people.record_notified("wa", ANA.ids[0])
    rig.register.forget("wa", "DE.1")
    assert not rig.people.was_notified("wa", ANA.ids[0])


def test_known_name_survives_a_sender_without_one(people, register):
    """A person may hide their name before they write under another id."""
    register.approve("wa", people.code("wa", replace(ANA, ids=("DE.1",))))
    people.code("wa", replace(ANA, ids=("+4915", "DE.1"), name=""))
    register.block("wa", "+4915")
    (person,) = people.listed("wa")
    assert (person.name, person.ids) == ("Ana ✨", ("+4915", "DE.1"))


def test_unknown_person_cannot_be_removed(people, register):
    """The operator learns of a typing mistake."""
    with pytest.raises(UnknownPerson, match="nothing is kept of '\\+49'"):
        register.forget("wa", "+49")


def test_each_person_is_listed_once(people, register):
    """The entry has the name and the ids."""
    register.approve("wa", people.code("wa", ANA))
    register.block("wa", "U0SPAM")
    assert {(each.ids, each.state, each.name) for each in people.listed("wa")} == {
        (("+4915", "DE.1"), "approved", "Ana ✨"),
        (("U0SPAM",), "blocked", ""),
    }


def test_people_are_bounded(people, register, monkeypatch):
    """A decision about a known person is still possible."""
    monkeypatch.setattr(room, "MAX_PEOPLE", 2)
    register.approve("wa", "a")
    register.approve("wa", "b")
    with pytest.raises(TooManyPeople, match="forget some first"):
        register.block("wa", "c")
    register.block("wa", "b")
    assert people.decision("wa", ["b", "c"]) == "blocked"
    assert people.decision("wa", ["c"]) == ""


def test_any_text_is_an_id(people, register):
    """Ids come from the platforms."""
    name = "a b\n'\"é\x00" + "x" * 300
    register.block("wa", people.code("wa", replace(ANA, ids=(name,), name="\n {}")))
    assert people.decision("wa", [name]) == "blocked"


def test_codes_are_random_and_unambiguous():
    """They have eight letters, no digit and no vowel, unlike the id of any platform."""
    codes = {new_code() for _ in range(1000)}
    assert len(codes) == 1000
    assert all(len(code) == 8 and set(code) <= set(LETTERS) for code in codes)
    assert not set(LETTERS) & set("AEIOUY01L")


def test_two_processes_share_decisions(redis_client: Redis):
    """Each process has its own store object over the same server."""
    here, there = RedisPeople(redis_client), RedisPeople(redis_client)
    code = here.code("wa", ANA)
    assert there.code("wa", ANA) == code
    PeopleDecisions(there).approve("wa", code)
    assert here.decision("wa", ["+4915"]) == "approved"


def test_redis_keeps_decisions_for_ever_and_the_rest_for_an_hour(redis_client: Redis):
    """A person who was only told is stored as a hash."""
    people = RedisPeople(redis_client)
    people.code("wa", ANA)
    people.record_notified("wa", "+4915")
    PeopleDecisions(people).approve("wa", "+4916")
    ttls = {key: redis_client.ttl(key) for key in redis_client.scan_iter()}
    assert ttls["sayso:people:wa"] == -1
    assert 3500 < ttls["sayso:waiting:wa"] <= 3600
    assert all("4915" not in key for key in ttls)
    assert json.loads(redis_client.hget("sayso:people:wa", "+4916"))["state"] == "approved"


def test_each_question_of_a_webhook_is_one_round_trip(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
):
    """A webhook waits for the answer."""
    people, asked = RedisPeople(redis_client), []
    ask: Callable[..., object] = people._connections.ask
    monkeypatch.setattr(
        people._connections, "ask", lambda *command: asked.append(command[0]) or ask(*command)
    )
    people.decision("wa", ["a", "b", "c"])
    assert asked == ["HMGET"]
