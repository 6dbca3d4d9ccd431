"""Schema: JSON Schema as models read it: one plain object, definitions in their places, no decoration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: The parts of a schema that hold one schema, a list of them, or a mapping to them.
ONE = (
    "items",
    "additionalProperties",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
)
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas")
#: Where definitions are kept, in the new and the old spelling.
DEFINITIONS = ("$defs", "definitions")

#: Definitions that are put in place. Each may refer to others twice: without an end they double and double again.
MAX_INLINED = 500

_SCALARS = ("string", "integer", "number", "boolean")


def plain(raw: Mapping[str, Any], optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The object schema of a tool's arguments: without titles, and with what it refers to in place.

    A definition that contains itself stays in `$defs`. Parameters in `optional` may be left out, which is how they are
    null: their schema does not offer null as well.
    """
    definitions = {f"#/{place}/{name}": each for place in DEFINITIONS for name, each in raw.get(place, {}).items()}
    inliner = _Inliner(definitions)
    properties = {
        name: _bare(_parameter(inliner.inline(_as_object(schema)), omissible=name in optional))
        for name, schema in raw.get("properties", {}).items()
    }
    rest = {
        key: inliner.inline(value) if isinstance(value, dict) else value for key, value in raw.items() if key in _KEPT
    }
    if rest.get("additionalProperties") is False:
        del rest["additionalProperties"]  # as for every tool, and not worth its tokens
    whole = {**rest, "type": "object", "properties": properties, "required": list(raw.get("required", []))}
    return {**whole, "$defs": inliner.kept} if inliner.kept else whole


#: What the object itself may say besides its properties.
_KEPT = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "description")


def each_part(schema: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """A schema with `change` applied to all schemas directly inside it."""
    made = dict(schema)
    for key in ONE:
        if isinstance(made.get(key), dict):
            made[key] = change(made[key])
    for key in LISTS:
        if isinstance(made.get(key), list):
            made[key] = [change(part) if isinstance(part, dict) else part for part in made[key]]
    for key in MAPS:
        if isinstance(made.get(key), dict):
            made[key] = {name: change(part) if isinstance(part, dict) else part for name, part in made[key].items()}
    return made


def _as_object(schema: Any) -> dict[str, Any]:
    """`true` is a schema, too: anything goes; and `false`: nothing does. Raises TypeError for anything else."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise TypeError(f"{schema!r} is neither an object nor a boolean")
    return schema


class _Inliner:
    """Puts definitions where they are referred to; `kept` are those that refer to themselves, or are too many."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._inlined_so_far = 0
        self.kept: dict[str, Any] = {}

    def inline(self, schema: dict[str, Any]) -> dict[str, Any]:
        reference = schema.get("$ref")
        if reference is None:
            return _undecorated(each_part(schema, self.inline))
        if reference not in self._definitions:
            return schema
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return {**self._inlined(reference), **beside}

    def _inlined(self, reference: str) -> dict[str, Any]:
        name = reference.rpartition("/")[2]
        self._inlined_so_far += 1
        if self._inlined_so_far > MAX_INLINED or self._is_recursive(reference):
            if name not in self.kept:
                self.kept[name] = {}  # before what is inside, which refers to it
                self.kept[name] = self.inline(self._definitions[reference])
            return {"$ref": f"#/$defs/{name}"}
        return self.inline(self._definitions[reference])

    def _is_recursive(self, reference: str) -> bool:
        seen: set[str] = set()
        waiting = _references(self._definitions[reference])
        while waiting:
            other = waiting.pop()
            if other == reference:
                return True
            if other not in seen and other in self._definitions:
                seen.add(other)
                waiting |= _references(self._definitions[other])
        return False


def _references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        inside = {reference for value in schema.values() for reference in _references(value)}
        return inside | ({schema["$ref"]} if isinstance(schema.get("$ref"), str) else set())
    return {reference for part in schema for reference in _references(part)} if isinstance(schema, list) else set()


def _undecorated(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes of names, and with `const` as the enum that all vendors know.

    A `discriminator` says where definitions are that are in their places by now.
    """
    made = {key: value for key, value in schema.items() if key not in ("title", "const", "discriminator")}
    if isinstance(made.get("default"), float) and not math.isfinite(made["default"]):
        del made["default"]  # which JSON cannot say
    return {**made, "enum": [schema["const"]]} if "const" in schema else made


def _parameter(schema: dict[str, Any], *, omissible: bool) -> dict[str, Any]:
    made = {key: value for key, value in schema.items() if key != "anyOf"}
    if "anyOf" in schema:
        parts = [part for part in schema["anyOf"] if not (omissible and part.get("type") == "null")]
        made = {**_union(parts), **made}
    if made.get("default", ...) is None:
        del made["default"]
    return made


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One alternative is itself; scalars that any string may stand for are a string (seed: Multi-Type Unions)."""
    if len(parts) == 1:
        return parts[0]
    if {"type": "string"} in parts and all(part.get("type") in _SCALARS for part in parts):
        return {"type": "string"}
    return {"anyOf": parts}


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """Without pydantic's explicit "anything goes" for a bare list or dict."""
    made = each_part(schema, _bare)
    if made.get("items") == {}:
        del made["items"]
    if made.get("additionalProperties") is True:
        del made["additionalProperties"]
    return made
