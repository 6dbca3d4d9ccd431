"""Providers: adapters to language models, some that need no network, and one of several."""

from agent.providers.base import Provider, ProviderError, ProviderRequest, acall
from agent.providers.fallback import FallbackProvider
from agent.providers.offline import OfflineProvider
from agent.providers.scripted import ScriptedProvider
from agent.providers.stubs import LocalProvider

__all__ = [
    "FallbackProvider",
    "LocalProvider",
    "OfflineProvider",
    "Provider",
    "ProviderError",
    "ProviderRequest",
    "ScriptedProvider",
    "acall",
]
