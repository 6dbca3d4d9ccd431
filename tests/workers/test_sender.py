"""Sender: whatever a platform does, replies arrive in order, within its rate limit, and none is lost in silence."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sayso.channels.base import (
    AddressClosed,
    ChannelDown,
    ConversationRateLimited,
    DeliveryUncertain,
    OptedOut,
    RateLimit,
    RateLimited,
    Refused,
    TemplateRefused,
    Unreachable,
    WindowClosed,
)
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Delivery, Receipt, RefusedTemplate, Reply
from sayso.infra.records import OtherVersion
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import ConversationParked, QueuedReply
from sayso.workers import sender
from sayso.workers.sender import ReceiptFiles
from tests.contracts.rigs import Rig, make_sender, turn

#: The mark of a reply that may have arrived before.
MARK = texts_for("").repeated("x")[:-1]
#: Outcomes of an attempt: its error, and whether the message arrived all the same.
FAULTS = {
    "fine": (None, True),
    "timeout": (DeliveryUncertain("no answer"), False),
    "late": (DeliveryUncertain("no answer"), True),
    "429": (RateLimited(7), False),
    "503": (Unreachable("down"), False),
    "blocked": (AddressClosed("blocked"), False),
    "down": (ChannelDown("the token is wrong: set TOKEN"), False),
    "window": (WindowClosed("24 hours"), False),
}


class Platform:
    """A platform with faults that notes each attempt and each pause that it asked for."""

    name = "chat"

    def __init__(self, rig: Rig, faults) -> None:
        self.rig, self.faults = rig, iter(faults)
        self.arrived: list[tuple[str, str]] = []
        self.attempts: list[float] = []
        self.replies: list[Reply] = []
        self.silent_until, self.broken_silences = 0.0, 0

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return the limit of this test."""
        return self.pace

    async def send(self, delivery: Delivery) -> Receipt:
        """Accept or refuse a message."""
        self.attempts.append(self.rig.now)
        self.replies.append(delivery.reply)
        self.broken_silences += self.rig.now < self.silent_until
        error, arrives = FAULTS[next(self.faults, "fine")]
        if arrives:
            self.arrived.append(
                (delivery.conversation.chat, delivery.reply.text.removeprefix(MARK))
            )
        if isinstance(error, RateLimited):
            self.silent_until = self.rig.now + error.retry_after
        if error:
            raise error
        return Receipt("m")

    def split(self, reply: Reply) -> list[Reply]:
        """Return the reply whole."""
        return [reply]

    def firsts(self, chat: str) -> list[str]:
        """Return what arrived in a chat, without repetitions."""
        return list(dict.fromkeys(text for where, text in self.arrived if where == chat))


class Post:
    """Conversations with a number of replies each, and workers that send them."""

    def __init__(
        self,
        faults,
        *,
        chats: int = 1,
        replies: int = 1,
        pace: RateLimit | None = None,
        receipts=None,
        said=None,
    ) -> None:
        self.rig = Rig()
        self.platform = Platform(self.rig, faults)
        self.slept: list[float] = []
        self.platform.pace = pace or RateLimit()
        channels, options = {"chat": self.platform}, {"receipts": receipts} if receipts else {}
        self.sender = make_sender(
            self.rig.outbox, channels, chance=lambda: 1.0, sleep=self._sleep, **options
        )
        self.rooms = {
            room.id: room
            for room in (Conversation("chat", f"c{number}") for number in range(chats))
        }
        for room in self.rooms.values():
            self._say(
                room,
                [said] if said else [Reply(f"{room.chat} {number}") for number in range(replies)],
            )

    def run(self, rounds: int = 5000) -> None:
        """Start workers whenever a conversation is due, until none is."""
        for _ in range(rounds):
            if not self.rig.client.keys("*:outbox:*"):
                return
            self.rig.now = max(self.rig.now + 1, min(self._due().values()))
            self._work_due()
        raise AssertionError("something was never sent nor given up")

    def run_for(self, seconds: float) -> None:
        """Let time pass, and start workers whenever a conversation is due."""
        until = self.rig.now + seconds
        while (due := min(self._due().values(), default=until)) < until:
            self.rig.now = max(self.rig.now + 1, due)
            self._work_due()
        self.rig.now = until

    def _due(self) -> dict[str, float]:
        """Return when each conversation needs a worker, in Unix seconds."""
        return {
            room: at / 1000
            for key in self.rig.client.keys("*:due")
            for room, at in self.rig.client.zrange(key, 0, -1, withscores=True)
        }

    def _work_due(self) -> None:
        """Let a worker process each conversation that is due."""
        for room, at in self._due().items():
            if at <= self.rig.now:
                self.work(room)

    def say(self, reply: Reply) -> None:
        """Accept a turn and commit its answer."""
        self._say(next(iter(self.rooms.values())), [reply])

    def work(self, room: str) -> None:
        """Let one worker process a conversation."""
        taken = self.rig.mailbox.lease(room, f"w{self.rig.now}")
        if taken is None:
            return
        lease, work = taken
        try:
            while isinstance(work, QueuedReply):
                work = asyncio.run(self.sender.send(lease, work, lambda: True))
            self.rig.mailbox.release(lease)
        except ConversationParked:
            return

    def _say(self, room: Conversation, replies) -> None:
        self.rig.mailbox.accept(replace(turn(), conversation=room))
        lease, work = self.rig.mailbox.lease(room.id, "said")
        self.rig.mailbox.commit(
            lease, work, TurnChange(replies=tuple(TurnReply(reply) for reply in replies))
        )
        self.rig.mailbox.release(lease, hand_over=True)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.rig.now += seconds


