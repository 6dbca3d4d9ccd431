"""StepsMessage: which tool calls of a turn people see, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sayso.channels.base import Unreachable
from sayso.channels.types import ToolStep
from sayso.workers import progress
from sayso.workers.progress import StepsMessage
from tests.contracts.rigs import turn


class Board:
    """A channel that notes the tool calls that it shows. While `is_down` nothing can be shown."""

    def __init__(self) -> None:
        self.shown: list[list[ToolStep]] = []
        self.is_down = False

    async def show_steps(self, turn: object, steps: Sequence[ToolStep], shown_id: str = "") -> str:
        """Note the calls. The first message is m1, and each edit keeps its id."""
        if self.is_down:
            raise Unreachable("down")
        assert shown_id == ("m1" if self.shown else "")
        self.shown.append(list(steps))
        return "m1"


def play(scene, board: Board | None = None) -> list[list[tuple[str, str, float]]]:
    """Run a scene with the calls of one attempt, on a clock that it moves.

    Return what was shown.
    """
    board = board or Board()
    now = [0.0]
    pauses = asyncio.Event()

    async def sleep(_: float) -> None:
        await pauses.wait()

    async def run() -> None:
        steps = StepsMessage(board, turn("go"), clock=lambda: now[0], sleep=sleep)
        steps.begin_showing()
        await scene(steps, now, pauses)

    asyncio.run(run())
    return [[(each.name, each.state, each.seconds) for each in shown] for shown in board.shown]


async def settle() -> None:
    """Let all other tasks go on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_call_is_shown_while_it_runs_and_when_it_ended():
    """With the seconds so far, and then those that it took."""

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        steps.note(0, "look", "running")
        now[0] = 2.0
        pauses.set()
        await settle()
        now[0] = 3.0
        steps.note(0, "look", "done")
        await settle()
        await steps.end_showing()

    assert play(scene) == [[("look", "running", 2.0)], [("look", "done", 3.0)]]


def test_quick_calls_are_shown_once():
    """They ended before the first pause."""

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        steps.note(0, "a", "running")
        steps.note(0, "a", "done")
        steps.note(1, "b", "waits")
        await settle()
        await steps.end_showing()

    assert play(scene) == [[("a", "done", 0.0), ("b", "waits", 0.0)]]


def test_call_of_a_stopped_turn_does_not_seem_to_run():
    """The person said stop, or the turn took too long."""

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        steps.note(0, "slow", "running")
        now[0] = 5.0
        await settle()
        await steps.end_showing()

    assert play(scene) == [[("slow", "stopped", 5.0)]]


def test_call_that_was_shown_while_it_ran_is_shown_as_stopped():
    """A page that is opened later would count its seconds on."""

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        steps.note(0, "slow", "running")
        pauses.set()
        await settle()
        now[0] = 5.0
        await steps.end_showing()

    assert play(scene) == [[("slow", "running", 0.0)], [("slow", "stopped", 5.0)]]


def test_yes_that_ran_nothing_is_no_call():
    """Its question had expired."""

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        steps.note(0, "delete", "running")
        steps.note(0, "delete", None)
        await steps.end_showing()

    assert play(scene) == []


def test_calls_and_names_are_bounded():
    """A model may invent names, and call tools without end."""

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        for number in range(progress.MAX_STEPS + 10):
            steps.note(number, "x" * 1000, "running")
        await steps.end_showing()

    ((shown),) = play(scene)
    assert (len(shown), len(shown[0][0])) == (progress.MAX_STEPS, progress.MAX_STEP_NAME)


def test_channel_that_is_down_breaks_no_turn():
    """The answer matters, and not how it came about."""
    board = Board()
    board.is_down = True

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        steps.note(0, "look", "running")
        await steps.end_showing()

    assert play(scene, board) == []


def test_end_of_a_call_that_could_not_be_shown_is_shown_once_more():
    """Otherwise the call would seem to run for good."""
    board = Board()

    async def scene(steps: StepsMessage, now: list[float], pauses: asyncio.Event) -> None:
        steps.note(0, "look", "running")
        pauses.set()
        await settle()
        board.is_down = True
        steps.note(0, "look", "done")
        await settle()
        board.is_down = False
        await steps.end_showing()

    assert [shown[0][1] for shown in play(scene, board)] == ["running", "done"]
