"""AutoPipeline: each command gets its own answer, however the connection behaves, or an error in the end."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError

from sayso.infra.redis import connections
from sayso.infra.redis.client import connect
from sayso.infra.redis.connections import AutoPipeline, Connections
from sayso.infra.redis.retries import MAX_LOSSES, PATIENT_SECONDS, Retries
from sayso.infra.redis.scripts import LuaScripts, ScriptFolder
from sayso.workers.lease import FRESH_SECONDS
from tests.config.processes import until
from tests.workers.proxy import Proxy, as_it_is

#: How often commands are sent while no server answers, by the clock of `at_once`.
TRIES = int(PATIENT_SECONDS) + 1


def at_once() -> Retries:
    """Return the usual retries without pauses, by a clock that ticks with each failure."""
    return Retries(pause=lambda _: 0.0, clock=itertools.count().__next__)


class Server:
    """A server that sends the given answers, one for each command, unchanged."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.opened = 0

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}?protocol=2"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        while data := await reader.read(1 << 16):
            for _ in range(data.count(b"SETINFO")):
                writer.write(b"+OK\r\n")
            if b"ECHO" in data and self.answers:
                writer.write(self.answers.pop(0))
        writer.close()


def once(find: bytes, then):
    """Return a filter that changes the first bytes with `find` and lets all others pass."""
    met = itertools.count()
    return lambda data: then(data) if find in data and next(met) == 0 else data


def cut(_: bytes) -> None:
    """Cut the connection."""


def swallow(_: bytes) -> bytes:
    """Drop the bytes and keep the connection."""
    return b""


@pytest.mark.usefixtures("redis_client")
def test_command_lost_before_the_server_is_sent_again(redis_url):
    """Only the number of connections shows it."""

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.questions = once(b"INCR", cut)
            pipeline = AutoPipeline(proxy.url, new_retries=at_once)
            return await pipeline.execute(("INCR", "n")), proxy.opened

    assert asyncio.run(story()) == (1, 2)


@pytest.mark.usefixtures("redis_client")
def test_command_with_a_lost_answer_is_sent_again(redis_url):
    """The server runs it twice, so every command must be idempotent."""

    async def story():
        async with Proxy(redis_url) as proxy:
            pipeline = AutoPipeline(proxy.url, new_retries=at_once)
            await pipeline.execute(("PING",))
            proxy.answers = once(b":1\r\n", cut)
            return await pipeline.execute(("INCR", "n"))

    assert asyncio.run(story()) == 2


@pytest.mark.usefixtures("redis_client")
def test_no_command_is_sent_twice_without_a_loss(redis_url):
    """A thousand callers on a good connection send a thousand commands."""

    async def story():
        pipeline = AutoPipeline(redis_url)
        return await asyncio.gather(*(pipeline.execute(("INCR", "n")) for _ in range(1000)))

    assert asyncio.run(story()) == list(range(1, 1001))


def test_each_of_a_thousand_callers_gets_its_own_answer_through_cuts(redis_url):
    """Every fiftieth packet cuts the connection."""

    async def story():
        packets = itertools.count(1)
        async with Proxy(redis_url) as proxy:
            pipeline = AutoPipeline(proxy.url, new_retries=at_once)
            await pipeline.execute(("PING",))
            proxy.answers = lambda data: None if next(packets) % 50 == 0 else data

            async def one(number: int) -> str:
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                return await pipeline.execute(("ECHO", f"number {number}"))

            return await asyncio.gather(*(one(number) for number in range(1000)))

    assert asyncio.run(story()) == [f"number {number}" for number in range(1000)]


def test_cancelled_caller_shifts_no_answer(redis_url):
    """Its answer is read and dropped; the others get theirs."""

    async def story():
        held = asyncio.Event()
        async with Proxy(redis_url) as proxy:
            pipeline = AutoPipeline(proxy.url)
            await pipeline.execute(("PING",))
            proxy.questions = lambda data: held.set() or data
            tasks = [
                asyncio.create_task(pipeline.execute(("ECHO", str(number)))) for number in range(9)
            ]
            await held.wait()
            for task in tasks[::3]:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(story())
    assert [answer for answer in answers if isinstance(answer, str)] == [
        "1",
        "2",
        "4",
        "5",
        "7",
        "8",
    ]


def test_unsent_command_of_a_cancelled_caller_is_not_sent(redis_url, redis_client):
    """A command does not run after its caller was cancelled during an outage."""

    async def story():
        pipeline = AutoPipeline(redis_url)
        left = asyncio.create_task(pipeline.execute(("SET", "left", "1")))
        stays = asyncio.create_task(pipeline.execute(("SET", "stays", "1")))
        await asyncio.sleep(0)
        left.cancel()
        await stays

    asyncio.run(story())
    assert redis_client.keys("*") == ["stays"]