def check(post: Post, replies: int) -> None:
    """Check the order of first arrivals, that lost replies are on the operator's list, and that pauses were kept."""
    dead = {fate.text: fate for fate in post.rig.deliveries.undelivered("dead")}
    for room in post.rooms.values():
        said, came = (
            [f"{room.chat} {number}" for number in range(replies)],
            post.platform.firsts(room.chat),
        )
        assert came == [text for text in said if text in came]
        assert set(said) <= set(came) | dead.keys()
    given_up = [fate for fate in dead.values() if not fate.reason.startswith("AddressClosed")]
    assert all(fate.attempts == sender.MAX_SEND_ATTEMPTS for fate in given_up)
    assert post.platform.broken_silences == 0


@settings(max_examples=150)
@given(
    faults=st.lists(st.sampled_from([name for name in FAULTS if name != "window"]), max_size=60),
    chats=st.integers(1, 3),
)
def test_no_faults_change_the_order_or_lose_a_reply(faults, chats):
    """The platform does anything at each attempt, in up to three conversations at once."""
    post = Post(faults, chats=chats, replies=4)
    post.run()
    check(post, 4)


def test_adapter_that_breaks_at_the_mark_of_a_repeated_reply_stops_no_conversation():
    """Its attempts count like any others; then the reply is a dead letter."""
    post = Post(["timeout"])

    def broken(reply: Reply) -> list[Reply]:
        raise RuntimeError("bug")

    post.platform.split = broken
    post.run()
    (fate,) = post.rig.deliveries.undelivered("dead")
    assert (fate.attempts, fate.doubtful) == (sender.MAX_SEND_ATTEMPTS, True)


def test_reply_at_which_the_adapter_breaks_comes_marked_the_next_time(monkeypatch):
    """It may have broken over the platform's answer, after the message was taken."""
    monkeypatch.setitem(FAULTS, "breaks", (RuntimeError("bug"), True))
    post = Post(["fine", "breaks"], replies=2)
    post.run()
    texts = [reply.text for reply in post.platform.replies[1:]]
    assert texts == ["c0 1", texts_for("").repeated("c0 1")]


def test_reply_that_needs_a_record_of_another_release_is_put_aside_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """After a rollback the number of a person may be unreadable.

    That is no fault of the adapter.
    """
    monkeypatch.setitem(FAULTS, "newer", (OtherVersion(2), False))
    post = Post(["newer"] * sender.MAX_SEND_ATTEMPTS)
    post.run()
    (fate,) = post.rig.deliveries.undelivered("dead")
    assert "upgrade this process" in fate.reason
    assert "reply.crashed" not in caplog.messages


@pytest.mark.parametrize("asked", [math.inf, math.nan, -5.0, 1e30])
def test_platform_that_asks_for_an_absurd_wait_is_tried_again_after_a_day(monkeypatch, asked):
    """A header of many digits, or of a broken proxy: no reply waits for ever, and no conversation breaks."""
    monkeypatch.setitem(FAULTS, "absurd", (RateLimited(asked), False))
    post = Post(["absurd"])
    post.run_for(2 * 86400)
    assert post.platform.firsts("c0") == ["c0 0"]


def test_bad_day_of_a_provider(caplog):
    """30 % timeouts, 10 % 429 and 5 % 5xx over 1,000 replies: the order holds, and each given up reply is reported."""
    day = random.Random(1)
    weights = {"timeout": 20, "late": 10, "429": 10, "503": 5, "fine": 55}
    faults = day.choices(list(weights), list(weights.values()), k=10_000)
    post = Post(faults, chats=10, replies=100)
    with caplog.at_level(logging.ERROR):
        post.run(10_000)
    check(post, 100)
    assert caplog.messages.count("reply.dead") == len(post.rig.deliveries.undelivered("dead")) > 0
    assert len(post.platform.attempts) > 1000


