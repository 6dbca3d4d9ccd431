"""The seed's page about the agent, run here as documented: its memories."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    ConversationMemory,
    EntityMemory,
    KnowledgeGraphMemory,
    KnowledgeMemory,
    LocalProvider,
    RedisSessionStore,
    ScriptedProvider,
    ToolCall,
)
from sayso.agent.memory import session_backends
from sayso.agent.memory.session_backends import JsonFileSessionStore, SQLiteSessionStore
from tests.agent.listening import search, user
from tests.agent.memory.models import Reader, instructions_of

ALICE = {"name": "Alice", "type": "person", "attributes": {"employer": "Acme Corp"}}
ACME = {"name": "Acme Corp", "type": "organization"}
MANAGES = {"subject": "Alice", "relation": "manages", "object": "Project Alpha", "confidence": 0.9}
SECTIONS = [
    "[Conversation Summary]", "[Long-term Memory]", "[Recent Memory]", "[Known Entities]", "[Known Relationships]",
]  # fmt: skip


@pytest.fixture(params=["json", "sqlite", "redis"])
def new_store(request, tmp_path):
    """Return a function that opens the same session store anew, as a new process does."""

    def opened() -> Any:
        if request.param == "json":
            return JsonFileSessionStore(directory=tmp_path / "sessions")
        if request.param == "sqlite":
            return SQLiteSessionStore(tmp_path / "sessions.db")
        request.getfixturevalue("redis_client")  # an empty Redis
        return RedisSessionStore(request.getfixturevalue("redis_url"))

    return opened


def prompts(provider):
    """Return what a scripted provider's requests say beside what was said: the system prompts and system messages."""
    return [instructions_of(request) for request in provider.requests]


def test_two_users_with_separate_memories_share_nothing():
    """The issue decides that a memory is bound to its scope, also with one shared agent."""
    provider = ScriptedProvider(["Hello Alice.", "Who are you?"])
    shared, hers, his = Agent([], provider), ConversationMemory(), ConversationMemory()
    asyncio.run(shared.arun("My name is Alice", memory=hers, scope="alice"))
    asyncio.run(shared.arun("What's my name?", memory=his, scope="bob"))
    assert provider.requests[1].messages == (user("What's my name?"),)
    assert [message.content for message in hers.get_history()] == [
        "My name is Alice",
        "Hello Alice.",
    ]


def test_second_turn_knows_the_first():
    """Basic Memory, and best practice 6: history precedes the new message, and the answer is saved."""
    provider = ScriptedProvider(["Hello Alice.", "You are Alice."])
    agent = Agent(tools=[search], provider=provider, memory=ConversationMemory(max_messages=20))
    agent.run([user("My name is Alice")])
    agent.run([user("What's my name?")])
    assert [message.content for message in provider.requests[1].messages] == [
        "My name is Alice", "Hello Alice.", "What's my name?",
    ]  # fmt: skip
    assert agent.memory.get_history()[-1].content == "You are Alice."


def test_without_memory_each_run_is_independent():
    """Without a memory, history is local to each run."""
    provider = ScriptedProvider(["a", "b"])
    agent = Agent(tools=[search], provider=provider)
    agent.run([user("Hello")])
    agent.run([user("Hello")])
    assert provider.requests[0].messages == provider.requests[1].messages == (user("Hello"),)


@pytest.mark.parametrize("limits", [{"max_messages": 2}, {"max_messages": 20, "max_tokens": 10}])
def test_oldest_messages_are_dropped_at_a_limit(limits):
    """Memory Limits: the limit is in messages or in tokens."""
    agent = Agent([], ScriptedProvider(["one", "two"]), memory=ConversationMemory(**limits))
    agent.run("first words, which are long enough")
    agent.run("second words, which are long enough")
    assert [message.content for message in agent.memory.get_history()] == [
        "second words, which are long enough",
        "two",
    ]


def test_session_outlives_its_process(new_store):
    """Persistent Sessions: a session is loaded before each run and saved after it, in each of the three stores."""

    def begun(answer):
        config = AgentConfig(session_store=new_store(), session_id="user-123")
        return Agent([search], ScriptedProvider([answer]), config)

    begun("Hello Alice.").run([user("My name is Alice")])
    later = begun("You are Alice.")
    later.run([user("What's my name?")])
    assert later.provider.requests[0].messages[0].content == "My name is Alice"
    assert len(new_store().load("user-123").get_history()) == 4


@pytest.mark.parametrize(
    "name", ["JsonFileSessionStore", "SQLiteSessionStore", "RedisSessionStore"]
)
def test_every_session_store_has_a_time_to_live(name):
    """TTL-based expiry is off by default."""
    assert (
        inspect.signature(getattr(session_backends, name)).parameters["default_ttl"].default is None
    )


