"""People of a channel: those that operators approved or blocked, and unknown senders who wait.

An unknown sender gets a code, and tells it to an operator, who approves or blocks the person by the
code. `PeopleDecisions` applies what the operator says, and `RedisPeople` stores it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import TypeAdapter
from redis import Redis

from sayso.channels.types import Conversation, digest
from sayso.infra.letter_codes import looks_like_a_code, new_code
from sayso.infra.records import check_version, versioned
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.connections import Connections

#: For how many seconds a code is valid. In this time an unknown sender is told once that they may
#: not talk.
WAIT_SECONDS = 3600
#: How many unknown senders of one channel may wait at once. Beyond that no sender gets a code.
MAX_WAITING = 100
#: How many ids may be approved or blocked on one channel.
MAX_PEOPLE = 10_000


#: What an operator decided about a person; "" for nothing.
OperatorDecision = Literal["approved", "blocked", ""]


class UnknownPerson(Exception):
    """Raised when an operator names an unknown or expired code, or a person who is not stored."""


class TooManyPeople(Exception):
    """Raised when a channel has the maximum of approved and blocked ids."""


@dataclass(frozen=True, slots=True)
class WaitingSender:
    """An unknown sender who waits for approval."""

    #: The sender's ids, the user id first.
    ids: tuple[str, ...]
    #: The sender's name on their platform.
    name: str
    #: Where they wrote first. The message that they were approved is sent there.
    conversation: Conversation
    language: str
    #: The code by which an operator names the sender.
    code: str = ""
    #: When the sender got the code, in Unix seconds.
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedPerson:
    """A person whom an operator approved or blocked."""

    #: The ids of the person. Each id alone stands for the person.
    ids: tuple[str, ...]
    state: Literal["approved", "blocked"]
    #: The name on their platform, "" if unknown.
    name: str = ""
    #: When the operator decided, in Unix seconds.
    at: float = 0.0


_WAITING_SENDER = TypeAdapter(WaitingSender)
_PERSON = TypeAdapter(ListedPerson)


class PeopleDecisions:
    """Applies an operator's decisions about people. Lives as long as a command.

    `who` names a person, by their code in any case, or by one of their ids in the form that
    RedisPeople stores.
    """

    def __init__(self, people: RedisPeople) -> None:
        self._people = people

    def approve(self, channel: str, who: str) -> WaitingSender | None:
        """Approve a person.

        Return the unknown sender who waited, so that they can be told; None if no such sender
        waited. Raises UnknownPerson, TooManyPeople.
        """
        return self._decide(channel, who, "approved")

    def block(self, channel: str, who: str) -> None:
        """Block a person. Raises UnknownPerson, TooManyPeople."""
        self._decide(channel, who, "blocked")

    def forget(self, channel: str, who: str) -> None:
        """Delete everything about a person, as if they had never written. Raises UnknownPerson."""
        waiting, listed = self._find(channel, who)
        if not (waiting or listed):
            raise UnknownPerson(f"nothing is kept of {who!r} on {channel}")
        self._people.delete(channel, _ids(waiting, listed))

    def _decide(
        self, channel: str, who: str, state: Literal["approved", "blocked"]
    ) -> WaitingSender | None:
        """Store a decision. An id that is not stored yet may be decided about, too.

        Return the unknown sender who waited, None if no such sender waited.
        """
        waiting, listed = self._find(channel, who)
        if looks_like_a_code(who) and not (waiting or listed):
            raise UnknownPerson(
                f"nobody waits on {channel} with the code {who!r}: a code is good for an hour"
            )

        ids = _ids(waiting, listed) or (who,)
        self._people.save(channel, ListedPerson(ids, state, _name(waiting, listed)))
        return waiting

    def _find(self, channel: str, who: str) -> tuple[WaitingSender | None, list[ListedPerson]]:
        """Return who waits with this code or id, and who was approved or blocked under their ids.

        The second value has several entries if an operator decided about several ids of one person.
        """
        # All codes are compared, in constant time, so that no code can be guessed by the time. An id
        # may fit two entries, if a sender waited under two first ids: the older entry counts.
        code = who.upper().encode()
        waiting = None
        for each in self._people.waiting(channel):
            if hmac.compare_digest(each.code.encode(), code) or who in each.ids:
                waiting = each

        # A listed person does not wait: a sender with one of their ids has a decision. So the ids
        # of decisions are not looked for among those who wait.
        ids = {who}
        if waiting:
            ids.update(waiting.ids)
        listed = self._people.listed(channel)
        return waiting, [person for person in listed if not ids.isdisjoint(person.ids)]


def _name(waiting: WaitingSender | None, listed: Iterable[ListedPerson]) -> str:
    """Return the newest name that is known of a person, "" for none."""
    if waiting and waiting.name:
        return waiting.name
    return next((person.name for person in listed if person.name), "")


def _ids(waiting: WaitingSender | None, listed: Iterable[ListedPerson]) -> tuple[str, ...]:
    """Return all ids of a person: those they wait with, and those of earlier decisions."""
    ids: list[str] = []
    if waiting:
        ids += waiting.ids
    for person in listed:
        ids += person.ids
    return tuple(dict.fromkeys(ids))


# These two scripts are not in `workers/lua`. A script there sees the keys of one hash tag, and counts
# its writes, by which a loss of data is noticed. Each script here needs one key of a channel, and
# nothing else.
_CODE_SCRIPT = """
-- Return the code of an unknown sender who waits already. Otherwise store a new one and return it,
-- or return '' if there is no room. Expired codes are deleted.
--
-- KEYS[1]: the senders who wait, a hash by id. An entry is the text "<at> <code> <record>", with
--   the Unix seconds at which the sender got the code.
-- ARGV: the id of the sender; a new code; the sender as JSON; how many senders may wait; for how
--   many seconds a code is valid
local id, new_code, record, max_waiting, lifetime = unpack(ARGV)
local now = tonumber(redis.call('TIME')[1])
local count, own_code = 0, nil
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local at, code = string.match(fields[i + 1], '^(%d+) (%S+) ')
  if not at or tonumber(at) + lifetime <= now then
    redis.call('HDEL', KEYS[1], fields[i])
  else
    count = count + 1
    if fields[i] == id then own_code = code end
  end
