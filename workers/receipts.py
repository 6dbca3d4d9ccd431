"""Receipts: what platforms took, on this machine's disk before Redis hears of it.

Between a platform's answer and Redis's note of it a worker may be killed, or Redis be away. Whoever is to send such a
reply again looks here first. What is not found may still have arrived, and is sent again, marked.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Protocol

from sayso.channels.types import Delivery

log = logging.getLogger(__name__)

#: The folder's name in the data folder.
FOLDER = "receipts"
#: Bytes of one file, after which the next one is begun and the one before it is the last that is kept: 3,000 receipts.
MAX_BYTES = 256 * 1024
#: Seconds for which a receipt is looked for: longer than any lane waits for its next holder while Redis is there.
KEEP_SECONDS = 3600


class Receipts(Protocol):
    """Where it is noted what a platform took."""

    def note(self, delivery: Delivery, message_id: str) -> None:
        """The platform took it, as this message. Failing is no error."""

    def find(self, delivery: Delivery) -> str | None:
        """The platform's message id, "" where it gave none; None: nobody knows."""


class NoReceipts:
    """Nothing is noted."""

    def note(self, delivery: Delivery, message_id: str) -> None:
        """Not at all."""

    def find(self, delivery: Delivery) -> str | None:
        """Nobody knows."""
        return None


class ReceiptFiles:
    """A file for each process in one folder, appended to and never synced: it has to outlive its process, no machine.

    `name` is the process's own.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._file = -1
        self._size = 0

    def note(self, delivery: Delivery, message_id: str) -> None:
        """One line in this process's file: a write to the machine's cache, shorter than a thread would take."""
        line = f"{_key(delivery)} {''.join(message_id.split())}\n".encode()
        try:
            if self._file < 0 or self._size > MAX_BYTES:
                self._begin()
            self._size += os.write(self._file, line)
        except OSError as exc:
            log.warning("receipt.not_noted", extra={"reason": type(exc).__name__})

    def find(self, delivery: Delivery) -> str | None:
        """Look in all files of the last hour. Reads the disk."""
        wanted = f"{_key(delivery)} ".encode()
        for path in self._path.parent.glob("*"):
            try:
                if time.time() - path.stat().st_mtime < KEEP_SECONDS:
                    data = b"\n" + path.read_bytes()
                    _, found, rest = data.partition(b"\n" + wanted)
                    if found and b"\n" in rest:  # a line that is not whole says nothing
                        return rest.partition(b"\n")[0].decode()
            except OSError:  # swept meanwhile
                continue
        return None

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._path.replace(self._path.with_name(f"{self._path.name}.old"))
        self._sweep()
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o600)
        self._size = 0

    def _sweep(self) -> None:
        """Dead processes leave their files behind."""
        for path in self._path.parent.glob("*"):
            with contextlib.suppress(OSError):  # somebody else's sweep was faster
                if time.time() - path.stat().st_mtime > KEEP_SECONDS:
                    path.unlink()


def _key(delivery: Delivery) -> str:
    """The delivery's id, and its content: a Redis that was emptied gives out its ids once more."""
    return f"{delivery.id} {hashlib.sha256(repr(delivery.reply).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
