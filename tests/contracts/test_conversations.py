"""What mailbox and outbox promise: leases, order, windows, late outcomes. On one server and on a cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sayso.channels.types import Conversation, Media, Reply, Turn
from sayso.pending.action import PendingAction
from sayso.pending.repository import ActionDecision, ActionResult, Claim, sign_action
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import Transition, TurnChange, TurnReply
from sayso.pending.turns import LeaseLost, QueuedReply, QueuedTurn, StaleTurn
from sayso.workers.mailbox import SEEN_MS, InboxLimits
from sayso.workers.queue_entries import OutboxEntry
from sayso.workers.sender import GivenUp, Sent
from tests.contracts.rigs import CHAT, ENGLISH, turn

SAID = TurnChange(replies=(TurnReply(Reply("hi")),))


def lease(rig, token="w1"):
    """Lease the conversation, which must be free."""
    taken = rig.mailbox.lease(CHAT.id, token)
    assert taken is not None
    return taken


def propose(rig, user="ana", **fields) -> tuple[TurnChange, PendingAction]:
    """Return a turn's change that proposes an action, and the action."""
    action = PendingAction(
        user_id=user,
        kind="delete",
        preview="Delete it",
        channel_id="chat",
        conversation_id="room",
        **fields,
    )
    arm = sign_action(action, rig.store.signer, user=turn(user=user).scope.id)
    return TurnChange(
        replies=(TurnReply.question(Reply("Delete it?"), action.pending_action_id),),
        new_actions=(arm,),
    ), action


def shown(rig):
    """Return an action whose preview was delivered, and the lease that delivered it."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, action = propose(rig)
    reply = rig.mailbox.commit(held, work, change)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    return held, action


def look(rig, user="ana") -> StoredAction | None:
    """Return the action that waits for this user."""
    return rig.repository.load_open(CHAT.id, turn(user=user).scope.id)


def claim_of(given: Turn, action: PendingAction, held, seq: int, kind="text") -> Claim:
    """Return the claim that a worker makes for a turn."""
    return Claim(given.scope, action.pending_action_id, given.event_id, kind, held, seq)


@pytest.mark.parametrize(
    ("intent", "verdict"), [("confirm", "early"), ("cancel", "cancelled"), ("ignore", "ignored")]
)
def test_decision_before_the_preview_was_delivered(rig, intent, verdict):
    """A yes is early, a no counts, and an ignore does not touch the unopened window."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    rig.mailbox.commit(held, work, propose(rig)[0])
    decision = ActionDecision(turn().scope, intent, "yes-1", ignore_seconds=5)
    assert rig.repository.decide(decision)[0] == verdict
    action = look(rig)
    assert (action.state, action.expires_at) == (
        "cancelled" if intent == "cancel" else "armed",
        0.0,
    )


def test_commit_after_a_takeover_changes_nothing(rig):
    """A paused worker that comes back holds an old token, so none of its replies is stored."""
    rig.accept(turn())
    old, work = lease(rig)
    rig.end_lease()
    new, again = lease(rig, "w2")
    with pytest.raises(LeaseLost):
        rig.mailbox.commit(old, work, SAID)
    assert (new.epoch, again) == (
        old.epoch + 1,
        replace(work, received_at=again.received_at, attempt=2),
    )


def test_every_call_of_a_lost_lease_is_refused(rig):
    """Renew, settle and postpone are fenced too, and a release does not free another worker's lease."""
    rig.accept(turn())
    old, work = lease(rig)
    reply = rig.mailbox.commit(old, work, SAID)
    rig.end_lease()
    new, _ = lease(rig, "w2")
    for call in (
        lambda: rig.mailbox.renew(old),
        lambda: rig.outbox.mark_delivered(old, reply, Sent("m")),
        lambda: rig.outbox.postpone(old, reply, 1),
    ):
        with pytest.raises(LeaseLost):
            call()
    assert rig.mailbox.release(old) is None
    rig.mailbox.renew(new)


def test_only_one_worker_has_the_lease(rig):
    """A second worker gets nothing while the lease is good."""
    rig.accept(turn())
    lease(rig)
    assert rig.mailbox.lease(CHAT.id, "w2") is None


def test_same_event_is_stored_once(rig):
    """platforms.md 1.1, 2.1: a redelivery is answered with the number of the first."""
    first, second = rig.accept(turn(event="e1")), rig.accept(turn(event="e1"))
    assert [(first.outcome, first.seq), (second.outcome, second.seq)] == [
        ("new", 1),
        ("duplicate", 1),
    ]


def test_threads_that_accept_the_same_event_store_it_once(rig):
    """platforms.md 1.1: the platform's retry may meet the first delivery on another thread."""
    with ThreadPoolExecutor(8) as pool:
        outcomes = [
            accepted.outcome
            for accepted in pool.map(lambda _: rig.accept(turn(event="e1")), range(8))
        ]
    assert sorted(outcomes) == ["duplicate"] * 7 + ["new"]


def test_threads_that_ask_for_one_conversation_get_one_lease(rig):
    """This holds for any number of woken workers."""
    rig.accept(turn())
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda number: rig.mailbox.lease(CHAT.id, f"w{number}"), range(8)))
    assert sum(lease is not None for lease in taken) == 1


