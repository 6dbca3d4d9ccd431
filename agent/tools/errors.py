"""What the tools room raises.

ToolError
├── ToolNotFoundError    no tool of that name
├── ToolValidationError  a definition or arguments that cannot work
├── ToolExecutionError   the tool's own code failed
└── ToolLoadError        a module of tools cannot be imported
"""

from __future__ import annotations


class ToolError(Exception):
    """Base of what the tools room raises."""


class ToolNotFoundError(ToolError):
    """Raised when a tool is asked for by a name nobody registered."""


class ToolValidationError(ToolError):
    """Raised when a tool is defined wrongly, or called with arguments its schema refuses."""


class ToolExecutionError(ToolError):
    """Raised when a tool's own code failed; the cause is chained."""


class ToolLoadError(ToolError):
    """Raised when a module of tools cannot be found or imported."""
