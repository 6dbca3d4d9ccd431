"""Recorded webhooks, replayed through the adapters with the signatures they came with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sayso.channels.base import Channel
from sayso.channels.slack.threads import new_thread
from sayso.channels.types import (
    UNNAMED_ALBUM,
    Conversation,
    Media,
    Received,
    StatusUpdate,
    Tap,
    Turn,
    WebhookRequest,
    WebhookResponse,
)
from sayso.testing.platforms.fake_platforms import (
    SLACK_SIGNING_SECRET,
    TELEGRAM_SECRET,
    TWILIO_AUTH_TOKEN,
)
from tests.channels.harness import NOW, MemoryMedia, slack, telegram, whatsapp

PAYLOADS = Path(__file__).parent.parent / "payloads"
TWILIO_MEDIA = (
    "https://api.twilio.com/2010-04-01/Accounts/AC0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a/Messages"
)
SLACK_FILE = "https://files.slack.com/files-pri/T0ACME-F0IMG/download/bild.png"
PHOTO = Media("AgACAgIAAxkBAAIx", "image/jpeg", size=90000)


def wa(sid: str, text: str = "", **extra: Any) -> Turn:
    """Return a WhatsApp turn of Ada's."""
    chat = Conversation("wa", "whatsapp:DE.1000000000000042")
    who = {"user_id": "whatsapp:DE.1000000000000042", "user_name": "Ada Test"}
    aliases = ("whatsapp:+4915100000042", "4915100000042")
    return Turn(sid, chat, text=text, message_id=sid, aliases=aliases, **who, **extra)


def wa_file(number: int, mime_type: str, filename: str = "") -> tuple[Media]:
    """Return the file of a WhatsApp message."""
    return (Media(f"{TWILIO_MEDIA}/MM{number:032x}/Media/ME{number:032x}", mime_type, filename),)


def wa_sid(number: int, kind: str = "SM") -> str:
    """Return Twilio's id of a message."""
    return f"{kind}{number:032x}"


def tg(
    update_id: int,
    message_id: int | str,
    text: str = "",
    chat: str = "5123456789",
    thread: str = "",
    **extra: Any,
) -> Turn:
    """Return a Telegram turn of Ada's."""
    where = Conversation("tg", chat, thread)
    who = {
        "user_id": "5123456789",
        "user_name": "Ada Test",
        "language": "de",
        "in_group": chat.startswith("-"),
    }
    return Turn(str(update_id), where, text=text, message_id=str(message_id or ""), **who, **extra)


def sl(ts: str, text: str, channel: str = "D0ADA", thread: str = "", **extra: Any) -> Turn:
    """Return a Slack turn of Ada's. A message outside of threads opens one."""
    where = Conversation("sl", channel, thread or ts)
    group = not channel.startswith("D")
    return Turn(
        f"T0ACME:{channel}:{ts}", where, "U0ADA", text=text, message_id=ts, in_group=group, **extra
    )


def sl_act(trigger: str, chat: str, thread: str = "", **extra: Any) -> Turn:
    """Return a Slack turn of Ada's that is no message."""
    group = not chat.startswith(("D", "U"))
    return Turn(
        trigger, Conversation("sl", chat, thread), "U0ADA", user_name="ada", in_group=group, **extra
    )


def sl_tap(
    number: int,
    data: str,
    chat: str = "D0ADA",
    thread: str = "",
    message: str = "1795204950.000300",
) -> Turn:
    """Return Ada's tap in a Slack message."""
    trigger = f"111.{number}.aaaaaaaa"
    return sl_act(trigger, chat, thread, tap=Tap(data, trigger), message_id=message)


