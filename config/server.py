"""HTTP server: waitress, which reads a whole request before it spends a thread on it.

A sender of half a request therefore holds a socket and no thread. Each connection has time limits of its own: for the
headers, for the whole body, and for silence. A server that is full closes the oldest unfinished request.
"""

from __future__ import annotations

import logging
import resource
import signal
import socket
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import TcpWSGIServer
from waitress.utilities import BadRequest, RequestEntityTooLarge

from channels.console_pages import UPLOADS
from channels.hooks import MAX_BODY
from channels.media import MAX_BYTES

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger(__name__)

#: How long a client may take for its headers, in seconds from their first byte.
HEADER_SECONDS = 10.0
#: How long a client may take for a whole request, in seconds. A file that a phone sends may take longer.
REQUEST_SECONDS, UPLOAD_SECONDS = 30.0, 600.0
#: How long a client may say nothing in the middle of a file, in seconds.
STALL_SECONDS = 20.0
#: How long a connection stays open between two requests, in seconds. Platforms use theirs again.
IDLE_SECONDS = 75
#: Bytes that the headers of a request may have.
MAX_HEADER_BYTES = 32 * 1024
#: Bytes of unfinished bodies that one process keeps at most. They lie on its disk beyond half a megabyte each.
MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
#: Connections that one process keeps at most, and file descriptors that it needs for everything else.
MAX_CONNECTIONS, SPARE_DESCRIPTORS = 4000, 200
#: How long requests in progress may take to end after SIGTERM or SIGINT, in seconds.
GRACE_SECONDS = 5.0
#: A bad request is logged once a minute for each address; so many addresses are remembered.
LOG_SECONDS, MAX_ADDRESSES = 60.0, 1000


class _Overloaded(BadRequest):  # type: ignore[misc]  # waitress ships no types
    """Answered where bodies on their way take all the room there is."""

    code = 503
    reason = "Service Unavailable"


class _Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress ships no types
    """One request. The limit of its body depends on its path. A malformed request is the client's fault: 400."""

    completed: bool
    error: Any

    def received(self, data: bytes) -> int:
        """Take bytes of the request. Return how many of them were its own."""
        consumed = int(super().received(data))
        error = self.error
        if error is None and not self.completed and self.headers_finished:
            self._check_body()
        elif error is not None and error.code >= 500 and not isinstance(error, _Overloaded):
            self.error = BadRequest(error.body)
        return consumed

    @property
    def is_upload(self) -> bool:
        """Whether a person sends a file from the console's page."""
        return self.headers_finished and bool(UPLOADS.fullmatch(getattr(self, "path", "")))

    def _check_body(self) -> None:
        most = MAX_BYTES if self.is_upload else MAX_BODY
        if max(self.content_length, self.body_bytes_received) > most:
            self.error, self.completed = RequestEntityTooLarge(f"send at most {most} bytes"), True
        elif self.adj.unfinished_bytes() > MAX_UNFINISHED_BYTES:
            self.error, self.completed = _Overloaded("too many bodies are on their way: try again shortly"), True


class _Connection(HTTPChannel):  # type: ignore[misc]  # waitress ships no types
    """One client. `began` is when the request that it is sending began, on the wall clock as waitress has it."""

    parser_class = _Parser
    began = 0.0

    def received(self, data: bytes) -> bool:
        """Take bytes. A request that cannot be read is logged."""
        if self.request is None:
            self.began = time.time()
        taken = bool(super().received(data))
        for request in self.requests[-1:]:
            if request.error is not None:
                self.server.log_refusal(self.addr[0], request.error)
        return taken

    def overdue(self, now: float) -> str:
        """Return why the request that the client is sending is given up, "" while it has time."""
        request = self.request
        if request is None:
            return ""
        if not request.headers_finished:
            return "headers took too long" if now - self.began > HEADER_SECONDS else ""
        if request.is_upload:
            stalled = now - self.last_activity > STALL_SECONDS
            return "a file stalled" if stalled or now - self.began > UPLOAD_SECONDS else ""
        return "the body took too long" if now - self.began > REQUEST_SECONDS else ""