def test_event_ids_need_not_rise(rig):
    """platforms.md 2.1: Telegram picks update_id anew after a quiet week, so a low id is not a duplicate."""
    events = ("900000001", "5", "900000001", "6")
    outcomes = [rig.accept(turn(event=event)).outcome for event in events]
    assert outcomes == ["new", "new", "duplicate", "new"]


def test_event_is_remembered_longer_than_platforms_repeat_it():
    """platforms.md 2.1, 3.1: Telegram repeats for 24 hours, and so does Slack with delayed events."""
    assert SEEN_MS > 24 * 3600 * 1000


def test_event_is_a_duplicate_after_it_was_worked_on(rig):
    """platforms.md 1.2: the mailbox deletes a finished turn but remembers its event."""
    rig.accept(turn(event="e1"))
    held, work = lease(rig)
    rig.mailbox.commit(held, work, TurnChange())
    assert rig.accept(turn(event="e1")).outcome == "duplicate"


def test_edit_without_a_visible_change_is_not_stored(rig):
    """The platform reports a reaction as an edit. A changed text is stored, and then the old one is a change too."""

    def shows(content: str, message: str = "m1"):
        return rig.accept(replace(turn(), message_id=message, content=content)).outcome

    assert [shows("a"), shows("a"), shows("b"), shows("b"), shows("a")] == [
        "new",
        "unchanged",
        "new",
        "unchanged",
        "new",
    ]
    assert shows("a", "m2") == "new"
    assert shows("", "m3") == shows("", "m3") == shows("c", "") == shows("c", "") == "new"


def test_message_that_arrives_after_its_own_edit_is_not_stored(rig):
    """A platform sends a refused webhook again, after that of the edit. The older words would run last."""

    def accept(event: str, kind: str, content: str):
        return rig.accept(
            replace(turn(event=event), kind=kind, message_id="m1", content=content)
        ).outcome

    assert accept("e2", "edit", "charge 6") == "new"
    assert accept("e1", "message", "charge 5") == "unchanged"
    assert accept("e3", "edit", "charge 7") == "new"


def test_message_of_a_chat_with_a_new_id_is_no_edit_of_an_old_one(rig):
    """A supergroup numbers its messages anew: its first "yes" is not the group's first "yes"."""
    first = replace(turn("yes"), message_id="5", content="a")
    outcomes = [
        rig.accept(each).outcome
        for each in (first, replace(first, event_id="e2", chat_now="-1551"))
    ]
    assert outcomes == ["new", "new"]


def test_status_of_a_turn_is_known(rig):
    """platforms.md 1.1: a poller asks for it before it stores an update. Conversations do not mix."""
    first, second = turn("a", event="e1"), turn("b", event="e2")
    assert rig.mailbox.turn_status(first) == "unknown"
    rig.accept(first)
    rig.accept(second)
    held, work = lease(rig)
    assert (rig.mailbox.turn_status(first), rig.mailbox.turn_status(second)) == ("waits", "waits")
    rig.mailbox.commit(held, work, TurnChange())
    assert (rig.mailbox.turn_status(first), rig.mailbox.turn_status(second)) == ("done", "waits")
    assert (
        rig.mailbox.turn_status(replace(first, conversation=Conversation("chat", "other")))
        == "unknown"
    )


def test_status_of_an_event_with_any_id_is_known(rig):
    """Ids with quotes and non-ASCII letters are found again."""
    odd = turn("a", event='e"1\\ü/😀')
    rig.accept(odd)
    assert rig.mailbox.turn_status(odd) == "waits"


def album(number: int, **fields) -> Turn:
    """Return one part of an album."""
    photo = Media(f"photo{number}", "image/jpeg")
    return replace(turn(""), media=(photo,), group="album", **fields)


def test_album_is_finished_as_one_turn(rig):
    """It has at most ten parts, in order of arrival, and one commit finishes all of them."""
    for number in range(10):
        rig.accept(album(number, text="look" if number == 1 else ""))
    rig.accept(turn("next"))
    held, work = lease(rig)
    joined = work.merge_album()
    assert [media.ref for media in joined.turn.media] == [f"photo{number}" for number in range(10)]
    assert (joined.turn.text, joined.last_seq) == ("look", 10)
    assert rig.mailbox.commit(held, joined, TurnChange()).turn.text == "next"


def test_turn_knows_how_long_ago_it_was_received(rig):
    """The age comes from the server's clock alone. A release returns it anew, with the turns that came in meanwhile."""
    rig.accept(album(0))
    held, work = lease(rig)
    rig.accept(album(1))
    rig.pass_time(5)
    again = rig.mailbox.release(held)
    assert (work.age, again.age) == (pytest.approx(0, abs=2), pytest.approx(5, abs=2))
    assert (work.following, len(again.following)) == ((), 1)
    assert again.following[0].received_at == pytest.approx(again.received_at, abs=2)


def test_turn_knows_how_many_turns_of_all_people_wait(rig):
    """An album behind which another person's turn waits gets no more parts."""
    rig.accept(album(0))
    rig.accept(album(1))
    held, work = lease(rig)
    assert (work.waiting, work.may_grow) == (2, True)
    rig.accept(turn("hello", user="bob"))
    again = rig.mailbox.release(held)
    assert (again.waiting, len(again.following), again.may_grow) == (3, 1, False)


