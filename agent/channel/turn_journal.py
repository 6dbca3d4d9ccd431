"""TurnJournal: records what a turn has done, so that another worker can continue it.

A worker may be killed in the middle of a turn. The *journal* of the turn is stored in Redis with
the turn. It has each answer of the model with tool calls, which of the calls were started, and
their outcomes. The next *attempt* at the turn reads it, asks the model only for what is missing,
and never starts a call twice that must not run twice.

For each answer with tool calls, a run uses its journal in this order: `record_answer`; `save` with
the calls whose effect may begin; for each call `begin_call` and, when it has ended,
`record_outcome`; `save` again. A tool that says itself where its effect begins saves that during
its call.

* `RedisJournals` stores the entries, and `TurnJournal` is the journal of a turn in a worker.
* `StepsJournal` and `StreamingJournal` wrap a journal, and also report calls and answers to those
  who watch the turn.
* `RunRecord` takes the place of a journal where no worker runs the turn.
* `InterruptedRun` is what a history gets from either of them, if the turn is stopped or fails.

The forms of the journal's entries, each a JSON object (`_parse_entry` reads them):

* `{"seq", "upto"}`: the first entry. It names the turn, and the last one that is answered with it.
* `{"answer", "usage", "tools"}`: an answer of the model with calls. `tools`: the names of the
  tools that the model was shown, left out if it was shown all of them.
* `{"started": [0, 2]}`: these calls of the last answer start now, and must not start twice.
* `{"call": 0, "content", ...}`: the outcome of a call of the last answer.
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
from typing import Any, Literal

from sayso.agent.channel.long_texts import BEGINNING_CHARS, LongTexts, with_lost_note
from sayso.agent.messages import Message, Role, TextReference, ToolCall, UsageStats
from sayso.agent.run.long_results import MAX_FULL_CHARS, is_long, part_to_store, shorten_for_history
from sayso.agent.run.state import (
    NOT_RUN,
    CallOutcome,
    Journal,
    JournaledAnswer,
    ModelAnswer,
    NoJournal,
)
from sayso.agent.run.unknown_outcomes import UNKNOWN_OUTCOME
from sayso.agent.tools.environment import Artifact
from sayso.agent.tools.text_cuts import shorten
from sayso.agent.tools.timers import TimerChange
from sayso.channels.media_store import NoRoom, TooLarge
from sayso.channels.types import Media, StepState
from sayso.infra.concurrency import has_no_loop
from sayso.infra.storage.objects import StoreUnavailable
from sayso.pending.call_context import ProposedAction
from sayso.pending.sharded_scripts import ShardedScripts
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

#: Characters of a journal, including long texts, above which no answer is recorded: its calls do
#: not run, and the person reads that the run took too many steps. The outcome of a call is recorded
#: in any case, because the call may have had an effect.
MAX_JOURNAL_CHARS = 1_000_000
#: The most characters of one long text that count for the limit: a model is never shown more of one
#: result.
MAX_COUNTED_CHARS = 100_000

#: Is put above the result of a call of an interrupted turn that set timers, or made files or
#: choices: these are stored and sent only at the end of a turn.
UNDELIVERED = "[The turn was interrupted: it set no timer, and sent no file and no buttons.]"

log = logging.getLogger(__name__)

#: Stores a file that a tool produced outside of this process.
StoreFile = Callable[[Artifact], Awaitable[Artifact]]


class RedisJournals:
    """The store of the journals, in Redis. Each method is one script in one round trip.

    A journal is read with its turn (`QueuedTurn.journal`) and deleted with it.
    """

    def __init__(self, scripts: ShardedScripts) -> None:
        self._scripts = scripts

    async def append_entries(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append entries to the journal of turn `seq`.

        The first entry gets the number `at`, counted from 0. Repeating is safe: an entry whose
        number exists is already stored. Entry 0 names the turn; it replaces the journal of another
        turn.

        Raises LeaseLost if another worker has taken over, StaleTurn if the turn is not the next one
        or earlier entries are missing, and redis.RedisError if the entries may or may not be
        stored.
        """
        answer = await self._scripts.arun(
            "append_journal", lease.conversation, {**lease.args, "seq": seq, "at": at}, *entries
        )
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        if answer != "ok":
            raise StaleTurn(f"{lease.conversation}: {answer}")

    async def load_entries(self, lease: Lease) -> Sequence[str]:
        """Return the journal of the next turn of a conversation. Raises LeaseLost."""
        answer = await self._scripts.arun("load_journal", lease.conversation, lease.args)
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        return tuple(answer)


