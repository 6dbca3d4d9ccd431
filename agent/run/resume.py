"""DecisionRunner: carries out the decisions about a paused run's calls, before its model goes on.

A run *pauses* when calls wait for a program to approve, deny or edit them. The program may be
killed at any time, and may give the same decisions again. `approved_calls.py` runs each approved
call at most once.

`carry_out` has all steps: it takes over the outcomes that the memory has already, then applies the
edits, then each yes and no. An *inner* run is that of an agent which is a tool of this one; it
pauses and goes on with this run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
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
from sayso.agent.messages import FINAL_OUTCOMES, ActionLink, ActionOutcome, Message, Role
from sayso.agent.result import AgentResult
from sayso.agent.run.approved_calls import GONE, ApprovedCallRunner, Ending
from sayso.agent.run.decision_log import OF_THIS_PROCESS
from sayso.agent.run.edited_call import EditRefused, edited_call
from sayso.agent.run.inner_agent import InnerAgent, InnerPause, answer_or_pause, inner_agent_of
from sayso.agent.run.json_in_text import json_or_text
from sayso.agent.run.pause import DECIDED_MESSAGE, open_actions, waiting_id, with_waiting_results
from sayso.agent.run.state import WITHHELD, RunEnd, RunState
from sayso.agent.run.tool_call import ToolCaller
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.result_texts import result_text, serialize
from sayso.agent.tools.screening import result_for_model
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.invisible import readable
from sayso.channels.types import storable

#: Why nothing is known about a call of an inner run that has ended.
ENDED = "it was decided before, and its agent has answered: see the result of the outer call"


class DecisionRunner:
    """Carries out the decisions that a run begins with, in the order of the calls.

    Lives as long as that run. It writes each outcome into the run and its memory before the next
    call starts, so that no outcome is lost if the model fails or the run is stopped.

    Its methods change calls by edits, decide the run's own calls and those of inner runs, and write
    the outcomes.

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
        self._log: DecisionLog = run.request.decision_log or config.decision_log or OF_THIS_PROCESS
        self._approved_calls = ApprovedCallRunner(run, tools, config, caller, self._log)
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
            ending = await self._approved_calls.end_without_run(call, replaced)
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
                ending = await self._approved_calls.end_without_run(call, denied)
                self._write(call, await self._with_checked_words(decision), ending)
            case Approve() as decision:
                write = partial(self._write, call, decision)
                write(await self._approved_calls.run(call, decision, on_cut_off=write))

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
