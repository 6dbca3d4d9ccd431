"""ToolExecutors: what runs, undoes and reconciles the calls of tools once their user has said yes.

The store of actions knows only *kinds* of actions, and who asked (`asked_by`):

| the question                                           | its kind            | its asked_by |
|--------------------------------------------------------|---------------------|--------------|
| may the tool `refund` be called? (the agent asks)      | `refund`            | ""           |
| may that be undone? (the button below the outcome)     | `sayso:undo:refund` | as before    |
| the code of the tool `sell` asks, in place of acting   | as that code says   | `sell`       |
| a program asks, without a tool                         | as the program says | ""           |

A program has no tool to describe, so its action has no `tool_digest`, and a `version` only if the
program gives one. The action of a tool always has the `tool_digest` of the tool that asked.

Code that asks chooses the kind itself; it may be the name of a tool, which runs after the yes. An
*executor* is the function that performs one action. The author of a bot may register one for a
kind; otherwise the tool of that name runs with the stored arguments. A *reconciler* looks up
whether an interrupted action has taken effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from sayso.agent.config import AgentConfig
from sayso.agent.guards.policy import ToolPolicy, effective_decision
from sayso.agent.observability.run_events import RunEvents
from sayso.agent.result import AgentResult
from sayso.agent.run.inner_agent import inner_tools
from sayso.agent.run.long_results import MAX_FULL_CHARS
from sayso.agent.run.tool_call import original_error
from sayso.agent.tools.errors import EffectUnknownError, ToolExecutionError, ToolParameterError
from sayso.agent.tools.result_texts import effect_text, result_text, serialize
from sayso.agent.tools.same_call import is_same_call, is_same_question
from sayso.agent.tools.text_cuts import shorten
from sayso.agent.tools.tool import Tool
from sayso.infra.concurrency import TimedOut, call_foreign, is_in_loop, run_with_timeout
from sayso.pending.action import PLAN_KIND, Executor, PendingAction
from sayso.pending.error_texts import error_text
from sayso.pending.executors import (
    UNDO_PREFIX,
    ActionExecutor,
    ActionKinds,
    Ambiguous,
    Comparison,
    EffectFailed,
    ExecutorFactory,
    NotFound,
    PendingConfirmation,
    Reconciler,
    ToolOutput,
    ToolResult,
)

log = logging.getLogger(__name__)

#: How long the preview of a confirmed action may take to be made again, in seconds.
PREVIEW_SECONDS = 10.0


class ToolExecutors(ActionKinds):
    """The agent's tools as kinds of actions. Lives as long as the store.

    `tools` and `config` return the tools and the settings as they are now. The tools of an agent
    that is a tool of this agent count as well, under the policy of that agent.

    A tool that was removed or disabled, or that the policy denies by now, does not run even after a
    yes. This also holds for executors that were registered. In all methods, `own` is what the
    author has registered for the kind, None for nothing.

    After a yes, the store calls `compare` first. It checks the tool that runs and the tool whose
    code asked: that they exist, are allowed and have the same definition. It may also make the
    preview again, which takes time, and the tools may change meanwhile. So `executor`, which the
    store calls next, repeats the other checks of the tool that runs. Two are left to `compare`
    alone: those of the tool whose code asked, and the definition behind an undo with a registered
    executor.
    """

    def __init__(
        self, tools: Callable[[], Iterable[Tool]], config: Callable[[], AgentConfig]
    ) -> None:
        self._tools = tools
        self._config = config
        #: The names of all tools that existed at some time, by which a removed tool is recognized.
        self._known = {tool.name for tool, _ in self._all()}

    def executor(self, action: PendingAction, own: ExecutorFactory | None) -> ActionExecutor | None:
        """Return what performs a confirmed action or an undo, and reports it to observers.

        Return None if nothing may perform it: the tool was removed, is denied by now, or has
        changed since its question was asked. Only a tool itself can mark where its effect begins,
        not its undo, and not a registered executor.
        """
        name = action.kind.removeprefix(UNDO_PREFIX)
        tool = self._find(name)
        if tool is None and name in self._known:
            return None

        factory = own
        marks_effect = False
        if tool is not None and action.kind == name:
            if not self._may_run(tool, action):
                return None
            factory = own or partial(_tool_executor, tool)
            marks_effect = tool.marks_effect and own is None
        elif tool is not None and tool.undo is not None:
            factory = own or partial(_undo_executor, tool)
        if factory is None:
            return None

        executor = factory(action)
        if executor is None:
            return None
        run = partial(_run_observed, action, self._config(), executor)
        return ActionExecutor(run, marks_effect)

    async def compare(self, action: PendingAction, *, render: bool, has_own: bool) -> Comparison:
        """Compare the tool of an action with what it was when the question was asked.

        `render`: make its preview again, and compare that as well. An undo, and what a tool's own
        code asked, have no preview that could be made again. `has_own`: the author has registered
        an executor for the kind. Raises nothing.
        """
        ids = {"kind": action.kind, "action": action.pending_action_id}
        names = {action.kind.removeprefix(UNDO_PREFIX), action.asked_by} - {""}
        try:
            refusal = self._why_gone(action, has_own=has_own)
            if refusal:
                log.warning(refusal, extra=ids)
                return Comparison("gone")
            for tool in filter(None, map(self._find, sorted(names))):
                comparison = await self._compare_with(tool, action, render=render)
                if comparison.state == "changed":
                    log.warning("pending.tool_changed", extra=ids)
                    return comparison
        except Exception as exc:  # previews and injectors are the author's code
            log.error("pending.not_compared", extra=ids, exc_info=original_error(exc))
            return Comparison("unknown")
        return Comparison("same")

    def _why_gone(self, action: PendingAction, *, has_own: bool) -> str:
        """Return the log event that says why an action may not run by now, "" if it may.

        Its tool must exist and be allowed. So must the tool whose code asked the question: to
        remove or deny it withdraws its questions. An undo needs no permission, since it only takes
        back what was done.
        """
        name = action.kind.removeprefix(UNDO_PREFIX)
        tool = self._find(name)
        if tool is None and (name in self._known or not has_own):
            return "pending.tool_gone"
        if action.kind != name:
            return ""
        if tool is not None and self._is_denied(tool, action.args):
            return "pending.denied"
        # A program asked, and no tool: see the table at the top.
        if not action.tool_digest:
            return ""

        asking = self._find(action.asked_by or name)
        if asking is None:
            return "pending.tool_gone"
        # The arguments of the call that asked are not stored: only a rule without arguments can
        # deny it.
        if self._is_denied(asking, None):
            return "pending.denied"
        return ""

    def _is_denied(self, tool: Tool, args: Mapping[str, Any] | None) -> bool:
        """Return whether the policy denies a call by now.

        `args` is None where they are not known: only a rule for every call counts then.
        """
        policy = next((policy for each, policy in self._all() if each.name == tool.name), None)
        if args is None:
            return policy is not None and policy.unconditional_denial(tool.name) is not None
        return effective_decision(tool, args, policy).decision == "deny"

    async def _compare_with(self, tool: Tool, action: PendingAction, *, render: bool) -> Comparison:
        """Compare an action with its tool, or with the tool whose code asked.

        Raises whatever the preview or the injector of the tool raises.
        """
        if tool.config_injector is not None:
            # The injector decides which arguments a model sees, and so the definition that is
            # compared below. The tool keeps what this call computes. It is made in a thread with a
            # time limit, because an injector may block.
            await run_with_timeout(tool.schema, PREVIEW_SECONDS)
        if not _is_same_definition(tool, action):
            return Comparison("changed")
        has_preview = action.tool_digest and not action.asked_by and action.kind == tool.name
        if not (render and has_preview):
            return Comparison("same")
        try:
            return await self._compare_preview(tool, action)
        except ToolParameterError:  # it does not take the arguments any more
            return Comparison("changed")

    async def _compare_preview(self, tool: Tool, action: PendingAction) -> Comparison:
        """Make the preview again and compare it with the one that was shown.

        Raises ToolError, and TimedOut at the end of the time limit.
        """
        limits = (PREVIEW_SECONDS, self._config().tool_timeout_seconds, tool.metadata.timeout)
        seconds = min(limit for limit in limits if limit is not None)
        draft = await run_with_timeout(lambda: tool.draft(action.args), seconds)
        if isinstance(draft.preview, ToolResult):  # by now there is nothing to propose
            return Comparison("changed", result_text(serialize(draft.preview)))
        is_same = is_same_question(tool, draft, action.preview, action.values_digest)
        return Comparison("same" if is_same else "changed")

    def reconciler(self, kind: str, own: Reconciler | None) -> Reconciler | None:
        """Return what finds out how an interrupted action of this kind ended.

        Return None if nothing can, or if the tool was removed.
        """
        name = kind.removeprefix(UNDO_PREFIX)
        tool = self._find(name)
        if tool is None and name in self._known:
            return None
        if own is not None:
            return own
        if tool is not None and kind == name:
            return tool.reconcile
        return None

    def undo_seconds(self, kind: str) -> float:
        """Return for how many seconds an action of this kind can be undone, 0 if it cannot."""
        tool = self._find(kind)
        if tool is None or tool.undo is None:
            return 0.0
        return tool.undo_seconds

    def _find(self, name: str) -> Tool | None:
        """Return the tool of this name, None if there is none now."""
        tool = next((tool for tool, _ in self._all() if tool.name == name), None)
        if tool is not None:
            self._known.add(name)
        return tool

    def _all(self) -> Iterator[tuple[Tool, ToolPolicy | None]]:
        """Yield each tool with the policy that decides about it.

        Of two tools with one name the first counts.
        """
        tools = list(self._tools())
        policy = self._config().tool_policy
        yield from ((tool, policy) for tool in tools)
        yield from inner_tools(tools)

    def _may_run(self, tool: Tool, action: PendingAction) -> bool:
        """Return whether an action may run: its tool is unchanged, and the policy does not deny it.

        Log the reason if it may not.
        """
        refusal = ""
        if not _is_same_definition(tool, action):
            refusal = "pending.other_version"
        elif self._is_denied(tool, action.args):
            refusal = "pending.denied"
        if refusal:
            log.warning(refusal, extra={"kind": action.kind, "action": action.pending_action_id})
        return not refusal


def _is_same_definition(tool: Tool, action: PendingAction) -> bool:
    """Return whether the tool has the version and the definition that it had at the question.

    What the record does not have is not compared: the definition and the version of an action that
    a program proposed. A registered executor may run such an action whatever the version of the
    tool of that name, since it does not call the tool.
    """
    has_asked = action.asked_by in ("", tool.name)
    if has_asked and action.tool_digest not in ("", tool.definition_digest):
        return False
    is_of_this_kind = action.kind.removeprefix(UNDO_PREFIX) == tool.name
    return not is_of_this_kind or action.version in ("", tool.version)


def _tool_executor(tool: Tool, action: PendingAction) -> Executor | None:
    """Return the executor that runs a tool with the stored arguments, None if it may not run.

    It may not if the version of the tool has changed since the question, or if validation now gives
    other arguments than those that were shown. The result becomes text for the user here.
    """
    refusal = ""
    # Stricter than `_is_same_definition`, because here the tool itself runs. An action without a
    # version, which a program proposed, runs only a tool without a version.
    if action.version != tool.version:
        refusal = "pending.other_version"
    elif not is_same_call(tool, action.args):
        refusal = "pending.other_arguments"
    if refusal:
        log.warning(refusal, extra={"kind": tool.name, "action": action.pending_action_id})
        return None

    async def execute() -> ToolOutput | Ambiguous | NotFound:
        try:
            value = await tool.ainvoke(action.args)
        except EffectUnknownError as exc:  # the outcome is unknown, so not "failed"
            raise TimedOut(str(exc)) from exc
        except ToolExecutionError as exc:
            if isinstance(exc.error, TimeoutError):  # the effect may still take place
                raise TimedOut(str(exc)) from exc
            raise
        return _tool_output(tool, value)

    return execute


async def _run_observed(action: PendingAction, config: AgentConfig, executor: Executor) -> Any:
    """Run a confirmed call or an undo, and report it to observers as a run with one call.

    The id of the call is that of the action, and the name of the tool is its kind. Raises the
    errors of the call.
    """
    events = RunEvents(
        config.observers,
        metadata={"pending_action": action.pending_action_id},
        asynchronous=is_in_loop(),
    )
    began = perf_counter()
    call = (action.pending_action_id, action.kind)
    await events.tell("run_start", [], "")
    await events.tell("tool_start", *call, action.args)
    try:
        value = await call_foreign(executor)
    except asyncio.CancelledError:
        await events.tell("cancelled", 0, "the confirmed call was cut off")
        raise
    except Exception as exc:
        # The two errors of the store wrap the one that the tool raised.
        error = exc
        if isinstance(exc, EffectFailed | TimedOut) and isinstance(exc.__cause__, Exception):
            error = exc.__cause__
        await _report_failure(events, action, original_error(error), began)
        raise

    result = _observed_text(value)
    if isinstance(value, Ambiguous | NotFound):
        await _report_failure(events, action, EffectFailed(result), began)
        return value
    events.note(
        "tool_execution",
        began=began,
        tool_name=action.kind,
        tool_args=action.args,
        tool_result=result,
    )
    await events.tell("tool_end", *call, result, (perf_counter() - began) * 1000)
    await events.tell("run_end", AgentResult(result, trace=events.trace, stop_reason="terminal"))
    return value


def _observed_text(value: Any) -> str:
    """Return a result as text for observers. Raises nothing, because the effect took place."""
    if isinstance(value, ToolOutput):
        return value.text or value.output
    try:
        if isinstance(value, str):
            return value
        return result_text(serialize(value))
    except Exception:  # a value of any type may raise anything
        return type(value).__name__


async def _report_failure(
    events: RunEvents, action: PendingAction, error: BaseException, began: float
) -> None:
    """Report to observers that a confirmed call failed. `began`: its start by `perf_counter`."""
    call = (action.pending_action_id, action.kind)
    events.note(
        "tool_execution",
        began=began,
        tool_name=action.kind,
        tool_args=action.args,
        error=error_text(error),
    )
    await events.tell("tool_error", *call, error, action.args, (perf_counter() - began) * 1000)
    await events.tell("run_end", AgentResult("", trace=events.trace, stop_reason="error"))


def tools_of(action: PendingAction, tools: Iterable[Tool]) -> list[Tool]:
    """Return those of `tools` that an action or the steps of a plan need.

    These are the tools that run, and those whose code asked.
    """
    kinds = [action.kind, action.asked_by]
    if action.kind == PLAN_KIND:
        kinds = []
        for step in action.args["steps"]:
            kinds += [step["kind"], step["asked_by"]]
    names = {name.removeprefix(UNDO_PREFIX) for name in kinds}
    return [tool for tool in tools if tool.name in names]


def _tool_output(tool: Tool, value: Any) -> ToolOutput | Ambiguous | NotFound:
    """Return what a tool returned as text for the user and the model.

    An Ambiguous or NotFound, which says that nothing was done, is returned unchanged. Raises
    ToolExecutionError if the tool asked for a yes itself and did nothing.
    """
    if isinstance(value, PendingConfirmation):
        raise ToolExecutionError(
            f"{tool.name!r} asks for a yes itself, and did nothing: allow it in the policy, and "
            f"register an executor factory for {tool.name!r}, so that its yes outlives a restart",
            tool_name=tool.name,
        )
    if isinstance(value, Ambiguous | NotFound):
        return value
    raw = serialize(value)
    text = "" if value is None else effect_text(raw)
    return ToolOutput(text, shorten(raw, MAX_FULL_CHARS))


def _undo_executor(tool: Tool, action: PendingAction) -> Executor | None:
    """Return the executor of a tool's undo, None if the tool has changed since the question.

    The undo gets the arguments and the result of the original call.
    """
    # The version as in `_tool_executor`. The definition is compared here too, since
    # `ToolExecutors.executor` compares it only for the tool itself.
    if action.version != tool.version or not _is_same_definition(tool, action):
        return None

    async def execute() -> ToolOutput | Ambiguous | NotFound:
        try:
            value = await tool.aundo_raw(action.args["args"], action.args["result"])
        except EffectUnknownError as exc:  # the outcome is unknown, so not "failed"
            raise TimedOut(str(exc)) from exc
        return _tool_output(tool, value)

    return execute
