"""SlackSetup: checks a Slack app's token and scopes. Its URLs can be set only on Slack's web page."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from sayso.channels.http import PooledSessions
from sayso.channels.setup import (
    FORGED,
    NO_WAY,
    CheckResult,
    MessageLog,
    SetupError,
    SetupOptions,
    asking,
    check_https,
    check_outside,
    hook_url,
    not_told,
    shown,
)
from sayso.channels.slack.events import slack_hook
from sayso.channels.slack.scopes import events, scopes
from sayso.channels.slack.settings import SlackSettings
from sayso.channels.types import Signed

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from slack_sdk.web.async_client import AsyncWebClient

#: Slack's error codes for a token that it does not accept.
DEAD = (
    "account_inactive", "invalid_auth", "not_authed", "not_allowed_token_type", "org_login_required", "token_expired",
    "token_revoked",
)  # fmt: skip


class SlackSetup:
    """One app at Slack. A PlatformSetup."""

    def __init__(self, name: str, settings: SlackSettings, public_url: str, options: SetupOptions) -> None:
        self._name, self._settings = name, settings
        self._url = hook_url(public_url, name)
        token = settings.bot_token.get_secret_value().strip()
        self._web = PooledSessions(partial(new_client, token, settings.api_url))

    async def set_webhook(self) -> list[str]:
        """Return what to click. Raises SetupError for a URL that Slack cannot reach."""
        if not self._settings.api_url:
            check_outside(self._url)
            check_https("Slack", self._url)
        return [
            "Slack lets nobody set this with a bot's token. At https://api.slack.com/apps, in your app:",
            f"  Event Subscriptions   on; Request URL {self._url}",
            f"                        bot events: {' '.join(events('assistant'))}",
            f"  Interactivity         on; Request URL {self._url}",
            f"  Slash Commands        each with Request URL {self._url}",
            "  App Home              Messages Tab on, and messages from people allowed",
            f"  OAuth & Permissions   bot scopes: {' '.join(scopes())}",
            "Then install the app to the workspace again.",
            f"Or paste what `sayso channel manifest {self._name}` prints under App Manifest: it says all of this.",
        ]

    async def check(self) -> list[CheckResult]:
        """Check the token and its scopes, and list what Slack does not tell."""
        try:
            async with asking("Slack", _why):
                answer = await self._web.here().auth_test()
        except SetupError as exc:
            return [not_told("token", self._name, exc)]
        told = {name.lower(): value for name, value in answer.headers.items()}
        who = f"@{answer.get('user') or answer.get('user_id')} in {answer.get('team') or answer.get('team_id')}"
        return [
            self._ok("token", f"bot {who}"),
            self._scopes(str(told.get("x-oauth-scopes", ""))),
            self._ok("webhook", f"Slack does not tell where it sends to: it must be {shown(self._url)}"),
            self._ok("messages tab", "Slack does not tell: App Home, Messages Tab must be on for direct messages"),
        ]

    async def delete_webhook(self) -> list[str]:
        """Return what to click."""
        return [
            "Slack lets nobody unset this with a bot's token. At https://api.slack.com/apps, in your app:",
            "  Event Subscriptions   off",
            "  Interactivity         off",
            "  Slash Commands        delete each",
        ]

    def probe(self, now: float, *, forged: bool = False) -> Signed | None:
        """Return Slack's own question whether an address is ours."""
        secret = FORGED if forged else self._settings.signing_secret.get_secret_value().strip()
        body = json.dumps({"type": "url_verification", "challenge": "sayso-doctor"}).encode()
        return slack_hook(secret, body, now)

    def message_log(self) -> MessageLog:
        """Raise SetupError: Slack gives bots no log."""
        raise SetupError(
            "Slack keeps no list of events: what we did not take it sends again three times, within 5 minutes",
            'turn on "Delayed Events" in the app for a try an hour more; files there are the workspace\'s to delete',
        )

    def _scopes(self, header: str) -> CheckResult:
        given = {scope.strip() for scope in header.split(",") if scope.strip()}
        missing = [f"{scope} (for {', '.join(what)})" for scope, what in scopes().items() if scope not in given]
        if not missing:
            return self._ok("scopes", f"all {len(scopes())} that it needs")
        cure = (
            f"add them under OAuth & Permissions and install again; `sayso channel manifest {self._name}` has them all"
        )
        return CheckResult("scopes", "fail", f"missing: {'; '.join(missing)}", cure, self._name)

    def _ok(self, check: str, says: str) -> CheckResult:
        return CheckResult(check, "ok", says, channel=self._name)


def new_client(token: str, api_url: str | None, session: ClientSession) -> AsyncWebClient:
    """Return a client of Slack's Web API with this token."""
    from slack_sdk.web.async_client import AsyncWebClient

    logger = logging.getLogger("sayso.channels.slack.adapter.sdk")
    logger.setLevel(logging.CRITICAL)  # the SDK logs whole answers at DEBUG
    url = f"{api_url or 'https://slack.com'}/api/"
    return AsyncWebClient(token, url, session=session, logger=logger, retry_handlers=[])


def _why(exc: Exception) -> tuple[str, str]:
    code = code_of(exc)
    if code in DEAD:
        return f"Slack does not take the bot_token ({code})", "copy the Bot User OAuth Token (xoxb-…) after an install"
    return why(exc, code)


def code_of(exc: Exception) -> str:
    """Return Slack's code of an error, "" for an error of another kind."""
    data = getattr(getattr(exc, "response", None), "data", None)
    return str(data.get("error") or "") if isinstance(data, dict) else ""


def why(exc: Exception, code: str) -> tuple[str, str]:
    """Return the meaning of an error that does not concern the token, and the cure."""
    from aiohttp import ClientConnectionError

    if isinstance(exc, (ClientConnectionError, OSError)):
        return "no connection to Slack", NO_WAY
    response: Any = getattr(exc, "response", None)
    if code in ("ratelimited", "rate_limited") or getattr(response, "status_code", 0) == 429:
        return "Slack was asked too often", "wait a minute, then run it again"
    if code:
        return f"Slack refuses: {code}", "see what it names"
    return f"Slack's answer makes no sense ({type(exc).__name__})", "try again; with an api_url, see what it is"
