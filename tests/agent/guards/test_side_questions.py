"""Side questions: what guardrails, budgets and stops hold for the main question holds for those beside it."""

from __future__ import annotations

import asyncio
import json

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    BudgetLimits,
    CancellationToken,
    EntityMemory,
    GuardrailAction,
    GuardrailsPipeline,
    MemoryBudget,
    Message,
    PatternGuardrail,
    ProviderError,
    Role,
    ScriptedProvider,
    ToolCall,
    ToolConfig,
    UsageStats,
    tool,
)
from sayso.agent.guards.coherence import CoherenceCheck

LONG = "row 1; " * 40


class Beside:
    """A model for side questions: says one thing, and remembers what it was asked."""

    def __init__(self, says: str) -> None:
        self.says, self.asked = says, []

    async def acomplete(self, **request):
        """The one thing."""
        self.asked.append(request["messages"][-1].content)
        return Message(Role.ASSISTANT, self.says), UsageStats(100, 5, 105, 0.5)


class Stopping(ScriptedProvider):
    """Answers once; who asks again waits for ever."""

    def __init__(self, lines) -> None:
        super().__init__(lines)
        self.asked_again = asyncio.Event()

    async def acomplete(self, **request):
        """The first line, or silence."""
        if self.requests:
            self.asked_again.set()
            await asyncio.Event().wait()
        return await super().acomplete(**request)


async def stopped(agent: Agent, model: Stopping) -> int:
    """The tokens on the account once its task is cancelled, as a worker does it."""
    run = asyncio.create_task(agent.arun("go"))
    await model.asked_again.wait()
    run.cancel()
    await asyncio.wait([run])
    return agent.total_tokens


@tool
def scrape() -> str:
    """Scrape."""
    return LONG


CALLS = [ToolCall("scrape", {}, "c1"), "done"]


def test_check_of_a_call_reads_what_the_guardrails_let_pass():
    """A number that no model is to see is not shown to the one that checks."""
    cards = PatternGuardrail([r"\d{4}"], action=GuardrailAction.REWRITE)
    checker = Beside(json.dumps({"coherent": True, "explanation": "fits"}))
    config = AgentConfig(
        guardrails=GuardrailsPipeline(input=[cards]),
        coherence=CoherenceCheck(provider=checker, model="cheap"),
    )  # fmt: skip
    assert Agent([scrape], ScriptedProvider(CALLS), config).run("my card is 4111").content == "done"
    (asked,) = checker.asked
    assert ("my card is" in asked, "4111" in asked) == (True, False)


@pytest.mark.parametrize("how", ["budget", "cancelled", "provider_error"])
def test_run_that_may_ask_no_more_learns_nothing(how):
    """Else each refused message would cost two questions, and a user who stopped the run would wait for them."""
    reader, token, budget = (
        Beside("[]"),
        CancellationToken(),
        MemoryBudget(BudgetLimits(day_tokens=1)),
    )
    config = AgentConfig(
        max_retries=0, entity_memory=EntityMemory(reader), budget=budget if how == "budget" else None
    )  # fmt: skip
    model = ScriptedProvider(["first", ProviderError("down")])
    agent = Agent([], model, config)
    agent.run("I am Ana")
    before = 0 if how == "budget" else 1  # what it was allowed is spent by its answer
    assert len(reader.asked) == before
    if how == "cancelled":
        token.cancel()
    result = agent.run("I am Ben", cancellation_token=token)
    assert (result.stop_reason, len(reader.asked)) == (how, before)


def test_summary_of_a_result_is_paid_for():
    """The account and the budget have the same as the result."""
    budget = MemoryBudget(BudgetLimits(day_tokens=110))
    options = ToolConfig(True, 100, Beside("40 rows"), "cheap")
    agent = Agent([scrape], ScriptedProvider(CALLS * 2), AgentConfig(tool=options, budget=budget))
    result = agent.run("go")
    assert (result.stop_reason, result.usage.total_tokens, agent.total_tokens) == (
        "answer",
        109,
        109,
    )
    assert agent.total_cost == 0.5
    assert [agent.run("go").stop_reason for _ in "ab"] == ["budget", "budget"]


def test_check_of_a_call_is_paid_for_though_the_run_is_stopped_later():
    """Its round is over; the person who stops each run would pay for no check."""
    checker = Beside(json.dumps({"coherent": True, "explanation": "fits"}))
    config = AgentConfig(coherence=CoherenceCheck(provider=checker, model="cheap"))
    model = Stopping(CALLS)
    assert asyncio.run(stopped(Agent([scrape], model, config), model)) == 107
