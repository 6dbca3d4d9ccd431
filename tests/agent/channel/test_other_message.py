"""`other_message: keep`: another message is answered while the question stays open."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sayso.agent import Agent, ChannelAgent, Role, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.tools.errors import ToolValidationError
from sayso.channels.types import Media
from sayso.pending.action import PendingAction
from sayso.pending.plans import plan_of
from tests.contracts.rigs import CHAT, ENGLISH, turn

AGAIN = ToolCall("delete", {"name": "A"}, "again")
ASKED_BEFORE = ENGLISH.asked_before("Delete A")


def find_question(bot):
    """Return the open action of ana, None if there is none."""
    return bot.rig.repository.load_open(CHAT.id, bot.scope)


@pytest.fixture
def make_keeper(make_bot):
    """Return a function that makes a bot whose questions stay open."""
    return lambda *names, **options: make_bot(*names, other_message="keep", **options)


def test_message_after_the_question_is_answered_and_the_question_stays(make_keeper):
    """Its time to answer stays as it was, and the bot says nothing of it."""
    bot = make_keeper("A", lines=["Sunny."])
    bot.say("delete A")
    before = find_question(bot)
    assert bot.say("what is the weather in Rome?") == "Sunny."
    after = find_question(bot)
    assert (after.action_id, after.state, after.expires_at) == (
        before.action_id,
        "shown",
        before.expires_at,
    )


def test_yes_after_another_answer_repeats_the_question_and_the_next_one_runs_it(make_keeper):
    """The first yes may be about the weather."""
    bot = make_keeper("A", lines=["Sunny. Shall I tell you more?"])
    for words in ("delete A", "what is the weather in Rome?"):
        bot.say(words)
    assert bot.say("yes") == ASKED_BEFORE
    assert bot.deleted == []
    assert bot.say("yes").startswith("deleted A")


def test_button_of_the_question_runs_it_after_another_answer(make_keeper):
    """A tap names its action."""
    bot = make_keeper("A", lines=["Sunny."])
    bot.say("delete A")
    confirm, _ = bot.buttons
    bot.say("what is the weather in Rome?")
    assert bot.say(tap=confirm.data).startswith("deleted A")


def test_yes_that_quotes_the_question_runs_it_after_another_answer(make_keeper):
    """A quote names its action."""
    bot = make_keeper("A", lines=["Sunny."])
    bot.say("delete A")
    bot.say("what is the weather in Rome?")
    bot.rig.accept(replace(turn("yes"), replied_to="m1"))
    assert bot.work().startswith("deleted A")


def test_code_of_the_question_runs_it_after_another_answer(make_keeper):
    """A code names its action, and a plain yes asks for it."""
    bot = make_keeper("A", lines=["Sunny."], typed_code=True)
    question = bot.say("delete A")
    bot.say("what is the weather in Rome?")
    bot.say("yes")
    assert bot.deleted == []
    assert bot.say(f"yes {bot.code_in(question)}").startswith("deleted A")


def test_no_ends_the_question_after_another_answer(make_keeper):
    """A plain no always does."""
    bot = make_keeper("A", lines=["Sunny."])
    bot.say("delete A")
    bot.say("what is the weather in Rome?")
    assert bot.say("no").startswith(ENGLISH.cancelled("Delete A"))
    assert find_question(bot) is None


def test_model_reads_that_the_call_waits(make_keeper):
    """Its history is valid, and it knows that nothing was done."""
    bot = make_keeper("A", lines=["Sunny.", "Cold."])
    for words in ("delete A", "what is the weather in Rome?", "and in Oslo?"):
        bot.say(words)
    (result,) = [each for each in bot.provider.requests[-1].messages if each.role is Role.TOOL]
    assert json.loads(result.content)["outcome"] == "waiting"


def test_same_call_again_repeats_the_question(make_keeper):
    """The model reads that it waits, and the next yes runs it once."""
    bot = make_keeper("A", lines=[AGAIN, "It waits for your yes."])
    bot.say("delete A")
    question = bot.say("please do remove A at last, will you")
    assert question.startswith("Nothing has been done yet. After a yes I do this: Delete A")
    assert bot.channel.texts[-2] == "It waits for your yes."
    refused = bot.provider.requests[-1].messages[-1].content
    assert json.loads(refused)["kind"] == "already_pending"
    assert bot.say("yes").startswith("deleted A")
    assert bot.deleted == ["A"]


def test_another_call_takes_the_place_of_the_question(make_keeper):
    """A scope has one question. The person reads that the first was not done."""
    bot = make_keeper("A", "B")
    bot.say("delete A")
    first, _ = bot.buttons
    assert "Delete B" in bot.say("what about deleting B")
    assert ENGLISH.dropped("Delete A") in bot.channel.texts
    assert "deleted" not in bot.say(tap=first.data)
    assert bot.say(tap=bot.buttons[0].data).startswith("deleted B") or bot.say("yes").startswith(
        "deleted B"
    )
    assert bot.deleted == ["B"]


@pytest.mark.parametrize("words", ["why?", "wait", "maybe", "no, rather in Oslo"])
def test_what_may_be_about_the_last_answer_goes_to_the_model(make_keeper, words):
    """The bot has said something else since, so it neither explains the question nor takes this for a no."""
    bot = make_keeper("A", lines=["Sunny.", "I see."])
    for each in ("delete A", "what is the weather in Rome?"):
        bot.say(each)
    assert bot.say(words) == "I see."
    assert find_question(bot).state == "shown"


@pytest.mark.parametrize("words", ["maybe", "what is it?", "ok"])
def test_what_is_about_the_question_repeats_it(make_keeper, words):
    """While the question is the last message, such words are about it."""
    bot = make_keeper("A")
    bot.say("delete A")
    assert "Delete A" in bot.say(words)
    assert len(bot.provider.requests) == 1


def test_plea_for_time_after_another_answer_is_answered(make_keeper):
    """The chat is never silent."""
    bot = make_keeper("A", lines=["Sunny.", "Take your time."])
    for words in ("delete A", "wait", "what is the weather in Rome?"):
        bot.say(words)
    assert bot.say("wait") == "Take your time."


def test_no_with_words_right_after_the_question_denies(make_keeper):
    """It is about the question."""
    bot = make_keeper("A", lines=["I see."])
    bot.say("delete A")
    assert bot.say("no, wrong order").startswith(ENGLISH.cancelled("Delete A"))


def test_photo_is_answered_and_the_question_stays(make_keeper):
    """A caption cannot decide."""
    bot = make_keeper("A", lines=["Nice photo."])
    bot.say("delete A")
    bot.rig.accept(replace(turn("yes"), media=(Media("ref", "image/png", stored=True),)))
    assert bot.work() == "Nice photo."
    assert find_question(bot).state == "shown"


def test_kept_question_expires_as_any_other(make_keeper):
    """Another answer does not extend its time, and the model reads that it expired."""
    bot = make_keeper("A", lines=["Sunny.", "I see."])
    bot.say("delete A")
    bot.say("what is the weather in Rome?")
    bot.rig.pass_time(61)
    assert "expired: Delete A" in bot.say("yes")
    assert bot.say("hello again").endswith("I see.")
    (result,) = [each for each in bot.provider.requests[-1].messages if each.role is Role.TOOL]
    assert json.loads(result.content)["outcome"] == "expired"
    assert bot.deleted == []


def test_stop_ends_a_kept_question(make_keeper):
    """A person who stops wants nothing done."""
    bot = make_keeper("A", lines=["Sunny."])
    bot.say("delete A")
    bot.say("what is the weather in Rome?")
    bot.say("/stop")
    assert find_question(bot) is None


def test_stop_behind_another_message_ends_a_kept_question_once(make_keeper):
    """The stopped message leaves the question to the /stop behind it, which says what became of it."""
    bot = make_keeper("A", lines=["Sunny."])
    bot.say("delete A")
    bot.hear("what is the weather in Rome?")
    bot.hear("/stop")
    bot.work()
    assert find_question(bot) is None
    assert sum(ENGLISH.dropped("Delete A") in text for text in bot.channel.texts) == 1
    assert len(bot.provider.requests) == 1


def test_message_that_cannot_be_answered_leaves_the_question_open(make_keeper):
    """The person hears that the model is away, and the button still works."""
    bot = make_keeper("A")
    bot.say("delete A")
    bot.say("what is the weather in Rome?")
    assert find_question(bot).state == "shown"
    assert bot.say(tap=bot.buttons[0].data).startswith("deleted A")


def test_kept_plan_stays_whole(make_keeper):
    """Each of its steps waits, and none can be asked for twice."""
    step = ToolCall("delete", {"name": "B"}, "again")
    bot = make_keeper("A B", lines=["Sunny.", step, "It waits."])
    for words in (
        "delete A and B",
        "what is the weather in Rome?",
        "please remove B right now, will you",
    ):
        bot.say(words)
    assert "Delete B" in bot.channel.texts[-1]
    bot.say("yes")
    assert bot.deleted == ["A", "B"]


def test_killed_worker_leaves_the_question_open(make_keeper):
    """The next one answers the message, once."""
    bot = make_keeper("A", lines=["Lost.", "Sunny."])
    bot.say("delete A")
    bot.hear("what is the weather in Rome?")
    bot.die_at_commit()
    assert bot.work() == "Sunny."
    assert (find_question(bot).state, len(bot.channel.sent)) == ("shown", 2)


def test_message_of_another_member_is_no_answer_to_a_kept_question(make_keeper):
    """In a group the yes of the person who was asked repeats the question after the answer to another member."""
    bot = make_keeper("A", lines=["Hello Bob.", "To what?"])
    bot.say("delete A")
    assert bot.say("hello", user="bob") == "Hello Bob."
    assert bot.say("yes", user="bob") == "To what?"
    assert bot.say("yes") == ASKED_BEFORE
    assert bot.say("yes").startswith("deleted A")


def test_agent_goes_on_after_a_late_decision(make_keeper):
    """The outcome stands at its call, and the person's yes where it came: behind the other message."""
    bot = make_keeper("A", after="continue", lines=["Sunny.", "A is gone. What else?"])
    for words in ("delete A", "what is the weather in Rome?", "yes"):
        bot.say(words)
    assert bot.say("yes") == "A is gone. What else?"
    assert bot.channel.texts[-2].startswith("✅ Done: Delete A\ndeleted A")
    read = bot.provider.requests[-1].messages
    (result,) = [each for each in read if each.role is Role.TOOL]
    assert json.loads(result.content)["outcome"] == "done"
    assert [each.content for each in read if each.role is Role.USER][-1] == "yes"
    assert read[-1].role is Role.USER


