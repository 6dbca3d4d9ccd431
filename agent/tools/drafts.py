"""Drafts: what older drafts of JSON Schema spell otherwise, in the words of the present one (2020-12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The parts of a schema that hold one schema, a list of them, or a mapping to them.
ONE = (
    "items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else", "unevaluatedProperties",
    "unevaluatedItems",
)  # fmt: skip
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas")


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


def as_object(schema: Any) -> dict[str, Any]:
    """`true` is a schema, too: anything goes; and `false`: nothing does. Raises TypeError for anything else."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise TypeError(f"{schema!r} is neither an object nor a boolean")
    return schema


def is_nothing(schema: Any) -> bool:
    """Whether it is the schema that no value fits."""
    return schema is False or schema == {"not": {}}


def modern(schema: Mapping[str, Any]) -> dict[str, Any]:
    """One schema in the present spelling, but not those inside it: what is written so already stays as it is.

    Schemas inside that are `true` or `false` become objects. Raises TypeError for what is no schema.
    """
    made = _dependent(_places(exclusive(dict(schema))))
    if isinstance(made.get("required"), bool):  # draft 3 says so of the property itself
        del made["required"]
    for key in LISTS:
        if isinstance(made.get(key), list):
            made[key] = [as_object(part) for part in made[key]]
    for key in MAPS:
        if isinstance(made.get(key), dict):
            made[key] = {name: as_object(part) for name, part in made[key].items()}
    return made


def exclusive(schema: dict[str, Any]) -> dict[str, Any]:
    """Draft 4 and OpenAPI 3.0 say `minimum: 1, exclusiveMinimum: true` where the present says `exclusiveMinimum: 1`."""
    made = dict(schema)
    for limit, excluded in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(made.get(excluded), bool) and made.pop(excluded) and limit in made:
            made[excluded] = made.pop(limit)
    return made


def _places(made: dict[str, Any]) -> dict[str, Any]:
    """Lists of places have a keyword of their own by now, and a list that ends with them says how long it is."""
    others = made.pop("additionalItems", None)
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if others is not None:
            made["items"] = others
    if isinstance(made.get("items"), bool) and not made.pop("items"):
        places = len(made.get("prefixItems", ()))
        made["maxItems"] = min(places, made.get("maxItems", places))
    return {key: value for key, value in made.items() if (key, value) != ("prefixItems", [])}


def _dependent(made: dict[str, Any]) -> dict[str, Any]:
    """What hangs on the presence of a property was one keyword for two things."""
    both = made.pop("dependencies", None)
    if isinstance(both, dict):
        names = {key: value for key, value in both.items() if isinstance(value, list)}
        schemas = {key: value for key, value in both.items() if key not in names}
        for key, value in (("dependentRequired", names), ("dependentSchemas", schemas)):
            if value:
                made[key] = {**value, **made.get(key, {})}
    return made
