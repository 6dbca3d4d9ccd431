"""Verify all copies of the audit log together: ledgers, exports, and what is still in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sayso.pending.action import ActionSigner
from sayso.pending.audit.bodies import AuditBody, check_bodies
from sayso.pending.audit.chain_check import ChainReport, CheckContext, check_chains
from sayso.pending.audit.collector import UncollectedEntries
from sayso.pending.audit.entries import EntrySigner, RecordedEntry
from sayso.pending.audit.export import read_export
from sayso.pending.audit.ledger import AuditLedger, LedgerUnusable

#: How a SQLite file begins.
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class _Copy:
    """What one file has of the log."""

    entries: Sequence[RecordedEntry]
    #: The bodies by action id; None in an export, which has none.
    bodies: Mapping[str, AuditBody] | None


def verify(
    files: Sequence[Path],
    keys: Sequence[str],
    *,
    uncollected: UncollectedEntries | None = None,
    whole: bool = False,
) -> ChainReport:
    """Check ledgers and exports together.

    `keys` are those of the bot. With `uncollected`, the entries that are still in Redis are checked
    too, and the end of each chain is compared with what Redis remembers. `whole`: every chain must
    be here from its first entry on. Raises LedgerUnusable and redis.RedisError.
    """
    signer = EntrySigner(keys)
    action_signer = ActionSigner(keys)

    # An entry is in Redis until a ledger has it. So Redis is read before the files, or entries that
    # move meanwhile would seem to be missing. Its heads are read again after the files, or newer
    # entries in the files would look as if Redis had been rolled back.
    heads_before = {}
    from_redis: list[RecordedEntry] = []
    if uncollected:
        heads_before = uncollected.heads()
        from_redis = uncollected.entries()
    copies = [_read(file, signer) for file in files]
    heads_after = None
    if uncollected:
        heads_after = uncollected.heads()

    context = CheckContext(
        signer=signer,
        run_once=_run_once(copies),
        whole=whole,
        heads_before=heads_before,
        heads_after=heads_after,
    )
    sources = [copy.entries for copy in copies]
    report = check_chains([*sources, from_redis], context)

    faults = set(report.faults)
    for copy in copies:
        if copy.bodies is not None:
            faults.update(check_bodies(copy.entries, copy.bodies, action_signer, signer))
    return replace(report, faults=tuple(sorted(faults)))


def _run_once(copies: Sequence[_Copy]) -> set[str]:
    """Return the ids of the actions that may be started only once."""
    run_once = set()
    for copy in copies:
        for action_id, body in (copy.bodies or {}).items():
            if body.repeatable is False:
                run_once.add(action_id)
    return run_once


def _read(file: Path, signer: EntrySigner) -> _Copy:
    """Read a ledger or an export. An empty file counts as a ledger."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_SQLITE))
    except OSError as exc:
        raise LedgerUnusable(f"{file} cannot be read: {exc.strerror}") from exc
    if start in (_SQLITE, b""):
        ledger = AuditLedger(file, signer)
        return _Copy(ledger.entries(), ledger.bodies())
    return _Copy(read_export(file), bodies=None)
