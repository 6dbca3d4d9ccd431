"""What Telegram answers against a call, as data: which reaction follows, and which error where none helps."""

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

#: wait: after a while. moved: to the chat's new id, once. done: it is as it should be. plain: once more, unformatted.
#: caption: edit the words under the file instead. anew: as a message of its own. document: as a file without preview.
#: link: as an address to fetch the file from. closed, down, refused, unsent, unknown: the errors of a channel.
TelegramReaction = Literal[
    "wait",
    "moved",
    "done",
    "plain",
    "caption",
    "anew",
    "document",
    "link",
    "closed",
    "down",
    "refused",
    "unsent",
    "unknown",
]

#: By the name of PTB's error, which stands for the status, and by the words: the first row that fits counts. A row
#: without words is for all others. BadRequest and TimedOut are NetworkErrors to PTB: they must come before it.
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
#: Seconds to wait where Telegram says that there was too much, and not for how long.
DEFAULT_WAIT = 1.0


def reaction(exc: Exception) -> TelegramReaction:
    """What follows from an error of PTB."""
    kinds = {kind.__name__ for kind in type(exc).__mro__} | {""}
    said = str(exc).lower()
    return next(does for kind, words, does in REACTIONS if kind in kinds and re.search(words, said))


def send_error(exc: Exception) -> SendError:
    """An error of PTB in the words of the channel port: no token, no address and no word of the message in it."""
    match reaction(exc):
        case "wait":
            return RateLimited(_seconds(exc))
        case "closed":
            return AddressClosed(_reason(exc))
        case "down":
            return ChannelDown("Telegram does not know this token: it was revoked or is wrong")
        case "unsent":
            return Unreachable("no connection to Telegram")
        case "unknown":
            return DeliveryUncertain("no clear answer from Telegram")
        case "link":
            return Refused("what is sent is too large for Telegram")
    return Refused(_reason(exc))


def _seconds(exc: Any) -> float:
    wait = getattr(exc, "retry_after", DEFAULT_WAIT)
    return float(wait.total_seconds() if hasattr(wait, "total_seconds") else wait)


def _reason(exc: Exception) -> str:
    """The kind of refusal. What follows a colon may quote the message, so it is left out."""
    return f"{type(exc).__name__}: {str(exc).partition(':')[0][:80]}"
