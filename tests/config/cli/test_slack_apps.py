"""`sayso channel manifest --validate|--create|--update`: no secret is told, and each refusal of Slack has its cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.config.cli.main import main
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.server import json_response
from sayso.testing.platforms.slack import CREDENTIALS, FakeSlack, SlackManifests
from tests.config.fake_bots import ENVIRON, PUBLIC_URL, written

TOKEN = "SLACK_CONFIG_TOKEN"


class Shop:
    """Slack's fake, a configuration without any secret, and the command."""

    def __init__(self, folder: Path, platforms: FakePlatforms) -> None:
        self.folder, self.platforms = folder, platforms
        self.config = written(folder, platforms)

    @property
    def apps(self) -> SlackManifests:
        """What Slack has."""
        fake = self.platforms.fakes["slack"]
        assert isinstance(fake, FakeSlack)
        return fake.manifests

    def run(self, *args: str) -> tuple[int, str]:
        """Exit code and all output. No secret is ever in it."""
        result = CliRunner().invoke(main, ["channel", "manifest", *args, "--config", str(self.config)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        secrets = (*ENVIRON.values(), fakes.SLACK_CONFIG_TOKEN, *CREDENTIALS.values())
        assert not [secret for secret in secrets if secret in result.output]
        return result.exit_code, result.output


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Nobody has the bot's token yet."""
    for name in ENVIRON:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(TOKEN, fakes.SLACK_CONFIG_TOKEN)
    with FakePlatforms() as platforms:
        yield Shop(tmp_path, platforms)


@pytest.mark.parametrize("error", ["token_expired", "invalid_auth", "token_revoked", "not_allowed_token_type"])
@pytest.mark.parametrize("args", [("--validate",), ("--create",), ("--update", "A0FAKE00")])
def test_token_that_slack_does_not_take_is_told_with_its_cure(shop: Shop, args: tuple[str, ...], error: str):
    """platforms.md 3.5: it is good for 12 hours; nothing is made or changed."""
    shop.apps.error = error
    code, words = shop.run(*args)
    assert (code, TOKEN in words, "12 hours" in words, "xoxe.xoxp-" in words) == (3, True, True, True)
    assert ("has expired" in words) is (error == "token_expired")
    assert shop.apps.apps == {}


@pytest.mark.parametrize("token", ["", " ", "tökén", "xoxe.xoxp-1\nx"])
def test_token_that_is_none_is_not_sent(shop: Shop, monkeypatch: pytest.MonkeyPatch, token: str):
    """Nor shown."""
    monkeypatch.setenv(TOKEN, token)
    code, words = shop.run("--create")
    assert (code, TOKEN in words, "generate one" in words) == (3, True, True)
    assert shop.platforms.calls == []


def test_token_of_a_bot_makes_no_apps(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 3.5: an app configuration token is a kind of its own, and calls nothing else."""
    monkeypatch.setenv(TOKEN, fakes.SLACK_BOT_TOKEN)
    code, words = shop.run("--create")
    assert (code, "not_allowed_token_type" in words, shop.apps.apps) == (3, True, {})


def test_manifest_that_slack_takes_is_told_and_changes_nothing(shop: Shop):
    """platforms.md 3.5: apps.manifest.validate."""
    assert shop.run("--validate") == (0, "Slack takes this manifest\n")
    assert shop.apps.apps == {}


def test_fault_is_told_with_its_place_and_cure(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 3.5: invalid_manifest names each fault by a pointer."""
    monkeypatch.setattr("sayso.channels.slack.setup._DESCRIPTION", "x" * 301)
    code, words = shop.run("--validate", "--view", "agent")
    assert code == 3
    assert "\n  /display_information/description  Must be 140 characters or less\n" in words
    assert "\n  /features/agent_view/agent_description  Must be 300" in words
    assert "leave out --view agent" in words


def test_app_is_made_and_what_is_left_to_do_is_told(shop: Shop):
    """platforms.md 3.5: Slack's answer has an app_id and credentials; installing stays a click."""
    code, words = shop.run("sl", "--create", "--name", "Desk")
    (made,) = shop.apps.apps.values()
    assert (code, made["display_information"]["name"]) == (0, "Desk")
    for page in ("install-on-team", "oauth", "general", "event-subscriptions"):
        assert f"https://api.slack.com/apps/A0FAKE00/{page}" in words
    assert "sayso channel manifest sl --update A0FAKE00" in words


def test_app_is_changed_and_a_new_install_is_asked_for_where_scopes_changed(shop: Shop):
    """platforms.md 3.5: changing scopes needs a new install, other changes do not."""
    shop.run("--create")
    code, words = shop.run("--update", "A0FAKE00", "--command", "/desk")
    assert (code, "install" in words) == (0, False)
    shop.apps.apps["A0FAKE00"]["oauth_config"]["scopes"]["bot"] = ["chat:write"]
    code, words = shop.run("--update", "A0FAKE00", "--command", "/desk")
    assert (code, "install it again: https://api.slack.com/apps/A0FAKE00/install-on-team" in words) == (0, True)
    assert shop.apps.apps["A0FAKE00"]["features"]["slash_commands"][0]["command"] == "/desk"


@pytest.mark.parametrize("app_id", ["A0NONE", "", "x/../y", "validate", "create"])
def test_app_that_is_not_ours_is_not_changed(shop: Shop, app_id: str):
    """platforms.md 3.5: with the cure; what is no id at all is not sent."""
    code, words = shop.run("--update", app_id)
    assert (code, repr(app_id) in words, "App ID" in words, shop.apps.apps) == (3, True, True, {})


@pytest.mark.parametrize(
    "args", [("--create", "--update", "A0FAKE00"), ("--validate", "--create"), ("--validate", "--update", "")]
)
def test_two_wishes_at_once_are_refused(shop: Shop, args: tuple[str, ...]):
    """Nothing is guessed."""
    code, words = shop.run(*args)
    assert (code, "one of them" in words, shop.apps.apps) == (2, True, {})


def test_limit_of_slack_is_told(shop: Shop):
    """platforms.md 3.4: create and update may be called about once a minute."""
    shop.apps.error = "ratelimited"
    code, words = shop.run("--create")
    assert (code, "wait a minute" in words) == (3, True)


def test_app_that_may_have_been_made_is_looked_for_first(shop: Shop):
    """platforms.md 3.4: "possible some aspect succeeded": run again blindly, there would be two."""
    shop.apps.error = "internal_error"
    assert "whether the app exists" in shop.run("--create")[1]
    shop.config.write_text(shop.config.read_text().replace(shop.platforms.slack_url, "http://127.0.0.1:1"))
    assert "no connection to Slack" in shop.run("--create")[1]


def test_address_that_slack_cannot_reach_is_refused_before_it_is_asked(shop: Shop):
    """platforms.md 3.5: with the real Slack only; nothing is made that could not work."""
    shop.config = written(shop.folder, None, public_url="https://10.0.0.7")
    code, words = shop.run("--create")
    assert (code, "no platform can reach" in words, PUBLIC_URL in words) == (3, True, False)


@pytest.mark.parametrize("errors", [7, True, {"a": 1}, [None, 7, {"pointer": None, "message": ["x"]}]])
def test_faults_of_no_known_form_are_a_refusal_all_the_same(shop: Shop, errors: object):
    """Slack's rules change: no traceback reaches an operator."""
    shop.platforms.fakes["slack"].answer = lambda _: json_response(  # type: ignore[method-assign]
        {"ok": False, "error": "invalid_manifest", "errors": errors}
    )
    code, words = shop.run("--validate")
    assert (code, "Slack takes no such manifest" in words, "cure" in words) == (3, True, True)
