"""Recorded webhooks, replayed through the adapters with the signatures they came with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from channels.base import Channel
from channels.fakes.platforms import SLACK_SIGNING_SECRET, TELEGRAM_SECRET, TWILIO_AUTH_TOKEN
from channels.types import AddressNews, Conversation, Hook, HookAnswer, Media, Received, StatusUpdate, Tap, Turn
from tests.channels.harness import NOW, MemoryMedia, slack, telegram, whatsapp

PAYLOADS = Path(__file__).parent.parent / "payloads"
TWILIO_MEDIA = "https://api.twilio.com/2010-04-01/Accounts/AC0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a/Messages"
SLACK_FILE = "https://files.slack.com/files-pri/T0ACME-F0IMG/download/bild.png"
PHOTO = Media("AgACAgIAAxkBAAIx", "image/jpeg", size=90000)


def wa(sid: str, text: str = "", **extra: Any) -> Turn:
    """A WhatsApp turn of Ada's."""
    chat = Conversation("wa", "whatsapp:+4915100000042")
    who = {"user_id": "whatsapp:DE.1000000000000042", "user_name": "Ada Test"}
    return Turn(sid, chat, text=text, message_id=sid, **who, **extra)


def tg(
    update_id: int, message_id: int, text: str = "", chat: str = "5123456789", thread: str = "", **extra: Any
) -> Turn:
    """A Telegram turn of Ada's."""
    where = Conversation("tg", chat, thread)
    who = {"user_id": "5123456789", "user_name": "Ada Test", "language": "de", "in_group": chat.startswith("-")}
    return Turn(str(update_id), where, text=text, message_id=str(message_id or ""), **who, **extra)


def sl(ts: str, text: str, channel: str = "D0ADA", thread: str = "", **extra: Any) -> Turn:
    """A Slack turn of Ada's."""
    where = Conversation("sl", channel, thread)
    return Turn(f"T0ACME:{channel}:{ts}", where, "U0ADA", text=text, message_id=ts, **extra)


MENTION = sl("1795204900.000200", "Status von #ops?", "C0OPS", "1795204800.000150")
DIRECT = sl("1795204800.000100", "Hallo & guten Tag <b>")
GREETING = wa("SM00000000000000000000000000000001", "Hallo, wann habt ihr offen? 👋 ß &+%")
VOICE = Media(
    f"{TWILIO_MEDIA}/MM00000000000000000000000000000007/Media/ME00000000000000000000000000000007", "audio/ogg"
)
PICTURE = Media(
    f"{TWILIO_MEDIA}/MM00000000000000000000000000000006/Media/ME00000000000000000000000000000006", "image/jpeg"
)
PDF = Media("BQACAgIAAxkBAAIdoc", "application/pdf", "rechnung.pdf", 183220)
STICKER = Media("CAACAgIAAxkBAAIsticker", "image/webp", size=20460)
ANIMATION = Media("CgACAgIAAxkBAAIgif", "video/mp4", "tanz.mp4", 301122)
#: A Telegram group with topics.
FORUM = "-1002000000001"
SLACK_TAP = Turn(
    "111.222.aaaaaaaa",
    Conversation("sl", "C0OPS", "1795204800.000150"),
    "U0ADA",
    user_name="ada",
    tap=Tap("confirm:42", "111.222.aaaaaaaa"),
    message_id="1795204950.000300",
)

