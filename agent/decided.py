"""Decided: what becomes of the message that asked, once it is answered: its buttons go, its outcome is shown."""

from __future__ import annotations

from dataclasses import replace

from sayso.channels.types import Reply, Scope, Turn
from sayso.pending.action import State
from sayso.pending.plan import is_undo
from sayso.pending.records import StoredAction
from sayso.pending.seal import split_button
from sayso.pending.store import BasePendingStore
from sayso.pending.texts import brief, speak
from sayso.workers.lane import CHOICE_KIND

#: Characters of a message with buttons that must stay when they go, because nothing else repeats them: a longer one is
#: sent by itself, and its buttons below it.
MAX_KEPT_CHARS = 1000
#: Characters of an outcome that are shown where it was asked for: the whole of it is a message of its own.
MAX_TOLD_CHARS = 600

#: Before what is said of an action that ended so; anything else is a warning.
_SYMBOLS: dict[State, str] = {"done": "✅", "cancelled": "❌", "expired": "⌛"}
_WARNING = "⚠️"


class Prompts:
    """The messages that asked on one channel. Lives as long as its store."""

    def __init__(self, store: BasePendingStore) -> None:
        self._store = store

    async def closed(self, turn: Turn, stored: StoredAction, state: State, told: str) -> tuple[tuple[Reply, str], ...]:
        """What is sent to close the message that asked for an action which ended so, before anything else is said: no
        second set of buttons is shown while the first can be tapped. Sent twice it is the same. Nothing where nobody
        knows which message that is.
        """
        prompt = prompt_of(turn, stored)
        if not prompt:
            return ()
        shown = await self._shown(turn.scope, stored)
        closed = closing(prompt, shown, state, told)
        if stored.action.kind == CHOICE_KIND or not shown:  # of a record that was changed nothing is read
            return ((closed, ""),)
        words = speak(stored.action.language)
        label = words.undo_label if is_undo(stored.action) else words.confirm_label
        decided = {"cancelled": words.cancel_label, "superseded": words.cancel_label, "expired": ""}.get(state, label)
        mark = f"{symbol_of(state)} {decided}".strip()
        return ((replace(closed, outcome_elsewhere=f"{shown}\n\n{mark}".strip()), ""),)

    async def _shown(self, scope: Scope, stored: StoredAction) -> str:
        """What stays of the message; nothing of a record that was changed: its words are not ours to repeat."""
        if not stored.is_genuine(self._store.seal, scope):
            return ""
        if stored.action.kind == CHOICE_KIND:
            return str(stored.action.args["text"])
        undone = await self._store.settlement.undone(scope, stored) if is_undo(stored.action) else ""
        return undone if 0 < len(undone) <= MAX_KEPT_CHARS else brief(stored.action.preview)


def prompt_of(turn: Turn, stored: StoredAction) -> str:
    """The platform's id of the message that asked: the one whose button was tapped, else the one that was delivered; ""
    where nobody knows.
    """
    parts = split_button(turn.tap.data) if turn.tap else None
    if parts and parts[0] == stored.pid and turn.message_id:
        return turn.message_id
    return stored.prompt


def symbol_of(state: State) -> str:
    """Return the sign before what is said of an action that ended so."""
    return _SYMBOLS.get(state, _WARNING)


def closing(prompt: str, shown: str, state: State, told: str) -> Reply:
    """Takes the place of the message that asked, without its buttons; it is left out where that cannot be edited."""
    outcome = f"{symbol_of(state)} {told if len(told) <= MAX_TOLD_CHARS else brief(told)}"
    text = outcome if shown and shown in told else f"{shown}\n\n{outcome}"
    return Reply(text.strip(), edits=prompt, optional=True)
