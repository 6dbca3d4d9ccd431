"""Plans: one yes covers several steps; each runs once, and the plan stops at the first that fails."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.infra.concurrency import run_with_timeout
from sayso.pending.settlement import EXECUTOR_TIMEOUT
from tests.contracts.rigs import CHAT

WORDS = texts_for("en")


def ask(bot) -> str:
    """Send the message that makes the bot propose, and return the question."""
    return bot.say("delete them")


def without_reference(report: str) -> str:
    """Return the report without the reference of an error, which is random."""
    return re.sub(r"\n *Reference: [0-9a-f]{8} \(\w+\)", "", report)


def pids(bot) -> list[str]:
    """Return the ids of the open steps in order."""
    plan = bot.rig.repository.load_open(CHAT.id, bot.scope)
    return [step["id"] for step in plan.action.args["steps"]]


def states(bot, steps: list[str]) -> list[str]:
    """Return the states of these actions."""
    return [stored.state for stored in bot.rig.repository.load(CHAT.id, tuple(steps))]


def test_no_to_a_plan_does_nothing(make_bot):
    """All steps are cancelled with the plan, and the store records it."""
    bot = make_bot("A B")
    ask(bot)
    steps = pids(bot)
    assert "Nothing was done" in bot.say("no")
    assert (bot.deleted, states(bot, steps)) == ([], ["cancelled", "cancelled"])


def test_late_yes_to_a_plan_does_nothing(make_bot):
    """The window of a plan holds for all its steps."""
    bot = make_bot("A B")
    ask(bot)
    steps = pids(bot)
    bot.rig.pass_time(90)
    assert "expired" in bot.say("yes")
    assert (bot.deleted, states(bot, steps)) == ([], ["expired", "expired"])


def test_plan_stops_at_the_first_failure_and_reports_it(make_bot):
    """The report separates done, failed and unstarted steps, and contains no error text."""
    bot = make_bot("A B C")
    ask(bot)
    steps = pids(bot)
    bot.broken = {"B"}
    report = bot.say("yes")
    assert (bot.deleted, states(bot, steps)) == (["A"], ["done", "failed", "cancelled"])
    told = [
        ("done", "Delete A", "deleted A"),
        ("failed", "Delete B", ""),
        ("cancelled", "Delete C", ""),
    ]
    assert without_reference(report) == WORDS.plan_report(told)
    assert "secret" not in report


@pytest.mark.parametrize(
    ("took", "limits", "second"),
    [
        (30.0, [EXECUTOR_TIMEOUT, EXECUTOR_TIMEOUT - 30.0], ("done", "Delete B", "deleted B")),
        (EXECUTOR_TIMEOUT, [EXECUTOR_TIMEOUT], ("cancelled", "Delete B", "")),
    ],
)
def test_steps_of_a_plan_share_the_time_of_one_action(make_bot, monkeypatch, took, limits, second):
    """Each step has the time that the earlier ones left; a step without time does not start, and the report says so."""
    bot, now, given = make_bot("A B"), [1000.0], []

    def timed(function, seconds, late):
        given.append(seconds)
        return run_with_timeout(function, seconds, late)

    monkeypatch.setattr("sayso.pending.settlement.run_with_timeout", timed)
    monkeypatch.setattr(
        "sayso.pending.settlement.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    )
    ask(bot)
    bot.before("finish", lambda: now.append(now.pop() + took))
    assert bot.say("yes") == WORDS.plan_report([("done", "Delete A", "deleted A"), second])
    assert (given, len(bot.deleted)) == (limits, len(limits))


def test_one_preview_lists_all_steps_and_one_yes_runs_them_in_order(make_bot):
    """The user sees all steps before the first one runs."""
    bot = make_bot("A B C")
    assert WORDS.plan(["Delete A", "Delete B", "Delete C"]) in ask(bot)
    assert bot.deleted == []
    bot.say("yes")
    assert bot.deleted == ["A", "B", "C"]


def test_second_tap_on_a_plan_is_told_that_it_is_already_done(make_bot):
    """A plan is settled like any single action."""
    bot = make_bot("A B")
    ask(bot)
    tap = bot.buttons[0].data
    bot.say(tap=tap)
    assert bot.say(tap=tap).startswith("Already done: 2 steps")
    assert bot.deleted == ["A", "B"]


@pytest.mark.parametrize(
    ("step", "times", "deleted"),
    [
        ("claim", 1, ["A", "B"]),  # the plan's own claim
        ("start", 1, ["A", "B"]),
        ("load", 1, ["A", "B"]),
        ("claim", 2, ["A", "B"]),  # the first step's
        ("finish", 1, ["A", "B"]),
        ("claim", 3, ["A", "B"]),  # the second step's
        ("finish", 2, ["A", "B"]),
        ("finish", 3, ["A", "B"]),  # the plan's own
    ],
)
def test_plan_resumes_where_a_killed_worker_left_it(make_bot, step, times, deleted):
    """The next lease holder skips the steps that are done and runs the others."""
    bot = make_bot("A B")
    ask(bot)
    bot.hear("yes")
    bot.die_after(step, times)
    report = bot.work()
    assert bot.deleted == deleted
    assert report == WORDS.plan_report(
        [("done", "Delete A", "deleted A"), ("done", "Delete B", "deleted B")]
    )


def test_resumed_plan_can_be_undone_as_a_whole(make_bot):
    """The undo covers the killed worker's steps with their results, and starts with the last step."""
    undone = []

    def restore(name: str, result: str) -> str:
        undone.append((name, result))
        return f"restored {name}"

    bot = make_bot("A B", undo=restore)
    ask(bot)
    bot.hear("yes")
    bot.die_after("finish")
    bot.work()
    bot.say(tap=bot.buttons[0].data)
    assert undone == [("B", "deleted B"), ("A", "deleted A")]


