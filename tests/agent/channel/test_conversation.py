"""Conversation: whoever dies, taps or types when, a confirmed action runs once and its user hears the truth."""

from __future__ import annotations

import pytest

from sayso.pending.concurrency import run_without_loop
from tests.contracts.rigs import CHAT, turn


def test_yes_of_a_worker_killed_before_the_start_runs_once(make_bot):
    """Claimed but not started: the next holder goes on."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("claim")
    assert bot.deleted == []
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


def test_worker_killed_after_the_start_repeats_nothing(make_bot):
    """Started without an outcome: the user hears that nobody knows, and nothing runs again."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("start")
    assert "I cannot tell whether it finished" in bot.work()
    assert bot.deleted == []


def test_worker_killed_before_the_commit_repeats_nothing(make_bot):
    """Finished but not committed: the next holder tells the outcome."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("finish")
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
def test_after_any_crash_the_scope_is_free(make_bot, step):
    """The conversation goes on with a new proposal."""
    bot = make_bot("A", "B")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after(step)
    bot.work()
    bot.say("delete B")
    assert bot.say("yes") == "deleted B"


def test_worker_killed_by_a_tap_is_the_same(make_bot):
    """A button's action is found by the button, also after a crash."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear(tap=bot.buttons[0].data)
    bot.die_after("finish")
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


def test_late_yes_executes_nothing(make_bot):
    """After the window the yes hears `expired`."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.rig.pass_time(90)
    assert "expired" in bot.say("yes")
    assert bot.deleted == []


def test_late_tap_executes_nothing(make_bot):
    """And so does every button."""
    bot = make_bot("A")
    bot.say("delete A")
    confirm, cancel = bot.buttons
    bot.rig.pass_time(90)
    assert "expired" in bot.say(tap=confirm.data)
    assert "expired" in bot.say(tap=cancel.data)
    assert bot.deleted == []


def test_yes_in_time_counts_however_late_it_is_worked_on(make_bot):
    """The queue was slow, not the user."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.rig.pass_time(90)
    assert bot.work() == "deleted A"


def test_yes_said_before_the_question_confirms_nothing(make_bot):
    """It answered something else: the user is asked, and a yes after that counts."""
    bot = make_bot("A")
    bot.hear("delete A")
    bot.hear("yes")
    assert "I had not asked yet" in bot.work()
    assert bot.deleted == []
    assert bot.say("yes") == "deleted A"


def test_twin_tap_hears_the_first_outcome_word_for_word(make_bot):
    """An impatient second tap is another event: it runs nothing and learns what happened."""
    bot = make_bot("A")
    bot.say("delete A")
    tap = bot.buttons[0].data
    assert bot.say(tap=tap) == bot.say(tap=tap) == "deleted A"
    assert bot.deleted == ["A"]


def test_redelivered_yes_is_no_second_yes(make_bot):
    """The same event has one effect and one answer."""
    bot = make_bot("A")
    bot.say("delete A")
    for _ in range(3):
        bot.say("yes", event="e-yes")
    assert bot.channel.texts.count("deleted A") == 1


def test_tap_of_another_user_is_refused_and_the_action_stays(make_bot):
    """In a group everybody sees the button; it is for one person."""
    bot = make_bot("A")
    bot.say("delete A")
    for button in bot.buttons:
        assert "the person who asked" in bot.say(tap=button.data, user="bob")
    assert bot.deleted == []
    assert bot.say("yes") == "deleted A"


def test_yes_of_another_user_confirms_nothing(make_bot):
    """Bob's words are a conversation of his own."""
    bot = make_bot("A", lines=["yes to what?"])
    bot.say("delete A")
    assert bot.say("yes", user="bob") == "yes to what?"
    assert bot.deleted == []
    assert bot.say("yes") == "deleted A"


def test_stale_button_neither_fires_nor_disarms(make_bot):
    """A button of an older prompt hears how that one ended."""
    bot = make_bot("A", "B")
    bot.say("delete A")
    old = bot.buttons
    bot.say("no")
    bot.say("delete B")
    for button in old:
        assert bot.say(tap=button.data) == "Cancelled: Delete A"
    assert bot.deleted == []
    assert bot.say("yes") == "deleted B"