RICH = """# Angebot

Bitte bis Freitag an uns (https://example.com/a?b=1) senden.

1. Äpfel
- [x] Birnen

| Ware | Preis |
| --- | --- |
| Äpfel | 3 € |

[details: Mehr]
```python
x < 1
```

$$a^2$$

> wie besprochen
> — Bob

[map of 52.5163,13.3777]

[photo] Der Stand

[button: Karte (https://example.com/karte)]"""
MENTION = sl("1795204900.000200", "Status von #ops?", "C0OPS", "1795204800.000150")
DIRECT = sl("1795204800.000100", "Hallo & guten Tag <b>")
GREETING = wa("SM00000000000000000000000000000001", "Hallo, wann habt ihr offen? 👋 ß &+%")
VOICE = Media(
    f"{TWILIO_MEDIA}/MM00000000000000000000000000000007/Media/ME00000000000000000000000000000007",
    "audio/ogg",
)
PICTURE = Media(
    f"{TWILIO_MEDIA}/MM00000000000000000000000000000006/Media/ME00000000000000000000000000000006",
    "image/jpeg",
)
PDF = Media("BQACAgIAAxkBAAIdoc", "application/pdf", "rechnung.pdf", 183220)
THREAD = ("C0OPS", "1795204800.000150")
ORDER = (
    "submitted form 'Bestellung'",
    "Größe: Groß",
    "Dazu: Käse, Oliven",
    "Tag: 2026-11-24",
    "Für wen: U0ADA, U0BOB",
)
LOST = ("a file that was deleted", "a file that Slack hides: its workspace is over a limit")
STICKER = Media("CAACAgIAAxkBAAIsticker", "image/webp", size=20460)
ANIMATION = Media("CgACAgIAAxkBAAIgif", "video/mp4", "tanz.mp4", 301122)
#: A Telegram group with topics.
FORUM = "-1002000000001"
#: platforms.md 1.1: the number is hidden, and the id is the address.
ANONYMOUS = Turn(
    "900000121",
    Conversation("tg", FORUM),
    FORUM,
    text="ja @acme_bot",
    message_id="222",
    kind="anonymous",
    in_group=True,
)
HIDDEN = Turn(
    f"SM{0x2C:032x}",
    Conversation("wa", "whatsapp:DE.1000000000000042"),
    "whatsapp:DE.1000000000000042",
    text="hola",
    user_name="ada",
    message_id=f"SM{0x2C:032x}",
)

