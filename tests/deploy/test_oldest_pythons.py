"""The oldest Python of each supported line that this machine has: it builds, installs and runs Sayso."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.dockerfile import PASSED_ON
from tests.deploy.sandbox import ROOT

#: The lines that docs/how-to/deploy.md names.
LINES = ("3.11", "3.12", "3.13")
EPOCH = "1790000000"
#: Imports every module of the package that has no side effects.
IMPORTS = """
import importlib, pkgutil, sayso
for module in pkgutil.walk_packages(sayso.__path__, "sayso."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def interpreters(line: str) -> Iterator[Path]:
    """Yield the Pythons of a line: on the PATH, in /usr/bin, and those that pyenv and uv have installed."""
    folders = [*os.environ["PATH"].split(os.pathsep), "/usr/bin", "/usr/local/bin"]
    yield from (Path(folder, f"python{line}") for folder in folders)
    home = Path.home()
    yield from home.glob(f".pyenv/versions/{line}.*/bin/python")
    yield from home.glob(f".local/share/uv/python/cpython-{line}.*/bin/python")


def oldest(line: str) -> str:
    """Return the Python of the line with the lowest version. Skip the test where there is none."""
    found: dict[tuple[int, ...], Path] = {}
    for path in filter(Path.exists, interpreters(line)):
        asked = subprocess.run(
            [path, "-c", "import sys, ensurepip; print(*sys.version_info[:3])"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if asked.returncode == 0:
            found.setdefault(tuple(map(int, asked.stdout.split())), path)
    if not found:
        pytest.skip(f"this machine has no Python {line}")
    return str(found[min(found)])


@dataclass(frozen=True)
class Machine:
    """A folder with the sources, as a person gets them, and what `make dist` left there."""

    python: str
    sources: Path
    environ: Mapping[str, str]

    def run(self, *command: str | Path, said: str = "") -> str:
        """Run a command in the folder of the sources, and return its output. Fails unless it succeeds."""
        done = subprocess.run(
            command, cwd=self.sources, env=dict(self.environ), input=said, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module", params=LINES)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Return a machine that has only this Python and the sources, on which `make dist` was run."""
    python, sources = oldest(request.param), tmp_path_factory.mktemp("sources")
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    for name in re.findall(
        r'"(\w+)"', (ROOT / "deploy/build_packages.py").read_text().partition("PACKAGES")[2]
    ):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                sources / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
    kept = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    own = {
        "HOME": str(Path.home()),
        "PATH": "/usr/bin:/bin",
        "SOURCE_DATE_EPOCH": EPOCH,
        "UV_SYSTEM_CERTS": "1",
    }
    environ = {**kept, **own}
    made = Machine(python, sources, environ)
    made.run("make", "dist", f"PYTHON={python}")
    return made


def test_make_dist_builds_both_packages_with_the_build_tools_alone(machine: Machine):
    """It is the first command of the guide for systemd, on a machine without the tools of developers."""
    assert sorted(path.suffix for path in (machine.sources / "dist").iterdir()) == [".gz", ".whl"]
    listed = machine.run(
        ".venv-build/bin/pip", "list", "--format=freeze", "--disable-pip-version-check"
    )
    assert set(re.findall(r"^[\w-]+", listed, re.MULTILINE)) == {"pip", "setuptools", "uv"}
    assert not (machine.sources / ".venv").exists()


def test_the_installed_wheel_runs(machine: Machine):
    """All modules are imported, and a bot answers: with the locked dependencies, as the guide installs them."""
    machine.run(machine.python, "-m", "venv", "--without-pip", "installed")
    (wheel,) = (machine.sources / "dist").glob("*.whl")
    for packages in (["--require-hashes", "-r", "deploy/requirements.txt"], [wheel]):
        machine.run(
            ".venv-build/bin/uv",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--python",
            "installed",
            *packages,
        )
    machine.run("installed/bin/python", "-P", "-c", IMPORTS)
    (machine.sources / "bot.yaml").write_text(
        "agent: {model: offline}\nchannels: {web: {platform: console}}\n"
    )
    machine.run("installed/bin/sayso", "check", "--config", "bot.yaml")
    assert machine.run("installed/bin/sayso", "chat", "--config", "bot.yaml", said="hello\n")
