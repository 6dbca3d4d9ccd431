"""The seed's page about the agent, run here as documented: its methods, its settings and its loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import fields

import pytest

import sayso.agent as room
from sayso.agent import (
    Agent,
    AgentConfig,
    AgentResult,
    ConversationMemory,
    FallbackProvider,
    InMemoryCache,
    LocalProvider,
    OpenAIProvider,
    ProviderConfigurationError,
    ProviderError,
    Role,
    ScriptedProvider,
    StreamChunk,
    ToolCall,
    tool,
)
from tests.agent.listening import (
    SEARCH,
    Heard,
    Streaming,
    collected,
    every_door,
    fails,
    search,
    user,
)

#: The fields of the seed's AgentConfig, with its defaults.
DEFAULTS = {
    "model": "gpt-5-mini",
    "temperature": 0.0,
    "max_tokens": 1000,
    "max_iterations": 6,
    "max_retries": 2,
    "retry_backoff_seconds": 1.0,
    "rate_limit_cooldown_seconds": 5.0,
    "request_timeout": 30.0,
    "tool_timeout_seconds": None,
    "cost_warning_threshold": None,
    "verbose": False,
    "enable_analytics": False,
    "hooks": None,
    "routing_only": False,
    "parallel_tool_execution": True,
    "stream": False,
    "cache": None,
    "tool_policy": None,
    "confirm_action": None,
    "approval_timeout": 60.0,
    "session_store": None,
    "session_id": None,
    "summarize_on_trim": False,
    "summarize_provider": None,
    "summarize_model": None,
    "summarize_max_tokens": 150,
    "entity_memory": None,
    "knowledge_graph": None,
    "knowledge_memory": None,
}
#: Fields for which the page gives no default.
UNTOLD = {
    "name": "agent",
    "parent_run_id": None,
    "stop_condition": None,
    "observers": (),
    "trace_metadata": {},
}

#: The seed's four patterns.
PATTERNS = {
    "production": {
        "model": "gpt-4o-mini", "temperature": 0.0, "max_tokens": 2000, "max_iterations": 10, "max_retries": 3,
        "retry_backoff_seconds": 2.0, "rate_limit_cooldown_seconds": 10.0, "request_timeout": 60.0,
        "tool_timeout_seconds": 30.0, "cost_warning_threshold": 0.50, "verbose": False, "enable_analytics": True,
    },
    "production with caching": {
        "model": "gpt-4o-mini", "temperature": 0.0, "cache": InMemoryCache(max_size=2000, default_ttl=600),
        "max_retries": 3, "cost_warning_threshold": 0.50,
    },
    "development": {"model": "gpt-4o", "verbose": True, "max_iterations": 3, "stream": True},
    "budget-conscious": {
        "model": "gpt-4o-mini", "max_tokens": 500, "max_iterations": 3, "cost_warning_threshold": 0.01,
    },
}  # fmt: skip


@tool
def divide(a: float, b: float) -> str:
    """Divide two numbers."""
    if b == 0:
        raise ValueError("Cannot divide by zero")
    return str(a / b)


def test_missing_key_is_named_when_the_provider_is_constructed(monkeypatch):
    """Pitfall 1: the error does not wait for the first request."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ProviderConfigurationError, match="OPENAI_API_KEY"):
        OpenAIProvider()


@pytest.mark.parametrize("given", ["environment", "argument"])
def test_key_comes_from_the_environment_or_an_argument(monkeypatch, given):
    """Pitfall 1: the page shows both ways."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1" if given == "environment" else "")
    assert OpenAIProvider(**({"api_key": "sk-1"} if given == "argument" else {}))


def test_tool_that_always_fails_is_limited_by_max_iterations():
    """Pitfall 2: the default of six steps is safe."""
    provider = ScriptedProvider([ToolCall("fails", {"query": str(number)}) for number in range(99)])
    result = Agent([fails], provider).run("go")
    assert (len(provider.requests), result.stop_reason) == (6, "max_iterations")


def test_model_reads_why_a_tool_raised():
    """Pitfall 3: the run continues, and the model reads the tool's own text."""
    provider = ScriptedProvider([ToolCall("divide", {"a": 1, "b": 0}), "One cannot."])
    assert Agent([divide], provider).run("1 / 0?").content == "One cannot."
    assert "Cannot divide by zero" in provider.requests[1].messages[-1].content


