"""Invoice tools of the demo, on a small SQLite file that is created on first use.

They show each kind of tool: one that reads, one that asks first and can be undone, one that asks
for a typed code, one that proposes an effect which an executor performs, and tools that make files
or stream their result.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from sayso.agent import Ambiguous, Markdown, NotFound, ToolError, as_markdown, emit_artifact, tool
from sayso.agent.extras import LibraryError
from sayso.agent.toolbox import try_libraries
from sayso.pending.action import PendingAction
from sayso.pending.executors import PendingConfirmation, ToolResult
from sayso.pending.proposals import executor_factory, stash_pending

Status = Literal["open", "paid", "overdue", "refunded"]

#: The name of the data file.
FILE = "invoices.sqlite3"
#: The pause before each section of the sales report, in seconds, so that people see it streaming.
SECTION_SECONDS = 0.2

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_SCHEMA = """
CREATE TABLE invoices (
    id TEXT PRIMARY KEY,
    number INTEGER NOT NULL UNIQUE,
    customer TEXT NOT NULL,
    issued TEXT NOT NULL,
    amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
    refunded_cents INTEGER NOT NULL DEFAULT 0 CHECK (refunded_cents BETWEEN 0 AND amount_cents),
    status TEXT NOT NULL CHECK (status IN ('open', 'paid', 'overdue', 'refunded'))
) STRICT;
CREATE TABLE ledger (  -- what was done to the invoices
    what TEXT NOT NULL,
    id TEXT NOT NULL,
    at TEXT NOT NULL,
    action TEXT UNIQUE  -- the id of the confirmed action, so that it cannot be recorded twice
) STRICT;
"""

_INSERT = """
INSERT INTO invoices VALUES
    (:id, :number, :customer, :issued, :amount_cents, :refunded_cents, :status)
"""

_REFUND = """
UPDATE invoices SET
    refunded_cents = refunded_cents + :cents,
    status = CASE WHEN refunded_cents + :cents = amount_cents THEN 'refunded' ELSE status END
