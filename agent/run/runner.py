"""Setup, memory, session, result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from sayso.agent.config import AgentConfig, model_for
from sayso.agent.memory.conversation import ConversationMemory, MemoryDraft
from sayso.agent.memory.recall import RunMemory
from sayso.agent.memory.scope import current_scope
from sayso.agent.memory.sessions import SessionStore
from sayso.agent.observability.dispatcher import RunEvents
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.usage import AgentAnalytics
from sayso.agent.providers.base import Provider
from sayso.agent.result import AgentResult, ending_words
from sayso.agent.run.cancellation import RunCancelled
from sayso.agent.run.compression import compressor_of
from sayso.agent.run.loop import Loop
from sayso.agent.run.model_call import ModelCaller, is_spent
from sayso.agent.run.state import RunEnd, RunRequest, RunState
from sayso.agent.run.structured import build_schema_instruction, schema_from_response_format
from sayso.agent.run.tool_call import CallObserver, objector_of
from sayso.agent.tools.context import collect_artifacts
from sayso.pending.concurrency import offload

log = logging.getLogger(__name__)


class Session:
    """Lives as long as its agent. Runs at the same time share one conversation, so none of them is lost; what another
    process saves meanwhile is written over. Any thread may use it.
    """

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store, self._id = store, session_id
        self._runs = 0
        #: What the runs that are under way share, and what this agent knows from the store.
        self._shared: ConversationMemory | None = None
        self._known: ConversationMemory | None = None
        self._counting, self._using = Lock(), Lock()  # nobody waits for the first one while the store is asked

    @contextmanager
    def run(self) -> Iterator[None]:
        """For as long as a run lasts. The first one of several reads the session anew."""
        with self._counting:
            if not self._runs:
                self._shared = None
            self._runs += 1
        try:
            yield
        finally:
            with self._counting:
                self._runs -= 1

    async def load(self, memory: ConversationMemory | None, chronicle: RunEvents) -> ConversationMemory:
        """What the store has, within the limits of `memory`; `memory` itself, or a new one, where it has nothing. What
        came from the store, and has been deleted there or has expired, is not known any more. Raises SessionError.
        """
        shared, is_read = await offload(self._read, memory)
        if is_read:
            count = len(shared.get_history())
            chronicle.note("session_load", summary=f"{count} messages")
            await chronicle.tell("session_load", self._id, count)
        return shared

    async def save(self, memory: ConversationMemory, chronicle: RunEvents) -> None:
        """Save what the conversation is now. The answer is there, and its tools have run: what fails is logged and in
        the trace, and raised to nobody who might ask for the same again.
        """
        try:
            await offload(self._write, memory)
        except Exception as exc:  # noqa: BLE001  # whatever the store raises
            log.error("session.not_saved", extra={"reason": type(exc).__name__})  # its text names people
            chronicle.note("error", error=f"session not saved: {type(exc).__name__}")
            return
        count = len(memory.get_history())
        chronicle.note("session_save", summary=f"{count} messages")
        await chronicle.tell("session_save", self._id, count)

    def forget(self) -> None:
        """Delete it. Blocks, and raises SessionError."""
        with self._using:
            self._store.delete(self._id)
            self._shared = None

    def _read(self, memory: ConversationMemory | None) -> tuple[ConversationMemory, bool]:
        """The conversation, and whether it is from the store."""
        with self._using:
            if self._shared is not None:
                return self._shared, False
            kept = self._store.load(self._id)
            if kept is None:
                self._shared = self._without_store(memory)
            else:
                self._shared = self._known = kept.limited(memory.max_messages, memory.max_tokens) if memory else kept
            return self._shared, kept is not None

    def _without_store(self, memory: ConversationMemory | None) -> ConversationMemory:
        if memory is None:
            return ConversationMemory()
        return ConversationMemory(memory.max_messages, memory.max_tokens) if memory is self._known else memory

    def _write(self, memory: ConversationMemory) -> None:
        """One after the other: the last one to write has seen all there is."""
        with self._using:
            self._store.save(self._id, memory)
            self._known = memory


#: Endings of runs in which no model took in what was said, or nobody wants to wait any longer.
_TEACH_NOTHING = frozenset(("cancelled", "guardrail", "provider_error"))


class Runner:
    """Lives as long as its agent. Of all that runs leave behind it holds only the agent's own `memory`."""

    def __init__(
        self,
        provider: Provider,
        config: AgentConfig,
        loop: Loop,
        asker: ModelCaller,
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
        self._asker = asker
        self._observers = observers
        self._analytics = analytics

    async def answer(self, request: RunRequest) -> AgentResult:
        """Answer one request. Raises what `Agent.arun` says."""
        request = request.in_scope(current_scope() or "")
        if self._session is None or request.memory is not None:
            return await self._answer(request)
        with self._session.run():
            return await self._answer(request)

    async def _answer(self, request: RunRequest) -> AgentResult:
        run = self._begun(request)
        try:
            await self._prepared(run)
            ending = await self._ending(run)
            return await self._finished(run, ending)
        except BaseException as exc:
            await self._broken(run, exc)
            raise

    def _begun(self, request: RunRequest) -> RunState:
        """Everything that one run has for itself. Raises ValueError and TypeError for what no run can be asked."""
        config, form = self._config, request.response_format
        context = build_schema_instruction(schema_from_response_format(form)) if form is not None else ""
        chronicle = RunEvents(
            self._observers,
            parent_run_id=request.parent_run_id or config.parent_run_id or "",
            metadata=config.trace_metadata,
            asynchronous=request.asynchronous,
            tool_result_chars=config.trace_tool_result_chars,
        )
        return RunState(
            request=request,
            chronicle=chronicle,
            remembering=self._remembering(request, chronicle),
            context=context,
            compressor=compressor_of(config, self._provider),
            loop_watch=config.loop_detector.watch() if config.loop_detector else None,
            on_text=None if form is not None or _holds_back(config) else request.on_text,
        )

    async def _prepared(self, run: RunState) -> None:
        """What the run knows when it begins. Raises SessionError."""
        request, config = run.request, self._config
        if run.chronicle.has_observers:
            with run.remembering.in_scope():  # observers may ask whose run it is
                await run.chronicle.tell("run_start", list(request.said), config.prompt)
        if self._session is not None and request.memory is None:
            self.memory = await self._session.load(self.memory, run.chronicle)
        run.recall(self.memory if request.memory is None else request.memory)
        if run.remembering.may_know:
            sections = await run.remembering.sections(request.words)
            run.context = "\n\n".join(filter(None, (run.context, sections)))

    def _remembering(self, request: RunRequest, chronicle: RunEvents) -> RunMemory:
        config = self._config
        return RunMemory(
            provider=self._provider,
            model=model_for(self._provider, config.model),
            timeout=config.request_timeout,
            memory=None,
            own=request.is_own,
            scope=request.scope,
            chronicle=chronicle,
            entity_memory=config.entity_memory,
            knowledge_graph=config.knowledge_graph,
            knowledge_memory=config.knowledge_memory,
            summarize_on_trim=config.summarize_on_trim,
            summarize_provider=config.summarize_provider,
            summarize_model=config.summarize_model,
            summarize_max_tokens=config.summarize_max_tokens,
        )

    async def _ending(self, run: RunState) -> RunEnd:
        objector = objector_of(self._provider, self._config, run.chronicle, lambda: run.words)
        watch = CallObserver(run.chronicle, self._analytics, objector)
        token = run.request.cancellation_token
        with collect_artifacts() as run.artifacts, run.remembering.in_scope():
            if token is None:
                return await self._loop.ending(run, watch)
            try:
                async with token.scope():
                    return await self._loop.ending(run, watch)
            except RunCancelled as exc:
                return await self._cancelled(run, exc.reason)

    async def _cancelled(self, run: RunState, reason: str) -> RunEnd:
        """The run was stopped: every call it had begun has an answer all the same."""
        run.is_told = True
        await run.chronicle.tell("cancelled", run.iterations, reason)
        run.chronicle.note("cancelled", summary=reason or "stopped from outside")
        if run.open_round is not None:
            run.close_round(run.open_round.closed())
        if self._config.routing_only:
            run.tool_calls.clear()  # what was chosen goes nowhere
        return RunEnd("cancelled", ending_words("cancelled"))

    async def _finished(self, run: RunState, ending: RunEnd) -> AgentResult:
        """The result, once the memory has the run and everybody has heard of it."""
        run.close(_last_words(ending))
        if run.request.on_text is not None and (ending.reason != "answer" or run.on_text is None):
            await run.request.on_text(ending.content)
        await self._remember(run, ending)
        run.is_told, result = True, run.result(ending)
        await run.chronicle.tell("run_end", result)
        return result

    async def _remember(self, run: RunState, ending: RunEnd) -> None:
        """Take the run into the memory, whole, once everything that it teaches is known."""
        memory = run.memory
        draft = MemoryDraft(memory, run.messages) if memory is not None and self._takes_time(run) else None
        may_ask = ending.reason != "budget" and not (run.remembering.asks and await is_spent(run, self._config))
        if draft is not None:
            run.remembering.memory = draft.after
        if may_ask and ending.reason not in _TEACH_NOTHING:
            await run.remembering.learn(run.messages)
        if draft is not None:  # last, so that hardly any other run sums up between this and the commit
            await run.remembering.forgotten(draft.forgotten, sum_up=may_ask, latest=draft.summary_now)
        await self._asker.spend_beside(run)
        if draft is not None:
            draft.commit()
        elif memory is not None:
            memory.add_many(run.messages)
        if memory is not None and run.request.memory is None and self._session is not None:
            await self._session.save(memory, run.chronicle)

    def _takes_time(self, run: RunState) -> bool:
        """Whether anything that needs the memory comes between the run's last word and its being remembered."""
        return self._config.summarize_on_trim or self._config.entity_memory is not None or run.chronicle.has_observers

    async def _broken(self, run: RunState, error: BaseException) -> None:
        """Told once, and raised by whoever called this."""
        run.chronicle.note("error", error=f"{type(error).__name__}: {error}")
        if run.is_told:
            return
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            await run.chronicle.tell("cancelled", run.iterations, "task cancelled")
        elif isinstance(error, Exception):
            await run.chronicle.tell("error", error, {"iteration": run.iterations})


def _last_words(ending: RunEnd) -> str:
    """What the transcript has of an ending: a vendor's words for its error are for operators, not to be repeated."""
    if ending.reason != "provider_error":
        return ending.content
    return ending.refusal or ending_words("model_away")


def _holds_back(config: AgentConfig) -> bool:
    """Whether a reply is heard only when guardrails have passed it."""
    return config.guardrails is not None and bool(config.guardrails.output)
