"""ask_channel: the seed's door, without mailbox or outbox, keeps the same promises."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel import channel_agent
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Reply, Tap, Turn
from sayso.pending import InMemoryPendingStore, RedisPendingStore
from sayso.pending.repository import Claim, StoredAction
from sayso.pending.store import scope_of
from tests.contracts.rigs import Blocking, client_of, time_passes

HERE = {"channel_id": "chat", "conversation_id": "room"}
PLACE = Conversation("chat", "room")


@pytest.fixture(params=["memory", "redis"])
def make_agent(request):
    """Makes a channel agent whose model wants to delete these names; `deleted` is what it did."""
    client = request.getfixturevalue("redis_client") if request.param == "redis" else None
    deleted = []

    @tool(requires_approval=True, preview="Delete {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        deleted.append(name)
        return f"deleted {name}"

    def make(*names, lines=(), provider=None):
        store = RedisPendingStore(client=client, secret_keys=["key"]) if client else InMemoryPendingStore()
        calls = [ToolCall("delete", {"name": name}, f"c{index}") for index, name in enumerate(names)]
        model = provider or ScriptedProvider([*calls, *lines])
        agent = ChannelAgent(Agent([delete], model, AgentConfig(max_retries=0)), store)
        agent.deleted = deleted
        return agent

    return make


class Meeting(ScriptedProvider):
    """A model that answers two requests only once both have come in."""

    def __init__(self, lines) -> None:
        super().__init__(lines)
        self._barrier = threading.Barrier(2)

    async def acomplete(self, **request):
        """The next line, after the other's request."""
        self._barrier.wait(60)
        return await super().acomplete(**request)


