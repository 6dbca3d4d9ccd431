"""Conversation: across crashes, repeated taps and late answers, a confirmed action runs once and is reported truly."""

from __future__ import annotations

import json

import pytest

from sayso.infra.concurrency import run_without_loop
from tests.contracts.rigs import CHAT, turn


def test_yes_of_a_worker_killed_before_the_start_runs_once(make_bot):
    """The action was claimed but not started, so the next lease holder continues."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("claim")
    assert bot.deleted == []
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


def test_worker_killed_after_the_start_repeats_nothing(make_bot):
    """The action started without an outcome: the user is told that it is unknown, and it does not run again."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("start")
    assert "I cannot tell whether it finished" in bot.work()
    assert bot.deleted == []


def test_worker_killed_before_the_commit_repeats_nothing(make_bot):
    """The action finished without a commit: the next lease holder reports its outcome."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("finish")
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
def test_scope_is_free_after_any_crash(make_bot, step):
    """The conversation goes on with a new proposal."""
    bot = make_bot("A", "B")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after(step)
    bot.work()
    bot.say("delete B")
    assert bot.say("yes") == "deleted B"


def test_tap_survives_a_killed_worker(make_bot):
    """The button identifies its action, also after a crash."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear(tap=bot.buttons[0].data)
    bot.die_after("finish")
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


def test_late_yes_executes_nothing(make_bot):
    """A yes after the window is answered with `expired`."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.rig.pass_time(90)
    assert "expired" in bot.say("yes")
    assert bot.deleted == []


def test_late_tap_executes_nothing(make_bot):
    """Every button is answered with `expired` after the window."""
    bot = make_bot("A")
    bot.say("delete A")
    confirm, cancel = bot.buttons
    bot.rig.pass_time(90)
    assert "expired" in bot.say(tap=confirm.data)
    assert "expired" in bot.say(tap=cancel.data)
    assert bot.deleted == []


def test_yes_in_time_counts_however_late_it_is_processed(make_bot):
    """The delay was in the queue, not with the user."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.rig.pass_time(90)
    assert bot.work() == "deleted A"


def test_yes_sent_before_the_question_confirms_nothing(make_bot):
    """The yes answered something else: the question is asked, and a yes after that counts."""
    bot = make_bot("A")
    bot.hear("delete A")
    bot.hear("yes")
    assert "I had not asked yet" in bot.work()
    assert bot.deleted == []
    assert bot.say("yes") == "deleted A"


def test_second_tap_is_told_that_it_is_already_done(make_bot):
    """A second tap is another event: it runs nothing, and the outcome is not sent twice."""
    bot = make_bot("A")
    bot.say("delete A")
    tap = bot.buttons[0].data
    assert [bot.say(tap=tap) for _ in range(3)] == ["deleted A", *["Already done: Delete A"] * 2]
    assert bot.deleted == ["A"]


def test_redelivered_yes_counts_once(make_bot):
    """The same event has one effect and one answer."""
    bot = make_bot("A")
    bot.say("delete A")
    for _ in range(3):
        bot.say("yes", event="e-yes")
    assert bot.channel.texts.count("deleted A") == 1


def test_tap_of_another_user_is_refused_and_the_action_stays(make_bot):
    """All members of a group see the button; it works for one of them only."""
    bot = make_bot("A")
    bot.say("delete A")
    for button in bot.buttons:
        assert "the person who asked" in bot.say(tap=button.data, user="bob")
    assert bot.deleted == []
    assert "Do you mean this? Delete A" in bot.say(
        "yes"
    )  # what the other user read stands below the question
    assert bot.say("yes") == "deleted A"


def test_yes_of_another_user_confirms_nothing(make_bot):
    """Another member's words belong to a conversation of their own."""
    bot = make_bot("A", lines=["yes to what?"])
    bot.say("delete A")
    assert bot.say("yes", user="bob") == "yes to what?"
    assert bot.deleted == []
    assert "Do you mean this? Delete A" in bot.say("yes")
    assert bot.say("yes") == "deleted A"


