"""Shards: a third primary joins two under traffic, with the mover and workers killed on the way."""

from __future__ import annotations

import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from sayso.config.server.embedded_redis import EmbeddedRedis
from sayso.pending.redis.scripts import SHARDS
from sayso.workers.sharding.shards import rendezvous
from tests.flows.system import ENVIRON, Person, SlackPerson, System, TelegramPerson, WhatsAppPerson, until

log = logging.getLogger(__name__)

#: What the keys of the bot of sayso.yaml begin with.
PREFIX = "sayso:sayso:"
YAML = """
public_url: {public_url}
redis_url: ${{REDIS_URL}}
shards: {{{shards}}}
agent: {{model: offline}}
workers: {{join_bursts: false, grace_seconds: 5}}
tools: [tests.flows.disks]
channels:
  shop-wa: {{platform: whatsapp, account_sid: "${{TWILIO_ACCOUNT_SID}}", auth_token: "${{TWILIO_AUTH_TOKEN}}",
            from: "whatsapp:+14155238886", api_url: {url}/twilio}}
  ops-tg: {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}",
           api_url: {url}/telegram}}
  desk: {{platform: slack, bot_token: "${{SLACK_BOT_TOKEN}}", signing_secret: "${{SLACK_SIGNING_SECRET}}",
         api_url: {url}/slack}}
"""
#: People on each of three platforms, and what each says before and after deciding about a disk.
PEOPLE, BEFORE, AFTER = 4, 4, 12
#: Seconds within which whatever was killed must be at work again.
PATIENCE = 90.0
#: How a reply begins that may have arrived before.
_AGAIN = "(sent again, the first try may have arrived)\n\n"