def test_reply_is_dead_after_ten_attempts_and_the_next_goes_on(caplog):
    """The operator finds it in the log and on the list, with what is needed to send it again."""
    post = Post(["timeout"] * sender.MAX_SEND_ATTEMPTS, replies=2)
    post.run()
    (fate,) = post.rig.deliveries.undelivered("dead")
    assert (fate.attempts, fate.doubtful, fate.text) == (10, True, "c0 0")
    assert post.platform.arrived == [("c0", "c0 1")]
    assert "reply.dead" in caplog.messages


def test_resent_reply_arrives_marked():
    """A doubtful reply may have arrived already, so it is marked and comes after the newer replies."""
    post = Post(["timeout"] * sender.MAX_SEND_ATTEMPTS, replies=2)
    post.run()
    (fate,) = post.rig.deliveries.undelivered("dead")
    sent, post.platform.send = [], lambda delivery: _take(sent, delivery)
    post.rig.deliveries.retry(fate.id)
    post.run()
    assert sent == [texts_for("").repeated("c0 0")]


async def _take(sent: list[str], delivery: Delivery) -> Receipt:
    sent.append(delivery.reply.text)
    return Receipt("m")


def test_reply_the_platform_reported_is_not_sent_again():
    """The answer was lost but the report came, so it is not repeated."""
    post = Post(["late"])
    (room,) = post.rooms
    post.rig.now += 6
    post.work(room)
    post.rig.deliveries.report(f"{room}#1", "m7", "delivered")
    post.run()
    assert post.platform.arrived == [("c0", "c0 0")]
    assert post.rig.deliveries.statuses(room)[0][0].receipt == "m7"


def test_pause_holds_for_all_conversations_of_the_channel():
    """platforms.md 2.4: a platform that asks one of ten conversations to wait gets no attempt of any until then."""
    post = Post(["429"], chats=10)
    post.run()
    first, *others = post.platform.attempts
    assert len(post.platform.arrived) == 10
    assert min(others) >= first + 7


def test_last_attempt_of_a_dead_reply_may_pause_the_channel_too():
    """The reply is given up, and the platform's pause is kept."""
    post = Post(["timeout"] * (sender.MAX_SEND_ATTEMPTS - 1) + ["429"], replies=2)
    post.run()
    check(post, 2)
    assert post.platform.attempts[-1] >= post.platform.attempts[-2] + 7


def test_channel_keeps_its_rate_limit():
    """At two a second, thirty replies of thirty conversations take a quarter of a minute."""
    post = Post([], chats=30, pace=RateLimit(per_second=2))
    post.run()
    spent = [
        late - early
        for early, late in zip(post.platform.attempts, post.platform.attempts[3:], strict=False)
    ]
    assert post.platform.attempts[-1] - post.platform.attempts[0] >= 14
    assert min(spent) >= 0.5  # a round of the reaper may wake two whose slots are behind


def test_chat_keeps_its_rate_limit_after_a_burst():
    """Three at once, then one each 4 s: a worker sleeps short waits and releases the lease for long ones."""
    post = Post([], replies=6, pace=RateLimit(chat_gap=4, burst=3))
    post.run()
    begin = post.platform.attempts[0]
    assert [round(at - begin) for at in post.platform.attempts[:3]] == [0, 0, 0]
    assert [round(at - begin) for at in post.platform.attempts[3:]] == [4, 8, 12]


def test_answers_in_a_tap_take_nothing_of_the_chats_rate_limit():
    """Forty of them delay no message of the chat, and wait for none."""
    post = Post([], replies=0, pace=RateLimit(chat_gap=4, burst=3))
    taps = [Reply("That button is not yours.", answers_tap=f"c{number}") for number in range(40)]
    post._say(next(iter(post.rooms.values())), [*taps, Reply("Done.")])
    post.run()
    assert len(post.platform.attempts) == 41
    assert post.platform.attempts[-1] == post.platform.attempts[0]


def test_short_wait_is_slept_and_is_no_attempt():
    """At ten a second, the worker holds the second reply for a tenth of a second."""
    post = Post([], replies=2, pace=RateLimit(per_second=10))
    post.run()
    assert post.slept == [pytest.approx(0.1, abs=0.01)]
    assert [fate.attempts for fate in post.rig.deliveries.statuses(next(iter(post.rooms)))[0]] == [
        1,
        1,
    ]


