"""Agent: the loop between a model and its tools, until there is something to say to the user."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from agent.calls import run_calls
from agent.compression import Compressor, compressor_of
from agent.config import AgentConfig, AgentResult, StopReason
from agent.journal import Answered, CallOutcome, Journal, NoJournal, Recalled
from agent.memory import ConversationMemory
from agent.messages import Message, Role, ToolCall, UsageStats
from agent.providers.base import Provider, ProviderError, ProviderRequest
from agent.providers.offline import OfflineProvider
from agent.retry import Sleep, ask
from agent.schemas import Schemas
from agent.selectors import ToolSelector, narrow
from agent.tools.artifacts import Artifact, collect_artifacts
from agent.tools.registry import ToolRegistry, Toolset
from agent.tools.tool import Tool
from workers.offload import run_sync


class Agent:
    """Tools, a provider and settings. Holds nothing of any run, so one agent serves many at once.

    Given a registry, or anything else with `all()`, it asks for the tools at each step.

    `memory` is the exception its owner chooses: given here, all runs share it; given to `arun`, only that run has it.
    """

    def __init__(
        self,
        tools: Iterable[Tool] | Toolset = (),
        provider: Provider | None = None,
        config: AgentConfig | None = None,
        memory: ConversationMemory | None = None,
        selector: ToolSelector | None = None,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._toolset: Toolset = tools if isinstance(tools, Toolset) else ToolRegistry(tools)
        self.provider: Provider = provider or OfflineProvider()
        self.config = config or AgentConfig()
        self.memory = memory
        self.selector = selector
        self._sleep = sleep
        self._schemas = Schemas()

    @property
    def name(self) -> str:
        """The configured name."""
        return self.config.name

    @property
    def tools(self) -> list[Tool]:
        """The tools there are now: a registry's may change while the agent lives."""
        return self._toolset.all()

    async def arun(
        self,
        messages: str | Sequence[Message],
        *,
        memory: ConversationMemory | None = None,
        journal: Journal | None = None,
    ) -> AgentResult:
        """Answer the user's words. The memory learns of the run only once it is complete.

        With a `journal` the run goes on where an earlier attempt was interrupted; what the journal raises is raised.
        """
        memory = memory if memory is not None else self.memory
        said = [Message(Role.USER, messages)] if isinstance(messages, str) else list(messages)
        history = [] if memory is None else memory.get_history()
        run = _Run(history, said, journal or NoJournal(), compressor_of(self.config, self.provider))
        with collect_artifacts() as run.artifacts:
            reason, content = await self._steps(run)
        run.messages.append(Message(Role.ASSISTANT, content))
        if memory is not None:
            memory.add_many(run.messages)
        return run.result(reason, content)

    async def aask(self, prompt: str) -> AgentResult:
        """`arun` for a single sentence."""
        return await self.arun(prompt)

    def run(self, messages: str | Sequence[Message], *, memory: ConversationMemory | None = None) -> AgentResult:
        """`arun` for sync code, also from inside a running event loop."""
        return run_sync(self.arun(messages, memory=memory))

    def ask(self, prompt: str) -> AgentResult:
        """`run` for a single sentence."""
        return self.run(prompt)

    def __call__(self, messages: str | Sequence[Message], *, memory: ConversationMemory | None = None) -> AgentResult:
        """`run`."""
        return self.run(messages, memory=memory)

    async def _steps(self, run: _Run) -> tuple[StopReason, str]:
        """Ask the model, run the tools it calls, show it the results, until something ends the run."""
        for run.iterations in range(1, self.config.max_iterations + 1):
            recalled = await run.journal.recall()
            try:
                answered = recalled.answered if recalled else await self._ask(run)
            except ProviderError as exc:
                return "provider_error", f"Provider error: {exc}"
            run.usage += answered.usage
            if not answered.message.tool_calls:
                return "answer", answered.message.content
            if recalled is None and not run.journal.note(answered):
                break
            ending = await self._call_tools(run, recalled or Recalled(answered))
            if ending:
                return ending
        return "max_iterations", f"I stopped after {run.iterations} steps without reaching an answer."

    async def _selected(self, run: _Run) -> tuple[str, ...] | None:
        """The names of the tools that the model is shown, None for all."""
        if self.selector is None:
            return None
        return tuple(tool.name for tool in await narrow(self.selector, run.transcript, self.tools))

    def _shown(self, names: Collection[str] | None) -> list[Tool]:
        return [tool for tool in self.tools if names is None or tool.name in names]

    async def _ask(self, run: _Run) -> Answered:
        config, names = self.config, await self._selected(run)
        request = ProviderRequest(
            model=config.model,
            system_prompt=config.system_prompt,
            messages=tuple(run.transcript),
            tools=self._schemas.of(self._shown(names)),
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            timeout=config.request_timeout,
        )
        answer, usage = await ask(self.provider, request, config, self._sleep)
        return Answered(answer, usage, names)

    async def _call_tools(self, run: _Run, recalled: Recalled) -> tuple[StopReason, str] | None:
        """Run the calls and note them in the transcript. Returns how the run ends, if it ends here."""
        answer, tools = recalled.answered.message, self._shown(recalled.answered.tools)
        outcomes = await run_calls(
            answer.tool_calls,
            {tool.name: tool for tool in tools},
            self.config,
            run.journal,
            known=recalled.outcomes,
            unclear=run.unclear,
            compressor=run.compressor,
        )
        run.messages += [answer, *(outcome.message for outcome in outcomes)]
        run.artifacts += [artifact for outcome in outcomes for artifact in outcome.artifacts]
        run.unclear += [outcome.call for outcome in outcomes if outcome.unclear]
        run.closings += [outcome.closing for outcome in outcomes if outcome.ends == "terminal"]
        run.usage = sum((outcome.usage for outcome in outcomes), UsageStats()) + run.usage
        run.tool_calls += answer.tool_calls
        return _ending(outcomes)


@dataclass(slots=True)
class _Run:
    """What one run has come to so far."""

    history: list[Message]
    messages: list[Message]
    journal: Journal
    compressor: Compressor | None = None
    iterations: int = 0
    usage: UsageStats = field(default_factory=UsageStats)
    tool_calls: list[ToolCall] = field(default_factory=list)
    unclear: list[ToolCall] = field(default_factory=list)
    #: What terminal tools said.
    closings: list[str] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)

    @property
    def transcript(self) -> list[Message]:
        """All the model is to know: earlier turns and this one."""
        return [*self.history, *self.messages]

    def result(self, reason: StopReason, content: str) -> AgentResult:
        """The finished run."""
        return AgentResult(
            content=content,
            artifacts=tuple(self.artifacts),
            iterations=self.iterations,
            usage=self.usage,
            tool_calls=tuple(self.tool_calls),
            messages=tuple(self.messages),
            stop_reason=reason,
            unclear=tuple(self.unclear),
            beside=tuple(self.closings) if reason == "pending" else (),
        )


def _ending(outcomes: Sequence[CallOutcome]) -> tuple[StopReason, str] | None:
    """A proposal ends the run before anything else does: the user must see what waits for the yes."""
    for reason in ("pending", "terminal"):
        closings = [outcome.closing for outcome in outcomes if outcome.ends == reason]
        if closings:
            return reason, closings[0]
    return None
