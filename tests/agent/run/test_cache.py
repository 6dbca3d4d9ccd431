"""Cache of answers: nobody is given the answer to another question, and no cache costs an answer."""

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

from sayso.agent import Agent, AgentConfig, Message, Role, ScriptedProvider, ToolCall, UsageStats, tool
from sayso.agent.config import CacheStats
from sayso.agent.run.cache import CacheKeyBuilder, InMemoryCache, RedisCache, cached_answer, delete_answer, store_answer
from sayso.channels.types import Media
from sayso.pending.redis.client import connect

ANSWER = (Message(Role.ASSISTANT, "tea"), UsageStats(10, 5, 15))
HELLO = [Message(Role.USER, "Hello")]
SECRET = "redis://:secret@localhost:1/0"  # where nobody listens


@tool
def price(of: str) -> str:
    """Tell a price."""
    return of


@tool
def stock(of: str) -> str:
    """Tell how many there are."""
    return of


class Ticket(BaseModel):
    """A format."""

    intent: str


class Clock:
    """Tells what it is set to."""

    now = 0.0

    def __call__(self):
        """The seconds."""
        return self.now


def key(**changed):
    """The key of a request that differs in one thing."""
    return CacheKeyBuilder.build(**{"model": "m", "system_prompt": "Be brief.", "messages": HELLO, **changed})


def said(content="", *, calls=(), answers="", role=Role.ASSISTANT):
    """A message of a transcript."""
    return Message(role, content, calls, answers, "price" if answers else "")


def asked_twice(first, second, *answered):
    """Two calls with these ids, and results of those in `answered`."""
    calls = said(calls=(ToolCall("price", {"of": "tea"}, first), ToolCall("price", {"of": "nuts"}, second)))
    return [*HELLO, calls, *(said(str(n), answers=each, role=Role.TOOL) for n, each in enumerate(answered))]


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


def test_no_two_requests_share_a_key():
    """Each differs from all others in one thing."""
    keys = {name: key(**changed) for name, changed in {"plain": {}, **OTHERS}.items()}
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
def test_equal_requests_share_a_key(changed):
    """In every process: of copies, too."""
    assert key(**changed) == key(
        **{name: each if name == "tools" else copy.copy(each) for name, each in changed.items()}
    )
    assert key(**changed).startswith("sayso:")
    assert len(key(**changed)) == len("sayso:") + 64


@given(st.lists(st.tuples(st.sampled_from(Role), st.text()), max_size=3), st.text(), st.text())
def test_keys_of_any_words_are_equal_only_for_equal_words(words, model, prompt):
    """Wherever one ends and the next begins."""
    request = {"messages": [Message(role, text) for role, text in words], "model": model, "system_prompt": prompt}
    assert key(**request) == key(**request)
    assert key(**request) != key(**{**request, "model": model + "x", "system_prompt": prompt[1:]})


def test_ids_that_a_vendor_made_up_do_not_count():
    """Which result answers which call does."""
    assert key(messages=asked_twice("a", "b", "b", "a")) == key(messages=asked_twice("x7", "x9", "x9", "x7"))
    assert key(messages=asked_twice("a", "b", "b", "a")) != key(messages=asked_twice("x7", "x9", "x7", "x9"))


def test_key_does_not_depend_on_how_a_request_is_written():
    """Arguments have no order, a tool is its schema, a number is a number."""
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert key(messages=[said(calls=(ToolCall("t", one),))]) == key(messages=[said(calls=(ToolCall("t", other),))])
    assert key(tools=[price]) == key(tools=[json.loads(json.dumps(price.schema()))])
    assert key(temperature=0) == key(temperature=0.0)
    assert key(response_format=Ticket) == key(response_format=Ticket.model_json_schema())


def test_key_made_by_another_process_is_the_same():
    """Pinned: whoever changes it makes every cache in use worthless."""
    assert key() == "sayso:3baa2de5e4269d804686e5aeb7eb8a6d87663c97eb9837f8a1e3905f3b63d979"


def test_order_of_properties_counts():
    """Models write them in that order, and think on the way."""
    properties = {"why": {"type": "string"}, "yes": {"type": "boolean"}}
    backwards = dict(reversed(properties.items()))
    keys = {key(response_format={"type": "object", "properties": each}) for each in (properties, backwards)}
    assert len(keys) == 2


