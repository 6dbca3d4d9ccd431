"""TurnJournal: notes what a turn has done, so that another worker can go on where one died.

A worker may be killed in the middle of a turn. The *journal* of the turn stands in Redis beside the
turn: each answer of the model with tool calls, which calls were started, and their outcomes. The
next *attempt* at the turn reads it, asks the model only for what is missing, and never starts a
call twice that must not run twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from sayso.agent.channel.long_texts import BEGINNING_CHARS, LongTexts, with_lost_note
from sayso.agent.messages import KeptText, Message, Role, ToolCall, UsageStats
from sayso.agent.run.long_results import MAX_FULL_CHARS, is_long, kept_part, shorten_for_history
from sayso.agent.run.state import (
    NOT_RUN,
    UNCLEAR,
    CallOutcome,
    Journal,
    JournaledAnswer,
    ModelAnswer,
    NoJournal,
)
from sayso.agent.tools.call_texts import shorten
from sayso.agent.tools.environment import Artifact, TimerChange
from sayso.channels.media_store import NoRoom, TooLarge
from sayso.channels.types import Media, StepState
from sayso.infra.concurrency import has_no_loop
from sayso.infra.redis.scripts import LuaScripts
from sayso.infra.storage.objects import StoreUnavailable
from sayso.pending.call_context import ProposedAction
from sayso.pending.turns import (
    JournalUnreadable,
    Lease,
    LeaseLost,
    OnStep,
    QueuedTurn,
    StaleTurn,
    StreamListener,
    journal_head,
)

#: Characters of a journal, including long texts. Once it has this many,
#: the run ends politely without further calls.
MAX_JOURNAL_CHARS = 1_000_000
#: Characters of a long text that count for a journal, at most: a model is never shown more of one
#: result.
MAX_COUNTED_CHARS = 100_000

#: Stands above the result of a call of an interrupted turn whose timers, files or choices would
#: have been sent at the end of the turn.
UNDELIVERED = "[The turn was interrupted: it set no timer, and sent no file and no buttons.]"

log = logging.getLogger(__name__)

#: Stores a file that a tool produced outside of this process.
StoreFile = Callable[[Artifact], Awaitable[Artifact]]


class RedisJournals:
    """The store of the journals, in Redis. Each method is one script in one round trip.

    A journal is read with its turn (`QueuedTurn.journal`) and deleted with it.
    """

    def __init__(self, scripts: LuaScripts) -> None:
        self._scripts = scripts

    async def journal(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append entries to the journal of turn `seq`.

        The first entry gets the number `at`, counted from 0. Repeating is safe: an entry whose
        number exists is already stored. Entry 0 names the turn; it replaces the journal of another
        turn. Raises LeaseLost, StaleTurn if the turn is not the next one or entries are missing,
        and redis.RedisError if they may or may not be stored.
        """
        answer = await self._scripts.arun(
            "journal", lease.conversation, {**lease.args, "seq": seq, "at": at}, *entries
        )
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        if answer != "ok":
            raise StaleTurn(f"{lease.conversation}: {answer}")

    async def entries(self, lease: Lease) -> Sequence[str]:
        """Return the current journal of the turn at the head of the queue. Raises LeaseLost."""
        answer = await self._scripts.arun("read_journal", lease.conversation, lease.args)
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        return tuple(answer)