TURNS = {
    "whatsapp/text": GREETING,
    "whatsapp/text_duplicate": GREETING,
    "whatsapp/button_tap_quick_reply": wa(
        wa_sid(3), tap=Tap("confirm:42", label="Ja, bestätigen"), replied_to=wa_sid(0x385, "MM")
    ),
    "whatsapp/image_caption": wa(
        "MM00000000000000000000000000000006",
        "So sieht es aus.",
        media=(PICTURE,),
        group=UNNAMED_ALBUM,
    ),
    "whatsapp/voice_note": wa("MM00000000000000000000000000000007", media=(VOICE,)),
    "whatsapp/location": wa(wa_sid(9), notes=("location 52.5163,13.3777",)),
    "whatsapp/location_named": wa(
        wa_sid(0x20),
        notes=("location 52.5163,13.3777 (Brandenburger Tor, Pariser Platz, 10117 Berlin)",),
    ),
    "whatsapp/contact": wa(
        wa_sid(0x21, "MM"), media=wa_file(0x21, "text/vcard"), notes=("contact",)
    ),
    "whatsapp/sticker": wa(
        wa_sid(0x22, "MM"), media=wa_file(0x22, "image/webp"), notes=("sticker",)
    ),
    "whatsapp/video_caption": wa(
        wa_sid(0x23, "MM"), "So läuft es.", media=wa_file(0x23, "video/mp4"), group=UNNAMED_ALBUM
    ),
    "whatsapp/document": wa(
        wa_sid(0x24, "MM"), media=wa_file(0x24, "application/pdf", "yes.pdf"), group=UNNAMED_ALBUM
    ),
    "whatsapp/audio_file": wa(wa_sid(0x25, "MM"), media=wa_file(0x25, "audio/mpeg")),
    "whatsapp/list_tap": wa(
        wa_sid(0x26), tap=Tap("choice:2", label="Berlin"), replied_to=wa_sid(0x385)
    ),
    "whatsapp/list_tap_without_id": wa(
        wa_sid(0x27), notes=("chose 'Yes'",), replied_to=wa_sid(0x385)
    ),
    "whatsapp/template_button_tap": wa(
        wa_sid(0x28), tap=Tap("confirm:43", label="Confirm"), replied_to=wa_sid(0x385)
    ),
    "whatsapp/quoted_reply": wa(wa_sid(0x29), "ja, das meine ich", replied_to=wa_sid(0x385)),
    "whatsapp/forwarded": wa(wa_sid(0x2A), "yes", notes=("forwarded",)),
    "whatsapp/ad_referral": wa(
        wa_sid(0x2B),
        "Hallo, ist das noch da?",
        notes=("came from an advertisement: Herbstaktion: 20 % auf alles (https://fb.me/1abc)",),
    ),
    "whatsapp/username_without_phone": HIDDEN,
    "whatsapp/messaging_service": wa(wa_sid(0x2D), "hi"),
    "whatsapp/shared_key_sha256": wa(wa_sid(0x2E), "hi"),
    "whatsapp/without_message_type": wa(
        wa_sid(0x2F, "MM"), "hier", media=wa_file(0x2F, "image/jpeg"), group=UNNAMED_ALBUM
    ),
    "telegram/text_private": tg(900000001, 101, "Hallo 👋 *wie* geht_es?"),
    "telegram/text_duplicate": tg(900000001, 101, "Hallo 👋 *wie* geht_es?"),
    "telegram/start_deeplink": tg(900000002, 102, "/start ref_42"),
    "telegram/group_mention_topic": tg(
        900000003, 55, "👍 @acme_bot bitte /status@acme_bot", "-1002000000001", "12"
    ),
    "telegram/button_tap": tg(900000005, 103, tap=Tap("c:42:y", "22005000000000001")),
    "telegram/photo_caption": tg(900000007, 104, "So sieht es aus", media=(PHOTO,)),
    "telegram/album_item_1": tg(
        900000008, 105, "zwei Bilder", media=(PHOTO,), group="13800000000000001"
    ),
    "telegram/album_item_2": tg(900000009, 106, media=(PHOTO,), group="13800000000000001"),
    "telegram/voice": tg(
        900000010, 107, media=(Media("AwACAgIAAxkBAAIvoice", "audio/ogg", size=17020),)
    ),
    "telegram/document": tg(900000011, 108, "Rechnung", media=(PDF,)),
    "telegram/edited_message": tg(900000014, 101, "Hallo 👋 wie geht es euch?", kind="edit"),
    "telegram/location": tg(900000101, 201, notes=("location 52.5163,13.3777",)),
    "telegram/venue": tg(
        900000102,
        202,
        notes=("location 52.5163,13.3777 (Brandenburger Tor, Pariser Platz, Berlin)",),
    ),
    "telegram/contact": tg(900000103, 203, notes=("contact Grace Test +4915100000099",)),
    "telegram/sticker": tg(900000104, 204, media=(STICKER,), notes=("sticker 👍",)),
    "telegram/sticker_video": tg(900000105, 205, notes=("sticker 🎉",)),
    "telegram/animation": tg(900000106, 206, "so", media=(ANIMATION,)),
    "telegram/video_note": tg(
        900000107, 207, media=(Media("DQACAgIAAxkBAAInote", "video/mp4", size=402000),)
    ),
    "telegram/reply_quote": tg(900000108, 208, "der passt", quoted="am Dienstag", replied_to="150"),
    "telegram/reply_photo": tg(
        900000109, 209, "was ist das?", quoted="Unser Garten", replied_to="151"
    ),
    "telegram/forwarded_yes": tg(900000110, 210, "ja", notes=("forwarded from Bob Hidden",)),
    "telegram/poll": tg(900000111, 211, notes=("poll Wann?: heute, morgen",)),
    "telegram/dice": tg(900000112, 212, notes=("dice 🎲 showing 4",)),
    "telegram/web_app_data": tg(900000113, 213, notes=('data of a web app: {"yes": true}',)),
    "telegram/private_topic": tg(900000114, 214, "und hier?", thread="77"),
    "telegram/ephemeral": tg(900000115, "u5123456789:3", "/status", FORUM, ephemeral=True),
    "telegram/text_mention": tg(900000116, 216, "🙋🏽, bitte", FORUM),
    "telegram/anonymous_admin": ANONYMOUS,
    "telegram/rich_message": tg(
        900000130, 230, RICH, media=(PHOTO,), notes=("a message with rich formatting",)
    ),
    "telegram/checklist": tg(900000131, 231, notes=("checklist Einkauf: [x] Milch; [ ] Brot",)),
    "telegram/mention_of_another": tg(
        900000117, 217, "@ada_t schreib an me@acme_bot", FORUM, addressed=False
    ),
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
        "1795205100.000600",
        "So sieht es aus",
        media=(Media(SLACK_FILE, "image/png", "bild.png", 42706),),
    ),
    "slack/block_actions_button": sl_tap(222, "confirm:42", *THREAD),
    "slack/block_actions_overflow": sl_tap(301, "choice:red"),
    "slack/block_actions_select": sl_tap(302, "choice:red"),
    "slack/block_actions_ephemeral": sl_tap(303, "confirm:43", "C0OPS", message=""),
    "slack/message_group": sl(
        "1795206000.000100", "guten Morgen", "G0PRIV", "1795206000.000100", addressed=False
    ),
    "slack/message_mpim": sl("1795206001.000100", "wer kommt?", "C0MPIM", "1795206001.000100"),
    "slack/agent_session_stopped": replace(
        sl_act("", "D0ADA", "1795205300.001100", text="/stop"),
        event_id="T0ACME:D0ADA:stop:1795206020.000100",
        user_name="",
    ),
    "slack/message_im_agent_view": sl(
        "1795206022.000100",
        "fasse das zusammen",
        background=(
            "the person looks at the Slack channel C0OPS",
            "the person looks at the message 1795204900.000200 in the Slack channel C0OPS",
        ),
    ),
    "slack/message_assistant_thread": sl(
        "1795206002.000100", "fasse zusammen", thread="1795205300.001100"
    ),
    "slack/thread_broadcast": sl("1795206003.000100", "erledigt", *THREAD),
    "slack/me_message": sl("1795206004.000100", "winkt"),
    "slack/message_shared": sl(
        "1795206005.000100", "", notes=("shared message of Bob Test: Rechnung & Mahnung INV-7",)
    ),
    "slack/message_shared_channel": sl(
        "1795206006.000100", "hallo", "C0SHARED", "1795206006.000100"
    ),
    "slack/message_org_install": sl("1795206007.000100", "hallo"),
    "slack/file_share_connect_stub": sl(
        "1795206008.000100", "die Liste", media=(Media("F0STUB", "application/octet-stream"),)
    ),
    "slack/file_share_tombstone": sl("1795206009.000100", "weg?", notes=LOST),
    "slack/message_changed": replace(
        sl("1795204800.000100", "Hallo!", kind="edit"),
        event_id="T0ACME:D0ADA:edit:1795205000.000000",
    ),
    "slack/view_submission": sl_act(
        "111.333.bbbbbbbb",
        "U0ADA",
        new_thread("111.333.bbbbbbbb"),
        notes=("submitted form 'Frage'", "Warum?: weil"),
    ),
    "slack/view_submission_in_thread": sl_act("111.334.bbbbbbbb", *THREAD, notes=ORDER),
    "slack/shortcut_global": sl_act(
        "111.401.cccccccc", "U0ADA", new_thread("111.401.cccccccc"), text="/open_tickets"
    ),
    "slack/message_action": sl_act(
        "111.402.cccccccc", *THREAD, text="/ask_acme", quoted="5 < 6, @U0ADA?", message_id=THREAD[1]
    ),
    "slack/slash_command_payload": sl_act(
        "111.501.dddddddd", "C0OPS", text="delete my payload & all"
    ),
    "slack/slash_command_empty": sl_act(
        "111.502.dddddddd", "D0ADA", new_thread("111.502.dddddddd"), text="/help"
    ),
    "slack/slash_command_builtin": sl_act("111.503.dddddddd", "C0OPS", text="/stop"),
}

