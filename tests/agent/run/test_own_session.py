"""Session of an agent: what was deleted stays so, runs at the same time lose nothing, and no save costs an answer."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sayso.agent import Agent, AgentConfig, AgentObserver, Message, Role, UsageStats
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.sessions import InMemorySessionStore, SessionStoreUnavailable

NUMBER = "+43660123456"


class Echo:
    """Says "yes", and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    async def acomplete(self, **request):
        """The words of every message, then the answer."""
        self.asked.append([message.content for message in request["messages"]])
        await asyncio.sleep(0)
        return Message(Role.ASSISTANT, "yes"), UsageStats()


class Full(InMemorySessionStore):
    """A store whose disk is full."""

    def _put(self, key, text, ttl):
        raise SessionStoreUnavailable(f"session {NUMBER!r} cannot be written: no space")


class Loads(AgentObserver):
    """Counts what was read and saved."""

    def __init__(self):
        self.loads, self.saves = [], []

    def on_session_load(self, run_id, session_id, count):
        """Messages that were read."""
        self.loads.append(count)

    def on_session_save(self, run_id, session_id, count):
        """Messages that were saved."""
        self.saves.append(count)


def agent_of(store, *observers, memory=None, model=None):
    """An agent whose session is in the store."""
    config = AgentConfig(session_store=store, session_id=NUMBER, observers=observers)
    return Agent(provider=model or Echo(), config=config, memory=memory)


@pytest.mark.parametrize("memory", [None, ConversationMemory(max_messages=6)])
def test_deleted_session_does_not_come_back(memory):
    """Somebody asked to be forgotten: what the agent still holds is neither shown to the model nor saved again."""
    store = InMemorySessionStore()
    agent = agent_of(store, memory=memory)
    agent.run("My name is Ana")
    store.delete(NUMBER)
    agent.run("What is my name?")
    assert agent.provider.asked[-1] == ["What is my name?"]
    assert [message.content for message in store.load(NUMBER).get_history()] == ["What is my name?", "yes"]
    assert agent.memory.max_messages == (memory.max_messages if memory else 20)


def test_expired_session_is_not_known_any_more():
    """Its time is up for the process that wrote it, too."""
    now = [0.0]
    agent = agent_of(InMemorySessionStore(default_ttl=10, clock=lambda: now[0]))
    agent.run("My name is Ana")
    now[0] = 10.0
    agent.run("What is my name?")
    assert agent.provider.asked[-1] == ["What is my name?"]


def test_reset_forgets_the_session():
    """What is forgotten is not read again with the next run."""
    store = InMemorySessionStore()
    agent = agent_of(store)
    agent.run("My name is Ana")
    agent.reset()
    assert not store.exists(NUMBER)
    agent.run("What is my name?")
    assert agent.provider.asked[-1] == ["What is my name?"]


def test_another_provider_does_not_bring_a_deleted_session_back():
    """The agent is the same."""
    store = InMemorySessionStore()
    agent = agent_of(store)
    agent.run("My name is Ana")
    store.delete(NUMBER)
    agent.provider = Echo()
    agent.run("What is my name?")
    assert agent.provider.asked == [["What is my name?"]]


def test_runs_at_the_same_time_are_all_saved():
    """Each saves the conversation of all of them."""
    store = InMemorySessionStore()
    agent = agent_of(store)

    async def ask_all():
        await asyncio.gather(*(agent.arun(f"question {number}") for number in range(20)))

    asyncio.run(ask_all())
    kept = [message.content for message in store.load(NUMBER).get_history()]
    assert len(kept) == 20
    assert kept[0::2] != kept[1::2]
    assert set(kept[1::2]) == {"yes"}
    assert len(set(kept[0::2])) == 10  # the limit of the memory, not of the runs


def test_cancelled_run_does_not_keep_the_next_from_reading():
    """What another process saved meanwhile is read by the first run after."""
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


def test_answer_survives_a_session_that_cannot_be_saved(caplog):
    """Its tools have run: whoever got an error would ask again, and they would run twice. No number is logged."""
    with caplog.at_level(logging.ERROR):
        result = agent_of(Full()).run("hello")
    assert result.content == "yes"
    assert [step.error for step in result.trace.filter(type="error")] == [
        "session not saved: SessionStoreUnavailable"
    ]  # fmt: skip
    assert [record.getMessage() for record in caplog.records] == ["session.not_saved"]
    assert NUMBER not in caplog.text


def test_session_that_cannot_be_read_is_an_error():
    """Nothing was done yet, and an answer without the conversation would be a wrong one."""

    class Away(InMemorySessionStore):
        def _get(self, key):
            raise SessionStoreUnavailable("away")

    with pytest.raises(SessionStoreUnavailable):
        agent_of(Away()).run("hello")


def test_a_session_is_read_before_each_run_and_saved_after():
    """Observers hear of both."""
    heard, store = Loads(), InMemorySessionStore()
    for words in ("one", "two"):
        agent_of(store, heard).run(words)
    assert (heard.loads, heard.saves) == ([2], [2, 4])
