"""Progress: a person sees "typing" while a turn runs, and gets one notice if it takes long."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.channels.base import AddressClosed
from sayso.channels.types import Reply
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import LeaseLost
from sayso.workers import progress as beside
from sayso.workers.progress import ProgressIndicator
from tests.contracts.rigs import CHAT, ENGLISH
from tests.workers.fakes import FakeAgent, FakeChannel
from tests.workers.test_drafts import QUEUED
from tests.workers.test_processor import Room

SOON = 0.001


class Platform(FakeChannel):
    """A platform on which "typing" must be repeated."""

    def __init__(self, again: float = 0.0) -> None:
        super().__init__()
        self.again, self.attended, self.said = again, 0, asyncio.Event()

    async def show_typing(self, turn) -> float:
        """Count the call."""
        self.attended += 1
        return self.again

    async def send(self, delivery):
        """Send and report."""
        try:
            return await super().send(delivery)
        finally:
            self.said.set()


class Word:
    """A draft that stores the notice."""

    def __init__(self, *, takes_notice: bool = True) -> None:
        self.words = []
        self.said = asyncio.Event()
        self.takes_notice = takes_notice

    async def begin(self) -> None:
        """Do nothing."""

    async def end(self, *, at_once: bool = False) -> None:
        """Do nothing."""

    def show_notice(self, word: str) -> None:
        """Store the notice."""
        self.words.append(word)
        self.said.set()


def kept(platform: Platform, until: asyncio.Event | None = None, queued=QUEUED, **options) -> None:
    """Run the indicator until the event, or end it at once."""

    async def scene() -> None:
        async with ProgressIndicator(platform, queued, lambda: ENGLISH, **options):
            if until:
                async with asyncio.timeout(5):
                    await until.wait()

    asyncio.run(scene())


def test_quick_turn_shows_typing_once_and_gets_no_notice():
    """Even a quick tap needs its acknowledgement."""
    platform = Platform(again=4.0)
    kept(platform, notice_after=SOON)
    assert (platform.attended, platform.sent) == (1, [])


def test_typing_is_repeated_while_the_turn_runs():
    """The pause is the time for which the platform shows it."""
    platform, slept, third = Platform(again=4.0), [], asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            third.set()
            await asyncio.Event().wait()

    kept(platform, third, sleep=sleep)
    assert (platform.attended, slept) == (3, [4.0] * 3)


def test_long_turn_gets_one_notice():
    """It is a message of its own, with an id that no delivery has."""
    platform = Platform()
    kept(platform, platform.said, notice_after=SOON)
    (delivery,) = platform.sent
    assert (delivery.id, delivery.reply.text) == (f"{CHAT.id}#still1", ENGLISH.still_working())


@pytest.mark.parametrize("error", [AddressClosed("blocked"), RuntimeError("bug")])
def test_notice_that_cannot_be_sent_breaks_nothing(error):
    """The notice is sent at most once."""
    platform = Platform()
    platform.errors = [error]
    kept(platform, platform.said, notice_after=SOON)
    assert platform.sent == []


def test_notice_is_the_draft_where_there_is_one():
    """The answer takes its place."""
    platform, draft = Platform(), Word()
    kept(platform, draft.said, draft=draft, notice_after=SOON)
    assert (draft.words, platform.sent) == ([ENGLISH.still_working()], [])


def test_notice_is_a_message_of_its_own_where_the_draft_is_a_message():
    """The answer would replace the notice, and an edit makes no sound."""
    platform = Platform()
    draft = Word(takes_notice=False)
    kept(platform, platform.said, draft=draft, notice_after=SOON)
    assert (draft.words, len(platform.sent)) == ([], 1)


@pytest.mark.parametrize("field", ["open_action", "tapped_action"])
def test_notice_beside_a_decision_is_a_message_of_its_own(field):
    """The outcome replaces the question, not a draft."""
    platform, draft = Platform(), Word()
    queued = replace(QUEUED, **{field: StoredAction("A" * 22, "{}", "", "shown")})
    kept(platform, platform.said, queued, draft=draft, notice_after=SOON)
    assert (draft.words, len(platform.sent)) == ([], 1)


def test_notice_can_be_switched_off():
    """`notice_after: 0`."""
    platform = Platform()
    kept(platform, notice_after=0.0)
    assert platform.sent == []


def test_typing_call_that_hangs_is_cancelled(monkeypatch):
    """The answer waits for a bounded time, and a lost lease does not wait at all."""
    monkeypatch.setattr(beside, "LAST_CALL_SECONDS", SOON)
    platform, ended = Platform(), []

    async def hang(turn) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    platform.show_typing = hang
    kept(platform)
    assert ended == [True]


def test_turn_cancelled_before_the_indicator_started_leaves_no_task():
    """Redis hangs during the lookup of a dead worker's draft, and the lease is lost meanwhile."""
    platform, draft = Platform(again=SOON), Word()

    async def hang() -> None:
        await asyncio.Event().wait()

    draft.begin = hang

    async def scene() -> set[asyncio.Task]:
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(SOON),
                ProgressIndicator(platform, QUEUED, lambda: ENGLISH, draft=draft),
            ):
                pass
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(scene()) == set()