def test_turns_come_in_the_order_of_acceptance(rig):
    """A worker gets only the head of the mailbox."""
    for text in "abc":
        rig.accept(turn(text))
    held, work = lease(rig)
    texts = []
    while isinstance(work, QueuedTurn):
        texts.append(work.turn.text)
        work = rig.mailbox.commit(held, work, TurnChange())
    assert (texts, work) == (["a", "b", "c"], None)


def test_full_mailbox_refuses_and_takes_the_same_event_later(make_rig):
    """The turn over the limit is neither stored nor remembered, so the platform may send it again."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    assert rig.accept(turn("b", event="e2")).outcome == "full"
    held, told = lease(rig)
    work = rig.outbox.mark_delivered(held, told, Sent("m"))
    rig.mailbox.commit(held, work, TurnChange())
    assert rig.accept(turn("b", event="e2")).outcome == "new"


def test_sender_over_the_rate_limit_is_told_once(make_rig):
    """Three messages over the limit bring one notice, which goes out before the next answer."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    assert [rig.accept(turn()).outcome for _ in range(3)] == ["full"] * 3
    held, told = lease(rig)
    assert told.delivery(held).reply.text == ENGLISH.busy()
    assert rig.outbox.mark_delivered(held, told, Sent("m")).turn.text == "a"


def test_unaddressed_turns_count_only_where_the_bot_was_addressed(rig):
    """A turn that did not name the bot is ignored until one did."""
    assert rig.accept(turn(addressed=False)).outcome == "ignored"
    rig.accept(turn())
    assert rig.accept(turn(addressed=False)).outcome == "new"


def test_empty_conversation_cannot_be_leased(rig):
    """A conversation that never had a turn has no lease."""
    assert rig.mailbox.lease(CHAT.id, "w1") is None


def test_lease_can_be_asked_for_twice(rig):
    """If the answer to the call was lost, the repeated call returns the same lease."""
    rig.accept(turn())
    assert lease(rig)[0] == lease(rig)[0]


def test_commit_can_be_repeated(rig):
    """If the answer to the call was lost, the repeated call returns the next item and changes nothing."""
    rig.accept(turn())
    held, work = lease(rig)
    first = rig.mailbox.commit(held, work, SAID)
    assert rig.mailbox.commit(held, work, SAID) == first
    assert rig.outbox.mark_delivered(held, first, Sent("m")) is None


def test_replies_come_before_the_next_turn(rig):
    """Replies go out, in order, before the next turn starts."""
    rig.accept(turn("a"))
    rig.accept(turn("b"))
    held, work = lease(rig)
    work = rig.mailbox.commit(
        held, work, TurnChange(replies=(TurnReply(Reply("1")), TurnReply(Reply("2"))))
    )
    texts = []
    while isinstance(work, QueuedReply):
        texts.append(work.delivery(held).reply.text)
        work = rig.outbox.mark_delivered(held, work, Sent("m"))
    assert (texts, work.turn.text) == (["1", "2"], "b")


def test_mark_delivered_can_be_repeated(rig):
    """A repeated call does not drop a second reply."""
    rig.accept(turn())
    held, work = lease(rig)
    first = rig.mailbox.commit(
        held, work, TurnChange(replies=(TurnReply(Reply("1")), TurnReply(Reply("2"))))
    )
    second = rig.outbox.mark_delivered(held, first, Sent("m"))
    assert rig.outbox.mark_delivered(held, first, Sent("m")) == second


def test_release_returns_what_came_in_meanwhile(rig):
    """A turn that was accepted during the work is not left behind."""
    rig.accept(turn("a"))
    held, work = lease(rig)
    rig.mailbox.commit(held, work, TurnChange())
    rig.accept(turn("b"))
    assert rig.mailbox.release(held).turn.text == "b"


def test_hand_over_lets_the_next_worker_in(rig):
    """A busy conversation can be handed over with its work."""
    rig.accept(turn("a"))
    held, _ = lease(rig)
    assert rig.mailbox.release(held, hand_over=True) is None
    assert lease(rig, "w2")[1].turn.text == "a"


def test_released_conversation_is_done(rig):
    """An empty conversation is never due, and a second release is harmless."""
    rig.accept(turn())
    held, work = lease(rig)
    rig.mailbox.commit(held, work, TurnChange())
    assert rig.mailbox.release(held) is rig.mailbox.release(held) is None
    rig.pass_time(3600)
    assert rig.overdue() == []


def test_postponed_reply_parks_the_conversation_until_it_is_due(rig):
    """No worker gets a lease before the pause is over. The attempt counts."""
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, SAID)
    rig.outbox.postpone(held, reply, 30)
    assert rig.overdue() == []
    assert rig.mailbox.lease(CHAT.id, "an early wake-up") is None
    rig.pass_time(31)
    assert rig.overdue() == [CHAT.id]
    assert lease(rig, "w2")[1] == replace(reply, attempt=2)


