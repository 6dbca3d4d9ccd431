"""Batch: many prompts answered side by side, each apart from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sayso.agent.at_once import at_once
from sayso.agent.chronicle import Chronicle
from sayso.agent.memory import ConversationMemory
from sayso.agent.messages import Message
from sayso.agent.observers.base import AgentObserver
from sayso.agent.result import AgentResult
from sayso.agent.run import RunRequest, said_in
from sayso.agent.runner import Runner
from sayso.agent.structured import ResponseFormat

#: Hears how many prompts of how many are done.
OnProgress = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """How the prompts of one batch are answered. Raises ValueError for a `max_concurrency` that runs nothing."""

    runner: Runner
    observers: Sequence[AgentObserver]
    max_concurrency: int
    response_format: ResponseFormat | None
    on_progress: OnProgress | None
    asynchronous: bool = True

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            raise ValueError(f"max_concurrency={self.max_concurrency!r} runs nothing: use 1 or more")

    async def answers(self, prompts: Sequence[str | Sequence[Message]]) -> list[AgentResult]:
        """The results, in the prompts' order."""
        chronicle, began = Chronicle(self.observers, asynchronous=self.asynchronous), perf_counter()
        await chronicle.tell("batch_start", len(prompts))
        room, done = asyncio.Semaphore(self.max_concurrency), 0

        async def one(prompt: str | Sequence[Message]) -> AgentResult:
            nonlocal done
            async with room:
                result = await self._isolated(prompt)
            done += 1
            if self.on_progress is not None:
                self.on_progress(done, len(prompts))
            return result

        results = await at_once(map(one, prompts))
        errors = sum(result.stop_reason in ("error", "provider_error") for result in results)
        await chronicle.tell("batch_end", len(results), errors, (perf_counter() - began) * 1000)
        return results

    async def _isolated(self, prompt: str | Sequence[Message]) -> AgentResult:
        """One prompt: what breaks breaks it alone. It knows the agent's own memory, and changes nothing in it."""
        own = self.runner.memory
        memory = own.branch() if own is not None else ConversationMemory()
        try:
            return await self.runner.answer(
                RunRequest(
                    said_in(prompt),
                    self.response_format,
                    memory=memory,
                    asynchronous=self.asynchronous,
                    is_of_batch=True,
                )
            )
        except Exception as exc:  # noqa: BLE001  # told in its place
            return AgentResult(f"Error: {type(exc).__name__}: {exc}", stop_reason="error")