TURNS = {
    "whatsapp/text": GREETING,
    "whatsapp/text_duplicate": GREETING,
    "whatsapp/button_tap_quick_reply": wa("SM00000000000000000000000000000003", tap=Tap("confirm:42")),
    "whatsapp/image_caption": wa("MM00000000000000000000000000000006", "So sieht es aus.", media=(PICTURE,)),
    "whatsapp/voice_note": wa("MM00000000000000000000000000000007", media=(VOICE,)),
    "telegram/text_private": tg(900000001, 101, "Hallo 👋 *wie* geht_es?"),
    "telegram/text_duplicate": tg(900000001, 101, "Hallo 👋 *wie* geht_es?"),
    "telegram/start_deeplink": tg(900000002, 102, "/start ref_42"),
    "telegram/group_mention_topic": tg(900000003, 55, "👍 @acme_bot bitte /status@acme_bot", "-1002000000001", "12"),
    "telegram/button_tap": tg(900000005, 103, tap=Tap("c:42:y", "22005000000000001")),
    "telegram/photo_caption": tg(900000007, 104, "So sieht es aus", media=(PHOTO,)),
    "telegram/album_item_1": tg(900000008, 105, "zwei Bilder", media=(PHOTO,), group="13800000000000001"),
    "telegram/album_item_2": tg(900000009, 106, media=(PHOTO,), group="13800000000000001"),
    "telegram/voice": tg(900000010, 107, media=(Media("AwACAgIAAxkBAAIvoice", "audio/ogg", size=17020),)),
    "telegram/document": tg(900000011, 108, "Rechnung", media=(PDF,)),
    "telegram/edited_message": tg(900000014, 101, "Hallo 👋 wie geht es euch?", kind="edit"),
    "telegram/location": tg(900000101, 201, notes=("location 52.5163,13.3777",)),
    "telegram/venue": tg(
        900000102, 202, notes=("location 52.5163,13.3777 (Brandenburger Tor, Pariser Platz, Berlin)",)
    ),
    "telegram/contact": tg(900000103, 203, notes=("contact Grace Test +4915100000099",)),
    "telegram/sticker": tg(900000104, 204, media=(STICKER,), notes=("sticker 👍",)),
    "telegram/sticker_video": tg(900000105, 205, notes=("sticker 🎉",)),
    "telegram/animation": tg(900000106, 206, "so", media=(ANIMATION,)),
    "telegram/video_note": tg(900000107, 207, media=(Media("DQACAgIAAxkBAAInote", "video/mp4", size=402000),)),
    "telegram/reply_quote": tg(900000108, 208, "der passt", quoted="am Dienstag"),
    "telegram/reply_photo": tg(900000109, 209, "was ist das?", quoted="Unser Garten"),
    "telegram/forwarded_yes": tg(900000110, 210, "ja", notes=("forwarded from Bob Hidden",)),
    "telegram/poll": tg(900000111, 211, notes=("poll Wann?: heute, morgen",)),
    "telegram/dice": tg(900000112, 212, notes=("dice 🎲 showing 4",)),
    "telegram/web_app_data": tg(900000113, 213, notes=('data of a web app: {"yes": true}',)),
    "telegram/private_topic": tg(900000114, 214, "und hier?", thread="77"),
    "telegram/ephemeral": tg(900000115, 0, "/status", FORUM),
    "telegram/text_mention": tg(900000116, 216, "🙋🏽 Acme, bitte", FORUM),
    "telegram/mention_of_another": tg(900000117, 217, "@ada_t schreib an me@acme_bot", FORUM, addressed=False),
    "telegram/topic_of_ours": tg(900000118, 218, "hallo zusammen", FORUM, "12", addressed=False),
    "telegram/tap_inaccessible": tg(900000119, 99, tap=Tap("c:41:y", "22005000000000002")),
    "telegram/stopped_generation": Turn(
        "900000120", Conversation("tg", "5123456789"), "5123456789", "/stop", user_name="Ada Test"
    ),
    "slack/message_im": DIRECT,
    "slack/message_im_retry": DIRECT,
    "slack/app_mention_thread": MENTION,
    "slack/message_channel_same_as_mention": MENTION,
    "slack/file_share_image": sl(
        "1795205100.000600", "So sieht es aus", media=(Media(SLACK_FILE, "image/png", "bild.png", 42706),)
    ),
    "slack/block_actions_button": SLACK_TAP,
}

IGNORED = {
    "whatsapp/location": "message of type 'location'",
    "telegram/reaction": "update of kind 'message_reaction'",
    "telegram/anonymous_admin": "sent in the name of a chat: behind it may be anybody",
    "telegram/linked_channel_post": "sent in the name of a chat: behind it may be anybody",
    "telegram/channel_post": "update of kind 'channel_post'",
    "telegram/other_bot": "sent by a bot or by nobody",
    "telegram/new_members": "message without words or a file",
    "telegram/migrated": "the group became a supergroup",
    "telegram/live_location_moves": "a live location moved",
    "telegram/unknown_kind": "update of kind 'someday_kind'",
    "slack/own_bot_message": "sent by a bot",
    "slack/message_changed": "message of subtype 'message_changed'",
    "slack/assistant_thread_started": "event of type 'assistant_thread_started'",
    "slack/view_submission": "request of type 'view_submission'",
    "slack/ssl_check": "ssl_check",
    "slack/url_verification": "url_verification",
}

