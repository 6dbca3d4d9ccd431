"""The backend of the vendors' providers. It imports pydantic-ai, and is itself imported when a model is first asked."""
