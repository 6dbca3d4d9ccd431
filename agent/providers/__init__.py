"""Providers: adapters to language models, and some that need no network."""

from sayso.agent.providers.anthropic import AnthropicProvider
from sayso.agent.providers.base import (
    Provider,
    ProviderConfigurationError,
    ProviderError,
    ProviderRequest,
    RateLimitedError,
    RequestRefusedError,
    acall,
)
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.gemini import GeminiProvider
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.providers.ollama import OllamaProvider
from sayso.agent.providers.openai import OpenAIProvider
from sayso.agent.providers.openai_responses import OpenAIResponsesProvider
from sayso.agent.providers.scripted import ScriptedProvider
from sayso.agent.providers.stubs import LocalProvider
from sayso.agent.providers.text_tools import TextToolProvider

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
