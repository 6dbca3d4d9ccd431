"""Worker processes: parents with their workers on one machine or several, and the kill of a whole machine."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from sayso.ops.server.processes import Child
from sayso.testing.simulation.processes import (
    BotProcesses,
    RedisServer,
    WorkerProcesses,
    children_of,
)
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


def test_redis_that_ended_by_itself_can_be_killed(tmp_path: Path) -> None:
    """An outage may begin just when a full disk has ended it."""
    server = RedisServer(tmp_path)
    server._server = Child("redis", ["true"], os.environ)
    server._server.start()
    while server.is_alive():
        time.sleep(0.01)
    server.kill()
    assert not server.is_alive()


def test_redis_that_was_never_started_is_left_alone(tmp_path: Path) -> None:
    """The process id 0 would mean the simulation itself."""
    server = RedisServer(tmp_path)
    server.kill()
    with pytest.raises(ProcessLookupError):
        server.unlimit()


def test_worker_that_has_ended_can_be_told_to_stop() -> None:
    """It may end after it was chosen."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    workers = WorkerProcesses([], set)
    workers.tell_to_stop(ended.pid)
    workers.kill(ended.pid)
    assert workers.stopping == set()
