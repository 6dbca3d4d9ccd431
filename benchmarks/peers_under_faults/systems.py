"""Systems: the five bots as processes that can be killed with kill -9 and come up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Self

import httpx
from redis import Redis

from benchmarks.peers_under_faults import effects
from benchmarks.peers_under_faults.storage import tamper_redis, tamper_sqlite
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.testing.platforms.fake_platforms import ENVIRON
from sayso.testing.ports import ReservedPort

#: How long a bot may take to be ready, in seconds.
READY_SECONDS = 300.0
#: The packages of each system. Their versions stand beside the published results.
DISTRIBUTIONS = {
    "LangGraph": ("langgraph", "langchain", "langgraph-checkpoint-sqlite", "langchain-openai"),
    "pydantic-ai + DBOS": ("pydantic-ai-slim", "dbos"),
    "OpenAI Agents": ("openai-agents", "openai"),
    "Agno": ("agno", "fastapi"),
    "Sayso": ("sayso",),
}
_APPS = Path(__file__).parent / "apps"
_PEERS = {
    "LangGraph": "langgraph_app",
    "pydantic-ai + DBOS": "pydantic_ai_app",
    "OpenAI Agents": "openai_agents_app",
    "Agno": "agno_app",
}
#: All systems, in the order of the table.
NAMES = (*_PEERS, "Sayso")


class System(ABC):
    """One bot on one data folder, from `with` to its end."""

    #: The path of its webhook.
    hook_path: str

    def __init__(self, folder: Path, *, model: str, api: str, bot: str, harness: str) -> None:
        self.folder = folder
        self.effects = folder / "effects.jsonl"
        self.port = ReservedPort()
        self.url = f"http://127.0.0.1:{self.port.number}"
        self.environ = {
            **os.environ,
            **ENVIRON,
            "OPENAI_API_KEY": "none",
            "FAULTS_MODEL": f"{model}/v1",
            "FAULTS_API": api,
            "FAULTS_PLATFORM": bot,
            "FAULTS_PORT": str(self.port.number),
            "FAULTS_URL": self.url,
            "FAULTS_DATA": str(folder),
            effects.FILE: str(self.effects),
            effects.HARNESS: harness,
        }

    @property
    def hook(self) -> str:
        """The address of the webhook."""
        return f"{self.url}{self.hook_path}"

    def expire(self, seconds: float) -> None:
        """Let questions expire after so many seconds, where the system can. Before the start."""
        self.environ["FAULTS_EXPIRY"] = str(seconds)

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """Kill all processes but the store with kill -9, start them again, wait until they are up."""

    @abstractmethod
    def restart(self, **environ: str) -> None:
        """Kill all processes but the store, and wait until they are up again with this environment."""

    @abstractmethod
    def tamper(self, old: str, new: str) -> None:
        """Replace a number in everything that is stored."""

    def _log(self) -> IO[bytes]:
        return (self.folder / "processes.log").open("ab")

    def _wait(self, path: str = "/") -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers(path):
            if time.monotonic() > deadline:
                end = (self.folder / "processes.log").read_text()[-3000:]
                raise RuntimeError(f"{type(self).__name__} did not start:\n{end}")
            time.sleep(0.05)

    def _answers(self, path: str) -> bool:
        with suppress(httpx.HTTPError):
            httpx.get(f"{self.url}{path}", timeout=5)
            return True
        return False


class Peer(System):
    """A peer's app: one process on SQLite, forked again by the supervisor when it was killed."""

    hook_path = "/webhook"

    def __init__(self, name: str, folder: Path, **addresses: str) -> None:
        super().__init__(folder, **addresses)
        self._module = f"benchmarks.peers_under_faults.apps.{_PEERS[name]}"
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        supervisor = "benchmarks.peers_under_faults.supervisor"
        command = [sys.executable, "-m", supervisor, self._module, str(self.folder)]
        with self._log() as log:
            self._supervisor = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._supervisor is not None:
            self._supervisor.terminate()
            self._supervisor.wait()

    def kill(self) -> None:
        """Kill the app with kill -9, and wait until the supervisor's next fork is up."""
        pid = int((self.folder / "pid").read_text())
        with suppress(ProcessLookupError):  # it was killed just now, and is coming up
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + READY_SECONDS
        while (self.folder / "pid").read_text() == str(pid) and time.monotonic() < deadline:
            time.sleep(0.002)
        self._wait()

    def restart(self, **environ: str) -> None:
        """Kill the app, and wait until it is up again with this environment."""
        (self.folder / "environ.json").write_text(json.dumps(environ))
        self.kill()

    def tamper(self, old: str, new: str) -> None:
        """Replace a number in all databases."""
        for file in self.folder.glob("*.sqlite"):
            tamper_sqlite(file, old, new)


