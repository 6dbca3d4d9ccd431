"""What is stored and said about an action that ends without being carried out.

An action that waits for its person's yes can end in three ways: the person says no (it is
*cancelled*), another message ends it (it is *dropped*, which the store calls cancelled as well), or
its time is over (it is *expired*). Each has a text for the person, and a Transition, the change of
state that is stored when the turn ends.
"""

from __future__ import annotations

from dataclasses import replace

from sayso.agent.channel.context import TurnContext
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.types import Turn
from sayso.pending.action import ActionSigner
from sayso.pending.decision_record import DecisionAnswer, DecisionRecord
from sayso.pending.standing_yes import StandingUse, StandingYes
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import Transition


def texts_of(stored: StoredAction) -> Texts:
    """Return the texts in the language of the action, in which its question was asked."""
    return texts_for(stored.action.language)


def cancelled_text(stored: StoredAction) -> str:
    """Return the text for a person who said no to an action."""
    return with_tools_already_run(stored, texts_of(stored).cancelled(stored.action.preview))


def dropped_text(stored: StoredAction) -> str:
    """Return the text for a person whose message about something else ends an action."""
    return with_tools_already_run(stored, texts_of(stored).dropped(stored.action.preview))


def with_tools_already_run(stored: StoredAction, text: str) -> str:
    """Return the outcome of an action with a line that names the tools that have run already.

    These tools ran in the same run of the agent as the proposal, and needed no yes. Without the
    line, "nothing was done" would be wrong about them. The text may be a stored outcome, which has
    the line already.
    """
    names = stored.action.ran_beside
    if not names:
        return text
    line = f"\n{texts_of(stored).ran_beside(names)}"
    if line in text:
        return text
    return f"{text}{line}"


def decision_of_turn(
    context: TurnContext,
    stored: StoredAction,
    answer: DecisionAnswer,
    signer: ActionSigner,
    *,
    grants: StandingYes | None = None,
) -> DecisionRecord | None:
    """Return the sealed record of what the person of this turn answers to an action.

    `grants`: the standing yes that the person gives with it, None for none.

    None if other people decide, and this turn brings the vote of one of them: votes are stored apart.
    """
    if not context.turn.is_of_sender:
        return None
    record = DecisionRecord.of_turn(
        context.turn,
        stored.action_id,
        stored.mac,
        answer,
        at=round(context.received_at, 3),
    )
    if grants is not None:
        record = replace(
            record,
            standing_yes=grants.id,
            uses=grants.times,
            stands_until=grants.expires_at,
        )
    return record.sealed(signer)


def decision_under_standing_yes(
    context: TurnContext, stored: StoredAction, use: StandingUse, signer: ActionSigner
) -> DecisionRecord:
    """Return the sealed record of an action that runs under a standing yes of its person."""
    turn = context.turn
    record = DecisionRecord(
        action_id=stored.action_id,
        record_mac=stored.mac,
        answer="yes",
        form="standing",
        channel=turn.conversation.channel,
        user_id=turn.user_id,
        conversation=turn.conversation.id,
        event_id=turn.event_id,
        at=round(context.received_at, 3),
        user_name=turn.user_name,
        standing_yes=use.before.id,
        use=len(use.after.used),
        uses=use.before.times,
        stands_until=use.before.expires_at,
    )
    return record.sealed(signer)


def denied_transition(
    context: TurnContext, stored: StoredAction, signer: ActionSigner
) -> Transition:
    """Return the transition of an action to which its person says no in this turn."""
    transition = cancel_with_text(stored, context.turn, cancelled_text(stored))
    return replace(transition, decision=decision_of_turn(context, stored, "no", signer))


def dropped_transition(stored: StoredAction, turn: Turn) -> Transition:
    """Return the transition of an action that this turn ends with another message."""
    return cancel_with_text(stored, turn, dropped_text(stored))


def cancelled_or_expired_transition(
    context: TurnContext, stored: StoredAction, outcome_text: str
) -> Transition:
    """Return the transition that cancels an action with this text.

    If the time of the action was over before the turn came in, it is expired instead, with the text
    for that.
    """
    if not stored.action.is_expired(context.received_at):
        return cancel_with_text(stored, context.turn, outcome_text)
    expired = with_tools_already_run(stored, texts_of(stored).expired(stored.action.preview))
    return Transition(
        action_id=stored.action_id,
        from_states=WAITING_STATES,
        to="expired",
        outcome_text=expired,
        decided_by_event=context.turn.event_id,
    )


def cancel_with_text(stored: StoredAction, turn: Turn, outcome_text: str) -> Transition:
    """Return the transition that cancels an action that waits, with this text for its person."""
    return Transition(
        action_id=stored.action_id,
        from_states=WAITING_STATES,
        to="cancelled",
        outcome_text=outcome_text,
        decided_by_event=turn.event_id,
    )
