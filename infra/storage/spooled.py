"""SpooledBytes: bytes that wait to be stored, in memory or, if there are many, on the disk."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from sayso.infra.storage.files import make_private

#: More bytes than this are written to a file.
MAX_IN_MEMORY = 64 * 1024
_READ_BYTES = 256 * 1024


class SpooledBytes:
    """The bytes of one file, copied from a source. Used from any thread.

    Their place on the disk is free again when this object or its process ends.
    """

    def __init__(self, source: bytes | BinaryIO, *, folder: Path | None = None, most: int) -> None:
        """Copy a source, but at most `most` bytes and one more, which shows that it is too large.

        `folder` is where more than MAX_IN_MEMORY bytes are, and created if it is missing; None: the
        system's folder for temporary files, which may be in memory. Raises OSError.
        """
        if folder is not None:
            make_private(folder)
        #: How many bytes there are.
        self.size = 0
        self._lock = threading.Lock()
        place = str(folder) if folder else None
        file = SpooledTemporaryFile(MAX_IN_MEMORY, dir=place)  # noqa: SIM115  # open as long as this object
        self._file = cast("BinaryIO", file)

        reader = source
        if isinstance(reader, bytes):
            reader = BytesIO(reader)
        digest = hashlib.sha256()
        while self.size <= most:
            block = reader.read(min(_READ_BYTES, most + 1 - self.size))
            if not block:
                break
            self._file.write(block)
            digest.update(block)
            self.size += len(block)
        #: Their SHA-256, in hex.
        self.sha256 = digest.hexdigest()

    def read(self) -> bytes:
        """Return all bytes."""
        with self.opened() as file:
            return file.read()

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Yield the bytes as a file, to one thread at a time."""
        with self._lock:
            self._file.seek(0)
            yield self._file

    def __del__(self) -> None:
        # AttributeError: the constructor failed.
        with contextlib.suppress(AttributeError):
            self._file.close()
