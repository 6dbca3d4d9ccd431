"""Session: an agent's own conversation, read before a run and saved after it (seed: Persistent Sessions)."""

from __future__ import annotations

from agent.chronicle import Chronicle
from agent.config import AgentConfig
from agent.memory import ConversationMemory
from workers.offload import offload


async def load_session(
    config: AgentConfig, memory: ConversationMemory | None, chronicle: Chronicle
) -> ConversationMemory:
    """What the store has of the session, within the limits of `memory`; `memory` itself, or a new one, where it has
    nothing. Raises SessionError.
    """
    store, session_id = config.session_store, config.session_id
    if store is None or session_id is None:
        return memory or ConversationMemory()
    kept = await offload(store.load, session_id)
    if kept is None:
        return memory if memory is not None else ConversationMemory()
    if memory is not None:
        kept = kept.limited(memory.max_messages, memory.max_tokens)
    count = len(kept.get_history())
    chronicle.note("session_load", summary=f"{count} messages")
    await chronicle.tell("session_load", session_id, count)
    return kept


async def save_session(config: AgentConfig, memory: ConversationMemory | None, chronicle: Chronicle) -> None:
    """Save what the conversation is now. Raises SessionError."""
    store, session_id = config.session_store, config.session_id
    if store is None or session_id is None or memory is None:
        return
    await offload(store.save, session_id, memory)
    count = len(memory.get_history())
    chronicle.note("session_save", summary=f"{count} messages")
    await chronicle.tell("session_save", session_id, count)
