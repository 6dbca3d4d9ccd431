"""docs/how-to/connect-a-platform.md: what it shows of a command is what the command prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.channels.slack.setup import events, scopes
from sayso.ops.cli.main import main
from sayso.testing.platforms.fake_platforms import SLACK_CONFIG_TOKEN, FakePlatforms
from tests.config.fake_bots import ENVIRON, written
from tests.docs.pages import part

PAGE = part("connect-a-platform.md")
SHOWN = re.findall(r"```console\n\$ sayso (.*?)\n(.*?)```", PAGE, re.DOTALL)
NAMES = {"wa": "shop-wa", "tg": "ops-tg", "sl": "desk"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The configuration that the page speaks of, at the fakes."""
    for name, value in {**ENVIRON, "SLACK_CONFIG_TOKEN": SLACK_CONFIG_TOKEN}.items():
        monkeypatch.setenv(name, value)
    with FakePlatforms() as platforms:
        file = written(tmp_path, platforms)
        text = file.read_text()
        for short, name in NAMES.items():
            text = text.replace(f"  {short}:", f"  {name}:")
        file.write_text(text)
        yield file


def test_every_block_is_what_its_command_prints(config: Path) -> None:
    """In the order of the page, on one bot."""
    assert len(SHOWN) == 6
    for command, output in SHOWN:
        assert (
            CliRunner().invoke(main, [*command.split(), "--config", str(config)]).output == output
        )


def test_what_slack_needs_stands_where_an_app_is_made_by_hand() -> None:
    """The page names each scope and each event, and no other."""
    [by_hand] = [output for command, output in SHOWN if command == "channel connect desk"]
    named = [
        re.findall(f"{what}: (.*)", by_hand)[0].split() for what in ("bot scopes", "bot events")
    ]
    assert [set(words) for words in named] == [set(scopes("agent")), set(events("agent"))]


def test_every_option_of_the_page_is_one() -> None:
    """And each has a line."""
    for command, options in {
        "channel connect": ("--drop-pending", "--max-connections"),
        "channel recover": ("--since", "--dry-run"),
        "channel purge-media": ("--older", "--back"),
        "channel manifest": ("--name", "--command", "--view", "--validate", "--create", "--update"),
        "doctor": ("--data", "--json", "--model"),
    }.items():
        text = CliRunner().invoke(main, [*command.split(), "--help"]).output
        assert [option for option in options if option not in text or option not in PAGE] == []
