"""Worker lock: a dead worker of this machine is known at once, a living one is never taken for dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from sayso.workers import recovery as lifeline
from sayso.workers.lease import new_token
from sayso.workers.recovery import KEEP_SECONDS, WorkerLock
from tests.contracts.rigs import CHAT, Rig, turn

#: Takes its lock, prints that, and waits.
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
    """Start another process that holds its lock; end it by kill -9."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    process.name = process.stdout.readline().strip()
    yield process
    process.kill()
    process.wait()


def buried(line: WorkerLock) -> list[str]:
    """Return the workers that this one finds dead."""
    return line.release_dead(lambda name: None)


def test_killed_worker_is_released_once(worker, tmp_path):
    """A worker that started after the death may do it; then the lock is gone."""
    worker.kill()
    worker.wait()
    assert [buried(WorkerLock(tmp_path)) for _ in range(2)] == [[worker.name], []]


def test_killed_worker_is_known_by_its_name_and_a_living_one_is_not_taken_for_dead(
    worker, tmp_path
):
    """A command asks, which is no worker. The name comes from Redis, so it may be anything."""
    lock = WorkerLock(tmp_path)
    (tmp_path / "other").touch()
    assert not any(map(lock.is_dead, (worker.name, "unknown", "/../other")))
    worker.kill()
    worker.wait()
    assert lock.is_dead(worker.name)


@pytest.mark.parametrize("state", ["runs", "is stopped"])
def test_living_worker_is_not_released(worker, tmp_path, state):
    """A stopped process is not dead: it may go on in the middle of a turn."""
    if state == "is stopped":
        os.kill(worker.pid, signal.SIGSTOP)
    assert buried(WorkerLock(tmp_path)) == []


def test_worker_does_not_release_workers_of_its_own_process(tmp_path):
    """Locks of one process exclude each other too."""
    ours, other = WorkerLock(tmp_path), WorkerLock(tmp_path)
    for line in (ours, other):
        line.hold()
    assert (buried(ours), buried(other)) == ([], [])


def test_locks_of_another_machine_are_ignored(worker, tmp_path, monkeypatch):
    """The folder may be shared by machines whose locks do not reach each other."""
    worker.kill()
    worker.wait()
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(lifeline, "BOOT_ID", tmp_path / "boot")
    assert buried(WorkerLock(tmp_path)) == []


def test_release_that_fails_is_repeated_later(worker, tmp_path):
    """Redis may be unreachable at that moment."""
    worker.kill()
    worker.wait()
    line = WorkerLock(tmp_path)
    with pytest.raises(ConnectionError):
        line.release_dead(lambda name: (_ for _ in ()).throw(ConnectionError("away")))
    assert buried(line) == [worker.name]


def test_worker_that_exits_cleanly_needs_no_release(tmp_path):
    """It holds no lease any more."""
    line = WorkerLock(tmp_path)
    line.hold()
    line.leave()
    assert buried(WorkerLock(tmp_path)) == []


def test_files_of_gone_machines_are_removed(tmp_path):
    """A file goes after a week; a younger one may be in use."""
    for name, age in (("gone..w1", KEEP_SECONDS + 60), ("there..w2", 60)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    line = WorkerLock(tmp_path)
    line.hold()
    assert {path.name for path in tmp_path.iterdir()} & {"gone..w1", "there..w2"} == {"there..w2"}


class TestRelease:
    """The leases of a dead worker are free at once, and no others."""

    @pytest.fixture
    def rig(self, redis_client):
        return Rig(redis_client)

    def test_conversation_of_a_dead_worker_is_woken_without_its_lease(self, rig):
        """The next holder gets the turn with a new epoch, and calls of the dead worker are refused."""
        rig.accept(turn())
        dead, _ = rig.mailbox.lease(CHAT.id, new_token("dead"))
        rig.reaper._release("dead")
        assert rig.woken == [CHAT.id]
        taken, work = rig.mailbox.lease(CHAT.id, new_token("next"))
        assert (taken.epoch, work.turn.text) == (dead.epoch + 1, "hello")

    def test_lease_of_a_living_worker_stays(self, rig):
        """This holds for a worker whose name starts with the dead one's name."""
        rig.accept(turn())
        rig.mailbox.lease(CHAT.id, new_token("dead-or-alive"))
        rig.reaper._release("dead")
        assert rig.woken == []
        assert rig.mailbox.lease(CHAT.id, new_token("next")) is None

    def test_unfinished_release_is_finished_by_the_next_round(self, rig):
        """A worker may die between freeing a conversation and waking it."""
        rig.accept(turn())
        rig.mailbox.lease(CHAT.id, new_token("dead"))
        rig.reaper._scripts.on_every_shard("release_dead_worker", {"token_prefix": "dead."})
        assert rig.overdue() == [CHAT.id]
