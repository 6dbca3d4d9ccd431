"""Which other people would be asked before a call of a tool, as data and as text.

`sayso explain` shows this for one call, and `sayso check` for each tool of a channel. Both know
only the people whom the YAML names, and ask no platform.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sayso.config.wiring.deciders import DecidersOfYaml, NamedDeciders
from sayso.infra.durations import duration_text
from sayso.pending.approval_rule import (
    ApprovalPlace,
    ApprovalRule,
    Deciders,
    DecidersKind,
    ReasonNeeded,
)
from sayso.pending.approvals.people import KnownPerson

#: The answers for which people who decide must give a reason, as text.
_REASONS: Mapping[ReasonNeeded, str] = {
    "never": "nothing",
    "on_deny": "each no",
    "always": "each answer",
}


@dataclass(frozen=True, slots=True)
class ExpectedDeciders:
    """The people who may decide about a call. The user who asks is not among them."""

    kind: DecidersKind
    #: The roles or the people that the rule names; () for the other kinds.
    names: tuple[str, ...]
    #: The names of the people who may decide, as far as the YAML names them.
    people: tuple[str, ...]
    #: Whether there may be more people, whom the YAML does not name.
    has_more: bool


@dataclass(frozen=True, slots=True)
class ExpectedApproval:
    """The approval of other people that a call would need."""

    by: ExpectedDeciders
    #: How many different people must say yes.
    need: int
    #: How many different people must say no to end the action.
    denials: int
    #: Where they are asked. None: each in a direct chat, with the first account of the person, and
    #: `anyone_else` in the conversation of the user.
    on: ApprovalPlace | None
    #: How long they have to decide.
    within_seconds: float
    #: After how many seconds those who have not decided are reminded; 0 for never.
    reminder_seconds: float
    #: After how many seconds the people of `escalation` may decide, too; 0 for never.
    escalation_seconds: float
    #: Who may decide later, None for nobody.
    escalation: ExpectedDeciders | None
    #: When people who decide must give a reason.
    reason: ReasonNeeded
    #: The name of the user if the rule names them, so that they may not decide only because they
    #: ask; else "".
    excluded: str = ""

    @property
    def can_be_given(self) -> bool:
        """Whether enough people may decide. True if not all of them are known."""
        people = set(self.by.people)
        has_more = self.by.has_more
        if self.escalation:
            people |= set(self.escalation.people)
            has_more = has_more or self.escalation.has_more
        return has_more or len(people) >= self.need


def expected_approval(
    rule: ApprovalRule | None, deciders: DecidersOfYaml, asker: KnownPerson | None = None
) -> ExpectedApproval | None:
    """Return the approval that a call would need, None if the user decides.

    * `rule`: the rule for the tool, None for none.
    * `asker`: the user who would ask for the call, None for an unknown user.
    """
    if rule is None or not rule.asks_others:
        return None

    on = rule.on.channel if rule.on else ""
    asker_name = asker.name if asker else ""
    by = deciders.named(rule.by, on)
    people_at_any_time = list(by.people)
    escalation = None
    escalation_seconds = 0.0
    if rule.escalation:
        escalated = deciders.named(rule.escalation.by, on)
        people_at_any_time += escalated.people
        escalation = _expected(rule.escalation.by, escalated, asker_name)
        escalation_seconds = rule.escalation.after_seconds

    is_excluded = any(person.name == asker_name for person in people_at_any_time)
    return ExpectedApproval(
        by=_expected(rule.by, by, asker_name),
        need=rule.need,
        denials=rule.denials,
        on=rule.on,
        within_seconds=rule.within_seconds,
        reminder_seconds=rule.reminder_seconds,
        escalation_seconds=escalation_seconds,
        escalation=escalation,
        reason=rule.reason,
        excluded=asker_name if is_excluded else "",
    )


def _expected(described: Deciders, named: NamedDeciders, asker_name: str) -> ExpectedDeciders:
    """Return the people who may decide, without the user who asks.

    `asker_name`: the name of that user, "" for an unknown user.
    """
    people = tuple(person.name for person in named.people if person.name != asker_name)
    return ExpectedDeciders(described.kind, described.names, people, has_more=not named.is_complete)


def approval_summary(approval: ExpectedApproval) -> str:
    """Return an approval as one line: `2 of the people with the role manager (ana, ben), ...`."""
    parts = [
        f"{approval.need} of {_group(approval.by)}",
        _asked_where(approval, "the user"),
        _times(approval),
    ]
    if approval.escalation:
        parts.append(_escalation(approval, approval.escalation))
    if approval.denials > 1:
        parts.append(f"denied by {approval.denials} people")
    if approval.reason != "never":
        parts.append(f"with a reason for {_REASONS[approval.reason]}")
    return ", ".join(parts)


def approval_lines(approval: ExpectedApproval, user: str) -> Iterator[str]:
    """Yield lines: who would be asked, where, and for how long. `user` is the user who asks."""
    yield f"approval: by {approval.need} of {_group(approval.by)}"
    if approval.excluded:
        yield f"approval: not by {approval.excluded}, who asks"
    if not approval.can_be_given:
        yield f"approval: impossible: too few people may decide when {user} asks"
    yield f"asked: {_asked_where(approval, user)}, {_times(approval)}"
    if approval.escalation:
        yield f"escalation: {_escalation(approval, approval.escalation)}"
    if approval.denials > 1:
        yield f"denial: by {approval.denials} people"
    if approval.reason != "never":
        yield f"reason: needed for {_REASONS[approval.reason]}"


def _group(deciders: ExpectedDeciders) -> str:
    """Return as text who may decide, with the known names."""
    names = ", ".join(deciders.people)
    if deciders.has_more:
        names = ", ".join([*deciders.people, "those in its groups"])
    names = names or "nobody"
    match deciders.kind:
        case "role":
            return f"the people with the role {' or '.join(deciders.names)} ({names})"
        case "people":
            return names
    return "the other people in the conversation"


def _escalation(approval: ExpectedApproval, escalation: ExpectedDeciders) -> str:
    """Return as text who else may decide if the question waits for long."""
    return f"after {duration_text(approval.escalation_seconds)} also {_group(escalation)}"


def _asked_where(approval: ExpectedApproval, user: str) -> str:
    """Return as text where those who may decide are asked. `user` is the user who asks."""
    on = approval.on
    if on is None:
        if approval.by.kind == "anyone_else":
            return f"where {user} asks"
        return "each in a direct chat, on their first account"
    if not on.chat:
        return f"each in a direct chat on {on.channel}"
    thread = ""
    if on.thread:
        thread = f", thread {on.thread}"
    return f"in chat {on.chat} on {on.channel}{thread}"


def _times(approval: ExpectedApproval) -> str:
    """Return as text how long people have, and when they are reminded."""
    within = f"within {duration_text(approval.within_seconds)}"
    if approval.reminder_seconds:
        return f"{within}, reminded after {duration_text(approval.reminder_seconds)}"
    return within
