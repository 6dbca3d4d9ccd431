"""`sayso up`: run Redis, web and workers on one machine, as processes of one supervisor.

`Up` starts these parts together, starts each again that dies, and stops all of them together.
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
from sayso.infra.backoff import backoff_seconds
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
    UP_FILE,
    Child,
    RunningBot,
    check_free,
    delete_running_bot,
    die_with_parent,
    local_url,
    save_running_bot,
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
    """A process that is started again when it dies. Lives as long as the supervisor.

    The first restart comes at once. While the part fails quickly, the pauses before further ones
    grow. Times are in seconds of `time.monotonic`.
    """

    name: str
    is_alive: Callable[[], bool]
    start: Callable[[], None]
    #: When it was started last.
    started_at: float
    #: How often in a row it died within `QUICK_SECONDS`.
    _quick_failures: int = 0
    #: When it is started again, None while it lives.
    _restart_at: float | None = None

    def __post_init__(self) -> None:
        # The count begins at 0, since an alert on its increase would miss the first death.
        RESTARTS.labels(self.name)

    def check(self, now: float) -> None:
        """Start the part again when it died and its pause is over."""
        if self.is_alive():
            return

        if self._restart_at is None:
            if now - self.started_at < QUICK_SECONDS:
                self._quick_failures += 1
            else:
                self._quick_failures = 0
            pause = 0.0
            if self._quick_failures > 1:
                pause = backoff_seconds(
                    self._quick_failures - 1, first=1.0, longest=MAX_PAUSE_SECONDS
                )
            self._restart_at = now + pause
            RESTARTS.labels(self.name).inc()
            log.error("up.died", extra={"part": self.name, "failures": self._quick_failures})

        if now >= self._restart_at:
            self._restart_at = None
            self.started_at = now
            try:
                self.start()
            except (EmbeddedRedisError, ConfigError, OSError) as exc:
                log.error("up.start_failed", extra={"part": self.name, "reason": exc})


@dataclass(slots=True)
class Up:
    """The supervisor of one machine. Lives as long as the command.

    It runs in the main thread: children die with the thread that started them.
    """

    settings: Settings
    #: The YAML file of the settings, which the children read again.
    config: Path
    #: The data folder.
    data: Path
    #: Where the web listens.
    host: str
    port: int
    #: The number of worker processes.
    workers: int = 2
    #: Where the web serves /metrics for all parts.
    metrics: MetricsAddress = None
    #: Prints a text for the person who started the command.
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

        # What would stop a part at its start is reported before any part is started.
        check_consoles(self.settings, self.public_url)
        check_free(self.host, self.port)
        listening = listen_for_readers(self.metrics)
        if listening:
            listening.close()

        try:
            redis_url = self.settings.redis_url or os.environ.get("REDIS_URL", "")
            if not redis_url:
                redis_url = self._start_redis()
            self._start_children(redis_url)
            self._await_ready()

            if not self._is_stopping:
                config = self.config.resolve()
                running_bot = RunningBot(config, self.local_url, os.getpid(), self.public_url)
                save_running_bot(self._state_folder, running_bot, UP_FILE)
                self._announce()
            while not self._is_stopping:
                for part in self._parts:
                    part.check(time.monotonic())
                self._sleep(WATCH_SECONDS)
        finally:
            delete_running_bot(self._state_folder, UP_FILE)
            self._stop()

    def _start_redis(self) -> str:
        """Start a Redis on the data folder, and return its URL. Raises EmbeddedRedisError."""
        self._redis = EmbeddedRedis(self.data)
        self._redis.start()
        part = SupervisedPart("redis", self._redis.is_alive, self._redis.restart, time.monotonic())
        self._parts.append(part)
        return self._redis.url

    @property
    def _state_folder(self) -> Path:
        return self.settings.state_folder(self.data)

    def _stop_soon(self, number: int, *_: object) -> None:
        """Note a stop signal. The main loop sees it within `STEP_SECONDS`."""
        if not self._is_stopping:
            say_stopping(number)
        if number == signal.SIGINT:
            self.is_interrupted = True
        self._is_stopping = True

    def _sleep(self, seconds: float) -> None:
        """Wait this long, or until a signal asks to stop.

        One long sleep would go on after the signal.
        """
        until = time.monotonic() + seconds
        while not self._is_stopping and time.monotonic() < until:
            time.sleep(STEP_SECONDS)

    def _start_children(self, redis_url: str) -> None:
        """Start the web, the workers, and the poller if a channel polls."""
        environ = {
            **os.environ,
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
            "REDIS_URL": redis_url,
            "SAYSO_CONFIG": str(self.config.resolve()),
            "SAYSO_DATA": str(self.data.resolve()),
            "SAYSO_PUBLIC_URL": self.public_url,
            # This process tells the person that it stops, so its children do not.
            SUPERVISED: "true",
        }
        # The web alone serves the metrics, by its option below.
        environ.pop(ADDRESS, None)

        # -P: a sayso.py or a sayso folder in the user's current folder must
        # not be imported in place of ours.
        sayso = [sys.executable, "-P", "-m", "sayso"]
        common = ["--config", str(self.config), "--data", str(self.data)]
        web = [*sayso, "web", *common, "--host", self.host, "--port", str(self.port)]
        if self.metrics:
            host, port = self.metrics
            web += ["--metrics", f"[{host}]:{port}"]
        worker = [*sayso, "worker", *common, "--processes", str(self.workers)]
        commands = {"web": web, "workers": worker}
        if any(channel.polls for channel in self.settings.channels.values()):
            commands["poll"] = [*sayso, "poll", *common]

        for name, command in commands.items():
            child = Child(name, command, environ, prepare=_prepare_part)
            self._children.append(child)
            child.start()
            part = SupervisedPart(child.name, child.is_alive, child.start, time.monotonic())
            self._parts.append(part)

    def _await_ready(self) -> None:
        """Wait until the web answers and a worker is alive, or until a signal asks to stop.

        Raises UpError if a part ends before, or after `READY_SECONDS`.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_stopping:
            # A problem of anything else, such as a platform, does not hold up a start.
            health = full_health(urlsplit(self.local_url).netloc, 2.0)
            if health.get("redis") == "ok" and health.get("workers"):
                return
            dead = [child.name for child in self._children if not child.is_alive()]
            if dead:
                raise UpError(f"{dead[0]} stopped while starting: what it printed above says why")
            if time.monotonic() > deadline:
                raise UpError(
                    f"not ready after {READY_SECONDS:g} s: see {self.local_url}/healthz?full"
                )
            time.sleep(0.05)

    def _announce(self) -> None:
        """Print where each channel, the health, the metrics and the data are."""
        places = {}
        for name, channel in self.settings.channels.items():
            if channel.has_page:
                places[name] = f"{self.local_url}/console/{name}   <- open this in a browser"
            elif channel.polls:
                places[name] = f"polls {channel.platform} for messages: no address is needed"
            else:
                places[name] = f"{self.public_url}/hooks/{name}   ({channel.platform} webhook)"
        rows = [*places.items(), ("health", f"{self.local_url}/healthz?full")]
        if self.metrics:
            rows.append(("metrics", f"{local_url(*self.metrics)}/metrics"))
        rows.append(("data", str(self.data.resolve())))

        lines = [f"  {name:<12} {place}" for name, place in rows]
        self.say("\n".join(["Sayso is up.", *lines, "Ctrl-C stops it."]))

    def _stop(self) -> None:
        """Stop all parts, Redis last: quickly after Ctrl-C, else in the time that each takes."""
        if not self.is_interrupted:
            self._end_children(signal.SIGTERM, GRACE_SECONDS)
        # Ctrl-C may also come while the children take their time.
        if self.is_interrupted:
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


def python_path(present: str) -> str:
    """Return PYTHONPATH for children, so that they run this code from a checkout, too.

    `present` is the value of this process, "" for none. An installed Sayso needs no addition.
    """
    # The folder that holds the package `sayso`: this file is sayso/ops/server/up.py. That is true in
    # a checkout, too, where sayso/ops is a link and `__file__` the path through the link.
    root = str(Path(__file__).parents[3])
    is_installed = root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    if is_installed:
        return present
    return os.pathsep.join(filter(None, [root, present]))


def full_health(address: str, seconds: float = 5.0) -> dict[str, Any]:
    """Return the health of the web at this host:port, {} when it does not answer in time."""
    # http.client uses no proxy that the environment may name.
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
