"""FakeSlack is as strict as Slack, because a fake that accepts everything proves nothing."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from sayso.testing.platforms.fake_platforms import (
    SLACK_BOT_TOKEN,
    SLACK_CONFIG_TOKEN,
    FakePlatforms,
)

SET_STATUS = "assistant.threads.setStatus"
SET_STATE = "agents.sessions.setStatus"
SECTION = {"type": "section", "text": {"type": "mrkdwn", "text": "Sure?"}}
KEY = {
    "type": "button",
    "action_id": "a",
    "text": {"type": "plain_text", "text": "Yes"},
    "value": "v",
}
ASKED = {
    "channel": "C0OPS",
    "text": "Sure?",
    "blocks": [SECTION, {"type": "actions", "elements": [KEY]}],
}


@pytest.fixture
def call(platforms: FakePlatforms):
    """Return a function that calls a method as the app and returns the answer and its scopes."""

    def call(
        method: str, token: str = SLACK_BOT_TOKEN, **params: Any
    ) -> tuple[dict[str, Any], str]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(
            f"{platforms.slack_url}/api/{method}", json.dumps(params).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read()), answer.headers.get("X-OAuth-Scopes", "")

    return call


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"channel": "U0ADA"}, "channel_not_found"),
        ({"text": "", "blocks": []}, "no_text"),
        ({"text": "x" * 4001}, "msg_too_long"),
        ({"markdown_text": "x"}, "markdown_text_conflict"),
        ({"colour": "red"}, "invalid_arg_name"),
        ({"blocks": [SECTION] * 51}, "invalid_blocks"),
        (
            {"blocks": [{**SECTION, "text": {"type": "mrkdwn", "text": "x" * 3001}}]},
            "invalid_blocks",
        ),
        (
            {"blocks": [{**SECTION, "text": {"type": "mrkdwn", "text": "x" * 3000}}] * 5},
            "msg_blocks_too_long",
        ),
        ({"blocks": [{"type": "actions", "elements": [KEY, KEY]}]}, "invalid_blocks"),
        (
            {"blocks": [{"type": "actions", "block_id": "b", "elements": [KEY]}] * 2},
            "invalid_blocks",
        ),
    ],
)
def test_message_beyond_the_rules_is_refused(
    call, platforms: FakePlatforms, params: dict, error: str
):
    """platforms.md 3.3: the fake checks each limit and answers with Slack's error code."""
    assert call("chat.postMessage", **{**ASKED, **params})[0] == {"ok": False, "error": error}
    assert platforms.sent == []


@pytest.mark.parametrize(
    "block",
    [
        {"type": "blink", "text": "x"},
        {},
        "section",
        None,
        {"type": "section"},
        {**SECTION, "colour": "red"},
        {**SECTION, "block_id": 7},
        {**SECTION, "text": {"type": "html", "text": "x"}},
        {"type": "actions", "elements": []},
        {"type": "actions", "elements": KEY},
        {"type": "actions", "elements": [{**KEY, "type": "blink"}]},
        {"type": "actions", "elements": [{**KEY, "text": "Yes"}]},
        {"type": "actions", "elements": [{**KEY, "style": "blue"}]},
        {"type": "actions", "elements": [{**KEY, "value": "x" * 2001}]},
        {
            "type": "actions",
            "elements": [{**KEY, "text": {"type": "plain_text", "text": "x" * 76}}],
        },
        {
            "type": "actions",
            "elements": [{**KEY, "action_id": str(number)} for number in range(26)],
        },
    ],
)
def test_block_that_the_sdk_does_not_know_is_refused(call, platforms: FakePlatforms, block: Any):
    """platforms.md 3.3: no method accepts a block that slack_sdk.models cannot produce."""
    ts = call("chat.postMessage", **ASKED)[0]["ts"]
    for method, more in (("chat.postMessage", {}), ("chat.update", {"ts": ts})):
        assert (
            call(method, **{**ASKED, **more, "blocks": [SECTION, block]})[0]["error"]
            == "invalid_blocks"
        )
    assert [entry["raw"]["blocks"] for entry in platforms.sent] == [ASKED["blocks"]]


