"""The app's manifest, scopes, creation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sayso.channels.http import PooledSessions, never_sent
from sayso.channels.setup import SetupError, asking, check_https, hook_url, plain
from sayso.channels.slack.errors import reaction_to
from sayso.channels.slack.scopes import View, events, scopes
from sayso.channels.slack.setup import DEAD, code_of, new_client, why

#: The environment variable with the token. It is good for 12 hours, and nothing here keeps it.
VARIABLE = "SLACK_CONFIG_TOKEN"


#: Where Slack's pages of apps are, also that of tokens.
PAGES = "https://api.slack.com/apps"


_APP_ID = re.compile(r"[A-Z0-9]{2,40}")


_GET_ONE = (
    f"under Your App Configuration Tokens at {PAGES} generate one for your workspace, or press Refresh, and export its "
    f"Access Token (xoxe.xoxp-…, not the Refresh Token) as {VARIABLE}; it is good for 12 hours"
)


_OTHER_APP = "name the App ID of its Basic Information, and a token of somebody who may change that app"


#: What is wrong with the app that was named.
_APP_ERRORS = ("invalid_app_id", "invalid_app", "app_not_eligible", "app_not_owned_by_manager_app", "app_not_found")


#: The cure for a fault at a place of the manifest that begins so; the first that fits counts.
_CURES = (
    ("/display_information/name", "give another --name"),
    ("/features/bot_user", "give another --name"),
    ("/features/slash_commands", "give another --command"),
    ("/features/agent_view", "leave out --view agent: this workspace may not have it yet"),
    ("/features/assistant_view", "give --view agent"),
    ("/settings/event_subscriptions/bot_events", "try the other --view"),
    ("/settings", "see that public_url is the https address at which the bot answers from outside"),
)


_NO_CURE = "Slack changed its rules: see https://docs.slack.dev/reference/app-manifest, and paste a corrected one there"


JsonObject = Mapping[str, Any]


class SlackApps:
    """Slack's side of apps. Lives as long as one command, and its event loop: that closes the connections."""

    def __init__(self, token: str, api_url: str | None) -> None:
        self._web = PooledSessions(partial(new_client, checked(token), api_url))

    async def validate(self, manifest: JsonObject) -> list[str]:
        """Ask whether Slack takes a manifest. Returns what it says. Raises SetupError."""
        async with asking("Slack", _why):
            await self._web.here().apps_manifest_validate(manifest=json.dumps(manifest))
        return ["Slack takes this manifest"]

    async def create(self, manifest: JsonObject, channel: str) -> list[str]:
        """Have an app made. Returns what is left to do by hand: Slack's answer has secrets, none of which is told."""
        unanswered = f"see at {PAGES} whether the app is there before you run it again: each run makes one"
        async with asking("Slack", partial(_why, unanswered=unanswered), unanswered=unanswered):
            answer = await self._web.here().apps_manifest_create(manifest=json.dumps(manifest))
        return list(_steps(_app_id(answer), channel))

    async def update(self, app_id: str, manifest: JsonObject) -> list[str]:
        """Put a manifest in the place of all of an app's settings. Returns what is left to do. Raises SetupError."""
        if not _APP_ID.fullmatch(app_id):
            raise SetupError(f"{app_id!r} is no id of an app", _OTHER_APP)
        async with asking("Slack", partial(_why, app_id=app_id)):
            answer = await self._web.here().apps_manifest_update(app_id=app_id, manifest=json.dumps(manifest))
        app = _app_id(answer)
        if answer.get("permissions_updated") is False:
            return [f"app {app} is what this manifest says; its scopes are as they were"]
        return [f"app {app} is what this manifest says", f"Where its scopes changed, install it again: {_install(app)}"]


def checked(token: str) -> str:
    """The token, as far as it can be told without Slack. Raises SetupError."""
    if not token.strip():
        raise SetupError(f"{VARIABLE} is not set", _GET_ONE)
    if not re.fullmatch(r"[\x21-\x7e]+", token.strip()):
        raise SetupError(f"{VARIABLE} is no token: it has letters that none has", _GET_ONE)
    return token.strip()


def _app_id(answer: Any) -> str:
    app_id = str(answer.get("app_id") or "")
    if not _APP_ID.fullmatch(app_id):
        raise SetupError("Slack's answer names no app", f"see at {PAGES} what became of it")
    return app_id


def _install(app_id: str) -> str:
    return f"{PAGES}/{app_id}/install-on-team"


