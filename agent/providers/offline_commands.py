"""The arguments of a command, such as `/book room nights=3`, for OfflineProvider.

They are `nights=3` pairs, words without a name, or one JSON object.
"""

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
#: The first name in braces, with any quotes or none. A phone writes curly ones, which JSON does not
#: know.
_FIRST_NAME = re.compile(r"\{\s*\W?(\w+)\W?\s*:")
#: The name before a JSON object or list.
_NAME_OF_JSON = re.compile(r"(?<!\S)(\w+)=(?=[{\[])")


@dataclass(frozen=True, slots=True)
class CommandArguments:
    """What was read from the text behind a command."""

    #: The arguments by parameter name.
    values: dict[str, Any] = field(default_factory=dict)
    #: Why the command cannot run, "" if it can.
    issue: str = ""


def read_arguments(text: str, parameters: Mapping[str, Any]) -> CommandArguments:
    """Return the arguments that the text behind a command gives to a tool.

    `parameters` is the JSON Schema of the tool's parameters. Values are not checked here: the tool
    checks them when it is called.
    """
    text = text.strip()
    arguments = None
    if text[:1] in ("{", "["):
        arguments = _json_arguments(text, parameters)
    return arguments or _named_arguments(text, parameters)


def convert(text: str, parameter: Mapping[str, Any]) -> Any:
    """Return a text as a value of the parameter's type.

    The text is read as JSON. A text for an array may also be `a,b,c`. Text that does not fit the
    type is returned unchanged: the tool refuses it when it is called.
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
    """Return the JSON type of a parameter, other than null; "" if it may have several types."""
    types = parameter.get("type") or []
    if isinstance(types, str):
        return types
    types_but_null: list[str] = [each for each in types if each != "null"]
    if len(types_but_null) == 1:
        return types_but_null[0]
    return ""


def _json_arguments(text: str, parameters: Mapping[str, Any]) -> CommandArguments | None:
    """Return the arguments of a text that begins like a JSON object or list.

    Return None for one that is only words.

    An object holds the arguments by name, unless none of its names is a parameter. Then it may be
    the value of the first required parameter, as a list may.
    """
    properties = parameters["properties"]
    first_required = next(iter(parameters.get("required", ())), "")
    first_type = None
    if first_required:
        first_type = _type_of(properties.get(first_required, {}))
    try:
        value, end = _decode(text)
    except (ValueError, RecursionError) as exc:
        # A text that names a parameter was meant to be JSON.
        first_name = _FIRST_NAME.match(text)
        names_a_parameter = first_name is not None and first_name[1] in properties
        may_be_words = first_type == "string" or not first_required
        if may_be_words and not names_a_parameter:
            return None
        return CommandArguments(issue=f"its JSON cannot be read ({_reason(exc)})")

    text_after = text[end:].strip()
    has_known_name = isinstance(value, dict) and any(name in properties for name in value)
    if first_type == "string" and value != {} and not has_known_name:
        if text_after:
            return None
        return CommandArguments({first_required: text})

    if not has_known_name and _fits_type(value, first_type):
        arguments = CommandArguments({first_required: value})
    else:
        arguments = _by_name(value, properties)
    if text_after and not arguments.issue:
        return CommandArguments(issue=f"there is more behind its JSON: {quoted(text_after)}")
    return arguments


def _fits_type(value: Any, json_type: str | None) -> bool:
    """Return whether an object or a list has this JSON type; "" is any type, None no type."""
    if json_type == "":
        return isinstance(value, dict | list)
    if json_type == "object":
        return isinstance(value, dict)
    return json_type == "array" and isinstance(value, list)


def _by_name(value: Any, properties: Mapping[str, Any]) -> CommandArguments:
    """Return a JSON value as the arguments by name."""
    if not isinstance(value, dict):
        return CommandArguments(issue="a list gives no names to its values")
    unknown = [quoted(name) for name in value if name not in properties]
    if unknown:
        return CommandArguments(issue=f"it has no {' or '.join(unknown)}")
    return CommandArguments(value)


def _reason(error: Exception) -> str:
    """Return in a few words why a text cannot be read as JSON."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error).partition(";")[0]


def _decode(text: str) -> tuple[Any, int]:
    """Return the JSON value at the beginning of a text, and where it ends.

    Raise ValueError for a text that is not JSON, RecursionError for one that is nested too deep.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
    return decoder.raw_decode(text)


def _unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict. Raise ValueError for a repeated name."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name is there twice")
    return value


def _refuse_constant(name: str) -> Any:
    """Raise ValueError for NaN and Infinity, which Python reads though JSON does not have them."""
    raise ValueError(f"{name} is no JSON")


def _named_arguments(text: str, parameters: Mapping[str, Any]) -> CommandArguments:
    """Return the values of the `key=value` pairs in the text.

    Words without a key are the value of the first required parameter that has none. Where all have
    one, such words are an issue: a call without them would not be what the user asked for.
    """
    properties = parameters["properties"]
    values, other_text = _take_json_values(text, properties)
    try:
        parts = shlex.split(other_text)
    except ValueError:  # an apostrophe, which a shell would read as an open quote
        parts = other_text.split()

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

    They are taken before the text is split like a shell's, which would remove the quotes in them.
    What is no JSON, or has a word directly behind it, stays in the text.
    """
    values: dict[str, Any] = {}
    other_texts: list[str] = []
    read_until = 0
    for match in _NAME_OF_JSON.finditer(text):
        name = match[1]
        is_inside_a_value = match.start() < read_until
        if is_inside_a_value or name not in properties:
            continue
        try:
            value, length = _decode(text[match.end() :])
        except (ValueError, RecursionError):
            continue
        end = match.end() + length
        if text[end : end + 1].strip():
            continue

        if _type_of(properties[name]) == "string":
            value = text[match.end() : end]
        values[name] = value
        other_texts.append(text[read_until : match.start()])
        read_until = end
    return values, "".join([*other_texts, text[read_until:]])
