"""Stack: Redis and the processes of Sayso and of the peers, started and ended by a benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import httpx
from redis import Redis

from sayso.channels.i18n.texts import texts_for
from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.testing.platforms.fake_platforms import ENVIRON
from sayso.testing.ports import ReservedPort
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.rq.jobs import WakeUps
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import RedisOutbox
from sayso.workers.wake_ups import no_wake_up

#: The Redis names of the bot of sayso.yaml: the prefix of its keys, and its queue.
PREFIX, QUEUE = "sayso:sayso:", "sayso-sayso"
#: Seconds to wait for processes to be up.
PATIENCE = 90.0

YAML = """
public_url: {public_url}
redis_url: ${{REDIS_URL}}
agent: {{model: offline}}
tools: [benchmarks.working]
workers: {{concurrency: {concurrency}, join_bursts: false}}
channels:
  desk:
    {{platform: slack, bot_token: "${{SLACK_BOT_TOKEN}}", signing_secret: "${{SLACK_SIGNING_SECRET}}",
     api_url: "{platform}"}}
  ops-tg:
    {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", api_url: "{platform}"}}
  shop-wa:
    {{platform: whatsapp, account_sid: "${{TWILIO_ACCOUNT_SID}}", auth_token: "${{TWILIO_AUTH_TOKEN}}",
     from: "whatsapp:+14155238886", api_url: "{platform}"}}
"""


@dataclass(slots=True)
class Stack:
    """Runs the processes of a benchmark inside `with`; `platform` is the URL for replies. The end stops all of them."""

    folder: Path
    platform: str
    concurrency: int = 100
    port: int = 0
    peer_port: int = 0
    floor_port: int = 0
    redis: EmbeddedRedis = field(init=False)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _ports: list[ReservedPort] = field(
        default_factory=lambda: [ReservedPort(), ReservedPort(), ReservedPort()]
    )

    def __enter__(self) -> Self:
        self.port = self._ports[0].number
        self.peer_port = self._ports[1].number
        self.floor_port = self._ports[2].number
        self.redis = EmbeddedRedis(self.folder)
        self.redis.start()
        text = YAML.format(
            public_url=self.public_url, platform=self.platform, concurrency=self.concurrency
        )
        self.config.write_text(text)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.send_signal(signal.SIGCONT)
        for process in self._processes:
            process.wait(PATIENCE)
        self.redis.stop()
        for port in self._ports:
            port.release()

    @property
    def config(self) -> Path:
        """Return the path of the YAML."""
        return self.folder / "sayso.yaml"

    @property
    def public_url(self) -> str:
        """Return the URL of Sayso's web."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> Redis:
        """Return a client of the stack's Redis."""
        return connect(self.redis.url, patient=True)

    def mailbox(self, *, wakes: bool = True) -> RedisMailbox:
        """Return the mailbox in the stack's Redis; with `wakes`, accepted turns wake workers."""
        client = self.client
        wake_up = WakeUps(client, QUEUE) if wakes else no_wake_up
        return RedisMailbox(
            ShardedScripts(client, CONVERSATION_SCRIPTS, prefix=PREFIX),
            lambda turn: texts_for(turn.language),
            wake_up,
        )

    def outbox(self) -> RedisOutbox:
        """Return the outbox in the stack's Redis."""
        return RedisOutbox(ShardedScripts(self.client, CONVERSATION_SCRIPTS, prefix=PREFIX))

    def web(self) -> subprocess.Popen[bytes]:
        """Start Sayso's web process and wait until it answers."""
        process = self._start("sayso", "web", *self._common, "--port", str(self.port))
        _await(lambda: _answers(f"{self.public_url}/healthz"))
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        """Start one of our workers and wait until it is ready."""
        before = self._workers()
        process = self._start("benchmarks.thinker", str(self.config), str(self.folder))
        _await(lambda: self._workers() > before)
        return process

    def peer_web(self) -> subprocess.Popen[bytes]:
        """Start the peer's web process and wait until it answers."""
        process = self._start("benchmarks.peers", "web", str(self.peer_port))
        _await(lambda: _answers(f"http://127.0.0.1:{self.peer_port}/"))
        return process

    def floor(self) -> subprocess.Popen[bytes]:
        """Start the web and the worker of the floor, and return the worker when the web answers."""
        self._start("benchmarks.peers", "floor-web", str(self.floor_port))
        _await(lambda: _answers(f"http://127.0.0.1:{self.floor_port}/"))
        return self._start("benchmarks.peers", "floor")

    def peer_worker(self, kind: str) -> subprocess.Popen[bytes]:
        """Start one of RQ's own workers, `fork` or `simple`, and wait until it is ready."""
        before = int(cast("int", self.client.scard("rq:workers")))
        process = self._start("benchmarks.peers", kind)
        _await(lambda: int(cast("int", self.client.scard("rq:workers"))) > before)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Stop one process."""
        process.terminate()
        process.wait(PATIENCE)
        self._processes.remove(process)

    @property
    def _common(self) -> list[str]:
        return ["--config", str(self.config), "--data", str(self.folder)]

    def _workers(self) -> int:
        return int(cast("int", self.client.zcard(f"{PREFIX}workers")))

    def _start(self, module: str, *args: str) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            **ENVIRON,
            "REDIS_URL": self.redis.url,
            "BENCH_PLATFORM": self.platform,
        }
        with (self.folder / "processes.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *args], env=environ, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process


def cpu_seconds(process: subprocess.Popen[bytes] | int) -> float:
    """Return the CPU seconds used so far by a process, its children, and those it has reaped."""
    pid = process if isinstance(process, int) else process.pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(cpu_seconds(int(child)) for child in children)


def rss_mb(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=2)
    except httpx.HTTPError:
        return False
    return True


def _await(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError("the processes did not come up")
        time.sleep(0.05)
