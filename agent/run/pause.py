"""What the memory of a conversation has about a run that waits for a person's decision.

The result of a call has a *link* (`ActionLink`) to each pending action that the call proposed. The
call waits while one of these links has no outcome. It is an *open call* if its result has no
content either. A tool whose own code asks has run: its result has content while its action waits.

On a channel, a paused run is stored in its conversation: the history has its calls and results, and
the notes have its RunCounts. A program without a channel stores the whole run instead, as a
`RunSnapshot`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import NO_USAGE, Message, Role, ToolCall, UsageStats, has_valid_types
from sayso.agent.tools.screening import inert_json

#: The key of the RunCounts in the notes of a memory.
PAUSED_RUN = "paused_run"
#: What a model reads as the result of a call that waits, if it is asked before the decision. It is
#: written into each request, and not into the history.
WAITING = json.dumps(
    {
        "outcome": "waiting",
        "note": (
            "The user was asked and has not answered yet. Nothing was done. Do not call it again."
        ),
    }
)
#: The same for a call that other people decide about. It is written into the history when they are
#: asked, because the conversation goes on meanwhile.
WAITING_FOR_OTHERS = json.dumps(
    {
        "outcome": "waiting",
        "note": (
            "Other people decide about this, and were asked. Nothing was done yet. "
            "Do not call it again: its outcome follows here."
        ),
    }
)
#: The user message of a run that goes on, if other messages have followed its open calls.
DECIDED_MESSAGE = (
    "(A call that waited was decided. Its result above says what came of it. Go on from there.)"
)


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What a run goes on counting after a decision: its id, its iterations and its usage.

    The calls that wait are in the history of the conversation. A RunSnapshot is the other form of a
    paused run: it has the messages and calls, too.
    """

    run_id: str
    #: How often the model was asked so far.
    iterations: int
    #: What the run has used so far.
    usage: UsageStats = NO_USAGE
    #: The ids of the pending actions that its calls wait for.
    actions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-ready data."""
        return {
            "run_id": self.run_id,
            "iterations": self.iterations,
            "usage": self.usage.to_dict(),
            "actions": list(self.actions),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunCounts:
        """Return the counts that `to_dict` wrote.

        Raises KeyError, TypeError or ValueError for anything else.
        """
        usage = UsageStats(**data["usage"])
        if not has_valid_types(usage):
            raise TypeError("the usage of a paused run has a field of the wrong type")
        iterations = data["iterations"]
        actions = data["actions"]
        if not isinstance(iterations, int) or not isinstance(actions, list):
            raise TypeError("a paused run has iterations or actions of the wrong type")
        if iterations < 0:
            raise ValueError(f"a paused run has {iterations!r} iterations")
        return cls(
            run_id=str(data["run_id"]),
            iterations=iterations,
            usage=usage,
            actions=tuple(map(str, actions)),
        )


def run_counts_of(memory: ConversationMemory, action_ids: Iterable[str]) -> RunCounts | None:
    """Return the counts of the run that waits for one of these actions.

    Return None if the conversation has no counts of such a run. The run can go on without them, and
    counts from zero.
    """
    counts = _noted_counts(memory)
    if counts is None or set(counts.actions).isdisjoint(action_ids):
        return None
    return counts


def _noted_counts(memory: ConversationMemory) -> RunCounts | None:
    """Return the counts in the notes of a memory; None if they are missing or not valid."""
    data = memory.notes.get(PAUSED_RUN)
    if not isinstance(data, Mapping):
        return None
    try:
        return RunCounts.from_dict(data)
    except (KeyError, TypeError, ValueError):
        return None


def note_run_counts(memory: ConversationMemory, counts: RunCounts) -> None:
    """Store the counts of a paused run with its conversation.

    They replace those of an earlier run: if several runs wait, only the last one counts on.
    """
    memory.notes[PAUSED_RUN] = counts.to_dict()


def rename_actions(memory: ConversationMemory, new_ids: Mapping[str, str]) -> None:
    """Replace the ids of actions in the counts of the paused run: a person has changed a question.

    `new_ids`: the new ids by the earlier ones. The caller replaces the links in the history.
    """
    counts = _noted_counts(memory)
    if counts is not None:
        actions = tuple(new_ids.get(id_, id_) for id_ in counts.actions)
        note_run_counts(memory, replace(counts, actions=actions))


def forget_ended_pause(memory: ConversationMemory) -> None:
    """Delete the counts of the paused run, and the reasoning of all answers in the conversation.

    Vendors need the reasoning of a run until it ends. While any call waits for a decision, nothing
    is deleted.
    """
    if open_actions(memory.get_history()):
        return
    memory.notes.pop(PAUSED_RUN, None)
    memory.drop_reasoning()


def open_actions(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the ids of all actions that results in these messages wait for."""
    ids: list[str] = []
    for message in messages:
        ids += [link.id for link in message.actions if not link.outcome]
    return tuple(ids)


def waiting_id(run_id: str, call_id: str) -> str:
    """Return the id in the link of a result whose call waits for a program's decision.

    On a channel, the link has the id of a pending action instead.
    """
    return f"{run_id}:{call_id}"


def waiting_calls(messages: Iterable[Message]) -> list[ToolCall]:
    """Return the calls of a transcript that wait for a decision."""
    return [call for call, result in _calls_with_results(messages) if open_actions([result])]


def denied_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the calls that were denied since the last message of the user.

    DECIDED_MESSAGE is such a message, too: `RunState.decided` has the calls that were denied just
    before it.
    """
    since = 0
    for at, message in enumerate(messages):
        if message.role is Role.USER:
            since = at
    denied = []
    for call, result in _calls_with_results(messages[since:]):
        if any(link.outcome == "denied" for link in result.actions):
            denied.append(call)
    return denied


def _calls_with_results(messages: Iterable[Message]) -> Iterator[tuple[ToolCall, Message]]:
    """Yield each call of a transcript that has a result, and the result."""
    calls: dict[str, ToolCall] = {}
    for message in messages:
        calls.update({call.id: call for call in message.tool_calls})
        if message.tool_call_id in calls:
            yield calls[message.tool_call_id], message


def with_waiting_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages as a model reads them: the result of an open call says that it waits."""
    shown_messages = []
    for message in messages:
        if _is_open_call(message):
            shown_messages.append(replace(message, content=_waiting_result(message)))
        else:
            shown_messages.append(message)
    return shown_messages


def _waiting_result(message: Message) -> str:
    """Return what a model reads as the result of an open call.

    If its person has changed the arguments, it has the changed ones.
    """
    for link in message.actions:
        if link.arguments is not None:
            entry = {**json.loads(WAITING), "arguments": inert_json(link.arguments)}
            return json.dumps(entry, ensure_ascii=False)
    return WAITING


def _is_open_call(message: Message) -> bool:
    """Return whether a message is the result of a call that waits, and has no content yet."""
    return message.role is Role.TOOL and not message.content and bool(open_actions([message]))
