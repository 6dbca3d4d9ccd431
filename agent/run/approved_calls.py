"""ApprovedCallRunner: runs a call that a person approved, at most once.

The *decision log* has, for each decided call, that it begins and how it ended. "It begins" is
written before the effect of the call. So a call never runs twice, although the program may be
killed at any time, and may give the same decision again.

A yes counts only for what the person was shown, so the tool, the arguments and the question are
compared first. How a call ends is an `Ending`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from sayso.agent.config import AgentConfig, DecisionLog
from sayso.agent.decisions import (
    Approve,
    OpenCall,
)
from sayso.agent.guards.policy import PolicyDecision, ToolCallRefused
from sayso.agent.messages import ActionOutcome, ToolCall
from sayso.agent.run.decision_log import decision_key
from sayso.agent.run.json_in_text import json_or_text
from sayso.agent.run.state import CallOutcome, RunState
from sayso.agent.run.tool_call import ToolCaller, ToolRequest, ToolRun, original_error
from sayso.agent.run.tool_calls import check_call
from sayso.agent.tools.environment import Artifact, ToolEnvironment
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.result_texts import result_text, serialize
from sayso.agent.tools.same_call import is_same_call, is_same_question
from sayso.agent.tools.tool import Tool
from sayso.channels.types import storable
from sayso.infra.concurrency import call_in_thread
from sayso.pending.action import PendingAction
from sayso.pending.call_context import (
    ChannelRun,
    Confirmation,
    call_context,
    context_field,
    own_context,
)
from sayso.pending.effect import EffectRefused, EffectStart
from sayso.pending.executors import ToolResult
from sayso.pending.settlement import ask_reconciler

log = logging.getLogger(__name__)

#: The error of a call whose tool, arguments or question have changed since the person was asked.
CHANGED = "it has changed since the user was asked, so nothing was done: propose it again"
#: The error of a call whose tool does not exist any more.
GONE = "the tool is not available any more, so nothing was done"
#: The error of a call whose id was decided before, with other arguments.
OTHER_ARGUMENTS = (
    "it did not run: the same call was decided before with other arguments ({outcome})"
)
#: The kinds of typed results that say that nothing was done.
_NOTHING_DONE = ("not_found", "ambiguous")


@dataclass(slots=True)
class Ending:
    """How a decided call ended. A DecisionLog stores it as JSON."""

    outcome: ActionOutcome
    #: What the tool returned, or why it returned nothing.
    text: str = ""
    #: When the call ended, in Unix seconds.
    at: float = 0.0
    #: The reply with which the run ends if the tool is a terminal one; None for other tools.
    final_text: str | None = None
    #: The digest of the arguments that the decision was about; "" if that is not known.
    args_digest: str = ""

    def to_json(self) -> str:
        """Return the ending as a DecisionLog stores it."""
        return storable(json.dumps(asdict(self), ensure_ascii=False))

    @classmethod
    def from_json(cls, text: str) -> Ending:
        """Return the ending that `to_json` wrote. For anything else the outcome is unknown."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return cls("unknown")


class DecidedBefore(EffectRefused):
    """Raised where a call would begin, if it was decided before, by this or another process."""

    def __init__(self, ending: Ending) -> None:
        super().__init__("the effect did not begin: this call was decided before")
        #: How the call ended by the earlier decision.
        self.ending = ending