def test_final_provider_failure_reaches_observers_and_the_caller():
    """Final failure: the content says so, `on_error` receives the error, and nothing is raised."""
    heard = Heard()
    error = ProviderError("down")
    result = Agent(
        [], ScriptedProvider([error]), AgentConfig(max_retries=0, observers=[heard])
    ).run("go")
    assert result.content == "Provider error: down"
    assert heard.of("error") == [(error, {"iteration": 1})]
    assert heard.names[-1] == "run_end"


@pytest.mark.parametrize(
    "given", [{"messages": [{"role": "user"}]}, {"messages": "go", "response_format": 42}]
)
def test_invalid_arguments_raise(given):
    """Loop termination 3: a run raises only what `arun` documents."""
    with pytest.raises(TypeError, match="give a"):
        Agent([], LocalProvider()).run(**given)


def test_constructor_has_the_parameters_of_the_page():
    """`Agent(tools, provider, config, memory)`: each parameter is optional, in this order."""
    assert list(inspect.signature(Agent).parameters)[:4] == [
        "tools",
        "provider",
        "config",
        "memory",
    ]
    assert Agent(
        tools=[search], provider=LocalProvider(), config=AgentConfig(), memory=ConversationMemory()
    )


def test_agent_has_a_name_and_is_callable():
    """Named agents for multi-agent systems: the default name is "agent"."""
    researcher = Agent(
        tools=[search], provider=ScriptedProvider(["Found."]), config=AgentConfig(name="researcher")
    )
    assert (researcher.name, Agent([], LocalProvider()).name) == ("researcher", "agent")
    assert researcher("Find info about Python").content == "Found."


def test_ask_takes_a_single_sentence():
    """`ask` and `aask` return the answer."""
    agent = Agent([], ScriptedProvider(["one", "two"]))
    assert agent.ask("a?").content == "one"
    assert asyncio.run(agent.aask("b?")).content == "two"


def test_attributes_are_those_of_the_page():
    """Key attributes: an agent exposes its constructor arguments and its counters."""
    provider, config, memory = (
        LocalProvider(),
        AgentConfig(enable_analytics=True),
        ConversationMemory(),
    )
    agent = Agent([search], provider, config, memory)
    assert (agent.provider, agent.config, agent.memory, agent.tools) == (
        provider,
        config,
        memory,
        [search],
    )
    assert "search" in agent.prompt_builder.build(agent.tools)
    assert agent.parser.parse("hello").tool_call is None
    assert (agent.usage.total_tokens, agent.analytics) == (0, agent.get_analytics())


def test_agent_has_no_mixins():
    """The issue decides on "Mixin Decomposition": Agent is one class without bases."""
    assert Agent.__mro__ == (Agent, object)


@every_door
def test_all_methods_run_the_same_loop(door):
    """The issue decides on "Implementation Differences": each method goes through the same steps."""
    heard = Heard()
    result = door(
        Agent([search], ScriptedProvider([SEARCH, "done"]), AgentConfig(observers=[heard])), "go"
    )
    assert (len(heard.names), result.content, result.iterations) == (15, "done", 2)


