"""Export: the entries of a ledger as JSON lines, signed as they are there and without anything personal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from pending.audit.entry import Entry, Kept
from pending.audit.ledger import LedgerUnusable


def to_lines(kept: Iterable[Kept]) -> Iterator[str]:
    """One line an entry."""
    for one in kept:
        yield json.dumps({"shard": one.shard, "text": one.text, "sig": one.sig}, ensure_ascii=False)


def read_export(path: Path) -> list[Kept]:
    """The entries of an exported file, as they stand there. Raises LedgerUnusable."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as exc:
        raise LedgerUnusable(f"{path} cannot be read: {exc}") from exc
    found: list[Kept] = []
    last: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        found.append(_kept(path, number, line, last))
    return found


def _kept(path: Path, number: int, line: str, last: dict[int, int]) -> Kept:
    """One line. A text that is no entry stands where the next entry of its shard would."""
    try:
        fields = json.loads(line)
        shard, text, sig = int(fields["shard"]), str(fields["text"]), str(fields.get("sig") or "")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise LedgerUnusable(f"{path}:{number}: not a line that `sayso audit export` wrote") from None
    entry = Entry.parse(text)
    last[shard] = entry.n if entry else last.get(shard, 0) + 1
    return Kept(shard, last[shard], text, sig)
