"""The `sayso audit` commands: verify, show, export, erase."""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sayso.infra.terminal import one_line, utc_time
from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoGroup,
    clear_errors,
    counted,
    fail,
    pass_options,
)

if TYPE_CHECKING:
    from sayso.pending.audit.chain import ChainReport
    from sayso.pending.audit.collector import UncollectedEntries
    from sayso.pending.audit.ledger import AuditBody, AuditEntry, AuditLedger

#: The most faults that are printed: a ledger that was restored from an old copy may have thousands.
MAX_FAULTS = 20
#: Characters of a preview, and of the message sent to the user, in one line of `show`.
WIDTH = 48
#: Characters of what a user has changed, in one line of `show`.
CHANGE_WIDTH = 200


@click.group(cls=SaysoGroup, examples=["sayso audit verify", "sayso audit show --last 10"])
def audit() -> None:
    """Read the audit ledger: what became of every action.
    --data is the folder with the ledger and its key.
    """


@audit.command(
    examples=["sayso audit verify", "sayso audit verify machine-1.jsonl machine-2.jsonl --offline"]
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--whole", is_flag=True, help="Expect every shard from its first entry.")
@click.option("--offline", is_flag=True, help="Do not compare with Redis: for old copies.")
@pass_options
def verify(options: Options, files: tuple[Path, ...], *, whole: bool, offline: bool) -> None:
    """Verify ledgers and exports (FILES, by default the ledger of this machine).

    Exits with 1 where anything is wrong.

    The workers of several machines write parts of one log: give all their files together.
    """
    from sayso.pending.audit import collector

    keys = _keys(options.data)
    paths = list(files) or [_ledger_path(options)]
    uncollected, notes = (None, []) if offline else _uncollected_entries(options)
    with clear_errors():
        report = collector.verify(paths, keys, tail=uncollected, whole=whole)
    notes = [*notes, *report.notes]
    value = {
        "entries": report.entries,
        "shards": report.shards,
        "faults": [*map(str, report.faults)],
        "notes": notes,
    }
    options.print(value, chain_lines(report, notes))
    sys.exit(FINDING if report.faults else 0)


def _uncollected_entries(options: Options) -> tuple[UncollectedEntries | None, list[str]]:
    """Return the entries that are still in Redis, or None and a note where Redis cannot be reached."""
    from redis.exceptions import RedisError

    from sayso.config.settings.loader import ConfigError, load_settings
    from sayso.config.wiring.redis_parts import find_redis
    from sayso.infra.redis.client import connect
    from sayso.pending.audit.collector import UncollectedEntries

    try:
        settings = load_settings(options.file())
        client = connect(find_redis(settings, options.data))
        client.ping()
        return UncollectedEntries(client, prefix=settings.key_prefix), []
    except (ConfigError, RedisError, ValueError, KeyError):
        return None, [
            "Redis cannot be reached: entries missing at the end of the log would not be noticed"
        ]


def chain_lines(report: ChainReport, notes: Sequence[str]) -> Iterator[str]:
    """Yield what a check of the audit log found."""
    yield from (f"note: {note}" for note in notes)
    yield from (f"fault: {fault}" for fault in report.faults[:MAX_FAULTS])
    if len(report.faults) > MAX_FAULTS:
        yield f"... and {len(report.faults) - MAX_FAULTS:,} more"
    if report.faults:
        conclusion = "the chain is broken"
    else:
        conclusion = "the chain holds"
    yield (
        f"{counted(report.entries, 'entry', 'entries')}, {counted(report.shards, 'shard', 'shards')}, "
        f"{counted(len(report.faults), 'fault', 'faults')}: {conclusion}"
    )


@audit.command(examples=["sayso audit show", "sayso audit show --user U0123ABCD --last 10 --json"])
@click.option("--action", default="", help="Only this action.")
@click.option("--user", default="", help="Only this user's actions.")
@click.option(
    "--last",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    help="At most this many entries.",
)
@pass_options
def show(options: Options, action: str, user: str, last: int) -> None:
    """List what happened: time, action, event, user, preview, and what the user was told.

    Of an action that a user has changed before the yes,
    it names the earlier one and each value that differs.
    """
    ledger = _ledger(options)
    with clear_errors():
        bodies = ledger.bodies()
        entries = _chosen_entries(ledger, bodies, action, user)
        newest = heapq.nlargest(last, entries, key=lambda entry: (entry.at, entry.n))
    rows = [(entry, bodies.get(entry.pid)) for entry in reversed(newest)]
    values = [{**_as_json(entry, body), **_change(body, bodies)} for entry, body in rows]
    options.print(values, [_row(entry, body, _change(body, bodies)) for entry, body in rows])


def _chosen_entries(
    ledger: AuditLedger, bodies: Mapping[str, AuditBody], action: str, user: str
) -> Iterator[AuditEntry]:
    """Yield the entries of an action and of a user; "" stands for all."""
    for recorded in ledger.entries():
        entry = recorded.entry
        if entry is None or (action and entry.pid != action):
            continue
        body = bodies.get(entry.pid)
        if not user or (body is not None and body.user == user):
            yield entry


def _as_json(entry: AuditEntry, body: AuditBody | None) -> dict[str, Any]:
    texts = {}
    if body:
        texts = {"user": body.user, "preview": body.preview, "told": body.outcome_text}
        if body.user_name:
            texts["name"] = body.user_name
    return {**asdict(entry), **texts}


def _change(body: AuditBody | None, bodies: Mapping[str, AuditBody]) -> dict[str, Any]:
    """Return which earlier action this one changes, and each value that its user could change,
    before and after.
    """
    if body is None or not body.changes_of:
        return {}
    before = bodies.get(body.changes_of)
    old = before.editable if before else {}
    new = body.editable
    changed = {
        name: [old[name], new[name]] for name in old if name in new and old[name] != new[name]
    }
    return {"changes_of": body.changes_of, "changed": changed}


def _row(entry: AuditEntry, body: AuditBody | None, change: Mapping[str, Any]) -> str:
    from sayso.pending.audit.chain import FINAL

    user = (body.user if body else "") or "-"
    if body and body.user_name:
        user = f"{user} ({body.user_name})"
    preview = body.preview if body else "(not kept)"
    sent_text = (body.outcome_text if body and entry.event in FINAL else "") or ""
    width = WIDTH
    if change and entry.event == "armed":
        values = [f"{name}: {old!r} -> {new!r}" for name, (old, new) in change["changed"].items()]
        sent_text = f"changes {change['changes_of']} {', '.join(values)}"
        width = CHANGE_WIDTH
    texts = f"{one_line(user, WIDTH):20}  {one_line(preview, WIDTH):{WIDTH}}  {one_line(sent_text, width)}"
    return f"{utc_time(entry.at / 1000)}  {entry.pid:22}  {entry.event:10}  {texts}".rstrip()


@audit.command(examples=["sayso audit export --out audit.jsonl"])
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file to write.  [default: standard output]"
)
@pass_options
def export(options: Options, out: Path | None) -> None:
    """Write the entries as signed JSON lines without personal data, to be stored elsewhere."""
    from sayso.pending.audit.ledger import to_lines

    ledger = _ledger(options)
    with clear_errors():
        lines = "".join(f"{line}\n" for line in to_lines(ledger.entries()))
    if out is None:
        click.echo(lines, nl=False)
        return
    try:
        out.write_text(lines, encoding="utf-8")
    except OSError as exc:
        fail(f"{out} cannot be written: {exc.strerror}")
    entries = lines.count("\n")
    options.print({"file": str(out), "entries": entries}, [f"{entries:,} entries in {out}"])


