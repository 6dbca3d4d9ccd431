"""LossyLink: a TCP proxy in front of a Redis server that silently stops replication."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress


class LossyLink:
    """Forwards everything until `drop`. After that, replication connections stay open, and nothing arrives on them."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._drops = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def drop(self) -> None:
        """From now on nothing passes between the server and its replicas, in both directions."""
        self._drops.set()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with closing(client):
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:  # it is down, and so is its proxy
                return
            is_replica = threading.Event()
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = threading.Thread(
                target=self._pump, args=(server, client, is_replica), daemon=True
            )
            answers.start()
            self._pump(client, server, is_replica)
            answers.join()

    def _pump(
        self, source: socket.socket, sink: socket.socket, is_replica: threading.Event
    ) -> None:
        with suppress(OSError):  # one end is gone
            while data := source.recv(1 << 16):
                if b"PSYNC" in data:
                    is_replica.set()
                if not (self._drops.is_set() and is_replica.is_set()):
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
