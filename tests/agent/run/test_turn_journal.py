"""TurnJournal: an entry added during a write, or after a failed write, is written by the next one."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import RedisError

from sayso.agent import Message, ToolCall, UsageStats
from sayso.agent.channel.long_texts import LongTexts
from sayso.agent.channel.turn_journal import StepsJournal, TurnJournal, read_interrupted_run
from sayso.agent.messages import Role
from sayso.agent.run.state import CallOutcome, ModelAnswer, text_digest
from sayso.agent.tools.environment import Artifact, emit_artifact
from sayso.channels.media_store import NoRoom
from sayso.infra.concurrency import run_sync
from sayso.infra.storage.objects import StoreUnavailable
from sayso.pending.turns import Lease, QueuedTurn
from tests.contracts.rigs import turn

CALLS = (ToolCall("look", {"what": "a"}, "1"), ToolCall("look", {"what": "a"}, "2"))
LEASE = Lease("chat:room", 1, "w1")


class Steps:
    """Records each change of a tool call that it receives."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def note(self, *step: object) -> None:
        """Record a change."""
        self.events.append(step)


class Shelf:
    """A store of journals whose responses may get lost."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.fails = False

    async def append_entries(self, lease, seq, at, entries) -> None:
        """Append new entries after a pause."""
        await asyncio.sleep(0)
        self.entries += entries[len(self.entries) - at :]
        if self.fails:
            raise RedisError("no answer")


async def keep_file(artifact):
    """Return the artifact unchanged."""
    return artifact


def noted(shelf: Shelf, event: str = "e1", *, keep=keep_file) -> TurnJournal:
    """Return a journal with an answer that makes two calls."""
    given = turn("go", event=event)
    queued = QueuedTurn(1, 0.0, "ana", given, None, None, "", journal=tuple(shelf.entries))
    journal = TurnJournal(shelf, LEASE, queued, keep, LongTexts(None, ""))
    run_sync(journal.next_answer()) or journal.record_answer(
        ModelAnswer(Message(Role.ASSISTANT, tool_calls=CALLS), UsageStats())
    )
    return journal


async def kept(journal: TurnJournal, at: int) -> None:
    """Record the result of a call."""
    await journal.record_outcome(at, CallOutcome(CALLS[at], f"result {at}"))


def outcomes(shelf: Shelf) -> dict[int, str]:
    """Return the contents of the outcomes that the next attempt reads."""
    return {at: outcome.content for at, outcome in known(shelf).items()}


def known(shelf: Shelf) -> dict[int, CallOutcome]:
    """Return the outcomes that the next attempt reads."""
    queued = QueuedTurn(
        1, 0.0, "ana", turn("go", event="e1"), None, None, "", journal=tuple(shelf.entries)
    )
    recalled = run_sync(
        TurnJournal(shelf, LEASE, queued, keep_file, LongTexts(None, "")).next_answer()
    )
    return dict(recalled.outcomes)


def test_result_recorded_during_a_write_is_in_the_next():
    """Two calls end at nearly the same time; neither result is lost or stored twice."""
    shelf = Shelf()

    async def both() -> None:
        journal = noted(shelf)
        await kept(journal, 0)
        first = asyncio.create_task(journal.save())
        await asyncio.sleep(0)
        await kept(journal, 1)
        await asyncio.gather(first, journal.save())

    asyncio.run(both())
    assert outcomes(shelf) == {0: "result 0", 1: "result 1"}
    assert len(shelf.entries) == 4


def test_failed_write_is_repeated_with_newer_entries():
    """The failed write had reached the store, and its entries are not stored twice."""
    shelf = Shelf()

    async def twice() -> None:
        journal = noted(shelf)
        await kept(journal, 0)
        shelf.fails = True
        with pytest.raises(RedisError):
            await journal.save()
        shelf.fails = False
        await kept(journal, 1)
        await journal.save()

    asyncio.run(twice())
    assert (outcomes(shelf), len(shelf.entries)) == ({0: "result 0", 1: "result 1"}, 4)


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), NoRoom("all files have 5 bytes of 5"), OSError(28, "full")]
)
def test_file_that_cannot_be_stored_does_not_hide_the_result_of_its_call(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    """The model is told of it and goes on, even if the call would have ended the run."""

    async def refuse(artifact: Artifact) -> Artifact:
        if artifact.filename == "b.csv":
            raise error
        return artifact

    shelf = Shelf()
    journal = noted(shelf, keep=refuse)
    files = (emit_artifact(b"a", filename="a.csv"), emit_artifact(b"b", filename="b.csv"))
    done = CallOutcome(
        CALLS[0], "exported", ends="terminal", final_text="Here they are.", artifacts=files
    )
    stored = run_sync(journal.record_outcome(0, done))
    assert stored.content == "[b.csv: could not be stored, so the user does not get it]\nexported"
    assert ([each.filename for each in stored.artifacts], stored.ends) == (["a.csv"], "")
    assert stored.fingerprint == done.fingerprint
    run_sync(journal.save())
    assert outcomes(shelf) == {0: stored.content}
    assert [record.getMessage() for record in caplog.records] == ["media.not_stored"]


def test_listener_hears_of_each_call_of_a_turn():
    """It hears the name and how the call ended, never arguments, with one number for each call of all answers."""
    steps = Steps()
    journal = StepsJournal(noted(Shelf()), steps.note)
    journal.record_answer(ModelAnswer(Message(Role.ASSISTANT, tool_calls=CALLS), UsageStats()))
    journal.begin_call(0)
    run_sync(journal.record_outcome(0, CallOutcome(CALLS[0], "ok", has_result=True)))
    run_sync(journal.record_outcome(1, CallOutcome(CALLS[1], "no", is_unknown=True)))
    journal.record_answer(ModelAnswer(Message(Role.ASSISTANT, tool_calls=CALLS[:1]), UsageStats()))
    journal.begin_call(0)
    run_sync(journal.record_outcome(0, CallOutcome(CALLS[0], "Error: broken")))
    assert steps.events == [
        (0, "look", "running"),
        (0, "look", "done"),
        (1, "look", "unknown"),
        (2, "look", "running"),
        (2, "look", "failed"),
    ]


def test_listener_hears_of_calls_of_an_earlier_attempt():
    """The worker that ran them was killed. A call without an outcome has an unknown one."""
    shelf = Shelf()
    journal = noted(shelf)
    run_sync(journal.save(0, 1))
    run_sync(journal.record_outcome(0, CallOutcome(CALLS[0], "denied", not_run=True)))
    run_sync(journal.save())
    steps = Steps()
    queued = QueuedTurn(
        1, 0.0, "ana", turn("go", event="e1"), None, None, "", journal=tuple(shelf.entries)
    )
    run_sync(
        StepsJournal(
            TurnJournal(shelf, LEASE, queued, keep_file, LongTexts(None, "")), steps.note
        ).next_answer()
    )
    assert sorted(steps.events) == [(0, "look", "not_run"), (1, "look", "unknown")]


def test_each_call_has_its_own_idempotency_key():
    """The same call in one answer, in two answers, or in another event has different keys."""
    journal, other = noted(Shelf()), noted(Shelf(), "e2")
    keys = [journal.begin_call(0), journal.begin_call(1), other.begin_call(0)]
    journal.record_answer(ModelAnswer(Message(Role.ASSISTANT, tool_calls=CALLS), UsageStats()))
    assert len({*keys, journal.begin_call(0), journal.begin_call(1)}) == 5


def test_idempotency_key_is_the_same_in_the_next_attempt():
    """It does not depend on the worker."""
    shelf = Shelf()
    journal = noted(shelf)
    asyncio.run(journal.save())
    assert noted(shelf).begin_call(1) == journal.begin_call(1)


def test_outcome_keeps_usage_and_digest():
    """The next attempt counts the usage, and it can compare the raw result."""
    shelf = Shelf()
    journal = noted(shelf)
    usage = UsageStats(7, 1, 8, 0.1, "cheap", "c")
    outcome = CallOutcome(
        CALLS[0], "[compressed from 900 chars] short", usage=usage, raw_digest="d1"
    )
    asyncio.run(journal.record_outcome(0, outcome))
    asyncio.run(journal.save())
    (recalled,) = known(shelf).values()
    assert (recalled.usage, recalled.raw_digest, recalled.content) == (usage, "d1", outcome.content)


def test_unanswered_call_stays_unclear():
    """The next attempt reports it to the user, and so does a worker that gives the turn up."""
    shelf = Shelf()
    journal = noted(shelf)
    for at, content in enumerate(("fine", "no answer came")):
        asyncio.run(journal.record_outcome(at, CallOutcome(CALLS[at], content, is_unknown=at == 1)))
    asyncio.run(journal.save())
    assert [outcome.is_unknown for outcome in known(shelf).values()] == [False, True]
    queued = QueuedTurn(
        1, 0.0, "ana", turn("go", event="e1"), None, None, "", journal=tuple(shelf.entries)
    )
    assert read_interrupted_run(queued).unknown_outcomes == (CALLS[1],)


def test_cut_outcomes_keep_different_fingerprints():
    """Text beyond the journal's limit still makes a difference."""
    one, other = ("x" * 400_000 + middle + "x" * 200_000 for middle in "ab")
    journal = noted(Shelf())
    kept = [
        asyncio.run(journal.record_outcome(at, CallOutcome(CALLS[at], text)))
        for at, text in enumerate((one, other))
    ]
    assert kept[0].content == kept[1].content
    assert [each.fingerprint for each in kept] == [text_digest(one), text_digest(other)]


def test_entry_of_an_older_version_is_read():
    """An older entry has neither usage nor digest."""
    shelf = Shelf()
    asyncio.run(noted(shelf).save())
    shelf.entries.append('{"call": 0, "content": "fine"}')
    (recalled,) = known(shelf).values()
    assert (recalled.usage, recalled.fingerprint) == (UsageStats(), text_digest("fine"))