def test_process_asks_for_the_rate_limit_once():
    """Afterwards the limit comes with the reply, without a further call."""
    post, said = Post([], replies=5, pace=RateLimit(per_second=100)), []
    pace = post.rig.outbox.book_slot
    post.rig.outbox.book_slot = lambda *given: said.append(given) or pace(*given)
    post.run()
    assert len(said) == 1


def test_rate_that_is_set_to_0_ends_the_limit_that_redis_knows():
    """An operator who turns the limit off and starts the workers anew has no limit."""
    post = Post([], replies=20, pace=RateLimit(per_second=1))
    (room,) = post.rooms
    post.rig.now += 6
    post.work(room)
    post.sender = make_sender(post.rig.outbox, {"chat": post.platform}, rates={"chat": 0})
    post.run()
    begin = post.platform.attempts[0]
    assert len(post.platform.attempts) == 20
    assert post.platform.attempts[-1] - begin < 5


@pytest.mark.parametrize(
    ("error", "closed"), [(AddressClosed("blocked"), "AddressClosed: blocked"), (Refused("x"), "")]
)
def test_refused_text_does_not_close_the_address(error, closed):
    """A refused text tells nothing about the next one."""
    post = Post([])
    (room,) = post.rooms

    async def refuse(delivery: Delivery) -> Receipt:
        raise error

    post.platform.send = refuse
    post.run()
    assert post.rig.deliveries.statuses(room)[1] == closed


def test_rate_limit_without_a_time_is_retried_with_backoff():
    """platforms.md 1.4: 429 without `Retry-After` counts as one second; the pauses grow as in an outage."""
    post = Post([])

    async def busy(delivery: Delivery) -> Receipt:
        post.platform.attempts.append(post.rig.now)
        raise RateLimited(1)

    post.platform.send = busy
    post.run()
    pauses = [
        round(late - early)
        for early, late in zip(post.platform.attempts, post.platform.attempts[1:], strict=False)
    ]
    assert (pauses[:4], len(pauses)) == ([2, 4, 8, 16], 9)


@pytest.mark.parametrize(
    ("error", "waits"), [(RateLimited(60), True), (ConversationRateLimited(60), False)]
)
def test_rate_limit_of_one_conversation_lets_the_others_go_on(error: RateLimited, waits: bool):
    """Where many workspaces have an account, a platform counts the messages of each by themselves."""
    post = Post([], chats=2)
    limited, other = post.rooms
    send = post.platform.send
    errors = [error]

    async def refuse_once(delivery: Delivery) -> Receipt:
        if errors:
            raise errors.pop()
        return await send(delivery)

    post.platform.send = refuse_once
    post.work(limited)
    post.work(other)
    assert post.platform.firsts("c1") == ([] if waits else ["c1 0"])
    post.run()
    assert post.platform.firsts("c0") == ["c0 0"]


def test_edit_that_may_have_arrived_is_sent_again_unmarked():
    """It changes an existing message, so a repetition does no harm."""
    post = Post(["late"], said=Reply("done", edits="m7"))
    post.run()
    assert post.platform.arrived == [("c0", "done")] * 2
    assert post.platform.replies[-1] == Reply("done", edits="m7")


def test_reply_waits_for_its_person_to_write_and_goes_out_first():
    """platforms.md 1.4: there is no attempt before; then the platform takes the held reply unchanged."""
    post = Post(["window"], replies=2)
    (room,) = post.rooms.values()
    for _ in range(3):
        post.run_for(24 * 3600)
    assert (len(post.platform.attempts), post.platform.arrived) == (1, [])
    post.rig.mailbox.accept(replace(turn(), conversation=room))
    post.run_for(60)
    assert post.platform.arrived == [("c0", "c0 0"), ("c0", "c0 1")]


def test_reply_whose_person_never_writes_is_given_up_after_a_week():
    """Each reply behind it has a week of its own."""
    post = Post(["window"])
    post.run_for(8 * 24 * 3600)
    (fate,) = post.rig.deliveries.undelivered("dead")
    assert fate.reason == "WindowClosed: the user did not write for 7 days"
    assert (len(post.platform.attempts), post.rig.deliveries.undelivered("held")) == (1, [])


def test_window_that_stays_closed_although_the_person_writes_stops_nothing():
    """The platform contradicts itself: after ten attempts the turn is processed."""
    post = Post(["window"] * 10)
    (room,) = post.rooms.values()
    post.rig.mailbox.accept(replace(turn(), conversation=room))
    post.run_for(3600)
    (fate,) = post.rig.deliveries.undelivered("dead")
    assert (fate.reason, fate.attempts) == ("WindowClosed: 24 hours", 10)


