"""Tampered: a record that is not what was shown runs nothing more, and its person hears as much as is known."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.pending.repository import StoredAction
from tests.contracts.rigs import CHAT, MemoryRig

WORDS = texts_for("en")


def steps(bot) -> list[str]:
    """The ids of the steps of the plan that waits."""
    return [step["id"] for step in bot.rig.repository.find_open(CHAT.id, bot.scope).action.args["steps"]]


def found(bot, pid: str) -> StoredAction:
    """The record of this name."""
    return bot.rig.repository.read(CHAT.id, (pid,))[0]


def key(bot, pid: str) -> str:
    """Where Redis has it."""
    return f"{bot.rig.shard}:pending:{pid}"


def lose(bot, pid: str) -> None:
    """The record is gone."""
    if isinstance(bot.rig, MemoryRig):
        del bot.rig.store.repository._actions[pid]
    else:
        bot.rig.client.delete(key(bot, pid))


def change(bot, pid: str) -> None:
    """Somebody edits the sealed words."""
    records = bot.rig.store.repository
    edited = found(bot, pid).record.replace("Delete", "Forget")
    if isinstance(bot.rig, MemoryRig):
        now = records._get(pid)
        records._put(pid, StoredAction(pid, edited, now.mac, now.state, now.expires_at, now.by, now.attempt))
    else:
        bot.rig.client.hset(key(bot, pid), "rec", edited)


def take_over(bot, pid: str) -> None:
    """Somebody begins it again: how this attempt ends is not believed any more."""
    records = bot.rig.store.repository
    if isinstance(bot.rig, MemoryRig):
        records._put(pid, replace(records._get(pid), attempt="another"))
    else:
        bot.rig.client.hset(key(bot, pid), "attempt", "another")


@pytest.mark.parametrize("number", [0, 1])
def test_plan_that_lost_a_step_runs_nothing(make_bot, caplog, number):
    """Not even the steps that are there: the person agreed to all of it. A second tap hears the same."""
    bot = make_bot("A B")
    question = bot.say("delete them")
    lose(bot, steps(bot)[number])
    with caplog.at_level(logging.ERROR):
        told = bot.say(tap=bot.buttons[0].data)
    assert told == WORDS.unsafe(question.partition("\n\n")[0])
    assert (bot.deleted, found(bot, bot.buttons[0].data[1:23]).state) == ([], "failed")
    assert "pending.tampered" in caplog.text
    assert bot.say(tap=bot.buttons[0].data) == told


@pytest.mark.parametrize("number", [0, 1, 2])
def test_plan_with_a_step_that_was_changed_runs_nothing(make_bot, number):
    """Not even the steps before it, and no changed word is repeated."""
    bot = make_bot("A B C")
    bot.say("delete them")
    names = steps(bot)
    change(bot, names[number])
    assert "Forget" not in bot.say("yes")
    assert bot.deleted == []
    assert [found(bot, name).state for name in names] == ["cancelled"] * 3


@pytest.mark.parametrize(
    ("number", "damage", "deleted", "states"),
    [
        (1, change, ["A"], ("done", "cancelled")),
        (0, change, ["A", "B"], ("done", "done")),
        (0, lose, ["A", "B"], ("unknown", "done")),
        (0, take_over, ["A", "B"], ("unknown", "done")),
    ],
)
def test_record_that_is_damaged_during_the_first_step_takes_back_no_word(make_bot, number, damage, deleted, states):
    """What was done before, and what is done nevertheless, is told as it ended, in the words that were shown."""
    bot = make_bot("A B")
    bot.say("delete them")
    name = steps(bot)[number]
    bot.before("finish", lambda: damage(bot, name))
    told = bot.say("yes")
    assert bot.deleted == deleted
    shown = zip(states, ("Delete A", "Delete B"), ("deleted A", "deleted B"), strict=True)
    assert told == WORDS.plan_report(
        [(state, preview, said if state == "done" else "") for state, preview, said in shown]
    )


def test_plan_that_was_begun_before_a_step_vanished_is_unknown(make_bot):
    """What an earlier worker did may have taken effect: nobody says that nothing was done."""
    bot = make_bot("A B")
    question = bot.say("delete them")
    names = steps(bot)
    plan = bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("finish")
    lose(bot, names[1])
    told = bot.work()
    assert told == WORDS.unknown(question.partition("\n\n")[0])
    assert (bot.deleted, found(bot, plan).state) == (["A"], "unknown")


def test_plan_that_was_claimed_no_further_than_a_step_before_another_vanished_did_nothing(make_bot):
    """Claimed has certainly not begun: the person hears that nothing was done, not that nobody knows."""
    bot = make_bot("A B")
    question = bot.say("delete them")
    names = steps(bot)
    plan = bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("claim", 2)  # the plan's own claim is the first
    lose(bot, names[1])
    assert bot.work() == WORDS.unsafe(question.partition("\n\n")[0])
    assert (bot.deleted, found(bot, plan).state) == ([], "failed")


def test_started_action_whose_record_was_changed_is_unknown(make_bot, caplog):
    """It cannot be called off any more, and its words are not ours to repeat; the scope is free."""
    bot = make_bot("A", "B")
    bot.say("delete it")
    pid = bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("start")
    change(bot, pid)
    with caplog.at_level(logging.ERROR):
        told = bot.work()
    assert told == WORDS.unknown("an action that was changed")
    assert (bot.deleted, found(bot, pid).state) == ([], "unknown")
    assert "pending.tampered" in caplog.text
    bot.say("delete B")
    assert bot.say("yes") == "deleted B"


def test_action_that_was_changed_before_the_yes_is_disarmed(make_bot):
    """The person hears that what is stored is not what was shown, in words that repeat nothing of it."""
    bot = make_bot("A", "B")
    bot.say("delete it")
    pid = bot.buttons[0].data[1:23]
    change(bot, pid)
    assert bot.say("yes") == WORDS.tampered()
    assert (bot.deleted, found(bot, pid).state, found(bot, pid).outcome_text) == ([], "cancelled", WORDS.tampered())
    bot.say("delete B")
    assert bot.say("yes") == "deleted B"


@pytest.mark.parametrize("names", ["A", "A B"])
def test_record_that_was_changed_after_the_effect_is_not_undone(make_bot, names):
    """The worker died before its answer: the next one offers no undo of what it cannot trust."""
    undone = []
    bot = make_bot(names, undo=lambda name: f"restored {undone.append(name) or name}")
    bot.say("delete it")
    plan = len(names) > 1
    pid = steps(bot)[0] if plan else bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("finish", 3 if plan else 1)
    change(bot, pid)
    assert "undo" not in bot.work().lower()
    assert bot.deleted == names.split()
