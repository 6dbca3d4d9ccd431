"""A plain yes answers the last thing that the bot said: the question, and not something that was said after it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.agent import ScriptedProvider
from sayso.channels.base import RateLimit
from sayso.channels.types import Delivery, Receipt, Reply
from sayso.pending.turn_changes import Timer, TurnChange
from tests.contracts.rigs import CHAT, turn

CAT = "Send the cat picture? Reply yes"


def speak(bot, text: str = CAT, name: str = "other#1") -> None:
    """Let an app say something in the conversation."""
    bot.rig.outbox.forward(Delivery(name, CHAT, Reply(text)))
    bot.work()


def test_yes_to_a_later_message_runs_nothing_and_asks_which(make_bot):
    """The question comes again with its buttons, and the next yes runs it."""
    bot = make_bot("A")
    bot.say("delete A")
    speak(bot)
    told = bot.say("yes")
    assert "Do you mean this? Delete A" in told
    assert len(bot.channel.sent[-1].reply.buttons) == 2
    assert bot.deleted == []
    assert bot.say("yes") == "deleted A"
    assert bot.deleted == ["A"]


def test_yes_after_a_timer_spoke_asks_which(make_bot):
    """The timer was set before the question, and rings while it is open."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.rig.accept(turn("hello", user="bob"))
    held, work = bot.rig.mailbox.lease(CHAT.id, "w")
    change = TurnChange(timers=(Timer("1", work.received_at + 5, CAT),))
    bot.rig.mailbox.commit(held, work, change)
    bot.rig.mailbox.release(held)
    bot.rig.pass_time(6)
    assert bot.rig.overdue() == [CHAT.id]
    assert bot.work() == CAT
    assert "Do you mean this? Delete A" in bot.say("yes")
    assert bot.deleted == []


def test_second_of_two_yeses_to_a_later_message_runs_nothing(make_bot):
    """It was written before the bot asked which, so it answers the later message too."""
    bot = make_bot("A")
    bot.say("delete A")
    speak(bot)
    bot.hear("yes")
    bot.hear("yes")
    assert "I had not asked yet" in bot.work()
    assert bot.deleted == []
    assert bot.say("yes") == "deleted A"


def test_yes_of_the_second_before_the_bot_asked_which_runs_nothing(make_bot):
    """The ids of the messages say that it was written before, also where its webhook came in later."""
    bot = make_bot("A")
    send, ids = bot.channel.send, iter(["7", "8", "11", "12"])

    async def shown(delivery):
        await send(delivery)
        return Receipt(next(ids), 100.0)

    bot.channel.send = shown
    bot.say("delete A")
    speak(bot)
    for number in ("9", "10"):
        bot.rig.accept(replace(turn("yes"), message_id=number, written_at=100.0))
        bot.work()
    assert bot.deleted == []


def test_tap_counts_after_a_later_message(make_bot):
    """A button belongs to its question, wherever it stands."""
    bot = make_bot("A")
    bot.say("delete A")
    speak(bot)
    assert bot.say(tap=bot.buttons[0].data) == "deleted A"


def test_no_counts_after_a_later_message(make_bot):
    """A no runs nothing, so it needs no second question."""
    bot = make_bot("A")
    bot.say("delete A")
    speak(bot)
    bot.say("no")
    assert bot.rig.repository.load_open(CHAT.id, bot.scope) is None


def test_yes_that_quotes_the_question_counts_after_a_later_message(make_bot):
    """The quote says which question is meant."""
    bot = make_bot("A")
    bot.say("delete A")
    question = f"m{len(bot.channel.sent)}"
    speak(bot)
    bot.rig.accept(replace(turn("yes"), replied_to=question))
    assert bot.work() == "deleted A"


def test_yes_with_the_code_counts_after_a_later_message(make_bot):
    """The code names the question."""
    bot = make_bot("A", typed_code=True)
    code = bot.code_in(bot.say("delete A"))
    speak(bot)
    assert bot.say(f"yes {code}") == "deleted A"


def test_yes_in_a_group_after_an_answer_to_another_member_asks_which(make_bot):
    """The answer to bob may be a question of its own."""
    bot = make_bot("A", lines=[CAT])
    bot.say("delete A")
    assert bot.say("hello", user="bob") == CAT
    assert "Do you mean this? Delete A" in bot.say("yes")
    assert bot.deleted == []


def test_yes_that_came_in_before_the_later_message_counts(make_bot):
    """The person cannot have read what was sent afterwards."""
    bot = make_bot("A", lines=[CAT])
    bot.say("delete A")
    bot.hear("hello", user="bob")
    bot.hear("yes")
    bot.work()
    assert bot.deleted == ["A"]


def test_yes_below_the_draft_of_an_answer_to_another_member_asks_which(make_bot):
    """The draft shows the words before they are a reply."""
    bot = make_bot("A")
    bot.say("delete A")
    written = asyncio.Event()

    class Streaming(ScriptedProvider):
        async def astream(self, **request):
            yield CAT
            await written.wait()

    async def draft(*_) -> str:
        await asyncio.to_thread(bot.hear, "yes")
        written.set()
        return "draft"

    bot.agent.agent.provider, bot.channel.draft = Streaming([]), draft
    bot.channel.rate_limit = lambda _: RateLimit(draft_gap=0.001)
    turns = replace(bot.processor.turns, streams=frozenset({"chat"}))
    bot.processor = replace(bot.processor, turns=turns)
    bot.rig.accept(replace(turn("hello", user="bob"), in_group=True))
    assert "Do you mean this? Delete A" in bot.work()
    assert bot.deleted == []


@pytest.mark.parametrize("words", ["hmm", "/status"])
def test_repeated_question_is_the_last_message_again(make_bot, words):
    """Whatever shows the question again counts as the question."""
    bot = make_bot("A")
    bot.say("delete A")
    speak(bot)
    bot.say(words)
    assert bot.say("yes") == "deleted A"


def test_each_later_message_asks_again(make_bot):
    """The second later message costs the yes again."""
    bot = make_bot("A")
    bot.say("delete A")
    for number in range(3):
        speak(bot, name=f"other#{number}")
        assert "Do you mean this? Delete A" in bot.say("yes")
    assert bot.deleted == []
    assert bot.say("yes") == "deleted A"


def test_yes_survives_a_worker_that_was_killed_after_it_claimed(make_bot):
    """A yes that counted when it was read counts for the next worker, although something was said since."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("claim")
    bot.rig.outbox.forward(Delivery("other#1", CHAT, Reply(CAT)))
    bot.work()
    assert bot.deleted == ["A"]


def test_which_question_is_asked_in_its_language(make_bot):
    """A yes in Portuguese, to a Portuguese question."""
    bot = make_bot("A")
    bot.say("apaga a fatura de ontem, por favor, já foi paga")
    speak(bot)
    assert "É a isto que você se refere? Delete A" in bot.say("sim")
