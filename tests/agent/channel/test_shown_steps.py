"""How people see the tool calls of a turn: a call that ran no code has not failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from sayso.agent import (
    Agent,
    AgentConfig,
    NotFound,
    ScriptedProvider,
    ToolCall,
    ToolError,
    ToolPolicy,
    tool,
)
from sayso.agent.channel.channel_agent import ChannelAgent
from tests.agent.run.test_turn_journal import Steps
from tests.contracts.rigs import Rig, make_processor, make_sender
from tests.workers.fakes import Bot, FakeChannel


def preview_payment(to: str) -> str | NotFound:
    """Refuse in three ways, or ask."""
    if to == "cy":
        return NotFound("guest", to)
    if to == "di":
        raise ToolError("di has left.")
    if to == "ed":
        raise RuntimeError("broken")
    return f"Pay {to}"


@tool(requires_approval=True, preview=preview_payment)
def pay(to: str) -> str:
    """Pay a person."""
    if to == "bo":
        return NotFound("account", to)  # type: ignore[return-value]
    return f"Paid {to}."


def with_sign(text: str) -> str:
    """Return the text with one more sign, so that reading it again changes it again."""
    return f"{text}!"


@tool(requires_approval=True)
def shout(text: Annotated[str, AfterValidator(with_sign)]) -> str:
    """Shout a text that no record can hold."""
    return text


@tool
def look(what: str = "") -> str:
    """Look."""
    if what:
        raise ToolError("too dark")
    return "Sunny."


@tool
def wipe() -> str:
    """Wipe."""
    return ""


class WatchedBot(Bot):
    """A bot whose turns are told to a listener; `states` are those of the calls that ended."""

    def __init__(self, *calls: ToolCall) -> None:
        self.rig = Rig()
        self.channel = FakeChannel()
        self.steps = Steps()
        config = AgentConfig(tool_policy=ToolPolicy(allow=["look"], deny=["wipe"]))
        agent = Agent([pay, shout, look, wipe], ScriptedProvider([list(calls), "There."]), config)
        self.agent = ChannelAgent(agent, self.rig.store, journals=self.rig.journals)
        channels = {"chat": self.channel}
        sender = make_sender(self.rig.outbox, channels)
        self.processor = make_processor(self.rig.mailbox, sender, channels, {"chat": self.agent})
        answer = self.agent.answer

        async def answer_watched(queued: Any, lease: Any, *_: Any, **__: Any) -> Any:
            return await answer(queued, lease, None, self.steps.note)

        self.agent.answer = answer_watched

    @property
    def states(self) -> list[Any]:
        """Return the states in the order in which the calls ended."""
        return [state for _, _, state in self.steps.events if state != "running"]


STATES = {
    "returned by a preview": (ToolCall("pay", {"to": "cy"}), "not_run"),
    "raised by a preview": (ToolCall("pay", {"to": "di"}), "not_run"),
    "broken preview": (ToolCall("pay", {"to": "ed"}), "failed"),
    "asks": (ToolCall("pay", {"to": "ana"}), "waits"),
    "denied": (ToolCall("wipe"), "not_run"),
    "unknown": (ToolCall("fly"), "not_run"),
    "wrong arguments": (ToolCall("pay", {"whom": "ana"}), "not_run"),
    "arguments that no record can hold": (ToolCall("shout", {"text": "hi"}), "not_run"),
    "raised": (ToolCall("look", {"what": "moon"}), "failed"),
    "done": (ToolCall("look"), "done"),
}


@pytest.mark.parametrize("how", STATES)
def test_only_a_call_that_ran_can_have_failed(how: str):
    """A refusal is not shown as a failure."""
    call, state = STATES[how]
    bot = WatchedBot(call)
    bot.say("go")
    assert bot.states == [state]


def test_each_call_of_an_answer_has_its_own_state():
    """Beside a question of the same answer, too."""
    calls = [STATES[how][0] for how in ("returned by a preview", "asks", "done", "denied")]
    bot = WatchedBot(*(replace(each, id=f"c{number}") for number, each in enumerate(calls)))
    bot.say("go")
    assert sorted(bot.states) == ["done", "not_run", "not_run", "waits"]


@pytest.mark.parametrize(("to", "state"), [("ana", "done"), ("bo", "failed")])
def test_yes_shows_how_its_action_ended(to: str, state: str):
    """After a yes, a tool that found nothing has failed."""
    bot = WatchedBot(ToolCall("pay", {"to": to}))
    bot.say("go")
    bot.say("yes")
    assert bot.states == ["waits", state]


def test_yes_that_comes_too_late_shows_no_call():
    """Nothing ran."""
    bot = WatchedBot(ToolCall("pay", {"to": "ana"}))
    bot.say("go")
    bot.rig.pass_time(100_000)
    bot.say("yes")
    assert [state for state in bot.states if state] == ["waits"]
