"""Doors: what a mailbox refuses, joins and lets be stopped, in memory and in Redis alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.types import Conversation, Media, Reply, Turn
from sayso.pending.redis.scripts import shard_of
from sayso.pending.turns.change import TurnChange
from sayso.pending.turns.queued import QueuedReply
from sayso.workers.mailbox import InboxLimits
from tests.contracts.rigs import CHAT, ENGLISH, turn
from tests.contracts.test_lanes import shown

ENGLISH_HI = Reply("hi")


def never(_: str) -> bool:
    """Nothing is a yes or a no."""
    return False


def test_one_who_writes_too_fast_is_refused_and_told_once(make_rig):
    """The platform hears it each time, the person once a minute; what was taken is answered."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=3))
    assert [rig.accept(turn(str(n))).outcome for n in range(5)] == ["new"] * 3 + ["too_fast"] * 2
    held, reply = rig.mailbox.lease(CHAT.id, "w1")
    assert reply.delivery(held).reply.text == ENGLISH.too_fast()
    assert rig.outbox.mark_delivered(held, reply, receipt="m1").turn.text == "0"


def test_a_refused_event_is_not_remembered(make_rig):
    """The platform's retry counts as new once there is room."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    assert rig.accept(turn("b", event="e")).outcome == "full"
    held, reply = rig.mailbox.lease(CHAT.id, "w1")
    work = rig.outbox.mark_delivered(held, reply, receipt="m1")
    rig.mailbox.commit(held, work, TurnChange())
    assert rig.accept(turn("b", event="e")).outcome == "new"


def test_taps_and_stops_are_never_too_fast(make_rig):
    """Whoever decides is not kept out by what was said before."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=1))
    given = [turn("a"), turn("b"), turn(tap="1x"), turn("/stop")]
    assert [rig.accept(each).outcome for each in given] == ["new", "too_fast", "new", "new"]


