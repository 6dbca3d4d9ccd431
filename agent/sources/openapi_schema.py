"""Schemas of an OpenAPI document: references put in place, cycles cut, the dialect of 3.0 turned into JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.agent.sources.errors import SourceError
from sayso.agent.tools.drafts import each_part, exclusive

#: Parts of one operation's schemas that are read; what lies beyond is left open.
MAX_PARTS = 4000
#: Levels of a document that are read.
MAX_DEPTH = 60
#: References that may lead from one to the next.
MAX_HOPS = 30

#: Keywords of OpenAPI that JSON Schema does not have, or that only tell people something.
_DROPPED = {
    "example",
    "examples",
    "xml",
    "discriminator",
    "externalDocs",
    "deprecated",
    "nullable",
    "writeOnly",
    "$schema",
}


class Document:
    """A parsed document, and the way from `#/...` to what stands there."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def resolved(self, value: Any) -> Mapping[str, Any]:
        """The object itself, or the one it refers to. Raises SourceError."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, Mapping):
                raise SourceError(f"there is {type(value).__name__!r} where an object must be")
            if "$ref" not in value:
                return value
            value = self.at(value["$ref"])
        raise SourceError("its references lead to each other, and nowhere else")

    def at(self, reference: Any) -> Any:
        """What stands at a reference. Raises SourceError for one that leads nowhere, or out of this document."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SourceError(f"it refers to {reference!r}: bundle the document into one file")
        value: Any = self.root
        for part in filter(None, reference.removeprefix("#").split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise SourceError(f"it refers to {reference!r}, and there is nothing") from None
        return value


class Inliner:
    """Puts references in place, for one operation. `cuts` names what was cut because it contains itself."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._parts = 0
        self.cuts: list[str] = []

    def inline(self, schema: Any, inside: tuple[str, ...] = ()) -> Any:
        """The schema without references, in JSON Schema's own words. Raises SourceError."""
        self._parts += 1
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SourceError(f"there is {type(schema).__name__!r} where a schema must be")
        if self._parts > MAX_PARTS or len(inside) > MAX_DEPTH:
            return self._cut("...")
        if "$ref" in schema:
            return self._followed(schema, inside)
        plain = {key: _settable(key, value) for key, value in schema.items() if _is_kept(key)}
        inlined = each_part(plain, lambda part: self.inline(part, (*inside, "/")))
        return _nullable(exclusive(inlined), is_nullable=schema.get("nullable") is True)

    def _followed(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
        reference = schema["$ref"]
        if reference in inside:
            return self._cut(str(reference).rpartition("/")[2])
        target = self.inline(self._document.at(reference), (*inside, reference))
        beside = {key: schema[key] for key in ("description", "default") if key in schema}
        return {**target, **beside} if isinstance(target, dict) else target

    def _cut(self, name: str) -> dict[str, Any]:
        if name not in self.cuts:
            self.cuts.append(name)
        return {"description": f"Another {name}, not shown again." if name != "..." else "Not shown: too deep."}


def _is_kept(key: Any) -> bool:
    return isinstance(key, str) and key not in _DROPPED and not key.startswith("x-")


def _settable(key: str, value: Any) -> Any:
    """What only the server sets has no place among arguments."""
    if key not in ("properties", "patternProperties") or not isinstance(value, Mapping):
        return value
    return {str(name): each for name, each in value.items() if not _is_read_only(each)}


def _is_read_only(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("readOnly") is True


def _nullable(schema: dict[str, Any], *, is_nullable: bool) -> dict[str, Any]:
    """3.0 says `nullable: true` where JSON Schema has a type of its own for null."""
    required, shown = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and isinstance(shown, dict):  # what was left out cannot be asked for
        schema["required"] = [name for name in required if str(name) in shown]
    if not is_nullable:
        return schema
    if isinstance(schema.get("type"), str):
        enum = {"enum": [*schema["enum"], None]} if isinstance(schema.get("enum"), list) else {}
        return {**schema, "type": [schema["type"], "null"], **enum}
    return {"anyOf": [schema, {"type": "null"}]}
