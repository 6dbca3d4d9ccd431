"""Agent: a model, its tools and the loop between them."""

from sayso.agent.agent import Agent
from sayso.agent.analytics import AgentAnalytics, ToolMetrics
from sayso.agent.budget import Budget, BudgetLimits, MemoryBudget
from sayso.agent.cache.base import Cache, CacheStats
from sayso.agent.cache.keys import CacheKeyBuilder
from sayso.agent.cache.memory import InMemoryCache
from sayso.agent.cache.redis_cache import RedisCache
from sayso.agent.cancellation import CancellationToken
from sayso.agent.channel_agent import ChannelAgent
from sayso.agent.config import AgentConfig, ConfirmAction, ToolConfig
from sayso.agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult
from sayso.agent.guards.injection import InjectionGuardrail
from sayso.agent.guards.length import LengthGuardrail
from sayso.agent.guards.pattern import PatternGuardrail
from sayso.agent.guards.pipeline import GuardrailsPipeline
from sayso.agent.guards.topic import TopicGuardrail
from sayso.agent.loop_detection import LoopDetector
from sayso.agent.memories.entity import Entity, EntityMemory
from sayso.agent.memories.graph import KnowledgeGraphMemory
from sayso.agent.memories.knowledge import KnowledgeMemory
from sayso.agent.memories.triples import Triple
from sayso.agent.memory import ConversationMemory
from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.observers.asynchronous import AsyncAgentObserver
from sayso.agent.observers.base import AgentObserver
from sayso.agent.observers.lines import LoggingObserver
from sayso.agent.observers.otel import OpenTelemetryObserver
from sayso.agent.parser import ParseResult, ToolCallParser
from sayso.agent.policy import PolicyDecision, ToolPolicy
from sayso.agent.prompt import PromptBuilder
from sayso.agent.providers.anthropic import AnthropicProvider
from sayso.agent.providers.base import (
    Provider,
    ProviderConfigurationError,
    ProviderError,
    RateLimitedError,
    RequestRefusedError,
)
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.gemini import GeminiProvider
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.providers.ollama import OllamaProvider
from sayso.agent.providers.openai import OpenAIProvider
from sayso.agent.providers.scripted import ScriptedProvider
from sayso.agent.providers.stubs import LocalProvider
from sayso.agent.redis_budget import RedisBudget
from sayso.agent.result import AgentResult, StreamChunk
from sayso.agent.result_cache import CachedResult, MemoryResultCache, ResultCache
from sayso.agent.selectors.composition import AllOf, Always, AnyOf, FailOpen
from sayso.agent.selectors.discovery import discover_selectors
from sayso.agent.selectors.embedding import EmbeddingSelector
from sayso.agent.selectors.keyword import KeywordSelector
from sayso.agent.selectors.protocol import ToolSelector
from sayso.agent.selectors.roles import RoleBasedSelector
from sayso.agent.sessions.json_file import JsonFileSessionStore
from sayso.agent.sessions.memory import InMemorySessionStore
from sayso.agent.sessions.redis import RedisSessionStore
from sayso.agent.sessions.sqlite import SQLiteSessionStore
from sayso.agent.sessions.store import SessionError, SessionMetadata, SessionStore
from sayso.agent.sources.mcp import McpToolProvider
from sayso.agent.sources.mock import MockToolProvider
from sayso.agent.sources.openapi import OpenApiToolProvider
from sayso.agent.sources.protocol import ToolProviderProtocol, provided
from sayso.agent.sources.python import PythonToolProvider
from sayso.agent.structured import ResponseFormat
from sayso.agent.tools.artifacts import Artifact, emit_artifact
from sayso.agent.tools.decorator import tool
from sayso.agent.tools.errors import (
    ToolError,
    ToolExecutionError,
    ToolLoadError,
    ToolNotFoundError,
    ToolParameterError,
    ToolValidationError,
)
from sayso.agent.tools.loader import ToolLoader
from sayso.agent.tools.metadata import ToolMetadata, ToolTag
from sayso.agent.tools.offers import offer_choices
from sayso.agent.tools.outcome import ToolOutcome
from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.tools.received import ReceivedFile, received_file, received_files
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.tool import Tool
from sayso.agent.trace import AgentTrace, TraceStep
from sayso.agent.usage import AgentUsage
from sayso.pending.context import ToolContext
from sayso.pending.results import Ambiguous, NotFound, PendingConfirmation, ToolResult

__all__ = [
    "Agent",
    "AgentAnalytics",
    "AgentConfig",
    "AgentObserver",
    "AgentResult",
    "AgentTrace",
    "AgentUsage",
    "AllOf",
    "Always",
    "Ambiguous",
    "AnthropicProvider",
    "AnyOf",
    "Artifact",
    "AsyncAgentObserver",
    "Budget",
    "BudgetLimits",
    "Cache",
    "CacheKeyBuilder",
    "CacheStats",
    "CachedResult",
    "CancellationToken",
    "ChannelAgent",
    "ConfirmAction",
    "ConversationMemory",
    "EmbeddingSelector",
    "Entity",
    "EntityMemory",
    "FailOpen",
    "FallbackProvider",
    "GeminiProvider",
    "Guardrail",
    "GuardrailAction",
    "GuardrailResult",
    "GuardrailsPipeline",
    "InMemoryCache",
    "InMemorySessionStore",
    "InjectionGuardrail",
    "JsonFileSessionStore",
    "KeywordSelector",
    "KnowledgeGraphMemory",
    "KnowledgeMemory",
    "LengthGuardrail",
    "LocalProvider",
    "LoggingObserver",
    "LoopDetector",
    "McpToolProvider",
    "MemoryBudget",
    "MemoryResultCache",
    "Message",
    "MockToolProvider",
    "NotFound",
    "OfflineProvider",
    "OllamaProvider",
    "OpenAIProvider",
    "OpenApiToolProvider",
    "OpenTelemetryObserver",
    "ParseResult",
    "PatternGuardrail",
    "PendingConfirmation",
    "PolicyDecision",
    "PromptBuilder",
    "Provider",
    "ProviderConfigurationError",
    "ProviderError",
    "PythonToolProvider",
    "RateLimitedError",
    "ReceivedFile",
    "RedisBudget",
    "RedisCache",
    "RedisSessionStore",
    "RequestRefusedError",
    "ResponseFormat",
    "ResultCache",
    "Role",
    "RoleBasedSelector",
    "SQLiteSessionStore",
    "ScriptedProvider",
    "SessionError",
    "SessionMetadata",
    "SessionStore",
    "StreamChunk",
    "Tool",
    "ToolCall",
    "ToolCallParser",
    "ToolConfig",
    "ToolContext",
    "ToolError",
    "ToolExecutionError",
    "ToolLoadError",
    "ToolLoader",
    "ToolMetadata",
    "ToolMetrics",
    "ToolNotFoundError",
    "ToolOutcome",
    "ToolParameter",
    "ToolParameterError",
    "ToolPolicy",
    "ToolProviderProtocol",
    "ToolRegistry",
    "ToolResult",
    "ToolSelector",
    "ToolTag",
    "ToolValidationError",
    "TopicGuardrail",
    "TraceStep",
    "Triple",
    "UsageStats",
    "discover_selectors",
    "emit_artifact",
    "offer_choices",
    "provided",
    "received_file",
    "received_files",
    "tool",
]
