"""`sayso doctor` with an unusable Redis: a replica, a Sentinel, a wrong certificate, a full server."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from rq.suspension import suspend

from sayso.config.settings.loader import load_settings
from sayso.infra.redis.checks import check_fit, replication_risks
from sayso.infra.redis.client import RedisUnfit, connect, nodes_of
from sayso.ops.checks.doctor import Doctor, clock_result
from sayso.ops.server.embedded_redis import EmbeddedRedis, server_binary
from tests.config.processes import free_port, until
from tests.workers.clusters import Cluster
from tests.workers.sentinels import Node


def redis_findings(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the doctor's findings on this Redis."""
    monkeypatch.setenv("REDIS_URL", url)
    config = folder / "sayso.yaml"
    config.write_text("channels: {web: {platform: console}}\n")
    doctor = Doctor(load_settings(config), folder, web=None)  # type: ignore[arg-type]  # the web is not asked
    return "\n".join(map(str, doctor._check_redis()))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """Return a server that a test may break."""
    server = EmbeddedRedis(tmp_path)
    server.start()
    yield server
    server.stop()


def test_replica_is_named_with_its_primary(
    own: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It answers reads and refuses writes."""
    connect(own.url).replicaof("10.1.2.3", 6379)
    said = redis_findings(tmp_path, own.url, monkeypatch)
    assert "is a read-only replica" in said
    assert "10.1.2.3:6379" in said


def test_full_server_and_suspended_queue_are_named(
    own: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both answer reads."""
    client = connect(own.url)
    suspend(client)
    assert "rq resume" in redis_findings(tmp_path, own.url, monkeypatch)
    client.config_set("maxmemory", "1")
    assert "refuses to write" in redis_findings(tmp_path, own.url, monkeypatch)


def test_queue_on_a_replica_is_cured_in_its_own_variable(
    own: EmbeddedRedis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """REDIS_URL names another server, which is fine."""
    connect(own.url).replicaof("10.1.2.3", 6379)
    monkeypatch.setenv("QUEUE_URL", own.url)
    said = redis_findings(tmp_path, redis_url, monkeypatch)
    assert "the server of QUEUE_URL is a read-only replica" in said
    assert "set QUEUE_URL to its primary, 10.1.2.3:6379" in said


def test_queue_on_a_cluster_is_named(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No process of the bot would start: the scripts of RQ use keys of several slots."""
    monkeypatch.setenv("QUEUE_URL", "redis+cluster://127.0.0.1:1")
    said = redis_findings(tmp_path, redis_url, monkeypatch)
    assert "names a Redis Cluster, and RQ does not run there" in said


def test_server_that_cannot_write_its_files_is_not_called_safe(
    own: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It says in its INFO that the last write to its append-only file failed."""
    real_info = Redis.info

    def info(client: Redis, *sections: str) -> dict[str, object]:
        return {**real_info(client, *sections), "aof_last_write_status": "err"}

    monkeypatch.setattr(Redis, "info", info)
    said = redis_findings(tmp_path, own.url, monkeypatch)
    assert "could not write its files (aof_last_write_status)" in said
    assert "keeps what it acknowledged" not in said


def test_port_of_a_sentinel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A Sentinel speaks the same protocol, and stores nothing."""
    port = free_port()
    (tmp_path / "sentinel.conf").write_text(f"port {port}\ndir {tmp_path}\n")
    process = subprocess.Popen(
        [server_binary(), str(tmp_path / "sentinel.conf"), "--sentinel"], stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: is_listening(port))
        said = redis_findings(tmp_path, f"redis://127.0.0.1:{port}", monkeypatch)
    finally:
        process.terminate()
        process.wait()
    assert "is a Sentinel" in said


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def tls_port(folder: Path) -> Iterator[int]:
    """Return a port that speaks TLS with a self-signed certificate."""
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    files = [
        "-keyout",
        str(folder / "key.pem"),
        "-out",
        str(folder / "cert.pem"),
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*made, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                with suppress(OSError), context.wrap_socket(client, server_side=True) as secure:
                    secure.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


@pytest.mark.skipif(
    not shutil.which("openssl"), reason="SKIPPED: no openssl to make a certificate with"
)
def test_certificate_that_fails_its_check_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is not reported as an unreachable Redis."""
    with tls_port(tmp_path) as port:
        said = redis_findings(tmp_path, f"rediss://127.0.0.1:{port}", monkeypatch)
    assert "certificate that fails the check: self-signed certificate" in said


def test_port_without_tls_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The URL is rediss://, and the port answers in plain text."""
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    client, _ = plain.accept()
                    client.recv(1)
                    client.sendall(b"-ERR unknown command\r\n" * 10)
                    client.close()

        threading.Thread(target=answer, daemon=True).start()
        said = redis_findings(tmp_path, f"rediss://127.0.0.1:{plain.getsockname()[1]}", monkeypatch)
        plain.shutdown(socket.SHUT_RDWR)
    assert "does not speak TLS" in said


def test_eviction_is_read_from_info_where_config_is_forbidden(own: EmbeddedRedis):
    """Most providers forbid CONFIG; an evicting policy is refused there too."""
    admin = connect(own.url)
    admin.execute_command("ACL", "SETUSER", "bot", "on", ">pw", "~*", "&*", "+@all", "-config")
    client = connect(own.url.replace("unix://", "unix://bot:pw@"))
    with pytest.raises(NoPermissionError):
        client.config_get("maxmemory-policy")
    assert check_fit(client) == []
    admin.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(RedisUnfit, match="Set it to noeviction"):
        check_fit(client)


def test_primary_with_too_few_replicas_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By `min-replicas-to-write` it refuses every write; with `redis_wait_replicas` the web refuses every message."""
    node = Node(tmp_path, "lonely")
    node.start()
    try:
        url = f"redis://127.0.0.1:{node.port}/0"
        assert replication_risks(node.client(), 1) == [
            "redis_wait_replicas is 1, and 0 replicas are connected: every message is refused until as many are, so "
            "start them or lower the number"
        ]
        node.client().config_set("min-replicas-to-write", "1")
        assert "takes no writes now: NOREPLICAS Not enough good replicas" in redis_findings(
            tmp_path, url, monkeypatch
        )
    finally:
        node.stop()


def test_different_clocks_of_a_cluster_are_named():
    """A replica that takes over judges leases by its own clock."""
    found = clock_result({"n1:6379": 0.1, "n2:6379": -3.4, "n3:6379": 0.0})
    assert (found.state, found.says) == (
        "warn",
        "the clocks of n2:6379 and n1:6379 are 3.5 s apart: a lease may end early or late after a failover",
    )
    assert clock_result({"n1:6379": 70.0, "n2:6379": 0.0}).state == "fail"
    assert clock_result({"n1:6379": 400.0, "n2:6379": 400.1}).says == "Redis is 400.1 s ahead of us"
    assert clock_result({}).says == "not compared, because no server tells its time"


def test_servers_far_ahead_of_us_fail_although_they_nearly_agree():
    """Links and signatures fail by our clock, however close the servers are to one another."""
    found = clock_result({"n1:6379": 100.0, "n2:6379": 103.0})
    assert found.state == "fail"
    assert "n1:6379 and n2:6379 are 3.0 s apart" in found.says
    assert found.says.endswith("; Redis is 103.0 s ahead of us")
    behind = clock_result({"n1:6379": -10.0, "n2:6379": -13.0})
    assert behind.state == "warn"
    assert behind.says.endswith("; Redis is 13.0 s behind us")


def test_clocks_of_all_nodes_of_a_cluster_are_read(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Here all nodes are on one machine, so their clocks agree."""
    monkeypatch.setenv("QUEUE_URL", "redis://127.0.0.1:1/0")
    assert "this machine and Redis agree within 2 s" in redis_findings(
        tmp_path, cluster.url, monkeypatch
    )
    with connect(cluster.url) as client:
        assert len(nodes_of(client)) == len(cluster.nodes)