class TurnJournal:
    """The journal of one attempt at a turn. Lives as long as the attempt.

    The answer that ends the run needs no entry, because the commit follows at once. Answers are
    recorded in full, because the next attempt runs their calls. Of a long result an entry has only
    a part, and a reference to the full text in a file.

    * `queued`: the turn, with the entries of earlier attempts.
    * `store_file`: stores a file that a tool made, outside of this process.
    * `texts`: stores and reads the long texts of this person.
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
        self._store = store
        self._lease = lease
        self._queued = queued
        self._store_file = store_file
        self._texts = texts

        entries = queued.journal if _belongs_to(queued) else ()
        #: The answers of earlier attempts that `next_answer` has not returned yet.
        self._known_answers = deque(_parse(entries[1:]))
        #: The entries that are not stored yet, or may not be. The first one has the number
        #: `_saved_count`.
        self._unsaved = [] if entries else [journal_head(queued)]
        self._saved_count = len(entries)
        #: The characters that count for MAX_JOURNAL_CHARS.
        self._size = sum(len(entry) for entry in entries)
        self._size += sum(answer.chars_in_files for answer in self._known_answers)

        #: The calls of the answer that is carried out now.
        self._calls: Sequence[ToolCall] = ()
        self._answer_count = 0
        #: Lets one task write at a time: it writes the entries of all.
        self._write_lock = asyncio.Lock()
        #: Guards `_unsaved`, `_saved_count` and `_size`, which the thread of a tool changes, too.
        self._entries_lock = threading.Lock()

    async def next_answer(self) -> JournaledAnswer | None:
        """Return the next answer of an earlier attempt with the known outcomes of its calls."""
        if not self._known_answers:
            return None
        entries = self._known_answers.popleft()
        self._begin_answer(entries.answer)
        outcomes = entries.known_outcomes
        for at, references in entries.long_texts.items():
            outcomes[at] = await self._with_long_texts(outcomes[at], references)
        return JournaledAnswer(entries.answer, outcomes)

    async def _with_long_texts(
        self, outcome: CallOutcome, references: Mapping[str, TextReference]
    ) -> CallOutcome:
        """Return an outcome with its long texts from their files.

        `outcome` is read from an entry, which has only a part of `content` and `final_text`, and
        nothing of `full_text`. `references`: the files, by the names of the fields. If the file of
        a text is lost, model and user read the part.
        """
        texts = {name: await self._texts.load(reference) for name, reference in references.items()}
        if "full_text" in texts:
            outcome = replace(outcome, full_text=texts["full_text"] or "")
        if "content" in texts:
            part = with_lost_note(outcome.content, references["content"])
            outcome = replace(outcome, content=texts["content"] or part)
        if "final_text" in texts:
            part = f"{outcome.final_text} […]"
            outcome = replace(outcome, final_text=texts["final_text"] or part)
        return outcome

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

        `started`: the indexes of calls in the last answer that start now, and must not start twice.
        If several tasks save at the same time, one writes for all. A sync tool that says where its
        effect begins saves that from its thread, which has no event loop (`run_without_loop`):
        there this blocks.
        """
        if started:
            self._record(json.dumps({"started": started}))
        if has_no_loop.get():
            # A lock of asyncio cannot be awaited here, and `_write` does not need it: the lock only
            # saves writes.
            await self._write()
            return
        async with self._write_lock:
            await self._write()

    async def _write(self) -> None:
        """Write the entries that are not saved yet.

        Two threads may write the same entries at the same time. Each entry is stored once, because
        the store skips numbers that it has.
        """
        with self._entries_lock:
            first = self._saved_count
            entries = tuple(self._unsaved)
        if not entries:
            return
        await self._store.append_entries(self._lease, self._queued.seq, first, entries)
        with self._entries_lock:
            # Another thread may have removed some of these entries, or all of them.
            newly_saved = first + len(entries) - self._saved_count
            if newly_saved > 0:
                self._saved_count += newly_saved
                del self._unsaved[:newly_saved]

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Record the outcome of a call.

        Return it as the model must see it: its files are stored, and its texts have at most
        MAX_FULL_CHARS. The entry itself has only a part of a long text, and a reference to its
        file.
        """
        stored_outcome = await self._with_files(outcome)
        content = part_to_store(stored_outcome.content, MAX_FULL_CHARS)
        final_text = shorten(stored_outcome.final_text, MAX_FULL_CHARS)
        stored_outcome = replace(stored_outcome, content=content, final_text=final_text)
        if content != outcome.content:
            # A run recognizes repeated results by the digest of what the tool returned, which
            # cannot be computed from a text that was cut or has a note.
            stored_outcome = replace(stored_outcome, raw_digest=outcome.fingerprint)

        entry = {"call": at, **_outcome_to_dict(stored_outcome)}
        references = await self._store_long_texts(_long_texts_of(stored_outcome))
        if "content" in references:
            entry["content"] = _part_for_history(content, outcome.call.tool_name)
        if "final_text" in references:
            entry["final_text"] = final_text[:BEGINNING_CHARS]
        if references:
            entry["text_files"] = {name: each.to_dict() for name, each in references.items()}
        chars_in_files = sum(map(_counted_chars, references.values()))
        self._record(json.dumps(entry, default=str), chars_in_files)
        return stored_outcome

    async def _store_long_texts(self, texts: Mapping[str, str]) -> dict[str, TextReference]:
        """Store texts in files, and return their references by the same names.

        A text that cannot be stored has no reference. Then the entry has all of `content` and
        `final_text`. `full_text` is lost to the next attempt: its model has only the summary.
        """
        stored = zip(texts, await self._texts.store(list(texts.values())), strict=True)
        return {name: reference for name, reference in stored if reference is not None}

    async def _with_files(self, outcome: CallOutcome) -> CallOutcome:
        """Return the outcome with its files stored.

        If one cannot be stored, the model reads that and the run goes on: the call may have had an
        effect, and the user must be told about it all the same.
        """
        stored_files: list[Artifact] = []
        lost_names: list[str] = []
        for artifact in outcome.artifacts:
            try:
                stored_files.append(await self._store_file(artifact))
            except (NoRoom, TooLarge, OSError) as exc:
                reason = str(exc)
                if isinstance(exc, OSError) and not isinstance(exc, StoreUnavailable):
                    reason = type(exc).__name__  # its text may name a path
                log.warning("media.not_stored", extra={"reason": reason})
                lost_names.append(artifact.filename or "file")
        if not lost_names:
            return replace(outcome, artifacts=tuple(stored_files))

        note = f"[{', '.join(lost_names)}: could not be stored, so the user does not get it]"
        # A terminal result does not end the run now: the model must say what is missing.
        ends: Literal["", "pending"] = "pending" if outcome.ends == "pending" else ""
        return replace(
            outcome, content=f"{note}\n{outcome.content}", ends=ends, artifacts=tuple(stored_files)
        )

    def begin_call(self, at: int) -> str:
        """Return the idempotency key of a call: the same in each attempt at the turn.

        `at`: its index in the last answer. Nothing is recorded: where the start of the call
        matters, `save` has recorded it.
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
        """Count an answer. From now on, the index of a call is one in this answer."""
        self._calls = answer.message.tool_calls
        self._answer_count += 1

    def _record(self, entry: str, chars_in_files: int = 0) -> None:
        """Add an entry to those that `save` writes.

        `chars_in_files`: the characters of its texts in files that count for the limit.
        """
        with self._entries_lock:
            self._unsaved.append(entry)
            self._size += len(entry) + chars_in_files