STATUSES = {
    "whatsapp/status_delivered": StatusUpdate("SM000000000000000000000000000003b6", "delivered"),
    "whatsapp/status_failed_63016": StatusUpdate("SM000000000000000000000000000003b7", "failed", "63016"),
}

ADDRESSES = {
    "telegram/blocked_by_user": AddressNews(Conversation("tg", "5123456789"), "blocked by its person"),
    "telegram/unblocked_by_user": AddressNews(Conversation("tg", "5123456789")),
    "telegram/added_to_group": AddressNews(Conversation("tg", FORUM)),
    "telegram/removed_from_group": AddressNews(Conversation("tg", FORUM), "removed from the group"),
}


def test_every_payload_is_expected():
    """A payload added to the folder must get an expectation here."""
    found = {f"{path.parent.name}/{path.stem}" for path in PAYLOADS.glob("*/*.json")}
    assert found == {*TURNS, *IGNORED, *STATUSES, *ADDRESSES}


@pytest.mark.parametrize("name", TURNS)
def test_payload_becomes_the_turn(name: str, media: MemoryMedia):
    """A recorded act of a person becomes exactly this turn."""
    assert replay(name, media).turns == (TURNS[name],)


@pytest.mark.parametrize("name", IGNORED)
def test_payload_is_ignored_for_a_reason(name: str, media: MemoryMedia):
    """What we do not read yet gives no turn, a 200 and a reason."""
    received = replay(name, media)
    assert (received.turns, received.ignored, received.answer.status) == ((), IGNORED[name], 200)


@pytest.mark.parametrize("name", STATUSES)
def test_payload_is_a_status(name: str, media: MemoryMedia):
    """A delivery status is no turn."""
    received = replay(name, media)
    assert (received.turns, received.statuses) == ((), (STATUSES[name],))


@pytest.mark.parametrize("name", ADDRESSES)
def test_payload_is_news_of_an_address(name: str, media: MemoryMedia):
    """platforms.md 2.1: nothing arrives at an address that was closed, until it opens."""
    received = replay(name, media)
    assert (received.turns, received.addresses) == ((), (ADDRESSES[name],))


@pytest.mark.parametrize("name", [name for name in (*TURNS, *IGNORED, *ADDRESSES) if name.startswith("telegram/")])
def test_telegram_hears_an_empty_answer(name: str, media: MemoryMedia):
    """platforms.md 2.1: of a body with a `method` Telegram would do what it says."""
    assert replay(name, media).answer == HookAnswer()


def test_handshake_answers_the_challenge(media: MemoryMedia):
    """Slack wants its challenge back."""
    answer = replay("slack/url_verification", media).answer
    assert json.loads(answer.body) == {"challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}


def replay(name: str, media: MemoryMedia) -> Received:
    """What the adapter makes of a recorded request."""
    recorded = json.loads((PAYLOADS / f"{name}.json").read_text())
    body = recorded["raw_body"] if "raw_body" in recorded else json.dumps(recorded["json"])
    hook = Hook(
        url=recorded["url"],
        headers={header.lower(): value for header, value in recorded["headers"].items()},
        body=body.encode(),
        path="status" if "/status" in recorded["url"] else "",
        now=NOW,
    )
    return adapter(name.partition("/")[0], recorded["_about"], media).receive(hook)


def adapter(platform: str, about: dict[str, str], media: MemoryMedia) -> Channel:
    """The adapter with the secret the payload was signed with: the same one the fakes use."""
    if platform == "whatsapp":
        assert about["auth_token"] == TWILIO_AUTH_TOKEN
        return whatsapp(media, None)
    if platform == "telegram":
        assert about["secret_token"] == TELEGRAM_SECRET
        return telegram(media, None)
    assert about["signing_secret"] == SLACK_SIGNING_SECRET
    return slack(media, None)
