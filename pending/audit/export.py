"""Export: the entries of a ledger as JSON lines, signed as they are there and without anything personal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from sayso.pending.audit.entry import AuditEntry, RecordedEntry
from sayso.pending.audit.ledger import LedgerUnusable


def to_lines(kept: Iterable[RecordedEntry]) -> Iterator[str]:
    """One line an entry."""
    for one in kept:
        yield json.dumps({"shard": one.shard, "text": one.text, "sig": one.sig}, ensure_ascii=False)


def read_export(path: Path) -> list[RecordedEntry]:
    """The entries of an exported file, as they stand there. Raises LedgerUnusable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise LedgerUnusable(f"{path} cannot be read: {exc}") from exc
    lines = text.removesuffix("\n").split("\n") if text else []  # JSON writes other ends of line as they are
    last: dict[int, int] = {}
    return [_kept(path, number, line, last) for number, line in enumerate(lines, start=1)]


def _kept(path: Path, number: int, line: str, last: dict[int, int]) -> RecordedEntry:
    """One line. A text that is no entry stands where the next entry of its shard would."""
    try:
        fields = json.loads(line)
        shard, text, sig = int(fields["shard"]), str(fields["text"]), str(fields.get("sig") or "")
        f"{text}{sig}".encode()  # half a character has no head
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise LedgerUnusable(f"{path}:{number}: not a line that `sayso audit export` wrote") from None
    entry = AuditEntry.parse(text)
    last[shard] = entry.n if entry else last.get(shard, 0) + 1
    return RecordedEntry(shard, last[shard], text, sig)
