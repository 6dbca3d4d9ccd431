"""Processes on this machine: child processes, listening sockets, forks, and a note of what runs.

* `Child` is a process with another command, such as the Redis of `sayso up`.
* `listen` takes a port. Processes that are forked later share it.
* `prefork` forks a process into several of the same kind, and replaces those that die.
* `RunningBot` is a note in the data folder. By it a command such as `sayso doctor` finds the bot
  that runs there, without being told its configuration.
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
from sayso.infra.backoff import backoff_seconds
from sayso.infra.stop_signals import KILL_SECONDS, SUPERVISED, say_stopping, stop_signals
from sayso.infra.storage.files import write_atomically

log = logging.getLogger(__name__)

#: How long a child may finish what it is doing before it is killed, in seconds.
GRACE_SECONDS = 25.0
#: The option of Linux's `prctl` for the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1
#: The system call that sets the signal which a process gets when its parent dies.
#: Loaded on import, because a child should do as little as possible between fork and exec.
_LIBC = None
if sys.platform == "linux":
    _LIBC = ctypes.CDLL(None)
#: At which address this machine reaches a server that listens on one of these hosts. Most of them
#: mean all interfaces.
_LOCAL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}  # noqa: S104  # a key
#: The most connections that wait to be accepted.
BACKLOG = 1024
#: A process that dies within this time of its fork, in seconds, died quickly. After each further
#: quick death in a row the next process is forked later, so that a defect at the start does not
#: take all of the CPU.
QUICK_SECONDS = 1.0
#: The longest pause before a process is forked again, in seconds.
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
#: The file in a bot's state folder that says that `sayso up` or `sayso demo` runs it.
UP_FILE = "running.json"
#: The file that says that a `sayso web` runs for it.
WEB_FILE = "web.json"
#: The version of their format.
SCHEMA = 1


class AddressUnusable(Exception):
    """Raised when no server can listen on an address. The message names the cure."""


def die_with_parent() -> None:
    """Make Linux send SIGTERM to this process when its parent dies, even after kill -9.

    Call it in a child, before exec. On other systems it does nothing.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """A child process that can be started again. Lives as long as the process that starts it."""

    #: What messages call it.
    name: str
    #: Its command line.
    command: list[str]
    #: Its environment. Not in the `repr`, since it holds secrets.
    environ: Mapping[str, str] = field(repr=False)
    #: The process of the last start, which may have ended; None before the first.
    process: subprocess.Popen[bytes] | None = None
    #: The file to which it prints, None for our stderr.
    log: IO[bytes] | None = None
    #: Runs in the new process before its command. It should make system calls only.
    prepare: Callable[[], None] = die_with_parent

    def start(self) -> None:
        """Start the process.

        In a new session, so that Ctrl-C in a terminal reaches it only through us: we decide in
        which order processes end.
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
    address = _LOCAL_ADDRESSES.get(host, host)
    if ":" in address:  # an IPv6 address stands in brackets
        address = f"[{address}]"
    return f"http://{address}:{port}"


def check_free(host: str, port: int) -> None:
    """Raise AddressUnusable unless a server can listen there now."""
    listen(host, port).close()


def listen(host: str, port: int, *, option: str = "--port or --host") -> socket.socket:
    """Return a listening socket. Processes that are forked later share it.

    `option` names the command's options of the address, for the error. Raises AddressUnusable.
    """
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
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
    """Make the kernel drop new connections to a listening socket.

    When a listening socket is closed, the kernel resets the connections that still wait in its
    queue, though their clients may have sent requests. After this call no connection is added to
    the queue, so a server can accept all of them before it closes the socket. A client whose
    connection was dropped tries again after a second, and finds the next process or no server.

    It needs Linux. Elsewhere, or where a sandbox forbids it, connections still arrive.
    """
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("=HBBI", *row) for row in _DROP_NEW_CONNECTIONS)
    rows = ctypes.create_string_buffer(program)
    with contextlib.suppress(OSError):
        header = struct.pack("@HP", len(_DROP_NEW_CONNECTIONS), ctypes.addressof(rows))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)


def prefork(count: int, listening: socket.socket | None = None) -> None:
    """Fork `count` processes, and return in each of them. Call it before there are threads.

    The parent does not return. It replaces each process that a signal or a crash killed, until it
    gets SIGTERM, SIGINT or SIGHUP; it then stops all of them and raises SystemExit with 0. A
    process that exits by itself with an error stops all of them too: its successors would fail in
    the same way. SystemExit then has its exit code.

    `listening` is the socket that the processes share, None for none.
    """
    parent = _Parent(count, listening)
    parent.run()
    if not parent.is_child:
        raise SystemExit(parent.code)


class _Parent:
    """The parent of forked processes.

    `run` returns in each forked process, with `is_child`, and in the parent after the last of them
    has ended.
    """

    def __init__(self, count: int, listening: socket.socket | None) -> None:
        # Imported late: this module decides at its import where it counts (`metrics_port`).
        from sayso.infra.metrics import RESTARTS

        #: Whether this is a forked process.
        self.is_child = False
        #: The exit code of the parent.
        self.code = 0
        # The count begins at 0, since an alert on its increase would miss the first death.
        self._deaths = RESTARTS.labels("fork")
        self._count = count
        self._listening = listening
        self._stop_signals = stop_signals()
        self._handled_signals = (*self._stop_signals, signal.SIGCHLD, signal.SIGALRM)
        #: When each living process was forked, by its id and the monotonic clock.
        self._started_at: dict[int, float] = {}
        #: How many processes in a row died quickly.
        self._quick_deaths = 0
        self._is_stopping = False
        #: When the children are killed, by the monotonic clock. Set by Ctrl-C.
        self._kill_at: float | None = None

    def run(self) -> None:
        """Fork processes, and replace those that die, until a signal asks to stop."""
        # A garbage collection would write to the memory that the processes share, and copy it so.
        gc.freeze()
        # Blocked signals wait for `sigwait` below. The handler never runs, but without any handler
        # macOS drops SIGCHLD.
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
        """Fork one process, and prepare it: it gets its own signals and dies with its parent."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._started_at[pid] = time.monotonic()
            return

        # From here on this is the forked process.
        self.is_child = True
        os.environ[SUPERVISED] = "true"
        for number in self._handled_signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled_signals)
        os.setpgid(0, 0)  # Ctrl-C reaches it only through its parent
        die_with_parent()
        # The parent may have died before the line above.
        if os.getppid() != parent:
            os._exit(0)

    def _handle_signal(self, seconds: float = 0.0) -> None:
        """Wait for a signal, and handle it. Then handle the end of processes that have ended.

        `seconds` is the longest time to wait, 0 for no limit.
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

        # One SIGCHLD may stand for several processes.
        while self._started_at:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._note_end(pid, os.waitstatus_to_exitcode(status))

    def _stop(self, number: int = signal.SIGTERM) -> None:
        """Stop all processes with SIGINT, SIGKILL or SIGTERM; other signals count as SIGTERM.

        After SIGINT, from Ctrl-C, a person waits: processes that still live after KILL_SECONDS are
        killed. A second signal makes a process stop at once.
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
        """Handle the end of a process. `code` is its exit code, or minus the signal that killed it.

        After several quick deaths in a row this waits, so that the next process is forked later.
        """
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
            self._quick_deaths += 1
        else:
            self._quick_deaths = 0
        if self._quick_deaths > 1:
            pause = backoff_seconds(self._quick_deaths, first=0.2, longest=MAX_PAUSE_SECONDS)
            self._handle_signal(pause)


