"""The system under test: Redis, web and worker processes, and how much memory they use."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import IO, Any, Self, cast

import yaml
from redis import Redis
from redis.exceptions import RedisError

from sayso.config.wiring.data_folder import KEYS_VARIABLE, secret_keys, socket_path
from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.ops.server.processes import Child
from sayso.ops.server.up import full_health, python_path
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.ports import ReservedPort
from sayso.testing.simulation.profile import Profile
from sayso.testing.simulation.tools import MODEL_MS
from sayso.testing.simulation.webhooks import SIMULATED

#: Bytes that a full memory or disk still accepts.
LAST_BYTES = 4096
#: How long a killed process may take to end, in seconds.
GONE_SECONDS = 10.0
#: Simulated users are quicker than people; no rate limit may answer them.
HIGH_LIMITS = {"per_minute": 60_000, "in_one_go": 60_000, "waiting": 1000}
#: The configuration if none is given.
DEFAULT: dict[str, Any] = {
    "agent": {"model": "offline"},
    "tools": ["sayso.testing.simulation.tools"],
    "channels": {
        "shop-wa": {"platform": "whatsapp", "confirm_ttl": 300},
        "ops-tg": {"platform": "telegram", "confirm_ttl": 300},
        "desk": {"platform": "slack", "confirm_ttl": 300},
    },
}
#: How long the processes may take to be ready, in seconds.
READY_SECONDS = 60.0


class WorkerProcesses:
    """All worker processes and the parents that forked them.

    `registered` returns the process ids of the workers that RQ knows;
    one that is still starting is not among them.
    """

    def __init__(self, parents: Sequence[Child], registered: Callable[[], set[int]]) -> None:
        self.parents = list(parents)
        self._registered = registered
        self._stopping: set[int] = set()
        self._seen: set[int] = set()
        self._expected_to_end: set[int] = set()

    def at_work(self) -> set[int]:
        """Return the workers that have started and are alive."""
        living = {pid for pid in self._registered() if pid and _lives(pid)}
        self._seen |= living
        return living - self._stopping

    @property
    def stopping(self) -> set[int]:
        """The workers that were told to stop and are still alive."""
        self._stopping = {pid for pid in self._stopping if _lives(pid)}
        return self._stopping

    def kill(self, pid: int) -> None:
        """Kill one worker."""
        self._expected_to_end.add(pid)
        _signal(pid, signal.SIGKILL)

    def kill_parent(self, chance: Random) -> None:
        """Kill a parent. Its workers stop, and `restart_ended` starts it again."""
        self._expected_to_end |= self._seen
        parent = chance.choice(self.parents)
        if parent.process is not None:
            parent.process.kill()
            parent.process.wait()

    def kill_family(self, parent: Child) -> int:
        """Kill a parent and all its workers at once. Return how many workers it had."""
        if parent.process is None:
            return 0
        _signal(parent.process.pid, signal.SIGSTOP)  # it must not fork meanwhile
        forked = children_of(parent.process.pid)
        for pid in forked:
            self.kill(pid)
        parent.process.kill()
        parent.process.wait()
        return len(forked)

    def tell_to_stop(self, pid: int) -> None:
        """Send SIGTERM to one worker."""
        self._expected_to_end.add(pid)
        _signal(pid, signal.SIGTERM)
        self._stopping.add(pid)

    def restart_ended(self) -> int:
        """Start again the parents that ended.

        Return how many, plus workers that ended without being told to.
        """
        ended = [parent for parent in self.parents if not parent.is_alive()]
        for parent in ended:
            parent.start()
        gone = {pid for pid in self._seen - self._expected_to_end if not _lives(pid)}
        self._expected_to_end |= gone
        return len(ended) + len(gone)


def pick(pids: set[int], chance: Random) -> int:
    """Return one of the process ids, 0 if there is none."""
    if pids:
        return chance.choice(sorted(pids))
    return 0


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children. Raises OSError if it is gone."""
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


def spooled(address: str) -> int | None:
    """Return how many messages wait in the spool of this web; None if it does not say."""
    count = full_health(address).get("spooled")
    if count is None:
        return None
    return int(count)


