"""Interrupted turns: a turn that is killed while it learns is resumed, and everything is stored once."""

from __future__ import annotations

import asyncio
import json

import pytest

from sayso.agent import Agent, AgentConfig, ChannelAgent, Message, Role, ToolCall, UsageStats
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.entities import EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory, Triple
from sayso.agent.memory.knowledge import KnowledgeMemory
from sayso.pending.turns import Lease, QueuedTurn
from tests.contracts.rigs import turn

LEASE = Lease("chat:room", 1, "w1")
BEFORE = ConversationMemory(max_messages=2)
BEFORE.add_many([Message(Role.USER, "Hello, I am Ana"), Message(Role.ASSISTANT, "Hello Ana.")])


class Shelf:
    """Journals that survive the process."""

    def __init__(self):
        self.entries = []

    async def append_entries(self, lease, seq, at, entries):
        """Append new entries."""
        self.entries += entries[len(self.entries) - at :]


class Model:
    """Saves a fact, answers, summarizes and extracts; the process is killed at one of its calls."""

    def __init__(self, killed_at):
        self.left, self.asked = killed_at, []

    async def acomplete(self, **request):
        """Return the answer for this kind of request."""
        self.left -= 1
        if not self.left:
            self.process.cancel()
            await asyncio.Event().wait()
        words, last = request["system_prompt"], request["messages"][-1]
        if "about to be forgotten" in last.content:
            return self._says("summary", "She is Ana.")
        if "JSON array" in words:
            found = {"name": "Rome", "subject": "Ana", "relation": "lives in", "object": "Rome"}
            return self._says("found", json.dumps([found]))
        if last.role is Role.USER:
            call = ToolCall("remember", {"content": "Lives in Rome"}, "1")
            self.asked.append("call")
            return Message(Role.ASSISTANT, tool_calls=(call,)), UsageStats()
        return self._says("answer", "Noted.")

    def _says(self, kind, text):
        self.asked.append(kind)
        return Message(Role.ASSISTANT, text), UsageStats()


@pytest.mark.parametrize("killed_at", range(1, 7))
def test_resumed_turn_stores_everything_once(tmp_path, killed_at):
    """After a kill at any call there is one fact, one relationship, one mention, and one summary."""
    model, shelf = Model(killed_at), Shelf()
    knowledge, graph = KnowledgeMemory(tmp_path), KnowledgeGraphMemory(model, clock=lambda: 1.0)
    config = AgentConfig(
        knowledge_memory=knowledge,
        knowledge_graph=graph,
        entity_memory=EntityMemory(model, clock=lambda: 1.0),
        summarize_on_trim=True,
    )
    agent = Agent(provider=model, config=config, memory=ConversationMemory(max_messages=2))
    channel = ChannelAgent(agent, journals=shelf)

    def attempt():
        given = turn("I live in Rome", event="e1")
        before = json.dumps(BEFORE.to_dict())
        queued = QueuedTurn(1, 0.0, "ana", given, None, None, before, journal=tuple(shelf.entries))

        async def process():
            model.process = asyncio.current_task()
            return await channel.answer(queued, LEASE)

        return asyncio.run(process()), given

    if killed_at < 6:
        with pytest.raises(asyncio.CancelledError):
            attempt()
    change, given = attempt()
    scope = f"{given.conversation.id}:{given.scope.id}"
    history = json.loads(change.history)
    entities = [
        (each["name"], each["mention_count"]) for each in history["notes"]["entities"]["entities"]
    ]
    assert (entities, history["summary"]) == ([("Rome", 1)], "She is Ana.")
    assert graph.bound_to(scope).triples == [Triple("Ana", "lives in", "Rome", 1.0, 1, 1.0)]
    assert knowledge.bound_to(scope).get_persistent_facts() == "- [general] Lives in Rome"
    assert model.asked.count("call") == 1
