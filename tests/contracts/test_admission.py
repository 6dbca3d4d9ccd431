"""Admission: which turns a mailbox refuses, joins or stops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.types import Conversation, Media, Reply, Turn
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import QueuedReply
from sayso.workers.mailbox import InboxLimits
from sayso.workers.sender import Sent
from tests.contracts.rigs import CHAT, ENGLISH, turn
from tests.contracts.test_conversations import shown

ENGLISH_HI = Reply("hi")


def never(_: str) -> bool:
    """No text counts as a yes or a no."""
    return False


def test_sender_over_the_rate_limit_is_refused_and_told_once(make_rig):
    """The platform gets the refusal each time, the person once a minute. Accepted turns are answered."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=3))
    assert [rig.accept(turn(str(n))).outcome for n in range(5)] == ["new"] * 3 + ["too_fast"] * 2
    held, reply = rig.mailbox.lease(CHAT.id, "w1")
    assert reply.delivery(held).reply.text == ENGLISH.too_fast()
    assert rig.outbox.mark_delivered(held, reply, Sent("m1")).turn.text == "0"


def test_refused_event_is_not_stored(make_rig):
    """The platform's retry counts as a new turn once there is room."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    assert rig.accept(turn("b", event="e")).outcome == "full"
    held, reply = rig.mailbox.lease(CHAT.id, "w1")
    work = rig.outbox.mark_delivered(held, reply, Sent("m1"))
    rig.mailbox.commit(held, work, TurnChange())
    assert rig.accept(turn("b", event="e")).outcome == "new"


def test_taps_and_stops_have_no_rate_limit(make_rig):
    """Earlier messages do not keep a decision out."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=1))
    given = [turn("a"), turn("b"), turn(tap="1x"), turn("/stop")]
    assert [rig.accept(each).outcome for each in given] == ["new", "too_fast", "new", "new"]


