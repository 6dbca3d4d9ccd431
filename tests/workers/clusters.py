"""A Valkey Cluster as processes of this machine: three masters, with or without a replica of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.config.processes import free_port, until
from tests.workers.sentinels import Node

#: Milliseconds after which the others take a silent master for dead: one that a replica would replace, and one without
#: a replica. The second one's slots would only be refused meanwhile, and on a busy machine it may be silent for long.
NODE_TIMEOUT_MS, LONE_NODE_TIMEOUT_MS = 1000, 60_000
SLOTS = 16384


class ClusterNode(Node):
    """One node of the cluster."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.bus_port = free_port()
        cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
        cluster += ["--cluster-port", str(self.bus_port)]
        # A node that heard nothing from its master for long may take over, too: the guard must notice, not the cluster.
        super().__init__(folder, name, *cluster, "--cluster-replica-validity-factor", "0", *options)

    def cluster(self, *command: Any) -> Any:
        """Send a CLUSTER command to this node."""
        return self.client().execute_command("CLUSTER", *command)

    @property
    def id(self) -> str:
        """Return the node's id in the cluster."""
        return str(self.cluster("MYID"))

    def owns(self, slot: int) -> bool:
        """Return whether this node serves a slot."""
        slots = Redis(port=self.port).execute_command("CLUSTER SLOTS", NEVER_DECODE=True)
        return any(
            first <= slot <= last and port == self.port for first, last, (_, port, *_), *_ in slots
        )


class Cluster:
    """The processes. Lives for one test session, or for the test that kills a node."""

    def __init__(self, folder: Path, *options: str, replicas: int = 0) -> None:
        if not replicas:
            options = ("--cluster-node-timeout", str(LONE_NODE_TIMEOUT_MS), *options)
        self.masters = [ClusterNode(folder, f"master{number}", *options) for number in range(3)]
        self.replicas = [
            ClusterNode(folder, f"replica{number}", *options) for number in range(3 * replicas)
        ]

    @property
    def nodes(self) -> list[ClusterNode]:
        """Return all nodes."""
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        """Return the URL of the cluster. It names all nodes, as that of an operator should."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        """Start all nodes, and wait until they are one cluster."""
        for node in self.nodes:
            node.start()
        first, share = self.masters[0], SLOTS // len(self.masters)
        for number, master in enumerate(self.masters):
            last = SLOTS - 1 if number == len(self.masters) - 1 else (number + 1) * share - 1
            master.cluster("ADDSLOTSRANGE", number * share, last)
            master.cluster("SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.cluster("MEET", "127.0.0.1", first.port, first.bus_port)
        until(lambda: all(self._knows_all(node) for node in self.nodes))
        for number, replica in enumerate(self.replicas):
            replica.cluster("REPLICATE", self.masters[number % 3].id)
        until(self.is_whole)

    def is_whole(self) -> bool:
        """Return whether all slots are served, and each replica follows its master."""
        try:
            links = [
                node.client().info("replication").get("master_link_status", "up")
                for node in self.nodes
            ]
            roles = [node.role() for node in self.nodes]
            states = [_fields(node.cluster("INFO"))["cluster_state"] for node in self.nodes]
        except RedisError:
            return False
        return (
            set(links) == {"up"}
            and roles.count("master") == len(self.masters)
            and set(states) == {"ok"}
        )

    def _knows_all(self, node: ClusterNode) -> bool:
        return int(_fields(node.cluster("INFO"))["cluster_known_nodes"]) == len(self.nodes)

    def flush(self) -> None:
        """Empty all masters."""
        for node in self.masters:
            node.client().flushall()

    def stop(self) -> None:
        """End all processes."""
        for node in self.nodes:
            node.stop()


class ClusterWithQueue(Cluster):
    """A cluster, and a queue server beside it."""

    def __init__(self, folder: Path, *options: str, replicas: int = 0) -> None:
        super().__init__(folder, *options, replicas=replicas)
        self.queue = Node(folder, "queue")
        self.environ = {"QUEUE_URL": f"redis://127.0.0.1:{self.queue.port}/0"}

    def start(self) -> None:
        """Start all servers, and wait until the nodes are one cluster."""
        self.queue.start()
        super().start()

    def stop(self) -> None:
        """End all processes."""
        super().stop()
        self.queue.stop()


def _fields(answer: Any) -> dict[str, str]:
    if isinstance(answer, dict):
        return answer
    return dict(line.partition(":")[::2] for line in str(answer).split())
