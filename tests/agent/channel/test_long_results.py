"""Long results in a chat: who can read on in one, for how long, and what seven turns cost."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest

from sayso.agent import Agent, ChannelAgent, Message, Role, ToolCall, UsageStats, tool
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.providers.testing import check_history
from sayso.agent.run.long_results import digest_id
from sayso.infra.storage.objects import LocalObjects
from tests.contracts.rigs import Rig, turn
from tests.workers.story import Story

LIST = "\n".join(
    f"Order {number} over {number * 3}.20 EUR, see the note of the day." for number in range(4500)
)


@tool(read_only=True)
def orders() -> str:
    """List all orders."""
    return LIST


@tool(requires_approval=True, preview="Export all orders")
def export() -> str:
    """Export all orders."""
    return LIST


class Reader:
    """A model that believes its history: what it reads on is what the history says it can."""

    def __init__(self):
        self.requests = []
        self.tools = []

    async def acomplete(self, **request):
        """Answer with what the last result says, or call the tool that the user's words ask for."""
        messages = request["messages"]
        check_history(messages)
        self.requests.append("\n".join(message.content for message in messages))
        self.tools.append([each["name"] for each in request["tools"]])
        last = messages[-1]
        if last.role is Role.TOOL:
            return Message(Role.ASSISTANT, f"I read: {last.content[-1500:]}"), UsageStats(1, 1, 2)
        call = self._call_for(last.content, messages)
        if call is None:
            return Message(Role.ASSISTANT, "Fine."), UsageStats(1, 1, 2)
        return Message(
            Role.ASSISTANT, tool_calls=(replace(call, id=f"c{len(self.requests)}"),)
        ), UsageStats(1, 1, 2)

    def _call_for(self, text, messages):
        if text in ("orders", "export"):
            return ToolCall(text)
        wish, _, words = text.partition(" ")
        if wish == "find":
            results = "\n".join(
                message.content for message in messages if message.role is Role.TOOL
            )
            return ToolCall(
                "read_result",
                {"result_id": re.findall(r'result_id=\\?"(\w+)', results)[-1], "search": words},
            )
        if wish == "read":
            return ToolCall("read_result", {"result_id": words})
        return None


@pytest.fixture
def story(tmp_path):
    """Return a bot whose workers share a folder for texts."""
    made = Story(Rig(), [])
    made.model = Reader()
    made.tools = [orders, export]
    made.texts = TextFiles(LocalObjects(tmp_path / "texts"))
    return made


def say(story, *texts, **fields):
    """Accept these messages one by one, each for a new worker. Return the last reply."""
    for text in texts:
        story.hear(text, **fields)
        story.work_on()
    return story.channel.texts[-1]


def test_another_person_cannot_read_a_result(story):
    """Not with its id either, which is no secret between people of one group."""
    say(story, "orders")
    story.hear(f"read {digest_id(LIST)}", user="bo")
    story.work_on()
    assert f"this conversation has no result '{digest_id(LIST)}'" in story.model.requests[-1]
    assert "Order 1 over" not in story.model.requests[-1]


def test_another_conversation_of_the_same_person_cannot_read_a_result():
    """What was read in a private chat stays there."""
    model = Reader()
    bot = ChannelAgent(Agent([orders], model))
    bot.ask_channel("ana", "orders", conversation_id="private")
    bot.ask_channel("ana", f"read {digest_id(LIST)}", conversation_id="team")
    assert f"this conversation has no result '{digest_id(LIST)}'" in model.requests[-1]
    assert (
        "Order 30 over 90.20"
        in bot.ask_channel("ana", "find Order 30 over", conversation_id="private").content
    )


def test_forgotten_person_has_no_results(story, tmp_path):
    """The history that is left after an erasure of the texts alone still reads on nowhere."""
    say(story, "orders")
    assert story.texts.erase(turn("x").scope.id) == 1
    assert "the rest of this result of 'orders' is not stored any more" in say(
        story, "find Order 3000 over"
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_worker_without_the_file_says_so(story, tmp_path):
    """The folder is not shared, or the text has expired: the turn is answered."""
    say(story, "orders")
    shutil.rmtree(tmp_path / "texts")
    assert "Call the tool again" in say(story, "find Order 3000 over")


def test_next_turn_reads_on_where_the_history_says(story):
    """Another worker reads the file: the model gets the passage, fenced."""
    say(story, "orders", "thanks")
    reply = say(story, "find Order 3000 over")
    assert "Order 3000 over 9000.20 EUR" in reply
    assert "<<<data " in story.model.requests[-1]


def test_killed_worker_reads_on_once_and_the_same(story):
    """The page is in the journal like each result."""
    say(story, "orders")
    story.life.names = {"before commit"}
    story.hear("find Order 3000 over")
    assert not story.work()
    story.work_on()
    assert "Order 3000 over 9000.20 EUR" in story.channel.texts[-1]


def test_result_after_a_yes_can_be_read_on(story):
    """Its outcome stands in the history as JSON, and names the result."""
    say(story, "export", "yes", "thanks")
    assert "Order 3000 over 9000.20 EUR" in say(story, "find Order 3000 over")


def test_seven_turns_after_a_long_result_cost_less_than_one_whole_one(story):
    """Of 200 KB, the first turn reads the limit, and each later one about two kilobytes, always the same."""
    assert len(LIST) > 190_000
    say(story, "orders", *(f"question {number}" for number in range(6)))
    sizes = [len(request) for request in story.model.requests]
    assert max(sizes) < 8000 * 3 + 500
    assert sum(sizes) < 45_000
    later = story.model.requests[2:]
    assert all(after.startswith(before) for before, after in pairwise(later))
    assert story.model.tools == [["orders", "export"], *[["orders", "export", "read_result"]] * 7]
