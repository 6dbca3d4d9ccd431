"""Plans and undos: what one yes confirms.

That is a single action, a *plan*: several actions under one yes, or an *undo*: an action that
takes back the effect of another one. The steps of a plan are stored as actions themselves. The plan
is signed with their digests, so that a step that was changed in the store does not run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sayso.channels.edit_form import fits_in_record
from sayso.channels.i18n.texts import texts_for
from sayso.infra.ids import random_id
from sayso.pending.action import (
    PLAN_KIND,
    ActionSigner,
    After,
    OtherMessage,
    PendingAction,
    compute_args_digest,
)
from sayso.pending.executors import UNDO_PREFIX
from sayso.pending.repository import sign_action
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import NewAction


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one yes confirms: a single action, or a plan."""

    #: The action whose preview the question shows, and which the yes is about. The head of a plan
    #: has no effect itself.
    head: PendingAction
    #: The actions of a plan, in the order in which they will run; () for a single action.
    steps: tuple[PendingAction, ...] = ()

    def new_actions(
        self, signer: ActionSigner, user: str, *, occupies_scope: bool = True
    ) -> tuple[NewAction, ...]:
        """Return the signed records to store, the head last.

        `user` is the id of the scope that is asked. With `occupies_scope=False` a written yes does
        not reach the head: only its button does.
        """
        steps = [sign_action(step, signer, user=user, occupies_scope=False) for step in self.steps]
        ids = tuple(step.pending_action_id for step in self.steps)
        head = sign_action(self.head, signer, user=user, occupies_scope=occupies_scope, steps=ids)
        return (*steps, head)

    def prompt_in(self, closing: str) -> str:
        """Return the text that a tool put below its preview, "" for none.

        `closing` is the text with which the run ended: a preview, and what stands below it.
        """
        previews = [action.preview for action in (self.head, *self.steps)]
        shown = [preview for preview in previews if closing.startswith(f"{preview}\n\n")]
        if not shown:
            return ""
        # One preview may begin with another: then the longer one was meant.
        longest = max(shown, key=len)
        return closing.removeprefix(longest).strip()


def plan_of(actions: Sequence[PendingAction], *, plan_id: str = "") -> Proposal:
    """Return one proposal of all actions of a turn, at least one: a plan if there are several.

    `plan_id` is the id of the plan, "" for a new one. The plan asks for the code of one of its
    steps, and has the shortest of their times to answer.

    Raises ValueError for actions that different people decide about: one question has one rule.
    """
    if len(actions) == 1:
        return Proposal(actions[0])

    approval = actions[0].approval
    if any(action.approval != approval for action in actions):
        raise ValueError("the actions of a plan must have the same approval")

    plan_id = plan_id or random_id(11)
    # The plan has the code and the form: its steps are not answered one by one.
    steps = tuple(
        replace(action, plan=plan_id, code="", form=(), standing=None) for action in actions
    )
    codes = [action.code for action in actions if action.code]
    # The plan is signed with the digests of its steps: a step that was changed or exchanged in the
    # store does not run (`is_step_of`).
    args = {"steps": [_step_entry(step) for step in steps]}
    head = replace(
        actions[0],
        pending_action_id=plan_id,
        kind=PLAN_KIND,
        preview=texts_for(actions[0].language).plan([step.preview for step in steps]),
        args=args,
        args_digest=compute_args_digest(args),
        ttl_seconds=min(step.ttl_seconds for step in steps),
        code=codes[0] if codes else "",
        idempotent=False,
        version="",
        asked_by="",
        tool_digest="",
        values_digest="",
        after=_after_all(steps),
        form=_plan_form(actions),
        changes_of="",
        other_message=_other_message_of_all(steps),
        approval=approval,
        standing=None,
    )
    return Proposal(head, steps)


def _after_all(steps: Sequence[PendingAction]) -> After | Literal[""]:
    """Return what follows a plan: the model goes on unless each step says that it does not."""
    chosen = {step.after for step in steps}
    if "continue" in chosen:
        return "continue"
    if chosen == {"say"}:
        return "say"
    return ""  # the channel decides for those that do not say, and so for the plan


