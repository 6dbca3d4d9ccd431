"""Slack's status in apps without the agent view: its place, its end, and the cost of a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.status import REFUSED_SECONDS, ConversationStatus
from sayso.channels.types import Conversation, Turn
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack import SCOPES, FakeSlack
from tests.channels.harness import MemoryMedia, slack, slack_hook

DIRECT = Conversation("sl", "D0ADA")
BY_ID = Conversation("sl", "U0ADA")
THREAD = Conversation("sl", "C0OPS", "1795204800.000150")
TS = "1795205300.001100"


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms) -> SlackChannel:
    """Return the adapter, talking to its fake."""
    return slack(media, platforms.slack_url, view="none")


@pytest.fixture
def fake(platforms: FakePlatforms) -> Iterator[FakeSlack]:
    """Yield the fake of Slack, whose app has all scopes again afterwards."""
    fake = platforms.fakes["slack"]
    assert isinstance(fake, FakeSlack)
    yield fake
    fake.scopes = SCOPES
    fake.status_error = ""


def message(conversation: Conversation, message_id: str = TS) -> Turn:
    """Return a message of a conversation."""
    in_group = conversation.chat.startswith("C")
    return Turn("e", conversation, "U0ADA", text="x", message_id=message_id, in_group=in_group)


def tried(platforms: FakePlatforms) -> int:
    """Return how often a status was set or removed."""
    return sum(call["method"] == "assistant.threads.setStatus" for call in platforms.calls)


def test_direct_message_shows_the_status_at_its_own_ts(channel: SlackChannel, fake: FakeSlack):
    """platforms.md 3.3: a direct message without a thread had no sign of life."""
    (turn,) = channel.receive(
        slack_hook(signing.slack_text(TS, "hi", channel="D0ADA", channel_type="im"))
    ).turns
    assert asyncio.run(channel.show_typing(turn)) == 100.0
    assert fake.statuses == {("D0ADA", TS): "is thinking…"}


@pytest.mark.parametrize(
    ("conversation", "message_id", "place"),
    [
        (Conversation("sl", "D0ADA", "1.2"), TS, ("D0ADA", "1.2")),
        (THREAD, TS, ("C0OPS", THREAD.thread)),
        (BY_ID, TS, ("D0ADA", TS)),
        (Conversation("sl", "C0OPS"), TS, None),
        (DIRECT, "", None),
    ],
    ids=[
        "thread of a direct message",
        "thread of a channel",
        "person",
        "command in a channel",
        "command",
    ],
)
def test_status_is_shown_where_the_person_looks(
    channel: SlackChannel,
    fake: FakeSlack,
    conversation: Conversation,
    message_id: str,
    place: tuple[str, str] | None,
):
    """In a Slack channel without a thread it would be in a thread that is not open; a command has no message."""
    again = asyncio.run(channel.show_typing(message(conversation, message_id)))
    assert (again, list(fake.statuses)) == (100.0 if place else 0.0, [place] if place else [])


@pytest.mark.parametrize(
    ("conversation", "replied", "left"),
    [(DIRECT, True, 0), (DIRECT, False, 0), (THREAD, True, 1), (THREAD, False, 0)],
)
def test_status_is_removed_unless_slack_does_it(
    channel: SlackChannel, fake: FakeSlack, conversation: Conversation, replied: bool, left: int
):
    """platforms.md 3.3: a reply ends it in the thread, while a direct message is answered beside the thread."""

    async def scene() -> None:
        await channel.show_typing(message(conversation))
        await channel.remove_typing(message(conversation), replied=replied)

    asyncio.run(scene())
    assert len(fake.statuses) == left


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        ("missing_scope", 1),
        ("feature_not_enabled", 1),
        ("invalid_thread_ts", 2),
        ("internal_error", 6),
    ],
)
def test_refusal_is_learned(
    channel: SlackChannel, fake: FakeSlack, platforms: FakePlatforms, error: str, calls: int
):
    """One call for the whole app, or one for each chat; a fault of Slack's own says nothing of the next call."""
    fake.status_error = error

    async def scene() -> None:
        for _ in range(3):
            await channel.show_typing(message(DIRECT))
            await channel.show_typing(message(THREAD))

    asyncio.run(scene())
    assert tried(platforms) == calls


def test_refused_status_is_tried_again_later(
    channel: SlackChannel, fake: FakeSlack, platforms: FakePlatforms
):
    """An operator may add the scope meanwhile. Where nothing is shown, nothing is removed."""
    now = [0.0]
    status = ConversationStatus("sl", channel.client_of, clock=lambda: now[0])
    fake.scopes = fake.scopes - {"chat:write"}

    async def scene() -> None:
        assert await status.show("D0ADA", TS) == 0.0
        await status.remove("D0ADA", TS)
        fake.scopes = fake.scopes | {"chat:write"}
        now[0] += REFUSED_SECONDS
        assert await status.show("D0ADA", TS) == 100.0

    asyncio.run(scene())


def test_busy_method_rests_as_long_as_slack_asks(
    channel: SlackChannel, fake: FakeSlack, platforms: FakePlatforms
):
    """platforms.md 3.4: 429 with Retry-After."""
    now = [0.0]
    status = ConversationStatus("sl", channel.client_of, clock=lambda: now[0])
    fake.status_error = "429"

    async def scene() -> None:
        for second in (0.0, 6.9, 7.0):
            now[0] = second
            await status.show("D0ADA", TS)

    asyncio.run(scene())
    assert tried(platforms) == 2


def test_unreachable_slack_is_not_asked_for_the_status_again(media: MemoryMedia):
    """The sign is best effort: the turn goes on without it."""
    assert asyncio.run(slack(media, "http://127.0.0.1:1").show_typing(message(DIRECT))) == 0.0


def test_removal_waits_for_the_status_that_is_on_its_way(channel: SlackChannel, fake: FakeSlack):
    """Set after its removal, it would stay for two minutes."""

    async def scene() -> None:
        showing = asyncio.create_task(channel.show_typing(message(DIRECT)))
        await asyncio.sleep(0)
        await channel.remove_typing(message(DIRECT), replied=True)
        assert showing.done()

    asyncio.run(scene())
    assert fake.statuses == {}
