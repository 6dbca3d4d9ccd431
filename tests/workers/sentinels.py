"""A primary, two replicas and three Sentinels as processes of this machine."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import server_binary
from tests.config.processes import free_port, until

#: Milliseconds after which a Sentinel takes a silent primary for dead.
DOWN_MS = 1500


class Node:
    """One server process. It may be killed, frozen and started again on its port and folder."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.port = free_port()
        self.folder = folder / name
        self.folder.mkdir()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start it, and wait until it answers."""
        command = [server_binary(), *self.command, *more]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        until(self.answers)

    @property
    def command(self) -> list[str]:
        """Return the arguments of the server."""
        settings = [
            "--port",
            str(self.port),
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--save",
            "",
        ]
        quick = [
            "--repl-diskless-sync-delay",
            "0",
            "--repl-ping-replica-period",
            "1",
            "--bind",
            "127.0.0.1",
        ]
        return [*settings, *quick, *self._options]

    def answers(self) -> bool:
        """Return whether it answers."""
        try:
            return bool(self.client().ping())
        except RedisError:
            return False

    def client(self, *, user: str = "", seconds: float = 2.0) -> Redis:
        """Return a client of this node itself."""
        return connect(f"redis://{user}127.0.0.1:{self.port}/0", answer_seconds=seconds)

    def role(self) -> str:
        """Return "master" or "slave", "" while the node does not answer."""
        with suppress(RedisError):
            return str(self.client().info("replication")["role"])
        return ""

    def send(self, number: int) -> None:
        """Send its process a signal."""
        assert self._process
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def stop(self) -> None:
        """End it, frozen or not."""
        if self._process:
            self._process.kill()
            self._process.wait()


class SentinelNode(Node):
    """One Sentinel, which keeps its configuration in its folder."""

    def answers(self) -> bool:
        """Return whether it listens: one with a password refuses the question."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def command(self) -> list[str]:
        return [str(self.folder / "sentinel.conf"), "--sentinel"]

    def watch(self, primary: int, *lines: str, quorum: int = 2) -> None:
        """Write its first configuration."""
        settings = [
            f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}",
            f"sentinel monitor shop 127.0.0.1 {primary} {quorum}",
            f"sentinel down-after-milliseconds shop {DOWN_MS}", "sentinel failover-timeout shop 5000", *lines,
        ]  # fmt: skip
        (self.folder / "sentinel.conf").write_text("\n".join(settings) + "\n")


class SentinelSetup:
    """The six processes. Lives for one test module; `nodes` are the primary and its replicas at the start."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [Node(folder, f"node{number}") for number in range(3)]
        self.sentinels = [SentinelNode(folder, f"sentinel{number}") for number in range(3)]

    def start(self) -> None:
        """Start all, and wait until each Sentinel knows the others and both replicas."""
        first = self.nodes[0]
        first.start()
        for replica in self.nodes[1:]:
            replica.start("--replicaof", f"127.0.0.1 {first.port}")
        for sentinel in self.sentinels:
            sentinel.watch(first.port)
            sentinel.start()
        until(lambda: all(self._is_complete(sentinel) for sentinel in self.sentinels))

    def stop(self) -> None:
        """End all processes."""
        for node in [*self.sentinels, *self.nodes]:
            node.stop()

    @property
    def hosts(self) -> str:
        """Return the addresses of the Sentinels, as a URL has them."""
        return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    @property
    def url(self) -> str:
        """Return the URL of the service."""
        return f"redis+sentinel://{self.hosts}/shop/0"

    @property
    def pid(self) -> int | None:
        """Return None: there is no single process."""
        return None

    def primary(self) -> Node:
        """Return the node that is the primary for the Sentinels and for itself."""
        return until(self._primary)

    def _primary(self) -> Node | None:
        for sentinel in self.sentinels:
            with suppress(RedisError):
                known = sentinel.client().execute_command(
                    "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop"
                )
                node = next(node for node in self.nodes if str(node.port) == known[1])
                return node if node.role() == "master" else None
        return None

    def bring_back(self, node: Node) -> None:
        """Start a killed node as a replica, as its operator would: Sentinels take ten seconds for it."""
        node.start("--replicaof", f"127.0.0.1 {self.primary().port}")
        self.await_whole()

    def await_whole(self) -> None:
        """Wait until there is a primary with two replicas in step, after a failover."""

        def is_whole() -> bool:
            node = self._primary()
            if not node:
                return False
            told = node.client().info("replication")
            return [told.get(f"slave{n}", {}).get("state") for n in (0, 1)] == [
                "online",
                "online",
            ] and all(self._is_complete(sentinel) for sentinel in self.sentinels)

        until(is_whole)

    def cut_replication(self) -> None:
        """Disconnect the replicas from their primary, which goes on alone."""
        primary = self.primary()
        for node in self.nodes:
            if node is not primary:
                node.client().config_set("masterauth", "wrong")
                node.client().config_set("masteruser", "nobody")
        primary.client().execute_command("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: primary.client().info("replication")["connected_slaves"] == 0)

    def mend_replication(self) -> None:
        """Let the running nodes follow a primary again."""
        for node in self.nodes:
            with suppress(RedisError):
                node.client().config_set("masteruser", "")
                node.client().config_set("masterauth", "")

    @staticmethod
    def _is_complete(sentinel: Node) -> bool:
        with suppress(RedisError):
            state = dict(sentinel.client().sentinel_masters())["shop"]
            return (state["num-slaves"], state["num-other-sentinels"], state["is_sdown"]) == (
                2,
                2,
                False,
            )
        return False

    def fail_over(self, number: int) -> float:
        """Send the primary a signal, and return the seconds until there is another primary."""
        old, began = self.primary(), time.monotonic()
        old.send(number)
        until(lambda: (node := self._primary()) and node is not old)
        return time.monotonic() - began
