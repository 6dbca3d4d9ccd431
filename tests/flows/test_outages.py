"""Failures in the middle of work: Redis is stopped, a worker is killed, a platform closes the connection."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.system import PATIENCE, System, TelegramPerson, WhatsAppPerson, until


@pytest.fixture(scope="module")
def fragile() -> Iterator[System]:
    """Run a separate system, because these tests kill and restart its parts."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-out-") as folder,
        System(Path(folder)) as running,
    ):
        yield running


def test_with_redis_stopped_a_webhook_gets_503_and_counts_when_repeated(fragile: System) -> None:
    """The platform gets 503 with Retry-After and nothing is half done; its repetition is answered once."""
    person = WhatsAppPerson(fragile, 11)
    hook = person.text(1, "hello")
    fragile.redis.stop()
    refused = fragile.post(*hook)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    fragile.redis.start()
    until(lambda: fragile.post(*hook).status_code == 200)
    assert "You said: hello" in person.hears()[0]["text"]
    assert person.hears_nothing_more()


def test_a_confirmation_survives_a_restart_of_redis_and_of_all_workers(fragile: System) -> None:
    """The preview arrived before the outage. A later yes reaches other processes and runs the action once."""
    person = TelegramPerson(fragile, 21)
    person.say("delete invoice INV-7")
    person.hears()
    for worker in fragile.workers:
        worker.kill()
        worker.wait()
    fragile.workers.clear()
    fragile.redis.stop()
    fragile.redis.start()
    for _ in range(2):
        fragile.start_worker()
    until(lambda: fragile.post(*person.text(2, "yes")).status_code == 200)
    assert person.hears()[0]["text"].startswith("Invoice INV-7 is deleted.")
    assert fragile.effects("delete", "INV-7") == 1


def test_a_turn_of_a_killed_worker_is_answered_by_another(fragile: System) -> None:
    """kill -9 in the middle of a slow tool: within the lease and a second, another worker answers once."""
    person = TelegramPerson(fragile, 22)
    person.say("sales report")
    busy = until(lambda: [worker for worker in fragile.workers if _is_busy(fragile, worker.pid)])
    busy[0].kill()
    busy[0].wait()
    fragile.workers.remove(busy[0])
    fragile.start_worker()
    assert "report" in person.hears()[0]["text"].lower()
    person.say("hello")
    assert person.hears()[0]["text"].startswith("You said: hello\n")


def test_reply_is_sent_again_after_a_dropped_connection(fragile: System) -> None:
    """The platform closes the connection twice before it accepts; the replies arrive all the same, and in order."""
    person = TelegramPerson(fragile, 23)
    fragile.platforms.script("telegram", "502", times=2)
    person.say("apples")
    person.say("pears")  # one answer may cover both
    until(lambda: any("pears" in entry["text"] for entry in fragile.ledger(person.chat)))
    until(fragile.is_settled)
    answered = " ".join(entry["text"] for entry in fragile.ledger(person.chat))
    assert re.findall("apples|pears", answered) == ["apples", "pears"]


def test_stopping_worker_finishes_its_turn_first(fragile: System) -> None:
    """A worker gets SIGTERM in the middle of a slow tool, and sends the whole answer itself."""
    person = TelegramPerson(fragile, 24)
    person.say("sales report")
    busy = until(lambda: [worker for worker in fragile.workers if _is_busy(fragile, worker.pid)])
    busy[0].terminate()
    assert "report" in person.hears()[0]["text"].lower()
    assert busy[0].wait(PATIENCE) == 0
    fragile.workers.remove(busy[0])
    fragile.start_worker()


def _is_busy(system: System, pid: int) -> bool:
    """Return whether RQ's own register says that this process is at work."""
    from redis import Redis
    from rq import Worker

    with Redis.from_url(system.redis.url) as connection:
        return any(
            worker.pid == pid and worker.get_state() == "busy"
            for worker in Worker.all(connection=connection)
        )
