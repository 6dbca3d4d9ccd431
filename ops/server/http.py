"""HTTP server: waitress, which reads a whole request before it spends a thread on it.

A sender of half a request therefore holds a socket and no thread. Each connection has time limits
of its own: for the headers, for the whole body, for reading the answer, and for silence. A server
that is full closes the oldest connection without a request in progress.
"""

from __future__ import annotations

import heapq
import logging
import re
import resource
import signal
import socket
import time
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.utilities import BadRequest, Error, RequestEntityTooLarge

from sayso.channels.console.views import UPLOADS
from sayso.channels.inbound_limits import MAX_FILE_BYTES, MAX_WEBHOOK_BYTES
from sayso.channels.web.webhooks import LogLimit
from sayso.infra.stop_signals import INTERRUPTED_SECONDS, on_stop_signals, say_stopping
from sayso.ops.server.processes import BACKLOG, refuse_new_connections

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger(__name__)

#: How long a client may take for its headers, in seconds from their first byte.
HEADER_SECONDS = 10.0
#: How long a client may take for a whole request, in seconds. A file that a phone sends,
#: or fetches, may take longer.
REQUEST_SECONDS = 30.0
FILE_SECONDS = 600.0
#: How long nothing may move in the middle of a file or of an answer, in seconds.
STALL_SECONDS = 20.0
#: How long a connection stays open between two requests, in seconds. Platforms use theirs again.
IDLE_SECONDS = 75.0
#: How long a client that was refused may go on sending, in seconds. What it sends is thrown away.
LINGER_SECONDS = 30.0
#: Bytes that the headers of a request may have, and the line before a
#: chunk or those after the last one.
MAX_HEADER_BYTES = 32 * 1024
MAX_CHUNK_LINE_BYTES = 16 * 1024
#: Bytes of unfinished bodies that one process keeps at most.
#: They lie on its disk beyond half a megabyte each.
MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
#: Connections that one process keeps at most, and file descriptors
#: that it needs for everything else.
MAX_CONNECTIONS = 4000
SPARE_DESCRIPTORS = 200
#: Connections that are taken at a time.
MAX_ACCEPTS = 64
#: How often overdue connections are looked for, in seconds.
LOOK_SECONDS = 1.0
#: How long requests in progress may take to end after a signal to stop, in seconds.
GRACE_SECONDS = 5.0
#: How long connections are still accepted after that signal, in seconds: those that wait in the
#: queue of the listening socket, and those whose handshake is under way.
ACCEPT_SECONDS = 0.5
#: How long a connection without a request then stays open, in seconds:
#: its client may be about to send one.
LAST_REQUEST_SECONDS = 1.0
#: How often a server that ends checks whether it is done, in seconds.
END_LOOK_SECONDS = 0.05
#: The value of each header that names transfer codings.
_TRANSFER_ENCODING = re.compile(rb"^transfer-encoding[ \t]*:([^\n]*)", re.IGNORECASE | re.MULTILINE)


class _NotKept(Error):
    """Refuses a body for which the disk has no room at the moment: the sender may try again."""

    code = 503
    reason = "Service Unavailable"


