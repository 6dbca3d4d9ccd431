"""Redis loses acknowledged writes: everything stops, and continues when the operator resumes it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from sayso.config.wiring.data_folder import socket_path
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.workers.data_loss.watermarks import keys_of
from tests.config.processes import free_port
from tests.flows.system import System, TelegramPerson, WhatsAppPerson, until

HALTED = keys_of(0, "sayso:sayso:").halted
#: Seconds of writes that Redis loses.
FORGOTTEN_SECONDS = 2.0
#: What the person is told whose messages Redis forgot.
FORGOTTEN = "A storage failure made me forget what you wrote"
#: What the person is told of the action that Redis forgot.
OUTCOME = "This is what I still know:\nInvoice INV-7 is deleted."


@pytest.fixture
def system() -> Iterator[System]:
    """Run a separate system, because its Redis loses data."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-back-") as folder,
        System(Path(folder)) as running,
    ):
        yield running


class OldFile:
    """Kills Redis and restarts it on an older copy of the append-only file."""

    def __init__(self, system: System) -> None:
        self._redis = system.redis
        self._files, self._copy = (
            system.redis.folder / "appendonlydir",
            system.redis.folder / "copy",
        )
        shutil.copytree(self._files, self._copy)

    def bring_back(self) -> None:
        """Kill Redis, and start it on the copy."""
        _kill(self._redis)
        shutil.rmtree(self._files)
        self._copy.rename(self._files)
        self._redis.restart()


class Replica:
    """Kills Redis and replaces it, at its address, by a replica that was cut off earlier."""

    def __init__(self, system: System, folder: Path) -> None:
        self._primary, self.server = system.redis, EmbeddedRedis(folder)
        self._socket = socket_path(system.data)
        self.server.start()
        self.client = Redis.from_url(self.server.url)
        with Redis.from_url(system.redis.url) as primary:
            port = free_port()
            primary.config_set("port", port)
            self.client.replicaof("127.0.0.1", port)
            until(lambda: self.client.info("replication").get("master_link_status") == "up")
            until(lambda: primary.wait(1, 1000) == 1)

    def cut(self) -> None:
        """Cut the replica off from the primary."""
        self.client.replicaof("no", "one")

    def bring_back(self) -> None:
        """Kill the primary, promote the replica, and serve it at the primary's address."""
        _kill(self._primary)
        self.cut()
        self._socket.unlink(missing_ok=True)
        self._socket.symlink_to(socket_path(self.server.data))


@contextmanager
def loss(kind: str, system: System) -> Iterator[OldFile | Replica]:
    """Yield the kind of data loss; Redis loses all writes from here on."""
    if kind == "an old file":
        yield OldFile(system)
        return
    with tempfile.TemporaryDirectory(prefix="sayso-back-") as folder:
        replica = Replica(system, Path(folder))
        try:
            replica.cut()
            yield replica
        finally:
            replica.server.stop()


@pytest.mark.parametrize("kind", ["an old file", "a replica that lagged"])
def test_redis_that_lost_two_seconds_is_halted_until_the_operator_resumes(
    system: System, kind: str
) -> None:
    """No reply goes out, webhooks get 503, and after the resume no id is used for a second thing."""
    known, new = TelegramPerson(system, 31), WhatsAppPerson(system, 32)
    known.say("delete invoice INV-7")
    known.hears()
    with loss(kind, system) as redis:
        known.say("yes")
        assert known.hears()[0]["text"].startswith("Invoice INV-7 is deleted.")
        _talk(new, seconds=FORGOTTEN_SECONDS)
        before = len(system.platforms.sent)
        redis.bring_back()
        until(lambda: _is_halted(system))
        refused = system.post(*known.text(900, "hello"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        ready = system.http.get(f"{system.url}/readyz", timeout=5)
        assert (ready.status_code, "sayso redis resume" in ready.json()["redis"]) == (503, True)
        assert len(system.platforms.sent) == before
        assert system.process("redis status").wait() == 1
        assert system.process("redis resume").wait() == 0
        until(lambda: system.post(*known.text(900, "yes")).status_code == 200)
        until(lambda: len(system.ledger(known.chat)) >= 4)  # the notice, and an answer to this yes
        assert any(OUTCOME in entry["text"] for entry in system.ledger(known.chat)[2:])
        # Seconds later, and before a word of theirs. The number is lost, too: their id is an
        # address as well.
        until(lambda: system.ledger(new.user_id))
        assert system.ledger(new.user_id)[0]["text"].startswith(FORGOTTEN)
        _talk(new, seconds=0)
        assert system.effects("delete", "INV-7") == 1
        ids = re.findall(r"reply\.sent delivery=(\S+)", system.log.read_text())
        edits = sum(len(entry.get("edits", ())) for entry in system.platforms.sent)
        assert len(ids) == len(set(ids)) == len(system.platforms.sent) + edits
        for process in [*system.workers, system.web]:
            process.terminate()
            process.wait()


def test_failover_without_loss_halts_nothing(system: System, tmp_path: Path) -> None:
    """The replica has every acknowledged write, so people notice nothing."""
    person = TelegramPerson(system, 33)
    with tempfile.TemporaryDirectory(prefix="sayso-back-") as folder:
        replica = Replica(system, Path(folder))
        _talk(person, seconds=1)
        with Redis.from_url(system.redis.url) as primary:
            until(lambda: primary.wait(1, 1000) == 1)
        replica.bring_back()
        _talk(person, seconds=0)
        assert not _is_halted(system)
        for process in [*system.workers, system.web]:
            process.terminate()
            process.wait()
        replica.server.stop()


def _talk(person: TelegramPerson | WhatsAppPerson, *, seconds: float) -> None:
    """Send messages and read their answers for this many seconds, and at least once."""
    ends = time.monotonic() + seconds
    while True:
        until(lambda: _is_taken(person))
        assert "You said: hello" in person.hears()[0]["text"]
        if time.monotonic() > ends:
            return


def _is_taken(person: TelegramPerson | WhatsAppPerson) -> bool:
    return person.system.post(*person.text(person._next(), "hello")).status_code == 200


def _is_halted(system: System) -> bool:
    with Redis.from_url(system.redis.url) as client:
        return bool(client.exists(HALTED))


def _kill(redis: EmbeddedRedis) -> None:
    assert redis.pid
    os.kill(redis.pid, signal.SIGKILL)
    until(lambda: not redis.is_alive())
