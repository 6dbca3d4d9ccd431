"""WhatsAppChannel: one WhatsApp sender at Twilio, its signed forms read and its replies sent through the REST API."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

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
from channels.http import PerLoop, never_sent
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

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: Characters Twilio takes in a message, and in one that carries buttons or is a caption.
TEXT_LIMIT, BUTTONS_LIMIT = 1600, 1024
#: Buttons a message may carry without an approved template, and characters on each.
MAX_BUTTONS, LABEL_LIMIT = 3, 20
#: Messages a second that a sender may send; Twilio raises it to 400 on request, its Sandbox takes one in 3 s.
PACE = Pace(per_second=80)
#: Seconds after which "typing" is shown again.
TYPING_SECONDS = 20.0
#: Sets of labels of which a process knows its Content by heart.
MAX_CONTENTS = 1000
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
_JSON = "application/json"


class _Form:
    """A decoded form that keeps repeated and empty fields, as the signature needs them. Raises ValueError."""

    def __init__(self, body: bytes) -> None:
        self.values: dict[str, list[str]] = {}
        for key, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS):
            self.values.setdefault(key, []).append(value)

    def get(self, name: str) -> str:
        return self.values.get(name, [""])[0]


class WhatsAppChannel:
    """One sender. Lives as long as the process; its HTTP client as long as the loop it was made on.

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
        self._client = PerLoop(functools.partial(new_client, account_sid, auth_token, self._api_url))
        #: The Contents made or looked up so far, by their key.
        self._contents: dict[str, str] = {}

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

    async def attend(self, turn: Turn) -> float:
        """Mark the message read and show "typing" until the reply, for 25 seconds at most."""
        with contextlib.suppress(Exception):
            data = {"channel": "whatsapp", "messageId": turn.message_id}
            await self._client.here().request_async("POST", _TYPING_URL, data=data)
        return TYPING_SECONDS

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Nothing: WhatsApp has no drafts, and what is sent stays as it is."""
        return ""

    async def fetch(self, media: Media) -> bytes:
        """Download from this account's messages, and from where Twilio redirects to, which sees no credentials."""
        own = f"{_ORIGINS[0]}(/2010-04-01/Accounts/{re.escape(self._account_sid)}/Messages/[A-Za-z0-9/]+)"
        found = re.fullmatch(own, media.ref)
        if found is None:
            raise FetchError("the file's address is not one of this Twilio account")
        basic = _basic(self._account_sid, self._auth_token)
        download = Download(MAX_BYTES, MAX_REDIRECTS, home=self._api_url or "")
        file = await download.get((self._api_url or _ORIGINS[0]) + found.group(1), {"Authorization": basic})
        return file.data

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece; buttons Twilio will not take are left out, the words ask for a typed answer anyway."""
        reply = delivery.reply
        content = await self._content(reply)
        if content is None:
            return await self._create(delivery, self._words(reply))
        try:
            return await self._create(delivery, content)
        except _ContentRefused:
            await self._remember(self._content_key(reply), "")
            return await self._create(delivery, self._words(reply))

    def _words(self, reply: Reply) -> dict[str, Any]:
        fields: dict[str, Any] = {"body": whatsapp_text(reply.text)} if reply.text else {}
        if reply.media:
            file = reply.media
            fields["media_url"] = [self._media.url(file.ref, filename=file.filename, mime_type=file.mime_type)]
        return fields

    async def _create(self, delivery: Delivery, fields: Mapping[str, Any]) -> Receipt:
        sender = {"messaging_service_sid": self._service} if self._service else {"from_": self._from}
        if self._status_callback:
            sender["status_callback"] = _with_delivery(self._status_callback, delivery.id)
        with _translated("content_sid" in fields):
            sent = await self._client.here().messages.create_async(to=delivery.conversation.chat, **sender, **fields)
        return Receipt(str(sent.sid))

    async def _content(self, reply: Reply) -> dict[str, str] | None:
        """The message as a quick reply: one Content per set of labels, made once, with everything else as variables."""
        if not 1 <= len(reply.buttons) <= MAX_BUTTONS:
            return None
        key = self._content_key(reply)
        sid = self._contents.get(key)
        if not sid:
            sid = await asyncio.to_thread(self._notebook.get, key) or await self._new_content(_labels(reply))
            if not sid:
                return None
            await self._remember(key, sid)
        values = [whatsapp_text(reply.text), *(button.data for button in reply.buttons)]
        variables = {str(number): value for number, value in enumerate(values, 1)}
        return {"content_sid": sid, "content_variables": json.dumps(variables, ensure_ascii=False)}

    async def _remember(self, key: str, sid: str) -> None:
        """For this process, and by the notebook for all others and those to come; "" forgets it."""
        self._contents = {**self._contents, key: sid} if len(self._contents) < MAX_CONTENTS else {key: sid}
        await asyncio.to_thread(self._notebook.put, key, sid)

    def _content_key(self, reply: Reply) -> str:
        shape = hashlib.sha256(json.dumps(_labels(reply)).encode()).hexdigest()[:20]
        return f"twilio:content:{self._account_sid}:{shape}"

    async def _new_content(self, labels: Sequence[str]) -> str | None:
        """Create the Content. None when Twilio refuses: the words go out alone."""
        try:
            with _translated():
                answer = await self._client.here().request_async(
                    "POST", _CONTENT_URL, headers={"Content-Type": _JSON}, data=_quick_reply(labels)
                )
        except Ambiguous as exc:
            raise Unreachable("no answer from Twilio's Content API, nothing was sent") from exc
        if answer.status_code >= 500:
            raise Unreachable(f"Twilio's Content API answered {answer.status_code}, nothing was sent")
        return str(json.loads(answer.text)["sid"]) if answer.status_code in (200, 201) else None


def new_client(account_sid: str, auth_token: str, api_url: str | None, session: ClientSession) -> Any:
    """Twilio's client over a kept session; `api_url` replaces every Twilio origin."""
    from twilio.rest import Client  # type: ignore[import-untyped]  # twilio ships no types

    return Client(account_sid, auth_token, http_client=_http_client_type()(session, api_url))


