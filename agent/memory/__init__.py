"""Memory: what an agent remembers of a conversation, and across conversations.

| what | where |
|---|---|
| the history of one conversation | `conversation.py`; `run/long_results.py` shortens long results in it |
| storing the history of a chat on a channel | the commit script `workers/lua/commit.lua`, not here |
| storing the history of code that calls Agent | `sessions.py`, `session_backends.py` |
| facts that stay, across conversations | `knowledge.py` |
| people and things of a conversation, and their relationships | `entities.py`, `graph.py` |
| how these are extracted from messages | `extraction.py` |
"""
