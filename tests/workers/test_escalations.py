"""Escalations through a whole worker: operators are told once, in their language, and the person never waits."""

from __future__ import annotations

import asyncio

import pytest

from sayso.agent import Agent, AgentConfig, OfflineProvider, tool
from sayso.agent.channel.behavior import ChannelBehavior, Escalation
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.base import Unreachable
from sayso.channels.i18n.texts import MAX_REPEATED_CHARS, texts_for
from sayso.channels.types import Conversation, Delivery, Reply
from sayso.pending.stored_limits import MAX_FORWARDED_WAITING
from sayso.workers.sender import MAX_SEND_ATTEMPTS
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import FakeChannel

OPS = Conversation("ops", "C123")
ALARM = (
    "No answer yet on chat: Delete INV-7\nAn answer counts only within 60 seconds of the question."
)


class Killed(Exception):
    """Raised where a worker dies."""


@tool(requires_approval=True, preview="Delete {name}")
def delete(name: str) -> str:
    """Delete a thing."""
    return f"deleted {name}"


class Room:
    """A person's conversation, and the operators' conversation on another channel."""

    def __init__(self, rig, *, to: Conversation = OPS, language: str = "en", **options) -> None:
        self.rig, self.channel, self.ops = rig, FakeChannel(), FakeChannel()
        self.channels = {"chat": self.channel, "ops": self.ops}
        agent = Agent([delete], OfflineProvider(), AgentConfig(max_retries=0))
        self.agent = ChannelAgent(
            agent,
            rig.store,
            behavior=ChannelBehavior(escalation=Escalation(30, to, language), **options),
        )
        self.sender = make_sender(rig.outbox, self.channels)
        self.processor = make_processor(
            rig.mailbox, self.sender, self.channels, {"chat": self.agent}
        )

    def say(self, text: str) -> list[str]:
        """Process a turn; return what the person gets."""
        self.rig.accept(turn(text))
        return self.work()

    def work(self, place: Conversation = CHAT) -> list[str]:
        """Process a conversation; return what arrives in it."""
        channel = self.channels.get(place.channel, self.channel)
        before = len(channel.new_texts)
        asyncio.run(self.processor.run(place.id))
        return channel.new_texts[before:]

    def later(self, seconds: float) -> list[str]:
        """Let time pass; return what the person gets."""
        self.rig.pass_time(seconds)
        return self.work() if CHAT.id in self.rig.overdue() else []


@pytest.fixture
def make_room():
    """Return a function that makes both conversations on each kind of store."""
    return lambda **options: Room(Rig(), **options)


def test_operators_are_told_once_and_the_person_gets_nothing(make_room):
    """The alarm names the question, its place and the time left. The question itself stays where it is."""
    room = make_room()
    room.say("delete INV-7")
    assert (room.later(20), room.work(OPS)) == ([], [])
    assert (room.later(20), room.work(OPS)) == ([], [ALARM])
    assert (room.later(3600), room.work(OPS)) == ([], [])
    assert [delivery.conversation for delivery in room.ops.sent] == [OPS]


@pytest.mark.parametrize("answer", ["yes", "no", "what about the weather?"])
def test_answered_or_dropped_question_brings_no_alarm(make_room, answer: str):
    """This holds even if the answer waited for its worker longer than that."""
    room = make_room()
    room.say("delete INV-7")
    room.rig.accept(turn(answer))
    assert room.later(31) != []
    assert (room.later(60), room.work(OPS)) == ([], [])


def test_alarm_leaves_the_question_open(make_room):
    """The person can still answer."""
    room = make_room()
    room.say("delete INV-7")
    room.later(31)
    assert room.say("yes") == ["deleted INV-7"]


