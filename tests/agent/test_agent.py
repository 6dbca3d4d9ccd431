"""Agent: what each of its doors promises, and what may end a run before its answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated

import pytest
from pydantic import BaseModel, PlainSerializer

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentObserver,
    AgentResult,
    AsyncAgentObserver,
    CancellationToken,
    ConversationMemory,
    Message,
    Role,
    ScriptedProvider,
    ToolCall,
    UsageStats,
    tool,
)
from sayso.agent.guards.guardrails import Guardrail, GuardrailAction, GuardrailsPipeline
from sayso.agent.memory.sessions import InMemorySessionStore, SessionStoreUnavailable
from sayso.agent.result import StreamChunk
from sayso.agent.run.cache import InMemoryCache
from sayso.agent.run.state import NOT_RUN, WITHHELD


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@tool
async def waits() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


def refuse(value):
    """Nobody writes it down."""
    raise ValueError(value)


ECHO = ToolCall("echo", {"text": "hi"})
Unwritable = Annotated[int, PlainSerializer(refuse)]


class Form(BaseModel):
    """What an answer is to be."""

    n: int


class Block(Guardrail):
    """Lets nothing pass that holds its word."""

    name = "block"
    blocking = False

    def __init__(self, word="", action=GuardrailAction.BLOCK):
        self.word, self.action = word, action

    def check(self, content):
        """Rewritten, it is all capitals."""
        return self.tripped(content.upper(), "the word") if self.word in content else self.passed(content)


class Ear(AgentObserver):
    """Hears how runs end, and what models they ask."""

    def __init__(self):
        self.heard = []

    def on_run_end(self, run_id, result):
        """A result."""
        self.heard.append("run_end")

    def on_error(self, run_id, error, context):
        """An error."""
        self.heard.append("error")

    def on_cancelled(self, run_id, iteration, reason):
        """A cancellation."""
        self.heard.append("cancelled")

    def on_model_switch(self, run_id, iteration, old_model, new_model):
        """Another model."""
        self.heard.append((old_model, new_model))


async def asked(agent):
    """Until the model was asked."""
    while not agent.provider.requests:  # noqa: ASYNC110  # what it waits for is the scripted provider's
        await asyncio.sleep(0)


async def nap(seconds):
    """Nobody waits in tests."""


def agent_with(*lines, tools=(echo, waits), memory=None, **config):
    """A scripted agent."""
    return Agent(tools, ScriptedProvider(lines), AgentConfig(**config), memory, sleep=nap)


def shape(result):
    """The transcript, by its roles."""
    return " ".join(message.role.value for message in result.messages)


def test_stopped_run_leaves_no_call_without_an_answer():
    """One call had begun, the other had not: both are told so, in their order."""
    token = CancellationToken()

    @tool
    async def stop() -> str:
        """Stop the run from inside."""
        token.cancel("enough")
        await asyncio.Event().wait()
        return ""

    agent = agent_with([ToolCall("stop"), ECHO], tools=(stop, echo), parallel_tool_execution=False)
    result = agent.run("go", cancellation_token=token)
    assert (result.stop_reason, shape(result)) == ("cancelled", "user assistant tool tool assistant")
    assert "Outcome unknown" in result.messages[2].content
    assert result.messages[3].content == NOT_RUN


def test_cancelled_token_begins_nothing():
    """The person's words and the reply are the whole transcript; no model is asked."""
    token = CancellationToken()
    token.cancel()
    agent = agent_with("never")
    result = agent.run("go", cancellation_token=token)
    assert (shape(result), agent.provider.requests) == ("user assistant", [])


def test_cancelled_task_is_forgotten_and_told_once():
    """Whoever cancels the task gets a CancelledError, and the memory nothing."""
    ear, memory = Ear(), ConversationMemory()
    agent = agent_with(ToolCall("waits"), memory=memory, observers=[ear])

    async def cancelled():
        run = asyncio.ensure_future(agent.arun("go"))
        await asked(agent)
        run.cancel()
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert (ear.heard, memory.get_history()) == (["cancelled"], [])


