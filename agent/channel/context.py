"""TurnContext and TurnAnswer: what is known about a turn, and what the turn changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sayso.agent.channel.long_texts import LongTexts
from sayso.agent.channel.turn_journal import TurnJournal
from sayso.agent.channel.user_message import user_message_text
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Message, Role
from sayso.agent.result import AgentResult
from sayso.channels.i18n.texts import Texts
from sayso.channels.types import Conversation, Media, Reply, Turn
from sayso.pending.proposals import ChannelRun
from sayso.pending.repository import OPEN_STATES, StoredAction
from sayso.pending.store import PendingActionStore
from sayso.pending.turns.change import Lease, Timer, TurnChange
from sayso.pending.turns.queued import StreamListener

#: The history's entry for a tap.
TAPPED = "(tapped a button)"


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn and everything that is known about it."""

    turn: Turn
    live: StoredAction | None
    tapped: StoredAction | None
    memory: ConversationMemory
    received_at: float
    #: The texts in the person's language.
    texts: Texts
    lease: Lease | None = None
    seq: int = 0
    #: Whether the person sees buttons; `ask_channel` returns text only.
    shows_buttons: bool = True
    timers: tuple[Timer, ...] = ()
    journal: TurnJournal | None = None
    #: Receives the answer's text while it arrives.
    stream_listener: StreamListener | None = None
    #: The long texts of the history. None without a worker: the history stays in this process.
    long_texts: LongTexts | None = None

    @property
    def settled(self) -> StoredAction | None:
        """Return the action that this turn settled before its worker died; None if it settled none."""
        for stored in (self.live, self.tapped):
            if stored and stored.by == self.turn.event_id and stored.state not in OPEN_STATES:
                return stored
        return None

    @property
    def waiting(self) -> StoredAction | None:
        """Return the action that waits for this person's yes."""
        return self.live if self.live and self.live.state in ("armed", "shown") else None

    def run(self, ttl_seconds: float, parser_version: str) -> ChannelRun:
        """Return the scope that tools, roles and proposals of this turn belong to."""
        return ChannelRun(
            user_id=self.turn.user_id,
            channel_id=self.turn.conversation.channel,
            conversation_id=self.turn.conversation.address,
            ttl_seconds=ttl_seconds,
            parser_version=parser_version,
            language=self.texts.language,
            aliases=self.turn.aliases,
            user_name=self.turn.user_name or "",
        )


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """What a turn changes, and the result of the agent if it ran."""

    change: TurnChange
    result: AgentResult | None = None


def fixed_answer(context: TurnContext, text: str, files: Sequence[Media] = ()) -> TurnAnswer:
    """Return an answer without a model call, and add it to the history."""
    user_text = user_message_text(context.turn) or TAPPED
    context.memory.add_many([Message(Role.USER, user_text), Message(Role.ASSISTANT, text)])
    replies = ((Reply(text), ""), *((Reply(media=media), "") for media in files))
    return TurnAnswer(TurnChange(replies=replies))


def memory_from_json(history: str, limits: ConversationMemory | None) -> ConversationMemory:
    """Return the memory of a stored history, within the limits of `limits`; an empty memory for "".

    Raises ValueError, KeyError or TypeError for an invalid history.
    """
    if history:
        memory = ConversationMemory.from_dict(json.loads(history))
        if limits is None or (memory.max_messages, memory.max_tokens) == (limits.max_messages, limits.max_tokens):
            return memory
        return memory.with_limits(limits.max_messages, limits.max_tokens)  # the limits have been changed
    return ConversationMemory(limits.max_messages, limits.max_tokens) if limits else ConversationMemory()


async def load_history(context: TurnContext) -> ConversationMemory:
    """Return the history for the model, with its long texts as far as there is room."""
    history = context.memory.get_history()
    if context.long_texts is None or not any(message.kept for message in history):
        return context.memory
    stored = context.memory
    memory = ConversationMemory(stored.max_messages, stored.max_tokens, stored.summary, stored.notes)
    memory.add_many(await context.long_texts.with_files(history))
    return memory


async def note_question(store: PendingActionStore, turn: Turn, pid: str) -> None:
    """Note a question that is asked in a thread, so that the other threads of the chat know of it."""
    here = turn.conversation
    if here.thread:
        note = json.dumps({"thread": here.thread, "pid": pid})
        await store.repository.note_asked(replace(here, thread="").id, turn.scope.id, note)


async def find_question_elsewhere(store: PendingActionStore, turn: Turn, now: float) -> StoredAction | None:
    """Return the question that is open for this person in another thread of the chat, or None."""
    here, chat = turn.conversation, replace(turn.conversation, thread="")
    stored = await store.repository.find_open(chat.id, turn.scope.id) if here.thread else None
    if _is_open(store, stored, turn, chat, now):
        return stored
    note = await store.repository.last_asked(chat.id, turn.scope.id)
    asked = json.loads(note) if note else {}
    there = replace(chat, thread=asked.get("thread", here.thread))
    if there == here:
        return None
    (stored,) = await store.repository.read(there.id, (asked["pid"],))
    return stored if _is_open(store, stored, turn, there, now) else None


def _is_open(
    store: PendingActionStore, stored: StoredAction | None, turn: Turn, there: Conversation, now: float
) -> bool:
    """Return whether the action still waits for this person and was not modified."""
    if stored is None or stored.state != "shown" or stored.action.is_expired(now):
        return False
    return stored.is_genuine(store.signer, replace(turn.scope, conversation=there))
