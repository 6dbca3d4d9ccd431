"""The providers of the configured models.

Each is created once and shared by all channels that use it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from sayso.agent.extras import LibraryError
from sayso.agent.messages import UsageStats
from sayso.agent.providers.base import Provider, ProviderConfigurationError
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.providers.pricing import cost_usd
from sayso.agent.providers.vendors import (
    AnthropicProvider,
    GeminiProvider,
    OllamaProvider,
    OpenAIProvider,
    OpenAIResponsesProvider,
    VendorProvider,
)
from sayso.agent.run.text_tools import TextToolProvider
from sayso.config.settings.agent import (
    OFFLINE,
    VENDORS,
    AgentSettings,
    ModelAccess,
    SideSettings,
    name_of,
    vendor_of,
)
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.tools import Path_

_PROVIDERS: dict[str, type[VendorProvider]] = {
    "openai": OpenAIProvider,
    "openai-responses": OpenAIResponsesProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
    "ollama": OllamaProvider,
}


def configured_models(settings: Settings, channel: str) -> Iterator[tuple[Path_, str]]:
    """Yield the models of a channel with their places: its own, the fallbacks,
    and those for other tasks.
    """
    agent = settings.agent_of(channel)
    has_own_model = settings.channels[channel].agent.model is not None
    place: Path_ = ("agent", "model")
    if has_own_model:
        place = ("channels", channel, "agent", "model")
    yield place, agent.model
    if agent.model != OFFLINE:
        for index, fallback in enumerate(agent.fallback):
            yield ("agent", "fallback", index), fallback.model
    tasks: dict[Path_, SideSettings | None] = {
        ("agent", "memory", "summarize"): agent.memory.summarize,
        ("agent", "memory", "entities"): agent.memory.entities,
        ("agent", "memory", "relationships"): agent.memory.relationships,
        ("agent", "guards", "coherence"): agent.guards.coherence,
        ("agent", "results"): agent.results if agent.results.compress else None,
    }
    for path, task in tasks.items():
        if task is not None and task.model is not None:
            yield path, task.model


def model_library_problems(settings: Settings) -> Iterator[str]:
    """Import the libraries of all configured models.

    Yield a problem for each that cannot be used. No key is needed.
    """
    tried: set[str] = set()
    for channel in settings.channels:
        for path, model in configured_models(settings, channel):
            vendor = vendor_of(model)
            if model == OFFLINE or vendor in tried:
                continue
            tried.add(vendor)
            try:
                _PROVIDERS[vendor].import_library()
            except LibraryError as exc:
                yield settings.problem(path, str(exc))


class _Connection(NamedTuple):
    """What tells one provider from another: a model, and how it is reached."""

    vendor: str
    model: str
    api_key: str
    base_url: str
    #: Whether the vendor is asked to cache the prompt.
    cache_prompt: bool | Literal["explicit"]
    #: Whether OpenAI's API is sent a key for each conversation; None for the default.
    prompt_cache_key: bool | None
    #: The vendor's own settings, as JSON.
    settings: str


class Models:
    """The providers of one process.

    Connections to vendors are opened with the first question and live as long.

    `load_media` returns the bytes of files that users sent.
    """

    def __init__(self, settings: Settings, load_media: LoadMedia | None = None) -> None:
        self._settings = settings
        self._load_media = load_media
        self._providers: dict[_Connection, VendorProvider] = {}
        #: Where the configuration names each of them first.
        self._paths: dict[_Connection, Path_] = {}
        self._by_channel: dict[str, Provider] = {}
        self._offline = OfflineProvider()

    def of(self, channel: str) -> Provider:
        """Return the provider of a channel's model, with its fallbacks. Raises ConfigError."""
        if channel not in self._by_channel:
            self._by_channel[channel] = self._build(channel)
        return self._by_channel[channel]

    def beside(
        self, side: SideSettings | None, channel: str, *path: str
    ) -> tuple[Provider | None, str | None]:
        """Return provider and model for a task beside the conversation;
        None for the conversation's own, and for no task.

        `path` leads to the task's section below `agent`. Raises ConfigError, also where the model
        would be the offline one, which is no language model.
        """
        if side is None:
            return None, None
        agent = self._settings.agent_of(channel)
        section_path = ("agent", *path)
        if side.model is not None:
            return self._provider(side, agent, section_path), name_of(side.model)
        if agent.model == OFFLINE:
            cure = "give this one, as model: openai:gpt-5-nano"
            raise self._refused(section_path, f"{OFFLINE!r} is no language model: {cure}")
        return None, None

    def preload(self) -> None:
        """Import the libraries of all providers so far, and the price list, in a second or two.

        Raises ConfigError.
        """
        for connection, provider in self._providers.items():
            try:
                provider.preload()
            except ProviderConfigurationError as exc:
                raise self._refused(self._paths[connection], str(exc)) from exc
        if self._providers:
            # Any listed model: the list is read on first use.
            cost_usd("gpt-5-mini", UsageStats(1, 1, 2))

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for provider in self._providers.values():
            await provider.aclose()

    def chain(self, channel: str) -> list[tuple[str, Provider]]:
        """Return the models that answer on a channel, its own and then the fallbacks,
        each with its provider.

        Raises ConfigError.
        """
        agent = self._settings.agent_of(channel)
        if agent.model == OFFLINE:
            return [(OFFLINE, self._offline)]
        path, _ = next(configured_models(self._settings, channel))
        own = (agent.model, self._provider(agent, agent, path))
        fallbacks = [
            (each.model, self._provider(each, agent, ("agent", "fallback", index)))
            for index, each in enumerate(agent.fallback)
        ]
        return [own, *fallbacks]

    def _build(self, channel: str) -> Provider:
        providers = [provider for _, provider in self.chain(channel)]
        provider = FallbackProvider(providers) if len(providers) > 1 else providers[0]
        if self._settings.agent_of(channel).native_tools:
            return provider
        return TextToolProvider(provider)

    def _provider(self, section: ModelAccess, agent: AgentSettings, path: Path_) -> Provider:
        """Return the provider of a section that names a model, created on first use."""
        vendor = vendor_of(section.model or "")
        model = name_of(section.model or "")
        # The section with key and address: itself, or `agent` where that has the same vendor.
        access = section
        if section is not agent and not (section.api_key or section.base_url):
            access = next(
                (each for each in (agent, self._settings.agent) if vendor_of(each.model) == vendor),
                section,
            )
        if access.api_key:
            key = access.api_key.get_secret_value()
        else:
            key = self._usual_key(vendor, access.base_url, path)
        settings = json.dumps(section.model_settings, default=str)
        connection = _Connection(
            vendor,
            model,
            key,
            access.base_url or "",
            agent.cache_prompt,
            access.prompt_cache_key,
            settings,
        )
        if connection not in self._providers:
            self._providers[connection] = self._create(connection, path)
            self._paths[connection] = path
        return self._providers[connection]

    def _usual_key(self, vendor: str, base_url: str | None, path: Path_) -> str:
        """Return the key in the vendor's own variable.

        It is sent to the vendor, never to an address in a file.
        """
        variable = VENDORS[vendor]
        # A server of one's own may need no key.
        if not variable or (base_url and vendor.startswith("openai")):
            return ""
        if base_url:
            raise self._refused(
                path, f"{variable} is sent to {vendor} only: write api_key: ${{{variable}}} as well"
            )
        key = os.environ.get(variable, "")
        if not key:
            raise self._refused(
                path, f"{vendor} needs a key: export {variable}=..., or write api_key: ${{NAME}}"
            )
        return key

    def _create(self, connection: _Connection, path: Path_) -> VendorProvider:
        options: dict[str, Any] = {
            "api_key": connection.api_key or None,
            "default_model": connection.model,
            "load_media": self._load_media,
            "model_settings": json.loads(connection.settings),
            "cache_prompt": connection.cache_prompt,
        }
        if connection.base_url:
            options["base_url"] = connection.base_url
        if connection.prompt_cache_key is not None:
            if not issubclass(_PROVIDERS[connection.vendor], OpenAIProvider):
                raise self._refused(
                    path, "prompt_cache_key is a field of OpenAI's API: leave it out"
                )
            options["prompt_cache_key"] = connection.prompt_cache_key
        try:
            return _PROVIDERS[connection.vendor](**options)
        except (ProviderConfigurationError, ValueError) as exc:
            raise self._refused(path, str(exc)) from exc

    def _refused(self, path: Path_, reason: str) -> ConfigError:
        return ConfigError([self._settings.problem(path, reason)])
