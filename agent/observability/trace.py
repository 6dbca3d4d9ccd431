"""AgentTrace: the steps of one run (seed).

RunEvents: records these steps and reports the events to observers.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
import traceback
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from sayso.agent.messages import NO_USAGE, UsageStats, countable
from sayso.agent.observability.observer import EVENTS, AgentObserver, AsyncAgentObserver, LlmCall
from sayso.agent.observability.otel import trace_spans
from sayso.infra.concurrency import await_isolated
from sayso.infra.ids import random_id
from sayso.infra.redaction import redact

log = logging.getLogger(__name__)

#: The seed's fourteen types of steps, and three of ours for a run that ends before its answer.
StepType = Literal[
    "llm_call",
    "tool_selection",
    "tool_execution",
    "cache_hit",
    "error",
    "structured_retry",
    "guardrail",
    "coherence_check",
    "output_screening",
    "session_load",
    "session_save",
    "memory_summarize",
    "entity_extraction",
    "kg_extraction",
    "budget",
    "loop_detected",
    "cancelled",
]


@dataclass(slots=True)
class TraceStep:
    """One step of a run.

    `timestamp` is its start in Unix seconds. A field that does not apply to the step is None.

    `summary` is the `given_summary`, or made of the other fields.
    """

    type: StepType
    timestamp: float = field(default_factory=time.time)
    duration_ms: float = 0.0
    given_summary: str = ""
    tool_name: str | None = None
    tool_args: Mapping[str, Any] | None = None
    tool_result: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    reasoning: str | None = None
    error: str | None = None
    provider: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None

    @property
    def summary(self) -> str:
        """Return the step as text."""
        name = self.tool_name or self.model
        if self.given_summary:
            return self.given_summary
        if self.error:
            if name:
                return f"{name}: {self.error}"
            return self.error
        match self.type:
            case "llm_call" | "cache_hit":
                model = self.model or "model"
                tokens = f"{self.prompt_tokens} + {self.completion_tokens or 0} tokens"
                if self.prompt_tokens is None:
                    return model
                return f"{model}: {tokens}"
            case "tool_selection":
                return f"{self.tool_name}({', '.join(self.tool_args or ())})"
            case "tool_execution":
                if self.tool_result is not None:
                    return f"{self.tool_name}: {self.tool_result}"
                return f"{self.tool_name}"
            case _:
                return self.tool_result or name or self.type.replace("_", " ")

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data, without the fields that are None.

        Arguments are as the model gave them.
        """
        given = {
            name: value for name in self.__slots__ if (value := getattr(self, name)) is not None
        }
        del given["given_summary"]
        return {**given, "summary": self.summary}


