"""Executors: what runs a confirmed action, and the typed results that tools return.

A store holds data and no code. So a confirmed action is run by its *executor*: a closure that this
process still has, or what an *executor factory* rebuilds from the stored record.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic_core import to_json

from sayso.pending.action import Executor, PendingAction
from sayso.pending.call_context import call_context
from sayso.pending.json_words import in_line

log = logging.getLogger(__name__)

#: The prefix of the kinds of actions that undo other actions.
UNDO_PREFIX = "sayso:undo:"

#: Rebuilds the executor of a confirmed action from its record alone;
#: None when the action must not run any more.
ExecutorFactory = Callable[[PendingAction], Executor | None]
#: Finds out how an interrupted action ended; sync or async. It returns True or a text for the user
#: if the action took effect, False if it certainly did not, and None if that is not known.
Reconciler = Callable[[PendingAction], Any]


class ActionExecutor(NamedTuple):
    """What performs a confirmed action."""

    run: Executor
    #: Whether it says itself where its effect begins. If not, the effect begins with the call.
    marks_effect: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the tool of an action compares with the one that its user was shown."""

    #: `gone`: nothing may run the action any more, such as after its tool was removed or denied.
    #: `unknown`: it could not be found out.
    state: Literal["same", "changed", "gone", "unknown"]
    #: What the preview says by now in place of a question, for the user; "" if it is a question.
    why: str = ""


class ActionKinds:
    """What a store knows of each kind of action. This class knows no tools.

    `ToolExecutors` of an agent is the subclass that does. A program may also have registered code
    for a kind, and a process may hold a closure of an action. Each method gets that as `own`, None
    if there is none. It takes precedence over a tool.
    """

    def executor(self, action: PendingAction, own: ExecutorFactory | None) -> ActionExecutor | None:
        """Return what performs a confirmed action now, None if nothing may.

        Raises what the author of `own` or of a tool may raise.
        """
        if own is None:
            return None
        run = own(action)
        if run is None:
            return None
        return ActionExecutor(run)

    async def compare(self, action: PendingAction, *, render: bool, has_own: bool) -> Comparison:
        """Compare the tool of an action with the one that was shown. Raises nothing.

        `render`: make its preview again, and compare that as well. `has_own`: something else than a
        tool can run the action.
        """
        if has_own:
            return Comparison("same")
        return Comparison("gone")

    def reconciler(self, kind: str, own: Reconciler | None) -> Reconciler | None:
        """Return what finds out how interrupted actions of this kind ended, None for nothing."""
        return own

    def undo_seconds(self, kind: str) -> float:
        """Return for how long an action of this kind can be undone, 0 when it cannot."""
        return 0.0


class Executors:
    """The executor factories by kind, and the closures of this process as a shortcut.

    Lives as long as its store. `max_closures` is how many closures are held: each may hold memory
    of its tool, and most actions are never confirmed.
    """

    def __init__(self, *, max_closures: int = 5000) -> None:
        #: An agent that uses this store puts its ToolExecutors here.
        self.kinds = ActionKinds()
        self._factories: dict[str, ExecutorFactory] = {}
        self._reconcilers: dict[str, Reconciler] = {}
        self._closures: OrderedDict[str, Executor] = OrderedDict()
        self._max_closures = max_closures

    def register(self, kind: str, factory: ExecutorFactory) -> None:
        """Let `factory` rebuild the executors of this kind.

        It takes precedence over a tool of that name.
        """
        self._factories[kind] = factory

    def register_reconciler(self, kind: str, reconcile: Reconciler) -> None:
        """Let `reconcile` find out how an interrupted action of this kind ended.

        It takes precedence over a tool's.
        """
        self._reconcilers[kind] = reconcile

    def keep_closure(self, pending_action_id: str, executor: Executor) -> None:
        """Hold the closure of an action while there is room. The oldest one has to go first.

        Once it is gone, the factory of the action's kind is used.
        """
        self._closures[pending_action_id] = executor
        while len(self._closures) > self._max_closures:
            self._closures.popitem(last=False)

    def take(self, action: PendingAction) -> ActionExecutor | None:
        """Return the executor of an action: its closure if there is one, else a rebuilt one.

        None if the action cannot run. A closure is returned once. It never marks its effect: only a
        factory can declare that (`executor_factory`).
        """
        own = self._factories.get(action.kind)
        closure = self._closures.pop(action.pending_action_id, None)
        if closure is not None:
            own = _returning(closure)

        try:
            executor = self.kinds.executor(action, own)
            if executor is not None and getattr(own, "__sayso_marks_effect__", False):
                return executor._replace(marks_effect=True)
            return executor
        # A factory is user code, and nothing has happened yet.
        except Exception:
            log.exception(
                "pending.factory_failed",
                extra={"kind": action.kind, "action": action.pending_action_id},
            )
            return None

    async def compare(self, action: PendingAction, *, render: bool) -> Comparison:
        """Compare the tool of an action with the one that was shown. Raises nothing.

        `render`: make its preview again, and compare that as well.
        """
        has_own = action.pending_action_id in self._closures or action.kind in self._factories
        return await self.kinds.compare(action, render=render, has_own=has_own)

    def reconciler(self, kind: str) -> Reconciler | None:
        """Return what finds out how interrupted actions of this kind ended, None for nothing."""
        return self.kinds.reconciler(kind, self._reconcilers.get(kind))

    def undo_seconds(self, kind: str) -> float:
        """Return for how long an action of this kind can be undone, 0 when it cannot."""
        return self.kinds.undo_seconds(kind)


