"""TwilioSetup: sets, checks and deletes the webhook of a sender or service at Twilio."""

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

#: Has Twilio retry a failed webhook up to three times, also after a 5xx or a timeout. By default it
#: retries once, and only after a failed connection. A URL's fragment is neither sent nor signed.
RETRIES = "#rc=3&rp=ct,rt,5xx"

_SEARCHED = 1000
#: The id of no message.
_NO_MESSAGE = "SM" + "0" * 32
#: Twilio's codes for a message with a template in these states.
_REFUSALS = {"rejected": 63040, "paused": 63041, "disabled": 63042}
_SANDBOX_PAGE = "Messaging, Try it out, Send a WhatsApp message, Sandbox settings"


class TwilioSetup(PlatformSetup):
    """The setup of one sender, or of one Messaging Service, at Twilio."""

    def __init__(
        self, name: str, settings: WhatsAppSettings, public_url: str, options: SetupOptions
    ) -> None:
        super().__init__(name, public_url)
        self._settings = settings
        self._service = settings.messaging_service_sid or ""
        token = settings.auth_token.get_secret_value()
        self._client = PooledSessions(
            partial(new_client, settings.account_sid, token, settings.api_url or None)
        )

    async def set_webhook(self) -> list[str]:
        """Set the URLs of the messaging service, or of the sender. Raises SetupError.

        The fallback is the same URL: without one, a webhook that Twilio gave up is lost.
        """
        if not self._settings.api_url:
            check_outside(self._url)
        if self._is_sandbox:
            return [
                f"{SANDBOX} is Twilio's Sandbox, which has no API. In the Twilio Console, {_SANDBOX_PAGE}:",
                f"  When a message comes in:  {self._url}{RETRIES}  (POST)",
                f"  Status callback URL:      {self._url}/status  (POST)",
                "Each person joins by sending the text shown there, and again after three days.",
            ]
        await self._set(self._url + RETRIES, self._url, f"{self._url}/status")
        return [
            f"{self._where}: webhook set to {bare_url(self._url)}, retried after an error, and as the fallback",
            f"status callback set to {bare_url(self._url)}/status",
        ]

    async def check(self) -> list[CheckResult]:
        """Check the account, its webhook, its sender and its templates."""
        accounts = self._client.here().api.v2010.accounts
        try:
            async with self._calls():
                account = await accounts(self._settings.account_sid).fetch_async()
        except SetupError as exc:
            return [self._fail("account", exc.says, exc.cure)]
        sids = {
            "template": self._settings.template,
            "confirm_template": self._settings.confirm_template,
        }
        templates = [await self._template(kind, sid) for kind, sid in sids.items() if sid]
        return [self._account(account), *await self._address(), *templates]

    async def delete_webhook(self) -> list[str]:
        """Delete the URLs. Raises SetupError."""
        if self._is_sandbox:
            return [f"the Sandbox has no API: empty its addresses in the Console ({_SANDBOX_PAGE})"]
        await self._set("", "", "")
        return [
            f"{self._where}: webhook, fallback and status callback deleted; messages to it are lost until one is set"
        ]

    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return the delivery status of a message that does not exist.

        It is logged and has no other effect.
        """
        if forged:
            secret = FORGED
        else:
            secret = self._settings.auth_token.get_secret_value()
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
        return not self._service and self._settings.from_ == SANDBOX

    @property
    def _where(self) -> str:
        if self._service:
            return f"messaging service {self._service}"
        return f"sender {self._settings.from_}"

    async def _set(self, url: str, fallback: str, status: str) -> None:
        from twilio.rest.messaging.v2.channels_sender import ChannelsSenderList

        webhook = {
            "callback_url": url,
            "callback_method": "POST",
            "fallback_url": fallback,
            "fallback_method": "POST",
            "status_callback_url": status,
            "status_callback_method": "POST",
        }
        changed = ChannelsSenderList.MessagingV2ChannelsSenderRequestsUpdate({"webhook": webhook})
        async with self._calls():
            messaging = self._client.here().messaging
            if self._service:
                await messaging.v1.services(self._service).update_async(
                    inbound_request_url=url,
                    inbound_method="POST",
                    fallback_url=fallback,
                    fallback_method="POST",
                    status_callback=status,
                    use_inbound_webhook_on_number=False,
                )
            else:
                sender = await self._sender()
                await messaging.v2.channels_senders(sender.sid).update_async(changed)

    async def _sender(self) -> Any:
        """Return the sender of the configured number. Raises SetupError."""
        senders = await self._client.here().messaging.v2.channels_senders.list_async(
            "whatsapp", limit=_SEARCHED
        )
        sender = next((each for each in senders if each.sender_id == self._settings.from_), None)
        if sender is None:
            known = ", ".join(sorted(str(sender.sender_id) for sender in senders)) or "none"
            raise SetupError(
                f"this account has no sender {self._settings.from_}", f"use one of its own: {known}"
            )
        return sender

    def _account(self, account: Any) -> CheckResult:
        says = f"{account.friendly_name or 'account'}: {account.status}, {account.type}"
        if account.status != "active":
            return self._fail("account", says, "the Twilio Console shows what it waits for")
        if account.type == "Trial":
            return self._warn(
                "account", says, "upgrade it: a trial has few messages a day", id="account-trial"
            )
        return self._ok("account", says)

    async def _address(self) -> list[CheckResult]:
        if self._is_sandbox:
            return [
                self._ok(
                    "webhook",
                    f"the Sandbox has no API; it must be {bare_url(self._url)} ({_SANDBOX_PAGE})",
                )
            ]
        try:
            async with self._calls():
                if not self._service:
                    sender = await self._sender()
                    webhook = sender.webhook or {}
                    url = webhook.get("callback_url")
                    method = webhook.get("callback_method")
                    compared = self._compared(url, method, webhook.get("fallback_url"))
                    return [self._online(sender), compared]
                services = self._client.here().messaging.v1.services
                service = await services(self._service).fetch_async()
        except SetupError as exc:
            return [self._fail("webhook", exc.says, exc.cure, id="webhook-unknown")]
        if service.use_inbound_webhook_on_number:
            return [self._fail("webhook", f"{self._where} leaves webhooks to its numbers")]
        return [
            self._compared(
                service.inbound_request_url, service.inbound_method, service.fallback_url
            )
        ]

    def _online(self, sender: Any) -> CheckResult:
        if str(sender.status).startswith("ONLINE"):
            return self._ok("sender", f"{sender.sender_id} is {sender.status}")
        says = f"{sender.sender_id} is {sender.status}"
        reasons = []
        for reason in sender.offline_reasons or ():
            words = reason
            if isinstance(reason, dict):
                words = reason.get("message") or reason.get("code") or reason
            reasons.append(str(words))
        if reasons:
            says = f"{says}: {'; '.join(reasons)}"
        return self._fail(
            "sender", says, "open the sender in the Twilio Console, Messaging, Senders"
        )

    def _compared(self, url: str | None, method: str | None, fallback: str | None) -> CheckResult:
        if (url or "").partition("#")[0] != self._url:
            if url:
                says = f"Twilio sends to {bare_url(url)}, not to {bare_url(self._url)}"
            else:
                says = "no webhook is set"
            return self._fail("webhook", says)
        if method and method != "POST":
            return self._fail("webhook", f"Twilio sends by {method}, which is refused")
        if not fallback:
            cure = f"run `sayso channel connect {self._name}`"
            return self._warn(
                "webhook", "no fallback: failed webhooks are lost", cure, id="webhook-fallback"
            )
        return self._ok("webhook", f"{bare_url(self._url)}, which is ours, with a fallback")

    async def _template(self, kind: str, sid: str) -> CheckResult:
        try:
            async with self._calls():
                content = self._client.here().content.v1.contents(sid)
                resource = await content.fetch_async()
                approvals = await content.approval_fetch().fetch_async()
        except SetupError as exc:
            return self._fail(kind, f"{exc.says}: {sid}", exc.cure, id="template")

        approval = approvals.whatsapp or {}
        status = str(approval.get("status") or "unsubmitted")
        says = f"{resource.friendly_name or sid} is {status}"
        if status == "approved":
            return self._ok(kind, says)
        reason = str(approval.get("rejection_reason") or "")
        if reason:
            says = f"{says}: {reason}"
        code = _REFUSALS.get(status)
        cure = "have it approved in the Twilio Console, Content Template Builder; until then it cannot be sent"
        if code:
            cure = REACTIONS[code].cure
        return self._fail(kind, says, cure, id="template")

    def _calls(self) -> AbstractAsyncContextManager[None]:
        return platform_calls("Twilio", setup_problem)
