"""The invoice desk: every effect happens once and stands in the ledger."""

from __future__ import annotations

import asyncio
import csv
import io
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sayso.agent import Ambiguous, NotFound
from sayso.agent.tools.environment import collect_artifacts
from sayso.agent.tools.loading import load_tools
from sayso.examples import invoices
from sayso.pending.action import PendingAction
from sayso.pending.call_context import ChannelRun, context_field
from sayso.pending.executors import PendingConfirmation


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder that does not exist yet."""
    monkeypatch.setenv("SAYSO_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def run():
    """Return a turn on a channel, so that tools can propose actions."""
    with context_field("run", ChannelRun("u1", "web", "c1", 60, "v1")) as run:
        yield run


def rows(data: Path, query: str) -> list[tuple]:
    """Return the result of a query on the desk's file."""
    with sqlite3.connect(data / "invoices.sqlite3") as desk:
        found = desk.execute(query).fetchall()
    desk.close()
    return found


def refund(invoice_id: str, cents: int, action_id: str = "a1") -> str:
    """Run a confirmed refund from its record, as the kernel does."""
    args = {"invoice_id": invoice_id, "cents": cents}
    action = PendingAction("u1", "refund", "words", args, pending_action_id=action_id)
    return invoices.refund_executor(action)()


def test_interrupted_deletion_is_looked_up():
    """The worker died in the middle: the desk says whether the invoice is gone."""
    record = PendingAction("u1", "delete_invoice", "words", {"invoice_id": "INV-42"})
    assert invoices.was_deleted(record) is False
    invoices.delete_invoice.run_raw({"invoice_id": "INV-42"})
    assert invoices.was_deleted(record) is True


def test_proposing_a_deletion_deletes_nothing(data: Path, run: ChannelRun):
    """Before the yes, the ledger is empty and the invoice is there."""
    result = invoices.delete_invoice.propose({"invoice_id": "INV-42"})
    assert isinstance(result, PendingConfirmation)
    assert run.proposals[0].preview == "Delete invoice INV-42 (Ada Lovelace Ltd, 120.00 EUR, open)"
    assert rows(data, "SELECT * FROM ledger") == []


def test_deletion_of_an_unknown_invoice_proposes_nothing(run: ChannelRun):
    """The user is not asked to confirm an impossible deletion."""
    assert invoices.delete_invoice.propose({"invoice_id": "INV-999"}) == NotFound(
        "invoice", "INV-999"
    )
    assert run.proposals == []


def test_deleting_twice_has_one_effect(data: Path):
    """The second deletion reports that it deleted nothing."""
    assert invoices.delete_invoice("INV-42") == "Invoice INV-42 is deleted."
    assert invoices.delete_invoice("INV-42") == "Nothing was deleted: there is no invoice INV-42."
    assert rows(data, "SELECT what, id FROM ledger") == [("delete", "INV-42")]


def test_sql_in_an_argument_is_a_plain_value(data: Path):
    """Arguments come from a model, so the desk binds them as values."""
    hostile = "' OR 1=1; DROP TABLE invoices; --"
    assert invoices.delete_invoice(hostile).startswith("Nothing was deleted")
    assert isinstance(invoices.find_invoice(hostile), NotFound)
    assert isinstance(invoices.find_invoice("%"), NotFound)
    assert rows(data, "SELECT count(*) FROM invoices") == [(26,)]


def test_one_action_refunds_once(data: Path):
    """A second run of the same confirmed action books nothing."""
    assert (
        refund("INV-45", 2000) == refund("INV-45", 2000) == "Refunded 20.00 EUR of invoice INV-45."
    )
    assert rows(data, "SELECT what, id FROM ledger") == [("refund", "INV-45")]
    assert rows(data, "SELECT refunded_cents FROM invoices WHERE id = 'INV-45'") == [(2000,)]


def test_two_refunds_at_once_never_exceed_what_was_paid(data: Path):
    """The check and the payment are one transaction."""
    invoices.list_invoices()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: refund("INV-4", 20_000, f"a{n}"), range(8)))
    assert sum(answer.startswith("Refunded") for answer in answers) == 1
    assert rows(data, "SELECT refunded_cents FROM invoices WHERE id = 'INV-4'") == [(20_000,)]


