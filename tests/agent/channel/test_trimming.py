"""Trimming with summaries: one summary serves many turns, and no message leaves the history without one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ConversationMemory,
    ProviderError,
    ScriptedProvider,
    ToolCall,
    tool,
)
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.messages import Message, Role
from sayso.infra.storage.objects import LocalObjects
from sayso.pending.turns import Lease, QueuedTurn
from tests.contracts.rigs import turn

LEASE = Lease("chat:room", 1, "w1")


@tool(requires_approval=True, preview="Refund order {order}")
def refund(order: int) -> str:
    """Refund an order."""
    return f"Refund R-9 for order {order} booked."


class Model:
    """Answers with a numbered text, or proposes a refund when it is asked for one."""

    def __init__(self):
        self.asked = 0

    async def acomplete(self, **request):
        """Return the answer."""
        self.asked += 1
        last = request["messages"][-1]
        if last.role is Role.USER and last.content.startswith("refund"):
            return Message(
                Role.ASSISTANT, tool_calls=(ToolCall("refund", {"order": 17}, f"c{self.asked}"),)
            ), None
        return f"answer {self.asked}", None


def bot(summarizer, *, max_messages=20, texts=None, **config):
    """Return a bot whose summaries another model writes."""
    config |= {
        "summarize_on_trim": True,
        "summarize_provider": summarizer,
        "summarize_model": "s",
        "max_retries": 0,
    }
    memory = ConversationMemory(max_messages=max_messages)
    return ChannelAgent(Agent([refund], Model(), AgentConfig(**config), memory=memory), texts=texts)


def remembered(channel):
    """Return the texts of the only conversation."""
    (memory,) = channel._direct_turns._memories.values()
    return [message.content for message in memory.get_history()]


def test_one_summary_serves_many_turns():
    """A full memory falls to half of its limit: 40 turns cost four summaries."""
    summarizer = ScriptedProvider(["They talked."] * 40)
    channel = bot(summarizer, max_messages=24)
    for number in range(40):
        channel.ask_channel("ana", f"message {number}")
        assert len(remembered(channel)) <= 24
    assert len(summarizer.requests) == 4
    assert remembered(channel)[-1] == "answer 40"


SAYS = st.lists(
    st.sampled_from(["hello", "refund 17", "yes", "no", "maybe"]), min_size=4, max_size=30
)


@settings(max_examples=25, deadline=None)
@given(SAYS, st.integers(1, 6), st.sets(st.integers(0, 6)))
def test_no_message_is_lost(says, max_messages, failing):
    """Whatever is said, and whichever summary fails: each text is summarized or still there."""
    lines = [
        ProviderError("down") if number in failing else f"Summary {number}." for number in range(40)
    ]
    summarizer = ScriptedProvider(lines)
    channel = bot(summarizer, max_messages=max_messages)
    said = [f"{text} {number}" if text == "hello" else text for number, text in enumerate(says)]
    replies = [channel.ask_channel("ana", text).content for text in said]
    written = [
        request.messages[0].content
        for number, request in enumerate(summarizer.requests)
        if number not in failing
    ]
    everything = "\n".join([*written, *remembered(channel)])
    assert [text for text in said if text not in everything] == []
    assert [text for text in replies if text.startswith("answer") and text not in everything] == []


def test_turns_without_a_model_are_summarized_by_the_next_run():
    """A yes and its outcome go beyond the limit until then, and the summary reads what was done."""
    summarizer = ScriptedProvider(["Ana had order 17 refunded."])
    channel = bot(summarizer, max_messages=2)
    channel.ask_channel("ana", "refund 17")
    channel.ask_channel("ana", "yes")
    assert (len(summarizer.requests), len(remembered(channel))) == (0, 5)
    channel.ask_channel("ana", "thanks")
    assert remembered(channel) == ["thanks", "answer 2"]
    written = summarizer.requests[0].messages[0].content
    assert '"text": "yes"' in written
    assert '{"from": "tool refund", "outcome": "done", ' in written
    assert "Refund R-9 for order 17 booked." in written


def attempt(channel, history, **fields):
    """Answer a turn of a mailbox. Return the history that it stores."""
    queued = QueuedTurn(
        1, 0.0, "ana", replace(turn("go on", event="e1"), **fields), None, None, json.dumps(history)
    )
    change = asyncio.run(channel.answer(queued, LEASE))
    return json.loads(change.history)


def stored(*texts, max_messages=20, **limits):
    """Return a stored history with these texts of the user, each answered."""
    memory = ConversationMemory(max_messages=max_messages, **limits)
    for text in texts:
        memory.add_many([Message(Role.USER, text), Message(Role.ASSISTANT, "ok")], trims=False)
    return memory.to_dict()


@pytest.mark.parametrize("limits", [{"max_messages": 20}, {"max_messages": 2}])
def test_history_beyond_the_limits_is_summarized_by_a_worker(limits):
    """It was stored so by a turn without a model, or before the limit was lowered."""
    history = stored("I am Ana", "two", "three", **limits)
    summarizer = ScriptedProvider(["She is Ana."])
    after = attempt(bot(summarizer, max_messages=2), history)
    assert [each["content"] for each in after["messages"]] == ["go on", "answer 1"]
    assert after["summary"] == "She is Ana."
    assert "I am Ana" in summarizer.requests[0].messages[0].content


def test_long_texts_are_summarized_whole_and_removed_with_their_beginnings(tmp_path):
    """The history stores only their beginnings; the run that removes them reads their files."""
    texts = TextFiles(LocalObjects(tmp_path))
    summarizer = ScriptedProvider(["They pasted much."])
    channel = bot(summarizer, max_messages=4, texts=texts)
    history = stored(max_messages=4)
    for _ in range(3):
        history = attempt(channel, history, text="pasted " * 1000)
    assert [each["content"][:6] for each in history["messages"]] == ["pasted", "answer"]
    assert [len(json.dumps(each)) < 2000 for each in history["messages"]] == [True, True]
    assert summarizer.requests[0].messages[0].content.count("(7000 characters)") == 2


def test_turn_that_is_tried_again_summarizes_the_same_messages():
    """The first attempt stored nothing: its worker was killed before the commit."""
    history = stored("I am Ana", "two", max_messages=2)
    for _ in range(2):
        summarizer = ScriptedProvider(["She is Ana."])
        assert attempt(bot(summarizer, max_messages=2), history)["summary"] == "She is Ana."
        assert "I am Ana" in summarizer.requests[0].messages[0].content


def test_turn_of_a_worker_without_a_model_removes_nothing():
    """The next run of the agent summarizes it."""
    history = stored("I am Ana", max_messages=2)
    after = attempt(bot(ScriptedProvider([]), max_messages=2), history, kind="anonymous")
    assert [each["content"] for each in after["messages"]][::2] == ["I am Ana", "go on"]


def test_without_summaries_every_turn_keeps_to_the_limit():
    """What is removed is gone, so nothing waits."""
    agent = Agent(
        [], Model(), AgentConfig(max_retries=0), memory=ConversationMemory(max_messages=2)
    )
    channel = ChannelAgent(agent)
    for text in ("hello", "maybe", "thanks"):
        channel.ask_channel("ana", text)
        assert len(remembered(channel)) == 2


def test_very_many_messages_do_not_wait_for_a_summary(caplog):
    """The oldest go, the log says so, and the model is shown twice its limit at most."""
    channel = bot(ScriptedProvider([]), max_messages=2)
    channel.ask_channel("ana", "hello")
    (memory,) = channel._direct_turns._memories.values()
    memory.add_many([Message(Role.USER, str(number)) for number in range(600)], trims=False)
    assert (len(memory.get_history()), len(memory.shown())) == (501, 3)
    assert "memory.not_summarized" in caplog.text
