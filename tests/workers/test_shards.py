"""Shards: every process reaches a conversation where it is at home, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter

import pytest

from sayso.pending.audit.collector import AuditCollector, Tails, UncollectedEntries, verify
from sayso.pending.audit.entry import EntrySigner
from sayso.pending.audit.ledger import AuditLedger
from sayso.pending.redis.client import PREFIX, RedisUnfit
from sayso.pending.redis.scripts import SHARDS, LuaScripts, ShardMoved
from sayso.pending.turns.change import TurnChange
from sayso.workers.mailbox import LUA, RedisMailbox
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.sharding.founding import check_alone, found
from sayso.workers.sharding.shards import MOST_WAITING, Primary, RoutedScripts, ShardMap, rendezvous
from tests.contracts.rigs import CHAT, turn, voice
from tests.workers.fakes import Bot
from tests.workers.fleet import ROOM, SHARD, FleetRig


def test_server_that_is_not_the_home_refuses_everything(fleet):
    """A process with an old map, or one that never heard of it, must not write there."""
    mailbox = RedisMailbox(fleet.gated("b"), voice)
    for call in (lambda: mailbox.accept(turn()), lambda: mailbox.lease(CHAT.id, "token")):
        with pytest.raises(ShardMoved):
            call()
    assert fleet.held("b") == {}


def test_process_with_an_old_map_finds_the_new_home(fleet):
    """It is refused once, reads the map again and goes on, without a wait."""
    rig = fleet.rig()
    rig.accept(turn("first"))
    fleet.mover().move(SHARD, "b")
    rig.accept(turn("second"))
    assert rig.words() == ["first", "second"]
    assert fleet.held("a") == {}


def test_answer_that_was_lost_is_asked_for_at_the_new_home(fleet):
    """The turn was kept, its webhook is repeated after the move: it is the same turn."""
    rig = fleet.rig()
    rig.accept(turn("first", event="e1"))
    fleet.mover().move(SHARD, "b")
    assert rig.accept(turn("first", event="e1")).outcome == "duplicate"
    assert rig.words() == ["first"]


def test_process_that_does_not_know_the_new_home_keeps_nothing(fleet):
    """Its configuration is too old: the platform hears 503 and tries again, elsewhere."""
    old = fleet.rig(names="a")
    fleet.mover().move(SHARD, "b")
    with pytest.raises(ShardMoved, match="use the same file everywhere"):
        old.accept(turn())
    assert (fleet.held("a"), fleet.held("b")) == ({}, {})


def test_turn_waits_before_a_closed_gate(fleet):
    """The copy takes a moment: the web waits, and the turn is kept at the new home."""
    fleet.clients["a"].set(f"{ROOM}:home", "closed x")
    tries = []

    def pause(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            fleet.put_room("b")

    scripts = RoutedScripts(ShardMap(fleet.shared), fleet.clients, LUA, pauses=[1] * 5, pause=pause)
    assert RedisMailbox(scripts, voice).accept(turn("kept")).outcome == "new"
    assert (len(tries), fleet.rig().words()) == (3, ["kept"])


def test_gate_that_stays_closed_is_told(fleet):
    """Nothing was promised, after so many tries and no more."""
    fleet.clients["a"].set(f"{ROOM}:home", "closed x")
    tries = []
    scripts = RoutedScripts(ShardMap(fleet.shared), fleet.clients, LUA, pauses=[1, 2], pause=tries.append)
    with pytest.raises(ShardMoved):
        RedisMailbox(scripts, voice).accept(turn())
    assert tries == [1, 2]


def test_turns_of_one_conversation_wait_in_order(fleet):
    """Whoever came first is taken in first, also when the gate opens between two tries."""
    fleet.clients["a"].set(f"{ROOM}:home", "closed x")
    opened, arrived = threading.Event(), threading.Semaphore(0)

    def pause(_: float) -> None:
        arrived.release()
        opened.wait(10)

    scripts = RoutedScripts(ShardMap(fleet.shared), fleet.clients, LUA, pauses=[0] * 5, pause=pause)
    mailbox = RedisMailbox(scripts, voice)
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=mailbox.accept, args=(turn(f"{number}", event=f"e{number}"),)))
        threads[-1].start()
        if not number:
            arrived.acquire(timeout=10)
        while len(scripts._lines._waiting[CHAT.id]) <= number:
            pass
    fleet.put_room("b")
    opened.set()
    for thread in threads:
        thread.join()
    assert fleet.rig().words() == ["0", "1", "2", "3", "4"]


def test_waiting_turns_leave_room_for_the_other_shards(fleet):
    """So many threads may wait; the next is told at once."""
    scripts = RoutedScripts(ShardMap(fleet.shared), fleet.clients, LUA)
    fleet.clients["a"].set(f"{ROOM}:home", "closed x")
    with pytest.raises(ShardMoved, match="too many wait"):
        _stand_in_line(scripts, MOST_WAITING, lambda: RedisMailbox(scripts, voice).accept(turn()))


def _stand_in_line(scripts: RoutedScripts, count: int, then) -> None:
    if not count:
        then()
        return
    with scripts._lines.place(f"chat:{count}"):
        _stand_in_line(scripts, count - 1, then)


def test_worker_leaves_a_conversation_that_is_on_its_way(fleet):
    """A job that finds the gate closed is no failed job; the conversation is woken where it arrives."""
    bot = Bot(fleet.rig(), lines=["hello"])
    bot.hear("hi")
    fleet.clients["a"].set(f"{ROOM}:home", "closing x")
    assert bot.work() == ""
    fleet.clients["a"].set(f"{ROOM}:home", "open")
    assert bot.work() == "hello"


def test_worker_whose_shard_moves_under_its_turn_follows_it(fleet):
    """A mover waits for it; one that could not, as after a pause, leaves the lane's truth to the new home."""
    bot = Bot(fleet.rig(tries=3), lines=["hello"])
    bot.hear("hi")
    answer = bot.agent.answer

    async def slow(queued, lease, hear=None):
        bot.rig.pass_time(0)
        await asyncio.to_thread(fleet.mover().move, SHARD, "b")
        return await answer(queued, lease)

    bot.agent.answer = slow
    assert bot.work() == "hello"
    assert fleet.held("a") == {}