def test_agent_goes_on_after_a_late_no(make_keeper):
    """It reads the no behind its own last words, so it can take it for an answer to them."""
    bot = make_keeper(
        "A", after="continue", lines=["Sunny. Shall I book a flight?", "No flight then."]
    )
    for words in ("delete A", "what is the weather in Rome?"):
        bot.say(words)
    assert bot.say("no") == "No flight then."
    assert find_question(bot) is None


def test_question_is_dropped_by_default(make_bot):
    """As in the seed."""
    bot = make_bot("A", lines=["Sunny."])
    bot.say("delete A")
    assert bot.say("what is the weather in Rome?").startswith(ENGLISH.dropped("Delete A"))


@pytest.mark.parametrize(
    ("of_tool", "of_channel", "stays"), [("", "keep", True), ("drop", "keep", False)]
)
def test_tool_comes_before_the_channel(of_tool, of_channel, stays):
    """Also without a worker."""

    @tool(requires_approval=True, other_message=of_tool)
    def wipe(disk: str) -> str:
        """Wipe a disk."""
        return f"wiped {disk}"

    provider = ScriptedProvider([ToolCall("wipe", {"disk": "A"}, "c1"), "Sunny."])
    bot = ChannelAgent(Agent([wipe], provider), behavior=ChannelBehavior(other_message=of_channel))
    bot.ask_channel("ana", "wipe A")
    bot.ask_channel("ana", "what is the weather in Rome?")
    assert ("do you mean this" in bot.ask_channel("ana", "yes").content.casefold()) is stays
    if stays:
        assert "wiped A" in bot.ask_channel("ana", "yes").content


