"""Undo: what took effect is taken back once, by its own person, for a while."""

from __future__ import annotations

import pytest

from tests.contracts.rigs import CHAT


@pytest.fixture
def bot(make_bot):
    """A bot whose deletions can be undone; `undone` is what came back."""
    undone = []

    def restore(name: str, result: str) -> str:
        undone.append((name, result))
        return f"restored {name}"

    bot = make_bot("A", "B", lines=["Sunny."], undo=restore, undo_seconds=300)
    bot.undone = undone
    return bot


def delete(bot) -> str:
    """Confirm a deletion; the data of its Undo button."""
    bot.say("delete it")
    assert "You can undo this for 5 minutes" in bot.say("yes")
    (button,) = bot.buttons
    assert button.label == "Undo"
    return button.data


def test_late_undo_does_nothing(bot):
    """After its window the button says so."""
    tap = delete(bot)
    bot.rig.pass_time(301)
    assert "expired" in bot.say(tap=tap)
    assert bot.undone == []


def test_second_undo_does_nothing_and_hears_the_first_outcome(bot):
    """Undo is claimed once, like everything."""
    tap = delete(bot)
    assert bot.say(tap=tap) == bot.say(tap=tap) == "restored A"
    assert bot.undone == [("A", "deleted A")]


def test_undo_of_another_user_does_nothing(bot):
    """In a group everybody sees the button."""
    tap = delete(bot)
    assert "the person who asked" in bot.say(tap=tap, user="bob")
    assert bot.undone == []


def test_yes_does_not_undo(bot):
    """Words decide on what was asked last, and an undo was not asked."""
    delete(bot)
    bot.say("yes")
    assert bot.undone == []


def test_undo_stays_behind_an_unrelated_message(bot):
    """It is no destructive action that must be disarmed: it waits for its button, beside a new question."""
    tap = delete(bot)
    bot.say("delete another")
    assert bot.say(tap=tap) == "restored A"
    assert bot.say("yes").startswith("deleted B")


@pytest.mark.parametrize("step", ["claim", "finish"])
def test_undo_survives_a_killed_worker(bot, step):
    """Like every confirmed action."""
    tap = delete(bot)
    bot.hear(tap=tap)
    bot.die_after(step)
    assert bot.work() == "restored A"
    assert bot.undone == [("A", "deleted A")]


def test_undo_started_by_a_killed_worker_is_unknown(bot):
    """And not repeated."""
    tap = delete(bot)
    bot.hear(tap=tap)
    bot.die_after("start")
    assert "cannot tell" in bot.work()
    assert bot.undone == []


def test_outcome_told_after_a_crash_still_offers_the_undo(bot):
    """The worker died between the effect and its answer."""
    bot.say("delete it")
    bot.hear("yes")
    bot.die_after("finish")
    assert "You can undo this" in bot.work()
    assert bot.say(tap=bot.buttons[0].data) == "restored A"


def test_failed_action_offers_no_undo(bot):
    """There is nothing to take back."""
    bot.broken = {"A"}
    bot.say("delete it")
    assert "undo" not in bot.say("yes").lower()


def test_undo_of_a_plan_takes_back_the_last_step_first(make_bot):
    """Also when it stopped half-way: what was done can be undone."""
    undone = []
    bot = make_bot("A B C", undo=lambda name: f"restored {undone.append(name) or name}")
    bot.say("delete them")
    bot.broken = {"C"}
    bot.say("yes")
    bot.say(tap=bot.buttons[0].data)
    assert undone == ["B", "A"]


def test_undo_is_on_the_audit_log(bot):
    """As an action of its own: armed, shown, claimed, started, done."""
    tap = delete(bot)
    bot.say(tap=tap)
    pid = tap[1:23]
    events = [entry["event"] for entry in bot.rig.audit() if entry["pid"] == pid]
    assert events == ["armed", "shown", "claimed", "started", "done"]
    assert bot.rig.repository.find_open(CHAT.id, bot.scope) is None
