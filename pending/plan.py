"""Plan: several proposals of one turn under one yes, each step with a record and an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from secrets import token_urlsafe

from sayso.pending.action import PendingAction, compute_args_digest
from sayso.pending.executors import UNDO_PREFIX, undo_kind
from sayso.pending.records import StoredAction, seal_action
from sayso.pending.seal import Seal
from sayso.pending.texts import speak
from sayso.workers.lane import Arm

#: The kind of a plan's own record, which no tool can have. It has no effect itself: its steps do.
PLAN_KIND = "sayso:plan"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one yes is asked for: an action, or a plan with its steps in order."""

    head: PendingAction
    steps: tuple[PendingAction, ...] = ()

    def arms(self, seal: Seal, user: str, *, live: bool = True) -> tuple[Arm, ...]:
        """All its records as they are stored, the head last. One that is not `live` is reached by its button only."""
        steps = tuple(seal_action(step, seal, user=user, live=False) for step in self.steps)
        names = tuple(step.pending_action_id for step in self.steps)
        return (*steps, seal_action(self.head, seal, user=user, live=live, steps=names))

    def prompt_in(self, closing: str) -> str:
        """Return what a tool says below its preview in the closing words of a run; "" where it says nothing."""
        previews = (self.head.preview, *(step.preview for step in self.steps))
        ended = [closing.removeprefix(preview) for preview in previews if closing.startswith(f"{preview}\n\n")]
        return min(ended, key=len).strip() if ended else ""


def propose(actions: Sequence[PendingAction]) -> Proposal | None:
    """One proposal of all that a turn proposed; None when that was nothing."""
    if len(actions) < 2:
        return Proposal(actions[0]) if actions else None
    plan_id = token_urlsafe(16)
    steps = tuple(replace(action, plan=plan_id, code="") for action in actions)
    args = {"steps": [_listed(step) for step in steps]}
    head = replace(
        actions[0],
        pending_action_id=plan_id,
        kind=PLAN_KIND,
        preview=speak(actions[0].language).plan([step.preview for step in steps]),
        args=args,
        args_digest=compute_args_digest(args),
        ttl_seconds=min(step.ttl_seconds for step in steps),
        code=next((action.code for action in actions if action.code), ""),
        idempotent=False,
        version="",
    )
    return Proposal(head, steps)


def step_names(plan: PendingAction) -> tuple[str, ...]:
    """The ids of a plan's steps, in order."""
    return tuple(step["id"] for step in plan.args["steps"])


def is_step(plan: PendingAction, number: int, stored: StoredAction | None) -> bool:
    """Whether this record is the step the user agreed to: sealed for this plan, at this place, with these arguments."""
    return (
        stored is not None
        and stored.action.plan == plan.pending_action_id
        and _listed(stored.action) == plan.args["steps"][number]
    )


def is_undo(action: PendingAction) -> bool:
    """Whether the action takes back others."""
    kinds = [step["kind"] for step in action.args["steps"]] if action.kind == PLAN_KIND else [action.kind]
    return any(kind.startswith(UNDO_PREFIX) for kind in kinds)


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that took effect, and what its tool returned."""

    action: PendingAction
    result: str = ""


def undo_of(effects: Sequence[Effect], seconds: float) -> Proposal | None:
    """The proposal that undoes these effects, the last one first."""
    return propose([_undo(effect, seconds) for effect in reversed(effects)])


def _undo(effect: Effect, seconds: float) -> PendingAction:
    action = effect.action
    args = {"of": action.pending_action_id, "args": action.args, "result": effect.result}
    return PendingAction(
        user_id=action.user_id,
        kind=undo_kind(action.kind),
        preview=speak(action.language).undo(action.preview),
        args=args,
        channel_id=action.channel_id,
        conversation_id=action.conversation_id,
        ttl_seconds=seconds,
        requested_at=action.requested_at,
        parser_version=action.parser_version,
        version=action.version,
        language=action.language,
    )


def _listed(step: PendingAction) -> dict[str, str]:
    return {"id": step.pending_action_id, "kind": step.kind, "digest": step.args_digest}
