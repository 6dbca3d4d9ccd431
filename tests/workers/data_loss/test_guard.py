"""Data loss guard: a Redis that lost acknowledged writes is halted, and no other ever is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from types import FrameType

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from sayso.infra.concurrency import run_without_loop
from sayso.infra.redis.client import connect
from sayso.infra.redis.connections import AutoPipeline, Connections, Halted
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts, shard_of
from sayso.workers.data_loss import guard as guard_module
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.watermarks import (
    MAX_ADDRESSES,
    HaltReason,
    ShardState,
    Watermark,
    WatermarkFile,
    keys_of,
)
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.contracts.rigs import CHAT, Rig, turn, voice
from tests.workers.fakes import Bot
from tests.workers.servers import put_back, saved

SHARD = shard_of(CHAT.id)
WRITE_COUNTER, IDENTITIES, HALTED = keys_of(SHARD)
#: The keys of the halts of all shards, and what a server without keys says of them.
HALTS = {keys_of(shard).halted for shard in range(SHARDS)}
EMPTY = [None] * 3 * SHARDS


@pytest.fixture
def rig(redis_client):
    """Return a conversation in Redis."""
    return Rig(redis_client)


@pytest.fixture
def guard(redis_client, redis_url):
    """Return the guard of one process, after its first look."""
    return looked(DataLossGuard(connect(redis_url)))


def looked(guard: DataLossGuard) -> DataLossGuard:
    """Let the guard look; return it."""
    guard.check_server()
    return guard


def test_server_with_a_lower_counter_is_halted(rig, guard):
    """A turn was accepted and seen; then the server is back in its earlier state."""
    rig.accept(turn())
    guard.check_server()
    before = saved(rig.client)
    rig.accept(turn())
    guard.check_server()
    put_back(rig.client, before)
    guard.check_server()
    assert rig.client.exists(HALTED)
    assert "sayso redis resume" in guard.trouble


def test_server_that_was_emptied_is_halted(rig, guard):
    """Its identity is gone. A new process that gives it another one does not change that."""
    rig.accept(turn())
    guard.check_server()
    rig.client.flushall()
    looked(DataLossGuard(rig.client))
    rig.accept(turn())
    guard.check_server()
    assert json.loads(rig.client.get(HALTED))["found"] == 0


def test_halted_server_refuses_every_script_of_every_process(rig, guard):
    """This includes processes that never saw the old state. No key changes."""
    rig.accept(turn())
    for key in rig.client.scan_iter("sayso:*:rate_limit:*"):
        rig.client.persist(key)  # it would expire in the middle on a busy machine
    for key in HALTS:
        rig.client.set(key, "{}")
    before = saved(rig.client)
    calls = (
        lambda: rig.accept(turn()),
        lambda: rig.mailbox.lease("chat:x", "token"),
        lambda: rig.deliveries.statuses("chat:x"),
        lambda: rig.reaper._scripts.on_every_shard("list_overdue", {"most": 10}),
        lambda: rig.repository.load_open("chat:x", "ana"),
    )
    for call in calls:
        with pytest.raises(Halted, match="sayso redis resume"):
            call()
    assert saved(rig.client) == before


def test_new_connection_notices_before_it_is_used(rig, guard, redis_url):
    """The first command after a restart may be the accept itself, which must not succeed."""
    rig.accept(turn())
    client = connect(redis_url)
    guard.protect(client)
    mailbox = RedisMailbox(ShardedScripts(client, CONVERSATION_SCRIPTS), voice)
    guard.check_server()
    rig.client.flushall()
    with pytest.raises(Halted):
        mailbox.accept(turn())
    assert set(rig.client.keys()) == HALTS


def test_new_connection_of_a_loop_notices_before_it_is_used(rig, guard, redis_url):
    """A worker's pipeline reconnects by itself and repeats unanswered commands."""
    rig.accept(turn())
    guard.check_server()
    rig.client.flushall()

    async def ask() -> None:
        client = connect(redis_url)
        connections = Connections.of(client)
        connections.pipeline = AutoPipeline(redis_url)
        guard.protect(client)
        mailbox = RedisMailbox(ShardedScripts(client, CONVERSATION_SCRIPTS), voice)
        with pytest.raises(Halted):
            await mailbox.lease("chat:x", "token")
        await connections.pipeline.close()

    asyncio.run(ask())
    assert set(rig.client.keys()) == HALTS