class Sayso(System):
    """Sayso: web and worker on one Redis. A kill ends both; the Redis is the store, and stays."""

    hook_path = "/hooks/shop"

    def __init__(self, folder: Path, **addresses: str) -> None:
        super().__init__(folder, **addresses)
        self._redis = EmbeddedRedis(folder)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._redis.start()
        self.environ["REDIS_URL"] = self._redis.url
        config = (_APPS / "sayso.yaml").read_text()
        if "FAULTS_EXPIRY" in self.environ:
            config += f"    confirm_ttl: {self.environ['FAULTS_EXPIRY']}\n"
        (self.folder / "sayso.yaml").write_text(config)
        self._start()
        self._wait_for_worker()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._redis.stop()

    def kill(self) -> None:
        """Kill web and worker with kill -9, start them again, and wait until they are up."""
        self._end()
        self._start()
        self._wait_for_worker()

    def restart(self, **environ: str) -> None:
        """Kill web and worker, and start them again with this environment."""
        self.environ.update(environ)
        self.kill()

    def tamper(self, old: str, new: str) -> None:
        """Replace a number in all of Redis."""
        with closing(Redis.from_url(self._redis.url)) as client:
            tamper_redis(client, old, new)

    def _start(self) -> None:
        self._processes = [
            self._process("web", "--port", str(self.port.number)),
            self._process("worker"),
        ]

    def _process(self, *command: str) -> subprocess.Popen[bytes]:
        places = ["--config", str(self.folder / "sayso.yaml"), "--data", str(self.folder)]
        full = [sys.executable, "-m", "sayso", *command, *places]
        with self._log() as log:
            return subprocess.Popen(
                full, env=self.environ, stdout=log, stderr=log, start_new_session=True
            )

    def _end(self) -> None:
        for process in self._processes:
            for pid in _session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _wait_for_worker(self) -> None:
        """Wait until RQ knows a worker of the processes that run now."""
        self._wait("/healthz")
        deadline = time.monotonic() + READY_SECONDS
        with closing(Redis.from_url(self._redis.url, decode_responses=True)) as client:
            while time.monotonic() < deadline:
                names = client.smembers("rq:workers")
                pids = {int(client.hget(name, "pid") or 0) for name in names}
                if pids & set(_session(self._processes[-1].pid)):
                    return
                if any(process.poll() is not None for process in self._processes):
                    break
                time.sleep(0.05)
        end = (self.folder / "processes.log").read_text()[-3000:]
        raise RuntimeError(f"Sayso did not start:\n{end}")


def _session(leader: int) -> list[int]:
    """Return the processes of a session, the leader first: it must not fork meanwhile."""
    found = [leader]
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != leader:
            with suppress(ProcessLookupError):
                if os.getsid(int(folder.name)) == leader:
                    found.append(int(folder.name))
    return found


def make_system(name: str, folder: Path, **addresses: str) -> System:
    """Return a system by its name in the table."""
    if name == "Sayso":
        return Sayso(folder, **addresses)
    return Peer(name, folder, **addresses)


def versions() -> dict[str, dict[str, str]]:
    """Return the installed versions of each system's distributions."""
    installed = {
        name: {each: version(each) for each in found} for name, found in DISTRIBUTIONS.items()
    }
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(command, cwd=_APPS, capture_output=True, text=True, check=False)
    installed["Sayso"]["commit"] = done.stdout.strip()
    return installed
