"""The channel contract: every promise of the port on every adapter, against fake servers where there is an API."""

from __future__ import annotations

import asyncio
import html
import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from sayso.channels.base import (
    AddressClosed,
    BadHook,
    Channel,
    DeliveryUncertain,
    Forbidden,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from sayso.channels.markdown.dialects import GAP
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.types import Button, Delivery, Receipt, Reply, Turn, WebhookRequest
from sayso.testing.platforms.fake_platforms import TWILIO_ACCOUNT_SID, FakePlatforms
from tests.channels.harness import (
    ALL,
    EVERY,
    FILES,
    IMAGE,
    JSON_WEBHOOK,
    PDF,
    SLACK,
    TELEGRAM,
    WHATSAPP,
    YES_NO,
    MemoryMedia,
    Platform,
    Seen,
    console_hook,
    sha256,
    slack_hook,
    telegram_hook,
    whatsapp_hook,
)
from tests.channels.json_webhook import signed_hook
from tests.config.processes import free_port

LONG = "\n\n".join(
    f"Paragraph {number} with **bold**, `code`, 5 < 6 & more words. 👍🏽" for number in range(400)
)


#: Marks promises of platforms with an API; all other promises hold for every channel.
over_http = pytest.mark.parametrize("platform", [*ALL, JSON_WEBHOOK], ids=repr)


@pytest.fixture(params=[*EVERY, JSON_WEBHOOK], ids=repr)
def platform(request: pytest.FixtureRequest) -> Platform:
    """Each platform in turn."""
    return request.param


@pytest.fixture
def channel(platform: Platform, platforms: FakePlatforms, media: MemoryMedia) -> Channel:
    """Return the platform's adapter, connected to its fake."""
    return platform.open(media, platforms)


@pytest.fixture
def seen(platform: Platform, channel: Channel, platforms: FakePlatforms) -> Callable[[], Seen]:
    """Return a function that lists what the person sees."""
    return lambda: platform.seen(channel, platforms)


def send(channel: Channel, platform: Platform, reply: Reply) -> Receipt:
    """Send one piece."""
    return asyncio.run(channel.send(Delivery("d1", platform.conversation, reply)))


def deliver(channel: Channel, platform: Platform, reply: Reply) -> Receipt:
    """Send a whole reply; return the receipt of its first piece, "" without one."""
    receipts = [send(channel, platform, piece) for piece in channel.split(reply)]
    return receipts[0] if receipts else Receipt("")


def failure(channel: Channel, platform: Platform, reply: Reply) -> SendError:
    """Send one piece; return the error."""
    with pytest.raises(SendError) as caught:
        send(channel, platform, reply)
    return caught.value


def test_one_changed_byte_is_forbidden(platform: Platform, channel: Channel):
    """A body that differs in one byte is refused, or the secret where that is the only proof."""
    hook = platform.text(1, "send 10 to Bob")
    forged = [replace(hook, body=hook.body.replace(b"10", b"90"))] if platform.is_signed else []
    for name in platform.proofs:
        value = hook.headers[name]
        changed = f"{value[:-5]}{'x' if value[-5] != 'x' else 'y'}{value[-4:]}"
        forged.append(replace(hook, headers={**hook.headers, name: changed}))
    for each in forged:
        with pytest.raises(Forbidden):
            channel.receive(each)


@pytest.mark.parametrize("value", ["", "0", "é", "\ud800", "v0=", "1,2", "9" * 5000])
def test_odd_signatures_are_forbidden(platform: Platform, channel: Channel, value: str):
    """platforms.md 2.2, 3.2: any text in the signature headers gets Forbidden, never a crash."""
    hook = platform.text(1, "hello")
    signing = platform.proofs or [name for name in hook.headers if name != "content-type"]
    for name in signing:
        with pytest.raises(Forbidden):
            channel.receive(replace(hook, headers={**hook.headers, name: value}))


def test_missing_signature_is_forbidden(platform: Platform, channel: Channel):
    """platforms.md 1.2: without a signature no body becomes a turn."""
    for body in (platform.text(1, "hello").body, b"", b"\xff\xfe", b"{" * 10_000, b"&" * 10_000):
        with pytest.raises(Forbidden):
            channel.receive(replace(platform.text(1, "hello"), headers={}, body=body))


def test_redelivery_has_the_same_event_id(platform: Platform, channel: Channel):
    """platforms.md 1.1, 3.1: a redelivery differs from a second act."""
    first, again, other = (
        channel.receive(platform.text(number, "yes")).turns[0] for number in (1, 1, 2)
    )
    assert first == again
    assert first.event_id != other.event_id


def test_tap_carries_the_buttons_data_and_no_text(platform: Platform, channel: Channel):
    """platforms.md 1.1: a tapped button is not a typed text."""
    send(channel, platform, Reply("sure?", buttons=YES_NO))
    turn = channel.receive(platform.tap(3, "a:1:yes")).turns[0]
    assert turn.tap is not None
    assert (turn.tap.data, turn.text) == ("a:1:yes", "")
    assert (turn.user_id, turn.conversation) == (platform.user_id, platform.conversation)


def test_text_becomes_a_turn(platform: Platform, channel: Channel):
    """The turn has user, conversation and the text as typed."""
    received = channel.receive(platform.text(1, "Hello 👋 a & b <c> + 100% = ok"))
    turn = received.turns[0]
    assert turn.text == "Hello 👋 a & b <c> + 100% = ok"
    assert (turn.user_id, turn.conversation) == (platform.user_id, platform.conversation)
    assert turn.addressed
    assert received.answer.status == 200
    assert Turn.from_json(turn.to_json()) == turn


def test_pieces_fit_and_lose_nothing(platform: Platform, channel: Channel):
    """A long reply arrives whole, in messages that the platform accepts, with its buttons on the last."""
    pieces = channel.split(Reply(LONG, buttons=YES_NO))
    assert "".join(piece.text for piece in pieces) == LONG
    assert all(platform.measure(piece.text) <= platform.limit for piece in pieces)
    assert platform.measure(pieces[-1].text) <= platform.button_limit
    assert [piece.buttons for piece in pieces] == [()] * (len(pieces) - 1) + [YES_NO]


def test_every_piece_of_a_long_reply_is_accepted(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """The adapter's limits are those that the platform checks, even if all characters must be escaped."""
    replies = (Reply(LONG, YES_NO, IMAGE), Reply("&<>" * 3000, YES_NO), Reply("👍🏽" * 5000))
    pieces = [piece for reply in replies for piece in channel.split(reply)]
    for piece in pieces:
        send(channel, platform, piece)
    assert len(seen()) == len(pieces)


@pytest.mark.parametrize(
    "preview", ["Delete **3** files", "Two steps:\n1. Delete A\n2. Delete B", LONG], ids=len
)
def test_preview_looks_like_the_text_around_it(platform: Platform, channel: Channel, preview: str):
    """The pieces of a question are the same whether or not the reply names its preview."""
    question = Reply(
        f"{preview} is off.\n\n{preview}\n\nReply **yes** to confirm.", YES_NO, preview=preview
    )
    pieces = [replace(piece, preview="") for piece in channel.split(question)]
    assert pieces == list(channel.split(replace(question, preview="")))


def test_short_reply_is_one_piece(platform: Platform, channel: Channel):
    """A text that fits is not cut, and an empty one is not sent."""
    assert channel.split(Reply("Hello")) == (Reply("Hello"),)
    assert channel.split(Reply("")) == ()


def test_text_arrives(platform: Platform, channel: Channel, seen: Callable[[], Seen]):
    """The text arrives in its conversation, and formatting never hides it."""
    send(channel, platform, Reply("**Sum** is 5 < 6 & `x`"))
    (sent,) = seen()
    words = (
        sent["text"].replace("&lt;", "<").replace("&amp;", "&").replace("*", "").replace("`", "")
    )
    assert (sent["chat"], words) == (platform.conversation.chat, "Sum is 5 < 6 & x")


@pytest.mark.parametrize("platform", EVERY, ids=repr)
def test_text_of_a_tool_arrives_as_it_is(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """A path, a formula and a tag lose no character to formatting, in a reply that is otherwise Markdown."""
    text = "__init__.py, C:\\new_dir\\_x\\*.txt, a*b*c, snake_case_, <tag> & `x`"
    send(channel, platform, Reply(f"**Deleted**\n\n{as_markdown(text)}"))
    (sent,) = seen()
    assert html.unescape(sent["text"]).replace(GAP, "").endswith(f"\n\n{text}")


@pytest.mark.parametrize("platform", EVERY, ids=repr)
@pytest.mark.parametrize(
    "text",
    [
        "> a\n- b\n* c\n1. d\n# e\n---\n| f |",
        "*.py and *.txt in ~/.ssh and ~/x, _a_ `b` and ``c``",
        "<id> &amp; &#42; {{1}} $x_1$ @channel <!here> [a](b) ![c](d)",
        "C:\\_dir_\\n\\*.wav \\* ends in \\",
        "**\u91cd\u8981\uff1a**\u8bf7 \u5355\u4ef7*\u6570\u91cf*\u6298\u6263 ~~\u65e7~~",
    ],
)
def test_text_of_a_tool_arrives_in_messages_captions_and_edits(
    platform: Platform, channel: Channel, seen: Callable[[], Seen], text: str
):
    """Each character is there, wherever it stands."""
    shown = send(channel, platform, Reply("first")).message_id
    send(channel, platform, Reply(as_markdown(text), edits=shown))
    deliver(channel, platform, Reply(as_markdown(text), media=IMAGE))
    arrived = [entry["text"].replace(GAP, "") for entry in seen()]
    if platform is SLACK:
        arrived = [html.unescape(words) for words in arrived]
    assert [words for words in arrived if words not in ("", "first")] == [text, text]


def test_buttons_arrive_with_their_data(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """A tap will send exactly the data of the button."""
    send(channel, platform, Reply("Delete 3 files?", buttons=YES_NO))
    assert seen()[-1]["buttons"] == [
        {"label": "Yes", "data": "a:1:yes"},
        {"label": "No", "data": "a:1:no"},
    ]


@pytest.mark.parametrize("effect", ["Delete *3* files", "Delete " + "very " * 20 + "many files"])
def test_button_says_what_a_tap_does_if_that_is_short(
    platform: Platform, channel: Channel, seen: Callable[[], Seen], effect: str
):
    """A long effect leaves the label. On WhatsApp each label would make a permanent Content in the account."""
    confirm = Button("Yes", "a:1:yes", "danger", effect)
    send(channel, platform, Reply("Delete 3 files?", buttons=(confirm, YES_NO[1])))
    names_effects = platform.name in ("telegram", "slack", "console")
    label = "Delete 3 files" if names_effects and len(effect) < 20 else "Yes"
    assert [button["label"] for button in seen()[-1]["buttons"]] == [label, "No"]


@pytest.mark.parametrize("file", [IMAGE, PDF], ids=["image", "document"])
def test_files_arrive_unchanged(
    platform: Platform, channel: Channel, seen: Callable[[], Seen], file
):
    """pains.md 13: bytes and name arrive as they are in the store, with the text beside them."""
    for piece in channel.split(Reply("Here it is", media=file)):
        send(channel, platform, piece)
    stored = next(entry["media"] for entry in seen() if entry["media"])
    assert (stored["sha256"], stored["filename"]) == (sha256(FILES[file.ref]), file.filename)
    assert [entry["text"] for entry in seen() if entry["text"]] == ["Here it is"]


@pytest.mark.parametrize(
    "name",
    [
        "report march (1).pdf",
        "Отчёт за март.pdf",
        "100% ÷ 2 & 3 #4.pdf",
        "__init__.pdf",
        "a%20b+c=d.tar.gz",
        "报告「一」.pdf",
        "تقرير ١٢.pdf",
        "e\u0301te\u0301.pdf",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645.pdf",
        "👨\u200d👩\u200d👧 ⚠\ufe0f 🇩🇪.pdf",
        "[1] *final*, 'old' <new> `x`.pdf",
        "con.pdf",
        ".hidden.pdf",
        "no ending",
        "x" * 116 + ".pdf",
    ],
)
def test_name_of_a_file_arrives_as_it_is(
    platform: Platform, channel: Channel, seen: Callable[[], Seen], name: str
):
    """People see a name in their alphabet, and no percent signs in place of its letters."""
    for piece in channel.split(Reply(media=replace(PDF, filename=name))):
        send(channel, platform, piece)
    assert [entry["media"]["filename"] for entry in seen() if entry["media"]] == [name]


class WatchedFile(FileIO):
    """A file on the disk that notes the most bytes that were read at once."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        """Read, and note how much."""
        part = super().read(size)
        self.most = max(self.most, len(part))
        return part


class OneFile(MemoryMedia):
    """A media store with one watched file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = WatchedFile(path)

    def open(self, ref: str) -> BinaryIO:
        """Return the file."""
        return cast("BinaryIO", self.file)


@pytest.mark.parametrize("platform", [TELEGRAM, SLACK], ids=repr)
def test_file_is_sent_in_parts(platform: Platform, platforms: FakePlatforms, tmp_path: Path):
    """A worker that sends many files at once has none of them whole in memory."""
    content = b"%PDF-1.7\n" + bytes(range(256)) * 16_384
    (tmp_path / "file").write_bytes(content)
    media = OneFile(tmp_path / "file")
    channel = platform.open(media, platforms)
    for piece in channel.split(Reply(media=replace(PDF, size=len(content)))):
        send(channel, platform, piece)
    media.close()
    (arrived,) = [
        entry["media"]["sha256"] for entry in platform.seen(channel, platforms) if entry["media"]
    ]
    assert (arrived, media.file.most <= 512 * 1024) == (sha256(content), True)
    assert media.file.closed


@pytest.mark.parametrize("platform", [TELEGRAM, SLACK], ids=repr)
def test_missing_file_is_refused(platform: Platform, channel: Channel):
    """A retry does not bring a deleted file back. (Twilio and browsers fetch files later.)"""
    error = failure(channel, platform, Reply(media=replace(IMAGE, ref="gone")))
    assert isinstance(error, Refused)


@over_http
def test_rate_limit_says_how_long(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """platforms.md 1.4, 3.4: 429 becomes RateLimited, with the platform's own wait."""
    platforms.script(platform.fake, "429")
    error = failure(channel, platform, Reply("hello"))
    assert isinstance(error, RateLimited)
    assert error.retry_after == 7.0


@over_http
def test_closed_address_differs_from_a_refused_text(
    platform: Platform, channel: Channel, platforms: FakePlatforms
):
    """No message will arrive there, whatever its text is."""
    closed = {
        "whatsapp": "63024", "telegram": "Bad Request: chat not found", "slack": "is_archived", "json_webhook": "410"
    }  # fmt: skip
    words = {
        "whatsapp": "21617", "telegram": "Bad Request: message is too long", "slack": "invalid_arguments",
        "json_webhook": "422",
    }  # fmt: skip
    kinds = []
    for errors in (closed, words):
        platforms.script(platform.fake, errors[platform.name])
        kinds.append(type(failure(channel, platform, Reply("hello"))))
    assert kinds == [AddressClosed, Refused]


@over_http
@pytest.mark.parametrize(
    "reply", [Reply("hello"), Reply("sure?", YES_NO), Reply("a", media=IMAGE)], ids=repr
)
def test_refused_connection_is_unreachable(platform: Platform, media: MemoryMedia, reply: Reply):
    """No server listens, so nothing arrived."""
    address = f"http://127.0.0.1:{free_port()}"
    assert isinstance(failure(platform.build(media, address), platform, reply), Unreachable)


@over_http
@pytest.mark.parametrize("error", ["drop", "lost"])
def test_dropped_connection_is_ambiguous(
    platform: Platform, channel: Channel, platforms: FakePlatforms, error: str
):
    """platforms.md 2.4, 3.4: after a lost answer the message may have arrived; the adapter does not send it again."""
    platforms.script(platform.fake, error)
    assert isinstance(failure(channel, platform, Reply("sure?", buttons=YES_NO)), DeliveryUncertain)
    assert len(platforms.sent) == (1 if error == "lost" else 0)


@over_http
def test_server_error_is_ambiguous(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """platforms.md 2.4, 3.4: a 500 does not tell what was done before it."""
    platforms.script(platform.fake, "500")
    assert isinstance(failure(channel, platform, Reply("hello")), DeliveryUncertain)


@over_http
@pytest.mark.parametrize("error", ["429", "500", "drop", "refuse"])
def test_no_secret_in_errors_or_logs(
    platform: Platform,
    channel: Channel,
    platforms: FakePlatforms,
    error: str,
    caplog: pytest.LogCaptureFixture,
):
    """pains.md 15: no message, traceback or DEBUG log holds a token, an address or the text."""
    caplog.set_level(logging.DEBUG)
    refusal = {
        "whatsapp": "21211", "telegram": "Bad Request: chat not found", "slack": "channel_not_found",
        "json_webhook": "410",
    }  # fmt: skip
    platforms.script(platform.fake, refusal[platform.name] if error == "refuse" else error)
    raised = failure(channel, platform, Reply("the-secret-words"))
    told = "".join(traceback.format_exception(raised)) + repr(raised) + repr(channel) + caplog.text
    assert not [secret for secret in (*platform.secrets, "the-secret-words") if secret in told]
    assert isinstance(raised, Refused) == (error == "refuse")


def test_show_typing_never_raises(platform: Platform, media: MemoryMedia):
    """platforms.md 2.4: a typing indicator must not break the turn."""
    channel = platform.build(media, "http://127.0.0.1:1")
    for hook in (platform.text(1, "hello"), platform.tap(2, "a:1:yes")):
        asyncio.run(channel.show_typing(channel.receive(hook).turns[0]))


def test_signed_nonsense_is_refused_or_ignored(platform: Platform, channel: Channel):
    """A signed request without meaning gives no turn and no crash."""
    for hook in nonsense(platform):
        try:
            assert channel.receive(hook).ignored
        except BadHook:
            continue


def nonsense(platform: Platform) -> list[WebhookRequest]:
    """Return signed requests that no platform would send."""
    match platform.name:
        case "whatsapp":
            return [
                whatsapp_hook({"AccountSid": TWILIO_ACCOUNT_SID, **extra})
                for extra in ({}, {"MessageSid": "SM1"})
            ]
        case "telegram":
            broken = {"message": [], "callback_query": {"from": {}}, "update_id": 1}
            updates = (
                [],
                1,
                {},
                {"update_id": 1},
                broken,
                {"message": None},
                {"message": {"from": 3}},
            )
            return [telegram_hook(update) for update in updates]
        case "console":
            bodies = (
                b"",
                b"{}",
                b"{",
                b"[]",
                b"\xff",
                b'{"id":"e1"}',
                b'{"id":1,"text":"x"}',
                b'{"id":"e1","tap":[]}',
            )
            return [console_hook(body) for body in bodies]
        case "json_webhook":
            bodies = (
                b"",
                b"{}",
                b"{",
                b"[]",
                b"\xff",
                b'{"id":"e1","chat":"c","user":"u"}',
                b'{"id":1,"text":"x"}',
            )
            return [signed_hook(body) for body in bodies]
    bodies = (
        b"",
        b"{}",
        b"{",
        b"[]",
        b"payload=",
        b"payload=1",
        b"payload=%5B%5D",
        b'{"type":"event_callback"}',
    )
    events = [
        b'{"type":"event_callback","event":%s}' % event
        for event in (b"null", b"{}", b'{"type":"message"}')
    ]
    return [
        slack_hook(body) for body in (*bodies, *events, b'{"type":"block_actions","actions":[]}')
    ]


def test_edit_shows_the_outcome_and_removes_the_buttons(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """The outcome replaces the question, or comes below it, and no button is left. Only on WhatsApp an old button stays
    (platforms.md 1.3: no edits), and a tap on it gets the outcome.
    """
    question = send(channel, platform, Reply("Delete 3 files?", buttons=YES_NO))
    assert question.message_id
    receipt = deliver(channel, platform, Reply("Deleted.", edits=question.message_id))
    texts = ["Deleted."] if platform.edits else ["Delete 3 files?", "Deleted."]
    assert [message["text"] for message in seen()] == texts
    assert [len(message["buttons"]) for message in seen()] == (
        [2, 0] if platform is WHATSAPP else [0 for _ in texts]
    )
    assert (receipt.message_id == question.message_id) is platform.edits


def test_edit_may_come_twice(platform: Platform, channel: Channel, seen: Callable[[], Seen]):
    """A platform that finds nothing to change has done the edit."""
    question = send(channel, platform, Reply("Delete 3 files?", buttons=YES_NO))
    edit = Reply("Deleted.", edits=question.message_id, optional=True)
    assert [deliver(channel, platform, edit) for _ in range(2)] == [
        question if platform.edits else Receipt("")
    ] * 2
    assert len(seen()) == 1


def test_edit_may_bring_other_buttons(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """The message has exactly the edit's buttons, except for an old message on WhatsApp."""
    offer = send(channel, platform, Reply("Undo?", buttons=(Button("Undo", "a:2:yes"),)))
    deliver(channel, platform, Reply("Really?", buttons=YES_NO, edits=offer.message_id))
    left = seen()[1:] if platform is WHATSAPP else seen()
    assert [button["data"] for message in left for button in message["buttons"]] == [
        "a:1:yes",
        "a:1:no",
    ]


def test_optional_edit_of_a_deleted_message_is_left_out(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """Its text is not needed."""
    assert deliver(
        channel, platform, Reply("Deleted.", edits=platform.gone, optional=True)
    ) == Receipt("")
    assert send(
        channel, platform, Reply("Deleted.", edits=platform.gone, optional=True)
    ) == Receipt("")
    assert seen() == []


def test_other_edit_of_a_deleted_message_is_sent_anew(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """Its text must arrive."""
    receipt = deliver(channel, platform, Reply("Deleted.", edits=platform.gone))
    assert receipt.message_id not in ("", platform.gone)
    assert [message["text"] for message in seen()] == ["Deleted."]


def test_the_first_piece_of_a_long_edit_is_the_edit(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """The others follow as messages of their own, as all do on a platform without edits."""
    draft = send(channel, platform, Reply("Paragraph 0"))
    first, *others = channel.split(Reply(LONG, edits=draft.message_id))
    assert first.edits == draft.message_id or not platform.edits
    assert not any(piece.edits for piece in others)


def test_draft_is_replaced_by_its_answer(
    platform: Platform, channel: Channel, seen: Callable[[], Seen]
):
    """It grows in one message, within the rate limit, and at the end only the answer stays."""
    turn, shown = channel.receive(platform.text(1, "tell me")).turns[0], ""
    shows_drafts = channel.rate_limit(platform.conversation).draft_gap > 0
    for text in ("The", "The answer", "The answer gro"):
        shown = asyncio.run(channel.draft(turn, text, shown))
        assert bool(shown) <= shows_drafts
    deliver(channel, platform, Reply("The answer.", edits=shown))
    assert [message["text"] for message in seen()] == ["The answer."]
