"""Each form of a URL leads every client to the same database: threads, event loops, RQ and subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.infra.redis.client import connect, connect_async, connect_rq
from sayso.infra.redis.connections import AutoPipeline
from sayso.infra.redis.url import NotWritable
from tests.certificates import make_certificates, needs_openssl
from tests.workers.sentinels import Node


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return a server with a TCP port and a user of its own."""
    node = Node(tmp_path_factory.mktemp("forms"), "server")
    node.start()
    node.client().execute_command("ACL", "SETUSER", "bot", "on", ">p@ss/word", "~*", "&*", "+@all")
    yield node
    node.stop()


def reach(url: str) -> None:
    """Write with one kind of client and read with the others. Fails if one of them uses another database."""
    with connect(url) as threads, connect_rq(url) as rq:
        threads.set("form", "1")
        assert rq.get("form") == b"1"
        assert asyncio.run(_reach_in_a_loop(url)) == ("1", "hello")
        threads.delete("form")


async def _reach_in_a_loop(url: str) -> tuple[object, object]:
    pipeline = AutoPipeline(url)
    answer = await pipeline.execute(("GET", "form"))
    async with connect_async(url) as client, client.pubsub() as pubsub:
        await pubsub.psubscribe("form*")
        await pubsub.get_message(timeout=5)
        await pipeline.execute(("PUBLISH", "form", "hello"))
        message = await pubsub.get_message(timeout=5)
    await pipeline.close()
    return answer, message and message["data"]


def test_user_password_and_database_of_a_tcp_url_count_everywhere(server: Node) -> None:
    """The database is not 0, and the password has characters that a URL escapes."""
    reach(f"redis://bot:p%40ss%2Fword@127.0.0.1:{server.port}/3")
    with connect(f"redis://127.0.0.1:{server.port}/0") as first:
        first.set("only in 0", "1")
    with connect(f"redis://bot:p%40ss%2Fword@127.0.0.1:{server.port}/3") as third:
        assert third.get("only in 0") is None


def test_socket_of_a_url_with_a_database_counts_everywhere(
    redis_url: str, redis_client: object
) -> None:
    """`sayso up` uses a socket."""
    reach(f"{redis_url}?db=2")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, and certificates for a server and a client that it signed."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_port(server: Node, certificates: Path) -> Iterator[int]:
    """Return a port that speaks TLS for the server and wants a client's certificate: the bundled one has no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listening = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                with contextlib.suppress(OSError):
                    secure = context.wrap_socket(client, server_side=True)
                    behind = socket.create_connection(("127.0.0.1", server.port))
                    for ends in ((secure, behind), (behind, secure)):
                        threading.Thread(target=pump, args=ends, daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(10)


@needs_openssl
def test_tls_with_a_private_authority_and_a_client_certificate_works_everywhere(
    tls_port: int, certificates: Path
) -> None:
    """The URL has the parameters of redis-py."""
    names = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}
    files = "&".join(f"{name}={certificates / file}" for name, file in names.items())
    reach(f"rediss://bot:p%40ss%2Fword@127.0.0.1:{tls_port}/4?{files}")
    for missing in (f"ssl_ca_certs={certificates / 'ca.pem'}", ""):
        with (
            connect(f"rediss://127.0.0.1:{tls_port}/0?{missing}") as client,
            pytest.raises(RedisConnectionError),
        ):
            client.ping()


def test_server_that_became_a_replica_is_looked_up_again(tmp_path: Path, server: Node) -> None:
    """A provider points the host name to another machine; the next attempt reaches it."""
    node = Node(tmp_path, "demoted")
    node.start()
    try:
        with connect(f"redis://127.0.0.1:{node.port}/0") as client:
            client.set("before", "1")
            node.client().replicaof("127.0.0.1", server.port)
            with pytest.raises(NotWritable, match="read only replica"):
                client.set("after", "1")
            node.client().replicaof("NO", "ONE")
            assert client.set("after", "1")
    finally:
        node.stop()
