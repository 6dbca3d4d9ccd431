"""What a Redis Cluster costs and carries: processor time per turn, and scripts per second and master.

    python -m benchmarks.masters --seconds 20

The whole system as processes, on one server and on Clusters with 1, 2 and 3 masters, under the load of
`benchmarks.failover_matrix` without a fault. The machine is shared by all of it, so the scripts that a master can run
are counted per second of its processor time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.failover_matrix import Load, running
from tests.workers.clusters import ClusterWithQueue
from tests.workers.sentinels import Node

#: Seconds until the load is even.
WARM_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class OneServer:
    """One server without replicas."""

    environ: Mapping[str, str] = {}
    pid = None

    def __init__(self, folder: Path) -> None:
        self.masters: Sequence[Node] = [Node(folder, "server")]
        self.url = f"redis://127.0.0.1:{self.masters[0].port}/0"

    def start(self) -> None:
        """Start the server."""
        self.masters[0].start()

    def stop(self) -> None:
        """Stop the server."""
        self.masters[0].stop()


class PlainCluster(ClusterWithQueue):
    """A Cluster without replicas, and a server for the queue."""

    pid = None

    def __init__(self, folder: Path, masters: int) -> None:
        super().__init__(folder)
        self.masters = self.masters[:masters]


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor seconds and counts since the start: of web and workers, of each master, and what was acknowledged."""

    seconds: float
    bot_seconds: float
    master_seconds: tuple[float, ...]
    scripts: tuple[int, ...]
    turns: int


def read(load: Load, masters: Sequence[Node]) -> Reading:
    """Return the reading of this moment."""
    web = [load.system.web] if load.system.web else []
    return Reading(
        time.monotonic(),
        processor_seconds(process.pid for process in [*web, *load.system.workers]),
        tuple(
            processor_seconds([int(node.client().info("server")["process_id"])]) for node in masters
        ),
        tuple(map(_scripts, masters)),
        sum(bool(cycle.asked_at) + bool(cycle.confirmed_at) for cycle in load.cycles),
    )


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes with all their descendants that live."""
    rows = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        rows[int(path.parent.name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS)
    wanted = set(pids)
    while more := {pid for pid, (parent, _) in rows.items() if parent in wanted} - wanted:
        wanted |= more
    return sum(rows[pid][1] for pid in wanted if pid in rows)


def _scripts(node: Node) -> int:
    stats = node.client().info("commandstats")
    return sum(
        int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval")
    )


def measure(masters: int, seconds: float, people: int) -> dict[str, str]:
    """Return the row of one run; 0 masters is a server without a Cluster."""
    with tempfile.TemporaryDirectory(prefix="sayso-mas-") as folder:
        servers = PlainCluster(Path(folder), masters) if masters else OneServer(Path(folder))
        with running(Path(folder), servers) as system:
            load = Load(system, people, reading_seconds=0.05)
            load.start()
            time.sleep(WARM_SECONDS)
            before = read(load, servers.masters)
            time.sleep(seconds)
            after = read(load, servers.masters)
            load.end()
    turns = after.turns - before.turns
    used = [b - a for a, b in zip(before.master_seconds, after.master_seconds, strict=True)]
    scripts = [b - a for a, b in zip(before.scripts, after.scripts, strict=True)]
    elapsed = after.seconds - before.seconds
    return {
        "Redis": f"Cluster of {masters}" if masters else "one server",
        "turns/s": f"{turns / elapsed:.0f}",
        "web and workers, ms of CPU per turn": f"{1000 * (after.bot_seconds - before.bot_seconds) / turns:.1f}",
        "all masters, ms of CPU per turn": f"{1000 * sum(used) / turns:.2f}",
        "scripts/s of each master": ", ".join(f"{count / elapsed:.0f}" for count in scripts),
        "scripts per CPU second of a master": f"{sum(scripts) / sum(used):,.0f}",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What a Redis Cluster costs and carries.")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--people", type=int, default=32)
    asked = parser.parse_args()
    for masters in range(4):
        row = measure(masters, asked.seconds, asked.people)
        if not masters:
            print(f"| {' | '.join(row)} |\n| {' | '.join(['---'] * len(row))} |")
        print(f"| {' | '.join(row.values())} |", flush=True)


if __name__ == "__main__":
    main()
