"""Logs of the decisions about open calls, so that the first one counts and no call runs twice.

Before a decision is carried out, `begin` writes its key; `end` writes how the call ended. If a
program gives the same decision again, in this or another process, `begin` returns what is written.
"""

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

#: The most decisions in the memory of a process. After that, the oldest are forgotten.
MAX_DECISIONS = 10_000


def decision_key(run_id: str, call: OpenCall) -> str:
    """Return the key of the decision about an open call of a run. It is the same in every process.

    It is also the idempotency key of the call.
    """
    names = json.dumps([run_id, call.call_id, call.id])
    return hashlib.sha256(names.encode()).hexdigest()[:32]


class MemoryDecisionLog:
    """A DecisionLog in the memory of one process, lost when it ends."""

    def __init__(self, max_decisions: int = MAX_DECISIONS) -> None:
        self._max_decisions = max_decisions
        self._outcomes: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, key: str) -> str | None:
        """See `DecisionLog`."""
        with self._lock:
            if key in self._outcomes:
                return self._outcomes[key]
            self._outcomes[key] = ""
            while len(self._outcomes) > self._max_decisions:
                self._outcomes.popitem(last=False)
            return None

    def end(self, key: str, outcome: str) -> None:
        """See `DecisionLog`."""
        with self._lock:
            self._outcomes[key] = outcome


#: The log of this process, for agents without a configured one. All of them share it, because two
#: agents may be given the same paused run.
OF_THIS_PROCESS = MemoryDecisionLog()


class SQLiteDecisionLog:
    """A DecisionLog in an SQLite file, for all processes of one machine.

    An entry has about 300 bytes, and is never deleted.
    """

    def __init__(self, path: str | Path) -> None:
        """Create the file unless it exists. Raises sqlite3.Error."""
        self._path = str(path)
        with closing(self._connect()) as file, file:
            file.execute(
                "CREATE TABLE IF NOT EXISTS decisions"
                " (key TEXT PRIMARY KEY, outcome TEXT NOT NULL, at REAL NOT NULL)"
            )

    def begin(self, key: str) -> str | None:
        """See `DecisionLog`. Raises sqlite3.Error."""
        with closing(self._connect()) as file, file:
            added = file.execute(
                "INSERT OR IGNORE INTO decisions VALUES (?, '', ?)", (key, time.time())
            )
            if added.rowcount:
                return None
            rows = file.execute("SELECT outcome FROM decisions WHERE key = ?", (key,))
            (outcome,) = rows.fetchone()
            return str(outcome)

    def end(self, key: str, outcome: str) -> None:
        """See `DecisionLog`. Raises sqlite3.Error."""
        with closing(self._connect()) as file, file:
            file.execute("UPDATE decisions SET outcome = ? WHERE key = ?", (outcome, key))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30.0)
