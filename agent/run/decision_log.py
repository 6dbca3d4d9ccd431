"""Logs of the decisions about open calls, so that the first one counts and no call runs twice."""

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

#: The most decisions that the memory of a process keeps; the oldest are forgotten.
MAX_DECISIONS = 10_000


def decision_key(run_id: str, call: OpenCall) -> str:
    """Return the key of the decision about an open call, the same in every process.

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


#: The log of this process, for agents without one of their own. It is one log for all of them: two
#: agents may be given the same paused run.
OF_THIS_PROCESS = MemoryDecisionLog()


class SQLiteDecisionLog:
    """A DecisionLog in a file, for all processes of one machine.

    An entry is about 300 bytes and stays for good.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        with closing(self._connect()) as file, file:
            file.execute(
                "CREATE TABLE IF NOT EXISTS decisions (key TEXT PRIMARY KEY, outcome TEXT NOT NULL, at REAL NOT NULL)"
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