WHERE id = :id
"""


class _Sample(NamedTuple):
    """An invoice of the demo at its start."""

    number: int
    customer: str
    issued: str
    amount_cents: int
    status: Status


_SAMPLE_INVOICES = (
    _Sample(1, "Hopper & Sons", "2026-01-08", 89_000, "paid"),
    _Sample(3, "Ada Lovelace Ltd", "2026-01-19", 64_050, "paid"),
    _Sample(4, "Turing Bakery", "2026-01-27", 23_780, "paid"),
    _Sample(7, "Noether Optics", "2026-02-04", 151_200, "paid"),
    _Sample(8, "Curie Laboratories", "2026-02-17", 48_990, "refunded"),
    _Sample(11, "Hopper Logistics", "2026-03-02", 132_500, "paid"),
    _Sample(12, "Ada Lovelace Analytics", "2026-03-11", 75_000, "paid"),
    _Sample(15, "Turing Machines", "2026-03-24", 99_900, "paid"),
    _Sample(18, "Ramanujan Textiles", "2026-04-09", 182_340, "paid"),
    _Sample(19, "Turing Bakery", "2026-04-21", 19_960, "overdue"),
    _Sample(22, "Noether Optics", "2026-05-06", 110_000, "paid"),
    _Sample(23, "Hopper & Sons", "2026-05-13", 95_500, "paid"),
    _Sample(26, "Curie Laboratories", "2026-05-28", 61_475, "overdue"),
    _Sample(29, "Ada Lovelace Ltd", "2026-06-10", 88_000, "paid"),
    _Sample(31, "Turing Machines", "2026-06-23", 204_999, "paid"),
    _Sample(34, "Hopper Logistics", "2026-07-07", 58_300, "paid"),
    _Sample(35, "Ramanujan Textiles", "2026-07-20", 142_600, "overdue"),
    _Sample(38, "Ada Lovelace Analytics", "2026-08-05", 167_250, "paid"),
    _Sample(40, "Noether Optics", "2026-08-26", 43_120, "paid"),
    _Sample(42, "Ada Lovelace Ltd", "2026-09-03", 12_000, "open"),
    _Sample(45, "Curie Laboratories", "2026-09-15", 239_800, "paid"),
    _Sample(47, "Turing Bakery", "2026-09-29", 27_415, "open"),
    _Sample(51, "Hopper & Sons", "2026-10-08", 118_900, "paid"),
    _Sample(55, "Turing Machines", "2026-10-22", 85_000, "open"),
    _Sample(58, "Ramanujan Textiles", "2026-11-05", 73_330, "open"),
    _Sample(60, "Ada Lovelace Analytics", "2026-11-16", 156_000, "open"),
)


@tool(description="List invoices, all of them or only those with one status", read_only=True)
def list_invoices(status: Status | None = None) -> str:
    """Return the total and one line per invoice."""
    kind = "invoices"
    if status:
        kind = f"{status} invoices"
    rows = [row for row in _invoices() if status in (None, row["status"])]
    if not rows:
        return f"There are no {kind}."
    total = _euros(sum(row["amount_cents"] for row in rows))
    lines = [f"{len(rows)} {kind}, {total} in all:", "", *map(_line, rows)]
    return "\n".join(lines)


@tool(
    description="Find one invoice by its number or by its customer's name",
    read_only=True,
    param_metadata={
        "query": {"description": "An invoice number such as INV-42, or part of a customer's name"}
    },
)
def find_invoice(query: str) -> str | ToolResult:
    """Return the invoice, or a typed result if none or several match."""
    invoice = _find(query)
    if invoice:
        return _summary(invoice)

    matches = _invoices_of_customer(query)
    if not matches:
        return NotFound(entity="invoice", query=query)
    if len(matches) > 1:
        return Ambiguous(entity="invoice", query=query, matches=[_summary(row) for row in matches])
    return _summary(matches[0])


def _invoices_of_customer(query: str) -> list[sqlite3.Row]:
    """Return the invoices of customers whose name has all words of the query."""
    words = query.casefold().split()
    if not words:
        return []
    matches = []
    for row in _invoices():
        customer = row["customer"].casefold()
        if all(word in customer for word in words):
            matches.append(row)
    return matches


def preview_delete(invoice_id: str) -> str | ToolResult:
    """Return the text that the user confirms, or NotFound if there is nothing to delete."""
    row = _find(invoice_id)
    if row is None:
        return NotFound(entity="invoice", query=invoice_id)
    facts = f"{row['customer']}, {_euros(row['amount_cents'])}, {row['status']}"
    return f"Delete invoice {row['id']} ({facts})"


def restore_invoice(invoice_id: str) -> str:
    """Move a deleted invoice from the bin back to the invoices."""
    key = _key(invoice_id)
    with _transaction("IMMEDIATE") as database:
        inserted = database.execute(
            "INSERT OR IGNORE INTO invoices SELECT * FROM bin WHERE id = ?", (key,)
        )
        if not inserted.rowcount:
            return f"Nothing was restored: invoice {key} is not in the bin."
        database.execute("DELETE FROM bin WHERE id = ?", (key,))
        _record(database, "restore", key)
    return f"Invoice {key} is back."


def was_deleted(action: PendingAction) -> bool:
    """Return whether a deletion took effect whose worker died in the middle of it.

    The invoice was there when the question was asked. So if it is missing, it was deleted.
    """
    return _find(action.args["invoice_id"]) is None


@tool(
    description="Delete one invoice",
    requires_approval=True,
    preview=preview_delete,
    undo=restore_invoice,
    reconcile=was_deleted,
    param_metadata={"invoice_id": {"description": "The invoice number, such as INV-42"}},
)
def delete_invoice(invoice_id: str) -> str:
    """Delete the invoice if it still exists."""
    key = _key(invoice_id)
    with _transaction("IMMEDIATE") as database:
        if not _move_to_bin(database, key):
            return f"Nothing was deleted: there is no invoice {key}."
    return f"Invoice {key} is deleted."


def _move_to_bin(database: sqlite3.Connection, key: str) -> bool:
    """Move an invoice to the bin. Return whether it was there."""
    database.execute("CREATE TABLE IF NOT EXISTS bin AS SELECT * FROM invoices WHERE 0")
    database.execute("INSERT INTO bin SELECT * FROM invoices WHERE id = ?", (key,))
    deleted = database.execute("DELETE FROM invoices WHERE id = ?", (key,))
    if not deleted.rowcount:
        return False
    _record(database, "delete", key)
    return True


def preview_write_off() -> str | ToolResult:
    """Return the invoices that would be deleted, or NotFound if none is overdue."""
    rows = [row for row in _invoices() if row["status"] == "overdue"]
    if not rows:
        return NotFound(entity="invoice", query="overdue")
    total = _euros(sum(row["amount_cents"] for row in rows))
    ids = ", ".join(row["id"] for row in rows)
    return f"Write off {len(rows)} overdue invoices, {total} in all: {ids}"


def restore_written_off(result: str) -> str:
    """Move the invoices that the tool's result names back from the bin."""
    ids = re.findall(r"INV-\d+", result)
    return "\n".join(map(restore_invoice, ids))


