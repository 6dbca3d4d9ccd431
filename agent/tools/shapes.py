"""Shapes: a schema as vendors that know little of JSON Schema read it: with types, and with choices by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.agent.tools.dialects import said_of, types_of, without
from sayso.agent.tools.drafts import each_part, is_nothing
from sayso.agent.tools.schema import MAX_INLINED

#: What is told about values, and narrows nothing.
_TOLD = ("description", "default", "examples", "deprecated", "readOnly", "writeOnly")
#: What says what a value is made of. Alternatives without any of it only narrow what stands beside them.
_MADE_OF = frozenset((
    "type", "properties", "patternProperties", "additionalProperties", "items", "prefixItems", "enum", "$ref", "anyOf",
    "oneOf", "allOf", "format", "pattern",
))  # fmt: skip
_OBJECT = ("properties", "required", "patternProperties", "additionalProperties")
_AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def shaped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, and its definitions, without `allOf` and `oneOf`, with nothing beside `anyOf` that vendors would
    overlook, without what no value fits, and with a type wherever it can be told.

    But for such a type it never asks for more than the schema did, and sometimes for less: arguments are checked by the
    schema itself.
    """
    definitions = schema.get("$defs", {})
    shaper = _Shaper(definitions)
    made = shaper.shaped(without(schema, "$defs"))
    kept = {name: shaper.shaped(each, name) for name, each in definitions.items()}
    return {**made, "$defs": kept} if kept else made


def together(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its own `allOf` as one, and what is inside it as it is."""
    return _Shaper(schema.get("$defs", {})).merged(dict(schema))


class _Shaper:
    """Merges what refers to definitions, too, but none within itself, and no more than so many."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._inside: tuple[str, ...] = ()
        self._left = MAX_INLINED

    def shaped(self, schema: dict[str, Any], *inside: str) -> dict[str, Any]:
        before, self._inside = self._inside, (*self._inside, *inside)
        made = _possible(_typed(self._chosen(_one_of(self.merged(schema)))))
        made = each_part(made, self.shaped)
        self._inside = before
        return made

    def merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        """All that must hold together, as one."""
        parts = schema.get("allOf")
        if not isinstance(parts, list):
            return schema
        made = without(schema, "allOf")
        if len(parts) == 1 and "$ref" in parts[0] and not made.keys() - set(_TOLD):
            return {**parts[0], **made}
        for part in parts:
            made = _join(made, self.merged(self._in_place(part)))
        return made

    def _in_place(self, part: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in part:
            return part
        name = str(part["$ref"]).rpartition("/")[2]
        self._left -= 1
        if name in self._inside or name not in self._definitions or self._left < 0:
            return without(part, "$ref")
        self._inside = (*self._inside, name)
        return {**self._definitions[name], **without(part, "$ref")}

    def _chosen(self, schema: dict[str, Any]) -> dict[str, Any]:
        """What stands beside alternatives as a part of each. Those that only narrow an object are left to the check."""
        parts = schema.get("anyOf")
        if not isinstance(parts, list):
            return schema
        rest, told = without(schema, "anyOf", *_TOLD), {key: schema[key] for key in _TOLD if key in schema}
        if not rest:
            return schema
        self._left -= len(parts)
        narrowing = not any(part.keys() & _MADE_OF - {"type"} for part in parts)
        if self._left < 0 or ("properties" in rest and narrowing):
            return without(schema, "anyOf")
        return {**told, "anyOf": [_with_rest(part, rest) for part in parts]}


def _with_rest(part: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    kinds = types_of(part)
    own = said_of(rest, kinds) if kinds else rest
    if kinds == ["null"] or is_nothing(part) or (own.keys() == {"type"} and "$ref" in part):
        return part
    return {"allOf": [part, own]}


def _one_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The vendors' `anyOf` is all they have for a choice."""
    if "oneOf" not in schema:
        return schema
    return {"anyOf": schema["oneOf"], **without(schema, "oneOf")}


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.keys() & {"type", "anyOf", "enum", "$ref"}:
        return schema
    if schema.keys() & set(_OBJECT):
        return {"type": "object", **schema}
    return {"type": "array", **schema} if schema.keys() & {"items", "prefixItems"} else schema


def _possible(schema: dict[str, Any]) -> dict[str, Any]:
    """Without properties and alternatives that no value fits."""
    made = dict(schema)
    if isinstance(made.get("properties"), dict):
        made["properties"] = {name: each for name, each in made["properties"].items() if not is_nothing(each)}
        gone = schema["properties"].keys() - made["properties"].keys()
        if gone and "required" in made:
            made["required"] = [name for name in made["required"] if name not in gone]
    if isinstance(made.get("anyOf"), list):
        made["anyOf"] = [part for part in made["anyOf"] if not is_nothing(part)]
    return made if made.get("anyOf", ...) != [] else without(made, "anyOf")


def _join(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What both say of a value, or nearly: of what cannot be said in one, such as two patterns, it is the first."""
    made = {**other, **one}
    for key in one.keys() & other.keys():
        made[key] = _both(key, one[key], other[key])
    if "type" in one and "type" in other:
        kinds = _common_types(types_of(one), types_of(other))
        made["type"] = kinds[0] if len(kinds) == 1 else kinds
    return made


def _both(key: str, one: Any, other: Any) -> Any:
    if one == other:
        return one
    if key == "items":
        return {"allOf": [one, other]}
    if key == "properties":
        return {
            **one,
            **{name: _both("items", one[name], each) if name in one else each for name, each in other.items()},
        }
    if key == "required":
        return list(dict.fromkeys([*one, *other]))
    if key == "enum":
        return [choice for choice in one if choice in other] or one
    if key == "additionalProperties":
        return one if other is True else other if one is True else one and other
    if key in _AT_LEAST:
        return max(one, other)
    return min(one, other) if key in _AT_MOST else one


def _common_types(one: list[Any], other: list[Any]) -> list[Any]:
    """The types in both; each integer is a number, too."""
    both = [kind for kind in one if kind in other or (kind == "integer" and "number" in other)]
    return both + [kind for kind in other if kind == "integer" and "number" in one and kind not in both] or one
