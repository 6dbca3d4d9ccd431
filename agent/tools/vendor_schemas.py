"""The definition of a tool in the form of each vendor's API: OpenAI, Anthropic, Gemini."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.json_schema import each_part, merged, thawed, types_of, without

ApiFormat = Literal["openai-chat", "openai-response", "anthropic", "gemini"]
#: The function names that OpenAI and Anthropic accept, and those that Gemini accepts.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
#: The parameter names that vendors accept. Anthropic answers 400 to any other; Google's reference
#: (FunctionDeclaration, parameters) demands these. OpenAI accepts any.
_PARAMETER_NAMES = {
    "anthropic": re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "gemini": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
}

#: Keywords that no vendor accepts beside the properties of the whole.
#: The check of the arguments still applies them.
_NOT_AT_TOP_LEVEL = ("anyOf", "oneOf", "allOf", "not", "enum", "patternProperties")
#: Longest function description that OpenAI accepts, in characters: "string too long.
#: Expected maximum length 1024".
_MAX_OPENAI_DESCRIPTION = 1024
#: Ends a description that was cut.
_CUT = " [...]"


def vendor_schema(
    name: str, description: str, parameters: Mapping[str, Any], api_format: str
) -> dict[str, Any]:
    """Return one tool's definition for the vendor's API, as new data that the caller may change.

    Raises ToolValidationError for an unknown format, and for a tool that the vendor refuses.
    """
    description, schema = for_vendor(name, description, parameters, api_format)
    definition = {"name": name, "description": description}
    if api_format == "anthropic":
        return {**definition, "input_schema": schema}
    if api_format == "gemini":  # it refuses parameters without properties
        schema = _for_gemini(schema, schema.get("$defs", {}))
        if schema.get("properties"):
            return {**definition, "parameters": schema}
        return definition
    # Strict is its default, and would make every parameter required.
    if api_format == "openai-response":
        return {"type": "function", **definition, "parameters": schema, "strict": False}
    return {"type": "function", "function": {**definition, "parameters": schema}}


def for_vendor(
    name: str, description: str, parameters: Mapping[str, Any], api_format: str
) -> tuple[str, dict[str, Any]]:
    """Return a tool's description and parameters without what the vendor refuses.

    The parameters are a JSON Schema.

    Raises ToolValidationError for an unknown format,
    and for a name or a depth that the vendor refuses.
    """
    if api_format not in get_args(ApiFormat):
        known = ", ".join(get_args(ApiFormat))
        raise ToolValidationError(
            f"no schema of {name!r} for the API {api_format!r}; known: {known}"
        )
    if not (_GEMINI_NAME if api_format == "gemini" else _NAME).fullmatch(name):
        raise ToolValidationError(
            f"{api_format} takes no tool named {name!r}: letters, digits, '_' and '-', 64 at most"
        )
    pattern = _PARAMETER_NAMES.get(api_format)
    wrong = [each for each in parameters["properties"] if pattern and not pattern.fullmatch(each)]
    if wrong:
        raise ToolValidationError(
            f"{api_format} takes no parameters named {wrong!r}, which {name!r} has: ASCII letters, digits and '_', "
            "64 at most"
        )
    if api_format.startswith("openai") and len(description) > _MAX_OPENAI_DESCRIPTION:
        description = description[: _MAX_OPENAI_DESCRIPTION - len(_CUT)] + _CUT
    try:
        schema = without(thawed(parameters), *_NOT_AT_TOP_LEVEL)
        return description, _with_items(_without_dangling(schema, schema.get("$defs", {})))
    except RecursionError as exc:
        raise ToolValidationError(
            f"no schema of {name!r} for {api_format}: it is nested too deep"
        ) from exc


def _without_dangling(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without references to nothing, which OpenAI and pydantic-ai refuse:
    any value may stand there.

    The check of the arguments refuses a value that such a reference would have to check.
    """
    whole = each_part(schema, partial(_without_dangling, definitions=definitions))
    if isinstance(whole.get("$defs"), dict):
        whole["$defs"] = {
            name: _without_dangling(each, definitions) for name, each in whole["$defs"].items()
        }
    if "$ref" in whole and str(whole["$ref"]).rpartition("/")[2] not in definitions:
        return without(whole, "$ref")
    return whole


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with `items` in every array.

    OpenAI and Gemini demand them, and know no `prefixItems`.
    """
    whole = each_part(schema, _with_items)
    if isinstance(whole.get("$defs"), dict):
        whole["$defs"] = {name: _with_items(each) for name, each in whole["$defs"].items()}
    if "prefixItems" not in whole and ("items" in whole or "array" not in types_of(whole)):
        return whole
    schemas = [*whole.get("prefixItems", []), *([whole["items"]] if "items" in whole else [])]
    distinct = [each for index, each in enumerate(schemas) if each not in schemas[:index]]
    if len(distinct) == 1:
        items = distinct[0]
    elif distinct:
        items = {"anyOf": distinct}
    else:
        items = {}
    return {**without(whole, "prefixItems"), "items": items}


#: Schemas in one whole schema up to which definitions are written out where they are used.
_MAX_INLINED_PARTS = 2_000


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without references: each definition stands where it is used.

    A definition inside itself has no end, so there it is only its type. So is each one beyond
    _MAX_INLINED_PARTS: definitions that double at each level would never end either. The arguments
    are checked by the schema itself.
    """
    definitions = schema.get("$defs", {})
    parts_left = _MAX_INLINED_PARTS

    def expanded(part: dict[str, Any], around: frozenset[str]) -> dict[str, Any]:
        nonlocal parts_left
        parts_left -= 1
        if "$ref" not in part:
            return each_part(part, partial(expanded, around=around))
        name = str(part["$ref"]).rpartition("/")[2]
        target = definitions.get(name, {})
        whole = {**target, **without(part, "$ref")}
        if name in around or parts_left < 0:
            return {key: whole[key] for key in ("type", "description") if key in whole}
        return expanded(whole, around | {name})

    return expanded(without(schema, "$defs"), frozenset())


