"""Worker processes: parents with their workers on one machine or several, and the kill of a whole machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sayso.ops.server.processes import Child
from sayso.testing.simulation.processes import BotProcesses, WorkerProcesses, children_of
from sayso.testing.simulation.profile import Profile


def folders(profile: Profile, data: Path) -> list[tuple[str, str]]:
    """Return the data folder of each parent of workers, and its number of workers."""
    commands = [
        parent.command for parent in BotProcesses(profile, data, lambda _: {})._worker_parents()
    ]
    return [(command[command.index("--data") + 1], command[-1]) for command in commands]


def test_machines_share_files_and_nothing_else(tmp_path: Path) -> None:
    """On one machine two parents share a folder; separate machines share only the tools' media."""
    assert folders(Profile(workers=3), tmp_path) == [(str(tmp_path), "2"), (str(tmp_path), "1")]
    assert folders(Profile(workers=1), tmp_path) == [(str(tmp_path), "1")]
    apart = [Path(folder) for folder, _ in folders(Profile(workers=4, machines=3), tmp_path)]
    assert len(set(apart)) == 3
    assert all([path.name for path in folder.iterdir()] == ["media"] for folder in apart)
    assert {(folder / "media").resolve() for folder in apart} == {tmp_path / "media"}


@pytest.mark.timeout(30)
def test_killed_machine_loses_every_process_of_its_parent() -> None:
    """No forked process survives, and the restart counts none as ended by itself."""
    parent = Child("worker", ["sh", "-c", "sleep 60 & sleep 60 & wait"], os.environ)
    parent.start()
    assert parent.process is not None
    while len(forked := children_of(parent.process.pid)) < 2:
        time.sleep(0.01)
    workers = WorkerProcesses([parent], lambda: set(forked))
    assert workers.at_work() == set(forked)
    assert workers.kill_family(parent) == 2
    assert not parent.is_alive()
    parent.start()
    assert workers.restart_ended() == 0
    parent.stop()
