"""The invoice desk: every effect happens once and shows in the ledger."""

from __future__ import annotations

import asyncio
import csv
import io
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sayso.agent import Ambiguous, NotFound
from sayso.agent.tools import collect_artifacts, load_tools
from sayso.examples import invoices
from sayso.pending.action import PendingAction
from sayso.pending.executors import PendingConfirmation
from sayso.pending.proposals import ChannelRun, channel_run


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that does not exist yet."""
    monkeypatch.setenv("SAYSO_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def run():
    """A turn on a channel, so that something can be proposed."""
    with channel_run(ChannelRun("u1", "web", "c1", 60, "v1")) as run:
        yield run


def rows(data: Path, query: str) -> list[tuple]:
    """What a query finds in the desk's file."""
    with sqlite3.connect(data / "invoices.sqlite3") as desk:
        found = desk.execute(query).fetchall()
    desk.close()
    return found


def refund(invoice_id: str, cents: int, action_id: str = "a1") -> str:
    """Run a confirmed refund, as the kernel would from its record."""
    args = {"invoice_id": invoice_id, "cents": cents}
    action = PendingAction("u1", "refund", "words", args, pending_action_id=action_id)
    return invoices.refund_executor(action)()


def test_proposing_a_deletion_deletes_nothing(data: Path, run: ChannelRun):
    """Before the yes, the ledger is empty and the invoice is there."""
    result = invoices.delete_invoice.propose({"invoice_id": "INV-42"})
    assert isinstance(result, PendingConfirmation)
    assert run.proposals[0].preview == "Delete invoice INV-42 (Ada Lovelace Ltd, 120.00 EUR, open)"
    assert rows(data, "SELECT * FROM ledger") == []


def test_a_deletion_that_finds_nothing_proposes_nothing(run: ChannelRun):
    """Nobody is asked to confirm what cannot happen."""
    assert invoices.delete_invoice.propose({"invoice_id": "INV-999"}) == NotFound("invoice", "INV-999")
    assert run.proposals == []


def test_deleting_twice_has_one_effect(data: Path):
    """The second says so."""
    assert invoices.delete_invoice("INV-42") == "Invoice INV-42 is deleted."
    assert invoices.delete_invoice("INV-42") == "Nothing was deleted: there is no invoice INV-42."
    assert rows(data, "SELECT what, id FROM ledger") == [("delete", "INV-42")]


def test_sql_in_an_argument_is_only_a_name(data: Path):
    """Arguments come from a model: they are values, never SQL."""
    hostile = "' OR 1=1; DROP TABLE invoices; --"
    assert invoices.delete_invoice(hostile).startswith("Nothing was deleted")
    assert isinstance(invoices.find_invoice(hostile), NotFound)
    assert isinstance(invoices.find_invoice("%"), NotFound)
    assert rows(data, "SELECT count(*) FROM invoices") == [(26,)]


def test_one_action_refunds_once(data: Path):
    """A second run of the same confirmed action books nothing."""
    assert refund("INV-45", 2000) == refund("INV-45", 2000) == "Refunded 20.00 EUR of invoice INV-45."
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
def test_an_impossible_refund_is_not_proposed(run: ChannelRun, invoice_id: str, amount: float, words: str):
    """The user is told why, and has nothing to confirm."""
    assert words in invoices.refund_invoice(invoice_id, amount)
    assert run.proposals == []


def test_a_refund_is_checked_again_when_it_runs(data: Path):
    """Between the question and the yes, the invoice may have changed."""
    refund("INV-4", 23_780, "a1")
    assert "more than the 0.00 EUR left" in refund("INV-4", 1, "a2")
    invoices.delete_invoice("INV-45")
    assert refund("INV-45", 1, "a3") == "Nothing was refunded: there is no invoice INV-45."
    assert rows(data, "SELECT count(*) FROM ledger") == [(2,)]


@pytest.mark.parametrize(("amount", "cents"), [(20.1, 2010), (0.07, 7), (1.15, 115), (20, 2000), (129.99, 12999)])
def test_a_proposal_holds_exact_cents(run: ChannelRun, amount: float, cents: int):
    """Binary fractions never cost anybody a cent."""
    assert isinstance(invoices.refund_invoice("INV-45", amount), PendingConfirmation)
    assert run.proposals[0].args == {"invoice_id": "INV-45", "cents": cents}
    assert run.proposals[0].kind == "refund"


