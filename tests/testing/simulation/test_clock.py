"""The wrong clock of a simulated process: all that Python says of now is wrong, and what C makes still has its type."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

_TOLD = """
import json, sys, time
from datetime import UTC, date, datetime
at = {
    "time": time.time(), "time_ns": time.time_ns() / 1e9, "now": datetime.now().timestamp(),
    "utc": datetime.now(UTC).timestamp(), "utcnow": datetime.utcnow().replace(tzinfo=UTC).timestamp(),
    "localtime": time.mktime(time.localtime()),
}
made_in_c = datetime.fromisoformat("2020-01-01T00:00:00+00:00").astimezone()
kinds = [isinstance(made_in_c, datetime), isinstance(made_in_c, date), issubclass(datetime, date)]
print(json.dumps([at, kinds, sys.argv[1:]]))
"""


@pytest.mark.parametrize("seconds", [7200, -7200])
def test_a_process_under_a_wrong_clock_is_wrong_by_so_much(tmp_path: Path, seconds: int) -> None:
    """In every way to ask, for the module that is run and what it imports."""
    (tmp_path / "told.py").write_text(_TOLD)
    command = [sys.executable, "-m", "sayso.testing.simulation.clock", str(seconds), "told", "x"]
    environ = {"PYTHONPATH": f"{Path.cwd()}:{tmp_path}", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    moments, kinds, arguments = json.loads(done.stdout)
    assert all(moment - time.time() == pytest.approx(seconds, abs=30) for moment in moments.values())
    assert (kinds, arguments) == ([True, True, True], ["x"])
