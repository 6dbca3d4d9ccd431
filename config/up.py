"""Up: everything on one machine: Redis, web and workers, started together, kept alive, stopped together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from config.embedded import EmbeddedRedis, die_with_parent
from config.schema import ConsoleSettings, Settings

log = logging.getLogger(__name__)

#: Seconds until the web must answer and the workers must be registered.
READY_SECONDS = 60.0
#: Seconds a child may take to finish what it is doing before it is killed.
GRACE_SECONDS = 25.0
#: Seconds between two looks at the children.
WATCH_SECONDS = 0.5


class UpError(Exception):
    """Raised when the parts do not come up. The message names the cure."""


@dataclass(slots=True)
class Child:
    """One process kept alive: its name, its command, and the process while it runs."""

    name: str
    command: list[str]
    environ: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. It dies with us, even by kill -9."""
        self.process = subprocess.Popen(  # noqa: S603  # our own command line
            self.command, env=dict(self.environ), stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
            start_new_session=True,
        )  # fmt: skip

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def stop(self, *, seconds: float = GRACE_SECONDS) -> None:
        """Ask the process to finish, then end it."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class Up:
    """The supervisor of one machine. Its thread is the main one: children die with the thread that made them."""

    settings: Settings
    config: Path
    data: Path
    host: str
    port: int
    workers: int = 2
    say: Callable[[str], None] = print
    _redis: EmbeddedRedis | None = None
    _children: list[Child] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def local_url(self) -> str:
        """Where the web answers on this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "localhost") else self.host  # noqa: S104  # a comparison
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def run(self) -> None:
        """Start everything, print the URLs, watch until SIGTERM or Ctrl-C, stop everything. Raises UpError."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            redis_url = self._start_redis()
            self._start_children(redis_url)
            self._await_ready()
            self._announce()
            while not self._stopping.wait(WATCH_SECONDS):
                self._revive()
        finally:
            self._stop()

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        self._stopping.set()

    def _start_redis(self) -> str:
        url = self.settings.redis_url or os.environ.get("REDIS_URL", "")
        if url:
            return url
        self._redis = EmbeddedRedis(self.data)
        self._redis.start()
        return self._redis.url

    def _start_children(self, redis_url: str) -> None:
        environ = {
            **os.environ,
            "REDIS_URL": redis_url,
            "SAYSO_CONFIG": str(self.config.resolve()),
            "SAYSO_DATA": str(self.data.resolve()),
            "SAYSO_PUBLIC_URL": self.settings.public_url or self.local_url,
        }
        sayso = [sys.executable, "-m", "config.cli"]
        common = ["--config", str(self.config), "--data", str(self.data)]
        web = [*sayso, "web", *common, "--host", self.host, "--port", str(self.port)]
        self._children = [Child("web", web, environ)]
        self._children += [
            Child(f"worker {number}", [*sayso, "worker", *common], environ) for number in range(1, self.workers + 1)
        ]
        for child in self._children:
            child.start()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._stopping.is_set():
            if _answers(f"{self.local_url}/readyz"):
                return
            dead = [child.name for child in self._children if not child.is_alive()]
            if dead:
                raise UpError(f"{dead[0]} stopped while starting: what it printed above says why")
            if time.monotonic() > deadline:
                raise UpError(f"not ready after {READY_SECONDS:g} s: see {self.local_url}/readyz")
            self._stopping.wait(0.05)

    def _announce(self) -> None:
        base = self.settings.public_url or self.local_url
        lines = []
        for name, channel in self.settings.channels.items():
            if isinstance(channel, ConsoleSettings):
                lines.append(f"  {name:<12} {self.local_url}/console/{name}   <- open this in a browser")
            else:
                lines.append(f"  {name:<12} {base}/hooks/{name}   ({channel.platform} webhook)")
        health = f"  {'health':<12} {self.local_url}/readyz"
        self.say("\n".join(["Sayso is up.", *lines, health, f"  {'data':<12} {self.data.resolve()}", "Ctrl-C stops it."]))

    def _revive(self) -> None:
        if self._redis is not None and not self._redis.is_alive():
            log.error("up.redis_died")
            self._redis.restart()
        for child in self._children:
            if not child.is_alive() and not self._stopping.is_set():
                log.error("up.child_died", extra={"child": child.name})
                child.start()

    def _stop(self) -> None:
        for child in self._children:
            if child.process is not None and child.is_alive():
                child.process.terminate()
        for child in self._children:
            child.stop()
        if self._redis is not None:
            self._redis.stop()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  # our own http URL
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
