"""PendingAction: equal digests mean equal arguments, and a record comes back as it was."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.pending import PendingAction, compute_args_digest
from sayso.pending.action import canonical_json, check_proposal, exact_args
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.stored_action import StoredAction

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "value",
    [
        decimal.Decimal("1.0"), datetime.date(2026, 1, 1), (1, 2), {1: "a"}, {None: 1}, {True: 1}, {1, 2}, b"a",
        float("nan"), float("inf"), object(),
    ],
)  # fmt: skip
def test_inexact_value_is_refused(value):
    """JSON would change it, at the top level and deep inside."""
    for args in ({"a": value}, {"a": [{"b": value}]}):
        with pytest.raises(TypeError, match="not exact JSON"):
            compute_args_digest(args)


def test_tuple_and_list_are_not_the_same_arguments():
    """The list has a digest, the tuple has none."""
    assert compute_args_digest({"a": [1, 2]})
    with pytest.raises(TypeError):
        compute_args_digest({"a": (1, 2)})


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_key_order_is_irrelevant(args):
    """The digest depends on the arguments, not on their order."""
    backwards = dict(reversed(args.items()))
    assert compute_args_digest(args) == compute_args_digest(backwards)


@given(JSON, JSON)
def test_equal_spelling_means_equal_json(one, two):
    """A value has one spelling, and a spelling one value."""
    assert (canonical_json(one) == canonical_json(two)) == (
        json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    )
    assert json.loads(canonical_json(one)) == one


@pytest.mark.parametrize(
    ("one", "two"), [(1, "1"), (1, True), (0, False), (None, ""), ([], {}), (1, 1.0)]
)
def test_lookalikes_have_different_digests(one, two):
    """Values that Python calls equal may be different arguments."""
    assert compute_args_digest({"a": one}) != compute_args_digest({"a": two})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Delete it: 1,200.00 EUR?", "Delete it: 1,200.00 EUR?"), ("a\r\nb\rc\nd", "a\nb\nc\nd"),
        ("a\u2028b\x85c", "a\nb\nc"), ("in\u200bvoice", "in⟨U+200B⟩voice"),
    ],
)  # fmt: skip
def test_preview_reads_as_it_is_written(written, read):
    """Invisible characters, and those that change the reading direction, are shown by their codes."""
    assert PendingAction("ana", "k", written).preview == read


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"kind": ""}, "kind '' is reserved: use a name that does not begin with 'sayso:'"),
        ({"kind": "sayso:plan"}, "kind 'sayso:plan' is reserved"),
        (
            {"preview": "x" * 16001},
            "the preview has 16,001 characters: shorten it to at most 16,000",
        ),
        ({"ttl_seconds": 0.0}, "ttl_seconds is 0.0: it must be more than 0 and at most 86400"),
        ({"ttl_seconds": 86_400.5}, "ttl_seconds is 86400.5"),
        ({"ttl_seconds": float("nan")}, "ttl_seconds is nan"),
    ],
)
def test_preview_that_a_person_cannot_read_is_refused(fields, complaint):
    """The error shows the value and the limit."""
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        check_proposal(PendingAction(**{"user_id": "ana", "kind": "k", "preview": "p", **fields}))


@pytest.mark.parametrize("name", ["user_id", "version", "reason"])
@pytest.mark.parametrize("value", [2, None])
def test_number_in_place_of_a_text_is_refused(name, value):
    """Its record would count as changed in the store, so that each yes to it is refused."""
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"{name} is of type {kind}: give text"):
        check_proposal(
            PendingAction(**{"user_id": "ana", "kind": "k", "preview": "p", name: value})
        )


def test_time_of_a_rule_may_exceed_the_limit_of_a_user_who_decides_alone():
    """Other people need not sit before the chat. The rule of the operator says how long they have."""
    rule = ApprovalRule(Deciders("people", ("ana",)), within_seconds=10 * 86_400.0)
    action = PendingAction("ben", "k", "p", ttl_seconds=10 * 86_400.0, approval=rule.to_dict())
    check_proposal(action)
    with pytest.raises(ValueError, match=r"ttl_seconds is 864001.0: .* at most 864000$"):
        check_proposal(replace(action, ttl_seconds=864_001.0))


def test_rule_by_which_the_user_decides_is_no_part_of_an_action():
    """An action with a rule waits for others, who would never be asked."""
    rule = ApprovalRule(Deciders("asker"))
    with pytest.raises(ValueError, match="by which the user decides"):
        check_proposal(PendingAction("ben", "k", "p", approval=rule.to_dict()))


def test_largest_allowed_action_can_be_proposed():
    """A limit is the last allowed value."""
    check_proposal(PendingAction("ana", "k", "x" * 16_000, ttl_seconds=86_400.0))
    assert exact_args({"a": "x" * (65_536 - len('{"a":""}'))})
    with pytest.raises(
        ValueError,
        match=r"^the arguments are 65,537 characters as JSON: at most 65,536 can be proposed$",
    ):
        exact_args({"a": "x" * (65_537 - len('{"a":""}'))})


HALVES = st.text(st.characters() | st.sampled_from("\ud83d\ude00"), max_size=4)


@given(st.dictionaries(HALVES, HALVES | st.dictionaries(HALVES, st.integers())))
def test_digest_is_of_the_stored_arguments(args):
    """Two adjacent surrogate halves are one character when they are read again."""
    kept = exact_args(args)
    assert kept["args_digest"] == compute_args_digest(kept["args"])
    assert exact_args(kept["args"]) == kept


def test_no_arguments_have_one_digest():
    """None and an empty mapping have the same digest."""
    assert compute_args_digest(None) == compute_args_digest({})


def test_action_comes_back_from_its_dict():
    """Every field and the seed's status survive JSON."""
    action = PendingAction(
        "ana", "delete", "Delete it", {"id": [1, {"a": None}]}, channel_id="chat", state="shown"
    )
    data = json.loads(json.dumps(action.to_dict()))
    assert data["status"] == "pending"
    assert PendingAction.from_dict(data) == action


