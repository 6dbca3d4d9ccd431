"""Chaos: workers and Redis are killed while people confirm. Effects at most once each, everybody told the truth."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flows.system import System, TelegramPerson, until

PEOPLE = 24
#: Seconds within which everything that was killed must be at work again and everybody be told.
PATIENCE = 90.0


def test_each_confirmed_effect_happens_at_most_once_and_everybody_is_told() -> None:
    """kill -9 of a worker about every second and of Redis once, between 24 questions and their answers."""
    with tempfile.TemporaryDirectory(prefix="sayso-chaos-") as folder, System(Path(folder), workers=3) as system:
        people = [TelegramPerson(system, 500 + number) for number in range(PEOPLE)]
        with killing(system, random.Random(2)):
            for person in people:
                persist(person, person.text(1, f"/wipe_disk disk=d{person.name}"))
            for person in people:
                until(lambda person=person: told(person, "Wipe disk"), seconds=PATIENCE)
                persist(person, person.text(2, "yes"))
            for person in people:
                until(lambda person=person: outcome(person) or asked_again(person), seconds=PATIENCE)
            for person in people:
                if not outcome(person):
                    persist(person, person.text(3, "yes"))
                    until(lambda person=person: outcome(person), seconds=PATIENCE)
        effects = Counter((system.data / "wiped.txt").read_text().split())
    assert max(effects.values()) == 1
    for person in people:
        if outcome(person) == "done":
            assert effects[f"d{person.name}"] == 1


def persist(person: TelegramPerson, hook: tuple) -> None:
    """Deliver a webhook as Telegram does: again until it is taken, and then once more."""
    until(lambda: person.system.post(*hook).status_code == 200, seconds=PATIENCE)
    person.system.post(*hook)


def told(person: TelegramPerson, words: str) -> bool:
    """Whether something with these words has arrived."""
    return any(words in entry["text"] for entry in person.system.ledger(person.chat))


def asked_again(person: TelegramPerson) -> bool:
    """Whether the worker died between sending the question and knowing it: the yes to it came too early then."""
    return told(person, "had not asked yet")


def outcome(person: TelegramPerson) -> str:
    """What the person was told last of the effect: done, unknown, or "" so far."""
    if told(person, "is wiped"):
        return "done"
    return "unknown" if told(person, "cannot tell whether it finished") else ""


@contextmanager
def killing(system: System, chance: random.Random) -> Iterator[None]:
    """kill -9 a random worker about every second, and Redis once, for as long as the block takes."""
    over = threading.Event()
    thread = threading.Thread(target=_kill, args=(system, chance, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _kill(system: System, chance: random.Random, over: threading.Event) -> None:
    redis_dies_at = time.monotonic() + 4
    while not over.wait(0.5 + chance.random()):
        victim = chance.choice(system.workers)
        victim.kill()
        victim.wait()
        system.workers.remove(victim)
        system.start_worker()
        if redis_dies_at and time.monotonic() > redis_dies_at:
            redis_dies_at = 0.0
            os.kill(system.redis.pid or 0, signal.SIGKILL)
            until(lambda: not system.redis.is_alive())
            system.redis.restart()