def test_command_waits_for_a_failover_that_takes_most_of_a_lease(redis_url):
    """A turn in flight keeps its lease, and goes on when the next primary answers."""
    attempts = itertools.count(1)

    async def connect(connection: AbstractConnection) -> None:
        if next(attempts) < TRIES:
            raise RedisConnectionError("no Sentinel names a primary yet")
        await connection.on_connect()

    async def story():
        pipeline = AutoPipeline(redis_url, new_retries=at_once)
        pipeline.on_connect(connect)
        return await pipeline.execute(("ECHO", "back"))

    assert asyncio.run(story()) == "back"
    assert PATIENT_SECONDS == FRESH_SECONDS


def test_outage_is_an_error_after_a_bounded_number_of_attempts(tmp_path):
    """The next caller has attempts of its own."""

    async def story():
        pipeline = AutoPipeline(f"unix://{tmp_path}/nobody.sock", new_retries=at_once)
        for _ in range(2):
            with pytest.raises(RedisConnectionError, match=f"no answer in {TRIES} tries"):
                await pipeline.execute(("PING",))

    asyncio.run(story())


def test_all_waiting_callers_get_the_error_of_an_outage(redis_url, tmp_path):
    """The causes here are a missing socket and an unexpected error."""

    async def story(url, break_it):
        pipeline = AutoPipeline(url, new_retries=at_once)
        break_it(pipeline)
        return await asyncio.gather(
            *(pipeline.execute(("PING",)) for _ in range(5)), return_exceptions=True
        )

    def unheard_of(pipeline: AutoPipeline) -> None:
        pipeline.on_connect(lambda _: 1 / 0)

    for url, break_it in (
        (f"unix://{tmp_path}/nobody.sock", lambda _: None),
        (redis_url, unheard_of),
    ):
        assert {type(answer) for answer in asyncio.run(story(url, break_it))} == {
            RedisConnectionError
        }


def test_command_that_cuts_each_connection_is_given_up(redis_url):
    """A command that no connection survives is not repeated for ever, and the number of attempts is exact."""

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.questions = lambda data: None if b"ECHO" in data else data
            pipeline = AutoPipeline(proxy.url, new_retries=at_once)
            with pytest.raises(RedisConnectionError, match=f"no answer in {MAX_LOSSES} tries"):
                await pipeline.execute(("ECHO", "poison"))
            proxy.questions = as_it_is
            return proxy.opened, await pipeline.execute(("ECHO", "fine"))

    opened, answer = asyncio.run(story())
    assert (opened, answer) == (MAX_LOSSES, "fine")


def test_missing_answer_counts_as_lost(redis_url, monkeypatch):
    """The command is sent again on another connection."""
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.02)

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.answers = once(b"hello", swallow)
            pipeline = AutoPipeline(proxy.url, new_retries=at_once)
            return await pipeline.execute(("ECHO", "hello")), proxy.opened

    assert asyncio.run(story()) == ("hello", 2)


def test_server_that_accepts_and_stays_silent_is_an_outage(redis_url, monkeypatch):
    """A stopped process still accepts connections, so the handshake has a timeout too."""
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.02)

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.answers = swallow
            pipeline = AutoPipeline(proxy.url, new_retries=at_once)
            with pytest.raises(RedisConnectionError):
                await pipeline.execute(("PING",))
            silent = proxy.opened
            proxy.answers = as_it_is
            monkeypatch.setattr(connections, "CONNECT_SECONDS", 30.0)
            return silent, await pipeline.execute(("ECHO", "back"))

    assert asyncio.run(story()) == (TRIES, "back")


def test_loading_server_counts_as_an_outage_until_it_has_loaded():
    """The command waits for the next connection, and no caller sees LOADING."""

    async def story():
        loading = b"-LOADING Redis is loading the dataset in memory\r\n"
        async with Server(loading, loading, b"$4\r\nback\r\n") as server:
            pipeline = AutoPipeline(server.url, new_retries=at_once)
            return await pipeline.execute(("ECHO", "back")), server.opened

    assert asyncio.run(story()) == ("back", 3)


def test_unexpected_answer_closes_the_connection():
    """Otherwise it would count as the answer to the next command, and later ones would be shifted."""

    async def story():
        async with Server(b"$3\r\none\r\n$5\r\nalien\r\n", b"$3\r\ntwo\r\n") as server:
            pipeline = AutoPipeline(server.url, new_retries=at_once)
            return [
                await pipeline.execute(("ECHO", word)) for word in ("one", "two")
            ], server.opened

    assert asyncio.run(story()) == (["one", "two"], 2)


