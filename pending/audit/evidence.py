"""Evidence: all that files and Redis hold of the audit log, read in an order in which a running system looks whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sayso.pending.audit.body import Body, check_bodies
from sayso.pending.audit.chain import Fault, Terms
from sayso.pending.audit.check import Report, check
from sayso.pending.audit.entry import Kept
from sayso.pending.audit.export import read_export
from sayso.pending.audit.ledger import Ledger, LedgerUnusable
from sayso.pending.audit.signer import Signer
from sayso.pending.audit.tail import Tail, Tails
from sayso.pending.seal import Seal

_SQLITE = b"SQLite format 3\0"


def verify(
    files: Sequence[Path], keys: Sequence[str], *, tail: Tail | Tails | None = None, whole: bool = False
) -> Report:
    """Check ledgers and exports together, with what Redis holds if there is a `tail`.

    Raises LedgerUnusable, redis.RedisError.
    """
    signer, seal = Signer(keys), Seal(keys)
    # An entry is in Redis until a ledger has it. So Redis is read first, and its heads once more at the end.
    tips = tail.tips() if tail else {}
    waiting = tail.kept() if tail else []
    found = [_read(file, signer) for file in files]
    newest = tail.tips() if tail else None
    once = {pid for _, bodies in found for pid, body in (bodies or {}).items() if body.repeatable is False}
    terms = Terms(signer, once, whole, tips, newest)
    report = check([*(kept for kept, _ in found), waiting], terms)
    faults = set(report.faults)
    for kept, bodies in found:
        faults |= _body_faults(kept, bodies, seal, signer)
    return replace(report, faults=tuple(sorted(faults)))


def _body_faults(kept: Sequence[Kept], bodies: dict[str, Body] | None, seal: Seal, signer: Signer) -> set[Fault]:
    """An export has no bodies; a ledger has one for every action in it."""
    return set() if bodies is None else set(check_bodies(kept, bodies, seal, signer))


def _read(file: Path, signer: Signer) -> tuple[list[Kept], dict[str, Body] | None]:
    if not _is_ledger(file):
        return read_export(file), None
    ledger = Ledger(file, signer)
    return ledger.entries(), ledger.bodies()


def _is_ledger(file: Path) -> bool:
    try:
        with file.open("rb") as start:
            return start.read(len(_SQLITE)) in (_SQLITE, b"")
    except OSError as exc:
        raise LedgerUnusable(f"{file} cannot be read: {exc.strerror}") from exc
