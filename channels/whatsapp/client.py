"""Twilio's API: the SDK's client over pooled connections, and what its errors mean.

An error of Twilio becomes a SendError for the worker, which decides whether a reply is sent again,
and a problem with a cure for the operator.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from sayso.channels.base import (
    AddressClosed,
    ChannelDown,
    DeliveryUncertain,
    OptedOut,
    RateLimited,
    Refused,
    SendError,
    TemplateRefused,
    Unreachable,
    WindowClosed,
    network_error,
)
from sayso.channels.setup import Problem, too_many_calls
from sayso.channels.types import RefusedTemplate
from sayso.channels.whatsapp.people import is_parent_id, is_user_id
from sayso.infra.http import retry_after

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: The origins of Twilio's API. The first one also serves the files that people sent.
ORIGINS = ("https://api.twilio.com", "https://content.twilio.com", "https://messaging.twilio.com")
#: The sender of Twilio's Sandbox, which all trial accounts share. No API has its settings.
SANDBOX = "whatsapp:+14155238886"
JSON = "application/json"
#: The code for too many calls at once. Twilio answers status 429 with other codes, too, such as for
#: the daily limit: REACTIONS has their pauses.
_TOO_MANY_CALLS = 20429
#: Seconds between two attempts after the daily limit, which counts the last 24 hours. A reply has
#: ten attempts: 30 hours, so that one of them comes after the limit.
DAY_LIMIT_SECONDS = 3 * 3600.0
#: Twilio's code of an error.
_CODE = re.compile(r"[0-9]{5}")
#: Codes for a Content, a message with buttons, that Twilio does not know or accept, or whose
#: variables it refuses.
_CONTENT_CODES = frozenset({21654, 21655, 21656, 63005, 63013, 63021, 63027, 63028, 92005})
#: The codes among them after which the Content must be created anew, whatever its variables are.
_LOST_CODES = frozenset({21655, 63027, 63028, 92005})


def new_client(
    account_sid: str, auth_token: str, api_url: str | None, session: ClientSession
) -> Any:
    """Return the SDK's client.

    `api_url` is used in place of every origin, None for Twilio itself. `session` is the pool of
    connections.
    """
    from twilio.rest import Client

    return Client(account_sid, auth_token, http_client=_http_client_type()(session, api_url))


def basic(account_sid: str, auth_token: str) -> str:
    """Return the value of the Authorization header for this account."""
    credentials = base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()
    return f"Basic {credentials}"


@functools.lru_cache(maxsize=1)
def _http_client_type() -> Any:
    """Return the class of the SDK's HTTP client over our session.

    It is a function, because the SDK takes long to import and only some processes need it.
    """
    from twilio.http import AsyncHttpClient
    from twilio.http.response import Response

    class HttpClient(AsyncHttpClient):  # type: ignore[misc]  # twilio ships no types
        """Sends the SDK's requests through the pooled session of an event loop."""

        def __init__(self, session: ClientSession, api_url: str | None) -> None:
            # The SDK's own logger and connections; the connections are not used.
            super().__init__(
                logger=logging.getLogger("twilio.http_client"),
                is_async=True,
                timeout=None,
            )
            self._session = session
            self._api_url = api_url

        async def request(
            self,
            method: str,
            url: str,
            params: Mapping[str, Any] | None = None,
            data: Mapping[str, Any] | None = None,
            headers: Mapping[str, str] | None = None,
            auth: tuple[str, str] | None = None,
            **_: Any,  # a time limit, which the session has itself, and `allow_redirects`
        ) -> Any:
            """Return the answer to a request, for the SDK. Raises RateLimited."""
            all_headers = dict(headers or {})
            if auth:
                all_headers["Authorization"] = basic(*auth)

            for origin in ORIGINS:
                if self._api_url and url.startswith(f"{origin}/"):
                    url = self._api_url + url.removeprefix(origin)
                    break

            if all_headers.get("Content-Type") == JSON:
                body = json.dumps(data)
            else:
                body = urlencode(data or {}, doseq=True)
            async with self._session.request(
                method,
                url,
                params=params,
                data=body.encode(),
                headers=all_headers,
                allow_redirects=False,
            ) as answer:
                text = await answer.text()

            # Raised here, because the SDK's error has no headers, which name the pause.
            if answer.status == 429 and _error_code(text) in (0, _TOO_MANY_CALLS):
                raise RateLimited(retry_after(answer.headers))
            return Response(answer.status, text, answer.headers)

    return HttpClient