def test_channel_whose_token_is_dead_loses_nothing(caplog):
    """platforms.md 3.4: one attempt a minute, the reason in the alert; a new token sends all in order."""
    post = Post(["down"] * 150, chats=3, replies=2)
    post.run_for(3600)
    assert len(post.platform.attempts) == pytest.approx(60, abs=3)
    assert (post.platform.arrived, post.rig.deliveries.undelivered("dead")) == ([], [])
    assert [alert.text for alert in post.sender._alerts.of(["chat"])] == [
        "the token is wrong: set TOKEN"
    ]
    assert "channel.down" in caplog.messages
    post.platform.faults = iter(())
    post.run_for(120)
    check(post, 2)
    assert len(post.platform.arrived) == 6


def test_refused_template_is_told_to_the_operator_and_the_reply_waits(caplog):
    """One attempt, whatever time passes: the platform would refuse each.

    The person's next message brings the reply.
    """
    post = Post([])
    (room,) = post.rooms.values()
    refusal = RefusedTemplate("HX1", "Meta has paused it", "name another one")
    attempts = []
    take = post.platform.send

    async def refuse(delivery: Delivery) -> Receipt:
        attempts.append(delivery.id)
        raise TemplateRefused(refusal)

    post.platform.send = refuse
    post.run_for(3 * 24 * 3600)
    assert len(attempts) == 1
    assert [alert.text for alert in post.sender._alerts.of(["chat"])] == [refusal.alert]
    assert "template.refused" in caplog.messages
    post.platform.send = take
    post.rig.mailbox.accept(replace(turn(), conversation=room))
    post.run_for(60)
    assert post.platform.arrived == [("c0", "c0 0")]


def test_nothing_is_sent_to_a_person_who_opted_out():
    """It holds until the person writes again."""
    post = Post([], replies=2)
    attempts = []
    take = post.platform.send

    async def refuse(delivery: Delivery) -> Receipt:
        attempts.append(delivery.id)
        raise OptedOut("63050")

    post.platform.send = refuse
    post.run()
    assert len(attempts) == 1
    assert {fate.reason for fate in post.rig.deliveries.undelivered("dead")} == {"OptedOut: 63050"}
    post.platform.send = take
    post.say(Reply("welcome back"))
    post.run()
    assert post.platform.arrived == [("c0", "welcome back")]


def test_nothing_is_sent_to_an_address_that_is_closed():
    """platforms.md 1.4: later replies are given up for the same reason until the person writes again."""
    post = Post(["blocked"], replies=3)
    post.run()
    assert len(post.platform.attempts) == 1
    assert {fate.reason for fate in post.rig.deliveries.undelivered("dead")} == {
        "AddressClosed: blocked"
    }
    post.say(Reply("welcome back"))
    post.run()
    assert post.platform.arrived == [("c0", "welcome back")]


class Died(BaseException):
    """The worker is killed."""


@pytest.mark.parametrize(("noted", "arrived"), [(True, 1), (False, 2)])
def test_reply_with_the_receipt_of_a_dead_worker_is_not_sent_again(tmp_path, noted, arrived):
    """The worker died between the platform's answer and the call to Redis. Without a receipt the reply is doubtful."""
    post = Post([], receipts=ReceiptFiles(tmp_path, "w1") if noted else None)

    def die(*_, **__) -> None:
        raise Died

    mark_delivered, post.rig.outbox.mark_delivered = post.rig.outbox.mark_delivered, die
    with pytest.raises(Died):
        post.run()
    post.rig.outbox.mark_delivered = mark_delivered
    post.sender._receipts = ReceiptFiles(tmp_path, "w2")
    post.rig.end_lease()
    post.run()
    assert post.platform.arrived == [("c0", "c0 0")] * arrived
    (fate,) = post.rig.deliveries.statuses(next(iter(post.rooms)))[0]
    assert fate.receipt == "m"


def test_paid_reply_that_is_found_by_its_receipt_counts_by_its_class(tmp_path):
    """The worker died after the platform took the reply, which is on the bill all the same."""
    post = Post([], receipts=ReceiptFiles(tmp_path, "w1"))

    async def take(delivery: Delivery) -> Receipt:
        return Receipt("m", price_class="service")

    def die(*_, **__) -> None:
        raise Died

    post.platform.send = take
    mark_delivered, post.rig.outbox.mark_delivered = post.rig.outbox.mark_delivered, die
    with pytest.raises(Died):
        post.run()
    post.rig.outbox.mark_delivered = mark_delivered
    post.rig.end_lease()
    post.run()
    assert post.rig.deliveries.paid_messages(0) == {("chat", "service"): 1}
