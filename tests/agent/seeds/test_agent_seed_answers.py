"""The seed's page about the agent, run here as documented: cached answers, typed answers and reasoning."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel

from sayso.agent import (
    Agent,
    AgentConfig,
    Cache,
    CacheKeyBuilder,
    CacheStats,
    InMemoryCache,
    Message,
    RedisCache,
    ResponseFormat,
    Role,
    ScriptedProvider,
    ToolCall,
    UsageStats,
)
from sayso.agent.run.json_in_text import extract_json
from sayso.agent.run.structured import parse_and_validate
from tests.agent.listening import SEARCH, Heard, Streaming, search, user


class Classification(BaseModel):
    """The classification of the page."""

    intent: Literal["billing", "support", "sales", "cancel"]
    confidence: float
    priority: Literal["low", "medium", "high"]


CANCEL = '{"intent": "cancel", "confidence": 0.95, "priority": "high"}'
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_tool_results_are_never_cached():
    """What Gets Cached: tools have effects, so the second run calls them again."""
    heard = Heard()
    caching = Agent(
        [search],
        ScriptedProvider([SEARCH, "done"]),
        AgentConfig(cache=InMemoryCache(), observers=[heard]),
    )
    caching.run("go")
    caching.run("go")
    assert (len(heard.of("cache_hit")), len(heard.of("tool_start"))) == (2, 2)


@pytest.mark.parametrize("door", ["run", "arun"])
def test_same_question_is_sent_once(door):
    """Basic In-Memory Caching: a miss, a reset and a hit, with the statistics of the page."""
    provider, cache = (
        ScriptedProvider(["A language."]),
        InMemoryCache(max_size=500, default_ttl=600),
    )
    caching = Agent(
        tools=[search], provider=provider, config=AgentConfig(model="gpt-4o-mini", cache=cache)
    )
    for _ in range(2):
        answer = getattr(caching, door)([user("What is Python?")])
        result = asyncio.run(answer) if inspect.isawaitable(answer) else answer
        assert result.content == "A language."
        caching.reset()
    assert len(provider.requests) == 1
    assert str(cache.stats) == "CacheStats(hits=1, misses=1, evictions=0, hit_rate=50.00%)"


def test_stream_is_not_cached():
    """What Gets Cached: a cached answer could not be streamed."""

    async def read(streaming):
        return [item async for item in streaming.astream("go")]

    cache = InMemoryCache()
    streaming = Agent([], Streaming(["a"], ["b"]), AgentConfig(cache=cache))
    assert [asyncio.run(read(streaming))[-1].content for _ in "ab"] == ["a", "b"]
    assert cache.stats == CacheStats()


def test_cached_answer_counts_its_usage_again():
    """Integration with Usage Tracking: on_llm_end and the usage repeat those of the first call."""
    heard = Heard()
    config = AgentConfig(
        cache=InMemoryCache(), observers=[heard], model="m", prices={"m": (500_000, 500_000)}
    )
    caching = Agent([], ScriptedProvider(["a"]), config)
    results = [caching.run("go"), caching.run("go")]
    assert [result.usage.cost_usd for result in results] == [1.0, 1.0]
    assert (caching.total_cost, caching.total_tokens) == (2.0, 4)
    (first, again) = heard.of("llm_end")
    assert first == again


def test_cache_hit_is_printed_and_traced(capsys):
    """Verbose Mode prints the page's text, and the trace has the step `cache_hit`."""
    caching = Agent([], ScriptedProvider(["a"]), AgentConfig(cache=InMemoryCache(), verbose=True))
    caching.run("go")
    result = caching.run("go")
    assert "[agent] cache hit -- skipping provider call\n" in capsys.readouterr().out
    assert [step.type for step in result.trace] == ["cache_hit"]


def test_agents_share_a_cache_in_redis(redis_client):
    """Distributed Redis Caching: keys have the prefix, and values are JSON, as the issue decides."""
    provider = ScriptedProvider(["A language."])
    for _ in range(2):
        cache = RedisCache(prefix="sayso:cache:", default_ttl=900, client=redis_client)
        assert (
            Agent([], provider, AgentConfig(cache=cache)).run("What is Python?").content
            == "A language."
        )
    (key,) = redis_client.keys("sayso:cache:*")
    assert redis_client.get(key).startswith('{"message":')
    assert 0 < redis_client.ttl(key) <= 900


def test_caches_have_the_parameters_of_the_page():
    """They have its defaults; the prefix is Sayso's own."""
    memory, redis = (
        inspect.signature(InMemoryCache).parameters,
        inspect.signature(RedisCache).parameters,
    )
    assert [(name, memory[name].default) for name in list(memory)[:2]] == [
        ("max_size", 1000),
        ("default_ttl", 300),
    ]
    assert [(name, redis[name].default) for name in list(redis)[:3]] == [
        ("url", "redis://localhost:6379/0"), ("prefix", "sayso:cache:"), ("default_ttl", 300),
    ]  # fmt: skip


def test_object_with_the_methods_is_a_cache():
    """Cache Protocol: an agent asks the cache before the provider."""

    class Own:
        def __init__(self):
            self.kept = {}
            self.stats = CacheStats()

        def get(self, key):
            return self.kept.get(key)

        def set(self, key, value, ttl=None):
            self.kept[key] = value

        def delete(self, key):
            return self.kept.pop(key, None) is not None

        def clear(self):
            self.kept.clear()

    own = Own()
    assert isinstance(own, Cache)
    Agent([], ScriptedProvider(["a"]), AgentConfig(cache=own)).run("go")
    ((key, (message, usage)),) = own.kept.items()
    assert (key[:6], message, usage.total_tokens) == ("sayso:", Message(Role.ASSISTANT, "a"), 2)


