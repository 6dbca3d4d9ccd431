"""What Slack's requests mean: edits confirm nothing, bots never loop, and whatever is signed is read or refused."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from sayso.channels.base import BadHook
from sayso.channels.types import Conversation, Received, Turn
from sayso.testing.platforms import webhooks as signing
from tests.channels.harness import MemoryMedia, slack, slack_hook

ROOT = "1795204800.000100"


@pytest.fixture
def read(media: MemoryMedia):
    """What the adapter makes of a body."""

    def read(body: bytes) -> Received:
        return slack(media, None).receive(slack_hook(body))

    return read


def turn(received: Received) -> Turn:
    """Its only turn."""
    (turn,) = received.turns
    return turn


def test_edit_is_its_own_act_and_confirms_nothing(read):
    """platforms.md 3.1: message_changed: the words are new, the message is not, and an edited "yes" is no yes."""
    first, second = (turn(read(signing.slack_edit(ROOT, "yes", "no", at=at))) for at in ("1.000100", "1.000200"))
    assert (first.text, first.kind, first.message_id, first.decides) == ("yes", "edit", ROOT, False)
    assert first.event_id != second.event_id
    assert first.event_id != turn(read(signing.slack_text(ROOT, "no"))).event_id


def changed(message: dict[str, Any], before: dict[str, Any], channel: str = "D0ADA") -> bytes:
    """The event of a change."""
    event = {"type": "message", "subtype": "message_changed", "channel": channel, "ts": "2.1", "event_ts": "2.1"}
    own = {"type": "message", "user": "U0ADA", "ts": ROOT, "text": "yes"}
    return signing.slack_event("Ev1", {**event, "message": {**own, **message}, "previous_message": {**own, **before}})


@pytest.mark.parametrize(
    ("message", "before", "reason"),
    [
        ({"edited": {"user": "U0ADA"}}, {}, "change without new text"),
        ({"edited": {"user": "U0BOB"}}, {"text": "no"}, "change that its author did not make"),
        ({}, {"text": "no"}, "change that its author did not make"),
        ({"user": "U0BOT", "edited": {"user": "U0BOT"}}, {"text": "no"}, "sent by a bot"),
        ({"bot_id": "B0OTHER", "edited": {"user": "U0ADA"}}, {"text": "no"}, "sent by a bot"),
        ({"user": "USLACKBOT", "edited": {"user": "USLACKBOT"}}, {"text": "no"}, "sent by a bot"),
        ({"subtype": "tombstone", "text": "deleted"}, {}, "message of subtype 'tombstone'"),
    ],
)
def test_change_that_is_no_edit_is_ignored(read, message: dict, before: dict, reason: str):
    """platforms.md 3.1: it also fires for unfurls, our own updates and deleted parents of threads."""
    assert read(changed(message, before)).ignored == reason


@pytest.mark.parametrize(("channel", "thread"), [("D0ADA", ""), ("C0OPS", ROOT)])
def test_edit_belongs_where_its_message_belongs(read, channel: str, thread: str):
    """A message that was answered in a thread names itself as that thread; in a direct message it opened none."""
    body = changed({"thread_ts": ROOT, "edited": {"user": "U0ADA"}}, {"text": "no"}, channel)
    assert turn(read(body)).conversation == Conversation("sl", channel, thread)
    mentions = changed({"text": "<@U0BOT> go", "edited": {"user": "U0ADA"}}, {}, "C0OPS")
    assert (turn(read(mentions)).addressed, turn(read(mentions)).text) == (True, "go")


def test_edit_that_brings_the_mention_is_an_edit(read):
    """platforms.md 3.1: an app_mention may come of an edited message: its words confirm nothing either."""
    body = signing.slack_text(ROOT, "<@U0BOT> yes", channel="C0OPS", kind="app_mention", edited={"user": "U0ADA"})
    assert not turn(read(body)).decides


def test_edit_that_brings_the_mention_comes_twice_and_is_one_act(read):
    """platforms.md 3.1: Slack sends it as app_mention and as message_changed, under two event ids and one edited.ts."""
    text, at = "<@U0BOT> go", "2.000000"
    changed = signing.slack_edit(ROOT, text, "go", channel="C0OPS", at=at)
    edited = {"user": "U0ADA", "ts": at}
    mention = signing.slack_text(ROOT, text, channel="C0OPS", kind="app_mention", edited=edited, event_ts="2.000700")
    assert turn(read(mention)) == turn(read(changed))


@pytest.mark.parametrize(("channel", "group"), [("D0ADA", False), ("C0OPS", True), ("G0PRIV", True)])
def test_others_read_along_except_in_direct_messages(read, channel: str, group: bool):
    """platforms.md 3.1: channel, group and mpim; for words, taps, commands and forms alike."""
    place = json.dumps({"chat": channel})
    bodies = (
        signing.slack_text("1.1", "hi", channel=channel),
        signing.slack_tap("1.2", "a", channel=channel),
        signing.slack_command("1.3", "hi", channel=channel),
        signing.slack_interaction("view_submission", trigger_id="1.4", view={"private_metadata": place}),
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
    """platforms.md 3.1: private_metadata is text of whoever opened the modal: ours is a place, other texts are none."""
    view = {"private_metadata": metadata, "callback_id": "ask"}
    received = read(signing.slack_interaction("view_submission", trigger_id="1.4", view=view))
    assert turn(received).conversation == Conversation("sl", "U0ADA")
    assert (received.answer.status, received.answer.body, turn(received).decides) == (200, "", False)


def test_form_of_every_kind_of_element_is_told(read):
    """platforms.md 3.1: view.state.values[block][action]; what was left out is not told."""
    element = [
        {"type": "rich_text_input", "rich_text_value": {"elements": [{"elements": [{"text": "a "}, {"text": "b"}]}]}},
        {"type": "file_input", "files": [{"id": "F1", "name": "bill.pdf"}]},
        {"type": "number_input", "value": "7"},
        {"type": "timepicker", "selected_time": None},
        {"type": "datetimepicker", "selected_date_time": 1795204800},
    ]
    values = {f"b{number}": {"x": entered} for number, entered in enumerate(element)}
    view = {"id": "V1", "state": {"values": values}, "title": {"text": "T"}}
    notes = turn(read(signing.slack_interaction("view_submission", view=view))).notes
    assert notes == ("submitted form 'T'", "b0: a b", "b1: bill.pdf", "b2: 7", "b4: 1795204800")


def test_nothing_that_was_written_into_a_form_is_lost(read):
    """platforms.md 3.1: links, people and places in a rich text have no text of their own; list items are lines."""
    line = [
        {"type": "text", "text": "see "},
        {"type": "link", "url": "https://a.b/c"},
        {"type": "user", "user_id": "U0BOB"},
        {"type": "channel", "channel_id": "C0OPS"},
        {"type": "usergroup", "usergroup_id": "S1"},
        {"type": "broadcast", "range": "here"},
        {"type": "emoji", "name": "tada"},
        {"type": "link"},
    ]
    items = [{"type": "rich_text_section", "elements": [{"type": "text", "text": each}]} for each in ("one", "two")]
    rich = {
        "elements": [{"type": "rich_text_section", "elements": line}, {"type": "rich_text_list", "elements": items}]
    }
    view = {"id": "V1", "state": {"values": {"b": {"x": {"type": "rich_text_input", "rich_text_value": rich}}}}}
    notes = turn(read(signing.slack_interaction("view_submission", view=view))).notes
    assert notes == ("submitted form ''", "b: see https://a.b/c@U0BOB#C0OPS@S1@here:tada:\none\ntwo")


def test_each_of_several_actions_is_a_turn(read):
    """platforms.md 3.1: actions is a list; what people typed into an element is never taken for a button."""
    actions = [
        {"type": "button", "block_id": "thread:", "value": "a:1"},
        {"type": "plain_text_input", "block_id": "thread:", "value": "a:2"},
        {"type": "radio_buttons", "block_id": "thread:", "selected_option": {"value": "a:3"}},
        {"type": "button", "block_id": "thread:", "url": "https://e.org"},
    ]
    body = signing.slack_interaction("block_actions", channel={"id": "D0ADA"}, trigger_id="1.2", actions=actions)
    turns = read(body).turns
    assert [tapped.tap and tapped.tap.data for tapped in turns] == ["a:1", "a:3"]
    assert len({tapped.event_id for tapped in turns}) == 2


def test_action_outside_of_a_message_is_ignored(read):
    """platforms.md 3.1: channel? and message? may be missing, as in a modal."""
    action = {"type": "button", "value": "a:1"}
    body = signing.slack_interaction("block_actions", trigger_id="1.2", actions=[action], view={"id": "V1"})
    assert read(body).ignored == "action of type 'button'"


@pytest.mark.parametrize("text", ["help", "WhoAmI", "reset", " status ", "stop", "tools", ""])
def test_command_in_one_word_is_ours(read, text: str):
    """A slash command has its own slash already."""
    assert turn(read(signing.slack_command("1.2", text))).text == f"/{text.strip().lower() or 'help'}"


@pytest.mark.parametrize("text", ["stop the server", "status of order 17", "/help", "my payload", "yes"])
def test_command_of_more_words_is_read_as_typed(read, text: str):
    """platforms.md 3.1: also one that slack-bolt's parser loses; only a word alone is certainly not a wish."""
    assert turn(read(signing.slack_command("1.2", text))).text == text


