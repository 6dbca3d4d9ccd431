"""Door: what platforms tell comes in here, however they tell it: it is kept, or whoever brought it comes again."""

from __future__ import annotations

import logging
from dataclasses import replace

from redis.exceptions import RedisError

from sayso.channels.types import AddressChange, Received, StatusUpdate, Turn
from sayso.config.wiring.bootstrap import Services, check_redis
from sayso.pending.signing import split_button

log = logging.getLogger(__name__)

#: Statuses of a reply that show that its channel works.
_ARRIVED = ("sent", "delivered", "read")


class Overloaded(Exception):
    """Raised when a turn was refused: the platform is to send it again."""


class Ingress:
    """The door of one process. Lives as long as it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def open(self) -> None:
        """What goes on beside it, from its process's fork on: it watches its Redis and empties the spool."""
        if tide := self._services.tide:
            tide.watch()
        if self._services.spool:
            self._services.spool.watch()

    def keep(self, channel: str, received: Received) -> None:
        """Keep all that a channel heard. Raises TooMany, redis.RedisError, SpoolUnusable: it must come again."""
        for status in received.statuses:
            self._note(status)
        for alert in received.alerts:
            log.error("channel.alert", extra={"channel": channel, "reason": alert})
            self._services.alerts.note(channel, alert, "arriving" if received.statuses else "hearing")
        if any(status.status in _ARRIVED for status in received.statuses):
            self._services.alerts.clear(channel, "arriving")
        for news in filter(_is_an_address, received.addresses):
            log.info("address.news", extra={"conversation": news.conversation.id, "closed": news.closed or "-"})
            self._services.deliveries.close(news.conversation.id, news.closed, late=news.late)
        if received.ignored:
            log.info("hook.ignored", extra={"channel": channel, "reason": received.ignored})
        for turn in filter(_is_storable, received.turns):
            self._services.alerts.clear(channel, "hearing")
            self._accept(turn)

    def heard(self, channel: str) -> None:
        """Forget an alert of a channel that its platform was asked, and answered."""
        self._services.alerts.clear(channel, "hearing")

    def _note(self, status: StatusUpdate) -> None:
        """Log what a platform says of a reply, and keep it with the delivery."""
        kept, code = "", status.error_code or "-"
        if status.delivery:
            reason = f"error {code}"
            kept = self._services.deliveries.report(status.delivery, status.message_id, status.status, reason)
        level = logging.WARNING if status.status in ("failed", "undelivered") else logging.INFO
        extra = {"delivery": status.delivery or "-", "status": status.status, "code": code, "kept": kept or "-"}
        log.log(level, "reply.status", extra=extra)

    def _accept(self, turn: Turn) -> None:
        reason = self._services.gate.ignores(turn)
        if reason:  # not even the spool's disk keeps it
            log.info("turn.ignored", extra={"conversation": turn.conversation.id, "reason": reason})
            return
        parts = split_button(turn.tap.data) if turn.tap else None
        if turn.tap and parts is None and turn.tap.label:  # a button of the business's own: its label is what they say
            turn = replace(turn, text=turn.tap.label, tap=None, kind="choice")
        door = self._services.spool or self._services.gate
        accepted = door.accept(turn, tapped=parts[0] if parts else "")
        log.info("turn.accepted", extra={"conversation": turn.conversation.id, "outcome": accepted.outcome})
        if accepted.refused:
            raise Overloaded("this conversation has too many messages waiting")


def check_redis_if_there(services: Services) -> None:
    """Refuse a Redis that would lose what we keep. One that is away is no reason to stop: platforms wait."""
    try:
        check_redis(services)
    except RedisError as exc:
        log.warning("redis.away", extra={"reason": type(exc).__name__})


def _is_an_address(news: AddressChange) -> bool:
    """Whether anything can be kept under it. As with turns, a repetition would bring the same."""
    try:
        news.conversation.address.encode()
    except UnicodeEncodeError:
        log.error("address.malformed")
        return False
    return True


def _is_storable(turn: Turn) -> bool:
    """Whether a worker can read it. A payload that bends a field would be bent each time the platform repeats it."""
    try:
        Turn.from_json(turn.to_json())  # written alone, nothing passes for a text
    except (ValueError, TypeError) as exc:  # its message would repeat the payload
        log.error("turn.malformed", extra={"reason": type(exc).__name__})
        return False
    return True
