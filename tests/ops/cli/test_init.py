"""`sayso init`: what it writes runs at once, without an account and without a key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.processes import PATIENCE, sayso

ROOT = Path(__file__).parents[3]
#: Right and wrong calls of tools. A wrong one that is no error any more is an unused `type:
#: ignore`, which is an error.
TYPED_CALLS = ROOT / "tests/agent/tools/typed_calls.py"
#: Sayso's own modules count as an installed library, which `make check` reads. The libraries below
#: have thousands of modules and no part in the type of a tool.
MYPY_SETTINGS = """
[mypy]
strict = True

[mypy-sayso.*]
follow_imports = silent

[mypy-aiohttp.*,anthropic.*,cryptography.*,flask.*,google.*,mcp.*,numpy.*]
follow_imports = skip

[mypy-openai.*,opentelemetry.*,pydantic_ai.*,rich.*,werkzeug.*]
follow_imports = skip
"""


@pytest.fixture
def bot(tmp_path: Path) -> Path:
    """A new bot in a folder of its own."""
    assert sayso("init", tmp_path / "bot", SAYSO_CONFIG="")[0] == 0
    return tmp_path / "bot"


def test_a_new_bot_passes_its_check(bot: Path):
    """One of its tools is safe, the other one asks."""
    code, output, errors = sayso("check", cwd=bot, SAYSO_CONFIG="")
    assert (code, errors) == (0, "")
    assert "list_tasks: runs at once\n" in output
    assert "delete_task: asks first\n" in output


def test_a_new_bot_deletes_after_a_yes(bot: Path):
    """The offline model understands its suggestions."""
    lines = "list tasks\ndelete task milk\nyes\nlist tasks\n"
    code, output, errors = sayso("chat", cwd=bot, stdin=lines, SAYSO_CONFIG="")
    assert (code, errors, output.count("- milk")) == (0, "", 1)
    assert "Delete the task milk" in output
    assert "The task milk is deleted." in output


def test_the_tests_of_a_new_bot_pass(bot: Path):
    """As its author would run them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, check=False, cwd=bot, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, "4 passed" in done.stdout) == (0, True)


def test_existing_files_are_left_alone(bot: Path):
    """Also where only one of them is there."""
    (bot / "sayso.yaml").unlink()
    (bot / "tools.py").write_text("mine")
    code, _, errors = sayso("init", bot, SAYSO_CONFIG="")
    assert (code, "tools.py" in errors, (bot / "tools.py").read_text()) == (3, True, "mine")
    assert not (bot / "sayso.yaml").exists()


def test_a_new_bot_and_its_calls_are_typed(bot: Path, tmp_path: Path):
    """`mypy --strict` finds nothing in its files, nor in calls of each kind of tool.

    A wrong call is an error.
    """
    settings = tmp_path / "mypy.ini"
    settings.write_text(MYPY_SETTINGS)
    files = [TYPED_CALLS, bot / "tools.py", bot / "test_tools.py"]
    command = [sys.executable, "-m", "mypy", "--config-file", settings]
    command += ["--cache-dir", tmp_path / "cache", *files]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 3 source files\n")


def test_schema_of_the_yaml_is_printed_as_it_is_installed():
    """`sayso schema > sayso.schema.json` is how an older bot gets it."""
    code, output, errors = sayso("schema", SAYSO_CONFIG="")
    assert (code, errors, output) == (
        0,
        "",
        (ROOT / "config/settings/sayso.schema.json").read_text(),
    )
