"""Dockerfile and deploy/compose.yaml: linted, built and run as they stand there, without Docker."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sayso.testing.platforms import webhooks as signing
from tests.deploy.conftest import (
    SECRETS,
    Site,
    compose,
    compose_program,
    docker_compose,
    example_environ,
    own,
    program,
)
from tests.deploy.dockerfile import Image
from tests.deploy.sandbox import ROOT, Sandbox
from tests.flows.system import until

COMPOSE = ROOT / "deploy" / "compose.yaml"


def test_lint_finds_nothing_in_the_dockerfile():
    """Hadolint checks it."""
    done = run(program("hadolint"), "--failure-threshold", "style", ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_docker_compose_accepts_the_file():
    """`docker compose config` prints no warning, and each container has no more rights than its service needs."""
    services = compose()["services"]
    assert set(services) == {"web", "worker", "poll", "redis"}
    assert [
        name
        for name, each in services.items()
        if each["cap_drop"] != ["ALL"] or not each["read_only"]
    ] == []
    assert [
        name for name, each in services.items() if "privileged" in each or "network_mode" in each
    ] == []
    assert [(each["host_ip"], each["published"]) for each in services["web"]["ports"]] == [
        ("127.0.0.1", "8000")
    ]
    assert [name for name, each in services.items() if "ports" in each] == ["web"]


def test_docker_compose_finds_a_wrong_value(tmp_path: Path):
    """This proves that the check above can fail."""
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE.read_text().replace("service_healthy", "service_well"))
    done = run(
        compose_program(),
        "--file",
        file,
        "config",
        env={"REDIS_PASSWORD": "x", "SAYSO_ENV_FILE": os.devnull},
    )
    assert done.returncode
    assert "depends_on.redis.condition value must be one of" in done.stderr


def test_without_a_password_for_redis_nothing_starts():
    """The message names the variable and the file."""
    environ = {name: value for name, value in example_environ().items() if name != "REDIS_PASSWORD"}
    done = docker_compose("config", environ=environ)
    assert done.returncode
    assert "REDIS_PASSWORD is missing a value: write it into sayso.env" in done.stderr


def run(*command: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def test_image_has_the_product_and_no_installer(sandbox: Sandbox, image: Image):
    """Its packages fit together and belong to root. There is no uv, no pip and no source tree."""
    layer = sandbox.layer(image.layers[0])
    assert {path.name for path in layer.iterdir()} == {"etc", "opt", "var"}
    assert {path.name for path in (layer / "opt").iterdir()} == {"sayso"}
    names = {
        path.name.partition("-")[0]
        for path in (layer / "opt/sayso/lib/python3.11/site-packages").iterdir()
    }
    assert {"sayso", "redis", "openai", "anthropic", "mcp", "lxml"} <= names
    assert not names & {"pip", "uv", "setuptools", "pytest", "tests"}
    assert not [
        path for path in (layer / "opt/sayso").rglob("*") if path.stat(follow_symlinks=False).st_uid
    ]
    assert image.labels["org.opencontainers.image.licenses"] == "MIT"
    assert (image.user, image.ports, image.volumes) == ("10001:10001", ["8000"], ["/var/lib/sayso"])


def test_healthcheck_fails_without_a_web(sandbox: Sandbox, image: Image):
    """A container is unhealthy when its web has ended or does not answer."""
    command = sandbox.command(
        image.healthcheck, layers=image.layers, user=image.user, environ=image.environ
    )
    done = run(*command)
    assert done.returncode == 1
    assert "Connection refused" in done.stderr


def test_services_of_the_compose_file_answer_a_message(site: Site):
    """Web, worker and Redis run as their own users on read-only roots, and write only to their volumes and /tmp."""
    with ExitStack() as stack:
        site.service(stack, "web")
        until(site.is_ready)
        site.service(stack, "worker")
        image = site.image
        site.sandbox.run(
            image.healthcheck, layers=image.layers, user=image.user, environ=image.environ
        )
        headers, body = signing.telegram_hook(
            SECRETS["TELEGRAM_SECRET"], signing.telegram_text(1, "count the apples")
        )
        assert (
            site.post("http://127.0.0.1:8000/hooks/tg", headers=headers, content=body).status_code
            == 200
        )
        until(lambda: "There are 3 apples." in json.dumps(site.platforms.sent))
        until(lambda: site.get("http://127.0.0.1:8000/healthz?full").status_code == 200)
        saved = subprocess.run(
            operators(site, "backup", "-"), capture_output=True, check=True
        ).stdout
    assert {path.name for path in site.sandbox.layer("data").iterdir()} <= {
        "bots",
        "media",
        "texts",
        ".backup",
    }
    assert (site.sandbox.layer("redis-data") / "appendonlydir").is_dir()
    restore = operators(site, "restore", "-", "--replace")
    # The web that ended counts for five seconds.
    until(
        lambda: (
            subprocess.run(restore, input=saved, capture_output=True, check=False).returncode == 0
        )
    )


def operators(site: Site, *command: str) -> list[str]:
    """Return a command of an operator in a new container of the worker service."""
    service = compose()["services"]["worker"]
    mounts = {"/tmp": "tmp", "/etc/sayso": "bot", "/var/lib/sayso": "data"}
    return site.sandbox.command(
        [*site.image.entrypoint, *command], layers=site.image.layers, user=site.image.user, cwd=site.image.cwd,
        environ={**site.image.environ, **service["environment"]}, mounts=mounts,
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["", "/bots"])
@pytest.mark.parametrize("service", ["web", "worker"])
def test_volume_that_belongs_to_another_user_is_named(site: Site, service: str, folder: str):
    """Docker mounts a folder of the host as root, and a copy that root restored is root's. The log has one line."""
    layer = site.sandbox.layer("of-root")
    own(layer, site.image.user if folder else "0:0", 0o700)
    (layer / "bots").mkdir(mode=0o700, exist_ok=True)
    image, mounts = site.image, {"/tmp": "tmp", "/etc/sayso": "bot", "/var/lib/sayso": "of-root"}
    command = site.sandbox.command(
        [*image.entrypoint, service], layers=image.layers, user=image.user, cwd=image.cwd, mounts=mounts,
        environ={**image.environ, **compose()["services"][service]["environment"]},
    )  # fmt: skip
    done = run(*command)
    cure = f"Error: data folder '/var/lib/sayso{folder}': Permission denied: give one you may write to with --data\n"
    assert (done.returncode, done.stderr) == (3, cure)


def test_poll_service_stores_what_it_fetches(site: Site):
    """The profile `poll` fetches the messages of a bot without a public address."""
    with ExitStack() as stack:
        site.service(stack, "poll", bot="polled")
        site.platforms.update(signing.telegram_text(7, "count the apples"))
        until(lambda: "turn.accepted" in site.log("poll").read_text())
