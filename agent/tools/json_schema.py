"""JSON Schemas as data: updated to the current draft, resolved, merged and made immutable.

Type hints and servers give schemas in any draft (version of JSON Schema), with references and
keywords that some models do not know. `schema_for_models` rewrites a schema in the form that models
read. That form may ask for less than the original, by which the arguments are checked.
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
#: Types whose values are neither lists nor objects.
_SCALARS = ("string", "integer", "number", "boolean")
#: Keywords that annotate a value without restricting it.
_ANNOTATIONS = ("description", "default", "examples", "deprecated", "readOnly", "writeOnly")
#: Keywords that bound a number.
NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def schema_for_models(
    raw: Mapping[str, Any], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the object schema of a tool's arguments, simplified for models.

    It has no titles; its references are resolved and its `allOf` is merged. A definition that
    contains itself stays in `$defs`, and an `allOf` inside a parameter stays.

    A parameter in `optional` is null by being left out, so its schema does not offer null as well.
    Raises TypeError for a part that is no schema.
    """
    inliner = _Inliner(raw)
    properties = {}
    for name, schema in raw.get("properties", {}).items():
        parameter = inliner.inline(as_object(schema))
        if "anyOf" in parameter:
            parameter = _with_simple_union(parameter, offers_null=name not in optional)
        # Null as a default says no more than that the parameter may be left out. `...` stands for
        # a parameter without a default.
        if parameter.get("default", ...) is None:
            del parameter["default"]
        properties[name] = _without_any_value(parameter)

    rest = inliner.inline({key: value for key, value in raw.items() if key in _TOP_LEVEL_KEYWORDS})
    # It is the same for every tool, and not worth its tokens.
    if rest.get("additionalProperties") is False:
        del rest["additionalProperties"]
    schema = {
        **rest,
        "type": "object",
        "properties": properties,
        "required": list(raw.get("required", [])),
    }
    whole = with_merged_parts(schema, inliner.definitions)
    if inliner.definitions:
        return {**whole, "$defs": inliner.definitions}
    return whole


def _with_simple_union(parameter: dict[str, Any], *, offers_null: bool) -> dict[str, Any]:
    """Return a parameter's schema with its `anyOf` written as one type where that is possible."""
    parts = parameter["anyOf"]
    if not offers_null:
        parts = [part for part in parts if part.get("type") != "null"]
    are_bare_scalars = all(part.keys() == {"type"} and part["type"] in _SCALARS for part in parts)
    if len(parts) == 1:
        union = parts[0]
    elif are_bare_scalars and {"type": "string"} in parts:
        # Each of them can be sent as text.
        union = {"type": "string"}
    else:
        union = {"anyOf": parts}
    return {**union, **without(parameter, "anyOf")}


