"""Telegram's Bot API: the client of python-telegram-bot (PTB), and what its errors mean.

PTB's own HTTP client opens connections for one event loop. Ours sends PTB's requests over the
pooled connections that all adapters use.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from sayso.channels.base import (
    AddressBarred,
    AddressClosed,
    ChannelDown,
    ChatBarred,
    DeliveryUncertain,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from sayso.channels.setup import Problem, no_connection, too_many_calls
from sayso.channels.types import without_invisible
from sayso.infra.http import (
    ANSWER_SECONDS,
    CALL_SECONDS,
    CONNECT_SECONDS,
    never_sent,
    silence_url_logs,
)

if TYPE_CHECKING:
    from aiohttp import ClientSession, FormData
    from telegram import Bot
    from telegram.request import RequestData

#: The address of the Bot API.
TELEGRAM = "https://api.telegram.org"
#: What Sayso does about an error of Telegram. These are tried at once:
#:
#: * `moved`: send to the chat's new id;
#: * `done`: nothing, since the message is as it should be, or an answered tap is too old;
#: * `plain`: send again without formatting;
#: * `caption`: edit the caption of a file, since the message has no text;
#: * `anew`: send as a new message, since the old one cannot be edited;
#: * `document`: send the file without preview;
#: * `link`: send a link to the file;
#: * `chat`: send to the chat, since the topic is gone;
#: * `buttons`: send without the disabled buttons of a decided question.
#:
#: These become a SendError (see `send_error`):
#:
#: * `wait`: try again later;
#: * `barred`, `chat_barred`: the bot cannot write in this topic, or nowhere in the chat;
#: * `closed`: the chat takes no message;
#: * `down`: the token is wrong or revoked;
#: * `refused`: this message will never be taken;
#: * `unsent`: certainly not accepted;
#: * `unknown`: it may have arrived.
TelegramReaction = Literal[
    "wait",
    "moved",
    "done",
    "plain",
    "caption",
    "anew",
    "document",
    "link",
    "chat",
    "buttons",
    "barred",
    "chat_barred",
    "closed",
    "down",
    "refused",
    "unsent",
    "unknown",
]
#: Rows of: the name of PTB's error class, which stands for the HTTP status; a pattern in its text;
#: the reaction. The first match counts. In PTB, BadRequest and TimedOut are subclasses of
#: NetworkError, so they come before it.
REACTIONS: tuple[tuple[str, str, TelegramReaction], ...] = (
    ("RetryAfter", "", "wait"),
    ("ChatMigrated", "", "moved"),
    ("InvalidToken", "method not found", "refused"),
    ("InvalidToken", "", "down"),
    ("Forbidden", "", "closed"),
    ("Conflict", "", "refused"),
    ("BadRequest", "message is not modified", "done"),
    ("BadRequest", "query is too old", "done"),
    ("BadRequest", "message thread not found|topic_(deleted|id_invalid)", "chat"),
    ("BadRequest", "topic_closed", "barred"),
    (
        "BadRequest",
        "not enough rights to send (text )?messages|no rights to send a message"
        "|chat_write_forbidden|chat_(send_plain_forbidden|restricted|admin_required)"
        "|user_banned_in_channel|need administrator rights",
        "chat_barred",
    ),
    ("BadRequest", "chat not found", "closed"),
    ("BadRequest", "can't parse entities", "plain"),
    # A Bot API server before 10.3 does not know disabled buttons, and sees one without any action.
    ("BadRequest", "inline keyboard button|button_type_invalid", "buttons"),
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


def new_bot(token: str, api_url: str, session: ClientSession) -> Bot:
    """Return PTB's bot.

    `api_url` is the address of the Bot API server, `session` the pool of connections that is used.
    """
    from telegram import Bot
    from telegram.warnings import PTBDeprecationWarning, PTBUserWarning

    silence_url_logs()
    # PTB logs texts at DEBUG, and answers that it cannot parse at ERROR.
    logging.getLogger("telegram").setLevel(logging.CRITICAL)
    # PTB warns about its own attribute each time that Telegram asks us to wait.
    warnings.filterwarnings("ignore", message=r".*retry_after", category=PTBDeprecationWarning)
    # PTB wants us to call its own methods for these two. One parses all updates into objects, so
    # that a malformed update would hide all others. The other insists on a text, which an edit to a
    # rich message does not have.
    advice = r"Please use 'Bot\.(getUpdates|editMessageText)'"
    warnings.filterwarnings("ignore", message=advice, category=PTBUserWarning)

    request = request_type()(session)
    return Bot(
        token, f"{api_url}/bot", f"{api_url}/file/bot", request=request, get_updates_request=request
    )


@functools.cache
def request_type() -> Any:
    """Return the class of PTB's requests over our session.

    It is a function, because PTB takes long to import and only some processes need it.
    """
    from aiohttp import ClientError, ClientTimeout
    from telegram.error import NetworkError, TimedOut
    from telegram.request import BaseRequest

    class NeverSent(NetworkError):
        """Raised when there was no connection to Telegram, so that nothing was sent."""

    class PooledRequest(BaseRequest):
        """Sends PTB's requests through the pooled session of an event loop.

        The time limits of the session apply. A call may set its own limit for the next bytes of the
        answer, as a poll does.
        """

        #: How many seconds to wait for the next bytes of an answer.
        read_timeout = ANSWER_SECONDS

        def __init__(self, session: ClientSession) -> None:
            self._session = session

        async def initialize(self) -> None:
            """Do nothing: a session opens its connections when they are needed."""

        async def shutdown(self) -> None:
            """Do nothing: the session is closed with its event loop."""

        async def do_request(
            self,
            url: str,
            method: str,
            request_data: RequestData | None = None,
            read_timeout: Any = None,
            *_: Any,
            **__: Any,
        ) -> tuple[int, bytes]:
            """Return status and body of the answer.

            Raises NeverSent, TimedOut or NetworkError. They do not name the URL, which holds the
            token.
            """
            options: dict[str, Any] = {
                "data": _form(request_data),
                "headers": {"User-Agent": self.USER_AGENT},
            }
            if isinstance(read_timeout, int | float):
                options["timeout"] = ClientTimeout(
                    CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=read_timeout
                )
            try:
                async with self._session.request(
                    method, url, allow_redirects=False, **options
                ) as answer:
                    return answer.status, await answer.read()
            except (ClientError, OSError) as exc:
                # A time-out is an OSError too. The cause and its text may name the URL, so neither
                # is passed on.
                name = type(exc).__name__
                if never_sent(exc):
                    raise NeverSent(name) from None
                if isinstance(exc, TimeoutError):
                    raise TimedOut(name) from None
                raise NetworkError(name) from None

    return PooledRequest


def _form(request_data: RequestData | None) -> FormData | None:
    """Return the parameters and files of a request as a form, None for a request without any."""
    from aiohttp import FormData

    if request_data is None:
        return None
    # Telegram does not decode file names, so aiohttp must not encode them.
    form = FormData(request_data.json_parameters, quote_fields=False)
    for name, (filename, content, mime_type) in request_data.multipart_data.items():
        # aiohttp reads a file in parts. It would write bytes all at once, and block all other calls
        # meanwhile.
        file = BytesIO(content) if isinstance(content, bytes) else content
        form.add_field(name, file, filename=_sendable_name(filename), content_type=mime_type)
    return form


#: Characters that Telegram's server would read as the end of a file name, an escape or a folder,
#: with what is sent in their place.
_UNSENDABLE = str.maketrans({";": ",", '"': "'", "\\": "_", "/": "_"})


def _sendable_name(filename: str) -> str:
    """Return a file name that arrives unchanged in a form: one line, without special characters."""
    return without_invisible(filename.translate(_UNSENDABLE)) or "file"


def reaction(exc: Exception) -> TelegramReaction:
    """Return what to do about an error of PTB: the first row of REACTIONS that matches."""
    class_names = {each.__name__ for each in type(exc).__mro__}
    text = str(exc).lower()
    for class_name, pattern, next_step in REACTIONS:
        is_class = class_name == "" or class_name in class_names
        if is_class and re.search(pattern, text):
            return next_step
    raise AssertionError("the last row of REACTIONS matches every error")


def send_error(exc: Exception) -> SendError:
    """Return the SendError for an error of PTB.

    Its text is safe to log: it holds no token, no URL and nothing of the message.
    """
    # After a colon, Telegram's text may quote the message.
    reason = f"{type(exc).__name__}: {str(exc).partition(':')[0][:80]}"
    match reaction(exc):
        case "wait":
            retry_after: Any = getattr(exc, "retry_after", DEFAULT_WAIT)
            # PTB returns a number of seconds or, as it has announced, a timedelta.
            if hasattr(retry_after, "total_seconds"):
                retry_after = retry_after.total_seconds()
            return RateLimited(float(retry_after))
        case "barred":
            return AddressBarred(reason)
        case "chat_barred":
            return ChatBarred(reason)
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
    """Return the problem and its cure that an error of PTB means for an operator of `channel`.

    None for an error that any platform may have.
    """
    from telegram import error

    if isinstance(exc, error.InvalidToken):
        cure = (
            "copy the bot's token from @BotFather again, "
            f"to where channels.{channel}.token comes from"
        )
        return "Telegram does not know this token", cure
    if isinstance(exc, error.RetryAfter):
        return too_many_calls("Telegram")
    if isinstance(exc, (error.BadRequest, error.Forbidden, error.Conflict)):
        return (
            f"Telegram refuses: {exc}",
            "correct what it names; public_url must be reachable from outside",
        )
    if reaction(exc) == "unsent":
        return no_connection("Telegram")
    return None
