"""Sources: providers of tools that live outside the bot's own modules."""

from sayso.agent.sources.mcp import McpToolProvider
from sayso.agent.sources.mock import MockToolProvider
from sayso.agent.sources.openapi import OpenApiToolProvider
from sayso.agent.sources.protocol import ToolProviderProtocol, provided
from sayso.agent.sources.python import PythonToolProvider

__all__ = [
    "McpToolProvider",
    "MockToolProvider",
    "OpenApiToolProvider",
    "PythonToolProvider",
    "ToolProviderProtocol",
    "provided",
]
