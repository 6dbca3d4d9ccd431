"""`make test`: failures are named at once, closing lines stay readable, and Ctrl-C ends everything."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.config.processes import PATIENCE, family, is_running, until

ROOT = Path(__file__).parents[2]
FAILING = """
import pathlib, subprocess, time

def test_right(): pass

def test_wrong(): assert 1 == 2

def test_long():
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    pathlib.Path(__file__).with_name("child.tmp").write_text(str(child.pid))
    pathlib.Path(__file__).with_name("child.tmp").rename(pathlib.Path(__file__).with_name("child"))
    while not pathlib.Path(__file__).with_name("go on").exists():
        time.sleep(0.05)
    child.kill()
    child.wait()
"""


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Two groups of tests that run: in the first one a test has failed, and another one goes on."""
    (tmp_path / "test_failing.py").write_text(FAILING)
    (tmp_path / "test_fine.py").write_text("def test_fine(): pass\n")
    flags = f"-q -p no:cacheprovider --rootdir {tmp_path} {tmp_path}/test_"
    given = ("failing", f"{flags}failing.py", "fine", f"{flags}fine.py")
    command = [sys.executable, "-m", "tests.groups", *given]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        yield running
        # Killed, it would leave its groups behind where a test has failed.
        running.send_signal(signal.SIGINT)


def test_failure_is_named_while_other_tests_run(groups: subprocess.Popen[str], tmp_path: Path):
    """The traceback and the closing line of each group follow when it ends."""
    assert groups.stdout
    named = next(line for line in groups.stdout if "FAILED" in line)
    assert named == "  failing FAILED test_failing.py::test_wrong: assert 1 == 2\n"
    (tmp_path / "go on").touch()
    rest = groups.stdout.read()
    assert groups.wait(PATIENCE) == 1
    assert (
        rest.index("--- failing ---")
        < rest.index("def test_wrong")
        < rest.index("1 failed, 2 passed in ")
    )


def test_ctrl_c_ends_all_groups_and_what_they_have_started(
    groups: subprocess.Popen[str],
    tmp_path: Path,
):
    """Also a process in a session of its own, which no terminal reaches."""
    child = int(until((tmp_path / "child").exists) and (tmp_path / "child").read_text())
    groups.send_signal(signal.SIGINT)
    assert groups.wait(PATIENCE) == 130
    until(lambda: not is_running(child))


def test_ctrl_c_before_the_first_test_prints_no_traceback(groups: subprocess.Popen[str]):
    """Imports that are interrupted print theirs, once for each group."""
    assert groups.stdout
    until(lambda: len(family(groups.pid)) == 2, pause=0)
    groups.send_signal(signal.SIGINT)
    assert groups.wait(PATIENCE) == 130
    assert groups.stdout.read() == "\nStopping.\n"