@pytest.mark.parametrize(
    ("invoice_id", "amount", "words"),
    [
        ("INV-4", 237.81, "237.81 EUR is more than the 237.80 EUR left"),
        ("INV-8", 0.01, "more than the 0.00 EUR left"),
        ("INV-42", 20, "is open, so nothing was paid yet"),
        ("INV-19", 20, "is overdue, so nothing was paid yet"),
        ("INV-4", 0, "not an amount"),
        ("INV-4", -5, "not an amount"),
        ("INV-4", 10.005, "not an amount"),
        ("INV-4", float("nan"), "not an amount"),
        ("INV-4", float("inf"), "not an amount"),
    ],
)
def test_an_impossible_refund_is_not_proposed(
    run: ChannelRun, invoice_id: str, amount: float, words: str
):
    """The tool tells the user the reason and proposes nothing."""
    assert words in invoices.refund_invoice(invoice_id, amount)
    assert run.proposals == []


def test_a_refund_is_checked_again_when_it_runs(data: Path):
    """Between the question and the yes, the invoice may have changed."""
    refund("INV-4", 23_780, "a1")
    assert "more than the 0.00 EUR left" in refund("INV-4", 1, "a2")
    invoices.delete_invoice("INV-45")
    assert refund("INV-45", 1, "a3") == "Nothing was refunded: there is no invoice INV-45."
    assert rows(data, "SELECT count(*) FROM ledger") == [(2,)]


@pytest.mark.parametrize(
    ("amount", "cents"), [(20.1, 2010), (0.07, 7), (1.15, 115), (20, 2000), (129.99, 12999)]
)
def test_a_proposal_holds_exact_cents(run: ChannelRun, amount: float, cents: int):
    """The amount survives the conversion from a binary fraction."""
    assert isinstance(invoices.refund_invoice("INV-45", amount), PendingConfirmation)
    assert run.proposals[0].args == {"invoice_id": "INV-45", "cents": cents}
    assert run.proposals[0].kind == "refund"


def test_a_refund_without_a_user_fails():
    """Outside a channel no user can confirm, so the tool fails instead of proposing."""
    with pytest.raises(RuntimeError, match="needs a yes"):
        invoices.refund_invoice("INV-45", 20)


def test_a_full_refund_changes_the_status(data: Path):
    """Partial refunds keep the status until nothing is left to refund."""
    refund("INV-4", 20_000, "a1")
    assert rows(data, "SELECT status FROM invoices WHERE id = 'INV-4'") == [("paid",)]
    refund("INV-4", 3_780, "a2")
    assert rows(data, "SELECT status FROM invoices WHERE id = 'INV-4'") == [("refunded",)]


def test_two_processes_that_start_at_once_share_one_desk(data: Path):
    """The file appears whole or not at all, and nothing else stays in the folder."""
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: invoices.list_invoices(), range(16)))) == 1
    assert {path.name.partition("-")[0] for path in data.iterdir()} == {"invoices.sqlite3"}
    assert rows(data, "PRAGMA journal_mode") == [("wal",)]


def test_importing_makes_no_file(data: Path):
    """Only the first use of the desk creates the file."""
    assert {tool.name for tool in load_tools("sayso.examples.invoices").tools} >= {
        "list_invoices",
        "delete_invoice",
    }
    assert not data.exists()


def test_the_loader_finds_the_refund_executor():
    """After a restart, the loader finds the factory by its kind."""
    assert set(load_tools("sayso.examples.invoices").executor_factories) == {"refund"}


def test_undo_restores_the_written_off_invoices(data: Path):
    """The tool deletes all overdue invoices at once; the undo restores exactly those."""
    gone = invoices.write_off_overdue.callable()
    assert gone == "Written off: INV-19, INV-26, INV-35."
    assert rows(data, "SELECT count(*) FROM invoices WHERE status = 'overdue'") == [(0,)]
    assert invoices.write_off_overdue.callable() == "Written off: nothing."
    assert isinstance(invoices.preview_write_off(), NotFound)
    invoices.restore_written_off(gone)
    assert rows(data, "SELECT count(*) FROM invoices WHERE status = 'overdue'") == [(3,)]


