"""Life: the moves an action may make, as the audit log must show them."""

from __future__ import annotations

from collections.abc import Mapping, Set

from sayso.pending.audit.entry import Entry

#: From each event to those that may follow it; "" is an action that is new.
LAWFUL: Mapping[str, Set[str]] = {
    "": {"armed"},
    "armed": {"shown", "cancelled", "expired", "superseded"},
    "shown": {"claimed", "cancelled", "expired", "superseded"},
    "claimed": {"started", "failed", "cancelled", "superseded"},
    "started": {"done", "failed", "unknown", "started", "cancelled"},
    "unknown": {"done", "failed"},
    "failed": {"done"},
    "done": set(),
    "cancelled": set(),
    "expired": set(),
    "superseded": set(),
}
#: Events after which an action is settled and its user was told, though an unknown or failed one may be corrected.
FINAL = frozenset({"done", "failed", "unknown", "cancelled", "expired", "superseded"})


class Lives:
    """Follows the actions of one shard along its chain. `once` are those that may be started a single time."""

    def __init__(self, once: Set[str], *, from_birth: bool) -> None:
        self._once = once
        self._from_birth = from_birth
        self._last: dict[str, Entry] = {}

    def follow(self, entry: Entry) -> str:
        """Take the next entry: "" when it is lawful, else what is wrong with it."""
        before = self._last.get(entry.pid)
        last = before.event if before else ""
        self._last[entry.pid] = entry
        if entry.event not in LAWFUL:
            return f"{entry.event!r} is no event"
        if before is None and not self._from_birth:
            return ""
        if entry.event not in LAWFUL.get(last, ()):
            return f"{last or 'nothing'} -> {entry.event}"
        if last == entry.event == "started" and entry.pid in self._once:
            return "started twice"
        return "another record" if before and before.body != entry.body else ""

    def forget(self) -> None:
        """Something is missing here: what comes next may follow from anything."""
        self._last.clear()
        self._from_birth = False
