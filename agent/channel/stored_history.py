"""The history of a conversation on a channel: what is stored of it, and how it is read again.

ChannelAgent reads the history at the beginning of a turn (`memory_from_json`), and writes it into
the TurnChange at the end (`history_to_store`). The script `workers/lua/commit.lua` saves it in
Redis with the replies and the pending actions of the turn: all of it or nothing.

Long texts are not in Redis. A history has the ids of the files in which they are (`LongTexts`).
`load_history` puts the texts of people back before a model reads the history.
"""

from __future__ import annotations

import json

from sayso.agent.channel.context import TurnContext
from sayso.agent.channel.long_texts import LongTexts
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Role
from sayso.agent.result import AgentResult
from sayso.agent.run.long_results import shorten_for_history
from sayso.agent.run.pause import forget_ended_pause
from sayso.infra.concurrency import call_in_thread
from sayso.infra.records import versioned

#: The key of a note in a history: the id of the action whose outcome its continuation must tell.
OUTCOME_TO_TELL = "outcome_to_tell"
#: The key of a note in a history: the id of the action whose outcome the person has read before its
#: continuation, with the answer to another message.
OUTCOME_TOLD_EARLIER = "outcome_told_earlier"
#: The note with the id of an action that others have decided, and whose outcome no model has read.
OUTCOME_UNREAD = "outcome_unread"


def memory_from_json(
    history: str, limits: ConversationMemory | None, *, summarizes: bool = False
) -> ConversationMemory:
    """Return the memory of a stored history, which is JSON; an empty memory for "".

    `limits` is a memory with the limits of the settings; None for the default ones. What is beyond
    the limits is removed, unless the next run of the agent `summarizes` it. Raises ValueError,
    KeyError or TypeError for an invalid history.
    """
    if not history:
        if limits is None:
            return ConversationMemory()
        return ConversationMemory(limits.max_messages, limits.max_tokens)

    memory = ConversationMemory.from_dict(json.loads(history))
    if limits is not None:
        # The limits may have been changed in the settings since the history was stored.
        stored_limits = (memory.max_messages, memory.max_tokens)
        if stored_limits != (limits.max_messages, limits.max_tokens):
            memory = memory.with_limits(limits.max_messages, limits.max_tokens)
    if not summarizes:
        memory.add_many(())  # removes what is beyond the limits
    return memory


async def load_history(context: TurnContext) -> ConversationMemory:
    """Return the history as the model reads it: with the long texts of people, if there is room."""
    stored_memory = context.memory
    history = context.memory.get_history()
    has_long_texts = any(message.text_file and message.role is not Role.TOOL for message in history)
    if context.long_texts is None or not has_long_texts:
        return stored_memory
    memory = ConversationMemory(
        stored_memory.max_messages,
        stored_memory.max_tokens,
        stored_memory.summary,
        stored_memory.notes,
    )
    full = await call_in_thread(context.long_texts.read_history, history)
    memory.add_many(full, trims=not context.summarizes)
    return memory


def copy_changes_of_run(
    copy: ConversationMemory, history: ConversationMemory, result: AgentResult
) -> None:
    """Make the changes of a run to the history that is stored.

    The run has worked on a `copy` with the long texts of people, which must not get into Redis. It
    has added messages, removed old ones, and changed the summary and the notes.
    """
    history.add_many(shorten_for_history(result.messages), trims=False)
    history.keep_newest(len(copy.get_history()))
    history.summary = copy.summary
    history.notes = copy.notes
    forget_ended_pause(history)


async def history_to_store(memory: ConversationMemory, long_texts: LongTexts) -> str:
    """Store the long texts of a history in files, and return the rest as the text for Redis."""
    history = memory.to_dict()
    await long_texts.move_to_files(history["messages"])
    return versioned(json.dumps(history))
