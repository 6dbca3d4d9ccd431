"""A question is changed in Slack's modal: tap, form, new question, in the workspace that it was asked in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.testing.platforms.slack_views import new_trigger
from sayso.testing.platforms.webhooks import slack_interaction
from tests.config.wiring.slack_bot import (
    THREAD_TS,
    OpenBot,
    SlackBot,
    message,
    of_organization,
    of_workspace,
)

CHANNEL = "messages_per_second: 0\n    policy: {editable: {delete_invoice: [number]}}"
TEXTS = texts_for("en")
#: The time at Slack, which stands still: no trigger expires because the machine is busy.
NOW = 1795204800.0


@pytest.fixture
def bot(open_bot: OpenBot) -> SlackBot:
    """Return a bot in one workspace, and in an organization, whose invoices can be corrected before a yes."""
    bot = open_bot(CHANNEL)
    bot.slack.views.clock = lambda: NOW
    for name in ("T01", "E09"):
        assert bot.install(name).status_code == 200
    return bot


def ask(
    bot: SlackBot, team: str = "T01", text: str = "delete invoice A-1", at: int = 1
) -> dict[str, Any]:
    """Let a person ask for a deletion in a channel, and return the question."""
    envelope = of_organization("E09", team) if team.startswith("T9") else of_workspace(team)
    body = message(
        team, f"{1795204800 + at}.000100", f"<@U0BOT> {text}", channel="C0OPS", **envelope
    )
    assert bot.post(body) == 200
    bot.work()
    return question(bot)


def question(bot: SlackBot) -> dict[str, Any]:
    """Return the newest question, with the number of its message."""
    number, entry = next(
        (number, each)
        for number, each in reversed(list(enumerate(bot.sent, 1)))
        if len(each["buttons"]) == 3
    )
    return {**entry, "ts": f"1795204700.{number:06d}"}


def tap(
    bot: SlackBot, asked: dict[str, Any], label: str, team: str = "T01", user: str = "U0ADA"
) -> int:
    """Tap a button of a question. Return the status of the answer."""
    block = next(each for each in asked["raw"]["blocks"] if each["type"] == "actions")
    element = next(each for each in block["elements"] if label in each["text"]["text"])
    # An organization's taps may name no workspace.
    named = {"team": None, "is_enterprise_install": True, "enterprise": {"id": "E09"}}
    where = named if team.startswith("T9") else {"team": {"id": team}}
    body = slack_interaction(
        "block_actions",
        user={"id": user, "username": "ada", "team_id": team},
        trigger_id=new_trigger(bot.slack.views.clock()),
        channel={"id": "C0OPS"},
        message={"type": "message", "ts": asked["ts"], "text": "?", "thread_ts": THREAD_TS},
        container={"type": "message", "message_ts": asked["ts"], "channel_id": "C0OPS"},
        actions=[{**element, "block_id": block["block_id"], "action_ts": "1.2"}],
        **where,
    )
    return bot.post(body)


def submit(
    bot: SlackBot, number: str, team: str = "T01", user: str = "U0ADA", view: int = -1
) -> int:
    """Enter a number in an open modal and send it. Return the status of the answer."""
    named = (
        {"is_enterprise_install": True, "enterprise": {"id": "E09"}}
        if team.startswith("T9")
        else {}
    )
    shown = bot.slack.views.opened[view]
    body = bot.slack.views.submission(shown, {"number": number}, user=user, team=team, **named)
    status = bot.post(body)
    bot.work()
    return status


@pytest.mark.parametrize("team", ["T01", "T91"])
def test_question_is_changed_in_its_place_and_runs_as_changed(bot: SlackBot, team: str):
    """The modal opens while no worker runs. The earlier question says that it was changed.

    Its yes does nothing.
    """
    asked = ask(bot, team)
    assert tap(bot, asked, TEXTS.change_label, team) == 200
    assert bot.slack.views.opened[0]["blocks"][1]["element"]["initial_value"] == "A-1"
    said = len(bot.sent)
    bot.work()
    assert len(bot.sent) == said  # the tap is no turn
    assert submit(bot, "A-2", team) == 200
    renewed = question(bot)
    assert (renewed["chat"], renewed["thread"], renewed["team"]) == (
        asked["chat"],
        THREAD_TS,
        asked["team"],
    )
    assert "~A-1~" in renewed["text"]
    old = bot.sent[int(asked["ts"][-6:]) - 1]
    assert TEXTS.change_label in json.dumps(old["raw"])
    assert len(old["buttons"]) != 3
    tap(bot, asked, "Delete", team)
    bot.work()
    assert bot.deleted == []
    tap(bot, renewed, "Delete", team)
    bot.work()
    assert bot.deleted == ["A-2"]


def test_each_late_form_has_a_clear_end(bot: SlackBot):
    """Two devices, then a tap of another person, then a form of a question that was answered: one change, once."""
    asked = ask(bot)
    for _ in range(2):
        tap(bot, asked, TEXTS.change_label)
    submit(bot, "A-2", view=0)
    submit(bot, "A-3", view=1)
    renewed = question(bot)
    assert "A-2" in renewed["text"]
    assert TEXTS.changed_meanwhile("Delete invoice A-1")[:30] in bot.sent[-1]["text"]
    tap(bot, renewed, TEXTS.change_label, user="U0EVE")
    bot.work()
    assert bot.sent[-1]["text"] == TEXTS.not_yours()
    tap(bot, renewed, TEXTS.change_label)
    tap(bot, renewed, "No")
    bot.work()
    submit(bot, "A-4")
    assert "A-4" not in json.dumps(bot.sent)
    assert bot.deleted == []


def test_form_of_another_person_changes_nothing(bot: SlackBot):
    """The token in the modal is that of the person who was asked."""
    tap(bot, ask(bot), TEXTS.change_label)
    submit(bot, "A-2", user="U0EVE")
    assert bot.sent[-1]["text"] == TEXTS.not_yours()
    assert "A-2" not in json.dumps(bot.sent)