def test_push_message_is_no_answer():
    """Some services push notices between answers."""

    async def story():
        async with Server(
            b">2\r\n$6\r\nMOVING\r\n:1\r\n$3\r\none\r\n", b">1\r\n$4\r\nnews\r\n$3\r\ntwo\r\n"
        ) as server:
            pipeline = AutoPipeline(server.url)
            return [
                await pipeline.execute(("ECHO", word)) for word in ("one", "two")
            ], server.opened

    assert asyncio.run(story()) == (["one", "two"], 1)


def test_invalid_answer_is_retried_on_a_new_connection():
    """Invalid bytes do not shift later answers."""

    async def story():
        async with Server(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$3\r\none\r\n") as server:
            return await AutoPipeline(server.url, new_retries=at_once).execute(
                ("ECHO", "one")
            ), server.opened

    assert asyncio.run(story()) == ("one", 2)


def test_answer_that_is_no_text_fails_only_one_caller(redis_url, redis_client):
    """It is read to its end, and the callers before and after get their own."""
    redis_client.execute_command("SET", "raw", b"\xff\xfe")

    async def story():
        pipeline = AutoPipeline(redis_url)
        commands = [
            ("ECHO", "a"),
            ("GET", "raw"),
            ("ECHO", "b"),
            ("MGET", "raw", "raw"),
            ("ECHO", "c"),
        ]
        return await asyncio.gather(
            *(pipeline.execute(command) for command in commands), return_exceptions=True
        )

    answers = asyncio.run(story())
    assert [type(answer) for answer in answers] == [str, InvalidResponse, str, InvalidResponse, str]
    assert [answer for answer in answers if isinstance(answer, str)] == ["a", "b", "c"]


def test_error_reply_reaches_only_its_caller(redis_url):
    """The other callers in the packet get their answers."""

    async def story():
        pipeline = AutoPipeline(redis_url)
        commands = [("ECHO", "a"), ("NOSUCHCOMMAND",), ("EVALSHA", "0" * 40, "0"), ("ECHO", "b")]
        return await asyncio.gather(
            *(pipeline.execute(command) for command in commands), return_exceptions=True
        )

    a, unknown, no_script, b = asyncio.run(story())
    assert (a, type(unknown), type(no_script), b) == ("a", ResponseError, NoScriptError, "b")


def test_large_answers_arrive_whole(redis_url, redis_client):
    """Eight megabytes come in pieces, with small answers around them."""
    redis_client.set("big", "x" * (8 << 20))

    async def story():
        pipeline = AutoPipeline(redis_url)
        commands = [("ECHO", "a"), ("GET", "big"), ("ECHO", "b")]
        return await asyncio.gather(*(pipeline.execute(command) for command in commands))

    a, big, b = asyncio.run(story())
    assert (a, len(big), b) == ("a", 8 << 20, "b")


@pytest.mark.parametrize("where", ["unix", "tcp"])
def test_password_and_number_of_a_url_are_used(redis_url, redis_client, where):
    """redis-py's URLs work for a socket and for a host."""

    async def story():
        async with Proxy(redis_url) as proxy:
            host, socket = proxy.url.partition("redis://")[2], redis_url.partition("unix://")[2]
            url = (
                f"redis://ana:secret@{host}/3"
                if where == "tcp"
                else f"unix://ana:secret@{socket}?db=3"
            )
            return await AutoPipeline(url, new_retries=at_once).execute(("SET", "here", "1"))

    redis_client.acl_setuser(
        "ana", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"]
    )
    try:
        assert asyncio.run(story()) == "OK"
    finally:
        redis_client.acl_deluser("ana")
    assert redis_client.keys("*") == []
    redis_client.execute_command("SELECT", 3)
    assert redis_client.keys("*") == ["here"]


def test_wrong_password_is_an_error_without_the_secret(redis_url):
    """No caller waits for ever, and no log has the password."""

    async def story():
        socket = redis_url.partition("unix://")[2]
        with pytest.raises(RedisError) as caught:
            await AutoPipeline(f"unix://ana:hunter2@{socket}", new_retries=at_once).execute(
                ("PING",)
            )
        return str(caught.value)

    assert "hunter2" not in asyncio.run(story())


def test_close_ends_all_waiting_calls(redis_url):
    """Sent and unsent commands get an error, and later ones get it at once."""

    async def story():
        sent = asyncio.Event()
        async with Proxy(redis_url) as proxy:
            proxy.questions = lambda data: data if b"ECHO" not in data else (sent.set() or b"")
            pipeline = AutoPipeline(proxy.url)
            tasks = [asyncio.create_task(pipeline.execute(("ECHO", "sent")))]
            await sent.wait()
            tasks.append(asyncio.create_task(pipeline.execute(("ECHO", "unsent"))))
            await asyncio.sleep(0)
            await pipeline.close()
            tasks.append(asyncio.create_task(pipeline.execute(("ECHO", "late"))))
            return await asyncio.gather(*tasks, return_exceptions=True), proxy.opened

    answers, opened = asyncio.run(story())
    assert [str(answer) for answer in answers] == ["closed"] * 3
    assert opened == 1


def test_close_while_connecting_ends_all_waiting_calls(tmp_path):
    """Redis is unreachable at the time of the close."""

    async def story():
        pipeline = AutoPipeline(
            f"unix://{tmp_path}/nobody.sock", new_retries=lambda: Retries(pause=lambda _: 60.0)
        )
        task = asyncio.create_task(pipeline.execute(("PING",)))
        await asyncio.sleep(0)  # it asks
        await pipeline.close()
        with pytest.raises(RedisConnectionError, match="closed"):
            await task

    asyncio.run(story())


def test_pipeline_outlives_its_loop(redis_url):
    """Calls that an ended loop left unfinished do not block the next loop."""
    pipeline = AutoPipeline(redis_url)

    async def leave():
        task = asyncio.create_task(pipeline.execute(("ECHO", "left")))
        await pipeline.execute(("PING",))
        return task

    async def ask():
        return await pipeline.execute(("ECHO", "again"))

    asyncio.run(leave())
    assert [asyncio.run(ask()), asyncio.run(ask())] == ["again", "again"]


def test_second_loop_uses_a_thread(redis_url, redis_client, tmp_path):
    """A future belongs to one loop, so the calls of another loop go through a thread."""
    (tmp_path / "echo.lua").write_text("return args.word")
    client = connect(redis_url)
    scripts, pipeline = LuaScripts(client, ScriptFolder(tmp_path)), AutoPipeline(redis_url)
    Connections.of(client).pipeline = pipeline

    async def elsewhere():
        with pytest.raises(RuntimeError, match="another event loop"):
            await pipeline.execute(("PING",))
        return await scripts.arun_on("echo", "room", {"word": "there"})

    async def story():
        here = await scripts.arun_on("echo", "room", {"word": "here"})
        there = await asyncio.to_thread(asyncio.run, elsewhere())
        return here, there, await scripts.arun_on("echo", "room", {"word": "here again"})

    assert asyncio.run(story()) == ("here", "there", "here again")


def test_scripts_that_the_server_lost_are_sent_again(redis_url, redis_client, tmp_path):
    """After SCRIPT FLUSH a hundred callers at once get a hundred answers, each its own."""
    (tmp_path / "echo.lua").write_text("return args.word")
    client = connect(redis_url)
    scripts = LuaScripts(client, ScriptFolder(tmp_path))
    Connections.of(client).pipeline = AutoPipeline(redis_url)

    async def story():
        await scripts.arun_on("echo", "room", {"word": "first"})
        redis_client.script_flush()
        return await asyncio.gather(
            *(scripts.arun_on("echo", "room", {"word": str(number)}) for number in range(100))
        )

    assert asyncio.run(story()) == [str(number) for number in range(100)]


def test_two_threads_at_the_start_find_one_owner(redis_url):
    """The loop that asked first keeps the pipeline, even if another thread asks at the same moment."""
    pipeline, loops = AutoPipeline(redis_url), [asyncio.new_event_loop() for _ in range(8)]
    served: list[bool] = []
    start = threading.Barrier(8)

    def look(loop: asyncio.AbstractEventLoop) -> None:
        start.wait()
        served.append(pipeline.serves(loop))

    threads = [threading.Thread(target=look, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for loop in loops:
        loop.close()
    assert sum(served) == 1


def test_unconfirmed_write_is_sent_again_and_delays_no_read(redis_url, redis_client):
    """Reads are answered meanwhile. The write is sent until a replica has it, or its caller gives up."""

    async def ask() -> tuple[object, ...]:
        pipeline = AutoPipeline(redis_url)
        write = asyncio.create_task(pipeline.execute(("INCR", "n"), 1))
        first = await pipeline.execute(("ECHO", "here"))
        await asyncio.to_thread(until, lambda: redis_client.get("n") not in (None, "1"))
        waits = not write.done()
        write.cancel()
        last = await pipeline.execute(("ECHO", "next"))
        await pipeline.close()
        return waits, first, last

    assert asyncio.run(ask()) == (True, "here", "next")
