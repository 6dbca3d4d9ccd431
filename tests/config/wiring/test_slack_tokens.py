"""The tokens of workspaces.

Sealed, renewed once, and removed with the app of one workspace alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.base import ConversationRateLimited, Refused, Unreachable
from sayso.channels.slack import clients
from sayso.channels.slack.clients import ManyWorkspaces
from sayso.channels.slack.installations import (
    INVITATION,
    Installation,
    SlackInstallations,
    TokenCipher,
    TokenUnreadable,
    hash_of,
)
from sayso.channels.types import Conversation, Delivery, Reply
from tests.config.wiring.slack_bot import (
    OpenBot,
    SlackBot,
    full_memory,
    lifecycle,
    message,
    of_organization,
    of_workspace,
)


@pytest.fixture
def bot(open_bot: OpenBot) -> SlackBot:
    """Return a bot that two workspaces have installed."""
    bot = open_bot()
    bot.install("T01", "Acme")
    bot.install("T02", "Beta")
    return bot


def say(bot: SlackBot, team: str, ts: int, text: str) -> None:
    """Send a message in a workspace, and answer it."""
    assert bot.post(message(team, f"17952048{ts:02}.000100", text)) == 200
    bot.work()


def send(bot: SlackBot, team: str, text: str = "hello") -> None:
    """Send one message into a workspace."""
    asyncio.run(bot.channel.send(Delivery("d", Conversation("desk", f"{team}/D0ADA"), Reply(text))))


async def no_pause(_: float) -> None:
    """Wait for nothing."""


def expiring(bot: SlackBot, seconds: float) -> Installation:
    """Let Slack rotate tokens, install T01, and let its token end in so many seconds."""
    bot.slack.oauth.rotates = True
    bot.install("T01", "Acme")
    installation = bot.channel.installations.get("T01")
    ending = replace(installation, expires_at=time.time() + seconds)
    bot.slack.oauth.grant_of(installation.token).expires_at = ending.expires_at
    bot.channel.installations.save(ending)
    return ending


@pytest.mark.parametrize("kind", ["app_uninstalled", "tokens_revoked"])
def test_removed_app_loses_its_token_and_no_other(
    bot: SlackBot,
    kind: str,
    caplog: pytest.LogCaptureFixture,
):
    """The operator is told in the log; the replies of that workspace end, and the others go on."""
    assert bot.post(lifecycle(kind, "T02", time.time() + 5)) == 200
    assert bot.channel.installations.ids() == ["T01"]
    assert [(each.id, each.name, each.reason) for each in bot.channel.installations.removals()] == [
        ("T02", "Beta", kind)
    ]
    say(bot, "T02", 1, "delete invoice B-1")
    say(bot, "T01", 1, "delete invoice A-1")
    assert [entry["team"] for entry in bot.sent] == ["T01"]
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [
        event for event in logged if event.startswith(("workspace.", "channel.", "reply."))
    ] == [
        "workspace.removed",
        "reply.dead",
    ]


def test_removal_is_told_also_where_redis_has_no_memory(
    bot: SlackBot, redis_client: Redis, caplog: pytest.LogCaptureFixture
):
    """The token goes and the operator is told in one step, so that neither happens without the other."""
    with full_memory(redis_client):
        assert bot.post(lifecycle("app_uninstalled", "T02", time.time() + 5)) == 200
    assert bot.channel.installations.ids() == ["T01"]
    assert [each.id for each in bot.channel.installations.removals()] == ["T02"]
    assert "workspace.removed" in [record.getMessage() for record in caplog.records]


def test_script_whose_answer_was_lost_says_the_same_when_it_is_sent_again(bot: SlackBot):
    """The client of Redis sends a command again after its connection broke."""

    class LosesAnswers:
        """Sends each script twice, as after a lost answer."""

        def __getattr__(self, name: str) -> Any:
            return getattr(redis, name)

        def eval(self, *args: Any) -> Any:
            redis.eval(*args)
            return redis.eval(*args)

    installations = bot.channel.installations
    redis = installations._redis
    installations._redis = LosesAnswers()
    old = installations.get("T01")
    assert installations.replace(old, replace(old, token="new"))
    invitation = hash_of(installations.issue(INVITATION, "1", 60))
    assert installations.save(old, invitation=invitation) == "replaced"
    assert installations.remove("T01", "app_uninstalled", time.time() + 5)


def test_record_of_another_release_is_removed_with_its_app(
    bot: SlackBot,
    monkeypatch: pytest.MonkeyPatch,
):
    """After a rollback a newer record cannot be read.

    Slack gets its 200, and does not send the event for hours.
    """
    with monkeypatch.context() as newer:
        newer.setattr("sayso.infra.records.VERSION", 2)
        bot.install("T02", "Beta")
    with pytest.raises(Unreachable, match="stored by another release"):
        send(bot, "T02")
    assert bot.post(lifecycle("app_uninstalled", "T02", time.time() + 5)) == 200
    assert bot.channel.installations.ids() == ["T01"]


def test_field_that_a_newer_release_added_is_ignored(
    bot: SlackBot, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
):
    """Two releases work side by side, so an optional field needs no new version."""
    with monkeypatch.context() as newer:
        newer.setattr(
            "sayso.channels.slack.installations.asdict",
            lambda record: {**asdict(record), "plan": "new"},
        )
        bot.install("T03", "Gamma")
        assert bot.channel.installations.remove("T02", "app_uninstalled", time.time() + 5)
    assert bot.channel.installations.get("T03").name == "Gamma"
    assert [removal.id for removal in bot.channel.installations.removals()] == ["T02"]


def test_removal_from_before_the_installation_is_over(bot: SlackBot):
    """Slack repeats an event for an hour: the app may have been installed again since."""
    assert bot.post(lifecycle("app_uninstalled", "T01", time.time() - 60)) == 200
    assert bot.channel.installations.ids() == ["T01", "T02"]


def test_revoked_token_of_a_person_removes_nothing(bot: SlackBot):
    """Only that of the bot is used."""
    event = {"type": "tokens_revoked", "tokens": {"oauth": ["U0ADA"]}}
    assert bot.post(lifecycle("tokens_revoked", "T01", time.time() + 5, event=event)) == 200
    assert bot.channel.installations.ids() == ["T01", "T02"]


def test_organization_that_removes_the_app_takes_it_from_its_workspaces_only(bot: SlackBot):
    """A workspace of it that installed the app for itself keeps its own token."""
    bot.install("E09", "Grid")
    bot.install("T91", organization="E09")
    bot.channel.installations.note_organization("T92", "E09")
    bot.channel.installations.note_organization("T91", "E09")
    assert bot.channel.installations.find("T92").id == "E09"
    assert bot.channel.installations.find("T91").id == "T91"
    removal = lifecycle("app_uninstalled", "T92", time.time() + 5, **of_organization("E09", "T92"))
    assert bot.post(removal) == 200
    assert bot.channel.installations.ids() == ["T01", "T02", "T91"]
    assert bot.channel.installations.find("T92") is None


@pytest.mark.parametrize("error", ["token_revoked", "account_inactive", "invalid_auth"])
def test_token_that_slack_refuses_stops_its_workspace_alone(
    bot: SlackBot, error: str, caplog: pytest.LogCaptureFixture
):
    """The reply ends as undeliverable, the channel is not down, and the other workspace is answered at once."""
    bot.slack.oauth.revoke("T02", error)
    with pytest.raises(Refused, match=f"{error} in T02: have the app installed there again"):
        send(bot, "T02")
    say(bot, "T02", 1, "delete invoice B-1")
    say(bot, "T01", 1, "delete invoice A-1")
    assert [entry["team"] for entry in bot.sent] == ["T01"]
    assert "channel.down" not in [record.getMessage() for record in caplog.records]


def test_rate_limit_of_a_workspace_slows_down_no_other(bot: SlackBot):
    """Slack counts the calls of each workspace by themselves."""
    bot.platforms.script("slack", "429")
    with pytest.raises(ConversationRateLimited) as limited:
        send(bot, "T02")
    assert limited.value.retry_after == 7
    bot.platforms.script("slack", "429")
    say(bot, "T02", 1, "delete invoice B-1")
    say(bot, "T01", 1, "delete invoice A-1")
    assert [entry["team"] for entry in bot.sent] == ["T01"]


def test_yes_that_arrives_after_the_removal_counts_and_its_outcome_is_shown_to_the_operator(
    bot: SlackBot,
):
    """It was said before: Slack promises no order of events, and passes nothing on of what people do afterwards."""
    say(bot, "T01", 1, "delete invoice A-1")
    bot.slack.oauth.revoke("T01")
    bot.post(lifecycle("app_uninstalled", "T01", time.time() + 5))
    for _ in range(2):
        say(bot, "T01", 2, "yes")
    assert bot.deleted == ["A-1"]
    outcome, question = bot.services.deliveries.undelivered("dead")
    assert (outcome.text, question.text) == ("deleted A-1", "Delete invoice A-1\n\n✅ Yes")
    assert outcome.reason == "Refused: the app is not installed in T01: have it installed there"


def test_new_installation_keeps_an_open_question(bot: SlackBot):
    """The app is installed again between question and yes: the yes counts, and is answered with the new token."""
    say(bot, "T01", 1, "delete invoice A-1")
    bot.slack.oauth.revoke("T01")
    bot.post(lifecycle("app_uninstalled", "T01", time.time() + 5))
    bot.channel.installations.clock = lambda: time.time() + 10
    bot.install("T01", "Acme")
    say(bot, "T01", 2, "yes")
    assert bot.deleted == ["A-1"]
    assert "deleted A-1" in bot.texts("T01")[-1]


def test_message_without_a_workspace_is_not_sent(bot: SlackBot):
    """An address that an operator wrote must name the workspace."""
    with pytest.raises(Refused, match="names no workspace"):
        asyncio.run(bot.channel.send(Delivery("d", Conversation("desk", "C0OPS"), Reply("hi"))))


def test_workspace_that_is_no_longer_listed_gets_no_answer(bot: SlackBot, open_bot: OpenBot):
    """The list of the YAML counts for installations from before it, in and out."""
    narrow = open_bot("install: {organizations: [T01]}")
    assert (
        narrow.post(
            message("T02", "1795204801.000100", "delete invoice B-1", **of_workspace("T02"))
        )
        == 200
    )
    narrow.work()
    assert narrow.sent == []
    with pytest.raises(Refused, match=r"T02 is not in install\.organizations"):
        send(narrow, "T02")
    send(narrow, "T01")


def test_token_is_renewed_before_it_ends(bot: SlackBot):
    """Tokens live for 12 hours, and are renewed in the last 2."""
    old = expiring(bot, 3600)
    send(bot, "T01")
    new = bot.channel.installations.get("T01")
    assert bot.slack.oauth.refreshed == [old.refresh_token]
    assert new.token != old.token
    assert new.expires_at - time.time() > 11 * 3600
    assert replace(new, token="", refresh_token="", expires_at=0) == replace(
        old, token="", refresh_token="", expires_at=0
    )


@pytest.mark.parametrize("ends_in", [3600, -60], ids=["valid", "expired"])
def test_two_processes_renew_a_token_once(bot: SlackBot, ends_in: float):
    """A refresh token works once: the second use would end the installation."""
    old = expiring(bot, ends_in)
    settings = bot.channel.settings
    installations = bot.channel.installations
    processes = [ManyWorkspaces("desk", settings, installations) for _ in range(5)]

    async def call_all() -> list[str | None]:
        clients = await asyncio.gather(*(process.client_of("T01/C1") for process in processes))
        return [client.token for client in clients]

    tokens = asyncio.run(call_all())
    new = installations.get("T01").token
    assert bot.slack.oauth.refreshed == [old.refresh_token]
    if ends_in > 0:
        assert set(tokens) <= {old.token, new}
    else:
        assert set(tokens) == {new}


def test_refused_renewal_is_told_once_and_the_token_is_used_to_its_end(
    bot: SlackBot,
    caplog: pytest.LogCaptureFixture,
):
    """Slack is not asked again with a refresh token that it refused."""
    expiring(bot, 3600)
    bot.slack.oauth._refresh_tokens.clear()
    send(bot, "T01")
    send(bot, "T01")
    told = [
        record for record in caplog.records if record.getMessage() == "workspace.renewal_refused"
    ]
    assert [(record.levelname, record.reason) for record in told] == [
        ("ERROR", "invalid_refresh_token")
    ]
    installations = bot.channel.installations
    installations.save(replace(installations.get("T01"), expires_at=time.time() - 1))
    with pytest.raises(Refused, match=r"does not renew the token of T01 \(invalid_refresh_token\)"):
        send(bot, "T01")
    assert len(bot.slack.oauth.refreshed) == 1


def test_new_installation_ends_a_refused_renewal(bot: SlackBot):
    """It is what the operator is told to ask for."""
    old = expiring(bot, -60)
    bot.channel.installations.save(replace(old, renewal_refused="invalid_refresh_token"))
    bot.install("T01")
    send(bot, "T01")
    assert bot.sent[-1]["team"] == "T01"


def test_app_that_is_installed_again_right_before_a_renewal_is_not_renewed(bot: SlackBot):
    """The new token does not expire. Slack would refuse its empty refresh token."""
    expiring(bot, -60)
    bot.slack.oauth.rotates = False
    installations = bot.channel.installations
    start = installations.start_renewal

    def install_and_start(name: str, seconds: int) -> bool:
        bot.install("T01", "Acme")
        return start(name, seconds)

    installations.start_renewal = install_and_start
    send(bot, "T01")
    assert (bot.slack.oauth.refreshed, installations.get("T01").renewal_refused) == ([], "")


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_answer_of_a_renewal_costs_no_installation(bot: SlackBot, lost: int):
    """Slack takes a refresh token again for a short grace period, so it is asked again at once."""
    old = expiring(bot, 3600)
    bot.slack.oauth.lost_answers = lost
    bot.slack.oauth.grace_seconds = 30.0
    bot.channel._clients._sleep = no_pause
    send(bot, "T01")
    new = bot.channel.installations.get("T01")
    assert bot.slack.oauth.refreshed == [old.refresh_token] * (lost + 1)
    assert (new.renewal_refused, bot.slack.oauth.refusal(new.token)) == ("", "")
    assert new.expires_at - time.time() > 11 * 3600


def test_silent_slack_holds_no_renewal_beyond_the_time_of_its_process(
    bot: SlackBot,
    monkeypatch: pytest.MonkeyPatch,
):
    """After RENEWAL_SECONDS another process would use up the same refresh token."""
    asking = clients.ASK_ATTEMPTS * (clients.ASK_SECONDS + clients.ASK_PAUSE_SECONDS)
    assert asking + clients.STORE_ATTEMPTS < clients.RENEWAL_SECONDS
    old = expiring(bot, 3600)
    bot.channel._clients._sleep = no_pause
    monkeypatch.setattr(clients, "ASK_SECONDS", 0.0)
    send(bot, "T01")
    assert bot.channel.installations.get("T01") == old


def test_slack_that_does_not_answer_is_asked_again_later(bot: SlackBot, redis_client: Redis):
    """The token is used while it is valid; after its end the reply waits.

    Then Slack is asked once a minute.
    """
    old = expiring(bot, 3600)
    bot.channel._clients._sleep = no_pause
    bot.slack.oauth.refresh_error = "internal_error"
    send(bot, "T01")
    bot.channel.installations.save(replace(old, expires_at=time.time() - 1))
    redis_client.delete(*redis_client.scan_iter("*:renewal:*"))
    with pytest.raises(Unreachable, match="not renewed yet"):
        send(bot, "T01")
    bot.slack.oauth.refresh_error = ""
    redis_client.delete(*redis_client.scan_iter("*:renewal:*"))
    send(bot, "T01")
    assert bot.channel.installations.get("T01").renewal_refused == ""


@pytest.mark.parametrize(
    "error", ["bad_client_secret", "invalid_client_id", "an_error_of_tomorrow"]
)
def test_what_slack_refuses_of_the_app_ends_no_installation(
    bot: SlackBot, redis_client: Redis, error: str, caplog: pytest.LogCaptureFixture
):
    """A wrong client_secret in the environment would make all workspaces install the app again."""
    old = expiring(bot, 3600)
    bot.slack.oauth.refresh_error = error
    send(bot, "T01")
    bot.slack.oauth.refresh_error = ""
    redis_client.delete(*redis_client.scan_iter("*:renewal:*"))
    send(bot, "T01")
    new = bot.channel.installations.get("T01")
    assert (new.renewal_refused, new.token != old.token) == ("", True)
    told = [
        record for record in caplog.records if record.getMessage() == "workspace.renewal_failed"
    ]
    assert [record.reason for record in told] == [error]


def test_renewal_brings_back_no_removed_app(bot: SlackBot):
    """The workspace removed the app while Slack renewed its token."""
    expiring(bot, 3600)
    installations = bot.channel.installations
    bot.slack.oauth.before_refresh = lambda: installations.remove(
        "T01", "app_uninstalled", time.time() + 5
    )
    with pytest.raises(Refused, match="not installed in T01"):
        send(bot, "T01")
    assert bot.channel.installations.get("T01") is None


def test_renewal_goes_on_when_its_caller_is_cancelled(bot: SlackBot):
    """A typing sign is cancelled when the answer is there, and Slack gives a new refresh token once."""
    old = expiring(bot, 3600)
    is_asked = threading.Event()
    may_answer = threading.Event()

    def wait_for_the_test() -> None:
        is_asked.set()
        may_answer.wait(10)

    bot.slack.oauth.before_refresh = wait_for_the_test

    async def cancel_and_wait() -> None:
        call = asyncio.create_task(bot.channel.client_of("T01/D0ADA"))
        await asyncio.to_thread(is_asked.wait, 10)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        may_answer.set()
        await asyncio.gather(*bot.channel._clients._renewals)

    asyncio.run(cancel_and_wait())
    new = bot.channel.installations.get("T01")
    assert (new.token != old.token, new.renewal_refused) == (True, "")


def test_renewed_token_is_stored_when_redis_answers_again(bot: SlackBot, redis_client: Redis):
    """A failover at that moment would cost the installation."""
    old = expiring(bot, 3600)

    class RestartingRedis(SlackInstallations):
        """Fails to store the first two times."""

        failures = 2

        def replace(self, read: Installation, installation: Installation) -> bool:
            self.failures -= 1
            if self.failures >= 0:
                raise RedisError
            return super().replace(read, installation)

    prefix = bot.services.settings.key_prefix
    keys = (bot.folder / "data" / "secret_keys").read_text().split()
    installations = RestartingRedis("desk", redis_client, keys, prefix)
    process = ManyWorkspaces("desk", bot.channel.settings, installations, sleep=no_pause)
    client = asyncio.run(process.client_of("T01/C1"))
    assert client.token == bot.channel.installations.get("T01").token != old.token


def test_removal_takes_no_installation_that_is_stored_meanwhile(bot: SlackBot):
    """The app is installed again in another process, between the look at the old installation and its deletion."""
    installations = bot.channel.installations
    old = installations.get("T01")

    class LateCipher(TokenCipher):
        """Has another process install the app after the first record was read."""

        def decrypt(self, workspace: str, record: str) -> Installation:
            if record == old.record:
                bot.channel.installations.cipher = cipher
                installations.save(replace(old, token="new", installed_at=old.installed_at + 100))
            return super().decrypt(workspace, record)

    cipher = installations.cipher
    keys = (bot.folder / "data" / "secret_keys").read_text().split()
    installations.cipher = LateCipher("desk", keys)
    assert not installations.remove("T01", "app_uninstalled", old.installed_at + 5)
    assert installations.get("T01").token == "new"


def test_organization_without_a_workspace_in_its_event_loses_its_token(bot: SlackBot):
    """An organization is no workspace, so that the event may name none."""
    bot.install("E09", "Grid")
    outer = {
        "team_id": None,
        "enterprise_id": "E09",
        "is_enterprise_install": True,
        "authorizations": [],
    }
    assert bot.post(lifecycle("app_uninstalled", "E09", time.time() + 5, **outer)) == 200
    assert (
        bot.post(
            lifecycle("app_uninstalled", "E09", time.time() + 6, team_id=None, enterprise_id="E09")
        )
        == 200
    )
    assert bot.channel.installations.ids() == ["T01", "T02"]


def test_event_about_a_workspace_without_a_token_of_its_own_takes_none_from_its_organization(
    bot: SlackBot,
):
    """All other workspaces of the organization go on. Slack refuses the token if it is over."""
    bot.install("E09", "Grid")
    bot.channel.installations.note_organization("T91", "E09")
    removal = lifecycle("app_uninstalled", "T91", time.time() + 5, enterprise_id="E09")
    assert bot.post(removal) == 200
    assert bot.channel.installations.ids() == ["E09", "T01", "T02"]


def test_record_of_another_workspace_is_refused(bot: SlackBot, redis_client: Redis):
    """Who can write to Redis cannot send with a foreign token."""
    (key,) = redis_client.scan_iter("*:installed")
    redis_client.hset(key, "T02", redis_client.hget(key, "T01"))
    with pytest.raises(Refused, match="belongs to another workspace"):
        send(bot, "T02")


def test_new_secret_key_reads_tokens_of_the_old_one(bot: SlackBot, redis_client: Redis):
    """Keys are rotated as everywhere: the first one seals, all are read."""
    prefix = bot.services.settings.key_prefix
    (old,) = (bot.folder / "data" / "secret_keys").read_text().split()
    token = bot.channel.installations.get("T01").token
    rotated = SlackInstallations("desk", redis_client, ["a new key", old], prefix)
    assert rotated.get("T01").token == token
    rotated.save(rotated.get("T01"))
    assert SlackInstallations("desk", redis_client, ["a new key"], prefix).get("T01").token == token
    with pytest.raises(TokenUnreadable, match="encrypted with other secret keys"):
        SlackInstallations("desk", redis_client, ["another key"], prefix).get("T01")
