"""Move: a shard changes its server under traffic, whoever is killed when, and no turn is lost, doubled or reordered."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from sayso.pending.redis.client import PREFIX, RedisUnfit
from sayso.pending.redis.scripts import ShardMoved
from sayso.pending.turns.change import TurnChange
from sayso.workers.sharding.move import MoveBusy, Moved, MoveError, ShardBusy, ShardsAtOdds
from tests.contracts.rigs import CHAT, turn
from tests.workers.fakes import Bot
from tests.workers.fleet import ROOM, SHARD, Fate, Fleet, Killed, killed


def fill(fleet: Fleet) -> dict[str, bytes]:
    """The room with turns, a reply, an action that waits and a few hundred other keys."""
    rig = fleet.rig()
    for number in range(3):
        rig.accept(turn(f"word {number}", event=f"e{number}"))
    rig.store.stash("ana", kind="delete", preview="Delete A", channel_id="chat", conversation_id="room")
    pipe = fleet.clients["a"].pipeline()
    for number in range(220):
        pipe.set(f"{ROOM}:seen:x:{number}", number, px=3_600_000)
    pipe.sadd(f"{ROOM}:other", "kept").execute()
    return fleet.held("a")


def settled(fleet: Fleet, home: str) -> bool:
    """Whether the room is wholly on one server and nowhere else."""
    elsewhere = [name for name in fleet.clients if name != home and fleet.held(name)]
    return fleet.homes() == [home] and not elsewhere and not fleet.mover().survey().unfinished


def test_mover_killed_before_any_command_is_taken_up_by_the_next(fleet):
    """At each moment at most one server takes turns in, and the next mover ends with all there was, once."""
    for nth in itertools.count():
        fleet.__init__(fleet.urls)
        before, fate = fill(fleet), Fate(nth, killed)
        with contextlib.suppress(Killed):
            fleet.mover(fate).move(SHARD, "b")
        assert len(fleet.homes()) <= 1
        fleet.forget_mover()
        fleet.mover().move(SHARD, "b")
        assert settled(fleet, "b")
        assert fleet.held("b") == before
        if not fate.came:
            break
    assert nth > 20


def test_turn_that_comes_after_the_mover_was_killed_is_refused_or_kept(fleet):
    """What was acknowledged is there after the next mover's work, in order, once."""
    for nth in itertools.count():
        fleet.__init__(fleet.urls)
        rig, fate = fleet.rig(), Fate(nth, killed)
        rig.accept(turn("first"))
        with contextlib.suppress(Killed):
            fleet.mover(fate).move(SHARD, "b")
        kept = ["first"]
        try:
            rig.accept(turn("second"))
            kept.append("second")
        except ShardMoved:
            pass
        fleet.forget_mover()
        fleet.mover().move(SHARD, "b")
        assert rig.words() == kept
        if not fate.came:
            break


def test_mover_that_slept_through_another_ones_work_changes_nothing_more(fleet):
    """It was silent for longer than its right to move lasts; meanwhile the shard went elsewhere and took turns in."""
    for nth in itertools.count():
        fleet.__init__(fleet.urls, names="abc")
        rig = fleet.rig()
        rig.accept(turn("first"))

        def meanwhile(rig=rig) -> None:
            fleet.forget_mover()
            fleet.mover().move(SHARD, "c")
            rig.accept(turn("second"))

        fate = Fate(nth, meanwhile)
        with contextlib.suppress(MoveError):
            fleet.mover(fate).move(SHARD, "b")
        fleet.forget_mover()
        fleet.mover().move(SHARD, "b")
        assert settled(fleet, "b")
        assert rig.words() == (["first", "second"] if fate.came else ["first"])
        if not fate.came:
            break


def test_redis_that_answers_with_an_error_leaves_the_shard_open(fleet):
    """Whatever breaks before the copy counts, people go on where they were at once."""
    before = fill(fleet)
    fleet.clients["b"].config_set("maxmemory", 1)
    try:
        with pytest.raises(Exception, match="used memory"):
            fleet.mover().move(SHARD, "b")
    finally:
        fleet.clients["b"].config_set("maxmemory", 0)
    assert settled(fleet, "a")
    assert fleet.held("a") == before
    fleet.rig().accept(turn("still here"))


def test_shard_waits_for_the_turn_that_runs(fleet):
    """Turns are taken in meanwhile, nobody can begin one, and the holder commits; then the shard moves."""
    rig = fleet.rig()
    rig.accept(turn("first"))
    lease, work = rig.mailbox.lease(CHAT.id, "token")
    seen = []

    def pause(_: float) -> None:
        rig.accept(turn("second"))
        with pytest.raises(ShardMoved):
            rig.mailbox.lease(CHAT.id, "another")
        assert rig.mailbox.renew(lease) == 0
        rig.mailbox.commit(lease, work, TurnChange())
        rig.mailbox.release(lease, hand_over=True)
        seen.append(fleet.homes())

    assert isinstance(fleet.mover(pause=pause).move(SHARD, "b"), Moved)
    assert seen == [["a"]]
    assert rig.words() == ["second"]


def test_shard_that_does_not_come_to_rest_stays(fleet):
    """A turn that takes too long is not cut off: its shard is open again, where it was."""
    rig = fleet.rig()
    rig.accept(turn("first"))
    rig.mailbox.lease(CHAT.id, "token")
    clock = itertools.count(step=10)
    assert isinstance(fleet.mover(clock=lambda: next(clock)).move(SHARD, "b"), ShardBusy)
    assert settled(fleet, "a")


