"""Requests: the questions in which other people are asked about an action.

The action waits in the conversation of the person who asked for it, the *asker*. A request is a
small action of its own in the conversation of each person who may decide. It has no effect: a tap
on its button, or an answer that names its code, becomes a Vote, which travels to the conversation of
the action.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sayso.channels.types import Conversation, Scope
from sayso.pending.action import RESERVED_PREFIX, PendingAction
from sayso.pending.stored_action import StoredAction

#: The kind of the record of a request.
REQUEST_KIND = f"{RESERVED_PREFIX}request"
#: Begins the `request_event`, and the event id, of the turn that tells the conversation of an action
#: that a request, or the notice for the asker, did not arrive. The id of the request follows; for
#: the notice, that of the action.
UNDELIVERED = "undelivered:"
#: The user of a request that stands in a group: each of its members may tap, and whether they may
#: decide is found out then.
ANYONE = "*"
#: The letters of codes. Without vowels they form no words.
_CODE_LETTERS = "BCDFGHJKMNPQRSTVWXZ"
_CODE_LENGTH = 4
#: The beginning of a message in which a code is looked for, in characters.
MAX_ANSWER_CHARS = 200


@dataclass(frozen=True, slots=True)
class RequestedAction:
    """What the record of a request says about the action that it is for."""

    action_id: str
    #: The MAC of the action's record: a vote counts for exactly this record.
    record_mac: str
    #: The conversation of the action, and the asker, who is its user.
    home: Conversation
    asker: str
    #: The word that a written answer names, such as "yes KMTX".
    code: str
    #: The rule of the action, as `ApprovalRule.to_dict` returns it.
    rule: dict[str, Any]
    #: What the asker is called.
    asker_name: str = ""
    #: Other ids of the asker's account, by which the directory may know them.
    asker_aliases: tuple[str, ...] = ()
    #: Digests of all names that the asker had when they asked (`KnownPerson.known_as`).
    asker_known_as: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        """Return the scope of the action."""
        return Scope(self.asker, self.home)

    @property
    def asker_ids(self) -> tuple[str, ...]:
        """All ids of the asker's account, the main one first."""
        return (self.asker, *self.asker_aliases)

    def to_args(self) -> dict[str, Any]:
        """Return the arguments of the request's record."""
        lists = {
            "asker_aliases": list(self.asker_aliases),
            "asker_known_as": list(self.asker_known_as),
        }
        return {**asdict(self), **lists}

    @classmethod
    def of(cls, request: PendingAction) -> RequestedAction:
        """Read the arguments of a genuine request."""
        return cls.from_args(request.args)

    @classmethod
    def from_args(cls, given: Mapping[str, Any]) -> RequestedAction:
        """Read the arguments of a request. Raises KeyError, TypeError or ValueError."""
        args = dict(given)
        home = Conversation(**args.pop("home"))
        aliases = tuple(args.pop("asker_aliases"))
        known_as = tuple(args.pop("asker_known_as"))
        return cls(home=home, asker_aliases=aliases, asker_known_as=known_as, **args)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request as the action remembers it: to whom it was sent, and what became of it."""

    request_id: str
    to: Conversation
    #: The name of the person (`KnownPerson.name`), "" for a request in a group.
    person: str
    #: The word that a written answer names.
    code: str = ""
    language: str = ""
    #: Whether the platform could not deliver it.
    is_undelivered: bool = False
    #: Whether it was sent to those who may decide once nobody else has.
    is_escalation: bool = False


def requests_to_json(requests: Iterable[SentRequest]) -> str:
    """Return the requests of an action as they are stored with it."""
    return json.dumps([asdict(each) for each in requests])


def requests_of(stored: StoredAction) -> Sequence[SentRequest]:
    """Return the requests that were sent about an action. Raises ValueError or TypeError."""
    if not stored.requests_text:
        return ()
    entries = json.loads(stored.requests_text)
    return [SentRequest(**{**each, "to": Conversation(**each["to"])}) for each in entries]


def new_code() -> str:
    """Return a code by which written answers name a request. It is no secret."""
    return "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_LENGTH))


def is_request(stored: StoredAction | None) -> bool:
    """Return whether an action is a request."""
    return stored is not None and stored.action.kind == REQUEST_KIND


def codes_in(text: str) -> frozenset[str]:
    """Return the words of a text that have the form of a code, in upper case."""
    words = (word.strip(".,;:!#").upper() for word in text[:MAX_ANSWER_CHARS].split())
    return frozenset(
        word for word in words if len(word) == _CODE_LENGTH and set(word) <= set(_CODE_LETTERS)
    )
