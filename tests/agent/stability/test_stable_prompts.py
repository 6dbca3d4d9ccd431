"""Stable prompts: what vendors cache is the same in every turn, in every conversation and on every
worker.

Two workers, as processes with different hash seeds and start times, take turns in two conversations
of each vendor. The requests are recorded as the vendors' own libraries send them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Self

import pytest

from benchmarks.price.bot import MODELS
from benchmarks.price.prompts import PARTS
from sayso.agent.providers.model_messages import FENCE_RULE
from tests.agent.providers.api import KEY
from tests.agent.providers.recorder import ModelRecorder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
#: The rule as JSON has it: some vendors' parts are JSON.
FENCE = json.dumps(FENCE_RULE)[1:-1]
PROMPT = "You help the people of a fruit shop."
TOOLS = '''
from datetime import date
from typing import Literal

from sayso.agent import tool

@tool(read_only=True)
def find_fruit(name: str, color: Literal["red", "green"] = "red", day: date | None = None) -> str:
    """Find a fruit."""
    return f"{name}: 3 kg, {color}"

@tool(requires_approval=True)
def sell_all(name: str) -> str:
    """Sell all of a fruit."""
    return "sold"
'''
#: Everything that could put a changing text before the conversation.
SUMMARY = {"summarize": True, "max_messages": 4}
MEMORY = {"summarize": True, "entities": True, "relationships": True, "knowledge": True}
ALLOWED = {"staff": ["*"], "guest": ["find_*"]}
ROLES = {"allowed": ALLOWED, "users": {"U9": "guest"}, "default": "staff"}
#: A bot without memory sections, one with all of them and with roles, and one that summarizes.
BOTS = ("plain", "memory", "summary")
#: Who writes what, and which of the two workers answers: two people, in two languages.
TURNS = (
    (0, "ada", "Do you have apples?"),
    (1, "bea", "Habt ihr heute auch Birnen für mich?"),
    (1, "ada", "And what do the apples cost today?"),
    (0, "bea", "Und was kosten die Birnen?"),
    (0, "ada", "Thanks, two kilos please."),
    (1, "ada", "Who is Ada, and what did I order?"),
)
#: What each side question is answered with: a summary, and entities and relationships as JSON.
TRIPLE = {"subject": "Ada", "relation": "likes", "object": "apples"}
NOTES = json.dumps([{"name": "Ada", "type": "person", **TRIPLE}])


#: The parts of one request in the order of its prompt, and the requests of one turn.
Prompt = list[str]
PromptsOfTurn = list[Prompt]
#: The turns of one bot by vendor and chat.
Recording = dict[tuple[str, str], list[PromptsOfTurn]]


class Worker:
    """A worker process of both bots, from `with` to its end."""

    def __init__(self, folder: Path, redis_url: str, hash_seed: str) -> None:
        module = "tests.agent.stability.worker"
        self._command = [sys.executable, "-m", module, redis_url, str(folder)]
        self._environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "KEY": KEY}

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environ,
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()

    def answer(self, **turn: str) -> None:
        """Let the worker answer one message."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(turn) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "answered\n"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> dict[str, Recording]:
    """Let two workers answer all turns, for a bot without and for one with memory sections and
    roles.
    """
    folder = tmp_path_factory.mktemp("bots")
    with ExitStack() as stack:
        recorders = {vendor: stack.enter_context(ModelRecorder()) for vendor in PARTS}
        for vendor, recorder in recorders.items():
            recorder.side_answer = {"text": NOTES}
            recorder.model = partial(answer, vendor)
        for bot in BOTS:
            (folder / bot).mkdir()
            (folder / bot / "fruit.py").write_text(TOOLS)
            (folder / bot / "sayso.yaml").write_text(configuration(recorders, bot))
        workers = [stack.enter_context(Worker(folder, redis_url, seed)) for seed in ("1", "2")]
        return {bot: record(bot, workers, recorders) for bot in BOTS}


@pytest.fixture(params=["plain", "memory"])
def recording(request: pytest.FixtureRequest, recordings: dict[str, Recording]) -> Recording:
    """Return the recording of each bot whose history never falls."""
    return recordings[request.param]


