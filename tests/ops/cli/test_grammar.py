"""The grammar of the command line: one spelling for every command, and exit codes that a script can rely on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sayso.config.settings.loader import DEMO
from sayso.ops.cli.command import log_warnings_except_findings
from sayso.ops.cli.main import main

ROOT = Path(__file__).parents[3]


def run(*args: str | Path) -> Result:
    """Run a command on the demo's configuration where no other is given."""
    return CliRunner().invoke(
        main, [*map(str, args)], env={"SAYSO_CONFIG": str(DEMO), "REDIS_URL": ""}
    )


def commands(group: click.Group = main, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of every command and group."""
    yield path
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


ALL = [path for path in commands() if path[:1] != ("shards",)]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_help_has_an_example_and_the_common_options(path: tuple[str, ...]):
    """A user need not guess how a command is written."""
    text = run(*path, "--help").output
    assert "\nExample" in text
    assert f"  {' '.join(['sayso', *path[:1]])}" in text
    assert [
        option
        for option in ("-c, --config", "--data", "--json", "--no-color")
        if option not in text
    ] == []


@pytest.mark.parametrize("place", [0, 1, 3])
def test_common_options_stand_before_or_after_any_command(place: int, tmp_path: Path):
    """They may stand between a group and its command too."""
    args: list[str | Path] = ["audit", "show"]
    args[min(place, 2) : min(place, 2)] = ["--data", tmp_path / "none", "--json"]
    result = run(*args)
    assert (result.exit_code, f"no ledger in {tmp_path / 'none'}" in result.output) == (3, True)


def test_the_last_of_two_options_counts(tmp_path: Path):
    """A command's own option wins over the one before it."""
    result = run("--config", tmp_path / "none.yaml", "check", "-c", DEMO, "--json")
    assert (result.exit_code, json.loads(result.output)["file"]) == (0, str(DEMO))


def test_exit_codes_tell_a_finding_from_wrong_usage_from_what_cannot_run(tmp_path: Path):
    """0 is done, 1 a finding or a denial, 2 wrong usage, 3 cannot run."""
    wrong = tmp_path / "sayso.yaml"
    wrong.write_text("channels: {web: {platform: console, nonsense: 1}}")
    codes = [
        run(*args).exit_code
        for args in (
            ["check"],
            ["check", "-c", wrong],
            ["chat", "nowhere"],
            ["check", "-c", tmp_path / "none.yaml"],
        )
    ]
    assert codes == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "old", [["webhook", "set", "wa"], ["slack", "manifest"], ["channel", "forget-media", "wa"]]
)
def test_old_invocations_are_usage_errors(old: list[str]):
    """There are no aliases."""
    assert run(*old).exit_code == 2


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("chekc", "check"),
        ("--json upp", "up"),
        ("redis stauts", "status"),
        ("check --jsn", "--json"),
        ("zzz", ""),
    ],
)
def test_misspelled_command_or_option_is_told_what_was_meant(mistyped: str, meant: str):
    """It is wrong usage, and nothing runs."""
    result = run(*mistyped.split())
    assert (result.exit_code, f"id you mean '{meant}'?" in result.output) == (2, bool(meant))


def test_check_of_a_file_without_its_option_names_the_option():
    """The file is not positional."""
    result = run("check", "sayso.yaml")
    assert (result.exit_code, "sayso check -c sayso.yaml" in result.output) == (2, True)


def test_check_fails_where_a_source_of_tools_cannot_be_reached(tmp_path: Path):
    """A deployment would run without its tools.

    With --offline the rest is checked, and the source is named.
    """
    file = tmp_path / "sayso.yaml"
    source = "{mcp: {command: [no-such-command]}, namespace: box, exclude: [wipe]}"
    file.write_text(
        f'tools: [{source}]\nchannels: {{web: {{platform: console, tools: ["box-*"]}}}}'
    )
    online = run("check", "-c", file)
    offline = run("check", "-c", file, "--offline")
    assert (online.exit_code, f"{file}: ok" in online.output) == (1, False)
    assert f"{file}:1:9: tools: 'box' does not answer yet: " in online.output
    assert (offline.exit_code, offline.output.splitlines()[-2:]) == (
        0,
        ["tools of 'box': not asked", f"{file}: ok"],
    )
    assert len(json.loads(run("check", "--json", "-c", file).stdout)["problems"]) == 1


@pytest.mark.parametrize("command", [("check",), ("explain", "web", "box-sendXml")])
def test_tool_that_is_left_out_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    """A person who looks for an operation by its name finds the reason once, and no bare names of log events."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as outside of pytest
    uploads = {
        "operationId": "sendXml",
        "requestBody": {"content": {"application/xml": {"schema": {"type": "object"}}}},
    }
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://a.test"}],
        "paths": {"/a": {"put": uploads, "get": {}}},
    }
    (tmp_path / "api.json").write_text(json.dumps(document))
    file = tmp_path / "sayso.yaml"
    file.write_text(
        "tools: [{openapi: api.json, namespace: box}]\nchannels: {web: {platform: console}}"
    )
    result = run(command[0], "-c", file, "--data", tmp_path / "data", *command[1:])
    assert result.exit_code == (0 if command == ("check",) else 2)
    assert (
        result.output.count(
            "'sendXml' of 'box' is left out: PUT /a: its body is application/xml: JSON, forms"
        )
        == 1
    )
    assert "openapi.operation" not in result.output


def test_command_that_checks_logs_what_it_does_not_print_itself(capsys: pytest.CaptureFixture[str]):
    """With its facts, level and time."""
    with log_warnings_except_findings():
        logging.getLogger("sayso.agent").warning(
            "mcp.too_many_tools", extra={"server": "box", "tools": 9}
        )
    assert (
        capsys.readouterr().err.rstrip().endswith("WARNING mcp.too_many_tools server=box tools=9")
    )


def test_problems_of_a_configuration_are_json_too(tmp_path: Path):
    """A program reads them with their lines."""
    file = tmp_path / "sayso.yaml"
    file.write_text("channels: {web: {platform: console, nonsense: 1}}")
    problems = json.loads(run("check", "--json", "-c", file).output)["problems"]
    assert [
        problem.startswith(f"{file}:1:37: channels.web.nonsense: unknown key")
        for problem in problems
    ] == [True]


def test_a_command_of_an_entry_point_that_cannot_be_loaded_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    """Running it reports the error."""
    broken = EntryPoint("broken", "no_such_module:command", "sayso.commands")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: (broken,))
    assert "broken" in run("--help").output
    result = run("broken")
    assert (result.exit_code, "no_such_module:command cannot be loaded" in result.output) == (
        3,
        True,
    )
