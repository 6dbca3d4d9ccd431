"""Lane: what a conversation holds for the worker that has its lease, and all that one turn may change.

LaneError
├── LaneLost       another worker holds the lane by now
├── LaneParked     nothing can be sent now: the lane was let go until a later try
├── TurnOvertaken  the world changed since this worker looked
└── JournalUnreadable  what an earlier attempt at a turn left behind makes no sense
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import Any

from sayso.channels.types import Conversation, Delivery, Reply, Turn

#: Timers that one conversation may have. The scripts know it too.
MAX_TIMERS = 100
#: The kind of a record whose buttons are answers to choose from: a tap on one says something and decides nothing.
CHOICE_KIND = "sayso:choice"
#: What an outbox entry begins with that another conversation is to say. The scripts look for it.
FORWARD = '{"forward"'


class LaneError(Exception):
    """Base of what working on a lane raises."""


class LaneLost(LaneError):
    """Raised when another worker holds the lane by now: stop, and change nothing more."""


class LaneParked(LaneError):
    """Raised when a reply must wait and the lane was let go until then."""


class TurnOvertaken(LaneError):
    """Raised when a commit found the world changed since it looked: look again."""


class JournalUnreadable(LaneError):
    """Raised when nobody can tell what an earlier attempt at a turn has done: it must not be tried again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a conversation, with the fencing token that proves it is still held."""

    conversation: str
    epoch: int
    token: str


@dataclass(frozen=True, slots=True)
class QueuedTurn:
    """The next turn to work on, with what its worker needs to know: `live` and `tapped` are pending records, `timers`
    those of the whole conversation.

    `following` are turns of the same person right behind it, by number; `upto` is the last of those that are worked on
    together with it, 0 for none, and `parts` are all of those as they came in. `stop` is the number of their last turn
    that said stop, 0 for none. `journal` is what earlier attempts at it have come to, `attempt` which one this is, from
    1. `age`: seconds since it was received, by the server's clock.
    """

    seq: int
    received_at: float
    user: str
    turn: Turn
    live: Mapping[str, str]
    tapped: Mapping[str, str]
    history: str
    following: tuple[tuple[int, Turn], ...] = ()
    stop: int = 0
    upto: int = 0
    parts: tuple[Turn, ...] = ()
    timers: tuple[Timer, ...] = ()
    journal: tuple[str, ...] = ()
    attempt: int = 1
    age: float = field(default=0.0, compare=False)

    @property
    def last(self) -> int:
        """The number of the last turn that is finished with this one."""
        return self.upto or self.seq

    @property
    def is_stopped(self) -> bool:
        """Whether its person said stop after it, and it confirmed nothing before its worker died: that goes on."""
        return self.seq < self.stop and not any(map(self._confirmed, (self.live, self.tapped)))

    def _confirmed(self, action: Mapping[str, str]) -> bool:
        return action.get("by") == self.turn.event_id and action.get("kind") != CHOICE_KIND

    def joined(self, is_answer: Callable[[str], bool]) -> QueuedTurn:
        """This turn with the words of those right behind it, as far as all of them are nothing but words.

        Taps, commands, edits, answers to an earlier message and what `is_answer` (a yes, a no) stay by themselves, and
        while an action waits for an answer nothing is joined.
        """

        def is_plain(turn: Turn) -> bool:
            words = turn.text.strip()
            if not words or not turn.decides or turn.tap or turn.quoted or turn.replied_to or turn.group:
                return False
            return not (words.startswith("/") or is_answer(words))

        if self.live or not is_plain(self.turn):
            return self
        return self._with(list(takewhile(lambda each: is_plain(each[1]), self.following)))

    def gathered(self) -> QueuedTurn:
        """This part of an album with the others of it that are right behind: one act."""
        return self._with(list(takewhile(lambda each: each[1].group == self.turn.group, self.following)))

    @property
    def may_grow(self) -> bool:
        """Whether it is a part of an album of which all that came in is here, so that more of it may follow."""
        others = {turn.group for _, turn in self.following} - {self.turn.group}
        return bool(self.turn.group) and not (others or self.journal or self.is_stopped)

    def rejoined(self) -> QueuedTurn:
        """This turn with those it was joined with when its journal was begun, and with no others."""
        last = journalled_upto(self.journal)
        return self._with([each for each in self.following if each[0] <= last])

    def _with(self, burst: Sequence[tuple[int, Turn]]) -> QueuedTurn:
        if not burst:
            return self
        turns = (self.turn, *(turn for _, turn in burst))
        joined = replace(
            self.turn,
            text="\n".join(turn.text for turn in turns if turn.text),
            media=tuple(media for turn in turns for media in turn.media),
            notes=tuple(note for turn in turns for note in turn.notes),
            quoted=next((turn.quoted for turn in turns if turn.quoted), ""),
        )
        return replace(self, turn=joined, upto=burst[-1][0], parts=turns)


def journal_head(queued: QueuedTurn) -> str:
    """The first entry of a journal: which turns it is of."""
    return json.dumps({"seq": queued.seq, "upto": queued.last})


def journalled_upto(journal: Sequence[str]) -> int:
    """The last of the turns that a journal is of; 0 for none, or where nobody can tell."""
    try:
        return int(json.loads(journal[0])["upto"])
    except (IndexError, ValueError, KeyError, TypeError):
        return 0


@dataclass(frozen=True, slots=True)
class QueuedReply:
    """The next reply to send, before any further turn. A `suspect` one may have arrived already.

    `wait`: seconds until its channel's pace lets it go out, None where nobody said how fast that is. `ahead`: seconds
    by which its chat is ahead of its own pace. `receipt`: a suspect one did arrive, the platform said so meanwhile.
    `silence`: seconds since anybody wrote here, as in `Delivery`. `held`: seconds for which it has waited for that,
    None where it does not. `closed`: why the address takes nothing, "" where it may.
    """

    number: int
    text: str
    attempt: int
    suspect: bool = False
    wait: float | None = None
    ahead: float = 0.0
    receipt: str = ""
    silence: float = field(default=-1.0, compare=False)
    held: float | None = field(default=None, compare=False)
    closed: str = ""

    @property
    def is_forwarded(self) -> bool:
        """Whether another conversation is to say it."""
        return self.text.startswith(FORWARD)

    @property
    def cause(self) -> str:
        """Why it is no answer, on one line; "" for one that is."""
        return " ".join(Reply.from_json(json.loads(self.text)["reply"]).cause.split()) if "cause" in self.text else ""

    def delivery(self, lease: Lease) -> Delivery:
        """The reply with its address, as adapters take it."""
        entry = json.loads(self.text)
        delivery_id = f"{lease.conversation}#{self.number}"
        reply = Reply.from_json(entry["reply"])
        return Delivery(delivery_id, Conversation(*entry["to"]), reply, self.attempt, self.silence)


#: What a lane holds next; None when there is nothing to do.
Work = QueuedTurn | QueuedReply | None


@dataclass(frozen=True, slots=True)
class Deciding:
    """Whose turn is committed, by which event, and the action that its button names, "" for none."""

    user: str
    event: str
    tapped: str


@dataclass(frozen=True, slots=True)
class Move:
    """A pending action's change of state, possible only from the states given. `told` is what its twins will hear."""

    pending_action_id: str
    from_states: tuple[str, ...]
    to: str
    told: str = ""
    by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The move as the scripts read it."""
        move = {"pid": self.pending_action_id, "from": self.from_states, "to": self.to, "told": self.told}
        return {**move, "by": self.by} if self.by else move


@dataclass(frozen=True, slots=True)
class Arm:
    """A pending action to store: its record exactly as sealed, and for how long it may be answered once shown.

    A `live` one is what its scope waits for; others are reached by a button, or as the `steps` of a plan. `notice` is
    the outbox entry that is said when its window closes unanswered, `alarm` the one that is said when nobody answered
    `alarm_after_ms` after it was shown, at the end of its window at the latest; "" for none. `ending` is the entry that
    then takes the place of the message that asked: which one that is, is known once it is delivered.
    """

    pending_action_id: str
    user: str
    record: str
    mac: str
    ttl_ms: int
    kind: str
    digest: str
    idempotent: bool = False
    live: bool = True
    code: str = ""
    plan: str = ""
    steps: tuple[str, ...] = ()
    notice: str = ""
    ending: str = ""
    alarm: str = ""
    alarm_after_ms: int = 0

    @property
    def more(self) -> tuple[str, ...]:
        """Fields that only some actions have, by name and value."""
        fields = {"code": self.code, "plan": self.plan, "steps": " ".join(self.steps)}
        fields |= {"idempotent": "1" if self.idempotent else "", **self._later}
        return tuple(word for name, value in fields.items() if value for word in (name, value))

    @property
    def _later(self) -> dict[str, str]:
        """What is said when nobody answers, behind the scope that it is about."""
        found = {"notice": self.notice, "ending": self.ending, "alarm": self.alarm}
        later = {name: f"{self.user} {entry}" for name, entry in found.items() if entry}
        return {**later, "alarm_after": str(self.alarm_after_ms)} if self.alarm else later

    def to_dict(self) -> dict[str, Any]:
        """The action as the scripts read it."""
        return {
            "pid": self.pending_action_id,
            "user": self.user,
            "rec": self.record,
            "mac": self.mac,
            "ttl": self.ttl_ms,
            "kind": self.kind,
            "digest": self.digest,
            "live": self.live,
            "more": self.more,
        }


@dataclass(frozen=True, slots=True)
class Timer:
    """Something to be said later, once, at `at`: Unix seconds by the server's clock.

    `user` is the scope that it belongs to and `note` what it is about, for whoever lists them. `language` is what it is
    written in. Ids are unique in a conversation.
    """

    id: str
    at: float
    text: str
    user: str = ""
    note: str = ""
    language: str = ""

    @property
    def reply(self) -> Reply:
        """What is said when it rings."""
        return Reply(self.text, language=self.language)

    def to_dict(self, to: Conversation) -> dict[str, Any]:
        """The timer as the scripts read it: `what` is kept until it rings."""
        at, reply = round(self.at * 1000), outbox_entry(to, self.reply)
        what = {"id": self.id, "at": at, "user": self.user, "note": self.note, "reply": reply}
        return {"id": self.id, "at": at, "what": json.dumps(what)}

    @classmethod
    def from_json(cls, what: str) -> Timer:
        """The timer that is kept."""
        kept = json.loads(what)
        reply = Reply.from_json(json.loads(kept["reply"])["reply"]) if "reply" in kept else Reply()
        return cls(
            kept["id"], kept["at"] / 1000, reply.text, kept.get("user", ""), kept.get("note", ""), reply.language
        )


#: Before the id of an action: the reply is a piece of its question, and not the last one.
PART = "+"
#: Before the id of an action: the reply repeats its question. Whoever quotes the reply quotes the question.
ABOUT = "="


@dataclass(frozen=True, slots=True)
class Change:
    """All that a turn changes: replies with the action each previews (or ""), history, pending actions, timers.

    Of a question in several pieces only the last one opens the window; those before it have PART before its id, and if
    one of them never arrives, the action ends. A reply that only repeats an open question has ABOUT before its id.
    `silenced` are the ids of timers that will not ring.
    """

    replies: tuple[tuple[Reply, str], ...] = ()
    history: str | None = None
    move: Move | None = None
    arms: tuple[Arm, ...] = ()
    timers: tuple[Timer, ...] = ()
    silenced: tuple[str, ...] = ()

    def to_json(self, to: Conversation | None = None) -> str:
        """The change as the scripts read it. Absent parts are left out: cjson reads null as a value."""
        entries = [{"pid": pid or "-", "reply": outbox_entry(to, reply)} for reply, pid in self.replies if to]
        data: dict[str, Any] = {"replies": entries, "arms": [arm.to_dict() for arm in self.arms]}
        data["timers"] = [timer.to_dict(to) for timer in self.timers if to]
        data["silenced"] = self.silenced
        if self.history is not None:
            data["history"] = self.history
        if self.move:
            data["move"] = self.move.to_dict()
        return json.dumps(data)


def outbox_entry(to: Conversation, reply: Reply, *, forward: bool = False) -> str:
    """A reply and its address, as the outbox keeps them. What it collapses with comes first: scripts look for it.

    `forward`: it waits in the outbox of one conversation until it is put into that of the one it is addressed to.
    """
    first: dict[str, Any] = {"collapse": reply.collapse} if reply.collapse else {}
    if forward:
        first = {"forward": True}
    return json.dumps({**first, "to": [to.channel, to.chat, to.thread], "reply": reply.to_json()})


def in_place_of(entry: str, message: str) -> str:
    """The entry, as one that takes the place of this message."""
    kept = json.loads(entry)
    return json.dumps({**kept, "reply": replace(Reply.from_json(kept["reply"]), edits=message).to_json()})


def read_work(view: Sequence[Any]) -> Work:
    """What a script's view of the lane says there is to do."""
    match list(view):
        case ["reply", entry, attempt, suspect, wait, ahead, receipt, silence, held, closed]:
            number, _, text = str(entry).split(" ", 2)
            return QueuedReply(
                number=int(number),
                text=text,
                attempt=int(attempt),
                suspect=bool(suspect),
                wait=None if wait < 0 else wait / 1000,
                ahead=ahead / 1000,
                receipt=str(receipt),
                silence=_SILENCES[silence] if silence in _SILENCES else silence / 1000,
                held=None if held < 0 else held / 1000,
                closed=str(closed),
            )
        case ["turn", entry, live, tapped, history, burst, stop, timers, journal, attempt, age]:
            seq, at, user, _, turn = str(entry).split(" ", 4)
            return QueuedTurn(
                seq=int(seq),
                received_at=int(at) / 1000,
                user=user,
                turn=Turn.from_json(turn),
                live=pairs(live),
                tapped=pairs(tapped),
                history=str(history),
                following=tuple(_following(each) for each in burst),
                stop=int(stop),
                timers=in_order(map(Timer.from_json, timers)),
                journal=tuple(journal),
                attempt=int(attempt),
                age=age / 1000,
            )
        case _:
            return None


#: What the scripts say of a conversation in which nobody ever wrote, or nobody knows when.
_SILENCES = {-1: -1.0, -2: inf}


def in_order(timers: Iterable[Timer]) -> tuple[Timer, ...]:
    """Timers, the next one first."""
    return tuple(sorted(timers, key=lambda timer: (timer.at, timer.id)))


def stops(turn: Turn) -> bool:
    """Whether the turn says stop: the one command that is heard while another turn is worked on.

    Only typed words to us do: adapters take the bot's own name off, so one that is left is another bot's. What is typed
    behind it is passed over.
    """
    return turn.decides and turn.tap is None and turn.text.casefold().split(maxsplit=1)[:1] == ["/stop"]


def is_quick(turn: Turn) -> bool:
    """Return whether the turn is a tap or /status, which are counted apart from what people write."""
    return turn.tap is not None or (turn.decides and turn.text.casefold().split(maxsplit=1)[:1] == ["/status"])


def _following(entry: str) -> tuple[int, Turn]:
    seq, _, _, _, turn = entry.split(" ", 4)
    return int(seq), Turn.from_json(turn)


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """A flat Redis reply as the hash it is."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
