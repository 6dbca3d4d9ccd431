"""The values of a turn: what a worker takes from a conversation's queues,
and all that a turn may change.

ConversationError
├── LeaseLost           another worker holds the lease
├── ConversationParked  nothing can be sent now: the lease was released until a later try
├── StaleTurn           the stored state changed since this worker read it
└── JournalUnreadable   the notes of an earlier attempt at a turn cannot be read
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple, Protocol

from sayso.channels.types import (
    UNNAMED_ALBUM,
    Conversation,
    Delivery,
    Reply,
    StepState,
    Turn,
    digest,
)
from sayso.infra.records import check_version, versioned
from sayso.infra.tracing import current_trace
from sayso.pending.action import ActionState
from sayso.pending.limits import MAX_BURST
from sayso.pending.stored_action import StoredAction

#: The kind of a record whose buttons are choices: a tap says something and decides nothing.
CHOICE_KIND = "sayso:choice"
#: How long after the newest part of an album the next one is awaited, in seconds. The webhooks of
#: an album that WhatsApp sends come about a second apart at most. A photo that is sent alone is
#: answered later by this time, so it is no longer than that.
ALBUM_SECONDS = 1.2
#: The beginning of an outbox entry that goes to another conversation. Also in the scripts.
FORWARD = '{"forward"'
#: The beginning of the id of the timer that ends a question's time to be answered. Also in the
#: scripts.
END_OF_QUESTION = "end:"
#: Why a turn has no answer of the agent.
TurnEnd = Literal[
    "answered_before",
    "channel_gone",
    "failed",
    "forwarded",
    "killed_workers",
    "repeated",
    "stale",
    "stopped",
    "timeout",
    "unreadable",
]
#: What a person said to an action that has ended: a yes, a no,
#: or a tap on the button that undoes an effect.
SettledIntent = Literal["confirm", "cancel", "undo"]
#: Before the id of an action in `TurnChange.replies`: the reply is a piece of its question,
#: but not the last one.
PART = "+"
#: Before the id of an action in `TurnChange.replies`: the reply repeats its question.
#: Quoting it quotes the question.
ABOUT = "="


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
    """The right to work on a conversation, with the fencing token that proves it is still held."""

    conversation: str
    epoch: int
    token: str

    @property
    def args(self) -> dict[str, Any]:
        """Return the arguments by which a script checks the lease."""
        return {"epoch": self.epoch, "token": self.token}


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """The turn being committed: its user, its event id,
    and the id of the action that its button names, or "".
    """

    user: str
    event: str
    tapped_action_id: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A pending action's change of state, possible only from the states given."""

    action_id: str
    from_states: tuple[str, ...]
    to: ActionState
    #: What the user is told; a second answer to the same question repeats it.
    outcome_text: str = ""
    decided_by_event: str = ""
    #: A short name of the message for which the question was repeated, "" for none.
    unclear: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the transition as the scripts read it."""
        data = {
            "action_id": self.action_id,
            "from": self.from_states,
            "to": self.to,
            "outcome_text": self.outcome_text,
        }
        optional = {"decided_by_event": self.decided_by_event, "unclear_answer": self.unclear}
        return data | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class SettledAnswer:
    """A yes or no of a person that settled a question, and whose outcome the bot told."""

    intent: SettledIntent
    #: The action that was asked about.
    action_id: str
    #: That of the question.
    language: str
    #: A model went on below the outcome, so that a yes in words may answer the model. A tap on the
    #: question is still a repetition.
    words_follow: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as the scripts store it."""
        answer: dict[str, Any] = {
            "intent": self.intent,
            "action_id": self.action_id,
            "language": self.language,
        }
        if self.words_follow:
            answer["words_follow"] = True
        return answer

    @classmethod
    def from_json(cls, text: str) -> SettledAnswer | None:
        """Read what a script returned, None for ""."""
        if not text:
            return None
        data = json.loads(text)
        return cls(
            data["intent"], data["action_id"], data["language"], data.get("words_follow", False)
        )


