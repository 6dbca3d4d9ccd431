"""Price: what a conversation costs in tokens, model calls and messages, beside pydantic-ai and LangChain."""
