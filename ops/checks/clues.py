"""ClueSearch: what an id that an operator has leads to, found in Redis and in the audit log.

The id may be one of Sayso's or of a platform: of a message, a turn, a reply, an action, an audit
entry, or a reference that a person was told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from redis import Redis

from sayso.channels.types import digest
from sayso.ops.checks.audit_trail import AuditTrail
from sayso.ops.checks.stored_conversation import StoredConversation
from sayso.ops.checks.stored_json import stored_fields
from sayso.pending.approvals.requests import REQUEST_KIND, RequestedAction
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts
from sayso.workers.queue_entries import DeliveryEntry

#: The id of a conversation: its channel, and a hash.
_CONVERSATION = r"[A-Za-z0-9_.-]{1,64}:[0-9a-f]{20}"
#: A conversation, one of its replies (`#`), or one of its turns (`@`).
_PLACE = re.compile(
    rf"(?P<conversation>{_CONVERSATION})(?:#(?P<number>\d{{1,15}})|@(?P<seq>\d{{1,15}}))?"
)
#: An entry of the audit log, as `3/17` or as messages name it.
_ENTRY = re.compile(r"(?:shard )?(?P<shard>\d{1,2})(?:, entry |[:/])(?P<n>\d{1,15})")
#: The key that remembers an event of a platform.
_EVENT = re.compile(rf"\{{\d+\}}:event:(?P<conversation>{_CONVERSATION}):(?P<event>[0-9a-f]{{20}})")
#: The key with the last deliveries of a conversation.
_DELIVERY = re.compile(rf"\{{\d+\}}:delivery:(?P<conversation>{_CONVERSATION})")
#: The hash of an event's id.
_HASH = re.compile(r"[0-9a-f]{20}")
#: The id of an action.
_ACTION_ID = re.compile(r"[A-Za-z0-9_-]{22}")
#: How many keys one SCAN of Redis looks at.
_SCAN_COUNT = 1000
#: Of how many conversations the deliveries are read at once.
_READ_COUNT = 500
#: The shortest text that is searched among the references in outcomes that people were told. A
#: shorter one would match many.
_MIN_REFERENCE = 8


@dataclass(frozen=True, slots=True)
class Clue:
    """What an id leads to: a turn, a reply or an action. 0 and "" stand for nothing."""

    conversation: str = ""
    #: The number of a turn in its conversation.
    seq: int = 0
    #: The hash of the turn's event, if it is known.
    event: str = ""
    #: The number of a reply in its conversation.
    number: int = 0
    action_id: str = ""


class ClueSearch:
    """Searches Redis and the audit log for an id. Lives as long as a command.

    `client` and `scripts` read Redis, None for a Redis that is away. `trail` is the audit log, and
    `prefix` how the bot's keys in Redis begin.
    """

    def __init__(
        self,
        client: Redis | None,
        scripts: ShardedScripts | None,
        *,
        trail: AuditTrail,
        prefix: str,
    ) -> None:
        self._client = client
        self._scripts = scripts
        self._trail = trail
        self._prefix = prefix

    def find(self, wanted: str) -> Iterator[Clue]:
        """Yield what an id leads to. The searches that read all keys of Redis come last.

        Raises redis.RedisError and LedgerUnusable.
        """
        # A conversation, one of its turns or one of its replies.
        place = _PLACE.fullmatch(wanted)
        if place:
            yield self._clue_of_place(place)
            return

        # An entry of the audit log. The same text may be an id of a platform, so this is not all.
        entry = _ENTRY.fullmatch(wanted)
        if entry:
            for action_id in self._trail.find_by_number(int(entry["shard"]), int(entry["n"])):
                yield self._clue_of_action(action_id)

        # An action, an event of a platform or its hash, a platform's id of a reply, or a reference
        # that a person was told.
        clues: list[Clue] = []
        if self._knows_action(wanted):
            clues = [self._clue_of_action(wanted)]
        if not clues:
            clues = list(self._clues_of_event(wanted))
        if not clues:
            clues = list(self._clues_of_receipt(wanted))
        if not clues and len(wanted) >= _MIN_REFERENCE:
            action_ids = self._trail.find_by_outcome(wanted)
            clues = [self._clue_of_action(action_id) for action_id in action_ids]
        yield from clues

    def _clue_of_place(self, place: re.Match[str]) -> Clue:
        """Return the turn or the reply of a conversation that was named, or its newest turn."""
        conversation = place["conversation"]
        if place["number"]:
            return Clue(conversation, number=int(place["number"]))
        if place["seq"]:
            return Clue(conversation, int(place["seq"]))
        newest_turn = StoredConversation.load(self._scripts, conversation).last_turn
        return Clue(conversation, newest_turn)

    def requested_by(self, action_id: str) -> RequestedAction | None:
        """Return what a request says of the action that it is for, None for any other action.

        Raises redis.RedisError and LedgerUnusable.
        """
        record = self._trail.record(action_id) or stored_fields(self._record_in_redis(action_id))
        if record.get("kind") != REQUEST_KIND:
            return None
        try:
            return RequestedAction.from_args(record["args"])
        except (KeyError, TypeError, ValueError):
            return None

    def _knows_action(self, action_id: str) -> bool:
        """Return whether the audit log or Redis has an action of this id."""
        if self._trail.entries(action_id):
            return True
        return bool(_ACTION_ID.fullmatch(action_id) and self._record_in_redis(action_id))

    def _record_in_redis(self, action_id: str) -> str:
        """Return the stored record of an action, "" without one. Its shard is not known here."""
        if self._client is None:
            return ""
        for shard in range(SHARDS):
            record = self._client.hget(f"{self._prefix}{{{shard}}}:pending:{action_id}", "record")
            if record:
                return str(record)
        return ""

    def _clue_of_action(self, action_id: str) -> Clue:
        """Return the clue of an action, with the conversation that its record names."""
        record = self._trail.record(action_id)
        if not record:
            record = stored_fields(self._record_in_redis(action_id))
        channel = record.get("channel_id")
        address = record.get("conversation_id") or record.get("user_id")
        if channel and address:
            return Clue(f"{channel}:{digest(address)}", action_id=action_id)
        return Clue(action_id=action_id)

    def _clues_of_event(self, wanted: str) -> Iterator[Clue]:
        """Yield the turn of an event id or its hash, and the actions that the event decided."""
        event = wanted if _HASH.fullmatch(wanted) else digest(wanted)
        for key in self._scan(f"{{*}}:event:*:{event}"):
            place = _EVENT.fullmatch(key)
            if place and self._client:
                seq = self._client.get(f"{self._prefix}{key}")
                yield Clue(place["conversation"], int(str(seq or 0)), event)
        for action_id in self._trail.find_decided(partial(_is_called, wanted=wanted)):
            yield self._clue_of_action(action_id)

    def _clues_of_receipt(self, wanted: str) -> Iterator[Clue]:
        """Yield the replies with this id of the platform. Reads all deliveries that are stored."""
        if self._client is None:
            return
        keys = self._scan("{*}:delivery:*")
        while batch := list(islice(keys, _READ_COUNT)):
            pipe = self._client.pipeline(transaction=False)
            for key in batch:
                pipe.hgetall(f"{self._prefix}{key}")

            for key, deliveries in zip(batch, pipe.execute(), strict=True):
                place = _DELIVERY.fullmatch(key)
                if not place:
                    continue
                for number, entry in deliveries.items():
                    if _receipt_of(str(entry)) == wanted:
                        yield Clue(place["conversation"], number=int(number))

    def _scan(self, pattern: str) -> Iterator[str]:
        """Yield the keys of this bot that match, without its prefix."""
        if self._client is None:
            return
        for key in self._client.scan_iter(match=self._prefix + pattern, count=_SCAN_COUNT):
            yield str(key).removeprefix(self._prefix)


def _receipt_of(entry: str) -> str:
    """Return the platform's id of a delivered reply, "" for none and for a damaged entry."""
    try:
        return DeliveryEntry.parse(entry).receipt
    except ValueError:
        return ""


def _is_called(event: str, wanted: str) -> bool:
    """Return whether `wanted` is the id of an event, or the hash of that id."""
    return wanted in (event, digest(event))
