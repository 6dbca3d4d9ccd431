"""Outage: Redis is killed while people write, and comes back. The judge reads only their messages and the answers."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from sayso.channels.types import SignedWebhook
from tests.config.processes import free_port
from tests.flows.system import Person, SlackPerson, System, TelegramPerson, WhatsAppPerson, until

#: Seconds within which every person must be answered once Redis is back.
PATIENCE = 300.0

_SAID = re.compile(r"\bm(\d+)\b")
_MARK = "(sent again, the first try may have arrived)"


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of one outage. `refused` messages were answered 503, and delivered again after the outage."""

    messages: int
    conversations: int
    refused: int
    lost: int
    doubled: int
    out_of_order: int
    untold: int
    effects_doubled: int
    marked: int
    drained_seconds: float
    answered_seconds: float

    @property
    def faults(self) -> tuple[int, int, int, int, int]:
        """Return all counts that must be zero."""
        return self.lost, self.doubled, self.out_of_order, self.untold, self.effects_doubled


@dataclass(slots=True)
class Outage:
    """People on three platforms, each with an open question, and two web processes that take their webhooks in turn."""

    system: System
    count: int
    people: list[Person] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[Person, int, str]] = field(default_factory=list)
    sibling: str = ""
    platform: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30))

    def run(self, messages: int, seconds: float) -> Tally:
        """Write this many messages during an outage of at least this many seconds, and wait for the answers."""
        kinds = (WhatsAppPerson, TelegramPerson, SlackPerson)
        self.people = [kinds[number % 3](self.system, 700 + number) for number in range(self.count)]
        with self._second_web():
            self._ask()
            self._kill_redis()
            since = time.monotonic()
            self._write(messages, since, seconds)
            time.sleep(max(0.0, since + seconds - time.monotonic()))
            self.system.redis.restart()
            back = time.monotonic()
            for (
                person,
                number,
                text,
            ) in self.refused:  # a new signature, because one expires after five minutes
                hook = person.text(number, text)
                until(lambda hook=hook: self._deliver(*hook).status_code == 200)  # type: ignore[misc]
            until(lambda: not self._spooled(), seconds=PATIENCE)
            drained = time.monotonic() - back
            self._await_answers()
            return self._tally(messages, drained, time.monotonic() - back)

    def _ask(self) -> None:
        """Let each person with the disk tool ask for a wipe, and wait until the question arrived."""
        for person in self._wipers:
            until(lambda person=person: self._post(person, 1, f"/wipe_disk disk=d{person.name}"))  # type: ignore[misc]
        for person in self._wipers:
            person.hears()

    def _write(self, messages: int, since: float, seconds: float) -> None:
        """Let all people write in turn at an even pace. Every third message is repeated at the other web process."""
        for number in range(messages):
            time.sleep(max(0.0, since + seconds * number / messages - time.monotonic()))
            person = self.people[number % self.count]
            self.said[person.chat] += 1
            said = self.said[person.chat]
            text = "yes" if person in self._wipers and said == 1 else f"m{said}"
            self._post(person, said + 1, text, to_sibling=number % 2 == 0)
            if number % 3 == 0:
                self._post(person, said + 1, text, to_sibling=number % 2 == 1)

    def _post(self, person: Person, number: int, text: str, *, to_sibling: bool = False) -> bool:
        written = (person, person.name * 1000 + number, text)
        answer = self._deliver(*person.text(*written[1:]), to_sibling=to_sibling)
        assert answer.status_code == 200 or "Retry-After" in answer.headers, answer.text
        if answer.status_code != 200 and written not in self.refused:
            self.refused.append(written)
        return answer.status_code == 200

    def _deliver(
        self, path: str, signed: SignedWebhook, *, to_sibling: bool = False
    ) -> httpx.Response:
        """Deliver a webhook over a kept connection: a new client for each webhook costs more than the webhook."""
        headers, body = signed
        url = self.sibling if to_sibling else self.system.url
        return self.platform.post(f"{url}/hooks/{path}", headers=headers, content=body)

    @property
    def _wipers(self) -> Sequence[Person]:
        return [person for person in self.people if not isinstance(person, WhatsAppPerson)]

    def _await_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not all(
            self._is_answered(person) for person in self.people
        ):
            time.sleep(0.05)
        until(self.system.is_settled)

    def _is_answered(self, person: Person) -> bool:
        return len(self._heard(person)) >= self.said[person.chat]

    def _heard(self, person: Person) -> list[int]:
        """Return the numbers of a person's answered messages, in order; the yes is number 1."""
        heard = []
        for entry in self.system.ledger(person.chat):
            if entry.get("edits"):  # the edited question; its outcome has a message of its own
                continue
            if f"Disk d{person.name} is wiped" in entry["text"]:
                heard.append(1)
            heard += [
                int(number) for number in _SAID.findall(entry["text"])
            ]  # one answer covers a burst
        return heard

    def _tally(self, messages: int, drained: float, answered: float) -> Tally:
        heard = {person.chat: self._heard(person) for person in self.people}
        file = self.system.data / "wiped.txt"
        effects = Counter(file.read_text().split() if file.exists() else [])
        return Tally(
            messages=messages,
            conversations=self.count,
            refused=len(self.refused),
            lost=sum(
                len(set(range(1, self.said[chat] + 1)) - set(some)) for chat, some in heard.items()
            ),
            doubled=sum(len(some) - len(set(some)) for some in heard.values()),
            out_of_order=sum(some != sorted(some) for some in heard.values()),
            untold=sum(1 not in heard[person.chat] for person in self._wipers),
            effects_doubled=sum(count > 1 for count in effects.values()),
            marked=sum(_MARK in entry["text"] for entry in self.system.platforms.sent),
            drained_seconds=drained,
            answered_seconds=answered,
        )

    def _spooled(self) -> int:
        return int(self.platform.get(f"{self.system.url}/readyz").json().get("spooled", 0))

    def _kill_redis(self) -> None:
        os.kill(self.system.redis.pid or 0, signal.SIGKILL)
        until(lambda: not self.system.redis.is_alive())

    @contextmanager
    def _second_web(self) -> Iterator[None]:
        self.sibling = f"http://127.0.0.1:{free_port()}"
        process = self.system.process("web", "--port", self.sibling.rpartition(":")[2])
        try:
            until(self._sibling_is_up)
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)

    def _sibling_is_up(self) -> bool:
        try:
            return self.platform.get(f"{self.sibling}/healthz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False
