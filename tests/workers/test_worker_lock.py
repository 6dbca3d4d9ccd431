"""Lifeline: who died on this machine is known at once, who lives is never taken for dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from sayso.workers import recovery as lifeline
from sayso.workers.mailbox import new_token
from sayso.workers.recovery import KEEP_SECONDS, WorkerLock
from tests.contracts.rigs import CHAT, RedisRig, turn

#: Holds its line and says so, then waits.
WORKER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from sayso.workers.recovery import WorkerLock
    line = WorkerLock(Path(sys.argv[1]))
    line.hold()
    print(line.name, flush=True)
    time.sleep(60)
""")


@pytest.fixture
def worker(tmp_path):
    """Another process that holds its line; ends by kill -9."""
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    process.name = process.stdout.readline().strip()
    yield process
    process.kill()
    process.wait()


def buried(line: WorkerLock) -> list[str]:
    """Whom this one buries."""
    return line.release_dead(lambda name: None)


def test_killed_worker_is_buried_once(worker, tmp_path):
    """Also by one that began after its death; and then it is forgotten."""
    worker.kill()
    worker.wait()
    assert [buried(WorkerLock(tmp_path)) for _ in range(2)] == [[worker.name], []]


@pytest.mark.parametrize("state", ["runs", "is stopped"])
def test_worker_that_lives_is_not_buried(worker, tmp_path, state):
    """A process that the machine does not let run is not dead: it may go on in the middle of something."""
    if state == "is stopped":
        os.kill(worker.pid, signal.SIGSTOP)
    assert buried(WorkerLock(tmp_path)) == []


def test_worker_does_not_bury_itself_nor_those_of_its_process(tmp_path):
    """Locks of one process exclude each other too."""
    ours, other = WorkerLock(tmp_path), WorkerLock(tmp_path)
    for line in (ours, other):
        line.hold()
    assert (buried(ours), buried(other)) == ([], [])


def test_another_machines_locks_say_nothing_here(worker, tmp_path, monkeypatch):
    """The folder may be shared by machines whose locks do not reach each other."""
    worker.kill()
    worker.wait()
    monkeypatch.setattr(lifeline, "_this_run", lambda: "another")
    assert buried(WorkerLock(tmp_path)) == []


def test_what_cannot_be_settled_now_is_settled_later(worker, tmp_path):
    """Redis may be away just when somebody died."""
    worker.kill()
    worker.wait()
    line = WorkerLock(tmp_path)
    with pytest.raises(ConnectionError):
        line.release_dead(lambda name: (_ for _ in ()).throw(ConnectionError("away")))
    assert buried(line) == [worker.name]


def test_who_leaves_in_peace_is_not_buried(tmp_path):
    """Nothing was held any more."""
    line = WorkerLock(tmp_path)
    line.hold()
    line.leave()
    assert buried(WorkerLock(tmp_path)) == []


def test_files_of_machines_long_gone_are_swept(tmp_path):
    """A week is longer than any of them needs; what is younger may be somebody's."""
    for name, age in (("gone..w1", KEEP_SECONDS + 60), ("there..w2", 60)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    line = WorkerLock(tmp_path)
    line.hold()
    assert {path.name for path in tmp_path.iterdir()} & {"gone..w1", "there..w2"} == {"there..w2"}


class TestBurial:
    """What a dead worker held is free at once, and nothing else is."""

    @pytest.fixture
    def rig(self, redis_client):
        return RedisRig(redis_client)

    def test_lane_of_the_dead_is_woken_without_its_lease(self, rig):
        """The next holder gets the turn with a new epoch; what the dead one still sends is refused."""
        rig.accept(turn())
        dead, _ = rig.mailbox.lease(CHAT.id, new_token("dead"))
        rig.reaper._free("dead")
        assert rig.woken == [CHAT.id]
        taken, work = rig.mailbox.lease(CHAT.id, new_token("next"))
        assert (taken.epoch, work.turn.text) == (dead.epoch + 1, "hello")

    def test_lane_of_the_living_stays_theirs(self, rig):
        """Also of one whose name begins alike."""
        rig.accept(turn())
        rig.mailbox.lease(CHAT.id, new_token("dead-or-alive"))
        rig.reaper._free("dead")
        assert rig.woken == []
        assert rig.mailbox.lease(CHAT.id, new_token("next")) is None

    def test_burial_that_was_not_finished_is_finished_by_the_next_round(self, rig):
        """Whoever buried may die between freeing a lane and waking it."""
        rig.accept(turn())
        rig.mailbox.lease(CHAT.id, new_token("dead"))
        rig.reaper._scripts.on_every_shard("release_dead_worker", "dead.")
        assert rig.overdue() == [CHAT.id]
