"""`sayso channel manifest`: Slack accepts it, and it has exactly the scopes that events and methods need."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from sayso.channels.slack.setup import EVENTS, METHODS, scopes
from sayso.ops.cli.main import main
from sayso.testing.platforms.slack import SCOPES
from sayso.testing.platforms.slack_manifests import manifest_errors
from tests.config.fake_bots import ENVIRON, PUBLIC_URL, written

ROOT = Path(__file__).parents[3]
URL = f"{PUBLIC_URL}/hooks/sl"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a configuration of four channels."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    return written(tmp_path, None)


def run(config: Path, *args: str) -> tuple[int, str]:
    """Return exit code and output. Notes beside the manifest go to stderr."""
    result = CliRunner().invoke(main, ["channel", "manifest", *args, "--config", str(config)])
    return result.exit_code, result.output if result.exit_code else result.stdout


def made(config: Path, *args: str) -> dict[str, Any]:
    """Return the manifest."""
    code, words = run(config, "--json", *args)
    assert code == 0, words
    return json.loads(words)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--name", "x" * 36), "the name has 36 characters"),
        (("--command", "sayso"), "no slash command"),
        (("--command", "/" + "x" * 32), "no slash command"),
        (("--command", "/Say So"), "no slash command"),
    ],
)
def test_manifest_that_slack_would_refuse_is_refused(config: Path, args: tuple[str, ...], why: str):
    """The error has the cure, the exit code is 3, and no manifest is printed."""
    code, words = run(config, *args)
    assert (code, why in words, "settings" in words) == (3, True, False)


def test_channel_of_another_platform_has_no_manifest(config: Path):
    """A wrong name is wrong usage, and the error names the channels that have one."""
    code, words = run(config, "tg")
    assert (code, "is not a channel of slack: name one of sl" in words) == (2, True)


def test_address_without_https_is_refused(tmp_path: Path, config: Path):
    """Slack saves no request URL that is not https."""
    code, words = run(written(tmp_path, None, public_url="http://bots.example.com"))
    assert (code, "Slack takes https only" in words) == (3, True)


@pytest.mark.parametrize("view", ["agent", "assistant", "none"])
def test_manifest_has_the_shape_that_slack_knows(config: Path, view: str):
    """platforms.md 3.5: unknown keys, missing keys and texts too long are refused by Slack."""
    manifest = made(config, "--view", view)
    assert list(manifest_errors(manifest)) == []
    assert manifest["settings"]["token_rotation_enabled"] is False


def test_manifest_needs_no_secret(config: Path, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 3.5, pains.md 4: the token and the secret exist only after the app does."""
    for name in ENVIRON:
        monkeypatch.delenv(name)
    assert made(config)["settings"]["interactivity"]["request_url"] == URL


def test_yaml_equals_json(config: Path):
    """Slack's page accepts both."""
    code, words = run(config)
    assert (code, yaml.safe_load(words)) == (0, made(config))


def test_every_event_has_its_scope(config: Path):
    """platforms.md 3.5: without its scope Slack saves the event and never sends it."""
    manifest = made(config)
    given = set(manifest["oauth_config"]["scopes"]["bot"])
    events = manifest["settings"]["event_subscriptions"]["bot_events"]
    assert [event for event in events if not given.issuperset(EVENTS[event])] == []
    assert {"app_mention", "message.im", "app_uninstalled", "tokens_revoked"} <= set(events)


def test_every_called_method_has_its_scope():
    """platforms.md 3.5: a method that the Slack channel calls, and METHODS does not name, fails here: add it with its
    scopes.
    """
    source = "".join(
        path.read_text() for path in sorted((ROOT / "channels" / "slack").glob("*.py"))
    )
    named = re.findall(
        r'"((?:assistant|auth|chat|conversations|files|reactions|users|views)\.[A-Za-z.]+)"', source
    )
    called = re.findall(
        r"\.here\(\)\.(?!apps_|api_call)([a-z]+_\w+)\(", source
    )  # apps.* takes another token
    dotted = {"files_upload_v2": ("files.getUploadURLExternal", "files.completeUploadExternal")}
    used = {
        *named,
        *(each for name in called for each in dotted.get(name, (name.replace("_", "."),))),
    }
    assert used
    assert sorted(used - METHODS.keys()) == []


def test_scopes_are_exactly_those_needed(config: Path):
    """Admins read the list before an install, so it has no unused scope. The fake's app has the same."""
    given = made(config)["oauth_config"]["scopes"]["bot"]
    assert given == sorted(scopes("agent"))
    assert set(SCOPES) == set(given)
    assert not {"reactions:read", "users:read", "im:read", "chat:write.public"} & set(given)


def test_all_urls_are_those_of_the_channel(config: Path):
    """platforms.md 3.1: events, buttons and commands go to one URL."""
    manifest = made(config, "sl")
    settings, command = manifest["settings"], manifest["features"]["slash_commands"][0]
    urls = [
        settings["event_subscriptions"]["request_url"],
        settings["interactivity"]["request_url"],
        command["url"],
    ]
    assert urls == [URL] * 3
    assert (command["command"], settings["interactivity"]["is_enabled"]) == ("/sayso", True)


def test_people_can_write_to_the_bot_directly(config: Path):
    """platforms.md 3.5: message events need messages_tab_enabled for direct messages."""
    home = made(config)["features"]["app_home"]
    assert (home["messages_tab_enabled"], home["messages_tab_read_only_enabled"]) == (True, False)


def test_name_command_and_view_can_be_set(config: Path):
    """platforms.md 3.5: agent_view is newer than assistant_view; its threads come without events of their own."""
    manifest = made(config, "--name", "Büro Bot!", "--command", "/buero", "--view", "agent")
    features = manifest["features"]
    assert features["slash_commands"][0]["command"] == "/buero"
    assert (features["bot_user"]["display_name"], "assistant_view" in features) == (
        "Bro Bot",
        False,
    )
    assert features["agent_view"]["agent_description"]
    assert (
        "assistant_thread_started" not in manifest["settings"]["event_subscriptions"]["bot_events"]
    )
