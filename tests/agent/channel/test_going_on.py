"""The agent goes on after a decision: the outcome is the result of its call, and the run continues."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis.exceptions import RedisError

from sayso.agent import (
    Agent,
    AgentConfig,
    BelievingModel,
    ChannelAgent,
    Message,
    ProviderError,
    Role,
    ScriptedProvider,
    ToolCall,
    tool,
)
from sayso.agent.channel import continuations
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.questions import MAX_KEPT_CHARS
from sayso.agent.messages import AnswerDetails
from sayso.channels.i18n.texts import texts_for
from sayso.infra import tracing
from sayso.infra.metrics import REGISTRY
from sayso.workers.turn_processor import MAX_TURN_ATTEMPTS
from tests.agent.channel.test_decided import note_prompt
from tests.contracts.rigs import ENGLISH, turn
from tests.workers.fakes import Bot

CONFIG = AgentConfig(max_retries=0)


@tool(requires_approval=True, preview="Pay {euros} euros")
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


#: The outcome of deleting A in the bot's own words.
DONE = "✅ Done: Delete A\ndeleted A"


def calls(*names: str) -> list[ToolCall]:
    """Return the calls that delete these names, in one answer."""
    return [ToolCall("delete", {"name": name}, f"c{name}") for name in names]


@pytest.fixture
def make_continuing(make_bot):
    """Return a function that makes a bot whose agent goes on after decisions, on this model."""

    def make(
        model,
        *,
        after="continue",
        one_message=False,
        tool_after="",
        iterations=6,
        other_message="drop",
    ) -> Bot:
        bot = make_bot(**({"after": tool_after} if tool_after else {}))
        bot.provider = model
        agent = Agent(
            bot.agent.agent.tools, model, AgentConfig(max_retries=0, max_iterations=iterations)
        )
        bot.agent = ChannelAgent(
            agent,
            bot.rig.store,
            journals=bot.rig.journals,
            behavior=ChannelBehavior(
                after=after, is_one_message=one_message, other_message=other_message
            ),
        )
        bot.processor.turns.agents["chat"] = bot.agent
        return bot

    return make


def new_texts(bot: Bot) -> list[str]:
    """Return the texts of the messages behind the first question, without edits of earlier messages."""
    return [delivery.reply.text for delivery in bot.channel.sent if not delivery.reply.edits][1:]


def test_three_destructive_steps_are_three_yeses_and_no_other_message(make_continuing):
    """Each outcome is followed by the next question, the last one by what the model says of all."""
    wish = [calls("A"), calls("B"), calls("C")]
    bot = make_continuing(BelievingModel({"delete all": wish}))
    bot.say("delete all")
    for _ in range(3):
        bot.say("yes")
    assert bot.deleted == ["A", "B", "C"]
    assert (
        bot.channel.texts[-1]
        == "delete done: deleted A\ndelete done: deleted B\ndelete done: deleted C"
    )


def test_outcome_is_told_before_the_model_is_asked(make_continuing):
    """The person reads the bot's own words first, and the model's words below."""
    bot = make_continuing(ScriptedProvider([calls("A"), "Anything else?"]))
    bot.say("delete A")
    bot.say("yes")
    assert new_texts(bot) == [DONE, "Anything else?"]


def test_model_reads_the_outcome_as_the_result_of_its_call(make_continuing):
    """No message stands between: the history is the request, the call and its result."""
    bot = make_continuing(ScriptedProvider([calls("A"), "fine"], strict=True))
    bot.say("delete A")
    bot.say("yes")
    *_, asked, call, result = bot.provider.requests[-1].messages
    assert (asked.content, call.tool_calls[0].id, result.tool_call_id) == ("delete A", "cA", "cA")
    assert json.loads(result.content)["outcome"] == "done"
    assert json.loads(result.content)["decided_by"] == "user"


def test_run_keeps_its_id_its_iterations_and_its_usage(make_continuing):
    """They go on counting over the pause."""
    bot = make_continuing(ScriptedProvider([calls("A"), calls("B"), "fine"]))
    results = []
    arun = bot.agent.agent.arun

    async def recorded(*args, **kwargs):
        results.append(await arun(*args, **kwargs))
        return results[-1]

    bot.agent.agent.arun = recorded
    bot.say("delete A")
    bot.say("yes")
    bot.say("yes")
    assert [result.iterations for result in results] == [1, 2, 3]
    assert [result.usage.total_tokens for result in results] == [2, 4, 6]
    assert len({result.trace.run_id for result in results}) == 1


def test_run_goes_on_counting_and_reasoning_after_another_message(make_continuing):
    """The model's reasoning belongs to its run: the message between is answered without it."""
    thought = {"content": [{"type": "thinking", "thinking": "A it is"}]}
    first = Message(
        Role.ASSISTANT, "", tool_calls=tuple(calls("A")), details=AnswerDetails(reasoning=thought)
    )
    model = ScriptedProvider([first, "Sunny.", calls("B"), "never"])
    bot = make_continuing(model, iterations=2, other_message="keep")
    bot.say("delete A, then B")
    confirm, _ = bot.buttons
    bot.say("how is the weather?")
    bot.say(tap=confirm.data)
    between, after = model.requests[1:3]
    assert [each.details for each in between.messages if each.tool_calls] == [None]
    assert [each.details.reasoning for each in after.messages if each.tool_calls] == [thought]
    bot.say("yes")
    assert (bot.deleted, bot.channel.texts[-1]) == (["A", "B"], ENGLISH.too_many_steps())


