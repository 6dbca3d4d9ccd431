"""Previews that refuse.

Nothing is asked, nothing is stored, and the reason is in the tool's own words.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    NotFound,
    OfflineProvider,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolError,
    tool,
)
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.tools.errors import EffectUnknownError, ToolExecutionError, ToolParameterError
from sayso.agent.tools.tool import MAX_REFUSAL_CHARS
from sayso.pending import InMemoryPendingStore

GUESTS = ["Ada", "Bo"]


def cancelling(ran: list[str], refuse: Callable[[str], Any]) -> Tool:
    """Return a tool that cancels the stay of a guest.

    What `refuse` returns or raises replaces a missing guest.
    """

    def preview(guest: str) -> Any:
        if guest not in GUESTS:
            return refuse(guest)
        return f"Cancel the stay of {guest}"

    @tool(requires_approval=True, preview=preview)
    def cancel_stay(guest: str) -> str:
        """Cancel the stay of a guest."""
        ran.append(guest)
        return f"{guest} is cancelled."

    return cancel_stay


def not_found(guest: str) -> NotFound:
    """Return that there is no such guest."""
    return NotFound("guest", guest)


def has_left(guest: str) -> str:
    """Refuse in words."""
    raise ToolError(f"{guest} has left already.")


def no_answer(guest: str) -> str:
    """Refuse as a helper does whose server was silent."""
    raise EffectUnknownError("the hotel's server gave no answer")


def call(guest: str, number: int = 1) -> ToolCall:
    """Return the call of a model."""
    return ToolCall("cancel_stay", {"guest": guest}, f"c{number}")


REFUSALS = {
    "returned": (not_found, 'I found no guest for "Cy".'),
    "raised": (has_left, "Cy has left already."),
    "raised by a helper": (no_answer, "the hotel's server gave no answer"),
}


@pytest.mark.parametrize("how", REFUSALS)
def test_preview_that_refuses_asks_nothing_and_says_why(how: str):
    """The person reads the tool's words, no question is open, and a yes finds nothing to run."""
    refuse, words = REFUSALS[how]
    ran: list[str] = []
    store = InMemoryPendingStore()
    bot = ChannelAgent(Agent([cancelling(ran, refuse)], OfflineProvider()), store)
    reply = bot.ask_channel("ana", "/cancel_stay guest=Cy")
    assert (reply.content, reply.stop_reason) == (words, "answer")
    assert store.get("ana") is None
    bot.ask_channel("ana", "yes")
    assert ran == []


def test_model_reads_why_a_preview_refuses():
    """It can tell the person, or correct its call."""
    provider = ScriptedProvider([call("Cy"), "Cy is gone."])
    bot = ChannelAgent(Agent([cancelling([], has_left)], provider))
    assert bot.ask_channel("ana", "cancel Cy").content == "Cy is gone."
    assert (
        provider.requests[1].messages[-1].content
        == '{"kind": "refused", "message": "Cy has left already."}'
    )


@pytest.mark.parametrize("how", REFUSALS)
def test_refused_step_is_told_above_the_question_about_the_others(how: str):
    """The question is about the steps that can be done, and the run ends before a model could speak."""
    refuse, words = REFUSALS[how]
    ran: list[str] = []
    bot = ChannelAgent(
        Agent([cancelling(ran, refuse)], ScriptedProvider([[call("Cy"), call("Bo", 2)]]))
    )
    content = bot.ask_channel("ana", "cancel both").content
    assert content.startswith(f"{words}\n\nCancel the stay of Bo\n\n")
    bot.ask_channel("ana", "yes")
    assert ran == ["Bo"]


def test_other_errors_of_a_preview_are_private(caplog: pytest.LogCaptureFixture):
    """The model reads the type and a reference.

    The traceback is in the log under that reference.
    """

    def broken(guest: str) -> str:
        raise KeyError("password=hunter2")

    provider = ScriptedProvider([call("Cy"), "That failed."])
    bot = ChannelAgent(Agent([cancelling([], broken)], provider))
    bot.ask_channel("ana", "cancel Cy")
    read = provider.requests[1].messages[-1].content
    assert re.fullmatch(
        r"Error: cannot preview 'cancel_stay' \(KeyError\): nothing was asked \(reference \S+/c1\)",
        read,
    )
    (record,) = [each for each in caplog.records if each.msg == "tool.failed"]
    assert record.reference in read
    assert "hunter2" in str(record.exc_info[1])


