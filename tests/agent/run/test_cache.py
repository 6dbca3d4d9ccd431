"""Cache of answers: no request gets the answer to another one, and a failing cache loses no answer."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from sayso.agent import (
    Agent,
    AgentConfig,
    Message,
    Role,
    ScriptedProvider,
    ToolCall,
    UsageStats,
    tool,
)
from sayso.agent.config import CacheStats
from sayso.agent.run.cache import (
    CacheKeyBuilder,
    InMemoryCache,
    RedisCache,
    cached_answer,
    delete_answer,
    store_answer,
)
from sayso.channels.types import Media
from sayso.infra.redis.client import connect

ANSWER = (Message(Role.ASSISTANT, "tea"), UsageStats(10, 5, 15))
HELLO = [Message(Role.USER, "Hello")]
SECRET = "redis://:secret@localhost:1/0"  # no server listens there


@tool
def price(of: str) -> str:
    """Return a price."""
    return of


@tool
def stock(of: str) -> str:
    """Return the number in stock."""
    return of


class Ticket(BaseModel):
    """A response format."""

    intent: str


class Clock:
    """A clock that shows the time it is set to."""

    now = 0.0

    def __call__(self):
        """Return the seconds."""
        return self.now


def key(**changed):
    """Return the key of a request with these changes."""
    return CacheKeyBuilder.build(
        **{"model": "m", "system_prompt": "Be brief.", "messages": HELLO, **changed}
    )


def said(content="", *, calls=(), answers="", role=Role.ASSISTANT):
    """Return a message of a transcript."""
    return Message(role, content, calls, answers, "price" if answers else "")


def asked_twice(first, second, *answered):
    """Return two calls with these ids, and results for those in `answered`."""
    calls = said(
        calls=(ToolCall("price", {"of": "tea"}, first), ToolCall("price", {"of": "nuts"}, second))
    )
    return [
        *HELLO,
        calls,
        *(said(str(n), answers=each, role=Role.TOOL) for n, each in enumerate(answered)),
    ]


OTHERS = {
    "provider": {"provider": "openai"},
    "model": {"model": "m2"},
    "prompt": {"system_prompt": "Be long."},
    "prompt into model": {"model": "mBe", "system_prompt": " brief."},
    "no message": {"messages": []},
    "content": {"messages": [Message(Role.USER, "Hello!")]},
    "role": {"messages": [Message(Role.ASSISTANT, "Hello")]},
    "two messages for one": {"messages": [Message(Role.USER, "Hel"), Message(Role.USER, "lo")]},
    "media": {"messages": [Message(Role.USER, "Hello", media=(Media("a", "image/png"),))]},
    "other media": {"messages": [Message(Role.USER, "Hello", media=(Media("b", "image/png"),))]},
    "tool": {"tools": [price]},
    "other tool": {"tools": [stock]},
    "tools": {"tools": [price, stock]},
    "tools in another order": {"tools": [stock, price]},
    "temperature": {"temperature": 0.1},
    "max_tokens": {"max_tokens": 10},
    "format": {"response_format": Ticket},
    "any format": {"response_format": {}},
    "call": {"messages": asked_twice("a", "b")},
    "results": {"messages": asked_twice("a", "b", "a", "b")},
    "results of the other call": {"messages": asked_twice("a", "b", "b", "a")},
    "text that looks like a field": {"messages": [Message(Role.USER, 'Hello"},{"role":"user')]},
}


def test_different_requests_have_different_keys():
    """Each request differs from all others in one field."""
    keys = {name: key(**changed) for name, changed in {"plain": {}, **OTHERS}.items()}
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
def test_equal_requests_have_equal_keys(changed):
    """Copies of the request have the same key, in every process."""
    assert key(**changed) == key(
        **{name: each if name == "tools" else copy.copy(each) for name, each in changed.items()}
    )
    assert key(**changed).startswith("sayso:")
    assert len(key(**changed)) == len("sayso:") + 64


@given(st.lists(st.tuples(st.sampled_from(Role), st.text()), max_size=3), st.text(), st.text())
def test_keys_are_equal_only_for_equal_texts(words, model, prompt):
    """Text that moves from one field to the next changes the key."""
    request = {
        "messages": [Message(role, text) for role, text in words],
        "model": model,
        "system_prompt": prompt,
    }
    assert key(**request) == key(**request)
    assert key(**request) != key(**{**request, "model": model + "x", "system_prompt": prompt[1:]})


def test_call_ids_do_not_change_the_key():
    """The key still depends on which result answers which call."""
    assert key(messages=asked_twice("a", "b", "b", "a")) == key(
        messages=asked_twice("x7", "x9", "x9", "x7")
    )
    assert key(messages=asked_twice("a", "b", "b", "a")) != key(
        messages=asked_twice("x7", "x9", "x7", "x9")
    )


def test_key_does_not_depend_on_the_notation_of_a_request():
    """The order of arguments, a tool or its schema, and 0 or 0.0 make no difference."""
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert key(messages=[said(calls=(ToolCall("t", one),))]) == key(
        messages=[said(calls=(ToolCall("t", other),))]
    )
    assert key(tools=[price]) == key(tools=[json.loads(json.dumps(price.schema()))])
    assert key(temperature=0) == key(temperature=0.0)
    assert key(response_format=Ticket) == key(response_format=Ticket.model_json_schema())


def test_key_is_stable_across_versions():
    """The key is pinned, because a change would invalidate every cache in use."""
    assert key() == "sayso:3baa2de5e4269d804686e5aeb7eb8a6d87663c97eb9837f8a1e3905f3b63d979"


def test_order_of_schema_properties_changes_the_key():
    """A model writes the properties in that order, so the order affects its answer."""
    properties = {"why": {"type": "string"}, "yes": {"type": "boolean"}}
    backwards = dict(reversed(properties.items()))
    keys = {
        key(response_format={"type": "object", "properties": each})
        for each in (properties, backwards)
    }
    assert len(keys) == 2


def test_entry_expires_by_the_caches_clock():
    """Each entry has its own time to live."""
    clock = Clock()
    cache = InMemoryCache(default_ttl=10, clock=clock)
    cache.set("short", ANSWER)
    cache.set("long", ANSWER, 20)
    clock.now = 10.0
    assert (cache.get("short"), cache.get("long")) == (None, ANSWER)
    assert (cache.delete("short"), cache.stats) == (False, CacheStats(hits=1, misses=1))


def test_least_recently_used_entry_is_evicted():
    """The statistics count the eviction."""
    cache = InMemoryCache(max_size=2)
    cache.set("a", ANSWER)
    cache.set("b", ANSWER)
    cache.get("a")
    cache.set("c", ANSWER)
    assert [cache.get(each) is not None for each in "abc"] == [True, False, True]
    assert cache.stats.evictions == 1


def test_cache_is_bounded_in_characters():
    """Long answers evict others; an answer longer than the whole limit is not stored and evicts nothing."""
    cache = InMemoryCache(max_chars=2000)
    long = (Message(Role.ASSISTANT, "x" * 900), UsageStats())
    for each in "abc":
        cache.set(each, long)
    cache.set("d", (Message(Role.ASSISTANT, "x" * 3000), UsageStats()))
    kept = [each for each in "abcd" if cache.get(each)]
    assert kept in (["c"], ["b", "c"])
    assert cache._texts._chars == sum(chars for _, chars, _ in cache._texts._entries.values())


@pytest.mark.parametrize("limit", ["max_size", "default_ttl", "max_chars"])
def test_cache_without_capacity_is_refused(limit):
    """The error names the setting and the fix."""
    with pytest.raises(ValueError, match=f"{limit} is 0: give"):
        InMemoryCache(**{limit: 0})


def test_redis_stores_json_with_an_expiry(redis_client):
    """No pickle is stored, and every key expires."""
    cache = RedisCache(client=redis_client)
    cache.set("k", ANSWER)
    cache.set("brief", ANSWER, 0.5)
    assert json.loads(redis_client.get("sayso:cache:k"))["message"] == {
        "role": "assistant",
        "content": "tea",
    }
    assert 299_000 < redis_client.pttl("sayso:cache:k") <= 300_000
    assert 0 < redis_client.pttl("sayso:cache:brief") <= 500


@pytest.mark.parametrize(
    "entry",
    [
        "", "{", "[]", "null", '{"message": 1}', '{"message": {"role": "x"}, "usage": {}}',
        '{"message": {"role": "assistant", "content": 5}, "usage": {}}',
        '{"message": {"role": "user", "content": "tea"}, "usage": {}}',
        '{"message": {"role": "assistant", "content": "tea"}, "usage": {"prompt_tokens": "1"}}',
        '{"message": {"role": "assistant", "content": "tea"}, "usage": {"cost_usd": NaN}}',
        '{"message": {"role": "assistant", "tool_calls": [{"tool_name": "x", "parameters": []}]}, "usage": {}}',
        '{"message": {"role": "assistant", "content": "tea", "of_tomorrow": 1}, "usage": {}}',
    ],
)  # fmt: skip
def test_unreadable_entry_is_a_miss(redis_client, entry):
    """Another version or another program may have written the entry."""
    cache = RedisCache(client=redis_client)
    redis_client.set("sayso:cache:k", entry)
    assert (cache.get("k"), cache.stats) == (None, CacheStats(misses=1))


@pytest.mark.parametrize("prefix", ["a:", "a*", "[a]:", "a?", "a\\"])
def test_clear_deletes_only_its_own_keys(redis_client, prefix):
    """A prefix may contain pattern characters."""
    others = ["sayso:cache:k", "ab", "a", "aa:", "abc:"]
    for each in others:
        redis_client.set(each, "mine")
    cache = RedisCache(prefix=prefix, client=redis_client)
    cache.set("k", ANSWER)
    cache.clear()
    assert sorted(redis_client.scan_iter()) == sorted(others)


def test_processes_share_the_redis_cache(redis_url, redis_client):
    """Each process has its own statistics; a client may also return bytes."""
    RedisCache(redis_url).set("k", ANSWER)
    from redis import Redis

    with Redis.from_url(redis_url) as in_bytes:
        other = RedisCache(client=in_bytes)
        assert (other.get("k"), other.stats) == (ANSWER, CacheStats(hits=1))


def test_unreachable_redis_is_an_empty_cache(caplog):
    """One warning is logged, without the address and its password."""
    cache = RedisCache(SECRET)
    with caplog.at_level(logging.INFO):
        cache.set("k", ANSWER)
        found = [cache.get("k"), cache.get("k"), cache.delete("k"), cache.clear()]
    assert found == [None, None, False, None]
    assert [record.getMessage() for record in caplog.records] == ["cache.redis_away"]
    assert "secret" not in caplog.text


def test_silent_redis_is_tried_once():
    """The server accepts connections without answering: only the first of ten lookups connects."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cache = RedisCache(f"redis://127.0.0.1:{silent.getsockname()[1]}")
        assert [cache.get("k") for _ in range(10)] == [None] * 10
        silent.setblocking(False)
        tries = [silent.accept()[0]]
        with pytest.raises(BlockingIOError):
            tries.append(silent.accept()[0])
    tries[0].close()