def test_blocks_are_accepted_only_in_messages(call, platforms: FakePlatforms):
    """The fake does not check the blocks of a file, so it refuses them."""
    file = {"files": [{"id": "F000000"}], "channel_id": "C0OPS", "blocks": [SECTION]}
    assert call("files.completeUploadExternal", **file)[0]["error"] == "invalid_arg_name"


def test_other_kinds_of_block_are_accepted(call, platforms: FakePlatforms):
    """platforms.md 3.3: a block has its text directly, in a nested object, or not at all."""
    context = {"type": "context", "elements": [{"type": "mrkdwn", "text": "c"}]}
    header = {"type": "header", "text": {"type": "plain_text", "text": "h"}}
    blocks = [header, {"type": "markdown", "text": "m"}, {"type": "divider"}, context, SECTION]
    assert call("chat.postMessage", channel="C0OPS", text="x", blocks=blocks)[0]["ok"]
    assert platforms.sent[0]["text"] == "Sure?"


def test_only_a_message_of_that_channel_is_edited(call, platforms: FakePlatforms):
    """platforms.md 3.3: chat.update takes the channel's own id and the timestamp of a bot's message."""
    ts = call("chat.postMessage", **ASKED)[0]["ts"]
    for channel, at in (
        ("D0ADA", ts),
        ("C0OPS", "1795204700.000002"),
        ("C0OPS", "1795204800.000100"),
        ("C0OPS", ""),
    ):
        assert (
            call("chat.update", channel=channel, ts=at, text="x")[0]["error"] == "message_not_found"
        )
    assert call("chat.update", channel="C0OPS", ts=ts, text="Done.")[0]["ok"]
    assert "edits" in platforms.sent[0]


def test_message_that_is_gone_or_ephemeral_is_not_changed(call, platforms: FakePlatforms):
    """Nobody sees the first any more, and Slack changes no message that a single person sees."""
    deleted = call("chat.postMessage", **ASKED)[0]["ts"]
    assert call("chat.delete", channel="C0OPS", ts=deleted)[0]["ok"]
    ephemeral = call("chat.postEphemeral", **ASKED, user="W0ADA")[0]["message_ts"]
    for ts in (deleted, ephemeral):
        for method, more in (("chat.update", {"text": "x"}), ("chat.delete", {})):
            answer, _ = call(method, channel="C0OPS", ts=ts, **more)
            assert answer["error"] == "message_not_found"


def test_message_has_text_or_blocks_or_markdown(call, platforms: FakePlatforms):
    """Each of them is enough, in an edit too."""
    ts = call("chat.postMessage", channel="C0OPS", markdown_text="**Hi**")[0]["ts"]
    assert platforms.sent[0]["text"] == "**Hi**"
    assert call("chat.update", channel="C0OPS", ts=ts, blocks=[SECTION])[0]["ok"]
    assert platforms.sent[0]["text"] == "Sure?"


def test_edit_without_blocks_keeps_the_old_ones(call, platforms: FakePlatforms):
    """The buttons stay, also with a second edit; an empty list removes them."""
    ts = call("chat.postMessage", **ASKED)[0]["ts"]
    for text in ("Doing.", "Done."):
        call("chat.update", channel="C0OPS", ts=ts, text=text)
        assert platforms.sent[0]["buttons"]
    call("chat.update", channel="C0OPS", ts=ts, text="Done.", blocks=[])
    assert (platforms.sent[0]["text"], platforms.sent[0]["buttons"]) == ("Done.", [])
    assert len(platforms.sent[0]["edits"]) == 3


