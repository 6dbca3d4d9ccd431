"""Ingress: stores what a platform sent, whether it came by webhook or by polling."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Protocol

from sayso.channels.base import Overloaded
from sayso.channels.types import AddressChange, Received, StatusUpdate, Turn

log = logging.getLogger(__name__)

#: Statuses of a reply that prove that its channel works.
_ARRIVED = ("sent", "delivered", "read")

#: The kinds of alerts. `receiving`: nothing comes in. `delivering`: replies do not reach people.
IngressAlert = Literal["receiving", "delivering"]


class Acceptance(Protocol):
    """What became of a turn. `refused`: it was not stored, and its platform must send it again."""

    @property
    def outcome(self) -> str:
        """One word for the log."""

    @property
    def refused(self) -> bool:
        """Whether the platform must send the turn again."""


class TurnInbox(Protocol):
    """Stores turns."""

    def accept(self, turn: Turn, *, tapped: str = "") -> Acceptance:
        """Store a turn once. `tapped` is the id of the pending action that a button belongs to.

        Raises StorageDown, redis.RedisError.
        """


class DeliveryReports(Protocol):
    """Stores what platforms report about replies and addresses."""

    def report(self, delivery: str, message_id: str, status: str, reason: str) -> str:
        """Store the status of a reply, and return the status that is stored now, "" if the delivery is unknown."""

    def close(self, conversation: str, reason: str, *, late: bool = False) -> None:
        """Store that a conversation takes no replies any more, or with reason "" that it does again."""


class ChannelAlerts(Protocol):
    """Stores what an operator must know about a channel."""

    def note(self, channel: str, words: str, kind: IngressAlert) -> None:
        """Store an alert."""

    def clear(self, channel: str, kind: IngressAlert) -> None:
        """Delete an alert."""


class Ingress:
    """Stores turns, delivery statuses, address changes and alerts. One per process."""

    def __init__(
        self, inbox: TurnInbox, *, deliveries: DeliveryReports, alerts: ChannelAlerts, action_of: Callable[[str], str]
    ) -> None:
        """`action_of` returns the id of the pending action that a button's data names, "" for other buttons."""
        self._inbox = inbox
        self._deliveries, self._alerts, self._action_of = deliveries, alerts, action_of

    def store(self, channel: str, received: Received) -> None:
        """Store all that a channel received.

        Raises Overloaded, StorageDown and redis.RedisError: the platform must send it again. What was stored before
        the error is recognized then.
        """
        for status in received.statuses:
            self._store_status(status)
        for alert in received.alerts:
            log.error("channel.alert", extra={"channel": channel, "reason": alert})
            self._alerts.note(channel, alert, "delivering" if received.statuses else "receiving")
        if any(status.status in _ARRIVED for status in received.statuses):
            self._alerts.clear(channel, "delivering")
        for change in filter(_is_storable_address, received.addresses):
            extra = {"conversation": change.conversation.id, "closed": change.closed or "-"}
            log.info("address.changed", extra=extra)
            self._deliveries.close(change.conversation.id, change.closed, late=change.late)
        if received.ignored:
            log.info("hook.ignored", extra={"channel": channel, "reason": received.ignored})
        for turn in filter(_is_storable, received.turns):
            self._alerts.clear(channel, "receiving")
            self._accept(turn)

    def note_contact(self, channel: str) -> None:
        """Note that the channel's platform answered a poll: delete the alert that nothing comes in."""
        self._alerts.clear(channel, "receiving")

    def _store_status(self, update: StatusUpdate) -> None:
        stored, code = "", update.error_code or "-"
        if update.delivery:
            stored = self._deliveries.report(update.delivery, update.message_id, update.status, f"error {code}")
        level = logging.WARNING if update.status in ("failed", "undelivered") else logging.INFO
        extra = {"delivery": update.delivery or "-", "status": update.status, "code": code, "kept": stored or "-"}
        log.log(level, "reply.status", extra=extra)

    def _accept(self, turn: Turn) -> None:
        action = self._action_of(turn.tap.data) if turn.tap else ""
        if turn.tap and not action and turn.tap.label:  # a button of the business's own: its label is what they say
            turn = replace(turn, text=turn.tap.label, tap=None, kind="choice")
        accepted = self._inbox.accept(turn, tapped=action)
        log.info("turn.accepted", extra={"conversation": turn.conversation.id, "outcome": accepted.outcome})
        if accepted.refused:
            raise Overloaded("this conversation has too many messages waiting")


def _is_storable_address(change: AddressChange) -> bool:
    """Return whether the address is valid text. A platform would repeat an invalid one unchanged, so it is dropped."""
    try:
        change.conversation.address.encode()
    except UnicodeEncodeError:
        log.error("address.malformed")
        return False
    return True


def _is_storable(turn: Turn) -> bool:
    """Return whether a worker can read the turn. A malformed one would be malformed in each repetition: drop it."""
    try:
        Turn.from_json(turn.to_json())  # to_json alone accepts any object where a text should be
    except (ValueError, TypeError) as exc:  # the message would repeat the payload
        log.error("turn.malformed", extra={"reason": type(exc).__name__})
        return False
    return True
