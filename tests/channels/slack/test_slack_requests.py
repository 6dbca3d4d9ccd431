"""The meaning of Slack's requests: edits confirm nothing, bots never loop, each signed request is read or refused."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from sayso.channels.base import BadHook
from sayso.channels.slack.threads import new_thread
from sayso.channels.types import Conversation, Received, Turn
from sayso.testing.platforms import webhooks as signing

ROOT = "1795204800.000100"


def turn(received: Received) -> Turn:
    """Return the only turn."""
    (turn,) = received.turns
    return turn


def test_edit_is_its_own_event_and_confirms_nothing(read):
    """platforms.md 3.1: message_changed brings a new text of the same message, and an edited "yes" is no yes."""
    first, second = (
        turn(read(signing.slack_edit(ROOT, "yes", "no", at=at))) for at in ("1.000100", "1.000200")
    )
    assert (first.text, first.kind, first.message_id, first.decides) == ("yes", "edit", ROOT, False)
    assert first.event_id != second.event_id
    assert first.event_id != turn(read(signing.slack_text(ROOT, "no"))).event_id


def changed(message: dict[str, Any], before: dict[str, Any], channel: str = "D0ADA") -> bytes:
    """Return the event of a changed message."""
    event = {
        "type": "message",
        "subtype": "message_changed",
        "channel": channel,
        "ts": "2.1",
        "event_ts": "2.1",
    }
    own = {"type": "message", "user": "U0ADA", "ts": ROOT, "text": "yes"}
    return signing.slack_event(
        "Ev1", {**event, "message": {**own, **message}, "previous_message": {**own, **before}}
    )


@pytest.mark.parametrize(
    ("message", "before", "reason"),
    [
        ({"edited": {"user": "U0ADA"}}, {}, "change without new text"),
        ({"edited": {"user": "U0ADA"}}, {"text": "*_yes_*"}, "change without new text"),
        ({"edited": {"user": "U0ADA"}}, {"text": "`yes`"}, "change without new text"),
        ({"edited": {"user": "U0BOB"}}, {"text": "no"}, "change that its author did not make"),
        ({}, {"text": "no"}, "change that its author did not make"),
        ({"user": "U0BOT", "edited": {"user": "U0BOT"}}, {"text": "no"}, "sent by a bot"),
        ({"bot_id": "B0OTHER", "edited": {"user": "U0ADA"}}, {"text": "no"}, "sent by a bot"),
        ({"user": "USLACKBOT", "edited": {"user": "USLACKBOT"}}, {"text": "no"}, "sent by a bot"),
        ({"subtype": "tombstone", "text": "deleted"}, {}, "message of subtype 'tombstone'"),
    ],
)
def test_change_that_is_no_edit_is_ignored(read, message: dict, before: dict, reason: str):
    """platforms.md 3.1: the event also comes for unfurls, our own updates and deleted parents of threads."""
    assert read(changed(message, before)).ignored == reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("see http://e.org", "see <http://e.org|e.org>"),
        ("see <https://e.org>", "see https://e.org"),
        ("charge order 5", "charge *order* ~5~"),
        ("a &amp; b", "a & b"),
    ],
)
def test_words_with_other_marks_are_the_same_content(read, one: str, other: str):
    """Only then is an edit worth an answer if it changes the words; the event may not say what they were."""
    first, second = (
        turn(read(signing.slack_edit(ROOT, text, "before"))).content for text in (one, other)
    )
    assert first == second
    assert turn(read(signing.slack_edit(ROOT, f"{other}6", "before"))).content != first


def test_edit_from_one_group_to_another_has_new_words(read):
    """Slack names a group of people by its id alone."""
    before = {"text": "ask <!subteam^S0OPS>"}
    message = {"text": "ask <!subteam^S0DEV>", "edited": {"user": "U0ADA"}}
    assert turn(read(changed(message, before))).text == "ask @S0DEV"


@pytest.mark.parametrize(
    ("channel", "view", "thread"),
    [
        ("D0ADA", "agent", ROOT),
        ("D0ADA", "none", ""),
        ("C0OPS", "agent", ROOT),
        ("C0OPS", "none", ROOT),
    ],
)
def test_edit_belongs_to_the_conversation_of_its_message(
    read,
    channel: str,
    view: str,
    thread: str,
):
    """A message with replies names itself as its thread.

    In a plain direct message it opened none.
    """
    body = changed({"thread_ts": ROOT, "edited": {"user": "U0ADA"}}, {"text": "no"}, channel)
    assert turn(read(body, view=view)).conversation == Conversation("sl", channel, thread)
    mentions = changed({"text": "<@U0BOT> go", "edited": {"user": "U0ADA"}}, {}, "C0OPS")
    assert (turn(read(mentions)).addressed, turn(read(mentions)).text) == (True, "go")


def test_edit_that_adds_the_mention_is_an_edit(read):
    """platforms.md 3.1: an app_mention may come from an edited message, and then its text confirms nothing."""
    body = signing.slack_text(
        ROOT, "<@U0BOT> yes", channel="C0OPS", kind="app_mention", edited={"user": "U0ADA"}
    )
    assert not turn(read(body)).decides


def test_edit_that_adds_the_mention_comes_twice_and_is_one_event(read):
    """platforms.md 3.1: Slack sends it as app_mention and as message_changed, with two event ids and one edited.ts."""
    text, at = "<@U0BOT> go", "2.000000"
    changed = signing.slack_edit(ROOT, text, "go", channel="C0OPS", at=at)
    edited = {"user": "U0ADA", "ts": at}
    mention = signing.slack_text(
        ROOT, text, channel="C0OPS", kind="app_mention", edited=edited, event_ts="2.000700"
    )
    assert turn(read(mention)) == turn(read(changed))


@pytest.mark.parametrize(
    ("channel", "group"), [("D0ADA", False), ("C0OPS", True), ("G0PRIV", True)]
)
def test_every_conversation_but_a_direct_message_is_a_group(read, channel: str, group: bool):
    """platforms.md 3.1: channel, group and mpim are groups, for messages, taps, commands and forms."""
    place = json.dumps({"chat": channel})
    bodies = (
        signing.slack_text("1.1", "hi", channel=channel),
        signing.slack_tap("1.2", "a", channel=channel),
        signing.slack_command("1.3", "hi", channel=channel),
        signing.slack_interaction(
            "view_submission", trigger_id="1.4", view={"private_metadata": place}
        ),
    )
    assert {turn(read(body)).in_group for body in bodies} == {group}


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"chat": 1}',
        '{"chat": "https://evil"}',
        '{"chat": "C0OPS", "thread": "x"}',
        "[" * 9000,
        None,
    ],
)
def test_form_without_a_place_is_answered_directly(read, metadata: str | None):
    """platforms.md 3.1: any app may fill private_metadata; a value that is no place of ours is ignored."""
    view = {"private_metadata": metadata, "callback_id": "ask"}
    received = read(signing.slack_interaction("view_submission", trigger_id="1.4", view=view))
    assert turn(received).conversation == Conversation("sl", "U0ADA", new_thread("1.4"))
    assert (received.answer.status, received.answer.body, turn(received).decides) == (
        200,
        "",
        False,
    )


def test_each_kind_of_form_element_is_a_note(read):
    """platforms.md 3.1: view.state.values[block][action] has the values; an empty element gives no note."""
    element = [
        {
            "type": "rich_text_input",
            "rich_text_value": {"elements": [{"elements": [{"text": "a "}, {"text": "b"}]}]},
        },
        {"type": "file_input", "files": [{"id": "F1", "name": "bill.pdf"}]},
        {"type": "number_input", "value": "7"},
        {"type": "timepicker", "selected_time": None},
        {"type": "datetimepicker", "selected_date_time": 1795204800},
    ]
    values = {f"b{number}": {"x": entered} for number, entered in enumerate(element)}
    view = {"id": "V1", "state": {"values": values}, "title": {"text": "T"}}
    notes = turn(read(signing.slack_interaction("view_submission", view=view))).notes
    assert notes == ("submitted form 'T'", "b0: a b", "b1: bill.pdf", "b2: 7", "b4: 1795204800")


def test_rich_text_of_a_form_is_read_completely(read):
    """platforms.md 3.1: links, people and places in a rich text have no text field; each list item is a line."""
    line = [
        {"type": "text", "text": "see "},
        {"type": "link", "url": "https://a.b/c"},
        {"type": "link", "url": "https://a.b/d", "text": "or this"},
        {"type": "user", "user_id": "U0BOB"},
        {"type": "channel", "channel_id": "C0OPS"},
        {"type": "usergroup", "usergroup_id": "S1"},
        {"type": "broadcast", "range": "here"},
        {"type": "emoji", "name": "tada"},
        {"type": "team", "team_id": "T0OPS"},
        {"type": "date", "timestamp": 1795204800, "format": "{date}", "fallback": "Nov 20"},
        {"type": "link"},
    ]
    items = [
        {"type": "rich_text_section", "elements": [{"type": "text", "text": each}]}
        for each in ("one", "two")
    ]
    rich = {
        "elements": [
            {"type": "rich_text_section", "elements": line},
            {"type": "rich_text_list", "elements": items},
        ]
    }
    view = {
        "id": "V1",
        "state": {"values": {"b": {"x": {"type": "rich_text_input", "rich_text_value": rich}}}},
    }
    notes = turn(read(signing.slack_interaction("view_submission", view=view))).notes
    assert notes == (
        "submitted form ''",
        "b: see https://a.b/cor this (https://a.b/d)@U0BOB#C0OPS@S1@here:tada:@T0OPSNov 20\none\ntwo",
    )


def test_each_action_of_a_request_is_a_turn(read):
    """platforms.md 3.1: actions is a list; the value of a text input is never taken for a button."""
    actions = [
        {"type": "button", "block_id": "thread:", "value": "a:1"},
        {"type": "plain_text_input", "block_id": "thread:", "value": "a:2"},
        {"type": "radio_buttons", "block_id": "thread:", "selected_option": {"value": "a:3"}},
        {"type": "button", "block_id": "thread:", "url": "https://e.org"},
    ]
    body = signing.slack_interaction(
        "block_actions", channel={"id": "D0ADA"}, trigger_id="1.2", actions=actions
    )
    turns = read(body).turns
    assert [tapped.tap and tapped.tap.data for tapped in turns] == ["a:1", "a:3"]
    assert len({tapped.event_id for tapped in turns}) == 2


def test_action_outside_a_message_is_ignored(read):
    """platforms.md 3.1: channel and message may be missing, as in a modal."""
    action = {"type": "button", "value": "a:1"}
    body = signing.slack_interaction(
        "block_actions", trigger_id="1.2", actions=[action], view={"id": "V1"}
    )
    assert read(body).ignored == "action of type 'button'"


@pytest.mark.parametrize(
    "text", ["help", "WhoAmI", "reset", " status ", "stop", "tools", "link", "back", ""]
)
def test_command_of_one_word_is_a_bot_command(read, text: str):
    """A slash command already has its slash."""
    assert (
        turn(read(signing.slack_command("1.2", text))).text == f"/{text.strip().lower() or 'help'}"
    )


@pytest.mark.parametrize("text", ["link bcdfghjk", "away 3d, @bob", "Away friday"])
def test_command_may_have_an_argument(read, text: str):
    """A code, or a time with a colleague."""
    assert turn(read(signing.slack_command("1.2", text))).text == f"/{text}"


def test_a_mention_behind_away_has_the_id_of_the_person(read):
    """A name may be that of several people. Elsewhere people read the name."""
    text = "{} 3d, <@U0BOB|bob> decides"
    away = turn(read(signing.slack_command("1.2", text.format("away"))))
    other = turn(read(signing.slack_command("1.3", text.format("send"))))
    assert (away.text, other.text) == ("/away 3d, @U0BOB decides", "send 3d, @bob decides")


@pytest.mark.parametrize(
    "text",
    [
        "link the orders",
        "back to work",
        "stop the server",
        "status of order 17",
        "/help",
        "my payload",
        "yes",
    ],
)
def test_command_of_more_words_is_read_as_typed(read, text: str):
    """platforms.md 3.1: the text stays whole, also where slack-bolt's parser loses it."""
    assert turn(read(signing.slack_command("1.2", text))).text == text


