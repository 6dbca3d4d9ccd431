"""The parameters of a tool, inferred from a function's signature, type hints and docstring."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import docstring_parser
from pydantic import Field
from pydantic.fields import FieldInfo

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.parameter import (
    Parameters,
    ToolParameter,
    default_description,
    is_union,
    may_be_none,
)
from sayso.pending.tool_context import is_context, own_function

#: Most characters of a wrong value in an error.
MAX_SHOWN = 40
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_function(function: Any) -> None:
    """Raise ToolValidationError, with the cure, for what is no function that a model could call."""
    cure = ""
    if isinstance(function, str):
        cure = f"give options by name, as in @tool(name={function[:MAX_SHOWN]!r})"
    elif inspect.isclass(function):
        methods = "register its methods with ToolRegistry.register_from"
        cure = f"{methods}, or write a function that makes one"
    elif isinstance(function, classmethod):
        cure = "put @classmethod above @tool"
    elif _is_call(function):
        cure = "give the function without calling it"
    elif not callable(function):
        cure = "give a function, with a docstring and type hints"
    if cure:
        raise ToolValidationError(f"no tool can be made of {_kind_of(function)}: {cure}")


def _is_call(value: Any) -> bool:
    """Return whether a value is what a call of an async function or a generator gives."""
    kinds = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
    return any(kind(value) for kind in kinds)


def _kind_of(value: Any) -> str:
    """Return what a value is in a few words: its own text may be long, or private."""
    if inspect.isclass(value):
        return f"the class {value.__name__!r}"
    return f"an object of type {type(value).__name__!r}"


def infer_parameters(
    function: Callable[..., Any],
    metadata: Mapping[str, Mapping[str, Any]],
    descriptions: Mapping[str, str],
    injected: Collection[str] = (),
) -> tuple[ToolParameter, ...]:
    """Return the parameters of a function that a model fills.

    They are not private, variadic, injected or bound by a partial.

    `metadata` overrides descriptions and enums by parameter name, `descriptions` come from the
    docstring. Raises ToolValidationError for a function without a readable signature, for a type
    hint that cannot be resolved, and for an unknown name in `metadata`.
    """
    own = list(_signature(function).items())
    hints = _hints(function)
    hidden = {*injected, *(name for name, hint in hints.items() if is_context(hint))}
    inner = function
    # A call may override what it binds, but a model must not.
    while isinstance(inner, functools.partial):
        hidden |= set(inner.keywords)
        inner = inner.func
    visible = {
        name: param
        for name, param in (own[1:] if is_method(function) else own)
        if not name.startswith("_") and name not in hidden and param.kind not in _VARIADIC
    }
    _check_metadata(function, metadata, visible)
    return tuple(
        _parameter(param, hints.get(name, str), metadata.get(name, {}), descriptions.get(name, ""))
        for name, param in visible.items()
    )


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError) as exc:
        problem = f"no tool can be made of {name_of(function)!r}: Python knows no signature of it"
        made_by_hand = "Tool(name, description, parameters, function)"
        cure = f"write a function with type hints around it, or give {made_by_hand}"
        raise ToolValidationError(f"{problem}; {cure}") from exc


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved hints of the parameters.

    The return type may be one that only type checkers can resolve.
    """
    target = own_function(function)
    annotations = getattr(target, "__annotations__", None) or {}  # that of an AsyncMock is None
    own = {name: hint for name, hint in annotations.items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=own)
    try:
        return typing.get_type_hints(
            holder, getattr(target, "__globals__", {}), include_extras=True
        )
    except Exception as exc:  # text that is no expression, or one that fails in its own way
        raise ToolValidationError(
            f"cannot resolve the type hints of {name_of(function)!r}: {exc}; "
            "define what they name in the function's module, or import it there at run time"
        ) from exc


def _check_metadata(
    function: Callable[..., Any],
    metadata: Mapping[str, Mapping[str, Any]],
    visible: Mapping[str, Any],
) -> None:
    unknown = sorted(set(metadata) - set(visible))
    if unknown:
        has = list(visible)
        raise ToolValidationError(
            f"param_metadata of {name_of(function)!r} names unknown {unknown!r}; it has {has!r}"
        )
    for name, options in metadata.items():
        if not isinstance(options, Mapping):
            cure = f"give a dict such as {{'description': {options!r}}}"
            raise ToolValidationError(
                f"param_metadata[{name!r}] of {name_of(function)!r} is {options!r}: {cure}"
            )


def _parameter(
    param: inspect.Parameter, hint: Any, options: Mapping[str, Any], documented: str
) -> ToolParameter:
    default = param.default
    # `x: int = Field(3, description=...)` means the same as Annotated.
    if isinstance(default, FieldInfo):
        # All but the default.
        kept = (
            "description",
            "discriminator",
            "examples",
            "json_schema_extra",
        )
        annotations = [*default.metadata, Field(**{name: getattr(default, name) for name in kept})]
        hint = typing.Annotated[(hint, *annotations)]
        if default.is_required():
            default = inspect.Parameter.empty
        else:
            default = default.get_default(call_default_factory=True)
    has_default = default is not inspect.Parameter.empty
    own = [
        each.description
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, FieldInfo)
    ]
    of_hint = next(filter(None, reversed(own)), "")
    return ToolParameter(
        name=param.name,
        param_type=hint,
        description=options.get("description", documented)
        or of_hint
        or default_description(param.name),
        required=not has_default and not may_be_none(hint),
        enum=options.get("enum", _literal_choices(hint)),
        default=default if has_default else None,
    )


