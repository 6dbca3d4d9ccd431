"""Telegram's replies beyond text: edits, drafts, files, and groups that move."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import chain

import pytest

from sayso.channels.base import RateLimited, Refused, note_moves
from sayso.channels.markdown.convert import telegram_length
from sayso.channels.telegram.missing_features import MISSING_SECONDS, MissingFeatures
from sayso.channels.telegram.outgoing import beginning
from sayso.channels.types import (
    AddressChange,
    Button,
    Conversation,
    Delivery,
    Media,
    Receipt,
    Reply,
    Scope,
)
from sayso.pending.action import ActionSigner
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.telegram import MOVED_GROUPS, SERVER_VERSION
from sayso.testing.platforms.telegram import _message_resource as told
from tests.channels.harness import FILES, IMAGE, MemoryMedia, telegram, telegram_hook
from tests.memory_stores import MemorySharedCache

CHAT = Conversation("tg", "5123456789")
GROUP = Conversation("tg", "-1002000000001")
BASIC, SUPER = "-4000000001", "-1002000000009"
YES_NO = (Button("Yes", "y"), Button("No", "n"))


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms):
    """Return a bot that talks to the fake."""
    return telegram(media, platforms.telegram_url)


@pytest.fixture
def native(media: MemoryMedia, platforms: FakePlatforms):
    """Return a bot that shows Telegram's own drafts."""
    return telegram(media, platforms.telegram_url, draft="native")


def send(channel, reply: Reply, conversation: Conversation = CHAT) -> Receipt:
    """Send one piece and return its receipt."""
    return asyncio.run(channel.send(Delivery("d", conversation, reply)))


def draft(channel, text: str, shown: str = "", *, update_id: int = 1, **where) -> str:
    """Show a draft of the answer to a typed message and return its message id."""
    turn = channel.receive(telegram_hook(signing.telegram_text(update_id, "hi", **where))).turns[0]
    return asyncio.run(channel.draft(turn, text, shown))


def test_tap_is_answered_in_the_tap(channel, platforms: FakePlatforms):
    """It shows a window to the one who tapped, and is no message of the group; a late answer is no error."""
    reply = Reply(f"**Not** yours. {'Ask me yourself. ' * 20}", only_for="42", answers_tap="4711")
    assert send(channel, reply, GROUP) == Receipt("")
    (call,) = [
        each["params"] for each in platforms.calls if each["method"] == "answerCallbackQuery"
    ]
    assert (call["callback_query_id"], call["show_alert"]) == ("4711", "true")
    assert call["text"].startswith("Not yours. Ask")
    assert telegram_length(call["text"]) <= 200
    assert platforms.sent == []


def drafts(platforms: FakePlatforms) -> list[dict]:
    """Return the drafts that were shown."""
    return [call["params"] for call in platforms.calls if call["method"] == "sendMessageDraft"]


def test_decided_question_loses_its_buttons(channel, platforms: FakePlatforms):
    """platforms.md 2.3: an edit without a keyboard removes the old one, and no new message arrives."""
    prompt = send(channel, Reply("Delete **3** files?", YES_NO))
    assert send(channel, Reply("Deleted <3> *files*.", edits=prompt.message_id)) == prompt
    assert [(entry["text"], entry["buttons"]) for entry in platforms.sent] == [
        ("Deleted <3> files.", [])
    ]


DECIDED = (Button("✓ Yes", "", effect="✓ Delete *3* files"), Button("No", ""))


def keyboards(platforms: FakePlatforms) -> list[list[dict]]:
    """Return the keys of each message, and of the last call of each edit."""
    markups = [json.loads(entry["raw"].get("reply_markup", "{}")) for entry in platforms.sent]
    return [list(chain.from_iterable(markup.get("inline_keyboard", ()))) for markup in markups]


