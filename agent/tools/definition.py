"""Checks at definition, names, metadata."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType
from typing import TYPE_CHECKING, Any

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.preview import check_preview
from sayso.agent.tools.signature import is_method
from sayso.pending.action import MAX_TTL_SECONDS
from sayso.pending.concurrency import in_thread
from sayso.pending.context import context_parameters, with_context
from sayso.pending.proposals import current_context, stash_pending

if TYPE_CHECKING:
    from sayso.agent.tools.tool import Tool


#: The `source` of tools that write into what an agent remembers.
MEMORY = "memory"


class ToolTag(StrEnum):
    """What tools are commonly told apart by.

    `DESTRUCTIVE` is a hint that a yes is wanted: a policy's `allow` overrules it, which `requires_approval` never is.
    """

    READ_ONLY = "read_only"
    DESTRUCTIVE = "destructive"
    NETWORK = "network"
    FILE_SYSTEM = "file_system"
    SLOW = "slow"
    PRIVILEGED = "privileged"


@dataclass(frozen=True, slots=True)
class ToolMetadata:
    """Hints for whoever runs a tool, and its classification.

    `is_async` is found out by the Tool itself. One that is not `is_concurrency_safe` never runs beside another call of
    the same answer. `timeout` is in seconds, `max_result_size` in characters of what a model reads of one result.
    `think_augment` asks the model for a `toolcall_reason` with each call; None follows the registry. `source` says
    where a tool is from, such as "mcp".
    """

    is_async: bool = False
    is_concurrency_safe: bool = True
    timeout: float | None = None
    tags: AbstractSet[ToolTag] = frozenset()
    custom_tags: AbstractSet[str] = frozenset()
    think_augment: bool | None = None
    max_result_size: int | None = None
    source: str = "native"
    source_detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", frozenset(ToolTag(tag) for tag in self.tags))
        object.__setattr__(self, "custom_tags", frozenset(self.custom_tags))
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout!r} leaves a tool no time: give seconds above 0, or None")
        if self.max_result_size is not None and self.max_result_size < 1:
            raise ValueError(
                f"max_result_size={self.max_result_size!r} leaves nothing to read: give 1 or more, or None"
            )

    @property
    def all_tags(self) -> frozenset[str]:
        """Both kinds of tags, as text."""
        return frozenset(map(str, self.tags)) | frozenset(self.custom_tags)


_SEPARATORS = re.compile(r"[.-]")


#: What vendors let a name be, and a namespace before it.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


#: Stands for what a model made up.
NO_NAME = "(no name)"


def normalise_namespace(namespace: str) -> str:
    """A namespace as it stands in names: `MathOps` and `math ops` are `math_ops`. Raises ToolValidationError."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", namespace)
    made = re.sub(r"[^A-Za-z0-9_]+", "_", snake).strip("_").lower()
    if not made:
        raise ToolValidationError(
            f"namespace {namespace!r} has nothing that a name may have: use letters a-z and digits"
        )
    return made


def base_name(name: str, namespace: str | None, method_name: str | None) -> tuple[str, str]:
    """A name's namespace, "" without one, and the rest of it. What stands before a `-` or `.` is a namespace."""
    if namespace:
        return namespace, method_name or _SEPARATORS.split(name, maxsplit=1)[-1]
    parts = _SEPARATORS.split(name, maxsplit=1)
    existing, base = (parts[0], parts[1]) if len(parts) == 2 else ("", name)
    return existing, method_name or base


def namespaced(namespace: str, base: str, sep: str) -> str:
    """The name of `base` in a namespace."""
    return f"{namespace}{sep}{base}"


def shown_name(name: str) -> str:
    """The name, where it can be one: a model may call its user's words, and they belong in no log."""
    return name if _NAME.fullmatch(name) else NO_NAME


def in_words(name: str) -> str:
    """A name as words: `find_invoice` is `Find invoice`."""
    return re.sub(r"[^A-Za-z0-9]+", " ", name).strip().capitalize()


#: Takes any of the tool's arguments by name, and `result`, the text that the tool returned; sync or async.
Undo = Callable[..., Any]


#: For how many seconds an effect can be undone, unless the tool says otherwise.
UNDO_SECONDS = 300.0


def check_undo(tool_name: str, undo: Undo | None, names: Collection[str]) -> None:
    """Refuse an undo that asks for something nobody can give it."""
    if undo is None:
        return
    known_names = {*names, *context_parameters(undo)}
    unknown = sorted(
        name for name, param in _parameters(undo).items() if name not in known_names and _must_be_given(param)
    )
    if unknown:
        known = sorted({*names, "result"})
        raise ToolValidationError(f"undo of {tool_name!r} needs unknown {unknown!r}; it may take {known!r}")


async def call_undo(undo: Undo, given: Mapping[str, Any]) -> Any:
    """Call it with as much of what is given as it takes."""
    parameters = _parameters(undo)
    kwargs = {name: value for name, value in given.items() if name in parameters}
    kwargs |= with_context(undo, current_context)
    if inspect.iscoroutinefunction(undo):
        return await undo(**kwargs)
    result = await in_thread(lambda: undo(**kwargs))
    return await result if inspect.isawaitable(result) else result


def _parameters(undo: Undo) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(undo).parameters


def _must_be_given(param: inspect.Parameter) -> bool:
    variadic = param.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return param.name != "result" and param.default is inspect.Parameter.empty and not variadic