def test_frozen_worker_neither_commits_to_the_old_home_nor_past_the_new_holder(fleet):
    """It wakes when its lease is over, its shard has moved, and somebody else has the lane."""
    rig = fleet.rig()
    rig.accept(turn("first"))
    lease, work = rig.mailbox.lease(CHAT.id, "frozen")
    rig.end_lease()
    fleet.mover().move(SHARD, "b")
    again = fleet.rig()
    assert again.words() == ["first"]
    with pytest.raises(Exception, match=CHAT.id):
        rig.mailbox.commit(lease, work, TurnChange(history="[]"))
    assert fleet.held("a") == {}


def test_yes_is_given_before_the_move_and_runs_once_after_it(fleet):
    """Question, button, window and turn move together."""
    bot = Bot(fleet.rig(), "A")
    bot.say("delete A")
    bot.hear("yes", event="e-yes")
    fleet.mover().move(SHARD, "b")
    bot.hear("yes", event="e-yes")
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])
    assert bot.say("yes", event="e-yes") == "deleted A"
    assert bot.deleted == ["A"]


def test_question_is_asked_before_the_move_and_answered_after_it(fleet):
    """By a button too; a twin of it hears the same."""
    bot = Bot(fleet.rig(), "A")
    bot.say("delete A")
    fleet.mover().move(SHARD, "b")
    tap = bot.buttons[0].data
    assert bot.say(tap=tap) == bot.say(tap=tap) == "deleted A"
    assert bot.deleted == ["A"]


def test_action_that_was_begun_by_a_killed_worker_is_not_repeated_after_the_move(fleet):
    """Its user hears that nobody knows, as on one server."""
    bot = Bot(fleet.rig(), "A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("start")
    fleet.mover().move(SHARD, "b")
    assert "I cannot tell whether it finished" in bot.work()
    assert bot.deleted == []


def test_outcome_that_comes_while_its_shard_is_closed_is_recorded_at_its_new_home(fleet):
    """The effect took place: the truth about it must not get lost on the way."""
    bot = Bot(fleet.rig(), "A")
    bot.say("delete A")
    bot.hear("yes")
    bot.before("finish", lambda: (bot.rig.end_lease(), fleet.mover().move(SHARD, "b")))
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


def test_reply_that_waits_for_a_retry_is_sent_from_the_new_home(fleet):
    """Parked lanes move; the attempt that may have arrived stays marked."""
    rig = fleet.rig()
    bot = Bot(rig, lines=["hello"])
    bot.channel.errors = [TimeoutError()]
    bot.say("hi")
    assert bot.channel.texts == []
    fleet.mover().move(SHARD, "b")
    fleet.clients["b"].hset(f"{ROOM}:lane:{CHAT.id}", "until", 0)
    assert bot.work().endswith("hello")
    assert len(bot.channel.sent) == 1


def test_job_that_stayed_behind_is_not_missed(fleet):
    """The queue does not move: a conversation is due at its new home, and its next turn writes a job there."""
    rig = fleet.rig(wake_up=lambda _: ["rq:job:", "rq:queue:sayso", "rq:queues", "job-1", "origin", "sayso"])
    rig.accept(turn("first"))
    fleet.mover().move(SHARD, "b")
    fleet.clients["b"].zadd(f"{ROOM}:due", {CHAT.id: 0})
    assert fleet.gated("b").on_shard("overdue", SHARD, 10) == [CHAT.id]
    assert fleet.gated("b").run("rewake", CHAT.id, "rq:job:", "rq:queue:sayso", "rq:queues", "job-2", "k", "v") == "ok"
    (job,) = fleet.clients["b"].lrange("rq:queue:sayso", 0, -1)
    assert job.startswith("job-2")


def test_times_to_live_move_along(fleet):
    """What would have been forgotten in an hour still is."""
    fill(fleet)
    fleet.mover().move(SHARD, "b")
    assert 3_500_000 < fleet.clients["b"].pttl(f"{ROOM}:seen:x:7") <= 3_600_000
    assert fleet.clients["b"].pttl(f"{ROOM}:other") == -1


def test_only_one_moves_at_a_time(fleet):
    """Two would undo each other's work."""
    fleet.shared.set(f"{PREFIX}mover", "somebody")
    with pytest.raises(MoveBusy):
        fleet.mover().move(SHARD, "b")


def test_servers_that_contradict_each_other_are_not_touched(fleet):
    """Restored from an old copy, two may say that they hold the shard: a person decides."""
    fleet.clients["b"].set(f"{ROOM}:home", "open")
    with pytest.raises(ShardsAtOdds, match=f"shard {SHARD}: the map says 'a'"):
        fleet.mover().move(SHARD, "b")


def test_new_primary_takes_its_share_and_nothing_moves_between_the_others(fleet):
    """As rendezvous hashing promises; a second run finds nothing to do."""
    fleet.found("abc")
    fleet.mover().move(SHARD, "a")
    outcomes = list(fleet.mover().rebalance("abc"))
    moved = [outcome for outcome in outcomes if outcome.shard != SHARD]
    assert {outcome.to for outcome in moved} == {"c"}
    assert 10 < len(moved) < 35
    assert list(fleet.mover().rebalance("abc")) == []


def test_primary_is_emptied_before_it_is_taken_out(fleet):
    """Until then a start without it refuses."""
    with pytest.raises(RedisUnfit, match="does not name b"):
        fleet.found("a")
    list(fleet.mover().rebalance("a"))
    assert fleet.mover().survey().count("a") == 64
    fleet.found("a")
