"""Facts: what people did and saw in one example, apart from the code under test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sayso.channels.types import Conversation, Turn
from sayso.pending.approval_rule import (
    ApprovalEscalation,
    ApprovalPlace,
    ApprovalRule,
    Deciders,
)
from sayso.pending.sharded_scripts import shard_of
from tests.model.world import World

#: Seconds that others have to decide, and after which they are reminded and further people asked.
WITHIN, REMINDER, ESCALATION = 600.0, 120.0, 240.0
#: Where ana asks, where each colleague can write, and their group. Each is in another shard, so
#: that no script can change two of them. bea has a second account.
HOME = Conversation("shop", "home")
GROUP = Conversation("team", "C1")
COLLEAGUES = ("bea", "cem", "dan", "eve")
CHATS = {name: Conversation("team", name) for name in (*COLLEAGUES, "ana", "bea2")}
PLACES = {place.id: place for place in (HOME, GROUP, *CHATS.values())}
assert len({shard_of(place) for place in PLACES}) == len(PLACES)

_MANAGERS = Deciders("role", ("manager",))
_IN_GROUP = ApprovalPlace("team", "C1")
#: The rule of each kind of action.
RULES = {
    "refund": ApprovalRule(_MANAGERS, within_seconds=WITHIN),
    "payout": ApprovalRule(
        _MANAGERS, need=2, denials=2, within_seconds=WITHIN, reminder_seconds=REMINDER
    ),
    "wire": ApprovalRule(_MANAGERS, need=2, on=_IN_GROUP, within_seconds=WITHIN),
    "close": ApprovalRule(
        Deciders("people", ("bea",)),
        within_seconds=WITHIN,
        reminder_seconds=REMINDER,
        escalation=ApprovalEscalation(ESCALATION, Deciders("people", ("dan",))),
    ),
    "poll": ApprovalRule(
        Deciders("anyone_else"), need=2, denials=2, on=_IN_GROUP, within_seconds=WITHIN
    ),
    "broken": ApprovalRule(_MANAGERS, within_seconds=WITHIN),
}

#: How an action ended:
#:
#: * approved: enough people agreed, and a worker claimed it.
#: * off: it was refused, withdrawn, or its time was over. It has no effect.
Fate = Literal["open", "approved", "off"]


@dataclass(frozen=True, slots=True)
class Given:
    """An answer of a person to a request: a tap, or words with its code."""

    person: str
    answer: Literal["yes", "no"]
    action_id: str
    #: Where and when it was given, in Unix milliseconds.
    conversation: str
    at: int
    #: The record that the person was shown.
    record_mac: str
    #: The event id of the tap or message.
    event_id: str


@dataclass(slots=True)
class Request:
    """A request that a person or group got."""

    request_id: str
    action_id: str
    #: Where it was asked, and the person that it names; "*" in a group.
    place: Conversation
    person: str
    code: str
    record_mac: str
    #: The buttons for yes and no; () before it arrived.
    buttons: tuple[str, ...] = ()
    #: The id of its message, and whether a message took its place.
    message: str = ""
    is_closed: bool = False


@dataclass(slots=True)
class Asked:
    """What is known of an action from outside."""

    action_id: str
    rule: ApprovalRule
    kind: str
    args: dict[str, object]
    preview: str
    mac: str
    #: When the time to decide is over, in Unix milliseconds; 0 before the asker was told.
    closes: int = 0
    fate: Fate = "open"
    #: The event of the turn that decided.
    by: str = ""
    is_tampered: bool = False
    #: The button with which the asker withdraws; "" before it arrived.
    withdraw: str = ""
    #: The answers that the conversation of the action has stored, by their person, in order.
    votes: list[Given] = field(default_factory=list)
    #: What the asker was told of the end: "done", "failed", "unknown" or "nothing".
    told: list[str] = field(default_factory=list)


@dataclass
class Office(World):
    """The facts of one example."""

    asked: dict[str, Asked] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    #: The answers to requests, by conversation and event id.
    given: dict[tuple[str, str], Given] = field(default_factory=dict)
    #: Turns that waited in a worker when they were read, and the tick at which they were.
    begun: dict[tuple[str, int], int] = field(default_factory=dict)

    def last_answers(self, asked: Asked) -> dict[str, Given]:
        """Return the last answer of each person that the action's conversation has."""
        last: dict[str, Given] = {}
        for each in sorted(asked.votes, key=lambda each: each.at):
            last[each.person] = each
        return last


def said_by(turn: Turn, request: Request, answer: Literal["yes", "no"], at: int) -> Given:
    """Return the answer that a turn gives to a request. `at`: in Unix milliseconds."""
    return Given(
        person_of(turn.user_id),
        answer,
        request.action_id,
        turn.conversation.id,
        at,
        request.record_mac,
        turn.event_id,
    )


def person_of(user_id: str) -> str:
    """Return who has an account: bea has two."""
    return user_id.rstrip("2")