@functools.lru_cache(maxsize=1)
def _http_client_type() -> Any:
    """Twilio's HTTP client over our session and to our origin. Defined late: the SDK takes its time to import."""
    from twilio.http import AsyncHttpClient  # type: ignore[import-untyped]  # twilio ships no types
    from twilio.http.response import Response  # type: ignore[import-untyped]  # twilio ships no types

    class HttpClient(AsyncHttpClient):  # type: ignore[misc]  # twilio ships no types
        def __init__(self, session: ClientSession, api_url: str | None) -> None:
            super().__init__(logging.getLogger("twilio.http_client"), True, None)
            self._session, self._api_url = session, api_url

        async def request(
            self,
            method: str,
            url: str,
            params: Mapping[str, Any] | None = None,
            data: Mapping[str, Any] | None = None,
            headers: Mapping[str, str] | None = None,
            auth: tuple[str, str] | None = None,
            timeout: float | None = None,  # noqa: ASYNC109  # Twilio's signature; the session has limits of its own
            allow_redirects: bool = False,
        ) -> Any:
            sent = dict(headers or {})
            if auth:
                sent["Authorization"] = _basic(*auth)
            body = json.dumps(data) if sent.get("Content-Type") == _JSON else urlencode(data or {}, doseq=True)
            async with self._session.request(
                method, _rewritten(url, self._api_url), params=params, data=body.encode(), headers=sent,
                allow_redirects=allow_redirects,
            ) as answer:  # fmt: skip
                text = await answer.text()
            if answer.status == 429:  # Twilio's own error would not say for how long
                raise RateLimited(_retry_after(answer.headers))
            return Response(answer.status, text, answer.headers)

    return HttpClient


def _basic(account_sid: str, auth_token: str) -> str:
    return "Basic " + base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()


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
    from aiohttp import ClientError
    from twilio.base.exceptions import TwilioException  # type: ignore[import-untyped]  # twilio ships no types

    try:
        yield
    except TwilioException as exc:
        error = _rest_error(getattr(exc, "status", 0), getattr(exc, "code", None))
        if with_content and isinstance(error, Refused) and getattr(exc, "code", None) in _CONTENT_CODES:
            raise _ContentRefused from None
        # The cause is left out: Twilio's messages quote the phone number.
        raise error from None
    except (ClientError, TimeoutError, OSError) as exc:
        if never_sent(exc):
            raise Unreachable("no connection to Twilio") from exc
        raise Ambiguous("the connection to Twilio broke before its answer") from exc


def _rest_error(status: int, code: int | None) -> SendError:
    if status == 429 or code in _RATE_CODES:
        return RateLimited(1.0)
    if status in (502, 503):
        return Unreachable(f"Twilio answered {status}")
    if status >= 500 or status == 0:
        return Ambiguous(f"Twilio answered {status}")
    return (AddressClosed if code in _CLOSED_CODES else Refused)(f"Twilio error {code or status}")
