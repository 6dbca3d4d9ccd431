"""ApprovalErasure: remove what other people's records hold of one person who asked or decided.

An action that other people decide leaves traces of one person in the records of others:

| of the person who asked              | of a person who was asked or decided                   |
|--------------------------------------|--------------------------------------------------------|
| the requests about the action        | their votes, stored with the action and on their way   |
| requests that wait to be sent        | that they were asked, stored with the action           |
| undelivered requests                 | the text with their name in which requests ended       |

What people were told stays in their conversations, such as who agreed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.client import Pipeline

from sayso.channels.types import Conversation, digest
from sayso.pending.approvals.requests import REQUEST_KIND, RequestedAction
from sayso.pending.approvals.votes import Vote
from sayso.workers.queue_entries import InboxEntry, OutboxEntry

#: Lists of undelivered replies, for all conversations of a shard.
UNDELIVERED_LISTS = ("dead", "failed", "ambiguous")


@dataclass(frozen=True, slots=True)
class _StoredRequest:
    """A request in the conversation of a person who was asked."""

    request_id: str
    key: str
    #: What it says of the action, None for a damaged record.
    requested: RequestedAction | None
    #: The id of the conversation in which it stands.
    conversation: str
    #: Whether it was sent to the person who is erased.
    is_to_person: bool


@dataclass(slots=True)
class _Found:
    """What one look at all actions has found of a person."""

    requests: list[_StoredRequest] = field(default_factory=list)
    #: The keys of actions that have votes or requests.
    decided_by_others: list[str] = field(default_factory=list)


class ApprovalErasure:
    """Erases one person from the records of others. Lives as long as an erasure.

    * `client`: a client of Redis that answers in texts.
    * `prefix`: the beginning of the bot's keys.
    * `channel`, `users`: the channel of the person, and the scope ids of all their user ids.
    * `conversations`: the ids of the conversations that are theirs alone.
    """

    def __init__(
        self,
        client: Any,
        prefix: str,
        *,
        channel: str,
        users: Collection[str],
        conversations: Collection[str],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._channel = channel
        self._users = users
        self._conversations = conversations

    def erase(self) -> int:
        """Remove it. Return how many keys, fields and entries. Raises redis.RedisError."""
        found = self._find()
        asked_by_person = [each for each in found.requests if self._is_asker(each.requested)]
        to_person = [each for each in found.requests if each.is_to_person]

        count = 0
        for key in found.decided_by_others:
            count += self._erase_from_action(key, to_person, found.requests)
        for request in asked_by_person:
            count += self._erase_undelivered(request)
            count += int(self._client.delete(request.key))
        count += self._erase_waiting({request.request_id for request in asked_by_person})
        return count

    def _find(self) -> _Found:
        """Look at all stored actions."""
        found = _Found()
        for key in self._keys("{*}:pending:*"):
            kind, user, record, votes, requests = self._client.hmget(
                key, "kind", "user", "record", "votes", "requests"
            )
            if kind == REQUEST_KIND:
                found.requests.append(self._request(key, user, record))
            elif votes or requests:
                found.decided_by_others.append(key)
        return found

    def _request(self, key: str, user: str, record: str) -> _StoredRequest:
        fields = _object(record)
        channel = str(fields.get("channel_id", ""))
        place = Conversation(channel, str(fields.get("conversation_id", "")))
        try:
            requested = RequestedAction.from_args(fields["args"])
        except (KeyError, TypeError, ValueError):
            requested = None
        return _StoredRequest(
            key.rpartition(":")[2],
            key,
            requested,
            place.id,
            is_to_person=channel == self._channel and user in self._users,
        )

    def _is_asker(self, requested: RequestedAction | None) -> bool:
        """Return whether the person asked for the action of a request."""
        if requested is None or requested.home.channel != self._channel:
            return False
        return any(digest(str(each)) in self._users for each in requested.asker_ids)

    def _is_voter(self, vote: Vote) -> bool:
        """Return whether a vote is the person's."""
        if vote.channel != self._channel:
            return False
        return any(digest(str(each)) in self._users for each in vote.user_ids)

    def _erase_from_action(
        self,
        key: str,
        to_person: Iterable[_StoredRequest],
        all_requests: Iterable[_StoredRequest],
    ) -> int:
        """Remove the person's votes and requests from an action. Return how many.

        If they voted, the texts in which the action and the requests ended may have their name.
        """
        request_ids = {request.request_id for request in to_person}
        own_votes = [vote for vote in self._votes_of(key) if self._is_voter(vote)]
        count = 0
        if own_votes:
            count += self._change(key, "votes", self._without_votes)
            if any(vote.answer == "no" for vote in own_votes):
                count += int(self._client.hdel(key, "outcome_text"))
            action_id = key.rpartition(":")[2]
            for request in all_requests:
                if request.requested and request.requested.action_id == action_id:
                    count += int(self._client.hdel(request.key, "outcome_text"))

        def without_requests(text: str) -> str:
            """Return the requests of the action that went to other people."""
            kept = [
                each
                for each in _list(text)
                if each.get("request_id") not in request_ids and not self._is_own(each.get("to"))
            ]
            return json.dumps(kept)

        return count + self._change(key, "requests", without_requests)

    def _votes_of(self, key: str) -> Iterator[Vote]:
        """Yield the readable votes about an action."""
        for line in (self._client.hget(key, "votes") or "").splitlines():
            vote = _vote(line)
            if vote:
                yield vote

    def _without_votes(self, lines: str) -> str:
        """Return stored votes without those of the person."""
        kept = []
        for line in lines.splitlines():
            vote = _vote(line)
            if vote is None or not self._is_voter(vote):
                kept.append(line)
        return "\n".join(kept)

    def _change(self, key: str, name: str, change: Callable[[str], str]) -> int:
        """Change a field of an action, and return 1 if that made a difference.

        A worker may add a vote at the same time: then it is read and changed once more.
        """
        changed = 0

        def change_once(pipe: Pipeline) -> None:
            nonlocal changed
            changed = 0
            before = str(pipe.hget(key, name) or "")
            after = change(before) if before else ""
            pipe.multi()
            if after == before:
                return
            changed = 1
            if after:
                pipe.hset(key, name, after)
            else:
                pipe.hdel(key, name)

        self._client.transaction(change_once, key)
        return changed

    def _erase_undelivered(self, request: _StoredRequest) -> int:
        """Remove a request from the lists of undelivered replies."""
        shard = request.key.removeprefix(self._prefix).partition(":")[0]
        conversation_key = f"{self._prefix}{shard}:conversation:{request.conversation}"
        fields: Mapping[str, str] = self._client.hgetall(conversation_key)
        numbers = [
            name.removeprefix("asks:")
            for name, action_id in fields.items()
            if name.startswith("asks:") and action_id == request.request_id
        ]
        ids = {f"{request.conversation}#{number}" for number in numbers}
        count = 0
        for kind in UNDELIVERED_LISTS:
            count += self._remove(
                f"{self._prefix}{shard}:{kind}", lambda entry: _object(entry).get("id") in ids
            )
        return count

    def _erase_waiting(self, request_ids: Collection[str]) -> int:
        """Remove what waits in other conversations: requests, and what goes to the person.

        `request_ids`: of the requests about the person's own actions.
        """

        def is_in_outbox(entry: str) -> bool:
            try:
                waiting = OutboxEntry.parse(entry)
            except ValueError:
                return False
            record = _object(waiting.record)
            is_forward = bool(record.get("forward"))
            if waiting.action_id in request_ids or (is_forward and self._is_own(record.get("to"))):
                return True
            return self._is_own_vote(str(record.get("turn", "")))

        def is_in_inbox(entry: str) -> bool:
            try:
                return self._is_own_vote(InboxEntry.parse(entry).turn)
            except ValueError:
                return False

        count = 0
        for key in self._keys("{*}:outbox:*"):
            count += self._remove(key, is_in_outbox)
        for key in self._keys("{*}:inbox:*"):
            count += self._remove(key, is_in_inbox)
        return count

    def _is_own(self, to: Any) -> bool:
        """Return whether an address, as a list or an object, is a conversation of the person."""
        try:
            place = Conversation(**to) if isinstance(to, dict) else Conversation(*to)
        except TypeError:
            return False
        return place.id in self._conversations

    def _is_own_vote(self, turn: str) -> bool:
        """Return whether a turn, as JSON, brings a vote of the person."""
        vote = _vote(str(_object(turn).get("request_event", "")))
        return vote is not None and self._is_voter(vote)

    def _remove(self, key: str, is_theirs: Callable[[str], bool]) -> int:
        """Remove the entries of a list for which `is_theirs` is true. Return how many."""
        entries = [entry for entry in self._client.lrange(key, 0, -1) if is_theirs(entry)]
        return sum(int(self._client.lrem(key, 0, entry)) for entry in entries)

    def _keys(self, pattern: str) -> list[str]:
        return list(self._client.scan_iter(f"{self._prefix}{pattern}", count=1000))


def _vote(line: str) -> Vote | None:
    """Return a vote in JSON, None for a text that is none."""
    try:
        return Vote.from_json(line)
    except (ValueError, TypeError, RecursionError):
        return None


def _list(text: str) -> list[dict[str, Any]]:
    """Return a list of objects in JSON, [] for a text that is none."""
    try:
        entries = json.loads(text)
    except ValueError:
        return []
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]


def _object(text: str) -> Mapping[str, Any]:
    """Return an object in JSON, {} for a text that is none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