def test_two_people_have_a_pace_each(make_rig):
    """One who floods a group silences nobody else."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=1))
    given = [turn("a"), turn("b"), turn("c", user="ben")]
    assert [rig.accept(each).outcome for each in given] == ["new", "too_fast", "new"]


@pytest.mark.parametrize("most", [0, 1, 2])
def test_conversations_beyond_the_crowd_cannot_begin(make_rig, most):
    """However often the platform tries: not while the word of it waits, nor once it was sent. With room, they can."""
    limits = Crowded(most)
    rig, late = make_rig(limits=limits), turn("late", event="e")
    assert [rig.accept(turn_in(room)).outcome for room in ROOMS[:most]] == ["new"] * most
    assert [rig.accept(late).outcome for _ in range(3)] == ["overloaded"] * 3
    held, told = rig.mailbox.lease(CHAT.id, "w1")
    assert (told.delivery(held).reply.text, rig.accept(late).outcome) == (ENGLISH.crowded(), "overloaded")
    assert rig.outbox.mark_delivered(held, told, receipt="m1", let_go=True) is None
    assert rig.accept(late).outcome == "overloaded"
    finish(rig, ROOMS[0]) if most else limits.admit(1)
    assert (rig.accept(late).outcome, rig.accept(late).outcome) == ("new", "duplicate")


def test_word_that_waits_for_its_platform_lets_nobody_in(make_rig):
    """Parked for longer than a crowd is counted by, it is no work that has begun."""
    rig = make_rig(limits=Crowded(1))
    rig.accept(turn_in(ROOMS[0]))
    rig.accept(turn())
    held, told = rig.mailbox.lease(CHAT.id, "w1")
    rig.outbox.postpone(held, told, 300)
    assert rig.accept(turn()).outcome == "overloaded"


def test_own_word_of_a_refusal_keeps_nobody_out(make_rig):
    """There is room again before it was sent: the conversation does not stand in its own way."""
    rig = make_rig(limits=Crowded(1))
    rig.accept(turn_in(ROOMS[0]))
    assert rig.accept(turn(event="e")).outcome == "overloaded"
    finish(rig, ROOMS[0])
    assert rig.accept(turn(event="e")).outcome == "new"


def test_crowd_costs_no_more_than_a_few_words(make_rig):
    """Ten and a tenth of the limit are told; the others cost nothing, and are told when there is room for that."""
    rig = make_rig(limits=Crowded(0))
    assert {rig.accept(turn_in(room)).outcome for room in ROOMS[:12]} == {"overloaded"}
    assert [is_told(rig, room) for room in ROOMS[:12]] == [True] * 10 + [False] * 2
    assert rig.accept(turn_in(ROOMS[11])).outcome == "overloaded"
    assert is_told(rig, ROOMS[11])


def test_a_conversation_at_work_goes_on_in_a_crowd(make_rig):
    """What has begun is finished."""
    limits = Crowded(1)
    rig = make_rig(limits=limits)
    rig.accept(turn("a"))
    limits.admit(0)
    assert rig.accept(turn("b")).outcome == "new"


@pytest.mark.parametrize("urgent", [turn("/stop"), turn(tap="1x"), turn("yes")])
def test_whoever_decides_or_stops_gets_into_a_crowd(make_rig, urgent):
    """The question was asked before; a conversation that only talks waits outside."""
    limits = Crowded(1)
    rig = make_rig(limits=limits)
    held, _ = shown(rig)
    rig.mailbox.release(held)
    limits.admit(0)
    assert [rig.accept(each).outcome for each in (urgent, turn_in(ROOMS[0]))] == ["new", "overloaded"]


def test_who_is_urgent_in_a_crowd_is_bounded_too(make_rig):
    """Strangers who all say stop are no way around it."""
    rig = make_rig(limits=Crowded(0))
    outcomes = [rig.accept(replace(turn("/stop"), conversation=room)).outcome for room in ROOMS[:21]]
    assert outcomes == ["new"] * 20 + ["overloaded"]


@pytest.mark.parametrize(
    ("urgent", "taken"), [({"text": "/stop", "user": "ben"}, 1), ({"tap": "1x"}, 2), ({"text": "yes"}, 2)]
)
def test_full_mailbox_takes_who_decides_or_stops(make_rig, urgent, taken):
    """Whoever was asked, or wants out, is heard over what was said before; nobody takes all the places for that."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    held, _ = shown(rig)
    assert rig.accept(turn("a", user="ben")).outcome == "new"
    assert rig.accept(turn("b", user="ben")).outcome == "full"
    assert [rig.accept(turn(**urgent)).outcome for _ in range(4)] == ["new"] * taken + ["full"] * (4 - taken)
    assert rig.mailbox.renew(held) == (3 if "user" in urgent else 0)


def test_member_of_a_group_cannot_lock_out_who_was_asked(make_rig):
    """Taps on somebody else's buttons and stops of nothing find no urgent place; two of the same group are no more."""
    rig = make_rig(limits=InboxLimits(waiting=1, in_one_go=3))
    _, action = shown(rig)
    button = rig.store.signer.button_token(action.pending_action_id, "confirm", turn().scope)
    crowd = [turn(tap=button, user=user) for user in ("mal", "ned")] + [turn("/stop", user="mal") for _ in range(9)]
    assert [rig.accept(each).outcome for each in crowd] == ["new", "full", "new"] + ["full"] * 8
    assert [rig.accept(each).outcome for each in (turn(tap=button), turn("yes"))] == ["new", "new"]


