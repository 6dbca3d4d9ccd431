"""Agent: what each of its methods promises, and what may end a run before its answer."""

from __future__ import annotations

import asyncio
import json
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
from sayso.agent.guards.coherence import CoherenceCheck
from sayso.agent.guards.guardrails import Guardrail, GuardrailAction, GuardrailsPipeline
from sayso.agent.guards.loop_detection import LoopDetector
from sayso.agent.memory.sessions import InMemorySessionStore, SessionStoreUnavailable
from sayso.agent.messages import AnswerDetails
from sayso.agent.result import StreamChunk
from sayso.agent.run.cache import InMemoryCache
from sayso.agent.run.state import NOT_RUN, WITHHELD


@tool
def echo(text: str) -> str:
    """Return the text unchanged."""
    return text


@tool
async def waits() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


def refuse(value):
    """Raise for every value."""
    raise ValueError(value)


ECHO = ToolCall("echo", {"text": "hi"})
Unwritable = Annotated[int, PlainSerializer(refuse)]


class Form(BaseModel):
    """The format of a structured answer."""

    n: int


class Block(Guardrail):
    """A guardrail that trips on its word."""

    name = "block"
    blocking = False

    def __init__(self, word="", action=GuardrailAction.BLOCK):
        self.word, self.action = word, action

    def check(self, content):
        """Trip with the text in capitals as its rewriting."""
        return (
            self.tripped(content.upper(), "the word")
            if self.word in content
            else self.passed(content)
        )


class Ear(AgentObserver):
    """Notes how runs end and which models they switch between."""

    def __init__(self):
        self.heard = []

    def on_run_end(self, run_id, result):
        """Note a result."""
        self.heard.append("run_end")

    def on_error(self, run_id, error, context):
        """Note an error."""
        self.heard.append("error")

    def on_cancelled(self, run_id, iteration, reason):
        """Note a cancellation."""
        self.heard.append("cancelled")

    def on_model_switch(self, run_id, iteration, old_model, new_model):
        """Note a model switch."""
        self.heard.append((old_model, new_model))


async def asked(agent):
    """Wait until the model was called."""
    while not agent.provider.requests:  # noqa: ASYNC110  # the scripted provider has no event to wait for
        await asyncio.sleep(0)


async def nap(seconds):
    """Return at once."""


def agent_with(*lines, tools=(echo, waits), memory=None, **config):
    """Return an agent with scripted answers."""
    return Agent(tools, ScriptedProvider(lines), AgentConfig(**config), memory, sleep=nap)


def shape(result):
    """Return the roles of the transcript in order."""
    return " ".join(message.role.value for message in result.messages)


def test_cancelled_run_answers_every_call():
    """One call had started and the other had not; both have a result that says so, in order."""
    token = CancellationToken()

    @tool
    async def stop() -> str:
        """Stop the run from inside."""
        token.cancel("enough")
        await asyncio.Event().wait()
        return ""

    agent = agent_with([ToolCall("stop"), ECHO], tools=(stop, echo), parallel_tool_execution=False)
    result = agent.run("go", cancellation_token=token)
    assert (result.stop_reason, shape(result)) == (
        "cancelled",
        "user assistant tool tool assistant",
    )
    assert json.loads(result.messages[2].content)["outcome"] == "unknown"
    assert result.messages[3].content == NOT_RUN


def test_cancelled_token_starts_nothing():
    """The transcript has only the user's message and the reply, and no model is called."""
    token = CancellationToken()
    token.cancel()
    agent = agent_with("never")
    result = agent.run("go", cancellation_token=token)
    assert (shape(result), agent.provider.requests) == ("user assistant", [])


def test_cancelled_task_stores_nothing_and_is_reported_once():
    """The caller that cancels the task gets a CancelledError, and the memory stays empty."""
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


def test_run_cancelled_while_summarizing_is_not_stored():
    """The summary is written before the memory changes."""
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


def test_session_that_cannot_be_saved_does_not_lose_the_answer(caplog):
    """The tools have run, and an error would make the user repeat the request. The log has a warning."""

    class Full(InMemorySessionStore):
        def save(self, session_id, memory, *, namespace=None):
            raise SessionStoreUnavailable("the disk is full")

    ear = Ear()
    agent = agent_with("answer", session_store=Full(), session_id="s", observers=[ear])
    result = agent.run("go")
    assert (result.content, ear.heard) == ("answer", ["run_end"])
    assert [step.error for step in result.trace.filter(type="error")] == [
        "session not saved: SessionStoreUnavailable"
    ]
    assert "session.not_saved" in caplog.text


