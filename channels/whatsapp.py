"""WhatsAppChannel: one WhatsApp sender at Twilio, its signed forms read and its replies sent through the REST API."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit, urlunsplit

from channels.base import (
    AddressClosed,
    Ambiguous,
    BadHook,
    FetchError,
    Forbidden,
    MediaSource,
    Notebook,
    Pace,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from channels.fetch import Download
from channels.markup import split, whatsapp_text
from channels.media import MAX_BYTES
from channels.signatures import TWILIO_SETTINGS, twilio_signed
from channels.types import (
    Button,
    Conversation,
    Delivery,
    Hook,
    HookAnswer,
    Media,
    Receipt,
    Received,
    Reply,
    StatusUpdate,
    Tap,
    Turn,
)

#: Characters Twilio takes in a message, and in one that carries buttons or is a caption.
TEXT_LIMIT, BUTTONS_LIMIT = 1600, 1024
#: Buttons a message may carry without an approved template, and characters on each.
MAX_BUTTONS, LABEL_LIMIT = 3, 20
#: Messages a second that a sender may send; Twilio raises it to 400 on request, its Sandbox takes one in 3 s.
PACE = Pace(per_second=80)
#: Seconds for one REST call; Twilio's own client would wait for ever.
TIMEOUT = 10.0
#: Hops from Twilio's API to the network that keeps its files.
MAX_REDIRECTS = 2
#: Fields a form may have: Twilio sends about thirty.
MAX_FIELDS = 500

_DELIVERY = re.compile(r"([0-9a-f]{20})\.([1-9][0-9]{0,9})")
_ANSWER = HookAnswer(200, "<Response/>", "text/xml")
_ORIGINS = ("https://api.twilio.com", "https://content.twilio.com", "https://messaging.twilio.com")
_CONTENT_URL = "https://content.twilio.com/v1/Content"
_TYPING_URL = "https://messaging.twilio.com/v2/Indicators/Typing.json"
_RATE_CODES = (20429, 63018)
#: The address is bad, does not want us, or is outside the 24 hours after its last message.
_CLOSED_CODES = (21211, 21610, 21614, 63003, 63016, 63024)
#: Twilio's answers to a Content it does not know, or variables it does not like.
_CONTENT_CODES = (21654, 21655, 21656, 63021, 63027, 63028, 92005)
#: What urllib3 calls the errors that happen before a request leaves the machine.
_BEFORE_SENDING = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ConnectTimeout")


class _Form:
    """A decoded form that keeps repeated and empty fields, as the signature needs them. Raises ValueError."""

    def __init__(self, body: bytes) -> None:
        self.values: dict[str, list[str]] = {}
        for key, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS):
            self.values.setdefault(key, []).append(value)

    def get(self, name: str) -> str:
        return self.values.get(name, [""])[0]


class WhatsAppChannel:
    """One sender. Lives as long as the process; its HTTP client is made on the first send of each process.

    `api_url` replaces every Twilio origin. `shared_key` verifies webhooks instead of `auth_token` for accounts that
    turned on Twilio's shared keys; REST calls always use `auth_token`.
    """

    def __init__(
        self,
        name: str,
        *,
        account_sid: str,
        auth_token: str,
        from_: str,
        media: MediaSource,
        notebook: Notebook,
        api_url: str | None = None,
        messaging_service_sid: str | None = None,
        status_callback: str | None = None,
        shared_key: str = "",
    ) -> None:
        for field, value in (("account_sid", account_sid), ("auth_token", auth_token)):
            if not value.strip():
                raise ValueError(f"{field} is empty: copy it from the Twilio Console")
        if not from_.strip() and not messaging_service_sid:
            raise ValueError("from_ is empty: set the sender's number, or a messaging_service_sid")
        self._name = name
        self._account_sid, self._auth_token, self._shared_key = account_sid, auth_token, shared_key
        self._from = from_ if from_.startswith("whatsapp:") or not from_ else f"whatsapp:{from_}"
        self._service = messaging_service_sid
        self._status_callback = status_callback
        self._media, self._notebook = media, notebook
        self._api_url = api_url.rstrip("/") if api_url else None
        self._client: tuple[int, Any] | None = None
        _hush()

    def __repr__(self) -> str:
        return f"WhatsAppChannel({self._name!r})"

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""
        return self._name

    def receive(self, hook: Hook) -> Received:
        """Read one signed form: a message, a tap, or what became of a message we sent."""
        form = self._verified(hook)
        if form.get("MessageStatus") or hook.path == "status":
            return _status(form, self._delivery_of(hook))
        if not form.get("MessageSid") or not form.get("From"):
            raise BadHook("the form has no MessageSid or no From")
        turn = self._turn(form)
        if not turn.text and not turn.tap and not turn.media:
            return Received(ignored=f"message of type {form.get('MessageType')!r}", answer=_ANSWER)
        return Received(turns=(turn,), answer=_ANSWER)

    def _verified(self, hook: Hook) -> _Form:
        settings = hook.header(TWILIO_SETTINGS)
        secret = self._shared_key if settings and self._shared_key else self._auth_token
        url, signature = hook.url.partition("#")[0], hook.header("x-twilio-signature")
        try:
            form = _Form(hook.body)
            valid = twilio_signed(secret, url, form.values, signature, settings)
        except ValueError as exc:
            raise Forbidden("the signature cannot be checked") from exc
        if not valid or form.get("AccountSid") != self._account_sid:
            raise Forbidden("the signature or the account is wrong")
        return form

    def _delivery_of(self, hook: Hook) -> str:
        """The delivery that the URL names; its signature was checked, so it is one we gave to Twilio."""
        found = _DELIVERY.fullmatch(parse_qs(urlsplit(hook.url).query).get("delivery", [""])[-1])
        return f"{self._name}:{found[1]}#{found[2]}" if found else ""

    def _turn(self, form: _Form) -> Turn:
        payload = form.get("ButtonPayload") or form.get("ListId")
        media = () if payload else _media(form)
        return Turn(
            event_id=form.get("MessageSid"),
            conversation=Conversation(self._name, form.get("From")),
            user_id=form.get("ExternalUserId") or form.get("From"),
            user_name=form.get("ProfileName"),
            # The body of a tap repeats the label and that of a document is its file name: nobody typed them.
            text="" if payload or any(file.filename for file in media) else form.get("Body"),
            tap=Tap(payload) if payload else None,
            media=media,
            message_id=form.get("MessageSid"),
        )

    def pace(self, conversation: Conversation) -> Pace:
        """The sender's; chats have no limit of their own."""
        return PACE

    def pieces(self, reply: Reply) -> Sequence[Reply]:
        """Only a picture carries words, and only without buttons; otherwise text and file are messages of their own."""
        if reply.media and not reply.buttons and reply.media.kind == "image" and _length(reply.text) <= BUTTONS_LIMIT:
            return (reply,)
        file = (Reply(media=reply.media),) if reply.media else ()
        if reply.buttons:
            return (*file, *_with_buttons(reply))
        return (*(Reply(text) for text in _texts(reply.text, TEXT_LIMIT)), *file)

    async def attend(self, turn: Turn) -> None:
        """Mark the message read and show "typing" until the reply, for 25 seconds at most."""
        with contextlib.suppress(Exception):
            await asyncio.to_thread(self._typing, turn.message_id)

    def _typing(self, message_sid: str) -> None:
        self._twilio().request("POST", _TYPING_URL, data={"channel": "whatsapp", "messageId": message_sid})

    async def fetch(self, media: Media) -> bytes:
        """Download from this account's messages, and from where Twilio redirects to, which sees no credentials."""
        own = f"{_ORIGINS[0]}(/2010-04-01/Accounts/{re.escape(self._account_sid)}/Messages/[A-Za-z0-9/]+)"
        found = re.fullmatch(own, media.ref)
        if found is None:
            raise FetchError("the file's address is not one of this Twilio account")
        basic = base64.b64encode(f"{self._account_sid}:{self._auth_token}".encode()).decode()
        download = Download(MAX_BYTES, MAX_REDIRECTS, home=self._api_url or "")
        file = await download.get((self._api_url or _ORIGINS[0]) + found.group(1), {"Authorization": f"Basic {basic}"})
        return file.data

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece; buttons Twilio will not take are left out, the words ask for a typed answer anyway."""
        return await asyncio.to_thread(self._send, delivery)

    def _send(self, delivery: Delivery) -> Receipt:
        reply = delivery.reply
        content = self._content(reply)
        if content is None:
            return self._create(delivery, self._words(reply))
        try:
            return self._create(delivery, content)
        except _ContentRefused:
            self._notebook.put(self._content_key(reply), "")
            return self._create(delivery, self._words(reply))

    def _words(self, reply: Reply) -> dict[str, Any]:
        fields: dict[str, Any] = {"body": whatsapp_text(reply.text)} if reply.text else {}
        if reply.media:
            file = reply.media
            fields["media_url"] = [self._media.url(file.ref, filename=file.filename, mime_type=file.mime_type)]
        return fields

    def _create(self, delivery: Delivery, fields: Mapping[str, Any]) -> Receipt:
        sender = {"messaging_service_sid": self._service} if self._service else {"from_": self._from}
        if self._status_callback:
            sender["status_callback"] = _with_delivery(self._status_callback, delivery.id)
        with _translated("content_sid" in fields):
            return Receipt(str(self._twilio().messages.create(to=delivery.conversation.chat, **sender, **fields).sid))

    def _content(self, reply: Reply) -> dict[str, str] | None:
        """The message as a quick reply: one Content per set of labels, made once, with everything else as variables."""
        if not 1 <= len(reply.buttons) <= MAX_BUTTONS:
            return None
        key = self._content_key(reply)
        sid = self._notebook.get(key) or self._new_content(_labels(reply))
        if not sid:
            return None
        self._notebook.put(key, sid)
        values = [whatsapp_text(reply.text), *(button.data for button in reply.buttons)]
        variables = {str(number): value for number, value in enumerate(values, 1)}
        return {"content_sid": sid, "content_variables": json.dumps(variables, ensure_ascii=False)}

    def _content_key(self, reply: Reply) -> str:
        shape = hashlib.sha256(json.dumps(_labels(reply)).encode()).hexdigest()[:20]
        return f"twilio:content:{self._account_sid}:{shape}"

    def _new_content(self, labels: Sequence[str]) -> str | None:
        """Create the Content. None when Twilio refuses: the words go out alone."""
        try:
            with _translated():
                answer = self._twilio().request(
                    "POST", _CONTENT_URL, headers={"Content-Type": "application/json"}, data=_quick_reply(labels)
                )
        except Ambiguous as exc:
            raise Unreachable("no answer from Twilio's Content API, nothing was sent") from exc
        if answer.status_code >= 500:
            raise Unreachable(f"Twilio's Content API answered {answer.status_code}, nothing was sent")
        return str(json.loads(answer.text)["sid"]) if answer.status_code in (200, 201) else None

    def _twilio(self) -> Any:
        """The REST client of this process: connections must not be shared across a fork."""
        if self._client is None or self._client[0] != os.getpid():
            self._client = (os.getpid(), _new_client(self._account_sid, self._auth_token, self._api_url))
        return self._client[1]


def _hush() -> None:
    """Twilio's client logs every request at INFO, with addresses."""
    logger = logging.getLogger("twilio.http_client")
    logger.setLevel(max(logger.level, logging.WARNING))


