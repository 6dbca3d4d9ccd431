"""Turns and replies as a worker takes them from the queues of a conversation.

A turn is one thing that a person did: a message, a tap, an edit. QueuedTurn is the next turn with
all that its worker needs to know, and QueuedReply the next reply to send. A TurnHandler answers a
turn with a TurnChange (`turn_changes.py`).

The errors of working on a conversation:

ConversationError
├── LeaseLost           another worker holds the lease
├── ConversationParked  nothing can be sent now: the lease was released until a later try
├── StaleTurn           the stored state changed since this worker read it
└── JournalUnreadable   the notes of an earlier attempt at a turn cannot be read
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any, NamedTuple, Protocol

from sayso.channels.types import (
    UNNAMED_ALBUM,
    Conversation,
    Delivery,
    Reply,
    StepState,
    Turn,
)
from sayso.pending.stored_action import StoredAction
from sayso.pending.stored_limits import MAX_BURST
from sayso.pending.turn_changes import FORWARD, SettledAnswer, Timer, TurnChange

#: The kind of a record whose buttons are choices: a tap says something and decides nothing.
CHOICE_KIND = "sayso:choice"
#: How long after the newest part of an album the next one is awaited, in seconds. The webhooks of
#: an album that WhatsApp sends come about a second apart at most. A photo that is sent alone is
#: answered later by this time, so it is no longer than that.
ALBUM_SECONDS = 1.2


class ConversationError(Exception):
    """Base of the errors raised while working on a conversation."""


class LeaseLost(ConversationError):
    """Raised when another worker holds the lease. Stop, and change nothing more."""


class ConversationParked(ConversationError):
    """Raised when a reply must wait and the lease was released until then."""


class StaleTurn(ConversationError):
    """Raised when a commit finds that the stored state has changed since it was read.

    Read it again.
    """


class JournalUnreadable(ConversationError):
    """Raised when the effects of an earlier attempt at a turn cannot be known.

    The turn must not be tried again.
    """


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one worker to work on a conversation, for a while."""

    #: The id of the conversation.
    conversation: str
    #: The fencing number: each new lease of a conversation has a higher one, so that a worker that
    #: was paused for longer than its lease can change nothing.
    epoch: int
    #: The name of the worker, and a random word that no other lease has.
    token: str

    @property
    def args(self) -> dict[str, Any]:
        """Return the arguments by which a script checks the lease."""
        return {"epoch": self.epoch, "token": self.token}


class StreamListener(Protocol):
    """Receives the text of one model call, piece by piece."""

    async def __call__(self, piece: str) -> None:
        """Receive the next piece."""

    def anew(self) -> None:
        """Start a new text: the model has called tools."""


#: Receives each change of a tool call of the turn: its number in the turn, the name of the tool,
#: and its state; None if there is no such call after all.
OnStep = Callable[[int, str, StepState | None], None]


class TurnHandler(Protocol):
    """Answers the turns of one channel, for the workers. `ChannelAgent` is the class.

    Workers and agent do not import each other, so the workers know only this Protocol.
    """

    async def answer(
        self,
        queued: QueuedTurn,
        lease: Lease,
        stream: StreamListener | None = None,
        on_step: OnStep | None = None,
    ) -> TurnChange:
        """Answer the turn, and return all that it changes.

        `lease` proves to the store that this worker may settle actions. `stream` receives the text
        while it is written, and `on_step` the tool calls; None where nothing is shown meanwhile.

        Raises LeaseLost and StaleTurn: nothing may be said then.
        """

    async def give_up(self, queued: QueuedTurn, lease: Lease, words: str) -> TurnChange:
        """Return the change of a turn that took too long or failed.

        If the turn has decided on an action, the change tells its outcome. Otherwise the reply is
        `words`.
        """

    def is_answer(self, text: str) -> bool:
        """Return whether the text would be a yes or a no if a question were open."""

    def needs_answer(self, queued: QueuedTurn) -> bool:
        """Return False if the turn certainly gets no answer.

        Then no sign is shown that one is coming.
        """

    def may_settle(self, queued: QueuedTurn) -> bool:
        """Return whether the turn may settle a pending action. Such a turn is not stopped."""


class FollowingTurn(NamedTuple):
    """A turn that waits behind another one: its number, and when it came in Unix seconds."""

    seq: int
    turn: Turn
    received_at: float


