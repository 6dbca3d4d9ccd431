"""AutoPipeline: each command gets its own answer, however the connection behaves, or an error in the end."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from hiredis import pack_command
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError

from sayso.pending.redis import pipeline as pipelines
from sayso.pending.redis.client import Connections, connect
from sayso.pending.redis.pipeline import MAX_TRIES, AutoPipeline
from sayso.pending.redis.scripts import LuaScripts
from tests.workers.proxy import Proxy, as_it_is


def at_once() -> Retry:
    """The usual number of tries, without pauses."""
    return Retry(NoBackoff(), MAX_TRIES - 1, (RedisError,))


class Server:
    """Speaks as it is told: a list of answers to whatever comes, each to be sent as it is."""

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


def asked(*words: str) -> bytes:
    """A command as it travels."""
    return pack_command(words)


def once(find: bytes, then):
    """A fate that meets the first bytes which hold this, and lets all others pass."""
    met = itertools.count()
    return lambda data: then(data) if find in data and next(met) == 0 else data


def cut(_: bytes) -> None:
    """The connection is gone."""


def swallow(_: bytes) -> bytes:
    """Nothing arrives, and the connection stays."""
    return b""


@pytest.mark.usefixtures("redis_client")
def test_cut_before_the_server_heard_is_asked_again(redis_url):
    """Nobody notices but the connection count."""

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.questions = once(b"INCR", cut)
            pipeline = AutoPipeline(proxy.url, retry=at_once())
            return await pipeline.execute(asked("INCR", "n")), proxy.opened

    assert asyncio.run(story()) == (1, 2)


@pytest.mark.usefixtures("redis_client")
def test_lost_answer_is_asked_for_again(redis_url):
    """The server did it twice: that is why what is sent must bear it."""

    async def story():
        async with Proxy(redis_url) as proxy:
            pipeline = AutoPipeline(proxy.url, retry=at_once())
            await pipeline.execute(asked("PING"))
            proxy.answers = once(b":1\r\n", cut)
            return await pipeline.execute(asked("INCR", "n"))

    assert asyncio.run(story()) == 2


@pytest.mark.usefixtures("redis_client")
def test_nothing_is_asked_twice_without_a_loss(redis_url):
    """A thousand at once on a good connection: a thousand commands."""

    async def story():
        pipeline = AutoPipeline(redis_url)
        return await asyncio.gather(*(pipeline.execute(asked("INCR", "n")) for _ in range(1000)))

    assert asyncio.run(story()) == list(range(1, 1001))


def test_each_of_a_thousand_has_his_own_answer_through_cuts(redis_url):
    """Every fiftieth packet cuts the line."""

    async def story():
        packets = itertools.count(1)
        async with Proxy(redis_url) as proxy:
            pipeline = AutoPipeline(proxy.url, retry=at_once())
            await pipeline.execute(asked("PING"))
            proxy.answers = lambda data: None if next(packets) % 50 == 0 else data

            async def one(number: int) -> str:
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                return await pipeline.execute(asked("ECHO", f"number {number}"))

            return await asyncio.gather(*(one(number) for number in range(1000)))

    assert asyncio.run(story()) == [f"number {number}" for number in range(1000)]


def test_asker_who_left_shifts_no_answer(redis_url):
    """His answer is read and dropped; the others get theirs."""

    async def story():
        held = asyncio.Event()
        async with Proxy(redis_url) as proxy:
            pipeline = AutoPipeline(proxy.url)
            await pipeline.execute(asked("PING"))
            proxy.questions = lambda data: held.set() or data
            tasks = [asyncio.create_task(pipeline.execute(asked("ECHO", str(number)))) for number in range(9)]
            await held.wait()
            for task in tasks[::3]:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(story())
    assert [answer for answer in answers if isinstance(answer, str)] == ["1", "2", "4", "5", "7", "8"]


def test_what_was_not_sent_yet_is_not_sent_for_who_left(redis_url, redis_client):
    """A cancelled caller's command does not take place behind its back while Redis was away."""

    async def story():
        pipeline = AutoPipeline(redis_url)
        left = asyncio.create_task(pipeline.execute(asked("SET", "left", "1")))
        stays = asyncio.create_task(pipeline.execute(asked("SET", "stays", "1")))
        await asyncio.sleep(0)
        left.cancel()
        await stays

    asyncio.run(story())
    assert redis_client.keys("*") == ["stays"]


