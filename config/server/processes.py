"""Worker processes and the WSGI server."""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from sayso.config.server.embedded_redis import die_with_parent
from sayso.config.settings.loader import ConfigError, default_config, given_config

#: Addresses that mean "all", and where this machine reaches them.
_ALL = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}  # noqa: S104  # a comparison


#: Connections that wait to be accepted at most.
BACKLOG = 1024


class AddressUnusable(Exception):
    """Raised when nothing can listen there. The message names the cure."""


def local_url(host: str, port: int) -> str:
    """Where the web answers on this machine."""
    near = _ALL.get(host, host)
    return f"http://{f'[{near}]' if ':' in near else near}:{port}"


def check_free(host: str, port: int) -> None:
    """Raise AddressUnusable unless a server can listen there now."""
    listen(host, port).close()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; processes that are forked later share it. Raises AddressUnusable."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except socket.gaierror:
        raise AddressUnusable(f"no address {host!r}: give another with --host, such as 127.0.0.1") from None
    except OSError as exc:
        reason = os.strerror(exc.errno or 0)
        raise AddressUnusable(
            f"cannot listen on {host}:{port} ({reason}): stop what uses it, or give another --port or --host"
        ) from None
    return listening


log = logging.getLogger(__name__)


#: One that dies within so many seconds of its fork died quickly; its successor waits, longer each time.
QUICK_SECONDS = 1.0


#: The longest wait, in seconds.
MAX_PAUSE_SECONDS = 5.0


_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def prefork(count: int) -> None:
    """Return in each of `count` forked processes. The parent stays here until a signal ends it and them.

    Call it before there are threads or connections. The parent raises SystemExit: with 0 after SIGTERM or SIGINT, else
    with the code of the first process that gave up by itself.
    """
    parent = _Parent(count)
    if not parent.is_child:
        raise SystemExit(parent.code)


class _Parent:
    """The parent, until it is over; or, with `is_child`, one that was forked off."""

    def __init__(self, count: int) -> None:
        self.is_child, self.code = False, 0
        self._count = count
        self._children: dict[int, float] = {}
        self._quick = 0
        self._stopping = False
        gc.freeze()  # a collection would touch, and so copy, what is shared
        self._reads, self._writes = os.pipe()
        for end in (self._reads, self._writes):
            os.set_blocking(end, False)
        for number in _HEARD:
            signal.signal(number, _note)
        signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        self._keep()

    def _keep(self) -> None:
        while self._children or not self._stopping:
            while len(self._children) < self._count and not self._stopping:
                self._fork()
                if self.is_child:
                    return
            self._heed(self._listen(None))

    def _fork(self) -> None:
        parent = os.getpid()
        with _deaf():
            pid = os.fork()
            if pid:
                self._children[pid] = time.monotonic()
                return
            self.is_child = True
            signal.set_wakeup_fd(-1)
            for number in _HEARD:
                signal.signal(number, signal.SIG_DFL)
            for end in (self._reads, self._writes):
                os.close(end)
            os.setpgid(0, 0)  # Ctrl-C reaches it through its parent only
            die_with_parent()
            if os.getppid() != parent:
                os._exit(0)

    def _listen(self, seconds: float | None) -> bytes:
        """The signals that came, waiting for so long."""
        select.select([self._reads], [], [], seconds)
        try:
            return os.read(self._reads, 512)
        except BlockingIOError:
            return b""

    def _heed(self, heard: bytes) -> None:
        for number in heard:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop()
        for pid, status in _ended():
            self._lost(pid, os.waitstatus_to_exitcode(status))

    def _stop(self) -> None:
        """Tell all to stop; told again, they do it at once."""
        self._stopping = True
        for pid in self._children:
            os.kill(pid, signal.SIGTERM)

    def _lost(self, pid: int, code: int) -> None:
        lived = time.monotonic() - self._children.pop(pid)
        if self._stopping:
            return
        if code > 0:
            self.code = code
            self._stop()
            return
        log.warning("prefork.died", extra={"pid": pid, "code": code, "seconds": round(lived, 1)})
        self._quick = self._quick + 1 if lived < QUICK_SECONDS else 0
        if self._quick > 1:
            self._heed(self._listen(min(MAX_PAUSE_SECONDS, 0.1 * 2**self._quick)))


def _ended() -> Iterator[tuple[int, int]]:
    """Children that ended and were not waited for, and how."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


@contextmanager
def _deaf() -> Iterator[None]:
    """Signals wait meanwhile: one that meets a child with its parent's handlers would be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


def _note(_: int, __: FrameType | None) -> None:
    """What came is read from the pipe."""


#: The note's name in a bot's own folder, and the version of what it holds.
FILE = "running.json"


SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Running:
    """A bot that runs: its file, its web's address on this machine, and its supervisor's process id."""

    config: Path
    url: str
    pid: int


def leave_note(folder: Path, running: Running) -> None:
    """Note in a bot's state folder that it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{FILE}.{running.pid}"
    draft.write_text(json.dumps({"schema": SCHEMA, **asdict(running), "config": str(running.config)}))
    draft.replace(folder / FILE)


def take_note_back(folder: Path) -> None:
    """Remove the note of this process, and no other's."""
    note = _read(folder / FILE)
    if note and note.pid == os.getpid():
        (folder / FILE).unlink(missing_ok=True)


def running_bots(data: Path) -> list[Running]:
    """Return the bots that `sayso up` or `sayso demo` runs on a data folder now."""
    return list(_alive(data))


def find_config(config: Path | None, data: Path) -> Path:
    """Return the file of the bot that an operator means: as given, by SAYSO_CONFIG, of the bot that runs on this data
    folder, or ./sayso.yaml. Raises ConfigError where several run, and where there is none.
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
    raise ConfigError([f"several bots run on {data}: name one with --config: {', '.join(map(str, sorted(bots)))}"])


def url_of(config: Path, data: Path) -> str:
    """Return the address at which the running bot of a file answers on this machine; "" where it does not run."""
    return next((bot.url for bot in running_bots(data) if bot.config.resolve() == config.resolve()), "")


def _alive(data: Path) -> Iterator[Running]:
    for file in sorted(data.glob(f"bots/*/{FILE}")):
        note = _read(file)
        if note and _is_alive(note.pid):
            yield note


def _read(file: Path) -> Running | None:
    try:
        found = json.loads(file.read_text())
        return Running(Path(found["config"]), str(found["url"]), int(found["pid"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # somebody else's process is one
        return True
    except OSError:
        return False
    return True