@dataclass(frozen=True, slots=True)
class QueuedTurn:
    """The next turn to work on, with all that its worker needs to know.

    A snapshot of the conversation, for one attempt at the turn. Times are in Unix seconds by the
    server's clock.
    """

    #: The number of the turn in its conversation, from 1, in the order in which turns came in.
    seq: int
    received_at: float
    #: The id of its person in this conversation (`Scope.id`).
    user: str
    turn: Turn
    #: The action that waits for a plain yes of the person, None if none waits.
    open_action: StoredAction | None
    #: The action that the turn's button names, None for none.
    tapped_action: StoredAction | None
    #: The stored history of the conversation, "" for none.
    history: str
    #: The turns of the same person right behind this one; MAX_BURST with this one at most.
    following: tuple[FollowingTurn, ...] = ()
    #: How many turns of all people wait in the conversation, with this one.
    waiting: int = 1
    #: The number of the person's last turn that was /stop, 0 for none.
    stop: int = 0
    #: The number of the last turn that is merged into this one, 0 for none.
    last_merged_seq: int = 0
    #: All merged turns as they came in, this one first; () if none was merged.
    parts: tuple[Turn, ...] = ()
    #: The timers of the whole conversation.
    timers: tuple[Timer, ...] = ()
    #: The notes of earlier attempts at the turn.
    journal: tuple[str, ...] = ()
    #: The number of this attempt, from 1.
    attempt: int = 1
    #: Seconds since the turn came in.
    age: float = field(default=0.0, compare=False)
    #: When the server went on after a loss of data, 0.0 if there was none in the last day.
    lost_at: float = 0.0
    #: Whether a yes or no of the person was already answered with that loss.
    is_loss_told: bool = False
    #: The person's last yes or no, if its outcome has arrived and is the bot's last message. Else
    #: None.
    last_answer: SettledAnswer | None = None

    @property
    def last_seq(self) -> int:
        """Return the number of the last turn that is finished together with this one."""
        return self.last_merged_seq or self.seq

    @property
    def is_stopped(self) -> bool:
        """Return whether the person sent /stop after this turn.

        False for a turn that has confirmed an action before a crash: such a turn goes on. So do the
        turns in which other people decide: their answers are not the person's to stop.
        """
        if self.seq >= self.stop or self.turn.kind in ("vote", "request_timer"):
            return False
        actions = [action for action in (self.open_action, self.tapped_action) if action]
        return not any(self._has_confirmed(action) for action in actions)

    def _has_confirmed(self, action: StoredAction) -> bool:
        """Return whether an earlier attempt at this turn decided on the action."""
        if action.action.kind == CHOICE_KIND:
            return False
        return action.decided_by_event == self.turn.event_id

    def merge_texts(self, is_answer: Callable[[str], bool]) -> QueuedTurn:
        """Return this turn merged with the plain texts right behind it.

        Taps, commands, edits, replies to an earlier message and answers are never merged, nor is
        anything while an action waits for an answer. `is_answer` returns whether a text is a yes
        or a no.
        """

        def is_plain(turn: Turn) -> bool:
            text = turn.text.strip()
            if not text or not turn.decides:
                return False
            if turn.tap or turn.quoted or turn.replied_to or turn.group:
                return False
            return not text.startswith("/") and not is_answer(text)

        if self.open_action or not is_plain(self.turn):
            return self
        plain_turns = takewhile(lambda each: is_plain(each.turn), self.following)
        return self._merged_with(list(plain_turns))

    def merge_album(self) -> QueuedTurn:
        """Return this part of an album merged with the other parts right behind it."""
        return self._merged_with(self._further_parts())

    def _further_parts(self) -> list[FollowingTurn]:
        """Return the other parts of the album that this turn belongs to.

        They stand right behind it. Platforms that name no album send its parts one shortly after
        the other. Two such albums of one person may wait here while a worker is busy, so the time
        between the parts tells them apart.
        """
        parts: list[FollowingTurn] = []
        if not self.turn.group:
            return parts

        last_received_at = self.received_at
        for each in self.following:
            if each.turn.group != self.turn.group:
                break
            gap = each.received_at - last_received_at
            if self.turn.group == UNNAMED_ALBUM and gap > ALBUM_SECONDS:
                break
            parts.append(each)
            last_received_at = each.received_at
        return parts

    @property
    def newest_part(self) -> FollowingTurn:
        """Return the newest part of the album, this turn itself while no other part has come."""
        parts = self._further_parts()
        if parts:
            return parts[-1]
        return FollowingTurn(self.seq, self.turn, self.received_at)

    @property
    def may_grow(self) -> bool:
        """Return whether the turn is part of an album that may get more parts.

        An album gets no more parts once another turn waits behind it, of any person: answers keep
        the order of turns.
        """
        if not self.turn.group or self.journal or self.is_stopped:
            return False
        parts = 1 + len(self._further_parts())
        return parts == self.waiting and parts < MAX_BURST

    def merge_journalled(self) -> QueuedTurn:
        """Return this turn merged with the same turns as in its first attempt.

        The first note of the journal names them (`journal_head`).
        """
        try:
            last = int(json.loads(self.journal[0])["upto"])
        except (IndexError, ValueError, KeyError, TypeError):  # the journal is empty or unreadable
            last = 0
        return self._merged_with([each for each in self.following if each.seq <= last])

    def _merged_with(self, following: Sequence[FollowingTurn]) -> QueuedTurn:
        """Return this turn with the texts, files and notes of the others added, in order.

        Of what a turn has only once, such as the message that it quotes, the first one counts.
        """
        if not following:
            return self
        turns = (self.turn, *(each.turn for each in following))
        quotes = (turn.quoted for turn in turns if turn.quoted)
        replied_to = (turn.replied_to for turn in turns if turn.replied_to)
        buttons = (turn.replied_to_button for turn in turns if turn.replied_to_button)
        merged = replace(
            self.turn,
            text="\n".join(turn.text for turn in turns if turn.text),
            media=tuple(chain.from_iterable(turn.media for turn in turns)),
            notes=tuple(chain.from_iterable(turn.notes for turn in turns)),
            quoted=next(quotes, ""),
            replied_to=next(replied_to, ""),
            replied_to_button=next(buttons, ""),
        )
        return replace(self, turn=merged, last_merged_seq=following[-1].seq, parts=turns)


