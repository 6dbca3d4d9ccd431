"""Timers through a whole worker: tools' timers are committed with their turn, and expired questions are reported."""

from __future__ import annotations

import asyncio

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    OfflineProvider,
    ScriptedProvider,
    ToolCall,
    ToolPolicy,
    tool,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.tools.loading import load_tools
from sayso.channels.base import DeliveryUncertain
from sayso.channels.i18n.texts import MAX_REPEATED_CHARS, texts_for
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import FakeChannel


@tool(requires_approval=True, preview="Delete {name}")
def delete(name: str) -> str:
    """Delete a thing."""
    return f"deleted {name}"


#: The model's call of the tool.
CALLS = [ToolCall("remind_me", {"text": "x", "when": "in 5 minutes"}, "c1")]


class Room:
    """A conversation in memory with reminders and a destructive tool."""

    def __init__(self, provider=None, policy=None, **options) -> None:
        self.rig, self.channel = Rig(), FakeChannel()
        tools = [*load_tools("sayso.examples.reminders").tools, delete]
        config = AgentConfig(max_retries=0, tool_policy=policy)
        agent = Agent(tools, provider or OfflineProvider(), config)
        self.agent = ChannelAgent(agent, self.rig.store, behavior=ChannelBehavior(**options))
        channels = {"chat": self.channel}
        sender = make_sender(self.rig.outbox, channels)
        self.processor = make_processor(self.rig.mailbox, sender, channels, {"chat": self.agent})

    def say(self, text: str, user: str = "ana") -> str:
        """Process a turn; return the answer."""
        self.rig.accept(turn(text, user=user))
        return self.work()

    def work(self) -> str:
        """Process the conversation; return the last text that arrived."""
        asyncio.run(self.processor.run(CHAT.id))
        return self.channel.texts[-1] if self.channel.texts else ""

    def later(self, seconds: float) -> list[str]:
        """Let time pass; return the texts that arrive by themselves."""
        before = len(self.channel.new_texts)
        self.rig.pass_time(seconds)
        for _ in self.rig.overdue():
            self.work()
        return self.channel.new_texts[before:]


def test_reminder_is_confirmed_and_rings_once():
    """This is the whole path, with the offline model."""
    room = Room()
    assert room.say("remind me in 10 minutes to call Bob").startswith("Reminder set for 20")
    assert room.later(580) == []
    assert room.later(40) == ["Reminder: call Bob"]
    assert room.later(3600) == []
    assert room.say("list reminders") == "There are no reminders."


def test_worker_killed_before_its_commit_sets_a_reminder_once():
    """The turn and its tool run again, and one reminder rings."""
    room = Room(ScriptedProvider([CALLS, "ok", CALLS, "ok"]))
    commit = room.rig.mailbox.commit

    def killed(*args, **options):
        room.rig.mailbox.commit = commit
        raise RuntimeError("killed")

    room.rig.mailbox.commit = killed
    with pytest.raises(RuntimeError):
        room.say("remind me")
    room.rig.end_lease()
    assert room.later(1) == ["ok"]
    assert room.later(600) == ["Reminder: x"]


def test_reminder_of_a_finished_call_is_not_lost_with_its_worker():
    """The tool does not run again; the journal has the timers that it set and cancelled."""
    room = Room(ScriptedProvider([CALLS, "ok"]))
    room.say("remind me")
    cancel = ToolCall("cancel_reminder", {"reminder_id": "1"}, "c2")
    again = ToolCall("remind_me", {"text": "x", "when": "in 5 minutes"}, "c3")
    room.agent.agent.provider = ScriptedProvider([[again, cancel], "fine"])
    room.agent._journals = room.rig.mailbox
    commit = room.rig.mailbox.commit

    def killed(*args, **options):
        room.rig.mailbox.commit = commit
        room.agent.agent.provider = ScriptedProvider(["fine"])
        raise RuntimeError("killed")

    room.rig.mailbox.commit = killed
    with pytest.raises(RuntimeError):
        room.say("another, instead")
    room.rig.end_lease()
    assert room.later(1) == ["fine"]
    assert room.later(600) == ["Reminder: x"]


