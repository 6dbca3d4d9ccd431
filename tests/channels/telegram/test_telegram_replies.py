"""Telegram's replies beyond words: edits, drafts, files, and groups that move."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.channels.base import RateLimited, Refused
from sayso.channels.markdown import telegram_length
from sayso.channels.telegram.outgoing import beginning
from sayso.channels.types import Button, Conversation, Delivery, Media, Receipt, Reply
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.telegram import MOVED
from sayso.testing.platforms.telegram import _message_resource as told
from tests.channels.harness import FILES, IMAGE, MemoryMedia, MemorySharedCache, telegram, telegram_hook

CHAT = Conversation("tg", "5123456789")
GROUP = Conversation("tg", "-1002000000001")
BASIC, SUPER = "-4000000001", "-1002000000009"
YES_NO = (Button("Yes", "y"), Button("No", "n"))


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms):
    """A bot that talks to the fake."""
    return telegram(media, platforms.telegram_url)


def send(channel, reply: Reply, conversation: Conversation = CHAT) -> Receipt:
    """Send one piece."""
    return asyncio.run(channel.send(Delivery("d", conversation, reply)))


def draft(channel, text: str, shown: str = "", *, update_id: int = 1, **where) -> str:
    """Show a draft of the answer to a typed message."""
    turn = channel.receive(telegram_hook(signing.telegram_text(update_id, "hi", **where))).turns[0]
    return asyncio.run(channel.draft(turn, text, shown))


def drafts(platforms: FakePlatforms) -> list[dict]:
    """The drafts that were shown."""
    return [call["params"] for call in platforms.calls if call["method"] == "sendMessageDraft"]


def test_a_decided_prompt_loses_its_buttons(channel, platforms: FakePlatforms):
    """platforms.md 2.3: an edit without a keyboard takes the old one away, and nothing new arrives."""
    prompt = send(channel, Reply("Delete **3** files?", YES_NO))
    assert send(channel, Reply("Deleted <3> *files*.", edits=prompt.message_id)) == prompt
    assert [(entry["text"], entry["buttons"]) for entry in platforms.sent] == [("Deleted <3> files.", [])]


def test_an_edit_is_seen_by_whoever_saw_the_message(channel, platforms: FakePlatforms):
    """Telegram takes a receiver for new messages only: a public question that is dropped in private is closed."""
    prompt = send(channel, Reply("Delete 3 files?", YES_NO), GROUP)
    assert send(channel, Reply("Dropped.", edits=prompt.message_id, only_for="5123456789"), GROUP) == prompt
    send(channel, Reply("Forgotten.", only_for="5123456789"), GROUP)
    assert ["ephemeral_message_parameters" in entry["raw"] for entry in platforms.sent] == [False, True]


def test_the_same_edit_twice_is_done(channel, platforms: FakePlatforms):
    """platforms.md 2.4: "message is not modified" is success."""
    prompt = send(channel, Reply("?", YES_NO))
    edit = Reply("Done.", edits=prompt.message_id)
    assert (send(channel, edit), send(channel, edit)) == (prompt, prompt)


@pytest.mark.parametrize("answer", ["message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID"])
def test_what_cannot_be_edited_is_said_anew_unless_optional(channel, platforms: FakePlatforms, answer: str):
    """platforms.md 2.4: permanent for that message; words that matter are sent."""
    platforms.script("telegram", f"Bad Request: {answer}", times=2)
    assert send(channel, Reply("Expired.", edits="77", optional=True)) == Receipt("")
    assert platforms.sent == []
    assert send(channel, Reply("Deleted.", edits="77")) == Receipt("1")


@pytest.mark.parametrize("edits", ["1795204950.000300", "x", "-1"])
def test_an_id_that_telegram_never_gave_is_no_edit(channel, platforms: FakePlatforms, edits: str):
    """A reply is not lost over the id of another platform."""
    assert send(channel, Reply("Deleted.", edits=edits)).message_id == "1"
    assert send(channel, Reply("Gone.", edits=edits, optional=True)) == Receipt("")


@pytest.mark.parametrize("file", [None, IMAGE])
def test_a_message_without_an_id_has_no_receipt(channel, platforms: FakePlatforms, monkeypatch, file: Media | None):
    """platforms.md 2.1: message_id is 0 for what Telegram sends later by itself: that is no id to edit by."""
    monkeypatch.setattr("sayso.testing.platforms.telegram._message_resource", lambda _, chat: told(0, chat))
    assert send(channel, Reply("?", media=file)) == Receipt("")


def test_an_edit_without_an_id_is_a_message(channel, platforms: FakePlatforms):
    """platforms.md 2.1: of 0 Telegram says that no message is named: the outcome is told all the same."""
    send(channel, Reply("Deleted.", edits="0"))
    assert [entry["raw"]["method"] for entry in platforms.sent] == ["sendMessage"]


def test_words_under_a_file_are_edited_there(channel, platforms: FakePlatforms):
    """platforms.md 2.3: a prompt may show a picture: then its caption changes."""
    prompt = send(channel, Reply("This one?", YES_NO, IMAGE))
    assert send(channel, Reply("Taken.", edits=prompt.message_id)) == prompt
    assert (platforms.sent[0]["text"], platforms.sent[0]["buttons"]) == ("Taken.", [])
    assert send(channel, Reply("long " * 300, edits=prompt.message_id)).message_id == "2"


def test_an_edit_that_telegram_will_not_format_is_plain(channel, platforms: FakePlatforms):
    """Words matter more than bold."""
    prompt = send(channel, Reply("?"))
    platforms.script("telegram", "Bad Request: can't parse entities: Unsupported start tag")
    assert send(channel, Reply("**Done** & dusted", edits=prompt.message_id)) == prompt
    assert platforms.sent[0]["text"] == "Done & dusted"


def test_a_long_edit_begins_in_the_old_message(channel):
    """The first piece edits, the rest is new, the buttons are on the last."""
    pieces = channel.split(Reply("word " * 2000, YES_NO, edits="7", optional=True))
    assert [piece.edits for piece in pieces] == ["7"] + [""] * (len(pieces) - 1)
    assert [piece.buttons for piece in pieces] == [()] * (len(pieces) - 1) + [YES_NO]


def test_a_file_follows_the_words_that_edit(channel):
    """A message cannot become a file."""
    pieces = channel.split(Reply("Here it is", YES_NO, IMAGE, edits="7"))
    assert pieces == (Reply("Here it is", edits="7"), Reply(buttons=YES_NO, media=IMAGE))


def test_private_drafts_are_one_sketch_that_goes_by_itself(channel, platforms: FakePlatforms):
    """platforms.md 2.3: sendMessageDraft, the same id for each step of an answer, never 0, and no message."""
    assert [draft(channel, text, update_id=8) for text in ("", "**Al", "**Almost** done")] == ["", "", ""]
    draft(channel, "other", update_id=9)
    shown = drafts(platforms)
    assert [sketch.get("text", "") for sketch in shown] == ["", "**Al", "<b>Almost</b> done", "other"]
    assert (len({sketch["draft_id"] for sketch in shown[:3]}), platforms.sent) == (1, [])
    assert shown[3]["draft_id"] != shown[0]["draft_id"]


def test_private_drafts_stay_in_their_topic(channel, platforms: FakePlatforms):
    """platforms.md 2.1: private chats have topics, too."""
    draft(channel, "so far", message_thread_id=77, is_topic_message=True)
    assert drafts(platforms)[0]["message_thread_id"] == "77"


def test_a_draft_that_telegram_will_not_format_is_plain(channel, platforms: FakePlatforms):
    """Half an answer is half a formatting."""
    platforms.script("telegram", "Bad Request: can't parse entities: Unsupported start tag")
    assert draft(channel, "**so** far") == ""
    assert (drafts(platforms)[0]["text"], "parse_mode" in drafts(platforms)[0]) == ("so far", False)


def test_group_drafts_are_a_message_that_the_answer_edits(channel, platforms: FakePlatforms):
    """platforms.md 2.3: there are no drafts in groups; one message grows."""
    assert draft(channel, "", chat=int(GROUP.chat)) == ""
    shown = draft(channel, "so", chat=int(GROUP.chat))
    assert draft(channel, "so far", shown, chat=int(GROUP.chat)) == shown
    assert draft(channel, "so far", shown, chat=int(GROUP.chat)) == shown
    send(channel, Reply("so far, so good", edits=shown), GROUP)
    assert [entry["text"] for entry in platforms.sent] == ["so far, so good"]


@pytest.mark.parametrize("chat", [5123456789, int(GROUP.chat)])
def test_a_draft_too_many_says_how_long_to_wait(channel, platforms: FakePlatforms, chat: int):
    """pains.md 12: streaming that goes on through a 429 ends in a ban of hours."""
    platforms.script("telegram", "429")
    with pytest.raises(RateLimited, match="7 s"):
        draft(channel, "so far", chat=chat)


@pytest.mark.parametrize(
    "text", ["word " * 10_000, "```py\n" + "x = 1\n" * 5000, "👍🏽" * 5000, "[a](https://b.c) " * 900]
)
def test_of_a_long_draft_the_beginning_stays(channel, platforms: FakePlatforms, text: str):
    """Reading starts at the top: what was read does not move."""
    head = beginning(text)
    assert head.endswith("…")
    assert text.startswith(head[:40])
    assert telegram_length(head) <= 4096
    assert draft(channel, text) == ""


def test_drafts_have_their_own_pace(channel):
    """platforms.md 2.4: 20 messages a minute in a group include edits."""
    assert (channel.rate_limit(CHAT).draft_gap, channel.rate_limit(GROUP).draft_gap) == (1.0, 4.0)


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
def test_files_are_played_or_shown_where_telegram_can(
    channel, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch, mime: str, name: str, method: str
):
    """platforms.md 2.3: MP3 and M4A play, OGG is a voice, other sounds are documents."""
    monkeypatch.setitem(FILES, "any", b"\xff\xd8\xff" + b"x" * 100)
    send(channel, Reply("Here", media=Media("any", mime, name, stored=True)))
    assert (platforms.sent[0]["raw"]["method"], platforms.sent[0]["media"]["filename"]) == (method, name)


def test_a_large_picture_is_a_document(channel, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 2.3: photos up to 10 MB."""
    monkeypatch.setitem(FILES, "any", b"\xff\xd8\xff" + bytes(10 * 1024 * 1024))
    send(channel, Reply(media=Media("any", "image/jpeg", "a.jpg", stored=True)))
    assert platforms.sent[0]["raw"]["method"] == "sendDocument"