def journal_head(queued: QueuedTurn) -> str:
    """Return the first entry of a turn's journal: the numbers of its first and last merged turn."""
    return json.dumps({"seq": queued.seq, "upto": queued.last_seq})


def is_tap_or_status(turn: Turn) -> bool:
    """Return whether the turn is a tap or /status, which have another rate limit than texts."""
    if turn.tap is not None:
        return True
    first_word = turn.text.casefold().split(maxsplit=1)[:1]
    return turn.decides and first_word == ["/status"]


class ReplyTrace(NamedTuple):
    """The traces that sending a reply belongs to, each by its traceparent, "" for none."""

    #: The trace that sending is part of.
    parent: str
    #: The trace that the trace of sending links to.
    link: str


@dataclass(frozen=True, slots=True)
class QueuedReply:
    """The next reply to send, before any further turn. Lives for one attempt to send it."""

    #: The number of the reply in its conversation.
    number: int
    #: The outbox entry, as JSON (`outbox_entry`).
    text: str
    #: The number of this attempt, from 1.
    attempt: int
    #: Whether an earlier attempt may have delivered the reply.
    is_doubtful: bool = False
    #: Seconds until the channel's rate limit allows the reply, None where no limit is known.
    wait_seconds: float | None = None
    #: Whether the channel's rate limit is on another node: a cluster has it apart from the
    #: conversation. `wait_seconds` says nothing then.
    rate_is_elsewhere: bool = field(default=False, compare=False)
    #: Seconds by which the chat is ahead of its own rate limit.
    ahead_seconds: float = 0.0
    #: The platform's confirmation that a doubtful reply did arrive, "" for none.
    receipt: str = ""
    #: Seconds since a person wrote here, as in `Delivery`.
    silence: float = field(default=-1.0, compare=False)
    #: Seconds for which the reply has waited for a person to write, None where it does not wait.
    held_seconds: float | None = field(default=None, compare=False)
    #: Why the address accepts nothing, "" if it accepts messages.
    closed_reason: str = ""
    #: The id of the action that the reply is about, "" for none.
    action_id: str = field(default="", compare=False)

    @property
    def is_forwarded(self) -> bool:
        """Return whether it goes to another conversation."""
        return self.text.startswith(FORWARD)

    @property
    def cause(self) -> str:
        """Return on one line why the turn got no answer; "" for a reply that is an answer."""
        # Few replies have a cause. To look for the word is cheaper than to parse each reply.
        if "cause" not in self.text or self.is_forwarded:
            return ""
        reply = Reply.from_json(json.loads(self.text)["reply"])
        return " ".join(reply.cause.split())

    @property
    def trace(self) -> ReplyTrace:
        """Return the traces that sending the reply belongs to."""
        entry = json.loads(self.text)
        return ReplyTrace(parent=entry.get("trace", ""), link=entry.get("link", ""))

    def delivery(self, lease: Lease) -> Delivery:
        """Return the reply with its address, as adapters take it."""
        entry = json.loads(self.text)
        reply = Reply.from_json(entry["reply"])
        to = Conversation(*entry["to"])
        return Delivery(self.delivery_id(lease), to, reply, self.attempt, self.silence)

    def delivery_id(self, lease: Lease) -> str:
        """Return the name of the reply in logs and for operators: conversation and number."""
        return f"{lease.conversation}#{self.number}"


#: What to work on next in a conversation; None when there is nothing to do.
NextItem = QueuedTurn | QueuedReply | None
