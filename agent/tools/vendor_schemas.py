"""The definition of a tool in the form of each vendor's API: OpenAI, Anthropic, Gemini."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.json_schema import (
    MAX_INLINED,
    NUMBER_KEYWORDS,
    each_part,
    limited_to_types,
    simplified,
    thawed,
    types_of,
    without,
)

ApiFormat = Literal["openai-chat", "openai-response", "anthropic", "gemini"]
#: The function names that OpenAI and Anthropic accept, and those that Gemini accepts.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
#: The parameter names that vendors accept. Anthropic answers 400 to any other; Google's reference (FunctionDeclaration,
#: parameters) demands these. OpenAI accepts any.
_PARAMETER_NAMES = {
    "anthropic": re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "gemini": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
}

#: Keywords that no vendor accepts beside the properties of the whole. The check of the arguments still applies them.
_NOT_AT_TOP_LEVEL = ("anyOf", "oneOf", "allOf", "not", "enum", "patternProperties")
#: Longest function description that OpenAI accepts, in characters: "string too long. Expected maximum length 1024".
_MAX_OPENAI_DESCRIPTION = 1024
#: Ends a description that was cut.
_CUT = " [...]"


def vendor_schema(
    name: str, description: str, parameters: Mapping[str, Any], api_format: str, *, strict: bool
) -> dict[str, Any]:
    """Return one tool's definition for the vendor's API, as new data that the caller may change.

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
    if api_format.startswith("openai") and len(description) > _MAX_OPENAI_DESCRIPTION:
        description = description[: _MAX_OPENAI_DESCRIPTION - len(_CUT)] + _CUT
    definition = {"name": name, "description": description}
    try:
        schema = without(thawed(parameters), *_NOT_AT_TOP_LEVEL)
        schema = _with_items(simplified(schema) if strict or api_format == "gemini" else schema)
        if api_format == "gemini":  # it refuses parameters without properties
            schema = for_gemini(schema)
            return {**definition, "parameters": schema} if schema.get("properties") else definition
        schema = strict_schema(name, schema, _strict_dialect(name, schema, api_format)) if strict else schema
    except RecursionError as exc:
        raise ToolValidationError(f"no schema of {name!r} for {api_format}: it is nested too deep") from exc
    strict_flag = {"strict": True} if strict else {}
    if api_format == "anthropic":
        return {**definition, "input_schema": schema, **strict_flag}
    if api_format == "openai-response":
        return {"type": "function", **definition, "parameters": schema, "strict": strict}
    return {"type": "function", "function": {**definition, "parameters": schema, **strict_flag}}


def _check_parameter_names(name: str, parameters: Mapping[str, Any], api_format: str) -> None:
    pattern = _PARAMETER_NAMES.get(api_format)
    wrong = [each for each in parameters["properties"] if pattern and not pattern.fullmatch(each)]
    if wrong:
        raise ToolValidationError(
            f"{api_format} takes no parameters named {wrong!r}, which {name!r} has: ASCII letters, digits and '_', "
            "64 at most"
        )


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with `items` in every array: OpenAI and Gemini demand them, and know no `prefixItems`."""
    whole = each_part(schema, _with_items)
    if isinstance(whole.get("$defs"), dict):
        whole["$defs"] = {name: _with_items(each) for name, each in whole["$defs"].items()}
    if "prefixItems" not in whole and ("items" in whole or "array" not in types_of(whole)):
        return whole
    schemas = [*whole.get("prefixItems", []), *([whole["items"]] if "items" in whole else [])]
    distinct = [each for index, each in enumerate(schemas) if each not in schemas[:index]]
    items = distinct[0] if len(distinct) == 1 else {"anyOf": distinct} if distinct else {}
    return {**without(whole, "prefixItems"), "items": items}


#: Parts of a regular expression that constrained decoding does not support: lookarounds, back references, word borders.
_UNSUPPORTED_PATTERN = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9bB]")
#: Keywords that are put in words into the description where a vendor does not support them, so that the model knows.
_IN_WORDS: Mapping[str, str] = {
    "minimum": "at least {}", "maximum": "at most {}", "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}", "multipleOf": "a multiple of {}", "minLength": "at least {} characters",
    "maxLength": "at most {} characters", "minItems": "at least {} items", "maxItems": "at most {} items",
    "pattern": "like {}", "format": "as {}", "default": "by default {}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemaDialect:
    """The part of JSON Schema that a vendor supports. `min_items`, if any, are the only values of that keyword."""

    keywords: frozenset[str]
    formats: frozenset[str]
    min_items: tuple[int, ...] = ()

    def translated(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords that the vendor supports, with the others in words in the description."""
        applicable = limited_to_types(schema, types_of(schema))
        supported = {key: value for key, value in applicable.items() if self._supports(key, value)}
        words = [
            # A default as JSON: a model that reads `True` would send it.
            form.format(json.dumps(schema[key], ensure_ascii=False) if key == "default" else schema[key])
            for key, form in _IN_WORDS.items()
            if key in schema and key not in supported
        ]
        if not words:
            return supported
        return {**supported, "description": f"{supported.get('description', '')} ({', '.join(words)})".strip()}

    def _supports(self, key: str, value: Any) -> bool:
        if key == "format":
            return value in self.formats
        if key == "pattern" and _UNSUPPORTED_PATTERN.search(str(value)):
            return False
        return key in self.keywords and (key != "minItems" or not self.min_items or value in self.min_items)