class Lamp(FakeChannel):
    """A platform whose typing sign stays until it is removed. `slow`: the sign is on its way until `arrives` is set."""

    def __init__(self, *, slow: bool = False) -> None:
        super().__init__()
        self.calls = []
        self.arrives = asyncio.Event()
        if not slow:
            self.arrives.set()

    async def show_typing(self, turn) -> float:
        """Show the sign."""
        await self.arrives.wait()
        self.calls.append("shown")
        return 100.0

    async def remove_typing(self, turn, *, replied: bool) -> None:
        """Note the removal."""
        self.calls.append("replied" if replied else "removed")

    async def send(self, delivery):
        """Note the message."""
        self.calls.append(delivery.reply.text)
        return await super().send(delivery)


def worked(lamp: Lamp, room: Room) -> list[str]:
    """Answer one turn in a worker that then leaves; return the calls in their order."""
    room.processor.turns.channels["chat"] = lamp

    async def scene() -> None:
        room.hear("a")
        await room.processor.run(CHAT.id)
        lamp.arrives.set()
        await room.processor.end_typing()

    asyncio.run(scene())
    return lamp.calls


@pytest.mark.parametrize(
    ("reply", "sign"),
    [(Reply("A"), "replied"), (Reply("A", edits="m1"), "removed"), (Reply(""), "removed")],
)
def test_sign_that_stays_is_removed_after_the_turn(reply, sign):
    """Also after a turn without a reply. The platform removes it with a new message, not with an edit."""
    agent = FakeAgent()
    agent.answer = lambda *_: asyncio.sleep(0, TurnChange(replies=(TurnReply(reply),)))
    calls = worked(Lamp(), Room(agent=agent))
    assert sorted(calls) == sorted(["shown", sign, *([reply.text] if reply.text else [])])


def test_sign_of_a_turn_that_fails_is_removed():
    """The notice of the failure is a new message."""

    def fail(text: str) -> str:
        raise RuntimeError("bug")

    assert "replied" in worked(Lamp(), Room(fail))


def test_answer_does_not_wait_for_a_sign_that_can_be_removed():
    """A slow platform costs no answer; the sign that comes after the answer is removed."""
    assert worked(Lamp(slow=True), Room()) == ["A", "shown", "removed"]


def test_sign_stays_for_the_worker_that_takes_over():
    """It shows the sign again, and a removal might come after that."""
    lamp = Lamp()

    async def scene() -> None:
        async with ProgressIndicator(lamp, QUEUED, lambda: ENGLISH):
            await asyncio.sleep(0)
            raise LeaseLost(CHAT.id)

    with pytest.raises(LeaseLost):
        asyncio.run(scene())
    assert lamp.calls == ["shown"]