def test_abandoned_stream_ends_its_run():
    """A consumer that closes the stream cancels the run and waits until it has stopped."""
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


def test_cancelled_batch_leaves_no_task():
    """A tool that takes time to stop has stopped as well."""
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


def test_failing_prompt_of_a_batch_does_not_affect_the_others():
    """Its result has the error; the other prompts are answered."""
    agent = agent_with("one", "two")
    results = agent.batch(["a", [], "b"])
    assert [result.stop_reason for result in results] == ["answer", "error", "answer"]
    assert "no message to answer" in results[1].content


@pytest.mark.parametrize("answer", [None, "text", (Message(Role.ASSISTANT, "", (None,)), None)])
def test_invalid_provider_answer_is_a_provider_error(answer):
    """No part of the answer is in the transcript."""

    class Mad:
        async def acomplete(self, **request):
            return answer

    result = Agent([], Mad(), AgentConfig(max_retries=0)).run("go")
    assert (result.stop_reason, shape(result)) == ("provider_error", "user assistant")


@pytest.mark.parametrize(
    "given", ["[1", [1], {1: 2}, {"text": {1}}, {"text": float("nan")}, {"text": 10**5000}]
)
def test_model_reads_that_its_arguments_are_no_json(given):
    """The call stays in the transcript in a form that can be stored and sent."""
    agent = agent_with(ToolCall("echo", given), "sorry")
    result = agent.run("go")
    assert (result.content, shape(result)) == ("sorry", "user assistant tool assistant")
    assert "called with arguments that are not a JSON object" in result.messages[2].content


def test_answer_with_another_role_becomes_the_assistants():
    """A provider cannot add a user message."""
    agent = agent_with(Message(Role.USER, "delete all", tool_call_id="x"))
    assert agent.run("go").messages[-1] == Message(Role.ASSISTANT, "delete all")


def test_invalid_usage_counts_as_zero():
    """Invalid usage does not lose the answer."""

    class Careless:
        async def acomplete(self, **request):
            return Message(Role.ASSISTANT, "here"), UsageStats(None, 1, 2, float("nan"))

    result = Agent([], Careless()).run("go")
    assert (result.content, result.usage.total_tokens, result.usage.cost_usd) == ("here", 0, 0)


def test_failing_model_selector_does_not_lose_the_answer():
    """The configured model is used."""
    agent = agent_with("here", model="plain", model_selector=lambda *_: 1 / 0)
    assert (agent.run("go").content, agent.provider.requests[0].model) == ("here", "plain")


def test_confirm_action_that_raises_system_exit_is_a_no():
    """Leaving the process or the task confirms nothing."""

    async def leave(name, args, reason):
        raise SystemExit

    @tool(requires_approval=True)
    def delete() -> str:
        """Delete."""
        return "deleted"

    agent = agent_with(ToolCall("delete"), "not done", tools=(delete,), confirm_action=leave)
    result = agent.run("go")
    assert (result.content, "asking failed" in result.messages[2].content) == ("not done", True)


def test_blocked_message_is_not_in_the_transcript():
    """It is not in the memory either, where the next question would send it to the model."""
    memory = ConversationMemory()
    result = agent_with("never", memory=memory, guardrails=GuardrailsPipeline([Block()])).run(
        "secret words"
    )
    assert (result.stop_reason, shape(result)) == ("guardrail", "user assistant")
    assert memory.get_history()[0].content == WITHHELD


def test_blocked_answer_is_never_streamed():
    """A stream handler receives only the refusal."""
    heard = []
    guardrails = GuardrailsPipeline(output=[Block("secret")])
    result = agent_with("the secret", guardrails=guardrails).run("go", heard.append)
    assert (result.stop_reason, heard) == ("guardrail", [result.content])
    assert result.content == "I am not allowed to answer that. Please ask for something else."


def test_rewritten_message_is_sent_to_the_model():
    """The memory stores the rewritten message too."""
    guardrails = GuardrailsPipeline([Block("loud", GuardrailAction.REWRITE)])
    agent = agent_with("ok", guardrails=guardrails)
    assert (
        agent.run("loud").messages[0].content
        == agent.provider.requests[0].messages[0].content
        == "LOUD"
    )


def test_repeating_run_is_warned_and_then_ended():
    """The third equal round adds a note, and the fourth ends the run."""
    result = agent_with(*[ECHO] * 9, max_iterations=9).run("go")
    told = [
        "Note of the platform" in message.content
        for message in result.messages
        if message.role is Role.TOOL
    ]
    assert (result.stop_reason, told) == ("loop", [False, False, True, False])


