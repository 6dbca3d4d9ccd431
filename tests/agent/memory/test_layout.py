"""The layout of a request: what changes from turn to turn stands behind everything that a vendor can cache."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ConversationMemory,
    EntityMemory,
    KnowledgeGraphMemory,
    KnowledgeMemory,
    ScriptedProvider,
    ToolCall,
    UsageStats,
    tool,
)
from sayso.agent.memory.entities import Entity
from sayso.agent.memory.graph import Triple
from sayso.agent.messages import Message, Role
from tests.agent.memory.models import Reader, user

TURNS = 40


@tool(read_only=True)
def orders() -> str:
    """List the orders."""
    return "Order 17."


def roles_of(request):
    """Return the roles of a request's messages, by their first letters."""
    return "".join(message.role.value[0] for message in request.messages)


def remembering_agent(folder, *answers):
    """Return an agent for which each memory knows something."""
    entities = EntityMemory(Reader())
    graph = KnowledgeGraphMemory(Reader())
    knowledge = KnowledgeMemory(folder)
    entities.update([Entity("Alice")])
    graph.update([Triple("Alice", "manages", "Alpha")])
    knowledge.remember("likes tea", persistent=True)
    config = AgentConfig(
        system_prompt="Be brief.",
        entity_memory=entities,
        knowledge_graph=graph,
        knowledge_memory=knowledge,
    )
    memory = ConversationMemory(summary="They met.")
    memory.add_many([user("hello"), Message(Role.ASSISTANT, "hi")])
    return Agent([orders], ScriptedProvider(answers), config, memory)


def test_what_changes_stands_directly_before_the_users_message(tmp_path):
    """What seldom changes stands before the history, and the system prompt stands alone."""
    agent = remembering_agent(tmp_path, ToolCall("orders", {}, "1"), "One order.")
    agent.run("What does Alice do?")
    first, second = agent.provider.requests
    assert (roles_of(first), roles_of(second)) == ("suasu", "suasuat")
    assert first.messages == second.messages[:5]
    assert first.system_prompt == second.system_prompt == "Be brief."
    background = first.messages[0].content
    remembered = first.messages[3].content
    for known in ("They met.", "- [general] likes tea"):
        assert (known in background, known in remembered) == (True, False)
    for known in ("- Alice (unknown)", "- Alice manages Alpha"):
        assert (known in background, known in remembered) == (False, True)


def test_what_is_remembered_is_not_stored_in_the_history(tmp_path):
    """It would be remembered once more with each turn."""
    agent = remembering_agent(tmp_path, ToolCall("orders", {}, "1"), "One order.")
    result = agent.run("What does Alice do?")
    assert [message.role.value[0] for message in agent.memory.get_history()] == list("uauata")
    assert all(message.role is not Role.SYSTEM for message in result.messages)


def test_message_of_the_current_turn_follows_what_is_remembered(tmp_path):
    """A run may be given several messages; the last of the user begins the turn."""
    agent = remembering_agent(tmp_path, "Fine.")
    agent.run([user("one"), Message(Role.ASSISTANT, "two"), user("three")])
    (request,) = agent.provider.requests
    assert roles_of(request) == "suauasu"
    assert request.messages[-1].content == "three"


def test_answer_of_the_wrong_form_moves_nothing(tmp_path):
    """The correction is a message of the app; what is remembered stays before the user's."""
    form = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    agent = remembering_agent(tmp_path, "one", '{"n": 1}')
    assert agent.run("How many?", response_format=form).parsed == {"n": 1}
    assert list(map(roles_of, agent.provider.requests)) == ["suasu", "suasuau"]
    assert '"n"' in agent.provider.requests[0].system_prompt


