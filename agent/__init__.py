"""Agent: a model, its tools and the loop between them."""

from agent.channel_agent import ChannelAgent
from agent.config import AgentConfig, AgentResult
from agent.loop import Agent
from agent.memory import ConversationMemory
from agent.messages import Message, Role, ToolCall, UsageStats
from agent.policy import PolicyDecision, ToolPolicy
from agent.providers import OfflineProvider, Provider, ProviderError, ScriptedProvider
from agent.selector import ToolSelector
from agent.tools import (
    Ambiguous,
    Artifact,
    NotFound,
    Tool,
    ToolError,
    ToolExecutionError,
    ToolParameter,
    ToolRegistry,
    ToolResult,
    ToolValidationError,
    emit_artifact,
    tool,
)

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentResult",
    "Ambiguous",
    "Artifact",
    "ChannelAgent",
    "ConversationMemory",
    "Message",
    "NotFound",
    "OfflineProvider",
    "PolicyDecision",
    "Provider",
    "ProviderError",
    "Role",
    "ScriptedProvider",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolExecutionError",
    "ToolParameter",
    "ToolPolicy",
    "ToolRegistry",
    "ToolResult",
    "ToolSelector",
    "ToolValidationError",
    "UsageStats",
    "emit_artifact",
    "tool",
]
