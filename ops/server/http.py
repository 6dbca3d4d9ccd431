"""The HTTP server of the web process and of the metrics: waitress, with limits for each connection.

Waitress reads a whole request before a thread of its pool works on it, so a client that sends half
a request holds a socket and no thread. This module adds what waitress lacks:

* limits of time: for the headers, for the whole body, for reading the answer, and for silence
* limits of size: by the path of a request, and for all unfinished bodies together
* room for new clients: a full server closes the oldest connections that wait for nothing
* an end without loss: a server that is told to stop answers every request that it has accepted
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
#: How long a client may take to send a whole request, in seconds.
REQUEST_SECONDS = 30.0
#: How long a client may take to send or to fetch a file, in seconds: a phone may be slow.
FILE_SECONDS = 600.0
#: How long no byte may arrive in the middle of a file or of an answer, in seconds.
STALL_SECONDS = 20.0
#: How long a connection stays open between two requests, in seconds. Platforms send several
#: webhooks over one connection.
IDLE_SECONDS = 75.0
#: How long a client whose request was refused may go on sending, in seconds. These bytes are
#: dropped.
LINGER_SECONDS = 30.0
#: The most bytes of the headers of a request.
MAX_HEADER_BYTES = 32 * 1024
#: The most bytes of the line before a chunk, and of the lines after the last chunk.
MAX_CHUNK_LINE_BYTES = 16 * 1024
#: The most bytes of unfinished bodies that one process stores. A body of more than half a megabyte
#: is a temporary file.
MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
#: The most connections of one process.
MAX_CONNECTIONS = 4000
#: How many file descriptors the process needs for everything else.
SPARE_DESCRIPTORS = 200
#: The most connections that are accepted in a row, before those that exist are served again.
MAX_ACCEPTS = 64
#: How often the server looks for connections that are over their limit of time, in seconds.
LOOK_SECONDS = 1.0
#: How long requests in progress may take to end after a signal to stop, in seconds.
GRACE_SECONDS = 5.0
#: How long connections are still accepted after that signal, in seconds: those that wait in the
#: queue of the listening socket, and those whose handshake is under way.
ACCEPT_SECONDS = 0.5
#: How long a connection without a request stays open after the signal, in seconds: its client may
#: be about to send one.
LAST_REQUEST_SECONDS = 1.0
#: How often a server that is stopping checks whether all requests have ended, in seconds.
END_LOOK_SECONDS = 0.05
#: The headers that name transfer codings. The group is the value.
_TRANSFER_ENCODING = re.compile(rb"^transfer-encoding[ \t]*:([^\n]*)", re.IGNORECASE | re.MULTILINE)


class _NoRoomForBody(Error):
    """The answer to a body for which the disk has no room now: the sender may try again."""

    code = 503
    reason = "Service Unavailable"


class _Parser(HTTPRequestParser):
    """Parses one request as its bytes arrive, and refuses it where it is too large or malformed.

    The limit of its body depends on its path.
    """

    #: Whether the request is complete, or refused.
    completed: bool
    #: The answer to a refused request, None for a good one.
    error: Any

    def received(self, data: bytes) -> int:
        """Take bytes that the client sent. Return how many of them belong to this request."""
        try:
            consumed = int(super().received(data))
        except ValueError:
            # Such as a length of 5,000 digits: waitress lets int() and urlsplit() raise.
            return self._refuse(BadRequest("the request cannot be read"), len(data))
        except OSError as exc:  # a body of more than half a megabyte is a temporary file
            error = _NoRoomForBody(f"the body cannot be kept now: {exc.strerror}")
            return self._refuse(error, len(data))

        if self.error is not None:
            # Waitress answers some malformed requests with 501. They are the client's fault: 400.
            if self.error.code >= 500:
                self.error = BadRequest(self.error.body)
            self._refuse(self.error)
        elif self.headers_finished and not self.completed:
            self._check_body()
        return consumed

    def _check_body(self) -> None:
        """Refuse a body that is larger than its path allows."""
        limit = MAX_FILE_BYTES if self.is_upload else MAX_WEBHOOK_BYTES
        if max(self.content_length, self.body_bytes_received) > limit:
            self._refuse(RequestEntityTooLarge(f"send at most {limit} bytes"))
            return

        if not self.chunked:
            return
        # Waitress searches the whole line again with each byte that arrives, so a long one would
        # take all of the CPU.
        line_bytes = len(self.body_rcv.control_line) + len(self.body_rcv.trailer)
        if line_bytes > MAX_CHUNK_LINE_BYTES:
            self._refuse(BadRequest("the line of a chunk is too long"))

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the first line and the headers. Raises ParsingError.

        A request with both `Content-Length` and chunks is refused, as RFC 9112 (6.1 and 6.3)
        allows. We and a proxy might each believe another of the two, and take the rest of the body
        for the next request (request smuggling).
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
        """Whether a person sends a file from the console's page; False before the headers end."""
        if not self.headers_finished:
            return False
        return bool(UPLOADS.fullmatch(getattr(self, "path", "")))

    def _refuse(self, error: Any, consumed: int = 0) -> int:
        """Answer the request with an error. Return `consumed`, for `received` to return."""
        self.error = error
        self.completed = True
        # Else waitress would ask the client for the body of the request that is refused.
        self.expect_continue = False
        return consumed