def test_reminder_that_may_have_arrived_is_marked_in_its_own_language():
    """Ana wrote Portuguese when she set it, and the platform's answer was lost when it rang."""
    room = Room(ScriptedProvider([CALLS, "ok"]))
    room.say("por favor, lembra-me de ligar ao Bob em 10 minutos, obrigada")
    room.channel.errors = [DeliveryUncertain("lost")]
    assert room.later(600) == []
    assert room.later(3) == [texts_for("pt").repeated(texts_for("pt").reminder("x"))]


def test_people_see_and_cancel_only_their_own_reminders():
    """Bob neither sees nor cancels ana's in the conversation that they share."""
    room = Room()
    room.say("remind me in 10 minutes to call Bob")
    assert room.say("list reminders", user="bob") == "There are no reminders."
    assert room.say("cancel reminder 1", user="bob") == "You have no reminder 1 here."
    assert room.say("list reminders").startswith("1: call Bob, 20")
    assert room.say("cancel reminder 1").startswith("Cancelled: 1: call Bob")
    assert room.later(3600) == []


def test_message_is_answered_while_a_reminder_waits():
    """This holds before the reminder, at its very time, and after it."""
    room = Room()
    room.say("remind me tomorrow at 9 to call Bob")
    room.rig.accept(turn("hello"))
    (told,) = room.later(6)
    assert told.startswith("You said: hello\n")


def test_reminder_behind_a_yes_is_refused_with_a_reason():
    """Another worker may report a confirmed action, so the action cannot set timers that its turn must commit."""
    room = Room(policy=ToolPolicy(review=["remind_me"]))
    room.say("remind me in 10 minutes to call Bob")
    assert "a tool that its policy allows without a confirmation" in room.say("yes")
    assert room.later(3600) == []


def test_unanswered_question_ends_with_a_notice():
    """The notice comes once, and a yes that crosses it runs nothing and gets the reason."""
    room = Room(expiry_notice=True)
    room.say("delete INV-7")
    assert room.later(50) == []
    assert room.later(20) == [
        "⌛ No answer came in time, so this confirmation expired: Delete INV-7\n"
        "Nothing was done. Ask again if you still want it."
    ]
    assert room.later(3600) == []
    assert "Delete INV-7" in room.say("yes")
    assert "deleted" not in " ".join(room.channel.texts)
    room.later(3600)
    assert room.say("yes").startswith("You said: yes\n")


def test_answered_or_dropped_question_has_no_notice():
    """The answer is a yes, a no or another message."""
    room = Room(expiry_notice=True)
    for answer in ("yes", "no", "what about the weather?"):
        room.say("delete INV-7")
        room.say(answer)
        assert room.later(120) == []


def test_without_the_setting_there_is_no_notice():
    """No notice is the default."""
    room = Room()
    room.say("delete INV-7")
    assert room.later(120) == []


def test_yes_that_waited_for_its_worker_counts_before_the_expiry():
    """It came in time, but no worker was there until the window had closed."""
    room = Room(expiry_notice=True)
    room.say("delete INV-7")
    room.rig.accept(turn("yes"))
    assert room.later(100) == ["deleted INV-7"]
    assert room.later(100) == []


def test_notice_of_a_long_question_fits_in_one_message():
    """The preview is cut, and the meaning stays."""
    room = Room(expiry_notice=True)
    room.say(f"delete '{'x' * 2000}'")
    (told,) = room.later(61)
    assert MAX_REPEATED_CHARS < len(told) < MAX_REPEATED_CHARS + 200
    assert "expired" in told


def test_reminder_stays_although_the_model_fails():
    """The tool had run, so the reply does not say that nothing was done, and the timer rings."""
    room = Room(ScriptedProvider([CALLS]))
    assert room.say("remind me") == texts_for("en").model_lost()
    assert [texts_for("en").reminder("x")] == room.later(3600)