def test_decided_question_shows_what_was_chosen(channel, platforms: FakePlatforms):
    """Bot API 10.3: its buttons stay and do nothing."""
    prompt = send(channel, Reply("Delete **3** files?", YES_NO))
    (piece,) = channel.split(
        Reply("3 files\n\n✅ Yes", edits=prompt.message_id, decided_buttons=DECIDED)
    )
    assert send(channel, piece) == prompt
    assert keyboards(platforms) == [
        [{"text": "✓ Delete 3 files", "disabled": {}}, {"text": "No", "disabled": {}}]
    ]
    assert platforms.sent[0]["buttons"] == []


def test_server_without_disabled_buttons_shows_none(channel, platforms: FakePlatforms):
    """A Bot API server before 10.3 sees a button without an action.

    That is learned, and not asked with each edit.
    """
    prompt = send(channel, Reply("Delete?", YES_NO))
    platforms.log.state[SERVER_VERSION] = (10, 2)
    edit = Reply("Deleted.", edits=prompt.message_id, optional=True, decided_buttons=DECIDED)
    assert send(channel, edit) == prompt
    platforms.log.state[SERVER_VERSION] = (10, 3)
    assert send(channel, replace(edit, text="Undone.")) == prompt
    assert (platforms.sent[0]["text"], keyboards(platforms)) == ("Undone.", [[]])


def test_refused_feature_is_tried_again_after_a_while(caplog):
    """A server may be updated while the bot runs. The operator reads once what it lacks."""
    now = [0.0]
    missing = MissingFeatures("tg", clock=lambda: now[0])
    missing.note_refusal("disabled buttons")
    missing.note_refusal("disabled buttons")
    assert missing.includes("disabled buttons")
    now[0] = MISSING_SECONDS
    assert not missing.includes("disabled buttons")
    assert [record.message for record in caplog.records] == ["feature.refused"]


def test_edit_is_visible_to_all_who_saw_the_message(channel, platforms: FakePlatforms):
    """Telegram takes a receiver for new messages only, so a private outcome still closes a public question."""
    prompt = send(channel, Reply("Delete 3 files?", YES_NO), GROUP)
    assert (
        send(channel, Reply("Dropped.", edits=prompt.message_id, only_for="5123456789"), GROUP)
        == prompt
    )
    send(channel, Reply("Forgotten.", only_for="5123456789"), GROUP)
    assert ["ephemeral_message_parameters" in entry["raw"] for entry in platforms.sent] == [
        False,
        True,
    ]


def test_same_edit_twice_succeeds(channel, platforms: FakePlatforms):
    """platforms.md 2.4: "message is not modified" is success."""
    prompt = send(channel, Reply("?", YES_NO))
    edit = Reply("Done.", edits=prompt.message_id)
    assert (send(channel, edit), send(channel, edit)) == (prompt, prompt)


@pytest.mark.parametrize(
    "answer", ["message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID"]
)
def test_refused_edit_becomes_a_new_message_unless_optional(
    channel, platforms: FakePlatforms, answer: str
):
    """platforms.md 2.4: the refusal is permanent for that message, so the reply is sent as a new one."""
    platforms.script("telegram", f"Bad Request: {answer}", times=2)
    assert send(channel, Reply("Expired.", edits="77", optional=True)) == Receipt("")
    assert platforms.sent == []
    assert send(channel, Reply("Deleted.", edits="77")) == Receipt("1")


@pytest.mark.parametrize("edits", ["1795204950.000300", "x", "-1"])
def test_message_id_of_another_platform_is_no_edit(channel, platforms: FakePlatforms, edits: str):
    """A reply with such an id is sent as a new message."""
    assert send(channel, Reply("Deleted.", edits=edits)).message_id == "1"
    assert send(channel, Reply("Gone.", edits=edits, optional=True)) == Receipt("")


