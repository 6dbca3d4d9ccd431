"""How an action ended that other people decide, and how each request about it ended.

Both are read from the audit log, which has the states of an action and the events that led to them.
`sayso audit show`, `sayso trace` and the metrics share what is here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from sayso.pending.approvals.requests import UNDELIVERED
from sayso.pending.approvals.votes import Vote

#: How an action ended that other people decide:
#:
#: * approved: enough people said yes. What became of its effect is another question.
#: * denied: enough people said no.
#: * withdrawn: the asker, or an operator, took it back.
#: * expired: too few people decided in time.
#: * unreachable: too few of those who may decide could be asked.
ApprovalOutcome = Literal["approved", "denied", "withdrawn", "expired", "unreachable"]

#: How a request ended, or where it stands:
#:
#: * on its way: the platform has not taken its message yet.
#: * waits: its person was asked, and did not answer.
#: * answered yes, answered no: the last vote of its person that was counted.
#: * not delivered: the platform did not take its message.
#: * decided elsewhere: other people decided.
#: * withdrawn: the asker took the action back, or nobody else could be asked.
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
    """Return how an action ended by entering a state, None if that is no end of the question.

    * `state`, `decided_by_event`: what the entry of the audit log says.
    * `votes`: all votes about the action.

    | state     | by the event of                       | outcome     |
    |-----------|---------------------------------------|-------------|
    | claimed   | any                                   | approved    |
    | expired   | any                                   | expired     |
    | cancelled | a vote for no                         | denied      |
    | cancelled | a vote for yes: it was refused later  | none        |
    | cancelled | a request that did not arrive         | unreachable |
    | cancelled | any other                             | withdrawn   |
    | any other | any                                   | none        |
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
    """Return why a question was cancelled, None if people had agreed before."""
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
    * `outcome`: how its action ended, None if it did not or that is not known.
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
