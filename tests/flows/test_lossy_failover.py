"""An outdated replica replaces the primary: an accepted message has its effect, or its user is told that it is lost."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.config.wiring.data_folder import socket_path
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.workers.data_loss.watermarks import keys_of
from tests.config.processes import free_port
from tests.flows.lossy_link import LossyLink
from tests.flows.system import System, TelegramPerson, until

HALTED = keys_of(0, "sayso:sayso:").halted
#: People of each kind.
EACH = 3
#: What only notices say.
NOTICES = (
    "made me forget what you wrote",
    "so I closed this question",
    "This is what I still know",
    "cannot tell",
)


class LaggingReplica:
    """A replica of the system's Redis behind a lossy link. It takes over the primary's address."""

    def __init__(self, system: System, folder: Path) -> None:
        self._primary, self.server = system.redis, EmbeddedRedis(folder)
        self._socket = socket_path(system.data)
        self.server.start()
        self._client = Redis.from_url(self.server.url)
        with Redis.from_url(system.redis.url) as primary:
            port = free_port()
            primary.config_set("port", port)
            self.link = LossyLink(port)
            self._client.replicaof("127.0.0.1", self.link.port)
            until(lambda: self._client.info("replication").get("master_link_status") == "up")
            until(lambda: primary.wait(1, 1000) == 1)

    def take_over(self) -> None:
        """Kill the primary, promote the replica, and serve it at the primary's address."""
        os.kill(self._primary.pid or 0, signal.SIGKILL)
        until(lambda: not self._primary.is_alive())
        self._client.replicaof("no", "one")
        self._socket.unlink(missing_ok=True)
        self._socket.symlink_to(socket_path(self.server.data))


@pytest.fixture
def system() -> Iterator[System]:
    """Run a separate system, because its Redis loses data."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-lag-") as folder,
        System(Path(folder)) as running,
    ):
        yield running


def test_person_whose_yes_was_lost_is_told(system: System) -> None:
    """No effect is doubled, even if the web process restarts while everything is halted."""
    kinds = ("asked before", "asked in the lost time", "cut off", "open", "talks")
    people = {
        kind: [TelegramPerson(system, 100 * place + n) for n in range(EACH)]
        for place, kind in enumerate(kinds)
    }
    with tempfile.TemporaryDirectory(prefix="sayso-lag-") as folder:
        replica = LaggingReplica(system, Path(folder))
        for kind in ("asked before", "cut off", "open"):
            _ask(people[kind])
        replica.link.drop()
        _ask(people["asked in the lost time"])
        for person in [*people["asked before"], *people["asked in the lost time"]]:
            person.say("yes")
            assert "is wiped" in person.hears()[0]["text"]
        for person in people["talks"]:
            person.say("hello")
            person.hears()
        for person in people["cut off"]:
            person.say("yes")  # 200, and then the primary is gone
        replica.take_over()
        until(lambda: _is_halted(system))
        _restart_web(system)
        assert system.process("redis resume").wait() == 0
        everyone = [person for each in people.values() for person in each]
        until(lambda: all(_is_told(person) for person in everyone))
        for person in people["asked in the lost time"]:
            until(
                lambda person=person: (
                    system.post(*person.text(900 + person.name, "yes")).status_code == 200
                )
            )
            until(lambda person=person: "I do not know what you are answering" in _last(person))
        effects = Counter((system.data / "wiped.txt").read_text().split())
        assert max(effects.values()) == 1
        confirmed = [*people["asked before"], *people["asked in the lost time"]]
        assert {f"d{person.name}" for person in confirmed} <= set(effects)
        assert not {f"d{person.name}" for person in people["open"]} & set(effects)
        for process in [*system.workers, system.web]:
            process.terminate()
            process.wait()
        replica.server.stop()


def _ask(people: list[TelegramPerson]) -> None:
    for person in people:
        person.say(f"/wipe_disk disk=d{person.name}")
        person.hears()


def _is_told(person: TelegramPerson) -> bool:
    """Return whether a notice arrived."""
    texts = [entry["text"] for entry in person.system.ledger(person.chat)]
    return any(notice in text for text in texts for notice in NOTICES)


def _last(person: TelegramPerson) -> str:
    return str(person.system.ledger(person.chat)[-1]["text"])


def _restart_web(system: System) -> None:
    assert system.web
    system.web.kill()
    system.web.wait()
    system.web = system.process("web", "--port", system.url.rpartition(":")[2])


def _is_halted(system: System) -> bool:
    with Redis.from_url(system.redis.url) as client:
        return bool(client.exists(HALTED))
