"""Health: /healthz is about this process, /readyz about the whole bot."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from redis import Redis

from config.embedded import EmbeddedRedis
from tests.web.services import browser
from workers.presence import Presence
from workers.redis import CURE, connect
from workers.shards import Primary
from workers.tide import Tide, keys_of


def health_of(client: Redis):
    """A browser in front of an app whose Redis this is."""
    return browser(primaries=(Primary("", "", client),))


def test_process_without_redis_is_healthy_but_not_ready():
    """Restarting the web would not bring Redis back."""
    client = health_of(connect("redis://:s3cr3t@127.0.0.1:1"))
    assert (client.get("/healthz").status_code, client.get("/healthz").json) == (200, {"status": "ok"})
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json) == (503, {"status": "not ready", "redis": "ConnectionError"})


def test_bot_without_workers_is_not_ready(redis_client: Redis):
    """Messages would be kept, but nobody would answer."""
    ready = health_of(redis_client).get("/readyz")
    assert (ready.status_code, ready.json) == (503, {"status": "not ready", "redis": "ok", "workers": 0})


def test_primary_without_workers_makes_the_bot_not_ready(redis_client: Redis, tmp_path: Path):
    """A part of all people would not be answered."""
    server = EmbeddedRedis(tmp_path)
    server.start()
    other = connect(server.url)
    client = browser(primaries=(Primary("a", "", redis_client), Primary("b", "", other)))
    Presence(redis_client).beat()
    assert client.get("/readyz").json["shards"] == {"a": 1, "b": 0}
    assert client.get("/readyz").status_code == 503
    Presence(other).beat()
    assert client.get("/readyz").status_code == 200
    server.stop()


def test_turns_that_wait_on_this_disk_are_counted(redis_client: Redis):
    """With Redis and without it; a bot without a spool does not speak of one."""
    spool = SimpleNamespace(count=lambda: 7)
    for client, redis in ((redis_client, "ok"), (connect("redis://127.0.0.1:1"), "ConnectionError")):
        ready = browser(primaries=(Primary("", "", client),), spool=spool).get("/readyz").json
        assert (ready["redis"], ready["spooled"]) == (redis, 7)


def test_a_worker_that_was_killed_does_not_count(redis_client: Redis):
    """It said nothing for longer than a sign of life lasts; the one that did counts."""
    redis_client.zadd("sayso:workers", {"killed": redis_client.time()[0] - 6})
    assert health_of(redis_client).get("/readyz").status_code == 503
    Presence(redis_client).beat()
    assert health_of(redis_client).get("/readyz").json == {"status": "ready", "redis": "ok", "workers": 1}


def test_a_worker_that_stopped_does_not_count(redis_client: Redis):
    """A clean end is known at once."""
    presence = Presence(redis_client)
    presence.beat()
    presence.leave()
    assert presence.count() == 0


def test_halted_redis_makes_the_bot_not_ready(redis_client: Redis):
    """Whatever else is well; the cure is named, and nothing that only insiders know."""
    Presence(redis_client).beat()
    tide = Tide(redis_client)
    client = browser(primaries=(Primary("", "", redis_client),), tides=(tide,))
    assert client.get("/readyz").status_code == 200
    redis_client.set(keys_of()[2], "{}")
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json) == (503, {"status": "not ready", "redis": CURE})
    redis_client.delete(keys_of()[2])
    assert client.get("/readyz").status_code == 200
