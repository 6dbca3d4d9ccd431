"""Ingress: stores what platforms send: turns, delivery statuses, address changes and alerts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from sayso.channels.base import Overloaded
from sayso.channels.types import AddressChange, Received, RefusedTemplate, StatusUpdate, Turn
from sayso.infra import tracing
from sayso.infra.metrics import DELIVERY_REPORTS, OTHER, TURNS_RECEIVED, of_labels
from sayso.pending.action import split_button_token
from sayso.workers.alerts import AlertKind, RedisAlerts
from sayso.workers.deliveries import REPORTS, RedisDeliveries, split_id
from sayso.workers.mailbox import Accepted

log = logging.getLogger(__name__)

#: Statuses of a reply that prove that its channel works.
_ARRIVED = ("sent", "delivered", "read")
#: Statuses of a reply that prove that the person has it. "sent" does not: Twilio reports a template
#: as sent, and Meta may refuse the template a moment later.
_READABLE = ("delivered", "read")


class Ingress:
    """Stores what a webhook brought: turns, delivery statuses, address changes and alerts.

    One per process.
    """

    def __init__(
        self, accept: Callable[..., Accepted], *, deliveries: RedisDeliveries, alerts: RedisAlerts
    ) -> None:
        """`accept`: takes what `RedisMailbox.accept` takes. It is the method of the spool or of
        access control, which pass on to the mailbox what they let through.
        """
        self._accept_turn = accept
        self._deliveries = deliveries
        self._alerts = alerts

    def store(self, channel: str, received: Received) -> None:
        """Store all that a channel received.

        Raises Overloaded, StorageDown and redis.RedisError: the platform must send it again. What
        was stored before the error is recognized then.
        """
        # Address changes come before the statuses. To store an address change, the script compares
        # the time of a reply with the time of the person's last message. A status that reports a
        # failure replaces the time of the reply.
        for change in filter(_is_storable_address, received.addresses):
            self._store_address(change)
        for update in received.statuses:
            self._store_status(channel, update)
        # An alert is noted after older ones are cleared, so that none of this webhook is cleared.
        self._clear_alerts(channel, received)
        self._note_alerts(channel, received)
        if received.ignored:
            log.info("hook.ignored", extra={"channel": channel, "reason": received.ignored})

        if received.turns:
            # For `sayso doctor`, which says how long nothing has come in.
            self._alerts.record_message(channel)
        # A refused turn ends the loop: the turns behind it come again with it, in their order.
        for turn in filter(_is_storable, received.turns):
            self._accept(turn)

    def _clear_alerts(self, channel: str, received: Received) -> None:
        """Clear the alerts that a webhook proves to be over."""
        # A turn proves that the bot receives what the platform sends. Where the bot asks the
        # platform for updates, an answer without updates (`is_contact`) proves it, too.
        if received.turns or received.is_contact:
            self._alerts.clear(channel, "receiving")
        # A reply that arrived proves that its channel delivers. A template that a person has proves
        # that the platform accepts templates.
        if any(update.status in _ARRIVED for update in received.statuses):
            self._alerts.clear(channel, "delivering")
        if any(update.status in _READABLE and update.template for update in received.statuses):
            self._alerts.clear(channel, "templates")

    def _note_alerts(self, channel: str, received: Received) -> None:
        """Store and log what the platform tells the operator."""
        # A webhook with a status is about a reply, so its alert says why replies do not arrive. An
        # alert without a status says why nothing comes in, such as a revoked token.
        kind: AlertKind = "delivering" if received.statuses else "receiving"
        for alert in received.alerts:
            log.error("channel.alert", extra={"channel": channel, "reason": alert})
            self._alerts.note(channel, alert, kind)
        for refusal in received.refused_templates:
            log_refused_template(channel, refusal)
            self._alerts.note(channel, refusal.alert, "templates")

    def _store_status(self, channel: str, update: StatusUpdate) -> None:
        """Store what a platform reports about a reply, and count and log the report."""
        # Without an error the delivery keeps its own reason, such as the error of a model.
        reason = ""
        if update.error_code:
            reason = f"error {update.error_code}"
        # Stays empty for a reply that is not known.
        stored_state = ""
        if update.delivery:
            stored_state = self._deliveries.report(
                update.delivery, update.message_id, update.status, reason
            )

        # A platform may send any status: the labels of a metric must be few.
        label = OTHER
        if update.status in REPORTS:
            label = update.status
        DELIVERY_REPORTS.labels(channel, label).inc()

        level = logging.INFO
        if update.status in ("failed", "undelivered"):
            level = logging.WARNING
        extra = {
            "delivery": update.delivery or "-",
            "status": update.status,
            "code": update.error_code or "-",
            "kept": stored_state or "-",
        }
        log.log(level, "reply.status", extra=extra)

    def _store_address(self, change: AddressChange) -> None:
        """Store that an address takes no messages any more, or takes them again."""
        # The report is about an address, such as a phone number, and the person's conversation may
        # have another id. If the report names a reply, the reply's id has the right one, and the
        # number of the reply in it; 0 for no reply.
        conversation = change.conversation.id
        number = 0
        if change.delivery:
            conversation, number = split_id(change.delivery)
        extra = {
            "conversation": conversation,
            "closed": change.closed or "-",
            "opted_out": change.opted_out,
        }
        log.info("address.changed", extra=extra)
        self._deliveries.close(
            conversation,
            change.closed,
            late=change.late,
            opted_out=change.opted_out,
            number=number,
        )

    def _accept(self, turn: Turn) -> None:
        """Put a turn into the mailbox.

        Raises Overloaded if there is no room for it. A turn that access control turns away is
        dropped, since it would come back unchanged.
        """
        # The action whose question has the tapped button, "" for none.
        tapped_action_id = ""
        if turn.tap:
            parts = split_button_token(turn.tap.data)
            if parts:
                tapped_action_id = parts[0]
            elif turn.tap.label:
                # The button is of a message that the business sent without this bot. Its label is
                # what the person says. A tap without a label stays, and is answered as outdated.
                turn = replace(turn, text=turn.tap.label, tap=None, kind="choice")

        channel = turn.conversation.channel
        with tracing.span(
            f"accept {channel}", kind="producer", attributes={tracing.CHANNEL: channel}
        ) as span:
            trace = tracing.current_trace()
            if trace:
                turn = replace(turn, trace=trace)
            accepted = self._accept_turn(turn, tapped=tapped_action_id)
            span.set_attribute(tracing.OUTCOME, accepted.outcome)

        ids = {"conversation": turn.conversation.id, "seq": accepted.seq, "event": turn.event_hash}
        of_labels(TURNS_RECEIVED, channel, accepted.outcome).inc()
        log.info("turn.accepted", extra={**ids, "outcome": accepted.outcome})
        if accepted.refused:
            raise Overloaded(f"the mailbox has no room: {accepted.outcome}")


def log_refused_template(channel: str, refusal: RefusedTemplate) -> None:
    """Log for an operator that a platform refuses a template.

    A platform says so when a reply is sent (`sender.py`), or later in a webhook.
    """
    fields = {"template": refusal.template, "reason": refusal.reason, "cure": refusal.cure}
    log.error("template.refused", extra={"channel": channel, **fields})


def _is_storable_address(change: AddressChange) -> bool:
    """Return whether the address is valid text.

    A platform would repeat an invalid address unchanged, so it is dropped.
    """
    try:
        change.conversation.address.encode()
    except UnicodeEncodeError:
        log.error("address.malformed", extra={"channel": change.conversation.channel})
        return False
    return True


def _is_storable(turn: Turn) -> bool:
    """Return whether a worker can read the turn.

    A platform would repeat a malformed turn unchanged, so it is dropped.
    """
    try:
        # `to_json` alone would write any object where a text should be.
        Turn.from_json(turn.to_json())
    except (ValueError, TypeError) as exc:
        # Only the type is logged: the message of the error would repeat the payload.
        log.error(
            "turn.malformed",
            extra={"channel": turn.conversation.channel, "reason": type(exc).__name__},
        )
        return False
    return True