def test_run_cancelled_while_it_is_summed_up_is_not_remembered():
    """What takes time is done before the memory has any of it."""
    summing = asyncio.Event()

    class Slow:
        async def acomplete(self, **request):
            summing.set()
            await asyncio.Event().wait()

    memory = ConversationMemory(2)
    memory.add_many([Message(Role.USER, "one"), Message(Role.ASSISTANT, "two")])
    config = {"summarize_on_trim": True, "summarize_provider": Slow(), "summarize_model": "m"}
    agent = agent_with("answer", memory=memory, **config)

    async def cancelled():
        run = asyncio.ensure_future(agent.arun("go"))
        await summing.wait()
        run.cancel()
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert [each.content for each in memory.get_history()] == ["one", "two"]


def test_session_that_cannot_be_saved_costs_no_answer(caplog):
    """Its tools have run: whoever got an error instead would ask for the same again. Operators are told."""

    class Full(InMemorySessionStore):
        def save(self, session_id, memory, *, namespace=None):
            raise SessionStoreUnavailable("the disk is full")

    ear = Ear()
    agent = agent_with("answer", session_store=Full(), session_id="s", observers=[ear])
    result = agent.run("go")
    assert (result.content, ear.heard) == ("answer", ["run_end"])
    assert [step.error for step in result.trace.filter(type="error")] == ["session not saved: SessionStoreUnavailable"]
    assert "session.not_saved" in caplog.text


def test_abandoned_stream_ends_its_run():
    """Who stops listening stops the run, and waits until it has stopped."""
    ear = Ear()
    agent = agent_with(ToolCall("waits"), observers=[ear])

    async def abandoned():
        stream = agent.astream("go")
        listening = asyncio.ensure_future(anext(stream))
        await asked(agent)
        listening.cancel()
        await asyncio.wait([listening])
        await stream.aclose()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert (asyncio.run(abandoned()), ear.heard) == (set(), ["cancelled"])


def test_cancelled_batch_leaves_nothing_running():
    """Also a tool that takes its time to stop has stopped."""
    started, stopped = asyncio.Event(), []

    @tool
    async def slow() -> str:
        """Clean up slowly."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            stopped.append(True)
        return ""

    agent = agent_with(ToolCall("slow"), ToolCall("waits"), tools=(slow, waits))

    async def cancelled():
        batch = asyncio.ensure_future(agent.abatch(["a", "b"]))
        await started.wait()
        batch.cancel()
        await asyncio.wait([batch])
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert (asyncio.run(cancelled()), stopped) == (set(), [True])


def test_prompt_that_breaks_breaks_alone():
    """Its place in the results says why; the others have their answers."""
    agent = agent_with("one", "two")
    results = agent.batch(["a", [], "b"])
    assert [result.stop_reason for result in results] == ["answer", "error", "answer"]
    assert "no message to answer" in results[1].content


@pytest.mark.parametrize("answer", [None, "text", (Message(Role.ASSISTANT, "", (None,)), None)])
def test_provider_that_answers_nonsense_is_a_provider_error(answer):
    """No result of it comes into the transcript."""

    class Mad:
        async def acomplete(self, **request):
            return answer

    result = Agent([], Mad(), AgentConfig(max_retries=0)).run("go")
    assert (result.stop_reason, shape(result)) == ("provider_error", "user assistant")


@pytest.mark.parametrize("given", ["[1", [1], {1: 2}, {"text": {1}}, {"text": float("nan")}, {"text": 10**5000}])
def test_arguments_that_are_no_json_are_told_to_the_model(given):
    """The call stays in the transcript, in a form that can be kept and sent."""
    agent = agent_with(ToolCall("echo", given), "sorry")
    result = agent.run("go")
    assert (result.content, shape(result)) == ("sorry", "user assistant tool assistant")
    assert "called with arguments that are not a JSON object" in result.messages[2].content


def test_answer_of_another_role_is_the_assistants():
    """A provider cannot put words into the user's mouth."""
    agent = agent_with(Message(Role.USER, "delete all", tool_call_id="x"))
    assert agent.run("go").messages[-1] == Message(Role.ASSISTANT, "delete all")


