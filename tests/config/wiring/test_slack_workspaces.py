"""One Slack app in many workspaces.

Each call to Slack has the token of the workspace that its conversation is in.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from urllib.parse import urlencode

import pytest
from redis import Redis

from sayso.channels.base import FetchError
from sayso.channels.slack.installations import SlackInstallations
from sayso.channels.types import Conversation, Delivery, Media, Reply
from sayso.testing.platforms.webhooks import slack_event, slack_interaction
from tests.channels.harness import fetch_bytes
from tests.config.wiring.slack_bot import (
    THREAD_TS,
    OpenBot,
    SlackBot,
    lifecycle,
    message,
    of_organization,
    of_workspace,
)

#: Messages come at these times, so that none is a repetition of another.
FIRST_TS = 1795204800
#: The workspaces T91 and T92 belong to the organization E09, which has installed the app for them.
ORGANIZATION = "E09"
ENVELOPES = {
    "T01": of_workspace("T01"),
    "T02": of_workspace("T02"),
    "T91": of_organization(ORGANIZATION, "T91"),
    "T92": of_organization(ORGANIZATION, "T92"),
}
#: Whose token each workspace uses.
TOKENS = {"T01": "T01", "T02": "T02", "T91": ORGANIZATION, "T92": ORGANIZATION}


@pytest.fixture
def bot(open_bot: OpenBot) -> SlackBot:
    """Return a bot that two workspaces and one organization have installed."""
    bot = open_bot()
    for name in ("T01", "T02", ORGANIZATION):
        assert bot.install(name, f"{name} Inc.").status_code == 200
    return bot


def say(
    bot: SlackBot,
    team: str,
    number: int,
    text: str,
    channel: str = "D0ADA",
    user: str = "U0ADA",
) -> None:
    """Send a message in a workspace, and answer it."""
    body = message(
        team, f"{FIRST_TS + number}.000100", text, channel=channel, user=user, **ENVELOPES[team]
    )
    assert bot.post(body) == 200
    bot.work()


def tap_last(bot: SlackBot, where: str, **payload: object) -> None:
    """Tap the first button that the bot showed last in a workspace."""
    entry = next(
        each for each in reversed(bot.sent) if each.get("team") == TOKENS[where] and each["buttons"]
    )
    block = next(block for block in entry["raw"]["blocks"] if block["type"] == "actions")
    element = block["elements"][0]
    action = {
        "type": "button",
        "action_id": element["action_id"],
        "block_id": block["block_id"],
        "action_ts": "1.2",
    }
    container = {"type": "message", "message_ts": "1795204700.000001", "channel_id": entry["chat"]}
    who = {"user": {"id": "U0ADA", "username": "ada", "team_id": where}, "team": {"id": where}}
    body = slack_interaction(
        "block_actions",
        **{**who, **payload},
        trigger_id="t1",
        channel={"id": entry["chat"]},
        message={"type": "message", "ts": "1795204700.000001", "text": "?"},
        container=container,
        actions=[{**action, "value": element["value"]}],
    )
    assert bot.post(body) == 200
    bot.work()


def invoices(text: str) -> set[str]:
    """Return the workspaces whose invoices a text names."""
    return set(re.findall(r"(T\d\d)-\d+", text))


def test_yes_in_one_workspace_confirms_nothing_in_another(bot: SlackBot):
    """The ids of chat and person are the same in all of them."""
    say(bot, "T01", 1, "delete invoice T01-1")
    for number, team in enumerate(("T02", "T91", "T92"), 2):
        say(bot, team, number, "yes")
    assert bot.deleted == []
    say(bot, "T01", 9, "yes")
    assert bot.deleted == ["T01-1"]


def test_event_that_slack_repeats_is_answered_once_in_each_workspace(bot: SlackBot):
    """Slack repeats what it believes to be lost.

    The same ids in another workspace are another message.
    """
    for team, envelope in ENVELOPES.items():
        body = message(team, f"{FIRST_TS}.000100", f"delete invoice {team}-1", **envelope)
        assert [bot.post(body, retry=number) for number in range(3)] == [200] * 3
    bot.work()
    assert sorted(team for entry in bot.sent for team in invoices(entry["text"])) == sorted(TOKENS)


def test_each_call_has_the_token_of_its_workspace(bot: SlackBot, caplog: pytest.LogCaptureFixture):
    """200 mixed webhooks of four workspaces with the same ids, and one workspace removes the app in the middle."""
    for number in range(50):
        for place, team in enumerate(TOKENS):
            if number == 25 and team == "T02":
                bot.slack.oauth.revoke("T02", "account_inactive")
                assert bot.post(lifecycle("app_uninstalled", "T02", time.time() + 5)) == 200
            channel = ("D0ADA", "C0OPS")[number // 2 % 2]
            text = f"<@U0BOT> delete invoice {team}-{number}"
            if number % 2:
                text = "<@U0BOT> yes"
            ts = f"{FIRST_TS + number}.{place:06d}"
            assert bot.post(message(team, ts, text, channel=channel, **ENVELOPES[team])) == 200
        bot.work()
    messages = [entry for entry in bot.sent if invoices(entry["text"])]
    crossed = [
        entry
        for entry in messages
        if {TOKENS[team] for team in invoices(entry["text"])} != {entry["team"]}
    ]
    assert crossed == []
    assert len({entry["team"] for entry in messages}) == 3
    assert sorted(bot.deleted) == sorted(
        f"{team}-{number}"
        for team in TOKENS
        for number in range(0, 50, 2)
        if team != "T02" or number < 25
    )
    assert "channel.down" not in [record.getMessage() for record in caplog.records]


def test_tap_for_an_organization_finds_the_workspace_of_its_question(bot: SlackBot):
    """Slack names no workspace there, and the organization as that of the person."""
    say(bot, "T91", 1, "delete invoice T91-1")
    enterprise = {"id": ORGANIZATION, "name": "Grid"}
    person = {"id": "U0ADA", "username": "ada", "team_id": ORGANIZATION}
    tap_last(bot, "T91", team=None, enterprise=enterprise, user=person, is_enterprise_install=True)
    assert bot.deleted == ["T91-1"]


def test_tap_of_a_guest_from_another_workspace_stays_where_the_question_is(bot: SlackBot):
    """In a shared channel Slack names the guest's own workspace, in which the same ids mean other things."""
    text = "<@U0BOT> delete invoice T01-1"
    say(bot, "T01", 1, text, channel="C0OPS", user="U0GUEST")
    tap_last(
        bot, "T01", user={"id": "U0GUEST", "username": "g", "team_id": "T02"}, team={"id": "T02"}
    )
    assert bot.deleted == ["T01-1"]
    assert {entry["team"] for entry in bot.sent} == {"T01"}