def test_result_has_the_fields_of_the_issue():
    """The result has the fields from `content` to `tool_calls`."""
    assert {field.name for field in fields(AgentResult)} >= {
        "content", "artifacts", "parsed", "reasoning", "reasoning_history", "iterations", "trace", "usage",
        "provider_used", "tool_calls",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("door", "parameters"),
    [
        ("run", ["messages", "stream_handler", "response_format", "parent_run_id"]),
        ("arun", ["messages", "stream_handler", "response_format", "parent_run_id"]),
        ("astream", ["messages", "response_format", "parent_run_id"]),
    ],
)
def test_methods_have_the_parameters_of_the_page(door, parameters):
    """They have its order and its defaults of None; further parameters are keyword-only.

    Only a run that goes on after a pause needs no messages.
    """
    given = list(inspect.signature(getattr(Agent, door)).parameters.values())[1:]
    plain = [each for each in given if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert [each.name for each in plain] == parameters
    assert [each.default for each in plain] == [(), *[None] * (len(parameters) - 1)]


@every_door
@pytest.mark.parametrize("messages", ["Hello", [user("Hello")]])
def test_messages_are_a_string_or_a_list(door, messages):
    """`messages` is a str or a list of Message."""
    result = door(Agent([], LocalProvider()), messages)
    assert result.content.endswith("Hello")
    assert result.messages[0] == user("Hello")


def test_stream_handler_receives_the_chunks():
    """`stream_handler` works in `run` and `arun`."""
    for door in (Agent.run, Agent.arun):
        pieces = []
        answer = door(Agent([], Streaming(["Hel", "lo"])), "hi", stream_handler=pieces.append)
        result = asyncio.run(answer) if inspect.isawaitable(answer) else answer
        assert (pieces, result.content) == (["Hel", "lo"], "Hello")


def test_run_is_linked_to_its_parent():
    """The `parent_run_id` of a run overrides the one in the config."""
    agent = Agent([], LocalProvider(), AgentConfig(parent_run_id="outer"))
    assert agent.run("hi").trace.parent_run_id == "outer"
    assert agent.run("hi", parent_run_id="other").trace.parent_run_id == "other"


@pytest.mark.parametrize("name", [*DEFAULTS, *UNTOLD])
def test_settings_have_the_defaults_of_the_page(name):
    """Each field has the documented default."""
    assert getattr(AgentConfig(), name) == (DEFAULTS | UNTOLD)[name]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_of_the_page_are_valid_configurations(pattern):
    """The config keeps every value of the pattern."""
    config = AgentConfig(**PATTERNS[pattern])
    assert {name: getattr(config, name) for name in PATTERNS[pattern]} == PATTERNS[pattern]
    assert Agent([search], LocalProvider(), config).config is config


def test_settings_reach_the_provider():
    """The request has model, temperature, max_tokens, request_timeout, system prompt, messages and tools."""
    provider = ScriptedProvider(["hi"])
    config = AgentConfig(model="gpt-4o-mini", temperature=0.5, max_tokens=500, request_timeout=60.0)
    Agent([search], provider, config).run("hello")
    (asked,) = provider.requests
    assert (asked.model, asked.temperature, asked.max_tokens, asked.timeout) == (
        "gpt-4o-mini",
        0.5,
        500,
        60.0,
    )
    assert (asked.system_prompt, asked.messages) == (config.system_prompt, (user("hello"),))
    assert [schema["name"] for schema in asked.tools] == ["search"]


def test_streamed_reply_is_printed(capsys):
    """`stream=True` prints the response live."""
    Agent([], Streaming(["Hel", "lo"]), AgentConfig(stream=True)).run("hi")
    assert capsys.readouterr().out == "Hello"


def test_verbose_prints_tokens_costs_and_calls(capsys):
    """Best practice 3: the output has all three."""
    Agent([search], ScriptedProvider([SEARCH, "done"]), AgentConfig(verbose=True, model="m")).run(
        "go"
    )
    printed = capsys.readouterr().out
    for words in (
        "[agent] m: 1 + 1 tokens, $0.000000",
        "search(query='Python')",
        "3 tutorials on Python",
    ):
        assert words in printed


def test_costs_above_the_threshold_are_logged_once(caplog):
    """Best practice 4: `cost_warning_threshold` is in USD."""
    config = AgentConfig(model="m", prices={"m": (1_000_000, 0)}, cost_warning_threshold=1.5)
    agent = Agent([], ScriptedProvider(["a", "b", "c"]), config)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            agent.run("go")
    assert [record.getMessage() for record in caplog.records] == ["agent.cost_warning"]


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_max_iterations_limits_model_calls(limit):
    """Best practice 1: the limit suits single-shot, quick and complex runs."""
    calls = [ToolCall("search", {"query": str(number)}) for number in range(20)]
    provider = ScriptedProvider(calls)
    assert (
        Agent([search], provider, AgentConfig(max_iterations=limit)).run("go").iterations == limit
    )
    assert len(provider.requests) == limit


def test_routing_only_selects_a_tool_and_runs_nothing():
    """`routing_only` returns the selected tool and its arguments."""
    provider = ScriptedProvider([ToolCall("fails", {"query": "x"})])
    result = Agent([fails], provider, AgentConfig(routing_only=True)).run("go")
    assert (result.stop_reason, result.tool_name, result.tool_args) == (
        "routing",
        "fails",
        {"query": "x"},
    )
    assert len(result.messages) == 2


def test_run_goes_through_the_states_of_the_page():
    """The states are start, history, step, model, tool, result, step, model, answer and end."""
    heard = Heard()
    Agent([search], ScriptedProvider([SEARCH, "done"]), AgentConfig(observers=[heard])).run("go")
    assert [name for name in heard.names if name != "usage"] == [
        "run_start",
        "iteration_start", "llm_start", "llm_end", "policy_decision", "tool_start", "tool_end", "iteration_end",
        "iteration_start", "llm_start", "llm_end", "iteration_end",
        "run_end",
    ]  # fmt: skip


def test_first_run_of_the_page():
    """Initialization, Run Method Entry, Tool Execution: two tool steps lead to an answer."""
    script = [SEARCH, ToolCall("divide", {"a": 4, "b": 2}), "Python is found, and it is 2."]
    agent = Agent(
        tools=[search, divide],
        provider=ScriptedProvider(script),
        config=AgentConfig(max_iterations=6),
        memory=ConversationMemory(max_messages=20),
    )
    response = agent.run([user("Search for Python and calculate 4/2")])
    assert (response.content, response.iterations) == ("Python is found, and it is 2.", 3)
    assert [call.tool_name for call in response.tool_calls] == ["search", "divide"]


def test_call_and_result_are_in_the_transcript_and_the_memory():
    """History Management: the assistant's message and the tool's message, with the tool's name, are in both."""
    memory = ConversationMemory()
    result = Agent([search], ScriptedProvider([SEARCH, "done"]), memory=memory).run("go")
    said, called, told, answer = result.messages
    assert [said.role, called.role, told.role, answer.role] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
    ]
    assert (called.tool_calls, told.tool_name, told.content) == (
        (SEARCH,),
        "search",
        "3 tutorials on Python",
    )
    assert memory.get_history() == list(result.messages)


