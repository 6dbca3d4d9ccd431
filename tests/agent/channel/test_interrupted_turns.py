"""Interrupted turns: the history tells what was asked, what tools did, and that the turn was stopped or failed."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from sayso.agent import Agent, AgentConfig, ChannelAgent, Role, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.turn_journal import UNDELIVERED
from sayso.agent.decisions import UNKNOWN_NOTE
from sayso.agent.run.state import NOT_RUN
from sayso.agent.run.unknown_outcomes import UNKNOWN_OUTCOME
from sayso.agent.tools import remind, time_of_turn
from sayso.channels.types import Media
from tests.clocks import StoppedClock
from tests.contracts.rigs import CHAT, ENGLISH, turn
from tests.workers.fakes import Bot


class Hanging:
    """A whole bot with a tool that answers, one that hangs, and one that sets a reminder."""

    def __init__(self, make_bot, *lines) -> None:
        self.bot: Bot = make_bot()
        self.begun = asyncio.Event()

        @tool(read_only=True)
        def look(what: str) -> str:
            """Look something up."""
            return f"{what} is 970 EUR"

        @tool
        async def post(what: str) -> str:
            """Post something, and hang."""
            self.begun.set()
            await asyncio.Event().wait()
            return what

        @tool
        def note(what: str) -> str:
            """Set a reminder."""
            remind(what, time_of_turn() + 3600)
            return "Reminder set."

        @tool(requires_approval=True, preview="Delete {what}")
        def delete(what: str) -> str:
            """Delete a thing."""
            return f"deleted {what}"

        self.model = ScriptedProvider(lines)
        config = AgentConfig(max_retries=0, parallel_tool_execution=False)
        agent = Agent([look, post, note, delete], self.model, config)
        rig = self.bot.rig
        self.bot.processor.turns.agents["chat"] = self.bot.agent = ChannelAgent(
            agent, rig.store, journals=rig.journals
        )

    def stopped_during_the_call(self, text: str, **fields) -> None:
        """Say this, and /stop once the tool hangs."""
        self.bot.rig.accept(replace(turn(text), **fields))

        async def scene() -> None:
            working = asyncio.create_task(self.bot.processor.run(CHAT.id))
            await self.begun.wait()
            self.bot.hear("/stop")
            self.bot.processor.renew_now(CHAT.id)
            await working

        asyncio.run(asyncio.wait_for(scene(), 60))

    def read_later(self) -> list[tuple[str, str]]:
        """Return role and text of what the model reads in the next turn, with the names of the tools it called."""
        self.bot.say("what happened?")
        messages = self.model.requests[-1].messages[:-1]
        return [
            (m.role.value, m.content or ",".join(call.tool_name for call in m.tool_calls))
            for m in messages
        ]


def test_stopped_turn_stays_in_the_history(make_bot, caplog):
    """Each call has one result: what was done, what may have been done, and what was not begun. No error is logged."""
    calls = [
        ToolCall("look", {"what": "A"}),
        ToolCall("post", {"what": "B"}),
        ToolCall("look", {"what": "C"}),
    ]
    hanging = Hanging(make_bot, calls, "I was stopped.")
    with caplog.at_level(logging.INFO):
        hanging.stopped_during_the_call("look and post")
    assert json.loads(UNKNOWN_OUTCOME) == {"outcome": "unknown", "note": UNKNOWN_NOTE}
    assert hanging.read_later() == [
        ("user", "look and post"),
        ("assistant", "look,post,look"),
        ("tool", "A is 970 EUR"),
        ("tool", UNKNOWN_OUTCOME),
        ("tool", NOT_RUN),
        ("assistant", f"{ENGLISH.unknown('post')}\n\n{ENGLISH.stopped()}"),
    ]
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert "turn.stopped" in [record.getMessage() for record in caplog.records]


def test_turn_that_took_too_long_stays_in_the_history(make_bot):
    """The model hung after its call."""
    hanging = Hanging(make_bot, ToolCall("look", {"what": "A"}), "never", "It took too long.")
    answer = hanging.model.acomplete

    async def hang_once(**request):
        if len(hanging.model.requests) == 1:
            hanging.model.requests.append(request)
            asyncio.get_running_loop().pass_time(60.0)
            await asyncio.Event().wait()
        return await answer(**request)

    hanging.model.acomplete = hang_once
    turns = replace(hanging.bot.processor.turns, turn_timeout=60.0)
    hanging.bot.processor = replace(hanging.bot.processor, turns=turns)
    hanging.bot.hear("look")
    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        runner.run(hanging.bot.processor.run(CHAT.id))
    assert hanging.read_later() == [
        ("user", "look"), ("assistant", "look"), ("tool", "A is 970 EUR"), ("assistant", ENGLISH.too_long()),
    ]  # fmt: skip


def test_turn_that_failed_stays_in_the_history(make_bot):
    """A bug of the platform came after the call."""
    hanging = Hanging(make_bot, ToolCall("look", {"what": "A"}), "done", "It failed.")
    reply = hanging.bot.agent._replies.reply

    async def broken(*_: object):
        hanging.bot.agent._replies.reply = reply
        raise RuntimeError("a bug")

    hanging.bot.agent._replies.reply = broken
    assert hanging.bot.say("look") == ENGLISH.broken()
    assert hanging.read_later()[1:] == [
        ("assistant", "look"),
        ("tool", "A is 970 EUR"),
        ("assistant", ENGLISH.broken()),
    ]


def test_turn_that_was_stopped_before_it_began_stays_in_the_history(make_bot):
    """No tool was called, but the message was read. The /stop itself is no part of the conversation."""
    hanging = Hanging(make_bot, "You asked for A.")
    hanging.bot.hear("look up A")
    hanging.bot.say("/stop")
    assert hanging.read_later() == [("user", "look up A"), ("assistant", ENGLISH.stopped())]


def test_command_that_was_stopped_is_no_part_of_the_conversation(make_bot):
    """As no command is that was answered."""
    hanging = Hanging(make_bot, "Nothing.")
    hanging.bot.hear("/tools")
    hanging.bot.say("/stop")
    assert hanging.read_later() == []


def test_question_that_a_stop_drops_is_dropped_in_the_history(make_bot):
    """The next model call does not read that it waits."""
    hanging = Hanging(make_bot, ToolCall("delete", {"what": "A"}), "It was dropped.")
    hanging.bot.say("delete A")
    assert hanging.bot.say("/stop") == ENGLISH.dropped(
        "Delete A"
    )  # not that there is nothing to stop
    *_, (_, result) = hanging.read_later()
    assert json.loads(result)["outcome"] == "replaced"


def test_proposal_of_a_stopped_turn_was_never_asked(make_bot):
    """Its question was not sent, so it reads that it was dropped."""
    calls = [ToolCall("delete", {"what": "A"}), ToolCall("post", {"what": "B"})]
    hanging = Hanging(make_bot, calls, "It was dropped.")
    hanging.stopped_during_the_call("delete A and post B")
    results = [text for role, text in hanging.read_later() if role == "tool"]
    assert json.loads(results[0])["outcome"] == "replaced"
    assert hanging.bot.rig.repository.load_open(CHAT.id, hanging.bot.scope) is None


def test_timer_of_a_stopped_turn_was_not_set(make_bot):
    """Its result says so, although the tool had promised it."""
    calls = [ToolCall("note", {"what": "call Bob"}), ToolCall("post", {"what": "B"})]
    hanging = Hanging(make_bot, calls, "No reminder was set.")
    hanging.stopped_during_the_call("remind me, and post B")
    results = [text for role, text in hanging.read_later() if role == "tool"]
    assert results[0] == f"{UNDELIVERED}\nReminder set."


def test_file_of_a_stopped_turn_can_be_read_later(make_bot):
    """It was sent with the message."""
    hanging = Hanging(make_bot, ToolCall("post", {"what": "B"}), "I see it.")
    photo = Media("ab/cd.png", "image/png", "photo.png", size=5, stored=True)
    hanging.stopped_during_the_call("post this", media=(photo,))
    hanging.read_later()
    assert hanging.model.requests[-1].messages[0].media == (photo,)


def test_turn_with_an_unreadable_history_is_answered(make_bot):
    """It fails each turn, and the person is told."""
    hanging = Hanging(make_bot, "hello")
    hanging.bot.say("hello")
    load = hanging.bot.rig.mailbox.lease

    async def broken(*args: object):
        lease, queued = await load(*args)
        return lease, replace(queued, history="{}")

    hanging.bot.rig.mailbox.lease = broken
    assert hanging.bot.say("and now?") == ENGLISH.broken()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()])
def test_message_without_a_worker_that_failed_stays_in_the_history(error):
    """The caller gets the error; the next message finds what a tool did."""
    effects = []

    @tool
    def pay(euros: int) -> str:
        """Pay."""
        effects.append(euros)
        return f"paid {euros}"

    model = ScriptedProvider([ToolCall("pay", {"euros": 5}), "done", "You paid."])
    bot = ChannelAgent(Agent([pay], model, AgentConfig(max_retries=0)))
    reply = bot._replies.reply

    async def broken(*_: object, **__: object):
        bot._replies.reply = reply
        raise error

    bot._replies.reply = broken
    with pytest.raises(type(error)):
        asyncio.run(bot.aask_channel("ana", "pay 5"))
    bot.ask_channel("ana", "did you pay?")
    roles = [message.role for message in model.requests[-1].messages]
    assert roles.count(Role.USER) == 2
    assert [
        message.content for message in model.requests[-1].messages if message.role is Role.TOOL
    ] == ["paid 5"]