def test_trimmed_messages_are_summarized_for_later_runs():
    """Summarize-on-Trim: the configured provider and model write the summary within its token limit."""
    provider, cheap = (
        ScriptedProvider(["a", "b", "c", "d"]),
        ScriptedProvider(["Alice said hello."]),
    )
    config = AgentConfig(
        summarize_on_trim=True,
        summarize_provider=cheap,
        summarize_model="gpt-4o-mini",
        summarize_max_tokens=150,
    )
    agent = Agent([], provider, config, ConversationMemory(max_messages=4))
    for words in ("I am Alice", "two", "three"):
        agent.run(words)
    assert agent.memory.summary == "Alice said hello."
    assert (cheap.requests[0].model, cheap.requests[0].max_tokens) == ("gpt-4o-mini", 150)
    agent.run("four")
    assert "[Conversation Summary]\n- Alice said hello." in prompts(provider)[3]


def test_agents_provider_writes_summaries_by_default():
    """`summarize_provider` defaults to the agent's provider."""
    provider = ScriptedProvider(["a", "b", "They said one."])
    config = AgentConfig(model="m", summarize_on_trim=True)
    own = Agent([], provider, config, ConversationMemory(max_messages=2))
    own.run("one")
    own.run("two")
    assert (own.memory.summary, provider.requests[2].model) == ("They said one.", "m")


def test_entities_of_one_turn_are_known_in_the_next():
    """Entity Memory: the page's own example runs."""
    provider = ScriptedProvider(["Fine.", "Alice."])
    entity_memory = EntityMemory(provider=Reader(ALICE, ACME))
    config = AgentConfig(entity_memory=entity_memory)
    remembering = Agent(
        tools=[search], provider=provider, memory=ConversationMemory(), config=config
    )
    remembering.run([user("I'm working with Alice from Acme Corp")])
    remembering.run([user("With whom?")])
    assert "[Known Entities]" not in prompts(provider)[0]
    assert (
        "[Known Entities]\n- Alice (person): employer: Acme Corp\n- Acme Corp (organization)"
        in prompts(provider)[1]
    )


def test_relationships_of_one_turn_are_known_in_the_next(tmp_path):
    """Knowledge Graph Memory: the graph is stored in SQLite."""
    provider = ScriptedProvider(["Fine.", "Alice."])
    kg = KnowledgeGraphMemory(
        provider=Reader(MANAGES), storage="sqlite", path=tmp_path / "graph.db"
    )
    remembering = Agent([search], provider, AgentConfig(knowledge_graph=kg), ConversationMemory())
    remembering.run([user("Alice manages Project Alpha")])
    remembering.run([user("Who manages Project Alpha?")])
    assert "[Known Relationships]\n- Alice manages Project Alpha" in prompts(provider)[1]


def test_remembered_knowledge_survives_for_another_agent(tmp_path):
    """Cross-Session Knowledge Memory: the `remember` tool is added automatically, and another agent reads the note."""
    knowledge = KnowledgeMemory(directory=tmp_path, recent_days=2)
    config = AgentConfig(knowledge_memory=knowledge)
    note = ToolCall("remember", {"content": "Alice prefers tea"})
    first = Agent(tools=[search], provider=ScriptedProvider([note, "Noted."]), config=config)
    first.run("I prefer tea")
    assert [tool.name for tool in first.tools] == ["search", "remember"]
    later = ScriptedProvider(["Tea."])
    Agent([], later, AgentConfig(knowledge_memory=KnowledgeMemory(directory=tmp_path))).run(
        "Tea or coffee?"
    )
    assert "Alice prefers tea" in prompts(later)[0].partition("[Long-term Memory]")[2]


def test_context_sections_follow_the_system_prompt(tmp_path):
    """Context Injection Order: all five follow the system prompt, first those that seldom change (`memory-place`)."""
    knowledge = KnowledgeMemory(directory=tmp_path)
    knowledge.remember("Tea is served at five", persistent=True)
    knowledge.remember("Alice called")
    entities, graph = EntityMemory(Reader(ALICE)), KnowledgeGraphMemory(Reader(MANAGES))
    provider = ScriptedProvider(["a", "b"])
    config = AgentConfig(entity_memory=entities, knowledge_graph=graph, knowledge_memory=knowledge)
    memory = ConversationMemory(summary="They spoke of tea.")
    remembering = Agent([], provider, config, memory)
    remembering.run("Alice manages Project Alpha")
    remembering.run("Alice?")
    told = prompts(provider)[1]
    places = [told.index(section) for section in SECTIONS]
    assert told.startswith(config.system_prompt)
    assert places == sorted(places)


def test_reset_clears_the_conversation():
    """`agent.reset()` clears the memory."""
    fresh = Agent([], LocalProvider(), memory=ConversationMemory())
    fresh.run("My name is Alice")
    fresh.reset()
    assert fresh.memory.get_history() == []
    Agent([], LocalProvider()).reset()