def test_stale_button_neither_fires_nor_disarms(make_bot):
    """A button of an older prompt is answered with the outcome of that prompt."""
    bot = make_bot("A", "B")
    bot.say("delete A")
    old = bot.buttons
    bot.say("no")
    bot.say("delete B")
    for button in old:
        assert bot.say(tap=button.data) == "Nothing was done: “Delete A”"
    assert bot.deleted == []
    assert "Do you mean this? Delete B" in bot.say("yes")
    assert bot.say("yes") == "deleted B"


@pytest.mark.parametrize("data", ["", "x", "1" * 40, "1" + "a b" * 7 + "cy" + "A" * 16])
def test_forged_button_is_refused_and_the_conversation_goes_on(make_bot, data):
    """A made-up payload is refused, and the next turn is answered."""
    bot = make_bot("A")
    bot.say("delete A")
    assert "no longer applies" in bot.say(tap=data or "y")
    assert "Do you mean this? Delete A" in bot.say("yes")
    assert bot.say("yes") == "deleted A"


def test_unrelated_text_disarms_and_says_so(make_bot):
    """No destructive action stays armed after a change of subject."""
    bot = make_bot("A", lines=["It is sunny.", "yes to what?"])
    bot.say("delete A")
    assert (
        bot.say("what is the weather?")
        == "You did not say yes, so nothing was done: “Delete A”\n\nIt is sunny."
    )
    assert bot.say("yes") == "yes to what?"
    assert bot.deleted == []


def test_new_proposal_replaces_the_one_it_disarms(make_bot):
    """The yes confirms the action that was shown last."""
    bot = make_bot("A", "B")
    bot.say("delete A")
    assert "nothing was done: “Delete A”" in bot.say("rather delete B")
    assert (bot.say("yes"), bot.deleted) == ("deleted B", ["B"])


def test_no_cancels(make_bot):
    """A yes after the no finds no open question."""
    bot = make_bot("A", lines=["yes to what?"])
    bot.say("delete A")
    assert bot.say("no") == "Nothing was done: “Delete A”"
    assert (bot.say("yes"), bot.deleted) == ("yes to what?", [])


def test_tapped_button_confirms(make_bot):
    """A tap on the confirm button runs the action."""
    bot = make_bot("A")
    question = bot.say("delete A")
    assert question.startswith("Delete A\n\nReply **yes**")
    assert (bot.say(tap=bot.buttons[0].data), bot.deleted) == ("deleted A", ["A"])


def test_broken_media_store_does_not_hide_what_was_done(make_bot, monkeypatch):
    """A failure after the effect must not claim that the action did not run."""
    bot = make_bot("A")
    bot.say("delete A")

    async def full(_artifacts):
        raise OSError("disk full")

    monkeypatch.setattr(bot.agent._files, "store_all", full)
    assert (bot.say("yes"), bot.deleted) == ("deleted A", ["A"])


def test_users_of_one_chat_have_separate_histories(make_bot):
    """Two users in one chat each have a history of their own."""
    bot = make_bot(lines=["hello ana", "hello bob", "hello again"])
    bot.say("my PIN is 1234", user="ana")
    bot.say("hi", user="bob")
    bot.say("and now?", user="ana")
    seen = [
        " ".join(message.content for message in request.messages)
        for request in bot.provider.requests
    ]
    assert seen == ["my PIN is 1234", "hi", "my PIN is 1234 hello ana and now?"]


def test_settled_turns_are_in_the_history(make_bot):
    """The model sees confirmed actions in the history, although it was not asked about them."""
    bot = make_bot("A", lines=["as I said"])
    bot.say("delete A")
    bot.say("yes")
    bot.say("what did you do?")
    *_, call, result, yes, words, _ = bot.provider.requests[-1].messages
    assert (call.tool_calls[0].tool_name, json.loads(result.content)["outcome"]) == (
        "delete",
        "done",
    )
    assert [yes.content, words.content] == ["yes", "Done: Delete A"]


def test_proposal_of_a_turn_that_lost_its_lease_is_not_armed(make_bot):
    """A worker that loses its lease during the model call arms nothing and sends nothing."""
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
    assert bot.rig.repository.load_open(CHAT.id, turn().scope.id) is None
