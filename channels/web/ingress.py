"""Ingress: verifies, parses and stores what platforms send, before they get an answer.

WebhookMiddleware stands in front of Flask because Flask's routing takes as long as all of that together. What it cannot
take goes on to Flask together with the error, and Flask answers. A poller hands what it received to Ingress directly.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

from werkzeug.exceptions import abort
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.wsgi import get_input_stream, get_path_info

from sayso.channels.base import BadHook, Channel, Forbidden, Overloaded
from sayso.channels.types import AddressChange, Received, Turn, WebhookRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

#: The most bytes of a webhook's body. Platforms send far fewer; files come as links.
MAX_BODY = 1_000_000
#: The key in the WSGI environment that holds the error of a webhook that was not taken.
WEBHOOK_ERROR = "sayso.webhook_error"

#: A bad request is logged once in this many seconds for each sender; this many senders are remembered.
LOG_SECONDS, MAX_SENDERS = 60.0, 1000
#: How many characters of a reason distinguish it from others. The rest may be text of the sender.
REASON_CHARS = 24

#: The path of a webhook, as the routes in `sayso.channels.web.app`: the channel's name, and what follows it.
_PATH = re.compile(r"/*hooks/([^/]+)(?:/([^/].*?))?/?")
#: Statuses of a reply that prove that its channel works.
_ARRIVED = ("sent", "delivered", "read")
#: The kinds of alerts. `receiving`: nothing comes in. `delivering`: replies do not reach people.
IngressAlert = Literal["receiving", "delivering"]


class WebhookMiddleware:
    """A WSGI app that takes the webhooks of known channels and passes all other requests to `app`. One per process."""

    def __init__(
        self, app: WSGIApplication, channels: Mapping[str, Channel], ingress: Ingress, *, public_url: str
    ) -> None:
        self._app, self._channels, self._ingress, self._public_url = app, channels, ingress, public_url
        self._log_limit = LogLimit()
        #: The path of `public_url`, "" for none. A proxy may pass it on or remove it.
        self._prefix = urlsplit(public_url).path.rstrip("/")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if self._prefix:  # links that Flask makes get it back
            environ["SCRIPT_NAME"] = self._prefix
            for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
                if str(environ.get(name, "")).startswith(f"{self._prefix}/"):
                    environ[name] = str(environ[name]).removeprefix(self._prefix)
        path = _PATH.fullmatch(get_path_info(environ)) if environ["REQUEST_METHOD"] == "POST" else None
        channel = self._channels.get(path[1]) if path else None
        if not path or not channel:
            return self._app(environ, start_response)
        try:
            received = self._receive(channel, environ, path[2] or "")
            self._ingress.store(channel.name, received)
        except Exception as exc:  # noqa: BLE001  # Flask answers for it, as for an error raised by a view
            environ[WEBHOOK_ERROR] = exc
            return self._app(environ, start_response)
        answer, body = received.answer, received.answer.body.encode()
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(body)))]
        start_response(f"{answer.status} {HTTP_STATUS_CODES[answer.status]}", headers)
        return [body]

    def _receive(self, channel: Channel, environ: WSGIEnvironment, path: str) -> Received:
        path_and_query = f"{get_path_info(environ)}?{environ.get('QUERY_STRING', '')}".rstrip("?")
        raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or path_and_query
        webhook = WebhookRequest(
            url=self._public_url + str(raw),  # the URL that the platform was given; behind a proxy ours is another
            headers={name: value for key, value in environ.items() if (name := _header_name(key)) and value},
            body=get_input_stream(environ, max_content_length=MAX_BODY).read(),
            path=path,
            now=time.time(),
        )
        try:
            return channel.receive(webhook)
        except Forbidden as exc:
            # The URL that the signature covers, without its query, which may hold anything.
            url = webhook.url.partition("?")[0][:200]
            self._warn("hook.forbidden", environ, channel=channel.name, url=url, reason=str(exc))
            abort(403)
        except BadHook as exc:
            self._warn("hook.bad", environ, channel=channel.name, reason=str(exc))
            abort(400)

    def _warn(self, event: str, environ: WSGIEnvironment, **extra: str) -> None:
        address = str(environ.get("REMOTE_ADDR", ""))
        omitted = self._log_limit.omitted((address, event, extra["channel"], extra["reason"][:REASON_CHARS]))
        if omitted is not None:
            log.warning(event, extra={**extra, "address": address, "others_before": omitted})


class LogLimit:
    """Limits a log to one line a minute for each sender of bad requests, so that a flood does not fill the disk.

    One per process; used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._senders: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def omitted(self, sender: Hashable) -> int | None:
        """Return how many lines of this sender were omitted since the last one; None to omit this one too."""
        now = time.monotonic()
        with self._lock:
            at, omitted = self._senders.get(sender, (-math.inf, 0))
            if now - at < LOG_SECONDS:
                self._senders[sender] = at, omitted + 1
                return None
            self._senders[sender] = now, 0
            self._senders.move_to_end(sender)
            while len(self._senders) > MAX_SENDERS:
                self._senders.popitem(last=False)
            return omitted


