"""WhatsAppChannel: verifies and parses the webhooks of one WhatsApp sender at Twilio, and sends its replies."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit, urlunsplit

from sayso.channels.base import (
    AdapterDeps,
    AddressClosed,
    ChannelDown,
    FetchError,
    Forbidden,
    MediaSource,
    RateLimit,
    Refused,
    SharedCache,
    WindowClosed,
)
from sayso.channels.http import PooledSessions, SafeDownload
from sayso.channels.markdown import utf16_len, whatsapp_text
from sayso.channels.storage.media import MAX_BYTES
from sayso.channels.types import (
    AddressChange,
    Conversation,
    Delivery,
    Media,
    Receipt,
    Received,
    Reply,
    Turn,
    WebhookRequest,
    WebhookResponse,
)
from sayso.channels.whatsapp.client import (
    ORIGINS,
    SANDBOX,
    ContentLost,
    ContentRefused,
    SenderNames,
    basic,
    new_client,
    reaction_to,
    translated,
)
from sayso.channels.whatsapp.incoming import RECEIVED, TWILIO_SETTINGS, TwilioForm, status_of, turn_of, twilio_signed
from sayso.channels.whatsapp.outgoing import (
    BUTTONS_LIMIT,
    Content,
    ContentTemplates,
    content_of,
    is_shown,
    link_text,
    pieces_of,
    template_content,
    text_of,
)
from sayso.channels.whatsapp.settings import WhatsAppSettings

#: How fast a sender may send: 80 messages a second; Twilio raises it to 400 on request. Its Sandbox takes one in 3 s.
RATE, SANDBOX_RATE = RateLimit(per_second=80), RateLimit(per_second=1 / 3)
#: The prefix of WhatsApp addresses.
ADDRESS = "whatsapp:"
#: Seconds after which "typing" is shown again.
TYPING_SECONDS = 20.0
#: How long after a person's last message any text may be sent, in seconds. A minute less than WhatsApp's 24 h, because
#: two clocks are compared.
WINDOW_SECONDS = 24 * 3600 - 60
#: The most characters of the text in a template.
TEMPLATE_LIMIT = BUTTONS_LIMIT
#: The most redirects from Twilio's API to its file servers.
MAX_REDIRECTS = 2

_DELIVERY = re.compile(r"([0-9a-f]{20})\.([1-9][0-9]{0,9})")
_MESSAGE_SID = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")
_ANSWER = WebhookResponse(200, "<Response/>", "text/xml")
_TYPING_URL = "https://messaging.twilio.com/v2/Indicators/Typing.json"


class WhatsAppChannel:
    """One sender. One per process; keeps one HTTP client per event loop.

    `api_url` replaces every Twilio origin. `shared_key` verifies webhooks instead of `auth_token` for accounts that
    turned on Twilio's shared keys; REST calls always use `auth_token`. Once a person has been silent for 24
    hours, text is sent as the approved Content `template`, and a question with two buttons as `confirm_template`.
    """

    def __init__(
        self,
        name: str,
        *,
        account_sid: str,
        auth_token: str,
        from_: str,
        media: MediaSource,
        cache: SharedCache,
        api_url: str | None = None,
        messaging_service_sid: str | None = None,
        status_callback: str | None = None,
        shared_key: str = "",
        template: str | None = None,
        confirm_template: str | None = None,
    ) -> None:
        for field, value in (("account_sid", account_sid), ("auth_token", auth_token)):
            if not value.strip():
                raise ValueError(f"{field} is empty: copy it from the Twilio Console")
        if not from_.strip() and not messaging_service_sid:
            raise ValueError("from_ is empty: set the sender's number, or a messaging_service_sid")
        self.name = name
        self._account_sid, self._auth_token, self._shared_key = account_sid, auth_token, shared_key
        self._from = from_ if from_.startswith(ADDRESS) or not from_ else f"{ADDRESS}{from_}"
        self._service = messaging_service_sid
        self._status_callback = status_callback
        self._template, self._confirm_template = template, confirm_template
        self._media = media
        self._api_url = api_url.rstrip("/") if api_url else None
        self._client = PooledSessions(functools.partial(new_client, account_sid, auth_token, self._api_url))
        self._contents = ContentTemplates(account_sid, cache, self._client)
        self._names = SenderNames(cache)

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify and parse one form: a message, a tap, or the status of a message of the bot."""
        form = self._verified(hook)
        if form.get("MessageStatus") or (hook.path == "status" and form.get("SmsStatus") != RECEIVED):
            # The query's signature was checked, so this bot gave the delivery to Twilio.
            match = _DELIVERY.fullmatch(parse_qs(urlsplit(hook.url).query).get("delivery", [""])[-1])
            return self._status(form, f"{self.name}:{match[1]}#{match[2]}" if match else "")
        turn = turn_of(self.name, form)
        if turn and not turn.conversation.chat.startswith(ADDRESS):  # the sender of an SMS may write any number into it
            return Received(ignored="not sent by WhatsApp", answer=_ANSWER)
        if turn and turn.conversation.chat in (self._from, form.get("To")):
            return Received(ignored="sent by this channel itself", answer=_ANSWER)
        if turn is None:
            return Received(ignored=f"message of type {form.get('MessageType')!r}", answer=_ANSWER)
        return Received(turns=(turn,), answer=_ANSWER)

    def _status(self, form: TwilioForm, delivery: str) -> Received:
        """Parse the status of a message. Some errors also concern its address, or the whole channel."""
        update, to = status_of(form, delivery), form.get("To")
        failed = update.status in ("failed", "undelivered")
        reaction = reaction_to(update.error_code) if failed else None
        if reaction is None:
            return Received(statuses=(update,), answer=_ANSWER)
        why = f"Twilio error {update.error_code}: {reaction.why}"
        here = Conversation(self.name, to)
        closed = (AddressChange(here, why, late=True),) if reaction.kind is AddressClosed and to else ()
        alerts = (why,) if reaction.kind is ChannelDown else ()
        return Received(statuses=(update,), addresses=closed, alerts=alerts, answer=_ANSWER)

    def _verified(self, hook: WebhookRequest) -> TwilioForm:
        settings = hook.header(TWILIO_SETTINGS)
        secret = self._shared_key if settings and self._shared_key else self._auth_token
        url, signature = hook.url.partition("#")[0], hook.header("x-twilio-signature")
        if not signature:
            raise Forbidden("there is no X-Twilio-Signature header: did Twilio send it, and does the proxy pass it on?")
        try:
            form = TwilioForm(hook.body)
            hosts = (hook.header("host"), hook.header("x-forwarded-host"))
            valid = twilio_signed(secret, url, form.values, signature, settings, hosts=hosts)
        except ValueError as exc:
            raise Forbidden("the signature cannot be checked") from exc
        if not valid:
            shown = url.partition("?")[0][:200]
            raise Forbidden(
                f"the signature is not that of {shown!r}, which public_url makes of this request: Twilio signs the URL "
                "that is set in its console, with its own scheme, host and path; or auth_token is another one"
            )
        if form.get("AccountSid") != self._account_sid:
            raise Forbidden("the form names another account than account_sid")
        return form

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return the sender's limit; conversations have none of their own. Only Twilio's Sandbox is slow."""
        sandbox = self._from == SANDBOX and not (self._service or self._api_url)
        return SANDBOX_RATE if sandbox else RATE

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split text at 1,600 characters, at 1,024 with buttons or as a caption. Other files are separate messages."""
        return pieces_of(reply)

    async def show_typing(self, turn: Turn) -> float:
        """Mark the message as read and show "typing" until the reply, for at most 25 seconds."""
        with contextlib.suppress(Exception):
            await self._names.note(turn)
        with contextlib.suppress(Exception):
            data = {"channel": "whatsapp", "messageId": turn.message_id}
            await self._client.here().request_async("POST", _TYPING_URL, data=data)
        return TYPING_SECONDS

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Do nothing: WhatsApp has no drafts, and messages cannot be edited."""
        return ""

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Download a file of this account's messages. Servers that Twilio redirects to get no credentials."""
        own = f"{ORIGINS[0]}(/2010-04-01/Accounts/{re.escape(self._account_sid)}/Messages/[A-Za-z0-9/]+)"
        match = re.fullmatch(own, media.ref)
        if match is None:
            raise FetchError("the file's address is not one of this Twilio account")
        headers = {"Authorization": basic(self._account_sid, self._auth_token)}
        download = SafeDownload(MAX_BYTES, MAX_REDIRECTS, home=self._api_url or "")
        await download.save((self._api_url or ORIGINS[0]) + match[1], headers, file)

    async def quoted(self, turn: Turn) -> str:
        """Return the text of the quoted message, which this account sent or received."""
        if not _MESSAGE_SID.fullmatch(turn.replied_to):
            raise FetchError("the quoted message has no id of Twilio's")
        try:
            message = await self._client.here().messages(turn.replied_to).fetch_async()
        except Exception as exc:  # the SDK may raise anything, and a missing quote must not fail the turn
            raise FetchError(f"Twilio did not return the quoted message: {type(exc).__name__}") from exc
        people = {turn.conversation.chat, *turn.aliases}
        if people.isdisjoint((str(message.from_), str(message.to))):
            raise FetchError("the quoted message belongs to another conversation")
        return str(message.body or "")

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece. Buttons that Twilio refuses are left out: the text asks for a typed answer anyway.

        WhatsApp cannot edit: an optional edit is left out, any other is sent as a new message.
        """
        if delivery.reply.edits and delivery.reply.optional:
            return Receipt("")
        if delivery.silence > WINDOW_SECONDS:
            return await self._send_template(delivery)
        reply = delivery.reply
        content = content_of(whatsapp_text(reply.text), reply.buttons)
        sid = await self._contents.sid(content) if content else None
        if content is None or sid is None:
            return await self._create(delivery, self._body_and_file(reply))
        try:
            return await self._create(delivery, _content_fields(sid, content))
        except ContentRefused as exc:
            if isinstance(exc, ContentLost):
                await self._contents.forget(content)
            return await self._create(delivery, self._body_and_file(reply))

    def _body_and_file(self, reply: Reply) -> dict[str, Any]:
        """Return body and file, or a link to a file that WhatsApp does not take."""
        text, file = whatsapp_text(text_of(reply)) if reply.text or reply.buttons else "", reply.media
        if file is None:
            return {"body": text}
        url = self._media.url(file.ref, filename=file.filename, mime_type=file.mime_type)
        if not is_shown(file):
            return {"body": "\n\n".join(part for part in (text, link_text(file, url)) if part)}
        return {**({"body": text} if text else {}), "media_url": [url]}

    async def _send_template(self, delivery: Delivery) -> Receipt:
        """Send it as an approved template. Raises WindowClosed if there is none, or if the reply does not fit in it."""
        try:
            return await self._create(delivery, self._templated(delivery.reply))
        except AddressClosed:
            raise
        except Refused as exc:  # the text may still be sent once the person has written
            raise WindowClosed(f"the template was refused: {exc}") from exc

    def _templated(self, reply: Reply) -> dict[str, Any]:
        if reply.media:
            raise WindowClosed("no template takes a file")
        is_question = [button.style for button in reply.buttons] == ["danger", "default"]  # as in a template
        if is_question and self._confirm_template:
            sid, content = self._confirm_template, template_content(_in_one_line(reply.text), reply.buttons)
        elif self._template:
            sid, content = self._template, template_content(_in_one_line(text_of(reply)))
        else:
            raise WindowClosed("more than 24 hours since the person last wrote, and no template is configured")
        if utf16_len(content.values[0]) > TEMPLATE_LIMIT:
            raise WindowClosed(f"more than the {TEMPLATE_LIMIT} characters of a template")
        return _content_fields(sid, content)

    async def _create(self, delivery: Delivery, fields: Mapping[str, Any]) -> Receipt:
        sender = {"messaging_service_sid": self._service} if self._service else {"from_": self._from}
        if self._status_callback:
            sender["status_callback"] = _with_delivery(self._status_callback, delivery.id)
        with translated(delivery.attempt, with_content="content_sid" in fields):
            sent = await self._client.here().messages.create_async(to=delivery.conversation.chat, **sender, **fields)
        return Receipt(str(sent.sid or ""))


def _content_fields(sid: str, content: Content) -> dict[str, Any]:
    return {"content_sid": sid, "content_variables": content.variables}


def _with_delivery(callback: str, delivery_id: str) -> str:
    """Return the callback's URL with the delivery in it, so that its conversation need not be looked up.

    Only letters, digits and a dot are added, which no proxy re-encodes before the signature is checked.
    """
    parts = urlsplit(callback)
    parameter = "delivery=" + delivery_id.rpartition(":")[2].replace("#", ".")
    return urlunsplit(parts._replace(query=f"{parts.query}&{parameter}" if parts.query else parameter))


def _in_one_line(md: str) -> str:
    """Return the text as WhatsApp accepts it in a template: without line ends and wide gaps."""
    return " ".join(whatsapp_text(md).split())


def open_channel(name: str, settings: WhatsAppSettings, deps: AdapterDeps) -> WhatsAppChannel:
    """Return the adapter of a configured channel. Raises ValueError for unusable settings."""
    return WhatsAppChannel(
        name,
        account_sid=settings.account_sid,
        auth_token=settings.auth_token.get_secret_value(),
        from_=settings.from_ or "",
        media=deps.media,
        cache=deps.cache,
        api_url=settings.api_url,
        messaging_service_sid=settings.messaging_service_sid,
        shared_key=settings.shared_key.get_secret_value() if settings.shared_key else "",
        template=settings.template,
        confirm_template=settings.confirm_template,
        status_callback=f"{deps.public_url}/hooks/{name}/status",
    )
