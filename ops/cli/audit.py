"""The `sayso audit` commands: verify, show, receipt, export, erase and others.

The audit log says what became of every action. Workers write it to Redis and collect it into the
*ledger*, a file in the data folder of their machine. Its entries form a chain: each is signed
together with the one before it, so that a change or a gap shows. What is personal stands in a
separate *body* for each action, which can be erased without breaking the chain. A *receipt* proves
the decisions about one action to people who have neither the log nor its key.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
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
    fail,
    pass_options,
    with_noun,
)

if TYPE_CHECKING:
    from sayso.ops.checks.shown_entries import ShownEntry
    from sayso.pending.audit.chain_check import ChainReport
    from sayso.pending.audit.collector import UncollectedEntries
    from sayso.pending.audit.ledger import AuditLedger

#: The most faults that are printed: a ledger that was restored from an old copy may have thousands.
MAX_FAULTS = 20
#: Events after which an action is settled: their lines of `show` have what the user was told. An
#: unknown or failed action may be corrected later.
_FINAL_EVENTS = frozenset({"done", "failed", "unknown", "cancelled", "expired", "superseded"})
#: The most characters of a preview, and of what the user was told, in one line of `show`.
WIDTH = 48
#: The most characters of what a user has changed, in one line of `show`.
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
    from sayso.pending.audit.verify import verify as verify_copies

    keys = _keys(options.data)
    paths = list(files) or [_ledger_path(options)]
    uncollected = None
    notes: list[str] = []
    if not offline:
        uncollected, notes = _uncollected_entries(options)
    with clear_errors():
        report = verify_copies(paths, keys, uncollected=uncollected, whole=whole)

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
    """Return the entries that are still in Redis; None and a note if Redis cannot be reached."""
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
        note = "Redis cannot be reached: entries missing at the end of the log would not be noticed"
        return None, [note]


def chain_lines(report: ChainReport, notes: Sequence[str]) -> Iterator[str]:
    """Yield what a check of the audit log found: the notes, the first faults, and a summary."""
    yield from (f"note: {note}" for note in notes)
    yield from (f"fault: {fault}" for fault in report.faults[:MAX_FAULTS])
    if len(report.faults) > MAX_FAULTS:
        yield f"... and {len(report.faults) - MAX_FAULTS:,} more"

    entries = with_noun(report.entries, "entry", "entries")
    shards = with_noun(report.shards, "shard", "shards")
    faults = with_noun(len(report.faults), "fault", "faults")
    conclusion = "the chain holds"
    if report.faults:
        conclusion = "the chain is broken"
    yield f"{entries}, {shards}, {faults}: {conclusion}"


@audit.command(examples=["sayso audit show", "sayso audit show --user U0123ABCD --last 10 --json"])
@click.option("--action", default="", help="Only this action, with the requests about it.")
@click.option("--user", default="", help="Only this user's actions, requests and votes.")
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

    Of an action that other people decide, it lists who was asked, where, and how that ended
    (`asked`), and each vote (`voted`).

    Of an action that ran under a standing yes, it names the action whose yes that was.
    """
    from sayso.ops.checks.shown_entries import shown_entries

    ledger = _ledger(options)
    with clear_errors():
        shown = shown_entries(ledger, action=action, user=user, last=last)
    options.print([_as_json(each) for each in shown], [_row(each) for each in shown])


def _as_json(shown: ShownEntry) -> dict[str, Any]:
    """Return an entry for --json, with the personal part of its action where that is stored."""
    value = asdict(shown.entry)
    body = shown.body
    if body:
        value |= {"user": body.user, "preview": body.preview, "told": body.outcome_text}
        if body.user_name:
            value["name"] = body.user_name
    standing = _standing_words(shown)
    if standing:
        value["standing"] = standing
    if shown.request:
        value["request"] = asdict(shown.request)
    if shown.vote:
        value["vote"] = asdict(shown.vote)
    if shown.change:
        value |= asdict(shown.change)
    return value


def _standing_words(shown: ShownEntry) -> str:
    """Return which standing yes an action was claimed by, or gave; "" for any other entry."""
    record = shown.body.decision_record if shown.body else None
    if record is None or shown.entry.event != "claimed" or not record.standing_yes:
        return ""
    if record.form == "standing":
        return f"standing yes of {record.standing_yes} ({record.use} of {record.uses})"
    return f"gives a standing yes for {record.uses} calls until {utc_time(record.stands_until)}"