def test_two_people_have_a_rate_limit_each(make_rig):
    """A person who floods a group does not silence the others."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=1))
    given = [turn("a"), turn("b"), turn("c", user="ben")]
    assert [rig.accept(each).outcome for each in given] == ["new", "too_fast", "new"]


@pytest.mark.parametrize("most", [0, 1, 2])
def test_conversations_over_the_limit_cannot_start(make_rig, most):
    """No retry of the platform helps, before or after the refusal was sent. They start once there is room."""
    limits = Crowded(most)
    rig, late = make_rig(limits=limits), turn("late", event="e")
    assert [rig.accept(turn_in(room)).outcome for room in ROOMS[:most]] == ["new"] * most
    assert [rig.accept(late).outcome for _ in range(3)] == ["overloaded"] * 3
    held, told = rig.mailbox.lease(CHAT.id, "w1")
    assert (told.delivery(held).reply.text, rig.accept(late).outcome) == (
        ENGLISH.crowded(),
        "overloaded",
    )
    assert rig.outbox.mark_delivered(held, told, Sent("m1"), let_go=True) is None
    assert rig.accept(late).outcome == "overloaded"
    finish(rig, ROOMS[0]) if most else limits.admit(1)
    assert (rig.accept(late).outcome, rig.accept(late).outcome) == ("new", "duplicate")


def test_refusal_that_waits_for_its_platform_frees_no_place(make_rig):
    """A refusal parked for longer than the counting window does not count as started work."""
    rig = make_rig(limits=Crowded(1))
    rig.accept(turn_in(ROOMS[0]))
    rig.accept(turn())
    held, told = rig.mailbox.lease(CHAT.id, "w1")
    rig.outbox.postpone(held, told, 300)
    assert rig.accept(turn()).outcome == "overloaded"


def test_unsent_refusal_takes_no_place(make_rig):
    """If there is room before the refusal was sent, its conversation may start."""
    rig = make_rig(limits=Crowded(1))
    rig.accept(turn_in(ROOMS[0]))
    assert rig.accept(turn(event="e")).outcome == "overloaded"
    finish(rig, ROOMS[0])
    assert rig.accept(turn(event="e")).outcome == "new"


def test_refusals_under_overload_are_bounded(make_rig):
    """Ten plus a tenth of the limit get a refusal; the others cost nothing and get one when there is room."""
    rig = make_rig(limits=Crowded(0))
    assert {rig.accept(turn_in(room)).outcome for room in ROOMS[:12]} == {"overloaded"}
    assert [is_told(rig, room) for room in ROOMS[:12]] == [True] * 10 + [False] * 2
    assert rig.accept(turn_in(ROOMS[11])).outcome == "overloaded"
    assert is_told(rig, ROOMS[11])


def test_started_conversation_goes_on_under_overload(make_rig):
    """A started conversation is finished."""
    limits = Crowded(1)
    rig = make_rig(limits=limits)
    rig.accept(turn("a"))
    limits.admit(0)
    assert rig.accept(turn("b")).outcome == "new"


@pytest.mark.parametrize("urgent", [turn("/stop"), turn(tap="1x"), turn("yes")])
def test_decisions_and_stops_are_accepted_under_overload(make_rig, urgent):
    """The question was asked before. A conversation without a question is refused."""
    limits = Crowded(1)
    rig = make_rig(limits=limits)
    held, _ = shown(rig)
    rig.mailbox.release(held)
    limits.admit(0)
    assert [rig.accept(each).outcome for each in (urgent, turn_in(ROOMS[0]))] == [
        "new",
        "overloaded",
    ]


def test_urgent_places_are_bounded(make_rig):
    """Many strangers who say stop cannot get around the limit."""
    rig = make_rig(limits=Crowded(0))
    outcomes = [
        rig.accept(replace(turn("/stop"), conversation=room)).outcome for room in ROOMS[:21]
    ]
    assert outcomes == ["new"] * 20 + ["overloaded"]


@pytest.mark.parametrize(
    ("urgent", "taken"),
    [({"text": "/stop", "user": "ben"}, 1), ({"tap": "1x"}, 2), ({"text": "yes"}, 2)],
)
def test_full_mailbox_accepts_decisions_and_stops(make_rig, urgent, taken):
    """An answer or a stop has places of its own, and one person cannot take all of them."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    held, _ = shown(rig)
    assert rig.accept(turn("a", user="ben")).outcome == "new"
    assert rig.accept(turn("b", user="ben")).outcome == "full"
    assert [rig.accept(turn(**urgent)).outcome for _ in range(4)] == ["new"] * taken + ["full"] * (
        4 - taken
    )
    assert rig.mailbox.renew(held) == (3 if "user" in urgent else 0)


def test_group_member_cannot_lock_out_the_person_asked(make_rig):
    """Taps on another person's buttons, and stops with nothing to stop, get no urgent place."""
    rig = make_rig(limits=InboxLimits(waiting=1, in_one_go=3))
    _, action = shown(rig)
    button = rig.store.signer.button_token(action.pending_action_id, "confirm", turn().scope)
    crowd = [turn(tap=button, user=user) for user in ("mal", "ned")] + [
        turn("/stop", user="mal") for _ in range(9)
    ]
    assert [rig.accept(each).outcome for each in crowd] == ["new", "full", "new"] + ["full"] * 8
    assert [rig.accept(each).outcome for each in (turn(tap=button), turn("yes"))] == ["new", "new"]


def test_taps_and_status_have_a_limit_of_their_own(make_rig):
    """Taps and texts do not use up each other's limit."""
    rig = make_rig(limits=InboxLimits(per_minute=60, in_one_go=3))
    held, action = shown(rig)
    rig.mailbox.release(held)
    button = rig.store.signer.button_token(action.pending_action_id, "confirm", turn().scope)
    assert [rig.accept(turn(tap=button)).outcome for _ in range(4)] == ["new"] * 3 + ["too_fast"]
    assert rig.accept(turn("yes")).outcome == "new"
    mal = [turn("/status", user="mal") for _ in range(4)]
    assert [rig.accept(each).outcome for each in mal] == ["new"] * 3 + ["too_fast"]


