"""A fake of Slack's methods for app manifests: what is refused, and the apps that were created.

A manifest describes an app as JSON: its name, its scopes, its events and its URLs. Apps are created
from one with an app configuration token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

from sayso.testing.platforms.server import FakeResponse, json_response

SlackPayload = dict[str, Any]
#: The pattern of a URL.
_URL = "^https://[^/]+"
#: The part of Slack's manifest schema that our apps use. The value of a key is the length of its
#: longest text, its pattern or its type; a list has one value, which stands for all. Keys that end
#: with "!" are required.
SCHEMA: SlackPayload = {
    "_metadata": {"major_version": int, "minor_version": int},
    "display_information!": {
        "name!": 35,
        "description": 140,
        "long_description": 4000,
        "background_color": 7,
    },
    "features": {
        "app_home": {
            "home_tab_enabled": bool,
            "messages_tab_enabled": bool,
            "messages_tab_read_only_enabled": bool,
        },
        "bot_user": {"display_name!": 80, "always_online": bool},
        "slash_commands": [
            {
                "command!": "^/[a-z0-9_-]{1,31}$",
                "url": _URL,
                "description!": 2000,
                "usage_hint": 1000,
                "should_escape": bool,
            }
        ],
        "shortcuts": [{"name!": 24, "type!": 7, "callback_id!": 255, "description!": 150}],
        "assistant_view": {"assistant_description!": 300},
        "agent_view": {
            "agent_description!": 300,
            "suggested_prompts": [{"title!": 100, "message!": 1000}],
        },
    },
    "oauth_config": {"redirect_urls": [_URL], "scopes": {"bot": [255], "user": [255]}},
    "settings": {
        "event_subscriptions": {"request_url": _URL, "bot_events": [255]},
        "interactivity": {
            "is_enabled!": bool,
            "request_url": _URL,
            "message_menu_options_url": _URL,
        },
        "org_deploy_enabled": bool,
        "socket_mode_enabled": bool,
        "token_rotation_enabled": bool,
    },
}
#: How Slack's errors call each view. A view is the place in Slack where people talk to an AI app.
VIEW_NAMES = {"agent_view": "Agent View", "assistant_view": "Assistant View"}
#: The event to which an app with this view must be subscribed.
VIEW_EVENTS = {"agent_view": "app_home_opened", "assistant_view": "assistant_thread_started"}
#: The most prompts that Slack shows to a person who has written nothing yet.
MAX_PROMPTS = 4
#: The parameters of each method.
METHOD_PARAMETERS = {
    "apps.manifest.validate": ("manifest", "app_id"),
    "apps.manifest.create": ("manifest", "team_id"),
    "apps.manifest.update": ("manifest", "app_id"),
}
#: The credentials of an app.
CREDENTIALS = {
    "client_id": "1234.5678",
    "client_secret": "client-secret-of-the-fake",
    "verification_token": "old-token-of-the-fake",
    "signing_secret": "signing-secret-of-the-fake",
}


class SlackManifests:
    """The apps that belong to the owner of a configuration token."""

    def __init__(self) -> None:
        #: The manifest of each app, by its id. Tests add apps of before July 2026, which have the
        #: assistant view: Slack creates no such app any more.
        self.apps: dict[str, SlackPayload] = {}
        #: The code with which every call is refused; "" for none. Tests set it.
        self.error = ""

    def answer(self, method: str, params: SlackPayload) -> FakeResponse:
        """Return the answer to one of the methods. A refused call changes nothing."""
        app_id = params.get("app_id", "")
        error = self.error or self._call_error(method, params)
        if error:
            return json_response({"ok": False, "error": error})

        try:
            manifest = json.loads(params["manifest"])
        except ValueError:
            manifest = None
        errors = [*manifest_errors(manifest), *self._assistant_view_errors(app_id, manifest)]
        if errors:
            return json_response({"ok": False, "error": "invalid_manifest", "errors": errors})

        if method.endswith("validate"):
            return json_response({"ok": True})
        if method.endswith("update"):
            return self._update(app_id, manifest)
        return self._create(manifest)

    def _call_error(self, method: str, params: SlackPayload) -> str:
        """Return the code with which a call is refused whatever its manifest says; "" for none."""
        if not set(params) <= set(METHOD_PARAMETERS[method]):
            return "invalid_arg_name"
        if not isinstance(params.get("manifest"), str):
            return "invalid_arguments"
        is_known = params.get("app_id", "") in self.apps
        needs_app = method.endswith("update") or "app_id" in params
        return "invalid_app_id" if needs_app and not is_known else ""

    def _assistant_view_errors(self, app_id: str, manifest: Any) -> Iterator[dict[str, str]]:
        """Yield an error if an app asks for the assistant view, which no app can get any more.

        Apps that have it keep it.
        """
        has_view = "assistant_view" in self.apps.get(app_id, {}).get("features", {})
        wants_view = isinstance(manifest, dict) and "assistant_view" in manifest.get("features", {})
        if wants_view and not has_view:
            yield _error("New apps can only use agent_view", "/features/assistant_view")

    def _create(self, manifest: SlackPayload) -> FakeResponse:
        """Create an app. Return its id, its credentials, and the URL that installs it."""
        app_id = f"A0FAKE{len(self.apps):02d}"
        self.apps[app_id] = manifest
        scopes = ",".join(_scopes(manifest))
        query = f"client_id={CREDENTIALS['client_id']}&scope={scopes}"
        return json_response(
            {
                "ok": True,
                "app_id": app_id,
                "credentials": CREDENTIALS,
                "oauth_authorize_url": f"https://slack.com/oauth/v2/authorize?{query}",
            }
        )

    def _update(self, app_id: str, manifest: SlackPayload) -> FakeResponse:
        """Replace the whole manifest."""
        are_scopes_new = _scopes(self.apps[app_id]) != _scopes(manifest)
        self.apps[app_id] = manifest
        return json_response({"ok": True, "app_id": app_id, "permissions_updated": are_scopes_new})


def _scopes(manifest: SlackPayload) -> list[str]:
    """Return the scopes of the bot, sorted."""
    return sorted(manifest.get("oauth_config", {}).get("scopes", {}).get("bot", []))


def manifest_errors(manifest: Any) -> Iterator[dict[str, str]]:
    """Yield the errors of a manifest: a message, and the place as a JSON pointer."""
    if not isinstance(manifest, dict):
        yield _error("The manifest is not a JSON object", "")
        return
    errors = list(Draft202012Validator(_json_schema(SCHEMA)).iter_errors(manifest))
    for error in errors:
        place = "".join(f"/{part}" for part in error.absolute_path)
        message = error.message
        if error.validator == "maxLength":
            message = f"Must be {error.validator_value} characters or less"
        if error.validator == "additionalProperties":
            unknown = set(error.instance) - set(error.schema["properties"])
            for name in sorted(unknown):
                yield _error(message, f"{place}/{name}")
        else:
            yield _error(message, place)

    # These rules relate keys that are in a valid manifest.
    if not errors:
        yield from _missing_url_errors(manifest.get("settings", {}))
        yield from _view_errors(manifest)


def _json_schema(shape: Any) -> SlackPayload:
    """Return a part of SCHEMA as JSON Schema."""
    match shape:
        case dict():
            properties = {name.rstrip("!"): _json_schema(part) for name, part in shape.items()}
            required = [name[:-1] for name in shape if name.endswith("!")]
            return {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        case list():
            return {
                "type": "array",
                "items": _json_schema(shape[0]),
                "minItems": 1,
                "uniqueItems": True,
            }
        case str():
            return {"type": "string", "pattern": shape}
        case int():
            return {"type": "string", "minLength": 1, "maxLength": shape}
    return {"type": "boolean" if shape is bool else "integer"}


def _missing_url_errors(settings: SlackPayload) -> Iterator[dict[str, str]]:
    """Yield the errors of missing request URLs, which are required without Socket Mode."""
    if settings.get("socket_mode_enabled"):
        return
    events = settings.get("event_subscriptions")
    interactivity = settings.get("interactivity")
    if events is not None and not events.get("request_url"):
        message = "Event Subscription requires either Request URL or Socket Mode Enabled"
        yield _error(message, "/settings/event_subscriptions")
    if interactivity and interactivity["is_enabled"] and not interactivity.get("request_url"):
        yield _error("Interactivity requires a Request URL", "/settings/interactivity")


def _view_errors(manifest: SlackPayload) -> Iterator[dict[str, str]]:
    """Yield the errors of the views. A view, its scope and its event need each other."""
    features = manifest.get("features", {})
    views = [view for view in VIEW_EVENTS if view in features]
    if "assistant:write" in _scopes(manifest) and not views:
        message = "Assistant:write scope should include agent_view feature"
        yield _error(message, "/oauth_config/scopes/bot")
    if len(views) > 1:
        yield _error("An app has one view", "/features/assistant_view")

    events = manifest.get("settings", {}).get("event_subscriptions", {}).get("bot_events", [])
    place = "/settings/event_subscriptions/bot_events"
    for view in views:
        if VIEW_EVENTS[view] not in events:
            rule = f"should use `{VIEW_EVENTS[view]}` bot event subscription"
            yield _error(f"{VIEW_NAMES[view]} {rule}", place)
    if "agent_view" in views and "assistant_thread_started" in events:
        rule = "should not use `assistant_thread_started` bot event subscription"
        yield _error(f"Agent View {rule}", place)

    prompts = features.get("agent_view", {}).get("suggested_prompts", ())
    if len(prompts) > MAX_PROMPTS:
        message = f"Must have {MAX_PROMPTS} items or less"
        yield _error(message, "/features/agent_view/suggested_prompts")


def _error(message: str, pointer: str) -> dict[str, str]:
    return {"message": message, "pointer": pointer or "/"}