def test_process_that_cannot_write_the_halt_refuses_by_itself(rig, guard, redis_url):
    """A full server stores no key. Open connections are refused too until the halt is written."""
    rig.accept(turn())
    client = connect(redis_url)
    guard.protect(client)
    mailbox = RedisMailbox(ShardedScripts(client, CONVERSATION_SCRIPTS), voice)
    mailbox.accept(turn())
    guard.check_server()
    with pytest.raises(Halted):
        check(guard, answering(EMPTY, ResponseError("OOM")))
    with pytest.raises(Halted):
        mailbox.accept(turn())
    assert "sayso redis resume" in guard.trouble
    guard.check_server()
    assert (guard.trouble, mailbox.accept(turn()).outcome) == ("", "new")


def test_worker_leaves_conversations_of_a_halted_server_alone(rig):
    """No reply is sent and no turn fails; after the resume the conversation goes on."""
    bot = Bot(rig, lines=["Sunny."])
    bot.hear("weather?")
    rig.client.set(HALTED, "{}")
    bot.work()
    assert bot.channel.sent == []
    rig.client.delete(HALTED)
    assert bot.work() == "Sunny."


def test_turn_that_runs_during_the_loss_sends_nothing(rig, guard):
    """The model has answered. Its text is not sent, and no confirmed action runs."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    bot.hear("yes")
    bot.before("claim", lambda: rig.client.set(HALTED, "{}"))
    sent = len(bot.channel.sent)
    bot.work()
    assert (len(bot.channel.sent), bot.deleted) == (sent, [])


def test_halt_after_the_operators_resume_is_ignored(rig, guard):
    """Between the look and the halt another process halted it and it was resumed, so the server judges again."""
    rig.accept(turn())
    guard.check_server()
    halts = []

    def ask(*command: str) -> object:
        if command[0] == "MGET":
            return EMPTY
        halts.append(rig.client.execute_command(*command))
        return halts[-1]

    check(guard, ask)
    assert (halts, rig.client.exists(HALTED)) == ([0], 0)


def test_overtaken_answer_halts_nothing(rig, guard):
    """One connection asks; before its answer is read, another one sees a higher counter."""
    rig.accept(turn())

    def ask(*command: str) -> object:
        answer = rig.client.execute_command(*command)
        rig.accept(turn())
        guard.check_server()
        return answer

    check(guard, ask)
    assert not guard.trouble


def test_many_connections_at_once_raise_no_alarm(rig, redis_url):
    """They see each other's writes in any order."""
    guard, client = DataLossGuard(connect(redis_url)), connect(redis_url)
    guard.protect(client)
    mailbox = RedisMailbox(ShardedScripts(client, CONVERSATION_SCRIPTS), voice)

    def busy() -> None:
        for _ in range(30):
            mailbox.accept(turn())
            guard.check_server()
            check(guard, rig.client.execute_command)

    threads = [threading.Thread(target=busy) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not rig.client.exists(HALTED)
    assert guard.known[SHARD].writes == int(rig.client.get(WRITE_COUNTER))


def test_unused_server_may_be_emptied(redis_client, guard):
    """It only got its identity, so it holds nothing to lose."""
    redis_client.flushall()
    guard.check_server()
    assert (guard.trouble, redis_client.exists(HALTED)) == ("", 0)


def test_looks_write_nothing(rig, guard):
    """An idle bot costs a read now and then, and the server's file does not grow."""
    rig.accept(turn())
    before = saved(rig.client)
    rig.reaper._scripts.on_every_shard("list_overdue", {"most": 10})
    guard.check_server()
    assert saved(rig.client) == before


def test_replica_does_not_count(rig, guard):
    """A connection to a lagging replica is refused and halts nothing."""
    rig.accept(turn())
    guard.check_server()
    with pytest.raises(ReadOnlyError):
        check(guard, answering(EMPTY, ReadOnlyError("read only")))
    assert not guard.trouble


def test_lost_connection_is_reported_as_one(guard):
    """The caller retries, as for any lost connection."""
    with pytest.raises(RedisConnectionError):
        check(guard, answering(RedisConnectionError("gone")))
    assert not guard.trouble


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # SystemExit ends the thread
def test_looks_go_on_after_every_error(guard, monkeypatch):
    """They run in a thread that is never restarted; a second start makes no second thread."""
    looks, counted = (
        iter([RedisConnectionError("away"), ValueError("broken"), None, SystemExit()]),
        [],
    )

    def look() -> None:
        counted.append(sum(thread.name == "data-loss-guard" for thread in threading.enumerate()))
        error = next(looks)
        if error:
            raise error

    monkeypatch.setattr(guard_module, "CHECK_SECONDS", 0.001)
    guard.check_server = look
    guard.watch()
    guard.watch()
    for thread in threading.enumerate():
        if thread.name == "data-loss-guard":
            thread.join(10)
    assert counted == [1] * 4


@pytest.mark.parametrize("address", ["the same", "another"])
def test_restart_of_all_processes_keeps_the_watermark(rig, redis_url, tmp_path, address):
    """The data folder keeps it, even if the server has another address by now."""
    notes = WatermarkFile(tmp_path / "watermarks.json")
    rig.accept(turn())
    looked(DataLossGuard(connect(redis_url), notes))
    before = saved(rig.client)
    rig.accept(turn())
    looked(DataLossGuard(connect(redis_url), notes))
    put_back(rig.client, before)
    if address == "another":
        text = (tmp_path / "watermarks.json").read_text()
        (tmp_path / "watermarks.json").write_text(text.replace("redis.sock", "old.sock"))
    assert looked(DataLossGuard(connect(redis_url), notes)).trouble


def test_another_server_at_another_address_is_no_loss(rig, guard, redis_url, tmp_path):
    """A developer may use a second database with the same folder."""
    rig.accept(turn())
    notes = WatermarkFile(tmp_path / "watermarks.json")
    looked(DataLossGuard(connect(redis_url), notes))
    assert not looked(DataLossGuard(connect(f"{redis_url}?db=3"), notes)).trouble


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"x": 1}', '{"version": 1, "servers": {"x": 1}}', "\xff"]
)
def test_damaged_file_is_ignored(tmp_path, text):
    """It does not stop the bot and is written anew."""
    path = tmp_path / "watermarks.json"
    path.write_bytes(text.encode("latin-1"))
    WatermarkFile(path).save("here", {3: Watermark("a", 1)})
    assert WatermarkFile(path).load() == {"here": {3: Watermark("a", 1)}}


