"""Telegram's own rules: groups, topics, commands, formatting fallbacks and one client per event loop."""

from __future__ import annotations

import asyncio

import pytest

from sayso.channels.base import BadHook, Forbidden, Refused
from sayso.channels.telegram.settings import TelegramSettings
from sayso.channels.types import Button, Conversation, Delivery, Reply, Tap
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import TELEGRAM_SECRET, FakePlatforms
from tests.channels.harness import IMAGE, MemoryMedia, hook, telegram, telegram_hook

CHAT = Conversation("tg", "5123456789")
GROUP = -1002000000001


def send(channel, reply: Reply, conversation: Conversation = CHAT):
    """Send one piece and return its receipt."""
    return asyncio.run(channel.send(Delivery("d", conversation, reply)))


def read(media: MemoryMedia, update: dict, **settings):
    """Return what the adapter reads from one update."""
    return telegram(media, None, **settings).receive(telegram_hook(update))


def test_group_has_a_lower_rate_limit_than_a_person(media: MemoryMedia):
    """platforms.md 2.4: a group takes 20 messages a minute: five at once, then one each 4 s."""
    channel = telegram(media, None)
    person, group = (
        channel.rate_limit(Conversation("tg", chat)) for chat in ("5123456789", "-100123")
    )
    assert (person.chat_gap, person.per_second, group.per_second) == (1.0, 30, 30)
    assert group.burst + (60 - 1) // group.chat_gap <= 20


def test_secret_of_another_bot_is_forbidden(media: MemoryMedia):
    """platforms.md 2.2: each bot has its own secret."""
    with pytest.raises(Forbidden):
        telegram(media, None).receive(
            hook(signing.telegram_hook(TELEGRAM_SECRET.lower(), {"update_id": 1}))
        )