def test_scopes_are_in_a_header(call):
    """platforms.md 3.4: auth.test returns them in a header."""
    answer, scopes = call("auth.test")
    assert answer["user_id"] == "U0BOT"
    assert {"chat:write", "im:write", "files:read"} <= set(scopes.split(","))


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("conversations.open", {"users": "D0ADA"}, "user_not_found"),
        ("files.info", {"file": "F0NONE"}, "file_not_found"),
        (
            SET_STATUS,
            {"channel_id": "U0ADA", "thread_ts": "1.2", "status": "x"},
            "channel_not_found",
        ),
        (SET_STATUS, {"channel_id": "D0ADA", "status": "x"}, "invalid_arguments"),
        (
            SET_STATUS,
            {"channel_id": "D0ADA", "thread_ts": "0.0", "status": "x"},
            "invalid_thread_ts",
        ),
        (SET_STATUS, {"channel_id": "D0ADA", "thread_ts": "1.2", "stat": "x"}, "invalid_arg_name"),
        (
            SET_STATE,
            {"channel_id": "D0ADA", "thread_ts": "1.2", "status": "is thinking…"},
            "invalid_arguments",
        ),
        (SET_STATE, {"channel_id": "D0ADA", "thread_ts": "1.2", "status": ""}, "invalid_arguments"),
        (SET_STATE, {"channel_id": "D0ADA", "status": "active"}, "invalid_arguments"),
        (
            SET_STATE,
            {"channel_id": "D0ADA", "thread_ts": "0.0", "status": "active"},
            "invalid_thread_ts",
        ),
        (
            SET_STATE,
            {"channel_id": "U0ADA", "thread_ts": "1.2", "status": "active"},
            "channel_not_found",
        ),
        ("files.upload", {}, "unknown_method"),
    ],
)
def test_invalid_call_is_refused(call, method: str, params: dict, error: str):
    """platforms.md 3.3: the invalid calls include the retired files.upload."""
    assert call(method, **params)[0]["error"] == error


def test_session_belongs_to_a_thread_and_no_message_changes_it(call, platforms: FakePlatforms):
    """A reply of the bot opens no thread, so it has no session.

    Only a further state ends one.
    """
    root = call("chat.postMessage", **ASKED)[0]["ts"]
    reply = call("chat.postMessage", **ASKED, thread_ts=root)[0]["ts"]
    call(SET_STATE, channel_id="C0OPS", thread_ts=root, status="processing")
    call("chat.postMessage", **ASKED, thread_ts=root)
    assert platforms.fakes["slack"].sessions == {("C0OPS", root): "processing"}
    refused = call(SET_STATE, channel_id="C0OPS", thread_ts=reply, status="active")[0]
    assert refused["error"] == "invalid_thread_ts"


def test_status_ends_with_a_message_in_its_thread_alone(call, platforms: FakePlatforms):
    """platforms.md 3.3: neither an edit nor a message elsewhere removes it, but an empty status does."""
    statuses = platforms.fakes["slack"].statuses
    there = {"channel_id": "C0OPS", "thread_ts": "1.2"}
    ts = call("chat.postMessage", **ASKED)[0]["ts"]
    for ending in ({"thread_ts": "1.2"}, {}):
        call(SET_STATUS, **there, status="is thinking…")
        call("chat.update", channel="C0OPS", ts=ts, text="Done.")
        call("chat.postMessage", **ASKED)
        assert statuses == {("C0OPS", "1.2"): "is thinking…"}
        if ending:
            call("chat.postMessage", **ASKED, **ending)
        else:
            call(SET_STATUS, **there, status="")
        assert statuses == {}


def test_wrong_token_is_refused(call):
    """platforms.md 3.3: HTTP 200 with ok false is the normal form of an error."""
    assert call("auth.test", token="xoxb-wrong")[0] == {"ok": False, "error": "invalid_auth"}


def test_each_kind_of_token_calls_its_own_methods(call):
    """platforms.md 3.5: only a configuration token creates apps, and it sends no message."""
    assert call("apps.manifest.create", manifest="{}")[0]["error"] == "not_allowed_token_type"
    assert (
        call("chat.postMessage", token=SLACK_CONFIG_TOKEN, **ASKED)[0]["error"]
        == "not_allowed_token_type"
    )
    assert call("apps.manifest.burn", token=SLACK_CONFIG_TOKEN)[0]["error"] == "unknown_method"