def test_two_proposals_at_once_show_one_question(make_agent):
    """The user can only say yes to what was armed: the other message hears to come again."""
    lines = [ToolCall("delete", {"name": name}, name) for name in "AB"]
    agent, heard = make_agent(provider=Meeting(lines)), []
    threads = [
        threading.Thread(target=lambda: heard.append(agent.ask_channel("ana", "delete", **HERE).content))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (question,) = [words for words in heard if "Reply **yes**" in words]
    assert sum("came first" in words for words in heard) == 1
    agent.ask_channel("ana", "yes", **HERE)
    assert [f"Delete {name}" for name in agent.deleted] == [question.partition("\n")[0]]


def test_changed_digest_executes_nothing(make_agent):
    """A caller that saw other arguments disarms."""
    agent = make_agent("A", lines=["yes to what?"])
    agent.ask_channel("ana", "delete A", **HERE)
    assert "Nothing was done" in agent.ask_channel("ana", "yes", args_digest="0" * 64, **HERE).content
    assert (agent.ask_channel("ana", "yes", **HERE).content, agent.deleted) == ("yes to what?", [])


def test_yes_of_another_user_confirms_nothing(make_agent):
    """And what ana sees of it stays."""
    agent = make_agent("A", lines=["yes to what?"])
    agent.ask_channel("ana", "delete A", **HERE)
    assert agent.ask_channel("bob", "yes", **HERE).content == "yes to what?"
    assert agent.ask_channel("ana", "yes", **HERE).content == "deleted A"


def test_unrelated_text_disarms_and_says_so(make_agent):
    """The same rule as in a worker."""
    agent = make_agent("A", lines=["sunny"])
    agent.ask_channel("ana", "delete A", **HERE)
    content = agent.ask_channel("ana", "what is the weather?", **HERE).content
    assert content == "Not confirmed, so I dropped this: Delete A.\n\nsunny"
    assert agent.store.get("ana", **HERE) is None


def test_yes_runs_once_without_asking_a_model(make_agent):
    """A settled turn has no iterations."""
    agent = make_agent("A")
    agent.ask_channel("ana", "delete A", **HERE)
    result = agent.ask_channel("ana", "yes", **HERE)
    assert (result.content, result.iterations, agent.deleted) == ("deleted A", 0, ["A"])


def test_words_alone_offer_no_undo():
    """Without a channel there is no button to tap, so none is promised."""

    @tool(requires_approval=True, preview="Delete {name}", undo=lambda name: f"restored {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        return f"deleted {name}"

    bot = ChannelAgent(Agent([delete], ScriptedProvider([ToolCall("delete", {"name": "A"}, "c1")])))
    bot.ask_channel("ana", "delete A")
    assert bot.ask_channel("ana", "yes").content == "deleted A"


def begun_by_the_dead(agent) -> StoredAction:
    """What ana waits for was started by a process that was killed then."""
    scope = scope_of("ana", "chat", "room")
    live = Blocking(agent.store.repository).find_open(scope.conversation.id, scope.id)
    claim = Claim(scope, live.pid, "killed")
    Blocking(agent.store.repository).claim(claim, live)
    Blocking(agent.store.repository).start(claim, live, "killed")
    return live


def change(store, live: StoredAction) -> None:
    """Somebody edits the sealed words."""
    edited = live.record.replace("Delete", "Forget")
    if isinstance(store, InMemoryPendingStore):
        store.repository._put(live.pid, replace(store.repository._get(live.pid), record=edited))
    else:
        client = client_of(store)
        (key,) = client.scan_iter(f"*:pending:{live.pid}")
        client.hset(key, "rec", edited)


def test_killed_process_whose_record_was_changed_is_owned_up_to(make_agent):
    """The person who confirmed it hears that nobody knows; the changed words are not repeated."""
    agent = make_agent("A", lines=["sunny"])
    agent.ask_channel("ana", "delete A", **HERE)
    live = begun_by_the_dead(agent)
    change(agent.store, live)
    time_passes(agent.store, conversation=scope_of("ana", "chat", "room").conversation.id)
    told = agent.ask_channel("ana", "what is the weather?", **HERE).content
    assert told == texts_for().unknown("an action that was changed") + "\n\nsunny"
    assert agent.deleted == []


def test_action_whose_process_was_killed_is_owned_up_to(make_agent):
    """Long after, whatever the person says first: nobody knows, nothing is repeated, the new message is answered."""
    agent = make_agent("A", "B", lines=["sunny"])
    agent.ask_channel("ana", "delete A", **HERE)
    scope = scope_of("ana", "chat", "room")
    begun_by_the_dead(agent)
    assert "came first" in agent.ask_channel("ana", "delete B", **HERE).content
    time_passes(agent.store, conversation=scope.conversation.id)
    told = agent.ask_channel("ana", "what is the weather?", **HERE).content
    assert "cannot tell" in told
    assert told.endswith("sunny")
    assert agent.deleted == []


def test_two_messages_at_once_have_one_history(monkeypatch):
    """While one thread makes a scope's history no other can: the later one's would take the place of the first."""
    agent = ChannelAgent(Agent([], ScriptedProvider(["hi"])))
    held, load = [], channel_agent.memory_from_json

    def loaded(*args):
        held.append(agent._memories_lock.locked())
        return load(*args)

    monkeypatch.setattr(channel_agent, "memory_from_json", loaded)
    agent.ask_channel("ana", "hello", **HERE)
    assert held == [True]


def tapped(agent: ChannelAgent, reply: Reply, label: str, user: str = "ana") -> str:
    """What is said to somebody who taps this button."""
    (button,) = [each for each in reply.buttons if each.label == label]
    turn = Turn(f"tap-{user}", PLACE, user, tap=Tap(button.data))
    return asyncio.run(agent.take(turn))[0].text


def test_a_button_of_another_person_confirms_nothing(make_agent):
    """It is told so, and the question still stands for whom it was asked."""
    agent = make_agent("A")
    (question,) = asyncio.run(agent.take(Turn("e1", PLACE, "ana", "delete A")))
    assert tapped(agent, question, "Confirm", user="bob") == texts_for("en").not_yours()
    assert agent.deleted == []
    assert (tapped(agent, question, "Confirm"), agent.deleted) == ("deleted A", ["A"])


def test_a_tap_settles_once(make_agent):
    """A real button in a place without a mailbox: it confirms, and tapped again it says what became of it."""
    agent = make_agent("A")
    (question,) = asyncio.run(agent.take(Turn("e1", PLACE, "ana", "delete A")))
    assert [tapped(agent, question, "Confirm") for _ in range(2)] == ["deleted A", "deleted A"]
    assert agent.deleted == ["A"]


def test_a_tap_cancels(make_agent):
    """The other button lets go."""
    agent = make_agent("A")
    (question,) = asyncio.run(agent.take(Turn("e1", PLACE, "ana", "delete A")))
    assert "Delete A" in tapped(agent, question, "Cancel")
    assert agent.ask_channel("ana", "yes", **HERE).content != "deleted A"
    assert agent.deleted == []
