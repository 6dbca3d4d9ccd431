"""Dialects: the part of JSON Schema that each vendor knows, and the rest in words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Parts of a regular expression that constrained decoding does not know: looking around, back and at word borders.
_NO_GRAMMAR = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9bB]")

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
#: What only says something of values of one type.
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset((
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    )),
    "array": frozenset((
        "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
        "unevaluatedItems",
    )),
    "string": frozenset(("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType")),
    "number": frozenset(_NUMBERS),
    "integer": frozenset(_NUMBERS),
}  # fmt: skip
_SPECIAL = frozenset().union(*_OF_TYPE.values())


@dataclass(frozen=True, slots=True)
class Dialect:
    """The part of JSON Schema that a vendor knows. Where there are `min_items`, it takes no other values of that."""

    keywords: frozenset[str]
    formats: frozenset[str]
    min_items: tuple[int, ...] = ()

    def sayable(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """What the vendor has keywords for; the rest in words."""
        kinds = types_of(schema)
        kept = {
            key: value
            for key, value in schema.items()
            if self._takes(key, value) and (not kinds or is_said_of(key, kinds))
        }
        said = [_words(key, schema[key]) for key in _IN_WORDS if key in schema and key not in kept]
        return {**kept, "description": f"{kept.get('description', '')} ({', '.join(said)})".strip()} if said else kept

    def _takes(self, key: str, value: Any) -> bool:
        if key == "format":
            return value in self.formats
        if key == "pattern" and _NO_GRAMMAR.search(str(value)):
            return False
        return key in self.keywords and (key != "minItems" or not self.min_items or value in self.min_items)


_SHAPE = frozenset((
    "type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description", "$ref", "$defs",
    "pattern",
))  # fmt: skip
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
#: OpenAI: Structured Outputs, Supported schemas. A format beyond these is a 400.
STRICT_OPENAI = Dialect(_SHAPE | {*_NUMBERS, "minItems", "maxItems"}, _FORMATS)
#: Anthropic: Structured outputs, JSON Schema limitations: no bounds, at least no or one item, nothing recursive.
STRICT_ANTHROPIC = Dialect(_SHAPE | {"minItems"}, _FORMATS | {"uri"}, (0, 1))
#: Google: Generative Language API, Schema.
GEMINI = Dialect(
    frozenset((
        "type", "format", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required", "items",
        "minimum", "maximum", "minLength", "maxLength", "pattern", "anyOf",
    )),
    frozenset(("float", "double", "int32", "int64", "enum", "date-time")),
)  # fmt: skip

#: What is told in the description where a vendor has no keyword for it, so that the model still knows.
_IN_WORDS: Mapping[str, str] = {
    "minimum": "at least {}", "maximum": "at most {}", "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}", "multipleOf": "a multiple of {}", "minLength": "at least {} characters",
    "maxLength": "at most {} characters", "minItems": "at least {} items", "maxItems": "at most {} items",
    "pattern": "like {}", "format": "as {}", "default": "by default {}",
}  # fmt: skip


def _words(key: str, value: Any) -> str:
    """A default as JSON: a model that reads `True` sends it."""
    return _IN_WORDS[key].format(json.dumps(value, ensure_ascii=False) if key == "default" else value)


def types_of(schema: Mapping[str, Any]) -> list[Any]:
    """The types it names."""
    kind = schema.get("type", [])
    return list(kind) if isinstance(kind, list) else [kind]


def is_said_of(key: str, kinds: list[Any]) -> bool:
    """Whether a keyword says anything of values of these types."""
    return key not in _SPECIAL or any(key in _OF_TYPE.get(kind, ()) for kind in kinds)


def said_of(schema: Mapping[str, Any], kinds: list[Any]) -> dict[str, Any]:
    """A schema without what says nothing of values of these types."""
    return {key: value for key, value in schema.items() if is_said_of(key, kinds)}


def without(schema: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The same without some keywords."""
    return {key: value for key, value in schema.items() if key not in keys}
