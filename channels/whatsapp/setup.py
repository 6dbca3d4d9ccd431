"""TwilioSetup: sets, checks and deletes the webhook of a sender or service at Twilio.

A *sender* is one WhatsApp number. A *Messaging Service* chooses among several senders and has one
webhook for all of them. Each has three URLs: of the webhook, of its fallback, which Twilio calls
when the webhook fails, and of the status callback, which gets what becomes of each message sent.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from sayso.channels.setup import (
    FORGED,
    CheckResult,
    MessageLog,
    PlatformSetup,
    SetupError,
    SetupOptions,
    bare_url,
    check_outside,
    platform_calls,
)
from sayso.channels.types import SignedWebhook
from sayso.channels.whatsapp.client import REACTIONS, SANDBOX, new_client, setup_problem
from sayso.channels.whatsapp.incoming import whatsapp_hook
from sayso.channels.whatsapp.message_log import TwilioMessageLog
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.infra.http import PooledSessions

#: The end of a webhook's URL that tells Twilio when to repeat a failed webhook: up to three times
#: (`rc`, the retry count), after a failed connection, a timeout of reading or a 5xx (`rp`, the retry
#: policy: ct, rt, 5xx). By default it repeats once, and only after a failed connection. The end is a
#: fragment, which is neither sent nor signed.
RETRIES = "#rc=3&rp=ct,rt,5xx"

#: The most senders of an account that are looked through.
_MAX_SENDERS = 1000
#: The id of no message.
_NO_MESSAGE = "SM" + "0" * 32
#: The states of a template that WhatsApp does not send, with the error code that Twilio gives for a
#: message made of it. REACTIONS has the cure for each code.
_REFUSALS = {"rejected": 63040, "paused": 63041, "disabled": 63042}
#: Where the Sandbox is set up in the Twilio Console.
_SANDBOX_PAGE = "Messaging, Try it out, Send a WhatsApp message, Sandbox settings"


class TwilioSetup(PlatformSetup):
    """Sets, checks and deletes the webhook of one sender or one Messaging Service at Twilio.

    A *sender* is a number that is registered for WhatsApp; a *Messaging Service* chooses one of its
    senders for each message. Lives as long as one command. `options` are for other platforms:
    Twilio can neither limit connections nor drop webhooks that wait.
    """

    def __init__(
        self, name: str, settings: WhatsAppSettings, public_url: str, options: SetupOptions
    ) -> None:
        super().__init__(name, public_url)
        self._settings = settings
        #: The id of the Messaging Service, "" for one sender.
        self._service = settings.messaging_service_sid or ""
        token = settings.auth_token.get_secret_value()
        self._client = PooledSessions(
            partial(new_client, settings.account_sid, token, settings.api_url or None)
        )

    async def set_webhook(self) -> list[str]:
        """Set the URLs of the service or the sender, and return what was done, line by line.

        The Sandbox, Twilio's shared number for trials, has no API: the lines say what a person must
        enter in the Console. Raises SetupError.
        """
        if not self._settings.api_url:
            check_outside(self._url)
        if self._is_sandbox:
            return [
                f"{SANDBOX} is Twilio's Sandbox, which has no API. "
                f"In the Twilio Console, {_SANDBOX_PAGE}:",
                f"  When a message comes in:  {self._url}{RETRIES}  (POST)",
                f"  Status callback URL:      {self._url}/status  (POST)",
                "Each person joins by sending the text shown there, and again after three days.",
            ]

        # The fallback is the same URL: without one, a webhook that Twilio gave up is lost.
        await self._set(
            webhook=self._url + RETRIES,
            fallback=self._url,
            status=f"{self._url}/status",
        )
        url = bare_url(self._url)
        return [
            f"{self._where}: webhook set to {url}, retried after an error, and as the fallback",
            f"status callback set to {url}/status",
        ]

    async def check(self) -> list[CheckResult]:
        """Check the account, its webhook, its sender and its templates."""
        accounts = self._client.here().api.v2010.accounts
        try:
            async with self._calls():
                account = await accounts(self._settings.account_sid).fetch_async()
        except SetupError as exc:
            return [self._fail("account", exc.says, exc.cure)]

        results = [self._check_account(account), *await self._check_webhook()]
        sids = {
            "template": self._settings.template,
            "confirm_template": self._settings.confirm_template,
        }
        for key, sid in sids.items():
            if sid:
                results.append(await self._check_template(key, sid))
        return results

    async def delete_webhook(self) -> list[str]:
        """Delete the URLs. Raises SetupError."""
        if self._is_sandbox:
            return [f"the Sandbox has no API: empty its addresses in the Console ({_SANDBOX_PAGE})"]
        await self._set(webhook="", fallback="", status="")
        return [
            f"{self._where}: webhook, fallback and status callback deleted; "
            "messages to it are lost until one is set"
        ]

    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return a signed status callback for a message that does not exist.

        The bot only logs it. `forged`: signed with a wrong secret, so that the bot must refuse it.
        """
        secret = self._settings.auth_token.get_secret_value()
        if forged:
            secret = FORGED
        form = {
            "AccountSid": self._settings.account_sid,
            "MessageSid": _NO_MESSAGE,
            "MessageStatus": "sent",
        }
        return whatsapp_hook(self._url, secret, form)

    def message_log(self) -> MessageLog:
        """Return Twilio's log of messages."""
        return TwilioMessageLog(self._settings)

    @property
    def _is_sandbox(self) -> bool:
        """Whether the sender is that of Twilio's Sandbox."""
        return not self._service and self._settings.from_ == SANDBOX

    @property
    def _where(self) -> str:
        """The sender or the service, for an operator to read."""
        if self._service:
            return f"messaging service {self._service}"
        return f"sender {self._settings.from_}"

    async def _set(self, *, webhook: str, fallback: str, status: str) -> None:
        """Set the three URLs, "" to delete them. Raises SetupError.

        `webhook` gets the messages, `fallback` those that `webhook` did not take, and `status` what
        became of sent messages.
        """
        from twilio.rest.messaging.v2.channels_sender import ChannelsSenderList

        async with self._calls():
            messaging = self._client.here().messaging
            if self._service:
                await messaging.v1.services(self._service).update_async(
                    inbound_request_url=webhook,
                    inbound_method="POST",
                    fallback_url=fallback,
                    fallback_method="POST",
                    status_callback=status,
                    # Otherwise each number of the service uses its own webhook, and not ours.
                    use_inbound_webhook_on_number=False,
                )
                return

            urls = {
                "callback_url": webhook,
                "callback_method": "POST",
                "fallback_url": fallback,
                "fallback_method": "POST",
                "status_callback_url": status,
                "status_callback_method": "POST",
            }
            update = ChannelsSenderList.MessagingV2ChannelsSenderRequestsUpdate({"webhook": urls})
            sender = await self._sender()
            await messaging.v2.channels_senders(sender.sid).update_async(update)

    async def _sender(self) -> Any:
        """Return the sender of the configured number. Raises SetupError."""
        senders = await self._client.here().messaging.v2.channels_senders.list_async(
            "whatsapp", limit=_MAX_SENDERS
        )
        for sender in senders:
            if sender.sender_id == self._settings.from_:
                return sender
        known = ", ".join(sorted(str(sender.sender_id) for sender in senders)) or "none"
        raise SetupError(
            f"this account has no sender {self._settings.from_}", f"use one of its own: {known}"
        )

    def _check_account(self, account: Any) -> CheckResult:
        """Check that the account is active, and no trial."""
        says = f"{account.friendly_name or 'account'}: {account.status}, {account.type}"
        if account.status != "active":
            return self._fail("account", says, "the Twilio Console shows what it waits for")
        if account.type == "Trial":
            return self._warn(
                "account", says, "upgrade it: a trial has few messages a day", id="account-trial"
            )
        return self._ok("account", says)

    async def _check_webhook(self) -> list[CheckResult]:
        """Check the sender and its webhook, or the webhook of the service."""
        if self._is_sandbox:
            says = f"the Sandbox has no API; it must be {bare_url(self._url)} ({_SANDBOX_PAGE})"
            return [self._ok("webhook", says)]
        try:
            async with self._calls():
                if self._service:
                    services = self._client.here().messaging.v1.services
                    service = await services(self._service).fetch_async()
                    return [self._check_service(service)]

                sender = await self._sender()
                webhook = sender.webhook or {}
                url = webhook.get("callback_url")
                method = webhook.get("callback_method")
                fallback = webhook.get("fallback_url")
                return [self._check_sender(sender), self._check_url(url, method, fallback)]
        except SetupError as exc:
            return [self._fail("webhook", exc.says, exc.cure, id="webhook-unknown")]

    def _check_service(self, service: Any) -> CheckResult:
        """Check the webhook of a Messaging Service."""
        if service.use_inbound_webhook_on_number:
            return self._fail("webhook", f"{self._where} leaves webhooks to its numbers")
        return self._check_url(
            service.inbound_request_url, service.inbound_method, service.fallback_url
        )

    def _check_sender(self, sender: Any) -> CheckResult:
        """Check that WhatsApp takes messages from the sender."""
        # "ONLINE:UPDATING" while a change of its profile is being made: it takes messages.
        if str(sender.status).startswith("ONLINE"):
            return self._ok("sender", f"{sender.sender_id} is {sender.status}")
        says = f"{sender.sender_id} is {sender.status}"
        reasons = []
        for reason in sender.offline_reasons or ():
            text = reason
            if isinstance(reason, dict):
                text = reason.get("message") or reason.get("code") or reason
            reasons.append(str(text))
        if reasons:
            says = f"{says}: {'; '.join(reasons)}"
        return self._fail(
            "sender", says, "open the sender in the Twilio Console, Messaging, Senders"
        )

    def _check_url(self, url: str | None, method: str | None, fallback: str | None) -> CheckResult:
        """Check a webhook: its URL, its HTTP method and its fallback."""
        # Without the fragment with the retries (RETRIES), which may have been set by hand. The cure
        # of a failure without one is to connect the channel again.
        if (url or "").partition("#")[0] != self._url:
            says = "no webhook is set"
            if url:
                says = f"Twilio sends to {bare_url(url)}, not to {bare_url(self._url)}"
            return self._fail("webhook", says)
        if method and method != "POST":
            return self._fail("webhook", f"Twilio sends by {method}, which is refused")
        if not fallback:
            cure = f"run `sayso channel connect {self._name}`"
            return self._warn(
                "webhook", "no fallback: failed webhooks are lost", cure, id="webhook-fallback"
            )
        return self._ok("webhook", f"{bare_url(self._url)}, which is ours, with a fallback")

    async def _check_template(self, key: str, sid: str) -> CheckResult:
        """Check that the template with this id is approved. `key` names it in the YAML."""
        try:
            async with self._calls():
                content = self._client.here().content.v1.contents(sid)
                resource = await content.fetch_async()
                approvals = await content.approval_fetch().fetch_async()
        except SetupError as exc:
            return self._fail(key, f"{exc.says}: {sid}", exc.cure, id="template")

        approval = approvals.whatsapp or {}
        status = str(approval.get("status") or "unsubmitted")
        says = f"{resource.friendly_name or sid} is {status}"
        if status == "approved":
            return self._ok(key, says)
        reason = str(approval.get("rejection_reason") or "")
        if reason:
            says = f"{says}: {reason}"
        cure = (
            "have it approved in the Twilio Console, Content Template Builder; "
            "until then it cannot be sent"
        )
        # WhatsApp has refused it: the cure is that of a message which is made of it.
        code = _REFUSALS.get(status)
        if code:
            cure = REACTIONS[code].cure
        return self._fail(key, says, cure, id="template")

    def _calls(self) -> AbstractAsyncContextManager[None]:
        """Raise SetupError for any error of a call to Twilio in this block."""
        return platform_calls("Twilio", setup_problem)