@pytest.mark.parametrize("file", [None, IMAGE])
def test_message_without_an_id_has_no_receipt(
    channel, platforms: FakePlatforms, monkeypatch, file: Media | None
):
    """platforms.md 2.1: message_id is 0 for messages that Telegram sends later, and 0 cannot be edited."""
    monkeypatch.setattr(
        "sayso.testing.platforms.telegram._message_resource", lambda _, chat: told(0, chat)
    )
    assert send(channel, Reply("?", media=file)) == Receipt("")


def test_edit_without_an_id_is_a_new_message(channel, platforms: FakePlatforms):
    """platforms.md 2.1: the id 0 names no message, so the outcome is sent as a new one."""
    send(channel, Reply("Deleted.", edits="0"))
    assert [entry["raw"]["method"] for entry in platforms.sent] == ["sendMessage"]


def test_edit_of_a_file_changes_its_caption(channel, platforms: FakePlatforms):
    """platforms.md 2.3: a question may show a picture; a text too long for a caption is a new message."""
    prompt = send(channel, Reply("This one?", YES_NO, IMAGE))
    assert send(channel, Reply("Taken.", edits=prompt.message_id)) == prompt
    assert (platforms.sent[0]["text"], platforms.sent[0]["buttons"]) == ("Taken.", [])
    assert send(channel, Reply("long " * 300, edits=prompt.message_id)).message_id == "2"


def test_edit_with_refused_formatting_is_sent_plain(channel, platforms: FakePlatforms):
    """A plain text is better than a lost one."""
    prompt = send(channel, Reply("?"))
    platforms.script("telegram", "Bad Request: can't parse entities: Unsupported start tag")
    assert send(channel, Reply("**Done** & dusted", edits=prompt.message_id)) == prompt
    assert platforms.sent[0]["text"] == "Done & dusted"


def test_long_edit_begins_in_the_old_message(channel):
    """The first piece edits, the others are new, and the last has the buttons."""
    pieces = channel.split(Reply("word " * 2000, YES_NO, edits="7", optional=True))
    assert [piece.edits for piece in pieces] == ["7"] + [""] * (len(pieces) - 1)
    assert [piece.buttons for piece in pieces] == [()] * (len(pieces) - 1) + [YES_NO]


def test_file_follows_the_text_that_edits(channel):
    """Telegram cannot turn a message into a file."""
    pieces = channel.split(Reply("Here it is", YES_NO, IMAGE, edits="7"))
    assert pieces == (Reply("Here it is", edits="7"), Reply(buttons=YES_NO, media=IMAGE))


def test_private_drafts_of_an_answer_share_one_draft_id(native, platforms: FakePlatforms):
    """platforms.md 2.3: sendMessageDraft has the same id for each step of an answer, never 0, and leaves no message."""
    assert [draft(native, text, update_id=8) for text in ("", "**Al", "**Almost** done")] == [
        "",
        "",
        "",
    ]
    draft(native, "other", update_id=9)
    shown = drafts(platforms)
    assert [sketch.get("text", "") for sketch in shown] == [
        "",
        "**Al",
        "<b>Almost</b> done",
        "other",
    ]
    assert (len({sketch["draft_id"] for sketch in shown[:3]}), platforms.sent) == (1, [])
    assert shown[3]["draft_id"] != shown[0]["draft_id"]


def test_private_drafts_stay_in_their_topic(native, platforms: FakePlatforms):
    """platforms.md 2.1: private chats have topics, too."""
    draft(native, "so far", message_thread_id=77, is_topic_message=True)
    assert drafts(platforms)[0]["message_thread_id"] == "77"


def test_draft_with_refused_formatting_is_sent_plain(native, platforms: FakePlatforms):
    """A draft may end inside its formatting."""
    platforms.script("telegram", "Bad Request: can't parse entities: Unsupported start tag")
    assert draft(native, "**so** far") == ""
    assert (drafts(platforms)[0]["text"], "parse_mode" in drafts(platforms)[0]) == ("so far", False)