def test_reaper_wakes_what_is_at_home_on_its_server(fleet, tmp_path):
    """It looks at no shard that lives elsewhere, and fails on none."""
    rig, woken = fleet.rig(), []
    rig.accept(turn())
    fleet.clients["a"].zadd(f"{ROOM}:due", {CHAT.id: 0})
    for name in "ba":
        wake_up = lambda conversation, name=name: woken.append(name) or ()  # noqa: E731
        Reaper(fleet.clients[name], fleet.gated(name), wake_up, WorkerLock(tmp_path)).round()
    assert woken == ["a"]


def test_audit_chain_goes_on_at_the_new_home(fleet, tmp_path):
    """One chain a shard, whoever drains it where: the ledger of this machine verifies, before and after."""
    ledger = AuditLedger(tmp_path / "audit.sqlite", EntrySigner(["key"]))
    auditors = {name: AuditCollector(fleet.clients[name], ledger, gated=True) for name in "ab"}
    bot = Bot(fleet.rig(), "A", "B", "C")
    bot.say("delete A")
    bot.say("yes")
    auditors["a"].drain()
    bot.say("delete B")
    bot.say("yes")
    fleet.mover().move(SHARD, "b")
    assert auditors["a"].drain() == 0
    auditors["b"].drain()
    bot.say("delete C")
    report = verify([ledger.path], ["key"], tail=tails(fleet), whole=True)
    assert (report.faults, report.entries) == ((), 5 + 5 + 2)
    assert json.loads(fleet.clients["b"].lrange(f"{ROOM}:audit", -1, -1)[0])["n"] == 12


def test_auditor_stores_nothing_of_a_shard_that_arrives(fleet, tmp_path):
    """Half a copy would look like a gap."""
    bot = Bot(fleet.rig(), "A")
    bot.say("delete A")
    fleet.clients["a"].set(f"{ROOM}:home", "arriving x")
    auditor = AuditCollector(
        fleet.clients["a"], AuditLedger(tmp_path / "audit.sqlite", EntrySigner(["key"])), gated=True
    )
    assert auditor.drain() == 0


def tails(fleet) -> Tails:
    """What waits on all primaries."""
    each = {name: UncollectedEntries(client) for name, client in fleet.clients.items()}
    return Tails([each[name] for name in ShardMap(fleet.shared).refresh()])


