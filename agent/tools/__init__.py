"""Tools: functions a model may call, their schemas, and what they hand back.

Most names are in `sayso.agent`, too.
"""

from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.scheduling import (
    cancel_scheduled,
    remind,
    schedule_reply,
    scheduled,
    texts_of_turn,
    time_of_turn,
)
from sayso.agent.tools.timers import SchedulingError
from sayso.agent.tools.tool import Tool, tool

__all__ = [
    "SchedulingError",
    "Tool",
    "ToolParameter",
    "ToolRegistry",
    "cancel_scheduled",
    "remind",
    "schedule_reply",
    "scheduled",
    "texts_of_turn",
    "time_of_turn",
    "tool",
]