def test_file_never_goes_back_and_stays_bounded(tmp_path):
    """The processes that share it have different watermarks, and addresses come and go."""
    notes = WatermarkFile(tmp_path / "watermarks.json")
    for n in (7, 5):
        notes.save("here", {0: Watermark("a", n), n: Watermark("a", 1)})
    assert notes.load()["here"] == {
        0: Watermark("a", 7),
        5: Watermark("a", 1),
        7: Watermark("a", 1),
    }
    for number in range(MAX_ADDRESSES):
        notes.save(f"place {number}", {0: Watermark("b", 1)})
    assert len(notes.load()) == MAX_ADDRESSES
    assert "here" not in notes.load()


def test_missing_folder_stops_nothing(tmp_path):
    """The process alone remembers the watermark then."""
    WatermarkFile(tmp_path / "gone" / "watermarks.json").save("here", {0: Watermark("a", 1)})


def test_processes_with_one_id_do_not_share_a_temporary_file(tmp_path):
    """In containers that share a data folder, every process has the id 1."""
    other = tmp_path / f"watermarks.json.{os.getpid()}"
    other.write_text("another process writes here")
    WatermarkFile(tmp_path / "watermarks.json").save("here", {0: Watermark("a", 1)})
    assert other.read_text() == "another process writes here"


def test_failed_save_leaves_no_file_behind(tmp_path):
    """A full disk fails every second."""
    path = tmp_path / "watermarks.json"
    path.mkdir()
    WatermarkFile(path).save("here", {0: Watermark("a", 1)})
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_halt_claims_no_loss():
    """It says only that the shard is halted."""
    assert str(HaltReason.read("damaged")) == "it is not known what is missing"


