"""RedisCircuitBreaker: a server that hangs holds up one caller at a time, and only for its timeout."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sayso.pending.redis.client import RedisCircuitBreaker


class Server:
    """Takes `seconds` for an answer, which is `error` if there is one."""

    def __init__(self) -> None:
        self.now, self.asked, self.seconds, self.error = 0.0, 0, 0.0, None
        self.breaker = RedisCircuitBreaker(slow_seconds=0.25, pause_seconds=1.0, clock=lambda: self.now)

    def hangs(self) -> None:
        """From now on nobody hears from it."""
        self.seconds, self.error = 0.5, RedisTimeoutError("Timeout reading from socket")

    def answers(self) -> None:
        """From now on it is well."""
        self.seconds, self.error = 0.0, None

    def question(self) -> str:
        """Ask it."""
        self.asked, self.now = self.asked + 1, self.now + self.seconds
        if self.error:
            raise self.error
        return "PONG"

    def ask(self) -> str:
        """What a caller hears, or the name of what is raised."""
        try:
            return self.breaker.call(self.question)
        except (RedisTimeoutError, RedisConnectionError, ResponseError) as exc:
            return type(exc).__name__


@pytest.fixture
def server() -> Server:
    """One that answers."""
    return Server()


def test_after_one_that_was_held_up_nobody_asks(server: Server):
    """They hear so at once."""
    server.hangs()
    assert [server.ask() for _ in range(4)] == ["TimeoutError"] + ["CircuitOpen"] * 3
    assert (server.asked, server.now) == (1, 0.5)


def test_one_asks_again_each_second(server: Server):
    """The others go on hearing so, also while he waits for his answer."""
    server.hangs()
    server.ask()
    server.now += 1.0
    heard = []
    with pytest.raises(RedisTimeoutError, match="Timeout reading"):
        server.breaker.call(lambda: heard.append(server.ask()) or server.question())
    assert (heard, server.ask(), server.asked) == (["CircuitOpen"], "CircuitOpen", 2)


def test_without_a_pause_the_next_one_finds_out(server: Server):
    """One at a time: who comes while he waits hears at once, and a server that was slow once loses hardly anybody."""
    server.breaker = RedisCircuitBreaker(slow_seconds=0.25, clock=lambda: server.now)
    server.hangs()
    server.ask()
    heard = []
    with pytest.raises(RedisTimeoutError, match="Timeout reading"):
        server.breaker.call(lambda: heard.append(server.ask()) or server.question())
    server.answers()
    assert (heard, server.ask(), server.ask()) == (["CircuitOpen"], "PONG", "PONG")


def test_who_is_interrupted_leaves_finding_out_to_the_next(server: Server):
    """It does not stay closed for want of an outcome."""
    server.hangs()
    server.ask()
    server.now += 1.0

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.breaker.call(interrupted)
    server.answers()
    assert server.ask() == "PONG"


def test_first_answer_opens_it_for_all(server: Server):
    """Within a second of the server's return."""
    server.hangs()
    server.ask()
    server.answers()
    server.now += 1.0
    assert [server.ask() for _ in range(3)] == ["PONG"] * 3


@pytest.mark.parametrize("error", [RedisConnectionError("refused"), ResponseError("OOM")])
def test_quick_failure_holds_nobody_up(server: Server, error: Exception):
    """All ask, so that a server that was restarted is noticed at once; so they do when one finds it gone."""
    server.error = error
    assert (server.ask(), server.ask()) == (type(error).__name__,) * 2
    server.hangs()
    server.ask()
    server.seconds, server.error = 0.0, error
    server.now += 1.0
    assert (server.ask(), server.ask()) == (type(error).__name__,) * 2


def test_late_refusal_is_an_answer(server: Server):
    """The server is there."""
    server.seconds, server.error = 0.4, ResponseError("BUSY")
    assert (server.ask(), server.ask()) == ("ResponseError", "ResponseError")
