"""Reload: tools whose files are edited while the program runs, for development."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.loader import LoadedTools

log = logging.getLogger(__name__)

#: Seconds between two looks at the files.
LOOK_SECONDS = 1.0

#: What is done with what a source, by its id, holds now. May raise ToolError, and then has changed nothing.
Replace = Callable[[str, LoadedTools], None]

#: A file as it was last seen: its time of change in nanoseconds, and its size in bytes.
Seen = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Watched:
    """A module, file or folder whose files are watched: what it is called, which files it was read from, and how it is
    loaded anew. `load` raises ToolError.
    """

    name: str
    files: tuple[Path, ...]
    load: Callable[[], LoadedTools]


class Reload:
    """Watches the files of some sources. What imports cannot be seen: a helper module's edit needs a restart.

    An edit that does not load is logged, and what was loaded before stays until one does.
    """

    def __init__(self, watched: Mapping[str, Watched], base: Path, replace: Replace) -> None:
        """`watched` is by what `replace` is told; its paths start at `base`."""
        self._watched = watched
        self._base = base
        self._replace = replace
        self._files = {source: self._state(source, each.files) for source, each in watched.items()}

    def start(self, every_seconds: float = LOOK_SECONDS) -> None:
        """Look again and again, in a thread that does not hold the process at its end."""
        threading.Thread(target=self._forever, args=(every_seconds,), name="reload", daemon=True).start()

    def look(self) -> list[str]:
        """Load what has changed since the last look. Returns what those are called that were replaced."""
        changed = [source for source in self._files if self._has_changed(source)]
        return [self._watched[source].name for source in changed if self._reloaded(source)]

    def _forever(self, every_seconds: float) -> None:
        never = threading.Event()
        while not never.wait(every_seconds):
            self.look()

    def _has_changed(self, source: str) -> bool:
        return self._state(source, tuple(self._files[source])) != self._files[source]

    def _reloaded(self, source: str) -> bool:
        before = tuple(self._files[source])
        try:
            loaded = self._watched[source].load()
            for problem in loaded.problems:
                log.error("tools.broken", extra={"problem": problem})
            self._replace(source, loaded)
        except (ToolError, SystemExit) as exc:
            log.error("tools.broken", extra={"problem": str(exc), "cure": "edit it again; the old ones stay"})
            self._files[source] = self._state(source, before)
            return False
        self._files[source] = self._state(source, loaded.files)
        log.warning("tools.reloaded", extra={"source": self._watched[source].name, "tools": len(loaded.tools)})
        return True

    def _state(self, source: str, files: Sequence[Path]) -> dict[Path, Seen | None]:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # what is no path is told when it is loaded
            path = (self._base / Path(self._watched[source].name).expanduser()).resolve()
            if path.is_dir():
                files = [*files, *path.glob("*.py")]
            elif path.suffix == ".py":
                files = [*files, path]
        return {file: _seen(file) for file in sorted(set(files))}


def _seen(file: Path) -> Seen | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
