"""Reminders: Redis and every worker are killed before a reminder is due, and it still arrives once."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.system import System, TelegramPerson, until


@pytest.fixture(scope="module")
def forgetful() -> Iterator[System]:
    """Run a separate system, with reminders and one worker."""
    with tempfile.TemporaryDirectory(prefix="sayso-rem-") as folder:
        system = System(Path(folder), workers=1)
        system.config.write_text(
            system.config.read_text().replace(
                "tools: [sayso.examples", "tools: [sayso.examples.reminders, sayso.examples"
            )
        )
        with system as running:
            yield running


def test_reminder_outlives_redis_and_its_worker(forgetful: System) -> None:
    """SIGKILL ends both; a message in between is answered at once, and the reminder arrives once."""
    person = TelegramPerson(forgetful, 31)
    person.say("remind me in 6 seconds to stretch")
    assert person.hears()[0]["text"].startswith("Reminder set for 20")
    for worker in forgetful.workers:
        worker.kill()
        worker.wait()
    forgetful.workers.clear()
    os.kill(forgetful.redis.pid or 0, signal.SIGKILL)
    until(lambda: not forgetful.redis.is_alive())
    forgetful.redis.restart()
    forgetful.start_worker()
    until(lambda: forgetful.post(*person.text(2, "hello")).status_code == 200)
    heard = {
        each["text"].partition("\n")[0] for each in person.hears(2)
    }  # on a slow machine the reminder is due before the worker has started
    assert heard == {"You said: hello", "Reminder: stretch"}
    person.say("list reminders")
    assert person.hears()[0]["text"] == "There are no reminders."
    assert person.hears_nothing_more()