def test_taps_and_status_have_a_limit_of_their_own(make_rig):
    """They use nothing up of what may be written, nor does what is written of them; a foreign tap counts as words."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=3))
    held, action = shown(rig)
    rig.mailbox.release(held)
    button = rig.store.signer.button_token(action.pending_action_id, "confirm", turn().scope)
    assert [rig.accept(turn(tap=button)).outcome for _ in range(4)] == ["new"] * 3 + ["too_fast"]
    assert rig.accept(turn("yes")).outcome == "new"
    mal = [turn("/status", user="mal") for _ in range(4)]
    assert [rig.accept(each).outcome for each in mal] == ["new"] * 3 + ["too_fast"]
    foreign = [turn(tap=button, user="mal") for _ in range(3)]
    assert [rig.accept(each).outcome for each in (turn("hi", user="mal"), *foreign)] == ["new"] * 3 + ["too_fast"]


def test_refused_tap_in_a_group_is_answered_with_no_message(make_rig):
    """All others would read it."""
    rig = make_rig(limits=InboxLimits(waiting=0))
    rig.accept(replace(turn(tap="1x"), in_group=True))
    assert rig.mailbox.lease(CHAT.id, "w1") is None


def test_refused_one_hears_it_once_however_long_the_platform_is_away(make_rig):
    """The newest word waits, in the place of the one before."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    for _ in range(5):
        assert rig.accept(turn("b")).outcome == "full"
        held, told = rig.mailbox.lease(CHAT.id, "w1")
        rig.outbox.postpone(held, told, 60)
        rig.pass_time(61)
    held, told = rig.mailbox.lease(CHAT.id, "w1")
    assert told.delivery(held).reply.text == ENGLISH.busy()
    assert rig.outbox.mark_delivered(held, told, receipt="m1").turn.text == "a"


def test_word_that_may_have_arrived_is_followed_by_one_more_at_most(make_rig):
    """It stays what it was; the newest waits behind it."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    for _ in range(4):
        rig.accept(turn("b"))
        held, told = rig.mailbox.lease(CHAT.id, "w1")
        rig.outbox.postpone(held, told, 60, "suspect")
        rig.pass_time(61)
    held, first = rig.mailbox.lease(CHAT.id, "w1")
    second = rig.outbox.mark_delivered(held, first, receipt="m1")
    assert (first.number, second.number) == (1, 2)
    assert rig.outbox.mark_delivered(held, second, receipt="m2").turn.text == "a"


#: Other conversations of the same shard: a crowd is counted shard by shard.
ROOMS = [
    room
    for room in (Conversation("chat", f"room {n}") for n in range(4000))
    if shard_of(room.id) == shard_of(CHAT.id)
]  # fmt: skip


class Crowded(InboxLimits):
    """So many conversations may have work, without the room that a shard has for an uneven spread."""

    def __init__(self, conversations: int = 0) -> None:
        super().__init__(conversations=conversations)

    def admit(self, conversations: int) -> None:
        """From now on so many may."""
        object.__setattr__(self, "conversations", conversations)

    @property
    def per_shard(self) -> int:
        """Exactly so many."""
        return self.conversations


def turn_in(room: Conversation) -> Turn:
    """A turn in another room."""
    return replace(turn(), conversation=room)


def finish(rig, room: Conversation) -> None:
    """Its one turn is answered without a word."""
    held, work = rig.mailbox.lease(room.id, "w1")
    assert rig.mailbox.commit(held, work, TurnChange(), let_go=True) is None


def is_told(rig, room: Conversation) -> bool:
    """Whether a word of a refusal, and nothing else, waits in this room. It is sent."""
    held, told = rig.mailbox.lease(room.id, "w1") or (None, None)
    if held and told:
        return rig.outbox.mark_delivered(held, told, receipt="m1", let_go=True) is None
    return held is not None and rig.mailbox.release(held) is not None


def test_a_burst_of_plain_words_is_seen_and_finished_as_one(rig):
    """One answer, and the next turn is the one behind the burst."""
    for text in ("one", "two", "three"):
        rig.accept(turn(text))
    rig.accept(turn(tap="1x"))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    joined = work.merge_texts(never)
    assert (joined.turn.text, joined.last) == ("one\ntwo\nthree", 3)
    assert rig.mailbox.commit(held, joined, TurnChange()).seq == 4


@pytest.mark.parametrize("second", [turn("/help"), turn("two", user="ben"), turn(tap="1x"), turn("yes")])
def test_what_is_not_plain_stays_by_itself(rig, second):
    """A command, somebody else's words, a tap, a yes."""
    rig.accept(turn("one"))
    rig.accept(second)
    _, work = rig.mailbox.lease(CHAT.id, "w1")
    assert work.merge_texts(lambda text: text == "yes") == work