def test_body_that_is_not_json_is_a_bad_hook(media: MemoryMedia):
    """platforms.md 2.1: Telegram would repeat any other refused update for a day."""
    headers, _ = signing.telegram_hook(TELEGRAM_SECRET, {})
    for body in (b"", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(BadHook):
            telegram(media, None).receive(hook((headers, body)))


@pytest.mark.parametrize(
    "message",
    [
        signing.telegram_text(1, "charge order 5"),
        signing.telegram_photo(1, "file-1", "charge order 5"),
        signing.telegram_photo(1, "file-1"),
        signing.telegram_text(1, "", sticker={"file_id": "s", "is_animated": True, "emoji": "x"}),
        signing.telegram_text(1, "", checklist={"title": "To do", "tasks": []}),
        signing.telegram_text(1, "@acme_bot hi", chat=GROUP, sender_chat={"id": GROUP}),
    ],
)
def test_edit_without_a_change_has_the_content_of_its_message(media: MemoryMedia, message: dict):
    """A reaction, a link preview, a task that was done and other buttons change nothing that was written."""
    (turn,) = read(media, message).turns
    look = {
        "link_preview_options": {"url": "https://e.org"},
        "reply_markup": {"inline_keyboard": [[{"text": "More", "url": "https://e.org"}]]},
    }
    edit = {**message["message"], "edit_date": 1795204805, **look}
    (edited,) = read(media, {"update_id": 2, "edited_message": edit}).turns
    assert (edited.message_id, edited.content) == (turn.message_id, turn.content)
    assert turn.content


@pytest.mark.parametrize(
    "change",
    [
        {"text": "charge order 6"},
        {
            "caption": "charge order 5",
            "text": None,
            "photo": [{"file_id": "a", "file_unique_id": "b"}],
        },
    ],
)
def test_edit_that_people_see_has_another_content(media: MemoryMedia, change: dict):
    """A new text or another file is read as an edit."""
    message = signing.telegram_text(1, "charge order 5")
    (turn,) = read(media, message).turns
    (edited,) = read(
        media, {"update_id": 2, "edited_message": {**message["message"], **change}}
    ).turns
    assert (edited.kind, edited.message_id) == ("edit", turn.message_id)
    assert edited.content != turn.content


def test_edit_that_replaces_paid_media_has_another_content(media: MemoryMedia):
    """The price is the same, and another picture is shown."""
    contents = []
    for name in ("first", "second"):
        picture = {"file_id": name, "file_unique_id": f"u-{name}"}
        paid = {"star_count": 5, "paid_media": [{"type": "photo", "photo": [picture]}]}
        (turn,) = read(media, signing.telegram_text(1, "", paid_media=paid)).turns
        contents.append(turn.content)
    assert contents[0] != contents[1]


def test_edit_that_makes_words_bold_has_the_content_of_its_message(media: MemoryMedia):
    """The words are the same."""
    message = signing.telegram_text(1, "charge order 5")
    bold = {"entities": [{"type": "bold", "offset": 7, "length": 7}]}
    edit = {"update_id": 2, "edited_message": {**message["message"], **bold}}
    assert read(media, edit).turns[0].content == read(media, message).turns[0].content


def test_file_is_the_same_under_a_new_id_for_downloads(media: MemoryMedia):
    """Telegram may give a file another file_id in each update."""
    first, second = (
        read(
            media,
            signing.telegram_text(1, "", document={"file_id": file_id, "file_unique_id": "u"}),
        )
        for file_id in ("a", "b")
    )
    assert first.turns[0].content == second.turns[0].content


@pytest.mark.parametrize(
    ("text", "links", "seen"),
    [
        (
            "Visit our website for details",
            [("website", "https://e.org/1")],
            "Visit our website (https://e.org/1) for details",
        ),
        (
            "👋 a and b",
            [("b", "https://e.org/2"), ("a", "https://e.org/1")],
            "👋 a (https://e.org/1) and b (https://e.org/2)",
        ),
        ("e.org", [("e.org", "https://e.org/")], "e.org"),
    ],
)
@pytest.mark.parametrize("field", ["text", "caption"])
def test_address_behind_words_reaches_the_model(
    media: MemoryMedia, text: str, links: list, seen: str, field: str
):
    """People see where a link leads when they tap it; the model sees it in the text or the caption."""
    entities = [
        {
            "type": "text_link",
            "offset": len(text[: text.index(words)].encode("utf-16-le")) // 2,
            "length": len(words),
            "url": url,
        }
        for words, url in links
    ]
    update = (
        signing.telegram_text(1, text) if field == "text" else signing.telegram_photo(1, "p", text)
    )
    update["message"]["entities" if field == "text" else "caption_entities"] = entities
    assert read(media, update).turns[0].text == seen


def test_address_in_a_quote_and_beside_the_name_of_the_bot_is_written_out(media: MemoryMedia):
    """The bot's own name is removed where it stands, before or after a link."""
    link = {"type": "text_link", "offset": 10, "length": 4, "url": "https://e.org/1"}
    mention = {"type": "mention", "offset": 0, "length": 9}
    update = signing.telegram_text(1, "@acme_bot this @acme_bot", chat=GROUP)
    update["message"]["entities"] = [mention, link, {**mention, "offset": 15}]
    update["message"]["quote"] = {"text": "see this", "entities": [{**link, "offset": 4}]}
    (turn,) = read(media, update, username="acme_bot").turns
    assert (turn.text, turn.quoted) == ("this (https://e.org/1)", "see this (https://e.org/1)")


def test_address_of_an_edited_and_a_forwarded_message_reaches_the_model(media: MemoryMedia):
    """A forwarded message keeps its buttons, which people see as words only."""
    link = {"type": "text_link", "offset": 4, "length": 4, "url": "https://e.org/1"}
    edited = signing.telegram_edit(1, "see this", message_id=7, entities=[link])
    keys = [
        {"text": "Open order", "url": "https://e.org/o/42"},
        {"text": "Pay", "callback_data": "x"},
    ]
    forward = {
        "forward_origin": {"sender_user_name": "Ada"},
        "reply_markup": {"inline_keyboard": [keys]},
    }
    forwarded = signing.telegram_text(2, "see this", entities=[link], **forward)
    turns = [read(media, update).turns[0] for update in (edited, forwarded)]
    assert [turn.text for turn in turns] == ["see this (https://e.org/1)"] * 2
    assert turns[1].notes == ("forwarded from Ada", "button Open order (https://e.org/o/42)")


def test_yes_with_a_hidden_address_is_no_plain_yes(media: MemoryMedia):
    """A word that leads elsewhere says more than yes."""
    link = {"type": "text_link", "offset": 0, "length": 3, "url": "https://e.org/1"}
    update = signing.telegram_text(1, "yes", entities=[link])
    assert read(media, update).turns[0].text == "yes (https://e.org/1)"


def test_edit_after_the_time_for_edits_is_ignored(media: MemoryMedia):
    """People can edit a message for 48 hours, so this is a reaction or the like."""
    update = signing.telegram_edit(2, "charge order 5", message_id=1)
    update["edited_message"]["edit_date"] += 49 * 3600
    assert read(media, update).ignored == "a message that is too old to be edited by its author"


def test_bots_and_anonymous_admins_are_ignored(media: MemoryMedia):
    """platforms.md 2.1, pains.md 11: an anonymous admin may be any person, so the adapter ignores the name."""
    anonymous = {"from": {"id": 1087968824, "is_bot": True, "first_name": "Group"}}
    received = read(media, signing.telegram_text(1, "yes", chat=GROUP, **anonymous))
    assert (received.turns, received.ignored) == ((), "not sent by a person")
    as_group = {
        "sender_chat": {"id": GROUP},
        "from": {"id": 5123456789, "is_bot": False, "first_name": "Ada"},
    }
    assert read(media, signing.telegram_text(1, "yes", chat=GROUP, **as_group)).turns == ()


@pytest.mark.parametrize(
    ("told", "language"), [("pt-br", "pt-br"), ("", ""), (None, ""), (7, ""), ({"a": 1}, "")]
)
def test_language_of_the_app_is_a_hint(media: MemoryMedia, told: object, language: str):
    """Messages and taps carry it; a value that is no language tag gives no hint."""
    for update in (signing.telegram_text(1, "hi"), signing.telegram_tap(1, "x")):
        act = update.get("message") or update["callback_query"]
        act["from"]["language_code"] = told
        assert read(media, update).turns[0].language == language


def test_forged_callback_data_survives_as_text(media: MemoryMedia):
    """platforms.md 2.1: clients can send any data, half a surrogate pair included."""
    turn = read(media, signing.telegram_tap(1, "\ud800")).turns[0]
    assert turn.to_json()


def test_tap_on_an_ephemeral_message_is_answered_to_its_person_alone(media: MemoryMedia):
    """platforms.md 2.3: such a message has an ephemeral_message_id."""
    taps = [
        signing.telegram_tap(1, "x", chat=-7, ephemeral_message_id=3),
        signing.telegram_tap(2, "x", chat=-7),
    ]
    assert [read(media, tap).turns[0].ephemeral for tap in taps] == [True, False]


def test_tap_without_data_is_a_tap_on_nothing(media: MemoryMedia):
    """An app may send a tap on a disabled button.

    It is answered as one on an outdated button, and decides nothing.
    """
    update = signing.telegram_tap(1, "x")
    del update["callback_query"]["data"]
    (turn,) = read(media, update).turns
    assert turn.tap == Tap("", "cb1")


@pytest.mark.parametrize("key", ["inline_message_id", "game_short_name"])
def test_tap_without_a_message_or_on_a_game_is_ignored(media: MemoryMedia, key: str):
    """platforms.md 2.1: inline messages and games belong to no conversation of the bot."""
    update = signing.telegram_tap(1, "x")
    query = update["callback_query"]
    query[key] = "1"
    del query["message" if key == "inline_message_id" else "data"]
    assert read(media, update).ignored == "tap without a message, or on a game"


@pytest.mark.parametrize(
    ("text", "extra", "addressed"),
    [
        ("hello", {}, False),
        ("hello @acme_bot", {}, True),
        ("hello @bob", {}, False),
        ("/status", {}, True),
        ("/status@acme_bot", {}, True),
        ("/status@other_bot", {}, False),
        ("yes", {"reply_to_message": {"from": {"id": 7000000001}}}, True),
        ("yes", {"reply_to_message": {"from": {"id": 42}}}, False),
    ],
)
def test_group_message_is_addressed_by_a_mention_a_command_or_a_reply(
    media: MemoryMedia, text: str, extra: dict, addressed: bool
):
    """platforms.md 2.1: people in groups talk to each other, too."""
    update = signing.telegram_text(1, text, chat=GROUP, **extra)
    assert read(media, update, username="acme_bot").turns[0].addressed is addressed


@pytest.mark.parametrize(
    ("extra", "notes"),
    [
        (
            {"reply_to_message": {"from": {"id": 42, "first_name": "Bob\nLee"}}},
            ("written in reply to Bob Lee",),
        ),
        (
            {"external_reply": {"origin": {"type": "hidden_user"}}},
            ("written in reply to somebody else",),
        ),
        ({"reply_to_message": {"from": {"id": 7000000001}}}, ()),
        ({"reply_to_message": {"from": {"id": 5123456789}}}, ()),
        ({"reply_to_message": {"from": {"id": 42}, "forum_topic_created": {}}}, ()),
        ({"reply_to_message": {"sender_chat": {"id": -1}, "is_automatic_forward": True}}, ()),
    ],
)
def test_yes_in_reply_to_another_person_decides_nothing(
    media: MemoryMedia, extra: dict, notes: tuple
):
    """platforms.md 2.1: reply_to_message and external_reply name the other message; a topic's root does not count."""
    update = signing.telegram_text(1, "yes", chat=GROUP, **extra)
    turn = read(media, update, username="acme_bot").turns[0]
    assert (turn.notes, turn.decides) == (notes, not notes)


@pytest.mark.parametrize(
    ("username", "known"),
    [("@Acme_Bot", True), ("acme_bot", True), ("", True), ("acme bot", False)],
)
def test_username_in_the_yaml_is_valid_with_or_without_its_at_sign(username: str, known: bool):
    """Startup refuses a username that Telegram would never give."""
    settings = {"platform": "telegram", "token": "t", "secret_token": "s", "username": username}
    if known:
        assert TelegramSettings.model_validate(settings).username == username
    else:
        with pytest.raises(ValueError, match="username"):
            TelegramSettings.model_validate(settings)


def test_command_loses_the_name_of_the_bot(media: MemoryMedia):
    """`/start@acme_bot x` in a group is the same as `/start x` in private."""
    assert (
        read(media, signing.telegram_text(1, "/start@acme_bot x", chat=GROUP)).turns[0].text
        == "/start x"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@acme_bot yes", "yes"),
        ("@Acme_Bot, yes", "yes"),
        ("@acme_bot: 4711", "4711"),
        ("yes @acme_bot", "yes"),
        ("yes, @acme_bot", "yes"),
        ("yes @acme_bot please", "yes please"),
        ("yes, @acme_bot, please", "yes, please"),
        ("@acme_bot\nyes", "yes"),
        ("👍🏽 @acme_bot", "👍🏽"),
        ("@acme_bot @acme_bot no", "no"),
        ("@acme_bot /help", "/help"),
        ("/help @acme_bot", "/help"),
        ("@acme_bot /help@acme_bot", "/help"),
        ("@acme_bot tell @bob", "tell @bob"),
        ("@bob yes", "@bob yes"),
        ("@other_bot yes", "@other_bot yes"),
        ("mail me@acme_bot", "mail me@acme_bot"),
        ("@acme_bot", "@acme_bot"),
    ],
)
def test_own_name_is_no_part_of_the_words(media: MemoryMedia, text: str, words: str):
    """The name says for whom a message is: before the words, after them, with a comma or a colon."""
    update = signing.telegram_text(1, text, chat=GROUP)
    assert read(media, update, username="acme_bot").turns[0].text == words