def test_stored_action_is_read_from_the_answer_of_a_script():
    """Times are in milliseconds, and in microseconds when the platform says when it was shown."""
    fields = {
        "action_id": "A" * 22,
        "loaded_at": 9000,
        "record": "{}",
        "mac": "mac",
        "state": "started",
        "expires_at": "7125",
        "decided_by_event": "yes-1",
        "attempt_id": "try-1",
        "outcome_text": "Done.",
        "result": "ok",
        "output": "{}",
        "last_seen_seq": "3",
        "started_at": "6500",
        "question_message": "m1",
        "question_messages": "m1 m2",
        "written_at": "5250000",
        "followed_after_seq": "4",
        "unclear_answers": "a1 b2",
        "decision": '{"answer": "yes"}',
    }
    stored = StoredAction(
        "A" * 22, "{}", "mac", "started", expires_at=7.125, decided_by_event="yes-1", attempt_id="try-1", outcome_text="Done.",
        result="ok", output="{}", last_seen_seq=3, started_at=6.5, question_message="m1", question_messages=("m1", "m2"), written_at=5.25,
        followed_after_seq=4, unclear_answers=("a1", "b2"), decision='{"answer": "yes"}',
    )  # fmt: skip
    read = StoredAction.from_json(json.dumps(fields))
    assert (read, read.loaded_at) == (stored, 9.0)


@pytest.mark.parametrize("nested", ["[" * 100_000, '1e999,"a":1', '"7"', '{"v":7}'])
def test_changed_record_without_a_readable_version_counts_as_version_1(nested):
    """It raises nothing, so its turn is answered: the changed record is refused there."""
    stored = StoredAction("A" * 22, f'{{"v":{nested}}}', "mac", "shown")
    assert (stored.record_version, stored.action.kind) == (1, "")


def test_unknown_field_is_refused():
    """A record of a future version is not read as one of this version."""
    with pytest.raises(TypeError):
        PendingAction.from_dict({**PendingAction("ana", "k", "p").to_dict(), "surprise": 1})


def test_window_that_never_opened_cannot_be_expired():
    """There is no expiry before the delivery of the preview; at its end the window is over."""
    action = PendingAction("ana", "k", "p")
    assert not action.is_expired(1e12)
    shown = PendingAction("ana", "k", "p", expires_at=100.0)
    assert [shown.is_expired(now) for now in (99.9, 100.0, 100.1)] == [False, True, True]


def test_ids_are_not_guessable():
    """Each id has 128 random bits."""
    ids = {PendingAction("ana", "k", "p").pending_action_id for _ in range(1000)}
    assert (len(ids), {len(pid) for pid in ids}) == (1000, {22})


def test_expiry_is_judged_by_the_clock_unless_a_time_is_given():
    """It never expires before the window opened."""
    assert PendingAction("ana", "k", "p", expires_at=1.0).is_expired()
    assert not PendingAction("ana", "k", "p", expires_at=time.time() + 60).is_expired()
    assert PendingAction("ana", "k", "p", expires_at=5.0).is_expired(5.0)
    assert not PendingAction("ana", "k", "p", expires_at=5.0).is_expired(4.9)
    assert not PendingAction("ana", "k", "p").is_expired()