def test_first_starts_at_once_agree(fleet):
    """Two configurations, a moment apart: the first decides, shard by shard, and each shard has one home."""
    for client in fleet.clients.values():
        client.flushall()
    starts = [threading.Thread(target=fleet.found, args=(names,)) for names in ("abc", "cab", "bca")]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    survey = fleet.mover().survey()
    survey.check()
    assert survey.unfinished == []
    assert list(survey.homes) == [rendezvous(shard, "abc") for shard in range(SHARDS)]


def test_start_with_a_new_primary_changes_nothing(fleet):
    """Its share comes with a rebalance."""
    before = fleet.mover().survey().homes
    fleet.found("abc")
    assert fleet.mover().survey().homes == before


def test_what_holds_conversations_keeps_them(fleet):
    """One server that becomes the first of two: nothing of it is forgotten."""
    for client in fleet.clients.values():
        client.flushall()
    one = RedisMailbox(LuaScripts(fleet.clients["b"], LUA), voice)
    one.accept(turn("said before"))
    fleet.found("ab")
    assert fleet.mover().survey().homes[SHARD] == "b"
    assert fleet.rig().words() == ["said before"]


def test_map_that_was_lost_is_written_again(fleet):
    """The servers know what they hold, also of shards that hold nothing, and of one whose copy is being made."""
    list(fleet.mover().rebalance("b"))
    fleet.clients["b"].set(f"{ROOM}:home", "closed x")
    fleet.clients["a"].set(f"{ROOM}:home", "arriving x")
    fleet.shared.delete(f"{PREFIX}map")
    fleet.found("ab")
    assert set(fleet.mover().survey().homes) == {"b"}


def test_two_servers_that_hold_the_same_shard_are_refused(fleet):
    """Nobody can say which conversations count."""
    for client in fleet.clients.values():
        client.flushall()
        RedisMailbox(LuaScripts(client, LUA), voice).accept(turn())
    with pytest.raises(RedisUnfit, match=f"shard {SHARD} are on a and b"):
        fleet.found("ab")


def test_conversations_beside_the_primaries_are_not_forgotten(fleet):
    """What `redis_url` held before there were several must be one of them."""
    for client in fleet.clients.values():
        client.flushall()
    RedisMailbox(LuaScripts(fleet.shared, LUA), voice).accept(turn())
    with pytest.raises(RedisUnfit, match="`redis_url` holds conversations"):
        fleet.found("bc")


def test_home_that_was_left_is_never_opened_by_a_start(fleet):
    """One that read the map before the move and goes on after it."""
    fleet.mover().move(SHARD, "b")
    fleet.shared.hset(f"{PREFIX}map", str(SHARD), "a")
    fleet.found("ab")
    assert fleet.homes() == ["b"]


def test_servers_that_were_swapped_are_noticed(fleet):
    """Or copied: a server keeps the name it was first given."""
    with pytest.raises(RedisUnfit, match="calls a server 'a' that is 'b'"):
        found(fleet.shared, [Primary("a", "", fleet.clients["b"]), Primary("b", "", fleet.clients["a"])])


def test_one_of_several_is_not_used_as_the_only_one(fleet):
    """A process without `shards` knows no gate."""
    with pytest.raises(RedisUnfit, match="primary 'b' of several"):
        check_alone(fleet.clients["b"])


def test_rendezvous_spreads_and_keeps():
    """Each has a fair share; one more takes from all and moves nothing among them."""
    names = [f"r{number}" for number in range(4)]
    before = {shard: rendezvous(shard, names) for shard in range(SHARDS)}
    after = {shard: rendezvous(shard, [*names, "new"]) for shard in range(SHARDS)}
    assert min(Counter(before.values()).values()) >= 8
    assert {after[shard] for shard in before if after[shard] != before[shard]} == {"new"}


def test_ungated_scripts_ask_for_no_home(fleet):
    """One server pays nothing for what several need."""
    rig = FleetRig.__new__(FleetRig)
    rig.mailbox = RedisMailbox(LuaScripts(fleet.clients["c"], LUA), voice)
    assert rig.accept(turn()).outcome == "new"
    lease, work = rig.mailbox.lease(CHAT.id, "token")
    rig.mailbox.commit(lease, work, TurnChange())