def test_budget_of_a_run_ends_it_with_a_message():
    """The call that reaches the limit finishes, and no other is made."""
    agent = agent_with(ECHO, "never", max_total_tokens=2)
    result = agent.run("go")
    assert (result.stop_reason, len(agent.provider.requests)) == ("budget", 1)
    assert shape(result) == "user assistant tool assistant"


def test_incoherent_call_is_not_made():
    """The model reads the reason."""
    judge = ScriptedProvider(['{"coherent": false, "explanation": "No echo was asked for."}'])
    config = {"coherence": CoherenceCheck(provider=judge, model="judge")}
    result = agent_with(ECHO, "as you like", **config).run("go")
    assert "No echo was asked for" in result.messages[2].content
    assert result.usage.total_tokens == 6


def test_answer_in_a_wrong_format_is_requested_again():
    """The model reads the error; the transcript has only the answer that fits."""
    agent = agent_with("one", '{"n": "x"}', '{"n": 1}')
    result = agent.run("go", response_format=Form)
    assert (result.parsed, shape(result)) == (Form(n=1), "user assistant")
    assert "could not be used" in agent.provider.requests[1].messages[-1].content


def test_answer_that_never_fits_the_format_is_reported():
    """The last answer is the content, and nothing is parsed."""
    result = agent_with("one", "two", max_iterations=2).run("go", response_format=Form)
    assert (result.stop_reason, result.content, result.parsed) == ("invalid_answer", "two", None)
    assert result.structured_error


def test_cost_warning_is_logged_once(caplog):
    """The warning is logged when the agent's total cost passes the threshold."""
    agent = agent_with(
        "a", "b", "c", cost_warning_threshold=0.000001, prices={"m": (1.0, 1.0)}, model="m"
    )
    for _ in range(3):
        agent.run("go")
    assert [record.message for record in caplog.records] == ["agent.cost_warning"]


@pytest.mark.parametrize("door", ["run", "ask", "__call__"])
def test_sync_methods_answer(door):
    """The three methods do the same."""
    assert getattr(agent_with("hello"), door)("go").content == "hello"


@pytest.mark.parametrize("door", ["arun", "aask"])
def test_async_methods_answer(door):
    """The two methods do the same."""
    assert asyncio.run(getattr(agent_with("hello"), door)("go")).content == "hello"


def test_sync_method_answers_inside_a_running_loop():
    """A notebook has a running loop."""

    async def notebook():
        return agent_with("hello").run("go").content

    assert asyncio.run(notebook()) == "hello"


def test_stream_yields_the_text_and_last_the_result():
    """The stream yields pieces of text and one result."""

    async def listened():
        return [piece async for piece in agent_with(ECHO, "hello").astream("go")]

    *pieces, result = asyncio.run(listened())
    assert (pieces, isinstance(result, AgentResult), result.content) == (
        [StreamChunk("hello")],
        True,
        "hello",
    )


def test_batch_keeps_the_order_of_its_prompts():
    """`on_progress` counts the finished prompts."""
    steps = []
    agent = agent_with("one", "two", "three")
    results = agent.batch(
        ["a", "b", "c"], max_concurrency=1, on_progress=lambda *step: steps.append(step)
    )
    assert [result.content for result in results] == ["one", "two", "three"]
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_batch_does_not_change_the_agents_memory():
    """Each prompt sees the memory, but not the other prompts."""
    memory = ConversationMemory()
    agent = agent_with("hi", "one", "two", memory=memory)
    agent.run("hello")
    asyncio.run(agent.abatch(["a", "b"], max_concurrency=1))
    assert [len(request.messages) for request in agent.provider.requests] == [1, 3, 3]
    assert len(memory.get_history()) == 2


def test_batch_without_concurrency_is_refused():
    """A limit of zero is an error."""
    with pytest.raises(ValueError, match="max_concurrency=0"):
        agent_with().batch(["a"], max_concurrency=0)


def test_reset_clears_history_and_summary():
    """The usage totals stay."""
    memory = ConversationMemory(summary="before")
    agent = agent_with("hi", memory=memory)
    agent.run("hello")
    agent.reset()
    assert (memory.get_history(), memory.summary, agent.total_tokens) == ([], "", 2)


@pytest.mark.parametrize("messages", ["", [], [Message(Role.USER, "")]])
def test_empty_list_is_refused_and_empty_text_is_sent(messages):
    """An empty list is a caller's mistake; an empty text is a user's message."""
    if messages == []:
        with pytest.raises(ValueError, match="no message to answer"):
            agent_with().run(messages)
    else:
        assert agent_with("yes?").run(messages).content == "yes?"


