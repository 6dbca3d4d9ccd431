"""Slack's agent sessions: what a thread shows while the bot works, waits or is ready.

Slack refuses them in some places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.status import ConversationStatus
from sayso.channels.types import Conversation, Media, Tap, Turn
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack import FakeSlack
from tests.channels.harness import MemoryMedia, slack

ROOT = "1795204800.000100"
PLACE = ("D0ADA", ROOT)
THREAD = Conversation("sl", *PLACE)
SESSION = "agents.sessions.setStatus"
STATUS = "assistant.threads.setStatus"


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms) -> SlackChannel:
    """Return the adapter of an app with the agent view, talking to its fake."""
    return slack(media, platforms.slack_url)


@pytest.fixture
def fake(platforms: FakePlatforms) -> Iterator[FakeSlack]:
    """Yield the fake of Slack, which takes all states again afterwards."""
    fake = platforms.fakes["slack"]
    assert isinstance(fake, FakeSlack)
    yield fake
    fake.session_error = ""
    fake.title_error = ""
    fake.has_stop_button = True


def message(event_id: str = "e1", text: str = "x") -> Turn:
    """Return a message in the thread."""
    return Turn(event_id, THREAD, "U0ADA", text=text, message_id=ROOT)


def methods(platforms: FakePlatforms) -> list[str]:
    """Return the methods that were called, in order."""
    return [call["method"] for call in platforms.calls]


def test_turn_works_and_then_is_ready(
    channel: SlackChannel,
    fake: FakeSlack,
    platforms: FakePlatforms,
):
    """No message ends the state, so the channel does, whether the turn had a reply or none."""

    async def scene() -> list[str]:
        assert await channel.show_typing(message()) == 0.0
        shown = [fake.sessions[PLACE]]
        await channel.remove_typing(message(), replied=True)
        await channel.show_state(THREAD, "active", after="e1")
        return [*shown, fake.sessions[PLACE]]

    assert asyncio.run(scene()) == ["processing", "active"]
    assert methods(platforms) == [SESSION, SESSION]


LONG = "please list every invoice of the customers in Berlin that is overdue since March"


@pytest.mark.parametrize(
    ("turn", "title"),
    [
        (message(text="list invoices"), "list invoices"),
        (message(text=" two\nlines  <@U1> "), "two lines @U1"),
        (message(text=LONG), "please list every invoice of the customers in Berlin that…"),
        (message(text="x" * 900), "x" * 59 + "…"),
        (message(text="a\u202eb\u200b \u200b c"), "ab c"),
        (message(text="\u200b"), ""),
        (replace(message(text=""), media=(Media("r", "image/png", "rex.png", 3),)), "rex.png"),
        (message(text=""), ""),
        (replace(message(text="Yes"), tap=Tap("c:1")), ""),
    ],
)
def test_thread_is_called_by_the_first_words_of_its_first_message(
    channel: SlackChannel, fake: FakeSlack, turn: Turn, title: str
):
    """A later message does not change that: Slack takes the title of a new session alone."""

    async def scene() -> None:
        await channel.show_typing(turn)
        await channel.show_typing(message("e2", "another"))

    asyncio.run(scene())
    assert fake.session_titles[PLACE] == title


def test_titles_can_be_left_to_slack(media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack):
    """No word of a person goes into a title."""
    channel = slack(media, platforms.slack_url, titles=False)
    asyncio.run(channel.show_typing(message(text="secret plans")))
    assert fake.session_titles == {PLACE: ""}
    assert "secret" not in str(platforms.calls)


def test_refused_title_does_not_switch_the_state_off(
    channel: SlackChannel,
    fake: FakeSlack,
    platforms: FakePlatforms,
):
    """The state is sent again without the title, in each of several threads."""
    fake.title_error = "invalid_arguments"
    roots = [f"1795204800.00{number}100" for number in range(4)]

    async def scene() -> None:
        for root in roots:
            turn = replace(
                message(f"e{root}"), conversation=replace(THREAD, thread=root), message_id=root
            )
            await channel.show_typing(turn)

    asyncio.run(scene())
    assert fake.sessions == {("D0ADA", root): "processing" for root in roots}
    assert methods(platforms) == [SESSION] * 8


@pytest.mark.parametrize("state", ["suspended", "active", "closed"])
def test_each_state_is_one_of_slack(channel: SlackChannel, fake: FakeSlack, state: str):
    """The fake refuses all others."""
    asyncio.run(channel.show_state(THREAD, state))
    assert fake.sessions == {PLACE: state}


def test_conversation_outside_of_threads_has_no_state(
    channel: SlackChannel,
    platforms: FakePlatforms,
):
    """Slack scopes a session to a thread."""
    asyncio.run(channel.show_state(Conversation("sl", "D0ADA"), "active"))
    assert platforms.calls == []


def test_stop_shows_no_work_and_ends_what_is_shown(channel: SlackChannel, fake: FakeSlack):
    """Slack leaves it to the app: the state does not change by itself when a person stops."""
    stop = message("e2", "/stop")

    async def scene() -> None:
        await channel.show_typing(message())
        assert await channel.show_typing(stop) == 0.0
        assert fake.sessions[PLACE] == "processing"
        await channel.show_state(THREAD, "active", after="e2")

    asyncio.run(scene())
    assert fake.sessions[PLACE] == "active"


def test_end_of_an_earlier_turn_does_not_end_the_sign_of_a_later_one(
    channel: SlackChannel,
    fake: FakeSlack,
):
    """Both calls are made in the background, and may overtake each other."""

    async def scene() -> None:
        await channel.show_typing(message("e1"))
        await channel.show_typing(message("e2"))
        await channel.show_state(THREAD, "active", after="e1")

    asyncio.run(scene())
    assert fake.sessions[PLACE] == "processing"


@pytest.mark.parametrize(
    "error", ["not_agent_app", "unknown_method", "feature_disabled", "not_authorized"]
)
def test_app_without_the_agent_view_is_learned_and_shows_the_older_status(
    channel: SlackChannel, fake: FakeSlack, platforms: FakePlatforms, error: str
):
    """One call for the whole app. The first turn shows that the bot works, too."""
    fake.session_error = error

    async def scene() -> None:
        for event_id in ("e1", "e2"):
            assert await channel.show_typing(message(event_id)) == 100.0
            assert fake.statuses == {PLACE: "is thinking…"}
            await channel.remove_typing(message(event_id), replied=False)
            await channel.show_state(THREAD, "active", after=event_id)
            assert fake.statuses == {}

    asyncio.run(scene())
    assert methods(platforms) == [SESSION, STATUS, STATUS, STATUS, STATUS]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("invalid_thread_ts", "active"),
        ("session_closed", "suspended"),
        ("not_in_channel", "active"),
    ],
)
def test_refusal_in_one_thread_leaves_no_other_one_working(
    channel: SlackChannel, fake: FakeSlack, error: str, state: str
):
    """Slack would show "Working…" and a stop button there for an hour."""
    other = ("D0ADA", "1795204900.000200")

    async def scene() -> None:
        await channel.show_typing(message())
        fake.session_error = error
        await channel.show_typing(replace(message("e2"), conversation=Conversation("sl", *other)))
        fake.session_error = ""
        await channel.show_state(THREAD, state, after="e1")

    asyncio.run(scene())
    assert fake.sessions == {PLACE: state}
    assert fake.statuses == {other: "is thinking…"}


def test_refusal_of_a_thread_concerns_that_thread_alone(
    channel: SlackChannel, fake: FakeSlack, platforms: FakePlatforms
):
    """A direct message has many threads in the agent view. Slack names no list of its errors.

    The second call is the one without a title.
    """
    next_one = replace(message("e3"), conversation=Conversation("sl", "D0ADA", "1795204900.000200"))

    async def scene() -> None:
        fake.session_error = "session_closed"
        for event_id in ("e1", "e2"):
            await channel.show_typing(message(event_id))
        fake.session_error = ""
        await channel.show_typing(next_one)

    asyncio.run(scene())
    assert methods(platforms) == [SESSION, SESSION, STATUS, STATUS, SESSION]


def test_refusals_of_many_threads_in_a_row_concern_the_app(
    channel: SlackChannel, fake: FakeSlack, platforms: FakePlatforms
):
    """In the agent view each message opens a thread, and each would cost two refused calls."""

    async def scene(threads: range, error: str) -> None:
        fake.session_error = error
        for number in threads:
            there = Conversation("sl", "D0ADA", f"1795204900.{number:06d}")
            await channel.show_typing(replace(message(f"e{number}"), conversation=there))

    for threads, error in ((range(2), "no"), (range(2, 3), ""), (range(3, 9), "no")):
        asyncio.run(scene(threads, error))
    assert methods(platforms).count(SESSION) == 2 * 2 + 1 + 2 * 3


class Pauses:
    """A clock and the pauses that were slept.

    The method rests for 7 seconds when it is refused for its rate.
    """

    def __init__(self, fake: FakeSlack) -> None:
        self.fake = fake
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        """Return the seconds since the beginning."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let the time pass; then Slack takes calls again."""
        self.slept.append(seconds)
        self.now += seconds
        self.fake.session_error = ""


