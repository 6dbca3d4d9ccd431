"""Memory: what an agent keeps of a conversation and across conversations.

| what | where |
|---|---|
| the history of one conversation | `conversation.py`; `run/long_results.py` shortens long results in it |
| who stores the history of a chat on a channel | the commit script `workers/lua/commit.lua`: no module here |
| who stores the history of code that calls Agent | `sessions.py`, `session_backends.py` |
| facts that stay, across conversations | `knowledge.py` |
| who and what a conversation is about, and how it is related | `entities.py`, `graph.py` |
| how these are extracted from messages | `extraction.py` |
"""