#: Keywords of each type in Google's Schema (Generative Language API).
#: A keyword of another type is answered with 400.
_GEMINI_KEYWORDS: Mapping[Any, tuple[str, ...]] = {
    "string": ("enum", "format", "minLength", "maxLength", "pattern"),
    "number": ("format", "minimum", "maximum"),
    "integer": ("format", "minimum", "maximum"),
    "boolean": (),
    "object": ("properties", "required"),
    "array": ("items", "minItems", "maxItems"),
}
#: The schema that no value fits.
_NOTHING: Mapping[str, Any] = {"not": {}}
_GEMINI_FORMATS = ("float", "double", "int32", "int64", "date-time")
#: What Gemini has no keyword for stands in words in the description, so that the model knows.
_IN_WORDS: Mapping[str, str] = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "format": "as {}",
    "default": "by default {}",
}


def _for_gemini(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in Google's subset of OpenAPI.

    It has no references, one type a part, text in enums, and null as a flag.

    It may ask for less than the schema; the arguments are checked by the schema itself. `anyOf`
    stands alone, as Vertex AI demands. A definition inside another one is only an object, so that
    each ends. A run does not use this form: pydantic-ai sends JSON Schema, which Google reads as
    well.
    """
    has_parts = "allOf" in schema
    schema = merged(schema, definitions)
    if "$ref" in schema:
        target = definitions.get(str(schema["$ref"]).rpartition("/")[2], {"type": "object"})
        return _for_gemini(merged({**target, **without(schema, "$ref")}, definitions), {})
    kinds = types_of(schema)
    parts = schema.get("anyOf") or schema.get("oneOf") or ()
    if "enum" in schema:
        kinds = ["string", *("null" for each in schema["enum"] if each is None)]
    elif not kinds and not parts:
        inferred = [
            kind for key, kind in (("properties", "object"), ("items", "array")) if key in schema
        ]
        kinds = inferred or list(_GEMINI_KEYWORDS)
    translate = partial(_for_gemini, definitions={} if has_parts else definitions)
    alternatives = [_of_gemini_type(schema, kind, translate) for kind in kinds if kind != "null"]
    is_nullable = "null" in kinds
    for part in parts if not kinds else ():
        if types_of(part) == ["null"] or part.get("enum") == [None]:
            is_nullable = True
        elif part != _NOTHING:
            translated = translate(part)
            alternatives += translated.get("anyOf", [translated])
    alternatives = alternatives or [{"type": "string"}]
    if is_nullable:
        alternatives = [{**each, "nullable": True} for each in alternatives]
    words = []
    for key, form in _IN_WORDS.items():
        if key not in schema or any(key in each for each in alternatives):
            continue
        value = schema[key]
        if key == "default":  # as JSON: a model that reads `True` would send it
            value = json.dumps(value, ensure_ascii=False)
        words.append(form.format(value))
    told = [
        schema.get("description"),
        alternatives[0].get("description"),
        f"({', '.join(words)})" if words else "",
    ]
    if any(told):
        alternatives[0] = {
            **alternatives[0],
            "description": " ".join(str(each) for each in told if each),
        }
    if len(alternatives) == 1:
        return alternatives[0]
    return {"anyOf": alternatives}


def _of_gemini_type(
    schema: Mapping[str, Any], kind: Any, translate: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return what a schema says of values of one type."""
    typed = {
        "type": kind,
        **{key: schema[key] for key in _GEMINI_KEYWORDS.get(kind, ()) if key in schema},
    }
    if typed.get("format") not in _GEMINI_FORMATS or "enum" in typed:
        typed.pop("format", None)
    if "enum" in typed:  # text that is not empty; arguments are read from it
        choices = [each for each in typed["enum"] if each not in (None, "")]
        typed["enum"] = [
            str(each).lower() if isinstance(each, bool) else str(each) for each in choices
        ]
    if kind == "array":
        if schema.get("items"):
            typed["items"] = translate(schema["items"])
        else:
            typed["items"] = {"type": "string"}
    if "properties" in typed:
        properties = typed["properties"].items()
        typed["properties"] = {
            name: translate(each) for name, each in properties if each != _NOTHING
        }
    if "required" in typed:
        typed["required"] = [
            name for name in typed["required"] if name in typed.get("properties", {})
        ]
    return {key: value for key, value in typed.items() if value != []}