class _Connection(HTTPChannel):
    """The connection of one client. Lives until either side closes it.

    Waitress calls the methods: `service` in a thread of the pool, the others in the thread of the
    server. It also keeps these attributes:

    * `request`: the request that the client is sending, None between two requests
    * `requests`: complete requests that wait for a thread, or that a thread is answering
    * `total_outbufs_len`: how many bytes of answers are not sent yet
    * `last_activity`: when a byte was last received or sent

    Times are in Unix seconds, as in waitress; 0 stands for "not now".
    """

    parser_class = _Parser
    close_when_flushed: bool
    #: When the client began to send its present request.
    began_request_at = 0.0
    #: Since when the client has not read the whole present answer.
    unread_since = 0.0
    #: Bytes of the body that the client is sending.
    unfinished_bytes = 0
    #: Whether a request was refused. The connection closes after the answer.
    is_refused = False
    #: Since when we wait for the client of a refused request to close the connection.
    lingering_since = 0.0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        #: When the client's last request was answered, or when the client connected.
        self.idle_since: float = self.creation_time

    def received(self, data: bytes) -> bool:
        """Take bytes that the client sent. Return whether they were used.

        The bytes of a client whose request was refused are dropped.
        """
        if self.lingering_since:
            return False
        request_before = self.request
        is_used = bool(super().received(data))
        if self.request is not request_before:
            self.began_request_at = time.time()

        unfinished_bytes = 0
        if self.request and self.connected:
            unfinished_bytes = self.request.body_bytes_received
        self._note_unfinished(unfinished_bytes)
        return is_used

    def service(self) -> None:
        """Answer one request, in a thread of the pool. A request that is refused is logged."""
        # The last answer of a server that is stopping tells the client to send no further request.
        is_last_request = len(self.requests) == 1 and self.request is None
        if self.server.is_stopping and is_last_request:
            self.requests[0].headers["CONNECTION"] = "close"

        error = self.requests[0].error
        if error is not None:
            self.is_refused = True
            self.server.log_refusal(self.addr[0], f"{error.code} {error.body}")
        super().service()
        self.idle_since = time.time()

    def handle_write(self) -> None:
        """Send bytes of answers. After a refusal wait for the client to close the connection.

        The client may still be sending its body. If we closed first, the client, or a proxy in
        between, would get a reset connection in place of the refusal.
        """
        is_closing_after_refusal = self.is_refused and self.close_when_flushed
        if not is_closing_after_refusal:
            super().handle_write()
            return

        # Send without letting waitress close the connection.
        self.close_when_flushed = False
        super().handle_write()
        if self.total_outbufs_len:
            self.close_when_flushed = True
        elif self.connected:
            # All is sent: end our side alone, so that the client sees the end of the answer.
            self.lingering_since = time.time()
            with suppress(OSError):  # the client has gone
                self.socket.shutdown(socket.SHUT_WR)

    def handle_close(self) -> None:
        """Close the socket at once. What was not sent yet is lost."""
        self._note_unfinished(0)
        super().handle_close()

    @property
    def since(self) -> float:
        """When the client began what it does now: send a request, read an answer, or be silent."""
        if self.request is not None:
            return self.began_request_at
        if self.unread_since:
            return self.unread_since
        return self.idle_since

    def overdue(self, now: float) -> str:
        """Return why the connection must be closed, "" while it is within its limits of time.

        Call it every LOOK_SECONDS: it notes when an answer was first seen unread.
        """
        if self.lingering_since:
            if now - self.lingering_since > LINGER_SECONDS:
                return "it was refused"
            return ""

        # The client is reading an answer.
        if self.total_outbufs_len:
            if not self.unread_since:
                self.unread_since = now
            stalled = now - max(self.last_activity, self.unread_since) > STALL_SECONDS
            if stalled or now - self.unread_since > FILE_SECONDS:
                return "the answer is not read"
            return ""
        self.unread_since = 0.0

        # A thread works on its request.
        if self.requests:
            return ""

        # The client sends nothing.
        if self.request is None:
            if now - self.idle_since > IDLE_SECONDS:
                return "nothing was said"
            return ""

        # The client is sending a request.
        if not self.request.headers_finished:
            if now - self.began_request_at > HEADER_SECONDS:
                return "headers took too long"
            return ""
        if self.request.is_upload:
            stalled = now - self.last_activity > STALL_SECONDS
            if stalled or now - self.began_request_at > FILE_SECONDS:
                return "a file stalled"
            return ""
        if now - self.began_request_at > REQUEST_SECONDS:
            return "the body took too long"
        return ""

    def is_awaited(self, stopping_since: float) -> bool:
        """Return whether a server that is stopping waits for this connection.

        `stopping_since` is when it was told to stop, in Unix seconds. It waits for requests and
        answers in progress, and for LAST_REQUEST_SECONDS for a request that may be on the way: the
        client has just connected, or sends another request over the same connection.
        """
        is_in_progress = self.requests or self.request is not None or self.total_outbufs_len
        if is_in_progress:
            return True
        if self.lingering_since:
            return False
        return time.time() - max(self.idle_since, stopping_since) < LAST_REQUEST_SECONDS

    def _note_unfinished(self, unfinished_bytes: int) -> None:
        """Note how many bytes of an unfinished body are stored, here and in the server's sum."""
        self.server.unfinished_bytes += unfinished_bytes - self.unfinished_bytes
        self.unfinished_bytes = unfinished_bytes


