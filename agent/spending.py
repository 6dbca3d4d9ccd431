"""Spending: whether a run may ask its model once more."""

from __future__ import annotations

from sayso.agent.budget import Refusal, refusal_of
from sayso.agent.config import AgentConfig
from sayso.agent.endings import ending_words
from sayso.agent.run import Ending, Run


async def refusal(run: Run, config: AgentConfig) -> Ending | None:
    """How the run ends if it has used up what it, its conversation or the day may use; None while it has not."""
    refused = await _refused(run, config)
    return await _told(run, refused) if refused is not None else None


async def is_spent(run: Run, config: AgentConfig) -> bool:
    """Whether nothing may be asked any more, beside the run either."""
    return await _refused(run, config) is not None


async def _refused(run: Run, config: AgentConfig) -> Refusal | None:
    limits = config.run_budget
    refused = limits.refusal(run.usage + run.chronicle.side_usage) if limits else None
    if refused is None and config.budget is not None:
        refused = await refusal_of(config.budget, run.request.scope)
    return refused


async def _told(run: Run, refused: Refusal) -> Ending:
    tokens, cost = refused.tokens_used, refused.cost_used
    run.chronicle.note("budget", summary=f"{refused.reason}: {tokens} tokens, {cost:.4f} USD")
    await run.chronicle.tell("budget_exceeded", refused.reason, tokens, cost)
    return Ending("budget", ending_words("budget_spent"))
