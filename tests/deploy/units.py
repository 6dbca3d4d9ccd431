"""Runs the command of a unit in deploy/systemd in the sandbox, with the user, folders and environment that it names."""

from __future__ import annotations

import shlex
from contextlib import ExitStack

from tests.deploy.conftest import Site, example_environ, own
from tests.deploy.sandbox import ROOT

UNITS = ROOT / "deploy" / "systemd"
USER = "10002:10002"


def run_unit(site: Site, stack: ExitStack, name: str, *, bot: str = "bot") -> None:
    """Run a unit's command until the stack ends."""
    unit = settings(name)
    assert (unit["ProtectSystem"], unit["PrivateTmp"], unit["User"]) == (
        ["strict"],
        ["yes"],
        ["sayso"],
    )
    folder = f"/var/lib/{unit['StateDirectory'][0]}"
    state = site.sandbox.layer("state")
    own(state, USER, int(unit["StateDirectoryMode"][0], 8))
    environ = dict(word.split("=", 1) for line in unit["Environment"] for word in shlex.split(line))
    given = {**example_environ(), "REDIS_URL": "redis://:hush@127.0.0.1:6379/0"}
    assert unit["EnvironmentFile"] == ["/etc/sayso/sayso.env"]
    stack.enter_context(
        site.sandbox.running(
            shlex.split(unit["ExecStart"][0]), layers=site.image.layers, user=USER, cwd=unit["WorkingDirectory"][0],
            environ={"PYTHONPYCACHEPREFIX": "/tmp/compiled", **environ, **given},
            mounts={"/tmp": "tmp", folder: "state", "/etc/sayso": bot}, log=site.log(name),
        )
    )  # fmt: skip


def settings(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit's section [Service], with those that all units have."""
    found: dict[str, list[str]] = {}
    for file in (UNITS / "sayso-.service.d" / "common.conf", UNITS / name):
        section = file.read_text().partition("[Service]\n")[2].partition("\n[")[0]
        for line in section.splitlines():
            if line and not line.startswith("#"):
                key, _, value = line.partition("=")
                found.setdefault(key, []).append(value)
    return found