def test_usage_that_is_no_number_counts_nothing():
    """The answer is worth more than its bill."""

    class Careless:
        async def acomplete(self, **request):
            return Message(Role.ASSISTANT, "here"), UsageStats(None, 1, 2, float("nan"))

    result = Agent([], Careless()).run("go")
    assert (result.content, result.usage.total_tokens, result.usage.cost_usd) == ("here", 0, 0)


def test_model_selector_that_fails_costs_no_answer():
    """The configured model answers."""
    agent = agent_with("here", model="plain", model_selector=lambda *_: 1 / 0)
    assert (agent.run("go").content, agent.provider.requests[0].model) == ("here", "plain")


def test_one_that_confirms_by_leaving_has_not_confirmed():
    """A confirm_action that ends the process, or its task, is a no."""

    async def leave(name, args, reason):
        raise SystemExit

    @tool(requires_approval=True)
    def delete() -> str:
        """Delete."""
        return "deleted"

    agent = agent_with(ToolCall("delete"), "not done", tools=(delete,), confirm_action=leave)
    result = agent.run("go")
    assert (result.content, "asking failed" in result.messages[2].content) == ("not done", True)


def test_what_no_guardrail_passed_is_not_in_the_transcript():
    """Nor in the memory: the next question would bring it to the model."""
    memory = ConversationMemory()
    result = agent_with("never", memory=memory, guardrails=GuardrailsPipeline([Block()])).run("secret words")
    assert (result.stop_reason, shape(result)) == ("guardrail", "user assistant")
    assert memory.get_history()[0].content == WITHHELD


def test_blocked_answer_is_never_heard():
    """Also where somebody listens while it comes."""
    heard = []
    guardrails = GuardrailsPipeline(output=[Block("secret")])
    result = agent_with("the secret", guardrails=guardrails).run("go", heard.append)
    assert (result.stop_reason, heard) == ("guardrail", [result.content])
    assert result.content == "I am not allowed to answer that. Please ask for something else."


def test_rewritten_words_are_what_the_model_reads():
    """And what is remembered."""
    guardrails = GuardrailsPipeline([Block("loud", GuardrailAction.REWRITE)])
    agent = agent_with("ok", guardrails=guardrails)
    assert agent.run("loud").messages[0].content == agent.provider.requests[0].messages[0].content == "LOUD"


def test_run_that_goes_in_circles_is_told_and_then_ended():
    """Three equal rounds are a nudge, the fourth ends it."""
    result = agent_with(*[ECHO] * 9, max_iterations=9).run("go")
    told = ["Note of the platform" in message.content for message in result.messages if message.role is Role.TOOL]
    assert (result.stop_reason, told) == ("loop", [False, False, True, False])


def test_budget_of_a_run_ends_it_politely():
    """The call that reaches it is not cut off; no other is made."""
    agent = agent_with(ECHO, "never", max_total_tokens=2)
    result = agent.run("go")
    assert (result.stop_reason, len(agent.provider.requests)) == ("budget", 1)
    assert shape(result) == "user assistant tool assistant"


def test_call_that_nobody_asked_for_is_not_made():
    """The model is told why."""
    judge = ScriptedProvider(['{"coherent": false, "explanation": "No echo was asked for."}'])
    config = {"coherence_check": True, "coherence_provider": judge, "coherence_model": "judge"}
    result = agent_with(ECHO, "as you like", **config).run("go")
    assert "No echo was asked for" in result.messages[2].content
    assert result.usage.total_tokens == 6


