"""The HTTP server: half requests take no thread, everything has a limit, and invalid bytes get a 4xx."""

from __future__ import annotations

import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.ops.server import http as served
from sayso.ops.server.http import WsgiServer
from sayso.ops.server.processes import listen

THREADS = 4


def echo(environ, start_response) -> list[bytes]:
    """An app that answers with the size of the body it was given."""
    body = environ["wsgi.input"].read()
    if environ["PATH_INFO"] == "/slow":
        time.sleep(0.3)
    said = b"a" * 20_000_000 if environ["PATH_INFO"] == "/large" else b"%8d" % len(body)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(said)))])
    return [said]


class Running:
    """A server in a thread of its own, and its clients."""

    def __init__(self, *, started: bool = True) -> None:
        listening = listen("127.0.0.1", 0)
        self.address = listening.getsockname()
        self.server = WsgiServer(echo, listening, threads=THREADS)
        self.thread = threading.Thread(target=self.server.run)
        self.open: list[socket.socket] = []
        if started:
            self.thread.start()

    def send(self, data: bytes) -> socket.socket:
        """Return a client that has sent these bytes and waits."""
        client = socket.create_connection(self.address, timeout=30)
        self.open.append(client)
        client.sendall(data)
        return client

    def post(self, path: str = "/hooks/wa", body: bytes = b"{}") -> bytes:
        """Send a whole request; return the answer."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return answer_of(self.send(head.encode() + body))

    def stop(self) -> None:
        """Stop the server."""
        for client in self.open:
            client.close()
        self.server.stop()
        self.thread.join(30)
        self.server.close()


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Return a server that checks often for overdue connections, and ends quickly."""
    for name in ("LOOK_SECONDS", "END_LOOK_SECONDS", "ACCEPT_SECONDS", "LAST_REQUEST_SECONDS"):
        monkeypatch.setattr(served, name, 0.05)
    it = Running()
    yield it
    it.stop()


def answer_of(client: socket.socket) -> bytes:
    """Return everything that a client gets until its connection is closed or reset."""
    answer = b""
    with closing(client), suppress(ConnectionResetError):
        while part := client.recv(65536):
            answer += part
    return answer


def until(what: Callable[[], object]) -> None:
    """Wait for a condition that holds soon."""
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


HALVES = (
    b"PO",
    b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\n",
    b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
)


def test_four_hundred_half_requests_block_no_other(running: Running):
    """They are a hundred times the number of threads, and every whole request is answered."""
    for number in range(400):
        running.send(HALVES[number % len(HALVES)])
    assert all(running.post().startswith(b"HTTP/1.1 200") for _ in range(50))


@pytest.mark.parametrize("half", HALVES)
def test_half_request_times_out(running: Running, monkeypatch: pytest.MonkeyPatch, half: bytes):
    """Its time starts with its first byte, and later bytes do not extend it."""
    for name in ("HEADER_SECONDS", "REQUEST_SECONDS"):
        monkeypatch.setattr(served, name, 0.0)
    assert answer_of(running.send(half)) == b""


def test_stalled_upload_times_out(running: Running, monkeypatch: pytest.MonkeyPatch):
    """A phone without a network sends nothing more; a slow upload may take its time."""
    monkeypatch.setattr(served, "REQUEST_SECONDS", 0.0)
    half = b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"
    sender = running.send(half)
    assert running.post("/hooks/wa").startswith(b"HTTP/1.1 200")
    sender.sendall(b"d" * 997)
    assert sender.recv(12) == b"HTTP/1.1 200"
    monkeypatch.setattr(served, "STALL_SECONDS", 0.0)
    assert answer_of(running.send(half)) == b""