class TurnJournal:
    """The journal of one attempt at a turn.

    Entries are JSON. The first names the turn. Then follow the model's answers with tool calls,
    which calls of the last answer were started (only those that must not start twice), and their
    outcomes. The answer that ends the run needs no entry, because the commit follows at once. An
    entry has only a part of a long result and a reference to the full text in `texts`. Answers are
    stored in full, because a successor runs their calls.
    """

    def __init__(
        self,
        store: RedisJournals,
        lease: Lease,
        queued: QueuedTurn,
        store_file: StoreFile,
        texts: LongTexts,
    ) -> None:
        """Raise JournalUnreadable if the journal does not tell what an earlier attempt has done."""
        entries = queued.journal if _belongs_to(queued) else ()
        self._known_answers = deque(_parse(entries[1:]))
        self._unsaved = [] if entries else [journal_head(queued)]
        self._saved_count = len(entries)
        self._size = sum(map(len, entries)) + sum(
            each.chars_in_files for each in self._known_answers
        )
        self._store = store
        self._lease = lease
        self._queued = queued
        self._store_file = store_file
        self._texts = texts
        self._calls: Sequence[ToolCall] = ()
        self._answer_count = 0
        self._lock = asyncio.Lock()
        #: Guards the entries that are not saved yet, which the thread of a tool may save.
        self._entries_lock = threading.Lock()

    async def next_answer(self) -> JournaledAnswer | None:
        """Return the next answer of an earlier attempt with the known outcomes of its calls."""
        if not self._known_answers:
            return None
        entry = self._known_answers.popleft()
        self._begin_answer(entry.answer)
        for at, references in entry.long_texts.items():
            outcome = entry.outcomes[at]
            texts = {
                name: await self._texts.load(reference) for name, reference in references.items()
            }
            # Of a text that is lost, model and user see the beginning.
            if "full_text" in texts:
                outcome = replace(outcome, full_text=texts["full_text"] or "")
            if "content" in texts:
                lost = with_lost_note(outcome.content, references["content"])
                outcome = replace(outcome, content=texts["content"] or lost)
            if "closing" in texts:
                outcome = replace(
                    outcome, final_text=texts["closing"] or f"{outcome.final_text} […]"
                )
            entry.outcomes[at] = outcome
        return entry.journaled

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Record an answer. `save` writes it together with the calls that start.

        Return False if the journal has no room for it. The run must end then, without the calls.
        """
        fields: dict[str, Any] = {
            "answer": answer.message.to_dict(),
            "usage": answer.usage.to_dict(),
        }
        if answer.tools is not None:
            fields["tools"] = answer.tools
        entry = json.dumps(fields)
        if self._size + len(entry) > MAX_JOURNAL_CHARS:
            return False
        self._begin_answer(answer)
        self._record(entry)
        return True

    async def save(self, *started: int) -> None:
        """Write what was recorded, in one round trip.

        `started`: the positions of calls in the last answer that start now, and must not start
        twice. Of calls that save at the same time, one writes for all. Under `run_without_loop` it
        blocks: the thread of a tool saves that its effect begins.
        """
        if started:
            self._record(json.dumps({"begun": started}))
        if has_no_loop.get():  # a lock of asyncio cannot be awaited here
            await self._write()
            return
        async with self._lock:
            await self._write()

    async def _write(self) -> None:
        """Write the entries that are not saved yet.

        Two threads may write the same ones: they are stored once.
        """
        with self._entries_lock:
            first = self._saved_count
            entries = tuple(self._unsaved)
        if not entries:
            return
        await self._store.journal(self._lease, self._queued.seq, first, entries)
        with self._entries_lock:
            saved = first + len(entries) - self._saved_count
            if saved > 0:
                self._saved_count += saved
                del self._unsaved[:saved]

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Record the outcome of a call. Return it as it was recorded.

        Its files are stored, and its texts are cut to MAX_FULL_CHARS.
        """
        stored = await self._with_files(outcome)
        content = kept_part(stored.content, MAX_FULL_CHARS)
        final_text = shorten(stored.final_text, MAX_FULL_CHARS)
        stored = replace(stored, content=content, final_text=final_text)
        if content != outcome.content:
            stored = replace(stored, raw_digest=outcome.fingerprint)
        entry = {"call": at, **_outcome_to_dict(stored)}
        long = {
            name: text for name in ("content", "closing") if is_long(text := entry.get(name, ""))
        }
        if stored.full_text:
            long["full_text"] = kept_part(stored.full_text, MAX_FULL_CHARS)
        references = zip(long, await self._texts.store(list(long.values())), strict=True)
        kept = {name: reference for name, reference in references if reference}
        self._size += sum(map(_counted_chars, kept.values()))
        if kept:
            tool_name = outcome.call.tool_name
            for name in kept:
                if name != "full_text":
                    entry[name] = _part_in_journal(name, long[name], tool_name)
            entry["kept"] = {name: reference.to_dict() for name, reference in kept.items()}
        self._record(json.dumps(entry, default=str))
        return stored

    async def _with_files(self, outcome: CallOutcome) -> CallOutcome:
        """Return the outcome with its files stored.

        The model is told of those that cannot be, and goes on: the call may have had an effect, of
        which the user must know all the same.
        """
        stored = list[Artifact]()
        lost = list[str]()
        for artifact in outcome.artifacts:
            try:
                stored.append(await self._store_file(artifact))
            except (NoRoom, TooLarge, OSError) as exc:
                reason = str(exc)
                if isinstance(exc, OSError) and not isinstance(exc, StoreUnavailable):
                    reason = type(exc).__name__  # its text may name a path
                log.warning("media.not_stored", extra={"reason": reason})
                lost.append(artifact.filename or "file")
        if not lost:
            return replace(outcome, artifacts=tuple(stored))
        note = f"[{', '.join(lost)}: could not be stored, so the user does not get it]"
        ends: Literal["", "pending"] = "pending" if outcome.ends == "pending" else ""
        return replace(
            outcome, content=f"{note}\n{outcome.content}", ends=ends, artifacts=tuple(stored)
        )

    def begin_call(self, at: int) -> str:
        """Return the idempotency key of a call: the same in each attempt at the turn.

        `at`: its position in the last answer.
        """
        call = self._calls[at]
        turn = self._queued.turn
        parts = [
            turn.conversation.id,
            turn.event_id,
            self._answer_count,
            at,
            call.tool_name,
            call.parameters,
        ]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _begin_answer(self, answer: ModelAnswer) -> None:
        self._calls = answer.message.tool_calls
        self._answer_count += 1

    def _record(self, entry: str) -> None:
        with self._entries_lock:
            self._unsaved.append(entry)
            self._size += len(entry)