class ApprovedCallRunner:
    """Runs the approved calls of a run, and logs the ends of those that do not run.

    Lives as long as that run. `tools` are those that may run now, by name. `caller` runs and
    reports the calls.
    """

    def __init__(
        self,
        run: RunState,
        tools: Mapping[str, Tool],
        config: AgentConfig,
        caller: ToolCaller,
        decision_log: DecisionLog,
    ) -> None:
        self._run = run
        self._tools = tools
        self._config = config
        self._caller = caller
        self._log = decision_log

    async def run(
        self, call: OpenCall, decision: Approve, *, on_cut_off: Callable[[Ending], None]
    ) -> Ending:
        """Run an approved call, at most once. Return how it ended.

        | the decision log says that the call | what happens                                       |
        |-------------------------------------|----------------------------------------------------|
        | was not decided before              | it runs                                            |
        | has ended                           | nothing runs, and that ending counts               |
        | has begun, and not that it ended    | a repeatable tool runs again; of any other one,    |
        |                                     | the reconciler is asked how the call ended         |

        `on_cut_off`: called with the ending of a call that has begun and is cut off, to write it
        into the memory before the run ends.
        """
        request = await self._checked_request(call)
        if isinstance(request, Ending):
            return await self.end_without_run(call, request)

        key = self._key(call)
        tool = request.tool
        # `begin` writes into the decision log, and raises DecidedBefore if the call was decided.
        effect = EffectStart(partial(self._begin, key, call, tool))
        try:
            ending = await self._run_with_effect(request, call, decision, effect, key)
        except DecidedBefore as exc:
            if exc.ending.outcome != "unknown":
                return exc.ending
            ending = await self._reconciled(call, decision, tool, key)
        except BaseException:
            has_begun = effect.close()
            if has_begun:
                # It may have taken effect.
                on_cut_off(Ending("unknown", at=time.time()))
            raise

        # If only the preparation has run and failed, a later yes may run the call again.
        has_only_prepared = tool.marks_effect and not effect.has_begun
        if ending.outcome == "failed" and has_only_prepared:
            return ending
        # An unknown outcome is no end: the log says that the call has begun, and no more.
        if ending.outcome != "unknown":
            await self._note_end(key, ending)
        return ending

    async def end_without_run(self, call: OpenCall, ending: Ending) -> Ending:
        """Log that a call does not run, and return how it ends.

        It ends as `ending`, unless it was decided before: then that earlier ending counts.
        """
        key = self._key(call)
        try:
            await self._begin(key, call)
        except DecidedBefore as exc:
            return exc.ending
        await self._note_end(key, ending)
        return ending

    async def _run_with_effect(
        self,
        request: ToolRequest,
        call: OpenCall,
        decision: Approve,
        effect: EffectStart,
        key: str,
    ) -> Ending:
        """Run the call, with `effect` begun before its effect. Raises DecidedBefore.

        The effect of most tools begins with the call. A tool with `marks_effect` prepares it first,
        and begins it itself.
        """
        tool = request.tool
        if not tool.marks_effect:
            await effect.begin()
        ending = await self._run_call(request, call, decision, effect, key)
        has_begun = effect.close()
        if not has_begun and ending.outcome == "done":
            # The tool did not say where its effect begins, although it should.
            await self._begin(key, call, tool)
        return ending

    def _key(self, call: OpenCall) -> str:
        """Return the key of the decision about a call in the decision log."""
        return decision_key(self._run.events.run_id, call)

    async def _begin(self, key: str, call: OpenCall, tool: Tool | None = None) -> None:
        """Log that the decision about a call is carried out now.

        Raises DecidedBefore if the call was decided before. If an earlier attempt has begun the
        call and not ended it, a `tool` that is repeatable may begin again. `tool`: None if nothing
        runs.
        """
        logged_ending = await call_in_thread(self._log.begin, key)
        if logged_ending is None:
            return
        is_repeatable = tool is not None and tool.repeatable
        if logged_ending == "" and is_repeatable:
            return
        raise DecidedBefore(_earlier_ending(logged_ending, call.args_digest))

    async def _note_end(self, key: str, ending: Ending) -> None:
        """Log how a call ended. If the log fails, the outcome still counts."""
        try:
            await call_in_thread(self._log.end, key, ending.to_json())
        except Exception as exc:  # the call has run: its outcome must not be lost
            log.warning("agent.call_not_noted", extra={"key": key, "reason": type(exc).__name__})

    async def _reconciled(self, call: OpenCall, decision: Approve, tool: Tool, key: str) -> Ending:
        """Return how a call ended that an earlier attempt has begun.

        The *reconciler*, a function of the tool, looks up whether the effect has taken place. If it
        says yes, the ending is "done"; otherwise it is "unknown". Its no proves nothing, because
        the call may run at this moment in another process.
        """
        record = PendingAction(
            user_id=decision.decided_by,
            kind=call.tool_name,
            preview=call.preview,
            args=dict(call.arguments),
            tool_digest=call.tool_digest,
            values_digest=call.values_digest,
            pending_action_id=key,
        )
        answer: Any = None
        if tool.reconcile is not None:
            with _by_yes(call, decision, key):
                answer = await ask_reconciler(tool.reconcile, record)
        if answer in (None, False):
            return Ending("unknown", at=time.time())
        text = ""
        if isinstance(answer, str):
            text = answer
        return Ending("done", text, at=time.time(), args_digest=call.args_digest)

    async def _checked_request(self, call: OpenCall) -> ToolRequest | Ending:
        """Return the call as it may run now, or the ending that says why it may not.

        A yes counts only for what the person was shown: the same tool, arguments and question.
        """
        tool = self._tools.get(call.tool_name)
        if tool is None:
            return _refused(GONE)
        arguments = dict(call.arguments)
        tool_call = ToolCall(call.tool_name, arguments, call.call_id)
        request = await check_call(tool_call, self._tools, self._config)
        if isinstance(request, CallOutcome):
            return _refused(CHANGED)
        if request.decision.decision == "deny":
            return _refused(f"it is denied by now, so nothing was done: {request.decision.reason}")

        try:
            if tool.definition_digest != call.tool_digest or not is_same_call(tool, arguments):
                return _refused(CHANGED)
            draft = await self._caller.draft(request)
            if isinstance(draft.preview, ToolResult):
                return _refused(result_text(serialize(draft.preview)))
            if not is_same_question(tool, draft, call.preview, call.values_digest):
                return _refused(CHANGED)
        except (ToolError, ToolCallRefused) as exc:
            return _refused(f"nothing was done: {exc}")
        return replace(request, decision=PolicyDecision("allow", "it was approved"))

    async def _run_call(
        self,
        request: ToolRequest,
        call: OpenCall,
        decision: Approve,
        effect: EffectStart,
        key: str,
    ) -> Ending:
        """Run the call in the context of its yes, and return how it ended. Raises DecidedBefore."""
        files: list[Artifact] = []
        choices: list[str] = []
        suspicions: list[str] = []
        with _by_yes(call, decision, key), own_context(ToolEnvironment) as own:
            own.artifacts = files
            own.choices = choices
            own.suspicions = suspicions
            own.idempotency_key = key
            own.effect = effect
            tool_run = await self._caller.run(request, suspicions)

        # `effect` may have raised it inside of the tool, whose errors are wrapped.
        if tool_run.error is not None:
            error = original_error(tool_run.error)
            if isinstance(error, DecidedBefore):
                raise error

        self._run.artifacts += files
        self._run.choices = tuple(choices) or self._run.choices
        if tool_run.outcome.is_unknown:
            self._run.unknown_outcomes.append(request.call)
        return _ending_of(tool_run, call.args_digest, time.time())


