"""Vendors: a tool's schema in the dialect of each model vendor (seed: Tool, `get_schema`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agent.tools.errors import ToolValidationError
from agent.tools.frozen import thawed
from agent.tools.schema import MAX_INLINED, each_part

ApiFormat = Literal["openai-chat", "openai-response", "anthropic", "gemini"]

#: What OpenAI and Anthropic accept as a function's name, and what Gemini does.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
#: What they accept as a parameter's: Anthropic answers 400 to anything else, Google's reference (FunctionDeclaration,
#: parameters) says so. OpenAI takes any.
_PARAMETER_NAMES = {
    "anthropic": re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "gemini": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
}
#: What no vendor takes beside the properties of the whole: what the arguments are checked against still has it.
_NOT_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "patternProperties")
#: Parts of a regular expression that constrained decoding does not know: looking around, back and at word borders.
_NO_GRAMMAR = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9bB]")


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The part of JSON Schema that a vendor knows. Where there are `min_items`, it takes no other values of that."""

    keywords: frozenset[str]
    formats: frozenset[str]
    min_items: tuple[int, ...] = ()

    def takes(self, key: str, value: Any) -> bool:
        """Whether the vendor takes this keyword with this value."""
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
_STRICT_OPENAI = _Dialect(
    _SHAPE | {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"},
    _FORMATS,
)
#: Anthropic: Structured outputs, JSON Schema limitations: no bounds, at least no or one item, nothing recursive.
_STRICT_ANTHROPIC = _Dialect(_SHAPE | {"minItems"}, _FORMATS | {"uri"}, (0, 1))
#: Google: Generative Language API, Schema.
_GEMINI = _Dialect(
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
    "pattern": "like {}", "format": "as {}", "default": "by default {!r}",
}  # fmt: skip
#: Anything, for Gemini, which wants to be told a type.
_ANYTHING: Sequence[Mapping[str, Any]] = (
    *({"type": kind} for kind in ("string", "number", "boolean", "object")),
    {"type": "array", "items": {"type": "string"}},
)
_KINDS: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null",
}  # fmt: skip


def vendor_schema(
    name: str, description: str, parameters: Mapping[str, Any], api_format: str, *, strict: bool
) -> dict[str, Any]:
    """One tool's definition as the vendor's API takes it: the caller's own, to change as it likes.

    `strict` asks OpenAI and Anthropic to hold the model to the schema. Raises ToolValidationError for an unknown
    format, a name the vendor refuses, or a schema that has no strict form.
    """
    if api_format not in get_args(ApiFormat):
        known = ", ".join(get_args(ApiFormat))
        raise ToolValidationError(f"no schema of {name!r} for the API {api_format!r}; known: {known}")
    pattern = _GEMINI_NAME if api_format == "gemini" else _NAME
    if not pattern.fullmatch(name):
        raise ToolValidationError(
            f"{api_format} takes no tool named {name!r}: letters, digits, '_' and '-', 64 at most"
        )
    _check_parameter_names(name, parameters, api_format)
    told = {"name": name, "description": description}
    try:
        whole = _with_items({key: value for key, value in thawed(parameters).items() if key not in _NOT_AT_THE_TOP})
        if api_format == "gemini":
            return _gemini(told, whole)
        schema = _strict(name, whole, _dialect(name, whole, api_format)) if strict else whole
    except RecursionError as exc:
        raise ToolValidationError(f"no schema of {name!r} for {api_format}: it is nested too deep") from exc
    if api_format == "anthropic":
        return {**told, "input_schema": schema, **({"strict": True} if strict else {})}
    if api_format == "openai-response":
        return {"type": "function", **told, "parameters": schema, "strict": strict}
    return {"type": "function", "function": {**told, "parameters": schema, **({"strict": True} if strict else {})}}


def _check_parameter_names(name: str, parameters: Mapping[str, Any], api_format: str) -> None:
    pattern = _PARAMETER_NAMES.get(api_format)
    wrong = [each for each in parameters["properties"] if pattern and not pattern.fullmatch(each)]
    if wrong:
        raise ToolValidationError(
            f"{api_format} takes no parameters named {wrong!r}, which {name!r} has: ASCII letters, digits and '_', "
            "64 at most"
        )


def _dialect(name: str, schema: Mapping[str, Any], api_format: str) -> _Dialect:
    if api_format != "anthropic":
        return _STRICT_OPENAI
    if "$defs" in schema:
        raise ToolValidationError(
            f"{name!r} has no strict schema for {api_format}: something in it contains itself; ask without strict=True"
        )
    return _STRICT_ANTHROPIC


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI and Gemini refuse a list of which nothing is said, and know no lists of places."""
    made = each_part(schema, _with_items)
    if isinstance(made.get("$defs"), dict):
        made["$defs"] = {name: _with_items(each) for name, each in made["$defs"].items()}
    if made.get("type") != "array" or "items" in made:
        return made
    places = [each for at, each in enumerate(made.get("prefixItems", [])) if each not in made["prefixItems"][:at]]
    items = places[0] if len(places) == 1 else {"anyOf": places} if places else {}
    return {**_without(made, "prefixItems"), "items": items}


def _strict(name: str, schema: dict[str, Any], dialect: _Dialect) -> dict[str, Any]:
    """Every property required, none beyond; what may be left out may be null instead."""

    def strict(part: dict[str, Any]) -> dict[str, Any]:
        made = each_part(_sayable(_alone(_typed(_one_of(part))), dialect), strict)
        if isinstance(made.get("$defs"), dict):
            made["$defs"] = {key: strict(each) for key, each in made["$defs"].items()}
        if not made.keys() & {"type", "anyOf", "enum", "$ref"}:
            raise ToolValidationError(
                f"{name!r} has no strict schema: of a value nothing is said; ask without strict=True"
            )
        return _closed(name, made) if _is_object(made) else made

    return strict(schema)


def _one_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The vendors' `anyOf` is all they have for a choice."""
    if "oneOf" in schema and "anyOf" not in schema:
        return {**{key: value for key, value in schema.items() if key != "oneOf"}, "anyOf": schema["oneOf"]}
    return schema


