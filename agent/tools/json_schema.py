"""JSON Schemas as data: updated to the current draft, resolved, merged and made immutable.

Servers write schemas in any draft. `plain` rewrites one as models read it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

#: Keywords that hold one schema.
_SCHEMA_KEYWORDS = (
    "items",
    "additionalProperties",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
    "unevaluatedItems",
)

#: Keywords that hold a list of schemas.
_LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")
#: Keywords that hold schemas by name.
_MAP_KEYWORDS = ("properties", "patternProperties", "dependentSchemas")
#: Keywords that hold definitions, in the current and the old spelling.
DEFINITIONS = ("$defs", "definitions")
#: Most references that are replaced by their definitions. A definition may refer to others twice,
#: which doubles the schema at each level.
MAX_INLINED = 500
#: Keywords that a tool's whole schema keeps, besides its properties.
_TOP_LEVEL_KEYWORDS = (
    "additionalProperties",
    "patternProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "description",
)
#: Keywords that are dropped: names, addresses, what is expressed in another way,
#: and what only old drafts know.
_DROPPED_KEYWORDS = (
    "title",
    "const",
    "discriminator",
    "dependencies",
    "$schema",
    "$id",
    "$comment",
    *DEFINITIONS,
)
_SCALARS = ("string", "integer", "number", "boolean")

#: Keywords that annotate a value without restricting it.
_ANNOTATIONS = ("description", "default", "examples", "deprecated", "readOnly", "writeOnly")
NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def plain(raw: Mapping[str, Any], optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the object schema of a tool's arguments, simplified.

    It has no titles; its references are resolved and its `allOf` is merged.

    A definition that contains itself stays in `$defs`, and an `allOf` inside a parameter stays.
    The `optional` parameters may be left out, which is how they are null, so their schema does not
    offer null as well.
    """
    inliner = _Inliner(raw)
    properties = {}
    for name, schema in raw.get("properties", {}).items():
        parameter = inliner.inline(as_object(schema))
        if "anyOf" in parameter:
            parts = [
                part
                for part in parameter["anyOf"]
                if not (name in optional and part.get("type") == "null")
            ]
            are_scalars = all(
                part.keys() == {"type"} and part["type"] in _SCALARS for part in parts
            )
            # Bare scalars and a bare string are a string: any of them can be sent as text.
            is_text = {"type": "string"} in parts and are_scalars
            if len(parts) == 1:
                union = parts[0]
            elif is_text:
                union = {"type": "string"}
            else:
                union = {"anyOf": parts}
            parameter = {**union, **without(parameter, "anyOf")}
        if parameter.get("default", ...) is None:
            del parameter["default"]
        properties[name] = _without_open_defaults(parameter)
    rest = inliner.inline({key: value for key, value in raw.items() if key in _TOP_LEVEL_KEYWORDS})
    if rest.get("additionalProperties") is False:
        del rest["additionalProperties"]  # the same for every tool, and not worth its tokens
    schema = {
        **rest,
        "type": "object",
        "properties": properties,
        "required": list(raw.get("required", [])),
    }
    whole = merged(schema, inliner.definitions)
    if inliner.definitions:
        return {**whole, "$defs": inliner.definitions}
    return whole