def test_organization_that_is_known_costs_a_message_no_write(bot: SlackBot, redis_client: Redis):
    """Each write is an fsync of Redis, for which the webhook waits."""
    installations = bot.channel.installations
    installations.note_organization("T91", ORGANIZATION)
    before = redis_client.info("persistence")["rdb_changes_since_last_save"]
    installations.note_organization("T91", ORGANIZATION)
    assert redis_client.info("persistence")["rdb_changes_since_last_save"] == before
    installations.note_organization("T91", "E22")
    assert installations.workspaces_of("E22") == ["T91"]


def test_message_for_an_organization_comes_in_while_its_note_cannot_be_stored(bot: SlackBot):
    """While Redis does not answer it goes to the spool.

    A removal is refused then: Slack sends it again.
    """
    working = bot.channel.installations
    bot.channel.installations = SlackInstallations(
        "desk", Redis(host="127.0.0.1", port=1), ["a key"], "sayso:"
    )
    assert (
        bot.post(message("T91", f"{FIRST_TS}.000100", "delete invoice T91-1", **ENVELOPES["T91"]))
        == 200
    )
    assert bot.post(lifecycle("app_uninstalled", "T01", time.time() + 5)) == 503
    bot.channel.installations = working
    assert working.ids() == [ORGANIZATION, "T01", "T02"]


