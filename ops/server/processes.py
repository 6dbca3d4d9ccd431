"""Processes on this machine: start children, listen on an address, fork and replace workers,
note which bots run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from sayso.config.settings.loader import ConfigError, default_config, given_config
from sayso.infra.http import backoff_seconds
from sayso.infra.stop_signals import KILL_SECONDS, SUPERVISED, say_stopping, stop_signals
from sayso.infra.storage.files import write_atomically

log = logging.getLogger(__name__)

#: How long a child may finish what it is doing before it is killed, in seconds.
GRACE_SECONDS = 25.0
_PR_SET_PDEATHSIG = 1
#: Loaded on import, because a child should do as little as possible between fork and exec.
if sys.platform == "linux":
    _LIBC = ctypes.CDLL(None)
else:
    _LIBC = None
#: Addresses that mean all interfaces, and the address at which this machine reaches them.
_ALL_INTERFACES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}  # noqa: S104  # a key
#: The most connections that wait to be accepted.
BACKLOG = 1024
#: A process that dies within this time of its fork died quickly, in seconds. Its successor waits,
#: longer each time.
QUICK_SECONDS = 1.0
#: The longest pause before a successor starts, in seconds.
MAX_PAUSE_SECONDS = 5.0
#: Linux's option of a socket that drops packets, by a program for the Berkeley Packet Filter.
_SO_ATTACH_FILTER = 26
#: That program, as rows of code, jump if true, jump if false, operand.
#: It drops the packet that begins a connection.
_DROP_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),  # load the flags of the TCP header
    (0x45, 0, 1, 0x02),  # if SYN is not set, skip one row
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # keep the packet
)
#: The name of the note about a running bot in its state folder, and the version of its format.
FILE = "running.json"
SCHEMA = 1
#: The name of the note of a `sayso web`.
WEB_FILE = "web.json"


class AddressUnusable(Exception):
    """Raised when no server can listen on an address. The message names the cure."""


def die_with_parent() -> None:
    """Make Linux send SIGTERM to this process when its parent dies, even after kill -9.
    Call it in a child, before exec.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """One child process: its name, its command, and the process while it runs.

    It prints to our stderr, or to `log`.
    """

    name: str
    command: list[str]
    environ: Mapping[str, str] = field(repr=False)  # it holds secrets
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = None
    #: Runs in the new process before its command. It should make system calls only.
    prepare: Callable[[], None] = die_with_parent

    def start(self) -> None:
        """Start the process.

        It dies with us, even after kill -9, and Ctrl-C reaches it only through us.
        """
        self.process = subprocess.Popen(  # noqa: S603  # our own command line
            self.command,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            preexec_fn=self.prepare,  # noqa: PLW1509  # see `prepare`
        )

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def stop(self, *, seconds: float = GRACE_SECONDS) -> None:
        """Send SIGTERM, and kill the process where it does not end in time."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def local_url(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on a host and port."""
    address = _ALL_INTERFACES.get(host, host)
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def check_free(host: str, port: int) -> None:
    """Raise AddressUnusable unless a server can listen there now."""
    listen(host, port).close()