IGNORED = {
    "whatsapp/reaction": "message of type 'reaction'",
    "whatsapp/unsupported": "message of type 'unsupported'",
    "telegram/reaction": "update of kind 'message_reaction'",
    "telegram/linked_channel_post": "sent in the name of a chat, by an unknown person",
    "telegram/channel_post": "update of kind 'channel_post'",
    "telegram/other_bot": "not sent by a person",
    "telegram/new_members": "message without text or a file",
    "telegram/migrated": "the group became a supergroup",
    "telegram/live_location_moves": "a live location moved",
    "telegram/unknown_kind": "update of kind 'someday_kind'",
    "slack/own_bot_message": "sent by a bot",
    "slack/bot_message": "message of subtype 'bot_message'",
    "slack/message_changed_unfurl": "change that its author did not make",
    "slack/message_changed_own": "sent by a bot",
    "slack/message_deleted": "message of subtype 'message_deleted'",
    "slack/reaction_added": "event of type 'reaction_added'",
    "slack/app_home_opened": "a person opened the bot: its suggested prompts greet them",
    "slack/app_context_changed": "a person looks at something else: their next message says at what",
    "slack/member_joined_other": "event of type 'member_joined_channel' about somebody else",
    "slack/assistant_thread_started": "event of type 'assistant_thread_started'",
    "slack/block_actions_datepicker": "action of type 'datepicker'",
    "slack/view_closed": "request of type 'view_closed'",
    "slack/block_suggestion": "block_suggestion",
    "slack/ssl_check": "ssl_check",
    "slack/url_verification": "url_verification",
}