def _error_code(text: str) -> int:
    """Return Twilio's code of the error in the body of an answer, 0 for none."""
    try:
        return int(json.loads(text)["code"])
    except (ValueError, TypeError, KeyError):
        return 0


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """What an error code of Twilio means."""

    #: The error that is raised.
    kind: type[SendError]
    #: The reason in words.
    why: str
    #: The pause of a RateLimited, in seconds. Other errors have none.
    wait: float = 0.0
    #: Whether a first attempt raises Unreachable in place of `kind`: then the message is tried once
    #: more, because WhatsApp or Twilio may have failed only for a moment.
    once_more: bool = False
    #: What an operator has to do about a TemplateRefused.
    cure: str = ""
    #: Whether the code says that the recipient is not a phone number. Then it says nothing about a
    #: person who is addressed by an id.
    needs_number: bool = False

    def for_recipient(self, address: str) -> ErrorMeaning:
        """Return the meaning for a message to this address.

        An address is a phone number or one of two ids, that of a person in one business and the
        parent id, that of a person in several linked ones (`sayso.channels.whatsapp.people`).
        """
        is_id = is_user_id(address) or is_parent_id(address)
        if self.needs_number and is_id:
            return _ID_NOT_TAKEN
        return self

    def refusal_of(self, template: str, code: int | str) -> RefusedTemplate:
        """Return the refusal of this approved template with this code, for an operator."""
        return RefusedTemplate(template, f"Twilio error {code}: {self.why}", self.cure)


_BUSY = ErrorMeaning(RateLimited, "too many calls at once", wait=1.0)
_CREDENTIALS = ErrorMeaning(ChannelDown, "the account SID or the auth token is wrong")
_ID_NOT_TAKEN = ErrorMeaning(
    Refused,
    "Twilio does not take the id of a person who hides the phone number",
)
_NO_PERSON = ErrorMeaning(AddressClosed, "nobody can be reached at this address")
_NO_NUMBER = ErrorMeaning(
    AddressClosed,
    "no person can be reached at this number",
    needs_number=True,
)
_OPTED_OUT = ErrorMeaning(OptedOut, "the person has opted out")
_SENDER = ErrorMeaning(ChannelDown, "the sender is not set up for WhatsApp, or was closed")
_CONTENT = ErrorMeaning(Refused, "the message or its file is not accepted")
_PARAMETERS = ErrorMeaning(Refused, "the parameters contradict each other")
_DECLINED = ErrorMeaning(Refused, "Meta declined to deliver it")
_PROVIDER = ErrorMeaning(Refused, "WhatsApp or Twilio failed inside", once_more=True)
_UNKNOWN_TEMPLATE = ErrorMeaning(
    TemplateRefused,
    "there is no such template in its language, or it is not approved",
    cure="compare its id with the Content Template Builder, and have it approved for WhatsApp",
)
# The text or the question is {{1}}; {{2}} and {{3}} are the ids of the two buttons, yes and no.
_WRONG_VARIABLES = ErrorMeaning(
    TemplateRefused,
    "its variables are not those that are sent",
    cure="give `template` the variable {{1}} alone, and `confirm_template` {{1}}, {{2}} and {{3}}",
)

#: The meaning of each code, in an answer to a call or in a status callback, the webhook in which
#: Twilio reports later what became of a message.
REACTIONS: dict[int, ErrorMeaning] = {
    20003: _CREDENTIALS,
    20429: _BUSY,
    21211: _NO_NUMBER,
    21610: _OPTED_OUT,
    21614: _NO_NUMBER,
    21617: _CONTENT,
    21620: _CONTENT,
    21654: _PARAMETERS,
    21655: _UNKNOWN_TEMPLATE,
    21656: _WRONG_VARIABLES,
    30007: ErrorMeaning(Refused, "it was filtered"),
    30008: ErrorMeaning(Refused, "it failed for an unknown reason", once_more=True),
    63001: _SENDER,
    63002: _SENDER,
    63003: _NO_NUMBER,
    63005: _CONTENT,
    63006: _CONTENT,
    63007: _SENDER,
    63008: _SENDER,
    63009: _PROVIDER,
    63010: _PROVIDER,
    63012: _PROVIDER,
    63013: _CONTENT,
    63014: ErrorMeaning(OptedOut, "the person has blocked the sender or opted out"),
    63015: ErrorMeaning(
        AddressClosed,
        "the person has not joined the Sandbox, or it was three days ago",
    ),
    63016: ErrorMeaning(WindowClosed, "more than 24 hours since the person last wrote"),
    63018: ErrorMeaning(RateLimited, "the sender is too fast for WhatsApp", wait=5.0),
    63019: ErrorMeaning(Refused, "its file could not be fetched", once_more=True),
    63020: _SENDER,
    63021: _CONTENT,
    63024: _NO_PERSON,
    63027: _UNKNOWN_TEMPLATE,
    63028: _WRONG_VARIABLES,
    63030: _PARAMETERS,
    63031: _PARAMETERS,
    63032: _DECLINED,
    63033: _OPTED_OUT,
    63038: ErrorMeaning(
        RateLimited, "the daily limit of the account is reached", wait=DAY_LIMIT_SECONDS
    ),
    63040: ErrorMeaning(
        TemplateRefused,
        "Meta has rejected it",
        cure="the Content Template Builder shows why: change and submit it again, or name another",
    ),
    63041: ErrorMeaning(
        TemplateRefused,
        "Meta has paused it, because people complained about it or do not read it",
        cure="wait until Meta ends the pause, or name another template",
    ),
    63042: ErrorMeaning(
        TemplateRefused,
        "Meta has disabled it for good",
        cure="create another template, have it approved, and name it",
    ),
    63049: _DECLINED,
    63050: _OPTED_OUT,
    63051: _SENDER,
    63058: ErrorMeaning(
        AddressClosed,
        "Meta does not let this business write to people in that country",
    ),
    63062: ErrorMeaning(
        TemplateRefused,
        "Meta's terms for marketing messages are not accepted",
        cure="accept them in Meta's Business Manager, or submit the template as UTILITY",
    ),
    92005: _UNKNOWN_TEMPLATE,
}
#: The meaning of an HTTP status, for an answer whose code is not known.
_BY_STATUS = {
    401: _CREDENTIALS,
    429: _BUSY,
    502: ErrorMeaning(Unreachable, "its gateway failed"),
    503: ErrorMeaning(Unreachable, "it is not available"),
}


