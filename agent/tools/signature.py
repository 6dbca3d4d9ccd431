"""Parameters from a function."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import docstring_parser
from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.parameter import Parameters, ToolParameter, default_description, is_union
from sayso.pending.context import is_context

#: Sections that say what the parameters are, which is shown beside each of them, and those that no model can use.
_OF_PARAMETERS = ("Args", "Arguments", "Parameters", "Params", "Other Parameters")


_LEFT_OUT = ("Raises", "Exceptions", "Except", "Warns", "Attributes")


_TITLE = re.compile(rf"({'|'.join([*_OF_PARAMETERS, *_LEFT_OUT])})(:?)\s*")


_UNDERLINE = re.compile(r"[-=]{3,}\s*")


_NUMPY_ENTRY = re.compile(r"\*{0,2}\w+(?:, *\*{0,2}\w+)*\s*(?::(?!\w+\s).*)?")


_FIELD = re.compile(
    r"[:@](?:(?P<own>param|parameter|arg|argument|key|keyword|type)"
    r"|raises?|except|exception|rtype|attr|attribute|[ci]?var|vartype)\b[^:]*:"
)


#: Whether a section is over before that line.
_Ends = Callable[[Sequence[str], int], bool]


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A function's docstring (Google, NumPy or Sphinx style) as its description and those of its parameters.

    The description is everything that is written but for the sections about parameters, errors and attributes, also
    what stands after them: a warning at the end is a warning.
    """
    while isinstance(function, functools.partial):  # whose own docstring is Python's
        function = function.func
    whole, of_parameters = _divided(_lines(inspect.getdoc(function) or ""))
    try:  # the library wants a summary before the first section
        parsed = docstring_parser.parse("\n".join(["-", "", *of_parameters])).params
    except docstring_parser.ParseError:
        parsed = []
    described = {param.arg_name: " ".join(param.description.split()) for param in parsed if param.description}
    return re.sub(r"\n{3,}", "\n\n", "\n".join(whole)).strip(), described


def _lines(text: str) -> list[str]:
    """Of a docstring that begins with a section, `getdoc` takes the section's own indent away: this gives it back."""
    first, *rest = text.splitlines() or [""]
    title = _TITLE.fullmatch(first)
    lost = title and title[2] and not _indented(next(filter(str.strip, rest), ""))
    return [first, *(f"    {line}" for line in rest)] if lost else [first, *rest]


def _divided(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines about the whole, and those about its parameters."""
    whole: list[str] = []
    of_parameters: list[str] = []
    into = whole
    ends: _Ends = _never
    for at, line in enumerate(lines):
        if ends(lines, at):
            into, ends = whole, _never
        opened = _opened(lines, at)
        if opened is not None:
            is_of_parameters, ends = opened
            into = of_parameters if is_of_parameters else []
        into.append(line)
    return whole, of_parameters


def _opened(lines: Sequence[str], at: int) -> tuple[bool, _Ends] | None:
    """Whether a section begins in that line that is not for the description: is it about parameters, and its end."""
    field = _FIELD.match(lines[at])
    if field:
        return field["own"] is not None, _sphinx_ends
    title = _TITLE.fullmatch(lines[at])
    if title is None:
        return None
    if title[2] and _indented(next(filter(str.strip, lines[at + 1 :]), "")):
        return title[1] in _OF_PARAMETERS, _google_ends
    return (title[1] in _OF_PARAMETERS, _numpy_ends) if _is_underlined(lines, at) else None


def _never(_: Sequence[str], __: int) -> bool:
    return False


def _google_ends(lines: Sequence[str], at: int) -> bool:
    return bool(lines[at]) and not _indented(lines[at])


def _numpy_ends(lines: Sequence[str], at: int) -> bool:
    """At the next title, and at words that are neither an entry nor what is indented under one."""
    line = lines[at]
    if not line or _indented(line) or _UNDERLINE.fullmatch(line):
        return False
    return _is_underlined(lines, at) or not _NUMPY_ENTRY.fullmatch(line)


def _sphinx_ends(lines: Sequence[str], at: int) -> bool:
    """At the next field, and at a paragraph that is not indented."""
    line = lines[at]
    return line.startswith((":", "@")) or (bool(line) and not _indented(line) and not lines[at - 1].strip())


def _indented(line: str) -> bool:
    return line[:1].isspace()


def _is_underlined(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]) is not None


#: What a Decimal is written as; one that is read is written so again.
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?$"


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class HintsSchema(GenerateJsonSchema):
    """Made anew for each schema, by pydantic.

    As number or text, which pydantic says, a Decimal would be two things to a model, with bounds on one of them only.
    As a number it would come through a float. A number that is sent is still read.
    """

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Text with a format, and with its bounds, which only say something to who reads them."""
        number: dict[str, Any] = super().decimal_schema(schema)["anyOf"][0]
        bounds = {key: number[key] for key in _BOUNDS if key in number}
        return {"type": "string", "format": "decimal", "pattern": _DECIMAL, **bounds}


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def infer_parameters(
    function: Callable[..., Any],
    metadata: Mapping[str, Mapping[str, Any]],
    described: Mapping[str, str],
    injected: Collection[str] = (),
) -> tuple[ToolParameter, ...]:
    """The visible parameters of a function: not private, not variadic, not injected.

    What a `functools.partial` binds is the program's own, too. Raises ToolValidationError when there is no signature to
    read, a hint cannot be resolved, or `metadata` names a parameter that is not there.
    """
    own = list(_signature(function).items())
    hints = _hints(function)
    injected = {*injected, *_bound(function), *(name for name, hint in hints.items() if is_context(hint))}
    visible = {
        name: param
        for name, param in (own[1:] if is_method(function) else own)
        if not name.startswith("_") and name not in injected and param.kind not in _VARIADIC
    }
    unknown = sorted(set(metadata) - set(visible))
    if unknown:
        has = list(visible)
        raise ToolValidationError(f"param_metadata of {name_of(function)!r} names unknown {unknown!r}; it has {has!r}")
    for name, said in metadata.items():
        if not isinstance(said, Mapping):
            cure = f"give a dict such as {{'description': {said!r}}}"
            raise ToolValidationError(f"param_metadata[{name!r}] of {name_of(function)!r} is {said!r}: {cure}")
    return tuple(
        _parameter(param, hints.get(name, str), metadata.get(name, {}), described.get(name, ""))
        for name, param in visible.items()
    )


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError) as exc:
        raise ToolValidationError(
            f"no tool can be read from {function!r} ({exc}): give Tool(name, description, parameters, function)"
        ) from exc


