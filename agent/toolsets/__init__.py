"""Tools from other sources (MCP servers, OpenAPI documents),
and selectors of the tools that a model sees.
"""