def test_key_is_built_as_on_the_page():
    """The key is a SHA-256 over model, prompt, messages, tools and temperature, with Sayso's prefix."""
    request: dict[str, Any] = {
        "model": "gpt-4o",
        "system_prompt": "You are a helpful assistant.",
        "messages": [user("Hello")],
        "tools": [search],
        "temperature": 0.0,
    }
    key = CacheKeyBuilder.build(**request)
    assert key.startswith("sayso:")
    assert len(bytes.fromhex(key.removeprefix("sayso:"))) == 32
    assert key == CacheKeyBuilder.build(**request)
    other = {
        "model": "m",
        "system_prompt": "x",
        "messages": [user("y")],
        "tools": [],
        "temperature": 0.5,
    }
    assert (
        len(
            {
                key,
                *(
                    CacheKeyBuilder.build(**{**request, name: value})
                    for name, value in other.items()
                ),
            }
        )
        == 6
    )


def test_cache_has_statistics():
    """Monitoring Cache Performance: the statistics have a rate and counts."""
    cache = InMemoryCache(max_size=1)
    for key in ("a", "b"):
        cache.set(key, (Message(Role.ASSISTANT, key), UsageStats()))
    cache.get("a")
    cache.get("b")
    stats = cache.stats
    assert (f"{stats.hit_rate:.1%}", stats.hits, stats.misses, stats.evictions) == (
        "50.0%",
        1,
        1,
        1,
    )


def test_answer_that_never_fits_the_format_is_reported():
    """Nothing is parsed, and the result gives the reason."""
    result = Agent([], ScriptedProvider(["no"] * 9)).ask(
        "Cancel it", response_format=Classification
    )
    assert (result.parsed, result.stop_reason) == (None, "invalid_answer")
    assert result.structured_error


def test_pydantic_model_returns_an_instance():
    """Usage: `parsed` is typed, and `content` is the raw text."""
    result = Agent([], ScriptedProvider([CANCEL])).ask(
        "I want to cancel my account", response_format=Classification
    )
    assert result.parsed == Classification(intent="cancel", confidence=0.95, priority="high")
    assert result.content == CANCEL


def test_schema_returns_plain_data():
    """Supported Formats: a dict is a JSON Schema."""
    assert Agent([], ScriptedProvider(['{"n": 3}'])).ask(
        "How many?", response_format=SCHEMA
    ).parsed == {"n": 3}


@pytest.mark.parametrize("door", ["run", "arun", "astream"])
def test_every_method_takes_a_response_format(door):
    """The result is the same in all of them."""
    typed = Agent([], ScriptedProvider([CANCEL]))

    async def asked():
        answer = getattr(typed, door)("cancel", response_format=Classification)
        if inspect.isasyncgen(answer):
            return [item async for item in answer][-1]
        return await answer if inspect.isawaitable(answer) else answer

    assert asyncio.run(asked()).parsed.intent == "cancel"


def test_format_is_in_the_prompt_of_its_run_only():
    """How It Works 2: the next run has the plain prompt."""
    provider = ScriptedProvider(['{"n": 3}', "hello"])
    typed = Agent([], provider)
    typed.ask("How many?", response_format=SCHEMA)
    typed.ask("Hello")
    assert ['"n"' in request.system_prompt for request in provider.requests] == [True, False]


def test_invalid_answer_is_corrected_by_the_model():
    """How It Works 5: the model reads the error, and the trace has a `structured_retry` with it."""
    provider = ScriptedProvider(['{"n": "many"}', 'They are: {"n": 3}'])
    result = Agent([], provider).ask("How many?", response_format=SCHEMA)
    assert (result.parsed, result.iterations) == ({"n": 3}, 2)
    assert "n: " in provider.requests[1].messages[-1].content
    (step,) = result.trace.filter(type="structured_retry")
    assert step.error in provider.requests[1].messages[-1].content


def test_response_format_is_a_model_or_a_schema():
    """ResponseFormat Type: the issue narrows Type[Any] to pydantic models."""
    assert get_args(ResponseFormat) == (type[BaseModel], dict[str, Any])


def test_standalone_helpers_of_the_page():
    """Standalone Helpers: JSON is extracted, then validated."""

    class Sentiment(BaseModel):
        label: str
        score: float

    raw_text = 'Here is the analysis: ```json\n{"label": "positive", "score": 0.95}\n```'
    assert extract_json(raw_text) == '{"label": "positive", "score": 0.95}'
    assert parse_and_validate(raw_text, Sentiment) == Sentiment(label="positive", score=0.95)


def test_reasoning_beside_calls_is_kept():
    """Reasoning Visibility: the result has the last and each step's reasoning, and so does the trace."""

    def thinking(words, query):
        return Message(Role.ASSISTANT, words, (ToolCall("search", {"query": query}),))

    script = [thinking("First Python.", "Python"), thinking("Now Go.", "Go"), "done"]
    result = Agent([search], ScriptedProvider(script)).run("Route this customer request")
    assert (result.reasoning, result.reasoning_history) == (
        "Now Go.",
        ["First Python.", "Now Go.", ""],
    )
    assert [step.reasoning for step in result.trace.filter(type="tool_selection")] == [
        "First Python.",
        "Now Go.",
    ]
