"""RunEvents: reports the events of one run to its observers, and records its trace."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sayso.agent.messages import NO_USAGE, UsageStats, countable
from sayso.agent.observability.observer import EVENTS, AgentObserver, AsyncAgentObserver, LlmCall
from sayso.agent.observability.trace import AgentTrace, StepType, TraceStep
from sayso.channels.redaction import redact
from sayso.channels.types import random_id
from sayso.pending.concurrency import await_isolated

log = logging.getLogger(__name__)

#: How many events non-blocking observers may be working on in this process; further events are dropped for them.
MAX_BACKGROUND_EVENTS = 10_000
#: Tasks of non-blocking observers. They are kept here because an event loop holds its tasks only weakly.
_background_tasks: set[asyncio.Task[None]] = set()


class RunEvents:
    """The events of one run, created when it begins. `side_usage` is what model calls outside the agent loop used.

    With `asynchronous=False` only the sync methods of observers are called. The trace keeps `tool_result_chars`
    characters of each tool result; None keeps all.
    """

    __slots__ = (
        "_asynchronous",
        "_logged_failures",
        "_observers",
        "_start",
        "_tool_result_chars",
        "_unbilled_usage",
        "has_observers",
        "side_usage",
        "trace",
    )

    def __init__(
        self,
        observers: Iterable[AgentObserver] = (),
        *,
        parent_run_id: str | None = "",
        metadata: Mapping[str, Any] | None = None,
        asynchronous: bool = True,
        tool_result_chars: int | None = 200,
        run_id: str = "",
    ) -> None:
        with_events = ((observer, _overridden_events(type(observer))) for observer in observers)  # type: ignore[arg-type]  # a class is hashable
        self._observers = tuple(with_events)
        self.has_observers = bool(self._observers)
        self._asynchronous = asynchronous
        self._tool_result_chars = tool_result_chars
        self._start = time.perf_counter()
        self._logged_failures: set[tuple[int, str]] | None = None
        self.trace = AgentTrace(run_id or random_id(), parent_run_id or "", dict(metadata or {}))
        self.side_usage = self._unbilled_usage = NO_USAGE

    @property
    def run_id(self) -> str:
        """The id of the run, as observers and the trace have it."""
        return self.trace.run_id

    def note(self, type: StepType, *, began: float | None = None, **fields: Any) -> TraceStep:
        """Append a step to the trace and return it. `began` is a `time.perf_counter()`; without it the duration is 0.

        Raise TypeError for a field that TraceStep does not have.
        """
        now = time.perf_counter()
        start = now if began is None else began
        for name in ("error", "summary", "tool_result"):
            if isinstance(text := fields.get(name), str):
                fields[name] = redact(text)
        limit, result = self._tool_result_chars, fields.get("tool_result")
        if limit is not None and result is not None and len(result) > limit:
            fields["tool_result"] = f"{result[:limit]}…"
        timestamp = self.trace.start_time + (start - self._start)
        return self.trace.add(TraceStep(type, timestamp, (now - start) * 1000, **fields))

    def add_side_usage(self, usage: UsageStats) -> None:
        """Add what a model call outside the agent loop used."""
        self.side_usage += countable(usage)
        self._unbilled_usage += countable(usage)

    def take_unbilled_usage(self) -> UsageStats:
        """Return the side usage that was added since the last call."""
        usage, self._unbilled_usage = self._unbilled_usage, NO_USAGE
        return usage

    async def tell(self, event: str, *args: Any) -> None:
        """Call `on_<event>(run_id, *args)` of each observer that overrides it, then `a_on_<event>`.

        Raise only what stops the run itself: its cancellation, or a KeyboardInterrupt at the terminal.
        """
        for observer, events in self._observers:
            if event in events.sync:
                self._call(observer, event, args)
        if self._asynchronous:
            for observer, events in self._observers:
                if event in events.asynchronous:
                    await self._call_async(observer, event, args)

    def tell_call(self, call: LlmCall) -> None:
        """Call `on_llm_call(run_id, call)` of each observer that has this method. Raise nothing."""
        for observer, _ in self._observers:
            if hasattr(type(observer), "on_llm_call"):  # not the instance: its __getattr__ may raise
                self._call(observer, "llm_call", (call,))

    def _call(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        try:
            getattr(observer, f"on_{event}")(self.run_id, *args)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # an observer never stops its run
            self._log_failure(observer, event, exc)

    async def _call_async(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        if getattr(observer, "blocking", False):
            await self._await(observer, event, args)
        elif len(_background_tasks) >= MAX_BACKGROUND_EVENTS:
            self._log_failure(observer, event, ObserversOverloaded(f"{MAX_BACKGROUND_EVENTS} events are in progress"))
        else:
            task = asyncio.get_running_loop().create_task(self._await(observer, event, args))
            _background_tasks.add(task)
            task.add_done_callback(_background_tasks.discard)

    async def _await(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        async def call_method() -> None:
            result = getattr(observer, f"a_on_{event}")(self.run_id, *args)
            if inspect.isawaitable(result):
                await result

        try:
            await await_isolated(call_method())
        except Exception as exc:  # an observer never stops its run
            self._log_failure(observer, event, exc)

    def _log_failure(self, observer: AgentObserver, event: str, error: BaseException) -> None:
        """Log an observer's error, once for each observer and event of a run: most errors repeat."""
        if self._logged_failures is None:
            self._logged_failures = set()
        if (failure := (id(observer), event)) in self._logged_failures:
            return
        self._logged_failures.add(failure)
        names = {"observer": type(observer).__name__, "event": event, "reason": type(error).__name__}
        log.warning("observer.failed", extra={**names, "at": place_of(error)})


class ObserversOverloaded(Exception):
    """Raised when events arrive faster than non-blocking observers handle them."""


async def wait_for_observers(seconds: float | None = None) -> bool:
    """Wait until the non-blocking observers of this event loop are done. Return whether they were done in time."""
    loop = asyncio.get_running_loop()
    tasks = {task for task in _background_tasks if task.get_loop() is loop}
    if not tasks:
        return True
    _, unfinished = await asyncio.wait(tasks, timeout=seconds)
    return not unfinished


@dataclass(frozen=True, slots=True)
class _OverriddenEvents:
    """The events whose methods an observer class overrides."""

    sync: frozenset[str]
    asynchronous: frozenset[str]


@lru_cache(maxsize=1024)
def _overridden_events(observer: Hashable) -> _OverriddenEvents:
    """Return the events of an observer class. Cached, so that events without a listener cost next to nothing."""
    return _OverriddenEvents(
        _overridden(observer, AgentObserver, "on_"), _overridden(observer, AsyncAgentObserver, "a_on_")
    )


def _overridden(observer: Hashable, base: type, prefix: str) -> frozenset[str]:
    """Return the events that a class overrides; all that it has methods for, if it does not derive from `base`."""
    methods = {event: f"{prefix}{event}" for event in EVENTS}
    return frozenset(
        event for event, name in methods.items() if getattr(observer, name, None) not in (None, getattr(base, name))
    )


def place_of(error: BaseException) -> str:
    """Return the file and line of an error, to log in place of its text, which may be personal data."""
    frames = [(Path(frame.f_code.co_filename).name, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return "{}:{}".format(*frames[-1]) if frames else "?"
