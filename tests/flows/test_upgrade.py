"""Old and new releases side by side: a rolling upgrade, its rollback, an upgrade that skips a release, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
from redis import Redis

from sayso.testing.platforms.fake_platforms import ENVIRON
from sayso.testing.platforms.webhooks import SignedWebhook
from tests.config.processes import free_port, short_folder
from tests.flows.load import Load
from tests.flows.system import System, TelegramPerson, until

#: The invoices that people delete meanwhile.
INVOICES = ["INV-1", "INV-3", "INV-4", "INV-7", "INV-8", "INV-11", "INV-12", "INV-15"]


class Fleet(System):
    """A system whose processes may be of another release."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, workers=1)
        self._of_others: list[subprocess.Popen[bytes]] = []

    def __exit__(self, *_: object) -> None:
        for process in self._of_others:
            process.kill()
        super().__exit__()

    def post(self, path: str, signed: SignedWebhook) -> httpx.Response:
        """Deliver a webhook as a proxy does: after a refused connection it goes to the web that is ready by then."""

        def attempt() -> httpx.Response | None:
            try:
                return super(Fleet, self).post(path, signed)
            except httpx.ConnectError:
                return None

        return until(attempt)

    def of_release(self, version: int, command: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a process of a later release, which writes records of this version."""
        environ = {**os.environ, **ENVIRON, "REDIS_URL": self.redis.url}
        module = [sys.executable, "-m", "tests.flows.other_release", str(version), command]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*module, "--config", str(self.config), "--data", str(self.data), *args],
                env=environ, stdout=log, stderr=log,
            )  # fmt: skip
        self._of_others.append(process)
        return process

    def replace_worker(self, new: subprocess.Popen[bytes], old: subprocess.Popen[bytes]) -> None:
        """Wait until the new worker works beside the old one, and stop the old one."""
        until(lambda: self._workers_ready() == 2)
        stop(old)

    def replace_web(
        self, new: subprocess.Popen[bytes], port: int, old: subprocess.Popen[bytes]
    ) -> None:
        """Wait until the new web is ready, send all webhooks there, and stop the old one."""
        url = f"http://127.0.0.1:{port}"
        until(lambda: is_ready(url))
        self.url, self.web = url, new
        stop(old)


def is_ready(url: str) -> bool:
    """Return whether a web answers /readyz with 200."""
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process as an operator does."""
    process.terminate()
    assert process.wait(60) == 0


def test_rolling_upgrade_and_rollback_under_load_lose_and_double_nothing():
    """Each message is answered once, in order, and each invoice is deleted once, whichever release works on it."""
    with short_folder() as folder, Fleet(folder) as system:
        load = Load([TelegramPerson(system, number) for number in (71, 72)], INVOICES)
        until(lambda: load.done)
        old_worker, old_web = system.workers.pop(), system.web
        assert old_web
        worker = system.of_release(1, "worker")
        system.replace_worker(worker, old_worker)
        port = free_port()
        web = system.of_release(1, "web", "--port", str(port))
        system.replace_web(web, port, old_web)
        until(lambda: len(load.done) > 3)
        _refuses_to_migrate(system)
        system.replace_worker(system.start_worker(), worker)
        port = free_port()
        system.replace_web(system.process("web", "--port", str(port)), port, web)
        until(lambda: len(load.done) == len(INVOICES))
        load.stop()
        assert [system.effects("delete", invoice) for invoice in INVOICES] == [1] * len(INVOICES)
        _skips_a_release(system)


def _refuses_to_migrate(system: Fleet) -> None:
    """Check that this release refuses to migrate, and names the processes of the next one."""
    named = {"workers: 1 of version 99.1", "web and poll processes: 1 of version 99.1"}
    until(lambda: named <= set(system.printed("migrate").splitlines()))
    code, _, errors = system.command("migrate", "--apply")
    assert (code, "of another version than this command: 1 of 1 workers, 1 of" in errors) == (
        3,
        True,
    )


def _skips_a_release(system: Fleet) -> None:
    """Run a worker that writes version 2 beside one that cannot read it. It takes over those conversations."""
    worker = system.of_release(2, "worker")
    until(lambda: system._workers_ready() == 2)
    people = [TelegramPerson(system, number) for number in range(81, 84)]
    for text in ("one", "two", "three"):
        _say(people, text)
    with Redis.from_url(system.redis.url, decode_responses=True) as client:
        histories = [client.get(key) or "" for key in client.scan_iter("sayso:*:history:*")]
    whole = [
        each
        for each in histories
        if all(f"You said: {text}" in each for text in ("one", "two", "three"))
    ]
    assert len(whole) == len(people)
    assert any(json.loads(each)["v"] == 2 for each in whole)

    def is_one_left() -> bool:
        """Say one thing more, and return whether the old worker took a turn that it could not read."""
        _say(people, "more")
        return "conversation.other_version" in system.log.read_text()

    until(is_one_left)
    stop(worker)
    _goes_back(system, people)


def _say(people: list[TelegramPerson], text: str) -> None:
    """Let all people say something, and check that all are answered."""
    for person in people:
        person.say(text)
    for person in people:
        assert person.hears()[0]["text"].startswith(f"You said: {text}")


def _goes_back(system: Fleet, people: list[TelegramPerson]) -> None:
    """Roll version 2 back, one release after the other. Messages wait for a worker that can read them."""
    for person in people:
        person.say("four")
    assert "records: histories of version 2: " in system.printed("migrate")
    worker = system.of_release(1, "worker")
    for person in people:
        assert person.hears()[0]["text"].startswith("You said: four")
    stop(worker)
    assert "of version 2" not in system.printed("migrate")
    _say(people, "five")
