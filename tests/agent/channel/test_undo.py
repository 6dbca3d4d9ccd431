"""Undo: an effect can be undone once, by the user who confirmed it, within a window."""

from __future__ import annotations

import json

import pytest

from sayso.agent import AgentConfig, Ambiguous, NotFound, Role, Tool, ToolContext, ToolError
from sayso.agent.channel.tool_executors import ToolExecutors
from tests.agent.channel.test_outcomes import history
from tests.contracts.rigs import CHAT, ENGLISH


@pytest.fixture
def bot(make_bot):
    """Return a bot whose deletions can be undone; `undone` records what was restored."""
    undone = []

    def restore(name: str, result: str) -> str:
        undone.append((name, result))
        return f"restored {name}"

    bot = make_bot("A", "B", lines=["Sunny."], undo=restore, undo_seconds=300)
    bot.undone = undone
    return bot


def delete(bot) -> str:
    """Confirm a deletion and return the data of its Undo button."""
    bot.say("delete it")
    assert "You can undo this for 5 minutes" in bot.say("yes")
    (button,) = bot.buttons
    assert button.label == "Undo"
    return button.data


def test_only_a_tool_with_an_undo_can_be_undone():
    """It lasts for as long as the tool says; other tools, and kinds that are no tool, have no undo."""
    given = [
        Tool("delete", "Delete", [], lambda: "", undo=lambda: "", undo_seconds=300.0),
        Tool("pay", "Pay", [], lambda: ""),
    ]
    kinds = ToolExecutors(lambda: given, AgentConfig)
    assert [kinds.undo_seconds(kind) for kind in ("delete", "pay", "chat")] == [300.0, 0.0, 0.0]


def test_late_undo_does_nothing(bot):
    """A tap after the window is answered with `expired`."""
    tap = delete(bot)
    bot.rig.pass_time(301)
    assert "expired" in bot.say(tap=tap)
    assert bot.undone == []


def test_second_undo_does_nothing_and_is_told_so(bot):
    """An undo is claimed once, like every action."""
    tap = delete(bot)
    assert [bot.say(tap=tap), bot.say(tap=tap)] == ["restored A", "Already done: Undo: Delete A"]
    assert bot.undone == [("A", "deleted A")]


@pytest.mark.parametrize("seconds", [0, 7200])
def test_further_tap_on_what_was_undone_is_told_so(bot, seconds):
    """The first question has its button still, and "Already done" would be false. The history says the same."""
    bot.say("delete it")
    confirm = bot.buttons[0].data
    bot.say(tap=confirm)
    bot.say(tap=bot.buttons[0].data)
    bot.rig.pass_time(seconds)
    assert bot.say(tap=confirm) == ENGLISH.undone("Delete A") == history(bot)[-1].content
    assert (bot.deleted, bot.undone) == (["A"], [("A", "deleted A")])


def test_further_tap_on_what_was_perhaps_undone_is_told_so(bot):
    """The worker died in the undo, so neither "Already done" nor "undone" is known to be true."""
    bot.say("delete it")
    confirm = bot.buttons[0].data
    bot.say(tap=confirm)
    bot.hear(tap=bot.buttons[0].data)
    bot.die_after("start")
    bot.work()
    assert bot.say(tap=confirm) == ENGLISH.unknown("Undo: Delete A")


def test_further_tap_is_told_that_it_is_done_while_the_undo_is_only_offered(bot):
    """Nor does an undo that came too late change anything."""
    bot.say("delete it")
    confirm = bot.buttons[0].data
    bot.say(tap=confirm)
    undo = bot.buttons[0].data
    assert bot.say(tap=confirm) == ENGLISH.already_done("Delete A")
    bot.rig.pass_time(301)
    bot.say(tap=undo)
    assert bot.say(tap=confirm) == ENGLISH.already_done("Delete A")


@pytest.mark.parametrize("broken", [set(), {"C"}])
def test_further_tap_on_a_plan_that_was_undone_names_each_step(make_bot, broken):
    """No step counts as done any more. The history of the undo has each step, too."""
    bot = make_bot("A B C", undo=lambda name: f"restored {name}")
    bot.say("delete them")
    bot.broken = broken
    confirm = bot.buttons[0].data
    bot.say(tap=confirm)
    bot.say(tap=bot.buttons[0].data)
    names = [name for name in "ABC" if name not in broken]
    undos = [("done", f"Undo: Delete {name}", "") for name in reversed(names)]
    steps = [("failed" if name in broken else "undone", f"Delete {name}", "") for name in "ABC"]
    told = bot.say(tap=confirm)
    assert told.startswith(
        "Steps done: 0 of 3.\n1. Done, and undone later: Delete A\n2. Done, and undone later: Delete B"
    )
    words = [message.content for message in history(bot) if message.role is Role.ASSISTANT]
    assert words[-2:] == [ENGLISH.plan_report(undos), ENGLISH.plan_report(steps)]


def test_failed_turn_on_what_was_undone_says_so(bot):
    """The further tap is given up, since the platform failed in each attempt."""
    bot.say("delete it")
    confirm = bot.buttons[0].data
    bot.say(tap=confirm)
    bot.say(tap=bot.buttons[0].data)

    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    bot.agent._confirmation.answer_tap = broken
    assert bot.say(tap=confirm) == ENGLISH.undone("Delete A") == history(bot)[-1].content


def test_undo_of_another_user_does_nothing(bot):
    """All members of a group see the button."""
    tap = delete(bot)
    assert "the person who asked" in bot.say(tap=tap, user="bob")
    assert bot.undone == []


