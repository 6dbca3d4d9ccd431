"""What one conversation sends to another: replies, questions, the ends of questions, and turns.

Two conversations may be in different shards of Redis, and no script can change both. So each of
these values becomes an entry in the outbox of the sending conversation. It is stored in the same
step as everything else of the turn. A worker then moves the entry to the other conversation, once
(`RedisOutbox.forward_entry`).

Each class has a method `entry`, which returns the outbox entry as text (`Forward`).
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
    """A reply that is sent in the other conversation."""

    #: The other conversation, here and in the classes below.
    to: Conversation
    reply: Reply

    def entry(self) -> str:
        """Return the outbox entry."""
        return outbox_entry(self.to, self.reply, forward=True)


@dataclass(frozen=True, slots=True)
class ForwardedQuestion:
    """A question that is asked in the other conversation. Its action is stored there."""

    to: Conversation
    #: The messages of the question: one, or several for a long preview. The last one has the
    #: buttons.
    messages: tuple[Reply, ...]
    action: NewAction

    def entry(self) -> str:
        """Return the outbox entry."""
        messages = [outbox_entry(self.to, each) for each in self.messages]
        return _entry(self.to, messages=messages, action=self.action)


@dataclass(frozen=True, slots=True)
class QuestionEnding:
    """The end of a forwarded question, and the reply that replaces its message."""

    to: Conversation
    #: The id of the action of the question, which is stored in the other conversation.
    action_id: str
    #: The state that the action enters: `superseded` if the question needs no answer any more, or
    #: `expired`.
    state: ActionState
    #: The text for people who tap the question later.
    outcome_text: str
    #: The reply that replaces the message. The script fills in the id of the message.
    reply: Reply

    def entry(self) -> str:
        """Return the outbox entry."""
        question = {
            "action_id": self.action_id,
            "state": self.state,
            "outcome_text": self.outcome_text,
        }
        return _entry(self.to, question=question, ending=outbox_entry(self.to, self.reply))


@dataclass(frozen=True, slots=True)
class ForwardedTurn:
    """A turn for the other conversation, such as a vote about an action there."""

    #: The turn. Its `conversation` is the other one.
    turn: Turn
    #: The id of the action that the turn is about.
    action_id: str
    #: When the turn counts as received in the other conversation, in Unix seconds: when the sending
    #: conversation received the message that caused it.
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
    """Return the outbox entry that holds the parts for another conversation, by their names.

    The sender (`forward_entry`) tells the kinds of entries apart by these names.
    """
    data: dict[str, Any] = {"forward": True, "to": [to.channel, to.chat, to.thread]}
    for name, part in parts.items():
        data[name] = part.to_dict() if isinstance(part, NewAction) else part
    trace = current_trace()
    if trace:
        data["trace"] = trace
    return versioned(json.dumps(data))
