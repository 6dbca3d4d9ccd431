"""Alerts: what is kept of a channel's troubles, in memory and in Redis."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from workers.alerts import KEEP_SECONDS, MAX_CHARS, MemoryAlerts, RedisAlerts


@pytest.fixture(params=["memory", "redis"])
def alerts(request):
    """Alerts of either kind."""
    if request.param == "memory":
        return MemoryAlerts()
    return RedisAlerts(request.getfixturevalue("redis_client"))


def test_channel_keeps_its_last_alert(alerts):
    """What it said before is old news; other channels have their own."""
    for words in ("token revoked", "app uninstalled"):
        alerts.note("team", words)
    alerts.note("shop", "x" * 10_000)
    kept = {alert.channel: alert.words for alert in alerts.of(["team", "shop", "quiet"])}
    assert kept == {"team": "app uninstalled", "shop": "x" * MAX_CHARS}
    assert alerts.of(["team"])[0].at > 1_700_000_000
    assert alerts.of([]) == []


def test_alert_is_forgotten_after_a_week(redis_client):
    """Nobody says so any more."""
    RedisAlerts(redis_client).note("team", "token revoked")
    assert 0 < redis_client.ttl("sayso:alert:team") <= KEEP_SECONDS
    now = [0.0]
    alerts = MemoryAlerts(clock=lambda: now[0])
    alerts.note("team", "token revoked")
    now[0] = KEEP_SECONDS
    assert alerts.of(["team"]) == []


def test_alert_that_cannot_be_kept_holds_nobody_up(monkeypatch):
    """It is in the log; the webhook that brought it is answered."""
    client = Redis()

    def fail():
        raise RedisConnectionError("away")

    monkeypatch.setattr(client, "time", fail)
    RedisAlerts(client).note("team", "token revoked")
