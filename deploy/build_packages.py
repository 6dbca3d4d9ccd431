"""Build the wheel and the sdist in dist/: `make dist`. The same commit gives the same bytes on every machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What the packages are built from, besides the folders that sayso/ links to.
FILES = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = (
    "agent",
    "channels",
    "config",
    "deploy",
    "examples",
    "infra",
    "ops",
    "pending",
    "sayso",
    "testing",
    "workers",
)


def build(source: Path, made: Path, *, epoch: int) -> list[Path]:
    """Empty the folder `made`, build both packages of a checkout into it, and return them.

    Needs what deploy/requirements-build.txt has, and installs nothing. `epoch` is the time of all files in them, in
    Unix seconds. Raises CalledProcessError.
    """
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        # From a copy without caches and without the list of files that an earlier build left behind.
        clean = Path(folder, "source")
        for package in PACKAGES:
            shutil.copytree(
                source / package,
                clean / package,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        for name in FILES:
            shutil.copy(source / name, clean)
        sdist = _build("--sdist", clean, Path(folder, "sdist"), environ)
        normalized = made / sdist.name
        normalized.write_bytes(_normalize(sdist.read_bytes(), epoch))
    # uv unpacks the sdist itself: `tarfile` before Python 3.11.4 cannot unpack with a filter.
    wheel = _build("--wheel", normalized, made, environ)
    return [wheel, normalized]


def _build(kind: str, source: Path, made: Path, environ: Mapping[str, str]) -> Path:
    settings = [
        "--no-build-isolation",
        "--offline",
        "--no-create-gitignore",
        "--python",
        sys.executable,
    ]
    _run(
        sys.executable,
        "-m",
        "uv",
        "build",
        kind,
        *settings,
        "--out-dir",
        str(made),
        str(source),
        environ=environ,
    )
    return next(made.glob("*.whl" if kind == "--wheel" else "*.tar.gz"))


def _normalize(sdist: bytes, epoch: int) -> bytes:
    """Return the sdist with its files in order, with one time, one owner and two modes: setuptools takes the disk's."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member) if member.isfile() else None
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() else 0o644
            new.addfile(plain, content)
    return packed.getvalue()


def _run(*command: str, environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        done.check_returncode()
    return done.stdout


def _main() -> None:
    try:
        given = os.environ.get("SOURCE_DATE_EPOCH") or _run(
            "git", "-C", str(ROOT), "log", "-1", "--format=%ct"
        )
    except (OSError, subprocess.CalledProcessError):
        sys.exit(
            "there is no last commit here: set SOURCE_DATE_EPOCH to the time of all files, in Unix seconds"
        )
    try:
        packages = build(ROOT, ROOT / "dist", epoch=int(given))
    except subprocess.CalledProcessError as exc:
        sys.exit(f"{' '.join(exc.cmd)} failed")
    for package in packages:
        print(f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.relative_to(ROOT)}")


if __name__ == "__main__":
    _main()
