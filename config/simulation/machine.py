"""Machine: Redis, web and workers as processes of their own, with handles to kill, stop and restart them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

import yaml

from sayso.channels.fakes.platforms import FakePlatforms
from sayso.config.embedded import socket_path
from sayso.config.keys import VARIABLE, secret_keys
from sayso.config.simulation.crew import Crew
from sayso.config.simulation.door import workers_known
from sayso.config.simulation.plan import Plan
from sayso.config.simulation.server import Server
from sayso.config.simulation.settings import CREDENTIALS, MachineError, simulated
from sayso.config.simulation.tools import MODEL_MS
from sayso.config.up import Child, python_path

#: Seconds until everything must be ready.
READY_SECONDS = 60.0


class Machine:
    """From `with` to its end. Start and end it in one thread that outlives it: the processes die with that thread."""

    def __init__(self, plan: Plan, data: Path, platforms: FakePlatforms) -> None:
        self.redis = Server(data)
        self.doors = [f"127.0.0.1:{_free_port()}" for _ in range(plan.webs)]
        self.hooks: list[tuple[str, str]] = []
        self._plan, self._data, self._platforms = plan, data, platforms
        self._log: IO[bytes] | None = None
        self._stack = ExitStack()
        self.webs: list[Child] = []
        self.crew = Crew([], self.redis.workers)
        self._proxy = self._child("proxy")
        self._folders = itertools.count(1)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._log = stack.enter_context(self._log_path.open("ab"))
            self._configure()
            self.redis.start()
            stack.callback(self.redis.stop)
            stack.callback(self._stop)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart_web(self, web: Child, number: int) -> None:
        """End a web with a signal and start it again."""
        _signal(web, number)
        _reap(web)
        web.start()

    def lose(self, parent: Child) -> int:
        """A machine of workers goes, and an empty one takes its place. Returns how many workers it had."""
        lost, at = self.crew.kill_all(parent), self.crew.parents.index(parent)
        self.crew.parents[at] = self._parent(at)
        self.crew.parents[at].start()
        return lost

    def tend(self) -> int:
        """Start again what ended although nobody killed it. Returns how many: of workers, those seen at work."""
        closed = [web for web in self.webs if not web.is_alive()]
        for web in closed:
            web.start()
        return self.crew.tend() + len(closed)

    def lost_replies(self) -> int:
        """How many of Redis's replies the proxy lost; known when the machine was stopped."""
        counts = self._data / "proxy.json"
        return int(json.loads(counts.read_text()).get("lost replies", 0)) if counts.exists() else 0

    def _configure(self) -> None:
        url = f"http://{self.doors[0]}"
        settings = simulated(self._plan, self._platforms, url)
        (self._data / "sayso.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.hooks = [(channel["platform"], f"{url}/hooks/{name}") for name, channel in settings["channels"].items()]

    def _start(self) -> None:
        if self._plan.through_proxy:
            self._proxy = self._child("proxy")
            self._proxy.start()
            _until(self._front.exists, "the proxy does not listen")
        self.webs = [self._child("web", door, skew=self._plan.skew) for door in self.doors]
        for web in self.webs:
            web.start()
        self.crew = Crew(self._parents(), self.redis.workers)
        self.crew.tend()
        for door in self.doors:
            _until(lambda door=door: workers_known(door) >= self._plan.workers, f"not ready: see {self._log_path}")  # type: ignore[misc]

    def _parents(self) -> list[Child]:
        return [self._parent(at) for at in range(len(self._shares))]

    def _parent(self, at: int) -> Child:
        """A parent of workers. Where clocks are wrong, those of every second one are ahead and the others' behind."""
        skew = self._plan.skew if at % 2 else -self._plan.skew
        return self._child("worker", count=self._shares[at], skew=skew, folder=self._folder())

    @property
    def _shares(self) -> list[int]:
        """How many workers each parent has. On one machine there are two parents, where there are workers enough."""
        workers, parents = self._plan.workers, max(2, self._plan.machines)
        return [len(range(at, workers, parents)) for at in range(min(workers, parents))]

    def _folder(self) -> Path:
        """The data folder of a machine of workers: ours, or a new one that has only the files in common with it."""
        if self._plan.machines == 1:
            return self._data
        folder, files = self._data / f"machine-{next(self._folders)}", self._data / "media"
        folder.mkdir()
        files.mkdir(exist_ok=True)
        (folder / "media").symlink_to(files.resolve(), target_is_directory=True)
        return folder

    def _stop(self) -> None:
        children = [*self.crew.parents, *self.webs]
        for child in children:
            _signal(child, signal.SIGTERM)
        for child in [*children, self._proxy]:
            child.stop()

    @property
    def _log_path(self) -> Path:
        """Where the processes print."""
        return self._data / "processes.log"

    @property
    def _front(self) -> Path:
        """Where the proxy listens."""
        return socket_path(self._data).with_name("front.sock")

    def _child(self, name: str, door: str = "", count: int = 1, skew: float = 0.0, folder: Path | None = None) -> Child:
        python = [sys.executable, "-P", "-m", *(["sayso.config.simulation.clock", str(skew)] if skew else [])]
        common = ["--config", str(self._data / "sayso.yaml"), "--data", str(folder or self._data)]
        commands = {
            "web": [*python, "sayso.config.cli", "web", *common, "--port", door.rpartition(":")[2]],
            "worker": [*python, "sayso.config.cli", "worker", *common, "--processes", str(count)],
            "proxy": [*python, "sayso.config.simulation.proxy", *self._proxy_arguments()],
        }
        return Child(name, commands[name], self._environ(), log=self._log)

    def _proxy_arguments(self) -> list[str]:
        plan, target = self._plan, socket_path(self._data)
        numbers = [str(plan.cut), str(plan.slow_ms), str(plan.seed)]
        return [str(self._front), str(target), *numbers, str(self._data / "proxy.json")]

    def _environ(self) -> dict[str, str]:
        low, high = self._plan.model_ms
        return {
            **os.environ,
            **CREDENTIALS,
            VARIABLE: ",".join(secret_keys(self._data)),
            MODEL_MS: f"{low:g}-{high:g}",
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
            "REDIS_URL": f"unix://{self._front}" if self._plan.through_proxy else self.redis.url,
            "SAYSO_DATA": str(self._data.resolve()),
        }


def _signal(child: Child, number: int) -> None:
    if child.process is not None and child.is_alive():
        child.process.send_signal(number)


def _reap(child: Child) -> None:
    if child.process is not None:
        child.process.wait(READY_SECONDS)


def _until(what: Callable[[], bool], words: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not what():
        if time.monotonic() > deadline:
            raise MachineError(words)
        time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
