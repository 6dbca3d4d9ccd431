"""The Redis ACL file that ships with Sayso: each process has a user of its own, and a whole turn works."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError

from sayso.config.server.embedded_redis import server_binary
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap, check_redis
from sayso.pending.redis.client import ACL_FILE, check_guarded, connect
from tests.config.processes import sayso
from tests.flows.system import System, TelegramPerson, free_port, until


@dataclass(slots=True)
class GuardedRedis:
    """The bundled server with the shipped ACL file, with test passwords."""

    folder: Path
    user: str = "sayso-web"
    pid: int | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Return the Redis URL with the current user's login."""
        password = self.user.removeprefix("sayso-").upper()
        return f"unix://{self.user}:{password}-secret@{self.folder}/guarded.sock"

    def start(self) -> None:
        """Start the server, and wait until the operator can log in."""
        acl = self.folder / "users.acl"
        acl.write_text(ACL_FILE.read_text().replace("_PASSWORD", "-secret").replace("NAME", "sayso"))
        settings = {"port": "0", "unixsocket": f"{self.folder}/guarded.sock", "aclfile": str(acl), "appendonly": "yes"}
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        log = (self.folder / "guarded.log").open("wb")
        self._process = subprocess.Popen([server_binary(), *options], cwd=self.folder, stdout=log, stderr=log)
        until(self._answers)

    def stop(self) -> None:
        """Stop the server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def login(self, user: str) -> Redis:
        """Return a client of one user."""
        self.user = user
        return Redis.from_url(self.url, decode_responses=True)

    def _answers(self) -> bool:
        try:
            return bool(self.login("sayso-operator").ping())
        except RedisError:
            return False


class GuardedSystem(System):
    """A web and a worker, each with a login of its own."""

    def process(self, command: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a command as its user."""
        user = {"web": "web", "worker": "worker"}.get(command, "operator")
        self.redis.user = f"sayso-{user}"  # type: ignore[attr-defined]
        return super().process(command, *args)


@pytest.fixture(scope="module")
def system() -> Iterator[GuardedSystem]:
    """Web and one worker on a guarded server."""
    with tempfile.TemporaryDirectory(prefix="sayso-acl-") as folder:
        system = GuardedSystem(Path(folder), workers=1)
        system.redis = GuardedRedis(Path(folder))  # type: ignore[assignment]
        with system:
            yield system


def test_web_and_worker_do_a_whole_turn_with_the_shipped_acl(system: GuardedSystem) -> None:
    """A question, its yes, the effect, a stop, and an operator's erasure all work without a denied command."""
    person = TelegramPerson(system, 61)
    person.say("delete invoice INV-51")
    assert "INV-51" in person.hears()[0]["text"]
    person.say("yes")
    assert "deleted" in person.hears()[0]["text"]
    assert system.effects("delete", "INV-51") == 1
    person.say("/stop")
    person.hears()
    operator = system.process("people erase", "ops-tg", person.chat)
    assert operator.wait(60) == 0, system.log.read_text()[-3000:]
    log = system.log.read_text().replace("CONFIG of this Redis (NoPermissionError)", "")
    assert ("NoPermission" in log, "No permissions" in log) == (False, False), log[-3000:]


def test_web_reports_readiness_and_health_with_the_shipped_acl(system: GuardedSystem) -> None:
    """The web's login allows every Redis command of the readiness and health checks."""
    for path in ("/readyz", "/healthz?full"):
        answer = system.http.get(f"{system.url}{path}", timeout=10)
        assert (answer.status_code, answer.json()["redis"]) == (200, "ok"), answer.text


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("sayso-web", ("GET", "sayso:sayso:{1}:history:tg:x:y")),
        ("sayso-web", ("BLPOP", "rq:wip:sayso-sayso", "1")),
        ("sayso-web", ("CONFIG", "GET", "requirepass")),
        ("sayso-worker", ("GET", "sayso:other:{1}:history:tg:x:y")),
        ("sayso-worker", ("FLUSHALL",)),
        ("sayso-operator", ("CONFIG", "SET", "appendonly", "no")),
    ],
)
def test_each_user_is_denied_commands_outside_its_role(
    system: GuardedSystem, user: str, command: tuple[str, ...]
) -> None:
    """A compromised web cannot read history; no process can read another bot or empty the server."""
    guarded: GuardedRedis = system.redis  # type: ignore[assignment]
    with guarded.login(user) as client, pytest.raises(NoPermissionError):
        client.execute_command(*command)


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))  # sends nothing
        except OSError:
            pytest.skip("SKIPPED: this machine has no network")
        return str(probe.getsockname()[0])


def test_a_remote_redis_without_a_login_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    """Every start names the fix; a password or a line in the YAML allows the start."""
    host, port = own_address(), free_port()
    options = ["--port", str(port), "--bind", host, "--protected-mode", "no", "--save", "", "--appendonly", "yes"]
    options += ["--unixsocket", f"{tmp_path}/here.sock"]
    server = subprocess.Popen([server_binary(), *options], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        url = f"redis://{host}:{port}/0"
        until(lambda: _is_there(url))
        file = tmp_path / "bot.yaml"
        file.write_text("channels: {web: {platform: console}}\n")
        code, _, errors = sayso("worker", "--config", file, "--data", tmp_path / "data", REDIS_URL=url)
        assert (code, "needs no password" in errors, "allow_open_redis: true" in errors) == (3, True, True), errors
        file.write_text(
            f"agent: {{cache: {{store: redis, redis_url: {url}}}}}\nchannels: {{web: {{platform: console}}}}\n"
        )
        here = {"REDIS_URL": f"unix://{tmp_path}/here.sock"}
        code, _, errors = sayso("worker", "--config", file, "--data", tmp_path / "data", **here)
        assert (code, "needs no password" in errors) == (3, True), errors
        allowed = load_settings(file).model_copy(update={"allow_open_redis": True, "redis_url": url})
        check_redis(bootstrap(allowed, data=tmp_path / "data"))
        connect(url).config_set("requirepass", "a-password")
        check_guarded(connect(f"redis://:a-password@{host}:{port}/0"))
    finally:
        server.kill()
        server.wait()


def _is_there(url: str) -> bool:
    try:
        return bool(connect(url).ping())
    except RedisError:
        return False
