"""Health: /healthz is about this process, /readyz about webhooks, /healthz?full about the whole bot."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from rq.suspension import resume, suspend

from sayso.infra.metrics_endpoint import MetricsEndpoint
from sayso.infra.redis.client import connect
from sayso.infra.redis.connections import CURE
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.watermarks import keys_of
from sayso.workers.recovery import Heartbeat
from sayso.workers.spool import SpoolFull
from tests.channels.web.services import FakeChannel, browser
from tests.memory_stores import MemoryAlerts

AWAY = "redis://:s3cr3t@127.0.0.1:1"


def health_of(client: Redis, **parts):
    """Return a client of an app on this Redis."""
    return browser(**{"redis": client, "queue": client, **parts})


def spool_of(count: int, trouble: Exception | None = None):
    """Return a spool with this many turns; `trouble` makes it refuse more."""

    def check_room() -> None:
        if trouble:
            raise trouble

    return SimpleNamespace(accept=None, count=lambda: count, check_room=check_room)


def test_process_without_redis_is_healthy_but_not_ready():
    """Restarting the web would not bring Redis back."""
    client = health_of(connect(AWAY))
    assert (client.get("/healthz").status_code, client.get("/healthz").json) == (
        200,
        {"status": "ok"},
    )
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json) == (
        503, {"status": "not ready", "redis": "ConnectionError", "findings": ["redis-away"]},
    )  # fmt: skip


def test_health_names_the_cause_and_no_consequences():
    """Without Redis the workers and the queue are unknown, and their cures would mislead."""
    full = health_of(connect(AWAY)).get("/healthz?full")
    assert (full.status_code, full.json["findings"]) == (503, ["redis-away"])


def test_health_of_a_halted_redis_that_is_away_names_no_consequences():
    """A web process that noticed the loss of data knows no more of workers than any other."""
    client = connect(AWAY)
    guard = SimpleNamespace(check_server=client.ping, trouble=CURE)
    full = health_of(client, data_loss_guard=guard).get("/healthz?full")
    assert (full.json["findings"], full.json["workers"]) == (["halt"], 0)


def test_bot_without_workers_is_ready_and_degraded(redis_client: Redis):
    """Turns are stored and wait. A proxy that took the web out would lose them."""
    client = health_of(redis_client)
    assert (client.get("/readyz").status_code, client.get("/readyz").json) == (
        200,
        {"status": "ready", "redis": "ok"},
    )
    full = client.get("/healthz?full")
    assert (full.status_code, full.json["status"], full.json["workers"]) == (503, "degraded", 0)
    assert full.json["findings"] == ["workers-none"]


def test_readiness_changes_nothing_in_redis(redis_client: Redis):
    """It tries a write that changes nothing."""
    client = health_of(redis_client)
    before = set(redis_client.keys())
    assert client.get("/readyz").status_code == 200
    assert set(redis_client.keys()) == before


def test_redis_that_refuses_writes_is_not_ready(tmp_path: Path):
    """A read-only replica and a full memory answer reads and store no turn."""
    server = EmbeddedRedis(tmp_path)
    server.start()
    redis = connect(server.url)
    client = health_of(redis)
    assert client.get("/readyz").status_code == 200
    redis.config_set("maxmemory", "1")
    assert (client.get("/readyz").status_code, client.get("/readyz").json["redis"].split(":")[0]) == (
        503, "OutOfMemoryError",
    )  # fmt: skip
    redis.config_set("maxmemory", "0")
    assert client.get("/readyz").status_code == 200
    redis.replicaof("127.0.0.1", 1)
    assert (client.get("/readyz").status_code, client.get("/readyz").json["redis"].split(":")[0]) == (
        503, "ReadOnlyError",
    )  # fmt: skip
    server.stop()


def test_spooled_turns_are_counted(redis_client: Redis):
    """They are counted with and without Redis. A spool with room makes a bot ready without Redis."""
    for client, redis in ((redis_client, "ok"), (connect(AWAY), "ConnectionError")):
        ready = health_of(client, spool=spool_of(7)).get("/readyz")
        assert (ready.status_code, ready.json["redis"], ready.json["spooled"]) == (200, redis, 7)


def test_full_spool_is_not_ready_during_an_outage(redis_client: Redis):
    """A full disk stores no turn. With a reachable Redis the spool is not needed."""
    full = spool_of(7, SpoolFull("the spool is full"))
    away = health_of(connect(AWAY), spool=full).get("/readyz")
    assert (away.status_code, away.json["spool"]) == (503, "the spool is full")
    assert health_of(redis_client, spool=full).get("/readyz").status_code == 200


def test_a_worker_that_was_killed_does_not_count(redis_client: Redis):
    """Its heartbeat has expired; a worker with a valid heartbeat counts."""
    redis_client.zadd("sayso:workers", {"killed": redis_client.time()[0] - 6})
    assert health_of(redis_client).get("/healthz?full").json["workers"] == 0
    Heartbeat(redis_client).beat()
    full = health_of(redis_client).get("/healthz?full")
    assert full.status_code == 200
    assert full.json == {
        "status": "ok", "redis": "ok", "workers": 1, "queue": "ok", "alerts": {}, "disk": "ok",
    }  # fmt: skip


def test_a_worker_that_stopped_does_not_count(redis_client: Redis):
    """A clean exit is known at once."""
    presence = Heartbeat(redis_client)
    presence.beat()
    presence.leave()
    assert presence.count() == 0


def test_suspended_queue_is_reported(redis_client: Redis):
    """Workers live and take no jobs; webhooks are stored all the same."""
    Heartbeat(redis_client).beat()
    suspend(redis_client)
    full, ready = (health_of(redis_client).get(path) for path in ("/healthz?full", "/readyz"))
    resume(redis_client)
    assert (full.status_code, full.json["queue"], ready.status_code) == (
        503,
        "suspended: run `rq resume`",
        200,
    )


@pytest.mark.parametrize("what", ["alert", "disk"])
def test_every_other_trouble_is_reported(redis_client: Redis, what: str):
    """A revoked token is reported without the platform's text, which may name accounts; so is a full disk."""
    Heartbeat(redis_client).beat()
    alerts = MemoryAlerts(clock=lambda: 1_800_000_000)
    if what == "alert":
        alerts.note("shop", "the token of account X was revoked")
    media = SimpleNamespace(why_full=lambda: "the disk has 0 bytes free" if what == "disk" else "")
    client = health_of(redis_client, alerts=alerts, media=media, channel=FakeChannel())
    full = client.get("/healthz?full")
    assert (full.status_code, client.get("/readyz").status_code) == (503, 200)
    assert (full.json["alerts"].keys() == {"shop"}, full.json["disk"] != "ok") == (
        what == "alert",
        what == "disk",
    )
    assert "account" not in full.text