def test_a_voice_that_its_person_refuses_is_a_file(channel, platforms: FakePlatforms):
    """platforms.md 2.3: people may forbid voice messages."""
    platforms.script("telegram", "Bad Request: VOICE_MESSAGES_FORBIDDEN")
    send(channel, Reply("Here", media=replace(IMAGE, mime_type="audio/ogg", filename="a.ogg")))
    assert platforms.sent[0]["raw"]["method"] == "sendDocument"


def test_a_file_too_large_for_telegram_is_a_link(channel, platforms: FakePlatforms):
    """platforms.md 2.4, pains.md 13: 413 is told, with a way to the file, and its buttons."""
    platforms.script("telegram", "413")
    send(channel, Reply("Your *file*", YES_NO, replace(IMAGE, filename="a_b_[1].png")))
    text = platforms.sent[0]["text"]
    assert text.startswith(f"Your file\n\na_b_[1].png ({len(FILES['img'])} B): http://127.0.0.1:")
    assert (platforms.sent[0]["raw"]["method"], len(platforms.sent[0]["buttons"])) == ("sendMessage", 2)


@pytest.mark.parametrize("answer", ["not enough rights to send photos to the chat", "CHAT_SEND_PHOTOS_FORBIDDEN"])
def test_words_under_a_file_that_a_group_forbids_still_arrive(channel, platforms: FakePlatforms, answer: str):
    """platforms.md 2.3: where no file may be sent it is a link, below the words."""
    platforms.script("telegram", f"Bad Request: {answer}", times=2)
    send(channel, Reply("Here it is.", YES_NO, media=IMAGE), GROUP)
    assert [(entry["media"], len(entry["buttons"])) for entry in platforms.sent] == [(None, 2)]
    assert platforms.sent[0]["text"].startswith("Here it is.\n\nred.png (")


