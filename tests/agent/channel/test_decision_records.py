"""Records of decisions: each yes and no is stored with its words or tap, in the step that decides."""

from __future__ import annotations

import pytest

from sayso.channels.types import Conversation, Scope
from sayso.pending.decision_record import DecisionRecord
from tests.contracts.rigs import CHAT


def record_of(bot, action_id: str) -> DecisionRecord | None:
    """Return the record that is stored with an action, after a check of its seal."""
    (stored,) = bot.rig.repository.load(CHAT.id, (action_id,))
    if not stored.decision:
        return None
    record = DecisionRecord.from_json(stored.decision)
    assert record.is_genuine(bot.rig.store.signer)
    assert (record.action_id, record.record_mac) == (action_id, stored.mac)
    assert record.event_id == stored.decided_by_event
    return record


def asked(bot) -> str:
    """Let the bot ask, and return the id of the action."""
    bot.say("delete it")
    return bot.rig.repository.load_open(CHAT.id, bot.scope).action_id


def test_question_that_nobody_answered_has_no_record(make_bot):
    """An expiry is no decision, and a late yes is none either."""
    bot = make_bot("A")
    action_id = asked(bot)
    assert record_of(bot, action_id) is None
    bot.rig.pass_time(90)
    assert "expired" in bot.say("yes")
    assert record_of(bot, action_id) is None


def test_message_about_something_else_is_no_decision(make_bot):
    """It ends the question, and the person said neither yes nor no."""
    bot = make_bot("A", lines=["Sunny."])
    action_id = asked(bot)
    bot.say("what is the weather?")
    assert record_of(bot, action_id) is None


@pytest.mark.parametrize(
    ("words", "answer"), [("Yes!", "yes"), ("no", "no"), ("no, wrong order", "no")]
)
def test_words_are_recorded_as_they_were_written(make_bot, words, answer):
    """The record names the message, the person and the time at which the turn came in."""
    bot = make_bot("A", lines=["I see."])
    action_id = asked(bot)
    came_in = bot.rig.now
    bot.hear(words)
    bot.rig.pass_time(5)
    bot.work()
    record = record_of(bot, action_id)
    assert (record.answer, record.form, record.words) == (answer, "words", words)
    assert (record.channel, record.user_id, record.conversation) == ("chat", "ana", CHAT.id)
    assert record.at == pytest.approx(came_in, abs=0.01)


def test_no_whose_turn_failed_is_recorded(make_bot):
    """The model fails on the rest of the message; the no counts all the same."""
    bot = make_bot("A", lines=[])
    action_id = asked(bot)
    bot.say("no, wrong order")
    assert record_of(bot, action_id).words == "no, wrong order"


@pytest.mark.parametrize(("button", "answer"), [(0, "yes"), (1, "no")])
def test_tap_is_recorded_without_words(make_bot, button, answer):
    """The record names the message with the button."""
    bot = make_bot("A")
    action_id = asked(bot)
    bot.say(tap=bot.buttons[button].data)
    record = record_of(bot, action_id)
    assert (record.answer, record.form, record.words) == (answer, "tap", "")


def test_repeated_tap_changes_nothing(make_bot):
    """The first decision stays recorded."""
    bot = make_bot("A")
    action_id = asked(bot)
    tap = bot.buttons[0].data
    bot.say(tap=tap, event="first")
    bot.say(tap=tap, event="second")
    assert record_of(bot, action_id).event_id == "first"


def test_killed_worker_leaves_one_record(make_bot):
    """The next worker makes the same claim, and the record stays the first one."""
    bot = make_bot("A")
    action_id = asked(bot)
    bot.hear("yes", event="e-yes")
    bot.die_after("claim")
    first = record_of(bot, action_id)
    bot.rig.pass_time(5)
    bot.work()
    assert bot.deleted == ["A"]
    assert record_of(bot, action_id) == first


def test_yes_to_a_plan_is_recorded_with_the_plan(make_bot):
    """Its steps were not answered one by one, so they have no record."""
    bot = make_bot("A B")
    bot.say("delete them")
    plan = bot.rig.repository.load_open(CHAT.id, bot.scope)
    bot.say("yes")
    assert record_of(bot, plan.action_id).answer == "yes"
    for step in plan.action.args["steps"]:
        assert record_of(bot, step["id"]) is None


def test_undo_has_a_record_of_its_own(make_bot):
    """It is an action whose yes is the tap on its button."""
    bot = make_bot("A", undo=lambda name: f"restored {name}", undo_seconds=300)
    asked(bot)
    bot.say("yes")
    (button,) = bot.buttons
    assert bot.say(tap=button.data) == "restored A"
    assert record_of(bot, button.data[1:23]).form == "tap"


def test_record_of_a_turn_without_a_worker(make_bot):
    """A program that passes on a person's message through the channel agent records its words."""
    bot = make_bot("A")
    bot.agent.ask_channel("ana", "delete it", channel_id="chat")
    scope = Scope("ana", Conversation("chat", "ana"))
    stored = bot.rig.repository.load_open(scope.conversation.id, scope.id)
    bot.agent.ask_channel("ana", "yes", channel_id="chat")
    (stored,) = bot.rig.repository.load(scope.conversation.id, (stored.action_id,))
    record = DecisionRecord.from_json(stored.decision)
    assert (record.form, record.words, record.user_id) == ("words", "yes", "ana")
