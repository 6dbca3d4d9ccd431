"""The Makefile: what its targets promise to those who work in a checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

from tests.config.processes import PATIENCE, is_running, until

ROOT = Path(__file__).parents[2]


def run(*command: str, folder: Path) -> str:
    """Return what a command prints. Raises CalledProcessError."""
    done = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True)
    return done.stdout


def test_type_checkers_and_editors_find_sayso_in_the_environment_of_a_checkout(tmp_path: Path):
    """They follow paths and run no import hook.

    The other folders of the checkout are no modules there.
    """
    environment = tmp_path / "environment"
    user = tmp_path / "user"
    venv.create(environment, with_pip=False)
    (environment / "bin/pip").touch()  # make sets the environment up where it is missing
    run("make", f"VENV={environment}", f"{environment}/checkout/sayso", folder=ROOT)
    python = str(environment / "bin/python")
    user.mkdir()
    (user / "bot.py").write_text("import sayso\nfrom sayso import tool\n")
    flags = ("--follow-imports=skip", "--python-executable", python)
    assert "Success" in run(sys.executable, "-m", "mypy", *flags, "bot.py", folder=user)
    found = "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('sayso', 'config', 'agent')])"
    assert run(python, "-c", found, folder=user) == "[True, False, False]\n"


#: A pip that works until it is stopped.
ENDLESS_PIP = """#!/bin/sh
echo $$ > "$0.pid"
echo Collecting one
echo Collecting two
exec sleep 600
"""


def test_ctrl_c_while_the_environment_is_made_stops_pip_and_prints_no_log(tmp_path: Path):
    """Pip's log is for an installation that failed."""
    (tmp_path / "checkout" / "sayso").mkdir(parents=True)
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text(ENDLESS_PIP)
    pip.chmod(0o755)
    make = subprocess.Popen(
        ["make", f"VENV={tmp_path}", f"{tmp_path}/ready"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    log = tmp_path / "setup.log"
    until(lambda: log.exists() and "two" in log.read_text())
    os.killpg(make.pid, signal.SIGINT)
    output, _ = make.communicate(timeout=PATIENCE)
    assert make.returncode != 0
    assert "Collecting one" not in output
    assert not is_running(int((tmp_path / "bin" / "pip.pid").read_text()))
