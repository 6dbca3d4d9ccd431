"""RedisCircuitBreaker: a server that hangs delays one caller at a time, and only for its timeout."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sayso.infra.redis.connections import RedisCircuitBreaker


class Server:
    """Takes `seconds` for an answer, which is `error` if there is one."""

    def __init__(self) -> None:
        self.now, self.asked, self.seconds, self.error = 0.0, 0, 0.0, None
        self.breaker = RedisCircuitBreaker(
            slow_seconds=0.25, pause_seconds=1.0, clock=lambda: self.now
        )

    def hangs(self) -> None:
        """Stop answering."""
        self.seconds, self.error = 0.5, RedisTimeoutError("Timeout reading from socket")

    def answers(self) -> None:
        """Answer from now on."""
        self.seconds, self.error = 0.0, None

    def question(self) -> str:
        """Call the server."""
        self.asked, self.now = self.asked + 1, self.now + self.seconds
        if self.error:
            raise self.error
        return "PONG"

    def ask(self) -> str:
        """Return what a caller gets, or the name of the error."""
        try:
            with self.breaker.attempt():
                return self.question()
        except (RedisTimeoutError, RedisConnectionError, ResponseError) as exc:
            return type(exc).__name__


@pytest.fixture
def server() -> Server:
    """Return a server that answers."""
    return Server()


def test_open_breaker_refuses_at_once(server: Server):
    """After one timeout, callers get the error at once."""
    server.hangs()
    assert [server.ask() for _ in range(4)] == ["TimeoutError"] + ["CircuitOpen"] * 3
    assert (server.asked, server.now) == (1, 0.5)


def test_one_caller_probes_each_second(server: Server):
    """The others get the error at once, even while the probe waits."""
    server.hangs()
    server.ask()
    server.now += 1.0
    heard = []
    with pytest.raises(RedisTimeoutError, match="Timeout reading"), server.breaker.attempt():
        heard.append(server.ask()) or server.question()
    assert (heard, server.ask(), server.asked) == (["CircuitOpen"], "CircuitOpen", 2)


def test_breaker_without_a_pause_lets_the_next_caller_probe(server: Server):
    """One caller probes at a time, the others get the error at once. A single slow answer costs few calls."""
    server.breaker = RedisCircuitBreaker(slow_seconds=0.25, clock=lambda: server.now)
    server.hangs()
    server.ask()
    heard = []
    with pytest.raises(RedisTimeoutError, match="Timeout reading"), server.breaker.attempt():
        heard.append(server.ask()) or server.question()
    server.answers()
    assert (heard, server.ask(), server.ask()) == (["CircuitOpen"], "PONG", "PONG")


def test_interrupted_probe_is_left_to_the_next_caller(server: Server):
    """The breaker does not stay open because a probe had no outcome."""
    server.hangs()
    server.ask()
    server.now += 1.0

    with pytest.raises(KeyboardInterrupt), server.breaker.attempt():
        raise KeyboardInterrupt
    server.answers()
    assert server.ask() == "PONG"


def test_first_answer_closes_the_breaker_for_all(server: Server):
    """That happens within a second of the server's return."""
    server.hangs()
    server.ask()
    server.answers()
    server.now += 1.0
    assert [server.ask() for _ in range(3)] == ["PONG"] * 3


@pytest.mark.parametrize("error", [RedisConnectionError("refused"), ResponseError("OOM")])
def test_quick_failure_does_not_open_the_breaker(server: Server, error: Exception):
    """All callers ask, so that a restarted server is noticed at once."""
    server.error = error
    assert (server.ask(), server.ask()) == (type(error).__name__,) * 2
    server.hangs()
    server.ask()
    server.seconds, server.error = 0.0, error
    server.now += 1.0
    assert (server.ask(), server.ask()) == (type(error).__name__,) * 2


def test_late_error_reply_is_an_answer(server: Server):
    """The server is reachable."""
    server.seconds, server.error = 0.4, ResponseError("BUSY")
    assert (server.ask(), server.ask()) == ("ResponseError", "ResponseError")
