"""Agent: run, arun, astream, batch."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sayso.agent.config import AgentConfig
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.knowledge import KnowledgeMemory
from sayso.agent.messages import Message
from sayso.agent.observability.dispatcher import RunEvents
from sayso.agent.observability.legacy import VerboseObserver, hooks_observer
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.usage import AgentAnalytics, AgentUsage
from sayso.agent.providers.base import Provider
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.result import AgentResult, StreamChunk
from sayso.agent.run.cancellation import CancellationToken
from sayso.agent.run.journal import Journal, NoJournal
from sayso.agent.run.loop import Loop
from sayso.agent.run.model_call import ModelCaller, Sleep
from sayso.agent.run.runner import Runner, Session
from sayso.agent.run.state import RunRequest, RunTextListener, said_in
from sayso.agent.run.structured import ResponseFormat
from sayso.agent.run.text_tools import PromptBuilder, TextToolProvider, ToolCallParser, speaks_text
from sayso.agent.tools.registry import ToolRegistry, Toolset
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import ToolSelector
from sayso.pending.concurrency import at_once, lending, run_sync

#: Hears how many prompts of how many are done.
OnProgress = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """How the prompts of one batch are answered. Raises ValueError for a `max_concurrency` that runs nothing."""

    runner: Runner
    observers: Sequence[AgentObserver]
    max_concurrency: int
    response_format: ResponseFormat | None
    on_progress: OnProgress | None
    asynchronous: bool = True

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            raise ValueError(f"max_concurrency={self.max_concurrency!r} runs nothing: use 1 or more")

    async def answers(self, prompts: Sequence[str | Sequence[Message]]) -> list[AgentResult]:
        """The results, in the prompts' order."""
        chronicle, began = RunEvents(self.observers, asynchronous=self.asynchronous), perf_counter()
        await chronicle.tell("batch_start", len(prompts))
        room, done = asyncio.Semaphore(self.max_concurrency), 0

        async def one(prompt: str | Sequence[Message]) -> AgentResult:
            nonlocal done
            async with room:
                result = await self._isolated(prompt)
            done += 1
            if self.on_progress is not None:
                self.on_progress(done, len(prompts))
            return result

        results = await at_once(map(one, prompts))
        errors = sum(result.stop_reason in ("error", "provider_error") for result in results)
        await chronicle.tell("batch_end", len(results), errors, (perf_counter() - began) * 1000)
        return results

    async def _isolated(self, prompt: str | Sequence[Message]) -> AgentResult:
        """One prompt: what breaks breaks it alone. It knows the agent's own memory, and changes nothing in it."""
        own = self.runner.memory
        memory = own.branch() if own is not None else ConversationMemory()
        try:
            return await self.runner.answer(
                RunRequest(
                    said_in(prompt),
                    self.response_format,
                    memory=memory,
                    asynchronous=self.asynchronous,
                    is_of_batch=True,
                )
            )
        except Exception as exc:  # noqa: BLE001  # told in its place
            return AgentResult(f"Error: {type(exc).__name__}: {exc}", stop_reason="error")


#: Hears the text of a reply as it comes.
StreamHandler = Callable[[str], Any]


