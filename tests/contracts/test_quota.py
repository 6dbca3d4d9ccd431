"""Quota: the library's moving window, in memory and on our Redis client, which its own extra excludes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.infra.redis.client import connect
from sayso.workers.access import Quota, memory_quota, redis_quota


@pytest.fixture(params=["memory", "redis", "cluster"])
def quota(request) -> Quota:
    """Return a quota of each kind."""
    if request.param == "memory":
        return memory_quota()
    if request.param == "cluster":
        return redis_quota(request.getfixturevalue("cluster_client"), "")
    return redis_quota(
        request.getfixturevalue("redis_client"), request.getfixturevalue("redis_url")
    )


def book(
    quota: Quota, times: int, channel: str = "wa", person: str = "ana", per_minute: int = 3
) -> None:
    """Book this many turns."""
    for _ in range(times):
        quota.book(channel, person, per_minute)


def test_person_has_a_number_of_turns_per_minute(quota: Quota):
    """The next one is refused."""
    for taken in range(3):
        assert not quota.is_used_up("wa", "ana", 3), taken
        book(quota, 1)
    assert quota.is_used_up("wa", "ana", 3)


def test_asking_books_nothing(quota: Quota):
    """A turn that is refused for another reason does not count."""
    assert not any(quota.is_used_up("wa", "ana", 1) for _ in range(5))


def test_people_do_not_share_a_quota(quota: Quota):
    """Channels do not share one either."""
    book(quota, 3)
    assert not quota.is_used_up("wa", "bob", 3)
    assert not quota.is_used_up("tg", "ana", 3)


def test_window_moves(quota: Quota, monkeypatch: pytest.MonkeyPatch):
    """A minute later the whole quota is available again."""
    book(quota, 3)
    import time

    now = time.time() + 61
    monkeypatch.setattr("time.time", lambda: now)
    assert not quota.is_used_up("wa", "ana", 3)


def test_turns_at_the_same_time_are_all_counted(quota: Quota):
    """Several threads book at the same time."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: book(quota, 1, per_minute=50), range(50)))
    assert quota.is_used_up("wa", "ana", 50)
    assert not quota.is_used_up("wa", "ana", 51)


def test_redis_holds_no_id_in_clear_and_no_key_for_ever(redis_client: Redis, redis_url: str):
    """There is one key per person under our prefix, which expires a minute after the last turn."""
    book(redis_quota(redis_client, redis_url), 2, person="+4915100000042")
    (key,) = redis_client.scan_iter()
    assert key.startswith("sayso:turns:")
    assert "4915" not in key
    assert 0 < redis_client.ttl(key) <= 61
    assert redis_client.llen(key) == 2


def test_two_processes_share_the_count_in_redis(redis_client: Redis, redis_url: str):
    """Each has a connection of its own."""
    with connect(redis_url) as other:
        book(redis_quota(redis_client, redis_url), 3)
        assert redis_quota(other, redis_url).is_used_up("wa", "ana", 3)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nowhere/redis.sock"])
def test_unreachable_redis_raises_a_redis_error(url: str):
    """The ingress handles it like any other Redis error. Every form of URL that Sayso takes works."""
    quota = redis_quota(connect(url), url)
    acts: list[Callable[[], object]] = [
        lambda: quota.is_used_up("wa", "ana", 3),
        lambda: book(quota, 1),
    ]
    for act in acts:
        with pytest.raises(RedisConnectionError):
            act()
