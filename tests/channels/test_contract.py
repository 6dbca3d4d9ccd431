"""The channel contract: every promise of the port, on every adapter, against servers that speak HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from dataclasses import replace

import pytest

from channels.base import (
    AddressClosed,
    Ambiguous,
    BadHook,
    Channel,
    Forbidden,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from channels.fakes.platforms import TWILIO_ACCOUNT_SID, FakePlatforms
from channels.types import Button, Delivery, Hook, Receipt, Reply, Turn
from tests.channels.harness import (
    ALL,
    FILES,
    IMAGE,
    PDF,
    MemoryMedia,
    Platform,
    sha256,
    slack_hook,
    telegram_hook,
    whatsapp_hook,
)

YES_NO = (Button("Yes", "a:1:yes", "primary"), Button("No", "a:1:no", "danger"))
LONG = "\n\n".join(f"Paragraph {number} with **bold**, `code`, 5 < 6 & more words. 👍🏽" for number in range(400))


@pytest.fixture(params=ALL, ids=lambda platform: platform.name)
def platform(request: pytest.FixtureRequest) -> Platform:
    """Each platform in turn."""
    return request.param


@pytest.fixture
def channel(platform: Platform, platforms: FakePlatforms, media: MemoryMedia) -> Channel:
    """Its adapter, talking to its fake."""
    return platform.build(media, f"{platforms.url}/{platform.fake}")


def send(channel: Channel, platform: Platform, reply: Reply) -> Receipt:
    """Send one piece."""
    return asyncio.run(channel.send(Delivery("d1", platform.conversation, reply)))


def failure(channel: Channel, platform: Platform, reply: Reply) -> SendError:
    """The error that sending one piece ends in."""
    with pytest.raises(SendError) as caught:
        send(channel, platform, reply)
    return caught.value


def test_one_changed_byte_is_forbidden(platform: Platform, channel: Channel):
    """A body, or for Telegram a secret, that differs in one byte is refused."""
    hook = platform.text(1, "send 10 to Bob")
    forged = replace(hook, body=hook.body.replace(b"10", b"90"))
    if platform.name == "telegram":
        name = "x-telegram-bot-api-secret-token"
        forged = replace(hook, headers={**hook.headers, name: hook.headers[name][:-1] + "4"})
    with pytest.raises(Forbidden):
        channel.receive(forged)


@pytest.mark.parametrize("value", ["", "0", "é", "\ud800", "v0=", "1,2", "9" * 5000])
def test_odd_signatures_are_forbidden(platform: Platform, channel: Channel, value: str):
    """Whatever stands in the signature headers, the answer is Forbidden and never a crash."""
    hook = platform.text(1, "hello")
    signing = [name for name in hook.headers if name != "content-type"]
    for name in signing:
        with pytest.raises(Forbidden):
            channel.receive(replace(hook, headers={**hook.headers, name: value}))


def test_missing_signature_is_forbidden(platform: Platform, channel: Channel):
    """No signature, no turn, whatever the body holds."""
    for body in (platform.text(1, "hello").body, b"", b"\xff\xfe", b"{" * 10_000, b"&" * 10_000):
        with pytest.raises(Forbidden):
            channel.receive(replace(platform.text(1, "hello"), headers={}, body=body))


def test_redelivery_has_the_same_event_id(platform: Platform, channel: Channel):
    """The second delivery of one act can be told from a second act."""
    first, again, other = (channel.receive(platform.text(number, "yes")).turns[0] for number in (1, 1, 2))
    assert first == again
    assert first.event_id != other.event_id


def test_tap_carries_our_data_and_no_text(platform: Platform, channel: Channel):
    """A tapped button is not a typed word."""
    turn = channel.receive(platform.tap(3, "a:1:yes")).turns[0]
    assert turn.tap is not None
    assert (turn.tap.data, turn.text) == ("a:1:yes", "")
    assert (turn.user_id, turn.conversation) == (platform.user_id, platform.conversation)


def test_text_becomes_a_turn(platform: Platform, channel: Channel):
    """Who, where and what, with the words as typed."""
    received = channel.receive(platform.text(1, "Hello 👋 a & b <c> + 100% = ok"))
    turn = received.turns[0]
    assert turn.text == "Hello 👋 a & b <c> + 100% = ok"
    assert (turn.user_id, turn.conversation) == (platform.user_id, platform.conversation)
    assert turn.addressed
    assert received.answer.status == 200
    assert Turn.from_json(turn.to_json()) == turn


def test_pieces_fit_and_lose_nothing(platform: Platform, channel: Channel):
    """A long reply arrives whole, in messages the platform accepts, its buttons on the last."""
    pieces = channel.pieces(Reply(LONG, buttons=YES_NO))
    assert "".join(piece.text for piece in pieces) == LONG
    assert all(platform.measure(piece.text) <= platform.limit for piece in pieces)
    assert platform.measure(pieces[-1].text) <= platform.button_limit
    assert [piece.buttons for piece in pieces] == [()] * (len(pieces) - 1) + [YES_NO]


def test_every_piece_of_a_long_reply_is_accepted(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """The limits we keep are those the platform checks, also when all characters must be escaped."""
    replies = (Reply(LONG, YES_NO, IMAGE), Reply("&<>" * 3000, YES_NO), Reply("👍🏽" * 5000))
    pieces = [piece for reply in replies for piece in channel.pieces(reply)]
    for piece in pieces:
        send(channel, platform, piece)
    assert len(platforms.sent) == len(pieces)


def test_short_reply_is_one_piece(platform: Platform, channel: Channel):
    """What fits is not cut, and nothing is not sent."""
    assert channel.pieces(Reply("Hello")) == (Reply("Hello"),)
    assert channel.pieces(Reply("")) == ()


def test_text_arrives(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """Words arrive where they belong, and formatting never hides them."""
    send(channel, platform, Reply("**Sum** is 5 < 6 & `x`"))
    sent = platforms.sent[-1]
    words = sent["text"].replace("&lt;", "<").replace("&amp;", "&").replace("*", "").replace("`", "")
    assert (sent["chat"], words) == (platform.conversation.chat, "Sum is 5 < 6 & x")


def test_buttons_arrive_with_their_data(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """What a tap will send back is exactly what we minted."""
    send(channel, platform, Reply("Delete 3 files?", buttons=YES_NO))
    assert platforms.sent[-1]["buttons"] == [{"label": "Yes", "data": "a:1:yes"}, {"label": "No", "data": "a:1:no"}]


@pytest.mark.parametrize("file", [IMAGE, PDF], ids=["image", "document"])
def test_files_arrive_unchanged(platform: Platform, channel: Channel, platforms: FakePlatforms, file):
    """The bytes and the name at the other end are the ones in the store, with the words beside them."""
    for piece in channel.pieces(Reply("Here it is", media=file)):
        send(channel, platform, piece)
    stored = next(entry["media"] for entry in platforms.sent if entry["media"])
    assert (stored["sha256"], stored["filename"]) == (sha256(FILES[file.ref]), file.filename)
    assert [entry["text"] for entry in platforms.sent if entry["text"]] == ["Here it is"]


@pytest.mark.parametrize("platform", [each for each in ALL if each.name != "whatsapp"], ids=lambda each: each.name)
def test_missing_file_is_refused(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """A file that left the store will not come back by trying again. (Twilio fetches files itself, later.)"""
    error = failure(channel, platform, Reply(media=replace(IMAGE, ref="gone")))
    assert isinstance(error, Refused)


def test_rate_limit_says_how_long(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """429 becomes RateLimited, with the platform's own wait."""
    platforms.script(platform.fake, "429")
    error = failure(channel, platform, Reply("hello"))
    assert isinstance(error, RateLimited)
    assert error.retry_after == 7.0