class StreamingJournal:
    """A journal that tells the stream listener when the model has called tools.

    Wraps another journal, and lives as long as it. The listener shows a reply while it arrives. The
    text of the next answer replaces the text that was shown before the calls.
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
    """A journal that tells `on_step` which calls begin and how they end, for people to see.

    Wraps another journal, and lives as long as it.
    """

    def __init__(self, journal: Journal, on_step: OnStep) -> None:
        self._journal = journal
        self._on_step = on_step
        self._calls: Sequence[ToolCall] = ()
        #: The number of the answer's first call among all calls of the turn.
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
    # First, because a tool whose own code asks has a result as well.
    if outcome.proposals or outcome.ends == "pending":
        return "waits"
    if outcome.is_unknown:
        return "unknown"
    if outcome.not_run:
        return "not_run"
    return "done" if outcome.has_result else "failed"


class RunRecord(NoJournal):
    """What a run without a worker has done so far, for the history if it is interrupted.

    One per turn, in memory alone: no other worker continues the turn.
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
        self._answers[-1].recorded_outcomes[at] = outcome
        return outcome

    @property
    def interrupted_run(self) -> InterruptedRun:
        """What the run has done, if it is interrupted now."""
        return _interrupted_run(self._answers, time.time())


@dataclass(frozen=True, slots=True)
class InterruptedRun:
    """What a run had done when it was interrupted."""

    #: The model's answers with calls, each followed by one result for each call.
    messages: tuple[Message, ...] = ()
    #: The calls whose outcome is unknown.
    unknown_outcomes: tuple[ToolCall, ...] = ()
    #: The ids of the actions that its calls proposed. They were not stored: that happens only at
    #: the end of a turn.
    proposed: tuple[str, ...] = ()


