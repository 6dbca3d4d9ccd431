"""Tide: a Redis that has forgotten what it acknowledged is halted, and no other ever is."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from sayso.pending.redis.client import Connections, connect
from sayso.pending.redis.pipeline import AutoPipeline
from sayso.pending.redis.scripts import Halted, LuaScripts
from sayso.workers.mailbox import LUA, RedisMailbox
from sayso.workers.redis import data_loss as tides
from sayso.workers.redis.data_loss import (
    MAX_ADDRESSES,
    DataLossGuard,
    ServerState,
    Watermark,
    WatermarkFile,
    keys_of,
    run_dialog,
)
from tests.contracts.rigs import RedisRig, turn, voice
from tests.workers.fakes import Bot
from tests.workers.servers import put_back, saved

TIDE, FOUNDED, HALTED = keys_of()


@pytest.fixture
def rig(redis_client):
    """A conversation in a Redis."""
    return RedisRig(redis_client)


@pytest.fixture
def tide(redis_client, redis_url):
    """The tide of one process, which has looked once."""
    return looked(DataLossGuard(connect(redis_url)))


def looked(tide: DataLossGuard) -> DataLossGuard:
    """The tide after a look."""
    tide.look()
    return tide


def test_server_that_knows_less_is_halted(rig, tide):
    """A turn was accepted and seen; then the server is as it was before it."""
    rig.accept(turn())
    tide.look()
    before = saved(rig.client)
    rig.accept(turn())
    tide.look()
    put_back(rig.client, before)
    tide.look()
    assert rig.client.exists(HALTED)
    assert "sayso redis resume" in tide.trouble


def test_server_that_was_emptied_is_halted(rig, tide):
    """Its identity is gone; a process that has no memory of it and gives it a new one changes nothing about that."""
    rig.accept(turn())
    tide.look()
    rig.client.flushall()
    looked(DataLossGuard(rig.client))
    rig.accept(turn())
    tide.look()
    assert json.loads(rig.client.get(HALTED))["found"] == 0


def test_halted_server_refuses_every_script_of_every_process(rig, tide):
    """Also of those that remember nothing; nothing at all is changed."""
    rig.accept(turn())
    rig.client.set(HALTED, "{}")
    before = saved(rig.client)
    calls = (
        lambda: rig.accept(turn()),
        lambda: rig.mailbox.lease("chat:x", "token"),
        lambda: rig.deliveries.statuses("chat:x"),
        lambda: rig.reaper._scripts.on_every_shard("overdue", {"most": 10}),
        lambda: rig.repository.find_open("chat:x", "ana"),
    )
    for call in calls:
        with pytest.raises(Halted, match="sayso redis resume"):
            call()
    assert saved(rig.client) == before


def test_new_connection_notices_before_it_is_used(rig, tide, redis_url):
    """The first command after a restart would be the accept itself: it must not be answered."""
    rig.accept(turn())
    client = connect(redis_url)
    tide.guard(client)
    mailbox = RedisMailbox(LuaScripts(client, LUA), voice)
    tide.look()
    rig.client.flushall()
    with pytest.raises(Halted):
        mailbox.accept(turn())
    assert rig.client.keys() == [HALTED]


def test_new_connection_of_a_loop_notices_before_it_is_used(rig, tide, redis_url):
    """A worker's pipeline connects again by itself, and repeats what was not answered."""
    rig.accept(turn())
    tide.look()
    rig.client.flushall()

    async def ask() -> None:
        client = connect(redis_url)
        connections = Connections.of(client)
        connections.pipeline = AutoPipeline(redis_url)
        tide.guard(client)
        mailbox = RedisMailbox(LuaScripts(client, LUA), voice)
        with pytest.raises(Halted):
            await mailbox.lease("chat:x", "token")
        await connections.pipeline.close()

    asyncio.run(ask())
    assert rig.client.keys() == [HALTED]