def test_iterations_run_out_over_the_pause(make_continuing):
    """A run has its most iterations once, however often it asks."""
    bot = make_continuing(ScriptedProvider([calls("A"), calls("B"), "never"]), iterations=2)
    bot.say("delete A")
    bot.say("yes")
    bot.say("yes")
    assert (bot.deleted, bot.channel.texts[-1]) == (["A", "B"], ENGLISH.too_many_steps())


def test_no_is_read_by_the_model(make_continuing):
    """It goes on after a no, too."""
    bot = make_continuing(ScriptedProvider([calls("A"), "What instead?"], strict=True))
    bot.say("delete A")
    bot.say("no")
    assert json.loads(bot.provider.requests[-1].messages[-1].content)["outcome"] == "denied"
    assert new_texts(bot) == [f"❌ {ENGLISH.cancelled('Delete A')}", "What instead?"]


def test_model_cannot_ask_again_for_what_was_just_refused(make_continuing):
    """A stubborn model reads why, and the person is not asked a second time."""
    bot = make_continuing(ScriptedProvider([calls("A"), calls("A"), "As you wish."], strict=True))
    bot.say("delete A")
    bot.say("no")
    assert new_texts(bot) == [f"❌ {ENGLISH.cancelled('Delete A')}", "As you wish."]


def test_late_yes_lets_the_model_propose_again(make_continuing):
    """Nothing was done, and the new question needs a yes of its own."""
    bot = make_continuing(ScriptedProvider([calls("A"), calls("A"), "fine"], strict=True))
    bot.say("delete A")
    bot.rig.pass_time(61)
    answer = bot.say("yes")
    assert bot.deleted == []
    assert answer.startswith(f"⌛ {ENGLISH.expired('Delete A')}")
    bot.say("yes")
    assert bot.deleted == ["A"]


def test_late_tap_lets_the_model_propose_again(make_continuing):
    """Also where a worker has noted the end of the question meanwhile."""
    bot = make_continuing(ScriptedProvider([calls("A"), calls("A"), "fine"], strict=True))
    bot.say("delete A")
    confirm = bot.buttons[0].data
    bot.rig.pass_time(61)
    bot.rig.overdue()
    bot.work()
    bot.say(tap=confirm)
    assert (bot.deleted, len(bot.provider.requests)) == ([], 2)
    bot.say("yes")
    assert bot.deleted == ["A"]


def test_late_tap_on_a_dropped_question_is_not_told_that_it_was_no_yes(make_continuing):
    """Another message ended the question. The tap is a yes, and comes too late."""
    bot = make_continuing(ScriptedProvider([calls("A"), "We open at nine."], strict=True))
    bot.say("delete A")
    confirm = bot.buttons[0].data
    bot.say("when do you open?")
    bot.say(tap=confirm)
    assert ENGLISH.cancelled("Delete A") in new_texts(bot)[-1]
    assert bot.deleted == []


def test_model_that_is_away_costs_nothing_but_the_rest(make_continuing):
    """The outcome is told, then why the rest is missing; the effect is not repeated."""
    bot = make_continuing(ScriptedProvider([calls("A"), ProviderError("down")]))
    bot.say("delete A")
    bot.say("yes")
    assert new_texts(bot) == [DONE, ENGLISH.model_lost()]
    assert bot.deleted == ["A"]


@pytest.mark.parametrize("after", ["say", "continue"])
def test_after_of_the_channel_decides(make_continuing, after):
    """With `say`, no model is asked after the yes."""
    bot = make_continuing(ScriptedProvider([calls("A"), "fine"]), after=after)
    bot.say("delete A")
    bot.say("yes")
    assert len(bot.provider.requests) == (2 if after == "continue" else 1)