class RedisServer(EmbeddedRedis):
    """A Redis that can be killed and run out of memory or disk.

    Start and end it in one thread that outlives it.
    """

    def prepare(self) -> None:
        """End with the parent; and get an error, as on a full disk, not a signal,
        when a file may not grow.
        """
        super().prepare()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def kill(self) -> None:
        """Kill it and wait until it has ended. `restart` has it read what it had written."""
        os.kill(self.pid or 0, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def workers(self) -> set[int]:
        """Return the process ids of the workers that RQ knows; none while Redis is away."""
        try:
            with self._client() as client:
                return {
                    int(client.hget(name, "pid") or 0) for name in client.smembers("rq:workers")
                }
        except RedisError:
            return set()

    def used_bytes(self) -> int:
        """Return the bytes of memory it uses. Raises RedisError."""
        with self._client() as client:
            return int(cast("dict[str, Any]", client.info("memory"))["used_memory"])

    def limit_memory(self) -> None:
        """Refuse everything that needs more memory than now. Raises RedisError."""
        limit = self.used_bytes() + LAST_BYTES
        with self._client() as client:
            client.config_set("maxmemory", limit)

    def limit_disk(self) -> None:
        """Let its file not grow, as on a full disk.

        It ends itself, because it cannot store what it acknowledges.

        Raises OSError if it has ended already.
        """
        sizes = [file.stat().st_size for file in Path(self.folder, "appendonlydir").iterdir()]
        _limit_files(self.pid or 0, max(sizes) + LAST_BYTES)

    def unlimit(self) -> None:
        """Lift both limits. Raises RedisError."""
        _limit_files(self.pid or 0, resource.RLIM_INFINITY)
        with self._client() as client:
            client.config_set("maxmemory", 0)

    def _client(self) -> Redis:
        return connect(self.url)


def _limit_files(pid: int, size: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


class MachineError(Exception):
    """Raised when a process does not start. The message names the fix."""


def simulated_settings(profile: Profile, platforms: FakePlatforms, url: str) -> dict[str, Any]:
    """Return the profile's configuration with fake platforms,
    without channels for which there is no fake.

    Raises MachineError if no channel is left.
    """
    config = profile.config
    if config is None:
        settings = DEFAULT
    else:
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    channels = {
        name: {
            **channel,
            **fake_channel(channel["platform"], platforms.url),
            **_channel_overrides(profile),
        }
        for name, channel in settings["channels"].items()
        if channel["platform"] in SIMULATED
    }
    if not channels:
        raise MachineError(f"{config}: no channel to simulate: add one of {', '.join(SIMULATED)}")
    tools = [_absolute(tool, config) for tool in settings.get("tools", [])]
    limits = {**settings.get("limits", {}), **HIGH_LIMITS}
    return {
        **settings,
        **({"spool": True} if profile.spool else {}),
        "limits": limits,
        # No "still working" notices: the judge could not tell them from stray messages.
        "workers": {**settings.get("workers", {}), "still_after": 0},
        "public_url": url,
        "redis_url": "${REDIS_URL}",
        "tools": tools,
        "channels": channels,
    }


def fake_channel(platform: str, url: str) -> dict[str, str]:
    """Return the settings with which a channel uses the fake of its platform.

    All fakes have the same `url`.
    """
    simulated = SIMULATED[platform]
    secrets = {key: f"${{{_variable(platform, key)}}}" for key in simulated.secrets}
    return {**simulated.settings, **secrets, "api_url": f"{url}/{simulated.fake}"}


def _variable(platform: str, key: str) -> str:
    """Return the name of the environment variable that holds a secret."""
    return f"SIMULATED_{platform}_{key}".upper()


def _channel_overrides(profile: Profile) -> dict[str, Any]:
    """Return what a profile changes in every channel.

    Groups are not slowed down to their platform's rate.
    """
    overrides: dict[str, Any] = {"messages_per_second": 0} if profile.strangers else {}
    if profile.question_seconds:
        return {**overrides, "confirm_ttl": profile.question_seconds}
    return overrides


def _absolute(tool: str, config: Path | None) -> str:
    """Return a tool file with the folder of the configuration; modules stay as they are."""
    if config and tool.endswith(".py"):
        return str((config.parent / tool).resolve())
    return tool


class Machine:
    """All processes, from `with` to its end.

    Use it in one thread that outlives it: they die with that thread.

    `make_settings` returns the configuration for the web's URL.
    With a `redis_url` no Redis is started.
    """

    def __init__(
        self,
        profile: Profile,
        data: Path,
        make_settings: Callable[[str], dict[str, Any]],
        redis_url: str = "",
    ) -> None:
        self.redis = RedisServer(data)
        self.redis_url = redis_url or self.redis.url
        # A web is restarted on its port.
        self._ports = [ReservedPort() for _ in range(profile.webs)]
        self.addresses = [f"127.0.0.1:{port.number}" for port in self._ports]
        self.hooks: list[tuple[str, str]] = []
        self._profile = profile
        self._data = data
        self._make_settings = make_settings
        self._has_own_redis = not redis_url
        self._log: IO[bytes] | None = None
        self._stack = ExitStack()
        self.webs: list[Child] = []
        self.workers = WorkerProcesses([], self.redis.workers)
        self._proxy = self._child("proxy")
        self._folders = itertools.count(1)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for port in self._ports:
                stack.callback(port.release)
            self._log = stack.enter_context(self._log_path.open("ab"))
            self._configure()
            if self._has_own_redis:
                self.redis.start()
                stack.callback(self.redis.stop)
            stack.callback(self._stop)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart_web(self, web: Child, number: int) -> None:
        """End a web process with a signal and start it again."""
        _send_signal(web, number)
        if web.process is not None:
            web.process.wait(READY_SECONDS)
        web.start()

    def replace_machine(self, parent: Child) -> int:
        """Kill a machine of workers and start an empty one in its place.

        Return how many workers it had.
        """
        killed = self.workers.kill_family(parent)
        at = self.workers.parents.index(parent)
        self.workers.parents[at] = self._parent(at)
        self.workers.parents[at].start()
        return killed

    def restart_ended(self) -> int:
        """Start again the processes that ended without being killed by us. Return how many."""
        closed = [web for web in self.webs if not web.is_alive()]
        for web in closed:
            web.start()
        return self.workers.restart_ended() + len(closed)

    def lost_replies(self) -> int:
        """Return how many replies of Redis the proxy lost; known after the machine has stopped."""
        counts = self._data / "proxy.json"
        if counts.exists():
            return int(json.loads(counts.read_text()).get("lost replies", 0))
        return 0

    def _configure(self) -> None:
        url = f"http://{self.addresses[0]}"
        settings = self._make_settings(url)
        (self._data / "sayso.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.hooks = [
            (channel["platform"], f"{url}/hooks/{name}")
            for name, channel in settings["channels"].items()
        ]

    def _start(self) -> None:
        if self._profile.through_proxy:
            self._proxy = self._child("proxy")
            self._proxy.start()
            _wait_until(self._proxy_socket.exists, "the proxy does not listen")
        self.webs = [
            self._child("web", address, skew=self._profile.clock_skew) for address in self.addresses
        ]
        for web in self.webs:
            web.start()
        self.workers = WorkerProcesses(self._parents(), self.redis.workers)
        self.workers.restart_ended()
        for address in self.addresses:
            _wait_until(partial(self._is_ready, address), f"not ready: see {self._log_path}")

    def _is_ready(self, address: str) -> bool:
        return int(full_health(address).get("workers", 0)) >= self._profile.workers

    def _parents(self) -> list[Child]:
        return [self._parent(at) for at in range(len(self._shares))]

    def _parent(self, at: int) -> Child:
        """Return a parent of workers.

        If clocks are wrong, every second parent is ahead and the others are behind.
        """
        if at % 2:
            skew = self._profile.clock_skew
        else:
            skew = -self._profile.clock_skew
        return self._child("worker", count=self._shares[at], skew=skew, folder=self._folder())

    @property
    def _shares(self) -> list[int]:
        """The number of workers of each parent.

        One machine has two parents if it has at least two workers.
        """
        workers = self._profile.workers
        parents = max(2, self._profile.machines)
        return [len(range(at, workers, parents)) for at in range(min(workers, parents))]

    def _folder(self) -> Path:
        """Return the data folder of a machine of workers: ours,
        or a new one that shares only the media files.
        """
        if self._profile.machines == 1:
            return self._data
        folder = self._data / f"machine-{next(self._folders)}"
        files = self._data / "media"
        folder.mkdir()
        files.mkdir(exist_ok=True)
        (folder / "media").symlink_to(files.resolve(), target_is_directory=True)
        return folder

    def _stop(self) -> None:
        children = [*self.workers.parents, *self.webs]
        for child in children:
            _send_signal(child, signal.SIGTERM)
        for child in [*children, self._proxy]:
            child.stop()

    @property
    def _log_path(self) -> Path:
        """The log file of all processes."""
        return self._data / "processes.log"

    @property
    def _proxy_socket(self) -> Path:
        """The socket on which the proxy listens."""
        return socket_path(self._data).with_name("front.sock")

    def _child(
        self,
        name: str,
        address: str = "",
        count: int = 1,
        skew: float = 0.0,
        folder: Path | None = None,
    ) -> Child:
        python = [
            sys.executable,
            "-P",
            "-m",
            *(["sayso.testing.simulation.clock", str(skew)] if skew else []),
        ]
        common = ["--config", str(self._data / "sayso.yaml"), "--data", str(folder or self._data)]
        commands = {
            "web": [*python, "sayso", "web", *common, "--port", address.rpartition(":")[2]],
            "worker": [
                *python,
                "sayso.testing.simulation.model",
                "sayso",
                "worker",
                *common,
                "--processes",
                str(count),
            ],
            "proxy": [*python, "sayso.testing.simulation.proxy", *self._proxy_arguments()],
        }
        return Child(name, commands[name], self._environ(), log=self._log)

    def _proxy_arguments(self) -> list[str]:
        profile = self._profile
        target = socket_path(self._data)
        numbers = [str(profile.lost_replies), str(profile.redis_delay_ms), str(profile.seed)]
        return [str(self._proxy_socket), str(target), *numbers, str(self._data / "proxy.json")]

    def _environ(self) -> dict[str, str]:
        low, high = self._profile.model_ms
        return {
            **os.environ,
            **{
                _variable(name, key): secret
                for name, row in SIMULATED.items()
                for key, secret in row.secrets.items()
            },
            KEYS_VARIABLE: ",".join(secret_keys(self._data)),
            MODEL_MS: f"{low:g}-{high:g}",
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
            "REDIS_URL": f"unix://{self._proxy_socket}"
            if self._profile.through_proxy
            else self.redis_url,
            "SAYSO_DATA": str(self._data.resolve()),
        }


def _send_signal(child: Child, number: int) -> None:
    if child.process is not None and child.is_alive():
        child.process.send_signal(number)


def _wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise MachineError(message)
        time.sleep(0.01)
