"""Agent sessions: deleted sessions stay deleted, concurrent runs lose nothing, and a failed save loses no answer."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sayso.agent import Agent, AgentConfig, AgentObserver, Message, Role, UsageStats
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.sessions import InMemorySessionStore, SessionStoreUnavailable

NUMBER = "+43660123456"


class Echo:
    """A model that answers "yes" and records its requests."""

    def __init__(self):
        self.asked = []

    async def acomplete(self, **request):
        """Record the texts of the messages and return the answer."""
        self.asked.append([message.content for message in request["messages"]])
        await asyncio.sleep(0)
        return Message(Role.ASSISTANT, "yes"), UsageStats()


class Full(InMemorySessionStore):
    """A session store whose disk is full."""

    def _save_text(self, key, text, ttl):
        raise SessionStoreUnavailable(f"session {NUMBER!r} cannot be written: no space")


class Loads(AgentObserver):
    """Counts loaded and saved messages."""

    def __init__(self):
        self.loads, self.saves = [], []

    def on_session_load(self, run_id, session_id, count):
        """Note the number of loaded messages."""
        self.loads.append(count)

    def on_session_save(self, run_id, session_id, count):
        """Note the number of saved messages."""
        self.saves.append(count)


def agent_of(store, *observers, memory=None, model=None):
    """Return an agent with a session in the store."""
    config = AgentConfig(session_store=store, session_id=NUMBER, observers=observers)
    return Agent(provider=model or Echo(), config=config, memory=memory)


@pytest.mark.parametrize("memory", [None, ConversationMemory(max_messages=6)])
def test_deleted_session_does_not_come_back(memory):
    """The user asked for deletion: the agent's copy is neither sent to the model nor saved again."""
    store = InMemorySessionStore()
    agent = agent_of(store, memory=memory)
    agent.run("My name is Ana")
    store.delete(NUMBER)
    agent.run("What is my name?")
    assert agent.provider.asked[-1] == ["What is my name?"]
    assert [message.content for message in store.load(NUMBER).get_history()] == [
        "What is my name?",
        "yes",
    ]
    assert agent.memory.max_messages == (memory.max_messages if memory else 20)


def test_expired_session_is_gone_for_its_agent_too():
    """The expiry also holds for the process that wrote the session."""
    now = [0.0]
    agent = agent_of(InMemorySessionStore(default_ttl=10, clock=lambda: now[0]))
    agent.run("My name is Ana")
    now[0] = 10.0
    agent.run("What is my name?")
    assert agent.provider.asked[-1] == ["What is my name?"]


def test_batch_reads_the_stored_session_and_adds_nothing_to_it():
    """Another process may have written the session, so that this agent has not read it yet."""
    store = InMemorySessionStore()
    agent_of(store).run("My name is Ana")
    agent = agent_of(store)
    agent.batch(["What is my name?", "Who am I?"])
    assert agent.provider.asked == [
        ["My name is Ana", "yes", "What is my name?"],
        ["My name is Ana", "yes", "Who am I?"],
    ]
    assert len(store.load(NUMBER).get_history()) == 2


def test_reset_deletes_the_session():
    """The next run starts without history."""
    store = InMemorySessionStore()
    agent = agent_of(store)
    agent.run("My name is Ana")
    agent.reset()
    assert not store.exists(NUMBER)
    agent.run("What is my name?")
    assert agent.provider.asked[-1] == ["What is my name?"]


def test_new_provider_does_not_restore_a_deleted_session():
    """Only the provider of the agent changes."""
    store = InMemorySessionStore()
    agent = agent_of(store)
    agent.run("My name is Ana")
    store.delete(NUMBER)
    agent.provider = Echo()
    agent.run("What is my name?")
    assert agent.provider.asked == [["What is my name?"]]


def test_concurrent_runs_are_all_saved():
    """Each run saves the conversation of all runs."""
    store = InMemorySessionStore()
    agent = agent_of(store)

    async def ask_all():
        await asyncio.gather(*(agent.arun(f"question {number}") for number in range(20)))

    asyncio.run(ask_all())
    kept = [message.content for message in store.load(NUMBER).get_history()]
    assert len(kept) == 16  # twenty fell to ten, the memory's low mark, and six came after that
    assert kept[0::2] != kept[1::2]
    assert set(kept[1::2]) == {"yes"}
    assert len(set(kept[0::2])) == 8


def test_run_after_a_cancelled_one_loads_the_session():
    """The first run after it reads what another process has saved."""
    store = InMemorySessionStore()
    agent = agent_of(store)

    async def cancelled():
        for steps in range(12):
            run = asyncio.ensure_future(agent.arun("never mind"))
            for _ in range(steps):
                await asyncio.sleep(0.001)
            run.cancel()
            await asyncio.wait([run])

    asyncio.run(cancelled())
    other = ConversationMemory()
    other.add_many([Message(Role.USER, "written elsewhere"), Message(Role.ASSISTANT, "yes")])
    store.save(NUMBER, other)
    agent.run("What was written?")
    assert agent.provider.asked[-1] == ["written elsewhere", "yes", "What was written?"]


def test_answer_survives_a_failed_save(caplog):
    """The tools have run, and an error would make the user repeat the request. The log has no phone number."""
    with caplog.at_level(logging.ERROR):
        result = agent_of(Full()).run("hello")
    assert result.content == "yes"
    assert [step.error for step in result.trace.filter(type="error")] == [
        "session not saved: SessionStoreUnavailable"
    ]  # fmt: skip
    assert [record.getMessage() for record in caplog.records] == ["session.not_saved"]
    assert NUMBER not in caplog.text


def test_unreadable_session_is_an_error():
    """No work was done yet, and an answer without the history would be wrong."""

    class Away(InMemorySessionStore):
        def _load_text(self, key):
            raise SessionStoreUnavailable("away")

    with pytest.raises(SessionStoreUnavailable):
        agent_of(Away()).run("hello")


def test_session_is_loaded_before_each_run_and_saved_after_it():
    """Observers receive both events."""
    heard, store = Loads(), InMemorySessionStore()
    for words in ("one", "two"):
        agent_of(store, heard).run(words)
    assert (heard.loads, heard.saves) == ([2], [2, 4])
