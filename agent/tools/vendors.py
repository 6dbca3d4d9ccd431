"""Vendors: a tool's schema in the dialect of each model vendor (seed: Tool, `get_schema`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from sayso.agent.tools.dialects import STRICT_ANTHROPIC, STRICT_OPENAI, Dialect, types_of, without
from sayso.agent.tools.drafts import each_part
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.frozen import thawed
from sayso.agent.tools.gemini import for_gemini
from sayso.agent.tools.shapes import shaped
from sayso.agent.tools.strict import strict as strict_schema

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


def _dialect(name: str, schema: Mapping[str, Any], api_format: str) -> Dialect:
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
