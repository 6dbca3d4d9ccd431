"""Judge: the promises that hold for every run, whatever happens in it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

from sayso.agent import AgentResult, Message, Role
from sayso.agent.run.long_results import shorten_for_history
from sayso.agent.run.pause import open_actions
from tests.agent.faults.story import Account

#: The documented exceptions of a run: its own cancellation only (Agent.arun).
DOCUMENTED = (asyncio.CancelledError,)

#: The events that end a run.
ENDS = ("run_end", "error", "cancelled")


class Broken(AssertionError):
    """Raised when a promise is broken."""


def judge(account: Account) -> None:
    """Check all promises of a run. Raises Broken."""
    _check_what_was_raised(account)
    for result in account.results:
        check_transcript(result.messages)
        _check_result(account, result)
    _check_memory(account)
    _check_usage(account)
    _check_events(account)
    demand(not account.tasks_left, f"left running: {account.tasks_left}")
    demand(not account.complaints, f"the loop complains: {account.complaints}")


def demand(kept: object, promise: str) -> None:
    """Raise Broken with the promise unless it was kept."""
    if not kept:
        raise Broken(promise)


def check_transcript(messages: Sequence[Message]) -> None:
    """Check that a user begins, the assistant ends, and each call is answered once, in order, after its message.

    A transcript with a call that waits for a decision ends with the results of that answer.
    """
    demand(messages and messages[0].role is Role.USER, "a transcript begins with its user")
    last = messages[-1]
    if open_actions(messages):
        demand(last.role is Role.TOOL, "a paused transcript ends with the call that waits")
    else:
        demand(
            last.role is Role.ASSISTANT and not last.tool_calls, "a transcript ends with a reply"
        )
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        json.dumps(message.to_dict(), allow_nan=True)
        if message.role is Role.TOOL:
            demand(
                waiting[:1] == [message.tool_call_id],
                f"a result that nobody waits for: {message!r}"[:500],
            )
            waiting.pop(0)
            continue
        demand(not waiting, f"calls without results: {waiting}")
        waiting = [call.id for call in message.tool_calls]
        demand(all(isinstance(each, str) and each for each in waiting), f"no ids: {waiting}")
        demand(
            len({*waiting}) == len(waiting) and seen.isdisjoint(waiting), f"ids twice: {waiting}"
        )
        seen.update(waiting)
    demand(not waiting, f"calls without results at the end: {waiting}")


def _check_what_was_raised(account: Account) -> None:
    error = account.raised
    if error is None:
        demand(account.results or account.left_early, "no result, and nobody left")
        return
    if not isinstance(error, DOCUMENTED):
        raise Broken(f"raised {type(error).__name__}") from error
    demand(account.left_early, "cancelled by nobody")


def _check_result(account: Account, result: AgentResult) -> None:
    demand(0 <= result.iterations <= account.max_iterations, f"{result.iterations} steps")
    demand(isinstance(result.content, str), "a reply is a text")
    demand(result.stop_reason != "error", f"a run of a batch broke: {result.content}"[:500])
    json.dumps(result.trace.to_dict(), default=str)
    result.trace.timeline()
    routed = result.stop_reason == "routing"
    called = [call.id for message in result.messages for call in message.tool_calls]
    demand(
        routed or called == [call.id for call in result.tool_calls],
        "tool_calls are those of the transcript",
    )


def _check_memory(account: Account) -> None:
    """Check that a run that ended is in the memory as a whole, and no other run is."""
    before, after = account.before, account.after
    ended = [args[1] for event, args in account.events if event == "run_end"]
    if account.memory is None:
        return
    if account.door in ("batch", "abatch") or not ended:
        # A session may have been saved before its run was cancelled.
        demand(
            after == before or account.has_session, "a run that did not end has changed the memory"
        )
        return
    # A history has a long result with its beginning and end alone.
    whole = [*before, *shorten_for_history(ended[0].messages)]
    demand(after and after == whole[-len(after) :], "the memory has something else than the run")
    limits = account.memory
    demand(
        len(after) == len(whole) or len(whole) > limits.max_messages or limits.max_tokens,
        "it forgot too much",
    )
    check_transcript_of_many(after)


def check_transcript_of_many(messages: Sequence[Message]) -> None:
    """Check a memory of several runs exchange by exchange; ids are unique within each exchange."""
    starts = [at for at, each in enumerate(messages) if each.role is Role.USER]
    demand(starts[:1] == [0], "a memory begins with a user")
    for begin, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        check_transcript(messages[begin:end])


def _check_usage(account: Account) -> None:
    """Check that all answers of the models are counted once, and cached ones again."""
    if account.raised is not None or account.left_early:
        return
    replayed = sum(
        step.prompt_tokens or 0
        for result in account.results
        for step in result.trace.filter("cache_hit")
    )
    counted = sum(result.usage.prompt_tokens for result in account.results)
    if account.may_miss and any(result.stop_reason == "cancelled" for result in account.results):
        return
    demand(
        counted == account.billed + replayed,
        f"{counted} tokens counted, {account.billed} + {replayed} used",
    )


def _check_events(account: Account) -> None:
    """Check that a run and each of its calls start and end once, unless the run was cancelled."""
    per_run: dict[str, list[tuple[str, tuple[object, ...]]]] = {}
    for event, (run_id, *args) in account.events:
        if not event.startswith("batch"):
            per_run.setdefault(str(run_id), []).append((event, tuple(args)))
    for events in per_run.values():
        _check_life([event for event, _ in events])
        _check_calls(events)


def _check_life(events: Sequence[str]) -> None:
    """Check for one start and one end. A cancellation or failure is reported before the result."""
    counts = Counter(events)
    demand(
        counts["run_start"] == 1 and events[0] == "run_start",
        f"began {counts['run_start']} times: {events}",
    )
    demand(all(counts[end] <= 1 for end in ENDS), f"two ends: {events}")
    demand(any(counts[end] for end in ENDS), f"no end: {events}")
    demand("run_end" not in events[:-1], f"something happened after the end: {events}")


def _check_calls(events: Sequence[tuple[str, tuple[object, ...]]]) -> None:
    begun = Counter(args[0] for event, args in events if event == "tool_start")
    ended = Counter(args[0] for event, args in events if event in ("tool_end", "tool_error"))
    demand(
        all(count == 1 for count in (*begun.values(), *ended.values())),
        f"begun {begun}, ended {ended}",
    )
    stopped = any(event == "cancelled" for event, _ in events)
    demand(stopped or begun.keys() <= ended.keys(), f"begun {begun}, ended {ended}")