@tool(
    description="Write off every overdue invoice: they all leave the books",
    requires_approval=True,
    typed_code=True,
    preview=preview_write_off,
    undo=restore_written_off,
)
def write_off_overdue() -> str:
    """Delete all overdue invoices in one transaction."""
    with _transaction("IMMEDIATE") as database:
        rows = database.execute(
            "SELECT id FROM invoices WHERE status = 'overdue' ORDER BY number"
        ).fetchall()
        for row in rows:
            _move_to_bin(database, row["id"])
    ids = ", ".join(row["id"] for row in rows)
    return f"Written off: {ids or 'nothing'}."


@tool(
    description="Reset the demo: all its invoices as they were at the start",
    requires_approval=True,
    preview="Put all invoices of this demo back as they were at the start",
)
def reset_demo() -> str:
    """Undo everything that was deleted, refunded and written off."""
    reset_invoices(_data_file())
    return f"All {len(_SAMPLE_INVOICES)} invoices are as they were at the start."


def reset_invoices(file: Path) -> None:
    """Restore the invoices of a data file to their initial state. The ledger stays."""
    if not file.exists():
        return
    with closing(_connect(file)) as database, database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("DROP TABLE IF EXISTS bin")
        database.execute("DELETE FROM invoices")
        _insert_samples(database)


@tool(
    description="Refund a paid invoice, in part or in full",
    proposes=True,  # the tool only asks; the executor below pays back
    idempotent=True,
    param_metadata={
        "invoice_id": {"description": "The invoice number, such as INV-42"},
        "amount": {"description": "How much to pay back, in EUR, such as 20.50"},
    },
)
def refund_invoice(invoice_id: str, amount: float) -> str | ToolResult:
    """Propose the refund. Nothing is paid back before the user confirms."""
    row = _find(invoice_id)
    if row is None:
        return NotFound(entity="invoice", query=invoice_id)
    try:
        cents = _cents(amount)
        _check_refundable(row, cents)
    except ValueError as exc:
        return str(exc)

    preview = f"Refund {_euros(cents)} of invoice {row['id']} ({row['customer']})"
    is_proposed = stash_pending(
        kind="refund",
        preview=preview,
        args={"invoice_id": row["id"], "cents": cents},
        idempotent=True,
    )
    if not is_proposed:
        raise RuntimeError(
            "a refund needs a yes, but no user is here to give it: run it on a channel"
        )
    return PendingConfirmation(action="refund", preview=preview)


@executor_factory("refund")
def refund_executor(action: PendingAction) -> Callable[[], str]:
    """Return the function that performs a confirmed refund, built from its stored action.

    With the id of the action, a second run does nothing.
    """
    invoice_id = action.args["invoice_id"]
    cents = action.args["cents"]
    return lambda: _refund(invoice_id, cents, action.pending_action_id)


@tool(description="Draw a bar chart of the sales of one year by month", read_only=True)
def sales_chart(year: int = 2026) -> str:
    """Attach a PNG to the reply and return the best month."""
    totals = _monthly_cents(year)
    if not any(totals):
        return f"There were no sales in {year}."
    try:
        try_libraries(["charts"])
    except LibraryError as exc:
        raise ToolError(f"No chart can be drawn: {exc}") from exc

    picture = _chart(year, totals)
    emit_artifact(picture, mime_type="image/png", filename=f"sales-{year}.png", role="primary")
    best_total = max(totals)
    best_month = MONTHS[totals.index(best_total)]
    return (
        f"Sales in {year}: {_euros(sum(totals))}. "
        f"The best month was {best_month} with {_euros(best_total)}."
    )


@tool(description="Export all invoices as a CSV file", read_only=True)
def export_invoices() -> str:
    """Attach a CSV to the reply. Amounts are in EUR with a decimal point."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", "customer", "issued", "amount", "refunded", "status"])
    rows = _invoices()
    for row in rows:
        writer.writerow(
            [
                row["id"],
                row["customer"],
                row["issued"],
                _decimal(row["amount_cents"]),
                _decimal(row["refunded_cents"]),
                row["status"],
            ]
        )
    emit_artifact(
        text.getvalue().encode(), mime_type="text/csv", filename="invoices.csv", role="primary"
    )
    return f"{len(rows)} invoices exported."


@tool(
    description="Write a sales report of one year, section by section",
    streaming=True,
    read_only=True,
)
def sales_report(year: int = 2026, _pause: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Return the report section by section, as each is ready."""
    for section in _sections(year):
        _pause(SECTION_SECONDS)
        yield Markdown(section)


