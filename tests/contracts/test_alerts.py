"""Alerts: what a channel's failures leave in the store, in memory and in Redis."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.workers.alerts import (
    ALERT_SECONDS,
    CLEAR_SECONDS,
    FAILED_MESSAGE_SECONDS,
    MAX_CHARS,
    RedisAlerts,
)
from tests.memory_stores import MemoryAlerts


@pytest.fixture(params=["memory", "redis", "cluster"])
def alerts(request):
    """Return an alert store of each kind."""
    if request.param == "memory":
        return MemoryAlerts()
    return RedisAlerts(request.getfixturevalue(f"{request.param}_client"))


def test_channel_keeps_its_last_alert(alerts):
    """A new alert replaces the channel's earlier one; other channels have their own."""
    for words in ("token revoked", "app uninstalled"):
        alerts.note("team", words)
    alerts.note("shop", "x" * 10_000)
    kept = {alert.channel: alert.text for alert in alerts.of(["team", "shop", "quiet"])}
    assert kept == {"team": "app uninstalled", "shop": "x" * MAX_CHARS}
    assert alerts.of(["team"])[0].at > 1_700_000_000
    assert alerts.of([]) == []


def test_alert_expires_after_a_week(redis_client):
    """The failure did not happen again."""
    RedisAlerts(redis_client).note("team", "token revoked")
    assert 0 < redis_client.ttl("sayso:alert:team:sending") <= ALERT_SECONDS
    now = [0.0]
    alerts = MemoryAlerts(clock=lambda: now[0])
    alerts.note("team", "token revoked")
    now[0] = ALERT_SECONDS
    assert alerts.of(["team"]) == []


def test_alert_ends_when_the_same_operation_succeeds(alerts):
    """The success of another operation does not end it."""
    alerts.note("team", "token revoked", "sending")
    alerts.clear("team", "receiving")
    alerts.clear("shop", "sending")
    assert [alert.text for alert in alerts.of(["team"])] == ["token revoked"]
    alerts.clear("team", "sending")
    assert alerts.of(["team"]) == []
    alerts.note("team", "revoked again", "sending")
    alerts.clear("team", "sending")
    assert alerts.of(["team"]) == []


def test_newest_alert_of_a_channel_is_returned():
    """Its kind does not matter."""
    now = [0.0]
    memory = MemoryAlerts(clock=lambda: now[0])
    memory.note("team", "old", "receiving")
    now[0] = 1.0
    memory.note("team", "new", "delivering")
    assert [alert.text for alert in memory.of(["team"])] == ["new"]


def test_clearing_an_alert_calls_redis_seldom(redis_client):
    """The first clear goes to Redis, the next one after ten seconds; otherwise each reply would cost a call."""
    now = [0.0]
    alerts, other = RedisAlerts(redis_client, steady=lambda: now[0]), RedisAlerts(redis_client)
    alerts.clear("team", "sending")
    other.note("team", "token revoked")
    alerts.clear("team", "sending")
    assert (alerts.is_clearing_due("team", "sending"), len(alerts.of(["team"]))) == (False, 1)
    now[0] = CLEAR_SECONDS
    alerts.clear("team", "sending")
    assert alerts.of(["team"]) == []


def test_alert_that_cannot_be_stored_delays_nothing(monkeypatch):
    """It is in the log, and the webhook that brought it is answered."""
    client = Redis()

    def fail():
        raise RedisConnectionError("away")

    monkeypatch.setattr(client, "time", fail)
    RedisAlerts(client).note("team", "token revoked")


def test_message_after_an_outage_is_recorded(redis_client, monkeypatch):
    """A message of the outage could not be, and is not tried again with each of the next ones."""
    now = [0.0]
    alerts = RedisAlerts(redis_client, steady=lambda: now[0])

    def fail(*args, **options):
        raise RedisConnectionError

    with monkeypatch.context() as outage:
        outage.setattr(redis_client, "set", fail)
        alerts.record_message("tg")
    alerts.record_message("tg")
    assert alerts.silence("tg") is None
    now[0] += FAILED_MESSAGE_SECONDS
    alerts.record_message("tg")
    assert alerts.silence("tg") == pytest.approx(0, abs=2)
