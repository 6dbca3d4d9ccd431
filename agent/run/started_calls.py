"""Where approved calls are noted before they start, so that none of them runs twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections import OrderedDict
from contextlib import closing
from pathlib import Path

from sayso.agent.decisions import OpenCall

#: The most calls that the memory of a process keeps; the oldest are forgotten.
MAX_CALLS = 10_000


def key_of_call(run_id: str, call: OpenCall) -> str:
    """Return the idempotency key of an approved call: the same in every process, for the same run and arguments."""
    parts = [run_id, call.call_id, call.id, call.tool_name, call.args_digest]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class MemoryStartedCalls:
    """StartedCalls in the memory of one process, lost when it ends."""

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self._max_calls = max_calls
        self._outcomes: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, key: str) -> str | None:
        """See `StartedCalls`."""
        with self._lock:
            if key in self._outcomes:
                return self._outcomes[key]
            self._outcomes[key] = ""
            while len(self._outcomes) > self._max_calls:
                self._outcomes.popitem(last=False)
            return None

    def end(self, key: str, outcome: str) -> None:
        """See `StartedCalls`."""
        with self._lock:
            self._outcomes[key] = outcome


#: What this process has started, for agents without `started_calls`: two agents of it may be given the same paused run.
OF_THIS_PROCESS = MemoryStartedCalls()


class SQLiteStartedCalls:
    """StartedCalls in a file, for all processes of one machine. An entry is about 300 bytes and stays for good."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        with closing(self._connect()) as file, file:
            file.execute(
                "CREATE TABLE IF NOT EXISTS started_calls"
                " (key TEXT PRIMARY KEY, outcome TEXT NOT NULL, at REAL NOT NULL)"
            )

    def begin(self, key: str) -> str | None:
        """See `StartedCalls`. Raises sqlite3.Error."""
        with closing(self._connect()) as file, file:
            added = file.execute("INSERT OR IGNORE INTO started_calls VALUES (?, '', ?)", (key, time.time()))
            if added.rowcount:
                return None
            (outcome,) = file.execute("SELECT outcome FROM started_calls WHERE key = ?", (key,)).fetchone()
            return str(outcome)

    def end(self, key: str, outcome: str) -> None:
        """See `StartedCalls`. Raises sqlite3.Error."""
        with closing(self._connect()) as file, file:
            file.execute("UPDATE started_calls SET outcome = ? WHERE key = ?", (outcome, key))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30.0)
