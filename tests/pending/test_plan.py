"""Plans: what one yes covers, which steps may run under it, and how effects are undone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.pending.action import (
    PLAN_KIND,
    ActionSigner,
    PendingAction,
    after_of,
    compute_args_digest,
)
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.executors import UNDO_PREFIX
from sayso.pending.plans import Effect, is_step_of, plan_of, step_ids, undo_proposal
from sayso.pending.stored_action import StoredAction

SEAL = ActionSigner(["key"])


def proposed(name: str, **fields) -> PendingAction:
    """Return the proposal of a tool in ana's conversation."""
    given = {
        "channel_id": "chat", "conversation_id": "room", "language": "pt", "version": "7", "parser_version": "v1",
        "requested_at": 5.0, **fields,
    }  # fmt: skip
    return PendingAction("ana", "delete", f"Delete {name}", {"name": name}, **given)


def stored(proposal) -> list[StoredAction]:
    """Return the proposal's records as they are stored, the head last."""
    return [
        StoredAction(arm.action_id, arm.record, arm.mac, "shown")
        for arm in proposal.new_actions(SEAL, "-")
    ]


def test_one_action_needs_no_plan():
    """A single action is proposed without a plan around it."""
    one = proposed("A", code="4821")
    assert (plan_of([one]).head, plan_of([one]).steps) == (one, ())


def test_plan_lists_its_steps_in_its_arguments_and_its_preview():
    """Both the text for the person and the digest have every step in order, in the person's language."""
    actions = [proposed("A"), proposed("B")]
    plan = plan_of(actions).head
    listed = [
        {
            "id": each.pending_action_id,
            "kind": "delete",
            "asked_by": "",
            "digest": compute_args_digest(each.args),
        }
        for each in actions
    ]
    assert (plan.kind, plan.args) == (PLAN_KIND, {"steps": listed})
    assert plan.args_digest == compute_args_digest(plan.args)
    assert plan.preview == texts_for("pt").plan(["Delete A", "Delete B"])
    assert step_ids(plan) == tuple(each.pending_action_id for each in actions)


def test_plan_takes_only_scope_and_language():
    """They are those of the turn. A plan has no version and is not itself repeatable."""
    plan = plan_of([proposed("A", idempotent=True), proposed("B")]).head
    assert (plan.user_id, plan.channel_id, plan.conversation_id, plan.language) == (
        "ana",
        "chat",
        "room",
        "pt",
    )
    assert (plan.idempotent, plan.version) == (False, "")


def test_window_of_a_plan_is_that_of_its_most_urgent_step():
    """A step cannot be confirmed later than it could be alone."""
    assert (
        plan_of([proposed("A", ttl_seconds=60), proposed("B", ttl_seconds=5)]).head.ttl_seconds == 5
    )


MANAGERS = ApprovalRule(Deciders("role", ("manager",)), within_seconds=7200).to_dict()


def test_plan_waits_for_the_people_of_its_steps_and_as_long_as_they_have():
    """One question has one rule, which is signed with the head that the question shows."""
    steps = [proposed(name, approval=MANAGERS, ttl_seconds=7200) for name in "AB"]
    plan = plan_of(steps)
    assert (plan.head.approval, plan.head.ttl_seconds) == (MANAGERS, 7200)
    assert [step.approval for step in plan.steps] == [MANAGERS, MANAGERS]


def test_plan_of_steps_that_different_people_decide_is_refused():
    """Neither rule may be dropped in silence."""
    with pytest.raises(ValueError, match="must have the same approval"):
        plan_of([proposed("A"), proposed("B", approval=MANAGERS, ttl_seconds=7200)])


def test_undo_is_decided_by_the_person_who_asked():
    """Others approved the effect. To take it back needs none of them."""
    done = [Effect(proposed(name, approval=MANAGERS, ttl_seconds=7200)) for name in "AB"]
    undo = undo_proposal(done, 30.0)
    assert [each.approval for each in (undo.head, *undo.steps)] == [None, None, None]
    assert undo.head.ttl_seconds == 30.0


def test_first_code_of_any_step_is_asked_for_once():
    """The plan asks for it, so its steps do not."""
    proposal = plan_of([proposed("A"), proposed("B", code="4821"), proposed("C", code="1111")])
    assert proposal.head.code == "4821"
    assert [step.code for step in proposal.steps] == ["", "", ""]
    assert plan_of([proposed("A"), proposed("B")]).head.code == ""