def test_wrong_form_is_asked_for_again():
    """The model hears what was wrong; the transcript has the answer that fits, and nothing of the others."""
    agent = agent_with("one", '{"n": "x"}', '{"n": 1}')
    result = agent.run("go", response_format=Form)
    assert (result.parsed, shape(result)) == (Form(n=1), "user assistant")
    assert "could not be used" in agent.provider.requests[1].messages[-1].content


def test_form_that_never_fits_is_told():
    """The last answer is the content, and nothing is parsed."""
    result = agent_with("one", "two", max_iterations=2).run("go", response_format=Form)
    assert (result.stop_reason, result.content, result.parsed) == ("invalid_answer", "two", None)
    assert result.structured_error


def test_cost_warning_is_logged_once(caplog):
    """When the agent's account passes what was thought enough."""
    agent = agent_with("a", "b", "c", cost_warning_threshold=0.000001, prices={"m": (1.0, 1.0)}, model="m")
    for _ in range(3):
        agent.run("go")
    assert [record.message for record in caplog.records] == ["agent.cost_warning"]


@pytest.mark.parametrize("door", ["run", "ask", "__call__"])
def test_sync_doors_answer(door):
    """Three names for one thing."""
    assert getattr(agent_with("hello"), door)("go").content == "hello"


@pytest.mark.parametrize("door", ["arun", "aask"])
def test_async_doors_answer(door):
    """Two names for one thing."""
    assert asyncio.run(getattr(agent_with("hello"), door)("go")).content == "hello"


def test_sync_door_answers_inside_a_running_loop():
    """As in a notebook."""

    async def notebook():
        return agent_with("hello").run("go").content

    assert asyncio.run(notebook()) == "hello"


def test_stream_yields_the_text_and_last_the_result():
    """Pieces of text, and one result."""

    async def listened():
        return [piece async for piece in agent_with(ECHO, "hello").astream("go")]

    *pieces, result = asyncio.run(listened())
    assert (pieces, isinstance(result, AgentResult), result.content) == ([StreamChunk("hello")], True, "hello")


def test_batch_keeps_the_order_of_its_prompts():
    """And says how far it is."""
    steps = []
    agent = agent_with("one", "two", "three")
    results = agent.batch(["a", "b", "c"], max_concurrency=1, on_progress=lambda *step: steps.append(step))
    assert [result.content for result in results] == ["one", "two", "three"]
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_batch_changes_nothing_in_the_agents_memory():
    """Each prompt knows it, and is apart from the others."""
    memory = ConversationMemory()
    agent = agent_with("hi", "one", "two", memory=memory)
    agent.run("hello")
    asyncio.run(agent.abatch(["a", "b"], max_concurrency=1))
    assert [len(request.messages) for request in agent.provider.requests] == [1, 3, 3]
    assert len(memory.get_history()) == 2


def test_batch_that_runs_nothing_is_refused():
    """A limit of none is a mistake."""
    with pytest.raises(ValueError, match="max_concurrency=0"):
        agent_with().batch(["a"], max_concurrency=0)


def test_reset_forgets_what_was_said():
    """And its summary; the account stays."""
    memory = ConversationMemory(summary="before")
    agent = agent_with("hi", memory=memory)
    agent.run("hello")
    agent.reset()
    assert (memory.get_history(), memory.summary, agent.total_tokens) == ([], "", 2)


@pytest.mark.parametrize("messages", ["", [], [Message(Role.USER, "")]])
def test_nothing_to_answer_is_refused_or_asked(messages):
    """An empty list is a mistake; an empty text is what somebody said."""
    if messages == []:
        with pytest.raises(ValueError, match="no message to answer"):
            agent_with().run(messages)
    else:
        assert agent_with("yes?").run(messages).content == "yes?"


