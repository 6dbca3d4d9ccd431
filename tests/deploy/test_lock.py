"""deploy/requirements*.txt: exact versions with hashes, within what pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: A locked version, what its marker says, and its hashes.
LINE = re.compile(
    r"^(?P<requirement>[a-z0-9].*?) \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    re.MULTILINE,
)
CURE = "run `make lock`, and commit deploy/requirements.txt"


def locked(file: str) -> dict[str, Requirement]:
    """Return what a lock file installs on this machine, by name."""
    found = [
        Requirement(match["requirement"])
        for match in LINE.finditer((ROOT / "deploy" / file).read_text())
    ]
    return {
        canonicalize_name(each.name): each
        for each in found
        if not each.marker or each.marker.evaluate()
    }


LOCKED = locked("requirements.txt")
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [*PROJECT["dependencies"], *(line for name in EXTRAS for line in EXTRAS[name])]


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-build.txt"])
def test_every_line_has_one_version_and_its_hashes(file: str):
    """pip refuses a file in which a hash is missing."""
    text = (ROOT / "deploy" / file).read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(LINE.findall(text))
    assert all(re.match(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==\S+ (; .* )?\\$", line) for line in lines)


@pytest.mark.parametrize("line", [line for line in WANTED if not line.startswith("sayso[")])
def test_the_lock_satisfies_the_dependencies_of_the_project(line: str):
    """Each dependency in pyproject.toml is in the lock, in a version that is allowed."""
    wanted = Requirement(line)
    version = (
        str(LOCKED[canonicalize_name(wanted.name)].specifier).removeprefix("==")
        if wanted.name in LOCKED
        else ""
    )
    assert wanted.specifier.contains(version or "0"), (
        f"{line!r} is locked at {version or 'no version'}: {CURE}"
    )


def test_the_build_tools_are_locked():
    """The version of setuptools is one that pyproject.toml allows."""
    wanted = Requirement(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"][0]
    )
    assert wanted.specifier.contains(
        str(locked("requirements-build.txt")["setuptools"].specifier).removeprefix("==")
    )
