"""ask_channel: the seed's direct call, without mailbox or outbox, keeps the same promises."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel import direct_turns
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Reply, Tap, Turn
from sayso.pending import InMemoryPendingStore, RedisPendingStore
from sayso.pending.repository import Claim
from sayso.pending.store import scope_of
from sayso.pending.stored_action import StoredAction
from tests.contracts.rigs import Blocking, client_of, time_passes

HERE = {"channel_id": "chat", "conversation_id": "room"}
PLACE = Conversation("chat", "room")


@pytest.fixture(params=["memory", "redis"])
def make_agent(request):
    """Return a function that makes a channel agent whose model deletes these names; `deleted` records what ran."""
    client = request.getfixturevalue("redis_client") if request.param == "redis" else None
    deleted = []

    @tool(requires_approval=True, preview="Delete {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        deleted.append(name)
        return f"deleted {name}"

    def make(*names, lines=(), provider=None):
        store = (
            RedisPendingStore(client=client, secret_keys=["key"])
            if client
            else InMemoryPendingStore()
        )
        calls = [
            ToolCall("delete", {"name": name}, f"c{index}") for index, name in enumerate(names)
        ]
        model = provider or ScriptedProvider([*calls, *lines])
        agent = ChannelAgent(Agent([delete], model, AgentConfig(max_retries=0)), store)
        agent.deleted = deleted
        return agent

    return make


class Meeting(ScriptedProvider):
    """A model that answers two requests only once both have arrived."""

    def __init__(self, lines) -> None:
        super().__init__(lines)
        self._barrier = threading.Barrier(2)

    async def acomplete(self, **request):
        """Return the next line once both requests have arrived."""
        self._barrier.wait(60)
        return await super().acomplete(**request)


def test_two_proposals_at_once_show_one_question(make_agent):
    """The user can only confirm what was armed; the other message is answered with a request to send it again."""
    lines = [ToolCall("delete", {"name": name}, name) for name in "AB"]
    agent, heard = make_agent(provider=Meeting(lines)), []
    threads = [
        threading.Thread(
            target=lambda: heard.append(agent.ask_channel("ana", "delete", **HERE).content)
        )
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
    """A caller that saw other arguments disarms the action."""
    agent = make_agent("A", lines=["yes to what?"])
    agent.ask_channel("ana", "delete A", **HERE)
    assert (
        "Nothing was done" in agent.ask_channel("ana", "yes", args_digest="0" * 64, **HERE).content
    )
    assert (agent.ask_channel("ana", "yes", **HERE).content, agent.deleted) == ("yes to what?", [])


def test_yes_of_another_user_confirms_nothing(make_agent):
    """The question to ana stays open."""
    agent = make_agent("A", lines=["yes to what?"])
    agent.ask_channel("ana", "delete A", **HERE)
    assert agent.ask_channel("bob", "yes", **HERE).content == "yes to what?"
    assert "Do you mean this? Delete A" in agent.ask_channel("ana", "yes", **HERE).content
    assert agent.ask_channel("ana", "yes", **HERE).content == "deleted A"


def test_unrelated_text_disarms_and_says_so(make_agent):
    """A direct call follows the same rule as a worker."""
    agent = make_agent("A", lines=["sunny"])
    agent.ask_channel("ana", "delete A", **HERE)
    content = agent.ask_channel("ana", "what is the weather?", **HERE).content
    assert content == "You did not say yes, so nothing was done: “Delete A”\n\nsunny"
    assert agent.store.get("ana", **HERE) is None


def test_yes_runs_once_without_asking_a_model(make_agent):
    """A turn that settles an action has no iterations."""
    agent = make_agent("A")
    agent.ask_channel("ana", "delete A", **HERE)
    result = agent.ask_channel("ana", "yes", **HERE)
    assert (result.content, result.iterations, agent.deleted) == ("deleted A", 0, ["A"])


def test_ask_channel_offers_no_undo():
    """Without a channel there is no button to tap."""

    @tool(requires_approval=True, preview="Delete {name}", undo=lambda name: f"restored {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        return f"deleted {name}"

    bot = ChannelAgent(Agent([delete], ScriptedProvider([ToolCall("delete", {"name": "A"}, "c1")])))
    bot.ask_channel("ana", "delete A")
    assert bot.ask_channel("ana", "yes").content == "deleted A"


def start_and_die(agent) -> StoredAction:
    """Start ana's open action as a process that is then killed, and return the action."""
    scope = scope_of("ana", "chat", "room")
    live = Blocking(agent.store.repository).load_open(scope.conversation.id, scope.id)
    claim = Claim(scope, live.action_id, "killed")
    Blocking(agent.store.repository).claim(claim, live)
    Blocking(agent.store.repository).start(claim, live, "killed")
    return live


