"""The port of the /metrics endpoint, and how the processes of one command count together.

What the endpoint answers, and to whom, is in `sayso.infra.metrics_endpoint`.

Prometheus reads one endpoint for each command. So the processes that a command forks or starts
count in common files, in a folder whose path is in an environment variable (`FOLDER`). The endpoint
adds up the files.
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
#: How many threads answer requests. A client that reads slowly holds none of them
#: (`sayso.ops.server.http`).
THREADS = 2
#: How the names of the folders of common files begin, in the temporary folder.
_PREFIX = "sayso-metrics-"
#: A folder that no process uses, and that is older than this, was left by a killed command. In
#: seconds; a younger one may be that of a command which is just starting.
_ABANDONED_SECONDS = 60.0

#: Host and port of the endpoint, None for a process that has none.
MetricsAddress = tuple[str, int] | None


def share_counts(address: MetricsAddress, *, forks: bool) -> None:
    """Count in common files if the parent process does, or if this one has children that count.

    `address` is that of this command's endpoint, None for none. `forks` says whether the command
    forks or starts processes. If neither an endpoint nor a token is configured, no one can read the
    metrics, and they are not shared.

    Call it before `sayso.infra.metrics` is imported, which chooses then where it counts. Raises
    MetricsUnusable where the folder of the files cannot be used.
    """
    given_folder = os.environ.get(FOLDER)
    has_reader = address or os.environ.get(TOKEN) or os.environ.get(TOKEN_FILE)
    is_shared = given_folder or (forks and has_reader)
    if not is_shared:
        return
    if "sayso.infra.metrics" in sys.modules:
        raise RuntimeError("share_counts must be called before sayso.infra.metrics is imported")

    try:
        if not given_folder:
            _remove_abandoned(Path(tempfile.gettempdir()))
            os.environ[FOLDER] = tempfile.mkdtemp(prefix=_PREFIX)
            atexit.register(_remove, os.environ[FOLDER], os.getpid())
        import sayso.infra.metrics  # noqa: F401  # it opens its files
    except OSError as exc:
        where = "cannot count for --metrics in a temporary folder"
        cure = "set TMPDIR to a folder that has room"
        if given_folder:
            where = f"{FOLDER}: cannot count in {given_folder!r}"
            cure = "name a folder that this user may write to"
            if exc.errno == errno.ENOSPC:
                cure = "make room there"
        raise MetricsUnusable(f"{where} ({exc.strerror or exc}): {cure}") from exc


def _remove_abandoned(temporary: Path) -> None:
    """Remove the folders of commands that were killed."""
    for folder in temporary.glob(f"{_PREFIX}*"):
        try:
            info = folder.lstat()
            is_ours = info.st_uid == os.getuid()
            is_old = time.time() - info.st_mtime > _ABANDONED_SECONDS
            if is_ours and is_old and not _is_in_use(folder):
                shutil.rmtree(folder)
        except OSError:  # another process removes it, too
            continue


def _is_in_use(folder: Path) -> bool:
    """Return whether a process counts in this folder: it holds a lock on its file there."""
    for path in folder.glob("*.lock"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _remove(folder: str, owner: int) -> None:
    """Remove a folder if this is the process `owner`. Forked processes call this at their end."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def listen_for_readers(address: MetricsAddress) -> socket | None:
    """Return a listening socket for the endpoint, None without an address.

    An address that other machines reach needs a token. Raises MetricsUnusable without one, and
    AddressUnusable where the port is taken.
    """
    from sayso.ops.server.processes import listen

    token = read_token()
    if address is None:
        return None
    host, port = address
    if not token and not is_loopback(host):
        cure = f"set {TOKEN} or {TOKEN_FILE}, or write --metrics {port} for this machine alone"
        shown_host = f"[{host}]" if ":" in host else host
        where = f"{shown_host}:{port}"
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
    """Serve the endpoint `app` in background threads, and return a function that ends this.

    `listening` is the socket of `listen_for_readers`; None: nothing is served. Call this after a
    fork, which threads do not survive. Call the returned function before you close the socket; a
    process that ends need not call it.
    """
    if listening is None:
        return lambda: None
    from sayso.ops.server.http import WsgiServer

    server = WsgiServer(app, listening, threads=THREADS)
    thread = threading.Thread(target=server.run, name="sayso-metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join()

    return stop
