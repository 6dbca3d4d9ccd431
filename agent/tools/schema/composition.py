"""Schema composition (`allOf`, `anyOf`, `oneOf`) rewritten so that vendors' APIs accept it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.agent.tools.schema.json_schema import MAX_INLINED, each_part, is_nothing

#: Keywords that annotate a value without restricting it.
_ANNOTATIONS = ("description", "default", "examples", "deprecated", "readOnly", "writeOnly")
#: Keywords that say what a value consists of. Alternatives without any of them only narrow their siblings.
_CONTENT_KEYWORDS = frozenset((
    "type", "properties", "patternProperties", "additionalProperties", "items", "prefixItems", "enum", "$ref", "anyOf",
    "oneOf", "allOf", "format", "pattern",
))  # fmt: skip

_OBJECT_KEYWORDS = ("properties", "required", "patternProperties", "additionalProperties")
_LOWER_LIMITS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER_LIMITS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

#: Keywords that restrict only values of one type.
_TYPE_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset((
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    )),
    "array": frozenset((
        "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
        "unevaluatedItems",
    )),
    "string": frozenset(("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType")),
    "number": frozenset(NUMBER_KEYWORDS),
    "integer": frozenset(NUMBER_KEYWORDS),
}  # fmt: skip

_ALL_TYPE_KEYWORDS = frozenset().union(*_TYPE_KEYWORDS.values())


def types_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return the types that a schema names."""
    kind = schema.get("type", [])
    return list(kind) if isinstance(kind, list) else [kind]


def applies_to(key: str, kinds: list[Any]) -> bool:
    """Return whether a keyword restricts values of any of these types."""
    return key not in _ALL_TYPE_KEYWORDS or any(key in _TYPE_KEYWORDS.get(kind, ()) for kind in kinds)


def limited_to_types(schema: Mapping[str, Any], kinds: list[Any]) -> dict[str, Any]:
    """Return a schema without the keywords that do not apply to these types."""
    return {key: value for key, value in schema.items() if applies_to(key, kinds)}


