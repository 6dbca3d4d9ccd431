"""FinishedActions: what became of actions that have ended, and of their undos. Changes nothing.

A record that was tampered with in the store is never repeated to a person, so every method checks
the signatures first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Scope
from sayso.pending.action import PLAN_KIND, ActionSigner, PendingAction
from sayso.pending.action_outcomes import ShownResults, UndoStates, plan_report
from sayso.pending.plans import Effect, is_step_of, step_ids, undo_id
from sayso.pending.repository import ActionRepository
from sayso.pending.stored_action import StoredAction


class FinishedActions:
    """Reads what finished actions have done. Keeps no state. Lives as long as its store.

    `scope` is where an action waited, and `stored` the action as the store returned it.
    """

    def __init__(self, repository: ActionRepository, signer: ActionSigner) -> None:
        self._repository = repository
        self._signer = signer

    async def effects(self, scope: Scope, stored: StoredAction) -> tuple[Effect, ...]:
        """Return what took effect of a finished action: one effect, or those of a plan's steps.

        It is () if a record was tampered with.
        """
        parts = await self._genuine_parts(scope, stored)
        return tuple(Effect(part.action, part.result) for part in parts if part.state == "done")

    async def report(
        self, scope: Scope, stored: StoredAction, *, results: ShownResults = "whole"
    ) -> str:
        """Return what is known of each step of a finished plan, or that an action was undone.

        It is "" for any other action, and if a record was tampered with. `results`: how much the
        report says of what tools returned.
        """
        parts = await self._genuine_parts(scope, stored)
        if not parts:
            return ""

        undos = await self._undo_states(scope, parts)
        if stored.action.kind == PLAN_KIND:
            return plan_report(stored.action, parts, undos, results=results)
        texts = texts_for(stored.action.language)
        preview = stored.action.preview
        match undos.get(stored.action_id):
            case "undone":
                return texts.undone(preview)
            case "unknown":
                return texts.unknown(texts.undo(preview))
        return ""

    async def was_undone(self, scope: Scope, stored: StoredAction) -> bool:
        """Return whether a finished action, or a step of it, was undone, or may have been."""
        parts = await self._genuine_parts(scope, stored)
        return bool(await self._undo_states(scope, parts))

    async def _undo_states(self, scope: Scope, parts: Sequence[StoredAction]) -> UndoStates:
        """Return what is known of the undos of these actions, by the id of the action.

        An undo that certainly had no effect is left out. An undo whose record was changed may have
        taken effect: it is unknown.
        """
        action_ids = [part.action_id for part in parts if part.state == "done"]
        if not action_ids:
            return {}

        undo_ids = tuple(undo_id(action_id) for action_id in action_ids)
        undos = await self._repository.load(scope.conversation.id, undo_ids)
        states: dict[str, Literal["undone", "unknown"]] = {}
        for action_id, undo in zip(action_ids, undos, strict=True):
            if undo is None or undo.state not in ("claimed", "started", "done", "unknown"):
                continue
            is_certain = undo.state == "done" and undo.is_genuine(self._signer, scope)
            states[action_id] = "undone" if is_certain else "unknown"
        return states

    async def outcome_above_undo(self, scope: Scope, stored: StoredAction) -> str:
        """Return the outcome that stands above the button of an undo, as Markdown.

        It is "" if the button is in a message without an outcome, and if a record was tampered
        with.
        """
        for part in await self._genuine_parts(scope, stored):
            if "outcome_text" in part.action.args:
                return str(part.action.args["outcome_text"])
        return ""

    async def _genuine_parts(self, scope: Scope, stored: StoredAction) -> list[StoredAction]:
        """Return the steps of a plan, or the action itself if it is no plan.

        It is [] if a record was tampered with.
        """
        if not stored.is_genuine(self._signer, scope):
            return []
        if stored.action.kind == PLAN_KIND:
            return await load_steps(self._repository, self._signer, scope, stored.action) or []
        return [stored]


async def load_steps(
    repository: ActionRepository, signer: ActionSigner, scope: Scope, plan: PendingAction
) -> list[StoredAction] | None:
    """Return the steps of a plan, None if one of them is not what was shown.

    `plan` is the action of a verified record.
    """
    stored_steps = await repository.load(scope.conversation.id, step_ids(plan))
    steps = []
    for number, step in enumerate(stored_steps):
        if step is None or not step.is_genuine(signer, scope):
            return None
        if not is_step_of(plan, number, step):
            return None
        steps.append(step)
    return steps