def listen(host: str, port: int, *, option: str = "--port or --host") -> socket.socket:
    """Return a listening socket. Processes that are forked later share it. Raises AddressUnusable.

    `option` is the one with which the address was given.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except socket.gaierror:
        raise AddressUnusable(
            f"no address {host!r}: give another with {option.split()[-1]}, such as 127.0.0.1"
        ) from None
    except OSError as exc:
        reason = os.strerror(exc.errno or 0)
        raise AddressUnusable(
            f"cannot listen on {host}:{port} ({reason}): stop what uses it, or give another {option}"
        ) from None
    return listening


def refuse_new_connections(listening: socket.socket) -> None:
    """Begin no further connection on a listening socket.

    Those that have begun still arrive in its queue.

    The kernel resets the connections in that queue when the socket is closed, though their clients
    may have sent requests. After this call nothing is added, so the queue can be emptied before the
    socket is closed. A refused client tries again after a second, and finds the next process or no
    server.

    It needs Linux. Elsewhere, or where a sandbox forbids it, connections go on to arrive.
    """
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("=HBBI", *row) for row in _DROP_NEW_CONNECTIONS)
    rows = ctypes.create_string_buffer(program)
    with contextlib.suppress(OSError):
        header = struct.pack("@HP", len(_DROP_NEW_CONNECTIONS), ctypes.addressof(rows))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)


def prefork(count: int, listening: socket.socket | None = None) -> None:
    """Fork `count` processes and return in each of them.

    The parent replaces dead ones until a signal ends it and them.

    Call it before there are threads or connections. The parent raises SystemExit: with 0 after
    SIGTERM, SIGINT or SIGHUP, else with the exit code of the first process that gave up by itself.
    `listening` is the socket that they share, where they do.
    """
    parent = _Parent(count, listening)
    parent.run()
    if not parent.is_child:
        raise SystemExit(parent.code)


class _Parent:
    """The parent of forked processes.

    `run` returns in each child (`is_child`), and after the last end.
    """

    def __init__(self, count: int, listening: socket.socket | None) -> None:
        from sayso.infra.metrics import RESTARTS  # once it is decided where the counts are kept

        self.is_child = False
        self.code = 0
        # 0 from the start: an alert would not see the first one else.
        self._deaths = RESTARTS.labels("fork")
        self._count = count
        self._listening = listening
        self._stop_signals = stop_signals()
        self._handled_signals = (*self._stop_signals, signal.SIGCHLD, signal.SIGALRM)
        self._started_at: dict[int, float] = {}
        self._quick_deaths = 0
        self._is_stopping = False
        #: When the children are killed, by the monotonic clock. Set by Ctrl-C.
        self._kill_at: float | None = None

    def run(self) -> None:
        """Fork processes, and replace those that die until they are told to stop."""
        gc.freeze()  # a collection would touch, and so copy, the memory that processes share
        # Blocked, they wait for `sigwait`. A handler that never runs
        # keeps macOS from dropping SIGCHLD.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handled_signals)
        for number in self._handled_signals:
            signal.signal(number, lambda *_: None)
        while self._started_at or not self._is_stopping:
            while len(self._started_at) < self._count and not self._is_stopping:
                self._fork()
                if self.is_child:
                    return
            self._handle_signal()

    def _fork(self) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._started_at[pid] = time.monotonic()
            return
        self.is_child = True
        os.environ[SUPERVISED] = "true"
        for number in self._handled_signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled_signals)
        os.setpgid(0, 0)  # Ctrl-C reaches it only through its parent
        die_with_parent()
        if os.getppid() != parent:
            os._exit(0)

    def _handle_signal(self, seconds: float = 0.0) -> None:
        """Wait for a signal, at most this many seconds if given,
        and handle it and the end of children.
        """
        if self._kill_at is not None:
            seconds = max(0.01, self._kill_at - time.monotonic())
        # SIGALRM ends the wait; 0 turns the timer off.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        number = signal.sigwait(self._handled_signals)
        # A terminal that is closed may send SIGHUP twice, and a second SIGTERM would cut off turns.
        is_repeated = number == signal.SIGHUP and self._is_stopping
        if number in self._stop_signals and not is_repeated:
            if not self._is_stopping:
                say_stopping(number)
            self._stop(number)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._stop(signal.SIGKILL)
        while self._started_at:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._note_end(pid, os.waitstatus_to_exitcode(status))

    def _stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to all children: SIGINT where a person waits, else SIGTERM.

        A second one stops them at once.
        """
        if number == signal.SIGINT:
            self._kill_at = time.monotonic() + KILL_SECONDS
        elif number != signal.SIGKILL:
            number = signal.SIGTERM
        self._is_stopping = True
        if self._listening is not None:
            refuse_new_connections(self._listening)
            self._listening.close()  # the children have it too, and empty its queue
            self._listening = None
        for pid in self._started_at:
            os.kill(pid, number)

    def _note_end(self, pid: int, code: int) -> None:
        lived = time.monotonic() - self._started_at.pop(pid)
        if self._is_stopping:
            return
        if code > 0:
            self.code = code
            self._stop()
            return
        self._deaths.inc()
        log.warning("prefork.died", extra={"pid": pid, "code": code, "seconds": round(lived, 1)})
        if lived < QUICK_SECONDS:
            self._quick_deaths = self._quick_deaths + 1
        else:
            self._quick_deaths = 0
        if self._quick_deaths > 1:
            self._handle_signal(
                backoff_seconds(self._quick_deaths, first=0.2, longest=MAX_PAUSE_SECONDS)
            )


@dataclass(frozen=True, slots=True)
class Running:
    """A running bot: its configuration file, the URL of its web on this machine, and the id of its
    process.
    """

    config: Path
    url: str
    pid: int
    #: The one that it told its platforms.
    public_url: str = ""
    #: When the process started, so that another one with the same id is not taken for it; "" where
    #: the system does not say.
    born: str = ""


def leave_note(folder: Path, running: Running, file: str = FILE) -> None:
    """Write the note of a running bot to its state folder, readable by our own user alone."""
    note = {
        "schema": SCHEMA,
        **asdict(running),
        "config": str(running.config),
        "born": _born(running.pid),
    }
    write_atomically(folder / file, json.dumps(note).encode())


def take_note_back(folder: Path, file: str = FILE) -> None:
    """Remove the note of this process, and no other's."""
    note = _read(folder / file)
    if note and note.pid == os.getpid():
        (folder / file).unlink(missing_ok=True)


def running_bots(data: Path) -> list[Running]:
    """Return the bots that `sayso up`, `sayso demo` or `sayso web` runs on a data folder now."""
    files = (path for file in (FILE, WEB_FILE) for path in sorted(data.glob(f"bots/*/{file}")))
    return [
        note
        for note in map(_read, files)
        if note and _is_alive(note.pid) and note.born == _born(note.pid)
    ]


def find_config(config: Path | None, data: Path) -> Path:
    """Return the configuration that an operator means: as given, by SAYSO_CONFIG, of the bot that
    runs on the data folder, or ./sayso.yaml. Raises ConfigError where several bots run, and where
    there is no file.
    """
    given = config or given_config()
    bots = {bot.config.resolve(): bot for bot in running_bots(data)}
    if given or not bots:
        return given or default_config()
    if len(bots) == 1:
        return next(iter(bots.values())).config
    here = Path("sayso.yaml").resolve()
    if here in bots:
        return here
    raise ConfigError(
        [f"several bots run on {data}: name one with --config: {', '.join(map(str, sorted(bots)))}"]
    )


def running_bot(config: Path, data: Path) -> Running | None:
    """Return the running bot of a file on this machine, None where it does not run."""
    return next(
        (bot for bot in running_bots(data) if bot.config.resolve() == config.resolve()), None
    )


def _read(file: Path) -> Running | None:
    try:
        note = json.loads(file.read_text())
        more = {name: str(note.get(name, "")) for name in ("public_url", "born")}
        return Running(Path(note["config"]), str(note["url"]), int(note["pid"]), **more)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _born(pid: int) -> str:
    """Return when a process started, in ticks since the machine did;
    "" where the system does not say, or it ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # a zombie has ended, and waits for its parent
    if fields[0] in "ZX":
        return ""
    return fields[19]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # a process of another user
        return True
    except OSError:
        return False
    return True