@pytest.mark.parametrize(
    ("steps", "plan"),
    [
        (["keep", "keep"], "keep"),
        (["keep", "drop"], "drop"),
        (["keep", ""], ""),
        (["", "drop"], "drop"),
    ],
)
def test_plan_is_kept_only_if_each_step_is(steps, plan):
    """In doubt the question ends."""
    actions = [
        PendingAction("u", "delete", f"Delete {number}", {"number": number}, other_message=each)
        for number, each in enumerate(steps)
    ]
    assert plan_of(actions).head.other_message == plan


def test_unknown_setting_is_refused():
    """Tool and channel name what they take."""
    with pytest.raises(ToolValidationError, match="other_message is 'stay'"):
        tool(other_message="stay")(len)
    with pytest.raises(ValueError, match="other_message='stay'"):
        ChannelAgent(
            Agent([], ScriptedProvider([])), behavior=ChannelBehavior(other_message="stay")
        )


def test_no_with_a_reason_ends_the_question_although_its_turn_fails(make_keeper, monkeypatch):
    """The person has said no: no button of the question runs it any more."""
    bot = make_keeper("A")
    bot.say("delete A")
    confirm, _ = bot.buttons

    async def fail(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr(bot.agent.agent, "arun", fail)
    assert ENGLISH.cancelled("Delete A") in bot.say("no, wrong order")
    bot.say(tap=confirm.data)
    assert (find_question(bot), bot.deleted) == (None, [])
