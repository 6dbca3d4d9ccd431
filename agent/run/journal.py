"""RunJournal: what survives a killed worker."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from sayso.agent.channel.long_texts import BEGINNING_CHARS, MAX_TEXT_CHARS, LongTexts, cut, gone, is_long
from sayso.agent.messages import NO_USAGE, KeptText, Message, Picture, Role, ToolCall, UsageStats
from sayso.agent.swift import swift
from sayso.agent.tools.context import Artifact, TimerChange
from sayso.channels.types import Media
from sayso.pending.concurrency import reach
from sayso.pending.proposals import Proposed
from sayso.pending.redis.scripts import LuaScripts
from sayso.pending.turns.change import Lease
from sayso.pending.turns.queued import JournalUnreadable, LeaseLost, QueuedTurn, StaleTurn, journal_head

#: What the model is told of a call that was begun by a worker that died, or that nobody answered.
UNCLEAR = (
    "Outcome unknown: this call was interrupted, and nobody can tell whether it took effect. Do not repeat it without "
    "asking the user."
)


#: What the model is told of a call that follows a terminal one, where calls run one after the other.
NOT_RUN_AFTER_TERMINAL = "Not run: the run ended with an earlier call of the same answer."


@swift
@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What one call came to: the text for the model, what it made and, when the run ends with it, why."""

    call: ToolCall
    content: str
    ends: Literal["", "pending", "terminal"] = ""
    #: What the user reads when the run ends here.
    closing: str = ""
    #: It was begun by a worker that died, or never answered, and nobody knows how it ended.
    unclear: bool = False
    artifacts: tuple[Artifact, ...] = ()
    proposals: tuple[Proposed, ...] = ()
    timers: tuple[TimerChange, ...] = ()
    #: The answers it offers.
    choices: tuple[str, ...] = ()
    #: What it cost to make the text for the model, where another model shortened it.
    usage: UsageStats = NO_USAGE
    #: The digest of the tool's own words, where the text for the model is not those.
    raw_digest: str = ""

    @property
    def fingerprint(self) -> str:
        """A digest of the tool's own words: the same result has the same, however it was shortened or marked."""
        return self.raw_digest or digest(self.content)

    @property
    def message(self) -> Message:
        """The outcome as the model sees it."""
        pictures = tuple(Picture(each.mime_type, each.data or b"", each.kept) for each in self.artifacts if each.shown)
        name = self.call.tool_name
        return Message(Role.TOOL, self.content, tool_call_id=self.call.id, tool_name=name, pictures=pictures)


def digest(text: str) -> str:
    """What a text is told from others by."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


@swift
@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of the model, what it cost, and the names of the tools that it was shown, None for all."""

    message: Message
    usage: UsageStats
    tools: tuple[str, ...] | None = None


@swift
@dataclass(frozen=True, slots=True)
class Recalled:
    """An answer that calls tools, and what is known of its calls, by their index."""

    answered: Answered
    outcomes: Mapping[int, CallOutcome] = field(default_factory=dict)