def test_tap_of_a_guest_teaches_nothing_of_the_workspace(bot: SlackBot):
    """The organization that Slack names is the guest's, whose token must not be used for this workspace."""
    bot.install("E22", "Guests Inc.")
    say(bot, "T91", 1, "<@U0BOT> delete invoice T91-1", channel="C0OPS", user="U0GUEST")
    guest = {"user": {"id": "U0GUEST", "username": "g", "team_id": "T22"}, "team": {"id": "T22"}}
    tap_last(bot, "T91", **guest, enterprise={"id": "E22"}, is_enterprise_install=True)
    assert bot.deleted == ["T91-1"]
    assert bot.channel.installations.workspaces_of("E22") == []
    assert {entry["team"] for entry in bot.sent} == {ORGANIZATION}


def test_event_without_an_authorization_belongs_to_the_workspace_of_its_context(bot: SlackBot):
    """`team_id` and `enterprise_id` are those of the author in a shared channel."""
    author = {
        "team_id": "T02",
        "enterprise_id": "E22",
        "is_enterprise_install": True,
        "authorizations": [],
    }
    outer = {**author, "context_team_id": "T01", "context_enterprise_id": None}
    assert bot.post(message("T01", f"{FIRST_TS}.000100", "delete invoice T01-1", **outer)) == 200
    bot.work()
    assert {entry["team"] for entry in bot.sent} == {"T01"}
    assert bot.channel.installations.workspaces_of("E22") == []


def test_event_of_a_shared_channel_belongs_to_the_workspace_that_installed_the_app(bot: SlackBot):
    """`team_id` is that of the author there; the authorization names the installation."""
    outer = {**of_workspace("T01"), "team_id": "T77", "context_team_id": "T01"}
    body = message(
        "T01", f"{FIRST_TS}.000100", "<@U0BOT> delete invoice T01-1", channel="C0OPS", **outer
    )
    assert bot.post(body) == 200
    bot.work()
    assert bot.texts("T01") != []


@pytest.mark.parametrize(
    ("team", "more"),
    [
        ("T01", {"enterprise_id": "", "is_enterprise_install": "false"}),
        ("T91", {"enterprise_id": ORGANIZATION, "is_enterprise_install": "true"}),
    ],
)
def test_slash_command_is_answered_with_the_token_of_its_workspace(
    bot: SlackBot,
    team: str,
    more: dict[str, str],
):
    """Its form names workspace and organization in fields of its own."""
    form = {
        "command": "/acme",
        "text": f"delete invoice {team}-1",
        "user_id": "U0ADA",
        "channel_id": "C0OPS",
    }
    assert (
        bot.post(urlencode({**form, "trigger_id": "t1", "team_id": team, **more}).encode()) == 200
    )
    bot.work()
    assert [invoices(text) for text in bot.texts(TOKENS[team])] == [{team}]


def test_shortcut_is_answered_in_the_direct_message_of_its_workspace(bot: SlackBot):
    """The direct message is opened with the token of the workspace that the person is in."""
    body = slack_interaction(
        "shortcut", callback_id="help", action_ts="1.2", trigger_id="t1", team={"id": "T02"}
    )
    assert bot.post(body) == 200
    bot.work()
    assert bot.texts("T02") != []
    assert {
        call["params"]["team"]
        for call in bot.platforms.calls
        if call["method"] == "conversations.open"
    } == {"T02"}


