"""TurnContext, TurnAnswer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sayso.agent.channel.long_texts import LongTexts
from sayso.agent.channel.user_message import user_message_text
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Message, Role
from sayso.agent.result import AgentResult
from sayso.agent.run.journal import TurnJournal
from sayso.channels.i18n.texts import Texts
from sayso.channels.types import Conversation, Media, Reply, Turn
from sayso.pending.concurrency import reach
from sayso.pending.proposals import ChannelRun
from sayso.pending.repository import OPEN_STATES, StoredAction
from sayso.pending.store import BasePendingStore
from sayso.pending.turns.change import Lease, Timer, TurnChange
from sayso.pending.turns.queued import StreamListener

#: What the history holds of a tap.
TAPPED = "(tapped a button)"


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn and all that is known about it."""

    turn: Turn
    live: StoredAction | None
    tapped: StoredAction | None
    memory: ConversationMemory
    received_at: float
    #: How to speak to this person.
    words: Texts
    lease: Lease | None = None
    seq: int = 0
    #: Whether the person sees buttons. In a lane they do; to `ask_channel` words alone are given.
    shows_buttons: bool = True
    timers: tuple[Timer, ...] = ()
    journal: TurnJournal | None = None
    #: Hears the words while they come.
    hear: StreamListener | None = None
    #: Where the history's long texts are. Without a lane it stays in this process, as it is.
    texts: LongTexts | None = None

    @property
    def settled(self) -> StoredAction | None:
        """What this very turn settled, found when it is worked on again after a crash."""
        for stored in (self.live, self.tapped):
            if stored and stored.by == self.turn.event_id and stored.state not in OPEN_STATES:
                return stored
        return None

    @property
    def waiting(self) -> StoredAction | None:
        """What waits for this person's yes."""
        return self.live if self.live and self.live.state in ("armed", "shown") else None

    def run(self, ttl_seconds: float, parser_version: str) -> ChannelRun:
        """The scope that tools, roles and proposals of this turn belong to."""
        return ChannelRun(
            user_id=self.turn.user_id,
            channel_id=self.turn.conversation.channel,
            conversation_id=self.turn.conversation.address,
            ttl_seconds=ttl_seconds,
            parser_version=parser_version,
            language=self.words.language,
            aliases=self.turn.aliases,
            user_name=self.turn.user_name or "",
        )


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """What a turn changes, and the agent's own result if it was asked."""

    change: TurnChange
    result: AgentResult | None = None

    def behind(self, reply: Reply) -> TurnAnswer:
        """The answer, said after this."""
        return replace(self, change=replace(self.change, replies=((reply, ""), *self.change.replies)))


def said(case: TurnContext, text: str, files: Sequence[Media] = ()) -> TurnAnswer:
    """An answer without a model, which the history remembers all the same."""
    words = user_message_text(case.turn) or TAPPED
    case.memory.add_many([Message(Role.USER, words), Message(Role.ASSISTANT, text)])
    replies = ((Reply(text), ""), *((Reply(media=media), "") for media in files))
    return TurnAnswer(TurnChange(replies=replies))


def remembered(history: str, limits: ConversationMemory | None) -> ConversationMemory:
    """The memory that this history was written from, within these limits; an empty one for "". Raises ValueError,
    KeyError or TypeError.
    """
    if history:
        memory = ConversationMemory.from_dict(json.loads(history))
        if limits is None or (memory.max_messages, memory.max_tokens) == (limits.max_messages, limits.max_tokens):
            return memory
        return memory.with_limits(limits.max_messages, limits.max_tokens)  # they were configured anew since
    return ConversationMemory(limits.max_messages, limits.max_tokens) if limits else ConversationMemory()


async def load_history(case: TurnContext) -> ConversationMemory:
    """What the model is to know of earlier turns: the history with its long texts, as far as there is room."""
    history = case.memory.get_history()
    if case.texts is None or not any(message.kept for message in history):
        return case.memory
    kept = case.memory
    memory = ConversationMemory(kept.max_messages, kept.max_tokens, kept.summary, kept.notes)
    memory.add_many(await case.texts.unfolded(history))
    return memory


async def note_asked(store: BasePendingStore, turn: Turn, pid: str) -> None:
    """Note the question that a thread asks, so that the chat's other threads know of it. Outside a thread: nothing."""
    here = turn.conversation
    if here.thread:
        note = json.dumps({"thread": here.thread, "pid": pid})
        await reach(store.records.note_asked, replace(here, thread="").id, turn.scope.id, note)


async def open_elsewhere(store: BasePendingStore, turn: Turn, now: float) -> StoredAction | None:
    """Return the question that is open for this person in another thread of the chat, or None."""
    here, chat = turn.conversation, replace(turn.conversation, thread="")
    stored = await reach(store.records.look, chat.id, turn.scope.id) if here.thread else None
    if _is_open(store, stored, turn, chat, now):
        return stored
    note = await reach(store.records.last_asked, chat.id, turn.scope.id)
    asked = json.loads(note) if note else {}
    there = replace(chat, thread=asked.get("thread", here.thread))
    if there == here:
        return None
    (stored,) = await reach(store.records.read, there.id, (asked["pid"],))
    return stored if _is_open(store, stored, turn, there, now) else None


def _is_open(store: BasePendingStore, stored: StoredAction | None, turn: Turn, there: Conversation, now: float) -> bool:
    """Return whether it still waits for this person, and is what was shown to them."""
    if stored is None or stored.state != "shown" or stored.action.is_expired(now):
        return False
    return stored.is_genuine(store.seal, replace(turn.scope, conversation=there))
