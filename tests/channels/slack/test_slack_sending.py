"""Slack's outbound side: edits, drafts, buttons, direct messages by a person's id, typing status."""

from __future__ import annotations

import asyncio
import io

import pytest

from sayso.channels.base import AddressClosed, FetchError, RateLimited, Refused, Unreachable
from sayso.channels.slack import outgoing
from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.outgoing import LABEL_LIMIT
from sayso.channels.types import Button, Conversation, Delivery, Media, Receipt, Reply, Turn
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack import FakeSlack
from tests.channels.harness import IMAGE, MemoryMedia, fetch_bytes, server, slack, slack_hook

THREAD = Conversation("sl", "C0OPS", "1795204800.000150")
DIRECT = Conversation("sl", "D0ADA")
BY_ID = Conversation("sl", "U0ADA")
YES_NO = (Button("Yes", "a:1:yes", "primary"), Button("No", "a:1:no", "danger"))
UNEDITABLE = ("message_not_found", "cant_update_message", "edit_window_closed")


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms) -> SlackChannel:
    """Return the adapter, talking to its fake."""
    return slack(media, platforms.slack_url)


def send(channel: SlackChannel, reply: Reply, to: Conversation = THREAD) -> str:
    """Send one piece and return its message id."""
    return asyncio.run(channel.send(Delivery("d", to, reply))).message_id


@pytest.mark.parametrize("to", [THREAD, DIRECT, BY_ID], ids=lambda to: to.chat)
def test_edit_removes_the_buttons(
    channel: SlackChannel, platforms: FakePlatforms, to: Conversation
):
    """platforms.md 3.3: chat.update names our message and its channel; a decided question cannot be tapped again."""
    asked = send(channel, Reply("Sure?", YES_NO), to)
    assert send(channel, Reply("Done.", edits=asked), to) == asked
    (entry,) = platforms.sent
    assert (entry["text"], entry["buttons"]) == ("Done.", [])
    assert [(was["text"], len(was["buttons"])) for was in entry["edits"]] == [("Sure?", 2)]


@pytest.mark.parametrize("to", [THREAD, DIRECT, BY_ID], ids=lambda to: to.chat)
def test_draft_of_a_stopped_answer_is_deleted(
    channel: SlackChannel,
    platforms: FakePlatforms,
    to: Conversation,
):
    """No message without words stays. Deleting it twice is no error."""
    shown = send(channel, Reply("Once upon"), to)
    (removal,) = channel.split(Reply("…", edits=shown, optional=True, removes=True))
    assert [send(channel, removal, to) for _ in range(2)] == ["", ""]
    (entry,) = platforms.sent
    assert (entry["text"], entry["raw"]["method"]) == ("", "chat.delete")


@pytest.mark.parametrize("error", ["cant_delete_message", "compliance_exports_prevent_deletion"])
def test_draft_that_may_not_be_deleted_shows_a_sign(
    channel: SlackChannel,
    platforms: FakePlatforms,
    error: str,
):
    """A workspace can forbid it. Half an answer would be taken for a whole one."""
    shown = send(channel, Reply("Once upon"))
    platforms.script("slack", error)
    send(channel, Reply("…", edits=shown, optional=True, removes=True))
    assert [entry["text"] for entry in platforms.sent] == ["…"]


