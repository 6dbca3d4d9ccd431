"""`sayso up`: start Redis, web and workers on one machine together, keep them alive,
stop them together.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sayso.config.settings.loader import ConfigError, check_consoles, find_public_url
from sayso.config.settings.schema import Settings
from sayso.infra.http import backoff_seconds
from sayso.infra.metrics import RESTARTS
from sayso.infra.stop_signals import (
    KILL_SECONDS,
    SUPERVISED,
    delay_interrupts,
    on_stop_signals,
    say_stopping,
)
from sayso.ops.server.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from sayso.ops.server.metrics_port import ADDRESS, MetricsAddress, listen_for_readers
from sayso.ops.server.processes import (
    GRACE_SECONDS,
    Child,
    Running,
    check_free,
    die_with_parent,
    leave_note,
    local_url,
    take_note_back,
)

log = logging.getLogger(__name__)

#: How long the web may take to answer, and the workers to register, in seconds.
READY_SECONDS = 60.0
#: A part that dies within this time of its start failed quickly. The pause before its next start
#: doubles with each quick failure, up to `MAX_PAUSE_SECONDS`. There is no last try: a full disk may
#: be emptied tomorrow.
QUICK_SECONDS = 10.0
MAX_PAUSE_SECONDS = 8.0
#: How often the parts are checked, in seconds.
WATCH_SECONDS = 0.5
#: The longest time until a signal is noticed, in seconds.
STEP_SECONDS = 0.05


class UpError(Exception):
    """Raised when the parts do not come up. The message names the cure."""


@dataclass(slots=True)
class SupervisedPart:
    """A part that is started again when it dies: at once,
    and after growing pauses while it fails quickly.
    """

    name: str
    is_alive: Callable[[], bool]
    start: Callable[[], None]
    started: float
    _failures: int = 0
    _due: float | None = None

    def __post_init__(self) -> None:
        RESTARTS.labels(self.name)  # 0 from the start: an alert would not see the first death else

    def check(self, now: float) -> None:
        """Start the part again when it died and its pause is over."""
        if self.is_alive():
            return
        if self._due is None:
            if now - self.started < QUICK_SECONDS:
                self._failures = self._failures + 1
            else:
                self._failures = 0
            pause = backoff_seconds(self._failures - 1, first=1.0, longest=MAX_PAUSE_SECONDS)
            self._due = now + (pause if self._failures > 1 else 0.0)
            RESTARTS.labels(self.name).inc()
            log.error("up.died", extra={"part": self.name, "failures": self._failures})
        if now >= self._due:
            self._due = None
            self.started = now
            try:
                self.start()
            except (EmbeddedRedisError, ConfigError, OSError) as exc:
                log.error("up.start_failed", extra={"part": self.name, "reason": exc})


@dataclass(slots=True)
class Up:
    """The supervisor of one machine.

    It runs in the main thread: children die with the thread that started them.
    """

    settings: Settings
    config: Path
    data: Path
    host: str
    port: int
    workers: int = 2
    #: Where the web serves /metrics for all parts.
    metrics: MetricsAddress = None
    say: Callable[[str], None] = print
    _redis: EmbeddedRedis | None = None
    _children: list[Child] = field(default_factory=list)
    _parts: list[SupervisedPart] = field(default_factory=list)
    #: Set by a signal handler. No Event: its lock would deadlock if the signal came
    #: while the main thread takes it.
    _is_stopping: bool = False
    #: Whether a person pressed Ctrl-C and waits.
    is_interrupted: bool = field(default=False, init=False)

    @property
    def local_url(self) -> str:
        """The URL of the web on this machine."""
        return local_url(self.host, self.port)

    @property
    def public_url(self) -> str:
        """The URL at which platforms reach the web. Raises ConfigError."""
        return find_public_url(self.settings, os.environ.get("SAYSO_PUBLIC_URL") or self.local_url)

    def run(self) -> None:
        """Start everything, print the URLs, watch until SIGTERM, SIGHUP or Ctrl-C, stop everything.

        Raises ConfigError, UpError, AddressUnusable and EmbeddedRedisError.
        """
        on_stop_signals(self._stop_soon)
        check_consoles(self.settings, self.public_url)
        check_free(self.host, self.port)
        if listening := listen_for_readers(self.metrics):
            listening.close()
        try:
            redis_url = self.settings.redis_url or os.environ.get("REDIS_URL", "")
            if not redis_url:
                self._redis = EmbeddedRedis(self.data)
                self._redis.start()
                self._parts = [
                    SupervisedPart(
                        "redis", self._redis.is_alive, self._redis.restart, time.monotonic()
                    )
                ]
                redis_url = self._redis.url
            self._start_children(redis_url)
            self._await_ready()
            if not self._is_stopping:
                leave_note(
                    self._state_folder,
                    Running(self.config.resolve(), self.local_url, os.getpid(), self.public_url),
                )
                self._announce()
            while not self._is_stopping:
                for part in self._parts:
                    part.check(time.monotonic())
                self._sleep(WATCH_SECONDS)
        finally:
            take_note_back(self._state_folder)
            self._stop()

    @property
    def _state_folder(self) -> Path:
        return self.settings.state_folder(self.data)

    def _stop_soon(self, number: int, *_: object) -> None:
        if not self._is_stopping:
            say_stopping(number)
        self.is_interrupted = self.is_interrupted or number == signal.SIGINT
        self._is_stopping = True

    def _sleep(self, seconds: float) -> None:
        """Wait this long, or until a signal asks to stop.

        One long sleep would go on after the signal.
        """
        until = time.monotonic() + seconds
        while not self._is_stopping and time.monotonic() < until:
            time.sleep(STEP_SECONDS)

    def _start_children(self, redis_url: str) -> None:
        environ = {
            **{
                name: value for name, value in os.environ.items() if name != ADDRESS
            },  # the web alone serves them
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
            "REDIS_URL": redis_url,
            "SAYSO_CONFIG": str(self.config.resolve()),
            "SAYSO_DATA": str(self.data.resolve()),
            "SAYSO_PUBLIC_URL": self.public_url,
            SUPERVISED: "true",
        }
        # -P: a sayso.py or a sayso folder in the user's current folder must
        # not be imported in place of ours.
        sayso = [sys.executable, "-P", "-m", "sayso"]
        common = ["--config", str(self.config), "--data", str(self.data)]
        web = [*sayso, "web", *common, "--host", self.host, "--port", str(self.port)]
        if self.metrics:
            web += ["--metrics", "[{}]:{}".format(*self.metrics)]
        worker = [*sayso, "worker", *common, "--processes", str(self.workers)]
        commands = {"web": web, "workers": worker}
        if any(channel.polls for channel in self.settings.channels.values()):
            commands["poll"] = [*sayso, "poll", *common]
        for name, command in commands.items():
            child = Child(name, command, environ, prepare=_prepare_part)
            self._children.append(child)
            child.start()
            self._parts.append(
                SupervisedPart(child.name, child.is_alive, child.start, time.monotonic())
            )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_stopping:
            health = full_health(urlsplit(self.local_url).netloc, 2.0)
            if health.get("redis") == "ok" and health.get("workers"):
                return  # other troubles do not hold up a start
            dead = [child.name for child in self._children if not child.is_alive()]
            if dead:
                raise UpError(f"{dead[0]} stopped while starting: what it printed above says why")
            if time.monotonic() > deadline:
                raise UpError(
                    f"not ready after {READY_SECONDS:g} s: see {self.local_url}/healthz?full"
                )
            time.sleep(0.05)

    def _announce(self) -> None:
        lines = []
        for name, channel in self.settings.channels.items():
            if channel.has_page:
                lines.append(
                    f"  {name:<12} {self.local_url}/console/{name}   <- open this in a browser"
                )
            elif channel.polls:
                lines.append(
                    f"  {name:<12} polls {channel.platform} for messages: no address is needed"
                )
            else:
                lines.append(
                    f"  {name:<12} {self.public_url}/hooks/{name}   ({channel.platform} webhook)"
                )
        lines.append(f"  {'health':<12} {self.local_url}/healthz?full")
        if self.metrics:
            lines.append(f"  {'metrics':<12} {local_url(*self.metrics)}/metrics")
        self.say(
            "\n".join(
                [
                    "Sayso is up.",
                    *lines,
                    f"  {'data':<12} {self.data.resolve()}",
                    "Ctrl-C stops it.",
                ]
            )
        )

    def _stop(self) -> None:
        """Stop all parts, Redis last: quickly after Ctrl-C, else in the time that each takes."""
        if not self.is_interrupted:
            self._end_children(signal.SIGTERM, GRACE_SECONDS)
        if self.is_interrupted:  # perhaps only while they took their time
            self._end_children(signal.SIGINT, KILL_SECONDS)
        for child in self._children:
            child.stop(seconds=0)
        if self._redis is not None:
            self._redis.stop()

    def _end_children(self, number: signal.Signals, seconds: float) -> None:
        """Send a signal to all children, and wait until they have ended.

        It waits for `seconds` at most, and no longer once a person presses Ctrl-C.
        """
        living = [child for child in self._children if child.is_alive()]
        for child in living:
            if child.process is not None:
                child.process.send_signal(number)
        until = time.monotonic() + seconds
        was_interrupted = self.is_interrupted
        while any(child.is_alive() for child in living) and time.monotonic() < until:
            if self.is_interrupted and not was_interrupted:
                return
            time.sleep(STEP_SECONDS)


def _prepare_part() -> None:
    """Prepare a new process before it becomes a part.

    It dies with its parent, and Ctrl-C waits for its handler.
    """
    die_with_parent()
    delay_interrupts()


def python_path(given: str) -> str:
    """Return PYTHONPATH for children, so that they run our code,
    also from a checkout that is not installed.
    """
    root = str(Path(__file__).parents[3])
    is_installed = root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    if is_installed:
        return given
    return os.pathsep.join(filter(None, [root, given]))


def full_health(address: str, seconds: float = 5.0) -> dict[str, Any]:
    """Return the health of the web at this host:port, {} when it does not answer in time."""
    # It goes through no proxy that the environment may name.
    connection = HTTPConnection(address, timeout=seconds)
    try:
        connection.request("GET", "/healthz?full")
        health = json.loads(connection.getresponse().read())
    except (OSError, ValueError, HTTPException):
        return {}
    finally:
        connection.close()
    if isinstance(health, dict):
        return health
    return {}