def test_private_draft_is_a_message_that_grows(channel, platforms: FakePlatforms):
    """Telegram's own drafts stay beside the answer in some apps, so they are not the default."""
    shown = draft(channel, "so")
    assert draft(channel, "so far", shown) == shown
    send(channel, Reply("so far, so good", edits=shown))
    assert [entry["text"] for entry in platforms.sent] == ["so far, so good"]
    assert drafts(platforms) == []


@pytest.mark.parametrize(("chat", "takes"), [(CHAT, [False, True]), (GROUP, [True, True])])
def test_notice_stands_where_the_answer_makes_a_sound(
    channel,
    native,
    chat: Conversation,
    takes: list[bool],
):
    """An edit makes no sound: a private answer that took long must not be the edit of a notice."""
    assert [each.rate_limit(chat).notice_in_draft for each in (channel, native)] == takes


def test_group_drafts_are_one_message_that_the_answer_edits(channel, platforms: FakePlatforms):
    """platforms.md 2.3: groups have no drafts, so the bot edits one message that grows."""
    assert draft(channel, "", chat=int(GROUP.chat)) == ""
    shown = draft(channel, "so", chat=int(GROUP.chat))
    assert draft(channel, "so far", shown, chat=int(GROUP.chat)) == shown
    assert draft(channel, "so far", shown, chat=int(GROUP.chat)) == shown
    send(channel, Reply("so far, so good", edits=shown), GROUP)
    assert [entry["text"] for entry in platforms.sent] == ["so far, so good"]


@pytest.mark.parametrize("chat", [5123456789, int(GROUP.chat)])
def test_rate_limited_draft_raises_the_wait(native, platforms: FakePlatforms, chat: int):
    """pains.md 12: a bot that goes on streaming after a 429 is banned for hours."""
    platforms.script("telegram", "429")
    with pytest.raises(RateLimited, match="7 s"):
        draft(native, "so far", chat=chat)


@pytest.mark.parametrize(
    "text",
    ["word " * 10_000, "```py\n" + "x = 1\n" * 5000, "👍🏽" * 5000, "[a](https://b.c) " * 900],
)
def test_long_draft_shows_its_beginning(native, platforms: FakePlatforms, text: str):
    """People read from the top, so the visible text must not move."""
    head = beginning(text)
    assert head.endswith("…")
    assert text.startswith(head[:40])
    assert telegram_length(head) <= 4096
    assert draft(native, text) == ""


def test_drafts_have_their_own_rate_limit(channel):
    """platforms.md 2.4: the 20 messages a minute of a group include edits."""
    private = channel.rate_limit(CHAT)
    group = channel.rate_limit(GROUP)
    assert (private.draft_gap, private.draft_delay) == (1.0, 0.0)
    assert (group.draft_gap, group.draft_delay) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("mime", "name", "method"),
    [
        ("image/jpeg", "a.jpg", "sendPhoto"),
        ("image/gif", "a.gif", "sendAnimation"),
        ("image/webp", "a.webp", "sendDocument"),
        ("audio/ogg; codecs=opus", "a.ogg", "sendVoice"),
        ("audio/mpeg", "a.mp3", "sendAudio"),
        ("audio/mp4", "a.m4a", "sendAudio"),
        ("audio/wav", "a.wav", "sendDocument"),
        ("video/mp4", "a.mp4", "sendVideo"),
        ("video/webm", "a.webm", "sendDocument"),
        ("text/csv", "a.csv", "sendDocument"),
    ],
)
def test_file_is_sent_by_the_method_of_its_type(
    channel,
    platforms: FakePlatforms,
    monkeypatch: pytest.MonkeyPatch,
    mime: str,
    name: str,
    method: str,
):
    """platforms.md 2.3: MP3 and M4A play, OGG is a voice message, other sounds are documents."""
    monkeypatch.setitem(FILES, "any", b"\xff\xd8\xff" + b"x" * 100)
    send(channel, Reply("Here", media=Media("any", mime, name, stored=True)))
    assert (platforms.sent[0]["raw"]["method"], platforms.sent[0]["media"]["filename"]) == (
        method,
        name,
    )


