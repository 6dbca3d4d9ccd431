"""From YAML to the effect: an MCP server's tool is previewed, and runs once after the yes."""

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
    """Yield a function that opens the small test server as the configuration does, with more keys of its section."""
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
    """Return a channel whose model makes these calls, one in each turn."""
    return ChannelAgent(Agent(tools.select(None), ScriptedProvider([[call] for call in calls])))


def lines(tmp_path: Path) -> list[str]:
    """Return the actions that the server recorded."""
    return [
        line
        for line in (tmp_path / "notes").read_text().splitlines()
        if not line.startswith("begins")
    ]


WIPE = ToolCall("box-wipe", {"name": "disk", "count": 2}, "1")


@pytest.mark.parametrize("confirm", ["", "    confirm: always\n", "    confirm: [wipe]\n"])
def test_destructive_tool_runs_once_after_the_yes(opened: Open, tmp_path: Path, confirm: str):
    """A tool without annotations counts as destructive; the user sees its name and arguments first."""
    ask = bot(opened(confirm), WIPE).ask_channel
    question = ask("ana", "wipe the disk").content
    assert "disk" in question
    assert lines(tmp_path) == []
    assert "wiped disk" in ask("ana", "yes").content
    ask("ana", "yes")
    assert lines(tmp_path) == ["wiped disk 2"]


def test_server_that_dies_after_the_yes_leaves_the_outcome_unknown(opened: Open, tmp_path: Path):
    """The reply reports no failure, because the effect may have happened, and the call is not repeated."""
    ask = bot(opened("    confirm: [die]\n"), ToolCall("box-die", {}, "1")).ask_channel
    ask("ana", "die")
    assert (
        "I cannot tell whether it finished, and I will not repeat it" in ask("ana", "yes").content
    )
    ask("ana", "yes")
    assert lines(tmp_path) == ["dies"]


def test_refused_action_is_not_sent_to_the_server(opened: Open, tmp_path: Path):
    """The server gets no call."""
    ask = bot(opened("    confirm: always\n"), WIPE).ask_channel
    assert ask("ana", "wipe the disk").content.startswith("box-wipe: name = disk, count = 2\n")
    ask("ana", "no")
    assert lines(tmp_path) == []


def test_operator_may_trust_a_server(opened: Open, tmp_path: Path):
    """`confirm: never` leaves the decision to the policy, and this bot has none."""
    bot(opened("    confirm: never\n"), WIPE).ask_channel("ana", "wipe the disk")
    assert lines(tmp_path) == ["wiped disk 2"]


def test_arguments_of_the_model_are_checked_before_the_user_is_asked(opened: Open, tmp_path: Path):
    """The check uses the server's own schema."""
    model = ScriptedProvider([[ToolCall("box-wipe", {"nam": "disk"}, "1")], "Which one?"])
    agent = ChannelAgent(Agent(opened("    confirm: always\n").select(None), model))
    assert agent.ask_channel("ana", "wipe the disk").content == "Which one?"
    assert "'nam' -> Did you mean 'name'?" in model.requests[-1].messages[-1].content
    agent.ask_channel("ana", "yes")
    assert lines(tmp_path) == []


def test_tool_changed_after_its_preview_does_not_run(opened: Open, tmp_path: Path):
    """Between the question and the yes, the server has changed the tool's definition."""
    tools = opened("    confirm: [wipe]\n")
    ask = bot(tools, WIPE).ask_channel
    assert "disk" in ask("ana", "wipe the disk").content
    before = tools.registry.get("box-wipe").version
    asyncio.run(tools.registry.get("box-swap").ainvoke({}))
    until(lambda: tools.registry.get("box-wipe").version != before)
    ask("ana", "yes")
    assert lines(tmp_path) == []


def until(is_so: Callable[[], bool]) -> None:
    """Wait for the work of another thread."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
