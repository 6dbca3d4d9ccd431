"""Scenes: sequences that reach deep states quickly: a question, its delivery, an answer, and a fault on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hypothesis import strategies as st

from tests.model.bot import KINDS
from tests.model.stage import LEASE, WINDOW, Person, Stage, Stop
from tests.model.world import HALL, ROOM

PEOPLE: tuple[Person, ...] = (("ana", ROOM), ("bob", ROOM), ("cleo", HALL))
#: What may happen to a worker in the middle of its work.
ENDS = ("crash", "burial", "pause", "time out", "go on", "leave")

#: The requested actions, one or several at once.
WISHES = st.sampled_from((
    *((kind,) for kind in KINDS), ("pay",), ("pay",), ("delete", "pay"), ("archive", "archive"), ("broken", "delete"),
    ("delete", "coded"), ("delete", "checked", "archive"), ("letter", "delete"),
))  # fmt: skip
#: The answers to a question.
ANSWERS = st.sampled_from((
    "yes", "yes", "yes", "yes", "confirm tap", "confirm tap", "undo tap", "junk", "no", "ask", "foreign tap",
))  # fmt: skip
#: Where faults strike; the most delicate places come more often.
STOPS = st.sampled_from((
    ("lease", "after"), ("claim", "before"), ("claim", "before"), ("claim", "after"), ("start", "before"),
    ("start", "before"), ("start", "after"), ("start", "after"), ("start", "after"), ("finish", "before"),
    ("finish", "before"), ("finish", "before"), ("finish", "after"), ("commit", "before"), ("commit", "after"),
    ("mark_delivered", "before"), ("mark_delivered", "after"), ("release", "before"), ("change", "before"),
    ("read", "after"),
))  # fmt: skip


class Scene(Protocol):
    """A sequence of events."""

    def play(self, stage: Stage) -> None:
        """Run the sequence."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A worker processes part of an answer; then a fault strikes."""

    who: Person
    wish: tuple[str, ...]
    says: str
    waits: float
    times: int
    extra: str
    stop: Stop
    loses: bool
    tampers: str
    end: str

    def play(self, stage: Stage) -> None:
        """Run up to the stop, then apply the fault."""
        stage.asked(self.who, self.wish, self.says)
        stage.bot.pass_time(self.waits)
        stage.hear(self.who, self.says, self.wish, times=self.times)
        stage.hear(self.who, self.says if self.extra == "again" else self.extra, self.wish)
        worker = stage.worker(self.who[1])
        if not stage.go_to(worker, self.stop):
            return
        whole = [each for each in stage.world.waiting(self.who[1].id) if not each.tampered]
        if self.tampers and whole:
            stage.tamper(whole[-1], self.tampers)
        if self.loses:
            worker.loses = "at once"
            if not stage.steps(worker, 2):
                return
        stage.end(worker, self.end)


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A worker stops on the way, others take over when its lease ends, then the first worker continues.

    The others stop at the same place unless `second` names another. The worker paused last may resume at once.
    """

    who: Person
    wish: tuple[str, ...]
    says: str
    first: Stop
    second: Stop | None
    third: Stop
    rounds: int
    ends: str
    others: str
    back: bool
    silent: bool

    def play(self, stage: Stage) -> None:
        """Run the workers one after the other, then the first again."""
        stage.asked(self.who, self.wish, self.says)
        stage.hear(self.who, self.says, self.wish)
        worker = stage.worker(self.who[1])
        if not stage.go_to(worker, self.first):
            return
        stage.world.silent = self.silent
        for _ in range(self.rounds):
            stage.bot.pass_time(LEASE)
            other = stage.worker(self.who[1])
            if stage.go_to(other, self.second or self.first):
                stage.end(other, self.others)
        if stage.go_to(worker, self.third):
            stage.end(worker, self.ends)
        if self.back and stage.aside:
            stage.steps(stage.aside.pop())
        stage.work(self.who[1])


@dataclass(frozen=True, slots=True)
class Late:
    """The question waits before its delivery, or the answer before its processing."""

    who: Person
    wish: tuple[str, ...]
    before: float
    after: float

    def play(self, stage: Stage) -> None:
        """Send one yes before the question arrives and one after it."""
        place = self.who[1]
        stage.settle_down(place)
        stage.hear(self.who, "ask", self.wish)
        worker = stage.worker(place)
        stage.go_to(worker, ("commit", "after"))
        stage.end(worker, "crash")
        stage.bot.pass_time(self.before + LEASE)
        stage.hear(self.who, "yes")
        stage.work(place)
        stage.hear(self.who, "yes")
        stage.bot.pass_time(self.after)
        stage.work(place)


_people = st.sampled_from(PEOPLE)
_interrupted = st.builds(
    Interrupted, who=_people, wish=WISHES, says=ANSWERS, waits=st.sampled_from((0.0, 0.0, WINDOW)),
    times=st.integers(1, 2), extra=st.sampled_from(("", "", "chat", "yes", "again")), stop=STOPS, loses=st.booleans(),
    tampers=st.sampled_from(("", "", "mac", "args")), end=st.sampled_from(ENDS),
)  # fmt: skip
_taken_over = st.builds(
    TakenOver, who=_people, wish=WISHES, says=ANSWERS, first=STOPS, second=st.none() | STOPS, third=STOPS,
    rounds=st.sampled_from((1, 2, 3)), ends=st.sampled_from(("crash", "pause")),
    others=st.sampled_from(("crash", "pause")), back=st.booleans(), silent=st.booleans(),
)  # fmt: skip
_late = st.builds(
    Late,
    who=_people,
    wish=WISHES,
    before=st.sampled_from((0.0, 30.0, WINDOW)),
    after=st.sampled_from((0.0, WINDOW)),
)
SCENES: st.SearchStrategy[Scene] = _interrupted | _taken_over | _late