class _Parser(HTTPRequestParser):
    """One request.

    The limit of its body depends on its path. A malformed request is the client's fault: 400.
    """

    completed: bool
    error: Any

    def received(self, data: bytes) -> int:
        """Take bytes of the request. Return how many of them were its own."""
        try:
            consumed = int(super().received(data))
        except ValueError:
            # Such as a length of 5,000 digits: waitress lets int() and urlsplit() raise.
            return self._refuse(BadRequest("the request cannot be read"), len(data))
        except OSError as exc:  # a body of more than half a megabyte is a temporary file
            return self._refuse(_NotKept(f"the body cannot be kept now: {exc.strerror}"), len(data))
        if self.error is not None:
            self._refuse(self.error if self.error.code < 500 else BadRequest(self.error.body))
        elif self.headers_finished and not self.completed:
            most = MAX_FILE_BYTES if self.is_upload else MAX_WEBHOOK_BYTES
            if max(self.content_length, self.body_bytes_received) > most:
                self._refuse(RequestEntityTooLarge(f"send at most {most} bytes"))
            elif (
                self.chunked
                and len(self.body_rcv.control_line) + len(self.body_rcv.trailer)
                > MAX_CHUNK_LINE_BYTES
            ):
                # Waitress reads it anew with every byte.
                self._refuse(BadRequest("the line of a chunk is too long"))
        return consumed

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the first line and the headers. Raises ParsingError.

        A body has one length: RFC 9112 (6.1 and 6.3) lets a server refuse `Content-Length` beside
        chunks. A proxy that believes the other one of the two would take the rest of the body for
        the next request.
        """
        codings = [each.strip().lower() for each in _TRANSFER_ENCODING.findall(header_plus)]
        if codings and codings != [b"chunked"]:
            raise ParsingError("send one `Transfer-Encoding: chunked`, or none")
        super().parse_header(header_plus)
        if codings and not self.chunked:
            raise ParsingError("HTTP/1.0 has no Transfer-Encoding")
        if codings and "CONTENT_LENGTH" in self.headers:
            raise ParsingError("send Content-Length or Transfer-Encoding, not both")

    @property
    def is_upload(self) -> bool:
        """Whether a person sends a file from the console's page."""
        return self.headers_finished and bool(UPLOADS.fullmatch(getattr(self, "path", "")))

    def _refuse(self, error: Any, consumed: int = 0) -> int:
        self.error = error
        self.completed = True
        self.expect_continue = False  # else waitress would ask for the body of what is refused
        return consumed


class _Connection(HTTPChannel):
    """One client. Times are on the wall clock, as waitress has them."""

    parser_class = _Parser
    close_when_flushed: bool
    #: When the request that the client is sending began, and when an answer that it
    #: has not read yet was first seen.
    began = sending_since = 0.0
    #: Bytes of the body that the client is sending.
    unfinished_bytes = 0
    #: Whether a request was refused, and since when its sender may still read why.
    is_refused = False
    lingering_since = 0.0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        #: When the client's last request was worked on, or when it came.
        self.idle_since: float = self.creation_time

    def received(self, data: bytes) -> bool:
        """Take bytes. Return whether they were read."""
        if self.lingering_since:
            return False
        before = self.request
        taken = bool(super().received(data))
        if self.request is not before:
            self.began = time.time()
        self._count(self.request.body_bytes_received if self.request and self.connected else 0)
        return taken

    def service(self) -> None:
        """Answer one request, in a thread of the pool. One that could not be read is logged."""
        if self.server.is_stopping and len(self.requests) == 1 and self.request is None:
            self.requests[0].headers["CONNECTION"] = (
                "close"  # the client learns that no further request is answered
            )
        error = self.requests[0].error
        if error is not None:
            self.is_refused = True
            self.server.log_refusal(self.addr[0], f"{error.code} {error.body}")
        super().service()
        self.idle_since = time.time()

    def handle_write(self) -> None:
        """Send bytes of answers. After a refusal wait for the client to close the connection.

        It may still be sending its body. If we closed first, the client, or a proxy in between,
        would get a reset connection in place of the refusal.
        """
        if not (self.is_refused and self.close_when_flushed):
            super().handle_write()
            return
        self.close_when_flushed = False
        super().handle_write()
        if self.total_outbufs_len:
            self.close_when_flushed = True
        elif self.connected:
            self.lingering_since = time.time()
            with suppress(OSError):  # it has gone
                self.socket.shutdown(socket.SHUT_WR)

    def handle_close(self) -> None:
        """Close the socket at once, whatever was not sent."""
        self._count(0)
        super().handle_close()

    @property
    def since(self) -> float:
        """When the client began what it is at: a request, reading an answer, or saying nothing."""
        if self.request is not None:
            return self.began
        return self.sending_since or self.idle_since

    def overdue(self, now: float) -> str:
        """Return why the connection is closed, "" while it has time. Call it every LOOK_SECONDS."""
        if self.lingering_since:
            if now - self.lingering_since > LINGER_SECONDS:
                return "it was refused"
            return ""
        if self.total_outbufs_len:
            self.sending_since = self.sending_since or now
            stalled = now - max(self.last_activity, self.sending_since) > STALL_SECONDS
            if stalled or now - self.sending_since > FILE_SECONDS:
                return "the answer is not read"
            return ""
        self.sending_since = 0.0
        if self.requests:
            return ""
        if self.request is None:
            if now - self.idle_since > IDLE_SECONDS:
                return "nothing was said"
            return ""
        if not self.request.headers_finished:
            if now - self.began > HEADER_SECONDS:
                return "headers took too long"
            return ""
        if self.request.is_upload:
            stalled = now - self.last_activity > STALL_SECONDS
            if stalled or now - self.began > FILE_SECONDS:
                return "a file stalled"
            return ""
        if now - self.began > REQUEST_SECONDS:
            return "the body took too long"
        return ""

    def is_awaited(self, stopping_since: float) -> bool:
        """Return whether a server that has been stopping since then waits for this connection.

        It waits for requests and answers in progress, and for a moment for a request that the
        client may have on the way: it has just connected, or it uses its connection again.
        """
        if self.requests or self.request is not None or self.total_outbufs_len:
            return True
        if self.lingering_since:
            return False
        return time.time() - max(self.idle_since, stopping_since) < LAST_REQUEST_SECONDS

    def _count(self, unfinished_bytes: int) -> None:
        self.server.unfinished_bytes += unfinished_bytes - self.unfinished_bytes
        self.unfinished_bytes = unfinished_bytes


