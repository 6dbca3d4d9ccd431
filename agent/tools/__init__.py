"""Tools: functions a model may call, their schemas, and what they hand back."""

from sayso.agent.tools.call_texts import ToolOutcome
from sayso.agent.tools.context import (
    Artifact,
    ReceivedFile,
    SchedulingError,
    cancel_scheduled,
    collect_artifacts,
    collect_choices,
    emit_artifact,
    offer_choices,
    received_file,
    received_files,
    remind,
    schedule_reply,
    scheduled,
    texts_of_turn,
    time_of_turn,
)
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.errors import (
    ToolError,
    ToolExecutionError,
    ToolLoadError,
    ToolNotFoundError,
    ToolParameterError,
    ToolValidationError,
)
from sayso.agent.tools.loading import LoadedTools, ToolLoader, load_tools
from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.tool import Tool, tool
from sayso.pending.executors import Ambiguous, NotFound, PendingConfirmation, ToolResult

__all__ = [
    "Ambiguous",
    "Artifact",
    "LoadedTools",
    "NotFound",
    "PendingConfirmation",
    "ReceivedFile",
    "SchedulingError",
    "Tool",
    "ToolError",
    "ToolExecutionError",
    "ToolLoadError",
    "ToolLoader",
    "ToolMetadata",
    "ToolNotFoundError",
    "ToolOutcome",
    "ToolParameter",
    "ToolParameterError",
    "ToolRegistry",
    "ToolResult",
    "ToolTag",
    "ToolValidationError",
    "cancel_scheduled",
    "collect_artifacts",
    "collect_choices",
    "emit_artifact",
    "load_tools",
    "offer_choices",
    "received_file",
    "received_files",
    "remind",
    "schedule_reply",
    "scheduled",
    "texts_of_turn",
    "time_of_turn",
    "tool",
]
