"""Sources: providers of tools that live outside the bot's own modules."""

from agent.sources.mcp import McpToolProvider
from agent.sources.mock import MockToolProvider
from agent.sources.openapi import OpenApiToolProvider
from agent.sources.protocol import ToolProviderProtocol, provided
from agent.sources.python import PythonToolProvider

__all__ = [
    "McpToolProvider",
    "MockToolProvider",
    "OpenApiToolProvider",
    "PythonToolProvider",
    "ToolProviderProtocol",
    "provided",
]
