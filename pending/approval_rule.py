"""ApprovalRule: who may decide about an action in place of the person who asked for it.

An operator writes the rule in the policy of a channel, for the calls of a tool. The rule becomes a
signed part of each action that is proposed under it. So a later change of the YAML cannot change
what an open question needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

#: Who may decide:
#:
#: * role: each person who has one of the named roles.
#: * people: each of the named people.
#: * anyone_else: each person in the conversation where the question stands.
#: * asker: the person who asked for the action, as without a rule.
DecidersKind = Literal["role", "people", "anyone_else", "asker"]
#: When a person who decides must give a reason: with each no, with each answer, or never.
ReasonNeeded = Literal["on_deny", "always", "never"]

#: How long others may take to decide if the rule does not say it, in seconds.
DEFAULT_WITHIN_SECONDS = 86_400.0
#: The longest time that a rule may give, in seconds. A conversation is kept for 30 days after its
#: last message, so it still exists when the time to decide ends.
MAX_WITHIN_SECONDS = 14 * 86_400.0
#: The largest number of people that a rule may need, for a yes or for a no.
MAX_NEED = 9


@dataclass(frozen=True, slots=True)
class Deciders:
    """A description of the people who may decide.

    It has no accounts. `approvals/approvers.py` finds the people whom it describes.
    """

    kind: DecidersKind
    #: The names of the roles or of the people; () for the other kinds.
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown kind, for missing names, and for names without a use."""
        if self.kind not in get_args(DecidersKind):
            known = ", ".join(get_args(DecidersKind))
            raise ValueError(f"{self.kind!r} is unknown: give one of {known}")
        needs_names = self.kind in ("role", "people")
        if needs_names != bool(self.names):
            raise ValueError(f"{self.kind!r} with the names {list(self.names)!r}")


@dataclass(frozen=True, slots=True)
class ApprovalPlace:
    """Where those who may decide are asked."""

    #: The name of the channel.
    channel: str
    #: The chat, as its platform names it. "": each person is asked in a direct chat.
    chat: str = ""
    #: The thread, "" for none.
    thread: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalEscalation:
    """Who else may decide, once a question has waited for some time."""

    #: How long the question must have waited, in seconds from the moment it was shown to the asker.
    after_seconds: float
    #: Who may decide from then on, besides those who could before.
    by: Deciders


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Who decides about an action, how many of them must agree, and how long they have.

    The *asker* is the person who asked for the action. Raises ValueError for a number or a time
    that is out of range, and for parts that contradict each other.
    """

    #: Who may decide.
    by: Deciders
    #: How many different people must say yes.
    need: int = 1
    #: How many different people must say no to end the action.
    denials: int = 1
    #: Where they are asked. None: each of them in a direct chat, with the first account of the
    #: person; for `anyone_else` in the conversation of the asker.
    on: ApprovalPlace | None = None
    #: How long they have, in seconds from the moment the notice was shown to the asker.
    within_seconds: float = DEFAULT_WITHIN_SECONDS
    #: After how many seconds those who have not decided are reminded, once; 0 for never.
    reminder_seconds: float = 0.0
    #: Who else may decide after some time, None for nobody.
    escalation: ApprovalEscalation | None = None
    #: When those who decide must give a reason.
    reason: ReasonNeeded = "never"

    def __post_init__(self) -> None:
        if not 1 <= self.need <= MAX_NEED:
            raise ValueError(f"need is {self.need!r}: it must be 1 to {MAX_NEED}")
        if not 1 <= self.denials <= MAX_NEED:
            raise ValueError(f"denials is {self.denials!r}: it must be 1 to {MAX_NEED}")
        if self.reason not in get_args(ReasonNeeded):
            known = ", ".join(get_args(ReasonNeeded))
            raise ValueError(f"reason {self.reason!r} is unknown: give one of {known}")
        if self.by.kind == "people" and self.need > len(set(self.by.names)):
            count = len(set(self.by.names))
            raise ValueError(f"need is {self.need}, and only {count} people are named")
        if self.by.kind == "asker" and (self.need > 1 or self.on or self.escalation):
            raise ValueError("the asker decides alone: leave out need, on and escalate")
        self._check_times()

    def _check_times(self) -> None:
        """Raise ValueError for a time that is out of range, or that comes after the end."""
        within = self.within_seconds
        if not 0 < within <= MAX_WITHIN_SECONDS:
            raise ValueError(
                f"within is {within:g} seconds: "
                f"it must be more than 0 and at most {MAX_WITHIN_SECONDS:g}"
            )
        if not 0 <= self.reminder_seconds < within:
            raise ValueError(
                f"reminder is {self.reminder_seconds:g} seconds: "
                f"it must come before the end, {within:g} seconds after the question"
            )
        if self.escalation and not 0 < self.escalation.after_seconds < within:
            raise ValueError(
                f"escalate.after is {self.escalation.after_seconds:g} seconds: "
                f"it must come before the end, {within:g} seconds after the question"
            )

    @property
    def asks_others(self) -> bool:
        """Return whether other people decide, and not the asker."""
        return self.by.kind != "asker"

    def deciders_at(self, waited_seconds: float) -> tuple[Deciders, ...]:
        """Return who may decide after the question has waited for this time, in seconds."""
        if self.escalation and waited_seconds >= self.escalation.after_seconds:
            return (self.by, self.escalation.by)
        return (self.by,)

    def needs_reason(self, answer: Literal["yes", "no"]) -> bool:
        """Return whether a person who gives this answer must give a reason."""
        if self.reason == "always":
            return True
        return self.reason == "on_deny" and answer == "no"

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as exact JSON, for the signed record of an action."""
        data = asdict(self)
        data["by"] = _deciders_to_dict(self.by)
        if self.escalation:
            data["escalation"]["by"] = _deciders_to_dict(self.escalation.by)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ApprovalRule:
        """Read the result of `to_dict`. Raises KeyError, TypeError or ValueError on anything else."""
        place = data["on"]
        escalation = data["escalation"]
        return cls(
            by=_deciders_from_dict(data["by"]),
            need=data["need"],
            denials=data["denials"],
            on=ApprovalPlace(**place) if place else None,
            within_seconds=data["within_seconds"],
            reminder_seconds=data["reminder_seconds"],
            escalation=_escalation_from_dict(escalation) if escalation else None,
            reason=data["reason"],
        )


def _deciders_to_dict(deciders: Deciders) -> dict[str, Any]:
    return {"kind": deciders.kind, "names": list(deciders.names)}


def _deciders_from_dict(data: Mapping[str, Any]) -> Deciders:
    names: Sequence[str] = data["names"]
    return Deciders(data["kind"], tuple(names))


def _escalation_from_dict(data: Mapping[str, Any]) -> ApprovalEscalation:
    return ApprovalEscalation(data["after_seconds"], _deciders_from_dict(data["by"]))
