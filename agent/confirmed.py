"""Confirmed: how tools run, are undone and are asked after, once their user has said yes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from agent.config import AgentConfig
from agent.decision import decide
from agent.providers.wording import tell_result
from agent.tools.errors import EffectUnknownError, ToolExecutionError
from agent.tools.tool import Tool, serialise
from pending.action import Executor, PendingAction, canonical_json
from pending.executors import EffectFailed
from pending.proposals import ExecutorFactory
from pending.results import PendingConfirmation
from pending.store import BasePendingStore
from workers.offload import CutOff

log = logging.getLogger(__name__)


class ToolKinds:
    """The agent's tools as a store's kinds of actions. Lives as long as the store, and follows tools that change.

    A tool that is gone, or switched off, runs nothing any more, a yes or not; nor does one that the agent's policy
    denies by now.
    """

    def __init__(
        self, tools: Callable[[], Iterable[Tool]], store: BasePendingStore, config: Callable[[], AgentConfig]
    ) -> None:
        self._tools = tools
        self._store = store
        self._config = config
        self._known = {tool.name: tool for tool in tools()}
        for tool in self._known.values():
            self._register(tool)
        store.executors.keep_fresh(self._look_again)

    def _look_again(self, kind: str) -> None:
        tool = next((tool for tool in self._tools() if tool.name == kind), None)
        known = self._known.get(kind)
        if tool is known:
            return
        self._store.executors.forget(kind)
        if tool is None:
            del self._known[kind]
        else:
            self._known[kind] = tool
            self._register(tool)

    def _register(self, tool: Tool) -> None:
        """What every tool brings to the store: how it runs, how it is undone, and whom to ask after a crash."""
        executors = self._store.executors
        executors.register_tool(tool.name, _runs(tool, self._config))
        if tool.undo is not None:
            executors.register_undo(tool.name, _undoes(tool), tool.undo_seconds)
        if tool.reconcile is not None:
            executors.register_reconciler(tool.name, tool.reconcile)


def _runs(tool: Tool, config: Callable[[], AgentConfig]) -> ExecutorFactory:
    """The executor factory every tool has: run this tool with the recorded arguments, validated again.

    No model reads the result, so a typed one is put into words here. A tool that is not the one whose preview was
    shown must not run, nor one that would run with anything else than what was shown.
    """

    def factory(action: PendingAction) -> Executor | None:
        refusal = _refusal(tool, action, config())
        if refusal:
            log.warning(refusal, extra={"kind": tool.name, "pending": action.pending_action_id})
            return None

        async def execute() -> str:
            try:
                return _told(tool, await tool.ainvoke(action.args))
            except EffectUnknownError as exc:  # "failed" would say more than anybody knows
                raise CutOff(str(exc)) from exc
            except ToolExecutionError as exc:
                if isinstance(exc.error, TimeoutError):  # whatever it waited for may still be done
                    raise CutOff(str(exc)) from exc
                if exc.error is not None:  # its code broke, in a way that it did not say: its author needs to see where
                    raise
                raise EffectFailed(str(exc)) from exc

        return execute

    return factory


def _refusal(tool: Tool, action: PendingAction, config: AgentConfig) -> str:
    """The event that is logged where a tool must not run for this action; "" where it may."""
    if action.version != tool.version:
        return "pending.other_version"
    if _without_order(tool.validate_json(action.args)) != _without_order(action.args):
        return "pending.other_arguments"  # its definition changed: it would run with what nobody has seen
    if decide(tool, action.args, config).decision == "deny":
        return "pending.denied"
    return ""


def _without_order(value: Any) -> Any:
    """The value with its lists sorted: what is a set to the tool is written down in any order."""
    if isinstance(value, dict):
        return {key: _without_order(each) for key, each in value.items()}
    return sorted(map(canonical_json, map(_without_order, value))) if isinstance(value, list) else value


def _told(tool: Tool, value: Any) -> str:
    """What the person is told. A tool that asks by itself, and now has asked nobody, has not acted."""
    if isinstance(value, PendingConfirmation):
        raise ToolExecutionError(
            f"{tool.name!r} asks for a yes itself, and did nothing: allow it in the policy, and register an executor "
            f"factory for {tool.name!r}, so that its yes outlives a restart",
            tool_name=tool.name,
        )
    return tell_result(serialise(value))


def _undoes(tool: Tool) -> ExecutorFactory:
    """The executor factory of a tool's undo: with the arguments of what it undoes, and its result if it asks for it."""

    def factory(action: PendingAction) -> Executor | None:
        async def execute() -> str:
            return tell_result(await tool.aundo(action.args["args"], action.args["result"]))

        return execute if action.version == tool.version else None

    return factory
