"""Prefork: the given number of processes runs, dead ones are replaced, and one signal stops all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

#: Each forked process prints its id and waits for a signal.
PROGRAM = textwrap.dedent("""
    import os, signal, sys
    from sayso.ops.server.processes import prefork
    prefork(int(sys.argv[1]))
    os.write(1, b"%d\\n" % os.getpid())
    {work}
""")
WAITS = "signal.pause()"


@pytest.fixture
def start():
    """Return a function that starts a parent of this many processes."""
    started = []

    def start(count: int, work: str = WAITS) -> subprocess.Popen[str]:
        parent = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM.format(work=work), str(count)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        started.append(parent)
        return parent

    yield start
    for parent in started:
        parent.kill()
        parent.wait()


def pids(parent: subprocess.Popen[str], count: int) -> set[int]:
    """Return the next process ids that the parent prints."""
    return {int(parent.stdout.readline()) for _ in range(count)}


def gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_given_number_of_processes_runs_and_stops_with_the_parent(start, number):
    """One signal to the parent ends all of them."""
    parent = start(3)
    forked = pids(parent, 3)
    parent.send_signal(number)
    assert (len(forked), parent.wait(10), all(map(gone, forked))) == (3, 0, True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_dead_process_is_replaced(start, number):
    """It was killed, failed, or got a signal of its own."""
    parent = start(2)
    first = pids(parent, 2)
    victim = min(first)
    os.kill(victim, number)
    new = pids(parent, 1)
    assert not new & first
    assert parent.poll() is None


def test_closed_terminal_tells_children_to_stop_once(start):
    """It may send SIGHUP twice, and a second SIGTERM would cut off the turns of a worker."""
    work = """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.write(1, b"1\\n")
    signal.sigwait([signal.SIGTERM])
    os.write(1, b"2\\n")
    if signal.sigtimedwait([signal.SIGTERM], 0.3):
        os.write(1, b"3\\n")
    """
    parent = start(1, textwrap.dedent(work))
    pids(parent, 2)
    parent.send_signal(signal.SIGHUP)
    assert pids(parent, 1) == {2}
    parent.send_signal(signal.SIGHUP)
    assert (parent.wait(10), parent.stdout.read()) == (0, "")


def test_nohup_keeps_processes_alive(start, monkeypatch):
    """The parent and its children ignore SIGHUP where it was ignored at their start."""
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        parent = start(1)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    (child,) = pids(parent, 1)
    for pid in (parent.pid, child):
        os.kill(pid, signal.SIGHUP)
    parent.terminate()
    assert (parent.wait(10), gone(child)) == (0, True)


def test_process_that_cannot_run_ends_all(start):
    """A wrong configuration is wrong for all, so its exit code becomes the parent's."""
    parent = start(2, "sys.exit(3)")
    assert parent.wait(10) == 3


def test_process_that_always_dies_is_restarted_with_pauses_and_can_be_stopped(start):
    """A crashing tool is no fork bomb, and the stop does not wait for the pause."""
    parent = start(1, "os.kill(os.getpid(), signal.SIGKILL)")
    pids(parent, 4)
    parent.terminate()
    assert parent.wait(10) == 0


def test_they_end_when_their_parent_is_killed(start):
    """No process would replace or stop them any more."""
    parent = start(2)
    forked = pids(parent, 2)
    parent.kill()
    assert parent.stdout.read() == ""  # it is closed when the last of them has ended
    assert all(map(gone, forked)) or len(forked) == 2