def test_taps_on_buttons_of_others_are_few_and_then_dropped(make_rig):
    """Forty taps of a stranger take a worker three times, and delay neither the person who was asked nor others."""
    rig = make_rig()
    held, action = shown(rig)
    rig.mailbox.release(held)
    button = rig.store.signer.button_token(action.pending_action_id, "confirm", turn().scope)
    outcomes = [rig.accept(turn(tap=button, user="mal")).outcome for _ in range(40)]
    assert outcomes == ["new"] * 3 + ["ignored"] * 37
    others = (turn(tap=button, user="ned"), turn("hi", user="mal"), turn(tap=button))
    assert [rig.accept(each).outcome for each in others] == ["new"] * 3


def test_refused_tap_in_a_group_gets_no_message(make_rig):
    """The whole group would read it."""
    rig = make_rig(limits=InboxLimits(waiting=0))
    rig.accept(replace(turn(tap="1x"), in_group=True))
    assert rig.mailbox.lease(CHAT.id, "w1") is None


def test_refusal_is_sent_once_however_long_the_platform_is_down(make_rig):
    """The newest refusal waits in place of the one before."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    for _ in range(5):
        assert rig.accept(turn("b")).outcome == "full"
        held, told = rig.mailbox.lease(CHAT.id, "w1")
        rig.outbox.postpone(held, told, 60)
        rig.pass_time(61)
    held, told = rig.mailbox.lease(CHAT.id, "w1")
    assert told.delivery(held).reply.text == ENGLISH.busy()
    assert rig.outbox.mark_delivered(held, told, Sent("m1")).turn.text == "a"


def test_refusal_that_may_have_arrived_is_followed_by_at_most_one_more(make_rig):
    """The uncertain refusal stays as it is; the newest waits behind it."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    for _ in range(4):
        rig.accept(turn("b"))
        held, told = rig.mailbox.lease(CHAT.id, "w1")
        rig.outbox.postpone(held, told, 60, "suspect")
        rig.pass_time(61)
    held, first = rig.mailbox.lease(CHAT.id, "w1")
    second = rig.outbox.mark_delivered(held, first, Sent("m1"))
    assert (first.number, second.number) == (1, 2)
    assert rig.outbox.mark_delivered(held, second, Sent("m2")).turn.text == "a"


#: Other conversations of the same shard: a crowd is counted shard by shard.
ROOMS = [
    room
    for room in (Conversation("chat", f"room {n}") for n in range(4000))
    if shard_of(room.id) == shard_of(CHAT.id)
]  # fmt: skip


class Crowded(InboxLimits):
    """Allow this many conversations to have work."""

    def __init__(self, conversations: int = 0) -> None:
        super().__init__(conversations=conversations)

    def admit(self, conversations: int) -> None:
        """Set the limit from now on."""
        object.__setattr__(self, "conversations", conversations)

    @property
    def per_shard(self) -> int:
        """Return the limit itself."""
        return self.conversations


def turn_in(room: Conversation) -> Turn:
    """Return a turn of another conversation."""
    return replace(turn(), conversation=room)


def finish(rig, room: Conversation) -> None:
    """Finish the conversation's one turn without a reply."""
    held, work = rig.mailbox.lease(room.id, "w1")
    assert rig.mailbox.commit(held, work, TurnChange(), let_go=True) is None


def is_told(rig, room: Conversation) -> bool:
    """Return whether a refusal, and no turn, waits in this conversation; send the refusal."""
    held, told = rig.mailbox.lease(room.id, "w1") or (None, None)
    if held and told:
        return rig.outbox.mark_delivered(held, told, Sent("m1"), let_go=True) is None
    return held is not None and rig.mailbox.release(held) is not None