end
if own_code then return own_code end
if count >= tonumber(max_waiting) then return '' end

redis.call('HSET', KEYS[1], id, now .. ' ' .. new_code .. ' ' .. record)
redis.call('EXPIRE', KEYS[1], lifetime)
return new_code
"""

_SAVE_SCRIPT = """
-- Store a decision and its time under each id of a person. Return 'ok', or 'full' if too many ids
-- are stored.
--
-- KEYS[1]: the people who were approved or blocked, a hash by id
-- ARGV: how many ids may be stored; the decision as JSON; then the ids of the person
local max_people, decision = tonumber(ARGV[1]), ARGV[2]
local FIRST_ID = 3
local new = 0
for i = FIRST_ID, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then new = new + 1 end
end
if redis.call('HLEN', KEYS[1]) + new > max_people then return 'full' end

-- The time becomes the first field of the JSON object, by editing its text: the version must stay the
-- last field, where its readers look for it, and cjson would write the fields in any order.
local fields = string.sub(decision, 2)
local record = '{"at": ' .. redis.call('TIME')[1] .. ', ' .. fields
for i = FIRST_ID, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], record) end
return 'ok'
"""


class RedisPeople:
    """Operators' decisions, stored until they are deleted, and unknown senders, stored for an hour.

    One per process. Ids are in the form in which the access rules of the channel compare them, such
    as `+49...` and not `whatsapp:+49...` (`AccessRules.spelled`). All methods raise
    redis.RedisError, and those that read stored people raise OtherVersion.
    """

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._connections = Connections.of(client)
        self._prefix = prefix

    def decision(self, channel: str, ids: Sequence[str]) -> OperatorDecision:
        """Return what an operator decided about a person with these ids, "" for nothing.

        The person is blocked if any of the ids is.
        """
        if not ids:
            return ""
        entries = self._connections.ask("HMGET", self._key("people", channel), *ids)
        states = {_person(entry).state for entry in entries if entry}
        if "blocked" in states:
            return "blocked"
        if states:
            return "approved"
        return ""

    def code(self, channel: str, sender: WaitingSender) -> str:
        """Return the code of an unknown sender, the same one while it is valid.

        Return "" while too many wait.
        """
        # The script stores the code and its time beside the record.
        record = _WAITING_SENDER.dump_json(replace(sender, code="", at=0.0)).decode()
        key = self._key("waiting", channel)
        args = (sender.ids[0], new_code(), versioned(record), MAX_WAITING, WAIT_SECONDS)
        return str(self._connections.ask("EVAL", _CODE_SCRIPT, 1, key, *args))

    def was_notified(self, channel: str, sender_id: str) -> bool:
        """Return whether an unknown sender was told within the last hour that they may not talk."""
        return bool(self._connections.ask("EXISTS", self._notified_key(channel, sender_id)))

    def record_notified(self, channel: str, sender_id: str) -> None:
        """Record that an unknown sender was told now that they may not talk."""
        key = self._notified_key(channel, sender_id)
        self._connections.ask("SET", key, 1, "EX", WAIT_SECONDS)

    def listed(self, channel: str) -> list[ListedPerson]:
        """Return all people who are approved or blocked, the newest first."""
        entries = self._connections.ask("HVALS", self._key("people", channel))
        # The record of a person is stored under each id.
        listed = [_person(entry) for entry in entries]
        by_ids = {person.ids: person for person in listed}
        return sorted(by_ids.values(), key=lambda person: (-person.at, person.ids))

    def waiting(self, channel: str) -> list[WaitingSender]:
        """Return the unknown senders with a valid code, the newest first."""
        now = int(self._connections.ask("TIME")[0])
        entries = self._connections.ask("HVALS", self._key("waiting", channel))
        waiting = [_waiting_sender(entry) for entry in entries]
        # The script deletes an expired entry when the next sender asks.
        valid = [each for each in waiting if each.at + WAIT_SECONDS > now]
        return sorted(valid, key=lambda each: (-each.at, each.ids))

    def save(self, channel: str, person: ListedPerson) -> None:
        """Store a decision under each id of a person, who then waits no longer.

        Safe to repeat: if the process is killed midway, run it again. Raises TooManyPeople.
        """
        record = versioned(
            json.dumps({"state": person.state, "name": person.name, "ids": person.ids})
        )
        key = self._key("people", channel)
        args: list[str | int] = [MAX_PEOPLE, record, *person.ids]
        if self._connections.ask("EVAL", _SAVE_SCRIPT, 1, key, *args) == "full":
            raise TooManyPeople(
                f"{MAX_PEOPLE} ids are approved or blocked on {channel}: forget some first"
            )
        # This is a second step, because on a cluster the key may be on another node.
        self._connections.ask("HDEL", self._key("waiting", channel), *person.ids)

    def delete(self, channel: str, ids: Sequence[str]) -> None:
        """Delete everything about these ids. Safe to repeat."""
        for kind in ("people", "waiting"):
            self._connections.ask("HDEL", self._key(kind, channel), *ids)
        # One by one, because on a cluster they are on several nodes.
        for sender_id in ids:
            self._connections.ask("DEL", self._notified_key(channel, sender_id))

    def _key(self, kind: str, channel: str) -> str:
        return f"{self._prefix}{kind}:{channel}"

    def _notified_key(self, channel: str, sender_id: str) -> str:
        # Names of keys are shown by many tools, so they hold no phone number.
        return f"{self._prefix}notified:{channel}:{digest(sender_id)}"


def _person(entry: str) -> ListedPerson:
    """Read a stored decision. Raises OtherVersion."""
    return _PERSON.validate_json(check_version(entry))


def _waiting_sender(entry: str) -> WaitingSender:
    """Read a stored unknown sender: "<at> <code> <record>", see _CODE_SCRIPT.

    Raises OtherVersion.
    """
    at, code, record = entry.split(" ", 2)
    sender = _WAITING_SENDER.validate_json(check_version(record))
    return replace(sender, code=code, at=float(at))