def with_sorted_sets(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with sorted sets in all its defaults:
    each process has its own order of the same set.
    """
    whole = each_part(schema, with_sorted_sets)
    if "default" in whole:
        whole["default"] = _with_sorted_sets(whole["default"], whole)
    return whole


def _with_sorted_sets(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a JSON value with the lists sorted that stand for sets by its schema."""
    if isinstance(value, dict):
        named = schema.get("properties", {})
        others = schema.get("additionalProperties")
        changed_fields = {}
        for name, each in value.items():
            part = as_object(named.get(name, others) or {})
            changed_fields[name] = _with_sorted_sets(each, part)
        return changed_fields
    if isinstance(value, list):
        items = as_object(schema.get("items") or {})
        changed = [_with_sorted_sets(each, items) for each in value]
        if schema.get("uniqueItems"):
            changed.sort(key=json.dumps)
        return changed
    return value


class _Inliner:
    """Replaces references by what they refer to.

    `definitions` are those that contain themselves, or are too many.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._inlined_count = 0
        self.definitions: dict[str, Any] = {}

    def inline(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema with its definitions written out.

        It has neither pydantic's titles nor its discriminators, which name such definitions.
        """
        whole = each_part(_modernized(schema), self.inline)
        inlined = without(whole, *_DROPPED_KEYWORDS)
        if "const" in whole:  # all vendors know an enum
            inlined["enum"] = [whole["const"]]
        if isinstance(inlined.get("default"), float) and not math.isfinite(inlined["default"]):
            del inlined["default"]  # JSON cannot hold it
        reference = inlined.pop("$ref", None)
        if reference is None:
            return inlined
        target = self._target(reference)
        if target is None:
            return {"$ref": reference, **inlined}
        return {**self._replacement(reference, target), **inlined}

    def _replacement(self, reference: str, target: dict[str, Any]) -> dict[str, Any]:
        self._inlined_count += 1
        if self._inlined_count <= MAX_INLINED and not self._contains_itself(reference):
            return self.inline(target)
        if reference not in self._names:
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])
            while name in self.definitions:
                name += "_"
            self._names[reference] = name
            self.definitions[name] = {}  # before its parts, which refer to it
            self.definitions[name] = self.inline(target)
        return {"$ref": f"#/$defs/{self._names[reference]}"}

    def _target(self, reference: Any) -> dict[str, Any] | None:
        """Return the schema at a JSON pointer into the root schema: `#` or `#/...`.

        None: there is none.
        """
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            return None
        value: Any = self._root
        for part in filter(None, reference[1:].split("/")):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                if isinstance(value, list):
                    value = value[int(key)]
                else:
                    value = value[key]
            except (KeyError, IndexError, TypeError, ValueError):
                return None
        if isinstance(value, bool | dict):
            return as_object(value)
        return None

    def _contains_itself(self, reference: str) -> bool:
        visited: set[str] = set()
        remaining = _references_in(self._target(reference))
        while remaining:
            other = remaining.pop()
            if other == reference:
                return True
            if other not in visited:
                visited.add(other)
                remaining |= _references_in(self._target(other))
        return False


def _references_in(schema: Any) -> set[str]:
    """Return the targets of all references in a schema, at any depth."""
    references: set[str] = set()
    parts: Iterable[Any] = ()
    if isinstance(schema, dict):
        parts = schema.values()
        if isinstance(schema.get("$ref"), str):
            references.add(schema["$ref"])
    elif isinstance(schema, list):
        parts = schema
    for part in parts:
        references |= _references_in(part)
    return references


def _without_open_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without pydantic's "any value" for the items of a bare list or dict."""
    rest = each_part(schema, _without_open_defaults)
    if rest.get("items") == {}:
        del rest["items"]
    if rest.get("additionalProperties") is True:
        del rest["additionalProperties"]
    return rest


