"""Redis, web and workers as processes."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any, Self, cast

import yaml
from redis import Redis
from redis.exceptions import RedisError

from sayso.config.server.embedded_redis import EmbeddedRedis
from sayso.config.server.up import Child, python_path
from sayso.config.settings.data_folder import KEYS_VARIABLE, secret_keys, socket_path
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.plan import Plan
from sayso.testing.simulation.tools import MODEL_MS


class WorkerProcesses:
    """`registered` says which process ids RQ knows workers by: one that is still starting is none yet."""

    def __init__(self, parents: Sequence[Child], registered: Callable[[], set[int]]) -> None:
        self.parents = list(parents)
        self._registered = registered
        self._leaving: set[int] = set()
        self._seen: set[int] = set()
        self._told: set[int] = set()

    def at_work(self) -> set[int]:
        """Those that have started and live."""
        living = {pid for pid in self._registered() if pid and _lives(pid)}
        self._seen |= living
        return living - self._leaving

    @property
    def leaving(self) -> set[int]:
        """Those told to stop that still live."""
        self._leaving = {pid for pid in self._leaving if _lives(pid)}
        return self._leaving

    def kill(self, pid: int) -> None:
        """End one without warning."""
        self._told.add(pid)
        _signal(pid, signal.SIGKILL)

    def kill_parent(self, chance: Random) -> None:
        """End a parent without warning: what it forked stops, and `tend` starts it again."""
        self._told |= self._seen
        parent = chance.choice(self.parents)
        if parent.process is not None:
            parent.process.kill()
            parent.process.wait()

    def kill_all(self, parent: Child) -> int:
        """End a parent and what it forked at once, without warning. Returns how many it had."""
        if parent.process is None:
            return 0
        _signal(parent.process.pid, signal.SIGSTOP)  # it forks nobody meanwhile
        forked = _children(parent.process.pid)
        for pid in forked:
            self.kill(pid)
        parent.process.kill()
        parent.process.wait()
        return len(forked)

    def tell_to_stop(self, pid: int) -> None:
        """SIGTERM, to one."""
        self._told.add(pid)
        _signal(pid, signal.SIGTERM)
        self._leaving.add(pid)

    def tend(self) -> int:
        """Start again the parents that ended. Returns how many did, and workers that nobody had told to end."""
        ended = [parent for parent in self.parents if not parent.is_alive()]
        for parent in ended:
            parent.start()
        gone = {pid for pid in self._seen - self._told if not _lives(pid)}
        self._told |= gone
        return len(ended) + len(gone)


def pick(pids: set[int], chance: Random) -> int:
    """One of them, 0 when there is none."""
    return chance.choice(sorted(pids)) if pids else 0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    if _lives(pid):
        os.kill(pid, number)


def workers_known(door: str) -> int:
    """How many workers the web at this host and port knows of; 0 while it does not answer."""
    return int(_readiness(door).get("workers", 0))


def spooled(door: str) -> int | None:
    """How many messages wait on the disk of this web's machine; None when it does not say."""
    found = _readiness(door).get("spooled")
    return None if found is None else int(found)


