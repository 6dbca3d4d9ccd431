"""Processes: real `sayso` commands as subprocesses, and a helper that waits for a condition."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from sayso.channels.registry import BUILT_IN
from sayso.config.settings.loader import DEMO
from sayso.ops.cli.main import main
from sayso.testing.ports import ReservedPort
from tests.descendants import family as family

#: Seconds to wait for something that should happen soon. A deadline for hangs, not a measure of speed: a machine
#: that runs other tests beside this one is slow.
PATIENCE = 60.0
#: Parts of the processes' command lines: as started, and as renamed where setproctitle is installed.
WEB, WORKER, REDIS = ("-m sayso web",), ("-m sayso worker", "rq:worker:"), ("unixsocket",)
POLL = ("-m sayso poll",)

T = TypeVar("T")

#: The ports of `free_port`.
_PORTS: list[ReservedPort] = []


def until(what: Callable[[], T], *, seconds: float = PATIENCE, pause: float = 0.01) -> T:
    """Call the function until its result is true, and return it. Fails with the last result."""
    deadline = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < deadline, (
            f"did not happen in {seconds:g} s; last answer: {answer!r}"
        )
        time.sleep(pause)
    return answer


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="sy", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def free_port() -> int:
    """Return a port on which no server listens. No other process takes it before the tests end."""
    port = ReservedPort()
    _PORTS.append(port)
    return port.number


#: The modules of the commands, of the web and of a worker with all platforms.
PRELOADED = (
    "sayso.ops.cli.up",
    "sayso.ops.cli.doctor",
    "sayso.ops.cli.explain",
    "sayso.ops.cli.deliveries",
    "sayso.ops.cli.redis",
    "sayso.ops.checks.describe",
    "sayso.ops.server.http",
    "sayso.ops.server.up",
    "sayso.config.wiring.rq_entry",
    "sayso.config.wiring.wsgi",
    "sayso.workers.rq.worker",
    "sayso.channels.slack.adapter",
    "sayso.channels.telegram.adapter",
    "sayso.channels.whatsapp.adapter",
    # What adapters need of the platforms' libraries.
    *(module for platform in BUILT_IN.values() for module in platform.sdk_modules),
    "tests.config.processes",
)
#: Starting Python and loading Sayso costs a second of CPU. Commands are forked from a process that did both.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(list(PRELOADED))


def sayso(
    *args: str | Path, stdin: str = "", cwd: Path | None = None, **environ: str
) -> tuple[int, str, str]:
    """Run a command to its end, by default on the demo. Return exit code, output and errors."""
    return forked(
        _main, *map(str, args), stdin=stdin, cwd=cwd, **{"SAYSO_CONFIG": str(DEMO), **environ}
    )


def _main(*args: str) -> None:
    main(args, prog_name="sayso")


def forked(
    call: Callable[..., object],
    *args: str,
    stdin: str = "",
    cwd: Path | None = None,
    **environ: str,
) -> tuple[int, str, str]:
    """Call a function in a process of its own until it ends. Return exit code, output and errors."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("REDIS_URL", "SAYSO_CONFIG")
    }
    whole = {**clean, "PYTHONPATH": str(Path.cwd()), **environ}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        opened = [(file, os.O_RDWR | os.O_CREAT) for file in files]
        process = _FORKS.Process(
            target=_run_in_fork, args=(call, args, opened, cwd or Path.cwd(), whole)
        )
        process.start()
        process.join(PATIENCE)
        process.kill()
        process.join()
        return process.exitcode or 0, files[1].read_text(), files[2].read_text()


def _run_in_fork(
    call: Callable[..., object],
    args: Sequence[str],
    files: Sequence[tuple[Path, int]],
    cwd: Path,
    environ: Mapping[str, str],
) -> None:
    """Call a function as a new Python process would.

    `files` are those for input, output and errors, each with the flags to open it.
    """
    for number, (file, flags) in enumerate(files):
        os.dup2(os.open(file, flags), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115  # until the process ends
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = [str(cwd), *environ["PYTHONPATH"].split(os.pathsep)]
    try:
        call(*args)
    except Exception:  # noqa: BLE001  # as Python prints what is not caught
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


class ForkedCommand:
    """A `sayso` command as a process of its own, used like a Popen. It saves the second that Python and Sayso take to load.

    What a process reads while it loads is that of these tests: start one of its own for `PROMETHEUS_MULTIPROC_DIR`.
    """

    def __init__(self, args: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        """Start it; output and errors go to the end of `log`."""
        self.args = args
        log.touch()
        whole = {**environ, "PYTHONPATH": str(Path.cwd())}
        self._process = _FORKS.Process(target=_run_command, args=(args, log, whole))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            if self._process.exitcode is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _run_command(args: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    _run_in_fork(
        _main,
        args,
        [(Path(os.devnull), os.O_RDONLY), (log, flags), (log, flags)],
        Path.cwd(),
        environ,
    )


def is_running(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(pid: int) -> str:
    """Return a process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Up:
    """One `sayso up` on a folder, by default of the demo. Its `with` block ends it."""

    def __init__(
        self,
        data: Path,
        *args: str,
        command: str = "up",
        port: int = 0,
        cwd: Path | None = None,
        **environ: str,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        python = [
            sys.executable,
            "-P",
            "-m",
            "sayso",
        ]  # like the installed command, whose folder is not the user's
        listens = ["--port", str(self.port)] if command in ("up", "demo", "web") else []
        whole = [*python, command, "--data", str(data), *listens, *args]
        clean = {
            name: value
            for name, value in os.environ.items()
            if name not in ("REDIS_URL", "SAYSO_CONFIG")
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed on exit
        self.process = subprocess.Popen(
            whole, stdout=self._log, stderr=self._log, cwd=cwd,
            env={
                **clean, "PYTHONPATH": str(Path.cwd()), "PYTHONUNBUFFERED": "1", "SAYSO_CONFIG": str(DEMO), **environ,
            },
        )  # fmt: skip

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def ready(self) -> Up:
        """Wait until the command reports that it is up."""
        until(lambda: "Sayso is up." in self.output() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output()
        return self

    def output(self) -> str:
        """Return everything printed so far."""
        return os.pread(self._log.fileno(), 1_000_000, 0).decode()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def pids(self, *words: str) -> list[int]:
        """Return the processes below it, oldest first; with words, those with one of the words in their command."""
        below = sorted(family(self.process.pid))
        return [pid for pid in below if not words or any(word in command_of(pid) for word in words)]

    def get(self, path: str) -> int:
        """Return the status of a GET request, or 0 without an answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as exc:
            return exc.code
        except OSError:
            return 0