def test_away_is_told_after_bounded_tries(tmp_path):
    """And the next caller has tries of his own."""

    async def story():
        pipeline = AutoPipeline(f"unix://{tmp_path}/nobody.sock", retry=at_once())
        for _ in range(2):
            with pytest.raises(RedisConnectionError, match=f"no answer in {MAX_TRIES} tries"):
                await pipeline.execute(asked("PING"))

    asyncio.run(story())


def test_all_who_wait_hear_that_redis_is_away(redis_url, tmp_path):
    """Whatever stands in the way: here no socket, and a fault that no connection should have."""

    async def story(url, break_it):
        pipeline = AutoPipeline(url, retry=at_once())
        break_it(pipeline)
        return await asyncio.gather(*(pipeline.execute(asked("PING")) for _ in range(5)), return_exceptions=True)

    def unheard_of(pipeline: AutoPipeline) -> None:
        pipeline.on_connect(lambda _: 1 / 0)

    for url, break_it in ((f"unix://{tmp_path}/nobody.sock", lambda _: None), (redis_url, unheard_of)):
        assert {type(answer) for answer in asyncio.run(story(url, break_it))} == {RedisConnectionError}


def test_line_that_is_cut_each_time_is_given_up(redis_url):
    """A command that no connection survives is not asked for ever, and the tries are as many as promised."""

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.questions = lambda data: None if b"ECHO" in data else data
            pipeline = AutoPipeline(proxy.url, retry=at_once())
            with pytest.raises(RedisConnectionError, match=f"no answer in {MAX_TRIES} tries"):
                await pipeline.execute(asked("ECHO", "poison"))
            proxy.questions = as_it_is
            return proxy.opened, await pipeline.execute(asked("ECHO", "fine"))

    opened, answer = asyncio.run(story())
    assert (opened, answer) == (MAX_TRIES, "fine")


def test_silence_is_a_loss(redis_url, monkeypatch):
    """An answer that does not come is asked for on another connection."""
    monkeypatch.setattr(pipelines, "ANSWER_SECONDS", 0.02)

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.answers = once(b"hello", swallow)
            pipeline = AutoPipeline(proxy.url, retry=at_once())
            return await pipeline.execute(asked("ECHO", "hello")), proxy.opened

    assert asyncio.run(story()) == ("hello", 2)


def test_server_that_lets_us_in_and_says_nothing_is_away(redis_url, monkeypatch):
    """A stopped process still accepts connections: the greeting has a limit, too."""
    monkeypatch.setattr(pipelines, "CONNECT_SECONDS", 0.02)

    async def story():
        async with Proxy(redis_url) as proxy:
            proxy.answers = swallow
            pipeline = AutoPipeline(proxy.url, retry=at_once())
            with pytest.raises(RedisConnectionError):
                await pipeline.execute(asked("PING"))
            silent = proxy.opened
            proxy.answers = as_it_is
            monkeypatch.setattr(pipelines, "CONNECT_SECONDS", 30.0)
            return silent, await pipeline.execute(asked("ECHO", "back"))

    assert asyncio.run(story()) == (MAX_TRIES, "back")


def test_loading_server_is_as_good_as_away_until_it_has_loaded():
    """The question waits for the next connection; no caller sees LOADING."""

    async def story():
        loading = b"-LOADING Redis is loading the dataset in memory\r\n"
        async with Server(loading, loading, b"$4\r\nback\r\n") as server:
            pipeline = AutoPipeline(server.url, retry=at_once())
            return await pipeline.execute(asked("ECHO", "back")), server.opened

    assert asyncio.run(story()) == ("back", 3)


