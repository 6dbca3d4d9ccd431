"""Confirmed: how tools run, are undone and are asked after, once their user has said yes."""

from __future__ import annotations

import logging

from agent.providers.wording import tell_result
from agent.tools.tool import Tool
from pending.action import Executor, PendingAction
from pending.proposals import ExecutorFactory
from pending.store import BasePendingStore

log = logging.getLogger(__name__)


def register_tool(tool: Tool, store: BasePendingStore) -> None:
    """What every tool brings to the store: how it runs, how it is undone, and whom to ask after a crash."""
    store.register_executor_factory(tool.name, _runs(tool))
    if tool.undo is not None:
        store.executors.register_undo(tool.name, _undoes(tool), tool.undo_seconds)
    if tool.reconcile is not None:
        store.register_reconciler(tool.name, tool.reconcile)


def _runs(tool: Tool) -> ExecutorFactory:
    """The executor factory every tool has: run this tool with the recorded arguments, validated again.

    No model reads the result, so a typed one is put into words here. A tool that is not the one whose preview was
    shown must not run.
    """

    def factory(action: PendingAction) -> Executor | None:
        if action.version != tool.version:
            log.warning("pending.other_version", extra={"kind": tool.name, "pending": action.pending_action_id})
            return None

        async def execute() -> str:
            return tell_result(await tool.aexecute(action.args))

        return execute

    return factory


def _undoes(tool: Tool) -> ExecutorFactory:
    """The executor factory of a tool's undo: with the arguments of what it undoes, and its result if it asks for it."""

    def factory(action: PendingAction) -> Executor | None:
        async def execute() -> str:
            return tell_result(await tool.aundo(action.args["args"], action.args["result"]))

        return execute if action.version == tool.version else None

    return factory
