"""Receipts: what one process noted every other one finds, and nothing that was not noted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sayso.channels.types import Conversation, Delivery, Reply
from sayso.workers import outbox as receipts
from sayso.workers.outbox import KEEP_SECONDS, ReceiptFiles


def delivery(number: int, text: str = "hi") -> Delivery:
    """The reply of this number."""
    return Delivery(f"chat:{'0' * 20}#{number}", Conversation("chat", "room"), Reply(text))


def noted(folder: Path, *numbers: int, name: str = "w1") -> ReceiptFiles:
    """A process that noted these."""
    book = ReceiptFiles(folder, name)
    for number in numbers:
        book.note(delivery(number), f"m{number}")
    return book


def test_what_one_process_noted_others_find(tmp_path):
    """Each by its whole id; a platform that gives no id is one that took it all the same."""
    noted(tmp_path, 1, 12).note(delivery(3), "")
    found = [ReceiptFiles(tmp_path, "w2").find(delivery(number)) for number in (1, 12, 3, 2)]
    assert found == ["m1", "m12", "", None]


def test_other_words_under_the_same_id_are_another_reply(tmp_path):
    """A Redis that was emptied gives out its ids once more, and what it says then must go out."""
    noted(tmp_path, 1)
    assert ReceiptFiles(tmp_path, "w2").find(delivery(1, "something else")) is None


def test_line_that_was_cut_short_says_nothing(tmp_path):
    """Its process may have been killed while it wrote."""
    noted(tmp_path, 1)
    path = tmp_path / "w1"
    path.write_bytes(path.read_bytes()[:-1])
    assert ReceiptFiles(tmp_path, "w2").find(delivery(1)) is None


def test_files_are_bounded_and_the_last_receipts_stay(tmp_path, monkeypatch):
    """Two files of a process at most, whatever it sends."""
    monkeypatch.setattr(receipts, "MAX_BYTES", 1000)
    book = noted(tmp_path, *range(200))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2500
    assert (book.find(delivery(199)), book.find(delivery(190)), book.find(delivery(0))) == ("m199", "m190", None)


def test_old_files_are_neither_read_nor_kept(tmp_path):
    """What an hour ago was in doubt has been settled since."""
    noted(tmp_path, 1)
    before = time.time() - KEEP_SECONDS - 60
    os.utime(tmp_path / "w1", (before, before))
    assert ReceiptFiles(tmp_path, "w2").find(delivery(1)) is None
    noted(tmp_path, 2, name="w2")
    assert [path.name for path in tmp_path.iterdir()] == ["w2"]


@pytest.mark.parametrize("broken", ["a file in its place", "nothing there"])
def test_disk_that_cannot_be_used_stops_no_reply(tmp_path, broken, caplog):
    """A receipt that is not noted costs a mark, no message."""
    folder = tmp_path / "receipts"
    if broken == "a file in its place":
        folder.touch()
        noted(folder, 1)
        assert "receipt.not_noted" in caplog.text
    assert ReceiptFiles(folder, "w2").find(delivery(1)) is None
