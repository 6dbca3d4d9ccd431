"""Doors: what a mailbox refuses, joins and lets be stopped, in memory and in Redis alike."""

from __future__ import annotations

import pytest

from channels.types import Reply
from tests.contracts.rigs import CHAT, ENGLISH, turn
from workers.lane import Change, QueuedReply
from workers.mailbox import Limits

ENGLISH_HI = Reply("hi")


def never(_: str) -> bool:
    """Nothing is a yes or a no."""
    return False


def test_one_who_writes_too_fast_is_refused_and_told_once(make_rig):
    """The platform hears it each time, the person once a minute; what was taken is answered."""
    rig = make_rig(limits=Limits(per_minute=60, in_one_go=3))
    assert [rig.accept(turn(str(n))).outcome for n in range(5)] == ["new"] * 3 + ["fast"] * 2
    held, reply = rig.mailbox.lease(CHAT.id, "w1")
    assert reply.delivery(held).reply.text == ENGLISH.too_fast()
    assert rig.outbox.settle(held, reply, receipt="m1").turn.text == "0"


def test_a_refused_event_is_not_remembered(make_rig):
    """The platform's retry counts as new once there is room."""
    rig = make_rig(limits=Limits(waiting=1))
    rig.accept(turn("a"))
    assert rig.accept(turn("b", event="e")).outcome == "full"
    held, reply = rig.mailbox.lease(CHAT.id, "w1")
    work = rig.outbox.settle(held, reply, receipt="m1")
    rig.mailbox.commit(held, work, Change())
    assert rig.accept(turn("b", event="e")).outcome == "new"


def test_taps_and_stops_are_never_too_fast(make_rig):
    """Whoever decides is not kept out by what was said before."""
    rig = make_rig(limits=Limits(per_minute=60, in_one_go=1))
    given = [turn("a"), turn("b"), turn(tap="1x"), turn("/stop")]
    assert [rig.accept(each).outcome for each in given] == ["new", "fast", "new", "new"]


def test_two_people_have_a_pace_each(make_rig):
    """One who floods a group silences nobody else."""
    rig = make_rig(limits=Limits(per_minute=60, in_one_go=1))
    given = [turn("a"), turn("b"), turn("c", user="ben")]
    assert [rig.accept(each).outcome for each in given] == ["new", "fast", "new"]


def test_conversations_beyond_the_crowd_cannot_begin(make_rig):
    """Those at work go on; a new one hears that it is full."""
    rig = make_rig(limits=Crowded())
    assert rig.accept(turn("a")).outcome == "crowded"


def test_a_conversation_at_work_goes_on_in_a_crowd(make_rig):
    """What has begun is finished."""
    limits = Crowded()
    rig = make_rig(limits=limits)
    object.__setattr__(limits, "conversations", 1)
    rig.accept(turn("a"))
    object.__setattr__(limits, "conversations", 0)
    assert rig.accept(turn("b")).outcome == "new"


class Crowded(Limits):
    """No conversation may begin, without the room that a shard has for an uneven spread."""

    def __init__(self) -> None:
        super().__init__(conversations=0)

    @property
    def per_shard(self) -> int:
        """Exactly so many."""
        return self.conversations


def test_a_burst_of_plain_words_is_seen_and_finished_as_one(rig):
    """One answer, and the next turn is the one behind the burst."""
    for text in ("one", "two", "three"):
        rig.accept(turn(text))
    rig.accept(turn(tap="1x"))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    joined = work.joined(never)
    assert (joined.turn.text, joined.last) == ("one\ntwo\nthree", 3)
    assert rig.mailbox.commit(held, joined, Change()).seq == 4


@pytest.mark.parametrize("second", [turn("/help"), turn("two", user="ben"), turn(tap="1x"), turn("yes")])
def test_what_is_not_plain_stays_by_itself(rig, second):
    """A command, somebody else's words, a tap, a yes."""
    rig.accept(turn("one"))
    rig.accept(second)
    _, work = rig.mailbox.lease(CHAT.id, "w1")
    assert work.joined(lambda text: text == "yes") == work


def test_a_joined_commit_sent_twice_finishes_once(rig):
    """The answer was lost: the same again."""
    for text in ("one", "two", "three"):
        rig.accept(turn(text))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    joined = work.joined(never)
    said = Change(replies=((ENGLISH_HI, ""),))
    first, second = rig.mailbox.commit(held, joined, said), rig.mailbox.commit(held, joined, said)
    assert isinstance(first, QueuedReply)
    assert first.number == second.number == 1
    assert rig.outbox.settle(held, first, receipt="m1") is None


def test_stop_is_heard_by_the_holder(rig):
    """By the next renewal, and by whoever takes the lane after a crash."""
    rig.accept(turn("a"))
    held, _ = rig.mailbox.lease(CHAT.id, "w1")
    assert rig.mailbox.renew(held) == 0
    rig.accept(turn("/stop@shop_bot"))
    assert rig.mailbox.renew(held) == 2
    rig.end_lease()
    _, work = rig.mailbox.lease(CHAT.id, "w2")
    assert work.is_stopped


def test_a_stop_with_nothing_before_it_stops_nothing(rig):
    """It only says so."""
    rig.accept(turn("/stop"))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    assert (work.stop, rig.mailbox.renew(held)) == (0, 0)