def test_words_under_an_empty_file_still_arrive(channel, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 2.3: Telegram takes none; a tool may have made one all the same."""
    monkeypatch.setitem(FILES, "none", b"")
    send(channel, Reply("An empty list.", media=Media("none", "text/csv", "list.csv", stored=True)))
    assert platforms.sent[0]["text"].startswith("An empty list.\n\nlist.csv (0 B)")


def test_a_file_for_a_topic_that_is_gone_is_refused(channel, platforms: FakePlatforms):
    """platforms.md 2.4: permanent for this target, and it ends."""
    platforms.script("telegram", "Bad Request: message thread not found", times=9)
    with pytest.raises(Refused):
        send(channel, Reply("Here", media=IMAGE), GROUP)
    assert platforms.sent == []


def test_a_group_that_moved_is_followed_once_and_remembered(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.4: migrate_to_chat_id, resent once; every process goes straight there from then on."""
    notebook = MemorySharedCache()
    platforms.ledger.state[MOVED] = {BASIC: SUPER}
    send(telegram(media, platforms.telegram_url, cache=notebook), Reply("hello"), Conversation("tg", BASIC))
    assert notebook.notes == {f"telegram:moved:7000000001:{BASIC}": SUPER}
    platforms.ledger.state.clear()
    send(telegram(media, platforms.telegram_url, cache=notebook), Reply("again"), Conversation("tg", BASIC))
    assert [(entry["chat"], entry["text"]) for entry in platforms.sent] == [(SUPER, "hello"), (SUPER, "again")]


def test_a_group_that_moves_in_a_circle_is_refused(channel, platforms: FakePlatforms):
    """platforms.md 2.4: once means once."""
    platforms.ledger.state[MOVED] = {BASIC: SUPER, SUPER: BASIC}
    with pytest.raises(Refused):
        send(channel, Reply("hello"), Conversation("tg", BASIC))


def test_an_edit_in_a_group_that_moved_is_a_message(channel, platforms: FakePlatforms):
    """The old messages stayed behind."""
    prompt = send(channel, Reply("?", YES_NO), Conversation("tg", BASIC))
    platforms.ledger.state[MOVED] = {BASIC: SUPER}
    send(channel, Reply("Done.", edits=prompt.message_id), Conversation("tg", BASIC))
    assert [(entry["chat"], entry["text"]) for entry in platforms.sent] == [(BASIC, "?"), (SUPER, "Done.")]


def test_no_address_is_lost_behind_the_hundredth_link(channel, platforms: FakePlatforms):
    """platforms.md 2.3: Telegram formats 100 entities: of the links behind them it would show the words alone."""
    many, few = ("".join(f"- [n{number}](https://e.org/{number})\n" for number in range(count)) for count in (120, 90))
    for text in (many, few):
        send(channel, Reply(text))
    assert [f"https://e.org/{number}" in platforms.sent[0]["text"] for number in range(120)] == [True] * 120
    assert ["parse_mode" in entry["raw"] for entry in platforms.sent] == [False, True]
