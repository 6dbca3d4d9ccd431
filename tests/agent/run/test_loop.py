"""Agent loop: the loop ends, the transcript is complete, and errors are results instead of exceptions."""

import asyncio
import dataclasses
import threading

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentResult,
    ConversationMemory,
    Message,
    ProviderError,
    Role,
    ScriptedProvider,
    ToolCall,
    UsageStats,
    tool,
)
from sayso.agent.run.state import NoJournal, RunEnd


@tool
def echo(text: str) -> str:
    """Return the text."""
    return text


@tool
def broken() -> str:
    """Raise an error."""
    raise RuntimeError("disk full")


@tool(terminal=True)
def question() -> str:
    """Ask the user."""
    return "Which one?"


ECHO = ToolCall("echo", {"text": "hi"}, "c1")


def agent_with(lines, tools=(echo, broken, question), **config):
    """Return a scripted agent that notes its pauses in `naps` instead of taking them."""

    async def nap(seconds):
        agent.naps.append(seconds)

    agent = Agent(tools, ScriptedProvider(lines), AgentConfig(**config), sleep=nap)
    agent.naps = []
    return agent


def last_result(agent, request=1):
    """Return the last message of that request."""
    return agent.provider.requests[request].messages[-1]


def test_endless_tool_calls_are_stopped_with_a_message():
    """max_iterations ends the run, and the reply says so."""
    result = agent_with([ECHO] * 9, max_iterations=3).run("go")
    assert (result.iterations, result.stop_reason) == (3, "max_iterations")
    assert "3 steps" in result.content


@pytest.mark.parametrize("id_", ["", "c1"])
def test_calls_of_later_turns_have_ids_of_their_own(id_):
    """Some servers send no ids, or number the calls of each answer. Vendors refuse a history that repeats an id."""
    call = dataclasses.replace(ECHO, id=id_)
    memory = ConversationMemory()
    agent = agent_with([call, "one", call, "two"])
    for text in ("first", "second"):
        agent.run(text, memory=memory)
    ids = [call.id for message in memory.get_history() for call in message.tool_calls]
    assert len(set(ids)) == 2
    assert agent.provider.requests[-1].messages[-1].tool_call_id == ids[-1]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (ToolCall("ecko", {"text": "x"}), "Did you mean 'echo'?"),
        (ToolCall("echo", {"txt": "x"}), "Did you mean 'text'?"),
        (ToolCall("broken"), "disk full"),
    ],
)
def test_model_reads_its_errors(call, told):
    """Unknown tools, invalid arguments and failures are returned as results, and the run continues."""
    agent = agent_with([call, "recovered"])
    assert agent.run("go").content == "recovered"
    assert told in last_result(agent).content


def test_provider_errors_are_retried_with_growing_pauses():
    """The backoff grows with each attempt, a rate limit adds its cooldown, and jitter adds up to a quarter."""
    agent = agent_with([ProviderError("down"), ProviderError("429 rate limit"), "back"])
    assert agent.run("go").content == "back"
    first, second = agent.naps
    assert (1.0 <= first <= 1.25, 12.0 <= second <= 15.0) == (True, True)


def test_last_provider_error_becomes_the_content():
    """The caller gets a result instead of an exception once the retries are used up."""
    result = agent_with([ProviderError("down")] * 3).run("go")
    assert (result.content, result.stop_reason) == ("Provider error: down", "provider_error")


def test_slow_provider_is_an_error():
    """request_timeout also holds for a provider that ignores it."""

    class Silent:
        async def acomplete(self, **request):
            await asyncio.Event().wait()

    config = AgentConfig(request_timeout=0.01, max_retries=0)
    assert "no answer within" in Agent([], Silent(), config).run("go").content


def test_hanging_tool_does_not_block_the_run():
    """After tool_timeout_seconds the model reads of the timeout, although the tool's thread is still busy."""
    release = threading.Event()

    @tool
    def hang() -> str:
        """Wait for the release."""
        release.wait(30)
        return "late"

    agent = agent_with([ToolCall("hang"), "moving on"], [hang], tool_timeout_seconds=0.01)
    assert agent.run("go").content == "moving on"
    assert "may still be running" in last_result(agent).content
    release.set()


def test_parallel_calls_keep_their_order_and_isolate_errors():
    """The first call finishes last and is still listed first; a failed call does not affect the others."""
    second_ran = asyncio.Event()

    @tool
    async def first() -> str:
        """Wait for the second tool."""
        await second_ran.wait()
        return "first"

    @tool
    async def second() -> str:
        """Release the first tool."""
        second_ran.set()
        return "second"

    calls = [ToolCall("first"), ToolCall("broken"), ToolCall("second")]
    result = agent_with([calls, "done"], [first, broken, second]).run("go")
    contents = [message.content for message in result.messages if message.role is Role.TOOL]
    assert (contents[0], contents[2]) == ("first", "second")
    assert "disk full" in contents[1]


def test_calls_run_sequentially_if_configured():
    """The setting is `parallel_tool_execution=False`."""
    seen = []

    @tool
    async def note(n: int) -> str:
        """Note the start and the end."""
        seen.append(("start", n))
        await asyncio.sleep(0)
        seen.append(("end", n))
        return "ok"

    calls = [ToolCall("note", {"n": 1}), ToolCall("note", {"n": 2})]
    agent_with([calls, "done"], [note], parallel_tool_execution=False).run("go")
    assert seen == [("start", 1), ("end", 1), ("start", 2), ("end", 2)]


def test_terminal_tool_ends_the_run():
    """Its result is the content, and the model is not called again."""
    result = agent_with([ToolCall("question")]).run("go")
    assert (result.content, result.stop_reason, result.iterations) == ("Which one?", "terminal", 1)


