"""An installed platform of another distribution that does not load: named where it is used, no harm elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sayso.channels import registry
from sayso.ops.cli import channel as channel_commands
from sayso.ops.cli.main import main

PROBLEM = "platform 'carrier_pigeon' of broken (no_such_module:PLATFORM) does not load"


@pytest.fixture(autouse=True)
def broken_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution whose platform needs a module that is missing."""
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = f"[{registry.GROUP}]\ncarrier_pigeon = no_such_module:PLATFORM\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    caches = (registry._entry_points, channel_commands._commands_of_platforms)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def run(file: Path, yaml: str, *args: str) -> Result:
    """Run a command on a configuration."""
    file.write_text(yaml)
    return CliRunner().invoke(main, [*args, "-c", str(file)], env={"REDIS_URL": ""})


def test_channel_on_a_broken_platform_is_a_problem_of_its_line(tmp_path: Path):
    """The operator learns which distribution to reinstall, without a traceback."""
    file = tmp_path / "sayso.yaml"
    result = run(file, "channels:\n  d: {platform: carrier_pigeon}\n", "check")
    assert f"Error: {file}:2:3: channels.d: {PROBLEM}" in result.output
    assert "reinstall or remove broken" in result.output


def test_broken_platform_leaves_the_commands_of_the_others_alone(tmp_path: Path):
    """It has no commands in the list, and standard error says why."""
    result = run(tmp_path / "sayso.yaml", "channels: {a: {platform: console}}", "channel", "--help")
    assert (result.exit_code, "  manifest " in result.stdout) == (0, True)
    assert f"Warning: {PROBLEM}" in result.stderr


def test_broken_platform_is_not_among_those_that_poll():
    """`sayso poll` names the others, for a bot where no channel polls."""
    assert registry.polled_platforms() == ["telegram"]