def test_name_without_an_account_name_is_no_part_of_the_words(media: MemoryMedia):
    """Telegram marks a bot or a person whom it shows by name as a text_mention with an id."""
    for user_id, words in ((7000000001, "yes"), (42, "Acme, yes")):
        entity = {"type": "text_mention", "offset": 0, "length": 4, "user": {"id": user_id}}
        update = signing.telegram_text(1, "Acme, yes", chat=GROUP, entities=[entity])
        assert read(media, update).turns[0].text == words


def test_yes_to_any_bot_is_no_yes_while_the_own_name_is_unknown(media: MemoryMedia):
    """Without a configured name `@other_bot yes` may be meant for another bot."""
    update = signing.telegram_text(1, "@other_bot yes", chat=GROUP)
    assert read(media, update).turns[0].text == "@other_bot yes"


def test_poller_learns_the_name_of_its_bot(media: MemoryMedia, platforms: FakePlatforms):
    """A bot that polls has no webhook to configure, and often no `username` in its YAML."""
    channel = telegram(media, platforms.telegram_url)
    for number, text in enumerate(["@acme_bot yes", "@other_bot yes"]):
        platforms.update(signing.telegram_text(number + 1, text, chat=GROUP))
    updates = asyncio.run(channel.updates(None))
    assert [channel.read(update).turns[0].text for update in updates] == ["yes", "@other_bot yes"]


