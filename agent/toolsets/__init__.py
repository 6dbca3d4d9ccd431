"""Tools from MCP servers and OpenAPI documents, and selectors of what a model is shown."""
