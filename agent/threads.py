"""Threads: a yes in one thread of a chat decides nothing in another; its person hears which question is open there."""

from __future__ import annotations

import json
from dataclasses import replace

from sayso.channels.types import Conversation, Turn
from sayso.pending.records import StoredAction
from sayso.pending.store import BasePendingStore
from sayso.workers.offload import reach


async def note_asked(store: BasePendingStore, turn: Turn, pid: str) -> None:
    """Note the question that a thread asks, so that the chat's other threads know of it. Outside a thread: nothing."""
    here = turn.conversation
    if here.thread:
        note = json.dumps({"thread": here.thread, "pid": pid})
        await reach(store.records.note_asked, replace(here, thread="").id, turn.scope.id, note)


async def open_elsewhere(store: BasePendingStore, turn: Turn, now: float) -> StoredAction | None:
    """Return the question that is open for this person in another thread of the chat, or None."""
    here, chat = turn.conversation, replace(turn.conversation, thread="")
    stored = await reach(store.records.look, chat.id, turn.scope.id) if here.thread else None
    if _is_open(store, stored, turn, chat, now):
        return stored
    note = await reach(store.records.last_asked, chat.id, turn.scope.id)
    asked = json.loads(note) if note else {}
    there = replace(chat, thread=asked.get("thread", here.thread))
    if there == here:
        return None
    (stored,) = await reach(store.records.read, there.id, (asked["pid"],))
    return stored if _is_open(store, stored, turn, there, now) else None


def _is_open(store: BasePendingStore, stored: StoredAction | None, turn: Turn, there: Conversation, now: float) -> bool:
    """Return whether it still waits for this person, and is what was shown to them."""
    if stored is None or stored.state != "shown" or stored.action.is_expired(now):
        return False
    return stored.is_genuine(store.seal, replace(turn.scope, conversation=there))