@dataclass(frozen=True, slots=True)
class NewAction:
    """A pending action to store: its record exactly as it was signed, and how long it may be
    answered once shown.
    """

    action_id: str
    user: str
    record: str
    mac: str
    ttl_ms: int
    kind: str
    digest: str
    idempotent: bool = False
    #: Whether its user's plain yes answers it. Any other is reached by its button, or as one of the
    #: `steps` of a plan.
    occupies_scope: bool = True
    code: str = ""
    plan: str = ""
    steps: tuple[str, ...] = ()
    #: The outbox entry to send when its window closes without an answer.
    notice: str = ""
    #: The entry that then replaces the message with the question. Its id is known once that is
    #: delivered.
    ending: str = ""
    #: The entry to send when no answer came within `alarm_after_ms`, at the latest when the window
    #: closes.
    alarm: str = ""
    alarm_after_ms: int = 0
    #: The address of the question as JSON: channel, chat and thread.
    to: str = ""
    #: The traceparent of the turn that proposed it, while tracing is on. "" is none.
    trace: str = ""

    @property
    def optional_fields(self) -> dict[str, str]:
        """Return the fields that only some actions have, as the scripts store them."""
        optional = {
            "code": self.code,
            "plan": self.plan,
            "steps": " ".join(self.steps),
            "idempotent": "1" if self.idempotent else "",
            "alarm_after_ms": str(self.alarm_after_ms) if self.alarm else "",
            "address": self.to,
            "trace": self.trace,
        }
        # Timers that belong together have one id: the user whom they are about stands before each.
        entries = {"notice": self.notice, "ending": self.ending, "alarm": self.alarm}
        optional |= {name: f"{self.user} {entry}" for name, entry in entries.items() if entry}
        return {name: value for name, value in optional.items() if value}

    def to_dict(self) -> dict[str, Any]:
        """Return the action as the scripts read it."""
        return {
            "action_id": self.action_id,
            "user": self.user,
            "record": self.record,
            "mac": self.mac,
            "ttl_ms": self.ttl_ms,
            "kind": self.kind,
            "digest": self.digest,
            "occupies_scope": self.occupies_scope,
            "optional_fields": self.optional_fields,
        }


@dataclass(frozen=True, slots=True)
class Timer:
    """A text to send once, at a later time."""

    #: Unique in a conversation.
    id: str
    #: In Unix seconds by the server's clock.
    at: float
    text: str
    #: The scope it belongs to, `note` what it is about, for lists of timers.
    user: str = ""
    note: str = ""
    #: The language of the text.
    language: str = ""

    @property
    def reply(self) -> Reply:
        """Return the reply to send when the timer rings."""
        return Reply(self.text, language=self.language)

    def to_dict(self, to: Conversation) -> dict[str, Any]:
        """Return the timer as the scripts read it: `what` is stored until it rings."""
        at = round(self.at * 1000)
        reply = outbox_entry(to, self.reply, later=True)
        stored = {"id": self.id, "at": at, "user": self.user, "note": self.note, "reply": reply}
        return {"id": self.id, "at": at, "what": versioned(json.dumps(stored))}

    @classmethod
    def from_json(cls, text: str) -> Timer:
        """Read a stored timer. Raises OtherVersion."""
        data = json.loads(check_version(text))
        if "reply" in data:
            reply = Reply.from_json(json.loads(data["reply"])["reply"])
        else:
            reply = Reply()
        return cls(
            data["id"],
            data["at"] / 1000,
            reply.text,
            data.get("user", ""),
            data.get("note", ""),
            reply.language,
        )


def sort_timers(timers: Iterable[Timer]) -> tuple[Timer, ...]:
    """Return the timers, the next one first."""
    return tuple(sorted(timers, key=lambda timer: (timer.at, timer.id)))