def test_topic_is_its_own_conversation(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.1: replies of a topic stay in it; a plain reply thread is no topic."""
    update = signing.telegram_text(1, "hi", chat=GROUP, message_thread_id=12, is_topic_message=True)
    turn = read(media, update).turns[0]
    assert turn.conversation == Conversation("tg", str(GROUP), "12")
    assert (
        read(media, signing.telegram_text(1, "hi", chat=GROUP, message_thread_id=12))
        .turns[0]
        .conversation.thread
        == ""
    )
    send(telegram(media, platforms.telegram_url), Reply("hello"), turn.conversation)
    assert (platforms.sent[0]["chat"], platforms.sent[0]["thread"]) == (str(GROUP), "12")


def test_refused_formatting_is_sent_plain_once(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.3: a plain text is better than a lost one."""
    error = "Bad Request: can't parse entities: Unsupported start tag"
    platforms.script("telegram", error)
    send(telegram(media, platforms.telegram_url), Reply("**a** < b"))
    assert (platforms.sent[0]["text"], "parse_mode" in platforms.sent[0]["raw"]) == ("a < b", False)
    platforms.script("telegram", error, times=2)
    with pytest.raises(Refused):
        send(telegram(media, platforms.telegram_url), Reply("**a** < b"))


def test_picture_of_a_refused_shape_is_sent_as_a_document(
    media: MemoryMedia, platforms: FakePlatforms
):
    """A chart with dimensions that Telegram refuses still arrives."""
    platforms.script("telegram", "Bad Request: PHOTO_INVALID_DIMENSIONS")
    send(telegram(media, platforms.telegram_url), Reply("chart", media=IMAGE))
    assert (platforms.sent[0]["raw"]["method"], platforms.sent[0]["text"]) == (
        "sendDocument",
        "chart",
    )


def test_long_caption_follows_its_picture(media: MemoryMedia):
    """platforms.md 2.3: a caption holds 1024 UTF-16 units, and an emoji has two."""
    channel = telegram(media, None)
    assert len(channel.split(Reply("👍" * 512, media=IMAGE))) == 1
    assert channel.split(Reply("👍" * 513, media=IMAGE)) == (Reply(media=IMAGE), Reply("👍" * 513))


def test_one_channel_serves_many_event_loops(media: MemoryMedia, platforms: FakePlatforms):
    """A connection belongs to one loop; the next loop opens its own without a call of getMe."""
    channel = telegram(media, platforms.telegram_url)
    for number in range(3):
        send(channel, Reply(str(number)))
    assert [entry["text"] for entry in platforms.sent] == ["0", "1", "2"]
    assert platforms.calls == []


def test_typing_acknowledges_the_tap(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.1: the button stops spinning and the chat shows typing."""
    channel = telegram(media, platforms.telegram_url)
    asyncio.run(
        channel.show_typing(channel.receive(telegram_hook(signing.telegram_tap(9, "x"))).turns[0])
    )
    calls = {call["method"]: call["params"] for call in platforms.calls}
    assert calls["answerCallbackQuery"] == {"callback_query_id": "cb9"}
    assert calls["sendChatAction"] == {"chat_id": "5123456789", "action": "typing"}


def test_tap_is_acknowledged_once(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.3: typing is repeated in its topic; a second answer to a tap would be an error."""
    channel = telegram(media, platforms.telegram_url)
    update = signing.telegram_tap(9, "x", chat=GROUP, message_thread_id=12, is_topic_message=True)
    turn = channel.receive(telegram_hook(update)).turns[0]
    assert [asyncio.run(channel.show_typing(turn)) for _ in range(3)] == [4.0] * 3
    methods = [call["method"] for call in platforms.calls]
    assert (methods.count("answerCallbackQuery"), methods.count("sendChatAction")) == (1, 3)
    assert {call["params"].get("message_thread_id", "12") for call in platforms.calls} == {"12"}


def test_memory_of_acknowledged_taps_is_bounded(media: MemoryMedia):
    """A process lives for weeks, so it remembers the newest taps only."""
    channel = telegram(media, None)
    assert all(channel._is_first(str(number)) for number in range(5000))
    assert len(channel._acknowledged_taps) <= 1000
    assert not channel._is_first("4999")


def test_edit_decides_nothing(media: MemoryMedia):
    """platforms.md 2.1: an edited message confirms nothing; nor does a caption, a text sent via another bot,
    or a message that was scheduled before the question.
    """
    extras = (
        {"caption": "yes", "photo": [{"file_id": "p"}]},
        {"via_bot": {"id": 1, "username": "gif"}},
        {"is_from_offline": True},
    )
    updates = [
        signing.telegram_edit(1, "yes", message_id=7),
        *(signing.telegram_text(2, "yes", **it) for it in extras),
    ]
    turns = [read(media, update).turns[0] for update in updates]
    assert [(turn.text, turn.decides) for turn in turns] == [("yes", False)] * 4
    assert (turns[0].kind, turns[0].message_id) == ("edit", "7")


@pytest.mark.parametrize("mark", ["strikethrough", "blockquote", "expandable_blockquote"])
def test_words_that_are_struck_out_or_quoted_decide_nothing(media: MemoryMedia, mark: str):
    """Only an entity says that a yes was struck out: the text is the same. The model reads it in a note."""
    entities = [{"type": mark, "offset": 0, "length": 3}]
    turn = read(media, signing.telegram_text(1, "yes", entities=entities)).turns[0]
    assert (turn.text, turn.decides) == ("yes", False)
    assert turn.notes == ("struck out: yes" if mark == "strikethrough" else "quoted: yes",)
    bold = [{"type": "bold", "offset": 0, "length": 3}]
    assert read(media, signing.telegram_text(2, "yes", entities=bold)).turns[0].decides


def test_words_that_are_struck_out_of_a_caption_are_noted(media: MemoryMedia):
    """The model must not take them for the person's words."""
    marks = [{"type": "strikethrough", "offset": 0, "length": 4}]
    photo = {"photo": [{"file_id": "p"}], "caption": "5 kg or 6 kg", "caption_entities": marks}
    message = signing.telegram_text(1, "", **photo)
    assert read(media, message).turns[0].notes == ("struck out: 5 kg",)


def test_edit_that_strikes_out_words_changes_the_content(media: MemoryMedia):
    """The text stays the same. With the same content the edit would count as a reaction."""
    entities = [{"type": "strikethrough", "offset": 0, "length": 4}]
    updates = [
        signing.telegram_text(1, "5 kg or 6 kg", message_id=7),
        signing.telegram_edit(2, "5 kg or 6 kg", message_id=7, entities=entities),
        signing.telegram_edit(3, "5 kg or 6 kg", message_id=7),
    ]
    written, struck_out, reaction = (read(media, update).turns[0].content for update in updates)
    assert written == reaction
    assert written != struck_out


@pytest.mark.parametrize(("status", "extra", "closed"), [
    ("kicked", {}, True), ("left", {}, True), ("restricted", {"is_member": False}, True),
    ("restricted", {"is_member": True}, False), ("member", {}, False), ("administrator", {}, False),
])  # fmt: skip
def test_address_is_closed_when_the_bot_is_blocked_or_removed(
    media: MemoryMedia, status: str, extra: dict, closed: bool
):
    """platforms.md 2.1: my_chat_member reports people who block the bot and groups that remove it."""
    for chat in (5123456789, GROUP):
        news = read(media, signing.telegram_member(1, status, chat=chat, **extra)).addresses[0]
        assert (news.conversation, bool(news.closed)) == (Conversation("tg", str(chat)), closed)


def test_messages_with_the_same_id_are_two_events(media: MemoryMedia):
    """platforms.md 2.1: message_id is 0 for ephemeral messages, so the update's id identifies them."""
    turns = [
        read(media, signing.telegram_text(update, "hi", message_id=0)).turns[0]
        for update in (900, 5)
    ]
    assert [(turn.event_id, turn.message_id) for turn in turns] == [("900", ""), ("5", "")]


def test_mention_offsets_are_counted_in_utf16_units(media: MemoryMedia):
    """platforms.md 2.1: offset and length are UTF-16 units: an emoji before the name counts twice."""
    for offset, addressed in ((5, True), (4, False)):
        entities = [{"type": "mention", "offset": offset, "length": 9}]
        update = signing.telegram_text(1, "👍🏽 @acme_bot", chat=GROUP, entities=entities)
        assert read(media, update, username="acme_bot").turns[0].addressed is addressed


def test_calls_use_no_removed_parameter(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.3: link_preview_options turns previews off; a strict server refuses the older names."""
    channel = telegram(media, platforms.telegram_url)
    for reply in (Reply("https://a.b"), Reply("https://a.c", edits="1")):
        send(channel, reply)
        raw = platforms.sent[0]["raw"]
        assert not {"disable_web_page_preview", "reply_to_message_id"} & set(raw)
        assert "is_disabled" in str(raw["link_preview_options"])


def test_buttons_have_styles_and_rows(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.3: a row has two buttons, and a button has the style of its reply."""
    keys = (Button("Yes", "y", "primary"), Button("No", "n", "danger"), Button("Later", "l"))
    send(telegram(media, platforms.telegram_url), Reply("?", keys))
    assert '"style": "danger"' in platforms.sent[0]["raw"]["reply_markup"]
    assert [key["label"] for key in platforms.sent[0]["buttons"]] == ["Yes", "No", "Later"]


@pytest.mark.parametrize(
    ("field", "value"), [("token", " "), ("secret_token", ""), ("secret_token", "no spaces")]
)
def test_empty_or_malformed_settings_are_refused(media: MemoryMedia, field: str, value: str):
    """platforms.md 2.2: with an empty secret, every request would be accepted."""
    with pytest.raises(ValueError, match=field):
        telegram(media, None, **{field: value})