def test_outage_and_recovery_of_redis_are_logged(redis_client, caplog):
    """A second outage is logged again."""
    cache, connections = RedisCache(client=redis_client), RedisCache(SECRET)._connections
    there = cache._connections
    with caplog.at_level(logging.INFO):
        for each in (connections, connections, there, there, connections):
            cache._connections = each
            cache.get("k")
    assert [record.getMessage() for record in caplog.records] == [
        "cache.redis_away",
        "cache.redis_back",
        "cache.redis_away",
    ]


@pytest.mark.parametrize("options", [{"prefix": ""}, {"default_ttl": 0}])
def test_unsafe_redis_cache_settings_are_refused(options):
    """Clearing an empty prefix would empty the server, and a time to live of zero stores nothing."""
    with pytest.raises(ValueError, match="give"):
        RedisCache(**options)


def test_event_loop_is_free_while_redis_answers(redis_url, redis_client):
    """Other tasks run while the lookup waits."""
    cache = RedisCache(client=connect(redis_url))

    async def both():
        await store_answer(cache, "k", ANSWER)
        redis_client.client_pause(100, all=True)
        waiting = asyncio.ensure_future(cached_answer(cache, "k"))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        return waiting.result(), turns

    found, turns = asyncio.run(both())
    assert found == ANSWER
    assert turns > 3