def each_part(schema: Mapping[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return a schema with `change` applied to all schemas directly inside it."""
    changed = dict(schema)
    for key in _SCHEMA_KEYWORDS:
        if isinstance(changed.get(key), dict):
            changed[key] = change(changed[key])
    for key in _LIST_KEYWORDS:
        if isinstance(changed.get(key), list):
            changed[key] = [
                change(part) if isinstance(part, dict) else part for part in changed[key]
            ]
    for key in _MAP_KEYWORDS:
        if isinstance(changed.get(key), dict):
            parts = changed[key].items()
            changed[key] = {
                name: change(part) if isinstance(part, dict) else part for name, part in parts
            }
    return changed


def as_object(schema: Any) -> dict[str, Any]:
    """Return `true` (any value) and `false` (no value) as an object schema.

    Raises TypeError for what is no schema.
    """
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise TypeError(f"{schema!r} is neither an object nor a boolean")
    return schema


def _modernized(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema in the current draft's spelling, but not those inside it.

    Schemas inside that are `true` or `false` become objects.
    Raises TypeError for what is no schema.
    """
    modern = _prefix_items(with_exclusive_limits(dict(schema)))
    if isinstance(modern.get("required"), bool):  # draft 3 puts it on the property itself
        del modern["required"]
    for key in _LIST_KEYWORDS:
        if isinstance(modern.get(key), list):
            modern[key] = [as_object(part) for part in modern[key]]
    for key in _MAP_KEYWORDS:
        if isinstance(modern.get(key), dict):
            modern[key] = {name: as_object(part) for name, part in modern[key].items()}
    return modern


def with_exclusive_limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace `minimum: 1, exclusiveMinimum: true` (draft 4, OpenAPI 3.0) by `exclusiveMinimum: 1`."""
    modern = dict(schema)
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(modern.get(exclusive), bool) and modern.pop(exclusive) and limit in modern:
            modern[exclusive] = modern.pop(limit)
    return modern


def _prefix_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace a list in `items` by `prefixItems`, and `additionalItems` by `items`; `items:
    false` by `maxItems`.
    """
    others = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if others is not None:
            schema["items"] = others
    if isinstance(schema.get("items"), bool) and not schema.pop("items"):
        count = len(schema.get("prefixItems", ()))
        schema["maxItems"] = min(count, schema.get("maxItems", count))
    return {key: value for key, value in schema.items() if (key, value) != ("prefixItems", [])}


def types_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return the types that a schema names."""
    kind = schema.get("type", [])
    if isinstance(kind, list):
        return list(kind)
    return [kind]


def without(schema: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the schema without some keywords."""
    return {key: value for key, value in schema.items() if key not in keys}


def merged(
    schema: dict[str, Any], definitions: Mapping[str, Any], merged_names: set[str] | None = None
) -> dict[str, Any]:
    """Return the schema with the parts of its `allOf` merged into it, each definition once.

    It may ask for less than all parts; the arguments are checked by the schema itself.
    """
    parts = schema.get("allOf")
    if not isinstance(parts, list):
        return schema
    if merged_names is None:
        names = set[str]()
    else:
        names = merged_names
    whole = without(schema, "allOf")
    if len(parts) == 1 and "$ref" in parts[0] and not whole.keys() - set(_ANNOTATIONS):
        return {**parts[0], **whole}
    for part in parts:
        name = str(part.get("$ref", "")).rpartition("/")[2]
        if name not in names:
            target = definitions.get(name, {})
        else:
            target = {}
        names.add(name)
        whole = _both(whole, merged({**target, **without(part, "$ref")}, definitions, names))
    return whole


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema for two: all properties and required names.

    Of any other keyword, the first counts.
    """
    both = {**other, **one}
    if "properties" in one and "properties" in other:
        own = {
            name: _both(each, other["properties"].get(name, {}))
            for name, each in one["properties"].items()
        }
        both["properties"] = {**own, **other["properties"], **own}
    if "required" in both:
        both["required"] = list(
            dict.fromkeys([*one.get("required", ()), *other.get("required", ())])
        )
    return both


def _refuse(_: Any, *__: Any, **___: Any) -> NoReturn:
    raise TypeError("a tool's schema cannot be changed: change a copy (copy.deepcopy)")


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes.

    Equal to a plain dict, and written to JSON like one; a deep copy is plain.
    """

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses changes."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = (
        _refuse
    )
    __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:
    """Return JSON-like data as immutable dicts and lists, at any depth."""
    if isinstance(value, dict):
        return FrozenDict({key: frozen(each) for key, each in value.items()})
    if isinstance(value, list):
        return FrozenList(map(frozen, value))
    return value


def thawed(value: Any) -> Any:
    """Return immutable data as plain dicts and lists."""
    if isinstance(value, dict):
        return {key: thawed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [thawed(each) for each in value]
    return value