def _readiness(door: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(door, timeout=5)
    try:
        connection.request("GET", "/healthz?full")
        said = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return said if isinstance(said, dict) else {}


#: Bytes that a full memory or disk still takes.
LAST_BYTES = 4096


#: Seconds within which a killed process is gone.
GONE_SECONDS = 10.0


class RedisServer(EmbeddedRedis):
    """Start and end it in one thread that outlives it, as any embedded Redis."""

    def prepare(self) -> None:
        """Die with the parent; and hear of a file that may not grow by an error, as of a full disk, not by a signal."""
        super().prepare()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def kill(self) -> None:
        """End it without warning. Returns when it is gone; `restart` has it read what it had written."""
        os.kill(self.pid or 0, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def workers(self) -> set[int]:
        """The process ids that RQ knows workers by; none while it is away."""
        try:
            with self._client() as client:
                return {int(client.hget(name, "pid") or 0) for name in client.smembers("rq:workers")}
        except RedisError:
            return set()

    def used_bytes(self) -> int:
        """The memory it uses for what it holds. Raises RedisError."""
        with self._client() as client:
            return int(cast("dict[str, Any]", client.info("memory"))["used_memory"])

    def limit_memory(self) -> None:
        """From now on it refuses all that needs more memory than it uses. Raises RedisError."""
        limit = self.used_bytes() + LAST_BYTES
        with self._client() as client:
            client.config_set("maxmemory", limit)

    def limit_disk(self) -> None:
        """From now on its file cannot grow, as on a full disk: it ends itself, as it can answer nothing it has to keep.

        Raises OSError when it has ended already.
        """
        sizes = [file.stat().st_size for file in Path(self.folder, "appendonlydir").iterdir()]
        _limit_files(self.pid or 0, max(sizes) + LAST_BYTES)

    def unlimit(self) -> None:
        """Room again for both. Raises RedisError."""
        _limit_files(self.pid or 0, resource.RLIM_INFINITY)
        with self._client() as client:
            client.config_set("maxmemory", 0)

    def _client(self) -> Redis:
        return Redis.from_url(self.url, decode_responses=True)


def _limit_files(pid: int, size: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


#: The credentials that the fakes take, as the environment names them.
CREDENTIALS = {
    "SIMULATED_TWILIO_TOKEN": fakes.TWILIO_AUTH_TOKEN,
    "SIMULATED_TELEGRAM_TOKEN": fakes.TELEGRAM_TOKEN,
    "SIMULATED_TELEGRAM_SECRET": fakes.TELEGRAM_SECRET,
    "SIMULATED_SLACK_TOKEN": fakes.SLACK_BOT_TOKEN,
    "SIMULATED_SLACK_SECRET": fakes.SLACK_SIGNING_SECRET,
}


#: The people of a simulation are quicker than people, and nobody tells them to write slower, nor a group to wait.
UNHURRIED = {"per_minute": 60_000, "in_one_go": 60_000, "waiting": 1000}


#: The configuration when none is given.
DEFAULT: dict[str, Any] = {
    "agent": {"model": "offline"},
    "tools": ["sayso.testing.simulation.tools"],
    "channels": {
        "shop-wa": {"platform": "whatsapp", "confirm_ttl": 300},
        "ops-tg": {"platform": "telegram", "confirm_ttl": 300},
        "desk": {"platform": "slack", "confirm_ttl": 300},
    },
}


class MachineError(Exception):
    """Raised when the parts do not come up. The message names the cure."""


def simulated(plan: Plan, platforms: FakePlatforms, url: str) -> dict[str, Any]:
    """The plan's configuration with its platforms replaced by the fakes, without the channels that have none.

    Raises MachineError.
    """
    config = plan.config
    told = DEFAULT if config is None else yaml.safe_load(config.read_text(encoding="utf-8"))
    credentials: dict[str, dict[str, str]] = {
        "whatsapp": {
            "account_sid": fakes.TWILIO_ACCOUNT_SID,
            "auth_token": "${SIMULATED_TWILIO_TOKEN}",
            "from": "whatsapp:+14155238886",
            "api_url": platforms.twilio_url,
        },
        "telegram": {
            "token": "${SIMULATED_TELEGRAM_TOKEN}",
            "secret_token": "${SIMULATED_TELEGRAM_SECRET}",
            "api_url": platforms.telegram_url,
        },
        "slack": {
            "bot_token": "${SIMULATED_SLACK_TOKEN}",
            "signing_secret": "${SIMULATED_SLACK_SECRET}",
            "api_url": platforms.slack_url,
        },
    }
    channels = {
        name: {**channel, **credentials[channel["platform"]], **_changed(plan)}
        for name, channel in told["channels"].items()
        if channel["platform"] in credentials
    }
    if not channels:
        raise MachineError(f"{config}: no channel to simulate: add one of {', '.join(credentials)}")
    tools = [_absolute(tool, config) for tool in told.get("tools", [])]
    limits = {**told.get("limits", {}), **UNHURRIED}
    return {
        **told,
        **({"spool": True} if plan.spool else {}),
        "limits": limits,
        # What tells a person to wait answers nothing that they did: the judge could not tell it from a stray message.
        "workers": {**told.get("workers", {}), "still_after": 0},
        "public_url": url,
        "redis_url": "${REDIS_URL}",
        "tools": tools,
        "channels": channels,
    }


def _changed(plan: Plan) -> dict[str, Any]:
    """What a plan changes in every channel. A group is answered by many, and its platform's pace is not the subject."""
    pace: dict[str, Any] = {"messages_per_second": 0} if plan.strangers else {}
    return {**pace, "confirm_ttl": plan.window} if plan.window else pace


def _absolute(tool: str, config: Path | None) -> str:
    """A module given by its file is looked for beside the configuration."""
    return str((config.parent / tool).resolve()) if config and tool.endswith(".py") else tool


#: Seconds until everything must be ready.
READY_SECONDS = 60.0


class Machine:
    """From `with` to its end. Start and end it in one thread that outlives it: the processes die with that thread."""

    def __init__(self, plan: Plan, data: Path, platforms: FakePlatforms) -> None:
        self.redis = RedisServer(data)
        self.doors = [f"127.0.0.1:{_free_port()}" for _ in range(plan.webs)]
        self.hooks: list[tuple[str, str]] = []
        self._plan, self._data, self._platforms = plan, data, platforms
        self._log: IO[bytes] | None = None
        self._stack = ExitStack()
        self.webs: list[Child] = []
        self.crew = WorkerProcesses([], self.redis.workers)
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
        _signal_of_machine(web, number)
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
        self.crew = WorkerProcesses(self._parents(), self.redis.workers)
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
            _signal_of_machine(child, signal.SIGTERM)
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
        python = [sys.executable, "-P", "-m", *(["sayso.testing.simulation.clock", str(skew)] if skew else [])]
        common = ["--config", str(self._data / "sayso.yaml"), "--data", str(folder or self._data)]
        commands = {
            "web": [*python, "sayso", "web", *common, "--port", door.rpartition(":")[2]],
            "worker": [*python, "sayso", "worker", *common, "--processes", str(count)],
            "proxy": [*python, "sayso.testing.simulation.proxy", *self._proxy_arguments()],
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
            KEYS_VARIABLE: ",".join(secret_keys(self._data)),
            MODEL_MS: f"{low:g}-{high:g}",
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
            "REDIS_URL": f"unix://{self._front}" if self._plan.through_proxy else self.redis.url,
            "SAYSO_DATA": str(self._data.resolve()),
        }


def _signal_of_machine(child: Child, number: int) -> None:
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


#: Seconds after which processes have imported what they need and met everybody: memory is compared from there on.
WARM_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What was measured. `processes` are name, MB when warm and MB at the end, of those that lived so long."""

    processes: Sequence[tuple[str, float, float]] = ()
    redis_bytes_each: float = 0.0

    @property
    def grown_mb(self) -> float:
        """By how much the process grew that grew most."""
        return max((end - warm for _, warm, end in self.processes), default=0.0)


@dataclass(slots=True)
class MemoryMeter:
    """Lives as long as its machine. Tell it the time now and then, and the end."""

    machine: Machine
    began: float
    redis_bytes: int = 0
    warm: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.redis_bytes = self.machine.redis.used_bytes()

    def tend(self, now: float) -> None:
        """Look once, when everything is warm and Redis can say who works."""
        if not self.warm and now >= self.began + WARM_SECONDS and self.machine.crew.at_work():
            self.warm = {pid: _resident_mb(pid) for _, pid in self._processes()}

    def read(self, conversations: int) -> Memory:
        """What is known at the end. Raises RedisError."""
        lived = [(name, pid) for name, pid in self._processes() if pid in self.warm]
        processes = [(name, self.warm[pid], _resident_mb(pid)) for name, pid in lived]
        return Memory(processes, (self.machine.redis.used_bytes() - self.redis_bytes) / conversations)

    def _processes(self) -> list[tuple[str, int]]:
        webs = [("web", web.process.pid) for web in self.machine.webs if web.process]
        return [*webs, *(("worker", pid) for pid in sorted(self.machine.crew.at_work()))]


def _resident_mb(pid: int) -> float:
    """The memory that a process holds; 0 for one that has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024 if "VmRSS:" in status else 0.0
