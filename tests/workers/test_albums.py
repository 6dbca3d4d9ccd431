"""Albums: the parts of one album run as one turn, even if a worker dies in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.channels.types import UNNAMED_ALBUM, Media, Reply, Turn
from sayso.infra.concurrency import run_without_loop
from sayso.pending.stored_limits import MAX_BURST
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import ALBUM_SECONDS
from sayso.workers.albums import LOOK_SECONDS
from tests.contracts.rigs import CHAT, Rig, turn
from tests.workers.fakes import Bot
from tests.workers.story import Killed, Story, call
from tests.workers.test_processor import Room


class Viewer:
    """An agent that answers with the files it got."""

    def __init__(self) -> None:
        self.seen: list[Turn] = []
        self.on_answer = lambda: None

    async def answer(self, queued, lease, stream=None, on_step=None) -> TurnChange:
        """Answer with the names of the files."""
        self.on_answer()
        self.seen.append(queued.turn)
        said = [*(each.ref for each in queued.turn.media), queued.turn.text]
        return TurnChange(replies=(TurnReply(Reply(" ".join(filter(None, said)))),))

    def is_answer(self, text: str) -> bool:
        """Return False: no action waits."""
        return False

    def needs_answer(self, queued) -> bool:
        """Return True."""
        return True

    def may_settle(self, queued) -> bool:
        """Return False: no question was asked."""
        return False


def part(name: str, *, group: str = "g", **fields) -> Turn:
    """Return a photo of an album."""
    user = fields.pop("user", "ana")
    return replace(
        turn("", user=user), media=(Media(name, "image/jpeg", stored=True),), group=group, **fields
    )


def room_where(during, **options) -> Room:
    """Return a conversation in which these turns arrive, one list during each wait."""
    waits = iter(during)

    async def sleep(seconds: float) -> None:
        for each in next(waits, ()):
            room.rig.accept(each)
        room.rig.pass_time(seconds)

    room = Room(agent=Viewer(), sleep=sleep, **options)
    return room


def test_album_of_a_server_whose_clock_was_ahead_waits_no_longer():
    """A server that replaced another one may have another time."""
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    room = Room(agent=Viewer(), sleep=sleep)
    room.rig.accept(part("a"))
    room.rig.now -= 3600
    room.work()
    assert sum(slept) == pytest.approx(ALBUM_SECONDS)


def test_person_sees_typing_while_the_parts_of_an_album_are_awaited():
    """A photo that is sent alone waits, too. The turn shows the sign once more."""
    signs = []
    signs_before_each_wait = []

    async def show_typing(turn) -> float:
        signs.append(turn.media[0].ref)
        return 0.0

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)
        signs_before_each_wait.append(list(signs))
        room.rig.pass_time(seconds)

    room = Room(agent=Viewer(), sleep=sleep)
    room.channel.show_typing = show_typing
    room.rig.accept(part("a"))
    assert room.work() == ["a"]
    assert signs_before_each_wait[0] == ["a"]
    assert signs == ["a", "a"]


def test_lease_lost_during_the_wait_for_parts_changes_nothing():
    """Another worker has the album."""
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
    (seen,) = room.processor.turns.agents["chat"].seen
    assert (seen.notes, seen.quoted) == (("sticker",), "that")


def test_each_part_begins_the_wait_anew():
    """WhatsApp sends each file of an album once it has it, so a large album takes longer than one wait."""
    looks = int(ALBUM_SECONDS / LOOK_SECONDS)
    late = [[] for _ in range(looks - 1)]
    room = room_where(
        [*late, [part("b", group=UNNAMED_ALBUM)], *late, [part("c", group=UNNAMED_ALBUM)]]
    )
    room.rig.accept(part("a", group=UNNAMED_ALBUM))
    assert room.work() == ["a b c"]


def test_parts_of_an_unnamed_album_in_any_order_with_a_duplicate_are_one_turn():
    """WhatsApp promises no order, Twilio may repeat a webhook, and the caption stands at any file."""
    first = part("a", group=UNNAMED_ALBUM, text="look")
    second = part("b", group=UNNAMED_ALBUM)
    room = room_where([[first, second]])
    room.rig.accept(second)
    assert room.work() == ["b a look"]


def test_two_unnamed_albums_that_waited_for_a_worker_are_two_turns():
    """Nothing but the time tells them apart."""
    room = room_where([])
    for name in "ab":
        room.rig.accept(part(name, group=UNNAMED_ALBUM))
    room.rig.pass_time(ALBUM_SECONDS + 1)
    room.rig.accept(part("c", group=UNNAMED_ALBUM))
    assert room.work() == ["a b", "c"]


def test_album_of_the_most_parts_is_not_waited_for():
    """The eleventh file begins another turn."""
    room = room_where([])
    slept = []
    object.__setattr__(room.processor, "sleep", slept.append)
    for number in range(MAX_BURST):
        room.rig.accept(part(str(number), group=UNNAMED_ALBUM))
    assert (room.work(), slept) == ([" ".join(map(str, range(MAX_BURST)))], [])


@pytest.mark.parametrize(
    "behind",
    [turn("yes"), turn(tap="0" * 32 + "1y"), turn("hi", user="bob"), part("x", user="bob")],
    ids=["text", "tap", "text of another", "file of another"],
)
def test_turn_behind_an_unnamed_album_ends_the_wait_at_the_next_look(behind):
    """A yes right after a photo is not delayed by it, and another member of a group is not either."""
    room = room_where([[behind]])
    room.rig.accept(part("a", group=UNNAMED_ALBUM))
    began = room.rig.now
    seen = []
    room.processor.turns.agents["chat"].on_answer = lambda: seen.append(room.rig.now - began)
    assert room.work()[0] == "a"
    assert seen[0] == pytest.approx(LOOK_SECONDS)
    assert [each.media[0].ref for each in room.processor.turns.agents["chat"].seen[:1]] == ["a"]


def test_part_that_comes_too_late_is_a_turn_of_its_own():
    """The wait ends ALBUM_SECONDS after the newest part was received."""
    room = room_where([[part("b")]])
    room.rig.accept(part("a"))
    room.work()
    room.rig.accept(part("c"))
    assert room.work() == ["a b", "c"]


@pytest.mark.parametrize("next_turn", [turn("next"), part("x", group="h")])
def test_album_behind_which_another_turn_waits_is_not_waited_for(next_turn):
    """Platforms keep their order, so the album is complete."""
    room = room_where([])
    for each in (part("a"), part("b"), next_turn):
        room.rig.accept(each)
    assert room.work()[0] == "a b"
    assert len(room.processor.turns.agents["chat"].seen) == 2


def test_album_that_was_received_a_while_ago_is_not_waited_for():
    """No worker was free, and the second is over."""
    room, slept = room_where([]), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    object.__setattr__(room.processor, "sleep", sleep)
    room.rig.accept(part("a"))
    room.rig.pass_time(ALBUM_SECONDS)
    assert (room.work(), slept) == (["a"], [])


def test_other_conversations_go_on_meanwhile():
    """Only this conversation waits."""
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
def test_turn_that_is_not_plain_text_is_not_joined(fields):
    """It is joined neither with the turn before nor with the one after."""
    room = room_where([], joins=True)
    for each in (turn("a"), replace(turn("b"), **fields), turn("c")):
        room.rig.accept(each)
    assert room.work() == ["a", "b", "c"]


@pytest.mark.parametrize("group", ["g", UNNAMED_ALBUM])
def test_album_whose_worker_is_killed_while_it_waits_is_answered_once_by_the_next(group):
    """Each part was stored before it was acknowledged, so a repeated webhook changes nothing either."""
    room = room_where([])
    second = part("b", group=group)

    async def die(_seconds: float) -> None:
        room.rig.accept(second)
        room.processor.mailbox.release = None  # a killed worker can call nothing
        raise Killed

    release = room.processor.mailbox.release
    object.__setattr__(room.processor, "sleep", die)
    room.rig.accept(part("a", group=group))
    with pytest.raises(Killed):
        room.work()
    assert room.channel.texts == []
    room.processor.mailbox.release = release
    room.rig.end_lease()
    room.rig.accept(second)
    assert room.work() == ["a b"]


def test_photos_beside_an_open_question_drop_it_once():
    """As one photo does: the person reads in one message what became of the question, and the answer."""
    bot = Bot(Rig(), "A", lines=["Two cats.", "Yes what?"])
    assert "Delete A" in bot.say("get rid of A")
    for name in "ab":
        bot.rig.accept(part(name, group=UNNAMED_ALBUM))
    bot.rig.pass_time(ALBUM_SECONDS)
    text = bot.work()
    assert (len(bot.channel.new_texts), text.endswith("Two cats."), "Delete A" in text) == (
        2,
        True,
        True,
    )
    bot.say("yes")
    assert bot.deleted == []


@pytest.fixture
def rig():
    """Return a rig of each kind."""
    return Rig()


@pytest.mark.parametrize("group", ["g", UNNAMED_ALBUM])
@pytest.mark.parametrize("death", ["after look a", "before commit"])
def test_album_whose_worker_dies_stays_together(rig, death, group):
    """It keeps the started parts. A later part is a turn of its own once the journal names the others."""
    told = Story(rig, [(call("look", what="a"),), "all done"])
    for name in "ab":
        rig.accept(part(name, text=name, group=group))
    rig.pass_time(ALBUM_SECONDS)
    told.life.names = {death}
    assert not told.work()
    rig.accept(part("c", text="c", group=group))
    told.work_on()
    users = list(dict.fromkeys(told.model.users))
    assert users == ["a\nb", "c"]
