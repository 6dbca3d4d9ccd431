"""Injection: what the program itself hands a tool's function, out of every model's sight."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NoReturn

from sayso.agent.tools.errors import LEAVES, ToolExecutionError
from sayso.pending.context import with_context
from sayso.pending.proposals import current_context

#: Says what to inject now: a mapping or None, or a context manager or generator of one, closed after the call. It may
#: have one ToolContext parameter.
Injector = Callable[..., Any]


class Injected(Mapping[str, Any]):
    """Values by name that nobody can change, and that no log and no record shows."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<injected: {', '.join(self._values) or 'nothing'}>"

    def __copy__(self) -> Injected:
        return self

    def __deepcopy__(self, _: Any) -> Injected:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("what is injected into a tool cannot be pickled: it may be secret")


class Injection:
    """What is injected into one tool: `fixed` values, and what its author's injector returns at each call.

    A name that was injected once, and what is `unfillable` by a model, stays hidden for as long as the program lives:
    an injector that leaves a name out does not hand it to the model.
    """

    def __init__(
        self, tool_name: str, fixed: Mapping[str, Any], injector: Injector | None, unfillable: Collection[str] = ()
    ) -> None:
        self._tool_name = tool_name
        self._fixed = dict(fixed)
        self._injector = injector
        self._hidden = {*fixed, *unfillable}
        self._asked = injector is None

    def hidden(self) -> frozenset[str]:
        """The names that no model fills; the first time, the injector is asked. Raises ToolExecutionError."""
        if not self._asked:
            self.values()
        return frozenset(self._hidden)

    def values(self) -> dict[str, Any]:
        """Return what is injected now, and close it at once. Raises ToolExecutionError like `opened`."""
        with self.opened() as values:
            return values

    @contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """Yield what is injected now; what the injector opened is closed afterwards.

        An injector returns a mapping or None, or a context manager that yields one; a generator function that yields
        one is taken for a context manager. One with a ToolContext parameter is told who speaks. Raises
        ToolExecutionError when it fails, or returns something else. An error of the tool that the context manager
        swallows is raised all the same: a failed call is never taken for one that is done.
        """
        if self._injector is None:
            yield self._fixed
            return
        failure: BaseException | None = None
        with ExitStack() as stack:
            try:
                returned = self._injector(**with_context(self._injector, current_context))
                manager = _manager_of(returned)
                if manager is not None:
                    returned = stack.enter_context(manager)
                current = {} if returned is None else dict(returned) if isinstance(returned, Mapping) else None
            except (Exception, *LEAVES) as exc:
                raise ToolExecutionError(
                    f"the config_injector of {self._tool_name!r} failed: {type(exc).__name__}: {exc}",
                    tool_name=self._tool_name, error=exc,
                ) from exc  # fmt: skip
            if current is None or not all(isinstance(name, str) for name in current):
                if inspect.iscoroutine(returned):
                    returned.close()  # which nobody waits for
                raise ToolExecutionError(
                    f"the config_injector of {self._tool_name!r} returned a {type(returned).__name__}: "
                    "return a dict of names and values, or None",
                    tool_name=self._tool_name,
                )
            self._hidden.update(current)
            self._asked = True
            try:
                yield {**self._fixed, **current}
            except BaseException as exc:
                failure = exc
                raise
        if failure is not None:
            raise failure


def _manager_of(returned: Any) -> AbstractContextManager[Any] | None:
    """Return the context manager that an injector returned, or that its generator is; None for anything else."""
    if inspect.isgenerator(returned):
        return contextmanager(lambda: returned)()
    return returned if isinstance(returned, AbstractContextManager) else None
