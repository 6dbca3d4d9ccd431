"""The parameters of a tool, inferred from a function's signature, type hints and docstring.

Also what else can be read from a function without calling it: its name, and its description.
"""

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
    """Raise ToolValidationError, with the cure, for an object that cannot become a tool."""
    cure = ""
    if isinstance(function, str):
        cure = f"give options by name, as in @tool(name={function[:MAX_SHOWN]!r})"
    elif inspect.isclass(function):
        methods = "register its methods with ToolRegistry.register_from"
        cure = f"{methods}, or write a function that makes one"
    elif isinstance(function, classmethod):
        cure = "put @classmethod above @tool"
    elif _is_result_of_call(function):
        cure = "give the function without calling it"
    elif not callable(function):
        cure = "give a function, with a docstring and type hints"
    if cure:
        raise ToolValidationError(f"no tool can be made of {_kind_of(function)}: {cure}")


def _is_result_of_call(value: Any) -> bool:
    """Return whether a value is what a call of an async function or a generator returns."""
    return inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)


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

    Left out are `self` and `cls`, names with a leading `_`, `*args` and `**kwargs`, a ToolContext,
    the `injected` names, and what a partial binds.

    `descriptions` are those of the docstring, by parameter name. `metadata` has descriptions and
    enums that overrule it. Raises ToolValidationError for a function without a readable signature,
    for a type hint that cannot be resolved, and for an unknown name in `metadata`.
    """
    signature = _signature(function)
    hints = _hints(function)
    hidden = {*injected, *(name for name, hint in hints.items() if is_context(hint))}
    if is_method(function):
        hidden.add(next(iter(signature)))  # `self` or `cls`
    # A caller may override what a partial binds, but a model must not.
    inner = function
    while isinstance(inner, functools.partial):
        hidden |= set(inner.keywords)
        inner = inner.func

    visible: dict[str, inspect.Parameter] = {}
    for name, param in signature.items():
        is_private = name.startswith("_")
        if not is_private and name not in hidden and param.kind not in _VARIADIC:
            visible[name] = param
    _check_metadata(function, metadata, visible)
    # A parameter without a hint takes text.
    return tuple(
        _parameter(param, hints.get(name, str), metadata.get(name, {}), descriptions.get(name, ""))
        for name, param in visible.items()
    )


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters by name. Raises ToolValidationError if Python does not know them."""
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError) as exc:
        problem = f"no tool can be made of {name_of(function)!r}: Python knows no signature of it"
        made_by_hand = "Tool(name, description, parameters, function)"
        cure = f"write a function with type hints around it, or give {made_by_hand}"
        raise ToolValidationError(f"{problem}; {cure}") from exc


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved hints of the parameters. Raises ToolValidationError.

    The hint of the return value is left out: often only type checkers can resolve it.
    """
    target = own_function(function)
    annotations = getattr(target, "__annotations__", None) or {}  # that of an AsyncMock is None
    of_parameters = {name: hint for name, hint in annotations.items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=of_parameters)
    try:
        return typing.get_type_hints(
            holder, getattr(target, "__globals__", {}), include_extras=True
        )
    except Exception as exc:  # a hint may be any text, and evaluating it may raise anything
        raise ToolValidationError(
            f"cannot resolve the type hints of {name_of(function)!r}: {exc}; "
            "define what they name in the function's module, or import it there at run time"
        ) from exc


def _check_metadata(
    function: Callable[..., Any],
    metadata: Mapping[str, Mapping[str, Any]],
    visible: Mapping[str, Any],
) -> None:
    """Raise ToolValidationError for metadata of unknown parameters, and of the wrong type."""
    unknown = sorted(set(metadata) - set(visible))
    if unknown:
        raise ToolValidationError(
            f"param_metadata of {name_of(function)!r} names unknown {unknown!r}; "
            f"it has {list(visible)!r}"
        )
    for name, options in metadata.items():
        if not isinstance(options, Mapping):
            cure = f"give a dict such as {{'description': {options!r}}}"
            raise ToolValidationError(
                f"param_metadata[{name!r}] of {name_of(function)!r} is {options!r}: {cure}"
            )


#: The attributes of a pydantic Field that describe a value; its bounds are in `metadata`.
_FIELD_ATTRIBUTES = ("description", "discriminator", "examples", "json_schema_extra")


def _parameter(
    param: inspect.Parameter, hint: Any, options: Mapping[str, Any], documented: str
) -> ToolParameter:
    """Return the ToolParameter of one parameter of a function.

    `documented` is its description in the docstring, which `options` may overrule.
    """
    default = param.default
    # `x: int = Field(3, description=...)` means the same as Annotated[int, Field(...)] = 3.
    if isinstance(default, FieldInfo):
        described = Field(**{name: getattr(default, name) for name in _FIELD_ATTRIBUTES})
        hint = typing.Annotated[(hint, *default.metadata, described)]
        if default.is_required():
            default = inspect.Parameter.empty
        else:
            default = default.get_default(call_default_factory=True)
    has_default = default is not inspect.Parameter.empty

    description = options.get("description", documented) or _description_in_hint(hint)
    return ToolParameter(
        name=param.name,
        param_type=hint,
        description=description or default_description(param.name),
        required=not has_default and not may_be_none(hint),
        enum=options.get("enum", _literal_choices(hint)),
        default=default if has_default else None,
    )


def _description_in_hint(hint: Any) -> str:
    """Return the description in `Annotated[..., Field(description=...)]`, the last if several."""
    for annotation in reversed(getattr(hint, "__metadata__", ())):
        if isinstance(annotation, FieldInfo) and annotation.description:
            return annotation.description
    return ""


def _literal_choices(hint: Any) -> tuple[Any, ...] | None:
    """Return the values of a Literal, also inside Optional; None for any other hint."""
    inside = typing.get_args(hint)
    if is_union(hint):
        others = [each for each in inside if each is not types.NoneType]
        if len(others) == 1:
            return _literal_choices(others[0])
        return None
    if typing.get_origin(hint) is not typing.Literal:
        return None
    # Members of an Enum and the like are left to pydantic: a schema's `enum` has only plain values.
    if all(type(each) in (str, int, float, bool) for each in inside):
        return inside
    return None


def with_own_defaults(parameters: Parameters, function: Callable[..., Any] | None) -> Parameters:
    """Return declared parameters, those without a default with that of the function.

    Only an optional parameter gets one: the model must fill a required one anyway.
    """
    if function is None:
        return parameters
    try:
        signature = inspect.signature(function).parameters
    except (ValueError, TypeError):  # some built-ins have no signature
        return parameters
    completed = []
    for each in parameters:
        default = None
        if each.name in signature:
            default = signature[each.name].default
        has_default = default is not None and default is not inspect.Parameter.empty
        if has_default and not each.required and each.default is None:
            completed.append(replace(each, default=default))
        else:
            completed.append(each)
    return Parameters(completed)


def is_method(function: Callable[..., Any] | None) -> bool:
    """Return whether a function was written in a class and takes the instance or the class first.

    In a function outside of a class, `self` and `cls` are ordinary names.
    """
    if not inspect.isfunction(function):
        return False
    # A method has a qualified name such as "Bank.transfer" or "test.<locals>.Bank.transfer".
    around = function.__qualname__.rpartition(".")[0]
    is_in_class = around != "" and around.rpartition(".")[2] != "<locals>"
    first_parameter = next(iter(inspect.signature(function).parameters), "")
    return is_in_class and first_parameter in ("self", "cls")


def call_method(instance: Any) -> Any:
    """Return the `__call__` method of an object's class, whose code runs when the object is called.

    None if the object cannot be called.
    """
    return getattr(type(instance), "__call__", None)  # noqa: B004  # the method itself is wanted


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, also behind partials; for a callable instance that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "") or type(function).__name__


#: Titles of docstring sections about parameters.
_PARAMETERS = "Args|Arguments|Parameters|Params|Other[ ]Parameters"
#: Titles of docstring sections that are useless to a model.
_DROPPED = "Raises|Exceptions|Except|Warns|Attributes"
#: A line that is such a title.
_TITLE = re.compile(f"(?:{_PARAMETERS}|{_DROPPED}): *")
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
              (?: [ ].*\n
                | \n
                | \*{{0,2}}\w+(?:,[ ]*\*{{0,2}}\w+)*[ ]*(?::(?!\w+\s).*)?\n(?![-=]{{3,}}[ ]*\n)
              )*
        )
        # Sphinx: a field ends at the next one, or at text behind a blank line.
        | [:@](?: (?P<field>param|parameter|arg|argument|key|keyword|type)
                  | raises?|except|exception|rtype|attr|attribute|[ci]?var|vartype )\b[^:\n]*:.*\n
          (?: [ ].*\n | \n(?=[ ]) | (?![:@]).+\n )*
    )""",
    re.MULTILINE | re.VERBOSE,
)


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description in a function's docstring, and those of its parameters by name.

    The docstring may have the style of Google, NumPy or Sphinx. The description is the whole text
    except the sections about parameters, errors and attributes. Text after those sections counts,
    since a warning often stands at the end. "" and {} for a function without a docstring.
    """
    while isinstance(function, functools.partial):  # the docstring of a partial is Python's
        function = function.func
    # Each line ends in a line end, the last one too, as `_SECTION` expects.
    text = (inspect.getdoc(function) or "") + "\n"
    # `getdoc` removes the indent of the lines below a title in the first line.
    first_line, _, rest = text.partition("\n")
    starts_flush = rest.strip("\n") != "" and not rest.lstrip("\n").startswith(" ")
    if _TITLE.fullmatch(first_line) and starts_flush:
        text = f"{first_line}\n{textwrap.indent(rest, '    ')}"

    sections = [
        match[0] for match in _SECTION.finditer(text) if match["parameters"] or match["field"]
    ]
    try:
        # The library expects a summary before the first section.
        params = docstring_parser.parse("\n".join(["-", "", *sections])).params
    except docstring_parser.ParseError:
        params = []
    descriptions = {
        param.arg_name: " ".join(param.description.split()) for param in params if param.description
    }

    without_sections = _SECTION.sub("", text)
    description = re.sub(r"\n{3,}", "\n\n", without_sections).strip()
    return description, descriptions
