"""How an action that other people decide ended, and how each request about it ended.

Both follow from the audit log, which has the states of an action and the events that led to them.
`sayso audit show`, `sayso trace` and the metrics use these functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from sayso.pending.approvals.requests import UNDELIVERED
from sayso.pending.approvals.votes import Vote

#: How an action that other people decide ended:
#:
#: * approved: enough people said yes. It does not say whether the tool succeeded then.
#: * denied: enough people said no.
#: * withdrawn: the asker, or an operator, took it back.
#: * expired: too few people decided in time.
#: * unreachable: too few of those who may decide could be asked.
ApprovalOutcome = Literal["approved", "denied", "withdrawn", "expired", "unreachable"]

#: How a request ended, or how far it is:
#:
#: * on its way: the platform has not accepted the message yet.
#: * waits: the person was asked and has not answered.
#: * answered yes, answered no: the last counted vote that answered the request.
#: * not delivered: the platform did not accept the message.
#: * decided elsewhere: other people decided.
#: * withdrawn: the asker took the action back, or too few people could be asked.
#: * expired: the time to decide is over.
#: * lost: Redis lost data, or was restored from a backup.
RequestEnd = Literal[
    "on its way",
    "waits",
    "answered yes",
    "answered no",
    "not delivered",
    "decided elsewhere",
    "withdrawn",
    "expired",
    "lost",
]


def approval_outcome(
    state: str, decided_by_event: str, votes: Iterable[Vote]
) -> ApprovalOutcome | None:
    """Return how an action ended when it entered a state, None if its question did not end so.

    * `state`: the state that the action entered, from the entry of the audit log.
    * `decided_by_event`: the event that led to it, from the same entry.
    * `votes`: all votes about the action.

    | state     | by the event of                       | outcome     |
    |-----------|---------------------------------------|-------------|
    | claimed   | any                                   | approved    |
    | expired   | any                                   | expired     |
    | cancelled | a vote for no                         | denied      |
    | cancelled | a vote for yes (see below)            | none        |
    | cancelled | a request that did not arrive         | unreachable |
    | cancelled | any other                             | withdrawn   |
    | any other | any                                   | none        |

    An action that people agreed to may be cancelled before it runs, such as after a change of its
    tool. The event of that entry is the last yes.
    """
    match state:
        case "claimed":
            return "approved"
        case "expired":
            return "expired"
        case "cancelled":
            return _why_cancelled(decided_by_event, votes)
    return None


def _why_cancelled(decided_by_event: str, votes: Iterable[Vote]) -> ApprovalOutcome | None:
    """Return the outcome of a cancelled action, None if people had agreed before."""
    for vote in votes:
        if vote.turn_event_id == decided_by_event:
            return "denied" if vote.answer == "no" else None
    if decided_by_event.startswith(UNDELIVERED):
        return "unreachable"
    return "withdrawn"


def request_end(
    request_id: str,
    events: Collection[str],
    votes: Iterable[Vote],
    outcome: ApprovalOutcome | None,
) -> RequestEnd:
    """Return how a request ended.

    * `events`: the states of the request, the oldest first.
    * `votes`: all votes about its action.
    * `outcome`: how its action ended; None if it has not ended, and if that is not known.
    """
    answers = [vote.answer for vote in votes if vote.request_id == request_id]
    if answers:
        return "answered yes" if answers[-1] == "yes" else "answered no"

    was_shown = "shown" in events
    if "unknown" in events:
        return "lost"
    if "expired" in events:
        return "expired" if was_shown else "not delivered"
    if "superseded" in events:
        return "withdrawn" if outcome in ("withdrawn", "unreachable") else "decided elsewhere"
    return "waits" if was_shown else "on its way"