def test_attempts_are_counted_for_each_reply(rig):
    """The reply after a postponed one starts at its first attempt."""
    rig.accept(turn())
    held, work = lease(rig)
    rig.outbox.postpone(
        held,
        rig.mailbox.commit(
            held, work, TurnChange(replies=(TurnReply(Reply("1")), TurnReply(Reply("2"))))
        ),
        1,
    )
    rig.pass_time(2)
    held, second_try = lease(rig, "w2")
    assert (second_try.attempt, rig.outbox.mark_delivered(held, second_try, Sent("m")).attempt) == (
        2,
        1,
    )


def test_reply_shown_to_an_earlier_holder_may_have_arrived(rig):
    """The earlier holder vanished. Later holders see the reply marked as a possible repetition until it is settled."""
    rig.accept(turn())
    held, work = lease(rig)
    said = rig.mailbox.commit(
        held, work, TurnChange(replies=(TurnReply(Reply("1")), TurnReply(Reply("2"))))
    )
    rig.end_lease()
    held, again = lease(rig, "w2")
    assert (said.is_doubtful, again.is_doubtful) == (False, True)
    rig.outbox.postpone(held, again, 1)
    rig.pass_time(2)
    held, later = lease(rig, "w3")
    assert later.is_doubtful
    assert not rig.outbox.mark_delivered(held, later, Sent("m")).is_doubtful


def test_reply_shown_twice_to_the_same_holder_is_not_doubtful(rig):
    """A commit that is repeated after a lost answer shows the reply again, and no worker has sent it yet."""
    rig.accept(turn())
    held, work = lease(rig)
    rig.mailbox.commit(held, work, SAID)
    assert not rig.mailbox.commit(held, work, SAID).is_doubtful


def test_postponed_reply_is_doubtful_only_if_its_attempt_was(rig):
    """A platform that refused the reply did not take it; one that timed out may have."""
    rig.accept(turn())
    held, work = lease(rig)
    rig.outbox.postpone(held, rig.mailbox.commit(held, work, SAID), 1)
    rig.pass_time(2)
    held, refused = lease(rig, "w2")
    rig.outbox.postpone(held, refused, 1, "suspect")
    rig.pass_time(2)
    assert (refused.is_doubtful, lease(rig, "w3")[1].is_doubtful) == (False, True)


def test_new_turn_does_not_wake_a_parked_conversation(rig):
    """The platform asked to wait, so another message does not wake the conversation sooner."""
    rig.accept(turn())
    held, work = lease(rig)
    rig.outbox.postpone(held, rig.mailbox.commit(held, work, SAID), 30)
    rig.accept(turn())
    rig.pass_time(20)
    assert rig.overdue() == []


def test_dead_reply_is_kept_and_the_next_goes_on(rig):
    """A reply that cannot be sent is kept for the operator."""
    rig.accept(turn())
    held, work = lease(rig)
    first = rig.mailbox.commit(
        held, work, TurnChange(replies=(TurnReply(Reply("1")), TurnReply(Reply("2"))))
    )
    second = rig.outbox.mark_delivered(held, first, GivenUp("Refused: blocked"))
    assert (second.delivery(held).reply.text, rig.dead()) == ("2", 1)


def test_dead_workers_turn_is_rewoken_when_its_lease_ends(rig):
    """After a worker is killed in the middle of a turn, the conversation is due again, once, with its turn."""
    rig.accept(turn("a"))
    lease(rig)
    assert rig.overdue() == []
    rig.end_lease()
    assert (rig.overdue(), rig.overdue()) == ([CHAT.id], [])
    assert lease(rig, "w2")[1].turn.text == "a"


def test_unanswered_wake_up_is_repeated(rig):
    """A job lost between queue and worker costs seconds, not the turn."""
    rig.accept(turn())
    assert rig.overdue() == []
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]


def test_leased_conversation_is_not_due(rig):
    """The wake-up is not repeated while a lease is good."""
    rig.accept(turn())
    lease(rig)
    rig.pass_time(6)
    assert rig.overdue() == []


def test_renewed_lease_is_not_due(rig):
    """A worker that renews its lease keeps the conversation."""
    rig.accept(turn())
    held, _ = lease(rig)
    rig.pass_time(6)
    rig.mailbox.renew(held)
    rig.pass_time(6)
    assert (rig.overdue(), rig.mailbox.lease(CHAT.id, "w2")) == ([], None)


def test_history_belongs_to_one_user(rig):
    """The history that a user's turn stores is handed to that user's next turn only."""
    for user in ("ana", "bob", "ana"):
        rig.accept(turn(user=user))
    held, work = lease(rig)
    bobs = rig.mailbox.commit(held, work, TurnChange(history='{"of": "ana"}'))
    anas = rig.mailbox.commit(held, bobs, TurnChange(history='{"of": "bob"}'))
    assert (bobs.history, anas.history) == ("", '{"of": "ana"}')


