"""Journals: what every store of journals promises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.channels.types import Reply
from sayso.pending.turns.change import TurnChange
from sayso.pending.turns.queued import LeaseLost, StaleTurn
from tests.contracts.rigs import CHAT, RedisRig, turn

SAID = TurnChange(replies=((Reply("hi"), ""),))


def begun(rig, *texts: str):
    """These were said; a worker has begun the first."""
    for text in texts or ("a",):
        rig.accept(turn(text))
    return rig.mailbox.lease(CHAT.id, "w1")


def taken_over(rig, token="w2"):
    """The next worker takes over from one that died: its lease, and what it sees."""
    rig.end_lease()
    return rig.mailbox.lease(CHAT.id, token)


def test_journal_of_a_lost_lease_takes_nothing(rig):
    """A paused worker that comes back must not go on: its journal is somebody else's by now."""
    old, work = begun(rig)
    rig.journals.journal(old, work.seq, 0, ["head"])
    new, _ = taken_over(rig)
    with pytest.raises(LeaseLost):
        rig.journals.journal(old, work.seq, 1, ["late"])
    rig.journals.journal(new, work.seq, 1, ["next"])
    assert taken_over(rig, "w3")[1].journal == ("head", "next")


def test_next_worker_sees_the_journal_of_the_turn(rig):
    """In order, however many writes it took."""
    held, work = begun(rig)
    assert work.journal == ()
    rig.journals.journal(held, work.seq, 0, ["head", "a"])
    rig.journals.journal(held, work.seq, 2, ["b"])
    assert taken_over(rig)[1].journal == ("head", "a", "b")


def test_write_that_is_sent_again_changes_nothing(rig):
    """Its answer was lost; some of what comes with it may be new."""
    held, work = begun(rig)
    for entries in (["head", "a"], ["head", "a"], ["head", "a", "b"]):
        rig.journals.journal(held, work.seq, 0, entries)
    rig.journals.journal(held, work.seq, 1, ["a", "b"])
    assert taken_over(rig)[1].journal == ("head", "a", "b")


def test_write_that_leaves_entries_out_is_refused(rig):
    """What went before is not there: nobody may build on it."""
    held, work = begun(rig)
    with pytest.raises(StaleTurn):
        rig.journals.journal(held, work.seq, 1, ["b"])
    assert taken_over(rig)[1].journal == ()


def test_journal_is_read_by_whoever_holds_the_lane(rig):
    """As it is now, also by the one who wrote it; a worker that lost the lane reads nothing."""
    held, work = begun(rig)
    assert list(rig.journals.entries(held)) == []
    rig.journals.journal(held, work.seq, 0, ["head", "a"])
    assert list(rig.journals.entries(held)) == ["head", "a"]
    taken_over(rig)
    with pytest.raises(LeaseLost):
        rig.journals.entries(held)


def test_journal_goes_with_its_turn(rig):
    """The next turn begins with an empty one, and a late write for the old one is refused."""
    held, work = begun(rig, "a", "b")
    rig.journals.journal(held, work.seq, 0, ["head", "x"])
    following = rig.mailbox.commit(held, work, TurnChange())
    assert (following.turn.text, following.journal) == ("b", ())
    with pytest.raises(StaleTurn):
        rig.journals.journal(held, work.seq, 0, ["head", "x"])
    assert taken_over(rig)[1].journal == ()


def test_commit_that_is_sent_again_keeps_the_next_journal(rig):
    """The answer of the commit was lost, and the next turn has been begun."""
    held, work = begun(rig, "a", "b")
    following = rig.mailbox.commit(held, work, TurnChange())
    rig.journals.journal(held, following.seq, 0, ["head b"])
    rig.mailbox.commit(held, work, TurnChange())
    assert taken_over(rig)[1].journal == ("head b",)


def test_journal_of_another_turn_makes_room(rig):
    """Should one be left, entry 0 of this turn drops it."""
    held, work = begun(rig)
    rig.journals.journal(held, work.seq, 0, ["another head", "x"])
    rig.journals.journal(held, work.seq, 0, ["head"])
    assert taken_over(rig)[1].journal == ("head",)


def test_nothing_is_journalled_where_nothing_waits(rig):
    """The turn was committed, and there is no other."""
    held, work = begun(rig)
    rig.mailbox.commit(held, work, TurnChange())
    with pytest.raises(StaleTurn):
        rig.journals.journal(held, work.seq, 0, ["head"])


def test_each_holder_that_began_the_turn_counts(rig):
    """What the same holder sees twice counts once; the next turn begins at one."""
    held, work = begun(rig, "a", "b")
    assert work.attempt == rig.mailbox.lease(CHAT.id, "w1")[1].attempt == 1
    held, work = taken_over(rig, "w2")
    held, work = taken_over(rig, "w3")
    assert (work.attempt, rig.mailbox.commit(held, work, TurnChange()).attempt) == (3, 1)


def test_turn_that_was_handed_over_was_not_begun(rig):
    """A busy conversation lets others go first: that kills nobody."""
    held, work = begun(rig, "a", "b")
    rig.mailbox.commit(held, work, TurnChange())
    rig.mailbox.release(held, hand_over=True)
    assert rig.mailbox.lease(CHAT.id, "w2")[1].attempt == 1


def test_turn_that_was_cut_off_was_begun(rig):
    """It is free at once, and counts as if its worker had died: what never ends must not be tried for ever."""
    held, work = begun(rig, "a")
    rig.journals.journal(held, work.seq, 0, ["head"])
    assert rig.mailbox.release(held, hand_over=True, begun=True) is None
    _, again = rig.mailbox.lease(CHAT.id, "w2")
    assert (again.attempt, again.journal) == (2, ("head",))


def test_turn_behind_a_reply_that_waits_was_not_begun(rig):
    """A platform that asks to wait takes many holders, none of which comes to the turn."""
    held, work = begun(rig, "a", "b")
    reply = rig.mailbox.commit(held, work, SAID)
    for number in range(3):
        rig.outbox.postpone(held, reply, 1)
        rig.pass_time(2)
        held, reply = rig.mailbox.lease(CHAT.id, f"w{number}")
    assert rig.outbox.mark_delivered(held, reply, receipt="m").attempt == 1


def test_threads_that_send_the_same_write_make_it_once(rig):
    """A client that gave up on an answer may meet its own first try."""
    held, work = begun(rig)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: rig.journals.journal(held, work.seq, 0, ["head", "a"]), range(8)))
    assert taken_over(rig)[1].journal == ("head", "a")


def test_journal_in_redis_expires(redis_client):
    """As long after its last use as its lane."""
    rig = RedisRig(redis_client)
    held, work = begun(rig)
    rig.journals.journal(held, work.seq, 0, ["head"])
    assert redis_client.pttl(f"{rig.shard}:journal:{CHAT.id}") > 29 * 86_400_000