class Broken:
    """A cache that fails at every operation."""

    def get(self, key):
        """Raise a connection error."""
        raise ConnectionError(SECRET)

    set = delete = get


def test_failing_cache_does_not_lose_the_answer(caplog):
    """It behaves as an empty cache, and the log has the kind of failure."""

    async def use():
        await store_answer(Broken(), "k", ANSWER)
        await delete_answer(Broken(), "k")
        return await cached_answer(Broken(), "k")

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(use()) is None
    assert {record.getMessage() for record in caplog.records} == {"cache.failed"}
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "max_tokens", "is_kept"),
    [
        (("tea", (), 5), None, True),
        (("tea", (), 5), 6, True),
        (("tea", (), 5), 5, False),
        (("", (), 0), 6, False),
        ((" \n", (), 1), 6, False),
        (("", (ToolCall("price"),), 1), 6, True),
    ],
)
def test_only_complete_answers_are_cached(answer, max_tokens, is_kept):
    """An answer that was cut off or is empty may be better the next time."""
    content, calls, tokens = answer
    cache = InMemoryCache()
    value = (Message(Role.ASSISTANT, content, calls), UsageStats(completion_tokens=tokens))
    asyncio.run(store_answer(cache, "k", value, max_tokens=max_tokens))
    assert (cache.get("k") is not None) is is_kept


