"""The entries of the audit log: one for each state that an action entered, and for each vote.

The script that changes the state of an action in Redis, or stores the vote of another person about
it, writes the entry in the same step. The
entries of one shard of Redis form a *chain*: they are numbered from 1, and each names the hash of
the entry before it, so that a change or a gap is noticed. An entry holds nothing personal. The
record of the action, which does, is stored apart (`bodies.py`) and can be erased.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sayso.pending.action import ActionState, derived_keys

#: What an entry records: the state that an action entered, or `voted`: that another person's vote
#: about it was stored. A vote leaves the state as it is.
Event = ActionState | Literal["voted"]
#: The event of a vote.
VOTED: Literal["voted"] = "voted"
#: The exact form in which the scripts write entries. Any other could be read differently by
#: different parsers. The names are short because Redis holds many entries in memory, and they
#: cannot change: hashes and signatures are over the text.
_ENTRY = re.compile(
    r'\{"n":(?P<number>[1-9][0-9]{0,14}),"at":(?P<at>[0-9]{1,15}),'
    r'"pid":"(?P<action_id>[A-Za-z0-9_-]+)","event":"(?P<event>[a-z]+)",'
    r'"by":(?P<decided_by_event>"(?:[^"\\\x00-\x1f]|\\.)*"),'
    r'"body":"(?P<mac>[^"\\\x00-\x1f]*)","prev":"(?P<previous>[0-9a-f]{40})"\}'
)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A parsed entry of the audit log."""

    #: Its number in the chain of its shard. The first entry is 1.
    number: int
    #: When it happened, in Unix milliseconds, by the clock of Redis.
    at: int
    action_id: str
    #: What happened, one of `Event` in a genuine log.
    event: str
    #: The event id of the turn that decided, or of the answer that is a vote; "" where no turn did.
    decided_by_event: str
    #: The MAC of the action's record.
    mac: str
    #: The hash of the entry before, NO_HEAD in the first entry.
    previous: str

    @classmethod
    def parse(cls, text: str) -> AuditEntry | None:
        """Parse the text of an entry. Return None for a text that our scripts have not written."""
        match = _ENTRY.fullmatch(text)
        if not match:
            return None
        try:
            decided_by_event = str(json.loads(match["decided_by_event"]))
        except ValueError:
            return None
        return cls(
            number=int(match["number"]),
            at=int(match["at"]),
            action_id=match["action_id"],
            event=match["event"],
            decided_by_event=decided_by_event,
            mac=match["mac"],
            previous=match["previous"],
        )


def text_with_action(action_id: str) -> str:
    """Return a piece of text that every entry of an action contains."""
    return f'"pid":"{action_id}"'


def decided_by_text(text: str) -> str:
    """Return the JSON text of the event that decided, from the text of an entry.

    It is much faster than parsing the entry. The result is not to be trusted: only a text that
    `AuditEntry.parse` accepts is an entry.
    """
    _, _, after = text.partition('"by":')
    decided_by_event, _, _ = after.partition(',"body":')
    return decided_by_event


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """The text of an entry and the place where a source has it.

    A source is Redis, a ledger or an exported file. What it has may be forged.
    """

    shard: int
    #: The number under which the source has the text. It may differ from the number in the text.
    number: int
    text: str
    #: The signature beside the text; None for an entry in Redis, which is not signed yet.
    sig: str | None = None
    #: The hash of the text that a ledger stores beside it; None in other sources.
    stored_hash: str | None = None

    @property
    def entry(self) -> AuditEntry | None:
        """Return the parsed entry, or None for a text that our scripts have not written."""
        return AuditEntry.parse(self.text)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Number and hash of the last entry of a chain: 0 and NO_HEAD for an empty chain."""

    number: int
    hash: str


def entry_hash(text: str) -> str:
    """Return the hash by which the next entry names an entry of this text.

    Redis scripts have no hash but SHA-1.
    """
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class EntrySigner:
    """Signs entries and bodies with the first key, and accepts signatures of all keys.

    `keys` are the secrets of the bot, the newest first. The keys derived from them differ from
    those of ActionSigner, so that nothing signed here passes for the record of an action.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = derived_keys(keys, "sayso.audit")

    def sign(self, *parts: str | int | bool | None) -> str:
        """Return the MAC over these parts, in hex."""
        return _mac(self._keys[0], parts)

    def verify(self, sig: str, *parts: str | int | bool | None) -> bool:
        """Return whether `sig` was made over exactly these parts with one of the keys."""
        return any(
            hmac.compare_digest(_mac(key, parts).encode(), sig.encode()) for key in self._keys
        )


def _mac(key: bytes, parts: Sequence[str | int | bool | None]) -> str:
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


#: What may be wrong with an entry. `forked`: two different entries have one number. `impossible`:
#: the action could not enter this state. `rolled back`: Redis has fewer entries than the log. The
#: last two are about the body, which is stored apart.
FaultReason = Literal[
    "edited",
    "removed",
    "reordered",
    "repeated",
    "bad signature",
    "impossible",
    "forked",
    "rolled back",
    "body edited",
    "body removed",
]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One place where the log differs from what was written."""

    shard: int
    #: The number of the entry.
    number: int
    reason: FaultReason
    #: More about it, in words for an operator; "" for nothing more.
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"shard {self.shard}, entry {self.number}: {self.reason}{detail}"
