"""Providers: adapters to language models, and two that need no network."""

from agent.providers.base import Provider, ProviderError, ProviderRequest, acall
from agent.providers.offline import OfflineProvider
from agent.providers.scripted import ScriptedProvider

__all__ = ["OfflineProvider", "Provider", "ProviderError", "ProviderRequest", "ScriptedProvider", "acall"]