def test_closed_address_is_told_from_refused_words(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """Nothing will arrive there; other words might not be the cure."""
    closed = {"whatsapp": "63003", "telegram": "Bad Request: chat not found", "slack": "is_archived"}
    words = {"whatsapp": "21617", "telegram": "Bad Request: message is too long", "slack": "invalid_arguments"}
    kinds = []
    for errors in (closed, words):
        platforms.script(platform.fake, errors[platform.name])
        kinds.append(type(failure(channel, platform, Reply("hello"))))
    assert kinds == [AddressClosed, Refused]


@pytest.mark.parametrize("reply", [Reply("hello"), Reply("sure?", YES_NO), Reply("a", media=IMAGE)], ids=repr)
def test_refused_connection_is_unreachable(platform: Platform, media: MemoryMedia, reply: Reply):
    """Nobody listens: certainly nothing arrived."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert isinstance(failure(platform.build(media, address), platform, reply), Unreachable)


@pytest.mark.parametrize("error", ["drop", "lost"])
def test_dropped_connection_is_ambiguous(platform: Platform, channel: Channel, platforms: FakePlatforms, error: str):
    """Once sent, a lost answer leaves open whether the message arrived; the adapter does not send it again."""
    platforms.script(platform.fake, error)
    assert isinstance(failure(channel, platform, Reply("sure?", buttons=YES_NO)), Ambiguous)
    assert len(platforms.sent) == (1 if error == "lost" else 0)


def test_server_error_is_ambiguous(platform: Platform, channel: Channel, platforms: FakePlatforms):
    """A 500 says nothing about what was done before it."""
    platforms.script(platform.fake, "500")
    assert isinstance(failure(channel, platform, Reply("hello")), Ambiguous)


@pytest.mark.parametrize("error", ["429", "500", "drop", "refuse"])
def test_no_secret_in_errors_or_logs(
    platform: Platform, channel: Channel, platforms: FakePlatforms, error: str, caplog: pytest.LogCaptureFixture
):
    """Neither message nor traceback nor DEBUG log holds a token, an address or the words."""
    caplog.set_level(logging.DEBUG)
    refusal = {"whatsapp": "21211", "telegram": "Bad Request: chat not found", "slack": "channel_not_found"}
    platforms.script(platform.fake, refusal[platform.name] if error == "refuse" else error)
    raised = failure(channel, platform, Reply("the-secret-words"))
    told = "".join(traceback.format_exception(raised)) + repr(raised) + repr(channel) + caplog.text
    assert not [secret for secret in (*platform.secrets, "the-secret-words") if secret in told]
    assert isinstance(raised, Refused) == (error == "refuse")


def test_attend_never_raises(platform: Platform, media: MemoryMedia):
    """A sign of life is worth nothing to anybody if it can break the turn."""
    channel = platform.build(media, "http://127.0.0.1:1")
    for hook in (platform.text(1, "hello"), platform.tap(2, "a:1:yes")):
        asyncio.run(channel.attend(channel.receive(hook).turns[0]))


def test_signed_nonsense_is_a_bad_hook_or_ignored(platform: Platform, channel: Channel):
    """A signed request without sense gives no turn and no crash."""
    for hook in nonsense(platform):
        try:
            assert channel.receive(hook).ignored
        except BadHook:
            continue


def nonsense(platform: Platform) -> list[Hook]:
    """Signed requests that no platform would send."""
    broken = {"message": [], "callback_query": {"from": {}}, "update_id": 1}
    if platform.name == "whatsapp":
        return [whatsapp_hook({"AccountSid": TWILIO_ACCOUNT_SID, **extra}) for extra in ({}, {"MessageSid": "SM1"})]
    if platform.name == "telegram":
        updates = ([], 1, {}, {"update_id": 1}, broken, {"message": None}, {"message": {"from": 3}})
        return [telegram_hook(update) for update in updates]
    bodies = (b"", b"{}", b"{", b"[]", b"payload=", b"payload=1", b"payload=%5B%5D", b'{"type":"event_callback"}')
    events = [b'{"type":"event_callback","event":%s}' % event for event in (b"null", b"{}", b'{"type":"message"}')]
    return [slack_hook(body) for body in (*bodies, *events, b'{"type":"block_actions","actions":[]}')]