def record(bot: str, workers: list[Worker], recorders: dict[str, ModelRecorder]) -> Recording:
    """Let the workers answer all turns on all channels of a bot."""
    recording: Recording = defaultdict(list)
    for vendor, (number, (worker, chat, text)) in product(PARTS, enumerate(TURNS)):
        bodies = recorders[vendor].bodies
        known = len(bodies)
        event = f"{bot}-{vendor}-{number}"
        workers[worker].answer(event=event, bot=bot, channel=vendor, chat=chat, text=text)
        asked = [body for body in bodies[known:] if body.get("tools")]
        recording[vendor, chat].append([list(PARTS[vendor](body)) for body in asked])
    return recording


def configuration(recorders: dict[str, ModelRecorder], bot: str) -> str:
    """Return the configuration of a bot with a channel for each vendor."""
    memory = {"plain": {}, "memory": MEMORY, "summary": SUMMARY}[bot]
    channels = {
        vendor: {
            "platform": "console",
            "agent": {
                "model": MODELS[vendor],
                "base_url": recorder.url(vendor),
                "api_key": "${KEY}",
            },
            "access": {"roles": ROLES} if bot == "memory" else {},
        }
        for vendor, recorder in recorders.items()
    }
    return json.dumps(
        {
            "name": bot,
            "agent": {"system_prompt": PROMPT, "memory": memory},
            "tools": ["fruit.py", {"toolbox": ["calculator", "dates", "text"]}],
            "channels": channels,
        }
    )


def answer(vendor: str, body: dict[str, Any]) -> dict[str, Any]:
    """Answer as a model that looks up what something costs, once."""
    last = list(PARTS[vendor](body))[-1]
    if "cost" in last or "kosten" in last:
        call = {"id": f"call_{len(body)}", "name": "find_fruit", "arguments": {"name": "apples"}}
        return {"calls": [call]}
    return {"text": "We have some, freshly picked this morning."}


@pytest.mark.parametrize("vendor", PARTS)
@pytest.mark.parametrize("bot", BOTS)
def test_all_conversations_begin_with_the_same_bytes(
    vendor: str,
    bot: str,
    recordings: dict[str, Recording],
):
    """Tools, system prompt and fence rule, on both workers: what stands before any conversation."""
    turns = recordings[bot][vendor, "ada"] + recordings[bot][vendor, "bea"]
    prompts = ["\n".join(prompt) for turn in turns for prompt in turn]
    assert all(FENCE in prompt for prompt in prompts)
    assert len({prompt.partition(FENCE)[0] for prompt in prompts}) == 1
    assert any("apples" in prompt.partition(FENCE)[2] for prompt in prompts)


@pytest.mark.parametrize("vendor", PARTS)
@pytest.mark.parametrize("chat", ["ada", "bea"])
def test_a_turn_repeats_all_before_the_last_message(vendor: str, chat: str, recording: Recording):
    """Also on another worker: notes that change stand with the person's message, at the end."""
    first_prompts = [turn[0] for turn in recording[vendor, chat]]
    for before, after in pairwise(first_prompts):
        assert after[: len(before) - 1] == before[:-1]
        assert len(after) > len(before)


@pytest.mark.parametrize("vendor", PARTS)
@pytest.mark.parametrize("chat", ["ada", "bea"])
def test_the_requests_of_one_turn_only_grow(vendor: str, chat: str, recording: Recording):
    """The call with a tool's result repeats the whole request before it."""
    with_a_tool = [turn for turn in recording[vendor, chat] if len(turn) > 1]
    assert with_a_tool
    for turn in with_a_tool:
        assert turn[1][: len(turn[0])] == turn[0]


@pytest.mark.parametrize("vendor", PARTS)
def test_a_bot_without_notes_repeats_whole_requests(vendor: str, recordings: dict[str, Recording]):
    """Without memory sections each request is the one before it, and what came since."""
    prompts = [prompt for turn in recordings["plain"][vendor, "ada"] for prompt in turn]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before


@pytest.mark.parametrize("vendor", PARTS)
def test_no_request_names_the_day(vendor: str, recording: Recording):
    """A date would end every cache at midnight."""
    today = datetime.now(UTC).date()
    prompts = [prompt for turn in recording[vendor, "ada"] for prompt in turn]
    text = "\n".join(part for prompt in prompts for part in prompt)
    assert today.isoformat() not in text
    assert f"{today:%d %B}" not in text