_COMMON_KEYWORDS = frozenset((
    "type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description", "$ref", "$defs",
    "pattern",
))  # fmt: skip

_COMMON_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
#: OpenAI: Structured Outputs, Supported schemas. Any other format is answered with 400.
STRICT_OPENAI = SchemaDialect(_COMMON_KEYWORDS | {*NUMBER_KEYWORDS, "minItems", "maxItems"}, _COMMON_FORMATS)
#: Anthropic: Structured outputs, JSON Schema limitations: no bounds except zero or one item at least, no recursion.
STRICT_ANTHROPIC = SchemaDialect(_COMMON_KEYWORDS | {"minItems"}, _COMMON_FORMATS | {"uri"}, (0, 1))
#: Google: Generative Language API, Schema.
GEMINI = SchemaDialect(
    frozenset((
        "type", "format", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required", "items",
        "minimum", "maximum", "minLength", "maxLength", "pattern", "anyOf",
    )),
    frozenset(("float", "double", "int32", "int64", "enum", "date-time")),
)  # fmt: skip


def _strict_dialect(name: str, schema: Mapping[str, Any], api_format: str) -> SchemaDialect:
    if api_format != "anthropic":
        return STRICT_OPENAI
    if "$defs" in schema:
        raise ToolValidationError(
            f"{name!r} has no strict schema for {api_format}: something in it contains itself; ask without strict=True"
        )
    return STRICT_ANTHROPIC


#: Names of types in JSON.
_JSON_TYPES: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null",
}  # fmt: skip


def strict_schema(name: str, schema: dict[str, Any], dialect: SchemaDialect) -> dict[str, Any]:
    """Return the strict schema of a tool's parameters: all are required, and optional ones may be null.

    Raises ToolValidationError, with the cure, for a schema that has no strict form.
    """

    def strict(part: dict[str, Any]) -> dict[str, Any]:
        part = dict(part)
        if "enum" in part and "type" not in part:  # OpenAI refuses an enum without the types of its choices
            kinds = list(dict.fromkeys(_JSON_TYPES.get(type(choice), "object") for choice in part["enum"]))
            part["type"] = kinds[0] if len(kinds) == 1 else kinds
        if "$ref" in part and len(part) > 1:  # OpenAI accepts siblings beside a choice of one, not beside a reference
            part["anyOf"] = [{"$ref": part.pop("$ref")}]
        whole = each_part(dialect.translated(part), strict)
        if isinstance(whole.get("$defs"), dict):
            whole["$defs"] = {key: strict(each) for key, each in whole["$defs"].items()}
        if not whole.keys() & {"type", "anyOf", "enum", "$ref"}:
            raise ToolValidationError(
                f"{name!r} has no strict schema: of a value nothing is said; ask without strict=True"
            )
        if "object" not in types_of(whole):
            return whole
        if whole.get("additionalProperties") or "properties" not in whole:
            raise ToolValidationError(
                f"{name!r} has no strict schema: it takes an object of any keys; ask without strict=True"
            )
        required = whole.get("required", [])
        properties = {key: each if key in required else _with_null(each) for key, each in whole["properties"].items()}
        return {**whole, "properties": properties, "required": list(properties), "additionalProperties": False}

    return strict(schema)


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    if _accepts_null(schema):
        return schema
    if "enum" in schema or not isinstance(schema.get("type"), str):
        description = {key: schema[key] for key in ("description",) if key in schema}
        inner = without(schema, "description")
        parts = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
        return {"anyOf": [*parts, {"type": "null"}], **description}
    return {**schema, "type": [schema["type"], "null"]}