@pytest.mark.parametrize("request_", [Message(Role.USER, "go"), None, 7, ["go"]])
def test_request_of_another_type_is_refused_with_the_cure(request_):
    """One Message without a list around it is the usual mistake."""
    with pytest.raises(TypeError, match="give a text or a list of Message"):
        agent_with().run(request_)


def test_routing_runs_no_tool():
    """The selected tool is the result."""
    result = agent_with(ECHO, routing_only=True).run("go")
    assert (result.stop_reason, result.tool_name, result.tool_args) == (
        "routing",
        "echo",
        {"text": "hi"},
    )


def test_text_beside_a_chosen_tool_is_streamed_once():
    """It arrived while the model wrote, so it is not passed on again at the end."""
    answer = Message(Role.ASSISTANT, "I will echo.", tool_calls=(ECHO,))
    pieces: list[str] = []
    result = agent_with(answer, routing_only=True).run("go", pieces.append)
    assert (result.stop_reason, pieces) == ("routing", ["I will echo."])


def test_answer_of_the_wrong_form_says_that_it_was_cut_off():
    """The length is then the reason that it has no form: the author raises `max_tokens`."""
    cut = Message(Role.ASSISTANT, '{"n": 1', details=AnswerDetails(finish_reason="length"))
    result = agent_with(cut, max_iterations=1).run("go", response_format=Form)
    assert (result.stop_reason, result.finish_reason) == ("invalid_answer", "length")


def test_loop_is_reported_with_all_tools_of_its_round():
    """Observers read each tool that the model repeats, and not only the last one."""
    reports = []

    class Watches(AgentObserver):
        def on_tool_loop_detected(self, run_id, detector_name, details):
            reports.append(details["tools"])

    both = [[ECHO, ToolCall("number", {})]] * 3
    agent = agent_with(
        *both, "done", loop_detector=LoopDetector(max_repeats=3), observers=[Watches()]
    )
    agent.run("go")
    assert reports == [["echo", "number"]]


def test_cancelled_routing_has_no_choice():
    """The run is cancelled as late as possible: neither the result nor the transcript has the choice."""

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
    """It receives the tool's name and result."""
    agent = agent_with(
        ECHO, "never", stop_condition=lambda name, result: (name, result) == ("echo", "hi")
    )
    result = agent.run("go")
    assert (result.stop_reason, result.content, len(agent.provider.requests)) == (
        "terminal",
        "hi",
        1,
    )


@pytest.mark.parametrize(("ends", "reason"), [(True, "terminal"), (False, "answer")])
def test_stop_condition_may_be_async(ends: bool, reason: str):
    """Its coroutine is awaited; as such it would count as true."""

    async def stops(name: str, result: str) -> bool:
        return ends

    assert (
        agent_with(ECHO, "the model's answer", stop_condition=stops).run("go").stop_reason == reason
    )


def test_selector_chooses_the_model_of_each_step():
    """Observers receive the switch."""
    ear = Ear()
    agent = agent_with(
        ECHO, "hi", observers=[ear], model_selector=lambda step, calls, usage: f"m{len(calls)}"
    )
    agent.run("go")
    assert [request.model for request in agent.provider.requests] == ["m0", "m1"]
    assert ear.heard == [("m0", "m1"), "run_end"]


def test_providers_default_model_is_used():
    """A configured model has precedence."""
    asked = []

    class Own:
        default_model = "own"

        async def acomplete(self, **request):
            asked.append(request["model"])
            return Message(Role.ASSISTANT, "hi"), None

    Agent([], Own()).run("go")
    Agent([], Own(), AgentConfig(model="chosen")).run("go")
    assert asked == ["", "chosen"]


def test_cached_answer_needs_no_model_call_and_counts_again():
    """The model is called once, and the totals count the usage twice."""
    agent = agent_with("hi", cache=InMemoryCache())
    first, second = agent.run("go"), agent.run("go")
    assert (second.content, len(agent.provider.requests)) == ("hi", 1)
    assert (second.usage, agent.total_tokens) == (first.usage, 4)
    assert second.trace.filter("cache_hit")


def test_sync_tool_runs_in_the_sync_callers_thread():
    """The tool runs as if it had been called directly."""
    threads = []

    @tool
    def where() -> str:
        """Note the thread."""
        threads.append(threading.current_thread())
        return "here"

    agent_with(ToolCall("where"), "done", tools=(where,)).run("go")
    assert threads == [threading.current_thread()]


def test_sync_tool_may_run_a_loop():
    """The tool may also run another agent."""

    @tool
    def nested() -> str:
        """Run another agent and an event loop."""
        return agent_with("inner").run("go").content + asyncio.run(asyncio.sleep(0, " loop"))

    agent = agent_with(ToolCall("nested"), "done", tools=(nested,))
    assert agent.run("go").messages[2].content == "inner loop"


