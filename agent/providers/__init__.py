"""Providers: adapters to language models, and some that need no network."""

from agent.providers.anthropic import AnthropicProvider
from agent.providers.base import (
    Provider,
    ProviderConfigurationError,
    ProviderError,
    ProviderRequest,
    RateLimitedError,
    RequestRefusedError,
    acall,
)
from agent.providers.fallback import FallbackProvider
from agent.providers.gemini import GeminiProvider
from agent.providers.offline import OfflineProvider
from agent.providers.ollama import OllamaProvider
from agent.providers.openai import OpenAIProvider
from agent.providers.openai_responses import OpenAIResponsesProvider
from agent.providers.scripted import ScriptedProvider
from agent.providers.stubs import LocalProvider
from agent.providers.text_tools import TextToolProvider

__all__ = [
    "AnthropicProvider",
    "FallbackProvider",
    "GeminiProvider",
    "LocalProvider",
    "OfflineProvider",
    "OllamaProvider",
    "OpenAIProvider",
    "OpenAIResponsesProvider",
    "Provider",
    "ProviderConfigurationError",
    "ProviderError",
    "ProviderRequest",
    "RateLimitedError",
    "RequestRefusedError",
    "ScriptedProvider",
    "TextToolProvider",
    "acall",
]