class StreamingJournal:
    """A journal that tells the stream listener when the model has called tools.

    The text of the next answer then replaces the text that was shown before the calls.
    """

    def __init__(self, journal: Journal, listener: StreamListener) -> None:
        self._journal = journal
        self._listener = listener
        self.next_answer = journal.next_answer
        self.save = journal.save
        self.record_outcome = journal.record_outcome
        self.begin_call = journal.begin_call

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Record an answer with tool calls, and begin a new text."""
        self._listener.anew()
        return self._journal.record_answer(answer)


class StepsJournal:
    """A journal that tells `on_step` which calls begin and how they end."""

    def __init__(self, journal: Journal, on_step: OnStep) -> None:
        self._journal = journal
        self._on_step = on_step
        self._calls: Sequence[ToolCall] = ()
        #: The number of the answer's first call in the turn.
        self._first = 0
        self.save = journal.save

    async def next_answer(self) -> JournaledAnswer | None:
        """Return the next answer of an earlier attempt, whose known outcomes are reported."""
        known = await self._journal.next_answer()
        if known is not None:
            self._begin_answer(known.answer)
            for at, outcome in known.outcomes.items():
                self._end(at, outcome)
        return known

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Record an answer with tool calls."""
        self._begin_answer(answer)
        return self._journal.record_answer(answer)

    def begin_call(self, at: int) -> str:
        """Report that a call begins. Return its idempotency key."""
        self._on_step(self._first + at, self._calls[at].tool_name, "running")
        return self._journal.begin_call(at)

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Report how a call ended, and record it."""
        self._end(at, outcome)
        return await self._journal.record_outcome(at, outcome)

    def _begin_answer(self, answer: ModelAnswer) -> None:
        self._first += len(self._calls)
        self._calls = answer.message.tool_calls

    def _end(self, at: int, outcome: CallOutcome) -> None:
        self._on_step(self._first + at, self._calls[at].tool_name, _step_state(outcome))


def _step_state(outcome: CallOutcome) -> StepState:
    """Return how people see the outcome of a call."""
    if outcome.proposals or outcome.ends == "pending":
        return "waits"
    if outcome.unclear:
        return "unknown"
    if outcome.not_run:
        return "not_run"
    return "done" if outcome.has_result else "failed"


class RunRecord(NoJournal):
    """What a run without a worker has done so far, for the history if it is interrupted.

    One per turn.
    """

    def __init__(self) -> None:
        self._answers: list[_AnswerEntries] = []

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Record an answer with tool calls. Return True: there is always room."""
        self._answers.append(_AnswerEntries(answer))
        return True

    async def save(self, *started: int) -> None:
        """Record that these calls start."""
        self._answers[-1].started.update(started)

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Record the outcome of a call."""
        self._answers[-1].outcomes[at] = outcome
        return outcome

    @property
    def done(self) -> InterruptedRun:
        """Return what the run has done so far."""
        return _interrupted(self._answers, time.time())


@dataclass(frozen=True, slots=True)
class InterruptedRun:
    """What a run had done when it was interrupted."""

    #: The model's answers with calls, each followed by one result for each call.
    messages: tuple[Message, ...] = ()
    #: The calls whose outcome is unknown.
    unclear: tuple[ToolCall, ...] = ()
    #: The ids of proposed actions, which are not stored.
    proposed: tuple[str, ...] = ()


def interrupted_run(queued: QueuedTurn) -> InterruptedRun:
    """Return what the journal of a turn tells of its run. Raises JournalUnreadable."""
    if not _belongs_to(queued):
        return InterruptedRun()
    return _interrupted(_parse(queued.journal[1:]), queued.received_at)


def _interrupted(answers: Iterable[_AnswerEntries], run_at: float) -> InterruptedRun:
    """Return what these answers and their calls tell of a run.

    Calls that did not start get a result, too: a history has one for each call. `run_at`: the time
    of the run, in Unix seconds.
    """
    messages: list[Message] = []
    unclear: list[ToolCall] = []
    proposed: list[str] = []
    for entries in answers:
        answer = entries.answer.message
        outcomes = entries.journaled.outcomes
        messages.append(replace(answer, details=None))
        for at, call in enumerate(answer.tool_calls):
            outcome = outcomes.get(at) or CallOutcome(call, NOT_RUN)
            if outcome.unclear:
                unclear.append(call)
            proposed += [each.action.pending_action_id for each in outcome.proposals]
            # The part of a long text is what the history keeps of it, too.
            kept = entries.long_texts.get(at, {})
            reference = kept.get("full_text") or kept.get("content")
            message = replace(
                outcome.message,
                pictures=(),
                kept=reference,
                at=run_at if outcome.unclear else 0.0,
            )
            has_more = outcome.timers or outcome.artifacts or outcome.choices
            # The result of an unclear call is JSON, and says itself that nothing is certain.
            if has_more and not outcome.unclear:
                message = replace(message, content=f"{UNDELIVERED}\n{message.content}")
            messages.append(message)
    return InterruptedRun(tuple(messages), tuple(unclear), tuple(proposed))


def _part_in_journal(name: str, text: str, tool_name: str) -> str:
    """Return the part of a long text that stands in the journal.

    Of a result it is the part that later turns read, of any other text the beginning.
    """
    if name != "content":
        return text[:BEGINNING_CHARS]
    (message,) = shorten_for_history([Message(Role.TOOL, text, tool_name=tool_name)])
    return message.content


def _counted_chars(reference: KeptText) -> int:
    return min(reference.chars, MAX_COUNTED_CHARS)


def _outcome_to_dict(outcome: CallOutcome) -> dict[str, Any]:
    """Return an outcome without its call and without empty fields."""
    fields = {
        "content": outcome.content,
        "ends": outcome.ends,
        "closing": outcome.final_text,
        "files": [
            each.to_dict() | ({"kept": asdict(each.kept)} if each.kept else {})
            for each in outcome.artifacts
        ],
        "proposals": [proposed.to_dict() for proposed in outcome.proposals],
        "timers": [change.to_dict() for change in outcome.timers],
        "choices": outcome.choices,
        "usage": {} if outcome.usage == UsageStats() else outcome.usage.to_dict(),
        "raw": outcome.raw_digest,
        "unclear": outcome.unclear,
        "has_result": outcome.has_result,
        "not_run": outcome.not_run,
    }
    return {name: value for name, value in fields.items() if value}


def _belongs_to(queued: QueuedTurn) -> bool:
    """Return whether the journal that came with a turn is the turn's own.

    Raises JournalUnreadable.
    """
    if not queued.journal:
        return False
    try:
        head = json.loads(queued.journal[0])
        if head["seq"] != queued.seq:
            return False
        if head["upto"] != queued.last:
            raise ValueError("not of the same turns")
        return True
    except (ValueError, KeyError, TypeError) as exc:
        raise JournalUnreadable("entry 0") from exc


@dataclass(slots=True)
class _AnswerEntries:
    """An answer and its calls, as far as the entries have been read."""

    answer: ModelAnswer
    started: set[int] = field(default_factory=set)
    outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    #: References to the long texts of outcomes, by call index and by
    #: the field that has the beginning.
    long_texts: dict[int, Mapping[str, KeptText]] = field(default_factory=dict)

    @property
    def chars_in_files(self) -> int:
        """Return the number of characters outside of the journal that count for its limit."""
        texts = chain.from_iterable(references.values() for references in self.long_texts.values())
        return sum(map(_counted_chars, texts))

    @property
    def journaled(self) -> JournaledAnswer:
        """Return the answer.

        A call that was started and has no outcome is unclear in every later attempt.
        """
        calls = self.answer.message.tool_calls
        unclear = {at: CallOutcome(calls[at], UNCLEAR, unclear=True) for at in self.started}
        return JournaledAnswer(self.answer, {**unclear, **self.outcomes})


def _parse(entries: Iterable[str]) -> list[_AnswerEntries]:
    """Return what an earlier attempt recorded.

    Raises JournalUnreadable for an unknown entry: starting over, or continuing from the last
    readable entry, could repeat an effect.
    """
    answers: list[_AnswerEntries] = []
    for number, text in enumerate(entries, 1):
        try:
            _parse_entry(answers, json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as exc:
            raise JournalUnreadable(f"entry {number}") from exc
    return answers


def _parse_entry(answers: list[_AnswerEntries], entry: Mapping[str, Any]) -> None:
    match entry:
        case {"answer": message}:
            names = entry.get("tools")
            tools = None if names is None else tuple(map(str, names))
            answer = ModelAnswer(Message.from_dict(message), UsageStats(**entry["usage"]), tools)
            answers.append(_AnswerEntries(answer))
        case {"begun": [*started]}:
            calls = answers[-1].answer.message.tool_calls
            answers[-1].started.update(at for at in started if calls[_checked_index(at)])
        case {"call": at}:
            call = answers[-1].answer.message.tool_calls[_checked_index(at)]
            answers[-1].outcomes[at] = _parse_outcome(call, entry)
            references = entry.get("kept", {}).items()
            answers[-1].long_texts[at] = {
                name: KeptText.from_dict(each) for name, each in references
            }
        case _:
            raise ValueError("unknown entry")


def _checked_index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not the index of a call")
    return value


def _parse_outcome(call: ToolCall, entry: Mapping[str, Any]) -> CallOutcome:
    ends = entry.get("ends", "")
    if ends not in ("", "pending", "terminal"):
        raise ValueError("not a way to end a run")
    return CallOutcome(
        call,
        content=str(entry.get("content", "")),
        ends=ends,
        final_text=str(entry.get("closing", "")),
        artifacts=tuple(
            Artifact(**{**each, "kept": Media(**each["kept"]) if each.get("kept") else None})
            for each in entry.get("files", ())
        ),
        proposals=tuple(ProposedAction.from_dict(each) for each in entry.get("proposals", ())),
        timers=tuple(TimerChange.from_dict(each) for each in entry.get("timers", ())),
        choices=tuple(map(str, entry.get("choices", ()))),
        usage=UsageStats(**entry.get("usage", {})),
        raw_digest=str(entry.get("raw", "")),
        unclear=bool(entry.get("unclear", False)),
        has_result=bool(entry.get("has_result", False)),
        not_run=bool(entry.get("not_run", False)),
    )
