"""Deaths: the tools of a bot whose workers kill themselves with SIGKILL at chosen points of a turn.

A worker loads this module as tools. From then on it dies where a file in `deaths/` of the data folder says so, once
for each file, or at random with the probability in SAYSO_DEATH_CHANCE.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx2

from sayso.agent import tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.pending.call_context import call_context
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.testing.simulation.tools import effects

#: Environment variable with the probability that a worker dies at a point.
CHANCE = "SAYSO_DEATH_CHANCE"
#: Seconds that a process lives at least: one that dies sooner is started again after a pause.
YOUTH_SECONDS = 1.5
#: The scripts of a turn before and after which a worker may die.
SCRIPTS = (
    "lease",
    "claim",
    "start",
    "finish",
    "append_journal",
    "commit",
    "delivered",
    "change",
    "forward_turn",
    "forward_question",
    "end_question",
)

_started_at = time.monotonic()
#: Whether the current turn is a continuation.
_goes_on: ContextVar[bool] = ContextVar("goes_on", default=False)


def plan(data: Path, conversation: str, point: str) -> None:
    """Let the worker of a conversation die once at a point."""
    _folder(data).mkdir(exist_ok=True)
    (_folder(data) / f"{conversation}~{point}").touch()


def planned(data: Path) -> list[str]:
    """Return the deaths that were planned and have not happened."""
    return sorted(file.name for file in _folder(data).iterdir() if "~" in file.name)


def happened(data: Path) -> list[str]:
    """Return the points of all deaths at random, in order."""
    file = _folder(data) / "log"
    return file.read_text().splitlines() if file.exists() else []


def die_at(point: str, conversation: str = "") -> None:
    """End this process at once, as kill -9 does, if its death here was planned or by chance."""
    folder = _folder(Path(os.environ["SAYSO_DATA"]))
    conversation = conversation or str(call_context().log_fields.get("conversation", ""))
    try:
        (folder / f"{conversation}~{point}").unlink()
    except FileNotFoundError:
        chance = float(os.environ.get(CHANCE, "0"))
        if random.random() >= chance or time.monotonic() - _started_at < YOUTH_SECONDS:
            return
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("a") as log:
            log.write(f"{point}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def _folder(data: Path) -> Path:
    return data / "deaths"


@tool(requires_approval=True, preview="Pay {bill}")
def pay(bill: str) -> str:
    """Pay a bill."""
    return _take_effect("pay", bill, "Paid")


@tool(requires_approval=True, preview="Book {bill}")
def book(bill: str) -> str:
    """Book a bill."""
    return _take_effect("book", bill, "Booked")


@tool()
def note(bill: str) -> str:
    """Note a bill, at once."""
    return _take_effect("note", bill, "Noted")


def _take_effect(name: str, bill: str, word: str) -> str:
    step = f"{name} {bill}"
    effects().write(step, "begin")
    die_at(f"{name} begun")
    effects().write(step, "effect")
    die_at(f"{name} done")
    return f"{word} {bill}."


def _install() -> None:
    """Let this process die before and after scripts and calls of the model."""
    run, send, answer = ShardedScripts.arun, httpx2.AsyncClient.send, ChannelAgent.answer

    async def arun(
        self: ShardedScripts, name: str, conversation: str, args: Any = None, *payloads: Any
    ) -> Any:
        given = {} if args is None else args
        if name not in SCRIPTS:
            return await run(self, name, conversation, given, *payloads)
        is_after = _goes_on.get() or str(given.get("event_id", "")).startswith("after:")
        point = f"rest {name}" if is_after else name
        die_at(f"before {point}", conversation)
        result = await run(self, name, conversation, given, *payloads)
        die_at(f"after {point}", conversation)
        return result

    async def ask(
        self: httpx2.AsyncClient, request: httpx2.Request, **options: Any
    ) -> httpx2.Response:
        is_model = request.url.path.endswith("/chat/completions")
        point = "model"
        if is_model and json.loads(request.content)["messages"][-1]["role"] == "tool":
            point = "rest model"
        if is_model:
            die_at(f"before {point}")
        response = await send(self, request, **options)
        if is_model:
            die_at(f"after {point}")
        return response

    async def answer_turn(self: ChannelAgent, queued: Any, *args: Any, **options: Any) -> Any:
        token = _goes_on.set(bool(queued.turn.continues))
        try:
            return await answer(self, queued, *args, **options)
        finally:
            _goes_on.reset(token)

    ShardedScripts.arun = arun  # type: ignore[method-assign]
    httpx2.AsyncClient.send = ask  # type: ignore[method-assign, assignment]
    ChannelAgent.answer = answer_turn  # type: ignore[method-assign]


if CHANCE in os.environ:  # only in the worker of a test
    _install()
