"""The `sayso audit` commands: verify, show, export, erase."""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.config.cli.output import clear_errors, fail, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from sayso.config.settings.schema import Settings
    from sayso.pending.audit.chain import ChainReport
    from sayso.pending.audit.collector import UncollectedEntries
    from sayso.pending.audit.entry import AuditEntry, Body
    from sayso.pending.audit.ledger import AuditLedger

#: Faults that are printed; a log that was restored from an old copy may have thousands.
MOST_FAULTS = 20
#: Characters of a preview, and of what was told, that `show` has room for.
WIDTH = 48

_config = click.option("--config", type=click.Path(path_type=Path), help="The YAML file, for its name and its Redis.")
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder with the ledger and, unless SAYSO_SECRET_KEYS is set, its key.",
)  # fmt: skip


@click.group()
def audit() -> None:
    """What became of every action, and whether that record is whole."""


@audit.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@_config
@_data
@click.option("--whole", is_flag=True, help="Expect every shard from its first entry.")
@click.option("--offline", is_flag=True, help="Do not compare with Redis: for old copies.")
def verify(files: tuple[Path, ...], config: Path | None, data: Path, whole: bool, offline: bool) -> None:
    """Check ledgers and exports (FILES, by default the ledger of this machine): exit code 1 if anything is wrong.

    Several machines drain one log together: give all their files at once.
    """
    from sayso.pending.audit import collector as evidence

    keys = _keys(data)
    paths = list(files) or [_path(data, config)]
    tail, notes = (None, []) if offline else _tail(config, data)
    with clear_errors():
        report = evidence.verify(paths, keys, tail=tail, whole=whole)
    _tell(report, notes)
    sys.exit(1 if report.faults else 0)


@audit.command()
@_config
@_data
@click.option("--action", default="", help="Only this action.")
@click.option("--user", default="", help="Only this user's actions.")
@click.option("--last", default=50, show_default=True, type=click.IntRange(1), help="How many entries, at most.")
def show(config: Path | None, data: Path, action: str, user: str, last: int) -> None:
    """List what happened: time, action, event, who, preview, and what the user was told."""
    ledger = _ledger(data, config)
    with clear_errors():
        bodies = ledger.bodies()
        found = _found(ledger, bodies, action, user)
        newest = heapq.nlargest(last, found, key=lambda entry: (entry.at, entry.n))
    for entry in reversed(newest):
        click.echo(_row(entry, bodies.get(entry.pid)))


@audit.command()
@_config
@_data
@click.option("--out", type=click.Path(path_type=Path), help="The file to write.  [default: standard output]")
def export(config: Path | None, data: Path, out: Path | None) -> None:
    """Write the entries as JSON lines, signed and without anything personal, to be kept elsewhere."""
    from sayso.pending.audit.export import to_lines

    ledger = _ledger(data, config)
    with clear_errors():
        lines = "".join(f"{line}\n" for line in to_lines(ledger.entries()))
    if out is None:
        click.echo(lines, nl=False)
        return
    try:
        out.write_text(lines, encoding="utf-8")
    except OSError as exc:
        fail(f"{out} cannot be written: {exc.strerror}")
    click.echo(f"{lines.count(chr(10)):,} entries in {out}")


@audit.command()
@_config
@_data
@click.option("--user", required=True, help="Whose data, by the id that `show` lists.")
def erase(config: Path | None, data: Path, user: str) -> None:
    """Erase all that this machine's ledger keeps of a user's actions, except that they took place, the long texts of
    what was said, and what agents know of the user beyond conversations.
    """
    from sayso.config.cli.people import erase_memories, erase_texts

    ledger = _ledger(data, config)
    with clear_errors():
        count = ledger.erase(user, at=round(time.time() * 1000))
    click.echo(f"{count:,} {'body' if count == 1 else 'bodies'} of {user!r} erased; the chain still verifies.")
    click.echo(f"{_count(erase_texts(data, [user]), 'long text', 'long texts')} erased from {data}.")
    known = _count(erase_memories(data, [user]), "file or relationship", "files and relationships")
    click.echo(f"{known} of what agents know beyond conversations erased from {data}.")
    click.echo("Redis keeps records for up to 48 hours: what comes from there later needs another run.")
    click.echo("Redis keeps what was said last in each conversation, its short texts and beginnings, for 30 days.")
    click.echo("So it does with its summary and the entities noted of it; a cache of answers keeps each until its ttl.")


