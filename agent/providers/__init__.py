"""Providers: adapters to language models, and two that need no network."""

from agent.providers.anthropic import AnthropicProvider
from agent.providers.base import Provider, ProviderError, ProviderRequest, acall
from agent.providers.gemini import GeminiProvider
from agent.providers.offline import OfflineProvider
from agent.providers.ollama import OllamaProvider
from agent.providers.openai import OpenAIProvider
from agent.providers.scripted import ScriptedProvider

__all__ = [
    "AnthropicProvider",
    "GeminiProvider",
    "OfflineProvider",
    "OllamaProvider",
    "OpenAIProvider",
    "Provider",
    "ProviderError",
    "ProviderRequest",
    "ScriptedProvider",
    "acall",
]