def test_keyboard_interrupt_in_a_tool_reaches_the_caller_and_the_agent_stays_usable():
    """Ctrl+C in a tool interrupts the program as usual."""
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


def test_concurrent_runs_are_independent():
    """One agent serves many runs, each with its own memory."""
    agent = agent_with("one", "two")
    memories = [ConversationMemory(), ConversationMemory()]

    async def both():
        return await asyncio.gather(*(agent.arun("go", memory=memory) for memory in memories))

    results = asyncio.run(both())
    assert {result.content for result in results} == {"one", "two"}
    assert [len(memory.get_history()) for memory in memories] == [2, 2]


def test_keyboard_interrupt_is_reported_as_a_cancellation():
    """Observers receive the same event as for any cancelled run."""

    @tool
    def interrupted() -> str:
        """Raise a KeyboardInterrupt."""
        raise KeyboardInterrupt

    ear = Ear()
    with pytest.raises(KeyboardInterrupt):
        agent_with(ToolCall("interrupted"), tools=(interrupted,), observers=[ear]).run("go")
    assert ear.heard == ["cancelled"]


def test_chunks_are_reported_before_the_end_of_their_call():
    """Chunks of an async tool, which arrive in the loop itself, keep this order too."""
    events = []

    @tool(streaming=True)
    async def stream():
        """Yield pieces."""
        yield "a"
        yield "b"

    class Chunks(AgentObserver):
        def on_tool_chunk(self, run_id, call_id, tool_name, chunk):
            events.append(chunk)

        def on_tool_end(self, run_id, call_id, tool_name, result, duration_ms):
            events.append(result)

    agent_with(ToolCall("stream"), "done", tools=(stream,), observers=[Chunks()]).run("go")
    assert events == ["a", "b", "ab"]


def test_chunks_of_a_sync_tool_are_reported_while_it_runs():
    """In a sync run the tool holds the event loop's thread, and observers still hear of each chunk at once."""
    events = []

    @tool(streaming=True)
    def stream():
        """Yield pieces."""
        for piece in "ab":
            events.append(f"made {piece}")
            yield piece

    class Chunks(AgentObserver):
        def on_tool_chunk(self, run_id, call_id, tool_name, chunk):
            events.append(f"heard {chunk}")

    agent_with(ToolCall("stream"), "done", tools=(stream,), observers=[Chunks()]).run("go")
    assert events == ["made a", "heard a", "made b", "heard b"]


def test_unserializable_arguments_are_reported_unchanged():
    """Reporting to observers never fails a call or a run."""
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


def test_concurrent_changes_of_the_memory_are_kept():
    """Of two runs of one conversation, the one that ends last overwrites nothing."""
    memory = ConversationMemory()

    class Meanwhile(AgentObserver):
        def on_iteration_end(self, run_id, iteration, response):
            memory.notes["seen"] = True

        def on_session_save(self, run_id, session_id, message_count):
            memory.summary = "of the other run"

    config = {
        "session_store": InMemorySessionStore(),
        "session_id": "s",
        "observers": [Meanwhile()],
    }
    agent_with("hi", memory=memory, **config).run("go")
    assert (memory.summary, memory.notes, len(memory.get_history())) == (
        "of the other run",
        {"seen": True},
        2,
    )


def test_every_started_iteration_reports_its_end():
    """A budget, a guardrail and a provider error end an iteration too; a blocked answer is not reported."""
    told: list[tuple[str, int, str]] = []

    class Steps(AgentObserver):
        def on_iteration_start(self, run_id, iteration, messages):
            told.append(("start", iteration, ""))

        def on_iteration_end(self, run_id, iteration, response):
            told.append(("end", iteration, response))

    heard = {"observers": [Steps()]}
    agent_with(ECHO, "never", max_total_tokens=2, **heard).run("go")
    agent_with("a bad word", guardrails=GuardrailsPipeline(output=[Block("bad")]), **heard).run(
        "go"
    )
    agent_with(ValueError("away"), max_retries=0, **heard).run("go")
    ends = [("end", 1, ""), ("end", 2, ""), ("end", 1, ""), ("end", 1, "")]
    assert [each for each in told if each[0] == "end"] == ends
    assert [at for what, at, _ in told if what == "start"] == [at for _, at, _ in ends]


def test_usage_counts_calls_by_tool():
    """Calls of unknown tools count too."""
    agent = agent_with([ECHO, ECHO], ToolCall("nonsense"), "done")
    agent.run("go")
    assert agent.usage.tool_usage == {"echo": 2, "nonsense": 1}