def read_interrupted_run(queued: QueuedTurn) -> InterruptedRun:
    """Return what the journal of a turn tells of its run. Raises JournalUnreadable."""
    if not _belongs_to(queued):
        return InterruptedRun()
    return _interrupted_run(_parse(queued.journal[1:]), queued.received_at)


def _interrupted_run(answers: Iterable[_AnswerEntries], run_at: float) -> InterruptedRun:
    """Return what these answers and their calls tell of a run.

    Calls that did not start get a result, too: a history has one for each call. `run_at`: the time
    of the run, in Unix seconds.
    """
    messages: list[Message] = []
    unknown: list[ToolCall] = []
    proposed: list[str] = []
    for entries in answers:
        answer = entries.answer.message
        outcomes = entries.known_outcomes
        messages.append(replace(answer, details=None))  # a history keeps no reasoning
        for at, call in enumerate(answer.tool_calls):
            outcome = outcomes.get(at) or CallOutcome(call, NOT_RUN)
            if outcome.is_unknown:
                unknown.append(call)
            proposed += [each.action.pending_action_id for each in outcome.proposals]
            references = entries.long_texts.get(at, {})
            messages.append(_result_for_history(outcome, references, run_at))
    return InterruptedRun(tuple(messages), tuple(unknown), tuple(proposed))


def _result_for_history(
    outcome: CallOutcome, references: Mapping[str, TextReference], run_at: float
) -> Message:
    """Return the outcome of a call in an interrupted run as the message that a history keeps.

    `references`: the files of its long texts, by the names of the fields. Of a text with a file the
    outcome has the part that a history keeps.
    """
    message = replace(
        outcome.message,
        pictures=(),  # a history keeps none
        text_file=references.get("full_text") or references.get("content"),
    )
    if outcome.is_unknown:
        # The model reads when the call was made. The content needs no note: it is JSON, and says
        # itself that nothing is certain.
        return replace(message, at=run_at)
    if outcome.timer_changes or outcome.artifacts or outcome.choices:
        return replace(message, content=f"{UNDELIVERED}\n{message.content}")
    return message


def _long_texts_of(outcome: CallOutcome) -> dict[str, str]:
    """Return the texts of an outcome that are stored in files, by the names of their fields.

    `full_text` is the whole result, where `content` summarizes only a part of it.
    """
    texts = {}
    if is_long(outcome.content):
        texts["content"] = outcome.content
    if is_long(outcome.final_text):
        texts["final_text"] = outcome.final_text
    if outcome.full_text:
        texts["full_text"] = part_to_store(outcome.full_text, MAX_FULL_CHARS)
    return texts


def _part_for_history(result: str, tool_name: str) -> str:
    """Return the part of a long result that later turns read."""
    (message,) = shorten_for_history([Message(Role.TOOL, result, tool_name=tool_name)])
    return message.content


def _counted_chars(reference: TextReference) -> int:
    return min(reference.chars, MAX_COUNTED_CHARS)


def _outcome_to_dict(outcome: CallOutcome) -> dict[str, Any]:
    """Return an outcome as JSON-ready data, without its call and without empty fields."""
    usage: dict[str, Any] = {}
    if outcome.usage != UsageStats():
        usage = outcome.usage.to_dict()
    fields = {
        "content": outcome.content,
        "ends": outcome.ends,
        "final_text": outcome.final_text,
        "files": [_file_to_dict(each) for each in outcome.artifacts],
        "proposals": [proposed.to_dict() for proposed in outcome.proposals],
        "timer_changes": [change.to_dict() for change in outcome.timer_changes],
        "choices": outcome.choices,
        "usage": usage,
        "raw_digest": outcome.raw_digest,
        "is_unknown": outcome.is_unknown,
        "has_result": outcome.has_result,
        "not_run": outcome.not_run,
    }
    return {name: value for name, value in fields.items() if value}