def _steps(app_id: str, channel: str) -> Iterator[str]:
    yield f"app {app_id} is made; what is left, by hand:"
    yield f"  1. install it: {_install(app_id)}"
    yield f"  2. bot_token: copy the Bot User OAuth Token (xoxb-…) of {PAGES}/{app_id}/oauth"
    yield f"  3. signing_secret: copy the Signing Secret under Basic Information, {PAGES}/{app_id}/general"
    yield "  4. start the bot with both; only then can it answer Slack's handshake:"
    yield f"     where {PAGES}/{app_id}/event-subscriptions shows the Request URL unverified, press Retry"
    yield f"After a change: sayso channel manifest {channel} --update {app_id}"


def _why(exc: Exception, *, app_id: str = "", unanswered: str = "") -> tuple[str, str]:
    code = code_of(exc)
    if code == "token_expired":
        return f"{VARIABLE} has expired", _GET_ONE
    if code in DEAD:
        return f"Slack does not take {VARIABLE} ({code})", _GET_ONE
    if code == "invalid_manifest":
        return _faults(exc)
    if code in _APP_ERRORS:
        return f"Slack knows no app {app_id!r} that this token may change ({code})", _OTHER_APP
    says, cure = why(exc, code)
    done_perhaps = reaction_to(code) == "unclear" if code else not never_sent(exc)
    return says, unanswered if unanswered and done_perhaps else cure


def _faults(exc: Exception) -> tuple[str, str]:
    """What Slack says is wrong with a manifest, a line for each place of it, with what may be done about it."""
    answer: Any = getattr(exc, "response", None)
    errors = answer.data.get("errors")
    found = [fault for fault in errors if isinstance(fault, dict)] if isinstance(errors, list) else []
    lines = [f"\n  {plain(_pointer(fault))}  {plain(str(fault.get('message') or ''))}" for fault in found]
    cures = dict.fromkeys(_cure(_pointer(fault)) for fault in found) or {_NO_CURE: None}
    return f"Slack takes no such manifest{''.join(lines)}\ncure", "; ".join(cures)


def _pointer(fault: JsonObject) -> str:
    return str(fault.get("pointer") or "/")


def _cure(pointer: str) -> str:
    return next((cure for start, cure in _CURES if pointer.startswith(start)), _NO_CURE)


#: Slack's limits, in characters.
NAME_LIMIT, BOT_LIMIT, COMMAND_LIMIT = 35, 80, 32


#: What a slash command is called unless one is given.
COMMAND = "/sayso"


_DESCRIPTION = "Does what you ask, and asks before it destroys anything."


_COMMAND = re.compile(r"/[a-z0-9_-]+")


Manifest = dict[str, Any]


def manifest(channel: str, public_url: str, *, name: str, command: str = COMMAND, view: View = "assistant") -> Manifest:
    """The manifest of a channel's app, as plain data. Raises SetupError for what Slack would refuse."""
    _check(name, command, public_url)
    url = hook_url(public_url, channel)
    bot = re.sub(r"[^A-Za-z0-9 ._-]", "", name).strip() or "sayso"
    return {
        "_metadata": {"major_version": 1, "minor_version": 1},
        "display_information": {"name": name, "description": _DESCRIPTION},
        "features": {
            "app_home": {
                "home_tab_enabled": False,
                # Without it nobody can write to the bot directly.
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "bot_user": {"display_name": bot[:BOT_LIMIT], "always_online": True},
            "slash_commands": [
                {
                    "command": command,
                    "url": url,
                    "description": "Ask the bot; alone it lists what it can do",
                    "usage_hint": "[what you want]",
                    "should_escape": True,
                }
            ],
            f"{view}_view": {f"{view}_description": _DESCRIPTION},
        },
        "oauth_config": {"scopes": {"bot": list(scopes())}},
        "settings": {
            "event_subscriptions": {"request_url": url, "bot_events": events(view)},
            "interactivity": {"is_enabled": True, "request_url": url, "message_menu_options_url": url},
            "org_deploy_enabled": False,
            "socket_mode_enabled": False,
            "token_rotation_enabled": False,
        },
    }


def _check(name: str, command: str, public_url: str) -> None:
    if not 1 <= len(name) <= NAME_LIMIT:
        raise SetupError(f"the name has {len(name)} characters", f"give 1 to {NAME_LIMIT} with --name")
    if not _COMMAND.fullmatch(command) or len(command) > COMMAND_LIMIT:
        cure = f"give a slash and up to {COMMAND_LIMIT - 1} lower-case letters, digits, _ and -"
        raise SetupError(f"--command {command!r} is no slash command", cure)
    check_https("Slack", public_url)