@pytest.mark.parametrize("data", ["", "x", "1" * 40, "1" + "a b" * 7 + "cy" + "A" * 16])
def test_forged_button_is_refused_and_the_conversation_goes_on(make_bot, data):
    """Whatever a client sends as a button, the next turn is answered."""
    bot = make_bot("A")
    bot.say("delete A")
    assert "no longer applies" in bot.say(tap=data or "y")
    assert bot.say("yes") == "deleted A"


def test_unrelated_text_disarms_and_says_so(make_bot):
    """Nothing destructive stays armed behind another subject."""
    bot = make_bot("A", lines=["It is sunny.", "yes to what?"])
    bot.say("delete A")
    assert bot.say("what is the weather?") == "Not confirmed, so I dropped this: Delete A.\n\nIt is sunny."
    assert bot.say("yes") == "yes to what?"
    assert bot.deleted == []


def test_new_proposal_replaces_the_one_it_disarms(make_bot):
    """The yes is for what was shown last."""
    bot = make_bot("A", "B")
    bot.say("delete A")
    assert "dropped this: Delete A" in bot.say("rather delete B")
    assert (bot.say("yes"), bot.deleted) == ("deleted B", ["B"])


def test_no_cancels(make_bot):
    """And a yes after it finds nothing."""
    bot = make_bot("A", lines=["yes to what?"])
    bot.say("delete A")
    assert bot.say("no") == "Cancelled: Delete A"
    assert (bot.say("yes"), bot.deleted) == ("yes to what?", [])


def test_tapped_button_confirms(make_bot):
    """The happy path."""
    bot = make_bot("A")
    question = bot.say("delete A")
    assert question.startswith("Delete A\n\nReply **yes**")
    assert (bot.say(tap=bot.buttons[0].data), bot.deleted) == ("deleted A", ["A"])


def test_broken_media_store_does_not_hide_what_was_done(make_bot, monkeypatch):
    """After the effect nothing may say that nothing was confirmed."""
    bot = make_bot("A")
    bot.say("delete A")

    async def full(_artifacts):
        raise OSError("disk full")

    monkeypatch.setattr(bot.agent._files, "store_all", full)
    assert (bot.say("yes"), bot.deleted) == ("deleted A", ["A"])


def test_nothing_of_one_users_conversation_reaches_anothers_model(make_bot):
    """One room, two people: each has a history of their own."""
    bot = make_bot(lines=["hello ana", "hello bob", "hello again"])
    bot.say("my PIN is 1234", user="ana")
    bot.say("hi", user="bob")
    bot.say("and now?", user="ana")
    seen = [" ".join(message.content for message in request.messages) for request in bot.provider.requests]
    assert seen == ["my PIN is 1234", "hi", "my PIN is 1234 hello ana and now?"]


def test_settled_turns_are_in_the_history(make_bot):
    """The model knows what was confirmed without having been asked."""
    bot = make_bot("A", lines=["as I said"])
    bot.say("delete A")
    bot.say("yes")
    bot.say("what did you do?")
    assert [message.content for message in bot.provider.requests[-1].messages][-3:] == [
        "yes", "deleted A", "what did you do?",
    ]  # fmt: skip


def test_proposal_of_a_lost_turn_is_not_armed(make_bot):
    """A worker that lost its lane in the middle of the model call arms nothing and says nothing."""
    bot = make_bot("A", "A")
    bot.hear("delete A")
    complete = bot.provider.acomplete

    async def slow(**request):
        bot.rig.end_lease()
        run_without_loop(bot.rig.mailbox.lease(CHAT.id, "thief"))
        return await complete(**request)

    bot.provider.acomplete = slow
    bot.work()
    assert bot.channel.texts == []
    assert bot.rig.repository.find_open(CHAT.id, turn().scope.id) is None
