"""`model_settings`: fields of a vendor's request that the operator sets, checked and translated for its library."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sayso.agent.tools.vendor_schemas import ApiFormat

#: Request fields that cannot be set in model_settings -> what to do instead.
RESERVED: Mapping[str, str] = {
    "model": "use model",
    "max_tokens": "use max_tokens",
    "max_completion_tokens": "use max_tokens",
    "max_output_tokens": "use max_tokens",
    "maxOutputTokens": "use max_tokens",
    "system": "use system_prompt",
    "messages": "the conversation is sent there",
    "contents": "the conversation is sent there",
    "input": "the conversation is sent there",
    "tools": "the tools are sent there",
    "stream": "it is chosen by itself",
}
#: Names and values that HTTP headers may have.
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\x20-\x7e]*")
#: Settings that are not sent as fields of the request under their own name.
_NOT_FIELDS = ("temperature", "extra_headers", "extra_body", "thinking_budget")


def checked_settings(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a copy of the settings. Raise ValueError for a reserved field or a value that cannot be sent."""
    settings = dict(settings or {})
    for name, cure in RESERVED.items():
        if name in settings:
            raise ValueError(f"model_settings has {name!r}, which cannot be set there: {cure}")
    for name in ("extra_headers", "extra_body"):
        if not isinstance(settings.get(name) or {}, Mapping):
            raise ValueError(f"model_settings.{name}={settings[name]!r} is no mapping: write {name}: {{name: value}}")
    for name, value in (settings.get("extra_headers") or {}).items():
        if value is not None and not (_HEADER_NAME.fullmatch(str(name)) and _HEADER_VALUE.fullmatch(str(value))):
            raise ValueError(
                f"model_settings.extra_headers has {name!r}, which cannot be sent: its name has letters, digits and -, "
                "its value is one line of ASCII"
            )
    budget = settings.get("thinking_budget")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise ValueError(f"model_settings.thinking_budget={budget!r} is no number of tokens: use 2000, or 0 for none")
    temperature = settings.get("temperature")
    if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, int | float)):
        raise ValueError(
            f"model_settings.temperature={temperature!r} is no number: use 0 to 2, or null to leave it out"
        )
    return settings


def library_settings(settings: Mapping[str, Any], api_format: ApiFormat) -> dict[str, Any]:
    """Return all settings but the temperature in the form that pydantic-ai takes. Raise ValueError.

    Each setting is a field of the vendor's request (for Gemini, of its `generationConfig`). A null value is not sent.
    """
    fields = {name: value for name, value in settings.items() if name not in _NOT_FIELDS and value is not None}
    for_library: dict[str, Any] = {}
    if headers := settings.get("extra_headers"):
        for_library["extra_headers"] = {str(name): str(value) for name, value in headers.items() if value is not None}
    if (budget := settings.get("thinking_budget")) is not None:
        fields.update(_thinking_fields(budget, api_format))
    if api_format == "anthropic" and "thinking" in fields:  # not in the body: thinking changes what the library sends
        for_library["anthropic_thinking"] = fields.pop("thinking")
    if api_format == "gemini" and fields:
        fields = {"generationConfig": _camel_case(fields)}
    if body := {**fields, **(settings.get("extra_body") or {})}:
        for_library["extra_body"] = body
    return for_library


def _thinking_fields(budget: Any, api_format: ApiFormat) -> dict[str, Any]:
    if api_format == "anthropic":
        return {"thinking": {"type": "enabled", "budget_tokens": budget} if budget else {"type": "disabled"}}
    if api_format == "gemini":
        return {"thinkingConfig": {"thinkingBudget": budget}}
    raise ValueError(
        f"model_settings.thinking_budget={budget!r} is for Anthropic and Gemini: use reasoning_effort: low"
    )


def _camel_case(value: Any) -> Any:
    """Return Gemini's fields in camelCase, as its REST API spells them; operators may write snake_case."""
    if not isinstance(value, Mapping):
        return value
    return {
        re.sub(r"_([a-z])", lambda letter: letter[1].upper(), str(name)): _camel_case(each)
        for name, each in value.items()
    }


def sent_names(settings: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the settings that are sent, without their values."""
    return sorted(name for name, value in settings.items() if value is not None)
