"""Builds what a Dockerfile says in a sandbox, instruction by instruction, and runs what it would run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tests.deploy.sandbox import ROOT, Sandbox

#: What a Docker daemon hands on to a build, such as the address of a registry's mirror.
PASSED_ON = re.compile(
    r"(PIP|UV)_(CERT|INDEX|DEFAULT_INDEX|FIND_LINKS).*|https?_proxy|no_proxy", re.IGNORECASE
)


@dataclass
class Image:
    """A stage of the Dockerfile: its layers, uppermost first, and what its containers start with."""

    layers: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    cwd: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)


class Builder:
    """Builds one Dockerfile. `overrides` replace values of ENV, to leave out slow steps that change no result."""

    def __init__(self, sandbox: Sandbox, *, overrides: dict[str, str]) -> None:
        self._sandbox, self._overrides = sandbox, overrides
        self._stages: dict[str, Image] = {}
        self._args: dict[str, str] = {}
        self._image = Image()

    def build(self, file: Path) -> Image:
        """Return the last stage. Fails at an instruction that fails, or that this builder does not know."""
        text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
        for line in re.sub(r"\\\n", " ", text).splitlines():
            if line.strip():
                name, _, value = line.strip().partition(" ")
                getattr(self, f"_{name.lower()}")(value.strip())
        return self._image

    def _arg(self, value: str) -> None:
        name, _, default = value.partition("=")
        self._args[name] = default

    def _from(self, value: str) -> None:
        base, *name = self._filled(value).split(" AS ")
        assert base == "python:3.11-slim"
        self._image = self._stages[name[0] if name else ""] = Image(
            environ={"PATH": self._sandbox.environ["PATH"]}
        )

    def _env(self, value: str) -> None:
        self._image.environ |= {
            name: self._overrides.get(name, each)
            for name, each in _pairs(self._filled(value)).items()
        }

    def _label(self, value: str) -> None:
        self._image.labels |= _pairs(value)

    def _workdir(self, value: str) -> None:
        self._image.cwd = value
        (self._layer() / value.lstrip("/")).mkdir(parents=True, mode=0o755)

    def _run(self, value: str) -> None:
        image, layer = self._image, self._layer().name
        passed = {"UV_SYSTEM_CERTS": "1"} | {
            name: each for name, each in os.environ.items() if PASSED_ON.fullmatch(name)
        }
        self._sandbox.run(
            ["/bin/sh", "-c", value], layers=image.layers[1:], writes=layer, cwd=image.cwd, user=image.user,
            environ={**passed, **image.environ}, network=True,
        )  # fmt: skip

    def _copy(self, value: str) -> None:
        *sources, target = value.split()
        layer = self._layer()
        place = layer / str(Path(self._image.cwd, target)).lstrip("/")
        stage = sources.pop(0).partition("=")[2] if sources[0].startswith("--from=") else ""
        for source in sources:
            if stage:
                places = (
                    self._sandbox.layer(each) / source.lstrip("/")
                    for each in self._stages[stage].layers
                )
                _copy(next(each for each in places if each.exists()), place)
            elif source == ".":
                for path in context():
                    _copy(path, place / path.relative_to(ROOT))
            else:
                assert ROOT / source in context(), f"{source} is kept out by .dockerignore"
                _copy(ROOT / source, place / Path(source).name)

    def _user(self, value: str) -> None:
        self._image.user = value

    def _volume(self, value: str) -> None:
        self._image.volumes.append(value)

    def _expose(self, value: str) -> None:
        self._image.ports.append(value)

    def _healthcheck(self, value: str) -> None:
        self._image.healthcheck = json.loads(value.partition("CMD ")[2])

    def _entrypoint(self, value: str) -> None:
        self._image.entrypoint = json.loads(value)

    def _cmd(self, value: str) -> None:
        self._image.command = json.loads(value)

    def _layer(self) -> Path:
        """Return the stage's own layer, which all of its instructions write."""
        if not self._image.layers:
            self._image.layers.append(f"stage{len(self._stages)}")
        return self._sandbox.layer(self._image.layers[0])

    def _filled(self, value: str) -> str:
        known = {**self._args, **self._image.environ}
        return re.sub(r"\$\{?(\w+)\}?", lambda match: known[match[1]], value)


def context() -> list[Path]:
    """Return the files that .dockerignore lets through. The last pattern that matches decides."""
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and line[0] != "#"
    ]
    return [
        path for path in [*ROOT.iterdir(), *(ROOT / "deploy").iterdir()] if _is_sent(path, patterns)
    ]


def _is_sent(path: Path, patterns: list[str]) -> bool:
    name = str(path.relative_to(ROOT))
    decisive = next(
        each
        for each in reversed(patterns)
        if fnmatch(name, each.lstrip("!")) or fnmatch(path.name, each[3:])
    )
    return decisive.startswith("!")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(
            source,
            target,
            symlinks=True,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    else:
        shutil.copy(source, target)


def _pairs(value: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(value))