def _path(data: Path, config: Path | None) -> Path:
    """Return the ledger of the configuration's bot, or the only one in the data folder. Exit where there is none."""
    from sayso.pending.audit.ledger import FILE

    found = [path for path in (data / FILE, *sorted(data.glob(f"bots/*/{FILE}"))) if path.exists()]
    if not found:
        fail(f"no ledger in {data}: a worker writes it; name its folder with --data")
    if len(found) == 1 and config is None:
        return found[0]
    path = load(config, data, without_secrets=True).state_folder(data) / FILE
    return path if path in found else fail(f"no ledger at {path}; in {data} there are: {', '.join(map(str, found))}")


def _ledger(data: Path, config: Path | None) -> AuditLedger:
    from sayso.pending.audit.entry import EntrySigner
    from sayso.pending.audit.ledger import AuditLedger

    return AuditLedger(_path(data, config), EntrySigner(_keys(data)))


def _keys(data: Path) -> list[str]:
    """The keys the log was signed with. A fresh one, as a first start makes it, would prove nothing."""
    from sayso.config.settings.secrets import VARIABLE, secret_keys

    try:
        made = bool(os.environ.get(VARIABLE)) or (data / "secret_keys").exists()
        keys = secret_keys(data) if made else []
    except OSError as exc:
        fail(f"data folder {str(data)!r}: {exc.strerror}: give one you may write to with --data")
    return keys or fail(f"no secret key: set {VARIABLE}, or name the data folder of the workers with --data")


def _tail(config: Path | None, data: Path) -> tuple[UncollectedEntries | None, list[str]]:
    """What is still in Redis, or the note that nobody can tell."""
    from redis.exceptions import RedisError

    from sayso.config.server.processes import find_config
    from sayso.config.settings.loader import ConfigError, load_settings
    from sayso.config.wiring.redis import find_redis

    try:
        settings = load_settings(find_config(config, data))
        return _tail_of(settings, find_redis(settings, data)), []
    except (ConfigError, RedisError, ValueError, KeyError):
        return None, ["Redis cannot be reached: entries missing at the end of the log would not be noticed"]


def _tail_of(settings: Settings, url: str) -> UncollectedEntries:
    from sayso.pending.audit.collector import UncollectedEntries
    from sayso.pending.redis.client import connect

    client = connect(url)
    client.ping()
    return UncollectedEntries(client, prefix=settings.key_prefix)


def _tell(report: ChainReport, notes: list[str]) -> None:
    for note in [*notes, *report.notes]:
        click.echo(f"note: {note}")
    for fault in report.faults[:MOST_FAULTS]:
        click.echo(f"fault: {fault}")
    if len(report.faults) > MOST_FAULTS:
        click.echo(f"... and {len(report.faults) - MOST_FAULTS:,} more")
    verdict = "the chain is broken" if report.faults else "the chain holds"
    click.echo(
        f"{_count(report.entries, 'entry', 'entries')}, {_count(report.shards, 'shard', 'shards')}, "
        f"{_count(len(report.faults), 'fault', 'faults')}: {verdict}"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _found(ledger: AuditLedger, bodies: Mapping[str, Body], action: str, user: str) -> Iterator[AuditEntry]:
    from sayso.pending.audit.entry import AuditEntry

    for kept in ledger.entries():
        entry = AuditEntry.parse(kept.text)
        if entry is None or (action and entry.pid != action):
            continue
        body = bodies.get(entry.pid)
        if not user or (body is not None and body.user == user):
            yield entry


def _row(entry: AuditEntry, body: Body | None) -> str:
    from sayso.pending.audit.chain import FINAL

    at = datetime.fromtimestamp(entry.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    who = (body.user if body else "") or "-"
    preview = body.preview if body else "(not kept)"
    told = (body.told if body and entry.event in FINAL else "") or ""
    words = f"{_plain(preview):{WIDTH}}  {_plain(told)}"
    return f"{at}  {entry.pid:22}  {entry.event:10}  {_plain(who):20}  {words}".rstrip()


def _plain(words: str) -> str:
    """People's words on one line of a terminal, and nothing that would command it."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
