"""The operator's `model_settings`: checks them, and translates them into pydantic-ai's settings.

`model_settings` are fields of the vendor's request, such as `top_p`, besides these names:

* `temperature`: replaces that of the request, None for none;
* `thinking_budget`: how many tokens a model may think, 0 for none (Anthropic, Gemini);
* `extra_headers`, `extra_body`: sent as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sayso.agent.tools.vendor_schemas import ApiFormat

#: Fields of a request that cannot be set in model_settings -> what to do instead, as an error says.
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
    "stream": "Sayso sets it for each request",
}
#: Names in model_settings that are not sent as fields of the request.
_NOT_FIELDS = ("temperature", "extra_headers", "extra_body", "thinking_budget")
#: Names that HTTP headers may have.
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: Values that HTTP headers may have.
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


def is_header_value(text: str) -> bool:
    """Return whether an HTTP header may have this value: one line of ASCII."""
    return _HEADER_VALUE.fullmatch(text) is not None


def checked_settings(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a copy of the operator's model settings, {} for None.

    Raise ValueError for a reserved field and for a value that cannot be sent.
    """
    settings = dict(settings or {})
    for name, cure in RESERVED.items():
        if name in settings:
            raise ValueError(f"model_settings has {name!r}, which cannot be set there: {cure}")

    for name in ("extra_headers", "extra_body"):
        if not isinstance(settings.get(name) or {}, Mapping):
            # The value is not shown, because it may hold a secret.
            raise ValueError(f"model_settings.{name} is no mapping: write {name}: {{name: value}}")

    _check_headers(settings.get("extra_headers") or {})
    _check_numbers(settings)
    return settings


def _check_headers(headers: Mapping[Any, Any]) -> None:
    """Raise ValueError for a header that cannot be sent."""
    for name, value in headers.items():
        has_name = _HEADER_NAME.fullmatch(str(name)) is not None
        has_value = value is None or is_header_value(str(value))
        if not (has_name and has_value):
            # In a name such as "X-Api-Key: abc" the secret is behind the colon.
            shown_name = str(name).partition(":")[0]
            raise ValueError(
                f"model_settings.extra_headers has {shown_name!r}, which cannot be sent: "
                "its name has letters, digits and -, its value is one line of ASCII"
            )


def _check_numbers(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a `thinking_budget` or a `temperature` that is no number."""
    # A bool is an int in Python, so it is excluded by name.
    budget = settings.get("thinking_budget")
    is_whole_number = isinstance(budget, int) and not isinstance(budget, bool)
    if budget is not None and not is_whole_number:
        raise ValueError(
            f"model_settings.thinking_budget={budget!r} is no number of tokens: "
            "use 2000, or 0 for none"
        )

    temperature = settings.get("temperature")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if temperature is not None and not is_number:
        raise ValueError(
            f"model_settings.temperature={temperature!r} is no number: "
            "use 0 to 2, or null to leave it out"
        )


def library_settings(settings: Mapping[str, Any], api_format: ApiFormat) -> dict[str, Any]:
    """Return checked settings in the form that pydantic-ai takes.

    The temperature is left out, since each request has its own (see `model_request.py`). All others
    are fields of the vendor's request (for Gemini, of its `generationConfig`). A null value is not
    sent. Raise ValueError for a `thinking_budget` that the vendor does not have.
    """
    fields = {
        name: value
        for name, value in settings.items()
        if name not in _NOT_FIELDS and value is not None
    }

    for_library: dict[str, Any] = {}
    headers = settings.get("extra_headers")
    if headers:
        for_library["extra_headers"] = {
            str(name): str(value) for name, value in headers.items() if value is not None
        }

    budget = settings.get("thinking_budget")
    if budget is not None:
        fields |= _thinking_fields(budget, api_format)
    # Not in the body, because the library sends other fields with thinking than without.
    if api_format == "anthropic" and "thinking" in fields:
        for_library["anthropic_thinking"] = fields.pop("thinking")

    if api_format == "gemini" and fields:
        fields = {"generationConfig": _camel_case(fields)}
    extra_body = settings.get("extra_body") or {}
    body = {**fields, **extra_body}
    if body:
        for_library["extra_body"] = body
    return for_library


def _thinking_fields(budget: int, api_format: ApiFormat) -> dict[str, Any]:
    """Return the field with which a vendor limits a model's thinking to `budget` tokens.

    A budget of 0 turns thinking off. Raise ValueError for a vendor without such a field.
    """
    if api_format == "gemini":
        return {"thinkingConfig": {"thinkingBudget": budget}}
    if api_format != "anthropic":
        raise ValueError(
            f"model_settings.thinking_budget={budget!r} is for Anthropic and Gemini: "
            "use reasoning_effort: low"
        )
    if budget:
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}
    return {"thinking": {"type": "disabled"}}


def _camel_case(value: Any) -> Any:
    """Return Gemini's fields in camelCase, as its REST API spells them.

    Operators may write snake_case.
    """
    if not isinstance(value, Mapping):
        return value
    spelled = {}
    for name, each in value.items():
        camel_case = re.sub(r"_([a-z])", lambda letter: letter[1].upper(), str(name))
        spelled[camel_case] = _camel_case(each)
    return spelled
