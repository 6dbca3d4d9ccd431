"""Schema: from a function's type hints and docstring to a validator, and to the JSON schema a model reads."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from agent.tools.errors import ToolValidationError
from agent.tools.parameter import ToolParameter, is_union

#: Longest value an error quotes back to the model.
MAX_QUOTED_CHARS = 80

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A function's docstring as its description and the descriptions of its parameters."""
    text = inspect.getdoc(function) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    described = {param.arg_name: _one_line(param.description) for param in parsed.params if param.description}
    return "\n\n".join(parts), described


def infer_parameters(
    function: Callable[..., Any],
    metadata: Mapping[str, Mapping[str, Any]],
    described: Mapping[str, str],
    injected: Collection[str] = (),
) -> tuple[ToolParameter, ...]:
    """The visible parameters of a function: not private, not variadic, not injected."""
    hints = _hints(function)
    return tuple(
        _parameter(param, hints.get(name, str), metadata.get(name, {}), described.get(name, ""))
        for name, param in inspect.signature(function).parameters.items()
        if not name.startswith("_") and name not in injected and param.kind not in _VARIADIC
    )


def build_model(tool_name: str, parameters: Sequence[ToolParameter]) -> type[BaseModel]:
    """The compiled validator of a tool's arguments.

    Fields are numbered and carry the real name as their alias, because a parameter may well be called `json` or
    `schema`, which pydantic keeps for itself.
    """
    fields: dict[str, Any] = {f"p{index}": _field(parameter) for index, parameter in enumerate(parameters)}
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    try:
        return create_model(tool_name, __config__=config, **fields)
    except PydanticUserError as exc:
        reason = str(exc).splitlines()[0]
        raise ToolValidationError(f"tool {tool_name!r} has a parameter no model can fill: {reason}") from exc


def arguments(validated: BaseModel) -> dict[str, Any]:
    """Validated arguments by their real names, as Python values."""
    fields = type(validated).model_fields
    return {field.alias or name: getattr(validated, name) for name, field in fields.items()}


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The object schema of the model's arguments, in the plain subset that vendors understand."""
    raw = model.model_json_schema()
    properties = {name: _plain(schema) for name, schema in raw.get("properties", {}).items()}
    schema = {"type": "object", "properties": properties, "required": raw.get("required", [])}
    return {**schema, "$defs": raw["$defs"]} if "$defs" in raw else schema


def explain(tool_name: str, model: type[BaseModel], error: ValidationError) -> str:
    """A validation error in words that the model can correct itself from."""
    names = {str(field.alias): field.is_required() for field in model.model_fields.values()}
    issues = "; ".join(_issue(dict(issue), names) for issue in error.errors(include_url=False))
    expected = ", ".join(f"{name} (required)" if required else name for name, required in names.items())
    return f"invalid arguments for {tool_name!r}: {issues}. Expected: {expected or 'no parameters'}."


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved hints of the parameters alone: a return type that only type checkers can see must not matter."""
    target = inspect.unwrap(function)
    own = {name: hint for name, hint in getattr(target, "__annotations__", {}).items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=own)
    try:
        return typing.get_type_hints(holder, getattr(target, "__globals__", {}), include_extras=True)
    except NameError as exc:
        name = getattr(function, "__name__", repr(function))
        raise ToolValidationError(f"cannot resolve the type hints of {name!r}: {exc}; import it at run time") from exc


def _parameter(param: inspect.Parameter, hint: Any, meta: Mapping[str, Any], described: str) -> ToolParameter:
    has_default = param.default is not inspect.Parameter.empty
    return ToolParameter(
        name=param.name,
        param_type=hint,
        description=meta.get("description", described),
        required=not has_default and not (is_union(hint) and types.NoneType in typing.get_args(hint)),
        enum=meta.get("enum"),
        default=param.default if has_default else None,
    )


def _field(parameter: ToolParameter) -> tuple[Any, Any]:
    # An empty description is left out, so that one from Annotated[..., Field(description=...)] survives.
    extra: dict[str, Any] = {"description": parameter.description} if parameter.description else {}
    default = ... if parameter.required else parameter.default
    return parameter.annotation, Field(default, alias=parameter.name, **extra)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in schema.items() if key not in ("title", "anyOf", "const")}
    if "const" in schema:
        plain["enum"] = [schema["const"]]
    if "anyOf" in schema:
        plain = {**_union([part for part in schema["anyOf"] if part.get("type") != "null"]), **plain}
    if plain.get("default", ...) is None:
        del plain["default"]
    return _bare(plain)


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One alternative is itself; several scalars are a string that validation sorts out; the rest stays a union."""
    if len(parts) == 1:
        return _plain(parts[0])
    if all(part.get("type") in ("string", "integer", "number", "boolean") for part in parts):
        return {"type": "string"}
    return {"anyOf": [_plain(part) for part in parts]}


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """Without pydantic's explicit "anything goes" for a bare list or dict."""
    if schema.get("items") == {}:
        del schema["items"]
    if schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    return schema


def _issue(issue: dict[str, Any], names: Collection[str]) -> str:
    path = ".".join(str(part) for part in issue["loc"]) or "parameters"
    if issue["type"] == "extra_forbidden":
        return f"{path!r} is not a parameter{_suggestion(path, names)}"
    if issue["type"] == "missing":
        return f"{path!r} is missing"
    value = repr(issue["input"])
    quoted = value if len(value) <= MAX_QUOTED_CHARS else value[:MAX_QUOTED_CHARS] + "..."
    return f"{path!r} is {quoted}: {issue['msg']}"


def _suggestion(name: str, names: Collection[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""