def test_slow_request_within_the_limit_is_answered(running: Running):
    """A slow client gets its answer."""
    client = running.send(b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
    until(lambda: any(each.request is not None for each in running.server.active_channels.values()))
    client.sendall(b"bc")
    assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    "half", [HALVES[0], b"", b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
)
def test_full_server_closes_the_oldest_connection(monkeypatch: pytest.MonkeyPatch, half: bytes):
    """A whole request is answered, however many other clients hold connections open."""
    monkeypatch.setattr(served, "_connection_limit", lambda: 20)
    running = Running()
    try:
        oldest = running.send(half)
        for _ in range(40):
            client = running.send(half)
            if half.startswith(
                b"GET"
            ):  # a whole request: an answer that comes later makes its connection a newer one
                assert client.recv(12) == b"HTTP/1.1 200"
        assert running.post().startswith(b"HTTP/1.1 200")
        answer_of(oldest)  # ends when the connection does
    finally:
        running.stop()


@pytest.mark.parametrize("said", [b"", b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_silent_connection_is_closed(
    running: Running, monkeypatch: pytest.MonkeyPatch, said: bytes
):
    """Empty lines are no request. After an answer the next request has the same time."""
    client = running.send(said)
    until(lambda: running.server.active_channels)
    monkeypatch.setattr(served, "IDLE_SECONDS", 0.0)
    answer_of(client)  # ends when the connection does


def test_client_that_does_not_read_is_disconnected(
    running: Running, monkeypatch: pytest.MonkeyPatch
):
    """Its answers block no thread, and its connection ends."""
    monkeypatch.setattr(served, "STALL_SECONDS", 0.0)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(running.address)
    running.open.append(client)
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    until(lambda: running.server.active_channels)
    until(lambda: not running.server.active_channels)
    assert running.post().startswith(b"HTTP/1.1 200")


def test_chunk_size_lines_are_bounded(running: Running):
    """Each new byte makes the parser read the whole line again, so one client could use all of the CPU."""
    head = b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for endless in (b"5;a=", b"0\r\na: "):
        assert answer_of(running.send(head + endless + b"b" * 20_000)).startswith(b"HTTP/1.1 400")


def test_refused_body_is_not_requested(running: Running):
    """A client that sends `Expect: 100-continue` gets the refusal at once."""
    head = b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\nExpect: 100-continue\r\n\r\n"
    assert answer_of(running.send(head)).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", b"400"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
            b"400",
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"400"),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"400",
        ),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 99\r\ntransfer-encoding:chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \r\n\r\n0\r\n\r\n", b"400"),
        (b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: ".ljust(32_764, b"a") + b"\r\n\r\n", b"431"),
        (b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n", b"413"),
        (
            b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            % (MAX_FILE_BYTES + 1),
            b"413",
        ),
    ],
)
def test_invalid_bytes_get_a_4xx(running: Running, sent: bytes, status: bytes):
    """There is no 5xx, and the connection is closed."""
    assert answer_of(running.send(sent)).split(b" ")[1] == status


UPLOAD = b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


def test_announced_bodies_take_no_room(running: Running, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a few hundred clients that announce a megabyte each would make the server refuse every webhook."""
    monkeypatch.setattr(served, "MAX_UNFINISHED_BYTES", 3000)
    for _ in range(10):
        running.send(UPLOAD + b"a")
    until(lambda: running.server.unfinished_bytes == 10)
    assert running.post().startswith(b"HTTP/1.1 200")


def test_refused_sender_can_send_its_whole_body_and_read_the_answer(running: Running):
    """A proxy that still sends a buffered body would otherwise see a reset connection and answer 502."""
    body = bytes(MAX_FILE_BYTES + 4_000_000)
    for path in ("/hooks/wa", "/console/web/files"):
        assert b"send at most" in running.post(path, body)


def test_refused_sender_that_does_not_hang_up_is_disconnected(
    running: Running, monkeypatch: pytest.MonkeyPatch
):
    """Its connection is closed after a while."""
    monkeypatch.setattr(served, "LINGER_SECONDS", 0.1)
    client = running.send(b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
    assert client.recv(100).startswith(b"HTTP/1.1 413")
    until(lambda: not running.server.active_channels)


def test_body_on_a_full_disk_gets_503(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The sender may try again, and the log says why in one line. Small bodies need no disk."""
    monkeypatch.setattr(
        tempfile, "tempdir", "/proc/no-such-folder"
    )  # writing there fails, as on a full disk
    with caplog.at_level(logging.WARNING):
        answer = running.post("/console/web/files", bytes(2_000_000))
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable")
        assert b"the body cannot be kept now: No such file or directory" in answer
        assert running.post().startswith(b"HTTP/1.1 200")
    # On a busy machine the server's library may log the length of its queue.
    ours = [each for each in caplog.records if each.name.startswith("sayso.")]
    assert [each.message for each in ours] == ["request.refused"]
    assert "cannot be kept" in ours[0].reason


def test_total_size_of_incoming_bodies_is_bounded(
    running: Running, monkeypatch: pytest.MonkeyPatch
):
    """They lie on the disk, which ten large uploads at once must not fill. The oldest one makes room."""
    monkeypatch.setattr(served, "MAX_UNFINISHED_BYTES", 2000)
    oldest, *others = [running.send(UPLOAD + b"a" * 600) for _ in range(3)]
    until(lambda: running.server.unfinished_bytes > 1000)
    later = running.send(UPLOAD + b"a" * 900)
    assert answer_of(oldest) == b""
    later.sendall(b"a" * 100)
    assert later.recv(12) == b"HTTP/1.1 200"
    for client in others:
        client.close()
    until(lambda: running.server.unfinished_bytes == 0)


def test_bad_requests_log_one_line_a_minute_for_each_address(
    running: Running, caplog: pytest.LogCaptureFixture
):
    """The line is short, without a traceback, and a flood does not fill the log."""
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            answer_of(running.send(b"GARBAGE\r\n\r\n"))
    (record,) = [each for each in caplog.records if each.message == "request.refused"]
    assert (record.address, record.exc_info) == ("127.0.0.1", None)
    assert record.reason.startswith("400 ")


def test_request_in_progress_is_answered_after_the_signal(running: Running):
    """No new connection is accepted."""
    slow = running.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    until(lambda: any(each.requests for each in running.server.active_channels.values()))
    running.server.stop()
    assert slow.recv(12) == b"HTTP/1.1 200"
    running.thread.join(30)
    assert not running.thread.is_alive()


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def test_connections_in_the_queue_are_answered_after_the_signal():
    """The kernel made them before the server could accept them, and would reset them with the listening socket."""
    running = Running(started=False)
    waiting = [running.send(GET) for _ in range(300)]
    running.server.stop()
    running.thread.start()
    answers = [answer_of(client) for client in waiting]
    assert [
        each.startswith(b"HTTP/1.1 200") and b"Connection: close" in each for each in answers
    ] == [True] * 300
    running.stop()


def test_half_request_is_completed_after_the_signal(running: Running):
    """Its sender has begun, and gets its answer with the advice to close."""
    half = running.send(GET[:20])
    until(lambda: any(each.request for each in running.server.active_channels.values()))
    running.server.stop()
    half.sendall(GET[20:])
    assert b"Connection: close" in answer_of(half)


@pytest.mark.parametrize("first", [b"", GET])
def test_connection_without_a_request_may_send_one_after_the_signal(
    monkeypatch: pytest.MonkeyPatch, first: bytes
):
    """Its client has just connected, or uses its connection again, and cannot know that the server ends."""
    monkeypatch.setattr(served, "LAST_REQUEST_SECONDS", 60.0)
    running = Running()
    client = running.send(first)
    until(lambda: running.server.active_channels)
    assert not first or client.recv(65536)
    running.server.stop()
    until(lambda: not running.server.accepting)
    client.sendall(GET)
    assert b"Connection: close" in answer_of(client)
    running.stop()


def test_silent_connections_do_not_hold_a_server_that_ends(running: Running):
    """They have a moment for a last request."""
    client = running.send(b"")
    until(lambda: running.server.active_channels)
    running.server.stop()
    running.thread.join(served.GRACE_SECONDS / 2)
    assert not running.thread.is_alive()
    client.close()
