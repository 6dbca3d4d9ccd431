"""QueuedTurn, QueuedReply and their errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import Any, Protocol

from sayso.channels.types import Conversation, Delivery, Reply, Turn
from sayso.pending.turns.change import Lease, Timer, TurnChange, in_order


class StreamListener(Protocol):
    """Hears the text of one step, piece by piece."""

    async def __call__(self, piece: str) -> None:
        """The next piece."""

    def anew(self) -> None:
        """The model calls tools: what comes next is another text."""


#: The kind of a record whose buttons are answers to choose from: a tap on one says something and decides nothing.
CHOICE_KIND = "sayso:choice"


#: What an outbox entry begins with that another conversation is to say. The scripts look for it.
FORWARD = '{"forward"'


class ConversationError(Exception):
    """Base of what working on a lane raises."""


class LeaseLost(ConversationError):
    """Raised when another worker holds the lane by now: stop, and change nothing more."""


class ConversationParked(ConversationError):
    """Raised when a reply must wait and the lane was let go until then."""


class StaleTurn(ConversationError):
    """Raised when a commit found the world changed since it looked: look again."""


class JournalUnreadable(ConversationError):
    """Raised when nobody can tell what an earlier attempt at a turn has done: it must not be tried again."""


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
NextItem = QueuedTurn | QueuedReply | None


#: Before the id of an action: the reply is a piece of its question, and not the last one.
PART = "+"


#: Before the id of an action: the reply repeats its question. Whoever quotes the reply quotes the question.
ABOUT = "="


def read_work(view: Sequence[Any]) -> NextItem:
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


def stops(turn: Turn) -> bool:
    """Return whether the turn is the command /stop."""
    return turn.is_stop


def is_quick(turn: Turn) -> bool:
    """Return whether the turn is a tap or /status, which are counted apart from what people write."""
    return turn.tap is not None or (turn.decides and turn.text.casefold().split(maxsplit=1)[:1] == ["/status"])


def _following(entry: str) -> tuple[int, Turn]:
    seq, _, _, _, turn = entry.split(" ", 4)
    return int(seq), Turn.from_json(turn)


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """A flat Redis reply as the hash it is."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


class TurnHandler(Protocol):
    """Answers turns: the channel agent."""

    async def answer(self, queued: QueuedTurn, lease: Lease, hear: StreamListener | None = None) -> TurnChange:
        """All that the turn changes; `hear` hears the words while they come. Raises LaneLost, TurnOvertaken."""

    async def give_up(self, queued: QueuedTurn, lease: Lease, words: str) -> TurnChange:
        """All that a turn changes that took too long or broke: what it decided is told, else `words`."""

    def is_answer(self, text: str) -> bool:
        """Whether these words would be a yes or a no, if something waited for one."""

    def may_settle(self, queued: QueuedTurn) -> bool:
        """Whether the turn may settle what was asked: such a one is not stopped."""
