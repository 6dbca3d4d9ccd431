"""From YAML to the effect: a tool of an MCP server is previewed, and runs once, after the yes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sayso.agent import Agent, ChannelAgent, ScriptedProvider, ToolCall
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.tools import OpenTools, open_tools

TINY = Path(__file__).parents[2] / "agent" / "toolsets" / "tiny_mcp.py"

Open = Callable[..., OpenTools]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the tiny server as the configuration does, with more keys of its section."""
    made: list[OpenTools] = []

    def start(keys: str = "") -> OpenTools:
        (tmp_path / "sayso.yaml").write_text(
            "tools:\n  - mcp:\n"
            f"      command: ['{sys.executable}', '{TINY}']\n"
            "      env: {NOTES: '${NOTES}'}\n"
            f"    namespace: box\n{keys}"
            "channels: {a: {platform: console}}\n"
        )
        settings = load_settings(tmp_path / "sayso.yaml", {"NOTES": str(tmp_path / "notes")})
        made.append(open_tools(settings, remote=True, seconds=120))
        return made[-1]

    yield start
    for each in made:
        each.close()


def bot(tools: OpenTools, *calls: ToolCall) -> ChannelAgent:
    """A channel whose model makes these calls, one a turn."""
    return ChannelAgent(Agent(tools.select(None), ScriptedProvider([[call] for call in calls])))


def lines(tmp_path: Path) -> list[str]:
    """What the server did."""
    return [line for line in (tmp_path / "notes").read_text().splitlines() if not line.startswith("begins")]


WIPE = ToolCall("box-wipe", {"name": "disk", "count": 2}, "1")


@pytest.mark.parametrize("confirm", ["", "    confirm: always\n", "    confirm: [wipe]\n"])
def test_destructive_tool_runs_once_after_the_yes(opened: Open, tmp_path: Path, confirm: str):
    """Its server calls it destructive, by saying nothing; the user sees name and arguments first."""
    ask = bot(opened(confirm), WIPE).ask_channel
    question = ask("ana", "wipe the disk").content
    assert "disk" in question
    assert lines(tmp_path) == []
    assert "wiped disk" in ask("ana", "yes").content
    ask("ana", "yes")
    assert lines(tmp_path) == ["wiped disk 2"]


def test_server_that_dies_after_the_yes_leaves_the_outcome_unknown(opened: Open, tmp_path: Path):
    """Nobody says that it failed: it may have taken effect. Nobody does it again."""
    ask = bot(opened("    confirm: [die]\n"), ToolCall("box-die", {}, "1")).ask_channel
    ask("ana", "die")
    assert "I cannot tell whether it finished, and I will not repeat it" in ask("ana", "yes").content
    ask("ana", "yes")
    assert lines(tmp_path) == ["dies"]


def test_no_runs_nothing(opened: Open, tmp_path: Path):
    """The server hears nothing of it."""
    ask = bot(opened("    confirm: always\n"), WIPE).ask_channel
    assert ask("ana", "wipe the disk").content.startswith("box-wipe: name = disk, count = 2\n")
    ask("ana", "no")
    assert lines(tmp_path) == []


def test_operator_may_trust_a_server(opened: Open, tmp_path: Path):
    """`confirm: never` leaves the policy's word, and there is none here."""
    bot(opened("    confirm: never\n"), WIPE).ask_channel("ana", "wipe the disk")
    assert lines(tmp_path) == ["wiped disk 2"]


def test_arguments_of_the_model_are_checked_before_the_user_is_asked(opened: Open, tmp_path: Path):
    """By the server's own schema."""
    model = ScriptedProvider([[ToolCall("box-wipe", {"nam": "disk"}, "1")], "Which one?"])
    agent = ChannelAgent(Agent(opened("    confirm: always\n").select(None), model))
    assert agent.ask_channel("ana", "wipe the disk").content == "Which one?"
    assert "'nam' -> Did you mean 'name'?" in model.requests[-1].messages[-1].content
    agent.ask_channel("ana", "yes")
    assert lines(tmp_path) == []


def test_preview_of_another_definition_runs_nothing(opened: Open, tmp_path: Path):
    """Between the question and the yes the server has made another tool of it."""
    tools = opened("    confirm: [wipe]\n")
    ask = bot(tools, WIPE).ask_channel
    assert "disk" in ask("ana", "wipe the disk").content
    before = tools.registry.get("box-wipe").version
    asyncio.run(tools.registry.get("box-swap").ainvoke({}))
    until(lambda: tools.registry.get("box-wipe").version != before)
    ask("ana", "yes")
    assert lines(tmp_path) == []


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