class Journal(Protocol):
    """Lives as long as one run. What it says of an index means the calls of the answer last recalled or noted."""

    async def recall(self) -> Recalled | None:
        """The next answer that is known from an earlier attempt. None: from here on the model has to be asked."""

    def note(self, answered: Answered) -> bool:
        """Take down an answer that calls tools. False when there is no room for what it may lead to."""

    async def save(self, *begun: int) -> None:
        """Write what was taken down, and that these calls begin: none of them will be begun again. Raises LaneError."""

    async def keep(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Take down what a call came to. Returns it as it is kept, which is how the model must see it."""

    def key(self, at: int) -> str:
        """The idempotency key of a call, the same in every attempt."""


class NoJournal:
    """Where nobody could take over from a killed run, nothing is kept."""

    async def recall(self) -> Recalled | None:
        """Nothing is known."""
        return None

    def note(self, answered: Answered) -> bool:
        """There is always room for nothing."""
        return True

    async def save(self, *begun: int) -> None:
        """Write nothing."""

    async def keep(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """The outcome as it is."""
        return outcome

    def key(self, at: int) -> str:
        """None."""
        return ""


class Journals(Protocol):
    """Where turns are journalled. A journal is read with its turn (`QueuedTurn.journal`) and goes with it."""

    def journal(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append entries to the journal of turn `seq`, the first of them as number `at`, counted from 0.

        Safe to repeat: an entry whose number is taken is there already. Number 0 names the turn; another turn's journal
        is dropped for it. Raises LaneLost, and TurnOvertaken when the turn is not the next one or entries are missing.
        """

    def entries(self, lease: Lease) -> Sequence[str]:
        """The journal of the turn at the head, as it is now. Raises LaneLost."""


class RedisJournals:
    """Journals in Redis: each call is one script, one round trip."""

    def __init__(self, scripts: LuaScripts) -> None:
        self._scripts = scripts

    def journal(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append entries to the journal of a turn. Raises redis.RedisError when nobody knows whether they are there."""
        answer = self._scripts.run("journal", lease.conversation, lease.epoch, lease.token, seq, at, *entries)
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        if answer != "ok":
            raise StaleTurn(f"{lease.conversation}: {answer}")

    def entries(self, lease: Lease) -> Sequence[str]:
        """The journal of the turn at the head, as it is now. Raises LaneLost."""
        answer = self._scripts.run("read_journal", lease.conversation, lease.epoch, lease.token)
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        return tuple(answer)


#: Characters of one result that a journalled run shows to its model, and keeps.
MAX_RESULT_CHARS = MAX_TEXT_CHARS


#: Characters of a journal, long texts included, at which no other call is begun: the run ends politely.
MAX_JOURNAL_CHARS = 1_000_000


#: Puts a file made by a tool where it outlives this process.
KeepFile = Callable[[Artifact], Awaitable[Artifact]]


class TurnJournal:
    """Lives as long as one attempt at a turn.

    Entries are JSON. The first names the turn; then come the model's answers with tool calls, which calls of the last
    one were begun (only those that must not be begun twice), and what they came to. The answer that ends the run needs
    no entry: the commit that follows at once is its entry. Of a long result an entry holds the beginning, and where in
    `texts` the whole is. Answers stay whole: their calls are what a successor runs.
    """

    def __init__(
        self, store: Journals, lease: Lease, queued: QueuedTurn, keep_file: KeepFile, texts: LongTexts
    ) -> None:
        """Raises JournalUnreadable when nobody can tell what an earlier attempt has done."""
        known = queued.journal if _is_of(queued) else ()
        self._recalled = deque(_read(known[1:]))
        self._waiting = [] if known else [journal_head(queued)]
        self._written = len(known)
        self._size = sum(map(len, known)) + sum(each.chars_elsewhere for each in self._recalled)
        self._store = store
        self._lease = lease
        self._queued = queued
        self._keep_file = keep_file
        self._texts = texts
        self._calls: Sequence[ToolCall] = ()
        self._answers = 0
        self._lock = asyncio.Lock()

    async def recall(self) -> Recalled | None:
        """The next answer of an earlier attempt, with what is known of its calls."""
        if not self._recalled:
            return None
        reading = self._recalled.popleft()
        self._turn_to(reading.answered)
        for at, kept in reading.kept.items():
            reading.outcomes[at] = await self._whole(reading.outcomes[at], kept)
        return reading.recalled

    def note(self, answered: Answered) -> bool:
        """Take down an answer; `save` writes it together with the calls that begin."""
        entry = json.dumps({"answer": answered.message.to_dict(), **_cost(answered)})
        if self._size + len(entry) > MAX_JOURNAL_CHARS:
            return False
        self._turn_to(answered)
        self._take(entry)
        return True

    async def save(self, *begun: int) -> None:
        """Write what was taken down, in one round trip. Calls of one answer may save at once: one writes for all."""
        if begun:
            self._take(json.dumps({"begun": begun}))
        async with self._lock:
            entries = tuple(self._waiting)
            if entries:
                await reach(self._store.journal, self._lease, self._queued.seq, self._written, entries)
                self._written += len(entries)
                del self._waiting[: len(entries)]

    async def keep(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Take down what a call came to, its files put where they last, what is too long cut."""
        files = [await self._keep_file(artifact) for artifact in outcome.artifacts]
        content, closing = (cut(text, MAX_RESULT_CHARS) for text in (outcome.content, outcome.closing))
        kept = replace(outcome, content=content, closing=closing, artifacts=tuple(files))
        if content != outcome.content:
            kept = replace(kept, raw_digest=outcome.fingerprint)
        entry = {"call": at, **_result(kept)}
        long = {name: text for name in ("content", "closing") if is_long(text := entry.get(name, ""))}
        self._take(json.dumps(entry | await self._kept_elsewhere(long), default=str))
        return kept

    def key(self, at: int) -> str:
        """The idempotency key of a call: a hash of the turn's event, of the call's place in it, and of what it does."""
        call, turn = self._calls[at], self._queued.turn
        what = [turn.conversation.id, turn.event_id, self._answers, at, call.tool_name, call.parameters]
        return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:32]

    async def _kept_elsewhere(self, long: Mapping[str, str]) -> dict[str, Any]:
        """What an entry says of its long texts once they are kept; nothing of those that could not be."""
        places = dict(zip(long, await self._texts.keep(list(long.values())), strict=True))
        kept = {name: place for name, place in places.items() if place}
        self._size += sum(place.chars for place in kept.values())
        beginnings = {name: long[name][:BEGINNING_CHARS] for name in kept}
        return {**beginnings, "kept": {name: place.to_dict() for name, place in kept.items()}} if kept else {}

    async def _whole(self, outcome: CallOutcome, kept: Mapping[str, KeptText]) -> CallOutcome:
        """An outcome with its long texts; of one that is gone, model and person see the beginning."""
        texts = {name: await self._texts.get(place) for name, place in kept.items()}
        if "content" in texts:
            outcome = replace(outcome, content=texts["content"] or gone(outcome.content, kept["content"]))
        if "closing" in texts:
            outcome = replace(outcome, closing=texts["closing"] or f"{outcome.closing} […]")
        return outcome

    def _turn_to(self, answered: Answered) -> None:
        self._calls = answered.message.tool_calls
        self._answers += 1

    def _take(self, entry: str) -> None:
        self._waiting.append(entry)
        self._size += len(entry)


def unclear_calls(queued: QueuedTurn) -> list[ToolCall]:
    """The calls of which a turn's journal does not know how they ended. Raises JournalUnreadable."""
    readings = _read(queued.journal[1:] if _is_of(queued) else ())
    ended = [sorted(reading.recalled.outcomes.items()) for reading in readings]
    return [outcome.call for outcomes in ended for _, outcome in outcomes if outcome.unclear]


def _cost(answered: Answered) -> dict[str, Any]:
    shown = {} if answered.tools is None else {"tools": answered.tools}
    return {"usage": answered.usage.to_dict(), **shown}


def _result(outcome: CallOutcome) -> dict[str, Any]:
    """An outcome without its call, which its answer names; empty fields are left out."""
    fields = {
        "content": outcome.content,
        "ends": outcome.ends,
        "closing": outcome.closing,
        "files": [_file_entry(artifact) for artifact in outcome.artifacts],
        "proposals": [proposed.to_dict() for proposed in outcome.proposals],
        "timers": [change.to_dict() for change in outcome.timers],
        "choices": outcome.choices,
        "usage": {} if outcome.usage == UsageStats() else outcome.usage.to_dict(),
        "raw": outcome.raw_digest,
        "unclear": outcome.unclear,
    }
    return {name: value for name, value in fields.items() if value}


def _file_entry(artifact: Artifact) -> dict[str, Any]:
    return {**artifact.to_dict(), **({"kept": asdict(artifact.kept)} if artifact.kept else {})}


def _is_of(queued: QueuedTurn) -> bool:
    """Whether the journal that came with a turn is its own; there should be no other."""
    try:
        head = json.loads(queued.journal[0]) if queued.journal else {"seq": 0}
        if head["seq"] == queued.seq and head["upto"] != queued.last:
            raise ValueError("not of the same turns")
        return bool(head["seq"] == queued.seq)
    except (ValueError, KeyError, TypeError) as exc:
        raise JournalUnreadable("entry 0") from exc


def _read(entries: Iterable[str]) -> list[_Reading]:
    """What an earlier attempt took down.

    Raises JournalUnreadable: to start over, or to go on from the last entry that makes sense, could do a thing twice.
    """
    answers: list[_Reading] = []
    for number, text in enumerate(entries, 1):
        try:
            _read_entry(answers, json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as exc:
            raise JournalUnreadable(f"entry {number}") from exc
    return answers


@dataclass(slots=True)
class _Reading:
    """An answer, as far as the journal was read."""

    answered: Answered
    begun: set[int] = field(default_factory=set)
    outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    #: The long texts of outcomes, by the field that has their beginning.
    kept: dict[int, Mapping[str, KeptText]] = field(default_factory=dict)

    @property
    def chars_elsewhere(self) -> int:
        """Characters that are not in the journal itself."""
        return sum(place.chars for kept in self.kept.values() for place in kept.values())

    @property
    def recalled(self) -> Recalled:
        """What was begun and has no result is unclear, and for good: in every attempt it is told the same."""
        calls = self.answered.message.tool_calls
        unclear = {at: CallOutcome(calls[at], UNCLEAR, unclear=True) for at in self.begun}
        return Recalled(self.answered, {**unclear, **self.outcomes})


def _read_entry(answers: list[_Reading], entry: Mapping[str, Any]) -> None:
    match entry:
        case {"answer": message}:
            answers.append(_Reading(_answered(message, entry)))
        case {"begun": [*begun]}:
            calls = answers[-1].answered.message.tool_calls
            answers[-1].begun.update(at for at in begun if calls[_index(at)])
        case {"call": at}:
            answers[-1].outcomes[at] = _outcome(answers[-1].answered.message.tool_calls[_index(at)], entry)
            answers[-1].kept[at] = {name: KeptText.from_dict(each) for name, each in entry.get("kept", {}).items()}
        case _:
            raise ValueError("no entry of ours")


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no index of a call")
    return value


def _answered(message: Mapping[str, Any], entry: Mapping[str, Any]) -> Answered:
    shown = entry.get("tools")
    return Answered(
        Message.from_dict(message), UsageStats(**entry["usage"]), None if shown is None else tuple(map(str, shown))
    )


def _outcome(call: ToolCall, entry: Mapping[str, Any]) -> CallOutcome:
    ends = entry.get("ends", "")
    if ends not in ("", "pending", "terminal"):
        raise ValueError("no ending of a run")
    return CallOutcome(
        call,
        content=str(entry.get("content", "")),
        ends=ends,
        closing=str(entry.get("closing", "")),
        artifacts=tuple(_file(each) for each in entry.get("files", ())),
        proposals=tuple(Proposed.from_dict(each) for each in entry.get("proposals", ())),
        timers=tuple(TimerChange.from_dict(each) for each in entry.get("timers", ())),
        choices=tuple(map(str, entry.get("choices", ()))),
        usage=UsageStats(**entry.get("usage", {})),
        raw_digest=str(entry.get("raw", "")),
        unclear=bool(entry.get("unclear", False)),
    )


def _file(entry: Mapping[str, Any]) -> Artifact:
    kept = entry.get("kept")
    return Artifact(**{**entry, "kept": Media(**kept) if kept else None})
