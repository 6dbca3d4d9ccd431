"""What a program imports from Sayso to build an agent. `__all__` is the public interface.

An agent is a model, its tools, and the loop between them. What the code of a tool needs of channels
and of pending actions is here, too.
"""

from sayso.agent.agent import Agent
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.config import (
    AgentConfig,
    Cache,
    CachedResult,
    CacheStats,
    DecisionLog,
    ResultCache,
    ToolConfig,
)
from sayso.agent.decisions import (
    Approve,
    DecidedCall,
    Decision,
    DecisionError,
    Deny,
    Edit,
    OpenCall,
    RunSnapshot,
)
from sayso.agent.guards.budget import Budget, BudgetLimits, MemoryBudget, RedisBudget
from sayso.agent.guards.coherence import CoherenceCheck
from sayso.agent.guards.guardrails import (
    Guardrail,
    GuardrailAction,
    GuardrailResult,
    GuardrailsPipeline,
    InjectionGuardrail,
    LengthGuardrail,
    PatternGuardrail,
    TopicGuardrail,
)
from sayso.agent.guards.loop_detection import LoopDetector
from sayso.agent.guards.policy import ConfirmAction, PolicyDecision, ToolPolicy
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.entities import Entity, EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory, Triple
from sayso.agent.memory.knowledge import KnowledgeMemory
from sayso.agent.memory.session_backends import (
    JsonFileSessionStore,
    RedisSessionStore,
    SQLiteSessionStore,
)
from sayso.agent.memory.sessions import (
    InMemorySessionStore,
    SessionError,
    SessionMetadata,
    SessionStore,
)
from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.observability.builtin import LoggingObserver
from sayso.agent.observability.observer import AgentObserver, AsyncAgentObserver
from sayso.agent.observability.otel import OpenTelemetryObserver
from sayso.agent.observability.usage import AgentAnalytics, AgentUsage, ToolMetrics
from sayso.agent.providers.base import (
    Provider,
    ProviderConfigurationError,
    ProviderError,
    RateLimitedError,
    RequestRefusedError,
)
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.providers.testing import (
    BelievingModel,
    InvalidHistory,
    LocalProvider,
    ScriptedProvider,
    check_history,
)
from sayso.agent.providers.vendors import (
    AnthropicProvider,
    GeminiProvider,
    OllamaProvider,
    OpenAIProvider,
)
from sayso.agent.result import AgentResult, StreamChunk
from sayso.agent.run.cache import CacheKeyBuilder, InMemoryCache, RedisCache
from sayso.agent.run.cancellation import CancellationToken
from sayso.agent.run.decision_log import MemoryDecisionLog, SQLiteDecisionLog
from sayso.agent.run.json_in_text import extract_json
from sayso.agent.run.result_summaries import MemoryResultCache
from sayso.agent.run.structured import (
    ResponseFormat,
    build_schema_instruction,
    parse_and_validate,
    schema_from_response_format,
    validation_retry_message,
)
from sayso.agent.run.text_tools import ParseResult, PromptBuilder, ToolCallParser
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.environment import (
    Artifact,
    ReceivedFile,
    emit_artifact,
    offer_choices,
    received_file,
    received_files,
)
from sayso.agent.tools.errors import (
    ToolError,
    ToolExecutionError,
    ToolLoadError,
    ToolNotFoundError,
    ToolParameterError,
    ToolValidationError,
)
from sayso.agent.tools.loading import ToolLoader
from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.tools.previews import CheckedPreview
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.result_texts import ToolOutcome
from sayso.agent.tools.tool import Tool, tool
from sayso.agent.toolsets.base import (
    MockToolProvider,
    PythonToolProvider,
    ToolProviderProtocol,
    runnable_tools,
)
from sayso.agent.toolsets.embedding import EmbeddingSelector
from sayso.agent.toolsets.mcp import McpToolProvider
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.agent.toolsets.selectors import (
    AllOf,
    Always,
    AnyOf,
    FailOpen,
    KeywordSelector,
    RoleBasedSelector,
    ToolSelector,
    discover_selectors,
)
from sayso.agent.trace import AgentTrace, TraceStep
from sayso.channels.markdown.literal import Markdown, as_markdown
from sayso.pending.executors import Ambiguous, NotFound, PendingConfirmation, ToolResult
from sayso.pending.tool_context import ToolContext

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
    "Approve",
    "Artifact",
    "AsyncAgentObserver",
    "BelievingModel",
    "Budget",
    "BudgetLimits",
    "Cache",
    "CacheKeyBuilder",
    "CacheStats",
    "CachedResult",
    "CancellationToken",
    "ChannelAgent",
    "ChannelBehavior",
    "CheckedPreview",
    "CoherenceCheck",
    "ConfirmAction",
    "ConversationMemory",
    "DecidedCall",
    "Decision",
    "DecisionError",
    "DecisionLog",
    "Deny",
    "Edit",
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
    "InvalidHistory",
    "JsonFileSessionStore",
    "KeywordSelector",
    "KnowledgeGraphMemory",
    "KnowledgeMemory",
    "LengthGuardrail",
    "LocalProvider",
    "LoggingObserver",
    "LoopDetector",
    "Markdown",
    "McpToolProvider",
    "MemoryBudget",
    "MemoryDecisionLog",
    "MemoryResultCache",
    "Message",
    "MockToolProvider",
    "NotFound",
    "OfflineProvider",
    "OllamaProvider",
    "OpenAIProvider",
    "OpenApiToolProvider",
    "OpenCall",
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
    "RunSnapshot",
    "SQLiteDecisionLog",
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
    "as_markdown",
    "build_schema_instruction",
    "check_history",
    "discover_selectors",
    "emit_artifact",
    "extract_json",
    "offer_choices",
    "parse_and_validate",
    "received_file",
    "received_files",
    "runnable_tools",
    "schema_from_response_format",
    "tool",
    "validation_retry_message",
]
