"""`sayso channel manifest --validate|--create|--update`: no secret is shown, and each refusal has its cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.ops.cli.main import main
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.server import json_response
from sayso.testing.platforms.slack import FakeSlack
from sayso.testing.platforms.slack_manifests import CREDENTIALS, SlackManifests
from tests.config.fake_bots import ENVIRON, PUBLIC_URL, written

TOKEN = "SLACK_CONFIG_TOKEN"


class Shop:
    """The fake Slack, a configuration without secrets, and the command."""

    def __init__(self, folder: Path, platforms: FakePlatforms) -> None:
        self.folder, self.platforms = folder, platforms
        self.config = written(folder, platforms)

    @property
    def apps(self) -> SlackManifests:
        """Return the apps at Slack."""
        fake = self.platforms.fakes["slack"]
        assert isinstance(fake, FakeSlack)
        return fake.manifests

    def run(self, *args: str) -> tuple[int, str]:
        """Return exit code and output; check that it holds no secret."""
        result = CliRunner().invoke(
            main, ["channel", "manifest", *args, "--config", str(self.config)]
        )
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        secrets = (*ENVIRON.values(), fakes.SLACK_CONFIG_TOKEN, *CREDENTIALS.values())
        assert not [secret for secret in secrets if secret in result.output]
        return result.exit_code, result.output


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Return a configuration whose bot has no token yet."""
    for name in ENVIRON:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(TOKEN, fakes.SLACK_CONFIG_TOKEN)
    with FakePlatforms() as platforms:
        yield Shop(tmp_path, platforms)


@pytest.mark.parametrize(
    "error", ["token_expired", "invalid_auth", "token_revoked", "not_allowed_token_type"]
)
@pytest.mark.parametrize("args", [("--validate",), ("--create",), ("--update", "A0FAKE00")])
def test_refused_token_is_reported_with_its_cure(shop: Shop, args: tuple[str, ...], error: str):
    """platforms.md 3.5: it is valid for 12 hours. No app is created or changed."""
    shop.apps.error = error
    code, words = shop.run(*args)
    assert (code, TOKEN in words, "12 hours" in words, "xoxe.xoxp-" in words) == (
        3,
        True,
        True,
        True,
    )
    assert ("has expired" in words) is (error == "token_expired")
    assert shop.apps.apps == {}


@pytest.mark.parametrize("token", ["", " ", "tökén", "xoxe.xoxp-1\nx"])
def test_invalid_token_is_not_sent(shop: Shop, monkeypatch: pytest.MonkeyPatch, token: str):
    """It is not shown either."""
    monkeypatch.setenv(TOKEN, token)
    code, words = shop.run("--create")
    assert (code, TOKEN in words, "generate one" in words) == (3, True, True)
    assert shop.platforms.calls == []