def test_time_is_up_by_its_own_clock():
    """Each answer has its own time."""
    clock = Clock()
    cache = InMemoryCache(default_ttl=10, clock=clock)
    cache.set("short", ANSWER)
    cache.set("long", ANSWER, 20)
    clock.now = 10.0
    assert (cache.get("short"), cache.get("long")) == (None, ANSWER)
    assert (cache.delete("short"), cache.stats) == (False, CacheStats(hits=1, misses=1))


def test_what_was_not_asked_for_longest_makes_room():
    """And is counted."""
    cache = InMemoryCache(max_size=2)
    cache.set("a", ANSWER)
    cache.set("b", ANSWER)
    cache.get("a")
    cache.set("c", ANSWER)
    assert [cache.get(each) is not None for each in "abc"] == [True, False, True]
    assert cache.stats.evictions == 1


def test_long_answers_make_room_too():
    """So many characters together; one that is longer by itself pushes nobody out."""
    cache = InMemoryCache(max_chars=2000)
    long = (Message(Role.ASSISTANT, "x" * 900), UsageStats())
    for each in "abc":
        cache.set(each, long)
    cache.set("d", (Message(Role.ASSISTANT, "x" * 3000), UsageStats()))
    kept = [each for each in "abcd" if cache.get(each)]
    assert kept in (["c"], ["b", "c"])
    assert cache._texts._chars == sum(chars for _, chars, _ in cache._texts._entries.values())


@pytest.mark.parametrize("limit", ["max_size", "default_ttl", "max_chars"])
def test_cache_that_could_keep_nothing_is_refused(limit):
    """With the cure."""
    with pytest.raises(ValueError, match=f"{limit} is 0: give"):
        InMemoryCache(**{limit: 0})


def test_redis_keeps_json_that_expires(redis_client):
    """Nobody's pickle, and nothing for ever."""
    cache = RedisCache(client=redis_client)
    cache.set("k", ANSWER)
    cache.set("brief", ANSWER, 0.5)
    assert json.loads(redis_client.get("sayso:cache:k"))["message"] == {"role": "assistant", "content": "tea"}
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
def test_entry_that_cannot_be_read_is_missing(redis_client, entry):
    """Another version wrote it, or somebody else."""
    cache = RedisCache(client=redis_client)
    redis_client.set("sayso:cache:k", entry)
    assert (cache.get("k"), cache.stats) == (None, CacheStats(misses=1))


@pytest.mark.parametrize("prefix", ["a:", "a*", "[a]:", "a?", "a\\"])
def test_clear_touches_only_its_own_keys(redis_client, prefix):
    """Also where a prefix looks like a pattern."""
    others = ["sayso:cache:k", "ab", "a", "aa:", "abc:"]
    for each in others:
        redis_client.set(each, "mine")
    cache = RedisCache(prefix=prefix, client=redis_client)
    cache.set("k", ANSWER)
    cache.clear()
    assert sorted(redis_client.scan_iter()) == sorted(others)


def test_processes_share_what_is_in_redis(redis_url, redis_client):
    """Each counts by itself; a client may also answer in bytes."""
    RedisCache(redis_url).set("k", ANSWER)
    from redis import Redis

    with Redis.from_url(redis_url) as in_bytes:
        other = RedisCache(client=in_bytes)
        assert (other.get("k"), other.stats) == (ANSWER, CacheStats(hits=1))


def test_redis_that_is_away_is_empty(caplog):
    """One warning, without the address and its password."""
    cache = RedisCache(SECRET)
    with caplog.at_level(logging.INFO):
        cache.set("k", ANSWER)
        found = [cache.get("k"), cache.get("k"), cache.delete("k"), cache.clear()]
    assert found == [None, None, False, None]
    assert [record.getMessage() for record in caplog.records] == ["cache.redis_away"]
    assert "secret" not in caplog.text