@pytest.mark.parametrize("times", [2, 3])
def test_step_started_by_a_killed_worker_is_unknown_and_ends_the_plan(make_bot, times):
    """The step is not repeated, and no later step runs."""
    bot = make_bot("A B C")
    ask(bot)
    steps = pids(bot)
    bot.hear("yes")
    bot.die_after("start", times)  # the plan's own start is the first
    report = bot.work()
    begun = times - 1
    assert bot.deleted == ["A", "B", "C"][: begun - 1]
    assert states(bot, steps) == ["done"] * (begun - 1) + ["unknown"] + ["cancelled"] * (3 - begun)
    assert f"cannot tell whether it finished: Delete {'ABC'[begun - 1]}" in report


def test_failed_step_of_a_killed_worker_ends_the_plan(make_bot):
    """The next worker neither repeats the step nor runs a later one."""
    bot = make_bot("A B")
    ask(bot)
    bot.broken = {"A"}
    bot.hear("yes")
    bot.die_after("finish")
    bot.broken = set()
    report = without_reference(bot.work())
    assert report == WORDS.plan_report([("failed", "Delete A", ""), ("cancelled", "Delete B", "")])
    assert bot.deleted == []


def test_unrelated_message_disarms_the_whole_plan(make_bot):
    """The reply says so."""
    bot = make_bot("A B", lines=["Sunny."])
    ask(bot)
    assert "You did not say yes" in bot.say("what is the weather?")
    bot.say("yes")
    assert bot.deleted == []


def test_step_cannot_be_confirmed_alone(make_bot):
    """A step has no button, and a forged button for it runs nothing."""
    bot = make_bot("A B")
    ask(bot)
    first = pids(bot)[0]
    forged = bot.rig.store.signer.button_token(first, "confirm", bot.turn().scope)
    bot.say(tap=forged)
    assert bot.deleted == []
    bot.say("yes")
    bot.say("yes")  # the answer to the tap stands below the question
    assert bot.deleted == ["A", "B"]


def test_scope_is_free_after_a_plan(make_bot):
    """The next proposal needs a yes of its own."""
    bot = make_bot("A B", "C")
    ask(bot)
    bot.say("yes")
    ask(bot)
    assert bot.say("yes") == "deleted C"
