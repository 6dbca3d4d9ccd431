"""Quota: the library's moving window, in memory and on our Redis, whose version its own extra does not allow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.pending.redis.client import connect
from sayso.workers.access.quota import Quota, memory_quota, redis_quota


@pytest.fixture(params=["memory", "redis"])
def quota(request) -> Quota:
    """A quota of either kind."""
    if request.param == "memory":
        return memory_quota()
    return redis_quota(request.getfixturevalue("redis_client"), request.getfixturevalue("redis_url"))


def book(quota: Quota, times: int, channel: str = "wa", person: str = "ana", per_minute: int = 3) -> None:
    """So many turns are taken."""
    for _ in range(times):
        quota.book(channel, person, per_minute)


def test_person_has_so_many_turns_a_minute(quota: Quota):
    """And no more."""
    for taken in range(3):
        assert not quota.is_used_up("wa", "ana", 3), taken
        book(quota, 1)
    assert quota.is_used_up("wa", "ana", 3)


def test_asking_uses_nothing_up(quota: Quota):
    """A turn that is not taken for another reason does not count."""
    assert not any(quota.is_used_up("wa", "ana", 1) for _ in range(5))


def test_nobody_uses_up_what_others_have(quota: Quota):
    """Nor does one channel what another has."""
    book(quota, 3)
    assert not quota.is_used_up("wa", "bob", 3)
    assert not quota.is_used_up("tg", "ana", 3)


def test_window_moves(quota: Quota, monkeypatch: pytest.MonkeyPatch):
    """A minute later everything is there again."""
    book(quota, 3)
    import time

    now = time.time() + 61
    monkeypatch.setattr("time.time", lambda: now)
    assert not quota.is_used_up("wa", "ana", 3)


def test_turns_at_the_same_time_are_all_counted(quota: Quota):
    """From several threads."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: book(quota, 1, per_minute=50), range(50)))
    assert quota.is_used_up("wa", "ana", 50)
    assert not quota.is_used_up("wa", "ana", 51)


def test_redis_keeps_no_id_and_nothing_for_good(redis_client: Redis, redis_url: str):
    """One key a person, under our prefix, gone a minute after the last turn."""
    book(redis_quota(redis_client, redis_url), 2, person="+4915100000042")
    (key,) = redis_client.scan_iter()
    assert key.startswith("sayso:turns:")
    assert "4915" not in key
    assert 0 < redis_client.ttl(key) <= 61
    assert redis_client.llen(key) == 2


def test_two_processes_share_what_redis_counts(redis_client: Redis, redis_url: str):
    """Each has a connection of its own."""
    with connect(redis_url) as other:
        book(redis_quota(redis_client, redis_url), 3)
        assert redis_quota(other, redis_url).is_used_up("wa", "ana", 3)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nowhere/redis.sock"])
def test_redis_that_is_away_is_an_error_of_redis(url: str):
    """The door answers for it as for any other; every URL of ours is taken."""
    quota = redis_quota(connect(url), url)
    acts: list[Callable[[], object]] = [lambda: quota.is_used_up("wa", "ana", 3), lambda: book(quota, 1)]
    for act in acts:
        with pytest.raises(RedisConnectionError):
            act()