@dataclass(frozen=True, slots=True)
class RunningBot:
    """A note in a bot's state folder: this bot runs on this machine.

    The note of a killed bot remains. So a reader checks whether the process still lives.
    """

    #: The configuration file.
    config: Path
    #: The URL of its web on this machine.
    url: str
    #: The id of its process.
    pid: int
    #: The URL of its web that platforms know, "" for none.
    public_url: str = ""
    #: When the process started, in ticks since the machine started; "" where the system does not
    #: say. It shows that a later process has the same id by chance.
    born: str = ""


def save_running_bot(folder: Path, bot: RunningBot, file: str) -> None:
    """Write the note of a running bot to its state folder, readable by our own user alone.

    `file` is UP_FILE or WEB_FILE. Raises OSError.
    """
    note = {
        "schema": SCHEMA,
        **asdict(bot),
        "config": str(bot.config),
        "born": _born(bot.pid),
    }
    write_atomically(folder / file, json.dumps(note).encode())


def delete_running_bot(folder: Path, file: str) -> None:
    """Delete the note of a running bot if it is that of this process."""
    note = _read(folder / file)
    if note and note.pid == os.getpid():
        (folder / file).unlink(missing_ok=True)


def running_bots(data: Path) -> list[RunningBot]:
    """Return the bots that `sayso up`, `sayso demo` or `sayso web` runs on a data folder now."""
    files = [*sorted(data.glob(f"bots/*/{UP_FILE}")), *sorted(data.glob(f"bots/*/{WEB_FILE}"))]
    bots = []
    for file in files:
        bot = _read(file)
        if bot and _is_alive(bot.pid) and bot.born == _born(bot.pid):
            bots.append(bot)
    return bots


def find_config(config: Path | None, data: Path) -> Path:
    """Return the configuration that an operator means.

    The first of these counts: `config` (that of --config, None without it), the file that
    SAYSO_CONFIG names, the file of the bot that runs on the data folder, ./sayso.yaml. Of several
    running bots it is ./sayso.yaml if that is one of them. Raises ConfigError where it is none of
    them, and where there is no file.
    """
    chosen_file = config or given_config()
    if chosen_file:
        return chosen_file
    bots = {bot.config.resolve(): bot for bot in running_bots(data)}
    if not bots:
        return default_config()
    if len(bots) == 1:
        (bot,) = bots.values()
        return bot.config
    here = Path("sayso.yaml").resolve()
    if here in bots:
        return here
    raise ConfigError(
        [f"several bots run on {data}: name one with --config: {', '.join(map(str, sorted(bots)))}"]
    )


def running_bot(config: Path, data: Path) -> RunningBot | None:
    """Return the bot of a configuration that runs on this machine, None where it does not run."""
    for bot in running_bots(data):
        if bot.config.resolve() == config.resolve():
            return bot
    return None


def _read(file: Path) -> RunningBot | None:
    """Return the note in a file, None where there is none or it is damaged."""
    try:
        note = json.loads(file.read_text())
        return RunningBot(
            Path(note["config"]),
            str(note["url"]),
            int(note["pid"]),
            public_url=str(note.get("public_url", "")),
            born=str(note.get("born", "")),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _born(pid: int) -> str:
    """Return when a process started, in ticks since the machine started.

    "" where the system does not say, and for a process that has ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name of the command stands in parentheses, and may have any characters.
    state, *numbers = text.rpartition(")")[2].split()
    # A zombie has ended, and waits for its parent to ask how.
    if state in "ZX":
        return ""
    return numbers[18]  # `starttime` in proc(5)


def _is_alive(pid: int) -> bool:
    """Return whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except PermissionError:  # a process of another user
        return True
    except OSError:
        return False
    return True