@audit.command(examples=["sayso audit erase --user U0123ABCD"])
@click.option("--user", required=True, help="The user's id, as `sayso audit show` lists it.")
@pass_options
def erase(options: Options, user: str) -> None:
    """Erase what the ledger of this machine holds of a user's actions, except that they took place,
    and the user's long texts and memories.

    Long texts in a bucket are erased if the configuration is at hand: in this folder,
    or named with --config.
    """
    from sayso.config.settings.loader import DEFAULT, given_config
    from sayso.config.wiring.people import erase_memories, erase_notes, erase_texts

    data = options.data
    ledger = _ledger(options)
    has_file = options.config or given_config() or DEFAULT.exists()
    if has_file:
        settings = options.load(running=False, without_secrets=True)
    else:
        settings = None
    with clear_errors():
        bodies = ledger.erase(user, at=round(time.time() * 1000))
        erase_notes(ledger.path.parent, [user])
        texts = erase_texts(settings, data, [user])
        memories = erase_memories(data, [user])
    if settings and settings.media.store:
        where = f"{data} and {settings.media.store}"
    else:
        where = str(data)
    lines = [
        f"{counted(bodies, 'body', 'bodies')} of {user!r} erased; the chain still verifies.",
        f"{counted(texts, 'long text', 'long texts')} erased from {where}.",
        f"{counted(memories, 'file or relationship', 'files and relationships')} of the agents' memories erased from "
        f"{data}.",
        "Redis holds records for up to 48 hours: run this again to erase those that come from there later.",
        "Redis holds each conversation's last messages, its short texts, its summary and entities for 30 days: "
        "`sayso people erase` erases them. A cache of answers holds each until its ttl.",
    ]
    options.print({"user": user, "bodies": bodies, "texts": texts, "memories": memories}, lines)


def _ledger(options: Options) -> AuditLedger:
    from sayso.pending.audit.ledger import AuditLedger, EntrySigner

    return AuditLedger(_ledger_path(options), EntrySigner(_keys(options.data)))


def _ledger_path(options: Options) -> Path:
    """Return the ledger of the configuration's bot, or the only one in the data folder.

    Exits where there is none.
    """
    from sayso.pending.audit.ledger import FILE

    data = options.data
    ledgers = [
        path for path in (data / FILE, *sorted(data.glob(f"bots/*/{FILE}"))) if path.exists()
    ]
    if not ledgers:
        fail(f"no ledger in {data}: a worker writes it; name its folder with --data")
    if len(ledgers) == 1 and options.config is None:
        return ledgers[0]
    path = options.load(without_secrets=True).state_folder(data) / FILE
    if path in ledgers:
        return path
    return fail(f"no ledger at {path}; in {data} there are: {', '.join(map(str, ledgers))}")


def _keys(data: Path) -> list[str]:
    """Return the keys that signed the log. Exits without any: a new key could verify nothing."""
    from sayso.config.wiring.data_folder import KEYS_VARIABLE, secret_keys

    try:
        has_keys = bool(os.environ.get(KEYS_VARIABLE)) or (data / "secret_keys").exists()
        keys = secret_keys(data) if has_keys else []
    except OSError as exc:
        fail(f"data folder {str(data)!r}: {exc.strerror}: give one you may write to with --data")
    return keys or fail(
        f"no secret key: set {KEYS_VARIABLE}, or name the data folder of the workers with --data"
    )