def _bound(function: Any) -> set[str]:
    """What `functools.partial` binds by name: Python lets a call overrule it, and a model must not."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound |= set(function.keywords)
        function = function.func
    return bound


def with_own_defaults(parameters: Parameters, function: Callable[..., Any] | None) -> Parameters:
    """Parameters declared by hand: where one may be left out and names no default, its function's own counts."""
    try:
        own = inspect.signature(function).parameters if function else {}
    except (ValueError, TypeError):  # some built-ins have none
        return parameters
    defaults = {name: param.default for name, param in own.items() if param.default is not inspect.Parameter.empty}
    return Parameters(
        replace(each, default=defaults[each.name])
        if not each.required and each.default is None and defaults.get(each.name) is not None
        else each
        for each in parameters
    )


def is_method(function: Callable[..., Any] | None) -> bool:
    """Whether it is a function written in a class, whose first argument is the instance or the class.

    Elsewhere `self` and `cls` are names like any other.
    """
    if not inspect.isfunction(function):
        return False
    _, dot, holder = function.__qualname__.rpartition(".")[0].rpartition(".")
    in_class = bool(dot or holder) and holder != "<locals>"
    return in_class and next(iter(inspect.signature(function).parameters), "") in ("self", "cls")


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called; an instance that can be called is called like its class."""
    return getattr(function, "__name__", "") or type(function).__name__


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved hints of the parameters alone: a return type that only type checkers can see must not matter."""
    target = _annotated(function)
    own = {name: hint for name, hint in getattr(target, "__annotations__", {}).items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=own)
    try:
        return typing.get_type_hints(holder, getattr(target, "__globals__", {}), include_extras=True)
    except Exception as exc:  # text that is no expression, or one that fails in its own way
        raise ToolValidationError(
            f"cannot resolve the type hints of {name_of(function)!r}: {exc}; "
            "define what they name in the function's module, or import it there at run time"
        ) from exc


def _annotated(function: Callable[..., Any]) -> Any:
    """What carries the hints: behind decorators, partials and instances that can be called."""
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func"):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__annotations__") or isinstance(target, type):
        target = getattr(type(target), "__call__", target)  # noqa: B004  # what carries its hints
    return target


def _parameter(param: inspect.Parameter, hint: Any, meta: Mapping[str, Any], described: str) -> ToolParameter:
    default = param.default
    if isinstance(default, FieldInfo):  # `x: int = Field(3, description=...)` says what Annotated does
        hint, default = typing.Annotated[(hint, *_said_by(default))], _default_of(default)
    has_default = default is not inspect.Parameter.empty
    return ToolParameter(
        name=param.name,
        param_type=hint,
        description=meta.get("description", described) or _described_by(hint) or default_description(param.name),
        required=not has_default and not _may_be_none(hint),
        enum=meta.get("enum", _literal_choices(hint)),
        default=default if has_default else None,
    )


def _literal_choices(hint: Any) -> tuple[Any, ...] | None:
    """Return the values of a Literal, also inside Optional (seed: Literal Types); None for any other hint."""
    inside = typing.get_args(hint)
    if is_union(hint):
        others = [each for each in inside if each is not types.NoneType]
        return _literal_choices(others[0]) if len(others) == 1 else None
    is_plain = typing.get_origin(hint) is typing.Literal and all(
        type(each) in (str, int, float, bool) for each in inside
    )
    return inside if is_plain else None


def _described_by(hint: Any) -> str:
    """Return what `Annotated[..., Field(description=...)]` says; "" for any other hint."""
    said = getattr(hint, "__metadata__", ())
    return next((each.description for each in reversed(said) if isinstance(each, FieldInfo) and each.description), "")


def _said_by(field: FieldInfo) -> list[Any]:
    """What it says but for the default: a hint has none."""
    told = ("description", "discriminator", "examples", "json_schema_extra")
    return [*field.metadata, Field(**{name: getattr(field, name) for name in told})]


def _default_of(field: FieldInfo) -> Any:
    return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


def _may_be_none(hint: Any) -> bool:
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    return is_union(bare) and types.NoneType in typing.get_args(bare)
