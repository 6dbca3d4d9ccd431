"""The definition of a tool in the form of each vendor's API: OpenAI, Anthropic, Gemini.

Each vendor knows only some keywords of JSON Schema, and refuses a whole request for one that it
does not know. What a vendor's form cannot say is left out: the arguments of a call are checked by
the tool's own schema anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.json_schema import each_part, thawed, types_of, with_merged_parts, without

ApiFormat = Literal["openai-chat", "openai-response", "anthropic", "gemini"]
#: The function names that OpenAI and Anthropic accept.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The function names that Gemini accepts.
_GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
#: The parameter names that vendors accept. Anthropic answers 400 to any other; Google's reference
#: (FunctionDeclaration, parameters) demands these. OpenAI accepts any.
_PARAMETER_NAMES = {
    "anthropic": re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "gemini": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
}

#: Keywords that no vendor accepts at the top level, next to `properties`.
_NOT_AT_TOP_LEVEL = ("anyOf", "oneOf", "allOf", "not", "enum", "patternProperties")
#: Longest function description that OpenAI accepts, in characters. It answers a longer one with
#: "string too long. Expected maximum length 1024".
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
    if api_format == "gemini":
        schema = _for_gemini(schema, schema.get("$defs", {}))
        # Gemini refuses parameters without properties.
        if schema.get("properties"):
            return {**definition, "parameters": schema}
        return definition
    if api_format == "openai-response":
        # By default this API is strict, which would make every parameter required.
        return {"type": "function", **definition, "parameters": schema, "strict": False}
    return {"type": "function", "function": {**definition, "parameters": schema}}


def for_vendor(
    name: str, description: str, parameters: Mapping[str, Any], api_format: str
) -> tuple[str, dict[str, Any]]:
    """Return a tool's description and parameters without what the vendor refuses.

    `parameters` is a JSON Schema, as `Tool.schema` has it, and so is what is returned. Raises
    ToolValidationError for an unknown format, for a name that the vendor refuses, and for a schema
    that is nested too deep.
    """
    if api_format not in get_args(ApiFormat):
        known = ", ".join(get_args(ApiFormat))
        raise ToolValidationError(
            f"no schema of {name!r} for the API {api_format!r}; known: {known}"
        )

    name_pattern = _GEMINI_NAME if api_format == "gemini" else _NAME
    if not name_pattern.fullmatch(name):
        raise ToolValidationError(
            f"{api_format} takes no tool named {name!r}: letters, digits, '_' and '-', 64 at most"
        )
    pattern = _PARAMETER_NAMES.get(api_format)
    # OpenAI takes any name of a parameter.
    if pattern is not None:
        wrong = [each for each in parameters["properties"] if not pattern.fullmatch(each)]
        if wrong:
            raise ToolValidationError(
                f"{api_format} takes no parameters named {wrong!r}, which {name!r} has: "
                "ASCII letters, digits and '_', 64 at most"
            )

    if api_format.startswith("openai") and len(description) > _MAX_OPENAI_DESCRIPTION:
        description = description[: _MAX_OPENAI_DESCRIPTION - len(_CUT)] + _CUT
    try:
        schema = without(thawed(parameters), *_NOT_AT_TOP_LEVEL)
        schema = _without_dangling_references(schema, schema.get("$defs", {}))
        return description, _with_items(schema)
    except RecursionError as exc:
        raise ToolValidationError(
            f"no schema of {name!r} for {api_format}: it is nested too deep"
        ) from exc


def _without_dangling_references(
    schema: dict[str, Any], definitions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the schema without references to nothing, which OpenAI and pydantic-ai refuse.

    By the result, any value may stand in their place. A call that sends one is refused when its
    arguments are checked.
    """
    whole = each_part(schema, partial(_without_dangling_references, definitions=definitions))
    if isinstance(whole.get("$defs"), dict):
        whole["$defs"] = {
            name: _without_dangling_references(each, definitions)
            for name, each in whole["$defs"].items()
        }
    if "$ref" in whole and str(whole["$ref"]).rpartition("/")[2] not in definitions:
        return without(whole, "$ref")
    return whole


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with `items` in every array.

    OpenAI and Gemini demand `items`, and know no `prefixItems`. Of an array whose items differ by
    their place, the result says only that each item has one of these schemas.
    """
    whole = each_part(schema, _with_items)
    if isinstance(whole.get("$defs"), dict):
        whole["$defs"] = {name: _with_items(each) for name, each in whole["$defs"].items()}
    is_array_without_items = "array" in types_of(whole) and "items" not in whole
    if "prefixItems" not in whole and not is_array_without_items:
        return whole

    schemas = list(whole.get("prefixItems", []))
    if "items" in whole:
        schemas.append(whole["items"])
    distinct: list[Any] = []
    for each in schemas:
        if each not in distinct:
            distinct.append(each)
    items: Any = {}
    if len(distinct) == 1:
        items = distinct[0]
    elif distinct:
        items = {"anyOf": distinct}
    return {**without(whole, "prefixItems"), "items": items}


#: Most parts of one schema up to which definitions are written out where they are used.
_MAX_INLINED_PARTS = 2_000


def without_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without references: each definition stands where it is used.

    A definition inside itself has no end, so there only its type and description stand. The same
    goes for each definition beyond _MAX_INLINED_PARTS: definitions that double at each level would
    not end in any useful time.
    """
    definitions = schema.get("$defs", {})
    parts_left = _MAX_INLINED_PARTS

    # `around` has the names of the definitions that the part is inside of.
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


