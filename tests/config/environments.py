"""ExtraEnvironment: a virtual environment with the wheel and one extra, and nothing else.

The libraries are those of the tests' own environment, linked file by file: nothing is downloaded, and an environment
is made in a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.config.processes import PATIENCE


class ExtraEnvironment:
    """An environment with the wheel and one extra (""for none), and a user's folder to run it in."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.environment, self.home = folder / "env", folder / "home"
        self.home.mkdir(parents=True)
        venv.create(self.environment, with_pip=False)
        self.python = self.environment / "bin" / "python"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(self.environment)}))
        for each in libraries_of(extra):
            link(each, self.site)
        # Fails where a library is missing that the wheel's metadata demands.
        what = f"sayso[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
        subprocess.run(
            [Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--offline", "--no-index", "--no-config",
             "--cache-dir", folder / "cache", "--python", self.python, what],
            check=True,
        )  # fmt: skip

    def run(
        self, command: str, *args: str | Path, said: str = "", **environ: str
    ) -> tuple[int, str]:
        """Run a command of the environment to its end. Return its exit code and its whole output."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if name in ("HOME", "LANG", "PATH", "TMPDIR")
        }
        done = subprocess.run(
            [self.environment / "bin" / command, *args], cwd=self.home, env={**clean, **environ}, input=said,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


def libraries_of(extra: str) -> list[Distribution]:
    """Return the distributions that Sayso with an extra needs, by the metadata of what the tests have installed."""
    wanted: dict[str, set[str]] = {}
    todo = [Requirement(f"sayso[{extra}]" if extra else "sayso")]
    while todo:
        requirement = todo.pop()
        extras = wanted.setdefault(canonicalize_name(requirement.name), set())
        new = {"", *requirement.extras} - extras
        extras |= new
        if new:
            todo += _requirements(distribution(requirement.name), new)
    return [distribution(name) for name in wanted if name != "sayso"]


def _requirements(of: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in of.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": each}) for each in extras
        ):
            yield requirement


def link(library: Distribution, site: Path) -> None:
    """Link the files of a distribution into a folder of libraries, with their compiled code. Commands are left out."""
    for file in library.files or ():
        if file.parts[0] == "..":
            continue
        source = Path(str(library.locate_file(file)))
        compiled = (
            source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        )
        for each in (source, compiled) if source.suffix == ".py" else (source,):
            target = site / file.parent / each.relative_to(source.parent)
            if not target.exists() and each.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                _link_file(each, target)


def _link_file(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # on another disk
        target.symlink_to(source)
