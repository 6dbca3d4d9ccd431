"""LlmCall: one question to a model and how it ended, for observers with a method `on_llm_call(run_id, call)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sayso.agent.messages import Message, UsageStats
from sayso.agent.providers.base import Provider, ProviderRequest, UnchosenTemperature
from sayso.agent.providers.fallback import name_of


@dataclass(frozen=True, slots=True)
class LlmCall:
    """A question that has ended: with an `answer` and its `usage`, or with an `error`. `seconds` has its retries.

    `provider`, `address` and `port` say who answered, of several the one that did. `settings` are those of the request
    that somebody chose, by the names of the vendors.
    """

    provider: str
    model: str
    seconds: float
    answer: Message | None = None
    usage: UsageStats | None = None
    error: BaseException | None = None
    is_streamed: bool = False
    is_json: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""
    port: int | None = None


def llm_call(provider: Provider, request: ProviderRequest, model: str, *, seconds: float, **ended: Any) -> LlmCall:
    """Return the call for a request and how it ended: `answer` and `usage`, or `error`, and `is_streamed`."""
    usage = ended.get("usage")
    who = _who(provider, usage.provider if usage else "")
    url = urlsplit(str(getattr(who, "base_url", "")))
    ports = {"http": 80, "https": 443}
    return LlmCall(
        provider=usage.provider if usage and usage.provider else name_of(who),
        model=model,
        seconds=seconds,
        is_json=request.response_format is not None,
        settings=_settings(who, request),
        address=url.hostname or "",
        port=url.port or ports.get(url.scheme),
        **ended,
    )


def _who(provider: Provider, name: str) -> Any:
    """Return the provider of this name among those that stand behind the given one; else the first of them."""
    inner = getattr(provider, "provider", None)
    several = getattr(provider, "providers", None) or ([inner] if inner is not None else [])
    if not several:
        return provider
    found = [_who(each, name) for each in several]
    return next((each for each in found if name_of(each) == name), found[0])


def _settings(provider: Any, request: ProviderRequest) -> dict[str, Any]:
    chosen = None if isinstance(request.temperature, UnchosenTemperature) else request.temperature
    given = {
        "max_tokens": request.max_tokens,
        "temperature": chosen,
        **(getattr(provider, "model_settings", None) or {}),
    }
    return {name: value for name, value in given.items() if value is not None}
