"""The models, guardrails, stores and observers of a story. Each of them may fail at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from sayso.agent import AgentObserver, AsyncAgentObserver, Message, Role
from sayso.agent.guards.guardrails import Guardrail, GuardrailAction, GuardrailResult
from sayso.agent.messages import UsageStats
from sayso.agent.observability.observer import EVENTS
from tests.agent.faults.nonsense import (
    ARGUMENTS,
    ENDLESS,
    ERRORS,
    IDS,
    NAMES,
    NONSENSE,
    TEXTS,
    TOOLS,
    Uncommon,
    a_call,
)
from tests.agent.faults.tape import Tape

#: The acts of models; most are sensible, so that runs make progress.
ACTS = (
    "says",
    "calls",
    "calls",
    "calls",
    "calls",
    "says",
    "raises",
    "nonsense",
    "hangs",
    "dawdles",
)


class Model:
    """A model that acts as the tape says. `billed` sums the prompt tokens of its readable answers."""

    name = "model"

    def __init__(self, tape: Tape, *, endless: bool) -> None:
        self._tape = tape
        self._endless = endless
        self.billed = 0
        self.asked = 0

    async def acomplete(self, **request: Any) -> Any:
        """Return an answer, raise or hang."""
        self.asked += 1
        act = self._tape.pick(ACTS)
        if act == "raises":
            raise self._tape.pick(ERRORS)()
        if act == "nonsense":
            return self._tape.pick(NONSENSE)
        if act == "hangs" and request["timeout"] is not None:
            await asyncio.Event().wait()
        if act == "dawdles":
            await asyncio.sleep(self._tape.pick((0, 1, 29.5, 31)))
        usage = UsageStats(self.asked, 1, self.asked + 1, 0.5)
        self.billed += usage.prompt_tokens
        return self._message(act), usage

    def _message(self, act: str) -> Message:
        text = self._tape.pick(TEXTS)
        if act != "calls":
            return Message(Role.ASSISTANT, text)
        return Message(
            Role.ASSISTANT, text, tuple(self._call() for _ in range(self._tape.pick((1, 2, 1, 3))))
        )

    def _call(self) -> Any:
        tape = self._tape
        name = tape.pick(NAMES) if tape.rarely() else tape.pick(TOOLS).name
        if name in ENDLESS and not self._endless:
            name = "echo"
        return a_call(
            name, tape.pick(ARGUMENTS) if tape.rarely(4) else {"text": "x"}, tape.pick(IDS)
        )


class Talker(Model):
    """A streaming model whose stream may break anywhere."""

    async def astream(self, **request: Any) -> AsyncIterator[Any]:
        """Yield the pieces of an answer."""
        before, answer = self.billed, await self.acomplete(**request)
        breaks = self._tape.rarely(6)
        if breaks or not isinstance(answer[0] if answer else None, Message):
            self.billed = before
        message, usage = answer
        yield (message.content or "")[:3]
        if breaks:
            await asyncio.sleep(self._tape.pick((0, 31)))
            raise self._tape.pick(ERRORS)()
        yield (message.content or "")[3:]
        for call in message.tool_calls:
            yield call
        if usage is not None:
            yield usage


class Writer(Model):
    """A model without tool support that may write calls into its text."""

    supports_tools = False

    def _message(self, act: str) -> Message:
        whole = super()._message(act)
        return replace(whole, tool_calls=())


class Blocker(Model):
    """A provider with a blocking method."""

    acomplete = None  # type: ignore[assignment]  # this provider has only `complete`

    def __getattribute__(self, name: str) -> Any:
        if name == "acomplete":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def complete(self, **request: Any) -> Any:
        """Return an answer or raise."""
        self.asked += 1
        act = self._tape.pick(ACTS)
        if act == "raises":
            raise self._tape.pick(ERRORS)()
        if act == "nonsense":
            return self._tape.pick(NONSENSE)
        usage = UsageStats(self.asked, 1, self.asked + 1, 0.5)
        self.billed += usage.prompt_tokens
        return self._message(act), usage


class Side(Model):
    """A model for side questions with any answer."""

    async def acomplete(self, **request: Any) -> Any:
        """Return an answer, raise or hang."""
        if self._tape.rarely(3):
            raise self._tape.pick(ERRORS)()
        if self._tape.rarely():
            await asyncio.Event().wait()
        self.billed += 1000
        texts = ("yes", '[{"name": "Ada"}]', "no", "a summary.", *TEXTS)
        return Message(Role.ASSISTANT, self._tape.pick(texts)), UsageStats(1000, 1, 1001)


class Raises:
    """Stands for any collaborator; each method raises."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._fail

    def _fail(self, *args: Any, **options: Any) -> Any:
        raise self._tape.pick((RuntimeError, OSError, KeyError("\ud800"), TimeoutError))


class RaisingBudget:
    """A budget that fails."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def refusal(self, scope: str) -> None:
        """Fail or return."""
        await asyncio.sleep(0)
        if self._tape.rarely(2):
            raise OSError("no budget")

    async def book(self, scope: str, usage: UsageStats) -> None:
        """Raise an error."""
        await asyncio.sleep(0)
        raise OSError("no budget")


class Doubter(Guardrail):
    """A guardrail that passes, rewrites, blocks or raises."""

    name = "doubter"
    blocking = False

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.action = tape.pick(tuple(GuardrailAction))

    async def acheck(self, content: str) -> GuardrailResult:
        """Return or raise what the tape says."""
        await asyncio.sleep(0)
        if "forbidden" in content or self._tape.rarely(6):
            return self.tripped("rewritten", "it says so")
        if self._tape.rarely():
            raise self._tape.pick((RuntimeError, SystemExit, Uncommon))
        return self._tape.pick((self.passed(content), self.passed(content), None))  # type: ignore[return-value]


class _Events:
    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []


def _note(event: str) -> Any:
    def note(self: Any, *args: Any) -> None:
        self.events.append((event, args))

    return note


#: An observer that records all events.
Recorder = type(
    "Recorder", (_Events, AgentObserver), {f"on_{event}": _note(event) for event in EVENTS}
)


def _fail(event: str) -> Any:
    def fail(self: Any, *args: Any) -> None:
        if self.tape.rarely(4):
            raise self.tape.pick((RuntimeError, SystemExit, asyncio.CancelledError, KeyError))

    return fail


def _afail(event: str) -> Any:
    async def fail(self: Any, *args: Any) -> None:
        await asyncio.sleep(0)
        if self.tape.rarely(4):
            raise self.tape.pick((RuntimeError, SystemExit, asyncio.CancelledError, Uncommon))

    return fail


class _Taped:
    def __init__(self, tape: Tape, *, blocking: bool = False) -> None:
        self.tape = tape
        self.blocking = blocking


#: Observers that fail at some events; a blocking one makes the run wait at each event.
Heckler = type(
    "Heckler", (_Taped, AgentObserver), {f"on_{event}": _fail(event) for event in EVENTS}
)
AsyncHeckler = type(
    "AsyncHeckler",
    (_Taped, AsyncAgentObserver),
    {f"a_on_{event}": _afail(event) for event in EVENTS},
)