def test_a_refund_without_a_user_fails():
    """Outside a channel nobody can say yes, so nothing pretends to wait for it."""
    with pytest.raises(RuntimeError, match="needs a yes"):
        invoices.refund_invoice("INV-45", 20)


def test_a_full_refund_changes_the_status(data: Path):
    """Part by part, until nothing is left."""
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
    """Only using the desk does."""
    assert {tool.name for tool in load_tools("sayso.examples.invoices").tools} >= {"list_invoices", "delete_invoice"}
    assert not data.exists()


def test_the_loader_finds_the_refund_executor():
    """After a restart, the factory is found by its kind."""
    assert set(load_tools("sayso.examples.invoices").executor_factories) == {"refund"}


def test_what_was_written_off_comes_back(data: Path):
    """All overdue invoices leave at once; an undo takes back just those."""
    gone = invoices.write_off_overdue.callable()
    assert gone == "Written off: INV-19, INV-26, INV-35."
    assert rows(data, "SELECT count(*) FROM invoices WHERE status = 'overdue'") == [(0,)]
    assert invoices.write_off_overdue.callable() == "Written off: nothing."
    assert isinstance(invoices.preview_write_off(), NotFound)
    invoices.restore_written_off(gone)
    assert rows(data, "SELECT count(*) FROM invoices WHERE status = 'overdue'") == [(3,)]


def test_demo_starts_over(data: Path):
    """Whatever was deleted or paid back is as it was; the ledger of what was done stays."""
    invoices.reset_invoices(data / invoices.FILE)  # before the first use there is nothing to reset
    before = invoices.list_invoices.callable()
    invoices.delete_invoice.callable("INV-42")
    invoices.write_off_overdue.callable()
    invoices.reset_demo.callable()
    assert invoices.list_invoices.callable() == before
    assert rows(data, "SELECT count(*) FROM ledger WHERE what = 'delete'") == [(4,)]
    assert invoices.delete_invoice.callable("INV-42") == "Invoice INV-42 is deleted."


@pytest.mark.parametrize("spelling", ["INV-42", "inv-42", " 42 ", "#42", "#inv-42"])
def test_an_invoice_is_found_however_it_is_written(spelling: str):
    """People do not type like databases."""
    assert invoices.find_invoice(spelling) == "INV-42: Ada Lovelace Ltd, 120.00 EUR, open, issued 2026-09-03"


def test_similar_names_are_ambiguous():
    """The model is told what matches, and asks."""
    result = invoices.find_invoice("ada lovelace")
    assert isinstance(result, Ambiguous)
    assert len(result.matches) == 6
    assert isinstance(invoices.find_invoice("  "), NotFound)


def test_listing_by_status_adds_up():
    """One line per invoice, and the total."""
    lines = invoices.list_invoices("refunded").splitlines()
    assert lines == [
        "1 refunded invoices, 489.90 EUR in all:",
        "",
        "- **INV-8** Curie Laboratories, 489.90 EUR, refunded",
    ]


def test_a_listing_of_nothing_says_so():
    """No empty message."""
    invoices.delete_invoice("INV-8")
    assert invoices.list_invoices("refunded") == "There are no refunded invoices."


def test_the_chart_is_a_picture_beside_the_words():
    """A PNG artifact; the words hold the total for the model."""
    with collect_artifacts() as made:
        words = invoices.sales_chart()
    (chart,) = made
    assert chart.data.startswith(b"\x89PNG\r\n\x1a\n")
    assert (chart.mime_type, chart.filename) == ("image/png", "sales-2026.png")
    assert words.startswith("Sales in 2026: 25214.19 EUR.")


def test_a_year_without_sales_has_no_chart():
    """Words instead of an empty picture."""
    with collect_artifacts() as made:
        assert invoices.sales_chart(1999) == "There were no sales in 1999."
    assert made == []


def test_the_export_holds_every_invoice():
    """A CSV that a spreadsheet opens."""
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
    """The pause is ours alone."""
    assert list(invoices.sales_report.schema()["parameters"]["properties"]) == ["year"]


def test_tools_answer_through_the_agents_door():
    """Arguments arrive as a model sends them, results leave as it reads them."""
    assert asyncio.run(invoices.find_invoice.aexecute({"query": "zz"})).startswith('{"kind": "not_found"')
