"""Story: an agent with random settings, called through a random method, by a caller who may cancel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentResult,
    CancellationToken,
    ConversationMemory,
    Message,
    Role,
)
from sayso.agent.config import ToolConfig
from sayso.agent.guards.coherence import CoherenceCheck
from sayso.agent.guards.guardrails import GuardrailsPipeline
from sayso.agent.guards.policy import ToolPolicy
from sayso.agent.memory.entities import EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory
from sayso.agent.memory.sessions import InMemorySessionStore
from sayso.agent.observability.run_events import wait_for_observers
from sayso.agent.run.cache import InMemoryCache
from sayso.pending.call_context import ChannelRun, context_field
from tests.agent.faults.cast import (
    AsyncHeckler,
    Blocker,
    Doubter,
    Heckler,
    Model,
    Raises,
    RaisingBudget,
    Recorder,
    Side,
    Talker,
    Writer,
)  # fmt: skip
from tests.agent.faults.clock import THREADS, ClockLoop, under_sync_callers
from tests.agent.faults.nonsense import TOOLS
from tests.agent.faults.tape import Tape

DOORS = ("arun", "arun", "astream", "run", "abatch", "arun", "astream", "batch")
#: Limits after which the caller cancels: iterations of the loop, and seconds.
TICKS, SECONDS = 60, (0, 0.25, 5, 29.75, 40)


class Errors(logging.Handler):
    """Collects unexpected log records: those with a traceback, and those of asyncio."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the record unless it reports what an author's code did wrong."""
        expected = record.msg in (
            "agent.stop_condition_failed",
            "tool.failed",
            "tool.result_unreadable",
        )
        if (record.exc_info or record.name == "asyncio") and not expected:
            self.heard.append(record.getMessage())


class Form(BaseModel):
    """The format of a structured answer."""

    n: int


@dataclass
class Account:
    """The results of one run, and the state before and after it."""

    results: list[AgentResult] = field(default_factory=list)
    raised: BaseException | None = None
    memory: ConversationMemory | None = None
    before: list[Message] = field(default_factory=list)
    after: list[Message] = field(default_factory=list)
    billed: int = 0
    #: Whether a cancelled run may miss the usage of its last answer.
    may_miss: bool = False
    has_session: bool = False
    events: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    door: str = "arun"
    left_early: bool = False
    max_iterations: int = 6
    tasks_left: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


