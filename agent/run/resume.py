"""DecisionRunner: carries out the decisions about a paused run's calls, before its model goes on.

A run *pauses* when calls wait for a program to approve, deny or edit them. The program may be
killed at any time, and may give the same decisions again. So the *decision log* has, for each
decided call, that it begins and how it ended: a call never runs twice.

`carry_out` has all steps: it takes over the outcomes that the memory has already, then applies the
edits, then each yes and no. An *inner* run is that of an agent which is a tool of this one; it
pauses and goes on with this run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from sayso.agent.config import AgentConfig, DecisionLog
from sayso.agent.decisions import (
    Approve,
    DecidedCall,
    Decision,
    DecisionError,
    Deny,
    Edit,
    OpenCall,
    RunSnapshot,
    inner_id,
    outcome_entry,
)
from sayso.agent.guards.guardrails import GuardrailBlocked, apply_guardrails
from sayso.agent.guards.policy import PolicyDecision, ToolCallRefused
from sayso.agent.messages import FINAL_OUTCOMES, ActionLink, ActionOutcome, Message, Role, ToolCall
from sayso.agent.result import AgentResult
from sayso.agent.run.decision_log import OF_THIS_PROCESS, decision_key
from sayso.agent.run.edited_call import EditRefused, edited_call
from sayso.agent.run.inner_agent import InnerAgent, InnerPause, answer_or_pause, inner_agent_of
from sayso.agent.run.json_in_text import json_or_text
from sayso.agent.run.pause import DECIDED_MESSAGE, open_actions, waiting_id, with_waiting_results
from sayso.agent.run.state import WITHHELD, CallOutcome, RunEnd, RunState
from sayso.agent.run.tool_call import ToolCaller, ToolRequest, ToolRun, original_error
from sayso.agent.run.tool_calls import check_call
from sayso.agent.tools.call_texts import result_text, serialize
from sayso.agent.tools.environment import Artifact, ToolEnvironment
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.same_call import is_same_call, is_same_question
from sayso.agent.tools.screening import result_for_model
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.invisible import readable
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
#: Why nothing is known about a call of an inner run that has ended.
ENDED = "it was decided before, and its agent has answered: see the result of the outer call"
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


class DecisionRunner:
    """Carries out the decisions that a run begins with, in the order of the calls.

    Lives as long as that run. It writes each outcome into the run and its memory before the next
    call starts, so that no outcome is lost if the model fails or the run is stopped.

    `tools` are those that may run now, by name. `caller` runs and reports the calls.
    """

    def __init__(
        self,
        run: RunState,
        tools: Mapping[str, Tool],
        config: AgentConfig,
        caller: ToolCaller,
    ) -> None:
        self._run = run
        self._decisions = run.request.decisions
        self._tools = tools
        self._config = config
        self._caller = caller
        self._log: DecisionLog = run.request.decision_log or config.decision_log or OF_THIS_PROCESS
        #: The replies of terminal tools. The run ends with the first one.
        self._final_texts: list[str] = []

    async def carry_out(self) -> RunEnd | None:
        """Carry out all decisions. Return how the run ends, or None if its model is asked next.

        Raises DecisionError for an edit that is not possible, before any call runs.
        """
        run = self._run
        self._adopt_known_outcomes()
        await self._change_calls()

        own_calls = {call.call_id: call for call in run.open_calls}
        # In the order of the calls, which is that of their results. The list is a copy, because
        # each outcome changes `run.earlier`.
        for call_id in [message.tool_call_id for message in run.earlier]:
            if call_id in own_calls:
                await self._decide(own_calls[call_id])
            elif call_id in run.inner:
                await self._decide_inner(call_id)

        # With new messages of the user, the model is asked at once, even while calls wait.
        if not run.request.messages:
            if run.open_calls or run.inner:
                previews = [call.preview for call in run.snapshot.open_calls]
                return RunEnd("\n\n".join(previews), stop_reason="pending")
            if self._final_texts:
                return RunEnd(self._final_texts[0], stop_reason="terminal")
        self._set_history()
        return None

    def _adopt_known_outcomes(self) -> None:
        """Take over the outcomes that the memory has.

        A call with an outcome there was decided before, and does not run again.
        """
        run = self._run
        if run.memory is None:
            return
        results: dict[str, Message] = {}
        for message in run.memory.get_history():
            results.update({link.id: message for link in message.actions})
        # If the memory has one of these results, it has all messages of the paused run. Each paused
        # run has such a link, even once all its calls are decided and only the model must be asked.
        for message in run.earlier:
            if any(link.id in results for link in message.actions):
                run.remembers_earlier = True

        own_calls = {call.call_id: call for call in run.open_calls}
        for call_id in [*own_calls, *run.inner]:
            known_result = results.get(waiting_id(run.events.run_id, call_id))
            if known_result is None or open_actions([known_result]):
                continue
            if call_id in own_calls:
                run.decided.append(_decided_before(own_calls[call_id], known_result))
            else:
                self._report_late_decisions(call_id)
            self._close_call(call_id, known_result)

    def _report_late_decisions(self, call_id: str) -> None:
        """Report an unknown outcome for each decision about an inner run that has ended."""
        for call in self._run.inner[call_id].open_calls:
            id_ = inner_id(call_id, call.id)
            decision = self._decisions.get(id_)
            if decision is not None:
                decided = DecidedCall(
                    id=id_,
                    tool_name=call.tool_name,
                    arguments=call.arguments,
                    outcome="unknown",
                    text=ENDED,
                    decided_by=decision.decided_by,
                )
                self._run.decided.append(decided)

    async def _change_calls(self) -> None:
        """Replace each call that an Edit changes by a new proposal.

        Raises DecisionError, before any call has run.
        """
        run = self._run
        # Raises DecisionError if an inner agent is gone. This comes first, so that nothing is
        # changed then.
        for call_id in run.inner:
            if self._inner_decisions(call_id):
                self._inner_tool(call_id)

        changed_calls: dict[int, OpenCall] = {}
        for at, call in enumerate(run.open_calls):
            decision = self._decisions.get(call.id)
            if isinstance(decision, Edit):
                changed_calls[at] = await self._changed_call(call, decision)

        for call_id, snapshot in run.inner.items():
            decisions = self._inner_decisions(call_id)
            edits = {id_: each for id_, each in decisions.items() if isinstance(each, Edit)}
            if edits:
                result = await self._ask_inner(call_id, snapshot, edits)
                run.inner[call_id] = result.paused or snapshot
        await self._replace_calls(changed_calls)

    async def _replace_calls(self, changed: Mapping[int, OpenCall]) -> None:
        """Replace open calls by their changed ones, so that no yes runs the earlier ones any more.

        `changed` has the new calls, by the indexes of the earlier ones among the open calls.
        """
        run = self._run
        pairs = [(run.open_calls[at], new) for at, new in changed.items()]
        for call, new in pairs:
            replaced = Ending("replaced", at=time.time(), args_digest=call.args_digest)
            ending = await self._end_without_run(call, replaced)
            if ending.outcome == "replaced":
                run.open_calls[run.open_calls.index(call)] = new
            else:  # an earlier decision has run or denied the call, and that counts
                self._write(call, Approve(), ending)

    async def _changed_call(self, call: OpenCall, edit: Edit) -> OpenCall:
        """Return the new proposal of a changed call. Raises DecisionError."""
        tool = self._tools.get(call.tool_name)
        what = f"the edit of {call.id!r} ({call.tool_name})"
        if tool is None:
            raise DecisionError(f"{what} cannot be made: {GONE}")

        try:
            edited = await edited_call(
                tool,
                call.arguments,
                edit.arguments,
                self._config,
                sealed=call.editable,
            )
        except EditRefused as exc:
            why = str(exc)
            if exc.result is not None:
                why = result_text(serialize(exc.result))
            raise DecisionError(f"{what} cannot be made: {why}") from exc

        # The id of the first change of "call_1" is "call_1~2", that of the next one "call_1~3".
        number = call.id.removeprefix(call.call_id).removeprefix("~") or "1"
        return OpenCall(
            id=f"{call.call_id}~{int(number) + 1}",
            tool_name=call.tool_name,
            arguments=edited.args,
            preview=readable(edited.preview),
            reason=call.reason,
            editable=edited.editable,
            changes_of=call.id,
            call_id=call.call_id,
            tool_digest=tool.definition_digest,
            values_digest=edited.values_digest,
        )

    async def _decide(self, call: OpenCall) -> None:
        """Carry out the decision about a call, and write its outcome.

        Without a decision the call stays open. An Edit was carried out by `_change_calls`: the new
        proposal has another id, and no decision yet.
        """
        match self._decisions.get(call.id):
            case Deny() as decision:
                denied = Ending("denied", at=time.time(), args_digest=call.args_digest)
                ending = await self._end_without_run(call, denied)
                self._write(call, await self._with_checked_words(decision), ending)
            case Approve() as decision:
                self._write(call, decision, await self._run_approved(call, decision))

    async def _with_checked_words(self, decision: Deny) -> Deny:
        """Return a no with its reason as the input guardrails pass it, or withhold it."""
        guardrails = self._config.guardrails
        if guardrails is None or not decision.message:
            return decision
        try:
            message = await apply_guardrails(
                guardrails,
                "input",
                decision.message,
                self._run.events,
            )
        except GuardrailBlocked:
            message = WITHHELD
        return replace(decision, message=message)

    def _write(self, call: OpenCall, decision: Approve | Deny, ending: Ending) -> None:
        """Write the outcome of a call into the run, its memory and its result."""
        result_value = None
        error_value = None
        if ending.text and ending.outcome == "done":
            result_value = json_or_text(ending.text)
        elif ending.text:
            error_value = json_or_text(ending.text)
        reason_of_no = ""
        if isinstance(decision, Deny):
            reason_of_no = decision.message
        entry = outcome_entry(
            ending.outcome,
            result=result_value,
            error=error_value,
            words=reason_of_no,
            decided_by=decision.decided_by,
            at=ending.at,
            arguments=call.arguments if call.changes_of else None,
        )
        content = storable(json.dumps(entry, ensure_ascii=False))
        result = self._result_message(call.call_id, content, ending.outcome, ending.at)
        self._close_call(call.call_id, result)

        if ending.final_text is not None:
            self._final_texts.append(ending.final_text)
        decided = DecidedCall(
            id=call.id,
            tool_name=call.tool_name,
            arguments=call.arguments,
            outcome=ending.outcome,
            text=ending.text,
            decided_by=decision.decided_by,
        )
        self._run.decided.append(decided)

    def _result_message(
        self, call_id: str, content: str, outcome: ActionOutcome, at: float
    ) -> Message:
        """Return the message that is the result of this call, with this content and outcome."""
        # Each call has exactly one result.
        (message,) = (each for each in self._run.earlier if each.tool_call_id == call_id)
        link = ActionLink(
            waiting_id(self._run.events.run_id, call_id),
            outcome,
            round(at, 3),
            is_final=outcome in FINAL_OUTCOMES,
        )
        return replace(message, content=content, actions=(link,))

    def _close_call(self, call_id: str, result: Message) -> None:
        """Replace the result of a call that waited, in the run and in its memory."""
        run = self._run
        run.earlier = [result if each.tool_call_id == call_id else each for each in run.earlier]
        run.open_calls = [each for each in run.open_calls if each.call_id != call_id]
        run.inner.pop(call_id, None)
        if run.remembers_earlier and run.memory is not None:
            run.memory.replace_results({result.actions[0].id: result})

    async def _end_without_run(self, call: OpenCall, ending: Ending) -> Ending:
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

    async def _run_approved(self, call: OpenCall, decision: Approve) -> Ending:
        """Run an approved call, at most once. Return how it ended.

        | the decision log says that the call | what happens                                       |
        |-------------------------------------|----------------------------------------------------|
        | was not decided before              | it runs                                            |
        | has ended                           | nothing runs, and that ending counts               |
        | has begun, and not that it ended    | a repeatable tool runs again; of any other one,    |
        |                                     | the reconciler is asked how the call ended         |
        """
        request = await self._checked_request(call)
        if isinstance(request, Ending):
            return await self._end_without_run(call, request)

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
                # It may have taken effect. The memory must say so before the run ends.
                self._write(call, decision, Ending("unknown", at=time.time()))
            raise

        # If only the preparation has run and failed, a later yes may run the call again.
        has_only_prepared = tool.marks_effect and not effect.has_begun
        if ending.outcome == "failed" and has_only_prepared:
            return ending
        # An unknown outcome is no end: the log says that the call has begun, and no more.
        if ending.outcome != "unknown":
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

    async def _decide_inner(self, call_id: str) -> None:
        """Go on with the inner run of a call, with the decisions about the inner run's calls.

        If the inner run answers, the answer becomes the result of the call. Edits were made before.
        """
        run = self._run
        snapshot = run.inner[call_id]
        all_decisions = self._inner_decisions(call_id)
        decisions = {id_: each for id_, each in all_decisions.items() if not isinstance(each, Edit)}
        if not decisions:
            return

        result = await self._ask_inner(call_id, snapshot, decisions)
        run.decided += [replace(each, id=inner_id(call_id, each.id)) for each in result.decided]
        tool, _ = self._inner_tool(call_id)
        try:
            answer = answer_or_pause(result)
        except ToolError as exc:
            ends = [f"{each.tool_name} {each.outcome}: {each.text}" for each in result.decided]
            answer = f"Error: {exc}. Decided before: {'; '.join(ends)}"

        if isinstance(answer, InnerPause):
            run.inner[call_id] = answer.snapshot
            return
        content = await result_for_model(tool, answer)
        self._close_call(call_id, self._result_message(call_id, content, "done", time.time()))

    def _inner_decisions(self, call_id: str) -> dict[str, Decision]:
        """Return the decisions about the calls of an inner run, by the ids of the inner run."""
        decisions = {}
        for call in self._run.inner[call_id].open_calls:
            decision = self._decisions.get(inner_id(call_id, call.id))
            if decision is not None:
                decisions[call.id] = decision
        return decisions

    async def _ask_inner(
        self,
        call_id: str,
        snapshot: RunSnapshot,
        decisions: Mapping[str, Decision],
    ) -> AgentResult:
        """Let an inner run go on with these decisions, and return its result."""
        _, agent = self._inner_tool(call_id)
        return await agent.go_on(snapshot, decisions, self._log)

    def _inner_tool(self, call_id: str) -> tuple[Tool, InnerAgent]:
        """Return the tool that a call asks, and the agent behind it. Raises DecisionError."""
        name = next(each.tool_name for each in self._run.earlier if each.tool_call_id == call_id)
        tool = self._tools.get(name)
        agent = inner_agent_of(tool)
        if tool is None or agent is None:
            raise DecisionError(
                f"the agent behind {call_id!r} is no tool of this agent any more: {name!r}"
            )
        return tool, agent

    def _set_history(self) -> None:
        """Set the history that the model reads, with the results of the decided calls.

        If other messages have followed these calls, a message of the user is added: the model can
        only answer a last message that is not its own.
        """
        run = self._run
        if run.remembers_earlier and run.memory is not None:
            run.history = with_waiting_results(run.memory.shown())
        else:
            run.history = [*run.history, *with_waiting_results(run.earlier)]
        is_answered = not run.history or run.history[-1].role is Role.ASSISTANT
        if is_answered and not run.request.messages:
            run.request = replace(run.request, messages=(Message(Role.USER, DECIDED_MESSAGE),))


def _decided_before(call: OpenCall, result: Message) -> DecidedCall:
    """Return the outcome of a call that was decided before. `result`: its result in the memory."""
    entry = json_or_text(result.content)
    fields: Mapping[str, Any] = {}
    if isinstance(entry, dict):
        fields = entry
    text = fields.get("result", fields.get("error", ""))
    if not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False)
    return DecidedCall(
        id=call.id,
        tool_name=call.tool_name,
        arguments=call.arguments,
        outcome=result.actions[0].outcome or "unknown",
        text=text,
        decided_by=str(fields.get("decided_by", "")),
    )


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
