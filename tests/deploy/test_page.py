"""docs/how-to/deploy.md: the files that it names exist, and its commands work as described."""

from __future__ import annotations

import re
import shutil

import yaml

from tests.deploy.conftest import example_environ
from tests.deploy.sandbox import ROOT, Sandbox
from tests.docs.pages import part

PAGE = part("deploy.md")
#: What needs a package registry, or systemd as the first process. The image's test installs the same packages.
NOT_HERE = re.compile(r"make dist|python3 -m venv|/opt/sayso\S*/bin/pip|systemctl")


def test_every_file_that_the_page_names_exists():
    """A renamed file must be renamed in the page, too."""
    named = set(re.findall(r"\bdeploy/[\w./@-]+", PAGE))
    assert len(named) >= 7
    assert not [name for name in named if not (ROOT / name.rstrip("./")).exists()]


def test_every_deployment_runs_the_commands_of_the_page():
    """These are the Procfile, the image, Compose and systemd."""
    commands = re.findall(r"^    sayso (web|worker|poll)\b", PAGE, re.MULTILINE)
    procfile = re.findall(r"^(?:# )?(\w+): sayso (\w+)", (ROOT / "Procfile").read_text(), re.MULTILINE)
    assert commands == [name for name, _ in procfile] == [command for _, command in procfile]
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    units = {
        path.name.removeprefix("sayso-").partition(".")[0].rstrip("@")
        for path in (ROOT / "deploy/systemd").glob("*.service")
    }
    assert set(commands) == units == {name for name in services if name != "redis"}


def test_installation_for_systemd_leaves_secrets_to_root(sandbox: Sandbox):
    """The lines of the page run as root. Then the user of the bot can read its configuration, and not the environment
    file.
    """
    lines = re.findall(r"^    sudo (.*)$", part("deploy.md", begin="systemd", end="Docker Compose"), re.MULTILINE)
    here = [line for line in lines if not NOT_HERE.search(line) and not line.startswith("systemd-run")]
    assert [line.split()[0] for line in here] == ["ln", "useradd", "install", "cp", "install", "cp"]
    sources = sandbox.layer("sources") / "srv"
    shutil.copytree(ROOT / "deploy/systemd", sources / "deploy/systemd")
    (sources / "bot").mkdir()
    (sources / "bot/sayso.yaml").write_text("channels: {web: {platform: console}}\n")
    (sources / "sayso.env").write_text("".join(f"{name}={value}\n" for name, value in example_environ().items()))
    sandbox.layer("installed")
    for line in [
        *here,
        "runuser -u sayso -- cat /etc/sayso/sayso.yaml",
        "! runuser -u sayso -- cat /etc/sayso/sayso.env",
    ]:
        sandbox.run(["sh", "-c", line], layers=["sources"], writes="installed", cwd="/srv")
    units = sandbox.layer("installed") / "etc/systemd/system"
    assert (units / "sayso-.service.d/common.conf").exists()
