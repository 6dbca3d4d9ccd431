"""Agents inside tools: their knowledge belongs to the scope of the run that the tool is in."""

from __future__ import annotations

import asyncio

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.guards.budget import BudgetLimits, MemoryBudget
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.entities import EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory
from sayso.agent.memory.knowledge import KnowledgeMemory
from sayso.agent.messages import Message, Role, UsageStats
from tests.agent.memory.models import instructions_of


class Gossip:
    """A model that saves every message it gets, and records its prompts."""

    def __init__(self):
        self.prompts = []

    async def acomplete(self, **request):
        """Return a call of `remember`, then an answer; for an extraction, the name it was given."""
        words = request["messages"][-1].content
        if "JSON array" in request["system_prompt"]:
            name = "ALICE-SECRET" if "ALICE-SECRET" in words else "nobody"
            found = (
                f'[{{"name": "{name}", "subject": "{name}", "relation": "is", "object": "here"}}]'
            )
            return Message(Role.ASSISTANT, found), UsageStats(1, 1, 2)
        self.prompts.append(instructions_of(request))
        if request["messages"][-1].role is Role.USER and request["tools"]:
            call = ToolCall("remember", {"content": words}, "1")
            return Message(Role.ASSISTANT, tool_calls=(call,)), UsageStats(1, 1, 2)
        return Message(Role.ASSISTANT, "noted"), UsageStats(1, 1, 2)


def outer(inner, doors):
    """Return a function that asks the inner agent from inside a tool, sync or async."""
    if doors == "sync":

        @tool(description="Ask a colleague")
        def colleague(question: str) -> str:
            """Ask."""
            return inner.run(question).content
    else:

        @tool(description="Ask a colleague")
        async def colleague(question: str) -> str:
            """Ask."""
            return (
                await inner.abatch([question]) if doors == "batch" else [await inner.arun(question)]
            )[0].content

    def ask(who, question):
        calls = [ToolCall("colleague", {"question": question}, "1")]
        agent = Agent([colleague], ScriptedProvider([calls, "done"]))
        asyncio.run(agent.arun("go", memory=ConversationMemory(), scope=who))

    return ask


@pytest.mark.parametrize("doors", ["sync", "async", "batch"])
def test_agent_inside_a_tool_keeps_users_apart(tmp_path, doors):
    """The users share the agent, but not its knowledge."""
    model = Gossip()
    knowledge, graph, entities = (
        KnowledgeMemory(tmp_path),
        KnowledgeGraphMemory(model),
        EntityMemory(model),
    )
    config = AgentConfig(knowledge_memory=knowledge, knowledge_graph=graph, entity_memory=entities)
    ask = outer(Agent(provider=model, config=config), doors)
    ask("alice", "Remember that ALICE-SECRET is here")
    ask("bob", "Who is ALICE-SECRET, who is here?")
    assert not any("ALICE-SECRET" in prompt for prompt in model.prompts[2:])
    ask("alice", "Who is here?")
    assert "ALICE-SECRET" in model.prompts[-1]
    assert knowledge.build_context() == graph.build_context() == entities.build_context() == ""
    assert "ALICE-SECRET" in knowledge.bound_to("alice").build_context()


def test_agent_inside_a_tool_uses_the_users_budget():
    """One user's limit does not count for others."""
    budget = MemoryBudget(BudgetLimits(conversation_tokens=2))
    inner = Agent(provider=ScriptedProvider(["one", "two"]), config=AgentConfig(budget=budget))
    ask = outer(inner, "async")
    for who in ("alice", "bob", "bob"):
        ask(who, "hello")
    assert len(inner.provider.requests) == 2


def test_run_without_a_scope_saves_nothing(tmp_path):
    """Without a scope, the conversation of a user must not write to the shared folder."""
    knowledge = KnowledgeMemory(tmp_path)
    model = ScriptedProvider([ToolCall("remember", {"content": "Alice is ill"}, "1"), "done"])
    Agent([knowledge.tool()], model).run("Remember it", memory=ConversationMemory())
    assert "whose memory" in model.requests[1].messages[-1].content
    assert knowledge.build_context() == ""


def test_failed_note_names_no_folder(tmp_path):
    """The model reads that nothing was saved."""
    (tmp_path / "file").write_text("in the way")
    model = ScriptedProvider([ToolCall("remember", {"content": "I am a vegetarian"}, "1"), "done"])
    Agent(
        provider=model, config=AgentConfig(knowledge_memory=KnowledgeMemory(tmp_path / "file"))
    ).run("Remember it")
    told = model.requests[1].messages[-1].content
    assert "nothing was kept" in told
    assert str(tmp_path) not in told
