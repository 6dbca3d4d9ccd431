"""Caches: the promises of every response cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.agent.config import Cache, CacheStats
from sayso.agent.messages import Message, Role, TextReference, ToolCall, UsageStats
from sayso.agent.run.cache import InMemoryCache, RedisCache
from sayso.channels.types import Media

ANSWER = Message(Role.ASSISTANT, "tea")
USAGE = UsageStats(10, 5, 15, 0.25, "m", "p", 4, 2)


@pytest.fixture(params=["memory", "redis", "cluster"])
def cache(request):
    """Return a cache of each kind."""
    if request.param == "memory":
        return InMemoryCache()
    return RedisCache(client=request.getfixturevalue(f"{request.param}_client"))


def test_unknown_key_is_a_miss(cache):
    """It is counted as a miss."""
    assert (cache.get("k"), cache.stats) == (None, CacheStats(misses=1))


def test_stored_answer_comes_back_whole(cache):
    """Every field of a message and its usage come back."""
    calls = (ToolCall("price", {"of": ["tëa", None, 1.5]}, "c1"), ToolCall("price", {}, "c2"))
    media = (Media("ref", "image/png", "x.png", 3, stored=True),)
    answer = Message(
        Role.ASSISTANT, "\U0001f375 \n\x00", calls, media=media, text_file=TextReference("r", 9)
    )
    cache.set("k", (answer, USAGE))
    assert cache.get("k") == (answer, USAGE)


def test_returned_answer_is_a_copy(cache):
    """A tool that changes its arguments does not change a later answer."""
    cache.set("k", (Message(Role.ASSISTANT, "", (ToolCall("price", {"of": "tea"}, "c"),)), USAGE))
    cache.get("k")[0].tool_calls[0].parameters["of"] = "gold"
    assert cache.get("k")[0].tool_calls[0].parameters == {"of": "tea"}


def test_later_answer_replaces_the_earlier_one(cache):
    """A key has one answer."""
    cache.set("k", (ANSWER, USAGE))
    cache.set("k", (Message(Role.ASSISTANT, "nuts"), USAGE))
    assert cache.get("k")[0].content == "nuts"


@pytest.mark.parametrize("ttl", [0, -1])
def test_answer_without_a_lifetime_is_not_stored(cache, ttl):
    """The earlier answer of the key goes too."""
    cache.set("k", (ANSWER, USAGE))
    cache.set("k", (ANSWER, USAGE), ttl)
    assert cache.get("k") is None


def test_deleted_answer_is_gone(cache):
    """The call returns whether there was one."""
    cache.set("k", (ANSWER, USAGE))
    assert (cache.delete("k"), cache.delete("k"), cache.get("k")) == (True, False, None)


def test_clear_deletes_all_and_resets_the_statistics(cache):
    """The cache is like a new one."""
    for number in range(1200):
        cache.set(f"k{number}", (ANSWER, USAGE))
    cache.get("k1199")
    cache.clear()
    assert (cache.stats, cache.get("k0"), cache.get("k1199")) == (CacheStats(), None, None)


def test_use_is_counted(cache):
    """The figures are those that the seed prints."""
    cache.get("k")
    cache.set("k", (ANSWER, USAGE))
    cache.get("k")
    assert str(cache.stats) == "CacheStats(hits=1, misses=1, evictions=0, hit_rate=50.00%)"
    assert (cache.stats.total_requests, cache.stats.hit_rate) == (2, 0.5)


def test_threads_lose_no_count(cache):
    """All runs of a process share a cache."""
    cache.set("k", (ANSWER, USAGE))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: cache.get("k")[0].content, range(200))) == {"tea"}
    assert cache.stats == CacheStats(hits=200)


@pytest.mark.parametrize("value", [{1, 2}, float("nan")])
def test_value_that_is_not_json_is_refused(cache, value):
    """Nothing is pickled."""
    answer = Message(Role.ASSISTANT, "", (ToolCall("price", {"of": value}),))
    with pytest.raises((TypeError, ValueError)):
        cache.set("k", (answer, USAGE))


@pytest.mark.parametrize(
    "value",
    [
        ("a", {"n": [1, None]}),
        (Message(Role.USER, "x"), USAGE),
        (USAGE, ("a", (ANSWER, 1))),
        (1, 2, 3),
        (),
    ],
)
def test_any_tuple_is_stored(cache, value):
    """The seed's protocol allows any tuple, which comes back as it was."""
    cache.set("k", value)
    assert cache.get("k") == value


@pytest.mark.parametrize(
    "value", [(object(), 1), (b"x", 1), ({1: 2}, 1), ([("a",)], 1), (float("nan"), 1)]
)
def test_value_that_json_would_change_is_refused(cache, value):
    """A caller gets exactly the stored value or an error."""
    with pytest.raises((TypeError, ValueError)):
        cache.set("k", value)


def test_implements_the_cache_protocol(cache):
    """A user's own cache can implement the same protocol."""
    assert isinstance(cache, Cache)
    assert not isinstance({}, Cache)
