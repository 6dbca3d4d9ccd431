"""Spool: Redis is killed while people on three platforms write to two web processes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import httpx
import pytest

from tests.flows.outage import Outage
from tests.flows.system import System, TelegramPerson, until


@pytest.mark.parametrize("spool", [True, False])
def test_messages_of_an_outage_are_answered_once_in_order(spool: bool) -> None:
    """With a spool all get 200; without one all get 503, and the platform's repetitions are answered."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-spool-") as folder,
        System(Path(folder), spool=spool) as system,
    ):
        tally = Outage(system, count=20).run(messages=200, seconds=3)
    assert tally.faults == (0, 0, 0, 0, 0), tally
    assert (
        tally.refused >= 200
    ) is not spool  # the first message after the restart may come too early as well


def test_spooled_message_survives_a_kill_of_the_web() -> None:
    """The web is killed in the outage, restarts while Redis is away, and later hands over its spooled message."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-spool-") as folder,
        System(Path(folder), spool=True) as system,
    ):
        person = TelegramPerson(system, 31)
        system.redis.stop()
        person.say("one")
        system.web.kill()
        system.web.wait()
        system.web = system.process("web", "--port", system.url.rpartition(":")[2])
        until(lambda: _spooled(system) == 1)
        person.say("two")
        system.redis.start()
        until(lambda: "two" in _heard(person))
        assert [word for word in _heard(person) if word in ("one", "two")] == ["one", "two"]
        until(lambda: _spooled(system) == 0)


def _heard(person: TelegramPerson) -> list[str]:
    """Return all answered texts: one answer may cover a burst."""
    return " ".join(entry["text"] for entry in person.system.ledger(person.chat)).split()


def _spooled(system: System) -> int | None:
    try:
        return system.http.get(f"{system.url}/readyz", timeout=10).json().get("spooled")
    except httpx.HTTPError:
        return None
