"""VoteMachine: people who ask and decide, workers and faults in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sayso.channels.types import Conversation
from tests.model.machine import Violation
from tests.model.stage import LEASE
from tests.model.votes.facts import (
    COLLEAGUES,
    ESCALATION,
    GROUP,
    HOME,
    PLACES,
    REMINDER,
    RULES,
    WITHIN,
)
from tests.model.votes.office import VoteBot
from tests.model.votes.scenes import ENDS, SCENES, Scene
from tests.model.votes.stage import VoteStage

kinds = st.sampled_from((*RULES, "payout", "payout", "wire"))
people = st.sampled_from((*COLLEAGUES, "bea", "cem", "ana", "bea2"))
places = st.sampled_from((HOME, HOME, GROUP, *PLACES.values()))
answers = st.sampled_from(("yes", "yes", "yes", "no"))
forms = st.sampled_from(("tap", "tap", "words", "in group"))
steps = st.integers(0, 24)
slots = st.integers(0, 2)


class VoteMachine(RuleBasedStateMachine):
    """Runs one example. All examples share `bot`, and `totals` counts over all."""

    bot: ClassVar[VoteBot]
    totals: ClassVar[Counter[str]] = Counter()
    report: ClassVar[Callable[[Counter[str]], None]] = staticmethod(lambda totals: None)

    def __init__(self) -> None:
        super().__init__()
        self.stage = VoteStage(self.bot)
        self.world = self.stage.world
        self.totals["examples"] += 1

    @initialize(scenes=st.lists(SCENES, min_size=1, max_size=2))
    def begin(self, scenes: list[Scene]) -> None:
        """Start every example with a request."""
        self.play(scenes)

    @rule(scenes=st.lists(SCENES, min_size=1, max_size=2))
    def play(self, scenes: list[Scene]) -> None:
        """Play whole scenes, because single rules rarely reach deep states."""
        for scene in scenes:
            scene.play(self.stage)

    @rule(kind=kinds)
    def ask(self, kind: str) -> None:
        """Let ana ask for an action. Nobody works on it yet."""
        self.stage.hear(HOME, "ana", f"please {kind}")

    @rule(who=people, answer=answers, form=forms, which=st.integers(0, 1), times=st.integers(1, 2))
    def answer(self, who: str, answer: str, form: str, which: int, times: int) -> None:
        """Let a person answer a request, perhaps twice."""
        self.stage.answer(who, answer, form, which=which, times=times)

    @rule(who=people, text=st.sampled_from(("yes", "no", "hello")))
    def chat(self, who: str, text: str) -> None:
        """Let a person write what names no request."""
        self.stage.hear(Conversation("team", who), who, text)

    @rule(form=st.sampled_from(("button", "command")))
    def withdraw(self, form: str) -> None:
        """Let ana take an action back."""
        self.stage.withdraw(form)

    @precondition(lambda self: self.stage.heard)
    @rule(which=st.integers(0, 100))
    def redeliver(self, which: int) -> None:
        """Deliver an earlier event again."""
        self.bot.hear(self.stage.heard[which % len(self.stage.heard)])

    @rule(who=st.sampled_from((*COLLEAGUES, "ana")), is_manager=st.booleans())
    def change_role(self, who: str, is_manager: bool) -> None:
        """Give a person a role, or take it away."""
        self.bot.team.set_manager(who, is_manager=is_manager)

    @rule(is_down=st.booleans())
    def cut_directory(self, is_down: bool) -> None:
        """Let a platform not say who is in a group, or say it again."""
        self.bot.team.is_down = is_down

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

    @rule()
    def work_all(self) -> None:
        """Let workers do all that is due."""
        self.stage.work_all()

    @precondition(lambda self: self.stage.at_work)
    @rule(slot=slots, end=st.sampled_from(ENDS))
    def strike(self, slot: int, end: str) -> None:
        """Crash, pause or time out a worker."""
        if slot in self.stage.at_work:
            self.stage.end(self.stage.at_work.pop(slot), end)

    @precondition(lambda self: self.stage.at_work)
    @rule(slot=slots, when=st.sampled_from(("at once", "later")))
    def lose_answer(self, slot: int, when: str) -> None:
        """Lose the next answer to this worker, which repeats its call."""
        if slot in self.stage.at_work:
            self.stage.at_work[slot].loses = when

    @precondition(lambda self: self.stage.aside)
    @rule(which=st.integers(0, 9), count=steps)
    def resume(self, which: int, count: int) -> None:
        """Let a paused worker continue."""
        worker = self.stage.aside[which % len(self.stage.aside)]
        if not self.stage.steps(worker, count):
            self.stage.aside.remove(worker)

    @rule(seconds=st.sampled_from((1.0, LEASE, LEASE, REMINDER, ESCALATION, WITHIN)))
    def pass_time(self, seconds: float) -> None:
        """Advance the clock; workers renew their leases unless it jumps past them."""
        if seconds < LEASE:
            for worker in self.stage.at_work.values():
                worker.renew()
        self.bot.pass_time(seconds)

    @rule(weather=st.sampled_from(("fine", "refused", "busy", "unclear")))
    def change_weather(self, weather: str) -> None:
        """Script the next delivery."""
        self.world.weather.append(weather)

    @precondition(lambda self: self.world.asked)
    @rule(what=st.sampled_from(("record", "votes")))
    def tamper(self, what: str) -> None:
        """Change what is stored from outside."""
        self.stage.tamper(what)

    @invariant()
    def holds(self) -> None:
        """Check that the last step broke no promise."""
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
        self.report(self.totals)
        self._judge()

    def _judge(self) -> None:
        if self.world.violations:
            raise Violation("\n".join(self.world.violations))
