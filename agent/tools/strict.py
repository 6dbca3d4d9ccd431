"""Strict: a schema that OpenAI and Anthropic hold a model to: every property required, and none beyond."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.agent.tools.dialects import Dialect, types_of, without
from sayso.agent.tools.drafts import each_part
from sayso.agent.tools.errors import ToolValidationError

_KINDS: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null",
}  # fmt: skip


def strict(name: str, schema: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The schema of the tool with this name; what may be left out may be null instead.

    Raises ToolValidationError, with the cure, for what has no such form.
    """

    def closed(part: dict[str, Any]) -> dict[str, Any]:
        made = each_part(dialect.sayable(_alone(_typed(part))), closed)
        if isinstance(made.get("$defs"), dict):
            made["$defs"] = {key: closed(each) for key, each in made["$defs"].items()}
        if not made.keys() & {"type", "anyOf", "enum", "$ref"}:
            raise ToolValidationError(
                f"{name!r} has no strict schema: of a value nothing is said; ask without strict=True"
            )
        return _closed(name, made) if "object" in types_of(made) else made

    return closed(schema)


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """A choice says of which types it is: OpenAI refuses one that does not."""
    if "enum" not in schema or "type" in schema:
        return schema
    kinds = list(dict.fromkeys(_KINDS.get(type(choice), "object") for choice in schema["enum"]))
    return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}


def _alone(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI takes nothing beside a reference, and anything beside a choice of one."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    return {**without(schema, "$ref"), "anyOf": [{"$ref": schema["$ref"]}]}


def _closed(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("additionalProperties") or "properties" not in schema:
        raise ToolValidationError(
            f"{name!r} has no strict schema: it takes an object of any keys; ask without strict=True"
        )
    shown = {key: each if key in required else _nullable(each) for key, each in properties.items()}
    return {**schema, "properties": shown, "required": list(properties), "additionalProperties": False}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if _takes_null(schema):
        return schema
    if "enum" in schema or not isinstance(schema.get("type"), str):
        described = {key: schema[key] for key in ("description",) if key in schema}
        inner = without(schema, "description")
        parts = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
        return {"anyOf": [*parts, {"type": "null"}], **described}
    return {**schema, "type": [schema["type"], "null"]}


def _takes_null(schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return None in schema["enum"]
    return "null" in types_of(schema) or any(_takes_null(part) for part in schema.get("anyOf", ()))