def test_routing_runs_no_tool():
    """The choice is the result."""
    result = agent_with(ECHO, routing_only=True).run("go")
    assert (result.stop_reason, result.tool_name, result.tool_args) == ("routing", "echo", {"text": "hi"})


def test_choice_of_a_run_that_was_stopped_is_none():
    """Stopped before anybody heard of it, as late as that can be: it is in no transcript either."""

    class Stops(AsyncAgentObserver):
        blocking = True

        async def a_on_iteration_end(self, *_: object) -> None:
            token.cancel()
            await asyncio.Event().wait()

    token = CancellationToken()
    agent = agent_with(ECHO, routing_only=True, observers=[Stops()])
    result = asyncio.run(agent.arun("go", cancellation_token=token))
    assert (result.stop_reason, result.tool_calls) == ("cancelled", ())


def test_stop_condition_ends_the_run_with_the_result():
    """It sees the tool's name and words."""
    agent = agent_with(ECHO, "never", stop_condition=lambda name, result: (name, result) == ("echo", "hi"))
    result = agent.run("go")
    assert (result.stop_reason, result.content, len(agent.provider.requests)) == ("terminal", "hi", 1)


def test_selector_chooses_the_model_of_each_step():
    """Observers hear of the change."""
    ear = Ear()
    agent = agent_with(ECHO, "hi", observers=[ear], model_selector=lambda step, calls, usage: f"m{len(calls)}")
    agent.run("go")
    assert [request.model for request in agent.provider.requests] == ["m0", "m1"]
    assert ear.heard == [("m0", "m1"), "run_end"]


def test_provider_that_knows_a_model_is_asked_for_it():
    """Unless somebody chose one."""
    asked = []

    class Own:
        default_model = "own"

        async def acomplete(self, **request):
            asked.append(request["model"])
            return Message(Role.ASSISTANT, "hi"), None

    Agent([], Own()).run("go")
    Agent([], Own(), AgentConfig(model="chosen")).run("go")
    assert asked == ["", "chosen"]


def test_cached_answer_costs_no_question_and_is_counted_again():
    """The same question is asked once; the account has it twice."""
    agent = agent_with("hi", cache=InMemoryCache())
    first, second = agent.run("go"), agent.run("go")
    assert (second.content, len(agent.provider.requests)) == ("hi", 1)
    assert (second.usage, agent.total_tokens) == (first.usage, 4)
    assert second.trace.filter("cache_hit")


def test_sync_tool_runs_in_the_sync_callers_thread():
    """As if it had been called."""
    threads = []

    @tool
    def where() -> str:
        """Say where."""
        threads.append(threading.current_thread())
        return "here"

    agent_with(ToolCall("where"), "done", tools=(where,)).run("go")
    assert threads == [threading.current_thread()]


def test_sync_tool_may_run_a_loop():
    """Also another agent."""

    @tool
    def nested() -> str:
        """Ask another agent, and a loop of its own."""
        return agent_with("inner").run("go").content + asyncio.run(asyncio.sleep(0, " loop"))

    agent = agent_with(ToolCall("nested"), "done", tools=(nested,))
    assert agent.run("go").messages[2].content == "inner loop"


def test_interrupted_tool_reaches_the_caller_and_the_agent_goes_on():
    """Ctrl+C in a tool is for whoever sits there."""
    interrupts = [KeyboardInterrupt()]

    @tool
    def work() -> str:
        """Work."""
        if interrupts:
            raise interrupts.pop()
        return "worked"

    agent = agent_with(ToolCall("work"), ToolCall("work"), "done", tools=(work,))
    with pytest.raises(KeyboardInterrupt):
        agent.run("go")
    assert agent.run("go").content == "done"


def test_runs_at_once_do_not_know_each_other():
    """One agent serves many, each with its own memory."""
    agent = agent_with("one", "two")
    memories = [ConversationMemory(), ConversationMemory()]

    async def both():
        return await asyncio.gather(*(agent.arun("go", memory=memory) for memory in memories))

    results = asyncio.run(both())
    assert {result.content for result in results} == {"one", "two"}
    assert [len(memory.get_history()) for memory in memories] == [2, 2]