WA_DELIVERY = "wa:0123456789abcdef0123#7"
STATUSES = {
    "whatsapp/status_sent": StatusUpdate(wa_sid(0x3B8), "sent", delivery=WA_DELIVERY),
    "whatsapp/status_read": StatusUpdate(wa_sid(0x3B8), "read", delivery=WA_DELIVERY),
    "whatsapp/status_undelivered_63024": StatusUpdate(
        wa_sid(0x3B9), "undelivered", "63024", WA_DELIVERY
    ),
    "whatsapp/status_failed_63007": StatusUpdate(wa_sid(0x3BA), "failed", "63007", WA_DELIVERY),
    "whatsapp/status_delivered": StatusUpdate("SM000000000000000000000000000003b6", "delivered"),
    "whatsapp/status_failed_63016": StatusUpdate(
        "SM000000000000000000000000000003b7", "failed", "63016"
    ),
}

NEWS = {
    "slack/member_joined_self": {"C0NEW": ""},
    "slack/channel_left": {"C0OPS": "not_in_channel"},
    "slack/channel_archive": {"C0OPS": "is_archived"},
    "slack/channel_unarchive": {"C0OPS": ""},
    "slack/channel_id_changed": {"G0PRIV": "channel_id_changed", "C0PRIV": ""},
    "telegram/blocked_by_user": {"5123456789": "blocked by its person"},
    "telegram/unblocked_by_user": {"5123456789": ""},
    "telegram/added_to_group": {FORUM: ""},
    "telegram/removed_from_group": {FORUM: "removed from the group"},
}

