"""What runs a confirmed action, by kind; ToolResult, NotFound, Ambiguous."""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from pydantic_core import to_json

from sayso.pending.action import Executor, PendingAction
from sayso.pending.concurrency import installed


@dataclass(frozen=True)
class ToolResult:
    """Base of typed results. Subclasses are frozen dataclasses that set `kind`."""

    kind: ClassVar[str] = "result"

    def to_json(self) -> str:
        """The result as the model sees it: `kind` first, then the fields, and so for each result inside it."""
        return as_json(self)


def as_json(value: Any) -> str:
    """A value as JSON text: dates, models, sets and typed results, too. Numbers that JSON lacks are words."""
    try:
        return _written(value)
    except (TypeError, ValueError):  # a NaN, or a key that is no text
        return _written(_jsonable(value))


def _plain(value: Any) -> Any:
    if isinstance(value, ToolResult):
        return {"kind": type(value).kind, **{each.name: getattr(value, each.name) for each in fields(value)}}
    return _jsonable(value)


def _jsonable(value: Any) -> Any:
    return json.loads(to_json(value, fallback=str, inf_nan_mode="strings"))


_written = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode


@dataclass(frozen=True)
class Ambiguous(ToolResult):
    """Several things match `query`; `matches` lets the model ask which."""

    kind: ClassVar[str] = "ambiguous"

    entity: str = ""
    query: str = ""
    matches: list[Any] = field(default_factory=list)

    @property
    def in_words(self) -> str:
        """What a person is told of it."""
        matches = "; ".join(plain(_jsonable(match)) for match in self.matches)
        return f'Several {_plural(self.entity or "thing")} match "{self.query}": {matches}: which one?'


@dataclass(frozen=True)
class NotFound(ToolResult):
    """This tool saw no match for `query`, here and now. It does not claim that none exists."""

    kind: ClassVar[str] = "not_found"

    entity: str = ""
    query: str = ""

    @property
    def in_words(self) -> str:
        """What a person is told of it."""
        return f'I found no {self.entity or "match"} for "{self.query}".'


@dataclass(frozen=True)
class PendingConfirmation(ToolResult):
    """The tool did nothing yet: `preview` waits for the user's yes.

    A `user_prompt` of the tool's own is shown below the preview. The default one is said in the person's language.
    """

    kind: ClassVar[str] = "pending_confirmation"

    action: str = ""
    preview: str = ""
    user_prompt: str = "Reply 'yes' to confirm or 'no' to cancel."

    @property
    def own_prompt(self) -> str:
        """The tool's own words below the preview; "" where it gave none."""
        return "" if self.user_prompt == PendingConfirmation.user_prompt else self.user_prompt.strip()


def plain(value: Any) -> str:
    """A JSON value in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _plural(noun: str) -> str:
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


#: Rebuilds what a confirmed action runs, from its record alone; None when it must not run any more.
ExecutorFactory = Callable[[PendingAction], Executor | None]


log = logging.getLogger(__name__)


#: How the kinds of actions begin that take others back.
UNDO_PREFIX = "sayso:undo:"


class EffectFailed(Exception):
    """Raised by an executor that knows how it failed, and has said so in words: there is no place in it to look for."""


def words_for_person(error: BaseException) -> str:
    """Return what an executor's error says to the person; "" for an unexpected one, whose words stay private.

    EffectFailed says it all. Errors of other rooms (`agent.ToolError`) have it in an attribute of this name.
    """
    return str(error) if isinstance(error, EffectFailed) else str(getattr(error, "words_for_person", ""))


#: Asks the world about an action that was interrupted; sync or async. True, or words for the user: it took effect.
#: False: it certainly did not. None: nobody can tell.
Reconciler = Callable[[PendingAction], Any]


_key: ContextVar[str] = ContextVar("sayso_idempotency_key", default="")


def idempotency_key() -> str:
    """What names this one effect: the same whenever it is repeated after a crash, and never another's.

    Of a confirmed action it is its id; of a tool that a model called in a worker's turn, a hash of the turn, the call
    and its arguments. Hand it to services that know idempotency keys. "" where neither is being performed.
    """
    return _key.get()


def performing(action: PendingAction) -> AbstractContextManager[str]:
    """For as long as this lasts, `idempotency_key` is the action's."""
    return keyed(action.pending_action_id)


