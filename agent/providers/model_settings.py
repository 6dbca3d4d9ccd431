"""Model settings: what an operator sends a vendor beside the usual, in the vendor's own words."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sayso.agent.tools.vendors import ApiFormat

#: Fields of a request that are made for each turn, and what sets those that can be set.
RESERVED: Mapping[str, str] = {
    "model": "use model", "max_tokens": "use max_tokens", "max_completion_tokens": "use max_tokens",
    "max_output_tokens": "use max_tokens", "maxOutputTokens": "use max_tokens", "system": "use system_prompt",
    "messages": "the conversation is sent there", "contents": "the conversation is sent there",
    "input": "the conversation is sent there", "tools": "the tools are sent there", "stream": "it is chosen by itself",
}  # fmt: skip
#: What may be the name and the value of an HTTP header.
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\x20-\x7e]*")
#: Keys with a meaning of ours, which are no fields of a request.
_OWN = ("temperature", "extra_headers", "extra_body", "thinking_budget")


def checked(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings as they may be used. Raises ValueError for what a request has from elsewhere."""
    given = dict(settings or {})
    for name, cure in RESERVED.items():
        if name in given:
            raise ValueError(f"model_settings has {name!r}, which cannot be set there: {cure}")
    for name in ("extra_headers", "extra_body"):
        if not isinstance(given.get(name) or {}, Mapping):
            raise ValueError(f"model_settings.{name}={given[name]!r} is no mapping: write {name}: {{name: value}}")
    for name, value in (given.get("extra_headers") or {}).items():
        if value is not None and not (_HEADER_NAME.fullmatch(str(name)) and _HEADER_VALUE.fullmatch(str(value))):
            raise ValueError(
                f"model_settings.extra_headers has {name!r}, which cannot be sent: its name has letters, digits and -, "
                "its value is one line of ASCII"
            )
    budget = given.get("thinking_budget")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise ValueError(f"model_settings.thinking_budget={budget!r} is no number of tokens: use 2000, or 0 for none")
    temperature = given.get("temperature")
    if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, int | float)):
        raise ValueError(
            f"model_settings.temperature={temperature!r} is no number: use 0 to 2, or null to leave it out"
        )
    return given


def library_settings(given: Mapping[str, Any], api_format: ApiFormat) -> dict[str, Any]:
    """Return the settings as the vendors' library takes them, all but the temperature.

    Each is a field of the vendor's request, of Gemini's `generationConfig`. One that is null is not sent. Raises
    ValueError.
    """
    fields = {name: value for name, value in given.items() if name not in _OWN and value is not None}
    settings: dict[str, Any] = {}
    if headers := given.get("extra_headers"):
        settings["extra_headers"] = {str(name): str(value) for name, value in headers.items() if value is not None}
    if (budget := given.get("thinking_budget")) is not None:
        fields.update(_thinking(budget, api_format))
    if api_format == "anthropic" and "thinking" in fields:  # the library must know: thinking changes other fields
        settings["anthropic_thinking"] = fields.pop("thinking")
    if api_format == "gemini" and fields:
        fields = {"generationConfig": _camel(fields)}
    if body := {**fields, **(given.get("extra_body") or {})}:
        settings["extra_body"] = body
    return settings


def named(given: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the settings that are sent, without their values."""
    return sorted(name for name, value in given.items() if value is not None)


def _thinking(budget: Any, api_format: ApiFormat) -> dict[str, Any]:
    if api_format == "anthropic":
        return {"thinking": {"type": "enabled", "budget_tokens": budget} if budget else {"type": "disabled"}}
    if api_format == "gemini":
        return {"thinkingConfig": {"thinkingBudget": budget}}
    raise ValueError(
        f"model_settings.thinking_budget={budget!r} is for Anthropic and Gemini: use reasoning_effort: low"
    )


def _camel(value: Any) -> Any:
    """Return Gemini's fields in the spelling of its REST interface; people write both."""
    if not isinstance(value, Mapping):
        return value
    return {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), str(name)): _camel(each) for name, each in value.items()
    }