def test_yes_does_not_undo(bot):
    """A yes answers the last question, and an undo is not a question."""
    delete(bot)
    bot.say("yes")
    assert bot.undone == []


def test_undo_stays_open_after_an_unrelated_message(bot):
    """An undo needs no disarming: its button works beside a new question."""
    tap = delete(bot)
    bot.say("delete another")
    assert bot.say(tap=tap) == "restored A"
    assert "Do you mean this? Delete B" in bot.say("yes")
    assert bot.say("yes").startswith("deleted B")


@pytest.mark.parametrize("step", ["claim", "finish"])
def test_undo_survives_a_killed_worker(bot, step):
    """An undo is resumed like every confirmed action."""
    tap = delete(bot)
    bot.hear(tap=tap)
    bot.die_after(step)
    assert bot.work() == "restored A"
    assert bot.undone == [("A", "deleted A")]


def test_undo_started_by_a_killed_worker_is_unknown(bot):
    """It is not repeated."""
    tap = delete(bot)
    bot.hear(tap=tap)
    bot.die_after("start")
    assert "cannot tell" in bot.work()
    assert bot.undone == []


def test_outcome_reported_after_a_crash_still_offers_the_undo(bot):
    """The worker was killed between the effect and its answer."""
    bot.say("delete it")
    bot.hear("yes")
    bot.die_after("finish")
    assert "You can undo this" in bot.work()
    assert bot.say(tap=bot.buttons[0].data) == "restored A"


def test_failed_action_offers_no_undo(bot):
    """There is no effect to undo."""
    bot.broken = {"A"}
    bot.say("delete it")
    assert "undo" not in bot.say("yes").lower()


def test_undo_of_a_plan_starts_with_the_last_step(make_bot):
    """A plan that stopped halfway can be undone too."""
    undone = []
    bot = make_bot("A B C", undo=lambda name: f"restored {undone.append(name) or name}")
    bot.say("delete them")
    bot.broken = {"C"}
    bot.say("yes")
    bot.say(tap=bot.buttons[0].data)
    assert undone == ["B", "A"]


def test_undo_is_on_the_audit_log(bot):
    """The undo is an action of its own: armed, shown, claimed, started, done."""
    tap = delete(bot)
    bot.say(tap=tap)
    pid = tap[1:23]
    events = [entry["event"] for entry in bot.rig.audit() if entry["pid"] == pid]
    assert events == ["armed", "shown", "claimed", "started", "done"]
    assert bot.rig.repository.load_open(CHAT.id, bot.scope) is None


def refuse(name: str) -> str:
    """Refuse to restore B."""
    if name == "B":
        raise ToolError("B was bought.")
    return f"restored {name}"


REFUSALS = {
    "raised": (refuse, "B was bought.", "B was bought."),
    "not found": (
        lambda name: NotFound("thing", name),
        'I found no thing for "B".',
        {"kind": "not_found", "entity": "thing", "query": "B"},
    ),
    "ambiguous": (
        lambda name: Ambiguous("thing", name, ["B1", "B2"]),
        'Several things match "B": B1; B2: which one?',
        {"kind": "ambiguous", "entity": "thing", "query": "B", "matches": ["B1", "B2"]},
    ),
}


def results(bot) -> list[dict[str, object]]:
    """Return what the model of the next turn reads of each call."""
    bot.say("how is the weather?")
    messages = bot.provider.requests[-1].messages
    return [json.loads(each.content) for each in messages if each.role is Role.TOOL]


@pytest.mark.parametrize("how", REFUSALS)
def test_person_and_model_are_told_why_an_undo_refuses(make_bot, how):
    """The call stays done, and no further tap tries again."""
    undo, words, error = REFUSALS[how]
    bot = make_bot("B", lines=["Sunny."], undo=undo)
    tap = delete(bot)
    told = bot.say(tap=tap)
    assert told == f"{ENGLISH.failed('Undo: Delete B')}\n{words}"
    assert bot.say(tap=tap) == told
    (result,) = results(bot)
    assert (result["outcome"], result["result"]) == ("done", "deleted B")
    assert (result["note"], result["undo_error"]) == (
        "The user tried to undo it, and that failed.",
        error,
    )


def test_undo_of_a_plan_stops_at_the_step_that_refuses(make_bot):
    """What was undone before stays undone, and the rest was not tried.

    Person and model know which is which.
    """
    bot = make_bot("A B C", lines=["Sunny."], undo=refuse)
    told = bot.say(tap=delete(bot))
    assert told.startswith(
        "Steps done: 1 of 3.\n1. restored C\n2. Failed: Undo: Delete B\n   B was bought.\n3. Not started"
    )
    first, second, third = results(bot)
    assert (first["outcome"], "undo_error" in first) == ("done", False)
    assert (second["outcome"], second["undo_error"]) == ("done", "B was bought.")
    assert (third["outcome"], third["result"]) == ("undone", "restored C")


def test_undo_knows_its_person_in_each_step(make_bot):
    """With `**others` it gets all that is known of the call."""
    undone = []

    def restore(name: str, context: ToolContext, **others: str) -> str:
        undone.append((name, context.person.id, others))
        return ""

    bot = make_bot("A B", undo=restore)
    bot.say(tap=delete(bot))
    assert undone == [("B", "ana", {"result": "deleted B"}), ("A", "ana", {"result": "deleted A"})]
