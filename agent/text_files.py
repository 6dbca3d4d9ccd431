"""TextFiles: long texts as files, named by whose they are and by their content."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path

from sayso.channels.disk import remove_older, sync_folder, write_atomically

#: The folder's name in the data folder. Nothing in it has a link: media are served from a folder of their own.
FOLDER = "texts"
#: Seconds a text is kept after it was stored or read last: as long as the history of a conversation.
KEEP_SECONDS = 30 * 24 * 3600

_OWNER = re.compile(r"[0-9a-f]{20}")
_REF = re.compile(r"[0-9a-f]{64}")


class TextFiles:
    """Files in one folder, shared by all workers. One instance serves a whole process, from any thread.

    A name begins with its owner (`Scope.id`), so that one person's reference never reads another's text and all that
    is somebody's can be erased. It ends with the SHA-256 of the content, so a file that was cut short is none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, owner: str, text: str) -> str:
        """Keep a text; it is on disk when this returns its reference. Raises OSError."""
        data = _encoded(text)
        ref = hashlib.sha256(data).hexdigest()
        path = self._path(owner, ref)
        if _refreshed(path, len(data)):
            sync_folder(path.parent)  # whoever wrote it may not have come so far yet
        else:
            write_atomically(path, data)
        return ref

    def get(self, owner: str, ref: str) -> str:
        """A text that was kept, which is young again. Raises KeyError when it is gone or damaged, OSError."""
        path = self._path(owner, ref)
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            raise KeyError(ref) from None
        if hashlib.sha256(data).hexdigest() != ref:
            raise KeyError(ref)
        return data.decode("utf-8", "surrogatepass")

    def sweep(self) -> int:
        """Remove what nobody stored or read for KEEP_SECONDS. Returns how many files went."""
        return remove_older(self._folder.glob("*/*"), time.time() - KEEP_SECONDS)

    def erase(self, owner: str) -> int:
        """Remove all texts of one person. Returns how many. Raises OSError."""
        _check(_OWNER, owner)
        found = list((self._folder / owner[:2]).glob(f"{owner}-*"))
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def _path(self, owner: str, ref: str) -> Path:
        _check(_OWNER, owner)
        _check(_REF, ref)
        return self._folder / owner[:2] / f"{owner}-{ref}"


def _check(pattern: re.Pattern[str], name: str) -> None:
    """What is no name of ours is no part of a path."""
    if not pattern.fullmatch(name):
        raise KeyError(name)


def _encoded(text: str) -> bytes:
    """JSON can spell lone surrogates, so texts may hold them."""
    return text.encode("utf-8", "surrogatepass")


def _refreshed(path: Path, size: int) -> bool:
    """Whether the file is there, whole; then it is young again."""
    try:
        if path.stat().st_size != size:
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