def test_window_opens_when_the_preview_is_delivered(rig):
    """The turn stores the action; it may be answered from the receipt on."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, propose(rig)[0])
    assert (look(rig).state, look(rig).expires_at) == ("armed", 0.0)
    rig.pass_time(3600)
    rig.outbox.mark_delivered(rig.mailbox.lease(CHAT.id, "w2")[0], reply, Sent("m1"))
    assert look(rig).state == "shown"
    assert look(rig).expires_at > 0


def test_action_whose_preview_cannot_be_delivered_ends(rig):
    """A person cannot agree to a preview that never arrived."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    rig.outbox.mark_delivered(
        held, rig.mailbox.commit(held, work, propose(rig)[0]), GivenUp("Refused: blocked")
    )
    assert look(rig).state == "expired"


@pytest.mark.parametrize("pieces", [1, 2])
def test_receipt_of_a_question_stays_with_its_action(rig, pieces):
    """The decision can change the message that shows the buttons, which is the last piece of the question."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    (question,) = change.replies
    pid = question.action_id
    firsts = (TurnReply.question_part(Reply("First half"), pid),) * (pieces - 1)
    work = rig.mailbox.commit(held, work, replace(change, replies=(*firsts, question)))
    for number in range(pieces):
        work = rig.outbox.mark_delivered(held, work, Sent(f"m{number + 1}"))
    rig.accept(turn("yes"))
    assert (
        rig.mailbox.release(held).open_action.question_message
        == look(rig).question_message
        == f"m{pieces}"
    )
    assert rig.repository.load(CHAT.id, (pid,))[0].question_message == f"m{pieces}"


def test_question_without_a_receipt_has_no_prompt(rig):
    """The platform gives no receipt, or the question was given up: no message can be changed later."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    rig.outbox.mark_delivered(held, rig.mailbox.commit(held, work, propose(rig)[0]), Sent(""))
    assert (look(rig).state, look(rig).question_message) == ("shown", "")


