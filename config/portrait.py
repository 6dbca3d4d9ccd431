"""Portrait: what answers on a channel, and what it remembers, may spend and is guarded by, for whoever checks it."""

from __future__ import annotations

from collections.abc import Iterator

from sayso.agent.messages import UsageStats
from sayso.agent.pricing import cost_usd
from sayso.config.agent_schema import (
    GUARDRAILS,
    OFFLINE,
    AgentSettings,
    BudgetSettings,
    GuardrailSettings,
    GuardSettings,
    MemorySettings,
    SideSettings,
    name_of,
    vendor_of,
)
from sayso.config.schema import Settings


def portrait(settings: Settings, channel: str) -> list[str]:
    """A line for the model, and one for each of memory, cache, budget and guards that is not as usual."""
    agent = settings.agent_of(channel)
    parts = {
        "model": ", then ".join(_models(agent)),
        "memory": ", ".join(_memory(agent.memory)),
        "cache": f"answers for {agent.cache.ttl:g} s, in {agent.cache.store}" if agent.cache else "",
        "budget": ", ".join(_budget(agent.budget)),
        "guards": ", ".join(_guards(agent.guards)),
    }
    return [f"{name}: {said}" for name, said in parts.items() if said]


def unknown_prices(settings: Settings) -> Iterator[str]:
    """A warning for each model that a budget in dollars cannot count, as nobody knows what it costs."""
    if not settings.agent.budget.in_dollars:
        return
    where = settings.origin.at("agent", "budget")
    for model in dict.fromkeys(each for channel in settings.channels for each in _unpriced(settings, channel)):
        cure = f"add prices: {{{name_of(model)!r}: [1.0, 2.0]}}, dollars for a million tokens of questions and answers"
        yield f"{where}warning: agent.budget: nobody knows what {model!r} costs, so no limit in USD holds: {cure}"


def _unpriced(settings: Settings, channel: str) -> Iterator[str]:
    agent = settings.agent_of(channel)
    for model in _models(agent):
        usage, vendor = UsageStats(1, 1, 2), vendor_of(model)
        if model != OFFLINE and cost_usd(name_of(model), usage, vendor, prices=agent.prices) is None:
            yield model


def _models(agent: AgentSettings) -> list[str]:
    return [agent.model, *(each.model for each in agent.fallback if agent.model != OFFLINE)]


def _memory(memory: MemorySettings) -> Iterator[str]:
    tokens = f" of {memory.max_tokens} tokens" if memory.max_tokens else ""
    beyond = [name for name in ("summarize", "entities", "relationships") if getattr(memory, name) is not None]
    if not (memory.model_fields_set or beyond):
        return
    yield f"{memory.max_messages} messages{tokens}"
    for name in beyond:
        yield f"{name}{_by(getattr(memory, name))}"
    if memory.knowledge:
        yield "knowledge"


def _budget(budget: BudgetSettings) -> Iterator[str]:
    for whose in ("run", "conversation", "day"):
        tokens, usd = getattr(budget, f"{whose}_tokens"), getattr(budget, f"{whose}_usd")
        limits = [*([f"{tokens:,} tokens"] if tokens else []), *([f"{usd:g} USD"] if usd else [])]
        if limits:
            yield f"{' and '.join(limits)} a {whose}{' and day' if whose == 'conversation' else ''}"


def _guards(guards: GuardSettings) -> Iterator[str]:
    for stage in ("input", "output"):
        kinds = [_kind(each) for each in getattr(guards, stage)]
        if kinds:
            yield f"{stage} {' + '.join(kinds)}"
    if guards.coherence is not None:
        yield f"coherence{_by(guards.coherence)}"
    if guards.loop is None:
        yield "loop off"


def _kind(guardrail: GuardrailSettings) -> str:
    kind = next(kind for kind in GUARDRAILS if getattr(guardrail, kind) is not None)
    return f"{kind} ({guardrail.action or 'block'})" if kind != "plugin" else str(guardrail.plugin)


def _by(side: SideSettings) -> str:
    return f" by {side.model}" if side.model else ""