def _sections(year: int) -> Iterator[str]:
    """Yield the sections of the sales report in Markdown."""
    rows = [row for row in _invoices() if row["issued"].startswith(f"{year}-")]
    totals = _monthly_cents(year)
    total = _euros(sum(totals))
    yield f"**Sales report {year}**\n\n{len(rows)} invoices, {total} after refunds.\n"

    for quarter in range(4):
        months = totals[quarter * 3 : quarter * 3 + 3]
        yield f"\n- Q{quarter + 1}: {_euros(sum(months))}"

    yield "\n\n**By customer**\n"
    # A customer's name is plain text. It may have characters that mean something in Markdown.
    yield "".join(
        f"\n- {as_markdown(customer)}: {_euros(cents)}" for customer, cents in _by_customer(rows)
    )

    unpaid = [row for row in rows if row["status"] in ("open", "overdue")]
    unpaid_total = _euros(sum(row["amount_cents"] for row in unpaid))
    yield f"\n\n**Still to be paid:** {unpaid_total} in {len(unpaid)} invoices."


def _by_customer(rows: Iterable[sqlite3.Row]) -> list[tuple[str, int]]:
    """Return each customer with the net cents of all invoices, the largest first."""
    cents: dict[str, int] = {}
    for row in rows:
        cents[row["customer"]] = cents.get(row["customer"], 0) + _net(row)
    return sorted(cents.items(), key=lambda item: -item[1])


def _monthly_cents(year: int) -> list[int]:
    """Return the net cents of each month: invoiced minus refunded."""
    totals = [0] * 12
    for row in _invoices():
        if row["issued"].startswith(f"{year}-"):
            month = int(row["issued"][5:7])
            totals[month - 1] += _net(row)
    return totals


