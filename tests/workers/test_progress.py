"""Company: somebody who waits sees that their turn is worked on, and hears so once where it takes long."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.channels.base import AddressClosed
from sayso.workers import progress as beside
from sayso.workers.progress import ProgressIndicator
from tests.contracts.rigs import CHAT, ENGLISH
from tests.workers.fakes import FakeChannel
from tests.workers.test_drafts import QUEUED

SOON = 0.001


class Platform(FakeChannel):
    """One that wants "typing" to be repeated."""

    def __init__(self, again: float = 0.0) -> None:
        super().__init__()
        self.again, self.attended, self.said = again, 0, asyncio.Event()

    async def attend(self, turn) -> float:
        """Count it."""
        self.attended += 1
        return self.again

    async def send(self, delivery):
        """Send, and tell."""
        try:
            return await super().send(delivery)
        finally:
            self.said.set()


class Word:
    """A draft that keeps what it is to say."""

    def __init__(self) -> None:
        self.words, self.said = [], asyncio.Event()

    async def begin(self) -> None:
        """Nothing."""

    async def end(self, *, at_once: bool = False) -> None:
        """Nothing."""

    def say(self, word: str) -> None:
        """Keep it."""
        self.words.append(word)
        self.said.set()


def kept(platform: Platform, until: asyncio.Event | None = None, queued=QUEUED, **options) -> None:
    """Keep company until something happened, or not at all."""

    async def scene() -> None:
        async with ProgressIndicator(platform, queued, lambda: ENGLISH, **options):
            if until:
                async with asyncio.timeout(5):
                    await until.wait()

    asyncio.run(scene())


def test_quick_turn_is_attended_once_and_told_nothing():
    """However quick: a tap waits for its acknowledgement."""
    platform = Platform(again=4.0)
    kept(platform, notice_after=SOON)
    assert (platform.attended, platform.sent) == (1, [])


def test_typing_is_repeated_while_the_turn_is_worked_on():
    """After as long as the platform shows it."""
    platform, slept, third = Platform(again=4.0), [], asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            third.set()
            await asyncio.Event().wait()

    kept(platform, third, sleep=sleep)
    assert (platform.attended, slept) == (3, [4.0] * 3)


def test_long_turn_is_told_of_once():
    """In a message of its own, which no delivery is named like."""
    platform = Platform()
    kept(platform, platform.said, notice_after=SOON)
    (delivery,) = platform.sent
    assert (delivery.id, delivery.reply.text) == (f"{CHAT.id}#still1", ENGLISH.still_working())


@pytest.mark.parametrize("error", [AddressClosed("blocked"), RuntimeError("bug")])
def test_word_that_cannot_be_said_breaks_nothing(error):
    """Best effort."""
    platform = Platform()
    platform.errors = [error]
    kept(platform, platform.said, notice_after=SOON)
    assert platform.sent == []


def test_word_is_the_draft_where_there_is_one():
    """The answer takes its place."""
    platform, draft = Platform(), Word()
    kept(platform, draft.said, draft=draft, notice_after=SOON)
    assert (draft.words, platform.sent) == ([ENGLISH.still_working()], [])


@pytest.mark.parametrize("field", ["live", "tapped"])
def test_word_beside_a_decision_is_a_message_of_its_own(field):
    """Its outcome takes the place of the question, not of a draft."""
    platform, draft = Platform(), Word()
    queued = replace(QUEUED, **{field: {"state": "shown"}})
    kept(platform, platform.said, queued, draft=draft, notice_after=SOON)
    assert (draft.words, len(platform.sent)) == ([], 1)


def test_nothing_is_told_where_nobody_wants_it():
    """`notice_after: 0`."""
    platform = Platform()
    kept(platform, notice_after=0.0)
    assert platform.sent == []


def test_call_that_hangs_is_broken_off(monkeypatch):
    """The answer does not wait for it for ever, and a lane that is lost not at all."""
    monkeypatch.setattr(beside, "LAST_CALL_SECONDS", SOON)
    platform, ended = Platform(), []

    async def hang(turn) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    platform.attend = hang
    kept(platform)
    assert ended == [True]


def test_turn_that_is_cut_off_before_its_company_began_leaves_nobody_typing():
    """A Redis that hangs while the draft of a dead worker is looked up: the lane is lost meanwhile."""
    platform, draft = Platform(again=SOON), Word()

    async def hang() -> None:
        await asyncio.Event().wait()

    draft.begin = hang

    async def scene() -> set[asyncio.Task]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON), ProgressIndicator(platform, QUEUED, lambda: ENGLISH, draft=draft):
                pass
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(scene()) == set()
