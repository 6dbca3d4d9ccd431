"""`sayso channel workspaces`, `invite` and `status` for an app that many workspaces have installed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis import Redis

from sayso.channels.slack import workspaces
from sayso.ops.cli.main import main
from sayso.testing.platforms.fake_platforms import SLACK_CONFIG_TOKEN, FakePlatforms
from tests.config.wiring.slack_bot import PUBLIC_URL, SECRETS, SlackBot, message, of_organization


@pytest.fixture
def open_bot(
    tmp_path: Path, redis_client: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., SlackBot]]:
    """Return a function that opens a bot with more keys of its channel, and sets the environment of commands."""
    for name, value in {**SECRETS, "REDIS_URL": redis_url}.items():
        monkeypatch.setenv(name, value)
    with FakePlatforms() as platforms:
        yield lambda more="": SlackBot(tmp_path, redis_url, platforms, more)


def run(bot: SlackBot, *args: str, group: str = "channel") -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    options = ["--config", str(bot.file), "--data", str(bot.folder / "data")]
    result = CliRunner().invoke(main, [*group.split(), *args, *options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    for secret in (*SECRETS.values(), "xoxb", "xoxe"):
        assert secret not in result.output
    return result.exit_code, result.output


def test_workspaces_are_listed_without_their_tokens(open_bot: Callable[..., SlackBot]):
    """Name, since when, by whom, scopes and rotation; of an organization, its known workspaces."""
    bot = open_bot()
    bot.install("T01", "Acme")
    bot.slack.oauth.rotates = True
    bot.install("E09", "Grid")
    bot.channel.installations.note_organization("T91", "E09")
    code, text = run(bot, "workspaces")
    acme = text.splitlines()[1]
    grid = text.splitlines()[0]
    assert code == 0
    assert re.fullmatch(r"T01 +Acme  since \S+ \S+  by U0ADMIN  1\d scopes  no rotation", acme)
    assert re.fullmatch(
        r"E09 +Grid  organization of T91  since \S+ \S+  by U0ADMIN  1\d scopes  rotates, until \S+ \S+",
        grid,
    )
    _, text = run(bot, "workspaces", "desk", "--json")
    assert [(row["id"], row["workspaces"], row["rotates"]) for row in json.loads(text)] == [
        ("E09", ["T91"], True),
        ("T01", [], False),
    ]


def test_invitation_of_the_command_installs(open_bot: Callable[..., SlackBot]):
    """The printed link works in a browser, once."""
    bot = open_bot("install: {invited: true}")
    code, text = run(bot, "invite")
    link, until = text.splitlines()
    assert (code, until.startswith("works once, until 20")) == (0, True)
    state = bot.begin(path=link.removeprefix(PUBLIC_URL))
    assert bot.come_back(code=bot.slack.oauth.allow("T01"), state=state).status_code == 200
    assert bot.client.get(link.removeprefix(PUBLIC_URL), base_url=PUBLIC_URL).status_code == 403


def test_invitation_that_is_not_needed_is_refused_with_the_address(
    open_bot: Callable[..., SlackBot],
):
    """Without `invited` everybody may install at the same address."""
    code, text = run(open_bot(), "invite", "desk")
    assert code == 3
    assert f"{PUBLIC_URL}/slack/desk/install" in text


def findings(bot: SlackBot) -> dict[str, tuple[str, str]]:
    """Return state and id of each result of `sayso channel status`, by the name of its check."""
    results = json.loads(run(bot, "status", "desk", "--json")[1])
    return {result["check"]: (result["state"], result["id"]) for result in results}


@pytest.mark.parametrize("command", ["approve", "block", "erase"])
def test_person_without_a_workspace_is_refused(open_bot: Callable[..., SlackBot], command: str):
    """The command would do nothing, and say that it is done."""
    bot = open_bot("access: {}")
    code, text = run(bot, command, "desk", "U0ADA", group="people")
    assert code == 2
    assert "'U0ADA' names no workspace, and the app is in many: write it as T0123ABCD/U0ADA" in text
    if command == "block":
        assert run(bot, command, "desk", "T01/U0ADA", group="people")[0] == 0


def test_status_looks_at_each_workspace(open_bot: Callable[..., SlackBot], redis_client: Redis):
    """Each finding is of one workspace, with an id and a cure.

    One that removed the app is named, too.
    """
    bot = open_bot("install: {organizations: [T01, T02, T03, T04, T05, T06, T07]}")
    for team in ("T01", "T02", "T03", "T04", "T05", "T06", "T07"):
        bot.install(team)
    installations = bot.channel.installations
    bot.slack.oauth.revoke("T02")
    bot.slack.oauth.grant_of(installations.get("T03").token).scopes = {"chat:write"}
    installations.save(replace(installations.get("T04"), renewal_refused="invalid_refresh_token"))
    (key,) = redis_client.scan_iter("*:installed")
    redis_client.hset(key, "T05", "damaged")
    installations.remove("T06", "app_uninstalled", time.time() + 1)
    bot.file.write_text(bot.file.read_text().replace(", T07", ""))
    found = findings(bot)
    assert found["T01"] == ("ok", "")
    assert found["T02"] == ("fail", "workspace-token")
    assert found["T03"] == ("warn", "workspace-scopes")
    assert found["T04"] == ("fail", "workspace-renewal")
    assert found["T05"] == ("fail", "workspace-unreadable")
    assert found["T06"] == ("warn", "workspace-removed")
    assert found["T07"] == ("warn", "workspace-not-listed")


def test_status_says_how_the_first_workspace_installs(open_bot: Callable[..., SlackBot]):
    """A new bot is no failure."""
    code, text = run(open_bot(), "status", "desk")
    assert code == 0
    assert f"install it: {PUBLIC_URL}/slack/desk/install" in text


def test_status_waits_for_slow_workspaces_no_longer_than_its_time(
    open_bot: Callable[..., SlackBot], monkeypatch: pytest.MonkeyPatch
):
    """What was not asked in time is told."""
    bot = open_bot()
    bot.install("T01")
    monkeypatch.setattr(workspaces, "CHECK_SECONDS", 0.0)
    assert findings(bot)["workspaces"] == ("warn", "workspaces-late")


def test_status_does_not_renew_a_token(open_bot: Callable[..., SlackBot]):
    """It changes nothing."""
    bot = open_bot()
    bot.slack.oauth.rotates = True
    bot.install("T01")
    installations = bot.channel.installations
    installations.save(replace(installations.get("T01"), expires_at=time.time() - 1))
    assert findings(bot)["T01"] == ("ok", "")
    assert bot.slack.oauth.refreshed == []


def test_manifest_has_what_an_installation_needs(open_bot: Callable[..., SlackBot]):
    """Redirect URL, organizations and rotation are as the YAML says.

    An app with a bot_token has none of them.
    """
    bot = open_bot("install: {token_rotation: true}")
    manifest = json.loads(run(bot, "manifest", "desk", "--json")[1])
    assert manifest["oauth_config"]["redirect_urls"] == [f"{PUBLIC_URL}/slack/desk/oauth_redirect"]
    assert manifest["settings"]["org_deploy_enabled"] is True
    assert manifest["settings"]["token_rotation_enabled"] is True
    bot.file.write_text(bot.file.read_text().replace("token_rotation: true", "org_deploy: false"))
    settings = json.loads(run(bot, "manifest", "desk", "--json")[1])["settings"]
    assert (settings["org_deploy_enabled"], settings["token_rotation_enabled"]) == (False, False)


def test_message_of_an_organization_teaches_its_workspace(open_bot: Callable[..., SlackBot]):
    """The list names the workspaces from which something came in."""
    bot = open_bot()
    bot.install("E09", "Grid")
    assert (
        bot.post(message("T91", "1795204801.000100", "hello", **of_organization("E09", "T91")))
        == 200
    )
    assert "organization of T91" in run(bot, "workspaces", "desk")[1]


def test_check_warns_of_a_workspace_and_does_not_fail(open_bot: Callable[..., SlackBot]):
    """A token that a workspace revokes must not stop a deployment.

    With --offline Slack is not asked.
    """
    bot = open_bot()
    bot.install("T01", "Acme")
    bot.slack.oauth.revoke("T01")
    code, text = run(bot, group="check")
    assert code == 0
    assert "desk T01: Slack does not take the token of Acme (token_revoked)" in text
    assert "token_revoked" not in run(bot, "--offline", group="check")[1]


def test_doctor_names_the_workspace_and_its_cure(open_bot: Callable[..., SlackBot]):
    """The finding has a section in the manual."""
    bot = open_bot()
    bot.install("T01", "Acme")
    bot.slack.oauth.revoke("T01")
    results = json.loads(run(bot, "--json", group="doctor")[1])
    (found,) = (result for result in results if result["check"] == "T01")
    assert (found["id"], found["channel"], found["state"]) == ("workspace-token", "desk", "fail")
    assert f"{PUBLIC_URL}/slack/desk/install" in found["cure"]


def test_audit_log_names_the_workspace_of_the_person(open_bot: Callable[..., SlackBot]):
    """The same id is another person in another workspace."""
    bot = open_bot()
    bot.install("T01", "Acme")
    for number, text in enumerate(("delete invoice A-1", "yes")):
        bot.post(message("T01", f"179520480{number}.000100", text))
        bot.work()
    bot.services.audit_collector.collect()
    assert "T01/U0ADA" in run(bot, "show", group="audit")[1]


def test_created_app_is_finished_without_a_bot_token(
    open_bot: Callable[..., SlackBot], monkeypatch: pytest.MonkeyPatch
):
    """The steps name the credentials that this bot needs, and where the app is installed."""
    monkeypatch.setenv("SLACK_CONFIG_TOKEN", SLACK_CONFIG_TOKEN)
    code, text = run(open_bot(), "manifest", "desk", "--create")
    assert code == 0
    assert "copy Client ID, Client Secret and Signing Secret" in text
    assert f"install it: {PUBLIC_URL}/slack/desk/install" in text
    assert "bot_token" not in text


def test_app_that_needs_invitations_is_installed_by_their_links(
    open_bot: Callable[..., SlackBot], monkeypatch: pytest.MonkeyPatch
):
    """The plain address refuses everybody, so no command names it."""
    monkeypatch.setenv("SLACK_CONFIG_TOKEN", SLACK_CONFIG_TOKEN)
    bot = open_bot("install: {invited: true}")
    for words in (["manifest", "desk", "--create"], ["connect", "desk"], ["status", "desk"]):
        text = run(bot, *words)[1]
        assert "with the link of `sayso channel invite desk`" in text
        assert "/slack/desk/install" not in text
