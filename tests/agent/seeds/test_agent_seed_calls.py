"""The seed's page about the agent, run here as documented: parallel calls, terminal tools and approvals."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, ToolPolicy, tool
from tests.agent.listening import SEARCH, Heard, every_door, fails, search

POLICY = ToolPolicy(allow=["search"], review=["send_*"], deny=["delete_*"])


@tool(terminal=True)
def present_question(question_id: int) -> str:
    """Present a question card to the student."""
    return json.dumps({"action": "present_question", "id": question_id})


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


QUESTION = ToolCall("present_question", {"question_id": 7}, "q1")
CARD = '{"action": "present_question", "id": 7}'


def rendezvous():
    """Return three tools that finish only when all of them run at the same time."""
    gate = threading.Barrier(3, timeout=20)

    def named(name):
        @tool(name=name)
        def meet() -> str:
            """Wait for the others."""
            gate.wait()
            return f"{name} was there"

        return meet

    return [named(name) for name in ("weather", "stock", "news")]


@every_door
def test_calls_of_one_answer_run_in_parallel(door):
    """Three tools wait for each other, so sequential calls would never finish."""
    tools = rendezvous()
    calls = [ToolCall(each.name, {}, each.name) for each in tools]
    result = door(Agent(tools, ScriptedProvider([calls, "done"])), "go")
    assert [message.content for message in result.messages[2:5]] == [
        "weather was there", "stock was there", "news was there",
    ]  # fmt: skip


def test_results_have_the_order_of_the_calls():
    """Guarantee 1: the second call finishes before the first."""
    second_is_done = asyncio.Event()

    @tool
    async def slow() -> str:
        """Wait for the other tool."""
        await second_is_done.wait()
        return "slow"

    @tool
    async def quick() -> str:
        """Let the other tool continue."""
        second_is_done.set()
        return "quick"

    provider = ScriptedProvider([[ToolCall("slow", {}, "1"), ToolCall("quick", {}, "2")], "done"])
    result = Agent([slow, quick], provider).run("go")
    assert [message.content for message in result.messages[2:4]] == ["slow", "quick"]


def test_failing_call_does_not_affect_the_others():
    """Guarantees 2 and 3: observers receive the start and the end or error of every call."""
    heard = Heard()
    calls = [ToolCall("fails", {"query": "x"}, "1"), ToolCall("search", {"query": "y"}, "2")]
    agent = Agent(
        [fails, search], ScriptedProvider([calls, "done"]), AgentConfig(observers=[heard])
    )
    assert agent.run("go").messages[3].content == "3 tutorials on y"
    assert [args[0] for args in heard.of("tool_start")] == ["1", "2"]
    assert [args[0] for args in heard.of("tool_error")] == ["1"]
    assert [args[0] for args in heard.of("tool_end")] == ["2"]


def test_calls_run_sequentially_if_configured():
    """The setting is `parallel_tool_execution=False`."""
    heard = Heard()
    calls = [ToolCall("search", {"query": "x"}, "1"), ToolCall("search", {"query": "y"}, "2")]
    config = AgentConfig(parallel_tool_execution=False, observers=[heard])
    Agent([search], ScriptedProvider([calls, "done"]), config).run("go")
    assert [name for name in heard.names if name.startswith("tool")] == [
        "tool_start",
        "tool_end",
    ] * 2


def test_single_call_runs_in_the_callers_thread():
    """Guarantee 4: a single call has no threading overhead."""

    @tool
    def where() -> str:
        """Return the name of the thread."""
        return threading.current_thread().name

    result = Agent([where], ScriptedProvider([ToolCall("where"), "done"])).run("go")
    assert result.messages[2].content == threading.current_thread().name


@every_door
def test_terminal_tool_ends_the_run_with_its_result(door):
    """Static declaration: the model is not called again."""
    provider = ScriptedProvider([QUESTION])
    result = door(Agent([present_question], provider), "ask me")
    assert (result.content, result.stop_reason, len(provider.requests)) == (CARD, "terminal", 1)


@every_door
def test_stop_condition_ends_the_run_with_the_result(door):
    """Dynamic condition: it receives the tool's name and result."""
    config = AgentConfig(
        stop_condition=lambda tool_name, result: tool_name == "search" and "Python" in result
    )
    result = door(
        Agent([search], ScriptedProvider([ToolCall("search", {"query": "Go"}), SEARCH]), config),
        "go",
    )
    assert (result.content, result.iterations) == ("3 tutorials on Python", 2)


@every_door
def test_terminal_tool_ends_the_run_beside_others(door):
    """In parallel execution the other calls finish too."""
    result = door(Agent([search, present_question], ScriptedProvider([[SEARCH, QUESTION]])), "go")
    assert (result.content, len(result.tool_calls)) == (CARD, 2)


@pytest.mark.parametrize(
    ("name", "confirm", "told"),
    [
        ("search", None, "3 tutorials on a"),
        ("send_mail", lambda tool_name, tool_args, reason: True, "sent to a"),
        ("send_mail", lambda tool_name, tool_args, reason: False, "rejected"),
        ("send_mail", None, "needs an approval"),
        ("delete_all", lambda tool_name, tool_args, reason: True, "denied"),
    ],
)
def test_policy_decisions_have_the_effects_of_the_page(name, confirm, told):
    """The table has allow, review with each answer and without a confirm function, and deny."""

    @tool
    def delete_all(to: str) -> str:
        """Delete."""
        return "deleted"

    call = ToolCall(name, {"query" if name == "search" else "to": "a"})
    config = AgentConfig(tool_policy=POLICY, confirm_action=confirm)
    provider = ScriptedProvider([call, "done"])
    assert Agent([search, send_mail, delete_all], provider, config).run("go").content == "done"
    assert told in provider.requests[1].messages[-1].content


def test_confirm_action_receives_tool_arguments_and_reason():
    """`confirm_action` may be a coroutine, as on the page."""
    asked = []

    async def confirm(tool_name: str, tool_args: dict, reason: str) -> bool:
        asked.append((tool_name, tool_args, reason))
        return True

    config = AgentConfig(tool_policy=POLICY, confirm_action=confirm, approval_timeout=60)
    Agent(
        [send_mail], ScriptedProvider([ToolCall("send_mail", {"to": "Ana"}), "done"]), config
    ).run("go")
    ((name, args, reason),) = asked
    assert (name, args, "send_*" in reason) == ("send_mail", {"to": "Ana"}, True)
