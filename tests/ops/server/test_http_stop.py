"""The end of a web server: no client whose connection was made goes without an answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"

#: It prints its port, and serves in this many forked processes; 0: in its own.
PROGRAM = textwrap.dedent("""
    import os, sys
    from sayso.ops.server.http import serve
    from sayso.ops.server.processes import listen, prefork

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    processes = int(sys.argv[1])
    listening = listen("127.0.0.1", 0)
    os.write(1, b"%d\\n" % listening.getsockname()[1])
    if processes:
        prefork(processes, listening)
    serve(app, listening, threads=4, is_shared=bool(processes))
""")


class Clients:
    """Threads that connect and post, over and over, until a connection is refused."""

    def __init__(self, port: int, count: int) -> None:
        self._address = ("127.0.0.1", port)
        self.connected = self.answered = 0
        self.many = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._post_until_refused) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until the server refuses all of them."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _post_until_refused(self) -> None:
        while True:
            try:
                client = socket.create_connection(self._address, timeout=20)
            except ConnectionRefusedError:
                return
            is_answered = _post(client)
            with self._lock:
                self.connected += 1
                self.answered += is_answered
                if self.connected > 200:
                    self.many.set()


def _post(client: socket.socket) -> bool:
    """Return whether a request over this connection gets its whole answer."""
    with closing(client):
        try:
            client.sendall(REQUEST)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        except OSError:
            return False
    return answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"ok")


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux can refuse connections without closing the socket"
)
@pytest.mark.parametrize(
    ("processes", "number"), [(0, signal.SIGTERM), (0, signal.SIGHUP), (2, signal.SIGTERM)]
)
def test_every_connection_that_was_made_is_answered(processes: int, number: int):
    """A platform that does not send a webhook again would have lost its message."""
    server = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, str(processes)],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
    )  # fmt: skip
    with server:
        try:
            assert server.stdout
            clients = Clients(int(server.stdout.readline()), count=8)
            assert clients.many.wait(60)
            server.send_signal(number)
            clients.join()
            assert server.wait(20) == 0
        finally:
            server.kill()
    assert clients.answered == clients.connected
