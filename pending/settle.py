"""Settle: the one path from a confirmed action to its effect, once, with an honest outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Literal

from channels.types import Reply
from pending import texts
from pending.action import Executor, PendingAction
from pending.proposals import ExecutorFactory
from pending.records import Claim, Records, StoredAction
from pending.results import ToolResult
from pending.seal import Seal
from workers.lane import Change, LaneLost, Move, TurnOvertaken, outbox_entry
from workers.offload import in_thread, offload

log = logging.getLogger(__name__)

#: Seconds a confirmed action may take before its outcome is called unknown. Less than a turn's own limit.
EXECUTOR_TIMEOUT = 100.0

#: The seed's statuses, and two that only a lane knows: `early` and `unknown`.
OutcomeStatus = Literal[
    "executed", "expired", "digest_mismatch", "no_executor", "failed", "cancelled", "kind_mismatch", "ignored",
    "early", "unknown",
]  # fmt: skip


#: How an effect that was begun may end.
EndState = Literal["done", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class ConfirmOutcome:
    """What became of a pending action. `result` is what its executor returned, `told` what the user hears."""

    status: OutcomeStatus
    record: PendingAction
    result: str | None = None
    told: str = ""

    @property
    def executed(self) -> bool:
        """Whether the effect took place now."""
        return self.status == "executed"


class Executors:
    """What performs confirmed actions: factories by kind, and closures of this process as a short cut."""

    def __init__(self, *, max_closures: int = 5000) -> None:
        self._factories: dict[str, ExecutorFactory] = {}
        self._closures: OrderedDict[str, Executor] = OrderedDict()
        self._max_closures = max_closures

    def register(self, kind: str, factory: ExecutorFactory) -> None:
        """From now on `factory` rebuilds the executor of this kind."""
        self._factories[kind] = factory

    def keep(self, pending_action_id: str, executor: Executor) -> None:
        """Keep a closure for as long as there is room; the factory serves when it is gone."""
        self._closures[pending_action_id] = executor
        while len(self._closures) > self._max_closures:
            self._closures.popitem(last=False)

    def take(self, action: PendingAction) -> Executor | None:
        """The executor of an action: its closure if it is here, else rebuilt. None when neither exists."""
        closure = self._closures.pop(action.pending_action_id, None)
        if closure is not None:
            return closure
        factory = self._factories.get(action.kind)
        return factory(action) if factory else None


class Settlement:
    """Claims, starts, runs and records one confirmed action."""

    def __init__(
        self, records: Records, seal: Seal, executors: Executors, *, timeout_seconds: float = EXECUTOR_TIMEOUT
    ) -> None:
        self._records = records
        self._seal = seal
        self._executors = executors
        self._timeout_seconds = timeout_seconds

    async def confirm(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome | None:
        """Run the action if this claim wins it. None: there is nothing to win, execute nothing.

        Raises LaneLost and TurnOvertaken when the worker must stop or look again.
        """
        if not stored.is_genuine(self._seal, claim.scope):
            # What was started cannot be called off: nobody can tell any more what it was.
            return await (self._interrupted if stored.state == "started" else self._disarm)(claim, stored)
        verdict, state = await offload(self._records.claim, claim, stored)
        action = stored.action
        match verdict:
            case "mine" if state == "started" and not action.idempotent:
                return await self._interrupted(claim, stored)
            case "mine":
                return await self._execute(claim, stored)
            case "expired":
                return ConfirmOutcome("expired", replace(action, state="expired"), told=texts.expired(action.preview))
            case "early":
                return ConfirmOutcome("early", action, told=texts.early(action.preview))
            case "tampered":
                return await self._disarm(claim, stored)
            case "lost":
                raise LaneLost(claim.conversation)
            case "moved":
                raise TurnOvertaken(claim.conversation)
        return None

    async def _execute(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        action = stored.action
        executor = self._executor(action)
        if executor is None:
            return await self._end(claim, action, "no_executor", texts.unsafe(action.preview))
        attempt = secrets.token_urlsafe(8)
        if not await offload(self._records.start, claim, stored, attempt):
            raise TurnOvertaken(f"{claim.conversation}: the action moved before it was started")
        return await self._run(claim, action, executor, attempt)

    def _executor(self, action: PendingAction) -> Executor | None:
        try:
            return self._executors.take(action)
        except Exception:  # a factory is user code, and nothing has happened yet
            log.exception("pending.factory_failed", extra={"kind": action.kind})
            return None

    async def _run(self, claim: Claim, action: PendingAction, executor: Executor, attempt: str) -> ConfirmOutcome:
        limit = asyncio.timeout(self._timeout_seconds)
        try:
            async with limit:
                result = _as_text(await _call(executor))
        except asyncio.CancelledError:
            # This worker is being stopped. A thread may still be at it: nobody can know.
            await asyncio.shield(self._record(claim, attempt, "unknown", action, ""))
            raise
        except Exception:  # an executor is user code: its error is an outcome, its text stays here
            log.exception("pending.failed", extra={"kind": action.kind, "pending": action.pending_action_id})
            # Past our own limit the executor was cut off, it did not fail: what it did is unknown.
            return await self._record(claim, attempt, "unknown" if limit.expired() else "failed", action, "")
        return await self._record(claim, attempt, "done", action, result)

    async def _record(
        self,
        claim: Claim,
        attempt: str,
        state: EndState,
        action: PendingAction,
        result: str,
    ) -> ConfirmOutcome:
        told = {
            "done": texts.done(action.preview, result),
            "failed": texts.failed(action.preview),
            "unknown": texts.unknown(action.preview),
        }[state]
        correction = ""
        if state == "done" and claim.lease:
            correction = outbox_entry(claim.scope.conversation, Reply(texts.correction(action.preview, result)))
        await offload(self._records.finish, claim, attempt, state, told, correction)
        statuses: dict[str, OutcomeStatus] = {"done": "executed", "failed": "failed", "unknown": "unknown"}
        record = replace(action, state=state, outcome=told)
        return ConfirmOutcome(statuses[state], record, result if state == "done" else None, told)

    async def _interrupted(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """An earlier worker started it and died: say so, and never repeat it."""
        action = stored.action
        told = texts.unknown(action.preview)
        move = Move(claim.pending_action_id, ("started", "unknown"), "unknown", told)
        word, _ = await offload(self._records.change, claim.conversation, Change(move=move))
        if word != "ok":
            raise TurnOvertaken(f"{claim.conversation}: the outcome came in just now")
        return ConfirmOutcome("unknown", replace(action, state="unknown", outcome=told), told=told)

    async def _disarm(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """The record is not what the user saw: it must never run."""
        told = texts.tampered()
        log.error("pending.tampered", extra={"pending": claim.pending_action_id})
        move = Move(claim.pending_action_id, ("armed", "shown", "claimed", "cancelled"), "cancelled", told, claim.by)
        await offload(self._records.change, claim.conversation, Change(move=move))
        action = stored.action
        return ConfirmOutcome("digest_mismatch", replace(action, state="cancelled"), told=told)

    async def _end(self, claim: Claim, action: PendingAction, status: OutcomeStatus, told: str) -> ConfirmOutcome:
        move = Move(claim.pending_action_id, ("claimed", "failed"), "failed", told)
        await offload(self._records.change, claim.conversation, Change(move=move))
        return ConfirmOutcome(status, replace(action, state="failed", outcome=told), told=told)


async def _call(executor: Executor) -> Any:
    if inspect.iscoroutinefunction(executor):
        return await executor()
    result = await in_thread(executor)
    return await result if inspect.isawaitable(result) else result


def _as_text(result: Any) -> str:
    if result is None:
        return ""
    return result.to_json() if isinstance(result, ToolResult) else str(result)
