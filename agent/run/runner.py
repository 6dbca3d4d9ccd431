"""Runner: prepares a run, executes it, and stores what it adds to memory and session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from sayso.agent.config import AgentConfig, model_for
from sayso.agent.memory.conversation import ConversationMemory, MemoryDraft
from sayso.agent.memory.extraction import current_scope
from sayso.agent.memory.recall import RunMemory
from sayso.agent.memory.sessions import SessionStore
from sayso.agent.observability.dispatcher import RunEvents
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.usage import AgentAnalytics
from sayso.agent.providers.base import Provider
from sayso.agent.result import AgentResult, stop_text
from sayso.agent.run.cancellation import RunCancelled
from sayso.agent.run.loop import AgentLoop
from sayso.agent.run.model_call import ModelCaller, is_budget_spent
from sayso.agent.run.state import RunEnd, RunRequest, RunState
from sayso.agent.run.structured import build_schema_instruction, schema_from_response_format
from sayso.agent.run.tool_call import CallObserver, CoherenceCheck
from sayso.agent.run.tool_results import Compressor
from sayso.agent.tools.context import collect_artifacts
from sayso.pending.concurrency import call_in_thread

log = logging.getLogger(__name__)

#: Reasons to end a run after which no facts are learned: no model read the message, or the user stopped waiting.
_WITHOUT_LEARNING = frozenset(("cancelled", "guardrail", "provider_error"))


class Runner:
    """Runs the agent loop. One per agent; keeps no state between runs except `memory`."""

    def __init__(
        self,
        provider: Provider,
        config: AgentConfig,
        loop: AgentLoop,
        model_caller: ModelCaller,
        observers: Sequence[AgentObserver],
        analytics: AgentAnalytics | None,
        memory: ConversationMemory | None,
        session: Session | None = None,
    ) -> None:
        self.memory = memory
        self._session = session
        self._provider = provider
        self._config = config
        self._loop = loop
        self._model_caller = model_caller
        self._observers = observers
        self._analytics = analytics

    async def answer(self, request: RunRequest) -> AgentResult:
        """Answer one request. Raises the errors that `Agent.arun` documents."""
        request = request.with_scope(current_scope() or "")
        if self._session is None or request.memory is not None:
            return await self._answer(request)
        with self._session.run():
            return await self._answer(request)

    async def _answer(self, request: RunRequest) -> AgentResult:
        run = self._create_state(request)
        try:
            await self._prepare(run)
            end = await self._run_loop(run)
            return await self._finish(run, end)
        except BaseException as exc:
            await self._report_failure(run, exc)
            raise

    def _create_state(self, request: RunRequest) -> RunState:
        """Return the state of a new run. Raises ValueError and TypeError for an invalid response format."""
        config, response_format = self._config, request.response_format
        context = ""
        if response_format is not None:
            context = build_schema_instruction(schema_from_response_format(response_format))
        events = RunEvents(
            self._observers,
            parent_run_id=request.parent_run_id or config.parent_run_id or "",
            metadata=config.trace_metadata,
            asynchronous=request.asynchronous,
            tool_result_chars=config.trace_tool_result_chars,
        )
        is_checked = config.guardrails is not None and bool(config.guardrails.output)
        return RunState(
            request=request,
            events=events,
            run_memory=self._create_run_memory(request, events),
            context=context,
            compressor=Compressor(self._provider, config) if config.tool.compress_results else None,
            loop_watch=config.loop_detector.watch() if config.loop_detector else None,
            on_text=None if response_format is not None or is_checked else request.on_text,
        )

    def _create_run_memory(self, request: RunRequest, events: RunEvents) -> RunMemory:
        config = self._config
        return RunMemory(
            provider=self._provider,
            model=model_for(self._provider, config.model),
            timeout=config.request_timeout,
            memory=None,
            own=request.uses_agent_knowledge,
            scope=request.scope,
            events=events,
            entity_memory=config.entity_memory,
            knowledge_graph=config.knowledge_graph,
            knowledge_memory=config.knowledge_memory,
            summarize_on_trim=config.summarize_on_trim,
            summarize_provider=config.summarize_provider,
            summarize_model=config.summarize_model,
            summarize_max_tokens=config.summarize_max_tokens,
        )

    async def _prepare(self, run: RunState) -> None:
        """Load the conversation, and what the memories know about the request. Raises SessionError."""
        request, config = run.request, self._config
        if run.events.has_observers:
            with run.run_memory.in_scope():  # observers may ask for the scope of the run
                await run.events.tell("run_start", list(request.messages), config.prompt)
        if self._session is not None and request.memory is None:
            self.memory = await self._session.load(self.memory, run.events)
        run.set_memory(self.memory if request.memory is None else request.memory)
        if run.run_memory.is_configured:
            sections = await run.run_memory.context(request.user_text)
            run.context = "\n\n".join(filter(None, (run.context, sections)))

    async def _run_loop(self, run: RunState) -> RunEnd:
        check = None
        if self._config.coherence_check:
            check = CoherenceCheck(self._provider, self._config, run.events, lambda: run.user_text)
        observer = CallObserver(run.events, self._analytics, check)
        token = run.request.cancellation_token
        with collect_artifacts() as run.artifacts, run.run_memory.in_scope():
            if token is None:
                return await self._loop.run(run, observer)
            try:
                async with token.scope():
                    return await self._loop.run(run, observer)
            except RunCancelled as exc:
                return await self._cancel(run, exc.reason)

    async def _cancel(self, run: RunState, reason: str) -> RunEnd:
        """End a run that was cancelled. Every call in progress gets an outcome."""
        run.is_end_reported = True
        await run.events.tell("cancelled", run.iterations, reason)
        run.events.note("cancelled", summary=reason or "stopped from outside")
        if run.open_round is not None:
            run.close_round(run.open_round.final_outcomes())
        if self._config.routing_only:
            run.tool_calls.clear()  # the chosen calls are not returned
        return RunEnd("cancelled", stop_text("cancelled"))

    async def _finish(self, run: RunState, end: RunEnd) -> AgentResult:
        """Close the transcript, store it in the memory, report the end to observers, and return the result."""
        # A vendor's error text is for operators and stays out of the transcript.
        is_error = end.reason == "provider_error"
        run.close((end.refusal or stop_text("model_away")) if is_error else end.content)
        if run.request.on_text is not None and (end.reason != "answer" or run.on_text is None):
            await run.request.on_text(end.content)
        await self._store_in_memory(run, end)
        run.is_end_reported, result = True, run.result(end)
        await run.events.tell("run_end", result)
        return result

    async def _store_in_memory(self, run: RunState, end: RunEnd) -> None:
        """Learn from the run, then add all its messages to the memory at once."""
        memory = run.memory
        config = self._config
        takes_time = config.summarize_on_trim or config.entity_memory is not None or run.events.has_observers
        # Other runs may change the memory while this run learns.
        draft = MemoryDraft(memory, run.messages) if memory is not None and takes_time else None
        may_ask = end.reason != "budget"
        if may_ask and run.run_memory.calls_model:
            may_ask = not await is_budget_spent(run, self._config)
        if draft is not None:
            run.run_memory.memory = draft.memory
        if may_ask and end.reason not in _WITHOUT_LEARNING:
            await run.run_memory.learn(run.messages)
        if draft is not None:  # last, so that another run hardly ever summarizes between this and the commit
            await run.run_memory.record_trim(draft.removed, may_summarize=may_ask, latest_summary=draft.current_summary)
        await self._model_caller.book_side_usage(run)
        if draft is not None:
            draft.commit()
        elif memory is not None:
            memory.add_many(run.messages)
        if memory is not None and run.request.memory is None and self._session is not None:
            await self._session.save(memory, run.events)

    async def _report_failure(self, run: RunState, error: BaseException) -> None:
        """Record an exception that ends the run, and tell observers unless they know how the run ends."""
        run.events.note("error", error=f"{type(error).__name__}: {error}")
        if run.is_end_reported:
            return
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            await run.events.tell("cancelled", run.iterations, "task cancelled")
        elif isinstance(error, Exception):
            await run.events.tell("error", error, {"iteration": run.iterations})


class Session:
    """The stored conversation of one agent. Thread-safe.

    Concurrent runs share one conversation, so none of them is lost. What another process saves meanwhile is
    overwritten.
    """

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store, self._id = store, session_id
        self._runs = 0
        #: The conversation that the current runs share, and the one that was last in the store.
        self._shared: ConversationMemory | None = None
        self._stored: ConversationMemory | None = None
        self._count_lock, self._store_lock = Lock(), Lock()  # the first is never held during a call to the store

    @contextmanager
    def run(self) -> Iterator[None]:
        """Count a run while the block lasts. The first of concurrent runs reads the session again."""
        with self._count_lock:
            if not self._runs:
                self._shared = None
            self._runs += 1
        try:
            yield
        finally:
            with self._count_lock:
                self._runs -= 1

    async def load(self, memory: ConversationMemory | None, events: RunEvents) -> ConversationMemory:
        """Return the stored conversation, within the limits of `memory`. Raises SessionError.

        Without a stored one, return `memory` or a new one. A conversation that came from the store, and was deleted
        there or has expired, is not used any more.
        """
        shared, is_read = await call_in_thread(self._read, memory)
        if is_read:
            count = len(shared.get_history())
            events.note("session_load", summary=f"{count} messages")
            await events.tell("session_load", self._id, count)
        return shared

    async def save(self, memory: ConversationMemory, events: RunEvents) -> None:
        """Save the conversation. A failure is logged and traced, but not raised.

        The answer exists and its tools have run; an exception might make the caller ask for the same again.
        """
        try:
            await call_in_thread(self._write, memory)
        except Exception as exc:  # a store may raise anything
            log.error("session.not_saved", extra={"reason": type(exc).__name__})  # the text may contain user ids
            events.note("error", error=f"session not saved: {type(exc).__name__}")
            return
        count = len(memory.get_history())
        events.note("session_save", summary=f"{count} messages")
        await events.tell("session_save", self._id, count)

    def delete(self) -> None:
        """Delete the stored conversation. Blocks. Raises SessionError."""
        with self._store_lock:
            self._store.delete(self._id)
            self._shared = None

    def _read(self, memory: ConversationMemory | None) -> tuple[ConversationMemory, bool]:
        """Return the conversation, and whether it was read from the store."""
        with self._store_lock:
            if self._shared is not None:
                return self._shared, False
            loaded = self._store.load(self._id)
            if loaded is not None:
                self._stored = loaded.with_limits(memory.max_messages, memory.max_tokens) if memory else loaded
                self._shared = self._stored
            elif memory is None:
                self._shared = ConversationMemory()
            else:
                was_stored = memory is self._stored  # and is deleted or expired now
                self._shared = ConversationMemory(memory.max_messages, memory.max_tokens) if was_stored else memory
            return self._shared, loaded is not None

    def _write(self, memory: ConversationMemory) -> None:
        """Write under the lock, so that the last writer has seen all runs."""
        with self._store_lock:
            self._store.save(self._id, memory)
            self._stored = memory