#: Keywords of each type in Google's Schema (Generative Language API), which answers any other
#: keyword with 400.
_GEMINI_KEYWORDS: Mapping[Any, tuple[str, ...]] = {
    "string": ("enum", "format", "minLength", "maxLength", "pattern"),
    "number": ("format", "minimum", "maximum"),
    "integer": ("format", "minimum", "maximum"),
    "boolean": (),
    "object": ("properties", "required"),
    "array": ("items", "minItems", "maxItems"),
}
#: The schema that no value fits.
_NO_VALUE: Mapping[str, Any] = {"not": {}}
#: The formats that Google's Schema knows.
_GEMINI_FORMATS = ("float", "double", "int32", "int64", "date-time")
#: Keywords that Gemini may not know, as the description says them in words.
_KEYWORDS_IN_WORDS: Mapping[str, str] = {
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

    It has no references, one type for each part, only text in enums, and `nullable` for null. A
    part with `anyOf` has no other keyword, as Vertex AI demands. A definition inside another one is
    only "an object", so that each has an end.

    A run does not use this form: pydantic-ai sends JSON Schema, which Google reads as well.
    """
    # Where a definition was put in, those inside it are not: one may contain itself.
    has_all_of = "allOf" in schema
    schema = with_merged_parts(schema, definitions)
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        target = definitions.get(name, {"type": "object"})
        whole = with_merged_parts({**target, **without(schema, "$ref")}, definitions)
        return _for_gemini(whole, {})

    types = types_of(schema)
    parts = schema.get("anyOf") or schema.get("oneOf") or ()
    if "enum" in schema:
        # Google takes only text in an enum. `_of_gemini_type` writes the other values as text.
        types = ["string"]
        if None in schema["enum"]:
            types.append("null")
    elif not types and not parts:
        types = _inferred_types(schema)

    # Each type becomes one alternative, and so does each part.
    translate = partial(_for_gemini, definitions={} if has_all_of else definitions)
    alternatives = [_of_gemini_type(schema, name, translate) for name in types if name != "null"]
    is_nullable = "null" in types
    if not types:
        for part in parts:
            if types_of(part) == ["null"] or part.get("enum") == [None]:
                is_nullable = True
            elif part != _NO_VALUE:
                translated = translate(part)
                alternatives += translated.get("anyOf", [translated])
    if not alternatives:
        alternatives = [{"type": "string"}]
    if is_nullable:
        alternatives = [{**each, "nullable": True} for each in alternatives]

    description = _gemini_description(schema, alternatives)
    if description:
        alternatives[0] = {**alternatives[0], "description": description}
    if len(alternatives) == 1:
        return alternatives[0]
    return {"anyOf": alternatives}


def _inferred_types(schema: Mapping[str, Any]) -> list[Any]:
    """Return the types of a schema that names none: by its keywords, or else all of them."""
    types = []
    if "properties" in schema:
        types.append("object")
    if "items" in schema:
        types.append("array")
    return types or list(_GEMINI_KEYWORDS)


def _gemini_description(
    schema: Mapping[str, Any], alternatives: Sequence[Mapping[str, Any]]
) -> str:
    """Return the description, with what the alternatives cannot express in words; "" if empty."""
    words = []
    for key, form in _KEYWORDS_IN_WORDS.items():
        if key not in schema or any(key in each for each in alternatives):
            continue
        value = schema[key]
        if key == "default":  # as JSON: a model that reads `True` would send it
            value = json.dumps(value, ensure_ascii=False)
        words.append(form.format(value))

    sentences = [schema.get("description"), alternatives[0].get("description")]
    if words:
        sentences.append(f"({', '.join(words)})")
    return " ".join(str(each) for each in sentences if each)


def _of_gemini_type(
    schema: Mapping[str, Any],
    type_name: Any,
    translate: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Return what a schema says about values of one type. `translate` is for schemas inside it."""
    typed: dict[str, Any] = {"type": type_name}
    for key in _GEMINI_KEYWORDS.get(type_name, ()):
        if key in schema:
            typed[key] = schema[key]

    if typed.get("format") not in _GEMINI_FORMATS or "enum" in typed:
        typed.pop("format", None)
    if "enum" in typed:
        # Gemini takes only text that is not empty. An argument that is such a text becomes the
        # value of its type when it is checked.
        choices = [each for each in typed["enum"] if each not in (None, "")]
        typed["enum"] = [
            str(each).lower() if isinstance(each, bool) else str(each) for each in choices
        ]
    if type_name == "array":
        typed["items"] = {"type": "string"}
        if schema.get("items"):
            typed["items"] = translate(schema["items"])
    if "properties" in typed:
        properties = typed["properties"].items()
        typed["properties"] = {
            name: translate(each) for name, each in properties if each != _NO_VALUE
        }
    if "required" in typed:
        properties = typed.get("properties", {})
        typed["required"] = [name for name in typed["required"] if name in properties]
    # An empty list is what remains of an enum without text, or of `required` without properties.
    return {key: value for key, value in typed.items() if value != []}
