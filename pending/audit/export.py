"""Exports of the audit log: its entries with their signatures, as JSON lines.

They hold nothing personal. An export that is stored elsewhere proves the entries even if the ledger
and Redis are put back to an earlier state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from sayso.pending.audit.entries import AuditEntry, RecordedEntry
from sayso.pending.audit.ledger import LedgerUnusable


def to_lines(entries: Iterable[RecordedEntry]) -> Iterator[str]:
    """Yield one line per entry, without its line end."""
    for entry in entries:
        fields = {"shard": entry.shard, "text": entry.text, "sig": entry.sig}
        yield json.dumps(fields, ensure_ascii=False)


def read_export(path: Path) -> list[RecordedEntry]:
    """Read the entries of an exported file. Raises LedgerUnusable.

    A text that is not an entry gets the number of the next entry of its shard.
    """
    try:
        exported = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise LedgerUnusable(f"{path} cannot be read: {exc}") from exc
    lines: list[str] = []
    if exported:
        # `splitlines` would also part a line at the other line ends of Unicode, which JSON does not
        # escape.
        lines = exported.removesuffix("\n").split("\n")

    entries: list[RecordedEntry] = []
    last_numbers: dict[int, int] = {}
    for line_number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            shard = int(fields["shard"])
            text = str(fields["text"])
            sig = str(fields.get("sig") or "")
            f"{text}{sig}".encode()  # a lone surrogate cannot be hashed
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise LedgerUnusable(
                f"{path}:{line_number}: not a line that `sayso audit export` wrote"
            ) from None

        entry = AuditEntry.parse(text)
        number = last_numbers.get(shard, 0) + 1
        if entry:
            number = entry.number
        last_numbers[shard] = number
        entries.append(RecordedEntry(shard, number, text, sig))
    return entries
