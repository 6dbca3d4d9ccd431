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
from sayso.pending.tool_context import innermost_function, is_context

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
    the `injected` names, and what a partial binds. ToolDefinition refuses a function with a
    required parameter that no argument fills.

    `metadata` has the options of parameters by name: a "description" and an "enum". A description
    there overrules that of the docstring, which `descriptions` has by parameter name. That of the
    docstring overrules that of a pydantic Field.

    Raises ToolValidationError for a function without a readable signature, for a type hint that
    cannot be resolved, and for an unknown name in `metadata`.
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
    # A decorator and a partial have no hints. `inspect.signature` looks behind them likewise.
    target = innermost_function(function)
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

    `documented` is its description in the docstring, which `options` may overrule. A parameter is
    optional if it has a default or may be None: a model that leaves it out says None.
    """
    # `x: int = Field(3, description=...)` means the same as Annotated[int, Field(...)] = 3.
    field = param.default
    if isinstance(field, FieldInfo):
        described = Field(**{name: getattr(field, name) for name in _FIELD_ATTRIBUTES})
        hint = typing.Annotated[(hint, *field.metadata, described)]
    default = _default_of(param)
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


def _default_of(param: inspect.Parameter) -> Any:
    """Return the default of a function's parameter; `inspect.Parameter.empty` for none.

    If a pydantic Field stands there, as in `x: int = Field(3)`, return its value. Its
    `default_factory` is called once, when the tool is defined, and not again for each call.
    """
    default = param.default
    if not isinstance(default, FieldInfo):
        return default
    if default.is_required():
        return inspect.Parameter.empty
    return default.get_default(call_default_factory=True)


def _description_in_hint(hint: Any) -> str:
    """Return the description in `Annotated[..., Field(description=...)]`, the last if several."""
    for annotation in reversed(getattr(hint, "__metadata__", ())):
        if isinstance(annotation, FieldInfo) and annotation.description:
            return annotation.description
    return ""


def _literal_choices(hint: Any) -> tuple[Any, ...] | None:
    """Return the values of a Literal, also inside Optional; None for any other hint.

    None for a Literal inside Annotated, too: pydantic checks it, and writes it into the schema.
    """
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


def with_function_defaults(
    parameters: Parameters, function: Callable[..., Any] | None
) -> Parameters:
    """Return a tool's parameters with the defaults of its function, where they have none.

    Parameters may be declared without the function, as in `Tool(name, description, parameters,
    function)`. Only an optional parameter gets a default: the model must fill a required one.
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
            default = _default_of(signature[each.name])
        # In a ToolParameter, None stands for no default.
        has_default = default is not None and default is not inspect.Parameter.empty
        if has_default and not each.required and each.default is None:
            completed.append(replace(each, default=default))
        else:
            completed.append(each)
    return Parameters(completed)


def is_method(function: Callable[..., Any] | None) -> bool:
    """Return whether a function was written in a class and takes the instance or the class first.

    So does a partial of a method that does not bind it. In a function outside of a class, `self`
    and `cls` are ordinary names.
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if function is None or not inspect.isfunction(inner):
        return False
    # A method has a qualified name such as "Bank.transfer" or "test.<locals>.Bank.transfer".
    around = inner.__qualname__.rpartition(".")[0]
    is_in_class = around != "" and around.rpartition(".")[2] != "<locals>"

    first = next(iter(inspect.signature(function).parameters.values()), None)
    if not is_in_class or first is None:
        return False
    # What a partial binds by its name can be given by its name only.
    is_bound = first.kind is inspect.Parameter.KEYWORD_ONLY
    return first.name in ("self", "cls") and not is_bound


def call_method(instance: Any) -> Any:
    """Return the `__call__` method of an object's class, whose code runs when the object is called.

    None if the object cannot be called. It tells whether a callable object is async or yields,
    which Python's `inspect` only knows of functions.
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
#: The lines of a Google section, from the colon after its title on: they are indented.
_GOOGLE_LINES = r""":[ ]*\n (?=(?:[ ]*\n)*[ ]+\S) (?: [ ].*\n | \n )*"""
#: The names of an entry of a NumPy section, such as "path", "x, y" or "**options".
_NAMES = r"\*{0,2}\w+(?:,[ ]*\*{0,2}\w+)*"
#: The first line of such an entry, which is not indented: "path", "path : str" or "path: str". The
#: title of the next section, which is underlined, is none. A line like "Warning: do not repeat." is
#: none either: a paragraph that has a blank line before it, and no indented line after it.
_NUMPY_ENTRY = rf"""
    (?: {_NAMES}[ ]*\n
        | {_NAMES}[ ]+:.*\n
        | (?<!\n\n){_NAMES}:.*\n
        | {_NAMES}:.*\n(?=[ ])
    )
    (?![-=]{{3,}}[ ]*\n)
"""
#: The lines of a NumPy section, from the end of its title on: the underline, the entries, and their
#: descriptions, which are indented.
_NUMPY_LINES = rf""":?[ ]*\n[-=]{{3,}}[ ]*\n (?: [ ].*\n | \n | {_NUMPY_ENTRY} )*"""
#: A field of Sphinx, such as ":param path: Where it is.". It ends at the next field, or at text
#: behind a blank line.
_SPHINX_FIELD = r"""
    [:@](?: (?P<field>param|parameter|arg|argument|key|keyword|type)
            | raises?|except|exception|rtype|attr|attribute|[ci]?var|vartype )\b[^:\n]*:.*\n
    (?: [ ].*\n | \n(?=[ ]) | (?![:@]).+\n )*
"""
#: A section about parameters, or one that is dropped, with all of its lines. Without possessive
#: quantifiers around groups: `re` matches too little with them before Python 3.11.5.
_SECTION = re.compile(
    rf"""^(?:
        (?: (?P<parameters>{_PARAMETERS}) | {_DROPPED} ) (?: {_GOOGLE_LINES} | {_NUMPY_LINES} )
        | {_SPHINX_FIELD}
    )""",
    re.MULTILINE | re.VERBOSE,
)


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
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
    descriptions: dict[str, str] = {}
    for param in params:
        if param.description:
            # One entry may describe several parameters: "x, y : int".
            for name in param.arg_name.split(","):
                descriptions[name.strip()] = " ".join(param.description.split())

    without_sections = _SECTION.sub("", text)
    description = re.sub(r"\n{3,}", "\n\n", without_sections).strip()
    return description, descriptions
