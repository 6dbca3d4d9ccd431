"""Run a command of Sayso, and count its calls between two signals.

    python -m benchmarks.traced OUT web --port 8000

SIGUSR1 begins. SIGUSR2 ends, and writes what was counted into the file OUT. The calls of all threads
count, so the periodic work of a process is among them.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "channels", "config", "infra", "ops", "pending", "workers")


@dataclass(slots=True)
class Trace:
    """Our files that calls passed through, all calls in them, and the moves between files."""

    files: set[str] = field(default_factory=set)
    calls: int = 0
    moves: int = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call, as `sys.setprofile` reports it."""
        if event != "call":
            return
        here = path_in_packages(frame)
        if not here:
            return
        there = path_in_packages(frame.f_back) if frame.f_back else ""
        self.files.add(here)
        self.calls += 1
        self.moves += there not in ("", here)

    def __add__(self, other: Trace) -> Trace:
        return Trace(self.files | other.files, self.calls + other.calls, self.moves + other.moves)

    def write(self, path: Path) -> None:
        """Write the counts as JSON, all at once."""
        new_file = path.with_suffix(".new")
        new_file.write_text(json.dumps({**asdict(self), "files": sorted(self.files)}))
        new_file.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the counts of a process."""
        counts = json.loads(path.read_text())
        return cls(set(counts["files"]), counts["calls"], counts["moves"])


def path_in_packages(frame: FrameType) -> str:
    """Return the path of a frame's file below the project, "" for a file outside the packages."""
    path = frame.f_code.co_filename
    if "/.venv" in path or not path.startswith(str(ROOT)):
        return ""
    path = path.removeprefix(f"{ROOT}/").removeprefix("sayso/")
    return path if path.split("/")[0] in PACKAGES else ""


class Recorder:
    """Passes calls on to a trace from one signal to the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trace: Trace | None = None

    def begin(self, *_: Any) -> None:
        """Begin a new trace."""
        self._trace = Trace()

    def end(self, *_: Any) -> None:
        """End the trace, and write it."""
        trace = self._trace
        self._trace = None
        if trace:
            trace.write(self._path)

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        """Count one call while there is a trace."""
        if self._trace is not None:
            self._trace(frame, event, value)


def main(path: str, *command: str) -> None:
    """Run the command until it ends."""
    recorder = Recorder(Path(path))
    signal.signal(signal.SIGUSR1, recorder.begin)
    signal.signal(signal.SIGUSR2, recorder.end)
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    sys.argv = ["sayso", *command]
    from sayso.ops.cli.main import main as sayso

    sayso()


if __name__ == "__main__":
    main(*sys.argv[1:])
