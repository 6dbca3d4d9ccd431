"""Recollection: what one conversation remembers, out of its stored history and its long texts."""

from __future__ import annotations

import json

from sayso.agent.case import Case
from sayso.agent.memory import ConversationMemory


def remembered(history: str, limits: ConversationMemory | None) -> ConversationMemory:
    """The memory that this history was written from, within these limits; an empty one for "". Raises ValueError,
    KeyError or TypeError.
    """
    if history:
        memory = ConversationMemory.from_dict(json.loads(history))
        if limits is None or (memory.max_messages, memory.max_tokens) == (limits.max_messages, limits.max_tokens):
            return memory
        return memory.limited(limits.max_messages, limits.max_tokens)  # they were configured anew since
    return ConversationMemory(limits.max_messages, limits.max_tokens) if limits else ConversationMemory()


async def recollected(case: Case) -> ConversationMemory:
    """What the model is to know of earlier turns: the history with its long texts, as far as there is room."""
    history = case.memory.get_history()
    if case.texts is None or not any(message.kept for message in history):
        return case.memory
    kept = case.memory
    memory = ConversationMemory(kept.max_messages, kept.max_tokens, kept.summary, kept.notes)
    memory.add_many(await case.texts.unfolded(history))
    return memory