@lru_cache(maxsize=256)
def _header_name(key: str) -> str:
    """Return the header's lower-case name for a WSGI key such as HTTP_X_NAME, "" for other keys."""
    name = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else key[5:] if key.startswith("HTTP_") else ""
    return name.lower().replace("_", "-")


class Acceptance(Protocol):
    """What became of a turn. `refused`: it was not stored, and its platform must send it again."""

    @property
    def outcome(self) -> str:
        """One word for the log."""

    @property
    def seq(self) -> int:
        """The number of the turn in its conversation, for a repetition that of the first one; 0 while it has none."""

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
        for update in received.statuses:
            stored, code = "", update.error_code or "-"
            if update.delivery:
                stored = self._deliveries.report(update.delivery, update.message_id, update.status, f"error {code}")
            level = logging.WARNING if update.status in ("failed", "undelivered") else logging.INFO
            extra = {"delivery": update.delivery or "-", "status": update.status, "code": code, "kept": stored or "-"}
            log.log(level, "reply.status", extra=extra)
        for alert in received.alerts:
            log.error("channel.alert", extra={"channel": channel, "reason": alert})
            self._alerts.note(channel, alert, "delivering" if received.statuses else "receiving")
        if any(update.status in _ARRIVED for update in received.statuses):
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

    def _accept(self, turn: Turn) -> None:
        action = self._action_of(turn.tap.data) if turn.tap else ""
        if turn.tap and not action and turn.tap.label:  # a button of the business's own: its label is what they say
            turn = replace(turn, text=turn.tap.label, tap=None, kind="choice")
        accepted = self._inbox.accept(turn, tapped=action)
        ids = {"conversation": turn.conversation.id, "seq": accepted.seq, "event": turn.event_hash}
        log.info("turn.accepted", extra={**ids, "outcome": accepted.outcome})
        if accepted.refused:
            raise Overloaded("this conversation has too many messages waiting")


def _is_storable_address(change: AddressChange) -> bool:
    """Return whether the address is valid text. A platform would repeat an invalid one unchanged, so it is dropped."""
    try:
        change.conversation.address.encode()
    except UnicodeEncodeError:
        log.error("address.malformed", extra={"channel": change.conversation.channel})
        return False
    return True


def _is_storable(turn: Turn) -> bool:
    """Return whether a worker can read the turn. A malformed one would be malformed in each repetition: drop it."""
    try:
        Turn.from_json(turn.to_json())  # to_json alone accepts any object where a text should be
    except (ValueError, TypeError) as exc:  # the message would repeat the payload
        log.error("turn.malformed", extra={"channel": turn.conversation.channel, "reason": type(exc).__name__})
        return False
    return True
