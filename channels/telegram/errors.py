"""Telegram's errors: what each of them means for a call of the Bot API, and for an operator."""

from __future__ import annotations

import re
from typing import Any, Literal

from sayso.channels.base import (
    AddressClosed,
    ChannelDown,
    DeliveryUncertain,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from sayso.channels.setup import Problem, no_connection, too_many_calls

#: What follows from an error. `wait`: try again later. `moved`: send to the chat's new id, once. `done`: nothing is
#: left to do. `plain`: send again without formatting. `caption`: edit the caption of a file instead. `anew`: send as a
#: new message. `document`: send the file without preview. `link`: send a link to the file. `closed`, `down`, `refused`,
#: `unsent` and `unknown` are errors of the channel.
TelegramReaction = Literal[
    "wait", "moved", "done", "plain", "caption", "anew", "document", "link",
    "closed", "down", "refused", "unsent", "unknown",
]  # fmt: skip

#: Rows of: the name of PTB's error class, which stands for the HTTP status; a pattern in its text; the reaction. The
#: first match counts. In PTB, BadRequest and TimedOut are subclasses of NetworkError, so they come before it.
REACTIONS: tuple[tuple[str, str, TelegramReaction], ...] = (
    ("RetryAfter", "", "wait"),
    ("ChatMigrated", "", "moved"),
    ("InvalidToken", "method not found", "refused"),
    ("InvalidToken", "", "down"),
    ("Forbidden", "", "closed"),
    ("Conflict", "", "refused"),
    ("BadRequest", "message is not modified", "done"),
    ("BadRequest", "query is too old", "done"),
    ("BadRequest", "chat not found", "closed"),
    ("BadRequest", "can't parse entities", "plain"),
    ("BadRequest", "there is no text in the message to edit", "caption"),
    (
        "BadRequest",
        "message (to edit not found|can't be edited|identifier is not specified)|message_id_invalid",
        "anew",
    ),
    ("BadRequest", "photo_|image_process_failed|voice_messages_forbidden", "document"),
    ("BadRequest", "file is too big|request entity too large", "link"),
    ("BadRequest", "", "refused"),
    ("NeverSent", "", "unsent"),
    ("TimedOut", "", "unknown"),
    ("NetworkError", "too many requests", "wait"),
    ("NetworkError", "request entity too large|content too large", "link"),
    ("", "", "unknown"),
)
#: How many seconds to wait if Telegram limits the rate and does not say for how long.
DEFAULT_WAIT = 1.0


def reaction(exc: Exception) -> TelegramReaction:
    """Return what follows from an error of PTB."""
    kinds = {kind.__name__ for kind in type(exc).__mro__} | {""}
    text = str(exc).lower()
    return next(result for kind, pattern, result in REACTIONS if kind in kinds and re.search(pattern, text))


def send_error(exc: Exception) -> SendError:
    """Return the channel's error for an error of PTB, without token, URL or any text of the message."""
    # After a colon, Telegram's text may quote the message.
    reason = f"{type(exc).__name__}: {str(exc).partition(':')[0][:80]}"
    match reaction(exc):
        case "wait":
            wait: Any = getattr(exc, "retry_after", DEFAULT_WAIT)
            return RateLimited(float(wait.total_seconds() if hasattr(wait, "total_seconds") else wait))
        case "closed":
            return AddressClosed(reason)
        case "down":
            return ChannelDown("Telegram does not know this token: it was revoked or is wrong")
        case "unsent":
            return Unreachable("no connection to Telegram")
        case "unknown":
            return DeliveryUncertain("no clear answer from Telegram")
        case "link":
            return Refused("the message or its file is too large for Telegram")
    return Refused(reason)


def setup_problem(channel: str, exc: Exception) -> Problem | None:
    """Return what an error of PTB means for an operator, None if it could be of any platform."""
    from telegram import error

    from sayso.channels.telegram.client import NeverSent

    if isinstance(exc, error.InvalidToken):
        cure = f"copy the bot's token from @BotFather again, to where channels.{channel}.token comes from"
        return "Telegram does not know this token", cure
    if isinstance(exc, error.RetryAfter):
        return too_many_calls("Telegram")
    if isinstance(exc, (error.BadRequest, error.Forbidden, error.Conflict)):
        return f"Telegram refuses: {exc}", "correct what it names; public_url must be reachable from outside"
    return no_connection("Telegram") if isinstance(exc, NeverSent) else None