def _literal_choices(hint: Any) -> tuple[Any, ...] | None:
    """Return the values of a Literal, also inside Optional; None for any other hint."""
    inside = typing.get_args(hint)
    if is_union(hint):
        others = [each for each in inside if each is not types.NoneType]
        if len(others) == 1:
            return _literal_choices(others[0])
        return None
    is_plain = typing.get_origin(hint) is typing.Literal and all(
        type(each) in (str, int, float, bool) for each in inside
    )
    return inside if is_plain else None


def with_own_defaults(parameters: Parameters, function: Callable[..., Any] | None) -> Parameters:
    """Return declared parameters with the function's defaults where an optional one declares none."""
    try:
        own = inspect.signature(function).parameters if function else {}
    except (ValueError, TypeError):  # some built-ins have no signature
        return parameters
    defaults = {
        name: param.default
        for name, param in own.items()
        if param.default is not inspect.Parameter.empty
    }
    completed = []
    for each in parameters:
        own_default = defaults.get(each.name)
        lacks_default = not each.required and each.default is None
        if lacks_default and own_default is not None:
            completed.append(replace(each, default=own_default))
        else:
            completed.append(each)
    return Parameters(completed)


def is_method(function: Callable[..., Any] | None) -> bool:
    """Return whether it is a function written in a class.

    Its first argument is the instance or the class.

    Outside of a class, `self` and `cls` are ordinary names.
    """
    if not inspect.isfunction(function):
        return False
    _, dot, holder = function.__qualname__.rpartition(".")[0].rpartition(".")
    in_class = bool(dot or holder) and holder != "<locals>"
    return in_class and next(iter(inspect.signature(function).parameters), "") in ("self", "cls")


def call_method(instance: Any) -> Any:
    """Return the `__call__` of an object's class, None without one.

    It has the signature of a callable instance.
    """
    return getattr(type(instance), "__call__", None)  # noqa: B004  # the method itself is wanted


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, also behind partials.

    A callable instance has the name of its class.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "") or type(function).__name__


_PARAMETERS = "Args|Arguments|Parameters|Params|Other[ ]Parameters"
#: Docstring sections that are useless to a model.
_DROPPED = "Raises|Exceptions|Except|Warns|Attributes"
#: A section about parameters, or one that is dropped, with all of its lines. Without possessive
#: quantifiers around groups: `re` matches too little with them before Python 3.11.5.
_SECTION = re.compile(
    rf"""^(?:
        (?: (?P<parameters>{_PARAMETERS}) | {_DROPPED} )
        (?:
            # Google: the lines are indented.
            :[ ]*\n (?=(?:[ ]*\n)*[ ]+\S) (?: [ ].*\n | \n )*
            # NumPy: the title is underlined, and the names of entries are not indented.
            | :?[ ]*\n[-=]{{3,}}[ ]*\n
              (?: [ ].*\n | \n | \*{{0,2}}\w+(?:,[ ]*\*{{0,2}}\w+)*[ ]*(?::(?!\w+\s).*)?\n(?![-=]{{3,}}[ ]*\n) )*
        )
        # Sphinx: a field ends at the next one, or at text behind a blank line.
        | [:@](?: (?P<field>param|parameter|arg|argument|key|keyword|type)
                  | raises?|except|exception|rtype|attr|attribute|[ci]?var|vartype )\b[^:\n]*:.*\n
          (?: [ ].*\n | \n(?=[ ]) | (?![:@]).+\n )*
    )""",
    re.MULTILINE | re.VERBOSE,
)


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description in a function's docstring, and those of its parameters.

    It may have the style of Google, NumPy or Sphinx.

    The description is the whole text except the sections about parameters, errors and attributes.
    Text after those sections counts, since a warning often stands at the end.
    """
    while isinstance(function, functools.partial):  # a partial's own docstring is Python's
        function = function.func
    first, _, rest = f"{inspect.getdoc(function) or ''}\n".partition("\n")
    if re.fullmatch(f"(?:{_PARAMETERS}|{_DROPPED}): *", first) and rest.lstrip("\n")[:1] not in (
        "",
        " ",
    ):
        # `getdoc` takes the indent from a docstring that begins with a section.
        rest = textwrap.indent(rest, "    ")
    text = f"{first}\n{rest}"
    of_parameters = [
        each[0] for each in _SECTION.finditer(text) if each["parameters"] or each["field"]
    ]
    try:  # the library expects a summary before the first section
        params = docstring_parser.parse("\n".join(["-", "", *of_parameters])).params
    except docstring_parser.ParseError:
        params = []
    descriptions = {
        param.arg_name: " ".join(param.description.split()) for param in params if param.description
    }
    return re.sub(r"\n{3,}", "\n\n", _SECTION.sub("", text)).strip(), descriptions