def test_message_shortcut_quotes_the_message(read):
    """platforms.md 3.1: the turn of a message_action belongs to the person who chose it; text and files are quoted."""
    file = {"id": "F1", "mimetype": "image/png", "url_private": "https://files.slack.com/x.png"}
    message = {"ts": "1.1", "user": "U0BOB", "text": "pay &lt;now&gt;", "files": [file]}
    channel = {"id": "D0ADA", "name": "directmessage"}
    shared = turn(read(signing.slack_interaction(
        "message_action", callback_id="yes", trigger_id="1.2", message=message, channel=channel
    )))  # fmt: skip
    assert (shared.user_id, shared.text, shared.quoted) == ("U0ADA", "/yes", "pay <now>")
    assert (shared.conversation.address, shared.media[0].ref) == (
        "D0ADA/1.1",
        "https://files.slack.com/x.png",
    )


def test_address_behind_words_is_written_out_in_each_kind_of_message(read):
    """Edited, forwarded and quoted messages show people words only, as new ones do."""
    link = "see <https://e.org/1|this>"
    edited = turn(read(signing.slack_edit("1.1", link, "see")))
    forwarded = turn(
        read(signing.slack_text("1.1", "look", attachments=[{"is_share": True, "text": link}]))
    )
    message = {"ts": "1.1", "user": "U0BOB", "text": link}
    chosen = {
        "callback_id": "read",
        "trigger_id": "1.2",
        "message": message,
        "channel": {"id": "D0ADA"},
    }
    quoted = turn(read(signing.slack_interaction("message_action", **chosen)))
    told = "see this (https://e.org/1)"
    assert (edited.text, quoted.quoted) == (told, told)
    assert forwarded.notes == (f"shared message of somebody: {told}",)