def test_message_shortcut_quotes_what_others_said(read):
    """platforms.md 3.1: message_action: who chose it speaks, the author of the message does not; files come along."""
    file = {"id": "F1", "mimetype": "image/png", "url_private": "https://files.slack.com/x.png"}
    message = {"ts": "1.1", "user": "U0BOB", "text": "pay &lt;now&gt;", "files": [file]}
    channel = {"id": "D0ADA", "name": "directmessage"}
    shared = turn(read(signing.slack_interaction(
        "message_action", callback_id="yes", trigger_id="1.2", message=message, channel=channel
    )))  # fmt: skip
    assert (shared.user_id, shared.text, shared.quoted) == ("U0ADA", "/yes", "pay <now>")
    assert (shared.conversation.address, shared.media[0].ref) == ("D0ADA", "https://files.slack.com/x.png")


def test_forwarded_yes_decides_nothing(read):
    """platforms.md 3.1: attachments: words of somebody else beside one's own; a pasted link's preview is no message."""
    shared = {"is_share": True, "text": "yes", "files": [{"id": "F1", "mode": "tombstone"}]}
    forwarded = turn(read(signing.slack_text("1.1", "yes", attachments=[shared, {"text": "preview"}])))
    assert forwarded.notes == ("a file that was deleted", "shared message of somebody: yes")
    assert not forwarded.decides


