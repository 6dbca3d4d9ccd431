"""docs/how-to/deploy.md: the files that it names exist, and its commands work as described."""

from __future__ import annotations

import re
import shutil

import yaml

from tests.deploy.conftest import example_environ, program
from tests.deploy.sandbox import ROOT, Sandbox
from tests.docs.pages import part

PAGE = part("deploy.md")
#: Stand-ins for what needs the internet or systemd. Let's Encrypt asks for the file of the challenge over plain HTTP.
PROGRAMS = {
    "sudo": '#!/bin/sh\nexec "$@"\n',
    "systemctl": '#!/bin/sh\n[ "$*" = "reload nginx" ] && exec nginx -s reload\n',
    "certbot": """#!/usr/bin/python3
import argparse, pathlib, subprocess, urllib.request

parser = argparse.ArgumentParser()
for name in ("command", "--webroot-path", "--domain", "--deploy-hook"):
    parser.add_argument(name)
parser.add_argument("--webroot", action="store_true", required=True)
given = parser.parse_args()
challenge = pathlib.Path(given.webroot_path, ".well-known/acme-challenge/token")
challenge.parent.mkdir(parents=True, exist_ok=True)
challenge.write_text("proof")
asked = urllib.request.urlopen(f"http://{given.domain}/.well-known/acme-challenge/token", timeout=10)
assert asked.read() == b"proof"
live = pathlib.Path("/etc/letsencrypt/live", given.domain)
live.mkdir(parents=True, exist_ok=True)
words = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={given.domain}"
files = ["-keyout", live / "privkey.pem", "-out", live / "fullchain.pem"]
subprocess.run([*words.split(), *files], check=True, capture_output=True)
subprocess.run(given.deploy_hook, shell=True, check=True)
print("certificate for", given.domain)
""",
}
#: What needs a package registry, or systemd as the first process. test_oldest_pythons.py builds and installs.
NOT_HERE = re.compile(r"make dist|python3 -m venv|/opt/sayso\S*/bin/pip|systemctl")


def test_every_file_that_the_page_names_exists():
    """A renamed file must be renamed in the page, too."""
    named = set(re.findall(r"\bdeploy/[\w./@-]+", PAGE))
    assert len(named) >= 7
    assert not [name for name in named if not (ROOT / name.rstrip("./")).exists()]


def test_every_deployment_runs_the_commands_of_the_page():
    """These are the Procfile, the image, Compose and systemd."""
    commands = re.findall(r"^    sayso (web|worker|poll)\b", PAGE, re.MULTILINE)
    procfile = re.findall(
        r"^(?:# )?(\w+): sayso (\w+)", (ROOT / "Procfile").read_text(), re.MULTILINE
    )
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
    lines = re.findall(
        r"^    sudo (.*)$", part("deploy.md", begin="systemd", end="Docker Compose"), re.MULTILINE
    )
    here = [
        line for line in lines if not NOT_HERE.search(line) and not line.startswith("systemd-run")
    ]
    assert [line.split()[0] for line in here] == ["ln", "useradd", "install", "cp", "install", "cp"]
    sources = sandbox.layer("sources") / "srv"
    shutil.copytree(ROOT / "deploy/systemd", sources / "deploy/systemd")
    (sources / "bot").mkdir()
    (sources / "bot/sayso.yaml").write_text("channels: {web: {platform: console}}\n")
    (sources / "sayso.env").write_text(
        "".join(f"{name}={value}\n" for name, value in example_environ().items())
    )
    sandbox.layer("installed")
    for line in [
        *here,
        "runuser -u sayso -- cat /etc/sayso/sayso.yaml",
        "! runuser -u sayso -- cat /etc/sayso/sayso.env",
    ]:
        sandbox.run(["sh", "-c", line], layers=["sources"], writes="installed", cwd="/srv")
    units = sandbox.layer("installed") / "etc/systemd/system"
    assert (units / "sayso-.service.d/common.conf").exists()


def test_lines_for_nginx_work_in_their_order(sandbox: Sandbox):
    """The certificate comes before the file that names it, and is renewed through that file."""
    for needed in ("nginx", "openssl"):
        program(needed)
    lines = re.findall(r"^    (sudo .*)$", part("deploy.md", begin="The proxy"), re.MULTILINE)
    here = [line for line in lines if "caddy" not in line and "apt-get" not in line]
    assert [line.split()[1] for line in here] == ["certbot", "cp", "nginx"]
    layer = sandbox.layer("proxied")
    (layer / "usr/local/bin").mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (layer / "usr/local/bin" / name).write_text(text)
        (layer / "usr/local/bin" / name).chmod(0o755)
    (layer / "srv/deploy").mkdir(parents=True)
    shutil.copytree(ROOT / "deploy/nginx", layer / "srv/deploy/nginx")
    # As after its installation: nginx runs, and shows its own page. The last line is the renewal, two months later.
    script = ["set -e", "nginx", *here, here[0], "nginx -s quit"]
    done = sandbox.run(["sh", "-c", "\n".join(script)], layers=[], writes="proxied", cwd="/srv")
    assert done.count("certificate for bots.example.com") == 2
