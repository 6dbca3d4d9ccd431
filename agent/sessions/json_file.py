"""JsonFileSessionStore: each session in a file of its own, there whole or as it was before."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sayso.agent.sessions.record import SessionKey
from sayso.agent.sessions.shelved import ShelvedSessions
from sayso.agent.sessions.store import SessionStoreUnavailable
from sayso.channels.disk import remove_older, sync_folder, write_atomically

#: Seconds after which a file that somebody began to write, and was killed over, is removed.
UNFINISHED_SECONDS = 3600
#: What those who write share, and who removes what has expired has alone.
_LOCK = ".lock"


class JsonFileSessionStore(ShelvedSessions):
    """Files in a folder, for one machine. Only our own user reads them; a file is on disk when `save` returns.

    Needs a disk of this machine: on a network drive two processes may not see each other's locks.
    """

    def __init__(
        self,
        directory: str | Path = "./sessions",
        default_ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(default_ttl, clock=clock)
        self._folder = Path(directory).absolute()

    def _get(self, key: SessionKey) -> str | None:
        try:
            return self._path(key).read_text("ascii")
        except FileNotFoundError:
            return None

    def _put(self, key: SessionKey, text: str, ttl: float | None) -> None:
        path = self._path(key)
        if not path.parent.exists():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder)
        with self._locked(fcntl.LOCK_SH):
            write_atomically(path, text.encode("ascii"))

    def _remove(self, key: SessionKey) -> bool:
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        sync_folder(path.parent)
        return True

    def _remove_if(self, key: SessionKey, text: str) -> None:
        with self._locked(fcntl.LOCK_EX):  # nobody may save between the look and the removal
            if self._get(key) == text:
                self._remove(key)

    def _texts(self, shelf: str) -> list[tuple[str, str]]:
        folder = self._folder / shelf
        remove_older(folder.glob(".*"), time.time() - UNFINISHED_SECONDS)
        return [(path.stem, text) for path in folder.glob("*.json") if (text := _text_of(path)) is not None]

    def _path(self, key: SessionKey) -> Path:
        return self._folder / key.shelf / f"{key.name}.json"

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        handle = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _guarded(self, key: SessionKey | None) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            what = f"session {key.session_id!r}" if key else "the list of sessions"
            raise SessionStoreUnavailable(
                f"{what} cannot be read or written in {self._folder}: {exc.strerror or exc}; see to its disk and rights"
            ) from exc


def _text_of(path: Path) -> str | None:
    """The text of a file, "" if it is none; None for one that has just gone."""
    try:
        return path.read_text("ascii")
    except FileNotFoundError:
        return None
    except ValueError:
        return ""
