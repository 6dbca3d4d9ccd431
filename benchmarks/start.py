"""The cost of a cold start: time to import and wire each kind of process, and its memory, beside RQ's own, in one run.

    python -m benchmarks.start

Each start is a process of its own. Rounds are interleaved, and only ratios count. Time is processor time, which other
processes do not stretch, without Python's own start. Memory is the peak in Linux's /proc.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 7
#: The base of the ratios: every RQ worker needs at least this.
FLOOR = "rq"

#: Wraps the measured code: prints milliseconds of processor time and kilobytes.
_MEASURED = """
import time
started = time.process_time()
{code}
print((time.process_time() - started) * 1e3)
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""
#: The code of `sayso worker` before it asks for work, and of `sayso web` before it listens. Neither connects yet.
_WIRED = """
import sayso.ops.cli
from pathlib import Path
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.observability import set_up_logs
{imports}
set_up_logs()
settings = load_settings(Path("{file}"))
services = bootstrap(settings, data=Path("{data}"), redis_url="redis://127.0.0.1:9/0")
{then}
"""
#: The code of `sayso redis status`, up to the server, which does not answer.
_COMMAND = """
import contextlib, io
from sayso.ops.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
    main(["redis", "status", "--config", "{file}", "--data", "{data}"])
"""
_WORKER = {
    "imports": "import sayso.workers.rq.worker\nfrom sayso.channels.registry import load_sdks",
    "then": "load_sdks(channel.platform for channel in settings.channels.values())",
}
_WEB = {
    "imports": "import sayso.ops.server.http\nfrom sayso.config.wiring.wsgi import build_app",
    "then": "build_app(services)",
}
_CHANNELS = {
    "console": "{platform: console}",
    "whatsapp": "{platform: whatsapp, account_sid: AC0123, auth_token: '${SECRET}', from: 'whatsapp:+14155238886'}",
    "telegram": "{platform: telegram, token: '${SECRET}', secret_token: '${SECRET}'}",
    "slack": "{platform: slack, bot_token: '${SECRET}', signing_secret: '${SECRET}'}",
}
_VENDORS = ("whatsapp", "telegram", "slack")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one start: milliseconds of processor time, and megabytes at its peak."""

    ms: float
    mb: float


def cases(folder: Path) -> dict[str, str]:
    """Return the code of each start, by name."""
    return {
        "bare python": "",
        "redis": "import redis",
        FLOOR: "import rq",
        "rq + flask": "import rq, flask",
        "worker, console": _wired(folder, _WORKER, ["console"]),
        **{f"worker, {platform}": _wired(folder, _WORKER, [platform]) for platform in _VENDORS},
        "worker, all three": _wired(folder, _WORKER, _VENDORS),
        "web, console": _wired(folder, _WEB, ["console"]),
        "web, all three": _wired(folder, _WEB, _VENDORS),
        "redis status": _COMMAND.format(file=folder / "console.yaml", data=folder / "data"),
    }


def _wired(folder: Path, process: Mapping[str, str], platforms: Sequence[str]) -> str:
    file = folder / f"{'-'.join(platforms)}.yaml"
    lines = [f"  {platform}: {_CHANNELS[platform]}" for platform in platforms]
    file.write_text("\n".join(["channels:", *lines]))
    return _WIRED.format(file=file, data=folder / "data", **process)


def main() -> None:
    """Print the medians and their ratios to RQ's own start."""
    with tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder:
        report(measure(cases(Path(folder)), Path(folder)))


def measure(candidates: Mapping[str, str], folder: Path) -> dict[str, Cost]:
    """Return the medians over the rounds. A first, uncounted round compiles the imported modules."""
    environment = {
        **os.environ,
        "SECRET": "s3cret",
        "REDIS_URL": "redis://127.0.0.1:9/0",
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds = [
        {name: _start(code, environment) for name, code in candidates.items()}
        for _ in range(ROUNDS + 1)
    ]
    return {name: _median([costs[name] for costs in rounds[1:]]) for name in candidates}


def _start(code: str, environment: Mapping[str, str]) -> Cost:
    command = [sys.executable, "-c", _MEASURED.format(code=code)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    ms, kb = map(float, done.stdout.split())
    return Cost(ms, kb / 1024)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.ms for cost in costs), statistics.median(cost.mb for cost in costs)
    )


def report(costs: Mapping[str, Cost]) -> None:
    """Print a line for each start."""
    floor = costs[FLOOR]
    print(f"{'cold start':<20} {'ms':>6} {'x rq':>6} {'MB':>6} {'x rq':>6}")
    for name, cost in costs.items():
        print(
            f"{name:<20} {cost.ms:>6.0f} {cost.ms / floor.ms:>6.2f} {cost.mb:>6.1f} {cost.mb / floor.mb:>6.2f}"
        )


if __name__ == "__main__":
    main()