def test_forwarded_yes_decides_nothing(read):
    """platforms.md 3.1: attachments hold another person's text; the preview of a pasted link is no message."""
    shared = {"is_share": True, "text": "yes", "files": [{"id": "F1", "mode": "tombstone"}]}
    forwarded = turn(
        read(signing.slack_text("1.1", "yes", attachments=[shared, {"text": "preview"}]))
    )
    assert forwarded.notes == ("a file that was deleted", "shared message of somebody: yes")
    assert not forwarded.decides


def test_file_outside_slack_is_a_note(read):
    """platforms.md 3.2: the token goes to no other host, so the adapter does not fetch the file."""
    file = {
        "mode": "external",
        "is_external": True,
        "name": "plan",
        "url_private": "https://docs.example/d",
    }
    told = turn(read(signing.slack_text("1.1", "", subtype="file_share", files=[file])))
    assert (told.media, told.notes) == (
        (),
        ("a file that is stored outside of Slack: plan https://docs.example/d",),
    )


@pytest.mark.parametrize(
    ("file", "loss"),
    [
        ({"mode": "tombstone"}, "a file that was deleted"),
        ({"file_access": "file_not_found"}, "a file that was deleted"),
        (
            {"file_access": "access_denied", "name": "plan.pdf"},
            "a file that the bot may not see: plan.pdf",
        ),
        (
            {"file_access": "access_denied", "name": "plan: "},
            "a file that the bot may not see: plan: ",
        ),
        ({"file_access": "access_denied"}, "a file that the bot may not see"),
        ({"mode": "external"}, "a file that is stored outside of Slack"),
        ({"mode": "hidden_by_limit"}, "a file that Slack hides: its workspace is over a limit"),
    ],
)
def test_unavailable_file_is_a_note_with_its_reason(read, file: dict, loss: str):
    """platforms.md 3.1: such a file has no address."""
    assert turn(
        read(signing.slack_text("1.1", "", subtype="file_share", files=[{"id": "F1", **file}]))
    ).notes == (loss,)


