"""Chronicle: what happens in one run, told to its observers and kept as its trace."""

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

from sayso.agent.messages import NO_USAGE, UsageStats
from sayso.agent.observability.observer import EVENTS, AgentObserver, AsyncAgentObserver, LlmCall
from sayso.agent.observability.trace import AgentTrace, StepType, TraceStep, new_run_id
from sayso.agent.observability.usage import countable
from sayso.channels.redaction import redact
from sayso.pending.concurrency import contained

log = logging.getLogger(__name__)

#: Events at a time that observers of this process may still be at work on; those beyond are lost to them.
MOST_UNDER_WAY = 10_000


class RunEvents:
    """Of one run, made when it begins. `side_usage` is what it asked models beside its own loop.

    With `asynchronous=False` only the sync methods of observers are called. Results of tools are kept in the trace up
    to `tool_result_chars` characters; None keeps them whole.
    """

    __slots__ = (
        "_asynchronous", "_began", "_complained", "_keep", "_listeners", "_unpaid", "is_heard", "side_usage", "trace",
    )  # fmt: skip

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
        seen = ((observer, _heard(type(observer))) for observer in observers)  # type: ignore[arg-type]  # a class is hashable
        self._listeners = tuple(seen)
        #: Whether there is anybody to tell.
        self.is_heard = bool(self._listeners)
        self._asynchronous = asynchronous
        self._keep = tool_result_chars
        self._began = time.perf_counter()
        self._complained: set[tuple[int, str]] | None = None
        self.trace = AgentTrace(run_id or new_run_id(), parent_run_id or "", dict(metadata or {}))
        self.side_usage = self._unpaid = NO_USAGE

    @property
    def run_id(self) -> str:
        """The id that observers are given, and the trace has."""
        return self.trace.run_id

    def note(self, type: StepType, *, began: float | None = None, **fields: Any) -> TraceStep:  # noqa: A002  # as in TraceStep
        """Append a step to the trace. `began` is a `time.perf_counter()`; without it, the step took no time.

        Raises TypeError for a field that a step has not.
        """
        now = time.perf_counter()
        since = now if began is None else began
        for name in ("error", "summary", "tool_result"):
            if isinstance(text := fields.get(name), str):
                fields[name] = redact(text)
        if self._keep is not None and (result := fields.get("tool_result")) is not None:
            fields["tool_result"] = _beginning(result, self._keep)
        at = self.trace.start_time + (since - self._began)
        return self.trace.add(TraceStep(type, at, (now - since) * 1000, **fields))

    def spent(self, usage: UsageStats) -> None:
        """Add what a side question to a model cost."""
        self.side_usage += countable(usage)
        self._unpaid += countable(usage)

    def unpaid(self) -> UsageStats:
        """What was added since this was last asked."""
        unpaid, self._unpaid = self._unpaid, NO_USAGE
        return unpaid

    async def tell(self, event: str, *args: Any) -> None:
        """Call `on_<event>(run_id, *args)` of each observer that has it, then `a_on_<event>`.

        Raises nothing but what stops the run itself: its cancellation, and the KeyboardInterrupt of whoever sits at the
        terminal.
        """
        for observer, heard in self._listeners:
            if event in heard.sync:
                self._call(observer, event, args)
        if self._asynchronous:
            for observer, heard in self._listeners:
                if event in heard.asynchronous:
                    await self._reach(observer, event, args)

    def tell_call(self, call: LlmCall) -> None:
        """Tell those who want to know it how a question to a model ended. Raises nothing."""
        for observer, _ in self._listeners:
            if hasattr(type(observer), "on_llm_call"):  # its class is asked: an instance may answer with an error
                self._call(observer, "llm_call", (call,))

    def _call(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        try:
            getattr(observer, f"on_{event}")(self.run_id, *args)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # noqa: BLE001  # who watches must not stop what he watches
            self._complain(observer, event, exc)

    async def _reach(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        if getattr(observer, "blocking", False):
            await self._await(observer, event, args)
        elif len(_under_way) >= MOST_UNDER_WAY:
            self._complain(observer, event, Overburdened(f"{MOST_UNDER_WAY} events are under way"))
        else:
            task = asyncio.get_running_loop().create_task(self._await(observer, event, args))
            _under_way.add(task)
            task.add_done_callback(_under_way.discard)

    async def _await(self, observer: AgentObserver, event: str, args: tuple[Any, ...]) -> None:
        try:
            await contained(_told(getattr(observer, f"a_on_{event}"), (self.run_id, *args)))
        except Exception as exc:  # noqa: BLE001  # who watches must not stop what he watches
            self._complain(observer, event, exc)

    def _complain(self, observer: AgentObserver, event: str, error: BaseException) -> None:
        """Once a run: what fails for one event fails for most that follow."""
        if self._complained is None:
            self._complained = set()
        if (which := (id(observer), event)) in self._complained:
            return
        self._complained.add(which)
        names = {"observer": type(observer).__name__, "event": event, "reason": type(error).__name__}
        log.warning("observer.failed", extra={**names, "at": place_of(error)})


class Overburdened(Exception):
    """Raised when observers are told faster than they can listen."""


async def wait_for_observers(seconds: float | None = None) -> bool:
    """Wait until the observers of this event loop have done what nobody waited for. Whether they have, in time."""
    loop = asyncio.get_running_loop()
    tasks = {task for task in _under_way if task.get_loop() is loop}
    if not tasks:
        return True
    _, late = await asyncio.wait(tasks, timeout=seconds)
    return not late


#: Tasks that nobody waits for: a loop keeps none alive by itself.
_under_way: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class _Heard:
    """The events that a class of observers overrides the methods of."""

    sync: frozenset[str]
    asynchronous: frozenset[str]


@lru_cache(maxsize=1024)
def _heard(observer: Hashable) -> _Heard:
    """Of a class. Looked up once: telling what nobody overrides costs next to nothing."""
    return _Heard(_overridden(observer, AgentObserver, "on_"), _overridden(observer, AsyncAgentObserver, "a_on_"))


def _overridden(observer: Hashable, base: type, prefix: str) -> frozenset[str]:
    """Whoever is no subclass hears what it has a method for."""
    names = {event: f"{prefix}{event}" for event in EVENTS}
    return frozenset(
        event for event, name in names.items() if getattr(observer, name, None) not in (None, getattr(base, name))
    )


async def _told(method: Any, args: tuple[Any, ...]) -> None:
    answer = method(*args)
    if inspect.isawaitable(answer):
        await answer


def _beginning(result: str, chars: int) -> str:
    return result if len(result) <= chars else f"{result[:chars]}…"


def place_of(error: BaseException) -> str:
    """File and line of an error: its words may be somebody's."""
    frames = [(Path(frame.f_code.co_filename).name, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return "{}:{}".format(*frames[-1]) if frames else "?"
