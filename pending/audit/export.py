"""Export: the entries of a ledger as JSON lines, with their signatures and without personal data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from sayso.pending.audit.entry import AuditEntry, RecordedEntry
from sayso.pending.audit.ledger import LedgerUnusable


def to_lines(entries: Iterable[RecordedEntry]) -> Iterator[str]:
    """Yield one line per entry."""
    for entry in entries:
        yield json.dumps({"shard": entry.shard, "text": entry.text, "sig": entry.sig}, ensure_ascii=False)


def read_export(path: Path) -> list[RecordedEntry]:
    """Read the entries of an exported file. Raises LedgerUnusable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise LedgerUnusable(f"{path} cannot be read: {exc}") from exc
    lines = text.removesuffix("\n").split("\n") if text else []  # JSON does not escape the other line ends of Unicode
    last_numbers: dict[int, int] = {}
    return [_read_line(path, number, line, last_numbers) for number, line in enumerate(lines, start=1)]


def _read_line(path: Path, number: int, line: str, last_numbers: dict[int, int]) -> RecordedEntry:
    """Read one line. A text that is not an entry gets the number of the next entry of its shard."""
    try:
        fields = json.loads(line)
        shard, text, sig = int(fields["shard"]), str(fields["text"]), str(fields.get("sig") or "")
        f"{text}{sig}".encode()  # a lone surrogate cannot be hashed
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise LedgerUnusable(f"{path}:{number}: not a line that `sayso audit export` wrote") from None
    entry = AuditEntry.parse(text)
    last_numbers[shard] = entry.n if entry else last_numbers.get(shard, 0) + 1
    return RecordedEntry(shard, last_numbers[shard], text, sig)