def test_unknown_tool_is_answered_with_the_available_ones():
    """Validation Flow 2: the loop continues."""
    provider = ScriptedProvider([ToolCall("find", {}), "sorry"])
    assert Agent([search, divide], provider).run("go").content == "sorry"
    assert "Unknown tool 'find'. Available: " in provider.requests[1].messages[-1].content
    assert "['search', 'divide']" in provider.requests[1].messages[-1].content


def test_invalid_parameters_are_answered_with_the_error():
    """Validation Flow 3: the tool does not run, and the model corrects its call."""
    provider = ScriptedProvider([ToolCall("search", {"text": "Python"}), SEARCH, "done"])
    result = Agent([search], provider).run("go")
    assert "query" in provider.requests[1].messages[-1].content
    assert (result.content, provider.requests[2].messages[-1].content) == (
        "done",
        "3 tutorials on Python",
    )


def test_model_without_native_tools_uses_text_calls():
    """Tool Selection Process: the prompt has the contract and the schemas, and a TOOL_CALL runs."""

    class Writer(ScriptedProvider):
        supports_tools = False

    text = 'TOOL_CALL\n{"tool_name": "search", "parameters": {"query": "Python"}}'
    provider = Writer([text, "3 of them."])
    result = Agent([search], provider).run("Search for Python tutorials")
    assert (result.content, result.tool_calls[0].parameters) == ("3 of them.", {"query": "Python"})
    assert "TOOL_CALL" in provider.requests[0].system_prompt
    assert '"name": "search"' in provider.requests[0].system_prompt


@every_door
def test_async_tools_are_awaited(door):
    """Async Tool Support: `is_async` is detected."""

    @tool(description="Fetch data from API")
    async def fetch_data(url: str) -> str:
        await asyncio.sleep(0)
        return f"text of {url}"

    assert fetch_data.is_async
    result = door(
        Agent([fetch_data], ScriptedProvider([ToolCall("fetch_data", {"url": "x"}), "done"])), "go"
    )
    assert result.messages[2].content == "text of x"