def test_burst_of_plain_texts_is_joined_into_one_turn(rig):
    """There is one answer, and the next turn is the one behind the burst."""
    for text in ("one", "two", "three"):
        rig.accept(turn(text))
    rig.accept(turn(tap="1x"))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    joined = work.merge_texts(never)
    assert (joined.turn.text, joined.last_seq) == ("one\ntwo\nthree", 3)
    assert rig.mailbox.commit(held, joined, TurnChange()).seq == 4


@pytest.mark.parametrize(
    "second", [turn("/help"), turn("two", user="ben"), turn(tap="1x"), turn("yes")]
)
def test_turn_that_is_not_plain_text_is_not_joined(rig, second):
    """A command, another person's text, a tap and a yes stay turns of their own."""
    rig.accept(turn("one"))
    rig.accept(second)
    _, work = rig.mailbox.lease(CHAT.id, "w1")
    assert work.merge_texts(lambda text: text == "yes") == work


def test_joined_commit_sent_twice_finishes_once(rig):
    """The answer to the first commit was lost."""
    for text in ("one", "two", "three"):
        rig.accept(turn(text))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    joined = work.merge_texts(never)
    said = TurnChange(replies=(TurnReply(ENGLISH_HI),))
    first, second = rig.mailbox.commit(held, joined, said), rig.mailbox.commit(held, joined, said)
    assert isinstance(first, QueuedReply)
    assert first.number == second.number == 1
    assert rig.outbox.mark_delivered(held, first, Sent("m1")) is None


def test_lease_holder_gets_the_stop(rig):
    """The next renewal returns it, and so does the next lease after a crash."""
    rig.accept(turn("a"))
    held, _ = rig.mailbox.lease(CHAT.id, "w1")
    assert rig.mailbox.renew(held) == 0
    rig.accept(turn("/stop"))
    assert rig.mailbox.renew(held) == 2
    rig.end_lease()
    _, work = rig.mailbox.lease(CHAT.id, "w2")
    assert work.is_stopped


@pytest.mark.parametrize("said", ["/STOP", "/stop please", " /stop\nnow"])
def test_texts_behind_a_stop_are_skipped(rig, said: str):
    """The same holds behind every command: an urgent turn is served first."""
    rig.accept(turn("a"))
    held, _ = rig.mailbox.lease(CHAT.id, "w1")
    rig.accept(turn(said))
    assert rig.mailbox.renew(held) == 2


def test_stop_ends_only_the_turns_of_its_sender(rig):
    """In a group the running and waiting turns of the others go on."""
    for text, user in (("a", "ben"), ("b", "ana"), ("c", "ben"), ("/stop", "ana")):
        rig.accept(turn(text, user=user))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    found = []
    while work:
        found.append(
            (work.turn.text, work.is_stopped, work.stop == work.seq, rig.mailbox.renew(held))
        )
        work = rig.mailbox.commit(held, work, TurnChange())
    assert found == [
        ("a", False, False, 0),
        ("b", True, False, 4),
        ("c", False, False, 0),
        ("/stop", False, True, 4),
    ]


def test_stop_leaves_no_keys(rig):
    """This holds for the stop of a second person too."""
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
def test_stop_that_is_not_addressed_to_the_bot_stops_nothing(rig, other: dict):
    """An edit, a caption, a forwarded stop, and a stop for another bot do not count."""
    rig.accept(turn("a"))
    held, _ = rig.mailbox.lease(CHAT.id, "w1")
    rig.accept(replace(turn("/stop"), **other))
    assert rig.mailbox.renew(held) == 0


def test_stop_with_nothing_before_it_stops_nothing(rig):
    """The worker gets no stop signal."""
    rig.accept(turn("/stop"))
    held, work = rig.mailbox.lease(CHAT.id, "w1")
    assert (work.stop, rig.mailbox.renew(held)) == (0, 0)