class ContentRefused(Refused):
    """Raised when Twilio refuses a Content. Its text may still be sent without buttons."""


class ContentLost(ContentRefused):
    """Raised when Twilio does not have the Content, or has another one under its id."""


def reaction_to(code: str) -> ErrorMeaning | None:
    """Return what the ErrorCode of a status callback means, None for "" or an unknown code."""
    if _CODE.fullmatch(code):
        return REACTIONS.get(int(code))
    return None


@dataclass(frozen=True, slots=True)
class Sending:
    """What is being sent, as far as the meaning of an error depends on it. Lives for one call."""

    #: The number of the attempt, from 1.
    attempt: int = 1
    #: The recipient's address.
    to: str = ""
    #: The id of an approved template, "" for none.
    template: str = ""
    #: Whether the message is made of a Content that Sayso created, with buttons.
    has_content: bool = False


#: For calls that send no message.
NOTHING_SENT = Sending()


def send_error(status: int, code: int, sending: Sending = NOTHING_SENT) -> SendError:
    """Return the error for an answer of Twilio.

    `status` is its HTTP status, `code` Twilio's code, 0 for none, and `sending` what was sent.
    """
    if sending.has_content and code in _LOST_CODES:
        return ContentLost(f"Twilio error {code}")
    if sending.has_content and code in _CONTENT_CODES:
        return ContentRefused(f"Twilio error {code}")

    # The code says more than the status. Without a meaning, a failure of the server (5xx), or an
    # error without an answer (status 0), leaves open whether the message was sent.
    meaning = REACTIONS.get(code) or _BY_STATUS.get(status)
    if meaning is None and (status >= 500 or status == 0):
        return DeliveryUncertain(f"Twilio answered {status}")
    if meaning is None:
        return Refused(f"Twilio error {code or status}")

    meaning = meaning.for_recipient(sending.to)
    if meaning.kind is RateLimited:
        return RateLimited(meaning.wait)
    if meaning.kind is TemplateRefused:
        # Codes for templates also come for a message with buttons that Sayso has made itself. No
        # operator has to mend that one.
        if sending.template:
            return TemplateRefused(meaning.refusal_of(sending.template, code))
        return Refused(f"Twilio error {code}: the Content is not accepted")
    kind = meaning.kind
    if meaning.once_more and sending.attempt == 1:
        kind = Unreachable
    return kind(f"Twilio error {code or status}: {meaning.why}")


@contextlib.contextmanager
def translated(sending: Sending = NOTHING_SENT) -> Iterator[None]:
    """Raise a SendError for an error of Twilio's client in this block.

    It has none of Twilio's texts, which quote phone numbers. `sending` is what is sent.
    """
    from aiohttp import ClientError
    from twilio.base.exceptions import TwilioException

    try:
        yield
    except TwilioException as exc:
        status = getattr(exc, "status", 0)
        code = getattr(exc, "code", None) or 0
        raise send_error(status, code, sending) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise DeliveryUncertain("Twilio's answer cannot be read") from None
    except (ClientError, TimeoutError, OSError) as exc:
        raise network_error("Twilio", exc) from exc


def setup_problem(exc: Exception) -> Problem | None:
    """Return the problem and its cure that an error of Twilio's client means for an operator.

    None for an error that any platform may have.
    """
    status = status_of(exc)
    code = getattr(exc, "code", None)
    if status == 401 or code == 20003:
        cure = (
            "copy Account SID and primary Auth Token from the Twilio Console; "
            "an API key does not sign webhooks"
        )
        return "Twilio does not take account_sid and auth_token", cure
    if isinstance(exc, RateLimited) or code == 20429:
        return too_many_calls("Twilio")
    if status == 404 or code == 20404:
        return (
            "Twilio has no resource of this id",
            "check that the ids in the configuration are of this account",
        )
    if status or code:
        return (
            f"Twilio refuses with error {code or status}",
            f"see https://www.twilio.com/docs/api/errors/{code or ''}",
        )
    return None


def status_of(exc: Exception) -> int:
    """Return the HTTP status of a refusal, 0 for any other error."""
    # Most errors of the SDK have a `status`. Where a call lists resources, such as messages, the
    # error of a refusal has none: its last argument is the HTTP answer.
    answer = exc.args[-1] if exc.args else None
    return int(getattr(exc, "status", 0) or getattr(answer, "status_code", 0))
