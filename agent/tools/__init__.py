"""Tools: functions a model may call, their schemas, and what they hand back."""

from sayso.agent.tools.artifacts import Artifact, collect_artifacts, emit_artifact
from sayso.agent.tools.decorator import tool
from sayso.agent.tools.errors import (
    ToolError,
    ToolExecutionError,
    ToolLoadError,
    ToolNotFoundError,
    ToolParameterError,
    ToolValidationError,
)
from sayso.agent.tools.loader import LoadedTools, ToolLoader, load_tools
from sayso.agent.tools.metadata import ToolMetadata, ToolTag
from sayso.agent.tools.offers import collect_choices, offer_choices
from sayso.agent.tools.outcome import ToolOutcome
from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.tools.received import ReceivedFile, received_file, received_files
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.timers import (
    SchedulingError,
    cancel_scheduled,
    remind,
    schedule_reply,
    scheduled,
    time_of_turn,
    words_of_turn,
)
from sayso.agent.tools.tool import Tool
from sayso.pending.results import Ambiguous, NotFound, PendingConfirmation, ToolResult

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
    "time_of_turn",
    "tool",
    "words_of_turn",
]
