"""ShownEntry: an entry of the audit log as `sayso audit show` lists it, with what belongs to it.

A request, in which one person is asked about the action of another one, is an action of its own in
the log. It is listed as one entry, with how it ended, so that it does not look like an action that
somebody answered.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sayso.pending.approvals.endings import (
    ApprovalOutcome,
    RequestEnd,
    approval_outcome,
    request_end,
)
from sayso.pending.approvals.requests import ANYONE, RequestedAction
from sayso.pending.approvals.votes import Vote
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.entries import VOTED, AuditEntry
from sayso.pending.audit.ledger import AuditLedger


@dataclass(frozen=True, slots=True)
class ShownChange:
    """What a person changed of an earlier action, to make this one."""

    #: The id of the earlier action.
    changes_of: str
    #: The old and the new value of each argument that differs, by name.
    changed: Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """Who was asked about an action, where, and how that ended."""

    #: The id of the action that the request asks about.
    request_of: str
    #: The platform's id of the person, "" for a group.
    asked: str
    #: The name of the channel.
    on: str
    ended: RequestEnd

    def words(self) -> str:
        """Return it in words, such as `asked U2 on team, ended: decided elsewhere`."""
        who = self.asked or "a group"
        if self.ended in ("waits", "on its way"):
            return f"asked {who} on {self.on}: {self.ended}"
        return f"asked {who} on {self.on}, ended: {self.ended}"


@dataclass(frozen=True, slots=True)
class ShownVote:
    """The vote of one person. A person who was erased has no ids and no answer."""

    #: The configured name of the person, or their channel and id.
    person: str = ""
    user_id: str = ""
    channel: str = ""
    answer: str = ""
    #: `tap` or `words`.
    form: str = ""
    #: The platform's id of the message that was tapped or quoted, "" for none.
    question_message_id: str = ""
    #: The id of the request that was answered.
    request_id: str = ""

    def words(self) -> str:
        """Return it in words, such as `bea said yes by tap on team`."""
        if not self.answer:
            return "(erased)"
        how = "by tap" if self.form == "tap" else "in words"
        return f"{self.person} said {self.answer} {how} on {self.channel}"


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """One entry with the body of its action; None for what does not belong to it."""

    entry: AuditEntry
    body: AuditBody | None
    change: ShownChange | None = None
    request: ShownRequest | None = None
    vote: ShownVote | None = None


def shown_entries(
    ledger: AuditLedger, *, action: str = "", user: str = "", last: int
) -> list[ShownEntry]:
    """Return the newest entries of an action and of a user, the oldest first; "" stands for all.

    The entries of an action include the requests about it, those of a user the user's votes. At
    most `last` are returned. Raises LedgerUnusable.
    """
    listing = _Listing(ledger.bodies())
    chosen = [each for each in listing.read(ledger) if listing.is_chosen(each, action, user)]
    newest = heapq.nlargest(last, chosen, key=lambda entry: (entry.at, entry.number))
    return [listing.shown(entry) for entry in reversed(newest)]


class _Listing:
    """The entries of a ledger, and what is needed to show them. Lives for one list."""

    def __init__(self, bodies: Mapping[str, AuditBody]) -> None:
        self._bodies = bodies
        self._requests: dict[str, RequestedAction] = {}
        for action_id, body in bodies.items():
            if body.requested:
                self._requests[action_id] = body.requested
        self._asked_about = {each.action_id for each in self._requests.values()}
        #: The entries of requests, and of the actions that they are about, by action id.
        self._entries: defaultdict[str, list[AuditEntry]] = defaultdict(list)

    def read(self, ledger: AuditLedger) -> Iterator[AuditEntry]:
        """Yield all entries of the ledger, and remember those that requests need."""
        for recorded in ledger.entries():
            entry = recorded.entry
            if entry is None:
                continue
            if entry.action_id in self._requests or entry.action_id in self._asked_about:
                self._entries[entry.action_id].append(entry)
            yield entry

    def is_chosen(self, entry: AuditEntry, action: str, user: str) -> bool:
        """Return whether an entry is listed. Of a request, the first entry stands for all."""
        requested = self._requests.get(entry.action_id)
        if requested and entry.event != "armed" and action != entry.action_id:
            return False
        action_ids = {entry.action_id}
        if requested:
            action_ids.add(requested.action_id)
        if action and action not in action_ids:
            return False
        return not user or self._is_of_user(entry, user)

    def _is_of_user(self, entry: AuditEntry, user: str) -> bool:
        """Return whether an entry is of this user's action, or is this user's vote."""
        body = self._bodies.get(entry.action_id)
        if body is None:
            return False
        vote = self._vote_of(entry)
        return body.user == user or (vote is not None and user in vote.user_ids)

    def shown(self, entry: AuditEntry) -> ShownEntry:
        """Return an entry with what belongs to it."""
        body = self._bodies.get(entry.action_id)
        request = None
        vote = None
        if entry.action_id in self._requests:
            request = self._request(entry.action_id)
        if entry.event == VOTED:
            vote = self._shown_vote(entry)
        return ShownEntry(entry, body, self._change(body), request, vote)

    def _request(self, request_id: str) -> ShownRequest:
        requested = self._requests[request_id]
        body = self._bodies[request_id]
        asked = body.user or ""
        home = self._bodies.get(requested.action_id)
        votes = home.known_votes if home else ()
        events = [entry.event for entry in self._entries[request_id]]
        ended = request_end(request_id, events, votes, self._outcome(requested.action_id, votes))
        return ShownRequest(
            requested.action_id,
            asked="" if asked == ANYONE else asked,
            on=body.channel,
            ended=ended,
        )

    def _outcome(self, action_id: str, votes: tuple[Vote, ...]) -> ApprovalOutcome | None:
        """Return how the action ended that a request is about, None while it waits."""
        for entry in self._entries[action_id]:
            outcome = approval_outcome(entry.event, entry.decided_by_event, votes)
            if outcome:
                return outcome
        return None

    def _vote_of(self, entry: AuditEntry) -> Vote | None:
        """Return the vote that an entry records, None for another entry and for an erased vote."""
        body = self._bodies.get(entry.action_id)
        if body is None or entry.event != VOTED:
            return None
        for vote in body.known_votes:
            if vote.event_id == entry.decided_by_event:
                return vote
        return None

    def _shown_vote(self, entry: AuditEntry) -> ShownVote:
        vote = self._vote_of(entry)
        if vote is None:
            return ShownVote()
        return ShownVote(
            vote.person,
            vote.user_id,
            vote.channel,
            vote.answer,
            vote.form,
            vote.question_message_id,
            vote.request_id,
        )

    def _change(self, body: AuditBody | None) -> ShownChange | None:
        """Return what a user changed to make this action, None if no user did."""
        if body is None or not body.changes_of:
            return None
        earlier = self._bodies.get(body.changes_of)
        old_values = earlier.editable if earlier else {}
        changed = {}
        for name, old in old_values.items():
            if name in body.editable and body.editable[name] != old:
                changed[name] = [old, body.editable[name]]
        return ShownChange(body.changes_of, changed)