def test_a_joined_commit_sent_twice_finishes_once(rig):
    """The answer was lost: the same again."""
    for text in ("one", "two", "three"):
        rig.accept(turn(text))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    joined = work.merge_texts(never)
    said = TurnChange(replies=((ENGLISH_HI, ""),))
    first, second = rig.mailbox.commit(held, joined, said), rig.mailbox.commit(held, joined, said)
    assert isinstance(first, QueuedReply)
    assert first.number == second.number == 1
    assert rig.outbox.mark_delivered(held, first, receipt="m1") is None


def test_stop_is_heard_by_the_holder(rig):
    """By the next renewal, and by whoever takes the lane after a crash."""
    rig.accept(turn("a"))
    held, _ = rig.mailbox.lease(CHAT.id, "w1")
    assert rig.mailbox.renew(held) == 0
    rig.accept(turn("/stop"))
    assert rig.mailbox.renew(held) == 2
    rig.end_lease()
    _, work = rig.mailbox.lease(CHAT.id, "w2")
    assert work.is_stopped


@pytest.mark.parametrize("said", ["/STOP", "/stop please", " /stop\nnow"])
def test_words_behind_a_stop_are_passed_over(rig, said: str):
    """As behind every command: whoever is in a hurry is heard."""
    rig.accept(turn("a"))
    held, _ = rig.mailbox.lease(CHAT.id, "w1")
    rig.accept(turn(said))
    assert rig.mailbox.renew(held) == 2


def test_stop_is_for_the_turns_of_who_said_it(rig):
    """In a group others go on: what runs, and what waits."""
    for text, user in (("a", "ben"), ("b", "ana"), ("c", "ben"), ("/stop", "ana")):
        rig.accept(turn(text, user=user))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    found = []
    while work:
        found.append((work.turn.text, work.is_stopped, work.stop == work.seq, rig.mailbox.renew(held)))
        work = rig.mailbox.commit(held, work, TurnChange())
    assert found == [("a", False, False, 0), ("b", True, False, 4), ("c", False, False, 0), ("/stop", False, True, 4)]


def test_nothing_is_left_of_a_stop(rig):
    """Nor of that of a second person."""
    rig.accept(turn("a"))
    rig.accept(turn("b", user="ben"))
    rig.accept(turn("/stop", user="ben"))
    rig.accept(turn("/stop"))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    while work:
        work = rig.mailbox.commit(held, work, TurnChange())
    rig.accept(turn("c"))
    assert (rig.mailbox.lease(CHAT.id, "w1")[1].stop, rig.stops()) == (0, [])


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "edit"},
        {"media": (Media("f1", "image/jpeg"),)},
        {"notes": ("forwarded from Bob",)},
        {"text": "/stop@other_bot"},
        {"text": "/stopwatch"},
        {"text": "please /stop"},
    ],
)
def test_what_is_no_word_to_us_stops_nothing(rig, other: dict):
    """An edit, a caption, a forwarded stop, and one for another bot: an adapter takes our own name off."""
    rig.accept(turn("a"))
    held, _ = rig.mailbox.lease(CHAT.id, "w1")
    rig.accept(replace(turn("/stop"), **other))
    assert rig.mailbox.renew(held) == 0


def test_a_stop_with_nothing_before_it_stops_nothing(rig):
    """It only says so."""
    rig.accept(turn("/stop"))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    assert (work.stop, rig.mailbox.renew(held)) == (0, 0)
