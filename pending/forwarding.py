"""What one conversation sends to another: replies, questions, their endings, and turns.

Two conversations may be in different shards of Redis, which no single script can change. So what
goes to another conversation waits in the outbox of the sending one, stored in the same step as
everything else of the turn. A worker then moves it, once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.types import Conversation, Reply, Turn
from sayso.infra.records import versioned
from sayso.infra.tracing import current_trace
from sayso.pending.action import ActionState
from sayso.pending.turn_changes import NewAction, outbox_entry


@dataclass(frozen=True, slots=True)
class ForwardedReply:
    """A reply that the other conversation sends."""

    to: Conversation
    reply: Reply

    def entry(self) -> str:
        """Return the outbox entry."""
        return outbox_entry(self.to, self.reply, forward=True)


@dataclass(frozen=True, slots=True)
class ForwardedQuestion:
    """A question that the other conversation asks, with the action that is stored there."""

    to: Conversation
    #: The messages of the question: one, or several for a long preview. The last one asks.
    messages: tuple[Reply, ...]
    action: NewAction

    def entry(self) -> str:
        """Return the outbox entry."""
        messages = [outbox_entry(self.to, each) for each in self.messages]
        return _entry(self.to, messages=messages, action=self.action)


@dataclass(frozen=True, slots=True)
class QuestionEnding:
    """The end of a question that was forwarded, and the reply that replaces its message."""

    to: Conversation
    action_id: str
    #: `superseded` if the question needs no answer any more, or `expired`.
    state: ActionState
    #: What a later tap on the question is told.
    outcome_text: str
    #: What replaces the message. The id of the message is filled in where it is known.
    reply: Reply

    def entry(self) -> str:
        """Return the outbox entry."""
        ends = {
            "action_id": self.action_id,
            "state": self.state,
            "outcome_text": self.outcome_text,
        }
        return _entry(self.to, ends=ends, ending=outbox_entry(self.to, self.reply))


@dataclass(frozen=True, slots=True)
class ForwardedTurn:
    """A turn for the other conversation. It may be about an action there."""

    turn: Turn
    #: The id of the action that the turn is about.
    action_id: str
    #: When it came in where it comes from, in Unix seconds: it counts as received then.
    received_at: float

    def entry(self) -> str:
        """Return the outbox entry. While tracing is on, the turn becomes a part of this trace."""
        turn = replace(self.turn, trace=current_trace())
        return _entry(
            self.turn.conversation,
            turn=turn.to_json(),
            user=self.turn.scope.id,
            action_id=self.action_id,
            received_at=round(self.received_at * 1000),
        )


def _entry(to: Conversation, **parts: Any) -> str:
    """Return an outbox entry for another conversation, without a reply for this one."""
    data: dict[str, Any] = {"forward": True, "to": [to.channel, to.chat, to.thread]}
    for name, part in parts.items():
        data[name] = part.to_dict() if isinstance(part, NewAction) else part
    trace = current_trace()
    if trace:
        data["trace"] = trace
    return versioned(json.dumps(data))