def test_shortcut_for_an_organization_makes_it_none_of_its_own_workspaces(bot: SlackBot):
    """Slack may name the organization alone. The list of workspaces shows no organization."""
    person = {"user": {"id": "U0ADA", "username": "ada", "team_id": ORGANIZATION}, "team": None}
    more = {"enterprise": {"id": ORGANIZATION}, "is_enterprise_install": True}
    body = slack_interaction(
        "shortcut", **person, **more, callback_id="help", action_ts="1.2", trigger_id="t1"
    )
    assert bot.post(body) == 200
    bot.work()
    assert bot.texts(ORGANIZATION) != []
    assert bot.channel.installations.workspaces_of(ORGANIZATION) == []


@pytest.mark.parametrize("named", ["T91", ORGANIZATION])
def test_question_of_a_shortcut_for_an_organization_is_answered(bot: SlackBot, named: str):
    """Slack names a workspace only as that of the person, where a typed yes then is.

    If it names none there either, the button still has the conversation.
    """
    person = {"user": {"id": "U0ADA", "username": "ada", "team_id": named}, "team": None}
    more = {"enterprise": {"id": ORGANIZATION}, "is_enterprise_install": True}
    asking = {"callback_id": "delete_invoice number=T91-1", "action_ts": "1.2", "trigger_id": "t0"}
    assert bot.post(slack_interaction("shortcut", **person, **more, **asking)) == 200
    bot.work()
    typed = {
        "type": "message",
        "user": "U0ADA",
        "text": "yes",
        "channel": "D0ADA",
        "channel_type": "im",
    }
    typed |= {"ts": f"{FIRST_TS}.000100", "thread_ts": "1795204700.000001"}
    assert bot.post(slack_event("Ev1", typed, **ENVELOPES["T91"])) == 200
    bot.work()
    if named == ORGANIZATION:
        assert bot.deleted == []
        tap_last(bot, "T91", **person, **more)
    assert bot.deleted == ["T91-1"]


@pytest.mark.parametrize("is_stub", [False, True], ids=["url", "file_info"])
def test_file_is_fetched_with_the_token_of_its_workspace(bot: SlackBot, *, is_stub: bool):
    """Slack sends a log-in page to any other token.

    A file of a shared channel is looked up first.
    """
    for team in ("T01", "T02"):
        content = f"a picture of {team}".encode()
        url = bot.slack.host(content, team)
        file = {
            "id": "F0FILE",
            "name": "a.jpg",
            "mimetype": "image/jpeg",
            "url_private_download": url,
        }
        if is_stub:
            file = {"id": bot.slack.file_id(url), "file_access": "check_file_info"}
        event = {
            "type": "message",
            "subtype": "file_share",
            "user": "U0ADA",
            "text": "",
            "channel": "D0ADA",
        }
        envelope = {"type": "event_callback", "event_id": f"Ev{team}", **of_workspace(team)}
        body = json.dumps(
            {**envelope, "event": {**event, "ts": f"{FIRST_TS}.000100", "files": [file]}}
        )
        (turn,) = bot.channel._parser.parse(body.encode()).turns
        assert fetch_bytes(bot.channel, turn.media[0]) == content


def test_draft_of_another_workspace_is_not_removed(bot: SlackBot):
    """The same channel and message may be there in both: each token reaches the messages of its own."""
    say(bot, "T01", 1, "<@U0BOT> delete invoice T01-1", channel="C0OPS")
    draft = Reply("removed", edits="1795204700.000001", optional=True, removes=True)
    for team in ("T02", "T01"):
        there = Conversation("desk", f"{team}/C0OPS", THREAD_TS)
        asyncio.run(bot.channel.send(Delivery("d", there, draft)))
        assert bool(bot.sent[0]["text"]) == (team == "T02")


def test_file_of_another_workspace_is_not_fetched(bot: SlackBot):
    """The reference of a file names the workspace whose event brought it."""
    url = bot.slack.host(b"a secret of T02", "T02")
    for ref in (f"T01/{url}", f"T01/{bot.slack.file_id(url)}", url):
        with pytest.raises(FetchError):
            fetch_bytes(bot.channel, Media(ref, "image/jpeg"))