def _row(shown: ShownEntry) -> str:
    """Return a line of `show`: time, action, event, user, preview, and what the user was told.

    In place of the last column, the first entry of an action that a user made by changing another
    one has the change, a vote its person and answer, and a request where it was asked and how it
    ended. The action of a request is the one that it asks about.
    """
    entry = shown.entry
    user = "-"
    preview = "(not kept)"
    last_column = ""
    body = shown.body
    if body:
        user = body.user or "-"
        preview = body.preview
        if body.user_name:
            user = f"{user} ({body.user_name})"
        if entry.event in _FINAL_EVENTS:
            last_column = body.outcome_text or ""

    width = WIDTH
    action_id = entry.action_id
    event = entry.event
    if shown.change and event == "armed":
        values = [
            f"{name}: {old!r} -> {new!r}" for name, (old, new) in shown.change.changed.items()
        ]
        last_column = f"changes {shown.change.changes_of} {', '.join(values)}"
        width = CHANGE_WIDTH
    standing = _standing_words(shown)
    if standing:
        last_column = standing
        width = CHANGE_WIDTH
    if shown.request:
        action_id = shown.request.request_of
        event = "asked"
        last_column = shown.request.words()
        width = CHANGE_WIDTH
    if shown.vote:
        last_column = shown.vote.words()
        width = CHANGE_WIDTH

    columns = [
        utc_time(entry.at / 1000),
        f"{action_id:22}",
        f"{event:10}",
        f"{one_line(user, WIDTH):20}",
        f"{one_line(preview, WIDTH):{WIDTH}}",
        one_line(last_column, width),
    ]
    return "  ".join(columns).rstrip()


@audit.command(examples=["sayso audit export --out audit.jsonl"])
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file to write.  [default: standard output]"
)
@pass_options
def export(options: Options, out: Path | None) -> None:
    """Write the entries as signed JSON lines without personal data, to be stored elsewhere."""
    from sayso.pending.audit.export import to_lines

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


@audit.command(examples=["sayso audit receipt 66e503f366f7a932a2d505 --out receipt.json"])
@click.argument("action")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file to write.  [default: standard output]"
)
@pass_options
def receipt(options: Options, action: str, out: Path | None) -> None:
    """Write a signed receipt of who decided what about ACTION, when, and by which words or tap.

    Exits with 1 where no decision can be proved.

    ACTION is an id, as `sayso audit show` lists it.
    The receipt holds the arguments and the words, which may be personal.
    """
    _need_receipt_library()
    from sayso.pending.audit.receipts import NoReceipt, make_receipt

    ledger = _ledger(options)
    folder = ledger.path.resolve().parent
    bot = folder.name if folder.parent.name == "bots" else ""
    try:
        with clear_errors():
            made = make_receipt(ledger, action, _keys(options.data), bot=bot, now=time.time())
    except NoReceipt as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(FINDING)

    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    if out is None:
        click.echo(made.to_json(), nl=False)
        return
    try:
        out.write_text(made.to_json(), encoding="ascii")
    except OSError as exc:
        fail(f"{out} cannot be written: {exc.strerror}")
    value = {"file": str(out), "action": action, "notes": list(made.notes)}
    options.print(value, [f"the receipt of {action} is in {out}"])


@audit.command(
    name="public-key", examples=["sayso audit public-key", "sayso audit public-key > shop.pem"]
)
@pass_options
def public_key(options: Options) -> None:
    """Print the public keys that verify receipts, as PEM: the one that signs first, then old ones.

    Give the keys to those who check receipts. They are no secret.
    """
    _need_receipt_library()
    from sayso.pending.audit.receipt_keys import ReceiptSigner

    keys = ReceiptSigner(_keys(options.data)).public_keys
    values = [{"key_id": key.id, "pem": key.pem} for key in keys]
    lines = [f"key {key.id}\n{key.pem.rstrip()}" for key in keys]
    options.print(values, lines)


