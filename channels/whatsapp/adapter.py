"""WhatsAppChannel: parses the webhooks of one WhatsApp sender at Twilio, and sends replies."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from sayso.channels.base import (
    AdapterDeps,
    AddressClosed,
    FetchError,
    Forbidden,
    RateLimit,
    Refused,
    WindowClosed,
    fetch_errors,
)
from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.channels.markdown.convert import whatsapp_text
from sayso.channels.setup import hook_url
from sayso.channels.types import (
    Conversation,
    Delivery,
    Media,
    PriceClass,
    Receipt,
    Received,
    Reply,
    Sender,
    Turn,
    WebhookRequest,
)
from sayso.channels.whatsapp.client import (
    ORIGINS,
    SANDBOX,
    ContentLost,
    ContentRefused,
    Sending,
    basic,
    new_client,
    translated,
)
from sayso.channels.whatsapp.incoming import (
    MESSAGE_SID,
    TWILIO_SETTINGS,
    TwilioForm,
    parse,
    twilio_signed,
)
from sayso.channels.whatsapp.outgoing import (
    ContentTemplates,
    content_of,
    pieces_of,
    plain_fields,
    template_fields,
)
from sayso.channels.whatsapp.people import WhatsAppPeople
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.infra.http import PooledSessions, SafeDownload

#: A sender may send 80 messages a second, which Twilio raises to 400 on request.
RATE = RateLimit(per_second=80)
#: Twilio's Sandbox takes one message in 3 seconds.
SANDBOX_RATE = RateLimit(per_second=1 / 3)
#: Seconds after which "typing" is shown again.
TYPING_SECONDS = 20.0
#: How long after a person's last message any text may be sent, in seconds. A minute less than
#: WhatsApp's 24 h, because two clocks are compared.
WINDOW_SECONDS = 24 * 3600 - 60
#: The most redirects from Twilio's API to its file servers.
MAX_REDIRECTS = 2

_TYPING_URL = "https://messaging.twilio.com/v2/Indicators/Typing.json"


class WhatsAppChannel:
    """One sender, a number or a Messaging Service. One per process, used from any thread.

    WhatsApp takes any text for 24 hours after a person's last message, which is called the window.
    After that it takes only messages that are made of approved templates: text is sent as the
    Content `template`, and a question with two buttons as `confirm_template`.

    Webhooks are verified with `shared_key` for accounts that turned on Twilio's shared keys. Calls
    of Twilio's API always use `auth_token`.
    """

    def __init__(self, name: str, settings: WhatsAppSettings, deps: AdapterDeps) -> None:
        self.name = name
        self._settings = settings
        self._media = deps.media
        self._auth_token = settings.auth_token.get_secret_value()
        self._status_callback = f"{hook_url(deps.public_url, name)}/status"
        open_client = functools.partial(
            new_client, settings.account_sid, self._auth_token, settings.api_url
        )
        self._client = PooledSessions(open_client)
        self._contents = ContentTemplates(settings.account_sid, deps.cache, self._client)
        self._people = WhatsAppPeople(name, deps.identities)

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify and parse one form: a message, a tap, or the status of a message of the bot.

        Raises Forbidden or BadHook.
        """
        signature = hook.header("x-twilio-signature")
        if not signature:
            raise Forbidden(
                "there is no X-Twilio-Signature header: "
                "did Twilio send it, and does the proxy pass it on?"
            )

        settings = hook.header(TWILIO_SETTINGS)
        secret = self._auth_token
        if settings and self._settings.shared_key:
            secret = self._settings.shared_key.get_secret_value()
        url = hook.url.partition("#")[0]
        try:
            form = TwilioForm(hook.body)
            hosts = (hook.header("host"), hook.header("x-forwarded-host"))
            is_signed = twilio_signed(secret, url, form.values, signature, settings, hosts=hosts)
        except ValueError as exc:
            raise Forbidden(f"the signature cannot be checked: {str(exc)[:100]}") from exc
        if not is_signed:
            shown_url = url.partition("?")[0][:200]
            raise Forbidden(
                f"the signature is not that of {shown_url!r}, which public_url makes of this "
                "request: Twilio signs the URL that is set in its console, with its own scheme, "
                "host and path; or auth_token is another one"
            )
        if form.get("AccountSid") != self._settings.account_sid:
            raise Forbidden("the form names another account than account_sid")
        return parse(form, hook, channel=self.name, own_address=self._settings.from_)

    def recognize(self, turn: Turn, *, store: bool, briefly: bool = False) -> Turn:
        """Return the turn under its sender's first id. See RecognizesPeople."""
        return self._people.recognize(turn, store=store, briefly=briefly)

    def sender(self, turn: Turn) -> Sender | None:
        """Return the ids that a turn names of its sender, None if it names none."""
        return self._people.sender(turn)

    def conversation_of(self, conversation: Conversation) -> Conversation:
        """Return the conversation of the person who has this address now."""
        return self._people.conversation_of(conversation)

    def ids_of(self, user_id: str) -> tuple[str, ...]:
        """Return the ids that a person has now. See RecognizesPeople."""
        return self._people.ids_of(user_id)

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return the limit of the sender. A single conversation has none.

        The Sandbox's limit does not count where a Messaging Service chooses the sender, nor at
        another server than Twilio's (`api_url`).
        """
        settings = self._settings
        has_other_sender = settings.messaging_service_sid or settings.api_url
        if settings.from_ == SANDBOX and not has_other_sender:
            return SANDBOX_RATE
        return RATE

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split text at 1,600 characters, or at 1,024 with buttons and as the caption of a picture.

        Other files are separate messages. A file that WhatsApp does not show is a link in the text.
        """
        return pieces_of(reply, self._media)

    async def show_typing(self, turn: Turn) -> float:
        """Mark the message as read and show "typing" until the reply, for at most 25 seconds."""
        # Nothing depends on the sign, and the SDK may raise anything.
        with contextlib.suppress(Exception):
            data = {"channel": "whatsapp", "messageId": turn.message_id}
            await self._client.here().request_async("POST", _TYPING_URL, data=data)
        return TYPING_SECONDS

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Do nothing: WhatsApp has no drafts, and messages cannot be edited."""
        return ""

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Download a file of this account's messages. Raises FetchError.

        Servers that Twilio redirects to get no credentials.
        """
        account = self._settings.account_sid
        api_url = self._settings.api_url or ""
        messages = f"/2010-04-01/Accounts/{re.escape(account)}/Messages/[A-Za-z0-9/]+"
        match = re.fullmatch(f"{ORIGINS[0]}({messages})", media.ref)
        if match is None:
            raise FetchError("the file's address is not one of this Twilio account")
        url = (api_url or ORIGINS[0]) + match[1]
        headers = {"Authorization": basic(account, self._auth_token)}
        download = SafeDownload(MAX_FILE_BYTES, MAX_REDIRECTS, home=api_url)
        with fetch_errors():
            await download.save(url, file, headers)

    async def quoted(self, turn: Turn) -> str:
        """Return the text of the quoted message, which this account sent or received.

        Raises FetchError.
        """
        if not MESSAGE_SID.fullmatch(turn.replied_to):
            raise FetchError("the quoted message has no id of Twilio's")
        try:
            message = await self._client.here().messages(turn.replied_to).fetch_async()
        except Exception as exc:
            # The SDK may raise anything, and a missing quote must not fail the turn.
            raise FetchError(
                f"Twilio did not return the quoted message: {type(exc).__name__}"
            ) from exc
        people = {turn.conversation.chat, *turn.aliases}
        if people.isdisjoint((str(message.from_), str(message.to))):
            raise FetchError("the quoted message belongs to another conversation")
        return str(message.body or "")

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece. Raises SendError.

        Buttons that Twilio refuses are left out: the text asks for a typed answer anyway. WhatsApp
        cannot edit: an optional edit is left out, any other is sent as a new message.
        """
        reply = delivery.reply
        if reply.edits and reply.optional:
            return Receipt("")
        # `silence`: for how many seconds the person has not written.
        if delivery.silence > WINDOW_SECONDS:
            return await self._send_template(delivery)

        # A Content is a message with buttons, which is created at Twilio before it is sent; its id is
        # the `sid`. None: the reply has no buttons, or Twilio did not create the Content now.
        sid = None
        content = content_of(whatsapp_text(reply.text), reply.buttons)
        if content:
            sid = await self._contents.sid(content)
        if content is None or sid is None:
            return await self._create(delivery, plain_fields(reply, self._media))

        try:
            return await self._create(delivery, content.fields(sid))
        except ContentRefused as exc:
            if isinstance(exc, ContentLost):
                await self._contents.forget(content)
            return await self._create(delivery, plain_fields(reply, self._media))

    async def _send_template(self, delivery: Delivery) -> Receipt:
        """Send a piece as an approved template.

        Raises WindowClosed if it fits into no template or the template is refused, and SendError.
        """
        try:
            fields = template_fields(delivery.reply, self._settings)
            template = fields["content_sid"]
            category = await self._contents.category(template)
            return await self._create(delivery, fields, category, template=template)
        except AddressClosed:
            raise
        except Refused as exc:
            # Once the person has written, the text can be sent without a template.
            raise WindowClosed(f"the template was refused: {exc}") from exc

    async def _create(
        self,
        delivery: Delivery,
        fields: Mapping[str, Any],
        price_class: PriceClass = "service",
        template: str = "",
    ) -> Receipt:
        """Create a message at Twilio. Raises SendError.

        * `fields`: the content of the message, as fields of Twilio's API.
        * `price_class`: by which of WhatsApp's classes it is charged. "service" is an answer within
          the window; a template has a class of its own.
        * `template`: the id of the approved template that the message is made of, "" for none.
        """
        service = self._settings.messaging_service_sid
        sender = {"from_": self._settings.from_}
        if service:
            sender = {"messaging_service_sid": service}

        # The URL of the status reports names the delivery, so that its conversation need not be
        # looked up, and the template, which Twilio's reports do not name. Only letters, digits and
        # dots are added, which no proxy re-encodes before the signature is checked.
        name = delivery.id.rpartition(":")[2].replace("#", ".")
        callback = f"{self._status_callback}?delivery={name}"
        if template:
            callback += f".{template}"

        to = await asyncio.to_thread(self._people.address, delivery.conversation)
        has_content = not template and "content_sid" in fields
        with translated(Sending(delivery.attempt, to, template, has_content)):
            message = await self._client.here().messages.create_async(
                to=to,
                status_callback=callback,
                **sender,
                **fields,
            )
        return Receipt(str(message.sid or ""), price_class=price_class)
