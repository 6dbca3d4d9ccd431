"""RunEvents: records the steps of a run in its trace, and reports its events to observers.

`note` adds a step to the trace, `tell` calls the observers. An observer never stops its run: its
errors are logged.

The run waits for the sync methods of each observer, and for the async methods of an observer with
`blocking = True`. The async methods of all other observers run in the background.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from sayso.agent.messages import NO_USAGE, UsageStats, countable
from sayso.agent.observability.observer import EVENTS, AgentObserver, AsyncAgentObserver, LlmCall
from sayso.agent.trace import AgentTrace, StepType, TraceStep
from sayso.infra.concurrency import await_isolated
from sayso.infra.ids import random_id
from sayso.infra.redaction import redact

log = logging.getLogger(__name__)

#: How many events the observers of this process may handle in the background at the same time.
#: Further events are not passed to them.
MAX_BACKGROUND_EVENTS = 10_000
#: The tasks of observers in the background. An event loop holds its tasks only weakly, so without this
#: reference they could vanish.
_background_tasks: set[asyncio.Task[None]] = set()


class RunEvents:
    """Tells the observers of one run about its events, and writes its trace.

    Lives as long as the run. It also adds up `side_usage`, which is what model calls outside the
    agent loop used, such as those for a summary.

    * `observers`: those of the agent, in the order in which they are called.
    * `parent_run_id`: the run that started this one, "" for none.
    * `metadata`: what the program wants to have in the trace; None for nothing.
    * `asynchronous`: whether the async methods of observers are called, too.
    * `tool_result_chars`: how many characters of each tool result the trace has; None for all.
    * `run_id`: the id of the run; "" for a new one.
    """

    def __init__(
        self,
        observers: Iterable[AgentObserver] = (),
        *,
        parent_run_id: str = "",
        metadata: Mapping[str, Any] | None = None,
        asynchronous: bool = True,
        tool_result_chars: int | None = 200,
        run_id: str = "",
    ) -> None:
        #: Each observer with the names of its methods for events.
        self._observers: list[tuple[AgentObserver, frozenset[str]]] = []
        for observer in observers:
            # A class is hashable, which mypy does not see.
            methods = _event_methods(type(observer))  # type: ignore[arg-type]
            self._observers.append((observer, methods))
        handled: set[str] = set()
        for _, methods in self._observers:
            handled |= _handled_events(methods)
        #: The events that at least one observer handles.
        self._handled = frozenset(handled)
        self._asynchronous = asynchronous
        self._tool_result_chars = tool_result_chars
        self._start = time.perf_counter()
        #: The ids of observers, each with an event at which it failed. Such a failure is logged
        #: once.
        self._logged_failures: set[tuple[int, str]] = set()
        self.trace = AgentTrace(run_id or random_id(), parent_run_id, dict(metadata or {}))
        self.side_usage = NO_USAGE
        #: The part of the side usage that `take_unbilled_usage` has not returned yet.
        self._unbilled_usage = NO_USAGE

    @property
    def run_id(self) -> str:
        """The id of the run, as observers and the trace have it."""
        return self.trace.run_id

    def note(
        self,
        type: StepType,
        *,
        began: float | None = None,
        summary: str = "",
        tool_result: str | None = None,
        error: str | None = None,
        **fields: Any,
    ) -> None:
        """Append a step to the trace. `fields` are further fields of TraceStep.

        `began` is the `time.perf_counter()` at which the step began; None for a duration of 0. The
        texts are redacted. TraceStep makes a summary of its other fields if `summary` is "". Raise
        TypeError for a field that TraceStep does not have.
        """
        # `start_time` is in Unix seconds, a clock that may be set anew during the run. So what has
        # passed since is measured by `perf_counter`, which has no jumps.
        now = time.perf_counter()
        start = now if began is None else began
        if tool_result is not None:
            tool_result = redact(tool_result)
            limit = self._tool_result_chars
            if limit is not None and len(tool_result) > limit:
                tool_result = f"{tool_result[:limit]}…"
        if error is not None:
            error = redact(error)
        step = TraceStep(
            type,
            timestamp=self.trace.start_time + (start - self._start),
            duration_ms=(now - start) * 1000,
            given_summary=redact(summary) if summary else "",
            tool_result=tool_result,
            error=error,
            **fields,
        )
        self.trace.steps.append(step)

    def add_side_usage(self, usage: UsageStats) -> None:
        """Add what a model call outside the agent loop used, and tell observers."""
        usage = countable(usage)
        self.side_usage += usage
        self._unbilled_usage += usage
        self.tell_side_usage(usage)

    def tell_side_usage(self, usage: UsageStats) -> None:
        """Call `on_side_usage(run_id, usage)` of each observer that has it, if a token was used.

        For usage that the caller adds to the run and the budget itself, as the loop does with what
        its tool calls used. `add_side_usage` does both.
        """
        if usage.total_tokens:
            self.tell_now("side_usage", usage)

    def take_unbilled_usage(self) -> UsageStats:
        """Return the side usage that was added since the last call, for the agent's budget."""
        usage = self._unbilled_usage
        self._unbilled_usage = NO_USAGE
        return usage

    def has_observer_of(self, *events: str) -> bool:
        """Return whether any observer handles one of these events.

        If none does, a caller need not prepare the arguments of the event.
        """
        return not self._handled.isdisjoint(events)

    async def tell(self, event: str, *args: Any) -> None:
        """Call `on_<event>(run_id, *args)` of each observer that overrides it, then `a_on_<event>`.

        The errors of observers are logged. Raise only what stops the run itself: its cancellation,
        or a KeyboardInterrupt at the terminal.
        """
        self.tell_now(event, *args)
        if not self._asynchronous:
            return

        for observer, methods in self._observers:
            if f"a_on_{event}" not in methods:
                continue
            if getattr(observer, "blocking", False):
                await self._await(observer, event, args)
            elif len(_background_tasks) >= MAX_BACKGROUND_EVENTS:
                overload = ObserversOverloaded(f"{MAX_BACKGROUND_EVENTS} events are in progress")
                self._log_failure(observer, event, overload)
            else:
                task = asyncio.get_running_loop().create_task(self._await(observer, event, args))
                _background_tasks.add(task)
                task.add_done_callback(_background_tasks.discard)

    def tell_now(self, event: str, *args: Any) -> None:
        """Call `on_<event>(run_id, *args)` of each observer that overrides it; nothing async.

        Raise only a KeyboardInterrupt at the terminal.
        """
        for observer, methods in self._observers:
            if f"on_{event}" in methods:
                self._call(observer, event, args)

    def tell_call(self, call: LlmCall) -> None:
        """Call `on_llm_call(run_id, call)` of each observer that has this method."""
        self.tell_now("llm_call", call)

    def _call(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        """Call the sync method of an observer. Log its error."""
        try:
            getattr(observer, f"on_{event}")(self.run_id, *args)
        except KeyboardInterrupt:
            raise
        # Also SystemExit, and what some libraries stop their own code with: an observer never stops
        # its run.
        except BaseException as exc:
            self._log_failure(observer, event, exc)

    async def _await(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        """Call the async method of an observer, and wait for it. Log its error."""

        async def call_method() -> None:
            result = getattr(observer, f"a_on_{event}")(self.run_id, *args)
            if inspect.isawaitable(result):
                await result

        try:
            await await_isolated(call_method())
        # `await_isolated` raises Escaped for what would end the process. A cancellation of the run
        # itself passes.
        except Exception as exc:
            self._log_failure(observer, event, exc)

    def _log_failure(self, observer: AgentObserver, event: str, error: BaseException) -> None:
        """Log an observer's error, once for each observer and event of a run, as most repeat."""
        failure = (id(observer), event)
        if failure in self._logged_failures:
            return
        self._logged_failures.add(failure)
        names = {
            "observer": type(observer).__name__,
            "event": event,
            "reason": type(error).__name__,
        }
        log.warning("observer.failed", extra={**names, "at": place_of(error)})


class ObserversOverloaded(Exception):
    """Raised when events arrive faster than the observers in the background handle them."""


async def wait_for_observers(seconds: float | None = None) -> bool:
    """Wait for the observers in the background of this event loop, at most `seconds`.

    None waits without a limit. Return whether they were done in time.
    """
    loop = asyncio.get_running_loop()
    tasks = {task for task in _background_tasks if task.get_loop() is loop}
    if not tasks:
        return True
    _, unfinished = await asyncio.wait(tasks, timeout=seconds)
    return not unfinished


@lru_cache(maxsize=1024)
def _event_methods(observer_class: Hashable) -> frozenset[str]:
    """Return the names of the methods that an observer class has for events.

    Methods that it inherits from AgentObserver or AsyncAgentObserver do not count. Cached, so that
    events without an observer take hardly any time.
    """
    names = {f"on_{event}" for event in EVENTS} | {f"a_on_{event}" for event in EVENTS}
    own = set()
    for name in names:
        inherited = getattr(AsyncAgentObserver, name)
        if getattr(observer_class, name, None) not in (None, inherited):
            own.add(name)
    # Two methods that no base class has: most observers do not need them.
    further = {name for name in ("on_llm_call", "on_side_usage") if hasattr(observer_class, name)}
    return frozenset(own | further)


@lru_cache(maxsize=1024)
def _handled_events(methods: frozenset[str]) -> frozenset[str]:
    """Return the events that these methods handle."""
    return frozenset(name.removeprefix("a_").removeprefix("on_") for name in methods)


def place_of(error: BaseException) -> str:
    """Return the file and line where an error was raised, such as "shop.py:12"; "?" if it was not.

    It is logged in place of the error's text, which may have personal data.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return "?"
    frame, line = frames[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line}"