@audit.command(
    name="verify-receipt",
    examples=["sayso audit verify-receipt receipt.json --public-key shop.pem"],
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--public-key",
    "key_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The public keys of the bot.  [default: those of the data folder]",
)
@pass_options
def verify_receipt(options: Options, file: Path, key_file: Path | None) -> None:
    """Check a receipt, and print what it proves.

    Exits with 1 where it is not genuine, and says what was changed.

    With --public-key it needs no Redis, no data folder and no secret.
    """
    _need_receipt_library()
    from sayso.pending.audit.receipt_check import (
        MAX_RECEIPT_BYTES,
        ReceiptRefused,
        check_receipt,
        describe_receipt,
    )
    from sayso.pending.audit.receipt_keys import (
        MAX_KEYS_BYTES,
        KeysUnreadable,
        ReceiptSigner,
        read_public_keys,
    )

    if key_file is None:
        keys = {key.id: key for key in ReceiptSigner(_keys(options.data)).public_keys}
    else:
        try:
            keys = dict(read_public_keys(_read_start(key_file, MAX_KEYS_BYTES)))
        except KeysUnreadable as exc:
            fail(f"{key_file} is no file of public keys: {exc}")

    try:
        genuine = check_receipt(_read_start(file, MAX_RECEIPT_BYTES), keys)
    except ReceiptRefused as exc:
        shown = exc.problems[:MAX_FAULTS]
        lines = [f"fault: {problem}" for problem in shown]
        if len(exc.problems) > MAX_FAULTS:
            lines.append(f"... and {len(exc.problems) - MAX_FAULTS:,} more")
        lines.append("The receipt is NOT genuine.")
        options.print({"genuine": False, "faults": list(exc.problems)}, lines)
        sys.exit(FINDING)
    options.print({"genuine": True, "receipt": genuine.to_dict()}, describe_receipt(genuine))


def _read_start(file: Path, most: int) -> bytes:
    """Return the content of a file, one byte more than `most` of a larger one. Exits without it."""
    try:
        with file.open("rb") as opened:
            return opened.read(most + 1)
    except OSError as exc:
        return fail(f"{file} cannot be read: {exc.strerror}")


def _need_receipt_library() -> None:
    """Exit where the library that signs and verifies receipts is not installed."""
    from sayso.agent.extras import LibraryError, import_libraries

    try:
        import_libraries("receipts", "cryptography.hazmat.primitives.asymmetric.ed25519")
    except LibraryError as exc:
        fail(str(exc))


@audit.command(examples=["sayso audit erase --user U0123ABCD"])
@click.option("--user", required=True, help="The user's id, as `sayso audit show` lists it.")
@pass_options
def erase(options: Options, user: str) -> None:
    """Erase what the ledger of this machine holds of a user, and their long texts and memories.

    The ledger still says that the user's actions took place.

    Long texts in a bucket are erased if the configuration is at hand: in this folder,
    or named with --config.
    """
    from sayso.config.settings.loader import DEFAULT_FILE, given_config
    from sayso.config.wiring.erasure import erase_memories, erase_notes, erase_texts

    data = options.data
    ledger = _ledger(options)
    # Only the settings say whether long texts are in a bucket.
    settings = None
    has_file = options.config or given_config() or DEFAULT_FILE.exists()
    if has_file:
        settings = options.load(prefer_running=False, without_secrets=True)

    with clear_errors():
        bodies = ledger.erase(user, at=round(time.time() * 1000))
        erase_notes(ledger.path.parent, [user])
        texts = erase_texts(settings, data, [user])
        memories = erase_memories(data, [user])

    where = str(data)
    if settings and settings.media.store:
        where = f"{data} and {settings.media.store}"
    lines = [
        f"{with_noun(bodies, 'body', 'bodies')} of {user!r} erased; the chain still verifies.",
        f"{with_noun(texts, 'long text', 'long texts')} erased from {where}.",
        f"{with_noun(memories, 'file or relationship', 'files and relationships')} of the agents' memories erased from "
        f"{data}.",
        "Redis holds records for up to 48 hours: run this again to erase those that come from there later.",
        "Redis holds each conversation's last messages, its short texts, its summary and entities for 30 days: "
        "`sayso people erase` erases them. A cache of answers holds each until its ttl.",
    ]
    options.print({"user": user, "bodies": bodies, "texts": texts, "memories": memories}, lines)


def _ledger(options: Options) -> AuditLedger:
    from sayso.pending.audit.entries import EntrySigner
    from sayso.pending.audit.ledger import AuditLedger

    return AuditLedger(_ledger_path(options), EntrySigner(_keys(options.data)))


def _ledger_path(options: Options) -> Path:
    """Return the ledger of the configuration's bot, or the only one in the data folder.

    Exits where there is none.
    """
    from sayso.pending.audit.ledger import FILE

    data = options.data
    places = [data / FILE, *sorted(data.glob(f"bots/*/{FILE}"))]
    ledgers = [path for path in places if path.exists()]
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
    from sayso.config.wiring.data_folder import KEYS_VARIABLE, known_keys

    try:
        keys = known_keys(data)
    except OSError as exc:
        fail(f"data folder {str(data)!r}: {exc.strerror}: give one you may write to with --data")
    if not keys:
        fail(
            f"no secret key: set {KEYS_VARIABLE}, or name the data folder of the workers with --data"
        )
    return keys
