"""Explicit caches at Gemini: created when they pay, used in place of what they hold, and forgotten when gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from sayso.agent.messages import Message, Role
from sayso.agent.providers.base import acall, stream_items
from sayso.agent.providers.gemini_cache import MAX_PROMPTS, MIN_MISSES, TTL_SECONDS, ExplicitCaches
from sayso.agent.providers.vendors import GeminiProvider
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import Server
from tests.agent.providers.test_contract import asked, stock

MISS = {"text": "Hi", "usage": [3000, 5, 0]}
HIT = {"text": "Hi", "usage": [3000, 5, 2900]}


async def ask_until_cached(
    provider: GeminiProvider, *, requests: int = MIN_MISSES, **more: Any
) -> None:
    """Make the requests, and wait for what happens beside them."""
    for _ in range(requests):
        await acall(provider, asked(**more))
    assert provider._explicit_caches is not None
    await asyncio.gather(*provider._explicit_caches._tasks)


def explicit(server: Server) -> GeminiProvider:
    """Return a provider with explicit caches."""
    return GeminiProvider(KEY, base_url=server.url, cache_prompt="explicit")


def test_prompt_that_misses_the_implicit_cache_gets_an_explicit_one(server: Server) -> None:
    """Later requests refer to it, whole and streamed; the fake refuses them if they repeat what it holds."""
    server.script(*[MISS] * MIN_MISSES, {}, HIT, HIT)

    async def run() -> None:
        provider = explicit(server)
        await ask_until_cached(provider, tools=[stock.schema()])
        await acall(provider, asked(tools=[stock.schema()]))
        assert [item async for item in stream_items(provider, asked(tools=[stock.schema()]))]

    asyncio.run(run())
    *first, created, whole, streamed = server.calls
    assert created["path"] == "/v1beta/cachedContents"
    assert created["body"]["ttl"] == "3600s"
    assert created["body"]["tools"] == first[0]["body"]["tools"]
    assert (
        created["body"]["systemInstruction"]["parts"]
        == first[0]["body"]["systemInstruction"]["parts"]
    )
    assert whole["body"]["cachedContent"] == streamed["body"]["cachedContent"] != ""
    assert "cachedContent" not in first[-1]["body"]


@pytest.mark.parametrize("steps", [[MISS] * (MIN_MISSES - 1), [HIT] * 20])
def test_prompt_that_an_explicit_cache_would_not_pay_for_gets_none(
    server: Server, steps: list[Any]
) -> None:
    """Too few requests, or the implicit cache works."""
    server.script(*steps)
    asyncio.run(ask_until_cached(explicit(server), requests=len(steps)))
    assert {call["path"] for call in server.calls} == {server.calls[0]["path"]}


def test_default_creates_no_cache(server: Server) -> None:
    """Storage costs money, so only an operator turns it on."""
    server.script(*[MISS] * 10)
    provider = GeminiProvider(KEY, base_url=server.url)

    async def run() -> None:
        for _ in range(10):
            await acall(provider, asked())

    asyncio.run(run())
    assert all("cachedContents" not in call["path"] for call in server.calls)


def test_cache_that_is_gone_costs_no_answer(server: Server) -> None:
    """The request is made again with the whole prompt, and the cache is forgotten."""
    server.script(*[MISS] * MIN_MISSES, {"gone": True}, HIT, HIT)

    async def run() -> list[str]:
        provider = explicit(server)
        await ask_until_cached(provider)
        return [(await acall(provider, asked()))[0].content for _ in range(2)]

    assert asyncio.run(run()) == ["Hi", "Hi"]
    assert ["cachedContent" in body for body in server.bodies[-3:]] == [True, False, False]


def test_failed_creation_costs_no_answer(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A prompt below Gemini's least number of tokens is refused. It is not tried again within the hour."""
    refused = {"status": 400, "message": "Cached content is too small. min_total_token_count=1024"}
    server.script(*[MISS] * MIN_MISSES, refused, *[MISS] * MIN_MISSES)

    async def run() -> None:
        provider = explicit(server)
        for _ in range(2):
            await ask_until_cached(provider)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert [record.message for record in caplog.records] == ["provider.explicit_cache_failed"]
    assert sum("cachedContents" in call["path"] for call in server.calls) == 1


def test_summary_is_stored_in_no_cache(server: Server) -> None:
    """It is about a person, and a cache lives for an hour."""
    server.script(*[MISS] * MIN_MISSES)
    words = (Message(Role.SYSTEM, "Earlier: much."), Message(Role.USER, "Hello"))

    async def run() -> None:
        provider = explicit(server)
        for _ in range(MIN_MISSES):
            await acall(provider, asked(*words))

    asyncio.run(run())
    assert all("cachedContents" not in call["path"] for call in server.calls)


def test_cache_ends_before_its_hour_and_must_pay_anew() -> None:
    """The number of watched prompts is bounded, too."""
    now = [0.0]
    caches = ExplicitCaches(lambda: now[0])
    created: list[str] = []

    async def create(fields: Any) -> str:
        created.append("name")
        return f"cachedContents/{len(created)}"

    async def miss(times: int) -> None:
        for _ in range(times):
            caches.note_miss("key", {}, create)
            await asyncio.gather(*caches._tasks)

    asyncio.run(miss(MIN_MISSES))
    assert caches.name_of("key") == "cachedContents/1"
    now[0] = TTL_SECONDS
    assert caches.name_of("key") == ""
    asyncio.run(miss(MIN_MISSES - 1))
    assert len(created) == 1
    asyncio.run(miss(1))
    assert caches.name_of("key") == "cachedContents/2"
    for number in range(2 * MAX_PROMPTS):
        caches._begins_creation(str(number))
    assert len(caches._prompts) == MAX_PROMPTS
