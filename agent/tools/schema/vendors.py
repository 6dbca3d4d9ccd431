"""OpenAI, Anthropic, Gemini dialects; pydantic-ai's transformers where the extra is there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.schema.json_schema import MAX_INLINED, each_part, is_nothing, thawed

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
class SchemaDialect:
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
STRICT_OPENAI = SchemaDialect(_SHAPE | {*_NUMBERS, "minItems", "maxItems"}, _FORMATS)


#: Anthropic: Structured outputs, JSON Schema limitations: no bounds, at least no or one item, nothing recursive.
STRICT_ANTHROPIC = SchemaDialect(_SHAPE | {"minItems"}, _FORMATS | {"uri"}, (0, 1))


#: Google: Generative Language API, Schema.
GEMINI = SchemaDialect(
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


#: Anything, for Gemini, which wants to be told a type.
_ANYTHING: Sequence[Mapping[str, Any]] = (
    *({"type": kind} for kind in ("string", "number", "boolean", "object")),
    {"type": "array", "items": {"type": "string"}},
)


def for_gemini(schema: dict[str, Any]) -> dict[str, Any]:
    """The whole schema with every definition in its place, but not within itself, and no more than so many."""
    return _ForGemini(schema.get("$defs", {})).plain(without(schema, "$defs"))


class _ForGemini:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._inside: tuple[str, ...] = ()
        self._left = MAX_INLINED

    def plain(self, schema: dict[str, Any]) -> dict[str, Any]:
        schema = _null_as_flag(schema)
        if "$ref" in schema:
            return self._in_place(str(schema["$ref"]).rpartition("/")[2], without(schema, "$ref"))
        if schema.get("items") == {}:
            schema = {**schema, "items": {"type": "string"}}
        made = each_part(_choice_of_text(GEMINI.sayable(schema)), self.plain)
        if not made.keys() & {"type", "anyOf"}:
            made["anyOf"] = [dict(kind) for kind in _ANYTHING]
        if "required" in made:
            made["required"] = [key for key in made["required"] if key in made.get("properties", {})]
        return _choice_alone({key: value for key, value in made.items() if value != []})

    def _in_place(self, name: str, beside: dict[str, Any]) -> dict[str, Any]:
        self._left -= 1
        if name in self._inside or name not in self._definitions or self._left < 0:
            return self.plain(_another(name, self._definitions.get(name, {}), beside))
        before, self._inside = self._inside, (*self._inside, name)
        made = self.plain({**self._definitions[name], **beside})
        self._inside = before
        return made


def _another(name: str, definition: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """What stands where a definition is met within itself."""
    words = filter(None, [beside.get("description"), f"Another {name}, as above"])
    kind = {"type": "object"} if types_of(definition) == ["object"] else {}
    flag = {"nullable": True} if beside.get("nullable") else {}
    return {**kind, **flag, "description": ": ".join(words)}


def _null_as_flag(schema: dict[str, Any]) -> dict[str, Any]:
    """Null is no type for Gemini, and a choice of one is no choice. Types in a list are parts of a choice."""
    kinds = types_of(schema)
    others = [kind for kind in kinds if kind != "null"]
    if others and len(kinds) > 1 and "enum" not in schema:
        flag = {"nullable": True} if "null" in kinds else {}
        if len(others) == 1:
            return {**schema, "type": others[0], **flag}
        told: dict[str, Any] = {key: schema[key] for key in ("description", "default") if key in schema}
        rest = without(schema, "type", *told)
        return {**told, **flag, "anyOf": [{**said_of(rest, [kind]), "type": kind} for kind in others]}
    parts = [part for part in schema.get("anyOf", ()) if not _is_null(part)]
    if not parts or (len(parts) == len(schema["anyOf"]) > 1):
        return schema
    flag = {"nullable": True} if len(parts) < len(schema["anyOf"]) else {}
    rest = {**without(schema, "anyOf"), **flag}
    return _null_as_flag({**parts[0], **rest}) if len(parts) == 1 else {**rest, "anyOf": parts}


def _is_null(schema: Mapping[str, Any]) -> bool:
    return types_of(schema) == ["null"] or schema.get("enum") == [None]


def _choice_of_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Gemini's enums are of text that is not empty; arguments are read from it."""
    if "enum" not in schema:
        return {**schema, "type": "string", "nullable": True} if schema.get("type") == "null" else schema
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in schema["enum"] if each is not None]
    nullable = {"nullable": True} if None in schema["enum"] else {}
    choices = {"enum": [text for text in texts if text]} if any(texts) else {}
    rest = said_of(without(schema, "enum", "format"), ["string"])
    return {**rest, "type": "string", **choices, **nullable}


