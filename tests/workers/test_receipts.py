"""Receipts: every process finds the receipts that another one stored, and no others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sayso.channels.types import Conversation, Delivery, Receipt, Reply
from sayso.workers import sender as receipts
from sayso.workers.sender import KEEP_RECEIPTS_SECONDS, ReceiptFiles


def delivery(number: int, text: str = "hi") -> Delivery:
    """Return the delivery with this number."""
    return Delivery(f"chat:{'0' * 20}#{number}", Conversation("chat", "room"), Reply(text))


def noted(folder: Path, *numbers: int, name: str = "w1") -> ReceiptFiles:
    """Return the receipts of a process that stored these."""
    book = ReceiptFiles(folder, name)
    for number in numbers:
        book.note(delivery(number), Receipt(f"m{number}"))
    return book


def test_receipts_of_one_process_are_found_by_others(tmp_path):
    """The whole id counts. A platform without ids has accepted the reply all the same."""
    noted(tmp_path, 1, 12).note(delivery(3), Receipt(""))
    found = [ReceiptFiles(tmp_path, "w2").find(delivery(number)) for number in (1, 12, 3, 2)]
    assert found == [Receipt("m1"), Receipt("m12"), Receipt(""), None]


def test_receipt_keeps_what_the_platform_charges_and_when_it_shows_the_message(tmp_path):
    """Another process records the reply with them."""
    receipt = Receipt("m1", written_at=1700000000.25, price_class="service")
    ReceiptFiles(tmp_path, "w1").note(delivery(1), receipt)
    found = ReceiptFiles(tmp_path, "w2").find(delivery(1))
    assert (found.written_at, found.price_class) == (1700000000.25, "service")


def test_process_that_was_idle_for_long_notes_in_a_new_file(tmp_path):
    """Another process took its file for that of a dead one and removed it."""
    idle = noted(tmp_path, 1)
    before = time.time() - KEEP_RECEIPTS_SECONDS - 60
    os.utime(tmp_path / "w1", (before, before))
    noted(tmp_path, 2, name="w2")
    idle.note(delivery(3), Receipt("m3"))
    assert ReceiptFiles(tmp_path, "w3").find(delivery(3)) == Receipt("m3")


def test_file_that_cannot_be_renewed_closes_no_file_of_others(tmp_path, monkeypatch):
    """The system gives the number of a closed file to the next one, such as a connection."""
    monkeypatch.setattr(receipts, "MAX_RECEIPTS_BYTES", 1)
    book = noted(tmp_path, 1)
    (tmp_path / "w1.old").mkdir()
    book.note(delivery(2), Receipt("m2"))
    with (tmp_path.parent / "other").open("w") as other:
        book.note(delivery(3), Receipt("m3"))
        os.fstat(other.fileno())
    (tmp_path / "w1.old").rmdir()
    book.note(delivery(4), Receipt("m4"))
    assert book.find(delivery(1)) == Receipt("m1")
    assert book.find(delivery(4)) == Receipt("m4")


def test_other_text_under_the_same_id_is_another_reply(tmp_path):
    """An emptied Redis gives out its ids again, and the new replies must go out."""
    noted(tmp_path, 1)
    assert ReceiptFiles(tmp_path, "w2").find(delivery(1, "something else")) is None


def test_truncated_line_is_ignored(tmp_path):
    """The process may have been killed while it wrote."""
    noted(tmp_path, 1)
    path = tmp_path / "w1"
    path.write_bytes(path.read_bytes()[:-1])
    assert ReceiptFiles(tmp_path, "w2").find(delivery(1)) is None


def test_files_are_bounded_and_the_last_receipts_stay(tmp_path, monkeypatch):
    """A process has two files at most."""
    monkeypatch.setattr(receipts, "MAX_RECEIPTS_BYTES", 1000)
    book = noted(tmp_path, *range(200))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2500
    assert (book.find(delivery(199)), book.find(delivery(195)), book.find(delivery(0))) == (
        Receipt("m199"),
        Receipt("m195"),
        None,
    )


def test_old_files_are_neither_read_nor_stored(tmp_path):
    """A reply that was doubtful an hour ago has been settled."""
    noted(tmp_path, 1)
    before = time.time() - KEEP_RECEIPTS_SECONDS - 60
    os.utime(tmp_path / "w1", (before, before))
    assert ReceiptFiles(tmp_path, "w2").find(delivery(1)) is None
    noted(tmp_path, 2, name="w2")
    assert [path.name for path in tmp_path.iterdir()] == ["w2"]


@pytest.mark.parametrize("broken", ["a file in its place", "nothing there"])
def test_failing_disk_stops_no_reply(tmp_path, broken, caplog):
    """A receipt that is not stored costs a mark, not a message."""
    folder = tmp_path / "receipts"
    if broken == "a file in its place":
        folder.touch()
        noted(folder, 1)
        assert "receipt.not_noted" in caplog.text
    assert ReceiptFiles(folder, "w2").find(delivery(1)) is None
