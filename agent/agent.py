"""Agent: a language model with tools, as a program uses it. This is the door to `agent/`.

A *run* answers one request: the model is asked, its tool calls run, the model reads their results,
and so on until it answers in text. `run/loop.py` is that loop. The methods here only prepare a
RunRequest for it: `arun` and `run` (one request), `astream` (its text while it arrives), `abatch`
and `batch` (many requests), and `as_tool` (this agent as a tool of another one).

A bot on a channel has a ChannelAgent in front (`channel/channel_agent.py`), which settles pending
actions first.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from sayso.agent.config import AgentConfig, DecisionLog
from sayso.agent.decisions import Decision, RunSnapshot
from sayso.agent.guards.policy import check_injected
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.knowledge import KnowledgeMemory
from sayso.agent.memory.sessions import Session
from sayso.agent.messages import Message
from sayso.agent.observability.builtin import VerboseObserver, hooks_observer
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.run_events import RunEvents
from sayso.agent.observability.usage import AgentAnalytics, AgentUsage
from sayso.agent.providers.base import Provider
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.result import AgentResult, StreamChunk
from sayso.agent.run.cancellation import CancellationToken
from sayso.agent.run.inner_agent import InnerAgent
from sayso.agent.run.loop import AgentLoop
from sayso.agent.run.model_call import ModelCaller, Sleep
from sayso.agent.run.pause import RunCounts
from sayso.agent.run.state import (
    Journal,
    NoJournal,
    RunRequest,
    RunTextListener,
    to_messages,
    with_paused_run,
)
from sayso.agent.run.structured import ResponseFormat
from sayso.agent.run.text_tools import (
    PromptBuilder,
    TextToolProvider,
    ToolCallParser,
    needs_text_tools,
)
from sayso.agent.tools.registry import ToolRegistry, Toolset
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import ToolSelector, would_show
from sayso.infra.concurrency import gather_all, run_sync
from sayso.pending.error_texts import error_text

#: Called with the number of finished prompts and the number of all prompts.
OnProgress = Callable[[int, int], Any]
#: Receives the text of a reply while it arrives.
StreamHandler = Callable[[str], Any]


class Agent:
    """A language model with tools and settings. Lives as long as its program.

    One agent serves many runs at the same time, from any thread: the state of a run is in the run.
    What all runs share is `usage` and `analytics`, which add up, and `memory`.

    Args:
        tools: What the model may call. With a registry, or anything else with `all()`, the tools
            are read again at each step of a run, so that they may change.
        provider: The vendor's model. None: the OfflineProvider, which needs no model. A provider
            without tool calls is used through text, with `prompt_builder` and `parser`.
        config: The settings of all runs. None: the defaults.
        memory: The agent's own conversation, which its runs read and continue. None: each run
            begins without a history. A memory given to `arun` replaces it for that run.
        selector: Which of the tools the model is shown at each step. None: all of them.
        prompt_builder: What writes the system prompt of a provider without tool calls.
        parser: What finds the calls in the text of such a provider.
        sleep: Waits this many seconds before a failed model call is repeated.
    """

    def __init__(
        self,
        tools: Iterable[Tool] | Toolset = (),
        provider: Provider | None = None,
        config: AgentConfig | None = None,
        memory: ConversationMemory | None = None,
        selector: ToolSelector | None = None,
        *,
        prompt_builder: PromptBuilder | None = None,
        parser: ToolCallParser | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.config = config or AgentConfig()
        self.prompt_builder = prompt_builder or PromptBuilder()
        self.parser = parser or ToolCallParser()
        self.usage = AgentUsage()
        self.analytics: AgentAnalytics | None = None
        if self.config.enable_analytics:
            self.analytics = AgentAnalytics()

        toolset: Toolset
        if isinstance(tools, Toolset):
            toolset = tools
        else:
            toolset = ToolRegistry(tools)
        if self.config.knowledge_memory is not None:
            toolset = _ToolsetWithMemory(toolset, self.config.knowledge_memory)
        self._toolset = toolset
        if self.config.tool_policy is not None:
            # A rule over an injected argument would deny nothing, and no run would show that.
            check_injected(self.config.tool_policy, self._toolset.all())

        #: None if none was given. Then a provider without tool calls gets no base instructions
        #: above the system prompt of the settings.
        self._given_prompt_builder = prompt_builder
        self._observers = _all_observers(self.config)
        self._sleep = sleep
        self._session: Session | None = None
        if self.config.session_store is not None and self.config.session_id is not None:
            self._session = Session(self.config.session_store, self.config.session_id)
        self._provider: Provider = provider or OfflineProvider()
        self._selector = selector
        self._loop = self._create_loop(memory)

    def _create_loop(self, memory: ConversationMemory | None) -> AgentLoop:
        """Return a loop for the present provider and selector. A change of either needs a new one."""
        provider = self._provider
        config = self.config.for_provider(provider)

        called = provider
        if isinstance(provider, OfflineProvider):
            called = provider.with_hidden_tools(self._hidden_tools)
        elif needs_text_tools(provider):
            called = TextToolProvider(provider, self.parser, self._given_prompt_builder)
        return AgentLoop(
            self._toolset,
            provider,
            config=config,
            model_caller=ModelCaller(called, config, self.usage, sleep=self._sleep),
            selector=self._selector,
            observers=self._observers,
            analytics=self.analytics,
            memory=memory,
            session=self._session,
        )

    async def _hidden_tools(self) -> list[dict[str, Any]]:
        """Return the tools that the policy or the user's role forbids to the current user.

        The offline provider compares a request with their names and descriptions, to refuse it
        instead of calling a similar tool. So the schemas need no parameters.
        """
        policy = self.config.tool_policy
        hidden = []
        for tool in self.tools:
            is_denied = policy is not None and policy.unconditional_denial(tool.name) is not None
            if is_denied or await would_show(self._selector, tool) == "hidden":
                schema = {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": {"properties": {}},
                }
                hidden.append(schema)
        return hidden

    @property
    def name(self) -> str:
        """Return the configured name."""
        return self.config.name

    @property
    def provider(self) -> Provider:
        """Return the model provider. A new one is used by runs that begin after the change."""
        return self._provider

    @provider.setter
    def provider(self, provider: Provider) -> None:
        self._provider = provider
        self._loop = self._create_loop(self.memory)

    @property
    def selector(self) -> ToolSelector | None:
        """Return what selects the tools that the model is shown; None shows all."""
        return self._selector

    @selector.setter
    def selector(self, selector: ToolSelector | None) -> None:
        self._selector = selector
        self._loop = self._create_loop(self.memory)

    @property
    def tools(self) -> list[Tool]:
        """Return the current tools. Those of a registry may change."""
        return self._toolset.all()

    @property
    def memory(self) -> ConversationMemory | None:
        """Return the agent's own conversation; with a session, the one that was read last."""
        return self._loop.memory

    @memory.setter
    def memory(self, memory: ConversationMemory | None) -> None:
        self._loop.memory = memory

    @property
    def total_cost(self) -> float:
        """Return the cost of all runs in US dollars."""
        return self.usage.total_cost_usd

    @property
    def total_tokens(self) -> int:
        """Return the tokens of all runs."""
        return self.usage.total_tokens

    def get_usage_summary(self) -> str:
        """Return the usage of all runs as text."""
        return str(self.usage)

    def reset_usage(self) -> None:
        """Set the usage to zero."""
        self.usage.reset()

    def get_analytics(self) -> AgentAnalytics | None:
        """Return how often each tool was called, and how; None without `enable_analytics`."""
        return self.analytics

    def reset(self) -> None:
        """Delete the agent's own conversation with its summary and its session.

        Usage and analytics are kept. Raises SessionError if the session cannot be deleted.
        """
        if self.memory is not None:
            self.memory.clear()
        if self._session is not None:
            self._session.delete()

    async def arun(
        self,
        messages: str | Sequence[Message] = (),
        stream_handler: StreamHandler | None = None,
        response_format: ResponseFormat | None = None,
        parent_run_id: str | None = None,
        *,
        memory: ConversationMemory | None = None,
        journal: Journal | None = None,
        scope: str = "",
        cancellation_token: CancellationToken | None = None,
        paused: RunSnapshot | RunCounts | None = None,
        decisions: Mapping[str, Decision] | None = None,
    ) -> AgentResult:
        """Answer the messages. The memory is updated only when the run is complete.

        Args:
            messages: The request: a text, or messages whose last one asks. Empty only with
                `paused`.
            stream_handler: Receives the text while it arrives.
            response_format: The form of the answer: a pydantic model or a JSON Schema. `parsed` of
                the result has the answer in that form.
            parent_run_id: The id of the run that this one is a part of, for traces.
            memory: The conversation that this run reads and continues, in place of the agent's own.
            journal: The record of an interrupted attempt at this request. The run continues where
                that attempt ended, so that no call runs twice.
            scope: Whose knowledge may be read and written; "" is knowledge without an owner.
                Inside a tool, "" is the scope of the run that called the tool.
            cancellation_token: Stops the run from outside.
            paused: The `paused` of an earlier result: that run goes on. `ChannelAgent` gives
                RunCounts, because the calls of its paused run already have their results in the
                memory.
            decisions: What was decided about the open calls of the paused run, by the id of the
                call. They are carried out before the model is asked again. A call without a
                decision stays open and does not run.

        Failures of tools, models, observers and caches are never raised: they end in the result.
        Raises ValueError or TypeError for invalid arguments, SessionError for a session that cannot
        be read, the errors of `stream_handler`, of the journal (LeaseLost) and of the decision log,
        and CancelledError. Raises DecisionError, a ValueError, for decisions that do not fit the
        open calls: then nothing has run. A run that raises adds nothing to the memory but the
        outcomes of calls that were decided.
        """
        request = RunRequest(
            to_messages(messages, may_be_empty=paused is not None),
            response_format,
            parent_run_id,
            memory,
            journal=journal or NoJournal(),
            scope=scope,
            cancellation_token=cancellation_token,
            on_text=self._text_listener(stream_handler),
        )
        return await self._loop.answer(with_paused_run(request, paused, decisions))

    def run(
        self,
        messages: str | Sequence[Message] = (),
        stream_handler: StreamHandler | None = None,
        response_format: ResponseFormat | None = None,
        parent_run_id: str | None = None,
        *,
        memory: ConversationMemory | None = None,
        scope: str = "",
        cancellation_token: CancellationToken | None = None,
        paused: RunSnapshot | None = None,
        decisions: Mapping[str, Decision] | None = None,
    ) -> AgentResult:
        """Answer the messages like `arun`, for sync code, also inside a running event loop.

        Only sync observers are called. A sync tool runs in the caller's thread, unless it runs in
        parallel with others or can be interrupted by a time limit or a cancellation token.
        """
        request = RunRequest(
            to_messages(messages, may_be_empty=paused is not None),
            response_format,
            parent_run_id,
            memory,
            scope=scope,
            cancellation_token=cancellation_token,
            on_text=self._text_listener(stream_handler),
            asynchronous=False,
        )
        request = with_paused_run(request, paused, decisions)
        lends_thread = self.config.tool_timeout_seconds is None and cancellation_token is None
        return run_sync(self._loop.answer(request), lends_thread=lends_thread)

    async def astream(
        self,
        messages: str | Sequence[Message] = (),
        response_format: ResponseFormat | None = None,
        parent_run_id: str | None = None,
        *,
        memory: ConversationMemory | None = None,
        scope: str = "",
        cancellation_token: CancellationToken | None = None,
        paused: RunSnapshot | None = None,
        decisions: Mapping[str, Decision] | None = None,
    ) -> AsyncGenerator[StreamChunk | AgentResult, None]:
        """Answer the messages like `arun`. Yield the text while it arrives, then the result.

        Closing the generator cancels the run.
        """
        pieces: asyncio.Queue[StreamChunk | None] = asyncio.Queue()
        request = RunRequest(
            to_messages(messages, may_be_empty=paused is not None),
            response_format,
            parent_run_id,
            memory,
            scope=scope,
            cancellation_token=cancellation_token,
            on_text=_ChunkQueue(pieces),
        )
        request = with_paused_run(request, paused, decisions)
        run = asyncio.create_task(self._loop.answer(request))
        # None ends the stream, also if the run fails.
        run.add_done_callback(lambda _: pieces.put_nowait(None))

        try:
            piece = await pieces.get()
            while piece is not None:
                yield piece
                piece = await pieces.get()
            yield await run
        finally:
            if not run.done():
                run.cancel()
                await asyncio.wait([run])
            if not run.cancelled():
                run.exception()  # marks it as retrieved, so that asyncio logs nothing

    def as_tool(self, name: str = "", description: str = "") -> Tool[..., Any]:
        """Return this agent as a tool of another one. Its parameter is the `request` in words.

        Without a `name` the tool has that of the agent. Calls of this agent that need an approval
        wait on the run of the other one, if that pauses for approvals. Each request is a
        conversation of its own. Raises ToolValidationError.
        """
        name = name or self.name
        inner = InnerAgent(name, self._run_inside, self._toolset.all, self.config.tool_policy)
        described = description or f"Ask the agent {name!r}. It knows nothing but the request."
        # `proposes`: the result may be a question for a yes instead of an answer.
        return Tool.from_function(inner.ask, name=name, description=described, proposes=True)

    async def _run_inside(
        self,
        request: str,
        snapshot: RunSnapshot | None,
        decisions: Mapping[str, Decision],
        decision_log: DecisionLog | None,
    ) -> AgentResult:
        """Answer a request, or go on with a paused run, inside a tool of another agent."""
        # A run that goes on has its request in the snapshot.
        messages: tuple[Message, ...] = ()
        if snapshot is None:
            messages = to_messages(request)
        inner = RunRequest(
            messages,
            memory=ConversationMemory(),
            has_agents_knowledge=True,
            is_inner=True,
            decision_log=decision_log,
        )
        return await self._loop.answer(with_paused_run(inner, snapshot, decisions))

    async def aask(self, prompt: str, **options: Any) -> AgentResult:
        """Answer one prompt like `arun`, with its options."""
        return await self.arun(prompt, **options)

    def ask(self, prompt: str, **options: Any) -> AgentResult:
        """Answer one prompt like `run`, with its options."""
        return self.run(prompt, **options)

    def __call__(self, messages: str | Sequence[Message], **options: Any) -> AgentResult:
        """Answer the messages like `run`, with its options."""
        return self.run(messages, **options)

    async def abatch(
        self,
        prompts: Sequence[str | Sequence[Message]],
        max_concurrency: int = 5,
        response_format: ResponseFormat | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[AgentResult]:
        """Answer each prompt in a separate run, up to `max_concurrency` of them in parallel.

        Return the results in the order of the prompts. Each run reads the agent's own conversation
        and adds nothing to it; entities and facts are learned as usual. A run that raises has its
        error as content and the stop reason "error". Raises ValueError for a `max_concurrency`
        below 1, and SessionError if the session cannot be read.
        """
        return await self._run_batch(prompts, max_concurrency, response_format, on_progress)

    def batch(
        self,
        prompts: Sequence[str | Sequence[Message]],
        max_concurrency: int = 5,
        response_format: ResponseFormat | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[AgentResult]:
        """Answer each prompt like `abatch`, for sync code. Only sync observers are called."""
        return run_sync(
            self._run_batch(
                prompts, max_concurrency, response_format, on_progress, asynchronous=False
            )
        )

    async def _run_batch(
        self,
        prompts: Sequence[str | Sequence[Message]],
        max_concurrency: int,
        response_format: ResponseFormat | None,
        on_progress: OnProgress | None,
        *,
        asynchronous: bool = True,
    ) -> list[AgentResult]:
        """Answer the prompts of a batch. `asynchronous`: whether async observers are called."""
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency={max_concurrency!r} runs nothing: use 1 or more")
        loop = self._loop
        events = RunEvents(self._observers, asynchronous=asynchronous)
        memory = await loop.load_own_memory(events)
        began = perf_counter()
        await events.tell("batch_start", len(prompts))

        slots = asyncio.Semaphore(max_concurrency)
        finished = 0

        async def answer(prompt: str | Sequence[Message]) -> AgentResult:
            nonlocal finished
            async with slots:
                result = await _answer_of_batch(
                    loop, prompt, response_format, memory, asynchronous=asynchronous
                )
            finished += 1
            if on_progress is not None:
                on_progress(finished, len(prompts))
            return result

        results = await gather_all(map(answer, prompts))

        errors = sum(result.stop_reason in ("error", "provider_error") for result in results)
        await events.tell("batch_end", len(results), errors, (perf_counter() - began) * 1000)
        return results

    def _text_listener(self, handler: StreamHandler | None) -> RunTextListener | None:
        """Return what receives the text of a reply: the handler, or with `stream` the terminal."""
        if handler is None and not self.config.stream:
            return None
        return _HandlerAdapter(handler or partial(print, end="", flush=True))


def _all_observers(config: AgentConfig) -> tuple[AgentObserver, ...]:
    """Return the configured observers, the hooks as an observer, and the one of `verbose`."""
    observers = list(config.observers)
    if config.hooks:
        observers.append(hooks_observer(config.hooks))
    if config.verbose:
        observers.append(VerboseObserver())
    return tuple(observers)


async def _answer_of_batch(
    loop: AgentLoop,
    prompt: str | Sequence[Message],
    response_format: ResponseFormat | None,
    own_memory: ConversationMemory | None,
    *,
    asynchronous: bool,
) -> AgentResult:
    """Answer one prompt of a batch.

    The run reads a copy of the agent's own memory. Its failure affects no other run.
    """
    memory = ConversationMemory()
    if own_memory is not None:
        memory = own_memory.branch()
    try:
        request = RunRequest(
            to_messages(prompt),
            response_format,
            memory=memory,
            asynchronous=asynchronous,
            has_agents_knowledge=True,
        )
        return await loop.answer(request)
    except Exception as exc:  # becomes the result of this prompt
        return AgentResult(f"Error: {type(exc).__name__}: {error_text(exc)}", stop_reason="error")


class _HandlerAdapter:
    """Passes the text of a reply to a stream handler, which may be sync or async.

    An answer may break off and start again. Then the handler's `anew` method is called if it has
    one. Otherwise the new text begins on a new line.
    """

    def __init__(self, handler: StreamHandler) -> None:
        self._handler = handler
        self._needs_line_break = False

    async def __call__(self, text: str) -> None:
        if self._needs_line_break:
            text = f"\n{text}"
            self._needs_line_break = False
        result = self._handler(text)
        if inspect.isawaitable(result):
            await result

    def anew(self) -> None:
        """Note that the answer broke off and another one begins."""
        anew = getattr(self._handler, "anew", None)
        if anew is not None:
            anew()
        else:
            self._needs_line_break = True


class _ChunkQueue:
    """Puts the text of a reply into a queue, from which `astream` yields it."""

    def __init__(self, pieces: asyncio.Queue[StreamChunk | None]) -> None:
        self._pieces = pieces
        self._restarts = False

    async def __call__(self, text: str) -> None:
        self._pieces.put_nowait(StreamChunk(text, self._restarts))
        self._restarts = False

    def anew(self) -> None:
        """Note that the answer broke off and another one begins."""
        self._restarts = True


class _ToolsetWithMemory:
    """A toolset with the tool `remember` of the knowledge memory added, unless it has one."""

    def __init__(self, toolset: Toolset, knowledge: KnowledgeMemory) -> None:
        self._toolset = toolset
        self._remember = knowledge.tool()

    def all(self) -> list[Tool]:
        """Return the current tools."""
        tools = self._toolset.all()
        if any(tool.name == self._remember.name for tool in tools):
            return tools
        return [*tools, self._remember]
