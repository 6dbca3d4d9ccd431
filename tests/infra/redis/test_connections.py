"""Connections: each caller gets the answer to its own command, whatever happens to the connection."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from sayso.infra.redis.client import connect
from sayso.infra.redis.connections import Connections, NotReplicated
from sayso.infra.redis.retries import Retries
from sayso.infra.redis.scripts import LuaScripts, ScriptFolder


@pytest.fixture
def connections(redis_url):
    """Return connections to the server, none open yet."""
    with connect(redis_url) as client:
        yield Connections.of(client)


def opened(redis_client: Redis) -> set[str]:
    """Return the server's connections without the one that asks."""
    mine = str(redis_client.client_id())
    return {client["id"] for client in redis_client.client_list()} - {mine}


def test_interrupted_answer_reaches_no_other_caller(redis_client, connections, monkeypatch):
    """An interrupted caller leaves an answer behind, which the next caller must not read as its own."""
    read = AbstractConnection.read_response

    def interrupted(*_args, **_kwargs):
        monkeypatch.setattr(AbstractConnection, "read_response", read)
        raise KeyboardInterrupt

    connections.ask("PING")
    monkeypatch.setattr(AbstractConnection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connections.ask("ECHO", "first")
    assert connections.ask("ECHO", "second") == "second"


def test_forked_child_has_connections_of_its_own(connections):
    """RQ's own worker forks, and two processes on one socket would read each other's answers."""
    connections.ask("PING")
    child = os.fork()
    if child == 0:
        answers = {
            connections.ask("ECHO", f"child {number}") == f"child {number}" for number in range(50)
        }
        os._exit(0 if answers == {True} else 1)
    answers = [connections.ask("ECHO", f"parent {number}") for number in range(50)]
    assert answers == [f"parent {number}" for number in range(50)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("retries", [0, 1])
def test_closed_connection_is_opened_again(redis_url, redis_client, retries):
    """A server that closes idle connections, or restarts, costs a caller nothing, not even one of its attempts."""
    with Redis.from_url(
        redis_url, decode_responses=True, retry=Retry(NoBackoff(), retries)
    ) as client:
        connections = Connections.of(client)
        connections.ask("PING")
        for each in opened(redis_client):
            redis_client.client_kill_filter(_id=each)
        assert connections.ask("PING") == "PONG"


def test_silent_server_is_tried_as_often_as_the_client_says(redis_url, redis_client, monkeypatch):
    """Retries inside of retries would stop a worker for minutes."""
    with Redis.from_url(redis_url, decode_responses=True, retry=Retry(NoBackoff(), 3)) as client:
        connections = Connections.of(client)
        connections.ask("PING")
        for each in opened(redis_client):
            redis_client.client_kill_filter(_id=each)
        tried = []
        monkeypatch.setattr(
            UnixDomainSocketConnection, "_connect", lambda _: tried.append("") or _time_out()
        )
        monkeypatch.setattr(
            UnixDomainSocketConnection, "host", "", raising=False
        )  # redis-py asks for both in a
        monkeypatch.setattr(
            UnixDomainSocketConnection, "port", 0, raising=False
        )  # time-out, and a socket has neither
        with pytest.raises(RedisTimeoutError):
            connections.ask("PING")
    assert len(tried) == 4


def test_timeout_closes_all_idle_connections(redis_client, connections, monkeypatch):
    """A server that vanished left all of them dead, and each would cost a caller a whole timeout."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: connections.ask("ECHO", "x" * 100_000), range(100)))
    before = opened(redis_client)
    with monkeypatch.context() as patches:
        patches.setattr(AbstractConnection, "read_response", lambda *_, **__: _no_answer())
        with pytest.raises(RedisTimeoutError):
            connections.ask("PING")
    assert str(connections.ask("CLIENT", "ID")) not in before


@pytest.mark.parametrize(("patient", "tries"), [(False, 1), (True, 9)])
def test_only_patient_callers_retry_a_timeout(redis_url, monkeypatch, patient, tries):
    """The others wait once; a broken connection is retried in any case."""
    asked = []
    with connect(redis_url, patient=patient) as client, monkeypatch.context() as patches:
        connections = Connections.of(client)
        connections.ask("PING")
        pauses = iter([0.0] * 8)
        patches.setattr(Retries, "pause_after", lambda *_: next(pauses, None))
        patches.setattr(
            AbstractConnection, "read_response", lambda *_, **__: asked.append("") or _no_answer()
        )
        with pytest.raises(RedisTimeoutError):
            connections.ask("PING")
    assert len(asked) == tries


def _no_answer() -> None:
    raise RedisTimeoutError("Timeout reading from socket")


def _time_out() -> None:
    raise TimeoutError


def test_pool_is_shared_with_its_client(redis_url):
    """All callers share one set, and a client with few connections can still use them itself."""
    for most in (1, 2, 3):
        with Redis.from_url(redis_url, decode_responses=True, max_connections=most) as client:
            assert [Connections.of(client).ask("ECHO", str(number)) for number in range(5)] == list(
                "01234"
            )
            assert client.ping()
            assert client.connection_pool._created_connections <= most


def test_argument_that_redis_cannot_have_is_refused(connections):
    """redis-py refuses it, without harm to a connection."""
    for wrong in (None, ["a"], {}):
        with pytest.raises(DataError):
            connections.ask("ECHO", wrong)
    assert connections.ask("ECHO", "7") == "7"


def test_callers_at_once_have_a_connection_each(redis_client, connections):
    """There are as many as callers, kept for the next ones."""
    before = opened(redis_client)
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda number: connections.ask("ECHO", str(number)), range(400)))
    assert numbers == [str(number) for number in range(400)]
    assert len(opened(redis_client) - before) <= 8


def test_refused_command_keeps_its_connection(redis_client, connections):
    """An error reply is an answer too."""
    connections.ask("PING")
    before = opened(redis_client)
    with pytest.raises(ResponseError, match="unknown command"):
        connections.ask("NOSUCHCOMMAND")
    assert connections.ask("PING") == "PONG"
    assert opened(redis_client) == before


def test_outage_is_an_error_at_once_and_its_end_is_noticed(tmp_path, redis_url):
    """Without a server the caller gets an error, and no failed attempt disturbs later ones."""
    connections = Connections.of(connect(f"unix://{tmp_path}/redis.sock"))
    for _ in range(2):
        with pytest.raises(RedisConnectionError):
            connections.ask("PING")
    (tmp_path / "redis.sock").symlink_to(redis_url.partition("unix://")[2].partition("?")[0])
    assert connections.ask("PING") == "PONG"


def test_client_that_answers_in_bytes_is_refused(redis_url, tmp_path):
    """It is refused at start, not at the first yes."""
    with (
        Redis.from_url(redis_url) as client,
        pytest.raises(ValueError, match="decode_responses=True"),
    ):
        LuaScripts(client, ScriptFolder(tmp_path))


def test_script_that_the_server_lost_is_sent_again(redis_client, tmp_path):
    """The server lost it by SCRIPT FLUSH or a restart, or is another server."""
    (tmp_path / "echo.lua").write_text("return {shard, args.word, ARGV[2]}")
    scripts = LuaScripts(redis_client, ScriptFolder(tmp_path), prefix="p:")
    assert scripts.run_on("echo", "room", {"word": "one"}, b"raw") == ["p:{room}", "one", "raw"]
    redis_client.script_flush()
    assert scripts.run_on("echo", 3, {"word": "ü"}, 2.5) == ["p:{3}", "ü", "2.5"]
    assert redis_client.script_exists(scripts._scripts["echo"].sha) == [True]


def test_write_that_no_replica_confirms_raises_and_leaves_no_answer_behind(connections):
    """The next caller on the connection gets its own answer."""
    connections.replicas = 1
    with pytest.raises(NotReplicated, match="confirmed by 0 of 1 replicas within"):
        connections.ask("ECHO", "first", durable=True)
    with pytest.raises(ResponseError, match="unknown command"):
        connections.ask("NONSENSE", durable=True)
    assert connections.ask("ECHO", "second") == "second"