def _new_client(account_sid: str, auth_token: str, api_url: str | None) -> Any:
    from twilio.rest import Client  # type: ignore[import-untyped]  # twilio ships no types

    return Client(account_sid, auth_token, http_client=_http_client_type()(api_url))


@functools.lru_cache(maxsize=1)
def _http_client_type() -> Any:
    """Twilio's HTTP client with our timeout and origin. Defined late: its module costs 100 ms to import."""
    from twilio.http.http_client import TwilioHttpClient  # type: ignore[import-untyped]  # twilio ships no types

    class HttpClient(TwilioHttpClient):  # type: ignore[misc]  # twilio ships no types
        def __init__(self, api_url: str | None) -> None:
            super().__init__(timeout=TIMEOUT)
            self._api_url = api_url

        def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            answer = super().request(method, _rewritten(url, self._api_url), *args, **kwargs)
            if answer.status_code == 429:  # Twilio's own error would not say for how long
                raise RateLimited(_retry_after(answer.headers or {}))
            return answer

    return HttpClient


def _retry_after(headers: Mapping[str, str]) -> float:
    seconds = next((value for name, value in headers.items() if name.lower() == "retry-after"), "1")
    return float(seconds) if seconds.isdecimal() else 1.0


def _rewritten(url: str, api_url: str | None) -> str:
    origin = next((origin for origin in _ORIGINS if url.startswith(f"{origin}/")), None)
    return api_url + url[len(origin) :] if api_url and origin else url


