"""Confirmed: how tools run, are undone and are asked after, once their user has said yes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from time import perf_counter
from typing import Any

from pydantic import BaseModel

from sayso.agent.config import AgentConfig
from sayso.agent.observability.dispatcher import RunEvents
from sayso.agent.result import AgentResult
from sayso.agent.run.approval import effective_decision
from sayso.agent.tools.errors import EffectUnknownError, ToolError, ToolExecutionError
from sayso.agent.tools.results import result_text, serialize
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import ToolSelector, would_show
from sayso.pending.action import Executor, PendingAction, canonical_json, compute_args_digest
from sayso.pending.concurrency import TimedOut, in_thread
from sayso.pending.executors import UNDO_PREFIX, Ambiguous, EffectFailed, ExecutorFactory, NotFound, PendingConfirmation
from sayso.pending.proposals import PLAN_KIND
from sayso.pending.store import BasePendingStore

log = logging.getLogger(__name__)


class ToolExecutors:
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
        store.executors.guard(self._may_run)
        store.executors.watch(lambda action, executor: partial(_observed, action, config(), executor))

    def _may_run(self, action: PendingAction) -> bool:
        """Whatever would run for it, also a factory or a closure of the author's own: not against the policy of now,
        and not what another version of its tool has shown.
        """
        tool = self._known.get(action.kind)
        refusal = _policy_refusal(tool, action, self._config()) if tool else ""
        if refusal:
            log.warning(refusal, extra={"kind": action.kind, "pending": action.pending_action_id})
        return not refusal

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
        executors.register_tool(tool.name, _runs(tool))
        if tool.undo is not None:
            executors.register_undo(tool.name, _undoes(tool), tool.undo_seconds)
        if tool.reconcile is not None:
            executors.register_reconciler(tool.name, tool.reconcile)


def _runs(tool: Tool) -> ExecutorFactory:
    """The executor factory every tool has: run this tool with the recorded arguments, validated again.

    No model reads the result, so a typed one is put into words here. A tool that is not the one whose preview was
    shown must not run, nor one that would run with anything else than what was shown.
    """

    def factory(action: PendingAction) -> Executor | None:
        refusal = _refusal(tool, action)
        if refusal:
            log.warning(refusal, extra={"kind": tool.name, "pending": action.pending_action_id})
            return None

        async def execute() -> str:
            try:
                value = await tool.ainvoke(action.args)
            except EffectUnknownError as exc:  # "failed" would say more than anybody knows
                raise TimedOut(str(exc)) from exc
            except ToolExecutionError as exc:
                if isinstance(exc.error, TimeoutError):  # whatever it waited for may still be done
                    raise TimedOut(str(exc)) from exc
                raise
            return _told(tool, value)

        return execute

    return factory


async def _observed(action: PendingAction, config: AgentConfig, executor: Executor) -> Any:
    """Run a confirmed call, or an undo, and tell the agent's observers of it, as a run with this one call.

    The call's id is that of the action, the tool's name its kind. Raises what the call raises.
    """
    chronicle = RunEvents(
        config.observers, metadata={"pending_action": action.pending_action_id}, asynchronous=_in_event_loop()
    )
    began, call = perf_counter(), (action.pending_action_id, action.kind)
    await chronicle.tell("run_start", [], "")
    await chronicle.tell("tool_start", *call, action.args)
    try:
        value = await _performed(executor)
    except asyncio.CancelledError:
        await chronicle.tell("cancelled", 0, "the confirmed call was cut off")
        raise
    except Exception as exc:
        await _tell_failure(chronicle, action, _raised(exc), began)
        raise
    told = _shown(value)
    if isinstance(value, Ambiguous | NotFound):
        await _tell_failure(chronicle, action, EffectFailed(told), began)
        return value
    chronicle.note("tool_execution", began=began, tool_name=action.kind, tool_args=action.args, tool_result=told)
    await chronicle.tell("tool_end", *call, told, (perf_counter() - began) * 1000)
    await chronicle.tell("run_end", AgentResult(told, trace=chronicle.trace, stop_reason="terminal"))
    return value


async def _performed(executor: Executor) -> Any:
    """Run an executor as tools run: a sync one in a thread, an async one on the event loop."""
    if inspect.iscoroutinefunction(executor):
        return await executor()
    value = await in_thread(executor)
    return await value if inspect.isawaitable(value) else value


def _shown(value: Any) -> str:
    """Return a result in words for observers: whatever it is, its effect took place."""
    try:
        return value if isinstance(value, str) else result_text(serialize(value))
    except Exception:  # noqa: BLE001  # any type may refuse in its own way
        return type(value).__name__


async def _tell_failure(chronicle: RunEvents, action: PendingAction, error: BaseException, began: float) -> None:
    call = (action.pending_action_id, action.kind)
    chronicle.note("tool_execution", began=began, tool_name=action.kind, tool_args=action.args, error=str(error))
    await chronicle.tell("tool_error", *call, error, action.args, (perf_counter() - began) * 1000)
    await chronicle.tell("run_end", AgentResult("", trace=chronicle.trace, stop_reason="error"))


def _in_event_loop() -> bool:
    """Return whether an event loop runs here: a store's sync call runs without one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _raised(error: Exception) -> BaseException:
    """Return what the tool itself raised."""
    if isinstance(error, EffectFailed | TimedOut) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error.error if isinstance(error, ToolExecutionError) and error.error else error


