"""The wrong clock of a simulated process: every Python function for the current time is wrong, and types stay."""

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
def test_wrong_clock_shifts_every_time_function(tmp_path: Path, seconds: int) -> None:
    """The shift applies to every time function, in the module that runs and in its imports."""
    (tmp_path / "told.py").write_text(_TOLD)
    command = [sys.executable, "-m", "sayso.testing.simulation.clock", str(seconds), "told", "x"]
    environ = {"PYTHONPATH": f"{Path.cwd()}:{tmp_path}", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    moments, kinds, arguments = json.loads(done.stdout)
    assert all(
        moment - time.time() == pytest.approx(seconds, abs=30) for moment in moments.values()
    )
    assert (kinds, arguments) == ([True, True, True], ["x"])