def _file_to_dict(artifact: Artifact) -> dict[str, Any]:
    """Return a file as JSON-ready data, with its place in the media store."""
    data = artifact.to_dict()
    if artifact.media:
        data["media"] = asdict(artifact.media)
    return data


def _belongs_to(queued: QueuedTurn) -> bool:
    """Return whether the journal that came with a turn is that of the turn, and not an older one.

    Raises JournalUnreadable if that cannot be read, and if an earlier attempt answered another
    number of turns at once.
    """
    if not queued.journal:
        return False
    try:
        head = json.loads(queued.journal[0])
        if head["seq"] != queued.seq:
            return False
        if head["upto"] != queued.last_seq:
            raise ValueError("not of the same turns")
        return True
    except (ValueError, KeyError, TypeError) as exc:
        raise JournalUnreadable("entry 0") from exc


@dataclass(slots=True)
class _AnswerEntries:
    """An answer, and what the entries say of its calls. Dicts are by the indexes of the calls."""

    answer: ModelAnswer
    started: set[int] = field(default_factory=set)
    recorded_outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    #: The references of an outcome's long texts, by the names of its fields.
    long_texts: dict[int, Mapping[str, TextReference]] = field(default_factory=dict)

    @property
    def chars_in_files(self) -> int:
        """The number of characters in files that count for the limit of the journal."""
        chars = 0
        for references in self.long_texts.values():
            chars += sum(map(_counted_chars, references.values()))
        return chars

    @property
    def known_outcomes(self) -> dict[int, CallOutcome]:
        """The outcomes of the calls that have started.

        The outcome of a call that was started is unknown unless it was recorded.
        """
        calls = self.answer.message.tool_calls
        outcomes = {
            at: CallOutcome(calls[at], UNKNOWN_OUTCOME, is_unknown=True) for at in self.started
        }
        return outcomes | self.recorded_outcomes


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
    """Add one entry to the answers: a new answer, or what it says of the last one's calls.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError for anything else.
    """
    match entry:
        case {"answer": message}:
            names = entry.get("tools")
            tools = None if names is None else tuple(map(str, names))
            answer = ModelAnswer(Message.from_dict(message), UsageStats(**entry["usage"]), tools)
            answers.append(_AnswerEntries(answer))
        case {"started": [*started]}:
            calls = answers[-1].answer.message.tool_calls
            for at in started:
                calls[_checked_index(at)]  # raises IndexError where the answer has no such call
                answers[-1].started.add(at)
        case {"call": at}:
            call = answers[-1].answer.message.tool_calls[_checked_index(at)]
            answers[-1].recorded_outcomes[at] = _parse_outcome(call, entry)
            references = entry.get("text_files", {}).items()
            answers[-1].long_texts[at] = {
                name: TextReference.from_dict(each) for name, each in references
            }
        case _:
            raise ValueError("unknown entry")


def _checked_index(value: Any) -> int:
    """Return the index of a call. Raises ValueError for any other value.

    Without this check, -1 would mean the last call and True the second one.
    """
    if type(value) is not int or value < 0:
        raise ValueError("not the index of a call")
    return value


def _parse_outcome(call: ToolCall, entry: Mapping[str, Any]) -> CallOutcome:
    """Return the outcome that `_outcome_to_dict` wrote."""
    ends = entry.get("ends", "")
    if ends not in ("", "pending", "terminal"):
        raise ValueError("not a way to end a run")
    return CallOutcome(
        call,
        content=str(entry.get("content", "")),
        ends=ends,
        final_text=str(entry.get("final_text", "")),
        artifacts=tuple(map(_file_from_dict, entry.get("files", ()))),
        proposals=tuple(ProposedAction.from_dict(each) for each in entry.get("proposals", ())),
        timer_changes=tuple(TimerChange.from_dict(each) for each in entry.get("timer_changes", ())),
        choices=tuple(map(str, entry.get("choices", ()))),
        usage=UsageStats(**entry.get("usage", {})),
        raw_digest=str(entry.get("raw_digest", "")),
        is_unknown=bool(entry.get("is_unknown", False)),
        has_result=bool(entry.get("has_result", False)),
        not_run=bool(entry.get("not_run", False)),
    )


def _file_from_dict(data: Mapping[str, Any]) -> Artifact:
    """Return the file that `_file_to_dict` wrote."""
    media = None
    if data.get("media"):
        media = Media(**data["media"])
    return Artifact(**{**data, "media": media})
