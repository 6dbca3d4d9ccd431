"""Votes: what the seal is over, what is read back, and what the votes of several people decide."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.pending.action import ActionSigner
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.approvals.votes import Vote, tally

SIGNER = ActionSigner(["key"])
PEOPLE = ("ana", "bea", "cem", "dan")
texts = st.text(max_size=8)
votes = st.builds(
    Vote,
    action_id=texts,
    record_mac=texts,
    answer=st.sampled_from(["yes", "no"]),
    form=st.sampled_from(["tap", "words"]),
    channel=texts,
    user_id=texts,
    conversation=texts,
    chat=texts,
    thread=texts,
    event_id=texts,
    at=st.floats(0, 2e9),
    user_name=texts,
    aliases=st.lists(texts, max_size=2).map(tuple),
    words=texts,
    reason=texts,
    question_message_id=texts,
    request_id=texts,
    person=st.sampled_from(PEOPLE),
    known_as=st.lists(texts, max_size=2).map(tuple),
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=5,
)
rules = st.builds(
    ApprovalRule,
    by=st.just(Deciders("role", ("manager",))),
    need=st.integers(1, 4),
    denials=st.integers(1, 4),
)


@given(votes)
def test_a_vote_is_read_back_as_it_was(vote: Vote) -> None:
    """One line of JSON has all of it, and its seal holds."""
    sealed = vote.sealed(SIGNER)
    line = sealed.to_json()
    assert len(line.splitlines()) == 1
    assert Vote.from_json(line) == sealed
    assert Vote.from_json(line).is_genuine(SIGNER)


@pytest.mark.parametrize("name", [each.name for each in fields(Vote)])
@given(vote=votes, value=junk)
def test_the_seal_is_over_every_field(name: str, vote: Vote, value: object) -> None:
    """A vote with any other value in any field is not genuine, or cannot be read."""
    sealed = vote.sealed(SIGNER)
    data = {**asdict(sealed), name: value}
    if value == asdict(sealed)[name]:
        return
    try:
        changed = Vote.from_json(json.dumps(data))
    except (ValueError, TypeError):
        return
    assert changed == sealed or not changed.is_genuine(SIGNER)


@given(votes)
def test_the_seal_of_another_key_is_refused(vote: Vote) -> None:
    """Only the bot's own key seals."""
    assert not vote.sealed(ActionSigner(["other"])).is_genuine(SIGNER)


@given(junk)
def test_junk_is_refused(value: object) -> None:
    """Whatever else is stored raises one of two errors."""
    with pytest.raises((ValueError, TypeError)):
        Vote.from_json(json.dumps(value))


@pytest.mark.parametrize("line", ["", "{", "[" * 100_000, '{"action_id": "a"}'])
def test_text_that_is_no_vote_is_refused(line: str) -> None:
    """It is not JSON, it is too deep, or fields are missing."""
    with pytest.raises((ValueError, TypeError)):
        Vote.from_json(line)


@given(rules, st.lists(votes, max_size=8), st.sets(st.sampled_from(PEOPLE)))
def test_only_enough_different_people_decide(
    rule: ApprovalRule, given_votes: list[Vote], deciders: set[str]
) -> None:
    """Each person counts once, with their last answer."""
    counted = tally(rule, _of_deciders(given_votes, deciders))
    last: dict[str, Vote] = {}
    for vote in given_votes:
        if vote.person not in last or vote.at >= last[vote.person].at:
            last[vote.person] = vote
    voters = deciders & last.keys()
    yes = {person for person in voters if last[person].answer == "yes"}
    no = voters - yes

    assert {vote.person for vote in counted.yes} == yes
    assert {vote.person for vote in counted.no} == no
    assert (counted.state == "denied") == (len(no) >= rule.denials)
    assert (counted.state == "approved") == (len(yes) >= rule.need and len(no) < rule.denials)
    assert {vote.person for vote in counted.deciding} <= voters


@given(rules, st.lists(votes, min_size=1, max_size=8, unique_by=lambda vote: vote.at), st.data())
def test_the_order_of_arrival_decides_nothing(
    rule: ApprovalRule, given_votes: list[Vote], data: st.DataObject
) -> None:
    """A vote that was held up on its way does not replace a later answer of its person."""
    shuffled = data.draw(st.permutations(given_votes))
    in_order = tally(rule, _of_deciders(given_votes))
    out_of_order = tally(rule, _of_deciders(shuffled))
    assert out_of_order == in_order


@given(rules, st.lists(votes, max_size=8))
def test_a_no_more_never_leads_to_the_effect(rule: ApprovalRule, given_votes: list[Vote]) -> None:
    """What is not approved stays so when somebody else says no."""
    before = tally(rule, _of_deciders(given_votes))
    further = replace(_no("eve"), at=2e9)
    after = tally(rule, _of_deciders([*given_votes, further]))
    assert before.state == "approved" or after.state != "approved"


@given(st.permutations(range(4)))
def test_person_under_changing_names_counts_once(order: list[int]) -> None:
    """The answers have a chain of common names, in whichever order they were given."""
    chain = ["a", "ab", "bc", "ca"]
    given_votes = [
        replace(_yes(str(number)), at=at, known_as=tuple(chain[number]))
        for at, number in enumerate(order)
    ]
    counted = tally(_needs(2), given_votes)
    assert (counted.state, len(counted.yes)) == ("open", 1)


def test_right_of_an_absent_person_is_used_once() -> None:
    """By them, or by one colleague."""
    bea = _yes("bea")
    for_bea = replace(_yes("dan"), stands_for="bea")
    too_for_bea = replace(_yes("eve"), stands_for="bea")
    assert tally(_needs(1), [for_bea]).state == "approved"
    assert tally(_needs(2), [for_bea, bea]).state == "open"
    assert tally(_needs(2), [for_bea, too_for_bea]).state == "open"
    assert tally(_needs(2), [for_bea, _yes("cem")]).state == "approved"


def _of_deciders(
    given_votes: Iterable[Vote], deciders: Collection[str] = (*PEOPLE, "eve")
) -> list[Vote]:
    """Return the votes of these people, who never had another name."""
    return [replace(vote, known_as=()) for vote in given_votes if vote.person in deciders]


def _needs(need: int) -> ApprovalRule:
    """Return a rule by which so many must agree."""
    return ApprovalRule(Deciders("role", ("manager",)), need=need)


def _yes(person: str) -> Vote:
    """Return the yes of a person."""
    return replace(_no(person), answer="yes")


def _no(person: str) -> Vote:
    """Return the no of a person."""
    return Vote(
        action_id="a",
        record_mac="m",
        answer="no",
        form="tap",
        channel="team",
        user_id=person,
        conversation=f"team:{person}",
        chat=person,
        thread="",
        event_id="e",
        at=0.0,
        person=person,
    )
