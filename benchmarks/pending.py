"""What each operation of a pending store costs, beside its bare script and beside selectools' store, in one run.

    make bench

All stores use one server, as `sayso up` starts it, with one connection each. Rounds are interleaved, so only ratios
count. The floor of an operation is one EVALSHA of the same script with the same arguments by the bare client; Sayso
causes the rest. A confirmation is timed until its effect begins. Recording the outcome, which selectools does not do,
has a separate line, beside its two scripts. By default the server writes to disk before it answers; the second half
of the table is measured without the disk.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis

from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.pending import PendingActionStore, RedisPendingStore
from sayso.pending.sharded_scripts import shard_of

ROUNDS = 11
CALLS = 100
ARMED = (0, 20_000)

ARGS = {"invoice_id": "INV-42", "reason": "paid twice", "cents": 12_000}
FIELDS = {
    "kind": "delete_invoice",
    "preview": "Delete invoice INV-42 (Ada Lovelace Ltd, 120.00 EUR, open)",
    "args": ARGS,
}


@dataclass
class Bench:
    """One store under measurement: proposes the actions that an operation needs, then times the operation alone."""

    store: PendingActionStore
    prefix: str
    begun: float = 0.0
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))

    def arm(self) -> str:
        """Propose an action, for a user of its own."""
        user = f"{self.prefix}-{next(self.numbers)}"
        self.store.stash(user, executor=self._effect, **FIELDS)
        return user

    def _effect(self) -> str:
        self.begun = time.perf_counter()
        return "done"


Operation = Callable[[Any, str], object]

OPERATIONS: dict[str, Operation] = {
    "stash": lambda store, user: store.stash(user, executor=print, **FIELDS),
    "get": lambda store, user: store.get(user),
    "yes, until the effect": lambda store, user: store.pop_if_confirmed(user, "yes"),
    "tap confirm, until the effect": lambda store, user: store.pop_if_intent(user, "confirm"),
    "tap confirm, outcome written": lambda store, user: store.pop_if_intent(user, "confirm"),
    "tap cancel": lambda store, user: store.pop_if_intent(user, "cancel"),
    "tap ignore": lambda store, user: store.pop_if_intent(user, "ignore"),
    "tighten_ttl": lambda store, user: store.tighten_ttl(user, 30),
}


def seconds_of(bench: Bench, name: str) -> float:
    """Prepare and run one operation; return its seconds, up to the effect if the name says so."""
    user = f"{bench.prefix}-stash-{next(bench.numbers)}" if name == "stash" else bench.arm()
    started = time.perf_counter()
    OPERATIONS[name](bench.store, user)
    return (bench.begun if "until" in name else time.perf_counter()) - started


class Captured(Exception):
    """Raised instead of running a script, with the script and its arguments."""


class Floor:
    """The bare scripts of Sayso's store: prepares the arguments as the store would, and times the call alone."""

    def __init__(self, client: Redis, store: RedisPendingStore, title: str) -> None:
        self._client = client
        self._title = title
        self._bench = Bench(store, f"floor-{title}")
        self._scripts = store.repository._scripts  # type: ignore[attr-defined]  # the product has no API for a bare call
        self._run = self._scripts.arun
        for script in self._scripts._scripts.values():
            client.script_load(script.text)

    def time(self, operation: Callable[[str], object], *, arms: bool = True) -> float:
        """Return the seconds of the operation's first script."""
        user = (
            self._bench.arm() if arms else f"floor-{self._title}-stash-{next(self._bench.numbers)}"
        )
        self._scripts.arun = self._capture
        try:
            operation(user)
        except Captured as captured:
            name, conversation, args, *payloads = captured.args
        finally:
            self._scripts.arun = self._run
        named = {"conversation": conversation, **args}
        script, rest = self._scripts.call(name, shard_of(conversation), named, payloads)
        started = time.perf_counter()
        self._client.evalsha(script.sha, *rest)
        return time.perf_counter() - started

    @staticmethod
    def _capture(*args: Any) -> None:
        raise Captured(*args)


def peer_store(url: str) -> PendingActionStore | None:
    """Return selectools' store if it is installed (`make bench` installs it)."""
    try:
        from selectools.pending import RedisPendingStore as PeerStore
    except ImportError:
        return None
    peer: PendingActionStore = PeerStore(url, prefix="peer:", max_executor_entries=100_000)
    return peer


def measure(candidates: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median microseconds of each candidate, with rounds interleaved."""
    rounds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, call in candidates.items():
            rounds[name] += [call() * 1e6 for _ in range(CALLS)]
    return {name: statistics.median(times) for name, times in rounds.items()}


def compare(url: str, armed: int, title: str) -> None:
    """Print a line for each operation, after each store has proposed this many actions."""
    store = RedisPendingStore(url, secret_keys=["bench"], max_executor_entries=100_000)
    peer_backend = peer_store(url)
    benches = {"ours": Bench(store, f"ours-{title}")}
    if peer_backend:
        benches["peer"] = Bench(peer_backend, f"peer-{title}")
    for bench in benches.values():
        for _ in range(armed):
            bench.arm()
    floor = Floor(connect(url), store, title)
    candidates: dict[str, Callable[[], float]] = {}
    for name, operation in OPERATIONS.items():
        bare = partial(operation, store)
        candidates[f"{name}|floor"] = partial(floor.time, bare, arms=name != "stash")
        for who, bench in benches.items():
            candidates[f"{name}|{who}"] = partial(seconds_of, bench, name)
    report(measure(candidates), title)


def report(medians: dict[str, float], title: str) -> None:
    """Print the table."""
    print(
        f"\n{title + '; microseconds':<38}{'ours':>8}{'floor':>8}{'x floor':>9}{'peer':>8}{'faster':>9}"
    )
    for name in OPERATIONS:
        ours, floor = medians[f"{name}|ours"], medians[f"{name}|floor"]
        peer = medians.get(f"{name}|peer")
        beside = f"{peer:>8.0f}{peer / ours:>8.2f}x" if peer else ""
        print(f"{name:<38}{ours:>8.0f}{floor:>8.0f}{ours / floor:>8.2f}x{beside}")


def main() -> None:
    """Measure with an empty store and a full one, with every write on disk, and again without the disk."""
    with tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder:
        redis = EmbeddedRedis(Path(folder))
        redis.start()
        try:
            for armed in ARMED:
                compare(redis.url, armed, f"{armed:,} armed")
            connect(redis.url).config_set("appendonly", "no")
            compare(redis.url, 0, "no append-only file")
        finally:
            redis.stop()


if __name__ == "__main__":
    main()