@dataclass(slots=True)
class AgentTrace:
    """The steps of one run, in the order in which they ended. `start_time` is in Unix seconds."""

    #: 32 hexadecimal digits, so that it is also a valid trace id of OpenTelemetry.
    run_id: str = field(default_factory=random_id)
    parent_run_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    steps: list[TraceStep] = field(default_factory=list)
    start_time: float = field(default_factory=time.time)

    def __iter__(self) -> Iterator[TraceStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        return True  # also without steps

    def add(self, step: TraceStep) -> None:
        """Append a step."""
        self.steps.append(step)

    def filter(self, type: StepType) -> list[TraceStep]:
        """Return the steps of one type."""
        return [step for step in self.steps if step.type == type]

    @property
    def total_duration_ms(self) -> float:
        """Milliseconds from the start of the run to the end of its last step."""
        return max((self._offset_ms(step) + step.duration_ms for step in self.steps), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as plain data."""
        return {
            "run_id": self.run_id,
            "parent_run_id": self.parent_run_id,
            "metadata": dict(self.metadata),
            "start_time": self.start_time,
            "total_duration_ms": self.total_duration_ms,
            "steps": [step.to_dict() for step in self.steps],
        }

    def to_json(self, filepath: str | Path) -> None:
        """Write the trace to a JSON file; values that JSON cannot hold are written as their `str`.

        Raise OSError.
        """
        Path(filepath).write_text(
            json.dumps(self.to_dict(), indent=2, default=str), encoding="utf-8"
        )

    def timeline(self) -> str:
        """Return one line of text for each step: its start, type, duration and summary."""
        lines = [f"run {self.run_id}: {len(self)} steps in {self.total_duration_ms:.1f} ms"]
        for step in self.steps:
            summary = " ".join(step.summary.split())
            line = f"{self._offset_ms(step):+10.1f} ms  {step.type:<17} {step.duration_ms:9.1f} ms  {summary}"
            lines.append(line.rstrip())
        return "\n".join(lines)

    def _offset_ms(self, step: TraceStep) -> float:
        return max(0.0, (step.timestamp - self.start_time) * 1000)

    def to_otel_spans(self, *, include_content: bool = False) -> list[dict[str, Any]]:
        """Return the run and its steps as OpenTelemetry spans in plain data, the run first.

        Times are Unix nanoseconds.

        The span of a nested run has the parent run's trace id and is a child of the parent's span.
        Arguments, results and the texts of errors are included only with `include_content`.
        """
        return trace_spans(self, include_content=include_content)


#: How many events non-blocking observers may be working on in this process;
#: further events are dropped for them.
MAX_BACKGROUND_EVENTS = 10_000
#: Tasks of non-blocking observers. They are kept here because an event
#: loop holds its tasks only weakly.
_background_tasks: set[asyncio.Task[None]] = set()


class RunEvents:
    """The events of one run, created when it begins.

    `side_usage` is what model calls outside the agent loop used.

    With `asynchronous=False` only the sync methods of observers are called. The trace keeps
    `tool_result_chars` characters of each tool result; None keeps all.
    """

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
        self._observers = [(observer, _event_methods(type(observer))) for observer in observers]  # type: ignore[arg-type]  # a class is hashable
        #: The events that an observer handles.
        self._handled = frozenset[str]().union(
            *(_handled_events(methods) for _, methods in self._observers)
        )
        self._asynchronous = asynchronous
        self._tool_result_chars = tool_result_chars
        self._start = time.perf_counter()
        self._logged_failures: set[tuple[int, str]] = set()
        self.trace = AgentTrace(run_id or random_id(), parent_run_id or "", dict(metadata or {}))
        self.side_usage = self._unbilled_usage = NO_USAGE

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
        """Append a step to the trace.

        `began` is a `time.perf_counter()`; without it the duration is 0.

        Raise TypeError for a field that TraceStep does not have.
        """
        now = time.perf_counter()
        start = now if began is None else began
        if tool_result is not None:
            tool_result = redact(tool_result)
            limit = self._tool_result_chars
            if limit is not None and len(tool_result) > limit:
                tool_result = f"{tool_result[:limit]}…"
        step = TraceStep(
            type,
            self.trace.start_time + (start - self._start),
            (now - start) * 1000,
            redact(summary) if summary else "",
            tool_result=tool_result,
            error=None if error is None else redact(error),
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
        """Call `on_side_usage(run_id, usage)` of each observer that has it,
        if a call outside the loop used tokens.
        """
        if usage.total_tokens:
            self.tell_now("side_usage", usage)

    def take_unbilled_usage(self) -> UsageStats:
        """Return the side usage that was added since the last call."""
        usage = self._unbilled_usage
        self._unbilled_usage = NO_USAGE
        return usage

    def has_observer_of(self, *events: str) -> bool:
        """Return whether an observer handles one of these events.

        If none does, callers need not prepare them.
        """
        return not self._handled.isdisjoint(events)

    async def tell(self, event: str, *args: Any) -> None:
        """Call `on_<event>(run_id, *args)` of each observer that overrides it, then `a_on_<event>`.

        Raise only what stops the run itself: its cancellation,
        or a KeyboardInterrupt at the terminal.
        """
        self.tell_now(event, *args)
        for observer, methods in self._observers if self._asynchronous else ():
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
        """Call `on_<event>(run_id, *args)` of each observer that overrides it,
        without an event loop.
        """
        for observer, methods in self._observers:
            if f"on_{event}" in methods:
                self._call(observer, event, args)

    def tell_call(self, call: LlmCall) -> None:
        """Call `on_llm_call(run_id, call)` of each observer that has this method. Raise nothing."""
        for observer, methods in self._observers:
            if "on_llm_call" in methods:
                self._call(observer, "llm_call", (call,))

    def _call(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        try:
            getattr(observer, f"on_{event}")(self.run_id, *args)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # an observer never stops its run
            self._log_failure(observer, event, exc)

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
        if (failure := (id(observer), event)) in self._logged_failures:
            return
        self._logged_failures.add(failure)
        names = {
            "observer": type(observer).__name__,
            "event": event,
            "reason": type(error).__name__,
        }
        log.warning("observer.failed", extra={**names, "at": place_of(error)})


class ObserversOverloaded(Exception):
    """Raised when events arrive faster than non-blocking observers handle them."""


async def wait_for_observers(seconds: float | None = None) -> bool:
    """Wait until the non-blocking observers of this event loop are done.

    Return whether they were done in time.
    """
    loop = asyncio.get_running_loop()
    tasks = {task for task in _background_tasks if task.get_loop() is loop}
    if not tasks:
        return True
    _, unfinished = await asyncio.wait(tasks, timeout=seconds)
    return not unfinished


@lru_cache(maxsize=1024)
def _event_methods(observer: Hashable) -> frozenset[str]:
    """Return the methods of an observer class for events: those that it overrides,
    or all without a base of ours.

    Cached, so that events without a listener cost next to nothing.
    """
    names = {name for event in EVENTS for name in (f"on_{event}", f"a_on_{event}")}
    own = {
        name
        for name in names
        if getattr(observer, name, None) not in (None, getattr(AsyncAgentObserver, name))
    }
    further = {name for name in ("on_llm_call", "on_side_usage") if hasattr(observer, name)}
    return frozenset(own | further)


@lru_cache(maxsize=1024)
def _handled_events(methods: frozenset[str]) -> frozenset[str]:
    """Return the events that these methods handle."""
    return frozenset(name.removeprefix("a_").removeprefix("on_") for name in methods)


def place_of(error: BaseException) -> str:
    """Return the file and line of an error, to log in place of its text,
    which may be personal data.
    """
    frames = [
        (Path(frame.f_code.co_filename).name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if frames:
        return "{}:{}".format(*frames[-1])
    return "?"
