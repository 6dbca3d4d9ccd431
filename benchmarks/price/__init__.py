"""Price: what conversations cost in tokens, calls and messages, beside pydantic-ai and LangChain."""