def test_run_that_is_interrupted_in_a_tool_is_told_to_end():
    """Whoever presses Ctrl+C has stopped it, wherever it was: observers hear of it as of any other that was stopped."""

    @tool
    def interrupted() -> str:
        """Never ends."""
        raise KeyboardInterrupt

    ear = Ear()
    with pytest.raises(KeyboardInterrupt):
        agent_with(ToolCall("interrupted"), tools=(interrupted,), observers=[ear]).run("go")
    assert ear.heard == ["cancelled"]


def test_chunks_are_told_before_the_end_of_their_call():
    """Also those of an async tool, which come in the loop itself."""
    events = []

    @tool(streaming=True)
    async def stream():
        """Give pieces."""
        yield "a"
        yield "b"

    class Chunks(AgentObserver):
        def on_tool_chunk(self, run_id, call_id, tool_name, chunk):
            events.append(chunk)

        def on_tool_end(self, run_id, call_id, tool_name, result, duration_ms):
            events.append(result)

    agent_with(ToolCall("stream"), "done", tools=(stream,), observers=[Chunks()]).run("go")
    assert events == ["a", "b", "ab"]


def test_arguments_that_cannot_be_written_down_are_told_as_they_were_given():
    """Whoever only listens stops no call, and no run."""
    told = []

    @tool
    def take(n: Unwritable) -> str:
        """Take a number."""
        return f"took {n}"

    class Decisions(AgentObserver):
        def on_policy_decision(self, run_id, tool_name, decision, reason, args):
            told.append(args)

    agent = agent_with(ToolCall("take", {"n": 1}), "done", tools=(take,), observers=[Decisions()])
    assert (agent.run("go").messages[2].content, told) == ("took 1", [{"n": 1}])


def test_what_another_run_learnt_meanwhile_stays():
    """Two runs of one conversation: the one that ends last takes nothing back."""
    memory = ConversationMemory()

    class Meanwhile(AgentObserver):
        def on_iteration_end(self, run_id, iteration, response):
            memory.notes["seen"] = True

        def on_session_save(self, run_id, session_id, message_count):
            memory.summary = "of the other run"

    config = {"session_store": InMemorySessionStore(), "session_id": "s", "observers": [Meanwhile()]}
    agent_with("hi", memory=memory, **config).run("go")
    assert (memory.summary, memory.notes, len(memory.get_history())) == ("of the other run", {"seen": True}, 2)


def test_every_step_that_began_is_told_to_end():
    """Also one that the budget, a guardrail or the model's provider ends; nothing is told of a blocked answer."""
    told: list[tuple[str, int, str]] = []

    class Steps(AgentObserver):
        def on_iteration_start(self, run_id, iteration, messages):
            told.append(("start", iteration, ""))

        def on_iteration_end(self, run_id, iteration, response):
            told.append(("end", iteration, response))

    heard = {"observers": [Steps()]}
    agent_with(ECHO, "never", max_total_tokens=2, **heard).run("go")
    agent_with("a bad word", guardrails=GuardrailsPipeline(output=[Block("bad")]), **heard).run("go")
    agent_with(ValueError("away"), max_retries=0, **heard).run("go")
    ends = [("end", 1, ""), ("end", 2, ""), ("end", 1, ""), ("end", 1, "")]
    assert [each for each in told if each[0] == "end"] == ends
    assert [at for what, at, _ in told if what == "start"] == [at for _, at, _ in ends]


def test_calls_are_counted_by_their_tools():
    """What models called, made up or not."""
    agent = agent_with([ECHO, ECHO], ToolCall("nonsense"), "done")
    agent.run("go")
    assert agent.usage.tool_usage == {"echo": 2, "nonsense": 1}