def _accepts_null(schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return None in schema["enum"]
    return "null" in types_of(schema) or any(_accepts_null(part) for part in schema.get("anyOf", ()))


#: Any value, for Gemini, which demands a type.
_ANY_VALUE: Sequence[Mapping[str, Any]] = (
    *({"type": kind} for kind in ("string", "number", "boolean", "object")),
    {"type": "array", "items": {"type": "string"}},
)


def for_gemini(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for Gemini, which knows no references: definitions are inlined, at most MAX_INLINED of them."""
    return _GeminiTranslator(schema.get("$defs", {})).translated(without(schema, "$defs"))


class _GeminiTranslator:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._path: tuple[str, ...] = ()
        self._inlines_left = MAX_INLINED

    def translated(self, schema: dict[str, Any]) -> dict[str, Any]:
        schema = _with_null_flag(schema)
        if "$ref" in schema:
            return self._inlined(str(schema["$ref"]).rpartition("/")[2], without(schema, "$ref"))
        if schema.get("items") == {}:
            schema = {**schema, "items": {"type": "string"}}
        whole = each_part(_with_text_enum(GEMINI.translated(schema)), self.translated)
        if not whole.keys() & {"type", "anyOf"}:
            whole["anyOf"] = [dict(kind) for kind in _ANY_VALUE]
        if "required" in whole:
            whole["required"] = [key for key in whole["required"] if key in whole.get("properties", {})]
        return _without_siblings_of_any_of({key: value for key, value in whole.items() if value != []})

    def _inlined(self, name: str, siblings: dict[str, Any]) -> dict[str, Any]:
        self._inlines_left -= 1
        if name in self._path or name not in self._definitions or self._inlines_left < 0:
            description = filter(None, [siblings.get("description"), f"Another {name}, as above"])
            kind = {"type": "object"} if types_of(self._definitions.get(name, {})) == ["object"] else {}
            flag = {"nullable": True} if siblings.get("nullable") else {}
            return self.translated({**kind, **flag, "description": ": ".join(description)})
        outer, self._path = self._path, (*self._path, name)
        whole = self.translated({**self._definitions[name], **siblings})
        self._path = outer
        return whole


def _with_null_flag(schema: dict[str, Any]) -> dict[str, Any]:
    """Return null as Gemini's flag `nullable`, several types as alternatives, and a choice of one as that one."""
    kinds = types_of(schema)
    others = [kind for kind in kinds if kind != "null"]
    if others and len(kinds) > 1 and "enum" not in schema:
        flag = {"nullable": True} if "null" in kinds else {}
        if len(others) == 1:
            return {**schema, "type": others[0], **flag}
        annotations: dict[str, Any] = {key: schema[key] for key in ("description", "default") if key in schema}
        rest = without(schema, "type", *annotations)
        return {**annotations, **flag, "anyOf": [{**limited_to_types(rest, [kind]), "type": kind} for kind in others]}
    parts = [part for part in schema.get("anyOf", ()) if types_of(part) != ["null"] and part.get("enum") != [None]]
    if not parts or (len(parts) == len(schema["anyOf"]) > 1):
        return schema
    flag = {"nullable": True} if len(parts) < len(schema["anyOf"]) else {}
    rest = {**without(schema, "anyOf"), **flag}
    return _with_null_flag({**parts[0], **rest}) if len(parts) == 1 else {**rest, "anyOf": parts}


def _with_text_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an enum of non-empty text, the only one that Gemini knows; arguments are read from that text."""
    if "enum" not in schema:
        return {**schema, "type": "string", "nullable": True} if schema.get("type") == "null" else schema
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in schema["enum"] if each is not None]
    nullable = {"nullable": True} if None in schema["enum"] else {}
    choices = {"enum": [text for text in texts if text]} if any(texts) else {}
    rest = limited_to_types(without(schema, "enum", "format"), ["string"])
    return {**rest, "type": "string", **choices, **nullable}


def _without_siblings_of_any_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `anyOf` alone, which is all that Vertex AI accepts: its siblings move into its parts."""
    if "anyOf" not in schema:
        return schema
    flat = [each for part in schema["anyOf"] for each in part.get("anyOf", [part])]
    parts = [{**part, "nullable": True} if schema.get("nullable") else part for part in flat]
    if schema.get("description"):
        descriptions = filter(None, [schema["description"], parts[0].get("description")])
        parts[0] = {**parts[0], "description": " ".join(descriptions)}
    return {"anyOf": parts}