def with_sorted_sets(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the sets in all its defaults sorted.

    Each process has another order of the same set, and a vendor's prompt cache needs the same text.
    """
    whole = each_part(schema, with_sorted_sets)
    if "default" in whole:
        whole["default"] = _default_with_sorted_sets(whole["default"], whole)
    return whole


def _default_with_sorted_sets(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a JSON value with those lists sorted that are sets by its schema."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        other_properties = schema.get("additionalProperties")
        changed_fields = {}
        for name, each in value.items():
            part = as_object(properties.get(name, other_properties) or {})
            changed_fields[name] = _default_with_sorted_sets(each, part)
        return changed_fields
    if isinstance(value, list):
        items = as_object(schema.get("items") or {})
        changed = [_default_with_sorted_sets(each, items) for each in value]
        if schema.get("uniqueItems"):
            changed.sort(key=json.dumps)
        return changed
    return value


class _Inliner:
    """Replaces the references in a schema by the definitions they refer to.

    `definitions` collects those that must stay definitions: they contain themselves, or more than
    MAX_INLINED references were replaced before. One for each whole schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        #: The names in `definitions`, by reference.
        self._names: dict[str, str] = {}
        self._inlined_count = 0
        self.definitions: dict[str, Any] = {}

    def inline(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema with the definitions in place of the references.

        It has neither pydantic's titles nor its discriminators, which name definitions.
        """
        whole = each_part(_modernized(schema), self.inline)
        inlined = without(whole, *_DROPPED_KEYWORDS)
        # Not every vendor knows `const`, but all know `enum`.
        if "const" in whole:
            inlined["enum"] = [whole["const"]]
        # JSON cannot hold NaN and infinities.
        if isinstance(inlined.get("default"), float) and not math.isfinite(inlined["default"]):
            del inlined["default"]

        reference = inlined.pop("$ref", None)
        if reference is None:
            return inlined
        target = self._target(reference)
        if target is None:
            return {"$ref": reference, **inlined}
        return {**self._replacement(reference, target), **inlined}

    def _replacement(self, reference: str, target: dict[str, Any]) -> dict[str, Any]:
        """Return the schema `target` itself, or a reference to it among `definitions`."""
        self._inlined_count += 1
        if self._inlined_count <= MAX_INLINED and not self._contains_itself(reference):
            return self.inline(target)
        if reference not in self._names:
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])
            while name in self.definitions:
                name += "_"
            self._names[reference] = name
            # The name is taken before the target is inlined, since its parts may refer to it.
            self.definitions[name] = {}
            self.definitions[name] = self.inline(target)
        return {"$ref": f"#/$defs/{self._names[reference]}"}

    def _target(self, reference: Any) -> dict[str, Any] | None:
        """Return the schema at a JSON pointer into the root schema, `#` or `#/...`.

        None if there is none.
        """
        if not isinstance(reference, str):
            return None
        if reference != "#" and not reference.startswith("#/"):
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
        """Return whether the target of a reference refers to itself, directly or through others."""
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


def _without_any_value(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without pydantic's "any value" for the items of a bare list or dict."""
    rest = each_part(schema, _without_any_value)
    if rest.get("items") == {}:
        del rest["items"]
    if rest.get("additionalProperties") is True:
        del rest["additionalProperties"]
    return rest


def each_part(schema: Mapping[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return a schema with `change` applied to all schemas directly inside it.

    Those that are `true` or `false` stay.
    """

    def changed_part(part: Any) -> Any:
        if isinstance(part, dict):
            return change(part)
        return part

    changed = dict(schema)
    for key in _SCHEMA_KEYWORDS:
        if key in changed:
            changed[key] = changed_part(changed[key])
    for key in _LIST_KEYWORDS:
        if isinstance(changed.get(key), list):
            changed[key] = [changed_part(part) for part in changed[key]]
    for key in _MAP_KEYWORDS:
        if isinstance(changed.get(key), dict):
            changed[key] = {name: changed_part(part) for name, part in changed[key].items()}
    return changed


def as_object(schema: Any) -> dict[str, Any]:
    """Return `true` (any value) and `false` (no value) as an object schema.

    Raises TypeError for a value that is no schema.
    """
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise TypeError(f"{schema!r} is neither an object nor a boolean")
    return schema


def _modernized(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema as the current draft writes it. The schemas directly inside it stay.

    Those of them that are `true` or `false` become objects. Raises TypeError for a value that is no
    schema.
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
    """Return the schema with exclusive limits as the current draft writes them.

    Draft 4 and OpenAPI 3.0 write `minimum: 1, exclusiveMinimum: true` for `exclusiveMinimum: 1`.
    """
    modern = dict(schema)
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if not isinstance(modern.get(exclusive), bool):
            continue
        is_exclusive = modern.pop(exclusive)
        if is_exclusive and limit in modern:
            modern[exclusive] = modern.pop(limit)
    return modern


def _prefix_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the items of a tuple as the current draft writes them.

    Older drafts write `items: [...]` for `prefixItems`, and `additionalItems` for `items`. Models
    do not know `items: false`, which becomes `maxItems`.
    """
    additional_items = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if additional_items is not None:
            schema["items"] = additional_items
    if isinstance(schema.get("items"), bool):
        allows_more = schema.pop("items")
        if not allows_more:
            count = len(schema.get("prefixItems", ()))
            schema["maxItems"] = min(count, schema.get("maxItems", count))
    if schema.get("prefixItems") == []:
        del schema["prefixItems"]
    return schema


def types_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return the types that a schema names, as a list; empty if it names none."""
    types = schema.get("type", [])
    if isinstance(types, list):
        return list(types)
    return [types]


def without(schema: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the schema without some keywords."""
    return {key: value for key, value in schema.items() if key not in keys}


def with_merged_parts(
    schema: dict[str, Any], definitions: Mapping[str, Any], merged_names: set[str] | None = None
) -> dict[str, Any]:
    """Return the schema with the parts of its `allOf` merged into it.

    `merged_names` are the definitions that have been merged already: each is merged once, so that
    one that contains itself has an end. The result may ask for less than all parts together; the
    arguments are checked by the schema itself.
    """
    parts = schema.get("allOf")
    if not isinstance(parts, list):
        return schema
    names = merged_names
    if names is None:
        names = set()
    whole = without(schema, "allOf")

    # A single reference with nothing but annotations around it can stay a reference.
    if len(parts) == 1 and "$ref" in parts[0] and not whole.keys() - set(_ANNOTATIONS):
        return {**parts[0], **whole}
    for part in parts:
        target = {}
        if "$ref" in part:
            name = str(part["$ref"]).rpartition("/")[2]
            if name not in names:
                target = definitions.get(name, {})
            names.add(name)
        merged_part = with_merged_parts({**target, **without(part, "$ref")}, definitions, names)
        whole = _both(whole, merged_part)
    return whole


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema for two, with the properties and required names of both.

    Where both have any other keyword, that of the first counts.
    """
    both = {**other, **one}
    if "properties" in one and "properties" in other:
        # In the order of the first, then those that only the other has.
        properties = dict(one["properties"])
        for name, schema in other["properties"].items():
            if name in properties:
                properties[name] = _both(properties[name], schema)
            else:
                properties[name] = schema
        both["properties"] = properties
    if "required" in both:
        names = [*one.get("required", ()), *other.get("required", ())]
        both["required"] = list(dict.fromkeys(names))
    return both


def _refuse(_: Any, *__: Any, **___: Any) -> NoReturn:
    raise TypeError("a tool's schema cannot be changed: change a copy (copy.deepcopy)")


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes. It equals a plain dict, and a deep copy of it is a plain dict.

    It extends `dict`, so that `json` writes it.
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