def test_only_the_head_of_a_plan_waits_for_a_typed_answer():
    """Its steps are stored before it and reached through it; an undo waits only for its button."""
    proposal = plan_of([proposed("A"), proposed("B")])
    arms = proposal.new_actions(SEAL, "-")
    names = tuple(step.pending_action_id for step in proposal.steps)
    assert [arm.action_id for arm in arms] == [*names, proposal.head.pending_action_id]
    assert [(arm.occupies_scope, arm.steps, arm.user) for arm in arms] == [
        (False, (), "-"),
        (False, (), "-"),
        (True, names, "-"),
    ]
    assert [arm.plan for arm in arms] == [proposal.head.pending_action_id] * 2 + [""]
    assert [
        arm.occupies_scope for arm in proposal.new_actions(SEAL, "-", occupies_scope=False)
    ] == [
        False,
        False,
        False,
    ]


def test_step_is_valid_only_at_its_own_place():
    """The person did not agree to a swapped or missing step, or to one of another plan."""
    proposal, other = (
        plan_of([proposed("A"), proposed("B")]),
        plan_of([proposed("A"), proposed("B")]),
    )
    plan, (first, second, _) = proposal.head, stored(proposal)
    assert (is_step_of(plan, 0, first), is_step_of(plan, 1, second)) == (True, True)
    assert (is_step_of(plan, 1, first), is_step_of(plan, 0, second)) == (False, False)
    assert is_step_of(plan, 0, None) is False
    assert is_step_of(plan, 0, stored(other)[0]) is False


@pytest.mark.parametrize(
    "changes", [{"args": {"name": "Z"}, "args_digest": ""}, {"kind": "pay"}, {"plan": "another"}]
)
def test_changed_step_is_invalid(changes):
    """Even signed anew with the key, it does not fit the plan's list."""
    proposal = plan_of([proposed("A"), proposed("B")])
    (arm,) = plan_of([replace(proposal.steps[0], **changes)]).new_actions(SEAL, "-")
    assert not is_step_of(
        proposal.head, 0, StoredAction(arm.action_id, arm.record, arm.mac, "shown")
    )


def test_undo_is_an_action_of_the_same_user():
    """It has the same user and conversation, the arguments and the result of the first action, and a window."""
    done = proposed("A")
    undo = undo_proposal([Effect(done, "deleted A")], 300.0).head
    assert (undo.kind, undo.preview) == (f"{UNDO_PREFIX}delete", texts_for("pt").undo("Delete A"))
    assert undo.args == {"of": done.pending_action_id, "args": {"name": "A"}, "result": "deleted A"}
    assert (undo.user_id, undo.channel_id, undo.conversation_id) == ("ana", "chat", "room")
    assert (undo.ttl_seconds, undo.requested_at, undo.parser_version) == (300.0, 5.0, "v1")
    assert (undo.version, undo.language) == ("7", "pt")
    assert undo.pending_action_id != done.pending_action_id


def test_undo_of_several_starts_with_the_last():
    """A later effect may build on an earlier one."""
    undo = undo_proposal([Effect(proposed("A")), Effect(proposed("B"))], 300.0)
    assert [step.args["args"] for step in undo.steps] == [{"name": "B"}, {"name": "A"}]


@pytest.mark.parametrize(
    ("of_steps", "default", "after"),
    [
        (("say", "say"), "continue", "say"),
        (("say", ""), "continue", "continue"),
        (("say", ""), "say", "say"),
        (("say", "continue"), "say", "continue"),
        (("", ""), "continue", "continue"),
    ],
)
def test_model_goes_on_after_a_plan_unless_each_step_says_no(of_steps, default, after):
    """One step whose answer the model has to read is enough."""
    steps = [proposed(str(number), after=of_step) for number, of_step in enumerate(of_steps)]
    assert after_of(plan_of(steps).head, default) == after


def test_undo_is_never_followed_by_the_model():
    """The person takes a step back, whatever the channel or the undone action have."""
    effects = [Effect(proposed(name, after="continue")) for name in "AB"]
    heads = [undo_proposal(some, 60.0).head for some in (effects[:1], effects)]
    assert [after_of(head, "continue") for head in heads] == ["say", "say"]