def change(store, live: StoredAction) -> None:
    """Change the signed text of the stored action."""
    edited = live.record.replace("Delete", "Forget")
    if isinstance(store, InMemoryPendingStore):
        store.repository._entries[live.action_id].update(record=edited)
    else:
        client = client_of(store)
        (key,) = client.scan_iter(f"*:pending:{live.action_id}")
        client.hset(key, "record", edited)


def test_changed_action_of_a_killed_process_is_reported_as_unknown(make_agent):
    """The user who confirmed it reads that the outcome is unknown; the changed text is not repeated."""
    agent = make_agent("A", lines=["sunny"])
    agent.ask_channel("ana", "delete A", **HERE)
    live = start_and_die(agent)
    change(agent.store, live)
    time_passes(agent.store, conversation=scope_of("ana", "chat", "room").conversation.id)
    told = agent.ask_channel("ana", "what is the weather?", **HERE).content
    assert told == texts_for().unknown("an action that was changed") + "\n\nsunny"
    assert agent.deleted == []


def test_action_of_a_killed_process_is_reported_as_unknown(make_agent):
    """The next message, however late, is answered with the unknown outcome too; the action is not repeated."""
    agent = make_agent("A", "B", lines=["sunny"])
    agent.ask_channel("ana", "delete A", **HERE)
    scope = scope_of("ana", "chat", "room")
    start_and_die(agent)
    assert "came first" in agent.ask_channel("ana", "delete B", **HERE).content
    time_passes(agent.store, conversation=scope.conversation.id)
    told = agent.ask_channel("ana", "what is the weather?", **HERE).content
    assert "cannot tell" in told
    assert told.endswith("sunny")
    assert agent.deleted == []


def test_concurrent_messages_share_one_history(monkeypatch):
    """Only one thread at a time creates a scope's history; a second one would replace the first."""
    agent = ChannelAgent(Agent([], ScriptedProvider(["hi"])))
    held, load = [], direct_turns.memory_from_json

    def loaded(*args):
        held.append(agent._direct_turns._memories_lock.locked())
        return load(*args)

    monkeypatch.setattr(direct_turns, "memory_from_json", loaded)
    agent.ask_channel("ana", "hello", **HERE)
    assert held == [True]


def tapped(agent: ChannelAgent, reply: Reply, label: str, user: str = "ana") -> str:
    """Return the reply to this user's tap on the button."""
    (button,) = [each for each in reply.buttons if each.label == label]
    turn = Turn(f"tap-{user}", PLACE, user, tap=Tap(button.data))
    return asyncio.run(agent.take(turn))[0].text


def test_button_of_another_user_confirms_nothing(make_agent):
    """The reply says so, and the question stays open for the user who was asked."""
    agent = make_agent("A")
    (question,) = asyncio.run(agent.take(Turn("e1", PLACE, "ana", "delete A")))
    assert tapped(agent, question, "Yes", user="bob") == texts_for("en").not_yours()
    assert agent.deleted == []
    assert (tapped(agent, question, "Yes"), agent.deleted) == ("deleted A", ["A"])


def test_tap_settles_once(make_agent):
    """A button works without a mailbox: it confirms, and a second tap is answered with the outcome."""
    agent = make_agent("A")
    (question,) = asyncio.run(agent.take(Turn("e1", PLACE, "ana", "delete A")))
    assert [tapped(agent, question, "Yes") for _ in range(2)] == ["deleted A", "deleted A"]
    assert agent.deleted == ["A"]


def test_tap_on_cancel_cancels(make_agent):
    """The action is disarmed, and a later yes confirms nothing."""
    agent = make_agent("A")
    (question,) = asyncio.run(agent.take(Turn("e1", PLACE, "ana", "delete A")))
    assert "Delete A" in tapped(agent, question, "No")
    assert agent.ask_channel("ana", "yes", **HERE).content != "deleted A"
    assert agent.deleted == []


@pytest.mark.parametrize("options", [{"language": "de"}, {"languages": ["de"]}])
def test_yes_is_read_in_the_language_of_the_question(options):
    """The agent reads the languages in which it asks, whatever languages its store's parser reads."""

    @tool(requires_approval=True, preview="Bestellung {order} erstatten")
    def refund(order: int) -> str:
        """Refund an order."""
        return f"Bestellung {order} ist erstattet."

    chat = ChannelAgent(
        Agent([refund], ScriptedProvider([ToolCall("refund", {"order": 17})])),
        behavior=ChannelBehavior(**options),
    )
    assert "**ja**" in chat.ask_channel("ana", "Bitte die Bestellung 17 erstatten, danke").content
    assert chat.ask_channel("ana", "ja").content == "Bestellung 17 ist erstattet."