def keyed(key: str) -> AbstractContextManager[str]:
    """For as long as this lasts, `idempotency_key` is this; "" leaves it as it is."""
    return installed(_key, key or _key.get())


class Executors:
    """Factories by kind, and closures of this process as a short cut. Lives as long as its store."""

    def __init__(self, *, max_closures: int = 5000) -> None:
        self._factories: dict[str, ExecutorFactory] = {}
        self._of_tools: dict[str, ExecutorFactory] = {}
        self._gone: set[str] = set()
        self._reconcilers: dict[str, Reconciler] = {}
        self._undo_seconds: dict[str, float] = {}
        self._closures: OrderedDict[str, Executor] = OrderedDict()
        self._max_closures = max_closures
        self._look_again: Callable[[str], None] | None = None
        self._may_run: Callable[[PendingAction], bool] | None = None
        self._watch: Callable[[PendingAction, Executor], Executor] | None = None

    def keep_fresh(self, look_again: Callable[[str], None]) -> None:
        """From now on `look_again` hears of a kind right before it is used, to register anew what has changed."""
        self._look_again = look_again

    def guard(self, may_run: Callable[[PendingAction], bool]) -> None:
        """From now on nothing runs for an action that `may_run` refuses, whoever registered what would."""
        self._may_run = may_run

    def watch(self, watched: Callable[[PendingAction, Executor], Executor]) -> None:
        """From now on `watched` wraps whatever runs for an action, whoever registered it."""
        self._watch = watched

    def register(self, kind: str, factory: ExecutorFactory) -> None:
        """From now on `factory` rebuilds the executor of this kind, also where a tool of that name would run itself."""
        self._factories[kind] = factory

    def register_tool(self, kind: str, factory: ExecutorFactory) -> None:
        """From now on `factory` runs the tool of that name, where nobody registered another one for this kind."""
        self._of_tools[kind] = factory
        self._gone.discard(kind)

    def register_reconciler(self, kind: str, reconcile: Reconciler) -> None:
        """From now on `reconcile` is asked how an interrupted action of this kind ended."""
        self._reconcilers[kind] = reconcile

    def register_undo(self, kind: str, factory: ExecutorFactory, seconds: float) -> None:
        """From now on actions of this kind can be undone for so long; `factory` rebuilds what undoes one."""
        self._undo_seconds[kind] = seconds
        self._of_tools[undo_kind(kind)] = factory

    def forget(self, kind: str) -> None:
        """From now on nothing runs, undoes or answers for actions of this kind, until a tool of that name is back."""
        for known in (self._of_tools, self._reconcilers, self._undo_seconds):
            known.pop(kind, None)
        self._of_tools.pop(undo_kind(kind), None)
        self._gone.add(kind)

    def keep(self, pending_action_id: str, executor: Executor) -> None:
        """Keep a closure for as long as there is room; the factory serves when it is gone."""
        self._closures[pending_action_id] = executor
        while len(self._closures) > self._max_closures:
            self._closures.popitem(last=False)

    def take(self, action: PendingAction) -> Executor | None:
        """The executor of an action: its closure if it is here, else rebuilt. None when neither can be had."""
        self._freshen(action.kind)
        closure = self._closures.pop(action.pending_action_id, None)
        if action.kind.removeprefix(UNDO_PREFIX) in self._gone:
            return None
        try:
            if self._may_run and not self._may_run(action):
                return None
            factory = self._factories.get(action.kind) or self._of_tools.get(action.kind)
            executor = closure if closure is not None or factory is None else factory(action)
            return executor if executor is None or self._watch is None else self._watch(action, executor)
        except Exception:  # a factory is user code, and nothing has happened yet
            log.exception("pending.factory_failed", extra={"kind": action.kind})
            return None

    def reconciler(self, kind: str) -> Reconciler | None:
        """What can be asked how an action of this kind ended."""
        self._freshen(kind)
        return self._reconcilers.get(kind)

    def undo_seconds(self, kind: str) -> float:
        """For how long an action of this kind can be undone; 0 when it cannot."""
        self._freshen(kind)
        return self._undo_seconds.get(kind, 0.0)

    def _freshen(self, kind: str) -> None:
        if self._look_again:
            self._look_again(kind.removeprefix(UNDO_PREFIX))


def undo_kind(kind: str) -> str:
    """The kind of the action that undoes one of this kind."""
    return UNDO_PREFIX + kind