class WsgiServer(TcpWSGIServer):
    """Serves one WSGI app on one listening socket with a pool of threads, until `stop`.

    `threads` is how many requests are answered at the same time. With `is_shared`, other processes
    accept connections of that socket too, and their parent makes the kernel refuse new ones.
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
            max_request_header_size=MAX_HEADER_BYTES,
            # No limit here: `_Parser` has one for each path.
            max_request_body_size=2**62,
            # So high that the largest answer fits. Otherwise a thread would wait for a client that
            # does not read.
            outbuf_high_watermark=2 * MAX_FILE_BYTES,
            clear_untrusted_proxy_headers=False,
            expose_tracebacks=False,
            log_socket_errors=False,
        )
        #: Bytes of all bodies that clients are sending.
        self.unfinished_bytes = 0
        #: Whether the server was told to stop. Its next answers close their connections.
        self.is_stopping = False
        self._is_shared = is_shared
        self._next_look = 0.0
        self._refusals = LogLimit()
        #: How many connections are accepted in a row. There is always room for so many.
        self._accepts = max(1, min(MAX_ACCEPTS, limits.connection_limit // 10))
        info = (listening.family, listening.type, listening.proto, listening.getsockname())
        self._grace_seconds = GRACE_SECONDS
        super().__init__(app, _sock=listening, adj=limits, sockinfo=info, bind_socket=False)

    def stop(self, number: int = signal.SIGTERM, *_: object) -> None:
        """Make `run` accept no more connections, and return once all requests have their answers.

        `number` is the signal that was received. Safe to call in a signal handler.
        """
        if not self.is_stopping:
            say_stopping(number)
        if number == signal.SIGINT:
            self._grace_seconds = INTERRUPTED_SECONDS
        self.is_stopping = True
        self.pull_trigger()

    def run(self) -> None:
        """Serve until `stop` is called, and answer every client that had connected by then.

        Connections that wait in the queue of the listening socket are accepted first. When the
        socket is closed, the kernel resets those that are left, and some platforms do not send such
        a webhook again. Returns GRACE_SECONDS after `stop` at the latest, or sooner after Ctrl-C.
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
        began_at = time.monotonic()
        while time.monotonic() < began_at + min(ACCEPT_SECONDS, self._grace_seconds):
            self._step(END_LOOK_SECONDS)

        self.accepting = False
        self.del_channel()
        self.socket.close()

        # Read at each step: a Ctrl-C in the meantime shortens it.
        while time.monotonic() < began_at + self._grace_seconds:
            connections = self.active_channels.values()
            if not any(each.is_awaited(stopping_since) for each in connections):
                return
            self._step(END_LOOK_SECONDS)

    def maintenance(self, now: float) -> None:
        """Do nothing, where waitress would close idle connections.

        `_step` closes them between two polls, when no event of theirs is still to be handled.
        """

    def handle_accept(self) -> None:
        """Accept several of the connections that wait. Waitress accepts one for each poll."""
        for _ in range(self._accepts):
            connections_before = len(self._map)
            super().handle_accept()
            if len(self._map) == connections_before:  # no connection waits
                return

    def log_refusal(self, address: str, reason: str) -> None:
        """Log that a request was refused: at most one line a minute for each address.

        Safe to call in any thread.
        """
        others = self._refusals.omitted(address)
        if others is not None:
            log.warning(
                "request.refused",
                extra={"address": address, "reason": reason, "others_before": others},
            )

    def _make_room(self) -> None:
        """Close the oldest connections if there is no room for the next ones or for their bodies.

        A connection whose request is being answered stays open: a client that has sent a whole
        request gets its answer.
        """
        excess = len(self._map) + self._accepts - self.adj.connection_limit
        if excess > 0:
            waiting = [each for each in self.active_channels.values() if not each.requests]
            for connection in heapq.nsmallest(excess, waiting, key=attrgetter("since")):
                self._close(connection, "another client needs the room")

        if self.unfinished_bytes > MAX_UNFINISHED_BYTES:
            senders = [each for each in self.active_channels.values() if each.unfinished_bytes]
            for connection in sorted(senders, key=attrgetter("began_request_at")):
                if self.unfinished_bytes > MAX_UNFINISHED_BYTES:
                    self._close(connection, "another body needs the room")

    def _close(self, connection: _Connection, reason: str) -> None:
        """Close a connection, and log it unless it was idle."""
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
                reason = connection.overdue(now)
                if reason:
                    self._close(connection, reason)
        self._make_room()


def serve(
    app: WSGIApplication, listening: socket.socket, *, threads: int, is_shared: bool = False
) -> None:
    """Serve an app until SIGTERM, SIGINT or SIGHUP, and finish requests in progress.

    `threads` is how many requests are answered at the same time. `is_shared` says whether processes
    that were forked with this one accept connections of the same socket.
    """
    # Waitress warns whenever a request has to wait for a thread, which is normal.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = WsgiServer(app, listening, threads=threads, is_shared=is_shared)
    on_stop_signals(server.stop)
    server.run()


def _connection_limit() -> int:
    """Return how many connections this process can have, after raising its limit of descriptors.

    Each connection needs a file descriptor. The system has a soft limit, which a process may raise
    up to the hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_CONNECTIONS + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        descriptors = min(descriptors, hard)
    if soft != resource.RLIM_INFINITY and soft < descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    return max(100, min(MAX_CONNECTIONS, descriptors - SPARE_DESCRIPTORS))