def test_server_with_several_identities_is_known_by_each():
    """After a resume a server has all the identities that processes remember."""
    found = ShardState(("a", "b"), 5)
    assert [found.has_lost(Watermark(name, 5)) for name in "abc"] == [False, False, True]


def test_lost_seconds_are_reported_as_far_as_known(rig, redis_url):
    """The process's own clock counts, from the first look that saw a higher counter."""
    now = [100.0]
    guard = DataLossGuard(connect(redis_url), clock=lambda: now[0])
    guard.check_server()
    for _ in range(4):
        rig.accept(turn())
        now[0] += 1
        guard.check_server()
    rig.client.set(WRITE_COUNTER, 2)
    guard.check_server()
    assert json.loads(rig.client.get(HALTED)) == {
        "identity": guard.known[SHARD].identity,
        "remembered": 4,
        "found": 2,
        "lost_seconds": 1.25,
        "backup_taken_at": 0.0,
    }


def test_shard_without_a_loss_is_halted_with_its_server(rig, guard):
    """It may have lost writes that no process saw. A new process finds all shards halted."""
    rig.accept(turn())
    guard.check_server()
    rig.client.set(WRITE_COUNTER, 0)
    guard.check_server()
    assert rig.client.exists(*HALTS) == SHARDS


def test_script_on_a_shard_that_lost_writes_changes_nothing(rig, guard, redis_url):
    """A replica is promoted behind an open connection, before the next check. Each script gets the watermark that this
    process knows, and refuses.
    """
    client = connect(redis_url)
    guard.protect(client)
    mailbox = RedisMailbox(ShardedScripts(client, CONVERSATION_SCRIPTS), voice)
    for _ in range(3):
        mailbox.accept(turn())
    guard.check_server()
    rig.client.set(WRITE_COUNTER, 1)
    before = saved(rig.client)
    for _ in range(5):
        with pytest.raises(Halted, match="sayso redis resume"):
            mailbox.accept(turn())
        with pytest.raises(Halted):
            mailbox.turn_status(turn())
    assert saved(rig.client) == before


def test_check_looks_only_at_shards_that_have_changed(rig, guard):
    """One written shard costs fewer calls than there are shards, and an unchanged server costs less."""
    unchanged = calls_of(guard.check_server)
    rig.accept(turn())
    assert unchanged < calls_of(guard.check_server) < SHARDS
    assert guard.known[SHARD].writes == 1


def test_overtaken_answer_is_not_taken_for_the_newest(rig, guard):
    """A check reads a counter, and another one learns a higher counter before. The lower one is a loss later."""
    rig.accept(turn())
    before = saved(rig.client)

    def ask(*command: str) -> object:
        answer = rig.client.execute_command(*command)
        rig.accept(turn())
        guard.check_server()
        return answer

    check(guard, ask)
    put_back(rig.client, before)
    guard.check_server()
    assert rig.client.exists(HALTED)


def test_shard_that_was_not_replicated_is_learned_later(rig, redis_url, monkeypatch):
    """No replica confirms the first check. The next one learns although nothing was written since."""
    rig.accept(turn())
    guard = DataLossGuard(connect(redis_url))
    with monkeypatch.context() as patch:
        patch.setattr(guard, "_replicated", list)
        guard.check_server()
    assert not guard.known
    guard.check_server()
    assert guard.known[SHARD].writes == 1


def test_new_write_counter_of_a_shard_is_above_an_earlier_resume(rig, redis_url):
    """A resume raised the numbers that were given out. The next one must go beyond them."""
    rig.client.set(f"sayso:{{{SHARD}}}:floor", 1_000_000_005)
    rig.accept(turn())
    assert looked(DataLossGuard(connect(redis_url))).known[SHARD].writes == 1_000_000_005


def check(guard, answer):
    """Check a server that answers with this function."""

    def answered(command: object) -> object:
        try:
            return answer(*command)
        except ResponseError as exc:
            return exc

    async def ask(commands: object) -> object:
        return [answered(command) for command in commands]

    run_without_loop(guard.check(ask))


def calls_of(act):
    """Return how many Python calls of this package an act makes."""
    calls = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/data_loss/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    act()
    sys.setprofile(None)
    return len(calls)


def answering(*answers):
    """Return a server that gives these answers in order; errors are raised."""
    left = list(answers)

    def ask(*_: object):
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask
