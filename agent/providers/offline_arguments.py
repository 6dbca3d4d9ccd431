"""The arguments of a command: `nights=3` pairs, words without a name, or one JSON object."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sayso.agent.tools.arguments import quoted

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
#: The first name in braces, with any quotes or none: a phone writes curly ones, which are no JSON.
_FIRST_NAME = re.compile(r"\{\s*\W?(\w+)\W?\s*:")
#: The name before a JSON value.
_NAME_OF_JSON = re.compile(r"(?<!\S)(\w+)=(?=[{\[])")


@dataclass(frozen=True, slots=True)
class CommandArguments:
    """The arguments of a command by name. `issue` says why the command cannot run, "" if it can."""

    values: dict[str, Any] = field(default_factory=dict)
    issue: str = ""


def read_arguments(text: str, parameters: Mapping[str, Any]) -> CommandArguments:
    """Return the arguments that the text behind a command gives to a tool with this JSON Schema.

    Values are not checked here: the tool does it when it is called.
    """
    text = text.strip()
    arguments = None
    if text[:1] in ("{", "["):
        arguments = _json_arguments(text, parameters)
    return arguments or _named_arguments(text, parameters)


def convert(text: str, parameter: Mapping[str, Any]) -> Any:
    """Return a text as a value of the parameter's type.

    It is read as JSON, or for an array also as `a,b,c`.

    Text that does not fit the type is returned unchanged. The tool refuses it when it is called.
    """
    kind = _type_of(parameter)
    if kind == "boolean":
        return _BOOLEANS.get(text.lower(), text)
    if kind not in ("integer", "number", "array", "object"):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if kind == "array":
            return [part.strip() for part in text.split(",")]
        return text
    if kind == "array" and value is not None and not isinstance(value, list):
        return [value]
    return value


def _type_of(parameter: Mapping[str, Any]) -> str:
    """Return the type of a parameter, besides null; "" if it may have any or several."""
    kinds = parameter.get("type") or []
    if isinstance(kinds, str):
        return kinds
    others: list[str] = [kind for kind in kinds if kind != "null"]
    if len(others) == 1:
        return others[0]
    return ""


def _json_arguments(text: str, parameters: Mapping[str, Any]) -> CommandArguments | None:
    """Return the arguments of a text that begins like a JSON object or list.

    None for one that is only words.

    An object is the arguments by name, unless none of its names is a parameter: then it may be the
    value of the first required parameter, as a list may.
    """
    properties = parameters["properties"]
    open_name = next(iter(parameters.get("required", ())), "")
    kind = None
    if open_name:
        kind = _type_of(properties.get(open_name, {}))
    try:
        value, end = _decode(text)
    except (ValueError, RecursionError) as exc:
        named = _FIRST_NAME.match(text)
        is_words = kind == "string" or not open_name
        if is_words and not (named and named[1] in properties):
            return None
        return CommandArguments(issue=f"its JSON cannot be read ({_reason(exc)})")

    behind = text[end:].strip()
    if isinstance(value, dict):
        names = list(value)
    else:
        names = []
    has_known_name = any(name in properties for name in names)
    if kind == "string" and value != {} and not has_known_name:
        if behind:
            return None
        return CommandArguments({open_name: text})
    types: dict[str | None, Any] = {"object": dict, "array": list, "": dict | list}
    if not has_known_name and isinstance(value, types.get(kind, ())):
        arguments = CommandArguments({open_name: value})
    else:
        arguments = _by_name(value, properties)
    if behind and not arguments.issue:
        return CommandArguments(issue=f"there is more behind its JSON: {quoted(behind)}")
    return arguments


def _by_name(value: Any, properties: Mapping[str, Any]) -> CommandArguments:
    if not isinstance(value, dict):
        return CommandArguments(issue="a list gives no names to its values")
    unknown = [quoted(name) for name in value if name not in properties]
    if unknown:
        return CommandArguments(issue=f"it has no {' or '.join(unknown)}")
    return CommandArguments(value)


def _reason(error: Exception) -> str:
    """Return in a few words why a text is no JSON."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error).partition(";")[0]


def _decode(text: str) -> tuple[Any, int]:
    """Return the JSON value at the beginning of a text, and where it ends.

    Raises ValueError and RecursionError.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
    return decoder.raw_decode(text)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name is there twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _named_arguments(text: str, parameters: Mapping[str, Any]) -> CommandArguments:
    """Return the `key=value` pairs, converted.

    Words without a key are the first required parameter without a value.

    More words are an issue: a call without them would be another call.
    """
    properties = parameters["properties"]
    values, rest = _take_json_values(text, properties)
    try:
        parts = shlex.split(rest)
    except ValueError:  # an apostrophe, which a shell would read as an open quote
        parts = rest.split()
    words: list[str] = []
    for part in parts:
        key, equals, value = part.partition("=")
        if equals and key.isidentifier():
            values[key] = convert(value, properties.get(key, {}))
        else:
            words.append(part)
    open_names = [name for name in parameters.get("required", ()) if name not in values]
    if words and open_names:
        parameter = properties.get(open_names[0], {})
        values[open_names[0]] = convert(" ".join(words), parameter)
    elif words:
        return CommandArguments(issue=f"{' '.join(words)!r} has no name")
    return CommandArguments(values)


def _take_json_values(text: str, properties: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the values of `key={...}` and `key=[...]`, and the text without them.

    A shell would take their quotes away. What is no JSON, or has words right behind it,
    stays in the text.
    """
    values: dict[str, Any] = {}
    rest: list[str] = []
    done = 0
    for found in _NAME_OF_JSON.finditer(text):
        if found.start() < done or found[1] not in properties:
            continue
        try:
            value, length = _decode(text[found.end() :])
        except (ValueError, RecursionError):
            continue
        end = found.end() + length
        if text[end : end + 1].strip():
            continue
        is_text = _type_of(properties[found[1]]) == "string"
        if is_text:
            values[found[1]] = text[found.end() : end]
        else:
            values[found[1]] = value
        rest.append(text[done : found.start()])
        done = end
    return values, "".join([*rest, text[done:]])