def test_chunks_of_a_streaming_tool_are_reported():
    """Tool Execution: the chunk callback receives each chunk of a streaming tool."""

    @tool(streaming=True)
    def count(to: int):
        """Count."""
        yield from map(str, range(to))

    heard = Heard()
    provider = ScriptedProvider([ToolCall("count", {"to": 3}, "c1"), "done"])
    agent = Agent([count], provider, AgentConfig(observers=[heard]))
    assert agent.run("go").messages[2].content == "012"
    assert heard.of("tool_chunk") == [
        ("c1", "count", "0"),
        ("c1", "count", "1"),
        ("c1", "count", "2"),
    ]


def test_stream_yields_chunks_and_then_the_result():
    """`astream` is read as on the page."""

    async def read(said=""):
        async for item in Agent([], Streaming(["Hel", "lo"])).astream([user("Search for Python")]):
            if isinstance(item, StreamChunk):
                said += item.content
            elif isinstance(item, AgentResult):
                result = item
        return said, result

    said, result = asyncio.run(read())
    assert (said, result.content, result.iterations) == ("Hello", "Hello", 1)


def test_streamed_run_uses_tools():
    """How It Works: text deltas are yielded, calls run, and the result is complete."""
    provider = Streaming(["I look. ", SEARCH], ["3 of ", "them."])
    *chunks, result = asyncio.run(collected(Agent([search], provider).astream("go")))
    assert [chunk.content for chunk in chunks] == ["I look. ", "3 of ", "them."]
    assert (result.content, result.reasoning, result.tool_calls) == (
        "3 of them.",
        "I look. ",
        (SEARCH,),
    )
    assert result.reasoning_history == ["I look. ", ""]


@pytest.mark.parametrize("method", ["acomplete", "complete"])
def test_provider_without_streaming_yields_one_chunk(method):
    """Fallback Behavior: the API is the same for all providers."""

    class Whole:
        pass

    setattr(Whole, method, getattr(LocalProvider, method))
    chunk, result = asyncio.run(collected(Agent([], Whole()).astream("hello")))
    assert chunk == StreamChunk(result.content)


@pytest.mark.parametrize("vendor", ["OpenAI", "Anthropic", "Gemini", "Ollama", "Local", "Fallback"])
def test_every_built_in_provider_streams(vendor):
    """Provider Protocol: text is yielded as it comes, and calls once they are complete."""
    assert callable(getattr(room, f"{vendor}Provider").astream)


def test_batch_answers_in_the_order_of_its_prompts():
    """`batch` and `abatch` keep the order, and `on_progress` counts finished prompts."""
    prompts, progress = ["Cancel my sub", "How do I upgrade?", "Payment failed"], []
    agent = Agent([], LocalProvider())
    results = agent.batch(
        prompts, max_concurrency=5, on_progress=lambda *done: progress.append(done)
    )
    assert [result.content.partition("] ")[2] for result in results] == prompts
    assert progress == [(1, 3), (2, 3), (3, 3)]
    again = asyncio.run(agent.abatch(prompts, max_concurrency=10))
    assert [result.content for result in again] == [result.content for result in results]


def test_failing_prompt_does_not_affect_the_others():
    """Per-request error isolation: the other prompts are answered."""

    class Picky(LocalProvider):
        def complete(self, **request):
            if "bad" in request["messages"][-1].content:
                raise ProviderError("no")
            return super().complete(**request)

    results = Agent([], Picky(), AgentConfig(max_retries=0)).batch(["good", "bad", "fine"])
    assert [result.stop_reason for result in results] == ["answer", "provider_error", "answer"]


def test_batch_respects_max_concurrency():
    """No more runs than `max_concurrency` are active at once."""
    running, most = 0, 0

    class Counting(LocalProvider):
        async def acomplete(self, **request):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return self.complete(**request)

    Agent([], Counting()).batch([str(number) for number in range(9)], max_concurrency=2)
    assert most == 2


