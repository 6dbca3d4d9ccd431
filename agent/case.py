"""Case: a turn with all that is known about it, and the answer that it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sayso.agent.heard import heard
from sayso.agent.hearing import Hearing
from sayso.agent.long_texts import LongTexts
from sayso.agent.memory import ConversationMemory
from sayso.agent.messages import Message, Role
from sayso.agent.result import AgentResult
from sayso.agent.turn_journal import TurnJournal
from sayso.channels.types import Media, Reply, Turn
from sayso.pending.proposals import ChannelRun
from sayso.pending.records import OPEN_STATES, StoredAction
from sayso.pending.texts import Texts
from sayso.workers.lane import Change, Lease, Timer

#: What the history holds of a tap.
TAPPED = "(tapped a button)"


@dataclass(frozen=True, slots=True)
class Case:
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
    hear: Hearing | None = None
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
class Answer:
    """What a turn changes, and the agent's own result if it was asked."""

    change: Change
    result: AgentResult | None = None

    def behind(self, reply: Reply) -> Answer:
        """The answer, said after this."""
        return replace(self, change=replace(self.change, replies=((reply, ""), *self.change.replies)))


def said(case: Case, text: str, files: Sequence[Media] = ()) -> Answer:
    """An answer without a model, which the history remembers all the same."""
    words = heard(case.turn) or TAPPED
    case.memory.add_many([Message(Role.USER, words), Message(Role.ASSISTANT, text)])
    replies = ((Reply(text), ""), *((Reply(media=media), "") for media in files))
    return Answer(Change(replies=replies))