def limited(channel: SlackChannel, pauses: Pauses) -> ConversationStatus:
    """Return a status with this clock."""
    return ConversationStatus(
        "sl", channel.client_of, has_sessions=True, clock=pauses.clock, sleep=pauses.sleep
    )


def test_state_that_slack_holds_back_is_set_when_it_takes_calls_again(
    channel: SlackChannel,
    fake: FakeSlack,
):
    """Tier 3. Otherwise the thread would go on working, with a stop button, for an hour."""
    pauses = Pauses(fake)

    async def scene() -> None:
        status = limited(channel, pauses)
        await status.show(*PLACE, "e1")
        fake.session_error = "429"
        await status.show_state(*PLACE, "active", after="e1")
        await asyncio.gather(*status._late_states.values())
        assert status._late_states == {}

    asyncio.run(scene())
    assert (fake.sessions[PLACE], pauses.slept) == ("active", [7.0])


def test_turn_that_slack_shows_nothing_of_costs_no_second_call(
    channel: SlackChannel, fake: FakeSlack, platforms: FakePlatforms
):
    """While Slack rests the method, no chat of the workspace shows its work.

    So none has a sign to end.
    """
    pauses = Pauses(fake)
    other = ("C0OPS", ROOT)

    async def scene() -> None:
        status = limited(channel, pauses)
        fake.session_error = "429"
        for place in (PLACE, other):
            assert await status.show(*place, "e1") == 0.0
            await status.show_state(*place, "active", after="e1")

    asyncio.run(scene())
    assert (methods(platforms), pauses.slept) == ([SESSION], [])