class Story:
    """A story that follows its tape. Lives for one example."""

    def __init__(self, data: bytes, loop: ClockLoop, errors: Errors) -> None:
        self._tape = Tape(data)
        self._errors = errors
        self._loop = loop
        self._door = self._tape.pick(DOORS)
        self._has_token = self._tape.rarely(4)
        self._token: CancellationToken | None = None
        self._impatient = self._door in ("arun", "astream", "abatch") and self._tape.rarely(3)
        self._timeout = 5.0 if self._tape.rarely(2) else None
        self._recorder = Recorder()
        self._side = Side(self._tape, endless=False)
        self._model = self._a_model()
        self._agent = Agent(
            TOOLS, self._model, self._config(), self._own_memory(), sleep=asyncio.sleep
        )

    def told(self) -> Iterator[Account]:
        """Yield the accounts of one or two runs with the same agent; the second must not be affected by the first."""
        for _ in range(self._tape.pick((1, 2))):
            self._token = CancellationToken() if self._has_token else None
            yield self._one_run()

    def _one_run(self) -> Account:
        account, memory = (
            Account(door=self._door, max_iterations=self._agent.config.max_iterations),
            self._memory,
        )
        account.before = list(memory.get_history()) if memory else []
        before, self._recorder.events = self._model.billed + self._side.billed, []
        self._loop.complaints.clear()
        self._errors.heard.clear()
        try:
            with self._place():
                account.results = self._by_door(account)
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001  # the judge checks it
            account.raised = exc
        finally:
            THREADS.let_go()
        self._cleared(account)
        memory = self._memory
        account.memory, account.after = memory, list(memory.get_history()) if memory else []
        account.billed = self._model.billed + self._side.billed - before
        account.has_session = self._agent.config.session_store is not None
        account.may_miss |= isinstance(self._model, Blocker) or self._door == "astream"
        account.events = self._recorder.events
        return account

    def _cleared(self, account: Account) -> None:
        """Note the tasks that are left after the run, except observers that it does not wait for."""
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(_settled())
        account.tasks_left = [str(task) for task in asyncio.all_tasks(self._loop)]
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        account.complaints = [*self._loop.complaints, *self._errors.heard]

    @property
    def _memory(self) -> ConversationMemory | None:
        config = self._agent.config
        if config.session_store is None:
            return self._agent.memory
        return config.session_store.load("s") or self._agent.memory

    def _by_door(self, account: Account) -> list[AgentResult]:
        if self._door == "run":
            return [self._from_sync(lambda: self._agent.run("go", cancellation_token=self._token))]
        if self._door == "batch":
            return self._from_sync(
                lambda: self._agent.batch(["go", "on"], max_concurrency=self._tape.pick((5, 1)))
            )
        return self._loop.run_until_complete(self._from_async(account))

    def _from_sync(self, call: Callable[[], Any]) -> Any:
        if self._token is not None:
            self._soon(self._token.cancel)
        with under_sync_callers(self._loop):
            return call()

    async def _from_async(self, account: Account) -> list[AgentResult]:
        doors = {"arun": self._arun, "astream": self._astream, "abatch": self._abatch}
        task = asyncio.ensure_future(doors[self._door](account))
        if self._token is not None:
            self._soon(self._token.cancel)
        if self._impatient:
            account.left_early = True
            self._soon(task.cancel)
        return await task

    async def _arun(self, account: Account) -> list[AgentResult]:
        form = Form if self._tape.rarely(6) else None
        handler = self._handler() if self._tape.rarely(4) else None
        account.may_miss = handler is not None
        return [await self._agent.arun("go", handler, form, cancellation_token=self._token)]

    async def _abatch(self, account: Account) -> list[AgentResult]:
        return await self._agent.abatch(
            ["go", "on", "go"], max_concurrency=self._tape.pick((5, 1, 2))
        )

    async def _astream(self, account: Account) -> list[AgentResult]:
        # A caller that is cancelled while it closes the stream does not wait for the run to stop.
        wanted = self._tape.below(4) if self._tape.rarely(3) and not self._impatient else 1000
        async with contextlib.aclosing(
            self._agent.astream("go", cancellation_token=self._token)
        ) as pieces:
            async for piece in pieces:
                if isinstance(piece, AgentResult):
                    return [piece]
                if (wanted := wanted - 1) < 0:
                    break
        account.left_early = True
        return []

    def _handler(self) -> Callable[[str], Awaitable[None] | None]:
        async def hears(text: str) -> None:
            await asyncio.sleep(0)

        return self._tape.pick((hears, lambda text: None))

    def _soon(self, act: Callable[[], Any]) -> None:
        """Schedule `act` after a number of loop iterations or seconds."""
        if self._tape.rarely(2):
            self._loop.call_soon(self._loop.after, self._tape.below(TICKS), act)
        else:
            self._loop.call_later(self._tape.pick(SECONDS), act)

    def _place(self) -> contextlib.AbstractContextManager[Any]:
        if not self._tape.rarely(3):
            return contextlib.nullcontext()
        return context_field("run", ChannelRun("u", "c", "conversation", 60.0, "1"))

    def _a_model(self) -> Any:
        # A sync caller runs tools in its own thread, so tools that hang need a caller that can end them.
        endless = self._door in ("arun", "astream", "abatch") and (
            self._timeout is not None or self._impatient
        )
        return self._tape.pick((Model, Model, Talker, Writer, Blocker))(self._tape, endless=endless)

    def _own_memory(self) -> ConversationMemory | None:
        memory = self._tape.pick(
            (ConversationMemory(), None, ConversationMemory(4), ConversationMemory(20, 50))
        )
        if memory is not None and self._tape.rarely(2):
            memory.add_many([Message(Role.USER, "earlier"), Message(Role.ASSISTANT, "Yes?")])
        return memory

    def _config(self) -> AgentConfig:
        tape, some = self._tape, self._tape.rarely
        return AgentConfig(
            max_iterations=tape.pick((6, 3, 1, 2)),
            max_retries=tape.pick((2, 0, 1)),
            parallel_tool_execution=not some(4),
            tool_timeout_seconds=self._timeout,
            cache=tape.pick((None, None, None, InMemoryCache(), Raises(tape))),
            tool=ToolConfig(cache=Raises(tape) if some(6) else None, compress_results=some(8), compress_threshold=100),
            budget=RaisingBudget(tape) if some(4) else None,
            max_total_tokens=20 if some(6) else None,
            observers=self._observers(),
            enable_analytics=some(4),
            guardrails=self._guardrails() if some(4) else None,
            coherence=self._coherence(is_wanted=some(6), fail_closed=some(2)),
            routing_only=some(12),
            stop_condition=_stop_condition(tape) if some(6) else None,
            model_selector=_model_selector(tape) if some(6) else None,
            confirm_action=_confirm(tape) if some(2) else None,
            tool_policy=ToolPolicy(review=["echo"], deny=["aecho"]) if some(6) else None,
            **self._memories(),
        )  # fmt: skip

    def _observers(self) -> list[Any]:
        tape = self._tape
        more = (Heckler(tape), AsyncHeckler(tape), AsyncHeckler(tape, blocking=True))
        return [self._recorder, *(observer for observer in more if tape.rarely(4))]

    def _coherence(self, *, is_wanted: bool, fail_closed: bool) -> CoherenceCheck | None:
        if not is_wanted:
            return None
        return CoherenceCheck(provider=self._side, model="side", fail_closed=fail_closed)

    def _guardrails(self) -> GuardrailsPipeline:
        guards = [Doubter(self._tape)]
        return GuardrailsPipeline(*self._tape.pick(((guards, []), ([], guards), (guards, guards))))

    def _memories(self) -> dict[str, Any]:
        some, side = self._tape.rarely, self._side
        session = {"session_store": InMemorySessionStore(), "session_id": "s"} if some(6) else {}
        summary = (
            {"summarize_on_trim": True, "summarize_provider": side, "summarize_model": "side"}
            if some(4)
            else {}
        )
        entities = {"entity_memory": EntityMemory(side, "side")} if some(6) else {}
        graph = {"knowledge_graph": KnowledgeGraphMemory(side, "side")} if some(8) else {}
        return {**session, **summary, **entities, **graph}


async def _settled() -> None:
    await wait_for_observers()
    await asyncio.sleep(0)


def _stop_condition(tape: Tape) -> Callable[[str, str], Any]:
    def stop(name: str, result: str) -> Any:
        if tape.rarely(3):
            raise ValueError(name)
        return tape.rarely(3)

    return stop


def _model_selector(tape: Tape) -> Callable[..., Any]:
    def select(step: int, calls: Any, usage: Any) -> Any:
        if tape.rarely(3):
            raise LookupError(step)
        return tape.pick(("small", "large", "", None))

    return select


def _confirm(tape: Tape) -> Callable[..., Any]:
    async def confirm(name: str, args: Any, reason: str) -> Any:
        if tape.rarely(3):
            raise tape.pick((OSError, SystemExit, asyncio.CancelledError))
        if tape.rarely(3):
            await asyncio.Event().wait()
        return tape.pick((True, False, "yes"))

    return confirm