def test_error_of_another_tool_inside_a_preview_is_private():
    """A ToolExecutionError quotes an exception whose text its author did not write for people."""

    def broken(guest: str) -> str:
        raise ToolExecutionError(tool_name="find_guest", error=RuntimeError("password=hunter2"))

    provider = ScriptedProvider([call("Cy"), "That failed."])
    ChannelAgent(Agent([cancelling([], broken)], provider)).ask_channel("ana", "cancel Cy")
    assert "hunter2" not in provider.requests[1].messages[-1].content


def test_arguments_that_a_preview_refuses_are_told_on_one_line():
    """A preview that calls another tool may refuse with its error: the box around that is for models."""

    def refuse(guest: str) -> str:
        raise ToolParameterError(
            tool_name="find_guest", param_name="name", issue="'name' is empty", suggestion="Ask."
        )

    bot = ChannelAgent(Agent([cancelling([], refuse)], OfflineProvider()))
    assert bot.ask_channel("ana", "/cancel_stay guest=Cy").content == "'name' is empty"


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_error_that_could_end_the_program_is_that_of_the_preview_alone(error: type[BaseException]):
    """The turn goes on, as after such an error of a tool."""

    def broken(guest: str) -> str:
        raise error("password=hunter2")

    provider = ScriptedProvider([call("Cy"), "That failed."])
    bot = ChannelAgent(Agent([cancelling([], broken)], provider))
    assert bot.ask_channel("ana", "cancel Cy").content == "That failed."
    assert f"({error.__name__}): nothing was asked" in provider.requests[1].messages[-1].content


def test_long_refusal_is_cut():
    """A server's page in an error is no message for a chat."""

    def refuse(guest: str) -> str:
        raise ToolError("x" * 100_000)

    bot = ChannelAgent(Agent([cancelling([], refuse)], OfflineProvider()))
    content = bot.ask_channel("ana", "/cancel_stay guest=Cy").content.replace("\\", "")
    assert len(content) == MAX_REFUSAL_CHARS
    assert content.endswith("x [cut, was 100000 characters]")


@pytest.mark.parametrize("how", REFUSALS)
def test_preview_that_refuses_at_the_yes_says_why(how: str, monkeypatch: pytest.MonkeyPatch):
    """The guest has left between question and yes."""
    refuse, words = REFUSALS[how]
    ran: list[str] = []
    bot = ChannelAgent(Agent([cancelling(ran, refuse)], ScriptedProvider([call("Cy")])))
    monkeypatch.setattr("tests.agent.channel.test_refusing_previews.GUESTS", ["Cy"])
    bot.ask_channel("ana", "cancel Cy")
    GUESTS.clear()
    changed = "This has changed since I asked you: Cancel the stay of Cy\nNothing was done. Please ask again."
    assert (bot.ask_channel("ana", "yes").content, ran) == (f"{changed}\n{words}", [])


@pytest.mark.parametrize("how", REFUSALS)
def test_model_reads_why_a_step_was_refused_at_the_yes(how: str, monkeypatch: pytest.MonkeyPatch):
    """The guest of the second step has left between question and yes, so no step is done."""
    refuse, words = REFUSALS[how]
    provider = ScriptedProvider([[call("Bo"), call("Cy", 2)], "Cy has left."])
    bot = ChannelAgent(Agent([cancelling([], refuse)], provider))
    monkeypatch.setattr("tests.agent.channel.test_refusing_previews.GUESTS", ["Bo", "Cy"])
    bot.ask_channel("ana", "cancel both")
    GUESTS.remove("Cy")
    bot.ask_channel("ana", "yes")
    bot.ask_channel("ana", "why?")
    first, second = [
        each.content for each in provider.requests[1].messages if each.role.value == "tool"
    ]
    changed = "This has changed since I asked you: Cancel the stay of Cy\nNothing was done. Please ask again."
    assert json.loads(second)["error"] == f"{changed}\n{words}"
    assert "error" not in json.loads(first)
    assert provider.requests[1].messages[-2].content == changed


@pytest.mark.parametrize("how", REFUSALS)
def test_code_is_not_asked_for_an_approval_that_a_preview_refuses(how: str):
    """Without a channel `confirm_action` asks: also for calls that have an effect only."""
    refuse, words = REFUSALS[how]
    ran: list[str] = []
    asked: list[dict[str, Any]] = []

    def confirm(name: str, args: dict[str, Any], reason: str) -> bool:
        asked.append(args)
        return True

    agent = Agent([cancelling(ran, refuse)], OfflineProvider(), AgentConfig(confirm_action=confirm))
    assert agent.run("/cancel_stay guest=Cy").content == words
    agent.run("/cancel_stay guest=Bo")
    assert (asked, ran) == ([{"guest": "Bo"}], ["Bo"])