def test_tool_that_says_say_asks_no_model(make_continuing):
    """The record of the action says what follows it."""
    bot = make_continuing(ScriptedProvider([calls("A")]), after="say")
    bot.say("delete A")
    bot.say("yes")
    assert len(bot.provider.requests) == 1
    bot.say("hello")


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
def test_one_continuation_after_a_death_at_each_step(make_continuing, step):
    """The next worker tells the outcome, and the agent goes on once."""
    bot = make_continuing(ScriptedProvider([calls("A"), "fine", "twice?"]))
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after(step)
    bot.work()
    assert bot.channel.texts[-1] == "fine"
    assert len(bot.provider.requests) == 2
    assert len(bot.deleted) <= 1


def test_second_yes_brings_no_second_continuation(make_continuing):
    """A typed yes and a tap on the same question are one decision."""
    bot = make_continuing(ScriptedProvider([calls("A"), "fine", "twice?"]))
    bot.say("delete A")
    confirm = bot.buttons[0]
    bot.hear("yes")
    bot.hear(tap=confirm.data)
    bot.work()
    assert (bot.deleted, len(bot.provider.requests)) == (["A"], 2)


def test_message_between_yes_and_continuation_is_the_continuation(make_continuing):
    """A model has read the outcome, so that no other is asked."""
    bot = make_continuing(ScriptedProvider([calls("A"), "both", "too much"], strict=True))
    bot.say("delete A")
    bot.hear("yes")
    bot.hear("and thank you so much for that")
    bot.work()
    assert (bot.channel.texts[-1], len(bot.provider.requests)) == ("both", 2)


@pytest.mark.parametrize("between", ["tap of an unknown button", "tap on an earlier question"])
def test_answer_without_a_model_between_yes_and_continuation_is_no_answer(make_continuing, between):
    """The agent goes on behind it, with a history that a vendor takes."""
    bot = make_continuing(ScriptedProvider([calls("A"), calls("B"), "fine"], strict=True))
    bot.say("delete A")
    earlier = bot.buttons[0].data
    bot.say("delete B")
    bot.hear("yes")
    bot.hear(tap=earlier if "earlier" in between else "zzz")
    bot.work()
    assert (bot.deleted, bot.channel.texts[-1]) == (["B"], "fine")


def test_question_asked_between_yes_and_continuation_is_an_answer(make_continuing):
    """No model is asked while the new question waits, and the next yes answers it."""
    bot = make_continuing(ScriptedProvider([calls("A"), calls("B"), "both"], strict=True))
    bot.say("delete A")
    bot.hear("yes")
    bot.hear("please remove the other one as well")
    bot.work()
    assert len(bot.provider.requests) == 2
    bot.say("yes")
    assert (bot.deleted, bot.channel.texts[-1]) == (["A", "B"], "both")


def test_question_that_was_explained_goes_on_with_the_yes(make_continuing):
    """Messages came in between, so that the yes stands at the end as the person's message."""
    bot = make_continuing(ScriptedProvider([calls("A"), "fine"], strict=True))
    bot.say("delete A")
    bot.say("what?")
    bot.say("yes")
    messages = bot.provider.requests[-1].messages
    assert (messages[-1].role, messages[-1].content) == (Role.USER, "yes")
    assert bot.channel.texts[-1] == "fine"


def test_outcome_and_the_rest_are_one_message_where_messages_cost_money(make_continuing):
    """A confirmed action costs two messages: the question and the rest."""
    bot = make_continuing(ScriptedProvider([calls("A"), "Anything else?"]), one_message=True)
    bot.say("delete A")
    bot.say("yes")
    assert new_texts(bot) == [f"{DONE}\n\nAnything else?"]


def test_offer_to_undo_stands_above_what_the_model_says(make_bot):
    """Below it, "this" could mean what the model speaks of."""
    bot = make_bot("A", lines=["Anything else?"], undo=lambda name: f"restored {name}")
    bot.behave(after="continue", is_one_message=True)
    bot.say("delete A")
    bot.say("yes")
    assert new_texts(bot) == [f"{DONE}\n\nYou can undo this for 5 minutes.\n\nAnything else?"]
    assert [button.label for button in bot.buttons] == ["Undo"]


def test_tapped_undo_keeps_what_the_model_said_in_the_same_message(make_bot):
    """The message is edited, so everything that it said must be in the new text."""
    bot = make_bot("A", lines=["Anything else?"], undo=lambda name: f"restored {name}")
    bot.behave(after="continue", is_one_message=True)
    bot.say("delete A")
    bot.say("yes")
    undo = bot.buttons[0].data
    note_prompt(bot.rig, undo[1:23], "outcome")
    bot.say(tap=undo)
    edits = [sent.reply.text for sent in bot.channel.sent if sent.reply.edits == "outcome"]
    assert edits == [f"{DONE}\n\nAnything else?\n\n✅ Undo"]


