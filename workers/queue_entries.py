"""The entries of a conversation's queues and of its last deliveries, as the Lua scripts store them.

An entry is a short text with a JSON record at its end, so that a script can read the numbers
without parsing the record. In `pending/lua/shared/`, `parse_turn` (`inbox.lua`) and `parse_reply`
(`outbox.lua`) read the same entries.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from sayso.pending.turn_changes import ReplyRole

#: Stands for an action where an entry names none.
_NO_ACTION = "-"
#: Stands for the platform's id of a message where an entry has none.
_NO_RECEIPT = "-"


class InboxEntry(NamedTuple):
    """A turn that waits in the inbox of its conversation."""

    #: The number of the turn.
    seq: int
    #: When the turn was received, in Unix milliseconds by the server's clock.
    received_ms: int
    #: The id of its person's scope.
    user: str
    #: The id of the action whose button the turn taps, "" for none.
    tapped_action_id: str
    #: The turn as JSON (`Turn.to_json`).
    turn: str

    @classmethod
    def parse(cls, entry: str) -> InboxEntry:
        """Read an entry. Raises ValueError for a text that is none."""
        seq, received_ms, user, tapped_action_id, turn = entry.split(" ", 4)
        return cls(
            seq=int(seq),
            received_ms=int(received_ms),
            user=user,
            tapped_action_id=tapped_action_id.removeprefix(_NO_ACTION),
            turn=turn,
        )


class OutboxEntry(NamedTuple):
    """A reply that waits in the outbox of its conversation."""

    #: The number of the reply.
    number: int
    #: The id of the action that the reply belongs to, "" for none.
    action_id: str
    #: What the reply says about that action, "" for a reply without one.
    role: ReplyRole
    #: The reply and its address as JSON (`outbox_entry`).
    record: str

    @classmethod
    def parse(cls, entry: str) -> OutboxEntry:
        """Read an entry. Raises ValueError for a text that is none."""
        number, header, record = entry.split(" ", 2)
        fields = json.loads(header)
        return cls(
            number=int(number),
            action_id=fields.get("action_id", ""),
            role=fields.get("role", ""),
            record=record,
        )


class DeliveryEntry(NamedTuple):
    """What became of one of the last replies of a conversation.

    `parse_delivery` in `workers/lua/shared/deliveries.lua` reads the same entries.
    """

    #: A `DeliveryState`.
    state: str
    #: Since when the delivery is in this state, in Unix milliseconds by the server's clock.
    at_ms: int
    #: How often sending was tried.
    attempts: int
    #: The platform's id of the message, "" for none.
    receipt: str
    #: Why the reply did not arrive, or what the platform reported; "" for nothing.
    reason: str

    @classmethod
    def parse(cls, entry: str) -> DeliveryEntry:
        """Read an entry. Raises ValueError for a text that is none."""
        # An entry without a reason ends with a space or with the receipt. The script reads both.
        state, at_ms, attempts, receipt, *reason = entry.split(" ", 4)
        if receipt == _NO_RECEIPT:
            receipt = ""
        return cls(
            state=state,
            at_ms=int(at_ms),
            attempts=int(attempts),
            receipt=receipt,
            reason="".join(reason),
        )