def test_batch_has_a_response_format():
    """The format applies to each prompt."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    results = Agent([], ScriptedProvider(['{"n": 1}', '{"n": 2}'])).batch(
        ["a", "b"], response_format=schema
    )
    assert sorted(result.parsed["n"] for result in results) == [1, 2]


def test_concurrent_questions_share_one_agent():
    """Performance 1 and 2: the agent is reused and called concurrently."""
    agent = Agent([], LocalProvider())

    async def process(queries):
        return await asyncio.gather(*[agent.arun([user(query)]) for query in queries])

    results = asyncio.run(process(["a", "b", "c"]))
    assert [result.content[-1] for result in results] == ["a", "b", "c"]
    assert [agent.run([user(query)]).content[-1] for query in "xy"] == ["x", "y"]


def test_usage_is_summed_and_can_be_reset():
    """Usage Tracking Convenience Methods, and best practice 5: the totals cover all runs until the reset."""
    agent = Agent(
        [], ScriptedProvider(["a", "b"]), AgentConfig(model="m", prices={"m": (500_000, 500_000)})
    )
    agent.run("go")
    agent.run("go")
    assert (agent.total_cost, agent.total_tokens) == (2.0, 4)
    assert agent.get_usage_summary() == str(agent.usage)
    assert "2.000000" in agent.get_usage_summary()
    agent.reset_usage()
    assert (agent.total_cost, agent.total_tokens) == (0.0, 0)


def test_result_has_the_usage_and_the_provider_of_its_run():
    """AgentResult has `usage` and `provider_used`."""
    result = Agent([search], ScriptedProvider([SEARCH, "done"])).run("go")
    assert (result.usage.total_tokens, result.provider_used) == (4, "scripted")


def test_analytics_count_tools_where_enabled():
    """Best practice 7: without the setting, `get_analytics` returns None."""
    provider = ScriptedProvider([SEARCH, ToolCall("fails", {"query": "x"}), "done"])
    agent = Agent([search, fails], provider, AgentConfig(enable_analytics=True))
    agent.run("go")
    assert "search: 1 calls, 100% succeeded" in agent.get_analytics().summary()
    assert "fails: 1 calls, 0% succeeded" in agent.get_analytics().summary()
    assert Agent([search], provider).get_analytics() is None


def test_analytics_count_chunks_and_parameters_without_observers():
    """The figures do not depend on observers."""

    @tool(streaming=True)
    def count(to: int):
        """Count."""
        yield from map(str, range(to))

    agent = Agent(
        [count],
        ScriptedProvider([ToolCall("count", {"to": 3}), "done"]),
        AgentConfig(enable_analytics=True),
    )
    agent.run("go")
    figures = agent.get_analytics().get_metrics("count")
    assert (figures.total_chunks, figures.calls_with_parameters) == (3, 1)


def test_fallback_uses_the_next_provider():
    """Provider Fallback: the circuit breaker has the parameters of the page."""
    skipped = []
    down, local = ScriptedProvider([ProviderError("down")]), LocalProvider()
    provider = FallbackProvider(
        providers=[down, local],
        max_failures=3,
        cooldown_seconds=60,
        on_fallback=lambda name, error: skipped.append((name, str(error))),
    )
    result = Agent(tools=[search], provider=provider).run("hello")
    assert (result.provider_used, skipped) == ("local", [("ScriptedProvider", "down")])


def test_fallback_has_the_methods_and_defaults_of_the_page():
    """It has the full protocol, and defaults of three failures and one minute."""
    parameters = inspect.signature(FallbackProvider).parameters
    assert list(parameters)[:4] == ["providers", "max_failures", "cooldown_seconds", "on_fallback"]
    assert [parameters[name].default for name in ("max_failures", "cooldown_seconds")] == [3, 60]
    assert all(
        callable(getattr(FallbackProvider, door))
        for door in ("complete", "acomplete", "stream", "astream")
    )


def test_local_provider_needs_no_vendor():
    """Unit testing: the page's own example runs."""
    agent = Agent(
        tools=[search],
        provider=LocalProvider(),
        config=AgentConfig(max_iterations=2, model="local"),
    )
    assert agent.run([user("test")]).content == "[local provider: local] test"
