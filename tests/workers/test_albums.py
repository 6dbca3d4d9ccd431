"""Albums: the parts of one act are worked on as one turn, whoever dies in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.channels.types import Media, Reply, Turn
from sayso.pending.concurrency import run_without_loop
from sayso.pending.turns import TurnChange
from sayso.workers.processor import ALBUM_SECONDS
from tests.contracts.rigs import CHAT, MemoryRig, RedisRig, turn
from tests.workers.story import Story, call
from tests.workers.test_processor import Room


class Viewer:
    """An agent that says what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Turn] = []

    async def answer(self, queued, lease, hear=None) -> TurnChange:
        """The names of the files."""
        self.seen.append(queued.turn)
        said = [*(each.ref for each in queued.turn.media), queued.turn.text]
        return TurnChange(replies=((Reply(" ".join(filter(None, said))), ""),))

    def is_answer(self, text: str) -> bool:
        """Nothing waits for one."""
        return False

    def may_settle(self, queued) -> bool:
        """Nothing was asked."""
        return False


def part(name: str, *, group: str = "g", **fields) -> Turn:
    """A photo of an album."""
    return replace(turn(""), media=(Media(name, "image/jpeg", stored=True),), group=group, **fields)


def room_where(during, **options) -> Room:
    """A room in which these turns come in, one list during each wait."""
    waits = iter(during)

    async def sleep(seconds: float) -> None:
        for each in next(waits, ()):
            room.rig.accept(each)
        room.rig.pass_time(seconds)

    room = Room(agent=Viewer(), sleep=sleep, **options)
    return room


def test_album_of_a_server_whose_clock_was_ahead_waits_no_longer():
    """A server that was put in the place of another may count from another moment."""
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    room = Room(agent=Viewer(), sleep=sleep)
    room.rig.accept(part("a"))
    room.rig.now -= 3600
    room.work()
    assert slept == [ALBUM_SECONDS]


def test_lane_that_is_lost_while_parts_are_awaited_changes_nothing():
    """Somebody else has the album."""
    room = room_where([])

    async def steal(_seconds: float) -> None:
        room.rig.end_lease()
        run_without_loop(room.rig.mailbox.lease(CHAT.id, "thief"))

    object.__setattr__(room.processor, "sleep", steal)
    room.rig.accept(part("a"))
    assert room.work() == []


def test_parts_that_come_in_while_they_are_awaited_are_one_turn():
    """platforms.md 2.1: media in order, the caption of any part, notes."""
    room = room_where([[part("b", text="look", notes=("sticker",)), part("c", quoted="that")]])
    room.rig.accept(part("a"))
    assert room.work() == ["a b c look"]
    (seen,) = room.processor.agents["chat"].seen
    assert (seen.notes, seen.quoted) == (("sticker",), "that")


def test_part_that_comes_too_late_is_a_turn_of_its_own():
    """A second after the first one was received nobody waits any more."""
    room = room_where([[part("b")]])
    room.rig.accept(part("a"))
    room.work()
    room.rig.accept(part("c"))
    assert room.work() == ["a b", "c"]


@pytest.mark.parametrize("next_turn", [turn("next"), part("x", group="h")])
def test_album_behind_which_another_turn_waits_is_not_waited_for(next_turn):
    """It is whole: platforms keep their order."""
    room = room_where([])
    for each in (part("a"), part("b"), next_turn):
        room.rig.accept(each)
    assert room.work()[0] == "a b"
    assert len(room.processor.agents["chat"].seen) == 2


def test_album_that_was_received_a_while_ago_is_not_waited_for():
    """No worker was free: the second is over."""
    room, slept = room_where([]), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    object.__setattr__(room.processor, "sleep", sleep)
    room.rig.accept(part("a"))
    room.rig.pass_time(ALBUM_SECONDS)
    assert (room.work(), slept) == (["a"], [])


def test_other_conversations_go_on_meanwhile():
    """Waiting is for one conversation."""
    room = room_where([])
    entered, go = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        entered.set()
        await go.wait()
        room.rig.pass_time(seconds)

    object.__setattr__(room.processor, "sleep", sleep)
    other = replace(turn("hi"), conversation=replace(CHAT, chat="hall"))

    async def both() -> list[str]:
        room.rig.accept(part("a"))
        room.rig.mailbox.accept(other)
        waiting = asyncio.create_task(room.processor.run(CHAT.id))
        await entered.wait()
        await room.processor.run(other.conversation.id)
        first = list(room.channel.texts)
        go.set()
        await waiting
        return first

    assert asyncio.run(both()) == ["hi"]
    assert room.channel.texts == ["hi", "a"]


@pytest.mark.parametrize(
    "fields",
    [{"quoted": "that"}, {"notes": ("sticker",)}, {"kind": "edit"}, {"group": "g"}],
    ids=lambda each: next(iter(each)),
)
def test_what_is_more_than_words_is_not_joined(fields):
    """Neither in front nor behind."""
    room = room_where([], joins=True)
    for each in (turn("a"), replace(turn("b"), **fields), turn("c")):
        room.rig.accept(each)
    assert room.work() == ["a", "b", "c"]


@pytest.fixture(params=["memory", "redis"])
def rig(request):
    """Lanes of either kind."""
    return MemoryRig() if request.param == "memory" else RedisRig(request.getfixturevalue("redis_client"))


@pytest.mark.parametrize("death", ["after look a", "before commit"])
def test_album_whose_worker_dies_stays_together(rig, death):
    """With those parts that were worked on; one that came in since is a turn of its own once the journal names them."""
    told = Story(rig, [(call("look", what="a"),), "all done"])
    for name in "ab":
        rig.accept(part(name, text=name))
    rig.pass_time(ALBUM_SECONDS)
    told.life.names = {death}
    assert not told.work()
    rig.accept(part("c", text="c"))
    told.work_on()
    users = list(dict.fromkeys(told.model.users))
    assert users == ["a\nb", "c"]