def test_answer_that_nobody_asked_for_costs_the_connection():
    """Kept, it would be the answer to the next question, and each answer from there on somebody else's."""

    async def story():
        async with Server(b"$3\r\none\r\n$5\r\nalien\r\n", b"$3\r\ntwo\r\n") as server:
            pipeline = AutoPipeline(server.url, retry=at_once())
            return [await pipeline.execute(asked("ECHO", word)) for word in ("one", "two")], server.opened

    assert asyncio.run(story()) == (["one", "two"], 2)


def test_news_of_the_server_is_nobodys_answer():
    """Some services push notices between the answers."""

    async def story():
        async with Server(b">2\r\n$6\r\nMOVING\r\n:1\r\n$3\r\none\r\n", b">1\r\n$4\r\nnews\r\n$3\r\ntwo\r\n") as server:
            pipeline = AutoPipeline(server.url)
            return [await pipeline.execute(asked("ECHO", word)) for word in ("one", "two")], server.opened

    assert asyncio.run(story()) == (["one", "two"], 1)


def test_babble_is_asked_again_on_a_new_connection():
    """What is no answer at all shifts none."""

    async def story():
        async with Server(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$3\r\none\r\n") as server:
            return await AutoPipeline(server.url, retry=at_once()).execute(asked("ECHO", "one")), server.opened

    assert asyncio.run(story()) == ("one", 2)


def test_answer_that_is_no_text_fails_one_caller_only(redis_url, redis_client):
    """It is read to its end: those before and after have their own."""
    redis_client.execute_command("SET", "raw", b"\xff\xfe")

    async def story():
        pipeline = AutoPipeline(redis_url)
        commands = [("ECHO", "a"), ("GET", "raw"), ("ECHO", "b"), ("MGET", "raw", "raw"), ("ECHO", "c")]
        return await asyncio.gather(
            *(pipeline.execute(asked(*command)) for command in commands), return_exceptions=True
        )

    answers = asyncio.run(story())
    assert [type(answer) for answer in answers] == [str, InvalidResponse, str, InvalidResponse, str]
    assert [answer for answer in answers if isinstance(answer, str)] == ["a", "b", "c"]


def test_error_is_an_answer_for_who_asked(redis_url):
    """And for nobody else in the packet."""

    async def story():
        pipeline = AutoPipeline(redis_url)
        commands = [("ECHO", "a"), ("NOSUCHCOMMAND",), ("EVALSHA", "0" * 40, "0"), ("ECHO", "b")]
        return await asyncio.gather(
            *(pipeline.execute(asked(*command)) for command in commands), return_exceptions=True
        )

    a, unknown, no_script, b = asyncio.run(story())
    assert (a, type(unknown), type(no_script), b) == ("a", ResponseError, NoScriptError, "b")


def test_big_answers_arrive_whole(redis_url, redis_client):
    """Eight megabytes in pieces, with small ones around them."""
    redis_client.set("big", "x" * (8 << 20))

    async def story():
        pipeline = AutoPipeline(redis_url)
        commands = [("ECHO", "a"), ("GET", "big"), ("ECHO", "b")]
        return await asyncio.gather(*(pipeline.execute(asked(*command)) for command in commands))

    a, big, b = asyncio.run(story())
    assert (a, len(big), b) == ("a", 8 << 20, "b")


@pytest.mark.parametrize("where", ["unix", "tcp"])
def test_password_and_number_of_a_url_are_used(redis_url, redis_client, where):
    """The same URLs as redis-py's, for a socket and for a host."""

    async def story():
        async with Proxy(redis_url) as proxy:
            host, socket = proxy.url.partition("redis://")[2], redis_url.partition("unix://")[2]
            url = f"redis://ana:secret@{host}/3" if where == "tcp" else f"unix://ana:secret@{socket}?db=3"
            return await AutoPipeline(url, retry=at_once()).execute(asked("SET", "here", "1"))

    redis_client.acl_setuser("ana", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"])
    try:
        assert asyncio.run(story()) == "OK"
    finally:
        redis_client.acl_deluser("ana")
    assert redis_client.keys("*") == []
    redis_client.execute_command("SELECT", 3)
    assert redis_client.keys("*") == ["here"]


def test_wrong_password_is_told_and_not_shown(redis_url):
    """No caller waits for ever, and no log has the secret."""

    async def story():
        socket = redis_url.partition("unix://")[2]
        with pytest.raises(RedisError) as caught:
            await AutoPipeline(f"unix://ana:hunter2@{socket}", retry=at_once()).execute(asked("PING"))
        return str(caught.value)

    assert "hunter2" not in asyncio.run(story())


def test_close_tells_all_who_wait(redis_url):
    """Those who were sent and those who were not; later ones at once."""

    async def story():
        sent = asyncio.Event()
        async with Proxy(redis_url) as proxy:
            proxy.questions = lambda data: data if b"ECHO" not in data else (sent.set() or b"")
            pipeline = AutoPipeline(proxy.url)
            tasks = [asyncio.create_task(pipeline.execute(asked("ECHO", "sent")))]
            await sent.wait()
            tasks.append(asyncio.create_task(pipeline.execute(asked("ECHO", "unsent"))))
            await asyncio.sleep(0)
            await pipeline.close()
            tasks.append(asyncio.create_task(pipeline.execute(asked("ECHO", "late"))))
            return await asyncio.gather(*tasks, return_exceptions=True), proxy.opened

    answers, opened = asyncio.run(story())
    assert [str(answer) for answer in answers] == ["closed"] * 3
    assert opened == 1


def test_close_while_connecting_tells_all_who_wait(tmp_path):
    """Redis away, and we leave."""

    async def story():
        pipeline = AutoPipeline(f"unix://{tmp_path}/nobody.sock", retry=Retry(ConstantBackoff(60), 1, (RedisError,)))
        task = asyncio.create_task(pipeline.execute(asked("PING")))
        await asyncio.sleep(0)  # it asks
        await pipeline.close()
        with pytest.raises(RedisConnectionError, match="closed"):
            await task

    asyncio.run(story())


def test_pipeline_outlives_its_loop(redis_url):
    """What a dead loop left half done holds up nobody on the next one."""
    pipeline = AutoPipeline(redis_url)

    async def leave():
        task = asyncio.create_task(pipeline.execute(asked("ECHO", "left")))
        await pipeline.execute(asked("PING"))
        return task

    async def ask():
        return await pipeline.execute(asked("ECHO", "again"))

    asyncio.run(leave())
    assert [asyncio.run(ask()), asyncio.run(ask())] == ["again", "again"]


def test_second_loop_goes_another_way(redis_url, redis_client, tmp_path):
    """A future is its own loop's: another one's caller would never wake. Its calls go through a thread instead."""
    (tmp_path / "echo.lua").write_text("return ARGV[2]")
    client = connect(redis_url)
    scripts, pipeline = LuaScripts(client, tmp_path), AutoPipeline(redis_url)
    Connections.of(client).pipeline = pipeline

    async def elsewhere():
        with pytest.raises(RuntimeError, match="another event loop"):
            await pipeline.execute(asked("PING"))
        return await scripts.arun("echo", "room", "there")

    async def story():
        here = await scripts.arun("echo", "room", "here")
        there = await asyncio.to_thread(asyncio.run, elsewhere())
        return here, there, await scripts.arun("echo", "room", "here again")

    assert asyncio.run(story()) == ("here", "there", "here again")


def test_scripts_the_server_forgot_are_sent_again(redis_url, redis_client, tmp_path):
    """After SCRIPT FLUSH a hundred callers at once have a hundred answers, each his own."""
    (tmp_path / "echo.lua").write_text("return ARGV[2]")
    client = connect(redis_url)
    scripts = LuaScripts(client, tmp_path)
    Connections.of(client).pipeline = AutoPipeline(redis_url)

    async def story():
        await scripts.arun("echo", "room", "first")
        redis_client.script_flush()
        return await asyncio.gather(*(scripts.arun("echo", "room", str(number)) for number in range(100)))

    assert asyncio.run(story()) == [str(number) for number in range(100)]


def test_two_threads_at_first_find_one_owner(redis_url):
    """The loop that asked first keeps the pipeline, whoever looks at the same moment."""
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
