"""Requests: the questions in which other people are asked about an action.

The action waits in the conversation of the person who asked for it, the *asker*. A *request* is
another stored action, in the conversation of a person who may decide. It is only a question and
runs nothing. An answer to it, by a tap or in words, becomes a Vote, which is sent to the
conversation of the action.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sayso.channels.types import Conversation, Scope
from sayso.infra.letter_codes import LETTERS
from sayso.pending.action import RESERVED_PREFIX, PendingAction
from sayso.pending.stored_action import StoredAction

#: The kind of the record of a request.
REQUEST_KIND = f"{RESERVED_PREFIX}request"
#: The names of the timers of an action that others decide. When a timer is due, a turn comes in
#: with this name as `request_event`.
REMINDER_TIMER = "request_reminder"
ESCALATION_TIMER = "request_escalation"
END_TIMER = "request_end"
#: The prefix of the event of a turn that says that a message did not arrive. The id of the request
#: follows, or the id of the action for the notice to the asker. The text is both the event id and
#: the `request_event` of the turn.
UNDELIVERED = "undelivered:"
#: The user id of a request to a group. Each member may answer. Whether a member may decide is
#: checked at the answer.
ANYONE = "*"
#: How many letters the code of a request has. Codes that cannot be guessed have more
#: (`letter_codes.py`).
_CODE_LENGTH = 4
#: How many characters of a message are searched for a code, from its beginning.
MAX_ANSWER_CHARS = 200


@dataclass(frozen=True, slots=True)
class RequestedAction:
    """The action that a request is about: the arguments of the record of the request."""

    #: The id of the action.
    action_id: str
    #: The MAC of the action's record: a vote counts for exactly this record.
    record_mac: str
    #: The conversation in which the action waits.
    home: Conversation
    #: The id of the asker there.
    asker: str
    #: The word that a written answer names, such as "yes KMTX".
    code: str
    #: The rule of the action, as `ApprovalRule.to_dict` returns it.
    rule: dict[str, Any]
    #: The name of the asker, "" if unknown.
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
        """Return all ids of the asker's account, the main one first."""
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
        """Read the arguments of a request whose record was verified."""
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
    """What an action stores about one request: to whom it was sent, and whether it arrived."""

    request_id: str
    #: The conversation to which the request was sent.
    to: Conversation
    #: The name of the person (`KnownPerson.name`), "" for a request in a group.
    person: str
    #: The word that a written answer names.
    code: str = ""
    #: The language of the request.
    language: str = ""
    #: Whether the platform could not deliver the request.
    is_undelivered: bool = False
    #: Whether it was sent to further people, by the escalation of the rule.
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


def new_answer_code() -> str:
    """Return a code by which written answers name a request. The code is no secret."""
    return "".join(secrets.choice(LETTERS) for _ in range(_CODE_LENGTH))


def is_request(stored: StoredAction | None) -> bool:
    """Return whether an action is a request."""
    return stored is not None and stored.action.kind == REQUEST_KIND


def codes_in(text: str) -> frozenset[str]:
    """Return the words of a text that have the form of a code, in upper case."""
    words = (word.strip(".,;:!#").upper() for word in text[:MAX_ANSWER_CHARS].split())
    return frozenset(
        word for word in words if len(word) == _CODE_LENGTH and set(word) <= set(LETTERS)
    )