@dataclass(frozen=True, slots=True)
class TurnChange:
    """All that a turn changes: replies, history, pending actions and timers."""

    #: Each with the id of the action it asks about, or "". When a question has several pieces, only
    #: the last opens the window; the earlier ones have PART before the id, and if one of them
    #: cannot be delivered, the action ends. A reply that only repeats an open question has ABOUT
    #: before the id.
    replies: tuple[tuple[Reply, str], ...] = ()
    history: str | None = None
    transition: Transition | None = None
    new_actions: tuple[NewAction, ...] = ()
    timers: tuple[Timer, ...] = ()
    #: The ids of timers that are cancelled.
    silenced: tuple[str, ...] = ()
    #: A yes or no without a question is answered with a loss of data.
    tells_loss: bool = False
    #: The yes or no whose outcome the replies tell, apart from optional edits. None if they ask
    #: something.
    settles: SettledAnswer | None = None
    #: The turn that lets the agent go on after this turn's decision. It is appended to the mailbox
    #: in the same step, once for each action.
    continuation: Turn | None = None
    #: The person has ended the conversation; a further message begins a new one.
    ends_conversation: bool = field(default=False, compare=False)
    #: That of the answer, as the person writes, for a notice of a later loss; "" if unknown.
    language: str = field(default="", compare=False)
    #: The tools that the turn called; `about`: the action that its user answered; `ended`: why it
    #: has no answer of the agent. These three are for `sayso trace`.
    tools: tuple[str, ...] = field(default=(), compare=False)
    about: str = field(default="", compare=False)
    ended: TurnEnd | Literal[""] = field(default="", compare=False)

    @property
    def last_question(self) -> str:
        """Return the id of the action whose question is the last of the replies,
        "" if that is something else.
        """
        _, pid = self.marked_replies()[-1] if self.replies else (None, "")
        return pid.removeprefix(ABOUT)

    def marked_replies(self) -> list[tuple[Reply, str]]:
        """Return the replies as they are stored: each with the id of the action that it belongs to.

        A reply after a question of the same turn, such as a file, belongs to the question. A notice
        that replaces an earlier one belongs to no action.
        """
        marked: list[tuple[Reply, str]] = []
        asked = ""
        for reply, pid in self.replies:
            belongs_to = pid if pid or reply.collapse else asked
            marked.append((reply, belongs_to))
            if pid and not pid.startswith(PART):
                if pid.startswith(ABOUT):
                    asked = pid
                else:
                    asked = f"{ABOUT}{pid}"
        return marked

    def to_dict(self, to: Conversation | None = None) -> dict[str, Any]:
        """Return the change as the scripts read it.

        Absent parts are left out: cjson reads null as a value.
        """
        entries = [self._entry(reply, pid, to) for reply, pid in self.marked_replies() if to]
        data: dict[str, Any] = {
            "replies": entries,
            "new_actions": [action.to_dict() for action in self.new_actions],
        }
        data["timers"] = [timer.to_dict(to) for timer in self.timers if to]
        data["silenced"] = self.silenced
        if self.language:
            data["language"] = self.language
        if self.tells_loss:
            data["tells_loss"] = True
        if self.settles:
            data["settles"] = self.settles.to_dict()
        if self.continuation:
            data["continuation"] = _continuation_to_dict(self.continuation)
        if self.history is not None:
            data["history"] = self.history
        if self.transition:
            data["transition"] = self.transition.to_dict()
        return data

    def _entry(self, reply: Reply, pid: str, to: Conversation) -> dict[str, Any]:
        """Return a reply as the scripts read it."""
        entry: dict[str, Any] = {"action_id": pid or "-", "reply": outbox_entry(to, reply)}
        if self.tells_outcome(reply):
            entry["tells_outcome"] = True
        return entry

    def tells_outcome(self, reply: Reply) -> bool:
        """Return whether a reply of this change tells the outcome that its person must know."""
        return self.settles is not None and not (reply.edits and reply.optional)


def _continuation_to_dict(turn: Turn) -> dict[str, str]:
    """Return a continuation as the scripts read it. `stopped_turn` takes its place after a /stop."""
    stopped = replace(turn, asks_model=False)
    return {"action_id": turn.continues, "turn": turn.to_json(), "stopped_turn": stopped.to_json()}


def outbox_entry(
    to: Conversation, reply: Reply, *, forward: bool = False, later: bool = False
) -> str:
    """Return a reply and its address as the outbox stores them.

    `forward`: the entry waits in the outbox of one conversation until it is moved to that of its
    address. The scripts look for `collapse` and `forward` at the beginning, and for the `reader` of
    a reply that one person of a group sees. While tracing is on, sending is part of the current
    trace. A reply that is sent `later` begins a trace of its own with a link to it.
    """
    first: dict[str, Any] = {"collapse": reply.collapse} if reply.collapse else {}
    if forward:
        first = {"forward": True}
    trace = current_trace()
    if trace:
        last = {"link" if later else "trace": trace}
    else:
        last = {}
    if reply.only_for:
        last["reader"] = digest(reply.only_for)
    entry = {**first, "to": [to.channel, to.chat, to.thread], "reply": reply.to_json(), **last}
    return versioned(json.dumps(entry))


def as_edit_of(entry: str, message: str) -> str:
    """Return the outbox entry changed so that it replaces the message with this platform id."""
    data = json.loads(entry)
    return json.dumps(
        {**data, "reply": replace(Reply.from_json(data["reply"]), edits=message).to_json()}
    )


class StreamListener(Protocol):
    """Receives the text of one model call, piece by piece."""

    async def __call__(self, piece: str) -> None:
        """Receive the next piece."""

    def anew(self) -> None:
        """Start a new text: the model has called tools."""


