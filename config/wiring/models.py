"""Models: the providers of the models that a configuration names, each made once for all who ask it."""

from __future__ import annotations

import json
import os
from typing import Any

from sayso.agent.messages import UsageStats
from sayso.agent.providers.base import Provider, ProviderConfigurationError
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.providers.pricing import cost_usd
from sayso.agent.providers.vendor import VendorProvider
from sayso.agent.providers.vendors import (
    AnthropicProvider,
    GeminiProvider,
    OllamaProvider,
    OpenAIProvider,
    OpenAIResponsesProvider,
)
from sayso.agent.run.text_tools import TextToolProvider
from sayso.config.settings.agent import OFFLINE, VENDORS, AgentSettings, ModelSettings, SideSettings, name_of, vendor_of
from sayso.config.settings.base import Path_
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings

_PROVIDERS: dict[str, type[VendorProvider]] = {
    "openai": OpenAIProvider,
    "openai-responses": OpenAIResponsesProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
    "ollama": OllamaProvider,
}

#: The way to one model: its vendor, its name, a key and an address, whether the vendor is to keep what is sent, and its
#: settings as JSON.
_Way = tuple[str, str, str, str, bool, str]
_Given = ModelSettings | SideSettings | AgentSettings


class Models:
    """Lives as long as its process, and so do connections to vendors. Nobody is asked before the first question.

    `load_media` gives a model the bytes of files that people sent.
    """

    def __init__(self, settings: Settings, load_media: LoadMedia | None = None) -> None:
        self._settings = settings
        self._load_media = load_media
        self._made: dict[_Way, VendorProvider] = {}
        self._answering: dict[str, Provider] = {}

    def of(self, channel: str) -> Provider:
        """Who answers on a channel: its model, and those that are asked in its place. Raises ConfigError."""
        if channel not in self._answering:
            self._answering[channel] = self._answers(channel)
        return self._answering[channel]

    def beside(self, side: SideSettings, channel: str, *path: str) -> tuple[Provider | None, str | None]:
        """The provider and model for a task beside the conversation; None for the conversation's own.

        Raises ConfigError, also where that is no language model. `path` leads to the task from `agent`.
        """
        agent, place = self._settings.agent_of(channel), ("agent", *path)
        if side.model is not None:
            return self._asked(side, agent, place), name_of(side.model)
        if agent.model == OFFLINE:
            raise self._refused(place, f"{OFFLINE!r} is no language model: give this one, as model: openai:gpt-5-nano")
        return None, None

    def preload(self) -> None:
        """Import the libraries of all made so far, and of prices, which takes a second or two. Raises ConfigError."""
        try:
            for provider in self._made.values():
                provider.preload()
        except ProviderConfigurationError as exc:
            raise ConfigError([str(exc)]) from exc
        if self._made:
            cost_usd("gpt-5-mini", UsageStats(1, 1, 2))  # any that is listed: the list is read when it is first asked

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for provider in self._made.values():
            await provider.aclose()

    def _answers(self, channel: str) -> Provider:
        agent = self._settings.agent_of(channel)
        if agent.model == OFFLINE:
            return OfflineProvider()
        first = self._asked(agent, agent, self._path(channel))
        others = [self._asked(each, agent, ("agent", "fallback", at)) for at, each in enumerate(agent.fallback)]
        provider: Provider = FallbackProvider([first, *others]) if others else first
        return provider if agent.native_tools else TextToolProvider(provider)

    def _path(self, channel: str) -> Path_:
        """Where a channel's model is written."""
        own = self._settings.channels[channel].agent.model is not None
        return ("channels", channel, "agent", "model") if own else ("agent", "model")

    def _asked(self, given: _Given, agent: AgentSettings, at: Path_) -> Provider:
        vendor, model = vendor_of(given.model or ""), name_of(given.model or "")
        reached = self._reached(given, agent)
        key, base_url = reached.api_key, reached.base_url
        secret = key.get_secret_value() if key else self._usual_key(vendor, base_url, at)
        settings = json.dumps(given.model_settings, default=str)
        way = (vendor, model, secret, base_url or "", agent.cache_prompt, settings)
        if way not in self._made:
            self._made[way] = self._provider(way, at)
        return self._made[way]

    def _reached(self, given: _Given, agent: AgentSettings) -> _Given:
        """Who says how a model is reached: itself, or another one of the same vendor."""
        if given is agent or given.api_key or given.base_url:
            return given
        vendor = vendor_of(given.model or "")
        return next((each for each in (agent, self._settings.agent) if vendor_of(each.model) == vendor), given)

    def _usual_key(self, vendor: str, base_url: str | None, at: Path_) -> str:
        """What the vendor's own variable holds. It goes to the vendor, and to no address that stands in a file."""
        variable = VENDORS[vendor]
        if not variable or (base_url and vendor.startswith("openai")):  # a server of one's own may need none
            return ""
        if base_url:
            raise self._refused(at, f"{variable} is sent to {vendor} only: write api_key: ${{{variable}}} as well")
        key = os.environ.get(variable, "")
        if not key:
            raise self._refused(at, f"{vendor} needs a key: export {variable}=..., or write api_key: ${{NAME}}")
        return key

    def _provider(self, way: _Way, at: Path_) -> VendorProvider:
        vendor, model, key, base_url, cache_prompt, settings = way
        options: dict[str, Any] = {"api_key": key or None, "default_model": model, "load_media": self._load_media}
        options["model_settings"] = json.loads(settings)
        if base_url:
            options["base_url"] = base_url
        if vendor == "anthropic":
            options["cache_prompt"] = cache_prompt
        try:
            return _PROVIDERS[vendor](**options)
        except (ProviderConfigurationError, ValueError) as exc:
            raise self._refused(at, str(exc)) from exc

    def _refused(self, at: Path_, why: str) -> ConfigError:
        dotted = ".".join(map(str, at))
        return ConfigError([f"{self._settings.origin.at(*at)}{dotted}: {why}"])