class Shards(System):
    """Primaries a, b and c as processes, one worker for each that is in use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, workers=0)
        self.servers = {"a": self.redis}
        for name in "bc":
            (folder / name).mkdir()
            self.servers[name] = EmbeddedRedis(folder / name)
        self.at: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Shards:
        for name in "bc":
            self.servers[name].start()
        self.configure("ab")
        super().__enter__()
        for name in "ab":
            self.work_at(name)
        until(self.is_ready, seconds=PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for name in "bc":
            self.servers[name].stop()

    def configure(self, names: str) -> None:
        """Write the configuration with these primaries."""
        shards = ", ".join(f'{name}: "{self.servers[name].url}"' for name in names)
        self.config.write_text(YAML.format(public_url=self.url, url=self.platforms.url, shards=shards))

    def work_at(self, name: str) -> None:
        """A new worker for a primary, started before the old one goes."""
        old, self.at[name] = self.at.get(name), self.process("worker", "--shard", name)
        self.workers.append(self.at[name])
        if old:
            old.terminate()

    def kill_worker(self, name: str) -> None:
        """Kill -9, and a new one."""
        self.at[name].kill()
        self.work_at(name)

    def restart_web(self) -> None:
        """A new web process in place of the old one: webhooks meanwhile are refused, and repeated."""
        self.web.terminate()
        self.web.wait(30)
        self.web = self.process("web", "--port", self.url.rpartition(":")[2])

    def is_ready(self) -> bool:
        """Whether each primary has a worker."""
        try:
            return httpx.get(f"{self.url}/healthz?full", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def rebalance(self) -> subprocess.Popen[str]:
        """The mover, as a process."""
        command = [sys.executable, "-m", "sayso", "shards", "rebalance"]
        full = [*command, "--config", str(self.config), "--data", str(self.data)]
        environ = {**os.environ, **ENVIRON, "REDIS_URL": self.redis.url}
        return subprocess.Popen(full, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def homes(self) -> list[str]:
        """Where the shards are by the map."""
        with Redis.from_url(self.redis.url, decode_responses=True) as client:
            return client.hmget(f"{PREFIX}map", [str(shard) for shard in range(SHARDS)])


@pytest.fixture
def shards() -> Iterator[Shards]:
    """Two primaries in use, a third at hand."""
    with tempfile.TemporaryDirectory(prefix="sayso-shards-") as folder, Shards(Path(folder)) as running:
        yield running


@pytest.mark.timeout(400)
def test_primary_is_added_under_traffic_and_nothing_is_lost_doubled_or_out_of_order(shards: Shards) -> None:
    """The mover is killed once, each worker too, the web restarts: all are answered in order, each effect is one."""
    kinds = (WhatsAppPerson, TelegramPerson, SlackPerson)
    people = [kind(shards, 700 + number) for number in range(PEOPLE) for kind in kinds]
    moved = threading.Event()
    talks = [Talk(person, moved) for person in people]
    for talk in talks:
        talk.start()
    until(lambda: all(talk.heard() >= 2 for talk in talks), seconds=PATIENCE)
    shards.configure("abc")
    for name in "abc":
        shards.work_at(name)
    shards.restart_web()
    until(shards.is_ready, seconds=PATIENCE)
    said = _move_with_kills(shards)
    moved.set()
    for talk in talks:
        talk.join(PATIENCE)
        assert not talk.is_alive(), talk.name
    refused = sum(talk.refused for talk in talks)
    log.info("%d shards moved; %d webhooks were refused and repeated", said.count(" -> c"), refused)
    assert shards.homes() == [rendezvous(shard, "abc") for shard in range(SHARDS)]
    for talk in talks:
        assert talk.words() == [f"word {number}" for number in range(BEFORE + AFTER)], talk.name
    effects = Counter((shards.data / "wiped.txt").read_text().split())
    assert max(effects.values()) == 1
    for talk in talks:
        assert talk.outcome() == "unknown" or effects[f"d{talk.name}"] == 1


def _move_with_kills(shards: Shards) -> str:
    """Kill the mover after its third shard, and a worker of each primary; then let another finish."""
    first = shards.rebalance()
    said = [next(line for line in first.stdout if " -> " in line) for _ in range(3)]
    first.kill()
    said += first.communicate()[0].splitlines()
    for name in "abc":
        shards.kill_worker(name)
    until(lambda: said.append(finished(shards)) or "Error" not in said[-1], seconds=PATIENCE)
    return "\n".join(said)


def finished(shards: Shards) -> str:
    """What another mover says. It refuses to begin while a primary has no worker."""
    mover = shards.rebalance()
    said = mover.communicate(timeout=PATIENCE)[0]
    assert (mover.returncode != 0) == ("Error" in said), said
    return said


class Talk(threading.Thread):
    """One person: says numbered words, each webhook until it is taken and once more, and decides about a disk."""

    def __init__(self, person: Person, moved: threading.Event) -> None:
        super().__init__(name=f"{type(person).__name__[0]}{person.name}", daemon=True)
        self.person, self.refused = person, 0
        self._moved, self._said, self._chance = moved, 0, random.Random(person.name)

    def run(self) -> None:
        """Half of them answer the question after the move."""
        for number in range(BEFORE):
            self._say(f"word {number}")
        self._say(f"/wipe_disk disk=d{self.name}")
        self._until("Wipe disk")
        if self.person.name % 2:
            self._moved.wait(PATIENCE / 2)
        self._say("yes")
        until(lambda: self.outcome() or self._told("had not asked yet"), seconds=PATIENCE)
        if not self.outcome():
            self._say("yes")
            until(self.outcome, seconds=PATIENCE)
        for number in range(BEFORE, BEFORE + AFTER):
            self._say(f"word {number}")
        self._until(f"word {BEFORE + AFTER - 1}")

    def words(self) -> list[str]:
        """What was answered, in order; what may have arrived before counts once."""
        found: list[str] = []
        for text in self._texts():
            word = re.search(r"word \d+", text)
            if word and not (text.startswith(_AGAIN) and word[0] in found):
                found.append(word[0])
        return found

    def heard(self) -> int:
        """How many answers have come."""
        return len(self._texts())

    def outcome(self) -> str:
        """What was told of the disk."""
        if self._told("is wiped"):
            return "done"
        return "unknown" if self._told("cannot tell whether it finished") else ""

    def _say(self, text: str) -> None:
        self._said += 1
        hook = self.person.text(self.person.name * 100 + self._said, text)
        while not self._taken(hook):
            self.refused += 1
            time.sleep(0.1)
        self._taken(hook)
        time.sleep(self._chance.random() * 0.6)

    def _taken(self, hook: tuple) -> bool:
        try:
            return self.person.system.post(*hook).status_code == 200
        except httpx.HTTPError:
            return False

    def _until(self, words: str) -> None:
        until(lambda: self._told(words), seconds=PATIENCE)

    def _told(self, words: str) -> bool:
        return any(words in text for text in self._texts())

    def _texts(self) -> list[str]:
        return [entry["text"] for entry in self.person.system.ledger(self.person.chat)]
