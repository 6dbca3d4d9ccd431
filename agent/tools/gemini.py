"""Gemini: a schema in the part of OpenAPI's that Gemini reads: no references, no lists of types, no null among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sayso.agent.tools.dialects import GEMINI, said_of, types_of, without
from sayso.agent.tools.drafts import each_part
from sayso.agent.tools.schema import MAX_INLINED

#: Anything, for Gemini, which wants to be told a type.
_ANYTHING: Sequence[Mapping[str, Any]] = (
    *({"type": kind} for kind in ("string", "number", "boolean", "object")),
    {"type": "array", "items": {"type": "string"}},
)


def for_gemini(schema: dict[str, Any]) -> dict[str, Any]:
    """The whole schema with every definition in its place, but not within itself, and no more than so many."""
    return _ForGemini(schema.get("$defs", {})).plain(without(schema, "$defs"))


class _ForGemini:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._inside: tuple[str, ...] = ()
        self._left = MAX_INLINED

    def plain(self, schema: dict[str, Any]) -> dict[str, Any]:
        schema = _null_as_flag(schema)
        if "$ref" in schema:
            return self._in_place(str(schema["$ref"]).rpartition("/")[2], without(schema, "$ref"))
        if schema.get("items") == {}:
            schema = {**schema, "items": {"type": "string"}}
        made = each_part(_choice_of_text(GEMINI.sayable(schema)), self.plain)
        if not made.keys() & {"type", "anyOf"}:
            made["anyOf"] = [dict(kind) for kind in _ANYTHING]
        if "required" in made:
            made["required"] = [key for key in made["required"] if key in made.get("properties", {})]
        return _choice_alone({key: value for key, value in made.items() if value != []})

    def _in_place(self, name: str, beside: dict[str, Any]) -> dict[str, Any]:
        self._left -= 1
        if name in self._inside or name not in self._definitions or self._left < 0:
            return self.plain(_another(name, self._definitions.get(name, {}), beside))
        before, self._inside = self._inside, (*self._inside, name)
        made = self.plain({**self._definitions[name], **beside})
        self._inside = before
        return made


def _another(name: str, definition: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """What stands where a definition is met within itself."""
    words = filter(None, [beside.get("description"), f"Another {name}, as above"])
    kind = {"type": "object"} if types_of(definition) == ["object"] else {}
    flag = {"nullable": True} if beside.get("nullable") else {}
    return {**kind, **flag, "description": ": ".join(words)}


def _null_as_flag(schema: dict[str, Any]) -> dict[str, Any]:
    """Null is no type for Gemini, and a choice of one is no choice. Types in a list are parts of a choice."""
    kinds = types_of(schema)
    others = [kind for kind in kinds if kind != "null"]
    if others and len(kinds) > 1 and "enum" not in schema:
        flag = {"nullable": True} if "null" in kinds else {}
        if len(others) == 1:
            return {**schema, "type": others[0], **flag}
        told: dict[str, Any] = {key: schema[key] for key in ("description", "default") if key in schema}
        rest = without(schema, "type", *told)
        return {**told, **flag, "anyOf": [{**said_of(rest, [kind]), "type": kind} for kind in others]}
    parts = [part for part in schema.get("anyOf", ()) if not _is_null(part)]
    if not parts or (len(parts) == len(schema["anyOf"]) > 1):
        return schema
    flag = {"nullable": True} if len(parts) < len(schema["anyOf"]) else {}
    rest = {**without(schema, "anyOf"), **flag}
    return _null_as_flag({**parts[0], **rest}) if len(parts) == 1 else {**rest, "anyOf": parts}


def _is_null(schema: Mapping[str, Any]) -> bool:
    return types_of(schema) == ["null"] or schema.get("enum") == [None]


def _choice_of_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Gemini's enums are of text that is not empty; arguments are read from it."""
    if "enum" not in schema:
        return {**schema, "type": "string", "nullable": True} if schema.get("type") == "null" else schema
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in schema["enum"] if each is not None]
    nullable = {"nullable": True} if None in schema["enum"] else {}
    choices = {"enum": [text for text in texts if text]} if any(texts) else {}
    rest = said_of(without(schema, "enum", "format"), ["string"])
    return {**rest, "type": "string", **choices, **nullable}


def _choice_alone(schema: dict[str, Any]) -> dict[str, Any]:
    """Vertex AI takes nothing beside `anyOf`: what is said of the whole is said of its parts."""
    if "anyOf" not in schema:
        return schema
    inner = [each for part in schema["anyOf"] for each in part.get("anyOf", [part])]
    parts = [{**part, "nullable": True} if schema.get("nullable") else part for part in inner]
    words = [schema["description"]] if schema.get("description") else []
    first = {**parts[0], "description": " ".join([*words, *filter(None, [parts[0].get("description")])])}
    return {"anyOf": [first if words else parts[0], *parts[1:]]}