class WsgiServer(TcpWSGIServer):
    """Serves one app on one listening socket with a pool of threads, until `stop`.

    With `is_shared` other processes accept connections of that socket too,
    and their parent stops it.
    """

    channel_class = _Connection

    def __init__(
        self,
        app: WSGIApplication,
        listening: socket.socket,
        *,
        threads: int,
        is_shared: bool = False,
    ) -> None:
        limits = Adjustments(
            sockets=[listening],
            threads=threads,
            ident="",
            connection_limit=_connection_limit(),
            asyncore_use_poll=True,
            backlog=BACKLOG,
            # _Parser knows the limits.
            max_request_header_size=MAX_HEADER_BYTES,
            max_request_body_size=2**62,
            # No thread waits for a client that does not read: the largest answer fits.
            outbuf_high_watermark=2 * MAX_FILE_BYTES,
            clear_untrusted_proxy_headers=False,
            expose_tracebacks=False,
            log_socket_errors=False,
        )
        #: Bytes of all bodies that clients are sending.
        self.unfinished_bytes = 0
        #: Whether the server was told to stop: its next answers close their connections.
        self.is_stopping = False
        self._is_shared = is_shared
        self._next_look = 0.0
        self._refusals = LogLimit()
        self._accepts = max(1, min(MAX_ACCEPTS, limits.connection_limit // 10))
        info = (listening.family, listening.type, listening.proto, listening.getsockname())
        self._grace_seconds = GRACE_SECONDS
        super().__init__(app, _sock=listening, adj=limits, sockinfo=info, bind_socket=False)

    def stop(self, number: int = signal.SIGTERM, *_: object) -> None:
        """Take no more connections, and end once requests have their answers.

        Safe in a signal handler.
        """
        if not self.is_stopping:
            say_stopping(number)
        if number == signal.SIGINT:
            self._grace_seconds = INTERRUPTED_SECONDS
        self.is_stopping = True
        self.pull_trigger()

    def run(self) -> None:
        """Serve until `stop` is called, and answer every client whose connection was made by then.

        Connections in the queue of the listening socket are accepted too: a kernel resets them when
        the socket is closed, and a webhook would be lost whose platform does not send it again. All
        that ends after GRACE_SECONDS.
        """
        while not self.is_stopping:
            self._step(LOOK_SECONDS)
        self._end()
        self.task_dispatcher.shutdown(timeout=min(1.0, self._grace_seconds))

    def _end(self) -> None:
        """Accept the last connections, and wait for those that have a request or may send one."""
        if not self._is_shared:
            refuse_new_connections(self.socket)
        stopping_since = time.time()
        began = time.monotonic()
        while time.monotonic() < began + min(ACCEPT_SECONDS, self._grace_seconds):
            self._step(END_LOOK_SECONDS)
        self.accepting = False
        self.del_channel()
        self.socket.close()
        while time.monotonic() < began + self._grace_seconds and any(
            each.is_awaited(stopping_since) for each in self.active_channels.values()
        ):
            self._step(END_LOOK_SECONDS)

    def maintenance(self, now: float) -> None:
        """Do nothing: connections are closed between two polls,
        when no event of theirs is still to be handled.
        """

    def handle_accept(self) -> None:
        """Take the connections that wait."""
        for _ in range(self._accepts):
            before = len(self._map)
            super().handle_accept()
            if len(self._map) == before:
                return

    def log_refusal(self, address: str, reason: str) -> None:
        """Log that a request was refused: one line a minute for each address.

        Used from any thread.
        """
        others = self._refusals.omitted(address)
        if others is not None:
            log.warning(
                "request.refused",
                extra={"address": address, "reason": reason, "others_before": others},
            )

    def _make_room(self) -> None:
        """Close the oldest connections where the next ones or their bodies would find no room.

        A connection whose request is being answered stays open:
        a client that sends a whole request gets its answer.
        """
        excess = len(self._map) + self._accepts - self.adj.connection_limit
        if excess > 0:
            waiting = [each for each in self.active_channels.values() if not each.requests]
            for connection in heapq.nsmallest(excess, waiting, key=attrgetter("since")):
                self._close(connection, "another client needs the room")
        if self.unfinished_bytes > MAX_UNFINISHED_BYTES:
            senders = [each for each in self.active_channels.values() if each.unfinished_bytes]
            for connection in sorted(senders, key=attrgetter("began")):
                if self.unfinished_bytes > MAX_UNFINISHED_BYTES:
                    self._close(connection, "another body needs the room")

    def _close(self, connection: _Connection, reason: str) -> None:
        if connection.request is not None or connection.total_outbufs_len:
            self.log_refusal(connection.addr[0], reason)
        connection.handle_close()

    def _step(self, seconds: float) -> None:
        """Handle what happens to connections within this time, and close those that are overdue."""
        self.asyncore.loop(timeout=seconds, map=self._map, use_poll=True, count=1)
        now = time.time()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            for connection in list(self.active_channels.values()):
                if reason := connection.overdue(now):
                    self._close(connection, reason)
        self._make_room()


def serve(
    app: WSGIApplication, listening: socket.socket, *, threads: int, is_shared: bool = False
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; requests in progress are finished first.

    `is_shared`: whether processes that were forked with this one
    accept connections of the same socket.
    """
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a queue of one is no news
    server = WsgiServer(app, listening, threads=threads, is_shared=is_shared)
    on_stop_signals(server.stop)
    server.run()


def _connection_limit() -> int:
    """Return how many connections fit, after asking the system for more file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_DESCRIPTORS
    if hard == resource.RLIM_INFINITY:
        most = wanted
    else:
        most = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(
        100,
        min(
            MAX_CONNECTIONS, (most if soft == resource.RLIM_INFINITY else soft) - SPARE_DESCRIPTORS
        ),
    )