def _choice_alone(schema: dict[str, Any]) -> dict[str, Any]:
    """Vertex AI takes nothing beside `anyOf`: what is said of the whole is said of its parts."""
    if "anyOf" not in schema:
        return schema
    inner = [each for part in schema["anyOf"] for each in part.get("anyOf", [part])]
    parts = [{**part, "nullable": True} if schema.get("nullable") else part for part in inner]
    words = [schema["description"]] if schema.get("description") else []
    first = {**parts[0], "description": " ".join([*words, *filter(None, [parts[0].get("description")])])}
    return {"anyOf": [first if words else parts[0], *parts[1:]]}


#: What is told about values, and narrows nothing.
_TOLD = ("description", "default", "examples", "deprecated", "readOnly", "writeOnly")


#: What says what a value is made of. Alternatives without any of it only narrow what stands beside them.
_MADE_OF = frozenset((
    "type", "properties", "patternProperties", "additionalProperties", "items", "prefixItems", "enum", "$ref", "anyOf",
    "oneOf", "allOf", "format", "pattern",
))  # fmt: skip


_OBJECT = ("properties", "required", "patternProperties", "additionalProperties")


_AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")


_AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def shaped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, and its definitions, without `allOf` and `oneOf`, with nothing beside `anyOf` that vendors would
    overlook, without what no value fits, and with a type wherever it can be told.

    But for such a type it never asks for more than the schema did, and sometimes for less: arguments are checked by the
    schema itself.
    """
    definitions = schema.get("$defs", {})
    shaper = _Shaper(definitions)
    made = shaper.shaped(without(schema, "$defs"))
    kept = {name: shaper.shaped(each, name) for name, each in definitions.items()}
    return {**made, "$defs": kept} if kept else made


def merge_all_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its own `allOf` as one, and what is inside it as it is."""
    return _Shaper(schema.get("$defs", {})).merged(dict(schema))


class _Shaper:
    """Merges what refers to definitions, too, but none within itself, and no more than so many."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._inside: tuple[str, ...] = ()
        self._left = MAX_INLINED

    def shaped(self, schema: dict[str, Any], *inside: str) -> dict[str, Any]:
        before, self._inside = self._inside, (*self._inside, *inside)
        made = _possible(_typed(self._chosen(_one_of(self.merged(schema)))))
        made = each_part(made, self.shaped)
        self._inside = before
        return made

    def merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        """All that must hold together, as one."""
        parts = schema.get("allOf")
        if not isinstance(parts, list):
            return schema
        made = without(schema, "allOf")
        if len(parts) == 1 and "$ref" in parts[0] and not made.keys() - set(_TOLD):
            return {**parts[0], **made}
        for part in parts:
            made = _join(made, self.merged(self._in_place(part)))
        return made

    def _in_place(self, part: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in part:
            return part
        name = str(part["$ref"]).rpartition("/")[2]
        self._left -= 1
        if name in self._inside or name not in self._definitions or self._left < 0:
            return without(part, "$ref")
        self._inside = (*self._inside, name)
        return {**self._definitions[name], **without(part, "$ref")}

    def _chosen(self, schema: dict[str, Any]) -> dict[str, Any]:
        """What stands beside alternatives as a part of each. Those that only narrow an object are left to the check."""
        parts = schema.get("anyOf")
        if not isinstance(parts, list):
            return schema
        rest, told = without(schema, "anyOf", *_TOLD), {key: schema[key] for key in _TOLD if key in schema}
        if not rest:
            return schema
        self._left -= len(parts)
        narrowing = not any(part.keys() & _MADE_OF - {"type"} for part in parts)
        if self._left < 0 or ("properties" in rest and narrowing):
            return without(schema, "anyOf")
        return {**told, "anyOf": [_with_rest(part, rest) for part in parts]}


def _with_rest(part: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    kinds = types_of(part)
    own = said_of(rest, kinds) if kinds else rest
    if kinds == ["null"] or is_nothing(part) or (own.keys() == {"type"} and "$ref" in part):
        return part
    return {"allOf": [part, own]}


def _one_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The vendors' `anyOf` is all they have for a choice."""
    if "oneOf" not in schema:
        return schema
    return {"anyOf": schema["oneOf"], **without(schema, "oneOf")}


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.keys() & {"type", "anyOf", "enum", "$ref"}:
        return schema
    if schema.keys() & set(_OBJECT):
        return {"type": "object", **schema}
    return {"type": "array", **schema} if schema.keys() & {"items", "prefixItems"} else schema


def _possible(schema: dict[str, Any]) -> dict[str, Any]:
    """Without properties and alternatives that no value fits."""
    made = dict(schema)
    if isinstance(made.get("properties"), dict):
        made["properties"] = {name: each for name, each in made["properties"].items() if not is_nothing(each)}
        gone = schema["properties"].keys() - made["properties"].keys()
        if gone and "required" in made:
            made["required"] = [name for name in made["required"] if name not in gone]
    if isinstance(made.get("anyOf"), list):
        made["anyOf"] = [part for part in made["anyOf"] if not is_nothing(part)]
    return made if made.get("anyOf", ...) != [] else without(made, "anyOf")