#: What a tool may be called; a dot is Gemini's alone, and `get_schema` of the others refuses it.
_NAME_of_definition = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_kinds(tool: Tool) -> None:
    """Raise ToolValidationError, with the cure, for what is not of the kind that all that follows relies on."""
    for wrong, cure in (
        (not isinstance(tool.name, str), "a name is text"),
        (not isinstance(tool.description, str), f"its description is {tool.description!r}: give text"),
        (not isinstance(tool.metadata, ToolMetadata), f"its metadata is {tool.metadata!r}: give a ToolMetadata"),
        (
            not isinstance(tool.injected_kwargs, Mapping),
            f"injected_kwargs is a {type(tool.injected_kwargs).__name__}: give a dict of names and values",
        ),
        (_is_uncallable(tool.function), f"its function is {tool.function!r}: give what can be called"),
        (_is_uncallable(tool.callable), f"its callable is {tool.callable!r}: give what can be called"),
        (_is_uncallable(tool.config_injector), "config_injector is asked for values: give a function"),
        (_is_async(tool.config_injector), "its config_injector is async: give a plain function, and await in the tool"),
    ):
        if wrong:
            raise _undefinable(tool, cure)


def check_definition(tool: Tool) -> None:
    """Raise ToolValidationError, with the cure, when the tool could not be called as it says it can."""
    names = [parameter.name for parameter in tool.parameters]
    for wrong, cure in (
        (not _NAME_of_definition.fullmatch(tool.name), "a name is 1 to 64 letters, digits, '_', '-' or '.'"),
        (not tool.description.strip(), "give it a docstring or description=: a model chooses tools by it"),
        (len(set(names)) < len(names), f"a parameter is declared twice in {names!r}"),
        (tool.streaming and not _is_generator(tool.function), "streaming=True needs a function that yields"),
        (
            not 0 < tool.undo_seconds <= MAX_TTL_SECONDS,
            f"undo_seconds is {tool.undo_seconds!r}: at most {MAX_TTL_SECONDS:g}",
        ),
        (
            tool.read_only and bool(tool.proposes),
            "it asks for a yes (stash_pending), and what it asks for changes something: leave read_only out, and say "
            "idempotent=True where a second run does no harm",
        ),
        (not tool.cache_ttl > 0, f"cache_ttl is {tool.cache_ttl!r}: give seconds above 0"),
    ):
        if wrong:
            raise _undefinable(tool, cure)
    if tool.input_schema is not None:
        names = [str(name) for name in tool.input_schema.get("properties", {})]
    elif tool.function is not None:
        _check_signature(tool, names)
    check_preview(tool.name, tool.preview, names)
    check_undo(tool.name, tool.undo, [*names, *tool.injected_kwargs, "result"])


def _check_signature(tool: Tool, names: list[str]) -> None:
    try:
        signature = inspect.signature(tool.function).parameters  # type: ignore[arg-type]  # there is one here
    except (ValueError, TypeError):  # some built-ins have none: their author's parameters are all we know
        return
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in signature.values())
    by_place = [param.name for param in signature.values() if param.kind is inspect.Parameter.POSITIONAL_ONLY]
    unknown = [name for name in names if name not in signature or name in by_place]
    if unknown and not takes_any:
        raise _undefinable(tool, f"its function takes no {unknown!r} by name", unknown)
    given = {*names, *tool.injected_kwargs, *context_parameters(tool.function)}
    if is_method(tool.function):
        given.add(next(iter(signature)))
    unfilled = [
        param.name for param in signature.values() if param.name not in given and _must_be_given_of_definition(param)
    ]
    if unfilled and tool.config_injector is None:
        raise _undefinable(tool, f"nobody fills {unfilled!r}; inject them", unfilled)


def _undefinable(tool: Tool, issue: str, parameters: Sequence[str] = ()) -> ToolValidationError:
    words = f"tool {tool.name!r} cannot be defined: {issue}"
    return ToolValidationError(words, tool_name=tool.name, param_name=", ".join(parameters), issue=issue)


def _is_generator(function: Callable[..., Any] | None) -> bool:
    """Whether it yields, or hands back what does: behind decorators, and in instances that can be called."""
    if function is None:
        return False
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (inspect.unwrap(function), _call_of(function)))


def names_stash_pending(function: Callable[..., Any] | None) -> bool:
    """Return whether the code of a function names `stash_pending`, under whatever name it was imported.

    What it does through another function is not seen: its author declares that with `proposes=True`.
    """
    plain = inspect.unwrap(function) if function is not None else None
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    plain = getattr(plain, "__func__", plain)
    if not inspect.isfunction(plain):
        plain = getattr(_call_of(plain), "__func__", _call_of(plain))
    if not inspect.isfunction(plain):
        return False
    names = set(_names(plain.__code__))
    return "stash_pending" in names or any(plain.__globals__.get(name) is stash_pending for name in names)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global, attribute and closure names that code uses, that of functions inside it included."""
    yield from (*code.co_names, *code.co_freevars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_uncallable(function: Any) -> bool:
    return function is not None and not callable(function)


def _is_async(function: Any) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (function, _call_of(function)))


def _call_of(function: Any) -> Any:
    return getattr(type(function), "__call__", None)  # noqa: B004  # not whether it can be called, but how


def _must_be_given_of_definition(param: inspect.Parameter) -> bool:
    variadic = param.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return param.default is inspect.Parameter.empty and not variadic
