"""AskedOthers: what other people were asked about an action, and what they answered.

A request stands in the conversation of the person who was asked, and an answer comes from there,
often on another platform and in another shard of Redis. This module collects both for one action.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sayso.channels.types import Conversation, digest
from sayso.ops.checks.audit_trail import AuditTrail
from sayso.ops.checks.stored_conversation import StoredConversation
from sayso.ops.checks.story import (
    TracedEvent,
    TracedReply,
    TracedRequest,
    TracedTurn,
    TracedVote,
)
from sayso.ops.checks.traced_turns import TurnReader, turn_id
from sayso.pending.approvals.endings import ApprovalOutcome, approval_outcome, request_end
from sayso.pending.approvals.requests import (
    END_TIMER,
    ESCALATION_TIMER,
    REMINDER_TIMER,
    UNDELIVERED,
    SentRequest,
)
from sayso.pending.approvals.votes import Vote
from sayso.pending.audit.body_votes import add_votes, read_votes
from sayso.pending.audit.entries import VOTED
from sayso.pending.sharded_scripts import ShardedScripts

#: What the bot does by itself while other people are asked, by the beginning of the event id of the
#: turn in which it does so. The id of the action follows.
_TIMES = {
    REMINDER_TIMER: "those who have not answered are reminded",
    ESCALATION_TIMER: "further people are asked",
    END_TIMER: "the time to decide is over",
}


@dataclass(frozen=True, slots=True)
class OthersStory:
    """What other people were asked about one action, and what they answered."""

    requests: tuple[TracedRequest, ...] = ()
    votes: tuple[TracedVote, ...] = ()
    #: How the question ended, "" while it waits.
    outcome: ApprovalOutcome | str = ""
    #: The turns of the people who were asked, in their conversations.
    turns: tuple[TracedTurn, ...] = ()
    #: Why turns came in that no person sent in this conversation, by the hash of their event.
    causes: Mapping[str, str] = field(default_factory=dict)


class AskedOthers:
    """Finds requests and votes about actions. Lives as long as a command.

    `scripts` read Redis, None for a Redis that is away. Without `show_texts` nothing that it returns
    names a person or has a text. Methods raise redis.RedisError and LedgerUnusable.
    """

    def __init__(
        self,
        scripts: ShardedScripts | None,
        trail: AuditTrail,
        turns: TurnReader,
        *,
        show_texts: bool,
    ) -> None:
        self._scripts = scripts
        self._trail = trail
        self._turns = turns
        self._show_texts = show_texts

    def story(self, action_id: str, stored: Mapping[str, str]) -> OthersStory:
        """Return the story of an action. `stored`: the fields that Redis has of it."""
        # Most actions are decided by their user. To look for requests reads the whole ledger.
        body = self._trail.body(action_id)
        is_for_others = body is not None and (body.is_for_others or body.erased_at is not None)
        if not (stored.get("requests") or is_for_others):
            return OthersStory()

        requests = self._sent_requests(action_id, stored)
        votes = self._votes(action_id, stored)

        outcome = self._outcome(action_id, votes)
        states = self._conversations(requests.values(), votes)
        traced = [self._request(each, states, votes, outcome) for each in requests.values()]
        traced_votes = [self._vote(each, states, action_id) for each in votes]
        turns = [*self._turns_of(requests.values(), votes, states)]
        return OthersStory(
            requests=tuple(sorted(traced, key=_began_at)),
            votes=tuple(traced_votes),
            outcome=outcome or "",
            turns=tuple(turns),
            causes=_causes(action_id, requests, votes),
        )

    def _sent_requests(
        self, action_id: str, stored: Mapping[str, str]
    ) -> Mapping[str, SentRequest]:
        """Return the requests about an action by id: from Redis, and older ones from the ledger."""
        requests: dict[str, SentRequest] = {}
        for request_id, to in self._trail.requests_about(action_id):
            requests[request_id] = SentRequest(request_id, to, person="")
        for entry in _list(stored.get("requests", "")):
            try:
                sent = SentRequest(**{**entry, "to": Conversation(**entry["to"])})
            except (KeyError, TypeError):  # damaged in Redis
                continue
            requests[sent.request_id] = sent
        return requests

    def _votes(self, action_id: str, stored: Mapping[str, str]) -> Sequence[Vote]:
        """Return the votes about an action, from the ledger and from Redis."""
        body = self._trail.body(action_id)
        known = body.votes if body else ""
        lines = add_votes(known or "", stored.get("votes", ""))
        return [line for line in read_votes(lines) if isinstance(line, Vote)]

    def _outcome(self, action_id: str, votes: Sequence[Vote]) -> ApprovalOutcome | None:
        """Return how the question ended, None while it waits."""
        for entry in self._trail.entries(action_id):
            outcome = approval_outcome(entry.event, entry.decided_by_event, votes)
            if outcome:
                return outcome
        return None

    def _conversations(
        self, requests: Collection[SentRequest], votes: Sequence[Vote]
    ) -> Mapping[str, StoredConversation]:
        """Read the conversations in which people were asked and have answered, by id."""
        request_ids: dict[str, list[str]] = {}
        for request in requests:
            request_ids.setdefault(request.to.id, []).append(request.request_id)
        for vote in votes:
            request_ids.setdefault(vote.conversation, [])
        return {
            conversation: StoredConversation.load(self._scripts, conversation, ids)
            for conversation, ids in request_ids.items()
        }

    def _request(
        self,
        sent: SentRequest,
        states: Mapping[str, StoredConversation],
        votes: Sequence[Vote],
        outcome: ApprovalOutcome | None,
    ) -> TracedRequest:
        """Return one request: its message, and how it ended."""
        state = states[sent.to.id]
        entries = self._trail.entries(sent.request_id)
        events = [entry.event for entry in entries]
        newest = state.actions.get(sent.request_id, {}).get("state", "")
        if newest and newest not in events:
            events.append(newest)  # the ledger of another machine has the entry
        closed_at = 0.0
        for entry in entries:
            if entry.event in ("superseded", "expired"):
                closed_at = entry.at / 1000
        reply: TracedReply | None = None
        number = state.question_of(sent.request_id)
        if number:
            reply = self._turns.reply(state, number)
        return TracedRequest(
            sent.request_id,
            conversation=sent.to.id,
            ended=request_end(sent.request_id, events, votes, outcome),
            closed_at=closed_at,
            is_escalation=sent.is_escalation,
            reply=reply,
            events=tuple(TracedEvent(entry.event, entry.at / 1000) for entry in entries),
            person=sent.person if self._show_texts else "",
        )

    def _vote(
        self, vote: Vote, states: Mapping[str, StoredConversation], action_id: str
    ) -> TracedVote:
        """Return one vote, with the turn in which it was given."""
        event = digest(vote.event_id)
        state = states[vote.conversation]
        seq = state.seq_of(event=event)
        counted_at = 0.0
        for entry in self._trail.entries(action_id):
            if entry.event == VOTED and entry.decided_by_event == vote.event_id:
                counted_at = entry.at / 1000
        traced = TracedVote(
            vote.request_id,
            answer=vote.answer,
            form=vote.form,
            at=vote.at,
            counted_at=counted_at,
            by=event,
            turn=turn_id(state, seq) if seq else "",
            question_message_id=vote.question_message_id,
        )
        if not self._show_texts:
            return traced
        return traced.with_texts(vote.person, vote.words, vote.reason)

    def _turns_of(
        self,
        requests: Collection[SentRequest],
        votes: Sequence[Vote],
        states: Mapping[str, StoredConversation],
    ) -> Iterator[TracedTurn]:
        """Yield the turns in which people answered requests, also those that did not count."""
        seqs: dict[str, set[int]] = {conversation: set() for conversation in states}
        for request in requests:
            state = states[request.to.id]
            seqs[request.to.id] |= state.answers_to({request.request_id})
            seqs[request.to.id] |= state.taps_on(request.request_id)
        for vote in votes:
            seqs[vote.conversation].add(
                states[vote.conversation].seq_of(event=digest(vote.event_id))
            )
        for conversation, numbers in seqs.items():
            for seq in sorted(numbers - {0}):
                turn = self._turns.turn(states[conversation], seq)
                if turn:
                    yield turn


def _causes(
    action_id: str, requests: Mapping[str, SentRequest], votes: Sequence[Vote]
) -> Mapping[str, str]:
    """Return why turns came into the conversation of an action, by the hash of their event."""
    causes = {digest(f"{name}:{action_id}"): cause for name, cause in _TIMES.items()}
    for request_id in requests:
        causes[digest(f"{UNDELIVERED}{request_id}")] = f"request {request_id} did not arrive"
    for vote in votes:
        causes[digest(vote.turn_event_id)] = f"the answer to request {vote.request_id}"
    return causes


def _began_at(request: TracedRequest) -> float:
    """Return when a request was stored, for sorting; 0.0 if that is not known."""
    return request.events[0].at if request.events else 0.0


def _list(text: str) -> list[dict[str, Any]]:
    """Return a list that is stored as JSON, [] for a text that is none."""
    try:
        entries = json.loads(text or "[]")
    except ValueError:
        return []
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]