def test_reset_restores_the_demo(data: Path):
    """The reset restores deleted and refunded invoices, and keeps the ledger."""
    invoices.reset_invoices(data / invoices.FILE)  # before the first use there is nothing to reset
    before = invoices.list_invoices.callable()
    invoices.delete_invoice.callable("INV-42")
    invoices.write_off_overdue.callable()
    invoices.reset_demo.callable()
    assert invoices.list_invoices.callable() == before
    assert rows(data, "SELECT count(*) FROM ledger WHERE what = 'delete'") == [(4,)]
    assert invoices.delete_invoice.callable("INV-42") == "Invoice INV-42 is deleted."


@pytest.mark.parametrize("spelling", ["INV-42", "inv-42", " 42 ", "#42", "#inv-42"])
def test_invoice_is_found_in_every_spelling(spelling: str):
    """People write an invoice number in many ways."""
    assert (
        invoices.find_invoice(spelling)
        == "INV-42: Ada Lovelace Ltd, 120.00 EUR, open, issued 2026-09-03"
    )


def test_similar_names_are_ambiguous():
    """The model gets the matches and can ask the user."""
    result = invoices.find_invoice("ada lovelace")
    assert isinstance(result, Ambiguous)
    assert len(result.matches) == 6
    assert isinstance(invoices.find_invoice("  "), NotFound)


def test_listing_by_status_adds_up():
    """The listing has one line per invoice, and the total."""
    lines = invoices.list_invoices("refunded").splitlines()
    assert lines == [
        "1 refunded invoices, 489.90 EUR in all:",
        "",
        "- **INV-8** Curie Laboratories, 489.90 EUR, refunded",
    ]


def test_empty_listing_gets_a_sentence():
    """The tool answers that there are none instead of an empty message."""
    invoices.delete_invoice("INV-8")
    assert invoices.list_invoices("refunded") == "There are no refunded invoices."


def test_chart_is_a_picture_beside_the_text():
    """The tool makes a PNG artifact; its text has the total for the model."""
    with collect_artifacts() as made:
        words = invoices.sales_chart()
    (chart,) = made
    assert chart.data.startswith(b"\x89PNG\r\n\x1a\n")
    assert (chart.mime_type, chart.filename) == ("image/png", "sales-2026.png")
    assert words.startswith("Sales in 2026: 25214.19 EUR.")


def test_a_year_without_sales_has_no_chart():
    """The tool answers with a text instead of an empty picture."""
    with collect_artifacts() as made:
        assert invoices.sales_chart(1999) == "There were no sales in 1999."
    assert made == []


def test_the_export_holds_every_invoice():
    """The export is a CSV that a spreadsheet opens."""
    with collect_artifacts() as made:
        assert invoices.export_invoices() == "26 invoices exported."
    table = list(csv.DictReader(io.StringIO(made[0].data.decode())))
    assert len(table) == 26
    assert table[19] == {
        "id": "INV-42",
        "customer": "Ada Lovelace Ltd",
        "issued": "2026-09-03",
        "amount": "120.00",
        "refunded": "0.00",
        "status": "open",
    }


def test_the_report_streams_section_by_section():
    """Each section comes after its pause, and all of them make the report."""
    pauses: list[float] = []
    sections = list(invoices.sales_report(_pause=pauses.append))
    assert len(pauses) == len(sections) == 8
    assert "25214.19 EUR after refunds" in "".join(sections)


def test_the_model_sees_no_private_parameter():
    """The schema omits `_pause`, which exists for tests."""
    assert list(invoices.sales_report.schema()["parameters"]["properties"]) == ["year"]


def test_tools_accept_and_return_json_through_the_agent():
    """Arguments arrive as a model sends them, and results leave as a model reads them."""
    assert asyncio.run(invoices.find_invoice.aexecute({"query": "zz"})).startswith(
        '{"kind": "not_found"'
    )