@pytest.mark.parametrize(
    ("name", "arrives"),
    [
        ("January; February.pdf", "January, February.pdf"),
        ('the "final" one.pdf', "the 'final' one.pdf"),
        ("a\r\nX-Header: b.pdf", "aX-Header: b.pdf"),
        ("../C:\\b.pdf", ".._C:_b.pdf"),
    ],
)
def test_character_that_telegram_would_cut_a_name_at_is_replaced(
    channel, platforms: FakePlatforms, name: str, arrives: str
):
    """Telegram's server ends a file name at ; and reads no escapes, so the nearest sign stands in for such a one."""
    send(channel, Reply(media=Media("pdf", "application/pdf", name, stored=True)))
    assert platforms.sent[0]["media"]["filename"] == arrives


def test_large_picture_is_a_document(
    channel, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch
):
    """platforms.md 2.3: a photo has at most 10 MB."""
    monkeypatch.setitem(FILES, "any", b"\xff\xd8\xff" + bytes(10 * 1024 * 1024))
    send(channel, Reply(media=Media("any", "image/jpeg", "a.jpg", stored=True)))
    assert platforms.sent[0]["raw"]["method"] == "sendDocument"


def test_voice_refused_by_its_receiver_is_a_file(channel, platforms: FakePlatforms):
    """platforms.md 2.3: people may forbid voice messages."""
    platforms.script("telegram", "Bad Request: VOICE_MESSAGES_FORBIDDEN")
    send(channel, Reply("Here", media=replace(IMAGE, mime_type="audio/ogg", filename="a.ogg")))
    assert platforms.sent[0]["raw"]["method"] == "sendDocument"


def test_file_too_large_for_telegram_is_a_link(channel, platforms: FakePlatforms):
    """platforms.md 2.4, pains.md 13: after a 413 the text arrives with a link to the file and its buttons."""
    platforms.script("telegram", "413")
    send(channel, Reply("Your *file*", YES_NO, replace(IMAGE, filename="__a_b__ [1].png")))
    text = platforms.sent[0]["text"]
    assert text.startswith(
        f"Your file\n\n__a_b__ [1].png ({len(FILES['img'])} B): http://127.0.0.1:"
    )
    assert (platforms.sent[0]["raw"]["method"], len(platforms.sent[0]["buttons"])) == (
        "sendMessage",
        2,
    )


@pytest.mark.parametrize(
    "answer", ["not enough rights to send photos to the chat", "CHAT_SEND_PHOTOS_FORBIDDEN"]
)
def test_text_of_a_file_that_a_group_forbids_still_arrives(
    channel, platforms: FakePlatforms, answer: str
):
    """platforms.md 2.3: where the group forbids files, the text arrives with a link below it."""
    platforms.script("telegram", f"Bad Request: {answer}", times=2)
    send(channel, Reply("Here it is.", YES_NO, media=IMAGE), GROUP)
    assert [(entry["media"], len(entry["buttons"])) for entry in platforms.sent] == [(None, 2)]
    assert platforms.sent[0]["text"].startswith("Here it is.\n\nred.png (")


def test_text_of_an_empty_file_still_arrives(
    channel, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch
):
    """platforms.md 2.3: Telegram accepts no empty file, but a tool may have made one."""
    monkeypatch.setitem(FILES, "none", b"")
    send(channel, Reply("An empty list.", media=Media("none", "text/csv", "list.csv", stored=True)))
    assert platforms.sent[0]["text"].startswith("An empty list.\n\nlist.csv (0 B)")


def test_file_for_a_deleted_topic_is_refused(channel, platforms: FakePlatforms):
    """platforms.md 2.4: the error is permanent for this target, so the bot stops trying."""
    platforms.script("telegram", "Bad Request: message thread not found", times=9)
    with pytest.raises(Refused):
        send(channel, Reply("Here", media=IMAGE), GROUP)
    assert platforms.sent == []