#: Receives each change of a tool call of the turn: its number in the turn, the name of the tool, and
#: its state. None: it was no call after all.
OnStep = Callable[[int, str, StepState | None], None]


class TurnHandler(Protocol):
    """Answers turns, for the workers. The channel agent implements it.

    Workers and agent do not import each other: this is where they meet.
    """

    async def answer(
        self,
        queued: QueuedTurn,
        lease: Lease,
        stream: StreamListener | None = None,
        on_step: OnStep | None = None,
    ) -> TurnChange:
        """Return all that the turn changes.

        `stream` receives the text while it is written, `on_step` the tool calls.

        Raises LeaseLost and StaleTurn.
        """

    async def give_up(self, queued: QueuedTurn, lease: Lease, words: str) -> TurnChange:
        """Return the change of a turn that took too long or failed:
        the outcome of its decision if it made one.

        Otherwise the reply is `words`.
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

    `seq`: its number. `received_at` in Unix seconds; `age` in seconds since then, by the server's
    clock. `open_action` and `tapped_action`: the stored actions that occupy the scope and that
    the turn's button names. `timers`: those of the whole conversation. `following`: the turns of the same person
    right behind it, MAX_BURST with this one at most. `waiting`: how many turns of all people wait
    in the conversation, with this one. `upto`: the number of the last turn that is merged into this
    one, 0 for none; `parts`: all merged turns as received. `stop`: the number of the person's last
    turn that was /stop, 0 for none. `journal`: the notes of earlier attempts; `attempt`: the number
    of this one, from 1. `lost_at`: when the server went on after it had lost data, in Unix seconds,
    0.0 if not in the last day; `is_loss_told`: whether a yes or no of the person was answered with
    that. `last_answer`: the person's last yes or no, while the bot has said nothing after its
    outcome, and the outcome has arrived.
    """

    seq: int
    received_at: float
    user: str
    turn: Turn
    open_action: StoredAction | None
    tapped_action: StoredAction | None
    history: str
    following: tuple[FollowingTurn, ...] = ()
    waiting: int = 1
    stop: int = 0
    upto: int = 0
    parts: tuple[Turn, ...] = ()
    timers: tuple[Timer, ...] = ()
    journal: tuple[str, ...] = ()
    attempt: int = 1
    age: float = field(default=0.0, compare=False)
    lost_at: float = 0.0
    is_loss_told: bool = False
    last_answer: SettledAnswer | None = None

    @property
    def last(self) -> int:
        """Return the number of the last turn that is finished together with this one."""
        return self.upto or self.seq

    @property
    def is_stopped(self) -> bool:
        """Return whether its person sent /stop later.

        A turn that has confirmed something before a crash goes on.
        """
        confirmed = (
            action.decided_by_event == self.turn.event_id and action.action.kind != CHOICE_KIND
            for action in (self.open_action, self.tapped_action)
            if action
        )
        return self.seq < self.stop and not any(confirmed)

    def merge_texts(self, is_answer: Callable[[str], bool]) -> QueuedTurn:
        """Return this turn merged with those right behind it,
        as long as all of them are plain text.

        Taps, commands, edits, replies to an earlier message and answers (`is_answer`) are never
        merged, nor is anything while an action waits for an answer.
        """

        def is_plain(turn: Turn) -> bool:
            text = turn.text.strip()
            if (
                not text
                or not turn.decides
                or turn.tap
                or turn.quoted
                or turn.replied_to
                or turn.group
            ):
                return False
            return not (text.startswith("/") or is_answer(text))

        if self.open_action or not is_plain(self.turn):
            return self
        return self._merged_with(list(takewhile(lambda each: is_plain(each.turn), self.following)))

    def merge_album(self) -> QueuedTurn:
        """Return this part of an album merged with the other parts right behind it."""
        return self._merged_with(self._further_parts())

    def _further_parts(self) -> list[FollowingTurn]:
        """Return the other parts of its album, which stand right behind it.

        Parts of an unnamed album came shortly one after the other: while a worker is busy, two
        albums of one person may wait here.
        """
        parts: list[FollowingTurn] = []
        if not self.turn.group:
            return parts
        before = self.received_at
        for each in self.following:
            is_late = self.turn.group == UNNAMED_ALBUM and each.received_at - before > ALBUM_SECONDS
            if each.turn.group != self.turn.group or is_late:
                break
            parts.append(each)
            before = each.received_at
        return parts

    @property
    def newest_part(self) -> FollowingTurn:
        """Return the newest part of its album, which is the turn
        itself while no other part has come.
        """
        parts = self._further_parts()
        if parts:
            return parts[-1]
        return FollowingTurn(self.seq, self.turn, self.received_at)

    @property
    def may_grow(self) -> bool:
        """Return whether it is part of an album that may get more parts.

        It may not while another turn waits behind it, of any person:
        answers keep the order of turns.
        """
        parts = 1 + len(self._further_parts())
        is_last = parts == self.waiting and parts < MAX_BURST
        return bool(self.turn.group) and is_last and not (self.journal or self.is_stopped)

    def merge_journalled(self) -> QueuedTurn:
        """Return this turn merged with exactly the turns it was
        merged with when its journal was begun.
        """
        try:
            last = int(json.loads(self.journal[0])["upto"])
        except (IndexError, ValueError, KeyError, TypeError):  # it is empty or unreadable
            last = 0
        return self._merged_with([each for each in self.following if each.seq <= last])

    def _merged_with(self, following: Sequence[FollowingTurn]) -> QueuedTurn:
        if not following:
            return self
        turns = (self.turn, *(each.turn for each in following))
        merged = replace(
            self.turn,
            text="\n".join(turn.text for turn in turns if turn.text),
            media=tuple(media for turn in turns for media in turn.media),
            notes=tuple(note for turn in turns for note in turn.notes),
            quoted=next((turn.quoted for turn in turns if turn.quoted), ""),
            replied_to=next((turn.replied_to for turn in turns if turn.replied_to), ""),
            replied_to_button=next(
                (turn.replied_to_button for turn in turns if turn.replied_to_button), ""
            ),
        )
        return replace(self, turn=merged, upto=following[-1].seq, parts=turns)


