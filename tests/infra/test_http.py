"""Pooled sessions: one per platform and loop, closed with the loop, and exact about unsent requests."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest
from aiohttp import ClientError, ClientSession

from sayso.infra.http import PooledSessions, never_sent
from tests.channels.harness import server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def ask(kept: PooledSessions[ClientSession], url: str) -> bytes:
    """Return the body of an answer."""
    async with kept.here().get(url) as answer:
        return await answer.read()


def test_consecutive_calls_share_a_connection():
    """There is one handshake for all."""
    kept = PooledSessions(lambda session: session)

    async def story() -> int:
        async with server(OK) as (url, connections):
            assert [await ask(kept, url) for _ in range(3)] == [b"ok"] * 3
            return len(connections)

    assert asyncio.run(story()) == 1


def test_each_loop_has_a_session_of_its_own_that_ends_with_it():
    """A session of an ended loop would hang the next loop."""
    kept = PooledSessions(lambda session: session)

    async def story() -> ClientSession:
        async with server(OK) as (url, _):
            await ask(kept, url)
            return kept.here()

    first, second = asyncio.run(story()), asyncio.run(story())
    assert first is not second
    assert (first.closed, second.closed) == (True, True)


def test_session_ends_with_its_loop_also_where_its_user_is_gone():
    """The user of a command is soon collected.

    A session left open would print warnings below the answer.
    """
    complaints: list[str] = []

    async def story() -> ClientSession:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, what: complaints.append(what["message"])
        )
        session = PooledSessions(lambda session: session).here()
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
        return session

    assert (asyncio.run(story()).closed, complaints) == (True, [])


def test_refused_connection_never_sent():
    """No server listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(ClientError) as caught:
            asyncio.run(
                ask(
                    PooledSessions(lambda session: session),
                    f"http://127.0.0.1:{closed.getsockname()[1]}",
                )
            )
    assert never_sent(caught.value)


def test_lost_answer_may_have_been_sent():
    """The server read the request, and then the connection broke."""

    async def story() -> None:
        async with server(b"") as (url, _):
            kept = PooledSessions(lambda session: session)
            async with kept.here().post(url):
                pass

    with pytest.raises(ClientError) as caught:
        asyncio.run(story())
    assert not never_sent(caught.value)