def test_file_outside_of_slack_is_a_note(read):
    """platforms.md 3.2: the token goes to no other host, so nobody tries."""
    file = {"mode": "external", "is_external": True, "name": "plan", "url_private": "https://docs.example/d"}
    told = turn(read(signing.slack_text("1.1", "", subtype="file_share", files=[file])))
    assert (told.media, told.notes) == ((), ("a file that is stored outside of Slack: plan https://docs.example/d",))


@pytest.mark.parametrize(
    ("file", "loss"),
    [
        ({"mode": "tombstone"}, "a file that was deleted"),
        ({"file_access": "file_not_found"}, "a file that was deleted"),
        ({"file_access": "access_denied", "name": "plan.pdf"}, "a file that the bot may not see: plan.pdf"),
        ({"mode": "hidden_by_limit"}, "a file that Slack hides: its workspace is over a limit"),
    ],
)
def test_file_that_cannot_be_had_is_told_as_what_it_is(read, file: dict, loss: str):
    """platforms.md 3.1: none of them has an address."""
    assert turn(read(signing.slack_text("1.1", "", subtype="file_share", files=[{"id": "F1", **file}]))).notes == (
        loss,
    )


@pytest.mark.parametrize("extra", [{"user": "USLACKBOT"}, {"subtype": "bot_message"}, {"subtype": "channel_join"}])
def test_voices_that_are_no_persons_never_loop(read, extra: dict):
    """platforms.md 3.1, pains.md 11: no subtype tells a person from a bot by itself."""
    assert read(signing.slack_text("1.1", "hi", **extra)).ignored


def test_revoked_token_of_a_person_is_not_ours(read):
    """platforms.md 3.1: tokens_revoked: the bot's own is what counts."""
    assert read(signing.slack_event("Ev1", {"type": "tokens_revoked", "tokens": {"oauth": ["U1"], "bot": []}})).ignored


@pytest.mark.parametrize("channel", [7, None, [], "", "D", "C0OPS/1", "x" * 99])
def test_address_that_is_none_is_a_bad_hook(read, channel: object):
    """Nobody's address is closed by nonsense."""
    with pytest.raises(BadHook):
        read(signing.slack_event("Ev1", {"type": "channel_archive", "channel": channel}))


@pytest.mark.parametrize("size", ["1e999", "NaN", '"x"'])
def test_size_that_is_no_number_is_a_bad_hook(read, size: str):
    """JSON as Python reads it knows infinity."""
    body = signing.slack_text("1.1", "x", files=[{"url_private": "https://files.slack.com/x", "size": 17}])
    with pytest.raises(BadHook):
        read(body.replace(b"17", size.encode()))


def test_options_are_asked_for_and_not_found(read):
    """platforms.md 3.1: block_suggestion wants an answer within 3 s."""
    assert json.loads(read(signing.slack_interaction("block_suggestion")).answer.body) == {"options": []}


def test_payload_beside_a_command_is_a_command(read):
    """platforms.md 3.1: a form field called payload makes no command an interaction."""
    form = {"command": "/acme", "payload": "{}", "text": "x", "channel_id": "C1", "user_id": "U1", "trigger_id": "1.1"}
    assert turn(read(urlencode(form).encode())).text == "x"