#: Payloads of which the operator is told.
ALERTS = {
    "slack/tokens_revoked": "revoked the bot's token",
    "slack/app_uninstalled": "was uninstalled",
    "slack/app_rate_limited": "holds back events of the app",
}


def test_every_payload_is_expected():
    """A payload added to the folder must get an expectation here."""
    found = {f"{path.parent.name}/{path.stem}" for path in PAYLOADS.glob("*/*.json")}
    assert found == {*TURNS, *IGNORED, *STATUSES, *NEWS, *ALERTS}


@pytest.mark.parametrize("name", TURNS)
def test_payload_becomes_the_turn(name: str, media: MemoryMedia):
    """platforms.md 1.1, 2.1, 3.1: a recorded act of a person becomes exactly this turn."""
    assert replay(name, media).turns == (TURNS[name],)


@pytest.mark.parametrize("name", IGNORED)
def test_payload_is_ignored_for_a_reason(name: str, media: MemoryMedia):
    """platforms.md 2.1, 3.1: an unsupported payload gives no turn, a 200 and a reason."""
    received = replay(name, media)
    assert (received.turns, received.ignored, received.answer.status) == ((), IGNORED[name], 200)


@pytest.mark.parametrize("name", STATUSES)
def test_payload_is_a_status(name: str, media: MemoryMedia):
    """platforms.md 1.1: a delivery status is no turn."""
    received = replay(name, media)
    assert (received.turns, received.statuses) == ((), (STATUSES[name],))


@pytest.mark.parametrize("name", NEWS)
def test_payload_reports_on_an_address(name: str, media: MemoryMedia):
    """platforms.md 2.1, 3.1: an address closed or opened again without a message."""
    received = replay(name, media)
    assert (received.turns, received.ignored) == ((), "")
    assert {news.conversation.address: news.closed for news in received.addresses} == NEWS[name]


@pytest.mark.parametrize("name", ALERTS)
def test_payload_alerts_the_operator(name: str, media: MemoryMedia):
    """platforms.md 3.1: only the operator can repair it."""
    received = replay(name, media)
    assert (received.turns, received.answer.status) == ((), 200)
    assert len(received.alerts) == 1
    assert ALERTS[name] in received.alerts[0]


@pytest.mark.parametrize(
    "name", [name for name in (*TURNS, *IGNORED, *NEWS) if name.startswith("telegram/")]
)
def test_telegram_gets_an_empty_answer(name: str, media: MemoryMedia):
    """platforms.md 2.1: Telegram would run the `method` of a body."""
    assert replay(name, media).answer == WebhookResponse()


def test_handshake_answers_the_challenge(media: MemoryMedia):
    """platforms.md 3.1: Slack needs its challenge back."""
    answer = replay("slack/url_verification", media).answer
    assert json.loads(answer.body) == {
        "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"
    }


def replay(name: str, media: MemoryMedia) -> Received:
    """Return what the adapter reads from a recorded request."""
    recorded = json.loads((PAYLOADS / f"{name}.json").read_text())
    body = recorded["raw_body"] if "raw_body" in recorded else json.dumps(recorded["json"])
    hook = WebhookRequest(
        url=recorded["url"],
        headers={header.lower(): value for header, value in recorded["headers"].items()},
        body=body.encode(),
        path="status" if "/status" in recorded["url"] else "",
        now=NOW,
    )
    return adapter(name.partition("/")[0], recorded["_about"], media).receive(hook)


def adapter(platform: str, about: dict[str, str], media: MemoryMedia) -> Channel:
    """Return the adapter with the secret of the payload, which is that of the fakes."""
    if platform == "whatsapp":
        assert about["auth_token"] == TWILIO_AUTH_TOKEN
        return whatsapp(media, None, **{key: about[key] for key in ("shared_key",) if key in about})
    if platform == "telegram":
        assert about["secret_token"] == TELEGRAM_SECRET
        return telegram(media, None)
    assert about["signing_secret"] == SLACK_SIGNING_SECRET
    return slack(media, None)