@pytest.mark.parametrize(
    "extra", [{"user": "USLACKBOT"}, {"subtype": "bot_message"}, {"subtype": "channel_join"}]
)
def test_messages_of_bots_and_of_slack_are_ignored(read, extra: dict):
    """platforms.md 3.1, pains.md 11: no subtype alone tells a person from a bot."""
    assert read(signing.slack_text("1.1", "hi", **extra)).ignored


def test_revoked_token_of_a_person_is_ignored(read):
    """platforms.md 3.1: a tokens_revoked event counts only for the bot's own token."""
    assert read(
        signing.slack_event(
            "Ev1", {"type": "tokens_revoked", "tokens": {"oauth": ["U1"], "bot": []}}
        )
    ).ignored


@pytest.mark.parametrize("channel", [7, None, [], "", "D", "C0OPS/1", "x" * 99])
def test_invalid_channel_id_is_a_bad_hook(read, channel: object):
    """An event without a valid channel closes no address."""
    with pytest.raises(BadHook):
        read(signing.slack_event("Ev1", {"type": "channel_archive", "channel": channel}))


@pytest.mark.parametrize("size", ["1e999", "NaN", '"x"'])
def test_size_that_is_not_a_number_is_a_bad_hook(read, size: str):
    """Python's JSON parser accepts NaN and infinity."""
    body = signing.slack_text(
        "1.1", "x", files=[{"url_private": "https://files.slack.com/x", "size": 17}]
    )
    with pytest.raises(BadHook):
        read(body.replace(b"17", size.encode()))


def test_options_request_is_answered_with_an_empty_list(read):
    """platforms.md 3.1: block_suggestion expects an answer within 3 s."""
    assert json.loads(read(signing.slack_interaction("block_suggestion")).answer.body) == {
        "options": []
    }


def test_payload_field_of_a_command_is_ignored(read):
    """platforms.md 3.1: a form field called payload makes no interaction of a command."""
    form = {
        "command": "/acme",
        "payload": "{}",
        "text": "x",
        "channel_id": "C1",
        "user_id": "U1",
        "trigger_id": "1.1",
    }
    assert turn(read(urlencode(form).encode())).text == "x"
