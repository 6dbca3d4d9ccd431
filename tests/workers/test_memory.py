"""MemoryConversations: bounded, shared by threads, and enough for a whole conversation."""

from __future__ import annotations

import asyncio

from sayso.agent import Agent, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.types import Conversation, Turn
from sayso.pending import InMemoryPendingStore
from sayso.pending.memory import MemoryActionRepository
from sayso.pending.turns import TurnChange
from sayso.testing import memory
from sayso.testing.memory import MemoryConversations
from sayso.workers.mailbox import SEEN_MS
from tests.contracts.rigs import (
    CHAT,
    BlockingOutsideLoops,
    MemoryRig,
    make_processor,
    make_sender,
    turn,
    voice,
)
from tests.workers.fakes import FakeChannel


def elsewhere(number: int) -> Turn:
    """Return a turn in a conversation of its own."""
    return Turn(f"e{number}", Conversation("chat", f"room-{number}"), "ana", "hi")


def finish(lanes: MemoryConversations, conversation: str) -> None:
    """Process all turns of a conversation."""
    lease, work = lanes.lease(conversation, "w")
    lanes.commit(lease, work, TurnChange())
    lanes.release(lease)


def test_new_conversation_is_refused_when_all_are_busy():
    """No accepted turn is dropped to make room."""
    lanes = BlockingOutsideLoops(
        MemoryConversations(voice, MemoryActionRepository(), max_conversations=2)
    )
    assert [lanes.accept(elsewhere(number)).outcome for number in range(3)] == [
        "new",
        "new",
        "full",
    ]
    assert lanes.lease(elsewhere(0).conversation.id, "w")[1].turn == elsewhere(0)


def test_idle_conversation_makes_room():
    """The least recently used one is dropped."""
    lanes = BlockingOutsideLoops(
        MemoryConversations(voice, MemoryActionRepository(), max_conversations=2)
    )
    for number in range(2):
        lanes.accept(elsewhere(number))
        finish(lanes, elsewhere(number).conversation.id)
    assert lanes.accept(elsewhere(2)).outcome == "new"
    assert [lanes.accept(elsewhere(number)).outcome for number in (1, 0)] == ["duplicate", "new"]


def test_event_ids_and_histories_are_bounded(monkeypatch):
    """A conversation with thousands of users stays within the limits."""
    monkeypatch.setattr(memory, "MAX_EVENTS", 3)
    monkeypatch.setattr(memory, "MAX_HISTORIES", 3)
    lanes = BlockingOutsideLoops(MemoryConversations(voice, MemoryActionRepository()))
    for number in range(9):
        lanes.accept(turn(user=f"user-{number}"))
        lease, work = lanes.lease(CHAT.id, "w")
        lanes.commit(lease, work, TurnChange(history="{}"))
        lanes.release(lease)
    lane = lanes._conversations[CHAT.id]
    assert (len(lane.seen), len(lane.histories)) == (3, 3)


def test_event_ids_need_not_rise():
    """platforms.md 2.1: Telegram picks update_id anew after a quiet week, so a low id is not a duplicate."""
    lanes = BlockingOutsideLoops(MemoryConversations(voice, MemoryActionRepository()))
    outcomes = [
        lanes.accept(turn(event=event)).outcome for event in ("900000001", "5", "900000001", "6")
    ]
    assert outcomes == ["new", "new", "duplicate", "new"]


def test_event_is_remembered_longer_than_platforms_repeat_it():
    """platforms.md 2.1, 3.1: Telegram repeats for 24 hours, and so does Slack with delayed events."""
    assert SEEN_MS > 24 * 3600 * 1000


def test_event_may_come_again_after_days():
    """An id expires after the time in which platforms repeat."""
    rig = MemoryRig()
    outcomes = []
    for _ in range(3):
        outcomes.append(rig.accept(turn(event="e1")).outcome)
        rig.pass_time(40 * 3600)
    assert outcomes == ["new", "duplicate", "new"]


def test_whole_conversation_runs_without_redis():
    """A user's own test looks like this: accept a turn, run the processor, look at the replies."""

    @tool(requires_approval=True, preview="Delete {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        return f"deleted {name}"

    store, channel = InMemoryPendingStore(), FakeChannel()
    agent = ChannelAgent(
        Agent([delete], ScriptedProvider([ToolCall("delete", {"name": "A"}, "c")])), store
    )
    lanes = BlockingOutsideLoops(MemoryConversations(voice, store.repository))
    processor = make_processor(
        lanes, make_sender(lanes, {"chat": channel}), {"chat": channel}, {"chat": agent}
    )
    for words in ("delete A", "yes"):
        lanes.accept(turn(words))
        asyncio.run(processor.run(CHAT.id))
    assert channel.texts[-1] == "deleted A"