def test_long_answer_is_not_in_the_message_of_the_undo(make_bot):
    """The edit after the undo would have to repeat it."""
    answer = "x" * (MAX_KEPT_CHARS + 1)
    bot = make_bot("A", lines=[answer], undo=lambda name: f"restored {name}")
    bot.behave(after="continue", is_one_message=True)
    bot.say("delete A")
    bot.say("yes")
    assert new_texts(bot) == [f"{DONE}\n\nYou can undo this for 5 minutes.", answer]


@pytest.mark.parametrize("message", ["yes", "thanks a lot", "/help"])
def test_outcome_comes_first_where_another_message_came_during_the_effect(make_continuing, message):
    """The message is answered before the continuation, which tells the outcome no second time."""
    bot = make_continuing(
        ScriptedProvider([calls("A"), calls("B"), "fine", "more"]), one_message=True
    )
    bot.say("delete A")
    bot.hear("yes")
    bot.before("finish", lambda: bot.hear(message))
    bot.work()
    assert new_texts(bot)[0].startswith(DONE)
    assert "\n".join(new_texts(bot)).count(DONE) == 1


def test_model_that_hangs_keeps_no_outcome_from_its_person(make_continuing, monkeypatch):
    """Where both are one message, the outcome waits for the model for a bounded time."""
    monkeypatch.setattr(continuations, "OUTCOME_SECONDS", 0.01)
    model = ScriptedProvider([calls("A")])
    bot = make_continuing(model, one_message=True)
    bot.say("delete A")

    async def hang(**_: object):
        await asyncio.Event().wait()

    model.acomplete = hang
    bot.say("yes")
    assert new_texts(bot) == [f"{DONE}\n\n{ENGLISH.rest_missing()}"]


def test_continuation_that_hangs_says_so_in_the_language_of_the_chat(make_continuing, monkeypatch):
    """It has no message of the person, so the language is that of the messages before."""
    monkeypatch.setattr(continuations, "OUTCOME_SECONDS", 0.01)
    model = ScriptedProvider([calls("A")])
    bot = make_continuing(model)
    bot.behave(after="continue", is_one_message=True, languages=("en", "de"))
    bot.say("Bitte lösche die Rechnung A, ich brauche sie nicht mehr")

    async def hang(**_: object):
        await asyncio.Event().wait()

    model.acomplete = hang
    assert bot.say("ja").endswith(texts_for("de").rest_missing())
    assert bot.channel.sent[-1].reply.language == "de"


def test_stop_during_the_effect_leaves_the_outcome(make_continuing):
    """No model goes on after /stop, and the outcome is told all the same."""
    bot = make_continuing(ScriptedProvider([calls("A"), "no one wants this"]), one_message=True)
    bot.say("delete A")
    bot.hear("yes")
    bot.before("finish", lambda: bot.hear("/stop"))
    bot.work()
    assert len(bot.provider.requests) == 1
    assert any(text.startswith(DONE) for text in bot.channel.texts)


def test_bug_after_the_effect_does_not_hide_the_outcome():
    """A caller without a worker gets the outcome and that the rest is missing, not an error."""
    bot = ChannelAgent(
        Agent([pay], ScriptedProvider([ToolCall("pay", {"euros": 5})]), CONFIG),
        behavior=ChannelBehavior(after="continue"),
    )
    bot.ask_channel("ana", "pay 5")

    async def broken(*_: object, **__: object):
        raise RuntimeError("a bug")

    bot._run_agent = broken
    content = bot.ask_channel("ana", "yes").content
    assert content == f"✅ Done: Pay 5 euros\npaid 5\n\n{ENGLISH.rest_missing()}"


def test_caller_without_a_worker_gets_outcome_and_the_rest_at_once():
    """One call of `ask_channel` settles the action and lets the agent go on."""
    model = ScriptedProvider([ToolCall("pay", {"euros": 5}), "Anything else?"], strict=True)
    bot = ChannelAgent(Agent([pay], model, CONFIG), behavior=ChannelBehavior(after="continue"))
    bot.ask_channel("ana", "pay 5")
    result = bot.ask_channel("ana", "yes")
    assert result.content == "✅ Done: Pay 5 euros\npaid 5\n\nAnything else?"
    assert result.iterations == 2


