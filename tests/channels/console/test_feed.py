"""Feed: the promises that both implementations keep."""

from __future__ import annotations

import threading

import pytest
import redis

from sayso.channels.console.store import KEEP_SECONDS, MAX_ENTRIES, Feed, StoreDown
from tests.memory_stores import MemoryFeed


@pytest.fixture(params=["memory", "redis", "redis resp3"])
def feed(request: pytest.FixtureRequest):
    """Yield each kind of feed, empty."""
    if request.param == "memory":
        yield MemoryFeed()
        return
    socket, protocol = (
        request.getfixturevalue("redis_socket"),
        3 if request.param == "redis resp3" else 2,
    )
    with redis.Redis(unix_socket_path=socket, protocol=protocol, decode_responses=True) as client:
        client.flushall()
        yield Feed(client)


def test_conversation_reads_only_its_own_entries(feed: Feed):
    """An entry of one conversation is read in no other."""
    feed.append("web:a", {"text": "secret"})
    assert feed.read("web:b", "", 0) == []


def test_entries_come_back_in_order_and_whole(feed: Feed):
    """Nested values and every alphabet survive, and ids grow."""
    entries = [{"n": 1, "text": "Grüße 👋"}, {"n": 2, "buttons": [{"label": "Yes"}], "media": None}]
    ids = [feed.append("c", entry) for entry in entries]
    assert feed.read("c", "", 0) == list(zip(ids, entries, strict=True))


def test_reading_after_an_id_returns_only_newer_entries(feed: Feed):
    """A browser that reconnects gets each entry once."""
    first = feed.append("c", {"n": 1})
    second = feed.append("c", {"n": 2})
    assert feed.read("c", first, 0) == [(second, {"n": 2})]


def test_reading_back_returns_the_entries_before_an_id(feed: Feed):
    """The page gets the newest entries first, and then older ones, each page in order."""
    ids = [feed.append("c", {"n": n}) for n in range(5)]
    assert [entry["n"] for _, entry in feed.read_back("c", "", 2)] == [3, 4]
    assert [entry["n"] for _, entry in feed.read_back("c", ids[3], 2)] == [1, 2]
    assert feed.read_back("c", ids[0], 2) == []
    assert len(feed.read_back("c", "nonsense", 9)) == 5


def test_entry_is_found_by_its_id(feed: Feed):
    """An edit looks up what it edits."""
    first = feed.append("c", {"n": 1})
    assert (feed.find("c", first), feed.find("c", "1-1"), feed.find("c", "nonsense")) == (
        {"n": 1},
        None,
        None,
    )


def test_entry_may_replace_another(feed: Feed):
    """A growing draft is one entry and always the newest; a reader after the replaced one gets the new one."""
    first, draft = feed.append("c", {"n": 1}), feed.append("c", {"n": 2})
    last = feed.append("c", {"n": 3}, draft)
    assert feed.read("c", "", 0) == [(first, {"n": 1}), (last, {"n": 3})]
    assert feed.read("c", draft, 0) == [(last, {"n": 3})]


@pytest.mark.parametrize("instead", ["", "nonsense", "1-1", "9" * 40 + "-1"])
def test_unknown_entry_to_replace_is_ignored(feed: Feed, instead: str):
    """The new entry is still added."""
    feed.append("c", {"n": 1})
    feed.append("c", {"n": 2}, instead)
    assert [entry for _, entry in feed.read("c", "", 0)] == [{"n": 1}, {"n": 2}]


def test_invalid_id_reads_from_the_beginning(feed: Feed):
    """The id comes from a browser, so it may be any string, and it raises no error."""
    feed.append("c", {"n": 1})
    for nonsense in ("$", "+", "abc", "1-", "9" * 40 + "-1", "1-1\n", "\u0661-\u0661"):
        assert len(feed.read("c", nonsense, 0)) == 1


def test_read_without_blocking_returns_at_once(feed: Feed):
    """Zero milliseconds means no wait, and not an endless one."""
    assert feed.read("c", "", 0) == []


def test_short_wait_ends_without_entries(feed: Feed):
    """The wait ends after its milliseconds."""
    assert feed.read("c", "", 20) == []


def test_waiting_reader_is_woken_by_an_entry(feed: Feed):
    """A reader in another thread gets the entry well before its time is up."""
    last = feed.append("c", {"n": 1})
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(feed.read("c", last, 1900)))
    reader.start()
    feed.append("c", {"n": 2})
    reader.join(timeout=30)
    assert [entry for _, entry in found] == [{"n": 2}]


def test_old_entries_are_trimmed(feed: Feed):
    """A long conversation keeps about the last 1,000 entries.

    Redis trims in blocks of up to 100.
    """
    for n in range(MAX_ENTRIES + 150):
        feed.append("c", {"n": n})
    kept = [entry["n"] for _, entry in feed.read("c", "", 0)]
    assert MAX_ENTRIES <= len(kept) <= MAX_ENTRIES + 100
    assert kept[-1] == MAX_ENTRIES + 149


def test_ids_begin_with_the_time_in_milliseconds(feed: Feed):
    """The page shows the time of each entry."""
    assert int(feed.append("c", {}).partition("-")[0]) > 1_700_000_000_000


def test_memory_ids_grow_while_the_clock_stands_still():
    """Entries of one millisecond keep their order."""
    feed = MemoryFeed(clock=lambda: 5.0)
    assert [feed.append("c", {}) for _ in range(3)] == ["5000-0", "5000-1", "5000-2"]


def test_idle_conversation_expires_after_a_month(redis_socket: str):
    """Every entry renews the expiry of its stream."""
    with redis.Redis(unix_socket_path=redis_socket, decode_responses=True) as client:
        Feed(client, "t:").append("c", {})
        assert KEEP_SECONDS - 5 <= client.ttl("t:feed:c") <= KEEP_SECONDS


def test_unavailable_redis_raises_store_down():
    """Callers handle one error, and not those of the client."""
    feed = Feed(redis.Redis(unix_socket_path="/nonexistent/sock", retry=None))
    with pytest.raises(StoreDown, match="ConnectionError"):
        feed.append("c", {})
    with pytest.raises(StoreDown, match="ConnectionError"):
        feed.read("c", "", 0)


def test_clear_entry_removes_all_entries_before_it(feed: Feed):
    """A new chat keeps nothing of the old one, and a reader after an older id gets the new entries."""
    before = feed.append("c", {"n": 1})
    cleared = feed.append("c", {"type": "clear"})
    after = feed.append("c", {"n": 2})
    assert [entry_id for entry_id, _ in feed.read("c", "", 0)] == [cleared, after]
    assert [entry_id for entry_id, _ in feed.read("c", before, 0)] == [cleared, after]
