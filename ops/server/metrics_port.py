"""The port of the /metrics endpoint, and how the processes of one command count together.

What the endpoint answers, and to whom, is in `sayso.infra.metrics_endpoint`.

A command that forks processes has one endpoint for all of them:
they count in common files (`sayso.infra.metrics`).
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from sayso.infra.metrics_endpoint import TOKEN, TOKEN_FILE, MetricsUnusable, read_token
from sayso.infra.metrics_folder import FOLDER

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

#: The variable with the address, where no option gives one.
ADDRESS = "SAYSO_METRICS"
#: Threads that answer readers. One that reads slowly holds none (`sayso.ops.server.http`).
READER_THREADS = 2
#: How the folders of common files begin. One that no process used for this many
#: seconds belongs to a killed process.
_PREFIX = "sayso-metrics-"
_LEFT_SECONDS = 60.0


#: Host and port of the endpoint, None for no port of its own.
MetricsAddress = tuple[str, int] | None


def share_counts(address: MetricsAddress, *, forks: bool) -> None:
    """Count in shared files if the parent process does,
    or if this one `forks` and its metrics can be read.

    Call it before `sayso.infra.metrics` is imported, which chooses then where it counts.
    Raises MetricsUnusable.
    """
    is_read = address or os.environ.get(TOKEN) or os.environ.get(TOKEN_FILE)
    if not (os.environ.get(FOLDER) or (forks and is_read)):
        return
    if "sayso.infra.metrics" in sys.modules:
        raise RuntimeError("share_counts must be called before sayso.infra.metrics is imported")
    given = os.environ.get(FOLDER)
    try:
        if not given:
            _remove_left(Path(tempfile.gettempdir()))
            os.environ[FOLDER] = tempfile.mkdtemp(prefix=_PREFIX)
            atexit.register(_remove, os.environ[FOLDER], os.getpid())
        import sayso.infra.metrics  # noqa: F401  # it opens its files
    except OSError as exc:
        if given:
            where = f"{FOLDER}: cannot count in {given!r}"
            cure = "name a folder that this user may write to"
        else:
            where = "cannot count for --metrics in a temporary folder"
            cure = "set TMPDIR to a folder that has room"
        if given and exc.errno == errno.ENOSPC:
            cure = "make room there"
        raise MetricsUnusable(f"{where} ({exc.strerror or exc}): {cure}") from exc


def _remove_left(temporary: Path) -> None:
    """Remove the folders of commands that were killed."""
    for folder in temporary.glob(f"{_PREFIX}*"):
        try:
            info = folder.lstat()
            if (
                info.st_uid == os.getuid()
                and time.time() - info.st_mtime > _LEFT_SECONDS
                and not _is_in_use(folder)
            ):
                shutil.rmtree(folder)
        except OSError:  # another process removes it, too
            continue


def _is_in_use(folder: Path) -> bool:
    for path in folder.glob("*.lock"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # forked processes run it, too
        shutil.rmtree(folder, ignore_errors=True)


def listen_for_readers(address: MetricsAddress) -> socket | None:
    """Return a listening socket for the endpoint, None without an address.

    Raises MetricsUnusable and AddressUnusable.
    """
    from sayso.ops.server.processes import listen

    token = read_token()
    if address is None:
        return None
    host, port = address
    if not token and not is_loopback(host):
        cure = f"set {TOKEN} or {TOKEN_FILE}, or write --metrics {port} for this machine alone"
        if ":" in host:
            where = f"[{host}]:{port}"
        else:
            where = f"{host}:{port}"
        raise MetricsUnusable(
            f"--metrics {where} can be reached by others, and no token is set: {cure}"
        )
    return listen(host, port, option="--metrics")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on this host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def serve_metrics(app: WSGIApplication, listening: socket | None) -> Callable[[], None]:
    """Serve the endpoint on a listening socket in background threads.

    None: do nothing. Call it after a fork.

    Return what ends it. Call that before you close the socket; a process that ends need not.
    """
    if listening is None:
        return lambda: None
    from sayso.ops.server.http import WsgiServer

    server = WsgiServer(app, listening, threads=READER_THREADS)
    thread = threading.Thread(target=server.run, name="sayso-metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join()

    return stop
