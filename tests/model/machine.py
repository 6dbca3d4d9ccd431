"""Machine: people, workers and faults in any order, as a Hypothesis state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sayso.channels.types import Conversation
from tests.model.bot import Bot
from tests.model.scenes import ENDS, PEOPLE, SCENES, WISHES, Scene
from tests.model.stage import LEASE, WINDOW, Person, Stage
from tests.model.world import HALL, ROOM

people = st.sampled_from(PEOPLE)
places = st.sampled_from((ROOM, HALL))
steps = st.integers(0, 24)
slots = st.integers(0, 2)


#: What people do. A tap names the button and its owner.
SAYINGS = (
    "chat", "ask", "yes", "no", "junk", "confirm tap", "cancel tap", "undo tap", "ignore tap", "stale tap",
    "foreign tap", "forged tap",
)  # fmt: skip


class Violation(AssertionError):
    """Raised when promises were broken, with all of them."""


class Machine(RuleBasedStateMachine):
    """Runs one example. All examples share `bot`, and `totals` counts over all."""

    bot: ClassVar[Bot]
    totals: ClassVar[Counter[str]] = Counter()
    report: ClassVar[Callable[[Counter[str]], None]] = staticmethod(lambda totals: None)

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(self.bot)
        self.world = self.stage.world
        self.totals["examples"] += 1

    @rule(who=people, says=st.sampled_from(SAYINGS), wish=WISHES, times=st.integers(1, 2))
    def hear(self, who: Person, says: str, wish: tuple[str, ...], times: int) -> None:
        """Deliver a person's message or tap, perhaps twice."""
        self.stage.hear(who, says, wish, times=times)

    @precondition(lambda self: self.stage.heard)
    @rule(which=st.integers(0, 100))
    def redeliver(self, which: int) -> None:
        """Deliver an earlier event again."""
        self.bot.hear(self.stage.heard[which % len(self.stage.heard)])

    @rule(slot=slots, place=places, count=steps)
    def step(self, slot: int, place: Conversation, count: int) -> None:
        """Let a worker continue, or start a new one."""
        at_work = self.stage.at_work
        worker = at_work.get(slot) or self.stage.worker(place)
        at_work[slot] = worker
        if not self.stage.steps(worker, count):
            del at_work[slot]

    @rule(place=places)
    def work(self, place: Conversation) -> None:
        """Let a worker do all work of a conversation."""
        self.stage.work(place)

    @precondition(lambda self: self.stage.at_work)
    @rule(slot=slots, end=st.sampled_from(ENDS))
    def strike(self, slot: int, end: str) -> None:
        """Crash, pause or time out a worker."""
        if slot in self.stage.at_work:
            self.stage.end(self.stage.at_work.pop(slot), end)

    @precondition(lambda self: self.stage.at_work)
    @rule(slot=slots, when=st.sampled_from(("at once", "later")))
    def lose_answer(self, slot: int, when: str) -> None:
        """Lose the next answer to this worker."""
        if slot in self.stage.at_work:
            self.stage.at_work[slot].loses = when

    @rule(which=st.integers(0, 9))
    def bury(self, which: int) -> None:
        """Report a worker's death late or again, or the death of a worker without a lease."""
        dead = ["w0", *self.stage.dead]
        self.bot.release_dead(dead[which % len(dead)])

    @precondition(lambda self: self.stage.aside)
    @rule(which=st.integers(0, 9), count=steps)
    def resume(self, which: int, count: int) -> None:
        """Let a paused worker continue."""
        worker = self.stage.aside[which % len(self.stage.aside)]
        if not self.stage.steps(worker, count):
            self.stage.aside.remove(worker)

    @rule(seconds=st.sampled_from((1.0, LEASE, LEASE, WINDOW)))
    def pass_time(self, seconds: float) -> None:
        """Advance the clock; workers renew their leases unless it jumps past them."""
        if seconds < LEASE:
            for worker in self.stage.at_work.values():
                worker.renew()
        self.bot.pass_time(seconds)

    @rule(weather=st.sampled_from(("fine", "refused", "busy", "unclear")), silent=st.booleans())
    def change_weather(self, weather: str, silent: bool) -> None:
        """Script the next delivery, and whether the reconciler can answer."""
        self.world.weather.append(weather)
        self.world.silent = silent

    @precondition(lambda self: any(not each.tampered for each in self.world.proposals.values()))
    @rule(
        which=st.integers(0, 9),
        how=st.sampled_from(("args", "no args", "kind", "preview", "user", "mac", "junk")),
    )
    def tamper(self, which: int, how: str) -> None:
        """Change a stored record from outside, most often the newest."""
        whole = [each for each in self.world.proposals.values() if not each.tampered]
        self.stage.tamper(whole[-1 - which % len(whole)], how)

    @initialize(scenes=st.lists(SCENES, min_size=1, max_size=2))
    def begin(self, scenes: list[Scene]) -> None:
        """Start every example with a pending action."""
        self.play(scenes)

    @rule(scenes=st.lists(SCENES, min_size=1, max_size=2))
    def play(self, scenes: list[Scene]) -> None:
        """Play whole scenes, because single rules rarely reach deep states."""
        for scene in scenes:
            scene.play(self.stage)

    @invariant()
    def holds(self) -> None:
        """Check that the last step broke no promise."""
        self.stage.books.check()
        self._judge()

    def teardown(self) -> None:
        """Finish all work, and check that no promise was broken."""
        try:
            if not self.world.violations:
                self.stage.conclude()
        finally:
            self.stage.close()
        self.totals.update(self.world.counts)
        self.totals["turns"] += len(self.world.events)
        self.totals["proposals"] += len(self.world.proposals)
        self.totals["unknowns"] += self.stage.books.count("unknown")
        self.report(self.totals)
        self._judge()

    def _judge(self) -> None:
        if self.world.violations:
            raise Violation("\n".join(self.world.violations))