def _earlier_ending(logged_ending: str, args_digest: str) -> Ending:
    """Return how a call ended that was decided before.

    `logged_ending` is the ending in the decision log, "" if the call has begun and has no end.
    `args_digest` is that of the arguments that are decided about now. A call that was decided with
    other arguments does not run, and fails.
    """
    if not logged_ending:
        return Ending("unknown", at=time.time())
    ending = Ending.from_json(logged_ending)
    if ending.args_digest in ("", args_digest):
        return ending
    return Ending("failed", OTHER_ARGUMENTS.format(outcome=ending.outcome), at=ending.at)


def _ending_of(tool_run: ToolRun, args_digest: str, at: float) -> Ending:
    """Return how an approved call that has run ended. `at`: now, in Unix seconds.

    | the outcome                                   | the ending |
    |-----------------------------------------------|------------|
    | it is not known whether it took effect        | unknown    |
    | an error, or a result such as a NotFound      | failed     |
    | any other result                              | done       |
    """
    outcome = tool_run.outcome
    if outcome.is_unknown:
        content = json_or_text(outcome.content)
        text = ""
        if isinstance(content, dict):
            text = str(content.get("error", ""))
        return Ending("unknown", text, at=at)

    if not outcome.has_result or _says_nothing_done(tool_run.raw):
        text = outcome.content.removeprefix("Error: ")
        return Ending("failed", text, at=at, args_digest=args_digest)

    final_text = None
    if outcome.ends == "terminal":
        final_text = outcome.final_text
    return Ending("done", outcome.content, at, final_text, args_digest)


def _refused(error: str) -> Ending:
    """Return the ending of an approved call that may not run."""
    return Ending("failed", error, at=time.time())


def _by_yes(call: OpenCall, decision: Approve, key: str) -> AbstractContextManager[Any]:
    """Return a context in which the tool can look up who has confirmed the call."""
    # On a channel, the tool can do that already.
    if call_context().run is not None:
        return nullcontext()
    confirmed = Confirmation(key, call.preview, decision.decided_by, time.time())
    by_yes = ChannelRun(
        decision.decided_by,
        None,
        None,
        ttl_seconds=0.0,
        parser_version="",
        confirmed=confirmed,
    )
    return context_field("run", by_yes)


def _says_nothing_done(raw: str | None) -> bool:
    """Return whether a raw result says that the tool did nothing: a NotFound or Ambiguous."""
    value = json_or_text(raw or "")
    return isinstance(value, dict) and value.get("kind") in _NOTHING_DONE