class Server(TcpWSGIServer):  # type: ignore[misc]  # waitress ships no types
    """Serves one app on one listening socket with a pool of threads, until `stop`."""

    channel_class = _Connection

    def __init__(self, app: WSGIApplication, listening: socket.socket, *, threads: int) -> None:
        limits = Adjustments(
            sockets=[listening], threads=threads, ident="", connection_limit=_connection_limit(),
            channel_timeout=IDLE_SECONDS, cleanup_interval=1, asyncore_use_poll=True, backlog=1024,
            max_request_header_size=MAX_HEADER_BYTES, max_request_body_size=MAX_BYTES + 1,
            clear_untrusted_proxy_headers=False, expose_tracebacks=False, log_socket_errors=False,
        )  # fmt: skip
        limits.unfinished_bytes = self._unfinished_bytes
        self._stopping = False
        self._refused: OrderedDict[str, tuple[float, int]] = OrderedDict()
        info = (listening.family, listening.type, listening.proto, listening.getsockname())
        super().__init__(app, _sock=listening, adj=limits, sockinfo=info, bind_socket=False)

    def stop(self, *_: object) -> None:
        """Take no more requests, and end once those in progress have their answers. Safe in a signal handler."""
        self._stopping = True
        self.pull_trigger()

    def run(self) -> None:
        """Serve until `stop` is called; requests in progress have GRACE_SECONDS then."""
        while not self._stopping:
            self._step()
        self.accepting = False
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and any(map(_is_busy, self.active_channels.values())):
            self._step(0.1)
        self.task_dispatcher.shutdown(timeout=1)

    def maintenance(self, now: float) -> None:
        """Close idle connections, as waitress does once a second here, and those whose request takes too long."""
        super().maintenance(now)
        for connection in list(self.active_channels.values()):
            reason = connection.overdue(now)
            if reason:
                self._close(connection, reason)

    def handle_accept(self) -> None:
        """Take a connection. Where there is no room, the oldest unfinished request makes some."""
        if len(self._map) >= self.adj.connection_limit - 1:
            unfinished = [each for each in self.active_channels.values() if each.request is not None]
            if unfinished:
                self._close(min(unfinished, key=lambda each: each.began), "another client needs the room")
        super().handle_accept()

    def log_refusal(self, address: str, error: Any) -> None:
        """Log that a request was refused: one line a minute for each address, with the number of others."""
        self._log_once(address, f"{error.code} {error.body}")

    def _close(self, connection: _Connection, reason: str) -> None:
        self._log_once(connection.addr[0], reason)
        connection.will_close = True

    def _log_once(self, address: str, reason: str) -> None:
        now = time.monotonic()
        since, others = self._refused.get(address, (float("-inf"), 0))
        if now - since < LOG_SECONDS:
            self._refused[address] = since, others + 1
            return
        log.warning("request.refused", extra={"address": address, "reason": reason, "others_before": others})
        self._refused[address] = now, 0
        self._refused.move_to_end(address)
        while len(self._refused) > MAX_ADDRESSES:
            self._refused.popitem(last=False)

    def _unfinished_bytes(self) -> int:
        requests = [each.request for each in self.active_channels.values()]
        return sum(max(each.content_length, each.body_bytes_received) for each in requests if each is not None)

    def _step(self, seconds: float = 1.0) -> None:
        self.asyncore.loop(timeout=seconds, map=self._map, use_poll=True, count=1)


def serve(app: WSGIApplication, listening: socket.socket, *, threads: int) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are finished first."""
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a queue of one is no news
    server = Server(app, listening, threads=threads)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.stop)
    server.run()


def _is_busy(connection: _Connection) -> bool:
    return bool(connection.requests or connection.total_outbufs_len)


def _connection_limit() -> int:
    """Return how many connections fit, after asking the system for more file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_DESCRIPTORS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(100, min(MAX_CONNECTIONS, (most if soft == resource.RLIM_INFINITY else soft) - SPARE_DESCRIPTORS))
