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


#: What people do. Taps say whose button they press, and which.
SAYINGS = (
    "chat", "ask", "yes", "no", "junk", "confirm tap", "cancel tap", "undo tap", "ignore tap", "stale tap",
    "foreign tap", "forged tap",
)  # fmt: skip


class Violation(AssertionError):
    """Raised when promises were broken, with all of them."""


class Machine(RuleBasedStateMachine):
    """One example. `bot` serves them all, `totals` counts over all."""

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
        """Somebody writes or taps, and the platform may deliver it twice."""
        self.stage.hear(who, says, wish, times=times)

    @precondition(lambda self: self.stage.heard)
    @rule(which=st.integers(0, 100))
    def redeliver(self, which: int) -> None:
        """The platform delivers an earlier event again."""
        self.bot.hear(self.stage.heard[which % len(self.stage.heard)])

    @rule(slot=slots, place=places, count=steps)
    def step(self, slot: int, place: Conversation, count: int) -> None:
        """A worker goes on, or a new one begins."""
        at_work = self.stage.at_work
        worker = at_work.get(slot) or self.stage.worker(place)
        at_work[slot] = worker
        if not self.stage.steps(worker, count):
            del at_work[slot]

    @rule(place=places)
    def work(self, place: Conversation) -> None:
        """A worker does all there is to do."""
        self.stage.work(place)

    @precondition(lambda self: self.stage.at_work)
    @rule(slot=slots, end=st.sampled_from(ENDS))
    def strike(self, slot: int, end: str) -> None:
        """Something happens to a worker."""
        if slot in self.stage.at_work:
            self.stage.end(self.stage.at_work.pop(slot), end)

    @precondition(lambda self: self.stage.at_work)
    @rule(slot=slots, when=st.sampled_from(("at once", "later")))
    def lose_answer(self, slot: int, when: str) -> None:
        """The next answer to this worker is lost."""
        if slot in self.stage.at_work:
            self.stage.at_work[slot].loses = when

    @rule(which=st.integers(0, 9))
    def bury(self, which: int) -> None:
        """A death is noticed late or once more, or it is one of those who held nothing."""
        dead = ["w0", *self.stage.dead]
        self.bot.release_dead(dead[which % len(dead)])

    @precondition(lambda self: self.stage.aside)
    @rule(which=st.integers(0, 9), count=steps)
    def resume(self, which: int, count: int) -> None:
        """A paused worker goes on as if nothing had happened."""
        worker = self.stage.aside[which % len(self.stage.aside)]
        if not self.stage.steps(worker, count):
            self.stage.aside.remove(worker)

    @rule(seconds=st.sampled_from((1.0, LEASE, LEASE, WINDOW)))
    def pass_time(self, seconds: float) -> None:
        """Time passes; workers keep their leases while it does not pass them by."""
        if seconds < LEASE:
            for worker in self.stage.at_work.values():
                worker.renew()
        self.bot.pass_time(seconds)

    @rule(weather=st.sampled_from(("fine", "refused", "busy", "unclear")), silent=st.booleans())
    def change_weather(self, weather: str, silent: bool) -> None:
        """The next delivery meets this; and the world may not tell how things ended."""
        self.world.weather.append(weather)
        self.world.silent = silent

    @precondition(lambda self: any(not each.tampered for each in self.world.proposals.values()))
    @rule(which=st.integers(0, 9), how=st.sampled_from(("args", "no args", "kind", "preview", "user", "mac", "junk")))
    def tamper(self, which: int, how: str) -> None:
        """Somebody writes into a stored record, of the newest most often."""
        whole = [each for each in self.world.proposals.values() if not each.tampered]
        self.stage.tamper(whole[-1 - which % len(whole)], how)

    @initialize(scenes=st.lists(SCENES, min_size=1, max_size=2))
    def begin(self, scenes: list[Scene]) -> None:
        """Every example has something at stake."""
        self.play(scenes)

    @rule(scenes=st.lists(SCENES, min_size=1, max_size=2))
    def play(self, scenes: list[Scene]) -> None:
        """Deep places are hard to reach one rule at a time."""
        for scene in scenes:
            scene.play(self.stage)

    @invariant()
    def holds(self) -> None:
        """Nothing was broken by the last step."""
        self.stage.books.check()
        self._judge()

    def teardown(self) -> None:
        """Nothing is broken when all is done."""
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