def _returning(closure: Executor) -> ExecutorFactory:
    """Return a factory for one action, whose executor is this closure."""

    def factory(_: PendingAction) -> Executor:
        return closure

    return factory


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What an executor may return, if the user and a model read different texts."""

    #: What the user is told.
    text: str
    #: What a model reads.
    output: str


class EffectFailed(Exception):
    """Raised by an executor that failed and says why in a text for the user."""


def idempotency_key() -> str:
    """Return a key for services that support idempotency.

    It is the same when an effect is repeated after a crash. For a confirmed action it is the action's id. For a tool that a model called in a worker's turn
    it is a hash of the turn, the call and its arguments. Outside of both it is "".
    """
    return call_context().idempotency_key


@dataclass(frozen=True)
class ToolResult:
    """Base of typed results. Subclasses are frozen dataclasses that set `kind`."""

    kind: ClassVar[str] = "result"

    def to_json(self) -> str:
        """Return the result as the model sees it: `kind` first, then the fields.

        Results inside it look the same.
        """
        return as_json(self)


@dataclass(frozen=True)
class Ambiguous(ToolResult):
    """Several things match `query`. `matches` lets the model ask which one is meant."""

    kind: ClassVar[str] = "ambiguous"

    #: The kind of thing, in the singular, such as "invoice".
    entity: str = ""
    #: What was searched for.
    query: str = ""
    #: The things, each of any type that JSON can describe.
    matches: list[Any] = field(default_factory=list)

    @property
    def in_words(self) -> str:
        """Return what the user is told."""
        plural = _plural(self.entity or "thing")
        matches = "; ".join(in_line(_jsonable(match), everything=True) for match in self.matches)
        return f'Several {plural} match "{self.query}": {matches}: which one?'


def _plural(noun: str) -> str:
    """Return the regular plural of an English noun."""
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    return f"{noun}s"


@dataclass(frozen=True)
class NotFound(ToolResult):
    """The tool found no match for `query` here and now. It does not claim that none exists."""

    kind: ClassVar[str] = "not_found"

    entity: str = ""
    query: str = ""

    @property
    def in_words(self) -> str:
        """Return what the user is told."""
        return f'I found no {self.entity or "match"} for "{self.query}".'


@dataclass(frozen=True)
class PendingConfirmation(ToolResult):
    """The tool has done nothing yet: `preview` waits for the user's yes.

    A tool's own `user_prompt` is shown below the preview.
    The default one is shown in the user's language.
    """

    kind: ClassVar[str] = "pending_confirmation"

    #: The kind of the pending action.
    action: str = ""
    preview: str = ""
    user_prompt: str = "Reply 'yes' to confirm or 'no' to cancel."

    @property
    def own_prompt(self) -> str:
        """Return the tool's own prompt, "" when it is the default one."""
        if self.user_prompt == PendingConfirmation.user_prompt:
            return ""
        return self.user_prompt.strip()


def as_json(value: Any) -> str:
    """Return a value as JSON text, including dates, models, sets and typed results.

    NaN and infinity become strings.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError):  # a NaN, or a key that is no text
        return _encode(_jsonable(value))


def _encodable(value: Any) -> Any:
    """Return a value that the encoder of the standard library cannot encode, as one that it can."""
    if isinstance(value, ToolResult):
        result = {"kind": type(value).kind}
        for each in fields(value):
            result[each.name] = getattr(value, each.name)
        return result
    return _jsonable(value)


def _jsonable(value: Any) -> Any:
    return json.loads(to_json(value, fallback=str, inf_nan_mode="strings"))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_encodable).encode