@pytest.mark.parametrize("one_message", [False, True])
def test_continuation_without_a_record_is_not_silent(make_continuing, one_message):
    """It has waited for longer than records are kept: the person reads what to check, or that the rest is missing."""
    bot = make_continuing(ScriptedProvider([calls("A"), "never"]), one_message=one_message)
    bot.say("delete A")
    bot.hear("yes")
    go_on = bot.agent._continuations.go_on
    bot.agent._continuations.go_on = lambda context: go_on(replace(context, named_action=None))
    bot.work()
    assert bot.channel.texts[-1].startswith(
        ENGLISH.interrupted_before() if one_message else ENGLISH.rest_missing()
    )
    assert len(bot.provider.requests) == 1


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
@pytest.mark.parametrize("one_message", [False, True])
def test_stop_at_each_step_leaves_the_outcome_and_no_rest(make_continuing, step, one_message):
    """The effect takes place once, its outcome is told, and no model goes on."""
    bot = make_continuing(ScriptedProvider([calls("A"), "never"]), one_message=one_message)
    bot.say("delete A")
    bot.hear("yes")
    bot.before(step, lambda: bot.hear("/stop"))
    bot.work()
    assert (bot.deleted, len(bot.provider.requests)) == (["A"], 1)
    assert sum(text.startswith(DONE) for text in bot.channel.texts) == 1


def test_continuation_is_part_of_the_trace_of_the_yes_and_links_to_the_request(make_continuing):
    """An operator who reads one of them finds the others."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracing.start_tracing(provider)
    try:
        bot = make_continuing(ScriptedProvider([calls("A"), "fine"]))
        with tracing.span("accept the request"):
            bot.rig.accept(replace(turn("delete A"), trace=tracing.current_trace()))
        bot.work()
        with tracing.span("accept the yes"):
            bot.rig.accept(replace(turn("yes"), trace=tracing.current_trace()))
        bot.work()
    finally:
        tracing.stop_tracing()
    spans = memory.get_finished_spans()
    asked, decided, went_on = (span for span in spans if span.name == "turn chat")
    assert went_on.context.trace_id == decided.context.trace_id != asked.context.trace_id
    assert [link.context.span_id for link in went_on.links] == [asked.context.span_id]


@pytest.mark.parametrize(
    ("line", "outcome"),
    [("fine", "answered"), (ProviderError("down"), "unfinished")],
    ids=["answer", "failure"],
)
def test_continuations_are_counted_by_how_they_ended(make_continuing, line, outcome):
    """An operator sees how often the rest of a request was missing."""
    sample = ("sayso_continuations_total", {"channel": "chat", "outcome": outcome})
    before = REGISTRY.get_sample_value(*sample) or 0
    bot = make_continuing(ScriptedProvider([calls("A"), line]))
    bot.say("delete A")
    bot.say("yes")
    assert REGISTRY.get_sample_value(*sample) == before + 1


@pytest.mark.parametrize("one_message", [False, True])
def test_continuation_that_killed_ten_workers_is_given_up_and_says_so(make_continuing, one_message):
    """The effect is not repeated, its outcome is told once, and a line says that the rest is missing."""
    bot = make_continuing(ScriptedProvider([calls("A"), "never"]), one_message=one_message)
    bot.say("delete A")
    bot.hear("yes")

    async def killed(_: object) -> None:
        raise RedisError("killed")

    bot.agent._continuations.go_on = killed
    for _ in range(MAX_TURN_ATTEMPTS):
        with pytest.raises(RedisError):
            bot.work()
        bot.rig.end_lease()
    bot.work()
    told = "\n\n".join(new_texts(bot))
    assert told == f"{DONE}\n\n{ENGLISH.rest_missing()}"
    assert (bot.deleted, len(bot.provider.requests)) == (["A"], 1)


@pytest.mark.parametrize("one_message", [False, True])
def test_yes_that_killed_ten_workers_after_the_effect_is_followed_by_the_rest(
    make_continuing, one_message
):
    """The outcome is told by the turn that is given up, and the agent goes on in a turn of its own."""
    bot = make_continuing(ScriptedProvider([calls("A"), "fine", "twice?"]), one_message=one_message)
    bot.say("delete A")
    bot.hear("yes")
    bot.die_after("finish")
    answer = bot.agent.answer

    async def killed(queued, *rest):
        if queued.turn.continues:
            return await answer(queued, *rest)
        raise RedisError("killed")

    bot.agent.answer = killed
    for _ in range(MAX_TURN_ATTEMPTS - 1):
        with pytest.raises(RedisError):
            bot.work()
        bot.rig.end_lease()
    bot.work()
    outcome, rest = new_texts(bot)
    assert (outcome.endswith("deleted A"), rest, bot.deleted) == (True, "fine", ["A"])
