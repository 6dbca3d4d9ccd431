"""Journals: the promises of every store of journals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.channels.types import Reply
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import LeaseLost, StaleTurn
from sayso.workers.sender import Sent
from tests.contracts.rigs import CHAT, Rig, turn

SAID = TurnChange(replies=(TurnReply(Reply("hi")),))


def begun(rig, *texts: str):
    """Accept turns with these texts; a worker starts the first."""
    for text in texts or ("a",):
        rig.accept(turn(text))
    return rig.mailbox.lease(CHAT.id, "w1")


def taken_over(rig, token="w2"):
    """Let the next worker take over from a dead one; return its lease and its item."""
    rig.end_lease()
    return rig.mailbox.lease(CHAT.id, token)


def test_journal_of_a_lost_lease_takes_nothing(rig):
    """A paused worker that comes back must not go on: another worker owns the journal by now."""
    old, work = begun(rig)
    rig.journals.append_entries(old, work.seq, 0, ["head"])
    new, _ = taken_over(rig)
    with pytest.raises(LeaseLost):
        rig.journals.append_entries(old, work.seq, 1, ["late"])
    rig.journals.append_entries(new, work.seq, 1, ["next"])
    assert taken_over(rig, "w3")[1].journal == ("head", "next")


def test_next_worker_sees_the_journal_of_the_turn(rig):
    """The entries are in order, however many writes it took."""
    held, work = begun(rig)
    assert work.journal == ()
    rig.journals.append_entries(held, work.seq, 0, ["head", "a"])
    rig.journals.append_entries(held, work.seq, 2, ["b"])
    assert taken_over(rig)[1].journal == ("head", "a", "b")


def test_write_that_is_sent_again_changes_nothing(rig):
    """The answer was lost. Some entries of the repeated write may be new."""
    held, work = begun(rig)
    for entries in (["head", "a"], ["head", "a"], ["head", "a", "b"]):
        rig.journals.append_entries(held, work.seq, 0, entries)
    rig.journals.append_entries(held, work.seq, 1, ["a", "b"])
    assert taken_over(rig)[1].journal == ("head", "a", "b")


def test_write_that_skips_entries_is_refused(rig):
    """The earlier entries are missing, so later ones cannot follow."""
    held, work = begun(rig)
    with pytest.raises(StaleTurn):
        rig.journals.append_entries(held, work.seq, 1, ["b"])
    assert taken_over(rig)[1].journal == ()


def test_lease_holder_reads_the_journal(rig):
    """The holder reads the current entries. A worker that lost its lease reads nothing."""
    held, work = begun(rig)
    assert list(rig.journals.load_entries(held)) == []
    rig.journals.append_entries(held, work.seq, 0, ["head", "a"])
    assert list(rig.journals.load_entries(held)) == ["head", "a"]
    taken_over(rig)
    with pytest.raises(LeaseLost):
        rig.journals.load_entries(held)


def test_journal_ends_with_its_turn(rig):
    """The next turn starts with an empty journal, and a late write for the old turn is refused."""
    held, work = begun(rig, "a", "b")
    rig.journals.append_entries(held, work.seq, 0, ["head", "x"])
    following = rig.mailbox.commit(held, work, TurnChange())
    assert (following.turn.text, following.journal) == ("b", ())
    with pytest.raises(StaleTurn):
        rig.journals.append_entries(held, work.seq, 0, ["head", "x"])
    assert taken_over(rig)[1].journal == ()


def test_commit_that_is_sent_again_keeps_the_next_journal(rig):
    """The answer to the commit was lost, and the next turn has started."""
    held, work = begun(rig, "a", "b")
    following = rig.mailbox.commit(held, work, TurnChange())
    rig.journals.append_entries(held, following.seq, 0, ["head b"])
    rig.mailbox.commit(held, work, TurnChange())
    assert taken_over(rig)[1].journal == ("head b",)


def test_entry_zero_drops_the_journal_of_another_turn(rig):
    """A journal may be left over from an earlier turn."""
    held, work = begun(rig)
    rig.journals.append_entries(held, work.seq, 0, ["another head", "x"])
    rig.journals.append_entries(held, work.seq, 0, ["head"])
    assert taken_over(rig)[1].journal == ("head",)


def test_journal_without_a_turn_is_refused(rig):
    """The turn was committed, and no other waits."""
    held, work = begun(rig)
    rig.mailbox.commit(held, work, TurnChange())
    with pytest.raises(StaleTurn):
        rig.journals.append_entries(held, work.seq, 0, ["head"])


def test_each_holder_that_started_the_turn_counts(rig):
    """The same holder counts once; the next turn starts at one."""
    held, work = begun(rig, "a", "b")
    assert work.attempt == rig.mailbox.lease(CHAT.id, "w1")[1].attempt == 1
    held, work = taken_over(rig, "w2")
    held, work = taken_over(rig, "w3")
    assert (work.attempt, rig.mailbox.commit(held, work, TurnChange()).attempt) == (3, 1)


def test_turn_that_was_handed_over_does_not_count_as_started(rig):
    """A busy conversation lets others go first, which is no sign of a dead worker."""
    held, work = begun(rig, "a", "b")
    rig.mailbox.commit(held, work, TurnChange())
    rig.mailbox.release(held, hand_over=True)
    assert rig.mailbox.lease(CHAT.id, "w2")[1].attempt == 1


def test_turn_that_was_cut_off_counts_as_started(rig):
    """It is free at once and counts like a dead worker, so that an endless turn is not repeated for ever."""
    held, work = begun(rig, "a")
    rig.journals.append_entries(held, work.seq, 0, ["head"])
    assert rig.mailbox.release(held, hand_over=True, begun=True) is None
    _, again = rig.mailbox.lease(CHAT.id, "w2")
    assert (again.attempt, again.journal) == (2, ("head",))


def test_turn_behind_a_waiting_reply_does_not_count_as_started(rig):
    """While a platform asks to wait, many holders come and none reaches the turn."""
    held, work = begun(rig, "a", "b")
    reply = rig.mailbox.commit(held, work, SAID)
    for number in range(3):
        rig.outbox.postpone(held, reply, 1)
        rig.pass_time(2)
        held, reply = rig.mailbox.lease(CHAT.id, f"w{number}")
    assert rig.outbox.mark_delivered(held, reply, Sent("m")).attempt == 1


def test_threads_that_send_the_same_write_make_it_once(rig):
    """A client that timed out may meet its own first call."""
    held, work = begun(rig)
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda _: rig.journals.append_entries(held, work.seq, 0, ["head", "a"]), range(8)
            )
        )
    assert taken_over(rig)[1].journal == ("head", "a")


def test_journal_in_redis_expires(redis_client):
    """Its TTL is that of its conversation."""
    rig = Rig(redis_client)
    held, work = begun(rig)
    rig.journals.append_entries(held, work.seq, 0, ["head"])
    assert redis_client.pttl(f"{rig.shard}:journal:{CHAT.id}") > 29 * 86_400_000