def test_moved_group_is_followed_once_and_remembered(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.4: the bot resends once to migrate_to_chat_id; later processes send to the new id at once."""
    notebook = MemorySharedCache()
    platforms.log.state[MOVED_GROUPS] = {BASIC: SUPER}
    send(
        telegram(media, platforms.telegram_url, cache=notebook),
        Reply("hello"),
        Conversation("tg", BASIC),
    )
    assert notebook.get(f"telegram:moved:7000000001:{BASIC}") == SUPER
    platforms.log.state.clear()
    send(
        telegram(media, platforms.telegram_url, cache=notebook),
        Reply("again"),
        Conversation("tg", BASIC),
    )
    assert [(entry["chat"], entry["text"]) for entry in platforms.sent] == [
        (SUPER, "hello"),
        (SUPER, "again"),
    ]


def migrated(old: str, new: str) -> list[dict]:
    """Return the service messages of a group that became a supergroup: one in each."""
    here = {
        "message_id": 1,
        "date": 1,
        "from": {"id": 1087968824, "is_bot": True, "first_name": "Group"},
    }
    return [
        {
            "update_id": 8,
            "message": {
                **here,
                "chat": {"id": int(old), "type": "group"},
                "migrate_to_chat_id": int(new),
            },
        },
        {
            "update_id": 9,
            "message": {
                **here,
                "chat": {"id": int(new), "type": "supergroup"},
                "migrate_from_chat_id": int(old),
            },
        },
    ]


@pytest.mark.parametrize("told", [slice(0, 1), slice(1, 2), slice(0, 2)])
def test_supergroup_keeps_the_address_of_its_group(media: MemoryMedia, told: slice):
    """A question is sealed for its conversation: the tap in the supergroup is one in the group that it was."""
    channel = telegram(media, None, cache=MemorySharedCache())
    for update in migrated("-551", "-1551")[told]:
        note_moves(channel, channel.read(update))
    signer = ActionSigner(["key"])
    scope = Scope("42", Conversation("tg", "-551"))
    data = signer.button_token("a" * 22, "confirm", scope)
    (received,) = channel.read(signing.telegram_tap(10, data, user=42, chat=-1551)).turns
    tap = channel.at_first_address(received)
    assert (tap.conversation, tap.chat_now) == (scope.conversation, "-1551")
    assert tap.message_id == f"-1551:{received.message_id}"
    assert signer.read_button(data, tap.scope) is not None


def test_reply_of_a_group_that_moved_teaches_the_way_back(
    media: MemoryMedia, platforms: FakePlatforms
):
    """Where no service message was seen, Telegram's refusal names the supergroup."""
    channel = telegram(media, platforms.telegram_url, cache=MemorySharedCache())
    platforms.log.state[MOVED_GROUPS] = {BASIC: SUPER}
    send(channel, Reply("hello"), Conversation("tg", BASIC))
    (turn,) = channel.read(signing.telegram_text(1, "hi", chat=int(SUPER))).turns
    assert channel.at_first_address(turn).conversation == Conversation("tg", BASIC)


def test_membership_in_a_group_that_is_no_more_closes_no_address(media: MemoryMedia):
    """Telegram removes the bot from the old group: the supergroup has taken its place."""
    channel = telegram(media, None, cache=MemorySharedCache())
    note_moves(channel, channel.read(migrated("-551", "-1551")[0]))
    left = {"chat": {"id": -551, "type": "group"}, "new_chat_member": {"status": "left"}}
    assert (
        note_moves(channel, channel.read({"update_id": 3, "my_chat_member": left})).addresses == ()
    )
    left["chat"] = {"id": -1551, "type": "supergroup"}
    (change,) = note_moves(
        channel, channel.read({"update_id": 4, "my_chat_member": left})
    ).addresses
    assert change.conversation == Conversation("tg", "-551")


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0)])
def test_group_that_became_a_supergroup_takes_messages_again(
    media: MemoryMedia, order: tuple[int, int]
):
    """Its closed address, or its refusals, were of the group: a reminder arrives in the supergroup."""
    channel = telegram(media, None, cache=MemorySharedCache())
    for number in order:
        received = note_moves(channel, channel.read(migrated("-551", "-1551")[number]))
        assert received.addresses == (AddressChange(Conversation("tg", "-551"), ""),)