def _chart(year: int, totals: list[int]) -> bytes:
    """Return a PNG picture of the totals of all months, in cents.

    matplotlib is imported here, because it is slow to load and only this tool needs it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=170, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    euros = [cents / 100 for cents in totals]
    colors = ["#4f46e5" if value == max(euros) else "#a5b4fc" for value in euros]
    bars = axes.bar(MONTHS, euros, color=colors, width=0.68, zorder=2)
    numbers = [f"{value:,.0f}" if value else "" for value in euros]
    axes.bar_label(bars, numbers, padding=3, fontsize=10, color="#374151")
    axes.set_title(
        f"Sales {year}, EUR by month",
        loc="left",
        fontsize=15,
        fontweight="bold",
        color="#111827",
        pad=16,
    )
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color="#e5e7eb", zorder=0)
    axes.tick_params(length=0, colors="#6b7280", labelsize=10)
    axes.spines[:].set_visible(False)

    file = io.BytesIO()
    FigureCanvasAgg(figure)  # registers itself with the figure
    figure.savefig(file, format="png")
    return file.getvalue()


def _refund(invoice_id: str, cents: int, action_id: str) -> str:
    """Pay back once per action, if the invoice still allows it. Return a text for the user."""
    try:
        with _transaction("IMMEDIATE") as database:
            if not _is_recorded(database, action_id):
                _check_refundable(_existing(database, invoice_id), cents)
                database.execute(_REFUND, {"id": invoice_id, "cents": cents})
                _record(database, "refund", invoice_id, action_id)
    except ValueError as exc:
        return str(exc)
    return f"Refunded {_euros(cents)} of invoice {invoice_id}."


def _existing(database: sqlite3.Connection, invoice_id: str) -> sqlite3.Row:
    """Return an invoice. Raise ValueError with a text for the user if there is none."""
    row: sqlite3.Row | None = database.execute(
        "SELECT * FROM invoices WHERE id = ?", (invoice_id,)
    ).fetchone()
    if row is None:
        raise ValueError(f"Nothing was refunded: there is no invoice {invoice_id}.")
    return row


def _check_refundable(row: sqlite3.Row, cents: int) -> None:
    """Raise ValueError with a text for the user if more would be refunded than was paid."""
    if row["status"] in ("open", "overdue"):
        raise ValueError(
            f"Nothing was refunded: invoice {row['id']} is {row['status']}, so nothing was paid yet."
        )
    refundable = _net(row)
    if cents > refundable:
        raise ValueError(
            f"Nothing was refunded: {_euros(cents)} is more than the {_euros(refundable)} left "
            f"of invoice {row['id']}."
        )


def _cents(amount: float) -> int:
    """Return an amount in EUR in cents.

    Raise ValueError, with a text for the user, unless it is a positive number of whole cents.
    """
    # Through str, because 20.1 means 20.10, and not the nearest binary fraction.
    cents = Decimal(str(amount)) * 100
    if not cents.is_finite() or cents <= 0 or cents != cents.to_integral_value():
        raise ValueError(
            f"Nothing was refunded: {amount!r} is not an amount in EUR, write it like 20.50."
        )
    return int(cents)


def _net(row: sqlite3.Row) -> int:
    """Return what an invoice is worth in cents: its amount without what was refunded."""
    cents: int = row["amount_cents"] - row["refunded_cents"]
    return cents


def _line(row: sqlite3.Row) -> str:
    """Return an invoice as an item of a Markdown list."""
    return f"- **{row['id']}** {row['customer']}, {_euros(row['amount_cents'])}, {row['status']}"


def _summary(row: sqlite3.Row) -> str:
    """Return an invoice on one line."""
    facts = f"{row['customer']}, {_euros(row['amount_cents'])}, {row['status']}"
    return f"{row['id']}: {facts}, issued {row['issued']}"


def _euros(cents: int) -> str:
    """Return an amount with its currency."""
    return f"{_decimal(cents)} EUR"


def _decimal(cents: int) -> str:
    """Return an amount in EUR, with two places after the point."""
    return f"{Decimal(cents) / 100:.2f}"


def _key(invoice_id: str) -> str:
    """Return an id as it is stored. People also write `inv-42`, `#42` or `42`."""
    key = invoice_id.strip().lstrip("#").upper()
    if key.isdecimal():
        return f"INV-{key}"
    return key


def _find(invoice_id: str) -> sqlite3.Row | None:
    """Return an invoice, None if there is none."""
    with _transaction() as database:
        row: sqlite3.Row | None = database.execute(
            "SELECT * FROM invoices WHERE id = ?", (_key(invoice_id),)
        ).fetchone()
    return row


def _invoices() -> list[sqlite3.Row]:
    """Return all invoices by number."""
    with _transaction() as database:
        return database.execute("SELECT * FROM invoices ORDER BY number").fetchall()


def _record(
    database: sqlite3.Connection, what: str, invoice_id: str, action_id: str | None = None
) -> None:
    """Add an entry to the ledger, in the transaction of the change that it records."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    database.execute(
        "INSERT INTO ledger (what, id, at, action) VALUES (?, ?, ?, ?)",
        (what, invoice_id, now, action_id),
    )


def _is_recorded(database: sqlite3.Connection, action_id: str) -> bool:
    """Return whether the ledger has the effect of this action."""
    entry = database.execute("SELECT 1 FROM ledger WHERE action = ?", (action_id,)).fetchone()
    return entry is not None


@contextmanager
def _transaction(
    kind: Literal["DEFERRED", "IMMEDIATE"] = "DEFERRED",
) -> Iterator[sqlite3.Connection]:
    """Run one transaction on a new connection.

    Tools run in threads, and threads must not share an SQLite connection.
    """
    with closing(_connect(_data_file())) as database:
        database.execute(f"BEGIN {kind}")
        try:
            yield database
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")


def _connect(file: Path) -> sqlite3.Connection:
    """Open the file. Transactions are begun and ended by hand, and rows have names."""
    database = sqlite3.connect(file, timeout=10, isolation_level=None)
    database.row_factory = sqlite3.Row
    return database


def _data_file() -> Path:
    """Return the data file. It is created on first use."""
    file = Path(os.environ.get("SAYSO_DATA", ".sayso")) / FILE
    if not file.exists():
        _create(file)
    return file


def _create(file: Path) -> None:
    """Make the data file in a temporary folder, then link it to its name in one step.

    Two processes may start at once: no process ever sees half a file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent, prefix=".invoices-") as folder:
        draft = Path(folder) / "draft.sqlite3"
        with closing(_connect(draft)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(_SCHEMA)
            _insert_samples(database)
        with suppress(FileExistsError):  # the other process was first
            os.link(draft, file)


def _insert_samples(database: sqlite3.Connection) -> None:
    """Insert the invoices of the demo at its start."""
    for sample in _SAMPLE_INVOICES:
        values = sample._asdict()
        values["id"] = f"INV-{sample.number}"
        values["refunded_cents"] = sample.amount_cents if sample.status == "refunded" else 0
        database.execute(_INSERT, values)
