"""What operators see of actions that other people decide: a log line for each step, and counters.

Lines have ids and reasons from fixed lists, and never the words of a person. How questions ended, and the
votes that counted, are counted from the audit log (`sayso.pending.audit.collector`), once each.
Here is counted what that log does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

from sayso.infra.metrics import APPROVALS, VOTES_REFUSED, label_value
from sayso.pending.approvals.endings import ApprovalOutcome
from sayso.pending.approvals.requests import SentRequest
from sayso.pending.approvals.votes import Tally, Vote
from sayso.pending.stored_action import StoredAction

log = logging.getLogger(__name__)

#: Why an answer to a request does not count:
#:
#: * not_yours: the button is in a request to another person.
#: * stale_button: the button is forged, or of a key that was retired.
#: * changed: the action or the request was changed in Redis.
#: * early: the question, or the notice of the asker, was not delivered yet.
#: * over: the action was decided, withdrawn, or its time is over.
#: * own_request: the person asked for the action.
#: * not_a_decider: the rule does not name the person.
#: * too_many: the account has answered about this action too often. Its person is not told.
#: * directory_unavailable: a platform does not say who is in a group.
#: * tampered: the vote was changed on its way.
RefusalReason = Literal[
    "not_yours",
    "stale_button",
    "changed",
    "early",
    "over",
    "own_request",
    "not_a_decider",
    "too_many",
    "directory_unavailable",
    "tampered",
]


def log_sent_requests(action_id: str, requests: Iterable[SentRequest]) -> None:
    """Log the requests about an action that the answer to this turn sends."""
    for request in requests:
        log.info(
            "request.sent",
            extra={"action": action_id, "request": request.request_id, "to": request.to.id},
        )


def log_undelivered_request(action_id: str, request_id: str) -> None:
    """Log that a platform did not take a request."""
    log.warning("request.undelivered", extra={"action": action_id, "request": request_id})


def log_reminders(action_id: str, count: int) -> None:
    """Log that those who have not answered are reminded. `count`: of messages."""
    log.info("request.reminded", extra={"action": action_id, "requests": count})


def log_escalation(action_id: str, count: int) -> None:
    """Log that further people are asked. `count`: of requests."""
    log.info("request.escalated", extra={"action": action_id, "requests": count})


def log_unavailable_directory(action_id: str, error: Exception) -> None:
    """Log that it is not known who may decide. The error names a group, and no person."""
    log.warning("request.directory_unavailable", extra={"action": action_id, "reason": str(error)})


def log_sent_vote(vote: Vote) -> None:
    """Log that an answer goes to the conversation of the action."""
    log.info("vote.sent", extra={"action": vote.action_id, "request": vote.request_id})


def log_counted_vote(vote: Vote, counted: Tally, need: int) -> None:
    """Log a vote that was stored, and how many people have agreed and refused now."""
    log.info(
        "vote.counted",
        extra={
            "action": vote.action_id,
            "request": vote.request_id,
            "answer": vote.answer,
            "form": vote.form,
            "yes": len(counted.yes),
            "no": len(counted.no),
            "need": need,
        },
    )


def log_refused_vote(
    channel: str, reason: RefusalReason, *, action_id: str = "", request_id: str = ""
) -> None:
    """Log and count an answer that does not count. `channel` is that of its person."""
    ids = {"action": action_id, "request": request_id}
    extra = {name: value for name, value in ids.items() if value}
    log.info("vote.refused", extra={**extra, "reason": reason})
    VOTES_REFUSED.labels(label_value("channel", channel), reason).inc()


def log_tampered_vote(action_id: str, channel: str) -> None:
    """Log and count a vote without a genuine seal. `channel` is that of the action."""
    log.error("vote.tampered", extra={"action": action_id})
    VOTES_REFUSED.labels(label_value("channel", channel), "tampered").inc()


def log_decision(stored: StoredAction, outcome: ApprovalOutcome) -> None:
    """Log how the question about a stored action ended."""
    if outcome == "unreachable":
        log.warning("approval.unreachable", extra={"action": stored.action_id})
    else:
        log.info("approval.decided", extra={"action": stored.action_id, "outcome": outcome})


def log_unasked_action(tool: str, channel: str) -> None:
    """Log and count a call that was not stored, because no person could be asked about it."""
    log.warning("approval.unreachable", extra={"tool": tool})
    APPROVALS.labels(label_value("channel", channel), "unreachable").inc()
