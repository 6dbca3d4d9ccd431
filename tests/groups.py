"""Run groups of tests side by side, as `make test` does.

    python -m tests.groups NAME ARGUMENTS [NAME ARGUMENTS ...]

Each group is one pytest. Its progress and the names of its failed tests are printed as they come,
behind the group's name; tracebacks and pytest's closing lines when the group ends. Ctrl-C ends all
groups, and all that they have started.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from sayso.infra.stop_signals import accept_interrupts, delay_interrupts
from tests.descendants import family

#: How long the groups have to clean up after Ctrl-C, in seconds.
STOP_SECONDS = 3.0
#: Lines that are printed at once: results of tests, and the failures that this plugin names.
_LIVE = re.compile(r"[.FEsxX]+ *(\[ *\d+%\])?|FAILED .*")
#: The beginning of pytest's closing part.
_CLOSING = "====="


class NameFailures:
    """A pytest plugin that names a failed test at once: pytest itself does so when all have ended."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of the test and the first line of its error."""
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash else f"in its {report.when}"
        self._reporter.write(f"\nFAILED {report.nodeid}: {message.splitlines()[0]}\n", flush=True)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """End quietly at Ctrl-C until there is a session: an import that is interrupted would print its traceback."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    accept_interrupts()


def pytest_sessionstart() -> None:
    """Let pytest handle Ctrl-C, from its first fixture on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Add the plugin, once pytest has its reporter."""
    config.pluginmanager.register(NameFailures(config.pluginmanager.getplugin("terminalreporter")))


def main(arguments: Sequence[str]) -> int:
    """Run the groups and return 0 if all passed. After Ctrl-C end them and return 130."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    delay_interrupts()  # until all groups run; each of them takes SIGINT when it has a handler
    groups = {
        name: _start(given) for name, given in zip(arguments[::2], arguments[1::2], strict=True)
    }
    printing = threading.Lock()
    readers = [
        threading.Thread(target=_print_output, args=(name, group, printing), daemon=True)
        for name, group in groups.items()
    ]
    for reader in readers:
        reader.start()
    try:
        accept_interrupts()
        for reader in readers:
            reader.join()
        return int(any(group.wait() for group in groups.values()))
    except KeyboardInterrupt:
        print("\nStopping.", flush=True)
        _stop(list(groups.values()))
        return 130


def _start(arguments: str) -> subprocess.Popen[str]:
    """Start one pytest in a process group of its own: Ctrl-C reaches it only through us."""
    command = [sys.executable, "-u", "-m", "pytest", "-p", "tests.groups", *shlex.split(arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )


def _print_output(name: str, group: subprocess.Popen[str], printing: threading.Lock) -> None:
    """Print progress and failures of a group at once, and the rest of its output when it ends."""
    rest: list[str] = []
    is_closing = False
    for line in group.stdout or ():
        is_closing = is_closing or line.startswith(_CLOSING)
        if is_closing or not _LIVE.fullmatch(line.rstrip()):
            rest.append(line)
            continue
        with printing:
            print(f"{name:>9} {line}", end="", flush=True)
    if not rest:  # it was interrupted before it began
        return
    with printing:
        print(f"\n--- {name} ---\n{''.join(rest)}", flush=True)


def _stop(groups: Sequence[subprocess.Popen[str]]) -> None:
    """Interrupt the groups, and kill what is left of them and of their descendants after STOP_SECONDS."""
    started: list[int] = []
    for group in groups:
        started += [group.pid, *family(group.pid)]
    for group in groups:
        group.send_signal(signal.SIGINT)
    until = time.monotonic() + STOP_SECONDS
    while any(group.poll() is None for group in groups) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