def _join(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What both say of a value, or nearly: of what cannot be said in one, such as two patterns, it is the first."""
    made = {**other, **one}
    for key in one.keys() & other.keys():
        made[key] = _both(key, one[key], other[key])
    if "type" in one and "type" in other:
        kinds = _common_types(types_of(one), types_of(other))
        made["type"] = kinds[0] if len(kinds) == 1 else kinds
    return made


def _both(key: str, one: Any, other: Any) -> Any:
    if one == other:
        return one
    if key == "items":
        return {"allOf": [one, other]}
    if key == "properties":
        return {
            **one,
            **{name: _both("items", one[name], each) if name in one else each for name, each in other.items()},
        }
    if key == "required":
        return list(dict.fromkeys([*one, *other]))
    if key == "enum":
        return [choice for choice in one if choice in other] or one
    if key == "additionalProperties":
        return one if other is True else other if one is True else one and other
    if key in _AT_LEAST:
        return max(one, other)
    return min(one, other) if key in _AT_MOST else one


def _common_types(one: list[Any], other: list[Any]) -> list[Any]:
    """The types in both; each integer is a number, too."""
    both = [kind for kind in one if kind in other or (kind == "integer" and "number" in other)]
    return both + [kind for kind in other if kind == "integer" and "number" in one and kind not in both] or one


_KINDS: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null",
}  # fmt: skip


def strict_schema(name: str, schema: dict[str, Any], dialect: SchemaDialect) -> dict[str, Any]:
    """The schema of the tool with this name; what may be left out may be null instead.

    Raises ToolValidationError, with the cure, for what has no such form.
    """

    def closed(part: dict[str, Any]) -> dict[str, Any]:
        made = each_part(dialect.sayable(_alone(_typed_of_strict(part))), closed)
        if isinstance(made.get("$defs"), dict):
            made["$defs"] = {key: closed(each) for key, each in made["$defs"].items()}
        if not made.keys() & {"type", "anyOf", "enum", "$ref"}:
            raise ToolValidationError(
                f"{name!r} has no strict schema: of a value nothing is said; ask without strict=True"
            )
        return _closed(name, made) if "object" in types_of(made) else made

    return closed(schema)


def _typed_of_strict(schema: dict[str, Any]) -> dict[str, Any]:
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


#: Characters of a function's description that OpenAI takes: "string too long. Expected maximum length 1024".
_MAX_OPENAI_DESCRIPTION = 1024


#: The mark where one is cut.
_CUT = " [...]"


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
    told = _told(name, description, api_format)
    try:
        whole = _whole(thawed(parameters), is_shaped=strict or api_format == "gemini")
        if api_format == "gemini":  # which takes no parameters without properties
            schema = for_gemini(whole)
            return {**told, "parameters": schema} if schema.get("properties") else told
        schema = strict_schema(name, whole, _dialect(name, whole, api_format)) if strict else whole
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


def _dialect(name: str, schema: Mapping[str, Any], api_format: str) -> SchemaDialect:
    if api_format != "anthropic":
        return STRICT_OPENAI
    if "$defs" in schema:
        raise ToolValidationError(
            f"{name!r} has no strict schema for {api_format}: something in it contains itself; ask without strict=True"
        )
    return STRICT_ANTHROPIC


def _whole(parameters: dict[str, Any], *, is_shaped: bool) -> dict[str, Any]:
    """The object that the arguments are, with lists of something."""
    made = without(parameters, *_NOT_AT_THE_TOP)
    return _with_items(shaped(made) if is_shaped else made)


def _told(name: str, description: str, api_format: str) -> dict[str, Any]:
    if api_format.startswith("openai") and len(description) > _MAX_OPENAI_DESCRIPTION:
        description = description[: _MAX_OPENAI_DESCRIPTION - len(_CUT)] + _CUT
    return {"name": name, "description": description}


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI and Gemini refuse a list of which nothing is said, and know no lists of places."""
    made = each_part(schema, _with_items)
    if isinstance(made.get("$defs"), dict):
        made["$defs"] = {name: _with_items(each) for name, each in made["$defs"].items()}
    if "prefixItems" not in made and ("items" in made or "array" not in types_of(made)):
        return made
    every = [*made.get("prefixItems", []), *([made["items"]] if "items" in made else [])]
    places = [each for at, each in enumerate(every) if each not in every[:at]]
    items = places[0] if len(places) == 1 else {"anyOf": places} if places else {}
    return {**without(made, "prefixItems"), "items": items}