def test_redis_that_is_silent_is_waited_for_once():
    """It takes connections and says nothing: of ten questions it hears one."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cache = RedisCache(f"redis://127.0.0.1:{silent.getsockname()[1]}")
        assert [cache.get("k") for _ in range(10)] == [None] * 10
        silent.setblocking(False)
        tries = [silent.accept()[0]]
        with pytest.raises(BlockingIOError):
            tries.append(silent.accept()[0])
    tries[0].close()


def test_redis_that_comes_back_is_told_and_missed_again(redis_client, caplog):
    """A second outage is news."""
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
def test_redis_cache_that_would_harm_is_refused(options):
    """Clearing it would empty the server; keeping for no time keeps nothing."""
    with pytest.raises(ValueError, match="give"):
        RedisCache(**options)


def test_loop_goes_on_while_redis_answers(redis_url, redis_client):
    """Other runs are answered meanwhile."""
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
    """Fails at everything."""

    def get(self, key):
        """Fail."""
        raise ConnectionError(SECRET)

    set = delete = get


def test_cache_that_fails_costs_no_answer(caplog):
    """It is as if it were empty, and the log says so by kind."""

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
def test_only_whole_answers_are_kept(answer, max_tokens, is_kept):
    """One that was cut off or says nothing may be better the next time."""
    content, calls, tokens = answer
    cache = InMemoryCache()
    value = (Message(Role.ASSISTANT, content, calls), UsageStats(completion_tokens=tokens))
    asyncio.run(store_answer(cache, "k", value, max_tokens=max_tokens))
    assert (cache.get("k") is not None) is is_kept


def test_answer_that_was_of_no_use_can_be_dropped():
    """The next run asks anew."""
    cache = InMemoryCache()
    cache.set("k", ANSWER)
    asyncio.run(delete_answer(cache, "k"))
    assert asyncio.run(cached_answer(cache, "k")) is None


def test_call_that_joins_a_transcript_has_an_id_of_its_own():
    """The ids of another conversation may be taken in this one; those that are not stay."""
    cache = InMemoryCache()
    calls = (ToolCall("price", {"of": "tea"}, "call_1"), ToolCall("price", {}, "call_2"))
    cache.set("k", (said(calls=calls), UsageStats()))
    before = [said(calls=(ToolCall("stock", {}, "call_1"),))]
    answer, _ = asyncio.run(cached_answer(cache, "k", transcript=before))
    assert answer.tool_calls[0].id not in ("", "call_1", "call_2")
    assert (answer.tool_calls[0].parameters, answer.tool_calls[1].id) == ({"of": "tea"}, "call_2")
    assert asyncio.run(cached_answer(cache, "k"))[0].tool_calls == calls


class Holding(InMemoryCache):
    """A cache of somebody's own that has one thing for all."""

    def __init__(self, thing):
        super().__init__()
        self.thing = thing

    def get(self, key):
        """The thing."""
        return self.thing


@pytest.mark.parametrize(
    "thing",
    [
        "tea", ("tea", None), (Message(Role.ASSISTANT, "tea"), None), (Message(Role.USER, "tea"), UsageStats()),
        (Message(Role.ASSISTANT), UsageStats()),
    ],
)  # fmt: skip
def test_what_is_no_answer_costs_none(thing):
    """The model is asked, as if there were nothing."""
    agent = Agent(provider=ScriptedProvider(["coffee"]), config=AgentConfig(cache=Holding(thing)))
    assert agent.run("What is there?").content == "coffee"


def test_providers_with_models_of_their_own_share_no_answer():
    """Where the agent names no model, the provider's own one is asked, and its answers are no other one's."""
    cache = InMemoryCache()
    for model in ("small", "big"):
        provider = ScriptedProvider([model])
        provider.default_model = model
        assert Agent(provider=provider, config=AgentConfig(cache=cache)).run("Who are you?").content == model


def test_transcript_that_json_cannot_hold_is_answered_without_the_cache():
    """It has no key, which is the cache's business alone."""
    said = Message(Role.ASSISTANT, tool_calls=(ToolCall("price", {"of": object()}, "1"),))
    agent = Agent(provider=ScriptedProvider(["ok"]), config=AgentConfig(cache=InMemoryCache()))
    assert agent.run([*HELLO, said, Message(Role.TOOL, "1", tool_call_id="1")]).content == "ok"
