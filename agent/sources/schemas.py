"""Schemas: JSON Schema that others wrote, made safe to validate with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sayso.agent.tools.bounded_validator import draft_of, linear_search

#: Characters of a tool's schema: more would fill a model's window at every question.
MAX_SCHEMA_CHARS = 30_000
#: Patterns of a schema that are looked at; the server has the others to itself. One may take a tenth of a second.
MAX_PATTERNS = 20
#: Levels of a schema that are read.
MAX_DEPTH = 40

#: Keywords that only say where a schema lives; with them a local reference could become one to the network.
_ADDRESSES = ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment")

#: Names by pattern are left to the server: matching them could take for ever, and the others hang on them.
_BY_PATTERN = ("patternProperties", "additionalProperties", "unevaluatedProperties")

#: Keywords whose values are data, not schemas.
_DATA = ("default", "enum", "const", "examples")
#: The drafts of JSON Schema before the present one, as schemas name them.
_DRAFTS = tuple(f"http://json-schema.org/draft-0{number}/schema{end}" for number in (4, 6, 7) for end in ("#", ""))


class UnusableSchema(ValueError):
    """Raised when arguments cannot be checked by a schema; the message says why."""


def outside_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments as an object schema without anything to fetch. Raises UnusableSchema."""
    cleaned = _cleaned(schema, 0, lambda _: True)
    if cleaned.get("type", "object") != "object":
        raise UnusableSchema(f"its arguments are of type {cleaned['type']!r}, not an object")
    if len(json.dumps(cleaned, default=str)) > MAX_SCHEMA_CHARS:
        raise UnusableSchema(f"its schema has more than {MAX_SCHEMA_CHARS} characters")
    cleaned = _cleaned(cleaned, 0, _Linear())  # not before its size is known: patterns take long
    if schema.get("$schema") in _DRAFTS:  # an older draft means some words otherwise
        cleaned["$schema"] = schema["$schema"]
    _check_form(cleaned)
    # `true` is a schema too: anything. Whoever shows parameters to a model expects an object.
    properties = {name: each if isinstance(each, dict) else {} for name, each in cleaned.get("properties", {}).items()}
    return {**cleaned, "type": "object", "properties": properties}


def _check_form(schema: dict[str, Any]) -> None:
    import jsonschema

    try:
        draft_of(schema).check_schema(schema)
    except jsonschema.SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path)) or "its top"
        raise UnusableSchema(f"its schema is none: at {where}, {exc.validator} is broken") from exc


def _cleaned(value: Any, depth: int, takes: Callable[[Any], bool], *, is_map: bool = False) -> Any:
    if depth > MAX_DEPTH:
        raise UnusableSchema(f"its schema is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [_cleaned(each, depth + 1, takes) for each in value]
    if not isinstance(value, Mapping):
        return value
    if is_map:  # names of parameters, which may well be `id`
        return {str(name): _cleaned(each, depth + 1, takes) for name, each in value.items()}
    _check(value)
    dropped = _ADDRESSES if "patternProperties" not in value else (*_ADDRESSES, *_BY_PATTERN)
    cleaned = {
        key: each
        if key in _DATA
        else _cleaned(each, depth + 1, takes, is_map=key in ("properties", "$defs", "definitions", "dependentSchemas"))
        for key, each in value.items()
        if key not in dropped and not (key == "pattern" and not takes(each))
    }
    return {**cleaned, "additionalProperties": True} if "patternProperties" in value else cleaned


def _check(schema: Mapping[str, Any]) -> None:
    for key in ("$ref", "$dynamicRef", "$recursiveRef"):
        target = schema.get(key, "#")
        if not (isinstance(target, str) and target.startswith("#")):
            raise UnusableSchema(f"its schema refers to {target!r}, and nothing is fetched")


class _Linear:
    """Which patterns are taken: the first ones that can be matched without going back and forth, which some make last
    for ever. Others are left to the server.
    """

    def __init__(self) -> None:
        self._left = MAX_PATTERNS

    def __call__(self, pattern: Any) -> bool:
        self._left -= 1
        return self._left >= 0 and isinstance(pattern, str) and linear_search(pattern) is not None
