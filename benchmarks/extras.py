"""The size of an installation: Sayso alone, and what each extra adds.

    python -m benchmarks.extras

Each line is an installation of its own, from the checkout and the package index, into an empty
folder. Its size counts the files as they are unpacked, without the bytecode that Python writes
later (about a third more). The libraries of the platforms are part of Sayso alone. Needs `uv`,
which `make test` installs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MB = 1e6


@dataclass(frozen=True, slots=True)
class Installation:
    """What one installation put on the disk."""

    bytes: int
    #: The names of the distributions, with versions.
    distributions: frozenset[str]


def install(requirement: str) -> Installation:
    """Install a requirement into an empty folder, and measure it. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        target = ["--quiet", "--target", folder, requirement]
        command = [sys.executable, "-m", "uv", "pip", "install", *target]
        subprocess.run(command, check=True, cwd=ROOT)
        paths = [path for path in Path(folder).rglob("*") if "__pycache__" not in path.parts]
        files = [path for path in paths if path.is_file()]
        names = frozenset(file.stem for file in Path(folder).glob("*.dist-info"))
        return Installation(sum(file.stat().st_size for file in files), names)


def main() -> None:
    """Print a table of all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = install(".")
    print("| installed | adds MB | adds distributions |\n|---|---|---|")
    print(f"| `sayso` | {base.bytes / MB:.0f} | {len(base.distributions)} |", flush=True)
    for extra in project["optional-dependencies"]:
        with_extra = install(f".[{extra}]")
        added_bytes = with_extra.bytes - base.bytes
        added_names = with_extra.distributions - base.distributions
        print(f"| `sayso[{extra}]` | {added_bytes / MB:.0f} | {len(added_names)} |", flush=True)


if __name__ == "__main__":
    main()
