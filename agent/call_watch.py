"""CallWatch: what observers, trace and analytics hear of each tool call, and the last check before it begins."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from sayso.agent.analytics import AgentAnalytics
from sayso.agent.chronicle import Chronicle
from sayso.agent.config import AgentConfig
from sayso.agent.journal import CallOutcome
from sayso.agent.messages import ToolCall
from sayso.agent.objection import Objector
from sayso.agent.one_call import Asked, Ran, run_call
from sayso.agent.tools.errors import ToolError, ToolExecutionError, ToolParameterError
from sayso.agent.tools.screening import collect_suspicions
from sayso.pending.proposals import in_channel_run

log = logging.getLogger(__name__)


class CallWatch:
    """Lives as long as one run."""

    def __init__(
        self,
        chronicle: Chronicle | None = None,
        analytics: AgentAnalytics | None = None,
        objector: Objector | None = None,
    ) -> None:
        self._chronicle = chronicle or Chronicle(())
        self._analytics = analytics
        self._objector = objector

    @property
    def looks_at_calls(self) -> bool:
        """Whether anybody wants to know of a call before it begins."""
        return self._chronicle.is_heard or self._objector is not None

    def chosen(self, calls: Sequence[ToolCall], reasoning: str) -> None:
        """The model's choice of tools."""
        for call in calls:
            self._chronicle.note(
                "tool_selection", tool_name=call.tool_name, tool_args=call.parameters, reasoning=reasoning or None
            )

    async def refused(self, outcome: CallOutcome) -> None:
        """A call that cannot be made: of an unknown tool, or with arguments that it does not take."""
        call = outcome.call
        self._chronicle.note("error", tool_name=call.tool_name, tool_args=call.parameters, error=outcome.content)
        if self._chronicle.is_heard:
            error = ValueError(outcome.content.removeprefix("Error: "))
            await self._chronicle.tell("tool_error", call.id, call.tool_name, error, call.parameters, 0.0)

    async def decided(self, asked: Asked) -> None:
        """The policy's word on a call."""
        if self._chronicle.is_heard:
            decision = asked.decision
            await self._chronicle.tell(
                "policy_decision", asked.tool.name, decision.decision, decision.reason, _written(asked)
            )

    async def objection(self, asked: Asked) -> str:
        """Why a call that may run is not what the person asked for; "" where nothing speaks against it."""
        if self._objector is None or asked.decision.decision == "deny":
            return ""
        return await self._objector.objection(asked.call, asked.tool.description)

    async def watched(self, asked: Asked, config: AgentConfig) -> Ran:
        """Run the call, and tell of its begin, its chunks and its end. One that is denied, or asked for, begins not."""
        call, began, begins = asked.call, perf_counter(), _begins(asked)
        counted = begins and (self._chronicle.is_heard or self._analytics is not None)
        chunks = _Chunks(self._chronicle, call) if counted else None
        if chunks:
            await self._chronicle.tell("tool_start", call.id, call.tool_name, call.parameters)
        try:
            with collect_suspicions() as suspicions:
                ran = await run_call(asked, config, chunks)
            if chunks:
                await chunks.told()
        finally:
            if chunks:
                chunks.close()
        self._chronicle.note(
            "tool_execution" if begins else "error" if ran.error else "tool_selection",
            began=began,
            tool_name=call.tool_name,
            tool_args=call.parameters,
            tool_result=ran.outcome.content,
            error=None if ran.error is None else str(ran.error),
        )
        if isinstance(ran.error, ToolError) and not isinstance(ran.error, ToolParameterError):
            self._log_failure(call, ran.error)
        if suspicions:
            await self._suspected(call, suspicions)
        if begins and self._chronicle.is_heard:
            await self._ended(call, ran, began)
        if self._analytics is not None and begins:
            seconds, count = perf_counter() - began, chunks.count if chunks else 0
            self._analytics.record_tool_call(call.tool_name, ran.error is None, seconds, call.parameters, count)
        return ran

    def _log_failure(self, call: ToolCall, error: ToolError) -> None:
        """Log what a tool raised, or its preview, under the ids that its trace and spans have. A traceback is for what
        its author did not mean to raise.
        """
        raised = _raised(error)
        expected = isinstance(raised, ToolError)
        ids = {
            "tool": call.tool_name,
            "reference": f"{self._chronicle.run_id}/{call.id}",
            "error": type(raised).__name__,
        }
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "tool.failed",
            extra=ids,
            exc_info=None if expected else raised,
        )

    async def _suspected(self, call: ToolCall, suspicions: Sequence[str]) -> None:
        kinds = ", ".join(suspicions)
        self._chronicle.note("output_screening", tool_name=call.tool_name, summary=f"{call.tool_name}: {kinds}")
        await self._chronicle.tell("guardrail_triggered", "tool_output", "screening", "warn", kinds)

    async def _ended(self, call: ToolCall, ran: Ran, began: float) -> None:
        error, took = ran.error, (perf_counter() - began) * 1000
        if error is None:
            await self._chronicle.tell("tool_end", call.id, call.tool_name, ran.outcome.content, took)
        else:
            raised = _raised(error)
            await self._chronicle.tell("tool_error", call.id, call.tool_name, raised, call.parameters, took)


def _raised(error: Exception) -> BaseException:
    """Return what the tool's own code raised."""
    return error.error if isinstance(error, ToolExecutionError) and error.error else error


def _written(asked: Asked) -> dict[str, Any]:
    """The arguments as JSON; as the model gave them where they cannot be written down: who watches stops nothing."""
    try:
        return asked.checked.json
    except ToolParameterError:
        return asked.call.parameters


def _begins(asked: Asked) -> bool:
    """Whether the tool itself is run now, as far as the policy is concerned."""
    word = asked.decision.decision
    return word == "allow" or (word == "review" and not in_channel_run())


class _Chunks:
    """Hears the pieces of a result, in whatever thread they are made, and tells them in order."""

    def __init__(self, chronicle: Chronicle, call: ToolCall) -> None:
        self._chronicle = chronicle
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._telling: list[asyncio.Task[None]] = []
        self._is_closed = False
        self.count = 0

    def __call__(self, chunk: Any) -> None:
        """One more piece. One from the loop's own thread needs no crossing, and would come too late by it."""
        self.count += 1
        if not self._chronicle.is_heard:
            return
        if threading.get_ident() == self._thread:
            self._tell(str(chunk))
        else:
            self._loop.call_soon_threadsafe(self._tell, str(chunk))

    async def told(self) -> None:
        """Return once everybody has heard of every piece."""
        while self._telling:
            await self._telling[0]
            del self._telling[0]

    def close(self) -> None:
        """The call has ended: what a tool that was left running goes on to say is nobody's business."""
        self._is_closed = True
        for task in self._telling:
            task.cancel()

    def _tell(self, chunk: str) -> None:
        if self._is_closed:
            return
        call = self._call
        told = self._chronicle.tell("tool_chunk", call.id, call.tool_name, chunk)
        self._telling.append(self._loop.create_task(told))
