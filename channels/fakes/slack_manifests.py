"""SlackManifests: what Slack takes as the manifest of an app, and the apps that it makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from sayso.channels.fakes.base import Answer, json_answer

Json = dict[str, Any]

_PAGE = "url"
#: The part of Slack's schema that a bot of ours may meet: the longest text of each key, or its type. Those that end
#: with "!" must be there.
SCHEMA: Json = {
    "_metadata": {"major_version": int, "minor_version": int},
    "display_information!": {"name!": 35, "description": 140, "long_description": 4000, "background_color": 7},
    "features": {
        "app_home": {"home_tab_enabled": bool, "messages_tab_enabled": bool, "messages_tab_read_only_enabled": bool},
        "bot_user": {"display_name!": 80, "always_online": bool},
        "slash_commands": [
            {"command!": 32, "url": _PAGE, "description!": 2000, "usage_hint": 1000, "should_escape": bool}
        ],
        "shortcuts": [{"name!": 24, "type!": 7, "callback_id!": 255, "description!": 150}],
        "assistant_view": {"assistant_description!": 300},
        "agent_view": {"agent_description!": 300},
    },
    "oauth_config": {"redirect_urls": [_PAGE], "scopes": {"bot": [255], "user": [255]}},
    "settings": {
        "event_subscriptions": {"request_url": _PAGE, "bot_events": [255]},
        "interactivity": {"is_enabled!": bool, "request_url": _PAGE, "message_menu_options_url": _PAGE},
        "org_deploy_enabled": bool,
        "socket_mode_enabled": bool,
        "token_rotation_enabled": bool,
    },
}
#: What each method takes besides the manifest.
TAKES = {
    "apps.manifest.validate": ("manifest", "app_id"),
    "apps.manifest.create": ("manifest", "team_id"),
    "apps.manifest.update": ("manifest", "app_id"),
}
#: What only Slack and the app's makers know of an app.
CREDENTIALS = {
    "client_id": "1234.5678",
    "client_secret": "client-secret-of-the-fake",
    "verification_token": "old-token-of-the-fake",
    "signing_secret": "signing-secret-of-the-fake",
}


class SlackManifests:
    """The apps of whoever holds a configuration token. A test may set `error`, which all answers are then."""

    def __init__(self) -> None:
        self.apps: dict[str, Json] = {}
        self.error = ""

    def answer(self, method: str, params: Json) -> Answer:
        """The answer to one of the methods, none of which changes anything that it refuses."""
        app_id, error = params.get("app_id", ""), self.error or self._error(method, params)
        if error:
            return json_answer({"ok": False, "error": error})
        manifest = _object(params["manifest"])
        found = list(faults(manifest))
        if found:
            return json_answer({"ok": False, "error": "invalid_manifest", "errors": found})
        assert manifest is not None  # noqa: S101  # one that is no object has its fault
        if method.endswith("validate"):
            return json_answer({"ok": True})
        return self._update(app_id, manifest) if method.endswith("update") else self._create(manifest)

    def _error(self, method: str, params: Json) -> str:
        if not set(params) <= set(TAKES[method]):
            return "invalid_arg_name"
        if not isinstance(params.get("manifest"), str):
            return "invalid_arguments"
        known = params.get("app_id", "") in self.apps
        needs_app = method.endswith("update") or "app_id" in params
        return "invalid_app_id" if needs_app and not known else ""

    def _create(self, manifest: Json) -> Answer:
        app_id = f"A0FAKE{len(self.apps):02d}"
        self.apps[app_id] = manifest
        scopes = ",".join(_scopes(manifest))
        url = f"https://slack.com/oauth/v2/authorize?client_id={CREDENTIALS['client_id']}&scope={scopes}"
        return json_answer({"ok": True, "app_id": app_id, "credentials": CREDENTIALS, "oauth_authorize_url": url})

    def _update(self, app_id: str, manifest: Json) -> Answer:
        """The manifest takes the place of all that there was."""
        changed = _scopes(self.apps[app_id]) != _scopes(manifest)
        self.apps[app_id] = manifest
        return json_answer({"ok": True, "app_id": app_id, "permissions_updated": changed})


def _object(text: str) -> Json | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _scopes(manifest: Json) -> list[str]:
    return sorted(manifest.get("oauth_config", {}).get("scopes", {}).get("bot", []))


def faults(manifest: Json | None) -> Iterator[dict[str, str]]:
    """What is wrong with a manifest, each with where it is."""
    if manifest is None:
        yield _fault("The manifest is not a JSON object", "")
        return
    shape_faults = list(_shape_faults(manifest, SCHEMA, ""))
    yield from shape_faults
    if not shape_faults:
        yield from _missing_addresses(manifest.get("settings", {}))
        yield from _odd_commands(manifest.get("features", {}).get("slash_commands", []))


def _shape_faults(value: Any, shape: Any, pointer: str) -> Iterator[dict[str, str]]:
    if isinstance(shape, dict):
        yield from _object_faults(value, shape, pointer)
    elif isinstance(shape, list):
        yield from _list_faults(value, shape[0], pointer)
    elif isinstance(shape, type):
        if type(value) is not shape:
            yield _fault(f"Must be of type {shape.__name__}", pointer)
    elif not isinstance(value, str) or not value:
        yield _fault("Must be a text", pointer)
    elif isinstance(shape, int):
        if len(value) > shape:
            yield _fault(f"Must be {shape} characters or less", pointer)
    elif urlsplit(value).scheme != "https" or not urlsplit(value).netloc:
        yield _fault("Must be a secure URL (https)", pointer)


def _object_faults(value: Any, shape: Json, pointer: str) -> Iterator[dict[str, str]]:
    if not isinstance(value, dict):
        yield _fault("Must be an object", pointer)
        return
    known = {name.rstrip("!"): part for name, part in shape.items()}
    for name in value:
        if name in known:
            yield from _shape_faults(value[name], known[name], f"{pointer}/{name}")
        else:
            yield _fault(f"Unknown property {name}", f"{pointer}/{name}")
    for name in shape:
        if name.endswith("!") and name[:-1] not in value:
            yield _fault(f"Missing required property {name[:-1]}", pointer)


def _list_faults(value: Any, part: Any, pointer: str) -> Iterator[dict[str, str]]:
    if not isinstance(value, list) or not value:
        yield _fault("Must be a list that is not empty", pointer)
        return
    if len({json.dumps(each) for each in value}) < len(value):
        yield _fault("Items must be unique", pointer)
    for number, each in enumerate(value):
        yield from _shape_faults(each, part, f"{pointer}/{number}")


def _missing_addresses(settings: Json) -> Iterator[dict[str, str]]:
    """Without Socket Mode whatever is sent needs somewhere to go."""
    if settings.get("socket_mode_enabled"):
        return
    events, interactivity = settings.get("event_subscriptions"), settings.get("interactivity")
    if events is not None and not events.get("request_url"):
        words = "Event Subscription requires either Request URL or Socket Mode Enabled"
        yield _fault(words, "/settings/event_subscriptions")
    if interactivity and interactivity["is_enabled"] and not interactivity.get("request_url"):
        yield _fault("Interactivity requires a Request URL", "/settings/interactivity")


def _odd_commands(commands: list[Json]) -> Iterator[dict[str, str]]:
    for number, command in enumerate(commands):
        if not re.fullmatch(r"/[a-z0-9_-]+", command["command"]):
            yield _fault("Must be a slash and lower-case letters", f"/features/slash_commands/{number}/command")


def _fault(message: str, pointer: str) -> dict[str, str]:
    return {"message": message, "pointer": pointer or "/"}
