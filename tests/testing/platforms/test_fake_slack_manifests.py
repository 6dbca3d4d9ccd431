"""The fake's rules for manifests: it refuses what Slack's schema refuses, with the place of each fault."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from sayso.channels.slack.setup import manifest
from sayso.testing.platforms.slack_manifests import SlackManifests, manifest_errors

GOOD = manifest("sl", "https://bots.example.com", name="Acme")
COMMAND = "/features/slash_commands/0"


def changed(pointer: str, value: Any) -> dict[str, Any]:
    """Return the valid manifest with another value at one place; None removes the key."""
    found = copy.deepcopy(GOOD)
    *way, last = pointer[1:].split("/")
    place: Any = found
    for step in way:
        place = place[int(step) if step.isdecimal() else step]
    place.update({last: value}) if value is not None else place.pop(last)
    return found


@pytest.mark.parametrize(
    ("pointer", "value", "where"),
    [
        ("/display_information", None, "/"),
        ("/display_information/name", "x" * 36, "/display_information/name"),
        ("/display_information/name", None, "/display_information"),
        ("/settings/colour", "red", "/settings/colour"),
        ("/settings/socket_mode_enabled", "no", "/settings/socket_mode_enabled"),
        ("/settings/event_subscriptions/request_url", None, "/settings/event_subscriptions"),
        ("/settings/interactivity/request_url", None, "/settings/interactivity"),
        (
            "/settings/event_subscriptions/request_url",
            "http://x.org",
            "/settings/event_subscriptions/request_url",
        ),
        (
            "/settings/event_subscriptions/bot_events",
            ["message.im"] * 2,
            "/settings/event_subscriptions/bot_events",
        ),
        (f"{COMMAND}/command", "/Acme", f"{COMMAND}/command"),
        ("/features", [], "/features"),
    ],
)
def test_fault_has_its_place(pointer: str, value: Any, where: str):
    """platforms.md 3.5: invalid_manifest comes with pointers."""
    assert [fault["pointer"] for fault in manifest_errors(changed(pointer, value))] == [where]
    assert list(manifest_errors(GOOD)) == []


EVENTS = "/settings/event_subscriptions/bot_events"


@pytest.mark.parametrize(
    ("pointer", "value", "fault"),
    [
        ("/features/agent_view", None, ("/oauth_config/scopes/bot", "should include agent_view")),
        (EVENTS, ["message.im"], (EVENTS, "should use `app_home_opened`")),
        (
            EVENTS,
            ["app_home_opened", "assistant_thread_started"],
            (EVENTS, "should not use `assistant_thread_started`"),
        ),
        (
            "/features/agent_view/suggested_prompts",
            [{"title": str(number), "message": "hi"} for number in range(5)],
            ("/features/agent_view/suggested_prompts", "4 items or less"),
        ),
    ],
)
def test_view_is_whole_or_refused(pointer: str, value: Any, fault: tuple[str, str]):
    """A view needs its event and its scope, and the scope needs a view."""
    (found,) = manifest_errors(changed(pointer, value))
    assert (found["pointer"], fault[1] in found["message"]) == (fault[0], True)


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("validate", {}, "invalid_arguments"),
        ("create", {"manifest": GOOD}, "invalid_arguments"),
        ("create", {"manifest": json.dumps(GOOD), "app_id": "A1"}, "invalid_arg_name"),
        ("create", {"manifest": "nonsense"}, "invalid_manifest"),
        ("update", {"manifest": json.dumps(GOOD)}, "invalid_app_id"),
        ("validate", {"manifest": json.dumps(GOOD), "app_id": "A1"}, "invalid_app_id"),
    ],
)
def test_invalid_manifest_call_is_refused(method: str, params: dict[str, Any], error: str):
    """platforms.md 3.5: a manifest is JSON text, and only a change of an existing app takes an app id."""
    slack = SlackManifests()
    assert json.loads(slack.answer(f"apps.manifest.{method}", params).body)["error"] == error
    assert slack.apps == {}