def test_useless_answer_can_be_deleted():
    """The next run asks the model again."""
    cache = InMemoryCache()
    cache.set("k", ANSWER)
    asyncio.run(delete_answer(cache, "k"))
    assert asyncio.run(cached_answer(cache, "k")) is None


def test_cached_call_gets_an_unused_id():
    """An id that is already in the transcript is replaced; other ids stay."""
    cache = InMemoryCache()
    calls = (ToolCall("price", {"of": "tea"}, "call_1"), ToolCall("price", {}, "call_2"))
    cache.set("k", (said(calls=calls), UsageStats()))
    before = [said(calls=(ToolCall("stock", {}, "call_1"),))]
    answer, _ = asyncio.run(cached_answer(cache, "k", transcript=before))
    assert answer.tool_calls[0].id not in ("", "call_1", "call_2")
    assert (answer.tool_calls[0].parameters, answer.tool_calls[1].id) == ({"of": "tea"}, "call_2")
    assert asyncio.run(cached_answer(cache, "k"))[0].tool_calls == calls


class Holding(InMemoryCache):
    """A custom cache that returns the same value for every key."""

    def __init__(self, thing):
        super().__init__()
        self.thing = thing

    def get(self, key):
        """Return the value."""
        return self.thing


@pytest.mark.parametrize(
    "thing",
    [
        "tea", ("tea", None), (Message(Role.ASSISTANT, "tea"), None), (Message(Role.USER, "tea"), UsageStats()),
        (Message(Role.ASSISTANT), UsageStats()),
    ],
)  # fmt: skip
def test_invalid_cached_value_is_a_miss(thing):
    """The model is called as if the cache were empty."""
    agent = Agent(provider=ScriptedProvider(["coffee"]), config=AgentConfig(cache=Holding(thing)))
    assert agent.run("What is there?").content == "coffee"


def test_providers_with_different_default_models_share_no_answer():
    """If the agent names no model, the key contains the provider's default model."""
    cache = InMemoryCache()
    for model in ("small", "big"):
        provider = ScriptedProvider([model])
        provider.default_model = model
        assert (
            Agent(provider=provider, config=AgentConfig(cache=cache)).run("Who are you?").content
            == model
        )


def test_unserializable_transcript_bypasses_the_cache():
    """The transcript has no key, and the run continues."""
    said = Message(Role.ASSISTANT, tool_calls=(ToolCall("price", {"of": object()}, "1"),))
    model = ScriptedProvider(["ok"], strict=False)  # no vendor would take it
    agent = Agent(provider=model, config=AgentConfig(cache=InMemoryCache()))
    assert agent.run([*HELLO, said, Message(Role.TOOL, "1", tool_call_id="1")]).content == "ok"
