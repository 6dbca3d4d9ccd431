"""What is stored and said of an action that ends without being carried out."""

from __future__ import annotations

from sayso.agent.channel.context import TurnContext
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.types import Turn
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turns import Transition


def texts_of(stored: StoredAction) -> Texts:
    """Return the texts in the language of the action."""
    return texts_for(stored.action.language)


def cancelled_text(stored: StoredAction) -> str:
    """Return what its person is told of an action to which they said no."""
    return with_ran_beside(stored, texts_of(stored).cancelled(stored.action.preview))


def dropped_text(stored: StoredAction) -> str:
    """Return what its person is told of an action that another message ends."""
    return with_ran_beside(stored, texts_of(stored).dropped(stored.action.preview))


def with_ran_beside(stored: StoredAction, text: str) -> str:
    """Return the outcome of an action with a line about the tools that ran at once beside it.

    A stored outcome has the line already.
    """
    names = stored.action.ran_beside
    if not names:
        return text
    line = f"\n{texts_of(stored).ran_beside(names)}"
    return text if line in text else f"{text}{line}"


def cancelled_transition(stored: StoredAction, turn: Turn) -> Transition:
    """Return the transition of an action to which its person says no."""
    return _transition(stored, turn, cancelled_text(stored))


def dropped_transition(stored: StoredAction, turn: Turn) -> Transition:
    """Return the transition of an action that another message ends."""
    return _transition(stored, turn, dropped_text(stored))


def ended_transition(context: TurnContext, stored: StoredAction, outcome_text: str) -> Transition:
    """Return the transition that cancels an action with this text.

    An action whose time was over before the turn came in expires instead, and says so.
    """
    if not stored.action.is_expired(context.received_at):
        return _transition(stored, context.turn, outcome_text)
    expired = with_ran_beside(stored, texts_of(stored).expired(stored.action.preview))
    return Transition(stored.action_id, WAITING_STATES, "expired", expired, context.turn.event_id)


def _transition(stored: StoredAction, turn: Turn, outcome_text: str) -> Transition:
    return Transition(stored.action_id, WAITING_STATES, "cancelled", outcome_text, turn.event_id)
