"""TLS and logins of Sentinels and their data nodes, each with a user of its own, on Debian's Redis: the bundled server
has no TLS.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from redis import Redis
from redis.exceptions import RedisError

from sayso.infra.redis.checks import check_guarded, sentinel_of, unreachable
from sayso.infra.redis.client import RedisUnfit, connect
from sayso.ops.server.snapshot import read_snapshot
from tests.certificates import make_certificates
from tests.config.processes import free_port, until
from tests.infra.redis.test_url_forms import reach

#: Debian's package redis-tools brings the server under this name.
SERVER = shutil.which("redis-server") or shutil.which("redis-check-rdb")
PASSWORD, WATCHER = "bot-p@ss/word", "watch-p@ss"
#: Milliseconds after which the Sentinel takes a silent server for dead: while no test kills one, and while one does.
#: On a busy machine a live server may be silent for longer than the second.
LONG_MS, SHORT_MS = 600_000, 500
#: Seconds for each connection and each answer, for the same reason. Our own limits are shorter.
SECONDS = {
    f"{whose}{what}": "30"
    for whose in ("", "sentinel_")
    for what in ("socket_timeout", "socket_connect_timeout")
}

pytestmark = pytest.mark.skipif(
    not (SERVER and shutil.which("openssl")) and not os.environ.get("CI"),
    reason="SKIPPED: no Redis with TLS, or no openssl (apt-get install redis-tools openssl)",
)


class TlsSentinels:
    """A primary, a replica and a Sentinel, which speak TLS only. Lives for one test module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_certificates(folder)
        self.ports = [free_port(), free_port()]
        self.sentinel = free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all, and wait until the Sentinel knows the replica."""
        bot = f"user sayso on >{PASSWORD} ~* &* +@all"
        users = [
            "user default off",
            bot,
            "user link on >link ~* &* +@all",
            "masteruser link",
            "masterauth link",
        ]
        for number, port in enumerate(self.ports):
            follows = [f"replicaof 127.0.0.1 {self.ports[0]}"] if number else []
            self.nodes.append(
                self._start(
                    port, [*users, *follows, "repl-diskless-sync-delay 0", "appendonly yes"]
                )
            )
        until(self._is_in_step)  # a Sentinel that starts later knows the replica at once
        watched = [
            f"sentinel monitor shop 127.0.0.1 {self.ports[0]} 1",
            "sentinel auth-user shop link",
        ]
        watched += [
            "sentinel auth-pass shop link",
            f"sentinel down-after-milliseconds shop {LONG_MS}",
        ]
        # A failover that finds its only replica silent is given up. The next one begins after twice this time.
        watched += ["sentinel failover-timeout shop 5000"]
        login = ["user default off", f"user watcher on >{WATCHER} ~* &* +@all"]
        self._start(self.sentinel, [*watched, *login], "--sentinel")
        until(self._is_whole)

    def _start(self, port: int, lines: list[str], *options: str) -> subprocess.Popen[bytes]:
        folder = self.folder / str(port)
        folder.mkdir()
        files = [f"tls-{name}-file {self.folder / file}" for name, file in
                 (("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem"))]  # fmt: skip
        common = [
            "port 0",
            f"tls-port {port}",
            "bind 127.0.0.1",
            "tls-replication yes",
            "tls-auth-clients optional",
        ]
        (folder / "server.conf").write_text(
            "\n".join([*common, *files, f"dir {folder}", *lines, ""])
        )
        command = [
            "redis-server",
            str(folder / "server.conf"),
            *options,
        ]  # the name says which of its programs runs
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, executable=SERVER, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def _is_in_step(self) -> bool:
        ca = quote(str(self.folder / "ca.pem"), safe="")
        login = f"sayso:{quote(PASSWORD, safe='')}"
        try:
            with connect(
                f"rediss://{login}@127.0.0.1:{self.ports[0]}/0?ssl_ca_certs={ca}"
            ) as client:
                return bool(client.info()["connected_slaves"] == 1)
        except RedisError:
            return False

    def _is_whole(self) -> bool:
        with connect(self.url()) as client:
            service = sentinel_of(client)
            assert service
            try:
                return not any("no replica" in risk for risk in service.risks())
            except RedisError:
                return False

    def url(self, scheme: str = "rediss", *, password: str = PASSWORD, **changed: str) -> str:
        """Return the URL of the service; a parameter that is "" is left out."""
        ca = self.folder / "ca.pem"
        given = {"ssl_ca_certs": str(ca), "sentinel_tls": "yes", "sentinel_username": "watcher"}
        given |= {"sentinel_password": WATCHER, **SECONDS, **changed}
        query = "&".join(
            f"{name}={quote(value, safe='')}" for name, value in given.items() if value
        )
        return f"{scheme}+sentinel://sayso:{quote(password, safe='')}@127.0.0.1:{self.sentinel}/shop/0?{query}"

    def set_down_after(self, milliseconds: int) -> None:
        """Set how long a server may be silent before the Sentinel takes it for dead."""
        with connect(self.url()) as client:
            service = sentinel_of(client)
            assert service
            with service.client(("127.0.0.1", self.sentinel)) as sentinel:
                sentinel.sentinel_set("shop", "down-after-milliseconds", milliseconds)

    def says(self, url: str) -> str:
        """Return why a URL does not lead to the primary."""
        with connect(url) as client:
            try:
                client.ping()
            except RedisError as exc:
                return str(unreachable(client, exc))
        return ""

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsSentinels]:
    """Return running servers."""
    servers = TlsSentinels(tmp_path_factory.mktemp("tls"))
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def test_login_and_tls_of_sentinels_and_data_nodes_work_everywhere(sentinels: TlsSentinels) -> None:
    """For threads, event loops, RQ and subscriptions."""
    reach(sentinels.url())


def test_problem_with_tls_or_a_login_is_named_with_its_cure(sentinels: TlsSentinels) -> None:
    """The line says whether a Sentinel or a data node has it."""
    sentinel, node = (
        f"the Sentinel at 127.0.0.1:{sentinels.sentinel}",
        f"shop@127.0.0.1:{sentinels.sentinel}",
    )
    wrong = {
        sentinels.url(sentinel_tls=""): f"{sentinel} closes the connection: if it speaks TLS, write ?sentinel_tls=yes",
        sentinels.url(ssl_ca_certs=""): f"{sentinel} has a certificate that fails the check: self-signed certificate "
        "in certificate chain: add ?sentinel_ssl_ca_certs=FILE",
        sentinels.url(sentinel_password="no"): f"{sentinel} refuses the login: write ?sentinel_username=",
        sentinels.url(sentinel_username="", sentinel_password=""): f"{sentinel} refuses the login",
        sentinels.url(password="no"): f"{node} refuses the login: write user and password into REDIS_URL",
        sentinels.url("redis", ssl_ca_certs="", sentinel_ssl_ca_certs=str(sentinels.folder / "ca.pem")):
            "closes the connection: if it speaks TLS, write rediss://",
        sentinels.url(ssl_ca_certs="", sentinel_ssl_ca_certs=str(sentinels.folder / "ca.pem")):
            "has a certificate that fails the check: self-signed certificate in certificate chain: add ?ssl_ca_certs=",
    }  # fmt: skip
    for url, says in wrong.items():
        found = sentinels.says(url)
        assert says in found, found
        assert PASSWORD not in found


def test_open_server_behind_sentinels_is_refused(
    sentinels: TlsSentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check connects to the primary that they name, with TLS and without a login."""
    monkeypatch.setattr("sayso.infra.redis.checks._is_this_machine", lambda *_: False)
    with connect(sentinels.url()) as client:
        check_guarded(client)
        client.execute_command("ACL", "SETUSER", "default", "on", "nopass", "+ping")
        try:
            with pytest.raises(
                RedisUnfit,
                match=f"Redis at 127.0.0.1:{sentinels.ports[0]} is on another machine and",
            ):
                check_guarded(client)
        finally:
            client.execute_command("ACL", "SETUSER", "default", "off")


def test_backup_reads_the_snapshot_over_tls(
    sentinels: TlsSentinels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server on this machine loads the snapshot of the primary. No key is read by itself."""
    with connect(sentinels.url()) as client:
        client.set("bot:note", "1")
        with read_snapshot(client, tmp_path / "copy", prefix="bot:") as keys:
            assert [(key.name, key.value) for key in keys] == [("note", "1")]
    assert not caplog.records


def test_clients_follow_the_primary_with_tls(sentinels: TlsSentinels) -> None:
    """This test is the last: the first node stays down."""
    with connect(sentinels.url(), patient=True) as client:
        client.set("before", "1")
        assert client.wait(1, 60_000) == 1
        sentinels.set_down_after(SHORT_MS)
        sentinels.nodes[0].send_signal(signal.SIGKILL)

        def is_back() -> bool:
            try:
                return client.get("before") == "1" and bool(client.set("after", "1"))
            except RedisError:
                return False

        until(is_back)
        sentinels.set_down_after(LONG_MS)
        until(lambda: not sentinels.says(sentinels.url()))
        assert isinstance(client, Redis)
    reach(sentinels.url())