def _with_delivery(callback: str, delivery_id: str) -> str:
    """The callback's URL with the delivery in it: which conversation it was, nobody has to look up or remember.

    Only letters, digits and a dot are added: no proxy can spell them differently before the signature is checked.
    """
    parts = urlsplit(callback)
    named = "delivery=" + delivery_id.rpartition(":")[2].replace("#", ".")
    return urlunsplit(parts._replace(query=f"{parts.query}&{named}" if parts.query else named))


def _status(form: _Form, delivery: str) -> Received:
    update = StatusUpdate(
        message_id=form.get("MessageSid") or form.get("SmsSid"),
        status=form.get("MessageStatus") or form.get("SmsStatus"),
        error_code=form.get("ErrorCode"),
        delivery=delivery,
    )
    if not update.message_id or not update.status:
        raise BadHook("the status callback names no message or no status")
    return Received(statuses=(update,), answer=_ANSWER)


def _media(form: _Form) -> tuple[Media, ...]:
    """WhatsApp sends one file per message, by Twilio's URL. A document's name is in the body."""
    url, mime_type = form.get("MediaUrl0"), form.get("MediaContentType0") or "application/octet-stream"
    if not url:
        return ()
    named = form.get("MessageType") == "document" or mime_type.partition("/")[0] in ("application", "text")
    return (Media(url, mime_type, filename=form.get("Body") if named else ""),)


