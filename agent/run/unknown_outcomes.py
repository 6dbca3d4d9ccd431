"""Calls whose outcome is unknown: they may have taken effect or not.

A worker may die during a call, the called service may never answer, and a call may take longer than
its time limit. Such a call is never repeated without a yes: the user was told that it is not. This
module has the text that a model reads as the result, finds these calls in a transcript, and writes
the reason why a further, identical call is proposed first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from sayso.agent.decisions import UNKNOWN_NOTE
from sayso.agent.messages import Message, Role, ToolCall

#: How the result of a call begins whose outcome is unknown.
_RESULT_START = '{"outcome": "unknown"'
#: How the result of a call begins that failed, or was refused.
_ERROR_START = "Error"
#: Why a call that the policy allows is proposed all the same.
MAY_HAVE_RUN = "the outcome of an earlier, identical call is unknown: it may have taken effect"
#: The same reason with the time of the earlier call, in UTC.
_MAY_HAVE_RUN_AT = re.compile(re.escape(f"{MAY_HAVE_RUN} at ") + r"(\S+)")


def unknown_outcome_result(error: str = "") -> str:
    """Return what a model reads as the result of a call whose outcome is unknown, as JSON.

    It has the form of the outcomes of calls that were proposed first. `error` says what went wrong,
    "" if nothing is known.
    """
    entry = {"outcome": "unknown"}
    if error:
        entry["error"] = error
    entry["note"] = UNKNOWN_NOTE
    return json.dumps(entry, ensure_ascii=False)


#: The result of a call that a worker had started when the worker died or was stopped.
UNKNOWN_OUTCOME = unknown_outcome_result()


class CallWithUnknownOutcome(NamedTuple):
    """A call whose outcome is unknown, and when it was made."""

    call: ToolCall
    #: In Unix seconds; 0 if the time is unknown, too.
    at: float


def calls_with_unknown_outcome(messages: Iterable[Message]) -> list[CallWithUnknownOutcome]:
    """Return the calls of a transcript that ran at once and whose outcome is still unknown.

    A later call of the same tool with the same arguments that certainly took effect makes the
    outcome known.
    """
    calls_by_id: dict[str, ToolCall] = {}
    # By tool and arguments, so that a later call of the same replaces an earlier one.
    unknown: dict[str, CallWithUnknownOutcome] = {}
    for message in messages:
        calls_by_id.update({call.id: call for call in message.tool_calls})
        call = calls_by_id.get(message.tool_call_id)
        if message.role is not Role.TOOL or call is None:
            continue

        same_call = json.dumps([call.tool_name, call.parameters], sort_keys=True, default=str)
        ran_at_once = not message.actions
        if ran_at_once and message.content.startswith(_RESULT_START):
            unknown[same_call] = CallWithUnknownOutcome(call, message.at)
            continue
        # True of a call that ran at once as well: it has no actions.
        are_actions_done = all(link.outcome == "done" for link in message.actions)
        if are_actions_done and not message.content.startswith(_ERROR_START):
            unknown.pop(same_call, None)
    return list(unknown.values())


def may_have_run_reason(at: float) -> str:
    """Return why a call is proposed that the policy allows: an identical one may have run.

    `at` is the time of that earlier call in Unix seconds, 0 if it is unknown.
    """
    if not at:
        return MAY_HAVE_RUN
    return f"{MAY_HAVE_RUN} at {datetime.fromtimestamp(round(at), UTC).isoformat()}"


def time_in_reason(reason: str) -> float | None:
    """Return the time of the earlier call that a reason names, in Unix seconds; 0 if it names none.

    `reason` is that of a proposal. Return None unless `may_have_run_reason` wrote it.
    """
    with_time = _MAY_HAVE_RUN_AT.fullmatch(reason)
    if with_time:
        return datetime.fromisoformat(with_time[1]).timestamp()
    if reason == MAY_HAVE_RUN:
        return 0.0
    return None
