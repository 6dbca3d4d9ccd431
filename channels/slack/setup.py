"""SlackSetup: checks a Slack app's token and scopes. Its URLs can be set only on Slack's web page."""

from __future__ import annotations

import json
from functools import partial

from sayso.channels.http import PooledSessions
from sayso.channels.setup import (
    FORGED,
    CheckResult,
    MessageLog,
    Problem,
    SetupChecks,
    SetupError,
    SetupOptions,
    bare_url,
    check_https,
    check_outside,
    failed_check,
    platform_calls,
)
from sayso.channels.slack.app_manifest import events, scopes
from sayso.channels.slack.client import new_client
from sayso.channels.slack.errors import TOKEN_ERRORS, error_code, setup_problem
from sayso.channels.slack.incoming import slack_hook
from sayso.channels.slack.settings import SlackSettings
from sayso.channels.types import SignedWebhook


class SlackSetup(SetupChecks):
    """The PlatformSetup of one app at Slack."""

    def __init__(self, name: str, settings: SlackSettings, public_url: str, options: SetupOptions) -> None:
        super().__init__(name, public_url)
        self._settings = settings
        token = settings.bot_token.get_secret_value().strip()
        self._web = PooledSessions(partial(new_client, token, settings.api_url))

    async def set_webhook(self) -> list[str]:
        """Return what to click. Raises SetupError for a URL that Slack cannot reach."""
        if not self._settings.api_url:
            check_outside(self._url)
            check_https("Slack", self._url)
        return [
            "Slack does not let a bot's token set this. At https://api.slack.com/apps, in your app:",
            f"  Event Subscriptions   on; Request URL {self._url}",
            f"                        bot events: {' '.join(events('assistant'))}",
            f"  Interactivity         on; Request URL {self._url}",
            f"  Slash Commands        each with Request URL {self._url}",
            "  App Home              Messages Tab on, and messages from people allowed",
            f"  OAuth & Permissions   bot scopes: {' '.join(scopes())}",
            "Then install the app to the workspace again.",
            f"Or paste the output of `sayso channel manifest {self._name}` under App Manifest: it has all of this.",
        ]

    async def check(self) -> list[CheckResult]:
        """Check the token and its scopes, and list what Slack does not show."""
        try:
            async with platform_calls("Slack", _explain):
                answer = await self._web.here().auth_test()
        except SetupError as exc:
            return [failed_check("token", self._name, exc)]
        headers = {name.lower(): value for name, value in answer.headers.items()}
        who = f"@{answer.get('user') or answer.get('user_id')} in {answer.get('team') or answer.get('team_id')}"
        return [
            self._ok("token", f"bot {who}"),
            self._scopes(str(headers.get("x-oauth-scopes", ""))),
            self._ok("webhook", f"Slack does not show its Request URL, which must be {bare_url(self._url)}"),
            self._ok("messages tab", "Slack does not show it; App Home, Messages Tab must be on for direct messages"),
        ]

    async def delete_webhook(self) -> list[str]:
        """Return what to click."""
        return [
            "Slack does not let a bot's token unset this. At https://api.slack.com/apps, in your app:",
            "  Event Subscriptions   off",
            "  Interactivity         off",
            "  Slash Commands        delete each",
        ]

    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return Slack's own check whether a URL belongs to the app."""
        secret = FORGED if forged else self._settings.signing_secret.get_secret_value().strip()
        body = json.dumps({"type": "url_verification", "challenge": "sayso-doctor"}).encode()
        return slack_hook(secret, body, now)

    def message_log(self) -> MessageLog:
        """Raise SetupError: Slack gives bots no log."""
        raise SetupError(
            "Slack has no list of events: it repeats what the bot did not accept three times, within 5 minutes",
            'turn on "Delayed Events" in the app for hourly repetitions; only the workspace can delete files there',
        )

    def _scopes(self, header: str) -> CheckResult:
        given = {scope.strip() for scope in header.split(",") if scope.strip()}
        missing = [f"{scope} (for {', '.join(what)})" for scope, what in scopes().items() if scope not in given]
        if not missing:
            return self._ok("scopes", f"all {len(scopes())} that it needs")
        cure = f"add them under OAuth & Permissions and install again; `sayso channel manifest {self._name}` lists all"
        return self._fail("scopes", f"missing: {'; '.join(missing)}", cure)


def _explain(exc: Exception) -> Problem | None:
    code = error_code(getattr(exc, "response", None))
    if code in TOKEN_ERRORS:
        return f"Slack does not take the bot_token ({code})", "copy the Bot User OAuth Token (xoxb-…) after an install"
    return setup_problem(exc)