def test_bot_token_cannot_create_apps(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 3.5: an app configuration token is a kind of its own."""
    monkeypatch.setenv(TOKEN, fakes.SLACK_BOT_TOKEN)
    code, words = shop.run("--create")
    assert (code, "not_allowed_token_type" in words, shop.apps.apps) == (3, True, {})


def test_valid_manifest_is_reported_and_changes_nothing(shop: Shop):
    """platforms.md 3.5: apps.manifest.validate."""
    assert shop.run("--validate") == (0, "Slack takes this manifest\n")
    assert shop.apps.apps == {}


def test_fault_is_reported_with_its_place_and_cure(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 3.5: invalid_manifest has a pointer to each fault."""
    monkeypatch.setattr("sayso.channels.slack.setup._DESCRIPTION", "x" * 301)
    code, words = shop.run("--validate")
    assert code == 3
    assert "\n  /display_information/description  Must be 140 characters or less\n" in words
    assert "\n  /features/agent_view/agent_description  Must be 300" in words
    assert "give --view assistant" in words


@pytest.mark.parametrize("args", [("--create",), ("--validate",), ("--update", "A0FAKE00")])
def test_assistant_view_is_refused_for_an_app_that_does_not_have_it(
    shop: Shop,
    args: tuple[str, ...],
):
    """Since July 2026 new apps can only have the agent view, and no app can go back to the older one."""
    if args[0] == "--update":
        shop.run("--create")
    code, words = shop.run(*args, "--view", "assistant")
    assert (
        code,
        "New apps can only use agent_view" in words,
        "leave out --view assistant" in words,
    ) == (3, True, True)
    assert not any("assistant_view" in app["features"] for app in shop.apps.apps.values())


def test_app_with_the_assistant_view_keeps_it(shop: Shop):
    """Slack lets apps of before July 2026 have it for now, and the command says what the YAML then needs."""
    shop.apps.apps["A0OLD"] = {"features": {"assistant_view": {}}}
    code, words = shop.run("--update", "A0OLD", "--view", "assistant")
    assert (code, "write view: assistant there" in words) == (0, True)
    app = shop.apps.apps["A0OLD"]
    assert list(app["features"])[-1] == "assistant_view"
    assert "assistant_thread_started" in app["settings"]["event_subscriptions"]["bot_events"]


def test_view_of_the_channel_is_that_of_its_manifest(shop: Shop):
    """An operator writes it once, and each later update keeps it."""
    shop.apps.apps["A0OLD"] = {"features": {"assistant_view": {}}}
    text = shop.config.read_text()
    shop.config.write_text(text.replace("platform: slack,", "platform: slack, view: assistant,"))
    assert shop.run("--update", "A0OLD")[0] == 0
    assert "assistant_view" in shop.apps.apps["A0OLD"]["features"]


def test_app_is_created_and_the_remaining_steps_are_listed(shop: Shop):
    """platforms.md 3.5: Slack's answer has an app_id and credentials; the install is done by hand."""
    code, words = shop.run("sl", "--create", "--name", "Desk")
    (made,) = shop.apps.apps.values()
    assert (code, made["display_information"]["name"]) == (0, "Desk")
    for page in ("install-on-team", "oauth", "general", "event-subscriptions"):
        assert f"https://api.slack.com/apps/A0FAKE00/{page}" in words
    assert "sayso channel manifest sl --update A0FAKE00" in words


def test_app_is_updated_and_changed_scopes_need_a_new_install(shop: Shop):
    """platforms.md 3.5: other changes need no new install."""
    shop.run("--create")
    code, words = shop.run("--update", "A0FAKE00", "--command", "/desk")
    assert (code, "install" in words) == (0, False)
    shop.apps.apps["A0FAKE00"]["oauth_config"]["scopes"]["bot"] = ["chat:write"]
    code, words = shop.run("--update", "A0FAKE00", "--command", "/desk")
    assert (
        code,
        "install it again: https://api.slack.com/apps/A0FAKE00/install-on-team" in words,
    ) == (0, True)
    assert shop.apps.apps["A0FAKE00"]["features"]["slash_commands"][0]["command"] == "/desk"


def test_app_of_many_workspaces_is_installed_again_in_each(shop: Shop):
    """Slack's page for one workspace would leave all others with the old scopes."""
    text = shop.config.read_text()
    token = 'bot_token: "${SLACK_BOT_TOKEN}"'
    assert token in text
    many = 'client_id: "${SLACK_CLIENT_ID}", client_secret: "${SLACK_CLIENT_SECRET}"'
    shop.config.write_text(text.replace(token, many))
    assert shop.run("--create")[0] == 0
    shop.apps.apps["A0FAKE00"]["oauth_config"]["scopes"]["bot"] = ["chat:write"]
    code, words = shop.run("--update", "A0FAKE00")
    assert (code, "in each workspace: " in words, "install-on-team" in words) == (0, True, False)


def test_answer_without_an_app_asks_to_look_it_up(shop: Shop):
    """The app may have been created, and a second run would create another one."""
    shop.platforms.fakes["slack"].answer = lambda _: json_response(  # type: ignore[method-assign]
        {"ok": True}
    )
    code, words = shop.run("--create")
    assert (code, "whether the app exists" in words) == (3, True)


@pytest.mark.parametrize("app_id", ["A0NONE", "", "x/../y", "validate", "create"])
def test_foreign_app_is_not_changed(shop: Shop, app_id: str):
    """platforms.md 3.5: the cure is named, and an invalid id is not sent."""
    code, words = shop.run("--update", app_id)
    assert (code, repr(app_id) in words, "App ID" in words, shop.apps.apps) == (3, True, True, {})


@pytest.mark.parametrize(
    "args",
    [
        ("--create", "--update", "A0FAKE00"),
        ("--validate", "--create"),
        ("--validate", "--update", ""),
    ],
)
def test_two_options_at_once_are_refused(shop: Shop, args: tuple[str, ...]):
    """The command does not guess."""
    code, words = shop.run(*args)
    assert (code, "one of them" in words, shop.apps.apps) == (2, True, {})


def test_rate_limit_of_slack_is_reported(shop: Shop):
    """platforms.md 3.4: create and update may be called about once a minute."""
    shop.apps.error = "ratelimited"
    code, words = shop.run("--create")
    assert (code, "wait a minute" in words) == (3, True)


def test_app_that_may_have_been_created_must_be_looked_up_first(shop: Shop):
    """platforms.md 3.4: "possible some aspect succeeded", so a blind second run could create two."""
    shop.apps.error = "internal_error"
    assert "whether the app exists" in shop.run("--create")[1]
    shop.config.write_text(
        shop.config.read_text().replace(shop.platforms.slack_url, "http://127.0.0.1:1")
    )
    assert "no connection to Slack" in shop.run("--create")[1]


def test_unreachable_url_is_refused_before_the_call(shop: Shop):
    """platforms.md 3.5: with the real Slack no app is created that could not work."""
    shop.config = written(shop.folder, None, public_url="https://10.0.0.7")
    code, words = shop.run("--create")
    assert (code, "no platform can reach" in words, PUBLIC_URL in words) == (3, True, False)


@pytest.mark.parametrize(
    "errors", [7, True, {"a": 1}, [None, 7, {"pointer": None, "message": ["x"]}]]
)
def test_faults_of_an_unknown_form_are_reported(shop: Shop, errors: object):
    """Slack's rules change, and no traceback reaches an operator."""
    shop.platforms.fakes["slack"].answer = lambda _: json_response(  # type: ignore[method-assign]
        {"ok": False, "error": "invalid_manifest", "errors": errors}
    )
    code, words = shop.run("--validate")
    assert (code, "Slack takes no such manifest" in words, "cure" in words) == (3, True, True)