def test_stop_condition_ends_the_run():
    """The condition receives the tool's name and result."""
    result = agent_with(
        [ECHO], stop_condition=lambda name, text: (name, text) == ("echo", "hi")
    ).run("go")
    assert result.content == "hi"


def test_failed_terminal_tool_does_not_end_the_run():
    """An error is sent to the model and never becomes the reply."""

    @tool(terminal=True)
    def risky() -> str:
        """Raise an error."""
        raise RuntimeError("no")

    assert agent_with([ToolCall("risky"), "sorry"], [risky]).run("go").content == "sorry"


def test_transcript_contains_the_whole_run():
    """It has user, call, result and answer in this order, linked by the call's id."""
    result = agent_with([ECHO, "done"]).run("go")
    assert [message.role for message in result.messages] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
    ]
    assert result.messages[2].tool_call_id == "c1"
    assert result.tool_calls == (ECHO,)
    assert result.usage == UsageStats(2, 2, 4, model="gpt-5-mini", provider="scripted")


def test_memory_is_carried_from_turn_to_turn():
    """The second run sees the first."""
    agent = agent_with(["hello Ada", "Ada"])
    memory = ConversationMemory()
    agent.run("I am Ada", memory=memory)
    agent.run("who am I?", memory=memory)
    assert [message.content for message in agent.provider.requests[1].messages] == [
        "I am Ada",
        "hello Ada",
        "who am I?",
    ]


def test_agent_without_memory_starts_each_run_empty():
    """Each run starts with its own message only."""
    agent = agent_with(["one", "two"])
    agent.run("a")
    agent.run("b")
    assert len(agent.provider.requests[1].messages) == 1


def test_crashed_run_does_not_change_the_memory():
    """An error of the journal is raised, and the memory keeps complete exchanges only."""

    class Lost(NoJournal):
        async def next_answer(self):
            raise ZeroDivisionError

    memory = ConversationMemory()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(agent_with([ECHO]).arun("go", memory=memory, journal=Lost()))
    assert memory.get_history() == []


def test_bug_in_the_provider_becomes_a_result():
    """Any exception of a custom provider ends the run with a result."""
    result = agent_with([ECHO, KeyError("choices")], max_retries=0).run("go")
    assert (result.content, result.stop_reason) == (
        "Provider error: KeyError: 'choices'",
        "provider_error",
    )


def test_selector_limits_the_callable_tools():
    """A tool that was not selected is neither shown nor callable in that step."""

    class OnlyEcho:
        async def select(self, messages, tools):
            return [tool for tool in tools if tool.name == "echo"]

    agent = Agent(
        [echo, question], ScriptedProvider([ToolCall("question"), "no"]), selector=OnlyEcho()
    )
    assert agent.run("go").content == "no"
    assert [schema["name"] for schema in agent.provider.requests[0].tools] == ["echo"]
    assert "Unknown tool" in last_result(agent).content


@pytest.mark.parametrize("door", ["run", "ask", "__call__"])
def test_sync_methods_work_inside_a_running_loop(door):
    """Notebooks and web handlers may call them."""

    async def outer():
        return getattr(agent_with(["fine"]), door)("go")

    assert asyncio.run(outer()).content == "fine"


@pytest.mark.parametrize("method", ["complete", "stream", "astream"])
def test_provider_needs_only_one_method(method):
    """A vendor adapter implements the methods that its vendor supports."""

    class Completing:
        def complete(self, **request):
            return Message(Role.ASSISTANT, "hello"), UsageStats()

    class Streaming:
        def stream(self, **request):
            yield from ("hel", "lo", UsageStats(1, 2, 3))

    class StreamingAsync:
        async def astream(self, **request):
            for part in ("hel", "lo"):
                yield part

    provider = {"complete": Completing, "stream": Streaming, "astream": StreamingAsync}[method]()
    assert Agent([], provider).run("go").content == "hello"


def test_streamed_tool_call_runs():
    """A stream yields complete tool calls between its text."""

    class Streaming:
        def stream(self, *, messages, **request):
            yield "bye" if messages[-1].role is Role.TOOL else ECHO

    result = Agent([echo], Streaming()).run("go")
    assert (result.content, result.tool_calls) == ("bye", (ECHO,))


def test_object_without_a_provider_method_is_an_error():
    """The error names the methods."""
    result = Agent([], object()).run("go")
    assert (result.stop_reason, "give it complete, acomplete" in result.content) == (
        "provider_error",
        True,
    )


def test_two_tools_with_one_name_are_refused():
    """Otherwise it would be unclear which one runs."""
    other = tool(name="echo")(question.function)
    with pytest.raises(Exception, match="two tools are called 'echo'"):
        Agent([echo, other])


@pytest.mark.parametrize("setting", [{"max_iterations": 0}, {"max_retries": -1}])
def test_settings_without_any_model_call_are_refused(setting):
    """The error at startup names the setting."""
    with pytest.raises(ValueError, match=next(iter(setting))):
        AgentConfig(**setting)


def test_message_round_trips_through_json():
    """The history stores messages as dicts without empty fields."""
    message = Message(Role.ASSISTANT, tool_calls=(ECHO,))
    assert message.to_dict() == {
        "role": "assistant",
        "tool_calls": ({"tool_name": "echo", "parameters": {"text": "hi"}, "id": "c1"},),
    }
    assert Message.from_dict(message.to_dict()) == message


def test_end_of_a_run_has_the_first_fields_of_its_result():
    """A result is created from the values of its end, by position."""
    fields = [each.name for each in dataclasses.fields(AgentResult)]
    assert list(RunEnd._fields) == fields[: len(RunEnd._fields)]
    assert all(
        getattr(AgentResult("x"), name) == value for name, value in RunEnd._field_defaults.items()
    )