def without(schema: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the schema without some keywords."""
    return {key: value for key, value in schema.items() if key not in keys}


def simplified(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without `allOf`, `oneOf`, impossible parts, and keywords beside `anyOf`; with types added.

    Vendors would refuse or ignore those. Apart from added types the result never asks for more than the schema did, and
    sometimes for less: arguments are checked against the schema itself.
    """
    definitions = schema.get("$defs", {})
    composer = _Composer(definitions)
    simple = composer.simplified(without(schema, "$defs"))
    simple_definitions = {name: composer.simplified(each, name) for name, each in definitions.items()}
    return {**simple, "$defs": simple_definitions} if simple_definitions else simple


def merge_all_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with its own `allOf` merged; schemas inside it stay as they are."""
    return _Composer(schema.get("$defs", {})).merged(dict(schema))


class _Composer:
    """Merges and simplifies composed schemas. Inlines at most MAX_INLINED definitions, and none inside itself."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._path: tuple[str, ...] = ()
        self._inlines_left = MAX_INLINED

    def simplified(self, schema: dict[str, Any], *definition: str) -> dict[str, Any]:
        """Return the schema simplified; `definition` is its name, if it is a definition."""
        outer, self._path = self._path, (*self._path, *definition)
        simple = _without_impossible(_with_type(self._distributed(_any_of(self.merged(schema)))))
        simple = each_part(simple, self.simplified)
        self._path = outer
        return simple

    def merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema with all parts of its `allOf` merged into it."""
        parts = schema.get("allOf")
        if not isinstance(parts, list):
            return schema
        whole = without(schema, "allOf")
        if len(parts) == 1 and "$ref" in parts[0] and not whole.keys() - set(_ANNOTATIONS):
            return {**parts[0], **whole}
        for part in parts:
            whole = _intersection(whole, self.merged(self._inlined(part)))
        return whole

    def _inlined(self, part: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in part:
            return part
        name = str(part["$ref"]).rpartition("/")[2]
        self._inlines_left -= 1
        if name in self._path or name not in self._definitions or self._inlines_left < 0:
            return without(part, "$ref")
        self._path = (*self._path, name)
        return {**self._definitions[name], **without(part, "$ref")}

    def _distributed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Move keywords beside `anyOf` into each alternative.

        Alternatives that only narrow an object are dropped; the check of the arguments still applies them.
        """
        parts = schema.get("anyOf")
        if not isinstance(parts, list):
            return schema
        annotations = {key: schema[key] for key in _ANNOTATIONS if key in schema}
        rest = without(schema, "anyOf", *_ANNOTATIONS)
        if not rest:
            return schema
        self._inlines_left -= len(parts)
        only_narrows = not any(part.keys() & _CONTENT_KEYWORDS - {"type"} for part in parts)
        if self._inlines_left < 0 or ("properties" in rest and only_narrows):
            return without(schema, "anyOf")
        return {**annotations, "anyOf": [_with_siblings(part, rest) for part in parts]}


def _with_siblings(part: dict[str, Any], siblings: dict[str, Any]) -> dict[str, Any]:
    kinds = types_of(part)
    own = limited_to_types(siblings, kinds) if kinds else siblings
    if kinds == ["null"] or is_nothing(part) or (own.keys() == {"type"} and "$ref" in part):
        return part
    return {"allOf": [part, own]}


def _any_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `oneOf` as `anyOf`, the only choice that vendors know."""
    if "oneOf" not in schema:
        return schema
    return {"anyOf": schema["oneOf"], **without(schema, "oneOf")}


def _with_type(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.keys() & {"type", "anyOf", "enum", "$ref"}:
        return schema
    if schema.keys() & set(_OBJECT_KEYWORDS):
        return {"type": "object", **schema}
    return {"type": "array", **schema} if schema.keys() & {"items", "prefixItems"} else schema


def _without_impossible(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without properties and alternatives that no value fits."""
    rest = dict(schema)
    if isinstance(rest.get("properties"), dict):
        rest["properties"] = {name: each for name, each in rest["properties"].items() if not is_nothing(each)}
        removed = schema["properties"].keys() - rest["properties"].keys()
        if removed and "required" in rest:
            rest["required"] = [name for name in rest["required"] if name not in removed]
    if isinstance(rest.get("anyOf"), list):
        rest["anyOf"] = [part for part in rest["anyOf"] if not is_nothing(part)]
    return rest if rest.get("anyOf", ...) != [] else without(rest, "anyOf")


def _intersection(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema for what both demand. Where one keyword cannot, such as for two patterns, the first counts."""
    both = {**other, **one}
    for key in one.keys() & other.keys():
        both[key] = _merged_keyword(key, one[key], other[key])
    if "type" in one and "type" in other:
        kinds = _common_types(types_of(one), types_of(other))
        both["type"] = kinds[0] if len(kinds) == 1 else kinds
    return both


def _merged_keyword(key: str, one: Any, other: Any) -> Any:
    if one == other:
        return one
    if key == "items":
        return {"allOf": [one, other]}
    if key == "properties":
        shared = {name: _merged_keyword("items", one[name], each) for name, each in other.items() if name in one}
        return {**one, **other, **shared}
    if key == "required":
        return list(dict.fromkeys([*one, *other]))
    if key == "enum":
        return [choice for choice in one if choice in other] or one
    if key == "additionalProperties":
        return one if other is True else other if one is True else one and other
    if key in _LOWER_LIMITS:
        return max(one, other)
    return min(one, other) if key in _UPPER_LIMITS else one


def _common_types(one: list[Any], other: list[Any]) -> list[Any]:
    """Return the types in both lists; each integer is a number, too."""
    both = [kind for kind in one if kind in other or (kind == "integer" and "number" in other)]
    return both + [kind for kind in other if kind == "integer" and "number" in one and kind not in both] or one
