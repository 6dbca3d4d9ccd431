"""The HTTP server: half requests hold no thread, everything has a limit, and bad bytes are the client's fault."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from channels.media import MAX_BYTES
from config import server as served
from config.address import listen
from config.server import Server

THREADS = 4


def echo(environ, start_response) -> list[bytes]:
    """An app that answers with the size of the body it was given."""
    body = environ["wsgi.input"].read()
    if environ["PATH_INFO"] == "/slow":
        time.sleep(0.3)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "8")])
    return [b"%8d" % len(body)]


class Running:
    """A server in a thread of its own, and clients for it."""

    def __init__(self) -> None:
        listening = listen("127.0.0.1", 0)
        self.address = listening.getsockname()
        self.server = Server(echo, listening, threads=THREADS)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        self.open: list[socket.socket] = []

    def send(self, data: bytes) -> socket.socket:
        """A client that has sent this and waits."""
        client = socket.create_connection(self.address, timeout=30)
        self.open.append(client)
        client.sendall(data)
        return client

    def post(self, path: str = "/hooks/wa", body: bytes = b"{}") -> bytes:
        """A whole request's answer."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return answer_of(self.send(head.encode() + body))

    def stop(self) -> None:
        """End it."""
        self.server.stop()
        self.thread.join(30)
        for client in self.open:
            client.close()
        self.server.close()


@pytest.fixture
def running() -> Iterator[Running]:
    """A server."""
    it = Running()
    yield it
    it.stop()


def answer_of(client: socket.socket) -> bytes:
    """All that a client is sent until its connection is closed."""
    with closing(client):
        return b"".join(iter(lambda: client.recv(65536), b""))


def until(what: Callable[[], object]) -> None:
    """Wait for something that happens at once."""
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


def test_four_hundred_half_requests_silence_nobody(running: Running):
    """A hundred times more than there are threads: every whole request is answered."""
    for number in range(400):
        running.send(HALVES[number % len(HALVES)])
    assert all(running.post().startswith(b"HTTP/1.1 200") for _ in range(50))


@pytest.mark.parametrize("half", HALVES)
def test_half_request_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch, half: bytes):
    """However many bytes it still drips: its time began with its first one."""
    for name in ("HEADER_SECONDS", "REQUEST_SECONDS"):
        monkeypatch.setattr(served, name, 0.0)
    assert answer_of(running.send(half)) == b""


def test_file_that_stalls_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch):
    """A phone that has left its network says nothing any more; any other file may take its time."""
    monkeypatch.setattr(served, "REQUEST_SECONDS", 0.0)
    half = b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"
    sender = running.send(half)
    assert running.post("/hooks/wa").startswith(b"HTTP/1.1 200")
    sender.sendall(b"d" * 997)
    assert sender.recv(12) == b"HTTP/1.1 200"
    monkeypatch.setattr(served, "STALL_SECONDS", 0.0)
    assert answer_of(running.send(half)) == b""


def test_client_that_says_the_rest_in_time_is_answered(running: Running):
    """Slow is no crime."""
    client = running.send(b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
    until(lambda: any(each.request is not None for each in running.server.active_channels.values()))
    client.sendall(b"bc")
    assert client.recv(12) == b"HTTP/1.1 200"


def test_full_server_gives_up_the_oldest_half_request(monkeypatch: pytest.MonkeyPatch):
    """Whoever sends a whole one is answered, however many hold a connection open."""
    monkeypatch.setattr(served, "_connection_limit", lambda: 20)
    running = Running()
    try:
        oldest = running.send(HALVES[0])
        for _ in range(40):
            running.send(HALVES[0])
        assert running.post().startswith(b"HTTP/1.1 200")
        assert answer_of(oldest) == b""
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: ".ljust(32_764, b"a") + b"\r\n\r\n", b"431"),
        (b"POST /hooks/wa HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n", b"413"),
        (b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_BYTES + 1), b"413"),
    ],
)
def test_bad_bytes_are_the_clients_fault(running: Running, sent: bytes, status: bytes):
    """No 5xx, and the connection is closed."""
    assert answer_of(running.send(sent)).split(b" ")[1] == status


def test_bodies_on_their_way_have_room_for_so_much_only(running: Running, monkeypatch: pytest.MonkeyPatch):
    """They lie on the disk: ten senders of large files at once do not fill it."""
    monkeypatch.setattr(served, "MAX_UNFINISHED_BYTES", 3000)
    half = b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"
    for _ in range(3):
        running.send(half)
    until(lambda: running.server._unfinished_bytes() == 3000)
    assert answer_of(running.send(half)).startswith(b"HTTP/1.1 503")


def test_bad_requests_are_one_line_a_minute_for_each_address(running: Running, caplog: pytest.LogCaptureFixture):
    """Short, without a traceback, and a flood fills no log."""
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            answer_of(running.send(b"GARBAGE\r\n\r\n"))
    (record,) = [each for each in caplog.records if each.message == "request.refused"]
    assert (record.address, record.exc_info) == ("127.0.0.1", None)
    assert record.reason.startswith("400 ")


def test_request_in_progress_is_answered_after_the_signal(running: Running):
    """And nobody is let in any more."""
    slow = running.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    until(lambda: any(each.requests for each in running.server.active_channels.values()))
    running.server.stop()
    assert slow.recv(12) == b"HTTP/1.1 200"
    running.thread.join(30)
    assert not running.thread.is_alive()