def test_worker_killed_between_the_two_conversations_alarms_once(make_room):
    """The alarm was stored there and not settled here. The next worker finds it, and neither is doubtful."""
    room = make_room()
    room.say("delete INV-7")
    settle = room.rig.outbox.mark_delivered

    def killed(*args, **options):
        room.rig.outbox.mark_delivered = settle
        raise Killed

    room.rig.outbox.mark_delivered = killed
    with pytest.raises(Killed):
        room.later(31)
    assert room.work(OPS) == [ALARM]
    room.rig.end_lease()
    assert (room.work(), room.work(OPS)) == ([], [])
    assert [fate.state for fate in room.rig.deliveries.statuses(CHAT.id)[0]] == ["sent", "sent"]


def test_dead_channel_of_the_operators_delays_no_person(make_room):
    """The person is answered at once, and the operators' list shows the missed alarm."""
    room = make_room()
    room.ops.errors = [Unreachable("down")] * MAX_SEND_ATTEMPTS
    room.say("delete INV-7")
    room.later(31)
    assert room.work(OPS) == []
    assert room.say("hello")[-1].splitlines()[2] == "You said: hello"


def test_alarm_waits_where_its_channel_is_unknown(make_room):
    """Another worker may know that channel. The alarm waits in its conversation, and the person goes on."""
    room = make_room()
    room.say("delete INV-7")
    del room.channels["ops"]
    room.later(31)
    assert room.rig.deliveries.undelivered("dead") == []
    assert room.rig.mailbox.lease(OPS.id, "w2") is not None
    assert room.say("yes") == ["deleted INV-7"]


def test_alarm_without_room_is_a_dead_letter_here(make_room):
    """It can be resent, which forwards it then."""
    room = make_room()
    forward, room.rig.outbox.forward = room.rig.outbox.forward, lambda delivery: ""
    room.say("delete INV-7")
    room.later(31)
    (dead,) = room.rig.deliveries.undelivered("dead")
    assert dead.reason == "too many replies wait in the conversation that it is for"
    room.rig.outbox.forward = forward
    room.rig.deliveries.retry(dead.id)
    assert (room.work(), room.work(OPS)) == ([], [ALARM])


def test_operators_are_told_in_the_language_of_their_channel(make_room):
    """The person's language does not matter."""
    room = make_room(language="de", languages=("en", "de"))
    room.say("delete INV-7")
    room.later(31)
    assert room.work(OPS) == [texts_for("de").escalation("Delete INV-7", "chat", 60)]


def test_operators_are_told_together_with_the_expiry(make_room):
    """The window closes before the alarm's time."""
    room = make_room(confirm_ttl=20, expiry_notice=True)
    room.say("delete INV-7")
    (told,) = room.later(21)
    assert "expired" in told
    assert room.work(OPS) == [ALARM.replace("60", "20")]


def test_operators_in_the_same_conversation_are_told_there(make_room):
    """Nothing is forwarded."""
    room = make_room(to=CHAT)
    room.say("delete INV-7")
    assert room.later(31) == [ALARM]


def test_alarm_of_a_long_question_fits_in_one_message(make_room):
    """The preview is cut, and the meaning stays."""
    room = make_room()
    room.say(f"delete '{'x' * 2000}'")
    room.later(31)
    (told,) = room.work(OPS)
    assert MAX_REPEATED_CHARS < len(told) < MAX_REPEATED_CHARS + 200
    assert told.endswith("60 seconds of the question.")


def test_full_outbox_of_the_operators_keeps_its_alarms(make_room):
    """Their platform is down. Alarms pile up to a bound, and each one beyond it is reported."""
    room = make_room()
    for number in range(MAX_FORWARDED_WAITING):
        room.rig.outbox.forward(_alarm(number))
    room.say("delete INV-7")
    assert room.later(31) == []
    assert (len(room.rig.deliveries.undelivered("dead")), len(room.work(OPS))) == (
        1,
        MAX_FORWARDED_WAITING,
    )


def _alarm(number: int) -> Delivery:
    return Delivery(f"wa:0123456789abcdef0123#{number}", OPS, Reply(str(number)))
