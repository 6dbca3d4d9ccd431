"""Objector: holds a run's calls against what its user asked for, before they begin (seed: coherence checks)."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from sayso.agent.chronicle import Chronicle
from sayso.agent.config import AgentConfig, model_for
from sayso.agent.guards.coherence import check_coherence
from sayso.agent.messages import ToolCall
from sayso.agent.providers.base import Provider


class Objector:
    """Lives as long as one run. `words` tells what the user said, once the guardrails have seen it."""

    def __init__(self, provider: Provider, config: AgentConfig, chronicle: Chronicle, words: Callable[[], str]) -> None:
        self._provider = config.coherence_provider or provider
        self._model = config.coherence_model or model_for(provider, config.model)
        self._config = config
        self._chronicle = chronicle
        self._words = words

    async def objection(self, call: ToolCall, description: str) -> str:
        """What the model is told of a call that nobody asked for; "" lets it through."""
        began = perf_counter()
        result = await check_coherence(
            call,
            description,
            user_words=self._words(),
            provider=self._provider,
            model=self._model,
            timeout=self._config.request_timeout,
            fail_closed=self._config.coherence_fail_closed,
        )
        self._chronicle.spent(result.usage)
        await self._chronicle.tell("coherence_check", call.tool_name, result.coherent, result.explanation)
        if result.coherent:
            return ""
        self._chronicle.note("coherence_check", began=began, tool_name=call.tool_name, error=result.explanation)
        return f"{call.tool_name!r} was not run: it does not fit what the user asked for. {result.explanation}"


def objector_of(
    provider: Provider, config: AgentConfig, chronicle: Chronicle, words: Callable[[], str]
) -> Objector | None:
    """The objector of a run; None where nothing is checked."""
    return Objector(provider, config, chronicle, words) if config.coherence_check else None