def _length(md: str) -> int:
    return len(whatsapp_text(md))


def _texts(md: str, limit: int) -> list[str]:
    return [text for text in split(md, limit, _length) if text.strip()]


def _with_buttons(reply: Reply) -> Sequence[Reply]:
    texts = _texts(reply.text, BUTTONS_LIMIT) or [" / ".join(button.label for button in reply.buttons)]
    return (*(Reply(text) for text in texts[:-1]), Reply(texts[-1], buttons=reply.buttons))


def _labels(reply: Reply) -> list[str]:
    return [_label(button) for button in reply.buttons]


def _label(button: Button) -> str:
    return button.label if len(button.label) <= LABEL_LIMIT else button.label[: LABEL_LIMIT - 1] + "…"


def _quick_reply(labels: Sequence[str]) -> dict[str, Any]:
    """A Content whose words and button ids are variables, so that one serves every question with these labels."""
    actions = [{"title": label, "id": f"{{{{{number}}}}}"} for number, label in enumerate(labels, 2)]
    samples = {"1": "…", **{str(number): f"id{number}" for number, _ in enumerate(labels, 2)}}
    return {
        "friendly_name": "sayso_" + hashlib.sha256(json.dumps(labels).encode()).hexdigest()[:12],
        "language": "en",
        "variables": samples,
        "types": {"twilio/quick-reply": {"body": "{{1}}", "actions": actions}},
    }


class _ContentRefused(Refused):
    """Raised when Twilio would not send a Content: the words must go out alone."""


@contextlib.contextmanager
def _translated(with_content: bool = False) -> Any:
    """Say in our words what Twilio's client raised."""
    from twilio.base.exceptions import TwilioException  # type: ignore[import-untyped]  # twilio ships no types

    try:
        yield
    except TwilioException as exc:
        error = _rest_error(getattr(exc, "status", 0), getattr(exc, "code", None))
        if with_content and isinstance(error, Refused) and getattr(exc, "code", None) in _CONTENT_CODES:
            raise _ContentRefused from None
        # The cause is left out: Twilio's messages quote the phone number.
        raise error from None
    except OSError as exc:
        raise _network_error(exc) from exc


def _rest_error(status: int, code: int | None) -> SendError:
    if status == 429 or code in _RATE_CODES:
        return RateLimited(1.0)
    if status in (502, 503):
        return Unreachable(f"Twilio answered {status}")
    if status >= 500 or status == 0:
        return Ambiguous(f"Twilio answered {status}")
    return (AddressClosed if code in _CLOSED_CODES else Refused)(f"Twilio error {code or status}")


def _network_error(exc: BaseException) -> SendError:
    """requests wraps the error that tells whether anything was sent, so we look at the whole chain."""
    link: BaseException | None = exc
    while link is not None:
        if type(link).__name__ in _BEFORE_SENDING:
            return Unreachable("no connection to Twilio")
        link = link.__cause__ or link.__context__
    return Ambiguous("the connection to Twilio broke before its answer")