def _sayable(schema: dict[str, Any], dialect: _Dialect) -> dict[str, Any]:
    """What the vendor has keywords for; the rest in words."""
    kept = {key: value for key, value in schema.items() if dialect.takes(key, value)}
    said = [words.format(schema[key]) for key, words in _IN_WORDS.items() if key in schema and key not in kept]
    return {**kept, "description": f"{kept.get('description', '')} ({', '.join(said)})".strip()} if said else kept


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
    return {**_without(schema, "$ref"), "anyOf": [{"$ref": schema["$ref"]}]}


def _is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema


def _closed(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("additionalProperties") or "properties" not in schema:
        raise ToolValidationError(
            f"{name!r} has no strict schema: it takes an object of any keys; ask without strict=True"
        )
    shown = {key: each if key in required else _nullable(each) for key, each in properties.items()}
    return {**schema, "properties": shown, "required": list(properties), "additionalProperties": False}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema or not isinstance(schema.get("type"), str):
        if any(part.get("type") == "null" for part in schema.get("anyOf", ())):
            return schema
        described = {key: schema[key] for key in ("description",) if key in schema}
        inner = {key: value for key, value in schema.items() if key != "description"}
        parts = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
        return {"anyOf": [*parts, {"type": "null"}], **described}
    return {**schema, "type": [schema["type"], "null"]}


def _gemini(told: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Gemini knows no references, and no parameters without properties."""
    definitions = schema.pop("$defs", {})
    parameters = _ForGemini(definitions).plain(schema)
    return {**told, "parameters": parameters} if parameters.get("properties") else told


class _ForGemini:
    """Puts every definition in its place, but not within itself, and no more than so many."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._inside: tuple[str, ...] = ()
        self._left = MAX_INLINED

    def plain(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            return self._in_place(str(schema["$ref"]).rpartition("/")[2], _without(schema, "$ref"))
        if schema.get("items") == {}:
            schema = {**schema, "items": {"type": "string"}}
        made = each_part(_choice_of_text(_null_as_flag(_sayable(_one_of(schema), _GEMINI))), self.plain)
        if not made.keys() & {"type", "anyOf"}:
            made["anyOf"] = [dict(kind) for kind in _ANYTHING]
        if "required" in made:
            made["required"] = [key for key in made["required"] if key in made.get("properties", {})]
        return _choice_alone({key: value for key, value in made.items() if value != []})

    def _in_place(self, name: str, beside: dict[str, Any]) -> dict[str, Any]:
        self._left -= 1
        if name in self._inside or name not in self._definitions or self._left < 0:
            return {"type": "object", "description": f"Another {name}, as above"}
        before, self._inside = self._inside, (*self._inside, name)
        made = self.plain({**self._definitions[name], **beside})
        self._inside = before
        return made


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


def _null_as_flag(schema: dict[str, Any]) -> dict[str, Any]:
    parts = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    kinds = [kind for kind in schema["type"] if kind != "null"] if isinstance(schema.get("type"), list) else []
    if kinds:
        schema = {**schema, "nullable": "null" in schema["type"], "type": kinds[0]}
        if len(kinds) > 1:
            schema = {**_without(schema, "type"), "anyOf": [{"type": kind} for kind in kinds]}
    if len(parts) < len(schema.get("anyOf", ())) and parts:
        rest = {**_without(schema, "anyOf"), "nullable": True}
        return {**parts[0], **rest} if len(parts) == 1 else {**rest, "anyOf": parts}
    return schema


def _choice_of_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Gemini's enums are of text that is not empty; arguments are read from it."""
    if "enum" not in schema:
        return {**schema, "type": "string", "nullable": True} if schema.get("type") == "null" else schema
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in schema["enum"] if each is not None]
    nullable = {"nullable": True} if None in schema["enum"] else {}
    choices = {"enum": [text for text in texts if text]} if any(texts) else {}
    return {**_without(schema, "enum"), "type": "string", **choices, **nullable}


def _choice_alone(schema: dict[str, Any]) -> dict[str, Any]:
    """Vertex AI takes nothing beside `anyOf`: what is said of the whole is said of its parts."""
    if "anyOf" not in schema:
        return schema
    parts = [{**part, "nullable": True} if schema.get("nullable") else part for part in schema["anyOf"]]
    words = [schema["description"]] if schema.get("description") else []
    first = {**parts[0], "description": " ".join([*words, *filter(None, [parts[0].get("description")])])}
    return {"anyOf": [first if words else parts[0], *parts[1:]]}
