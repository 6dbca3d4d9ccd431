"""The providers of the configured models.

A *provider* sends requests to the API of a model's vendor. A *side task* is a request besides the
conversation, such as a summary; it may have another model. Each provider is created once and
shared by all channels and tasks that reach the same model in the same way.
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
from sayso.agent.providers.file_reading import LoadMedia
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
from sayso.config.settings.tools import YamlPath

_PROVIDERS: dict[str, type[VendorProvider]] = {
    "openai": OpenAIProvider,
    "openai-responses": OpenAIResponsesProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
    "ollama": OllamaProvider,
}


def configured_models(settings: Settings, channel: str) -> Iterator[tuple[YamlPath, str]]:
    """Yield the models of a channel, each with its path in the YAML.

    The channel's own model is the first one. Its fallbacks follow, then the models of side tasks.
    """
    agent = settings.agent_of(channel)
    path: YamlPath = ("agent", "model")
    if settings.channels[channel].agent.model is not None:
        path = ("channels", channel, "agent", "model")
    yield path, agent.model

    if agent.model != OFFLINE:
        for index, fallback in enumerate(agent.fallback):
            yield ("agent", "fallback", index), fallback.model

    tasks: dict[YamlPath, SideSettings | None] = {
        ("agent", "memory", "summarize"): agent.memory.summarize,
        ("agent", "memory", "entities"): agent.memory.entities,
        ("agent", "memory", "relationships"): agent.memory.relationships,
        ("agent", "guards", "coherence"): agent.guards.coherence,
        ("agent", "results"): agent.results if agent.results.compress else None,
    }
    for task_path, task in tasks.items():
        if task is not None and task.model is not None:
            yield task_path, task.model


def model_library_problems(settings: Settings) -> Iterator[str]:
    """Import the libraries of all configured models, and yield a problem for each unusable one.

    No key is needed.
    """
    tried_vendors: set[str] = set()
    for channel in settings.channels:
        for path, model in configured_models(settings, channel):
            vendor = vendor_of(model)
            if model == OFFLINE or vendor in tried_vendors:
                continue
            tried_vendors.add(vendor)
            try:
                _PROVIDERS[vendor].import_library()
            except LibraryError as exc:
                yield settings.problem(path, str(exc))


class _Connection(NamedTuple):
    """A model and how it is reached. Two sections of the YAML with equal ones share a provider."""

    vendor: str
    model: str
    #: "" where the server needs no key.
    api_key: str
    #: "" for the vendor's own address.
    base_url: str
    #: Whether the vendor is asked to cache the prompt.
    cache_prompt: bool | Literal["explicit"]
    #: Whether OpenAI's API is sent a key for each conversation; None for the default.
    prompt_cache_key: bool | None
    #: The vendor's own settings, as JSON.
    settings: str


class Models:
    """The providers of one process. Lives as long as the process, or as one command.

    A connection to a vendor is opened with the first request, and closed by `aclose`. `load_media`
    returns the content of a file that a user sent; without it models are shown no files.
    """

    def __init__(self, settings: Settings, load_media: LoadMedia | None = None) -> None:
        self._settings = settings
        self._load_media = load_media
        self._providers: dict[_Connection, VendorProvider] = {}
        #: Where the YAML names each of them first, for errors.
        self._paths: dict[_Connection, YamlPath] = {}
        self._by_channel: dict[str, Provider] = {}
        self._offline = OfflineProvider()

    def of(self, channel: str) -> Provider:
        """Return the provider of a channel's model, with its fallbacks. Raises ConfigError."""
        if channel not in self._by_channel:
            self._by_channel[channel] = self._build(channel)
        return self._by_channel[channel]

    def for_side_task(
        self, side: SideSettings | None, channel: str, *path: str
    ) -> tuple[Provider | None, str | None]:
        """Return the provider and the model of a side task, None for those of the conversation.

        `side` is the task's section of the YAML, None for a task that is off; both results are then
        None, too. `path` leads to that section below `agent`. Raises ConfigError, also where the
        model would be the offline one, which is no language model.
        """
        if side is None:
            return None, None
        agent = self._settings.agent_of(channel)
        section_path = ("agent", *path)
        if side.model is not None:
            return self._provider(side, agent, section_path), name_of(side.model)
        if agent.model == OFFLINE:
            cure = "give this one, as model: openai:gpt-5-nano"
            raise self._problem(section_path, f"{OFFLINE!r} is no language model: {cure}")
        return None, None

    def preload(self) -> None:
        """Import the libraries of the providers that exist, and the price list.

        This takes a second or two, for which the first request would otherwise wait. Raises
        ConfigError.
        """
        for connection, provider in self._providers.items():
            try:
                provider.preload()
            except ProviderConfigurationError as exc:
                raise self._problem(self._paths[connection], str(exc)) from exc
        # The price list is read on first use, with any model.
        if self._providers:
            cost_usd("gpt-5-mini", UsageStats(1, 1, 2))

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for provider in self._providers.values():
            await provider.aclose()

    def chain(self, channel: str) -> list[tuple[str, Provider]]:
        """Return the models that answer on a channel, each with its provider.

        The channel's own model is the first one; each further one answers where those before it
        fail. Raises ConfigError.
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
        """Return the provider that a channel's agent uses: its chain as one provider."""
        providers = [provider for _, provider in self.chain(channel)]
        provider = providers[0]
        if len(providers) > 1:
            provider = FallbackProvider(providers)
        # For a model that knows no calls of tools: they are written as text.
        if self._settings.agent_of(channel).native_tools:
            return provider
        return TextToolProvider(provider)

    def _provider(self, section: ModelAccess, agent: AgentSettings, path: YamlPath) -> Provider:
        """Return the provider of a section that names a model, created on first use.

        `section` stands at `path`; `agent` is the section of the channel's agent.
        """
        vendor = vendor_of(section.model or "")
        model = name_of(section.model or "")
        access = self._access_of(section, agent, vendor)
        if access.api_key:
            key = access.api_key.get_secret_value()
        else:
            key = self._key_of_environment(vendor, access.base_url, path)
        prompt_cache_key = section.prompt_cache_key
        if prompt_cache_key is None:
            prompt_cache_key = access.prompt_cache_key
        settings = json.dumps(section.model_settings, default=str)
        connection = _Connection(
            vendor,
            model,
            key,
            access.base_url or "",
            agent.cache_prompt,
            prompt_cache_key,
            settings,
        )
        if connection not in self._providers:
            self._providers[connection] = self._create(connection, path)
            self._paths[connection] = path
        return self._providers[connection]

    def _access_of(self, section: ModelAccess, agent: AgentSettings, vendor: str) -> ModelAccess:
        """Return the section that says with which key and at which address a model is reached.

        A section with neither uses those of `agent`, first of the channel's and then of the bot's,
        if that has a model of the same vendor.
        """
        if section is agent or section.api_key or section.base_url:
            return section
        for each in (agent, self._settings.agent):
            if vendor_of(each.model) == vendor:
                return each
        return section

    def _key_of_environment(self, vendor: str, base_url: str | None, path: YamlPath) -> str:
        """Return the key in the vendor's usual variable, "" where none is needed.

        It is sent to the vendor alone, never to a `base_url` of the YAML: who may change the file
        could otherwise read the key. Raises ConfigError.
        """
        variable = VENDORS[vendor]
        # Many servers with the API of OpenAI need no key.
        is_compatible_server = bool(base_url) and vendor.startswith("openai")
        if not variable or is_compatible_server:
            return ""
        if base_url:
            raise self._problem(
                path, f"{variable} is sent to {vendor} only: write api_key: ${{{variable}}} as well"
            )
        key = os.environ.get(variable, "")
        if not key:
            raise self._problem(
                path, f"{vendor} needs a key: export {variable}=..., or write api_key: ${{NAME}}"
            )
        return key

    def _create(self, connection: _Connection, path: YamlPath) -> VendorProvider:
        """Create a provider. Raises ConfigError, which names the line at `path`."""
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
                raise self._problem(
                    path, "prompt_cache_key is a field of OpenAI's API: leave it out"
                )
            options["prompt_cache_key"] = connection.prompt_cache_key
        try:
            return _PROVIDERS[connection.vendor](**options)
        except (ProviderConfigurationError, ValueError) as exc:
            raise self._problem(path, str(exc)) from exc

    def _problem(self, path: YamlPath, reason: str) -> ConfigError:
        return ConfigError([self._settings.problem(path, reason)])
