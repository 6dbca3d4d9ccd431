"""The processes of a simulated bot: Redis, webs and workers, which can be killed and restarted.

A web receives webhooks, a worker answers them. Workers are forked by a parent, as with
`sayso worker --processes`. A machine of workers is one parent with a separate data folder, as on
another host; a profile without `machines` has two parents with one folder.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import IO, Any, Self, cast
from urllib.parse import quote

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
from sayso.testing.simulation.deciders import DECIDER_NUMBERS, DECIDERS
from sayso.testing.simulation.profile import Profile
from sayso.testing.simulation.tools import MODEL_MS
from sayso.testing.simulation.webhooks import SIMULATED, telegram_id

#: Bytes that a full memory or disk still accepts.
LAST_BYTES = 4096
#: How long a killed process may take to end, in seconds.
GONE_SECONDS = 10.0
#: The limits of each user. Simulated users write faster than people, and an answer "too fast" would
#: hide what the simulation is to show.
HIGH_LIMITS = {"per_minute": 60_000, "in_one_go": 60_000, "waiting": 1000}


def _policy(role: str) -> dict[str, Any]:
    """Return what people with this role decide in the shop.

    Its other tools ask the person, as their authors say. Each channel gets a copy: the YAML of a
    bot may have no aliases.
    """
    return {
        "allow": ["*"],
        "approval": {
            "wire": {"by": {"role": role}, "within": "5m"},
            "transfer": {"by": {"role": role}, "need": 2, "within": "5m"},
        },
    }


#: The configuration of a profile that names none.
DEFAULT_SETTINGS: dict[str, Any] = {
    "agent": {"model": "offline"},
    "tools": ["sayso.testing.simulation.tools"],
    "people": {
        name: {"accounts": {"ops-tg": telegram_id(DECIDER_NUMBERS[name])}, "roles": [channel]}
        for channel, names in DECIDERS.items()
        for name in names
    },
    "channels": {
        "shop-wa": {"platform": "whatsapp", "confirm_ttl": 300, "policy": _policy("shop-wa")},
        "ops-tg": {"platform": "telegram", "confirm_ttl": 300, "policy": _policy("ops-tg")},
        "desk": {"platform": "slack", "confirm_ttl": 300, "policy": _policy("desk")},
    },
}
#: How long the processes may take to be ready, in seconds.
READY_SECONDS = 60.0


class WorkerProcesses:
    """All worker processes, by process id, and the parents that forked them.

    `registered` returns the process ids of the workers that RQ knows. A worker that is still
    starting is not among them.
    """

    def __init__(self, parents: Sequence[Child], registered: Callable[[], set[int]]) -> None:
        self.parents = list(parents)
        self._registered = registered
        #: All workers that were ever noted.
        self._known: set[int] = set()
        #: Workers that got SIGTERM, as long as they are alive.
        self._stopping: set[int] = set()
        #: Workers whose end a fault causes, and ended workers that were counted.
        self._expected_to_end: set[int] = set()

    def at_work(self) -> set[int]:
        """Return the workers that have started, are alive, and were not told to stop.

        They are noted, as by `note_workers`.
        """
        return self.note_workers() - self._stopping

    def note_workers(self) -> set[int]:
        """Note the workers that are there now, so that `restart_ended` notices their end.

        Return them.
        """
        living = {pid for pid in self._registered() if pid and _is_alive(pid)}
        self._known |= living
        return living

    @property
    def stopping(self) -> set[int]:
        """The workers that were told to stop and are still alive."""
        self._stopping = {pid for pid in self._stopping if _is_alive(pid)}
        return self._stopping

    def kill(self, pid: int) -> None:
        """Kill one worker."""
        self._expected_to_end.add(pid)
        _signal(pid, signal.SIGKILL)

    def kill_parent(self, rng: Random) -> None:
        """Kill a parent. Its workers stop by themselves, and `restart_ended` starts it again."""
        # Which workers it forked is not known, so each of them may end.
        self._expected_to_end |= self._known
        parent = rng.choice(self.parents)
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
        """Start again the parents that ended; a parent replaces a worker that ended by itself.

        Return the number of these parents, plus the workers that ended without a fault.
        """
        ended = [parent for parent in self.parents if not parent.is_alive()]
        for parent in ended:
            parent.start()

        unexpected = {pid for pid in self._known - self._expected_to_end if not _is_alive(pid)}
        self._expected_to_end |= unexpected  # each is counted once
        return len(ended) + len(unexpected)


def pick(pids: set[int], rng: Random) -> int:
    """Return one of the process ids, 0 if there is none."""
    if pids:
        return rng.choice(sorted(pids))
    return 0


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children. Raises OSError if it is gone."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # checks, and sends nothing
    except ProcessLookupError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def spooled(address: str) -> int | None:
    """Return how many messages wait in the spool of the web at an address (host:port).

    The spool is the web's own disk, on which it stores messages while Redis is away. Return None if
    the web does not say.
    """
    count = full_health(address).get("spooled")
    if count is None:
        return None
    return int(count)


class RedisServer(EmbeddedRedis):
    """A Redis that can be killed, and that can run out of memory or disk.

    Start and end it in one thread that outlives it.
    """

    def prepare(self) -> None:
        """Prepare the process of Redis, before the program starts.

        A limit on the size of files then gives an error, as a full disk does. Otherwise the signal
        SIGXFSZ would end the process.
        """
        super().prepare()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def kill(self) -> None:
        """Kill Redis, if it has not ended by itself, and wait until it has ended.

        After `restart` it reads what it had written.
        """
        if self.is_alive():
            os.kill(self._server_pid(), signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def workers(self) -> set[int]:
        """Return the process ids of the workers that RQ knows; none while Redis is away."""
        try:
            with self._client() as client:
                names = client.smembers("rq:workers")
                return {int(client.hget(name, "pid") or 0) for name in names}
        except RedisError:
            return set()

    def used_bytes(self) -> int:
        """Return the bytes of memory that Redis uses. Raises RedisError."""
        with self._client() as client:
            memory = cast("dict[str, Any]", client.info("memory"))
        return int(memory["used_memory"])

    def limit_memory(self) -> None:
        """Refuse everything that needs more memory than now. Raises RedisError."""
        limit = self.used_bytes() + LAST_BYTES
        with self._client() as client:
            client.config_set("maxmemory", limit)

    def limit_disk(self) -> None:
        """Let no file of Redis grow, as on a full disk.

        Redis then ends itself, because it cannot store what it acknowledges. Raises OSError if it
        has ended already.
        """
        sizes = [file.stat().st_size for file in Path(self.folder, "appendonlydir").iterdir()]
        _limit_file_size(self._server_pid(), max(sizes) + LAST_BYTES)

    def unlimit(self) -> None:
        """Lift both limits. Raises RedisError, and OSError if Redis has ended."""
        _limit_file_size(self._server_pid(), resource.RLIM_INFINITY)
        with self._client() as client:
            client.config_set("maxmemory", 0)

    def _server_pid(self) -> int:
        """Return the process id of the server. Raises ProcessLookupError before its start."""
        pid = self.pid
        # To the system, 0 would mean this process, or all processes of its group.
        if pid is None:
            raise ProcessLookupError("Redis was not started")
        return pid

    def _client(self) -> Redis:
        return connect(self.url)


def _limit_file_size(pid: int, size: int) -> None:
    """Let a process write no file beyond this size in bytes."""
    _, hard_limit = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard_limit))


class BotNotRunning(Exception):
    """Raised when the simulated bot does not start or answer. The message names the fix."""


def simulated_settings(profile: Profile, platforms: FakePlatforms, url: str) -> dict[str, Any]:
    """Return the profile's configuration with fake platforms in place of the real ones.

    Channels of platforms without a fake are left out. `url` is the public URL of the first web.
    Raises BotNotRunning if no channel is left.
    """
    config = profile.config
    settings: dict[str, Any] = DEFAULT_SETTINGS
    if config is not None:
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))

    channels = {}
    for name, channel in settings["channels"].items():
        if channel["platform"] in SIMULATED:
            fake = fake_channel(channel["platform"], platforms.url)
            channels[name] = {**channel, **fake, **_channel_overrides(profile)}
            # The people of the simulation are on no list, so the bot would answer none of them.
            channels[name].pop("access", None)
    if not channels:
        raise BotNotRunning(f"{config}: no channel to simulate: add one of {', '.join(SIMULATED)}")

    simulated = {
        **settings,
        "limits": {**settings.get("limits", {}), **HIGH_LIMITS},
        # No "still working" notices: `judge.py` could not tell them from stray messages.
        "workers": {**settings.get("workers", {}), "still_after": 0},
        "public_url": url,
        "redis_url": "${REDIS_URL}",
        "tools": [_absolute(tool, config) for tool in settings.get("tools", [])],
        "channels": channels,
    }
    if profile.spool:
        simulated["spool"] = True
    return simulated


def fake_channel(platform: str, url: str) -> dict[str, Any]:
    """Return the settings with which a channel uses the fake of its platform.

    `url` is that of `FakePlatforms`, which all fakes share. Secrets stay references to environment
    variables, as in a real configuration.
    """
    simulated = SIMULATED[platform]
    secrets = {key: f"${{{_variable(platform, key)}}}" for key in simulated.secrets}
    return {**simulated.settings, **secrets, "api_url": f"{url}/{simulated.fake}"}


def _variable(platform: str, key: str) -> str:
    """Return the name of the environment variable that holds a secret."""
    return f"SIMULATED_{platform}_{key}".upper()


def _channel_overrides(profile: Profile) -> dict[str, Any]:
    """Return what a profile changes in every channel."""
    overrides: dict[str, Any] = {}
    # Groups are not slowed down to their platform's rate: with strangers they get many answers.
    if profile.strangers:
        overrides["messages_per_second"] = 0
    if profile.question_seconds:
        overrides["confirm_ttl"] = profile.question_seconds
    return overrides


def _absolute(tool: str, config: Path | None) -> str:
    """Return the path of a tool file, which is relative to the configuration.

    The name of a module is returned as it stands.
    """
    if config and tool.endswith(".py"):
        return str((config.parent / tool).resolve())
    return tool


class BotProcesses:
    """All processes of a simulated bot: Redis, webs and workers. They run from `with` to its end.

    Use it in one thread that outlives it, because the processes die with that thread.

    `data` is the data folder. `make_settings` returns the configuration for the URL of the first
    web. With a `redis_url` no Redis is started, and that one is used. `workers` then does not know
    the workers, so no fault can be injected.
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
        # A web is restarted on its port, so nothing else may take it meanwhile.
        self._ports = [ReservedPort() for _ in range(profile.webs)]
        #: Host and port of each web.
        self.addresses = [f"127.0.0.1:{port.number}" for port in self._ports]
        #: The platform and the webhook URL of each channel; empty before `with`.
        self.hooks: list[tuple[str, str]] = []
        self.webs: list[Child] = []
        self.workers = WorkerProcesses([], self.redis.workers)
        self._profile = profile
        self._data = data
        self._make_settings = make_settings
        self._has_own_redis = not redis_url
        self._log: IO[bytes] | None = None
        self._stack = ExitStack()
        #: The proxy in front of Redis; None without one.
        self._proxy: Child | None = None
        #: The numbers of the folders of further machines.
        self._folder_numbers = itertools.count(1)

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
        """End a web process with a signal and start it again.

        Raises subprocess.TimeoutExpired if it does not end.
        """
        _send_signal(web, number)
        if web.process is not None:
            web.process.wait(READY_SECONDS)
        web.start()

    def replace_machine(self, parent: Child) -> int:
        """Kill a machine of workers, and start another one with an empty folder in its place.

        Return how many workers it had.
        """
        killed = self.workers.kill_family(parent)
        place = self.workers.parents.index(parent)
        successor = self._worker_parent(place)
        self.workers.parents[place] = successor
        successor.start()
        return killed

    def restart_ended(self) -> int:
        """Start again the webs and parents that ended.

        Return how many, plus the workers that ended without a fault.
        """
        ended = [web for web in self.webs if not web.is_alive()]
        for web in ended:
            web.start()
        return self.workers.restart_ended() + len(ended)

    def lost_replies(self) -> int:
        """Return how many replies of Redis the proxy lost; known after all processes stopped."""
        counts = self._data / "proxy.json"
        if counts.exists():
            return int(json.loads(counts.read_text()).get("lost replies", 0))
        return 0

    def _configure(self) -> None:
        """Write the configuration of the bot, and note the webhook URLs of its channels."""
        url = f"http://{self.addresses[0]}"
        settings = self._make_settings(url)
        (self._data / "sayso.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.hooks = [
            (channel["platform"], f"{url}/hooks/{name}")
            for name, channel in settings["channels"].items()
        ]

    def _start(self) -> None:
        """Start all processes but Redis, and wait until the webs are ready and know all workers."""
        if self._profile.through_proxy:
            self._proxy = self._child("proxy", self._proxy_command())
            self._proxy.start()
            _wait_until(self._proxy_socket.exists, "the proxy does not listen")

        self.webs = [self._child("web", self._web_command(each)) for each in self.addresses]
        for web in self.webs:
            web.start()
        self.workers.parents = self._worker_parents()
        for parent in self.workers.parents:
            parent.start()

        for address in self.addresses:
            _wait_until(partial(self._is_ready, address), f"not ready: see {self._log_path}")

    def _is_ready(self, address: str) -> bool:
        return int(full_health(address).get("workers", 0)) >= self._profile.workers

    @property
    def _worker_counts(self) -> list[int]:
        """The number of workers of each parent.

        A single machine has two parents if it has at least two workers, so that one parent can be
        killed.
        """
        workers = self._profile.workers
        parents = min(workers, max(2, self._profile.machines))
        # Spread as evenly as possible; the first parents have one more.
        return [len(range(place, workers, parents)) for place in range(parents)]

    def _worker_parents(self) -> list[Child]:
        return [self._worker_parent(place) for place in range(len(self._worker_counts))]

    def _worker_parent(self, place: int) -> Child:
        """Return the parent of workers at a place in the list of parents."""
        # As `Profile.clock_skew` says, half the parents are behind. The first is one of them, so a
        # single parent and its web disagree.
        skew = self._profile.clock_skew
        if place % 2 == 0:
            skew = -skew
        command = [
            *self._python(skew),
            "sayso.testing.simulation.language_model",
            "sayso",
            "worker",
            *self._options(self._worker_folder()),
            "--processes",
            str(self._worker_counts[place]),
        ]
        return self._child("worker", command)

    def _worker_folder(self) -> Path:
        """Return the data folder of a machine of workers.

        If there are several machines, this is a new folder that shares only the media files.
        """
        if self._profile.machines == 1:
            return self._data
        folder = self._data / f"machine-{next(self._folder_numbers)}"
        files = self._data / "media"
        folder.mkdir()
        files.mkdir(exist_ok=True)
        (folder / "media").symlink_to(files.resolve(), target_is_directory=True)
        return folder

    def _stop(self) -> None:
        children = [*self.workers.parents, *self.webs]
        for child in children:
            _send_signal(child, signal.SIGTERM)
        # The proxy is last: webs and workers need it until they have ended.
        if self._proxy is not None:
            children.append(self._proxy)
        for child in children:
            child.stop()

    @property
    def _log_path(self) -> Path:
        """The log file of all processes."""
        return self._data / "processes.log"

    @property
    def _proxy_socket(self) -> Path:
        """The socket on which the proxy listens."""
        return socket_path(self._data).with_name("front.sock")

    def _web_command(self, address: str) -> list[str]:
        port = address.rpartition(":")[2]
        python = self._python(self._profile.clock_skew)
        return [*python, "sayso", "web", *self._options(self._data), "--port", port]

    def _proxy_command(self) -> list[str]:
        """Return the command of the proxy, see `proxy.py`."""
        profile = self._profile
        return [
            *self._python(),
            "sayso.testing.simulation.proxy",
            str(self._proxy_socket),
            str(socket_path(self._data)),
            str(profile.lost_replies),
            str(profile.redis_delay_ms),
            str(profile.seed),
            str(self._data / "proxy.json"),
        ]

    def _python(self, skew: float = 0.0) -> list[str]:
        """Return the beginning of a command that runs a module, with a clock wrong by `skew`."""
        python = [sys.executable, "-P", "-m"]
        if skew:
            python += ["sayso.testing.simulation.clock", str(skew)]
        return python

    def _options(self, folder: Path) -> list[str]:
        """Return the options that webs and workers share."""
        return ["--config", str(self._data / "sayso.yaml"), "--data", str(folder)]

    def _child(self, name: str, command: list[str]) -> Child:
        return Child(name, command, self._environ(), log=self._log)

    def _environ(self) -> dict[str, str]:
        """Return the environment of a process, with the secrets of the configuration."""
        low_ms, high_ms = self._profile.model_ms
        redis_url = self.redis_url
        if self._profile.through_proxy:
            redis_url = f"unix://{quote(str(self._proxy_socket))}"
        environ = {
            **os.environ,
            KEYS_VARIABLE: ",".join(secret_keys(self._data)),
            MODEL_MS: f"{low_ms:g}-{high_ms:g}",
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
            "REDIS_URL": redis_url,
            "SAYSO_DATA": str(self._data.resolve()),
        }
        for platform, simulated in SIMULATED.items():
            for key, secret in simulated.secrets.items():
                environ[_variable(platform, key)] = secret
        return environ


def _send_signal(child: Child, number: int) -> None:
    if child.process is not None and child.is_alive():
        child.process.send_signal(number)


def _wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise BotNotRunning(message)
        time.sleep(0.01)