def journal_head(queued: QueuedTurn) -> str:
    """Return the first entry of a turn's journal: the numbers of its first and last merged turn."""
    return json.dumps({"seq": queued.seq, "upto": queued.last})


def is_tap_or_status(turn: Turn) -> bool:
    """Return whether the turn is a tap or /status, which have a rate limit of their own."""
    return turn.tap is not None or (
        turn.decides and turn.text.casefold().split(maxsplit=1)[:1] == ["/status"]
    )


@dataclass(frozen=True, slots=True)
class QueuedReply:
    """The next reply to send, before any further turn."""

    number: int
    text: str
    attempt: int
    #: It may have arrived already; `receipt`: the platform has confirmed since that it did.
    suspect: bool = False
    #: Seconds until the channel's rate limit allows it, None where no limit is known.
    wait: float | None = None
    #: The limit is not known here, since a cluster keeps the channel apart from the conversation.
    paced_apart: bool = field(default=False, compare=False)
    #: Seconds by which its chat is ahead of its own rate limit.
    ahead: float = 0.0
    receipt: str = ""
    #: Seconds since a person wrote here, as in `Delivery`.
    silence: float = field(default=-1.0, compare=False)
    #: Seconds it has waited for a person to write, None where it does not wait.
    held: float | None = field(default=None, compare=False)
    #: Why the address accepts nothing, "" if it does.
    closed: str = ""
    #: The action that it is about, "" for none.
    action_id: str = field(default="", compare=False)

    @property
    def is_forwarded(self) -> bool:
        """Return whether it goes to another conversation."""
        return self.text.startswith(FORWARD)

    @property
    def cause(self) -> str:
        """Return on one line why the turn got no answer; "" for a reply that is an answer."""
        if "cause" in self.text:
            return " ".join(Reply.from_json(json.loads(self.text)["reply"]).cause.split())
        return ""

    @property
    def trace(self) -> tuple[str, str]:
        """Return two traceparents: of the trace that it is part of,
        and of the one that it links to; "" for none.
        """
        entry = json.loads(self.text)
        return entry.get("trace", ""), entry.get("link", "")

    def delivery(self, lease: Lease) -> Delivery:
        """Return the reply with its address, as adapters take it."""
        entry = json.loads(self.text)
        reply = Reply.from_json(entry["reply"])
        return Delivery(
            self.delivery_id(lease), Conversation(*entry["to"]), reply, self.attempt, self.silence
        )

    def delivery_id(self, lease: Lease) -> str:
        """Return its name in logs and for operators: the conversation and its number."""
        return f"{lease.conversation}#{self.number}"


#: What to work on next in a conversation; None when there is nothing to do.
NextItem = QueuedTurn | QueuedReply | None