def test_edit_may_set_other_buttons(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.3: an edit has blocks like a new message, and the same edit twice is no error."""
    asked = send(channel, Reply("Sure?", YES_NO))
    for _ in range(2):
        send(channel, Reply("Undo?", YES_NO[:1], edits=asked))
    assert platforms.sent[0]["buttons"] == [{"label": "Yes", "data": "a:1:yes"}]


@pytest.mark.parametrize("error", UNEDITABLE)
def test_refused_edit_becomes_a_new_message(
    channel: SlackChannel, platforms: FakePlatforms, error: str
):
    """platforms.md 3.4: the adapter posts a new message in the same thread."""
    asked = send(channel, Reply("Sure?", YES_NO))
    platforms.script("slack", error)
    answer = send(channel, Reply("Done.", edits=asked))
    assert [entry["text"] for entry in platforms.sent] == ["Sure?", "Done."]
    assert answer != asked
    assert platforms.sent[1]["thread"] == THREAD.thread


@pytest.mark.parametrize("error", UNEDITABLE)
def test_refused_optional_edit_is_left_out(
    channel: SlackChannel, platforms: FakePlatforms, error: str
):
    """Removing a button is not worth a new message."""
    platforms.script("slack", error)
    assert send(channel, Reply("Done.", edits="1795204700.000001", optional=True)) == ""
    assert platforms.sent == []


def test_message_of_another_channel_is_not_edited(channel: SlackChannel, platforms: FakePlatforms):
    """A timestamp identifies a message only together with its channel."""
    asked = send(channel, Reply("Sure?", YES_NO))
    send(channel, Reply("Done.", edits=asked), DIRECT)
    assert [(entry["chat"], entry["text"]) for entry in platforms.sent] == [
        ("C0OPS", "Sure?"),
        ("D0ADA", "Done."),
    ]


def test_edit_with_refused_blocks_loses_its_buttons_too(
    channel: SlackChannel, platforms: FakePlatforms
):
    """platforms.md 3.4: the adapter sends it plain once; without `blocks` an edited message would keep the old ones."""
    asked = send(channel, Reply("Sure?", YES_NO))
    platforms.script("slack", "invalid_blocks")
    send(channel, Reply("Done.", edits=asked))
    assert (platforms.sent[0]["text"], platforms.sent[0]["buttons"]) == ("Done.", [])


@pytest.mark.parametrize("error", ["drop", "lost", "500", "internal_error"])
def test_edit_that_may_have_happened_is_repeated(
    channel: SlackChannel, platforms: FakePlatforms, error: str
):
    """platforms.md 3.4: a second edit changes nothing, so the error is Unreachable and not DeliveryUncertain."""
    asked = send(channel, Reply("Sure?", YES_NO))
    platforms.script("slack", error)
    with pytest.raises(Unreachable):
        send(channel, Reply("Done.", edits=asked))
    assert len(platforms.sent) == 1


def test_edit_obeys_a_rate_limit_and_a_conflict(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.3, 3.4: streaming_state_conflict is refused, and a rate limit raises its wait."""
    asked = send(channel, Reply("Sure?"))
    for error, kind in (("429", RateLimited), ("streaming_state_conflict", Refused)):
        platforms.script("slack", error)
        with pytest.raises(kind):
            send(channel, Reply("Done.", edits=asked))


def test_only_the_first_piece_edits(channel: SlackChannel):
    """A long answer continues below the draft that it replaces, and a file comes after the text."""
    text = "word " * 1500
    first, *others = channel.split(Reply(text, YES_NO, IMAGE, edits="1.2", optional=True))
    assert (first.edits, first.optional, first.media) == ("1.2", True, None)
    assert [(piece.edits, piece.optional) for piece in others] == [("", False)] * len(others)
    assert "".join(piece.text for piece in (first, *others)) == text
    assert [bool(piece.media) for piece in others] == [False] * (len(others) - 1) + [True]
    assert channel.split(Reply(edits="1.2", optional=True)) == ()


def test_user_id_opens_a_direct_message(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.3: the adapter calls conversations.open before a direct message, once in a process."""
    for reply in (Reply("Hello"), Reply("Sure?", YES_NO), Reply("Here", media=IMAGE)):
        send(channel, reply, BY_ID)
    assert {entry["chat"] for entry in platforms.sent} == {"D0ADA"}
    assert [call["method"] for call in platforms.calls] == ["conversations.open"]


def test_tap_in_a_direct_message_belongs_to_the_conversation_of_its_user_id(
    channel: SlackChannel, platforms: FakePlatforms
):
    """Slack names the channel D0ADA in the tap; for another person's tap the block id means nothing."""
    send(channel, Reply("Sure?", YES_NO), BY_ID)
    block_id = platforms.sent[0]["raw"]["blocks"][-1]["block_id"]
    taps = [
        signing.slack_tap("1.2", "a:1:yes", user=user, block_id=block_id)
        for user in ("U0ADA", "U0BOB")
    ]
    own, other = (channel.receive(slack_hook(tap)).turns[0].conversation for tap in taps)
    assert (own, other) == (BY_ID, Conversation("sl", "D0ADA", "1795204950.000300"))


def test_unknown_user_is_a_closed_address(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.4: user_not_found is permanent."""
    with pytest.raises(AddressClosed):
        send(channel, Reply("Hello"), Conversation("sl", "U!"))


@pytest.mark.parametrize(
    "answer", [b'{"ok": true}', b'{"ok": true, "channel": {}}', b'{"ok": true, "channel": "x"}']
)
def test_direct_message_without_a_channel_id_is_tried_again(media: MemoryMedia, answer: bytes):
    """platforms.md 3.3: no message went out, and the adapter makes up no id."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        answer
    )

    async def story() -> None:
        async with server(head + answer) as (url, _):
            await slack(media, url).main_address(BY_ID)

    with pytest.raises(Unreachable):
        asyncio.run(story())


def test_many_buttons_wrap_in_rows(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.3: every tap of every row comes back to the thread."""
    buttons = tuple(Button(f"No. {number}", f"c:{number}") for number in range(25))
    (piece,) = channel.split(Reply("Which?", buttons))
    send(channel, piece)
    rows = [block for block in platforms.sent[0]["raw"]["blocks"] if block["type"] == "actions"]
    assert [len(row["elements"]) for row in rows] == [5] * 5
    assert [button["data"] for button in platforms.sent[0]["buttons"]] == [
        button.data for button in buttons
    ]
    taps = [
        signing.slack_tap("1.2", "c:1", channel="C0OPS", block_id=row["block_id"]) for row in rows
    ]
    assert {channel.receive(slack_hook(tap)).turns[0].conversation for tap in taps} == {THREAD}


def test_only_the_preview_is_bold_if_slack_is_to_show_it_so(
    channel: SlackChannel, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch
):
    """`format_preview` alone decides how the preview looks: the same words above and below it stay as they are."""
    question = Reply(
        "No longer: Delete A\n\nDelete A\n\nReply **yes** to confirm.", YES_NO, preview="Delete A"
    )
    monkeypatch.setattr(outgoing, "format_preview", lambda md: f"**{md}**")
    (piece,) = channel.split(question)
    send(channel, piece)
    assert (
        platforms.sent[0]["text"] == "No longer: Delete A\n\n*Delete A*\n\nReply *yes* to confirm."
    )
    assert platforms.sent[0]["buttons"] == [
        {"label": "Yes", "data": "a:1:yes"},
        {"label": "No", "data": "a:1:no"},
    ]
    assert channel.split(piece) == (piece,)


def test_more_choices_than_buttons_are_listed(channel: SlackChannel):
    """platforms.md 3.3: an actions block has at most 25 buttons, so the text lists all choices."""
    buttons = tuple(Button(f"No.\n{number}", f"c:{number}") for number in range(1, 27))
    (piece,) = channel.split(Reply("Which?", buttons))
    assert piece.buttons == ()
    assert piece.text.startswith("Which?\n\n1. No. 1\n2. No. 2\n")
    assert piece.text.endswith("\n26. No. 26")


@pytest.mark.parametrize(("length", "shown"), [(75, "x" * 75), (76, "x" * 74 + "…")])
def test_long_label_is_cut(
    channel: SlackChannel, platforms: FakePlatforms, length: int, shown: str
):
    """platforms.md 3.3: a button has 75 characters; its value and its style stay."""
    send(channel, Reply("?", (Button("x" * length, "d" * 64, "danger"),)))
    key = platforms.sent[0]["raw"]["blocks"][-1]["elements"][0]
    assert (key["text"]["text"], key["value"], key["style"]) == (shown, "d" * 64, "danger")
    assert len(shown) <= LABEL_LIMIT


def test_bare_mentions_stay_text(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.3: parse and link_names tell Slack to look for no names, in new messages and in edits."""
    asked = send(channel, Reply("@channel @here look"))
    send(channel, Reply("@channel @here look!", edits=asked))
    for raw in (platforms.sent[0]["edits"][0]["raw"], platforms.sent[0]["raw"]):
        assert (raw["parse"], raw["link_names"]) == ("none", False)
        assert all(block["text"]["verbatim"] for block in raw["blocks"])


def test_draft_is_edited_until_it_is_the_answer(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.3: one message grows, no faster than one edit every three seconds."""
    turn = Turn("e", THREAD, "U0ADA", text="go")

    async def story() -> str:
        shown = await channel.draft(turn, "One")
        assert await channel.draft(turn, "One **two", shown) == shown
        assert await channel.draft(turn, " ", shown) == shown
        return (
            await channel.send(Delivery("d", THREAD, Reply("One **two**.", YES_NO, edits=shown)))
        ).message_id

    assert asyncio.run(story())
    (entry,) = platforms.sent
    assert [was["text"] for was in entry["edits"]] == ["One", "One **two"]
    assert (entry["text"], len(entry["buttons"]), entry["thread"]) == (
        "One *two*.",
        2,
        THREAD.thread,
    )
    assert channel.rate_limit(THREAD).draft_gap == 3.0


def test_draft_of_a_long_answer_stays_one_message(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.3: a section has 3000 characters, so the answer adds the rest; a deleted draft is posted anew."""
    turn, text = Turn("e", DIRECT, "U0ADA", text="go"), "word " * 5000
    shown = asyncio.run(channel.draft(turn, text))
    assert platforms.sent[0]["text"] == channel.split(Reply(text))[0].text.strip()
    platforms.script("slack", "message_not_found")
    assert asyncio.run(channel.draft(turn, "word", shown)) != shown


def test_file_of_a_shared_channel_is_looked_up(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.1: a file with check_file_info has no address, so the adapter calls files.info first."""
    file_id = FakeSlack.file_id(platforms.host("slack", signing.JPEG))
    stub = {"id": file_id, "file_access": "check_file_info"}
    body = signing.slack_text("1.1", "look", subtype="file_share", files=[stub])
    (media,) = channel.receive(slack_hook(body)).turns[0].media
    assert (media.ref, fetch_bytes(channel, media)) == (file_id, signing.JPEG)


def test_file_unknown_to_slack_cannot_be_fetched(channel: SlackChannel, media: MemoryMedia):
    """platforms.md 3.1: an error of files.info raises FetchError without an address, and so does a dead connection."""
    with pytest.raises(FetchError, match="file_not_found"):
        fetch_bytes(channel, Media("F0GONE", "image/png"))
    with pytest.raises(FetchError, match="did not say where"):
        fetch_bytes(slack(media, "http://127.0.0.1:1"), Media("F0GONE", "image/png"))


def test_file_cannot_be_fetched_after_an_answer_in_plain_text(media: MemoryMedia):
    """A proxy may answer in place of Slack; the SDK fails on such an answer with AttributeError."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"

    async def fetch() -> None:
        async with server(answer) as (url, _):
            await slack(media, url).fetch(Media("F0GONE", "image/png"), io.BytesIO())

    with pytest.raises(FetchError, match="did not say where"):
        asyncio.run(fetch())


@pytest.mark.parametrize("to", [THREAD, DIRECT, BY_ID], ids=lambda to: to.chat)
def test_rate_limit_is_one_message_a_second(channel: SlackChannel, to: Conversation):
    """platforms.md 3.4: postMessage takes about one a second in a channel, and short bursts."""
    pace = channel.rate_limit(to)
    assert (pace.chat_gap, pace.per_second, 1 < pace.burst <= 5) == (1.0, 0.0, True)


def test_fake_counts_the_messages_of_a_channel(channel: SlackChannel, platforms: FakePlatforms):
    """platforms.md 3.4: a channel takes about one message a second."""
    fake = platforms.fakes["slack"]
    assert isinstance(fake, FakeSlack)
    for _ in range(3):
        send(channel, Reply("x"), Conversation("sl", "C0BUSY"))
    assert (fake.busiest("C0BUSY", 60.0), fake.busiest("C0QUIET")) == (3, 0)


def test_receipt_of_a_file_is_empty(channel: SlackChannel):
    """platforms.md 3.3: sharing is asynchronous, so there is no timestamp to edit."""
    assert asyncio.run(channel.send(Delivery("d", THREAD, Reply(media=IMAGE)))) == Receipt("")