def _policy_refusal(tool: Tool, action: PendingAction, config: AgentConfig) -> str:
    """The event that is logged where nothing may run for this action; "" where something may."""
    if action.version and action.version != tool.version:
        return "pending.other_version"
    return "pending.denied" if effective_decision(tool, action.args, config).decision == "deny" else ""


def _refusal(tool: Tool, action: PendingAction) -> str:
    """The event that is logged where a tool must not run for this action; "" where it may."""
    if action.version != tool.version:
        return "pending.other_version"
    # A definition that changed would run with what nobody has seen.
    return "" if is_same_call(tool, action.args) else "pending.other_arguments"


async def is_hidden(selector: ToolSelector | None, tools: Iterable[Tool], action: PendingAction) -> bool:
    """Whether whoever speaks now may not use a tool that the action, or a step of it, needs: asked in their run."""
    return any([await would_show(selector, tool) == "hidden" for tool in _tools_of(action, tools)])


async def learn_schemas(tools: Iterable[Tool], action: PendingAction) -> None:
    """Ask the injectors of the tools that the action needs for their schemas, off the event loop.

    An executor is rebuilt on the loop, and compares its arguments with the schema. An injector that fails here fails
    again there, where it is told.
    """
    for tool in _tools_of(action, tools):
        if not tool.knows_its_schema:
            with suppress(ToolError):
                await in_thread(tool.schema)


def _tools_of(action: PendingAction, tools: Iterable[Tool]) -> list[Tool]:
    """Return the tools that the action, or a step of it, needs."""
    kinds = [step["kind"] for step in action.args["steps"]] if action.kind == PLAN_KIND else [action.kind]
    names = {kind.removeprefix(UNDO_PREFIX) for kind in kinds}
    return [tool for tool in tools if tool.name in names]


def is_same_call(tool: Tool, recorded: dict[str, Any]) -> bool:
    """Whether the tool would run with what is recorded: exactly, but for the order in which a set was written down."""
    written = tool.validate_json(recorded)
    if canonical_json(written) == canonical_json(recorded):
        return True
    values = tool.validate(recorded)
    return written.keys() == recorded.keys() and all(
        canonical_json(written[name]) == canonical_json(recorded[name])
        or (_holds_a_set(values.get(name)) and _unordered(written[name]) == _unordered(recorded[name]))
        for name in written
    )


def _holds_a_set(value: Any) -> bool:
    """Whether there is one in it, at whatever depth of collections, models and dataclasses."""
    if isinstance(value, set | frozenset):
        return True
    if is_dataclass(value):
        return any(_holds_a_set(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, BaseModel):
        return any(map(_holds_a_set, value.__dict__.values()))
    return any(map(_holds_a_set, value.values() if isinstance(value, dict) else _items(value)))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _unordered(value: Any) -> str:
    """A digest of the value in which the order of lists makes no difference."""
    if isinstance(value, dict):
        return compute_args_digest({key: _unordered(each) for key, each in value.items()})
    if isinstance(value, list):
        return compute_args_digest({"list": sorted(map(_unordered, value))})
    return compute_args_digest({"value": value})


def _told(tool: Tool, value: Any) -> str:
    """What the person is told. A tool that asks by itself, and now has asked nobody, has not acted."""
    if isinstance(value, PendingConfirmation):
        raise ToolExecutionError(
            f"{tool.name!r} asks for a yes itself, and did nothing: allow it in the policy, and register an executor "
            f"factory for {tool.name!r}, so that its yes outlives a restart",
            tool_name=tool.name,
        )
    if isinstance(value, Ambiguous | NotFound):  # nothing was done: there was nothing, or too much, to do it to
        raise EffectFailed(value.in_words)
    return result_text(serialize(value))


def _undoes(tool: Tool) -> ExecutorFactory:
    """The executor factory of a tool's undo: with the arguments of what it undoes, and its result if it asks for it."""

    def factory(action: PendingAction) -> Executor | None:
        async def execute() -> str:
            try:
                value = await tool.aundo_raw(action.args["args"], action.args["result"])
            except EffectUnknownError as exc:  # "failed" would say more than anybody knows
                raise TimedOut(str(exc)) from exc
            return _told(tool, value)

        return execute if action.version == tool.version else None

    return factory
