"""One plain object schema."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

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


def _refuse(_: Any, *__: Any, **___: Any) -> NoReturn:
    raise TypeError("a tool's schema cannot be changed: change a copy (copy.deepcopy)")


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes. Equal to, and written to JSON as, a plain one; a copy is plain."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __deepcopy__(self, _: Any) -> dict[str, Any]:
        return {key: thawed(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses changes."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def __deepcopy__(self, _: Any) -> list[Any]:
        return [thawed(value) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:
    """JSON-like data that cannot be changed, at any depth."""
    if isinstance(value, dict):
        return FrozenDict({key: frozen(each) for key, each in value.items()})
    return FrozenList(map(frozen, value)) if isinstance(value, list) else value


def thawed(value: Any) -> Any:
    """The same as plain dicts and lists."""
    if isinstance(value, dict):
        return {key: thawed(each) for key, each in value.items()}
    return [thawed(each) for each in value] if isinstance(value, list) else value


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
    inliner = _Inliner(raw)
    properties = {
        name: _bare(_parameter(inliner.inline(as_object(schema)), omissible=name in optional))
        for name, schema in raw.get("properties", {}).items()
    }
    rest = inliner.inline({key: value for key, value in raw.items() if key in _KEPT})
    if rest.get("additionalProperties") is False:
        del rest["additionalProperties"]  # as for every tool, and not worth its tokens
    whole = {**rest, "type": "object", "properties": properties, "required": list(raw.get("required", []))}
    return {**whole, "$defs": inliner.kept} if inliner.kept else whole


#: What the object itself may say besides its properties.
_KEPT = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "description")


class _Inliner:
    """Puts what is referred to where it is referred to; `kept` is what refers to itself, or is too much."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._targets: dict[str, dict[str, Any] | None] = {}
        self._names: dict[str, str] = {}
        self._inlined_so_far = 0
        self.kept: dict[str, Any] = {}

    def inline(self, schema: dict[str, Any]) -> dict[str, Any]:
        made = _undecorated(each_part(modern(schema), self.inline))
        reference = made.pop("$ref", None)
        if reference is None:
            return made
        return {**({"$ref": reference} if self._target(reference) is None else self._inlined(reference)), **made}

    def _inlined(self, reference: str) -> dict[str, Any]:
        target = self._target(reference) or {}
        self._inlined_so_far += 1
        if self._inlined_so_far > MAX_INLINED or self._is_recursive(reference):
            name = self._name(reference)
            if name not in self.kept:
                self.kept[name] = {}  # before what is inside, which refers to it
                self.kept[name] = self.inline(target)
            return {"$ref": f"#/$defs/{name}"}
        return self.inline(target)

    def _target(self, reference: Any) -> dict[str, Any] | None:
        """What it refers to, in the schema as it was given: a definition, or any other place of it."""
        if not isinstance(reference, str):
            return None
        if reference not in self._targets:
            self._targets[reference] = _at(self._root, reference)
        return self._targets[reference]

    def _name(self, reference: str) -> str:
        """What it is called among the definitions: by its last word, if nothing else is called so."""
        if reference not in self._names:
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])
            while name in self._names.values():
                name += "_"
            self._names[reference] = name
        return self._names[reference]

    def _is_recursive(self, reference: str) -> bool:
        seen: set[str] = set()
        waiting = _references(self._target(reference))
        while waiting:
            other = waiting.pop()
            if other == reference:
                return True
            if other not in seen:
                seen.add(other)
                waiting |= _references(self._target(other))
        return False


def _at(root: Mapping[str, Any], reference: str) -> dict[str, Any] | None:
    """The schema at `#/...`; None where there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    place: Any = root
    for part in filter(None, reference[1:].split("/")):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            place = place[int(key)] if isinstance(place, list) else place[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return as_object(place) if isinstance(place, bool | dict) else None


def _references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        inside = {reference for value in schema.values() for reference in _references(value)}
        return inside | ({schema["$ref"]} if isinstance(schema.get("$ref"), str) else set())
    return {reference for part in schema for reference in _references(part)} if isinstance(schema, list) else set()


#: Names, addresses, and what is told in other words.
_DECORATION = ("title", "const", "discriminator", "$schema", "$id", "$comment", *DEFINITIONS)


def _undecorated(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes of names, and with `const` as the enum that all vendors know.

    A `discriminator` says where definitions are that are in their places by now.
    """
    made = {key: value for key, value in schema.items() if key not in _DECORATION}
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
    """One alternative is itself; bare scalars that any string may stand for are a string (seed: Multi-Type Unions)."""
    if len(parts) == 1:
        return parts[0]
    if {"type": "string"} in parts and all(part.keys() == {"type"} and part["type"] in _SCALARS for part in parts):
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