def _plan_form(actions: Sequence[PendingAction]) -> tuple[dict[str, Any], ...]:
    """Return the fields of all steps, with the number of the step before each name and label.

    () if they are too many for a form.
    """
    entries: list[dict[str, Any]] = []
    for number, action in enumerate(actions, start=1):
        for entry in action.form:
            name = f"{number}.{entry['name']}"
            label = f"{number}. {entry['label']}"
            entries.append({**entry, "name": name, "label": label})
    if fits_in_record(entries):
        return tuple(entries)
    return ()


def _other_message_of_all(steps: Sequence[PendingAction]) -> OtherMessage | Literal[""]:
    """Return what another message does to the question of a plan.

    It stays open only if each step lets it.
    """
    chosen = {step.other_message for step in steps}
    if "drop" in chosen:
        return "drop"
    if chosen == {"keep"}:
        return "keep"
    return ""  # the channel decides for those that do not say, and so for the plan


def step_ids(plan: PendingAction) -> tuple[str, ...]:
    """Return the ids of a plan's steps, in order."""
    return tuple(step["id"] for step in plan.args["steps"])


def is_step_of(plan: PendingAction, number: int, stored: StoredAction | None) -> bool:
    """Return whether a record is the step `number`, from 0, of this plan as it was shown.

    It is not if it belongs to another plan or has other arguments. None is no step.
    """
    if stored is None or stored.action.plan != plan.pending_action_id:
        return False
    shown: dict[str, str] = plan.args["steps"][number]
    return _step_entry(stored.action) == shown


def _step_entry(step: PendingAction) -> dict[str, str]:
    """Return what a plan says about a step in its arguments."""
    return {
        "id": step.pending_action_id,
        "kind": step.kind,
        "asked_by": step.asked_by,
        "digest": step.args_digest,
    }


@dataclass(frozen=True, slots=True)
class Effect:
    """An action that took effect, and what its tool returned."""

    action: PendingAction
    #: As the user read it, "" for nothing.
    result: str = ""


def is_undo(action: PendingAction) -> bool:
    """Return whether the action, or a step of it, undoes another action."""
    kinds = [action.kind]
    if action.kind == PLAN_KIND:
        kinds = [step["kind"] for step in action.args["steps"]]
    return any(kind.startswith(UNDO_PREFIX) for kind in kinds)


def undo_id(action_id: str) -> str:
    """Return the id of the action that undoes an action.

    It is computed from the id of the action, so that the undo of an action can be found.
    """
    return hashlib.sha256(f"undo {action_id}".encode()).hexdigest()[:22]


def undo_proposal(effects: Sequence[Effect], seconds: float, outcome_text: str = "") -> Proposal:
    """Return the proposal that undoes these effects, the last one first.

    The person who asked for the effects decides about it alone, also where other people decided
    about the effects.

    The undo can be confirmed for `seconds`. `outcome_text` is the outcome above the button of the
    undo, as Markdown, which stays there once the undo is decided; "" if the button is in a message
    without an outcome.
    """
    undo_actions: list[PendingAction] = []
    for effect in reversed(effects):
        action = effect.action
        args: dict[str, Any] = {
            "of": action.pending_action_id,
            "args": action.args,
            "result": effect.result,
        }
        # The first action of the proposal has the text for all of them.
        if outcome_text and not undo_actions:
            args["outcome_text"] = outcome_text
        undo_action = PendingAction(
            user_id=action.user_id,
            kind=UNDO_PREFIX + action.kind,
            preview=texts_for(action.language).undo(action.preview),
            args=args,
            channel_id=action.channel_id,
            conversation_id=action.conversation_id,
            ttl_seconds=seconds,
            requested_at=action.requested_at,
            parser_version=action.parser_version,
            version=action.version,
            asked_by=action.asked_by,
            user_name=action.user_name,
            tool_digest=action.tool_digest,
            language=action.language,
            after="say",  # the person takes a step back: nothing of the request is left to do
            pending_action_id=undo_id(action.pending_action_id),
        )
        undo_actions.append(undo_action)
    ids = " ".join(effect.action.pending_action_id for effect in effects)
    return plan_of(undo_actions, plan_id=undo_id(ids))
