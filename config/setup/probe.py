"""Probe: a signed webhook of which nothing comes, sent to ourselves the way a platform would.

What comes back proves the way from outside to the web, the address that signatures are over, and the secret.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from sayso.channels.signing import Signed, slack_hook, telegram_hook, whatsapp_hook
from sayso.config.schema import AnyChannel, SlackSettings, TelegramSettings, WhatsAppSettings
from sayso.config.setup.desk import hook_url
from sayso.config.setup.finding import Finding, shown

#: Signed with this, a webhook is a forgery. No channel's secret is so short.
FORGED = "forged"
_MESSAGE = "SM" + "0" * 32


@dataclass(frozen=True, slots=True)
class Probe:
    """One channel's harmless webhook, signed wrongly and rightly."""

    channel: str
    url: str
    forged: Signed
    signed: Signed

    async def findings(self, web: httpx.AsyncClient) -> list[Finding]:
        """Send it. The forged one goes first: a stranger at our address is not shown what we sign with."""
        wrong = await self._sent(web, self.forged)
        if isinstance(wrong, Finding):
            return [wrong]
        if wrong.status_code != 403:
            return [self._fails(f"a forged webhook was answered with {wrong.status_code}, not 403", _other(wrong))]
        right = await self._sent(web, self.signed)
        if isinstance(right, Finding):
            return [right]
        if right.status_code != 200:
            return [self._fails(f"a signed webhook was answered with {right.status_code}, not 200", _refused(right))]
        says = f"{shown(self.url)} takes what is signed and refuses what is forged"
        return [Finding("signature", "ok", says, channel=self.channel)]

    async def _sent(self, web: httpx.AsyncClient, signed: Signed) -> httpx.Response | Finding:
        headers, body = signed
        try:
            return await web.post(self.url, headers=headers, content=body)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            says = f"{shown(self.url)} does not answer ({type(exc).__name__})"
            return self._fails(says, "see that the web runs and that public_url leads to it, also from this machine")

    def _fails(self, says: str, cure: str) -> Finding:
        return Finding("signature", "fail", says, cure, self.channel)


def probe_of(name: str, settings: AnyChannel, public_url: str, now: float) -> Probe | None:
    """The probe of a channel; None for one that takes no webhooks of others. `now` is Unix seconds: Slack signs it."""
    url = hook_url(public_url, name)
    match settings:
        case WhatsAppSettings():
            token = settings.auth_token.get_secret_value()
            # What became of a message that nobody sent: it is logged, and that is all.
            form = {"AccountSid": settings.account_sid, "MessageSid": _MESSAGE, "MessageStatus": "sent"}
            return Probe(name, url, whatsapp_hook(url, FORGED, form), whatsapp_hook(url, token, form))
        case TelegramSettings(webhook_secret=str(secret)):
            update = {"update_id": 0, "sayso_doctor": {}}
            return Probe(name, url, telegram_hook(FORGED, update), telegram_hook(secret, update))
        case SlackSettings():
            body = json.dumps({"type": "url_verification", "challenge": "sayso-doctor"}).encode()
            secret = settings.signing_secret.get_secret_value().strip()
            return Probe(name, url, slack_hook(FORGED, body, now), slack_hook(secret, body, now))
    return None


def _other(answer: httpx.Response) -> str:
    """The cure where a forged webhook was not forbidden: it is hardly our web that answered, or not with this file."""
    if answer.is_redirect:
        return "platforms lose a webhook on a redirect: write public_url as the address that it leads to"
    if answer.status_code == 404:
        return "restart the web with this configuration, or have the proxy pass /hooks/… on with its path as it is"
    if answer.is_success:
        return "something else answers there, or the channel's secret is a guess: see what public_url leads to"
    return "see the web's log, and the proxy's: neither may ask for a password or lack a server behind it"


def _refused(answer: httpx.Response) -> str:
    """The cure where what we signed was not taken."""
    if answer.status_code == 403:
        return (
            "the running web has another secret or another public_url than this configuration, its clock is wrong, or "
            "a proxy changes the request: restart the web with this configuration"
        )
    return "see the web's log: it read the webhook, and could not keep it"
