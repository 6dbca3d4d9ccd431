"""Supervisor: a process that forks an app, and forks it again when it was killed.

    python -m benchmarks.peers_under_faults.supervisor MODULE FOLDER

The libraries of the app are imported once, before the first fork, so that a restart costs no second
of imports. Each fork runs `MODULE.main()`; the app opens its database and its port only there. The
process id of the running app is in FOLDER/pid, and FOLDER/environ.json has environment variables
for the next start.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType, ModuleType

from sayso.ops.server.processes import die_with_parent

#: An app that ends quickly is started again after this pause, in seconds.
PAUSE_SECONDS = 0.2


def main(module: str, folder: str) -> None:
    """Fork the app again and again until SIGTERM, which ends the app as well."""
    die_with_parent()
    app = importlib.import_module(module)
    child = 0

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if child:
            os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    while True:
        started = time.monotonic()
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with_parent()
            _run(app, Path(folder))
        _note(Path(folder), child)
        os.waitpid(child, 0)
        if time.monotonic() - started < PAUSE_SECONDS:
            time.sleep(PAUSE_SECONDS)


def _run(app: ModuleType, folder: Path) -> None:
    """Run the app in this fork, and end with it."""
    environ = folder / "environ.json"
    if environ.exists():
        os.environ.update(json.loads(environ.read_text()))
    try:
        app.main()
    finally:
        os._exit(1)


def _note(folder: Path, pid: int) -> None:
    """Write the process id, all of it or nothing."""
    draft = folder / "pid.new"
    draft.write_text(str(pid))
    draft.rename(folder / "pid")


if __name__ == "__main__":
    main(*sys.argv[1:])
