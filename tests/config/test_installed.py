"""The wheel and the sdist, installed without access to the checkout, and run beside a user's own modules."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from deploy.build_packages import FILES, PACKAGES, build
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import ENVIRON, FakePlatforms
from tests.config.conftest import EPOCH
from tests.config.processes import PATIENCE, free_port, short_folder, until

ROOT = Path(__file__).parents[2]
#: Modules that a user may have beside the bot. Python must not confuse any of them with Sayso's.
USER_MODULES = (
    "agent.py", "channels.py", "config.py", "examples/__init__.py", "pending/__init__.py", "workers/__init__.py",
)  # fmt: skip
BOT = """
agent: {{model: offline}}
tools: [./fruit.py, sayso.examples.invoices]
channels:
  web: {{platform: console}}
  tg: {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", api_url: {url}}}
"""
FRUIT = '''
from sayso import tool

@tool()
def count_apples() -> str:
    """Count the apples in stock."""
    return "There are 3 apples."
'''


class Installed:
    """An environment with Sayso installed, and a user's folder to run it in."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.environment, self.home = folder / "env", folder / "home"
        venv.create(self.environment, with_pip=False)
        self.python = self.environment / "bin" / "python"
        site = sysconfig.get_path("purelib", vars={"base": str(self.environment)})
        # Dependencies come from the tests' own environment, without its import hook for the checkout.
        (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(self.python), "install", "-qq", "--no-deps",
             "--no-compile", "--no-build-isolation", "--force-reinstall", str(package)],
            check=True, capture_output=True,
        )  # fmt: skip
        for name in USER_MODULES:
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(
                "raise SystemExit('the module of the user was imported')\n"
            )
        (self.home / "fruit.py").write_text(FRUIT)

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of the commands, without the tests' own variables."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "SAYSO", "REDIS"))
        }
        return {**clean, **ENVIRON, **more}

    def sayso(self, *args: str, said: str = "", **environ: str) -> str:
        """Run a command to its end and return its whole output."""
        done = subprocess.run(
            [str(self.environment / "bin" / "sayso"), *args], cwd=self.home, env=self.environ(**environ), input=said,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def running(self, line: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Run a shell line as a process until the block ends."""
        whole = self.environ(**environ) | {
            "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}"
        }
        log = (self.home / "log").open("a")
        process = subprocess.Popen(
            f"exec {line}", shell=True, cwd=self.home, env=whole, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0, (self.home / "log").read_text()
            log.close()


@pytest.fixture(scope="module")
def install(built: Mapping[str, Path]) -> Iterator[Callable[[str], Installed]]:
    """Yield a function that returns Sayso as installed from the wheel or the sdist, each once."""
    with short_folder() as folder:
        yield cache(lambda package: Installed(folder / package, built[package]))


def procfile() -> dict[str, str]:
    """Return the processes of the Procfile by name."""
    lines = (ROOT / "Procfile").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if not line.startswith("#"))


def ready(url: str) -> bool:
    """Return whether the bot at this URL is ready."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def write_to(url: str, text: str) -> None:
    """Send a signed Telegram webhook."""
    headers, body = signing.telegram_hook(
        ENVIRON["TELEGRAM_SECRET"], signing.telegram_text(1, text)
    )
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/hooks/tg", data=body, headers=headers)
    ) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("package", ["wheel", "sdist"])
def test_installed_commands_run_beside_modules_of_the_same_names(
    install: Callable[[str], Installed], package: str
):
    """`check` and `chat` work with the user's tool and the shipped examples."""
    installed = install(package)
    module_path = subprocess.check_output(
        [installed.python, "-P", "-c", "import sayso; print(sayso.__file__)"],
        text=True,
        cwd=installed.home,
    )
    assert Path(module_path).is_relative_to(installed.environment)
    (installed.home / "bot.yaml").write_text(BOT.format(url="http://127.0.0.1:9"))
    assert "count_apples" in installed.sayso("check", "-c", "bot.yaml")
    said = installed.sayso("chat", "--config", "bot.yaml", said="count the apples\n")
    assert "There are 3 apples." in said
    as_module = subprocess.run(
        [installed.python, "-m", "sayso", "check", "-c", "bot.yaml"], cwd=installed.home, env=installed.environ(),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert as_module.returncode == 0, as_module.stderr
    assert "count_apples" in as_module.stdout


def test_installed_up_answers_a_message(install: Callable[[str], Installed]):
    """One command runs the whole bot, and its Redis, web and workers come from the installed package."""
    installed, port = install("wheel"), free_port()
    with FakePlatforms() as platforms:
        (installed.home / "bot.yaml").write_text(BOT.format(url=platforms.telegram_url))
        with installed.running(f"sayso up --config bot.yaml --data data --port {port} --workers 1"):
            until(lambda: ready(f"http://127.0.0.1:{port}"))
            write_to(f"http://127.0.0.1:{port}", "count the apples")
            until(lambda: "There are 3 apples." in json.dumps(platforms.sent))


def test_lines_of_the_procfile_answer_a_message(install: Callable[[str], Installed]):
    """The Procfile's web and worker run as a hosting platform starts them, on a Redis of its own."""
    installed, lines, port = install("wheel"), procfile(), str(free_port())
    with FakePlatforms() as platforms, short_folder() as folder:
        redis = EmbeddedRedis(folder)
        redis.start()
        (installed.home / "bot.yaml").write_text(BOT.format(url=platforms.telegram_url))
        environ = {
            "REDIS_URL": redis.url,
            "SAYSO_CONFIG": "bot.yaml",
            "SAYSO_DATA": "data",
            "PORT": port,
        }
        with (
            installed.running(lines["web"], **environ),
            installed.running(lines["worker"], **environ),
        ):
            until(lambda: ready(f"http://127.0.0.1:{port}"))
            write_to(f"http://127.0.0.1:{port}", "count the apples")
            until(lambda: "There are 3 apples." in json.dumps(platforms.sent))
        redis.stop()


def test_packages_contain_the_files_of_the_product_only(built: Mapping[str, Path]):
    """No test, cache or document is in them, and what both contain is equal to the checkout's files.

    A wheel that also installed `agent` or `config` would collide with a user's modules.
    """
    wheel = zipfile.ZipFile(built["wheel"])
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    with tarfile.open(built["sdist"]) as sdist:
        packed = {each.name.partition("/")[2] for each in sdist.getmembers() if each.isfile()}
    assert files == {name for name in packed if name.startswith("sayso/")}
    assert {name.partition("/")[0] for name in packed - files} == {
        *FILES,
        "PKG-INFO",
        "setup.cfg",
        "sayso.egg-info",
    }
    assert not [name for name in files if "__pycache__" in name or "/tests/" in name]
    assert all(wheel.read(name) == (ROOT / name).read_bytes() for name in files)
    product = {name for name in files if not name.startswith("sayso/deploy/")}
    licenses = {name for name in product if name.endswith(".LICENSE.txt")}
    assert licenses == {"sayso/channels/console/static/highlight.LICENSE.txt"}
    assert not {Path(name).suffix for name in product - licenses} - {
        *".py .typed .lua .acl .toml .yaml .css .js .json .html".split()
    }


def test_the_wheel_has_the_files_that_the_page_about_deployment_names(
    install: Callable[[str], Installed],
):
    """The page copies them out of the wheel where there is no checkout."""
    installed, page = install("wheel"), (ROOT / "docs/how-to/deploy.md").read_text()
    (line,) = re.findall(r"^ +(cp -r .*sayso.*/deploy\".*)$", page, re.MULTILINE)
    with installed.running(f"sh -c {shlex.quote(line)}") as copying:
        assert copying.wait(PATIENCE) == 0
    named = {name.rstrip("./") for name in re.findall(r"\bdeploy/[\w./@-]+", page)}
    assert {name for name in named if not (installed.home / name).exists()} == set()
    assert (installed.home / "deploy/Procfile").read_text() == (ROOT / "Procfile").read_text()


def test_messages_name_pages_of_the_site_where_there_is_no_checkout(
    install: Callable[[str], Installed],
):
    """The wheel has no documentation. Its metadata have the address."""
    installed = install("wheel")
    (installed.home / "doctor.yaml").write_text(
        "agent: {model: offline}\nchannels: {web: {platform: console}}\n"
    )
    done = subprocess.run(
        [installed.environment / "bin" / "sayso", "doctor", "--config", "doctor.yaml", "--json"],
        cwd=installed.home, env=installed.environ(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    site = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    found = {each["id"]: each["see"] for each in json.loads(done.stdout) if each["id"]}
    assert found["redis-unknown"] == f"{site}/reference/doctor/#redis-unknown"


def test_packages_of_the_same_commit_have_the_same_bytes(built: Mapping[str, Path], tmp_path: Path):
    """Times, rights and folders, which differ between machines, change nothing."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, symlinks=True, copy_function=shutil.copyfile,
            ignore=shutil.ignore_patterns("__pycache__"),
        )  # fmt: skip
    for name in FILES:
        shutil.copyfile(ROOT / name, tmp_path / name)
    for path in tmp_path.rglob("*.py"):
        path.chmod(0o600)
    again = build(tmp_path, tmp_path / "dist", epoch=EPOCH)
    assert [each.read_bytes() for each in again] == [
        built["wheel"].read_bytes(),
        built["sdist"].read_bytes(),
    ]


def test_packages_have_complete_metadata(built: Mapping[str, Path]):
    """The wheel's metadata has license, addresses and classifiers, and both packages contain the license file. PyPI
    would take them.
    """
    packages = list(map(str, built.values()))
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *packages],
        check=True,
        capture_output=True,
    )
    wheel = zipfile.ZipFile(built["wheel"])
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    told = wheel.read(metadata).decode()
    for line in (
        "License-Expression: MIT",
        "Project-URL: Source, ",
        "Classifier: Framework :: Flask",
    ):
        assert f"\n{line}" in told
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    with tarfile.open(built["sdist"]) as sdist:
        assert any(name.endswith("/LICENSE") for name in sdist.getnames())