def test_message_of_the_group_is_not_edited_in_its_supergroup(
    media: MemoryMedia, platforms: FakePlatforms
):
    """A supergroup numbers its messages anew: the message of that number is another one there."""
    channel = telegram(media, platforms.telegram_url, cache=MemorySharedCache())
    group = Conversation("tg", BASIC)
    asked = send(channel, Reply("?", YES_NO), group)
    for update in migrated(BASIC, SUPER):
        note_moves(channel, channel.read(update))
    said = send(channel, Reply("hello"), group)
    chat, _, number = said.message_id.partition(":")
    assert chat == SUPER
    send(channel, Reply("Done.", edits=number), group)
    assert (
        send(channel, Reply("Left out.", edits=asked.message_id, optional=True), group).message_id
        == ""
    )
    assert [entry["text"] for entry in platforms.sent] == ["?", "hello", "Done."]
    assert (
        send(channel, Reply("hello!", edits=said.message_id), group).message_id == said.message_id
    )
    assert [entry["text"] for entry in platforms.sent] == ["?", "hello!", "Done."]


def test_quote_of_a_message_in_the_supergroup_is_none_of_the_group(media: MemoryMedia):
    """The question had number 7 in the group. Message 7 of the supergroup is another one."""
    channel = telegram(media, None, cache=MemorySharedCache())
    note_moves(channel, channel.read(migrated("-551", "-1551")[0]))
    original = {
        "message_id": 7,
        "from": {"id": 7000000001, "is_bot": True, "first_name": "Acme"},
        "text": "Hi",
    }
    (received,) = channel.read(
        signing.telegram_text(9, "yes", chat=-1551, reply_to_message=original)
    ).turns
    assert channel.at_first_address(received).replied_to == "-1551:7"


def test_group_that_moves_in_a_circle_is_refused(channel, platforms: FakePlatforms):
    """platforms.md 2.4: the bot follows one move and no second one."""
    platforms.log.state[MOVED_GROUPS] = {BASIC: SUPER, SUPER: BASIC}
    with pytest.raises(Refused):
        send(channel, Reply("hello"), Conversation("tg", BASIC))


def test_edit_in_a_moved_group_is_a_new_message(channel, platforms: FakePlatforms):
    """A moved group leaves its old messages behind."""
    prompt = send(channel, Reply("?", YES_NO), Conversation("tg", BASIC))
    platforms.log.state[MOVED_GROUPS] = {BASIC: SUPER}
    send(channel, Reply("Done.", edits=prompt.message_id), Conversation("tg", BASIC))
    assert [(entry["chat"], entry["text"]) for entry in platforms.sent] == [
        (BASIC, "?"),
        (SUPER, "Done."),
    ]


def test_text_of_more_than_a_hundred_links_shows_every_address(channel, platforms: FakePlatforms):
    """platforms.md 2.3: Telegram formats 100 entities and would show later links without their address."""
    many, few = (
        "".join(f"- [n{number}](https://e.org/{number})\n" for number in range(count))
        for count in (120, 90)
    )
    for text in (many, few):
        send(channel, Reply(text))
    assert [f"https://e.org/{number}" in platforms.sent[0]["text"] for number in range(120)] == [
        True
    ] * 120
    assert ["parse_mode" in entry["raw"] for entry in platforms.sent] == [False, True]
