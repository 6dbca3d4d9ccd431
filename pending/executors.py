"""Executors: what runs a confirmed action, by kind, and the typed results that tools return."""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from pydantic_core import to_json

from sayso.pending.action import Executor, PendingAction
from sayso.pending.context import call_context

log = logging.getLogger(__name__)

#: The prefix of the kinds of actions that undo other actions.
UNDO_PREFIX = "sayso:undo:"

#: Rebuilds the executor of a confirmed action from its record alone; None when the action must not run any more.
ExecutorFactory = Callable[[PendingAction], Executor | None]
#: Finds out how an interrupted action ended; sync or async. True, or a text for the user: it took effect. False: it
#: certainly did not. None: that is not known.
Reconciler = Callable[[PendingAction], Any]


class Executors:
    """The executor factories by kind, and the closures of this process as a shortcut. Lives as long as its store."""

    def __init__(self, *, max_closures: int = 5000) -> None:
        self._factories: dict[str, ExecutorFactory] = {}
        self._tool_factories: dict[str, ExecutorFactory] = {}
        self._removed_tools: set[str] = set()
        self._reconcilers: dict[str, Reconciler] = {}
        self._undo_seconds: dict[str, float] = {}
        self._closures: OrderedDict[str, Executor] = OrderedDict()
        self._max_closures = max_closures
        self._refresh_kind: Callable[[str], None] = lambda kind: None
        self._may_run: Callable[[PendingAction], bool] = lambda action: True
        self._wrap: Callable[[PendingAction, Executor], Executor] = lambda action, executor: executor

    def set_callbacks(
        self,
        *,
        refresh: Callable[[str], None],
        may_run: Callable[[PendingAction], bool],
        wrap: Callable[[PendingAction, Executor], Executor],
    ) -> None:
        """Have the agent take part in each use of a kind.

        `refresh` is called with a kind right before the kind is used, so that it can register what has changed. Nothing
        runs for an action that `may_run` refuses, even with an executor of its own. `wrap` wraps each executor before
        it runs.
        """
        self._refresh_kind, self._may_run, self._wrap = refresh, may_run, wrap

    def register(self, kind: str, factory: ExecutorFactory) -> None:
        """Let `factory` rebuild the executors of this kind. It takes precedence over a tool of that name."""
        self._factories[kind] = factory

    def register_tool(self, kind: str, factory: ExecutorFactory) -> None:
        """Let `factory` run the tool of that name, unless another factory is registered for this kind."""
        self._tool_factories[kind] = factory
        self._removed_tools.discard(kind)

    def register_reconciler(self, kind: str, reconcile: Reconciler) -> None:
        """Let `reconcile` find out how an interrupted action of this kind ended."""
        self._reconcilers[kind] = reconcile

    def register_undo(self, kind: str, factory: ExecutorFactory, seconds: float) -> None:
        """Let actions of this kind be undone for `seconds`. `factory` rebuilds the executor that undoes one."""
        self._undo_seconds[kind] = seconds
        self._tool_factories[undo_kind(kind)] = factory

    def remove_tool(self, kind: str) -> None:
        """Run, undo and reconcile nothing of this kind until a tool of that name is registered again."""
        for registry in (self._tool_factories, self._reconcilers, self._undo_seconds):
            registry.pop(kind, None)
        self._tool_factories.pop(undo_kind(kind), None)
        self._removed_tools.add(kind)

    def keep_closure(self, pending_action_id: str, executor: Executor) -> None:
        """Keep a closure while there is room. Once it is gone, the factory is used."""
        self._closures[pending_action_id] = executor
        while len(self._closures) > self._max_closures:
            self._closures.popitem(last=False)

    def take(self, action: PendingAction) -> Executor | None:
        """Return the executor of an action: its closure if there is one, else a rebuilt one. None: it cannot run."""
        self._refresh(action.kind)
        closure = self._closures.pop(action.pending_action_id, None)
        if action.kind.removeprefix(UNDO_PREFIX) in self._removed_tools:
            return None
        try:
            if not self._may_run(action):
                return None
            factory = self._factories.get(action.kind) or self._tool_factories.get(action.kind)
            executor = closure if closure is not None or factory is None else factory(action)
            return None if executor is None else self._wrap(action, executor)
        except Exception:  # a factory is user code, and nothing has happened yet
            log.exception("pending.factory_failed", extra={"kind": action.kind, "pending": action.pending_action_id})
            return None

    def reconciler(self, kind: str) -> Reconciler | None:
        """Return the reconciler of this kind."""
        self._refresh(kind)
        return self._reconcilers.get(kind)

    def undo_seconds(self, kind: str) -> float:
        """Return for how long an action of this kind can be undone, 0 when it cannot."""
        self._refresh(kind)
        return self._undo_seconds.get(kind, 0.0)

    def _refresh(self, kind: str) -> None:
        self._refresh_kind(kind.removeprefix(UNDO_PREFIX))