class Learner:
    """A model that knows what its request says, and nothing else.

    It answers a question for the name with the name if it reads it. As a summarizing and extracting model it keeps
    the name, and what it kept before.
    """

    def __init__(self):
        self.requests = []
        self.summaries = 0

    async def acomplete(self, **request):
        """Return the answer."""
        texts = [message.content for message in request["messages"]]
        is_known = any("Ana" in text for text in texts)
        if texts[-1].startswith("What is about to be forgotten"):
            self.summaries += 1
            answer = "The user is called Ana." if is_known else "They counted."
        elif "JSON array" in request["system_prompt"]:
            answer = json.dumps([{"name": "Ana", "type": "user"}] if is_known else [])
        else:
            self.requests.append(request)
            answer = "You are Ana." if is_known else "I do not know."
            answer = answer if texts[-1] == "What is my name?" else "Aha."
            if (
                texts[-1].startswith("My name")
                and request["tools"]
                and request["tools"][0]["name"] == "remember"
            ):
                call = ToolCall("remember", {"content": "The user is called Ana."}, "1")
                return Message(Role.ASSISTANT, tool_calls=(call,)), UsageStats()
        return Message(Role.ASSISTANT, answer), UsageStats()


def memories(kind, model, folder):
    """Return the configuration of one kind of memory."""
    return {
        "none": {},
        "summary": {"summarize_on_trim": True},
        "entities": {"entity_memory": EntityMemory(model)},
        "knowledge": {"knowledge_memory": KnowledgeMemory(folder)},
    }[kind]


def talk(kind, folder, max_messages=20):
    """Return the last answer of a conversation of 40 turns, where the name was said in turn 3, and its model."""
    model = Learner()
    config = AgentConfig(max_retries=0, **memories(kind, model, folder))
    channel = ChannelAgent(Agent([], model, config, ConversationMemory(max_messages)))
    for turn in range(1, TURNS):
        channel.ask_channel("bob", "My name is Ana" if turn == 3 else f"This is turn {turn}")
    return channel.ask_channel("bob", "What is my name?").content, model


@pytest.mark.parametrize("kind", ["summary", "entities", "knowledge"])
def test_conversation_of_40_turns_knows_what_was_said_in_turn_3(tmp_path, kind):
    """The message is long gone, and the memory that is configured for this has kept what it said."""
    answer, model = talk(kind, tmp_path)
    assert answer == "You are Ana."
    history = [
        message for message in model.requests[-1]["messages"] if message.role is not Role.SYSTEM
    ]
    assert not any("Ana" in message.content for message in history)


def test_conversation_of_40_turns_without_these_memories_has_forgotten_turn_3(tmp_path):
    """So the answers above come from the memories."""
    assert talk("none", tmp_path)[0] == "I do not know."


def test_conversation_of_40_turns_needs_at_most_4_summaries(tmp_path):
    """One summary covers many turns."""
    _, model = talk("summary", tmp_path, max_messages=40)
    assert 1 <= model.summaries <= 4


def stable_part(request):
    """Return what a request shares with the next one of its conversation: all before what may change, as one text."""
    messages = list(request["messages"])
    systems = [at for at, message in enumerate(messages) if at and message.role is Role.SYSTEM]
    end = systems[-1] if systems else len(messages) - 1
    return json.dumps(
        [request["system_prompt"], *(message.to_dict() for message in messages[:end])]
    )[:-1]


@pytest.mark.parametrize("kind", ["none", "summary", "entities", "knowledge"])
def test_request_begins_as_the_one_before_until_messages_are_removed(tmp_path, kind):
    """Up to what may change, a request repeats the last one byte for byte, for at least five turns.

    A fact that is saved is a change, too.
    """
    _, model = talk(kind, tmp_path)
    parts = [stable_part(request) for request in model.requests]
    changes = [at for at in range(1, len(parts)) if not parts[at].startswith(parts[at - 1])]
    assert changes
    turns_between = [later - earlier for earlier, later in pairwise(changes)]
    assert min(turns_between) >= 5


def test_system_messages_of_a_caller_stay_where_they_are():
    """What a run is given first is an instruction; what is remembered joins it before the user's message."""
    model = ScriptedProvider(["Oui."])
    agent = Agent([], model, memory=ConversationMemory(summary="They met."))
    asyncio.run(agent.arun([Message(Role.SYSTEM, "Speak French."), user("Hello")]))
    assert [message.content[-13:] for message in model.requests[0].messages[1:]] == [
        "Speak French.",
        "Hello",
    ]
    assert "They met." in model.requests[0].messages[0].content
