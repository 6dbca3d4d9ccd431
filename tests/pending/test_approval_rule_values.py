"""Rules of approvals as values: they are stored and read back exactly, and junk is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.pending.approval_rule import (
    MAX_NEED,
    ApprovalEscalation,
    ApprovalPlace,
    ApprovalRule,
    Deciders,
)

names = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3).map(tuple)
deciders = (
    st.builds(Deciders, kind=st.just("role"), names=names)
    | st.builds(Deciders, kind=st.just("people"), names=names)
    | st.just(Deciders("anyone_else"))
)
places = st.builds(ApprovalPlace, channel=st.text(max_size=5), chat=st.text(max_size=5))


@st.composite
def rules(draw: st.DrawFn) -> ApprovalRule:
    """Return any rule that others can fulfill."""
    by = draw(deciders)
    most = MAX_NEED
    if by.kind == "people":
        most = len(set(by.names))
    within = draw(st.floats(2, 1000))
    escalation = draw(
        st.none()
        | st.builds(ApprovalEscalation, st.floats(0.1, within, exclude_max=True), deciders)
    )
    return ApprovalRule(
        by,
        need=draw(st.integers(1, most)),
        denials=draw(st.integers(1, MAX_NEED)),
        on=draw(st.none() | places),
        within_seconds=within,
        reminder_seconds=draw(st.floats(0, within, exclude_max=True)),
        escalation=escalation,
        reason=draw(st.sampled_from(["on_deny", "always", "never"])),
    )


@given(rules())
def test_a_rule_is_read_back_as_it_was(rule: ApprovalRule) -> None:
    """The signed record of an action holds it as JSON."""
    assert ApprovalRule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


@given(rules(), st.data())
def test_a_rule_without_a_field_is_refused(rule: ApprovalRule, data: st.DataObject) -> None:
    """No field has a value that was not stored."""
    stored = rule.to_dict()
    del stored[data.draw(st.sampled_from(sorted(stored)))]
    with pytest.raises(KeyError):
        ApprovalRule.from_dict(stored)


@given(
    rules(),
    st.sampled_from(["by", "need", "denials", "within_seconds", "reminder_seconds", "reason"]),
    st.none() | st.text(max_size=3) | st.lists(st.integers(), max_size=2) | st.just(-1),
)
def test_junk_in_a_rule_is_refused(rule: ApprovalRule, name: str, value: object) -> None:
    """A value of another type or out of range raises one of three errors."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        ApprovalRule.from_dict({**rule.to_dict(), name: value})


@given(rules(), st.floats(0, 1000))
def test_those_who_come_later_may_decide_from_then_on(rule: ApprovalRule, waited: float) -> None:
    """Those of the rule may decide at any time."""
    now = rule.deciders_at(waited)
    assert now[0] == rule.by
    later = rule.escalation
    assert (len(now) == 2) == (later is not None and waited >= later.after_seconds)