def undo_kind(kind: str) -> str:
    """Return the kind of the action that undoes one of this kind."""
    return UNDO_PREFIX + kind


class EffectFailed(Exception):
    """Raised by an executor that failed and says why in a text for the user."""


def words_for_person(error: BaseException) -> str:
    """Return what an executor's error says to the user; "" for an unexpected error, whose text stays private.

    EffectFailed says its own text. Errors of other packages (`agent.ToolError`) have an attribute of this name.
    """
    return str(error) if isinstance(error, EffectFailed) else str(getattr(error, "words_for_person", ""))


def idempotency_key() -> str:
    """Return a key for services that support idempotency: the same when an effect is repeated after a crash.

    For a confirmed action it is the action's id. For a tool that a model called in a worker's turn it is a hash of the
    turn, the call and its arguments. Outside of both it is "".
    """
    return call_context().idempotency_key


@dataclass(frozen=True)
class ToolResult:
    """Base of typed results. Subclasses are frozen dataclasses that set `kind`."""

    kind: ClassVar[str] = "result"

    def to_json(self) -> str:
        """Return the result as the model sees it: `kind` first, then the fields. Results inside it look the same."""
        return as_json(self)


@dataclass(frozen=True)
class Ambiguous(ToolResult):
    """Several things match `query`. `matches` lets the model ask which one is meant."""

    kind: ClassVar[str] = "ambiguous"

    entity: str = ""
    query: str = ""
    matches: list[Any] = field(default_factory=list)

    @property
    def in_words(self) -> str:
        """Return what the user is told."""
        plural = self.entity or "thing"
        if re.search(r"[^aeiou]y$", plural):
            plural = plural[:-1] + "ies"
        else:
            plural += "es" if plural.endswith(("s", "x", "ch", "sh")) else "s"
        matches = "; ".join(json_as_text(_jsonable(match)) for match in self.matches)
        return f'Several {plural} match "{self.query}": {matches}: which one?'


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

    A tool's own `user_prompt` is shown below the preview. The default one is shown in the user's language.
    """

    kind: ClassVar[str] = "pending_confirmation"

    action: str = ""
    preview: str = ""
    user_prompt: str = "Reply 'yes' to confirm or 'no' to cancel."

    @property
    def own_prompt(self) -> str:
        """Return the tool's own prompt, "" when it is the default one."""
        return "" if self.user_prompt == PendingConfirmation.user_prompt else self.user_prompt.strip()


def as_json(value: Any) -> str:
    """Return a value as JSON text, including dates, models, sets and typed results. NaN and infinity become strings."""
    try:
        return _encode(value)
    except (TypeError, ValueError):  # a NaN, or a key that is no text
        return _encode(_jsonable(value))


def _encodable(value: Any) -> Any:
    if isinstance(value, ToolResult):
        return {"kind": type(value).kind, **{each.name: getattr(value, each.name) for each in fields(value)}}
    return _jsonable(value)


def _jsonable(value: Any) -> Any:
    return json.loads(to_json(value, fallback=str, inf_nan_mode="strings"))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_encodable).encode


def json_as_text(value: Any) -> str:
    """Return a JSON value as text for people."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {json_as_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(json_as_text(item) for item in value) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