def in_two_pieces(rig):
    """Commit a question that its platform needs two messages for; return the lease and the first piece."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    (question,) = change.replies
    first = TurnReply.question_part(Reply("First half"), question.action_id)
    return held, rig.mailbox.commit(held, work, replace(change, replies=(first, question)))


def test_outbox_names_the_action_and_the_role_of_each_reply(rig):
    """`sayso trace` and the scripts read the same entries."""
    in_two_pieces(rig)
    entries = rig.client.lrange(f"{rig.shard}:outbox:{CHAT.id}", 0, -1)
    first, last = (OutboxEntry.parse(entry) for entry in entries)
    assert (first.role, last.role) == ("question_part", "question")
    assert first.action_id == last.action_id == look(rig).action_id


def test_question_in_pieces_is_shown_with_the_last_of_them(rig):
    """The window does not open with the first piece."""
    held, first = in_two_pieces(rig)
    last = rig.outbox.mark_delivered(held, first, Sent("m1"))
    assert look(rig).state == "armed"
    rig.outbox.mark_delivered(held, last, Sent("m2"))
    assert look(rig).state == "shown"


def test_question_ends_if_one_of_its_pieces_never_arrives(rig):
    """A person cannot agree to half a question, even if the half with the buttons arrives."""
    held, first = in_two_pieces(rig)
    last = rig.outbox.mark_delivered(held, first, GivenUp("Refused: malformed"))
    assert look(rig).state == "expired"
    rig.outbox.mark_delivered(held, last, Sent("m2"))
    assert look(rig).state == "expired"


def test_turn_brings_the_live_action_and_the_tapped_one(rig):
    """The turn carries everything that a worker needs to know."""
    held, action = shown(rig)
    tap = rig.store.signer.button_token(action.pending_action_id, "confirm", turn().scope)
    rig.accept(turn("", tap=tap))
    work = rig.mailbox.release(held)
    assert work.open_action == work.tapped_action == look(rig)
    assert look(rig).action_id == action.pending_action_id


def test_second_proposal_is_refused_while_one_waits(rig):
    """Nothing of the turn is stored, not even its replies."""
    held, action = shown(rig)
    rig.accept(turn("delete another"))
    work = rig.mailbox.release(held)
    with pytest.raises(StaleTurn):
        rig.mailbox.commit(held, work, propose(rig)[0])
    assert (look(rig).action_id, rig.mailbox.release(held)) == (action.pending_action_id, work)


def test_proposal_may_replace_the_one_that_its_turn_ends(rig):
    """Ending the old action and storing the new one is one step."""
    held, old = shown(rig)
    rig.accept(turn("delete another"))
    work = rig.mailbox.release(held)
    change, new = propose(rig)
    move = Transition(old.pending_action_id, ("armed", "shown"), "cancelled", "dropped")
    rig.mailbox.commit(held, work, replace(change, transition=move))
    assert look(rig).action_id == new.pending_action_id


def test_changed_action_can_not_be_claimed(rig):
    """The change ends the earlier action in the step that stores the new one. Both are in the audit log."""
    held, old = shown(rig)
    stored = look(rig)
    rig.accept(
        turn("", tap=rig.store.signer.button_token(old.pending_action_id, "change", turn().scope))
    )
    work = rig.mailbox.release(held)
    assert work.tapped_action == stored
    change, new = propose(rig)
    move = Transition(
        old.pending_action_id, ("armed", "shown"), "superseded", "changed", work.turn.event_id
    )
    question = rig.mailbox.commit(held, work, replace(change, transition=move))
    yes = turn(
        "", tap=rig.store.signer.button_token(old.pending_action_id, "confirm", turn().scope)
    )
    rig.accept(yes)
    work = rig.outbox.mark_delivered(held, question, Sent("m2"))
    assert rig.repository.claim(claim_of(yes, old, held, work.seq), stored)[0] != "mine"
    assert (work.tapped_action.state, work.tapped_action.outcome_text) == ("superseded", "changed")
    events = [(entry["pid"], entry["event"]) for entry in rig.audit()]
    ids = (old.pending_action_id, new.pending_action_id)
    assert events[-3:] == [(ids[0], "superseded"), (ids[1], "armed"), (ids[1], "shown")]


def test_action_that_was_decided_meanwhile_is_not_changed(rig):
    """A program has confirmed it outside of the conversation. Neither the old nor the new action is touched."""
    held, old = shown(rig)
    rig.accept(
        turn("", tap=rig.store.signer.button_token(old.pending_action_id, "change", turn().scope))
    )
    work = rig.mailbox.release(held)
    rig.repository.decide(ActionDecision(turn().scope, "confirm", "e-program"))
    change, new = propose(rig)
    move = Transition(
        old.pending_action_id, ("armed", "shown"), "superseded", "changed", work.turn.event_id
    )
    with pytest.raises(StaleTurn):
        rig.mailbox.commit(held, work, replace(change, transition=move))
    assert rig.repository.load(CHAT.id, (new.pending_action_id,)) == [None]
    assert look(rig).state == "started"


def test_yes_of_another_worker_claims_nothing(rig):
    """A claim carries the fencing token: a worker that lost its lease gets `lost`, before and at the start."""
    held, action = shown(rig)
    yes = turn("yes")
    rig.accept(yes)
    work = rig.mailbox.release(held)
    rig.end_lease()
    lease(rig, "w2")
    claim = claim_of(yes, action, held, work.seq)
    assert rig.repository.claim(claim, look(rig)) == ("lost", "")
    assert rig.repository.start(claim, look(rig), "attempt") == "lost"


def test_effect_of_a_worker_that_lost_its_lease_is_not_started(rig):
    """It claimed under its lease, paused and was overtaken. The last step before the effect is fenced too."""
    held, action = shown(rig)
    yes = turn("yes")
    rig.accept(yes)
    claim = claim_of(yes, action, held, rig.mailbox.release(held).seq)
    assert rig.repository.claim(claim, look(rig)) == ("mine", "claimed")
    rig.end_lease()
    new, _ = lease(rig, "w2")
    assert rig.repository.start(claim, look(rig), "old") == "lost"
    assert rig.repository.start(replace(claim, lease=new), look(rig), "new") == "go"


def test_claim_of_a_turn_that_is_not_the_head_is_refused(rig):
    """Only the turn at the head of the mailbox decides."""
    held, action = shown(rig)
    first, second = turn("yes"), turn("yes")
    rig.accept(first)
    rig.accept(second)
    claim = claim_of(second, action, held, rig.mailbox.release(held).seq + 1)
    assert rig.repository.claim(claim, look(rig))[0] == "moved"


@pytest.mark.parametrize(("kind", "verdict"), [("text", "early"), ("tap", "mine")])
def test_text_from_before_the_preview_is_early(rig, kind, verdict):
    """A yes that waited when the preview went out answered another question; a tap can only come after the preview."""
    rig.accept(turn("delete"))
    yes = turn("yes")
    rig.accept(yes)
    held, work = lease(rig)
    change, action = propose(rig)
    work = rig.outbox.mark_delivered(held, rig.mailbox.commit(held, work, change), Sent("m"))
    assert (
        rig.repository.claim(claim_of(yes, action, held, work.seq, kind), look(rig))[0] == verdict
    )


@pytest.mark.parametrize(("before", "after", "verdict"), [(0, 90, "mine"), (90, 0, "expired")])
def test_expiry_is_judged_at_the_time_of_receipt(rig, before, after, verdict):
    """An answer that arrived in time and is processed late counts; one that arrived late does not."""
    held, action = shown(rig)
    rig.pass_time(before)
    yes = turn("yes")
    rig.accept(yes)
    rig.pass_time(after)
    held, work = lease(rig, "w2")
    assert rig.repository.claim(claim_of(yes, action, held, work.seq), look(rig))[0] == verdict


@pytest.mark.parametrize(("waited", "verdict"), [(50, "mine"), (20, "expired"), (200, "early")])
def test_turn_from_a_spool_keeps_its_time_of_receipt(rig, waited, verdict):
    """The window was open from 90 to 30 seconds ago. Answers from before or after it do not count."""
    held, action = shown(rig)
    rig.pass_time(90)
    yes = turn("yes")
    rig.mailbox.accept(yes, waited_seconds=waited)
    held, work = lease(rig, "w2")
    assert rig.repository.claim(claim_of(yes, action, held, work.seq), look(rig))[0] == verdict


def test_shortened_window_keeps_its_start(rig):
    """Texts from before the preview stay early when the question was put off meanwhile."""
    held, action = shown(rig)
    rig.pass_time(5)
    rig.repository.decide(ActionDecision(turn().scope, "ignore", "e-ignore", ignore_seconds=10))
    yes = turn("yes")
    rig.mailbox.accept(yes, waited_seconds=8)
    work = rig.mailbox.release(held)
    assert rig.repository.claim(claim_of(yes, action, held, work.seq), look(rig))[0] == "early"


def test_window_of_an_open_form_keeps_its_start(rig):
    """Texts from before the preview stay early, and a longer window is never cut."""
    held, action = shown(rig)
    rig.pass_time(5)
    closes = rig.repository.open_form(CHAT.id, action.pending_action_id).expires_at
    assert rig.repository.open_form(CHAT.id, action.pending_action_id).expires_at >= closes
    yes = turn("yes")
    rig.mailbox.accept(yes, waited_seconds=8)
    work = rig.mailbox.release(held)
    assert rig.repository.claim(claim_of(yes, action, held, work.seq), look(rig))[0] == "early"


@pytest.mark.parametrize(("waited", "believed"), [(-500, 0), (1e12, SEEN_MS / 1000)])
def test_time_of_receipt_is_neither_in_the_future_nor_too_old(rig, waited, believed):
    """The clock of the machine with the spool may be wrong."""
    rig.mailbox.accept(turn(), waited_seconds=waited)
    rig.accept(turn())
    held, first = lease(rig)
    second = rig.mailbox.commit(held, first, TurnChange())
    assert second.received_at - first.received_at == pytest.approx(believed, abs=60)


def test_refused_turn_from_a_spool_gets_no_notice(make_rig):
    """The turn stays in the spool, so its sender must not be told that it was refused."""
    rig = make_rig(limits=InboxLimits(waiting=1))
    rig.accept(turn("a"))
    assert rig.mailbox.accept(turn("b"), waited_seconds=1).outcome == "full"
    assert lease(rig)[1].turn.text == "a"


def test_turns_from_a_spool_do_not_count_as_a_burst(make_rig):
    """They arrive all at once, but that does not exceed the rate limit, then or for the next turn."""
    rig = make_rig(limits=InboxLimits(in_one_go=2))
    assert {rig.mailbox.accept(turn(), waited_seconds=1).outcome for _ in range(5)} == {"new"}
    assert [rig.accept(turn()).outcome for _ in range(3)] == ["new", "new", "too_fast"]


def begun(rig):
    """Return a claim that a worker started before it lost its lease; the next holder called its outcome unknown."""
    held, action = shown(rig)
    yes = turn("yes")
    rig.accept(yes)
    work = rig.mailbox.release(held)
    claim = claim_of(yes, action, held, work.seq)
    rig.repository.claim(claim, look(rig))
    rig.repository.start(claim, look(rig), "attempt")
    unknown = Transition(
        action.pending_action_id, ("started", "unknown"), "unknown", "?", yes.event_id
    )
    rig.repository.change(CHAT.id, TurnChange(transition=unknown))
    return held, work, claim, unknown


def finish_late(rig, claim) -> None:
    """Let the first worker record its finished effect; the answer to its first call is lost."""
    correction = '{"to": ["chat", "room", ""], "reply": "{}"}'
    for _ in range(2):
        rig.repository.finish(
            claim, "attempt", ActionResult("done", "deleted", "deleted", correction)
        )


def test_late_outcome_is_sent_as_a_correction(rig):
    """A worker that lost its lease may still record the outcome, which goes out as one more reply."""
    held, work, claim, unknown = begun(rig)
    reply = rig.mailbox.commit(held, work, replace(SAID, transition=unknown))
    rig.outbox.mark_delivered(held, reply, Sent("m2"))
    finish_late(rig, claim)
    (stored,) = rig.repository.load(CHAT.id, (claim.action_id,))
    assert (stored.state, stored.outcome_text, stored.result) == ("done", "deleted", "deleted")
    assert isinstance(rig.mailbox.release(held), QueuedReply)


def test_late_outcome_replaces_an_unsent_unknown(rig):
    """No "unknown" was sent yet: no correction goes out, and the commit with the outdated text is refused."""
    held, work, claim, unknown = begun(rig)
    finish_late(rig, claim)
    assert isinstance(rig.mailbox.release(held), QueuedTurn)
    with pytest.raises(StaleTurn):
        rig.mailbox.commit(
            held, work, replace(SAID, transition=replace(unknown, from_states=("unknown",)))
        )
    done = Transition(claim.action_id, ("done",), "done", "deleted", claim.decided_by_event)
    assert isinstance(rig.mailbox.commit(held, work, replace(SAID, transition=done)), QueuedReply)


def test_ended_action_leaves_the_scope_with_the_commit_of_its_turn(rig):
    """Until the commit the outcome can be found after a crash; after it the scope is free."""
    held, action = shown(rig)
    rig.accept(turn("no"))
    work = rig.mailbox.release(held)
    move = Transition(action.pending_action_id, ("shown",), "cancelled", "cancelled")
    rig.mailbox.commit(held, work, TurnChange(transition=move))
    assert look(rig) is None


def test_action_that_a_broken_turn_left_claimed_is_freed(rig):
    """A turn that ends without settling its claim does not block the scope."""
    held, action = shown(rig)
    yes = turn("yes")
    rig.accept(yes)
    work = rig.mailbox.release(held)
    rig.repository.claim(claim_of(yes, action, held, work.seq), look(rig))
    rig.mailbox.commit(held, work, SAID)
    assert look(rig) is None


def test_commit_of_the_last_item_releases_the_lease(rig):
    """The next worker can lease the conversation at once, and the next turn wakes a worker."""
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, SAID, let_go=True)
    assert rig.outbox.mark_delivered(held, reply, Sent("m1"), let_go=True) is None
    assert rig.mailbox.lease(CHAT.id, "w2")[0].epoch == held.epoch + 1


def test_lost_answer_of_a_releasing_commit_is_given_again(rig):
    """The repeated call reports that it was done once. After another worker took the lease, it reports the loss."""
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, SAID, let_go=True)
    assert [rig.outbox.mark_delivered(held, reply, Sent("m1"), let_go=True) for _ in range(2)] == [
        None,
        None,
    ]
    assert rig.mailbox.commit(held, work, SAID, let_go=True) is None
    rig.mailbox.lease(CHAT.id, "w2")
    with pytest.raises(LeaseLost):
        rig.outbox.mark_delivered(held, reply, Sent("m1"), let_go=True)


def test_holder_with_a_turn_left_keeps_its_lease(rig):
    """The holder works on a turn that came in meanwhile."""
    rig.accept(turn("a"))
    held, work = lease(rig)
    rig.accept(turn("b"))
    assert rig.mailbox.commit(held, work, TurnChange(), let_go=True).turn.text == "b"
    assert rig.mailbox.lease(CHAT.id, "w2") is None


def test_conversation_of_an_unknown_channel_is_left_to_a_worker_that_knows_it(rig):
    """It is due again after a second, and later with each refusal. Its turn is untouched."""
    rig.accept(turn("hello"))
    assert rig.mailbox.leave_to_other_worker(CHAT.id) == pytest.approx(0, abs=0.5)
    assert rig.overdue() == []
    rig.pass_time(2)
    assert rig.overdue() == [CHAT.id]
    _, work = lease(rig)
    assert isinstance(work, QueuedTurn)
    assert work.turn.text == "hello"


def test_conversation_that_a_worker_holds_is_not_deferred(rig):
    """A worker that does not know the channel cannot put it off while another worker serves it."""
    rig.accept(turn("hello"))
    lease(rig)
    assert rig.mailbox.leave_to_other_worker(CHAT.id) is None


def test_every_message_that_shows_a_question_is_known(rig):
    """A quote of a piece, a copy or a repetition of the question counts as a quote of the question."""
    held, work = in_two_pieces(rig)
    work = rig.outbox.mark_delivered(held, work, Sent("m1"))
    rig.outbox.mark_delivered(held, work, Sent("m2", written_at=1795204700.000123))
    pid = look(rig).action_id
    rig.accept(turn("what?"))
    again = TurnChange(
        replies=(
            TurnReply.about_question(Reply("Still open: Delete it"), pid),
            TurnReply.question(Reply("Delete it?"), pid),
        )
    )
    work = rig.mailbox.commit(held, rig.mailbox.release(held), again)
    work = rig.outbox.mark_delivered(held, work, Sent("m3"))
    rig.outbox.mark_delivered(held, work, Sent("m4", written_at=1795204799.0))
    rig.accept(turn("yes"))
    view = rig.mailbox.release(held).open_action
    read = rig.repository.load(CHAT.id, (pid,))[0]
    for known in (view, look(rig), read):
        assert (known.question_messages, known.written_at) == (
            ("m1", "m2", "m3", "m4"),
            1795204700.000123,
        )
    assert (read.state, read.question_message) == ("shown", "m4")


def test_copy_of_a_question_that_the_platform_reports_is_known(rig):
    """The question was sent twice, and the platform's reports name both messages."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, propose(rig)[0])
    delivery = reply.delivery(held).id
    rig.deliveries.report(delivery, "m1", "sent")
    rig.outbox.mark_delivered(held, reply, Sent("m2"))
    rig.deliveries.report(delivery, "m3", "delivered")
    assert look(rig).question_messages == ("m1", "m2", "m3")


def test_repetition_that_never_arrives_ends_nothing(rig):
    """The question itself was delivered, so it stays open."""
    held, action = shown(rig)
    rig.accept(turn("what?"))
    again = TurnChange(
        replies=(TurnReply.about_question(Reply("Still open"), action.pending_action_id),)
    )
    work = rig.mailbox.commit(held, rig.mailbox.release(held), again)
    rig.outbox.mark_delivered(held, work, GivenUp("Refused: no"))
    assert look(rig).state == "shown"


def test_messages_that_show_one_question_are_bounded(rig):
    """The last fifty are stored, however often the question is repeated."""
    held, action = shown(rig)
    replies = (TurnReply.about_question(Reply("Still open"), action.pending_action_id),) * 60
    rig.accept(turn("what?"))
    work = rig.mailbox.commit(held, rig.mailbox.release(held), TurnChange(replies=replies))
    for number in range(60):
        work = rig.outbox.mark_delivered(held, work, Sent(f"r{number}"))
    assert look(rig).question_messages == tuple(f"r{number}" for number in range(10, 60))
