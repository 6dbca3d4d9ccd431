"""The same action proposed again: the question says when it was done, or may have been done."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sayso.agent import Agent, AgentConfig, ChannelAgent, ScriptedProvider, ToolCall, tool
from sayso.agent.run.unknown_outcomes import may_have_run_reason, time_in_reason
from sayso.agent.tools.errors import EffectUnknownError
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.texts import texts_for
from sayso.pending import PendingConfirmation, stash_pending
from sayso.pending.repository import ActionResult, Claim
from tests.contracts.rigs import CHAT

DONE = re.compile(r"Delete A\n\nAlready done at \d\d:\d\d UTC\.\n\nReply \*\*yes\*\* or")
MAYBE = re.compile(
    r"Delete A\n\nThis may already have happened at \d\d:\d\d UTC\.\n\nReply \*\*yes\*\* or"
)


def test_question_says_that_the_same_was_done_before(make_bot):
    """It is found in the stored actions, whatever the model thinks."""
    bot = make_bot("A", "A")
    bot.say("delete A")
    bot.say("yes")
    assert DONE.match(bot.say("delete A again"))
    assert bot.say("yes").startswith("deleted A")


def test_question_after_an_unknown_outcome_says_that_it_may_have_happened(make_bot):
    """The worker died after the start, so the outcome is unknown."""
    bot = make_bot("A", "A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("start")
    assert "interrupted" in bot.work()
    assert MAYBE.match(bot.say("do it again"))


def test_question_after_a_refusal_says_nothing_more(make_bot):
    """Nothing was done."""
    bot = make_bot("A", "A")
    bot.say("delete A")
    bot.say("no")
    assert bot.say("delete A").startswith("Delete A\n\nReply")


def test_other_arguments_and_other_people_get_the_plain_question(make_bot):
    """Only the same tool with the same arguments, confirmed by the same person, counts."""
    bot = make_bot("A", "B", "A")
    bot.say("delete A")
    bot.say("yes")
    assert bot.say("delete B").startswith("Delete B\n\nReply")
    bot.say("no")
    assert bot.say("delete A", user="bob").startswith("Delete A\n\nReply")


def test_undone_action_counts_as_not_done(make_bot):
    """The undo took the effect back."""
    bot = make_bot("A", "A", undo=lambda name: f"restored {name}")
    bot.say("delete A")
    bot.say("yes")
    bot.say(tap=bot.buttons[0].data)
    assert bot.say("delete A").startswith("Delete A\n\nReply")


def test_plan_says_it_of_its_step(make_bot):
    """The other step has no note."""
    bot = make_bot("A", "B A")
    bot.say("delete A")
    bot.say("yes")
    told = bot.say("delete both")
    assert re.search(r"2\. Delete A\n\n2\. Already done at \d\d:\d\d UTC\.\n\nReply", told)


def test_hour_is_that_of_the_store(make_bot):
    """The turn has waited two hours for a worker, or was received by a machine whose clock is wrong."""
    bot = make_bot("A", "A")
    bot.say("delete A")
    bot.say("yes")
    recent = bot.rig.store.repository.list_started

    async def two_hours_later(*args):
        return [
            replace(stored, loaded_at=stored.loaded_at + 7200) for stored in await recent(*args)
        ]

    bot.rig.store.repository.list_started = two_hours_later
    assert bot.say("delete A again").startswith("Delete A\n\nReply")


def test_code_that_records_no_arguments_tells_its_actions_apart_in_words():
    """The same tool asked, and what it will do is another thing."""

    @tool
    def delete(name: str) -> PendingConfirmation:
        """Delete a thing."""
        stash_pending(kind="remove", preview=f"Delete {name}", executor=lambda: f"deleted {name}")
        return PendingConfirmation("remove", f"Delete {name}")

    calls = [ToolCall("delete", {"name": name}) for name in "ABA"]
    bot = ChannelAgent(Agent([delete], ScriptedProvider(calls)))
    bot.ask_channel("ana", "delete A")
    bot.ask_channel("ana", "yes")
    assert "Already done" not in bot.ask_channel("ana", "delete B").content
    bot.ask_channel("ana", "no")
    assert "Already done" in bot.ask_channel("ana", "delete A again").content


@pytest.mark.parametrize(("state", "words"), [("done", "Already done at"), ("failed", "Reply")])
def test_outcome_that_came_out_meanwhile_counts(make_bot, state, words):
    """It was unknown, and the worker that ran it came back with the truth."""
    bot = make_bot("A", "A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("start")
    bot.work()
    tap = bot.buttons[0].data
    (stored,) = bot.rig.repository.load(CHAT.id, (tap[1:23],))
    claim = Claim(bot.turn().scope, stored.action_id, stored.decided_by_event)
    bot.rig.repository.finish(claim, stored.attempt_id, ActionResult(state, "the truth"))
    assert bot.say("do it again").startswith(f"Delete A\n\n{words}")


def test_time_is_in_the_zone_of_the_users(monkeypatch):
    """Without a zone it is marked as UTC; a name that is no zone is ignored."""
    texts = texts_for("en")
    assert texts.done_before(0.0) == "Already done at 00:00 UTC."
    monkeypatch.setenv("SAYSO_TIMEZONE", "Asia/Kolkata")
    assert texts.done_before(0.0) == "Already done at 05:30."
    monkeypatch.setenv("SAYSO_TIMEZONE", "Nowhere/Land")
    assert texts.maybe_done_before(0.0) == "This may already have happened at 00:00 UTC."


@pytest.mark.parametrize("language", LANGUAGES)
def test_done_before_names_the_time_in_every_language(language):
    """Both texts differ, since only one of them is certain."""
    texts = texts_for(language)
    done, maybe = texts.done_before(0.0), texts.maybe_done_before(0.0)
    assert ("00:00 UTC" in done, "00:00 UTC" in maybe, done == maybe) == (True, True, False)


class Shop:
    """A bot that pays at once. What it pays first has an unknown outcome, unless nothing `hangs`."""

    def __init__(self, *answers, hangs: bool = True, **options) -> None:
        self.paid: list[int] = []

        @tool(**options)
        def pay(euros: int) -> str:
            """Pay."""
            self.paid.append(euros)
            if hangs and len(self.paid) == 1:
                raise EffectUnknownError("no answer came", tool_name="pay")
            return f"{euros} EUR are paid."

        calls = [
            ToolCall("pay", {"euros": each}) if isinstance(each, int) else each for each in answers
        ]
        self.agent = ChannelAgent(Agent([pay], ScriptedProvider(calls), AgentConfig(max_retries=0)))

    def say(self, text: str) -> str:
        """Return what the person reads."""
        return self.agent.ask_channel("ana", text).content


def test_call_without_a_question_asks_if_it_may_have_happened():
    """The person was told that it is not repeated: so nothing repeats it but a yes."""
    shop = Shop(5, "I do not know.", 5)
    assert "I will not repeat it" in shop.say("pay")
    question = (
        r"pay: euros = 5\n\nThis may already have happened at \d\d:\d\d UTC\.\n\nReply \*\*yes\*\*"
    )
    assert re.match(question, shop.say("so?"))
    assert shop.paid == [5]
    assert shop.say("yes") == "5 EUR are paid."
    assert shop.paid == [5, 5]


def test_call_of_more_than_an_hour_ago_is_named_without_its_time():
    """The time of the day would be taken for that of today. Nothing else repeats the call either."""
    shop = Shop(5, "I do not know.", 5)
    shop.say("pay")
    (memory,) = shop.agent._direct_turns._memories.values()
    for message in memory._messages:
        message.at -= 3700 if message.at else 0
    assert shop.say("so?").startswith(
        "pay: euros = 5\n\nThis may already have happened.\n\nReply **yes**"
    )


@pytest.mark.parametrize("at", [0.0, 1795960985.0])
def test_reason_of_a_question_tells_when_the_earlier_call_was_made(at):
    """It is the only place where a question can look it up."""
    assert time_in_reason(may_have_run_reason(at)) == at
    assert time_in_reason("matched 'pay_*'") is None


def test_only_the_call_that_may_have_happened_asks():
    """Another amount is another call, and after a yes its outcome is known."""
    shop = Shop(5, "I do not know.", 7, "Paid.", 5, 5, "Paid.")
    shop.say("pay 5")
    assert shop.say("pay 7") == "Paid."
    assert "may already have happened" in shop.say("pay 5")
    shop.say("yes")
    assert shop.say("pay 5 once more") == "Paid."
    assert shop.paid == [5, 7, 5, 5]


@pytest.mark.parametrize(
    "options", [{"hangs": False}, {"read_only": True}, {"idempotent": True}], ids=str
)
def test_call_that_may_be_repeated_asks_nothing(options):
    """Its outcome is known, or a repetition does no harm."""
    shop = Shop(5, "First.", 5, "Second.", **options)
    shop.say("pay")
    assert shop.say("pay") == "Second."
    assert shop.paid == [5, 5]