def test_queue_server_that_does_not_answer_is_reported(redis_client: Redis):
    """Webhooks are accepted meanwhile, and the number of workers is still known."""
    Heartbeat(redis_client, "w1").beat()
    with connect("redis://127.0.0.1:1") as away:
        client = health_of(redis_client, queue=away)
        full = client.get("/healthz?full")
        assert (full.status_code, client.get("/readyz").status_code) == (503, 200)
        assert (full.json["workers"], full.json["queue"]) == (1, "ConnectionError")


def test_halted_redis_is_not_ready(redis_client: Redis):
    """This holds whatever else is well. The cure is named, without internal details."""
    guard = DataLossGuard(redis_client)
    client = health_of(redis_client, data_loss_guard=guard)
    assert client.get("/readyz").status_code == 200
    redis_client.set(keys_of(5).halted, "{}")
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json) == (
        503,
        {"status": "not ready", "redis": CURE, "findings": ["halt"]},
    )
    redis_client.delete(keys_of(5).halted)
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    "stranger",
    [
        {"environ_overrides": {"REMOTE_ADDR": "203.0.113.7"}},
        {"headers": {"X-Forwarded-For": "203.0.113.7"}},
        {"headers": {"Host": "bots.example.com"}},
        {"headers": {"X-Forwarded-For": "127.0.0.1", "Authorization": "Bearer guess"}},
    ],
)
def test_strangers_get_the_status_alone(redis_client: Redis, stranger: dict[str, Any]):
    """Counts, paths and names of channels are for operators. The status code is enough for a proxy."""
    client = health_of(redis_client, spool=spool_of(7))
    for path, status in (("/readyz", "ready"), ("/healthz?full", "degraded")):
        answer = client.get(path, **stranger)
        assert answer.json == {"status": status}
        assert answer.status_code == client.get(path).status_code


def test_the_token_of_the_metrics_shows_the_details_from_elsewhere(redis_client: Redis):
    """A monitor on another machine says what is wrong. A wrong token shows no more than none."""
    client = health_of(redis_client, endpoint=MetricsEndpoint(token="t0ken"))
    from_elsewhere = {"environ_overrides": {"REMOTE_ADDR": "203.0.113.7"}}
    answer = client.get(
        "/healthz?full", headers={"Authorization": "Bearer t0ken"}, **from_elsewhere
    )
    assert answer.json["findings"] == ["workers-none"]
    assert client.get("/healthz?full", **from_elsewhere).json == {"status": "degraded"}