class Agent:
    """Tools, a provider and settings. Holds nothing of any run, so one agent serves many at once.

    Given a registry, or anything else with `all()`, it asks for the tools at each step. `usage` and `analytics` add up
    what all runs come to. A provider that knows no tools is spoken to in text, by `prompt_builder` and `parser`.

    `memory` is what its owner chooses to share: given here, all runs have it; given to `arun`, only that run.
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
        self.analytics = AgentAnalytics() if self.config.enable_analytics else None
        toolset: Toolset = tools if isinstance(tools, Toolset) else ToolRegistry(tools)
        self._toolset = _Remembered(toolset, self.config.knowledge_memory) if self.config.knowledge_memory else toolset
        self._prompt_builder = prompt_builder
        self._observers = _observers_of(self.config)
        self._sleep = sleep
        store, session_id = self.config.session_store, self.config.session_id
        self._session = Session(store, session_id) if store is not None and session_id is not None else None
        self._runner = self._wired(provider or OfflineProvider(), selector, memory)

    def _wired(self, provider: Provider, selector: ToolSelector | None, memory: ConversationMemory | None) -> Runner:
        spoken_to = TextToolProvider(provider, self.parser, self._prompt_builder) if speaks_text(provider) else provider
        asker = ModelCaller(spoken_to, self.config, self.usage, sleep=self._sleep)
        loop = Loop(self._toolset, asker, self.config, selector)
        self._provider, self._selector = provider, selector
        return Runner(provider, self.config, loop, asker, self._observers, self.analytics, memory, self._session)

    @property
    def name(self) -> str:
        """The configured name."""
        return self.config.name

    @property
    def provider(self) -> Provider:
        """Who is asked. Another one answers the runs that begin from then on."""
        return self._provider

    @provider.setter
    def provider(self, provider: Provider) -> None:
        self._runner = self._wired(provider, self._selector, self.memory)

    @property
    def selector(self) -> ToolSelector | None:
        """What chooses the tools that the model is shown; None shows all."""
        return self._selector

    @selector.setter
    def selector(self, selector: ToolSelector | None) -> None:
        self._runner = self._wired(self._provider, selector, self.memory)

    @property
    def tools(self) -> list[Tool]:
        """The tools there are now: a registry's may change while the agent lives."""
        return self._toolset.all()

    @property
    def memory(self) -> ConversationMemory | None:
        """The agent's own conversation; of a session, what was read last."""
        return self._runner.memory

    @memory.setter
    def memory(self, memory: ConversationMemory | None) -> None:
        self._runner.memory = memory

    @property
    def total_cost(self) -> float:
        """What all runs cost so far, in USD."""
        return self.usage.total_cost_usd

    @property
    def total_tokens(self) -> int:
        """The tokens of all runs so far."""
        return self.usage.total_tokens

    def get_usage_summary(self) -> str:
        """What all runs used, to read."""
        return str(self.usage)

    def reset_usage(self) -> None:
        """Count from zero again."""
        self.usage.reset()

    def get_analytics(self) -> AgentAnalytics | None:
        """How the tools were used; None unless `enable_analytics` is set."""
        return self.analytics

    def reset(self) -> None:
        """Forget the agent's own conversation, its summary and its session too. What was used and counted stays.

        Raises SessionError.
        """
        if self.memory is not None:
            self.memory.clear()
        if self._session is not None:
            self._session.forget()

    async def arun(
        self,
        messages: str | Sequence[Message],
        stream_handler: StreamHandler | None = None,
        response_format: ResponseFormat | None = None,
        parent_run_id: str | None = None,
        *,
        memory: ConversationMemory | None = None,
        journal: Journal | None = None,
        scope: str = "",
        cancellation_token: CancellationToken | None = None,
    ) -> AgentResult:
        """Answer the user's words. The memory learns of the run only once it is complete.

        `stream_handler` hears the text as it comes. With a `response_format` the answer has that form, in `parsed`.
        `scope` names whose knowledge may be read and written; inside a tool it is that of the run that calls the tool.
        With a `journal` the run goes on where an earlier attempt was interrupted.

        What tools, models, observers and caches do wrong is never raised. Raises ValueError or TypeError for arguments
        that make no sense, SessionError for a session that cannot be read, what `stream_handler` raises,
        LaneError of the journal, CancelledError. The memory knows nothing of a run that raised.
        """
        request = RunRequest(
            said_in(messages),
            response_format,
            parent_run_id,
            memory,
            journal or NoJournal(),
            scope,
            cancellation_token,
            self._heard_by(stream_handler),
        )
        return await self._runner.answer(request)

    def run(
        self,
        messages: str | Sequence[Message],
        stream_handler: StreamHandler | None = None,
        response_format: ResponseFormat | None = None,
        parent_run_id: str | None = None,
        *,
        memory: ConversationMemory | None = None,
        scope: str = "",
        cancellation_token: CancellationToken | None = None,
    ) -> AgentResult:
        """`arun` for sync code, also from inside a running event loop. Only sync observers hear of it (seed).

        A sync tool runs in the caller's own thread, unless others run beside it or something may end it: a time limit,
        a cancellation token.
        """
        request = RunRequest(
            said_in(messages),
            response_format,
            parent_run_id,
            memory,
            scope=scope,
            cancellation_token=cancellation_token,
            on_text=self._heard_by(stream_handler),
            asynchronous=False,
        )
        with lending(self.config.tool_timeout_seconds is None and cancellation_token is None):
            return run_sync(self._runner.answer(request))

    async def astream(
        self,
        messages: str | Sequence[Message],
        response_format: ResponseFormat | None = None,
        parent_run_id: str | None = None,
        *,
        memory: ConversationMemory | None = None,
        scope: str = "",
        cancellation_token: CancellationToken | None = None,
    ) -> AsyncGenerator[StreamChunk | AgentResult, None]:
        """`arun`, yielding the text as it comes and, last, the result. Whoever stops listening cancels the run."""
        pieces: asyncio.Queue[StreamChunk | None] = asyncio.Queue()

        request = RunRequest(
            said_in(messages),
            response_format,
            parent_run_id,
            memory,
            scope=scope,
            cancellation_token=cancellation_token,
            on_text=_Chunks(pieces),
        )
        run = asyncio.create_task(self._runner.answer(request))
        run.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield await run
        finally:
            if not run.done():
                run.cancel()
                await asyncio.wait([run])
            if not run.cancelled():
                run.exception()  # seen, also when nobody listens any more

    async def aask(self, prompt: str, **options: Any) -> AgentResult:
        """`arun` for a single sentence."""
        return await self.arun(prompt, **options)

    def ask(self, prompt: str, **options: Any) -> AgentResult:
        """`run` for a single sentence."""
        return self.run(prompt, **options)

    def __call__(self, messages: str | Sequence[Message], **options: Any) -> AgentResult:
        """`run`."""
        return self.run(messages, **options)

    async def abatch(
        self,
        prompts: Sequence[str | Sequence[Message]],
        max_concurrency: int = 5,
        response_format: ResponseFormat | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[AgentResult]:
        """Answer each prompt apart from the others, so many at once; the results come in the prompts' order (seed).

        Each knows the agent's own conversation as it is, and adds nothing to it; entities and facts are learnt as ever.
        A run that breaks has its error for its content and the stop reason "error". `on_progress` hears (completed,
        total). Raises ValueError.
        """
        batch = Batch(self._runner, self._observers, max_concurrency, response_format, on_progress)
        return await batch.answers(prompts)

    def batch(
        self,
        prompts: Sequence[str | Sequence[Message]],
        max_concurrency: int = 5,
        response_format: ResponseFormat | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[AgentResult]:
        """`abatch` for sync code."""
        batch = Batch(self._runner, self._observers, max_concurrency, response_format, on_progress, asynchronous=False)
        return run_sync(batch.answers(prompts))

    def _heard_by(self, handler: StreamHandler | None) -> RunTextListener | None:
        if handler is None and not self.config.stream:
            return None
        return _Heard(handler or _printed)


class _Heard:
    """Hands the text of a reply to a stream handler. One that knows `anew` is told when the text so far is void; any
    other goes on with a new line.
    """

    def __init__(self, handler: StreamHandler) -> None:
        self._handler = handler
        self._breaks = False

    async def __call__(self, text: str) -> None:
        told = self._handler(f"\n{text}" if self._breaks else text)
        self._breaks = False
        if inspect.isawaitable(told):
            await told

    def anew(self) -> None:
        """The answer broke off; another one begins."""
        anew = getattr(self._handler, "anew", None)
        if anew is not None:
            anew()
        else:
            self._breaks = True


class _Chunks:
    """Puts the text of a reply into a queue, for `astream`."""

    def __init__(self, pieces: asyncio.Queue[StreamChunk | None]) -> None:
        self._pieces = pieces
        self._restarts = False

    async def __call__(self, text: str) -> None:
        self._pieces.put_nowait(StreamChunk(text, self._restarts))
        self._restarts = False

    def anew(self) -> None:
        """The answer broke off; another one begins."""
        self._restarts = True


class _Remembered:
    """A toolset with the tool that saves knowledge (seed: Cross-Session Knowledge Memory), unless it has one."""

    def __init__(self, toolset: Toolset, knowledge: KnowledgeMemory) -> None:
        self._toolset = toolset
        self._remember = knowledge.tool()

    def all(self) -> list[Tool]:
        """The tools there are now."""
        tools = self._toolset.all()
        return tools if any(tool.name == self._remember.name for tool in tools) else [*tools, self._remember]


def _observers_of(config: AgentConfig) -> tuple[AgentObserver, ...]:
    """Everybody who is told of the runs. Raises ValueError for a hook that there is not."""
    hooks = [hooks_observer(config.hooks)] if config.hooks else []
    return (*config.observers, *hooks, *([VerboseObserver()] if config.verbose else []))


def _printed(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