def test_state_that_waits_is_dropped_when_the_next_turn_begins(
    channel: SlackChannel,
    fake: FakeSlack,
):
    """It would end the sign of that turn."""

    async def scene() -> None:
        status = ConversationStatus("sl", channel.client_of, has_sessions=True, clock=lambda: 0.0)
        await status.show(*PLACE, "e1")
        fake.session_error = "429"
        await status.show_state(*PLACE, "active", after="e1")
        (waiting,) = status._late_states.values()
        status.begin(*PLACE, "e2")
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())
    assert fake.sessions[PLACE] == "processing"


def test_missing_stop_button_is_told_once(
    channel: SlackChannel,
    fake: FakeSlack,
    caplog: pytest.LogCaptureFixture,
):
    """Slack says so in each answer while the app does not subscribe to its event.

    The app's manifest is older than the button.
    """
    fake.has_stop_button = False

    async def scene() -> None:
        for event_id in ("e1", "e2"):
            await channel.show_typing(message(event_id))

    asyncio.run(scene())
    assert [record.message for record in caplog.records].count("status.no_stop_button") == 1


def test_unreachable_slack_delays_nothing(media: MemoryMedia):
    """The state is best effort: the turn goes on without it."""

    async def scene() -> float:
        channel = slack(media, "http://127.0.0.1:1")
        await channel.show_state(THREAD, "active")
        return await channel.show_typing(message())

    assert asyncio.run(scene()) == 0.0
