"""Mutants: deliberately broken rules of a run. The judge must detect each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sayso.agent import agent as batch
from sayso.agent.messages import Message, Role
from sayso.agent.observability.run_events import RunEvents
from sayso.agent.providers import base
from sayso.agent.run import loop
from sayso.agent.run import model_call as asking
from sayso.agent.run import tool_call as call_watch
from sayso.agent.run.state import OpenRound, RunState


@dataclass(frozen=True, slots=True)
class Mutant:
    """A function of an owner and its broken replacement, which receives the original first."""

    name: str
    owner: Any
    function: str
    broken: Callable[..., Any]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the rule inside the block."""
        whole = self.owner.__dict__[self.function]
        setattr(
            self.owner, self.function, lambda *args, **options: self.broken(whole, *args, **options)
        )
        try:
            yield
        finally:
            setattr(self.owner, self.function, whole)


def _forget_a_result(whole: Any, run: RunState, outcomes: Any, **options: Any) -> None:
    whole(run, outcomes[:-1] if len(outcomes) > 1 else outcomes, **options)


def _double_a_call(whole: Any, run: RunState, outcomes: Any, **options: Any) -> None:
    if run.open_round is not None:
        answer = run.open_round.answer
        run.open_round.answer = replace(
            answer, tool_calls=(*answer.tool_calls, answer.tool_calls[-1])
        )
    whole(run, [*outcomes, outcomes[-1]], **options)


def _answer_backwards(whole: Any, run: RunState, outcomes: Any, **options: Any) -> None:
    whole(run, list(reversed(outcomes)), **options)


def _forget_what_was_stopped(whole: Any, open_round: OpenRound) -> Any:
    return list(open_round.outcomes.values())


def _leave_out_what_was_withheld(whole: Any, run: RunState, content: str) -> None:
    run.messages.append(Message(Role.ASSISTANT, content))


def _let_ids_be(whole: Any, answer: Message, run: RunState) -> Message:
    return answer


async def _let_errors_out(whole: Any, provider: Any, request: Any) -> Any:
    return await base._complete(provider, request.as_kwargs())


async def _believe_anything(whole: Any, provider: Any, request: Any) -> Any:
    try:
        return await base._complete(provider, request.as_kwargs())
    except Exception as exc:
        raise base.ProviderError("down") from exc


async def _count_twice(whole: Any, asker: Any, run: RunState, *args: Any) -> Any:
    answer, usage = await whole(asker, run, *args)
    run.usage += usage
    return answer, usage


async def _remember_early(whole: Any, looping: Any, run: RunState) -> Any:
    if run.memory is not None:
        run.memory.add_many(run.request.messages)
    return await whole(looping, run)


async def _end_in_silence(whole: Any, watch: Any, asked: Any, ran: Any, *args: Any) -> None:
    if ran.error is None:
        await whole(watch, asked, ran, *args)


async def _tell_twice(whole: Any, events: Any, event: str, *args: Any) -> None:
    await whole(events, event, *args)
    if event == "run_end":
        await whole(events, event, *args)


async def _one_step_more(whole: Any, looping: Any, run: RunState) -> Any:
    ending = await whole(looping, run)
    run.iterations += run.iterations == looping._config.max_iterations
    return ending


async def _leave_others_behind(whole: Any, coroutines: Any) -> Any:
    return list(await asyncio.gather(*coroutines))


MUTANTS = (
    Mutant("forget a result", RunState, "close_round", _forget_a_result),
    Mutant("double a call", RunState, "close_round", _double_a_call),
    Mutant("answer backwards", RunState, "close_round", _answer_backwards),
    Mutant("forget what was stopped", OpenRound, "final_outcomes", _forget_what_was_stopped),
    Mutant("let the provider's errors out", asking, "acall", _let_errors_out),
    Mutant("believe whatever a provider gives", asking, "acall", _believe_anything),
    Mutant("let ids repeat themselves", asking, "_with_unique_ids", _let_ids_be),
    Mutant("count usage twice", asking.ModelCaller, "_call", _count_twice),
    Mutant("remember before the end", loop.AgentLoop, "_run_to_end", _remember_early),
    Mutant("leave out what no guardrail passed", RunState, "close", _leave_out_what_was_withheld),
    Mutant("end a call in silence", call_watch.ToolCaller, "_report_end", _end_in_silence),
    Mutant("tell the end twice", RunEvents, "tell", _tell_twice),
    Mutant("one step more", loop.AgentLoop, "_run_iterations", _one_step_more),
    Mutant("leave the rest of a batch behind", batch, "gather_all", _leave_others_behind),
)  # fmt: skip