def test_process_that_cannot_write_the_halt_refuses_by_itself(rig, tide, redis_url):
    """A full server takes no key; connections that are open already are refused as well, until it could be told."""
    rig.accept(turn())
    client = connect(redis_url)
    tide.guard(client)
    mailbox = RedisMailbox(LuaScripts(client, LUA), voice)
    mailbox.accept(turn())
    tide.look()
    with pytest.raises(Halted):
        run_dialog(tide.dialog(), answering([None, None, None], ResponseError("OOM")))
    with pytest.raises(Halted):
        mailbox.accept(turn())
    assert "sayso redis resume" in tide.trouble
    tide.look()
    assert (tide.trouble, mailbox.accept(turn()).outcome) == ("", "new")


def test_worker_leaves_the_lanes_of_a_halted_server_alone(rig):
    """Nothing is said and nothing fails; when it goes on, so does the conversation."""
    bot = Bot(rig, lines=["Sunny."])
    bot.hear("weather?")
    rig.client.set(HALTED, "{}")
    bot.work()
    assert bot.channel.sent == []
    rig.client.delete(HALTED)
    assert bot.work() == "Sunny."


def test_turn_at_work_when_its_server_forgets_says_nothing(rig, tide):
    """The model has answered; its words are not sent, and nothing that was confirmed runs."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    bot.hear("yes")
    bot.before("claim", lambda: rig.client.set(HALTED, "{}"))
    sent = len(bot.channel.sent)
    bot.work()
    assert (len(bot.channel.sent), bot.deleted) == (sent, [])


def test_notice_given_after_the_operator_went_on_halts_nothing(rig, tide):
    """Between the question and the note another process halted it, and it was resumed: the server judges again."""
    rig.accept(turn())
    tide.look()
    talk = tide.dialog()
    next(talk)
    command = talk.send([None, None, None])
    assert rig.client.execute_command(*command) == 0
    assert not rig.client.exists(HALTED)


def test_answer_that_was_overtaken_halts_nothing(rig, tide):
    """One connection asks; before its answer is read, another is told of more."""
    rig.accept(turn())
    talk = tide.dialog()
    answer = rig.client.execute_command(*next(talk))
    rig.accept(turn())
    tide.look()
    with pytest.raises(StopIteration):
        talk.send(answer)
    assert not tide.trouble


def test_many_connections_at_once_raise_no_alarm(rig, redis_url):
    """Whatever they see of each other's writes, in whatever order."""
    tide, client = DataLossGuard(connect(redis_url)), connect(redis_url)
    tide.guard(client)
    mailbox = RedisMailbox(LuaScripts(client, LUA), voice)

    def busy() -> None:
        for _ in range(30):
            mailbox.accept(turn())
            tide.look()
            run_dialog(tide.dialog(), rig.client.execute_command)

    threads = [threading.Thread(target=busy) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not rig.client.exists(HALTED)
    assert tide.known.n == int(rig.client.get(TIDE))


def test_server_of_which_nothing_was_used_may_be_emptied(redis_client, tide):
    """It was founded, and that was all: there is nothing to be forgotten."""
    redis_client.flushall()
    tide.look()
    assert (tide.trouble, redis_client.exists(HALTED)) == ("", 0)


def test_looks_write_nothing(rig, tide):
    """An idle bot costs a read now and then, and its file does not grow."""
    rig.accept(turn())
    before = saved(rig.client)
    rig.reaper._scripts.on_every_shard("overdue", {"most": 10})
    tide.look()
    assert saved(rig.client) == before


def test_replica_is_no_witness(rig, tide):
    """A connection that was led to one that lags is of no use, and halts nobody."""
    rig.accept(turn())
    tide.look()
    with pytest.raises(ReadOnlyError):
        run_dialog(tide.dialog(), answering([None, None, None], ReadOnlyError("read only")))
    assert not tide.trouble


def test_lost_connection_is_told_as_one(tide):
    """Who asks tries again, as ever."""
    with pytest.raises(RedisConnectionError):
        run_dialog(tide.dialog(), answering(RedisConnectionError("gone")))
    assert not tide.trouble


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit ends the thread
def test_looking_goes_on_whatever_happens(tide, monkeypatch):
    """In a thread that nobody would start again; asked for twice, there is one."""
    looks, counted = iter([RedisConnectionError("away"), ValueError("broken"), None, SystemExit()]), []

    def look() -> None:
        counted.append(sum(thread.name == "data-loss-guard" for thread in threading.enumerate()))
        error = next(looks)
        if error:
            raise error

    monkeypatch.setattr(tides, "LOOK_SECONDS", 0.001)
    tide.look = look
    tide.watch()
    tide.watch()
    for thread in threading.enumerate():
        if thread.name == "data-loss-guard":
            thread.join(10)
    assert counted == [1] * 4


@pytest.mark.parametrize("address", ["the same", "another"])
def test_restart_of_everything_forgets_nothing(rig, redis_url, tmp_path, address):
    """The data folder remembers what no process does any more, also where the server is reached elsewhere by now."""
    notes = WatermarkFile(tmp_path / "tide.json")
    rig.accept(turn())
    looked(DataLossGuard(connect(redis_url), notes))
    before = saved(rig.client)
    rig.accept(turn())
    looked(DataLossGuard(connect(redis_url), notes))
    put_back(rig.client, before)
    if address == "another":
        text = (tmp_path / "tide.json").read_text()
        (tmp_path / "tide.json").write_text(text.replace("redis.sock", "old.sock"))
    assert looked(DataLossGuard(connect(redis_url), notes)).trouble


def test_another_server_at_another_address_is_no_rollback(rig, tide, redis_url, tmp_path):
    """A developer who takes a second database for the same folder has forgotten nothing."""
    rig.accept(turn())
    notes = WatermarkFile(tmp_path / "tide.json")
    looked(DataLossGuard(connect(redis_url), notes))
    assert not looked(DataLossGuard(connect(f"{redis_url}?db=3"), notes)).trouble


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', '{"x": {"id": 1}}', "\xff"])
def test_damaged_file_remembers_nothing(tmp_path, text):
    """It is no reason to stop, and is written anew."""
    path = tmp_path / "tide.json"
    path.write_bytes(text.encode("latin-1"))
    WatermarkFile(path).keep("here", Watermark("a", 1))
    assert WatermarkFile(path).read() == {"here": Watermark("a", 1)}


def test_file_never_goes_back_and_stays_small(tmp_path):
    """Processes that share it know more and less; addresses come and go."""
    notes = WatermarkFile(tmp_path / "tide.json")
    for n in (7, 5):
        notes.keep("here", Watermark("a", n))
    assert notes.read()["here"] == Watermark("a", 7)
    for number in range(MAX_ADDRESSES):
        notes.keep(f"place {number}", Watermark("b", 1))
    assert len(notes.read()) == MAX_ADDRESSES
    assert "here" not in notes.read()


def test_folder_that_is_gone_stops_nobody(tmp_path):
    """What cannot be noted is remembered by the process alone."""
    WatermarkFile(tmp_path / "gone" / "tide.json").keep("here", Watermark("a", 1))


def test_identity_with_several_names_is_known_by_each():
    """After a resume a server goes by all names under which anybody remembers it."""
    found = ServerState(("a", "b"), 5)
    assert [found.forgot(Watermark(name, 5)) for name in "abc"] == [False, False, True]


def test_lost_seconds_are_told_as_far_as_they_are_known(rig, redis_url):
    """By this process's own clock, from the first look that saw more than the server still knows."""
    now = [100.0]
    tide = DataLossGuard(connect(redis_url), clock=lambda: now[0])
    tide.look()
    for _ in range(4):
        rig.accept(turn())
        now[0] += 1
        tide.look()
    rig.client.set(TIDE, 2)
    tide.look()
    assert json.loads(rig.client.get(HALTED)) == {"id": tide.known.id, "remembered": 4, "found": 2, "seconds": 1.25}


def answering(*answers):
    """A server that gives these answers, one after the other; errors are raised."""
    left = list(answers)

    def ask(*_: object):
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask
