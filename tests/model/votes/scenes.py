"""Scenes about votes: a request, answers to it, and a fault on the way to the decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hypothesis import strategies as st

from tests.model.stage import LEASE, Stop
from tests.model.votes.facts import CHATS, COLLEAGUES, GROUP, HOME, RULES, WITHIN
from tests.model.votes.stage import VoteStage

#: What may happen to a worker in the middle of its work.
ENDS = ("crash", "burial", "pause", "time out", "go on")
#: Where faults strike on the way of a vote.
STOPS = st.sampled_from((
    ("commit", "before"), ("commit", "after"), ("forward_entry", "before"), ("forward_entry", "after"),
    ("forward_entry", "after"), ("mark_delivered", "before"), ("mark_delivered", "after"), ("change", "before"),
    ("change", "after"), ("claim", "before"), ("claim", "after"), ("start", "before"), ("start", "after"),
    ("finish", "before"), ("finish", "after"), ("forward", "after"), ("release", "before"),
))  # fmt: skip


class Scene(Protocol):
    """A sequence of events."""

    def play(self, stage: VoteStage) -> None:
        """Run the sequence."""


@dataclass(frozen=True, slots=True)
class Decided:
    """People answer one after the other. A fault strikes a worker on the way of the last answer."""

    kind: str
    #: Who answers, how and in which form.
    answers: tuple[tuple[str, str, str], ...]
    #: Who loses the role after the first answer, "" for nobody.
    loses_role: str
    waits: float
    times: int
    #: Whether the fault strikes in the conversation of the action, or in that of the person.
    at_home: bool
    stop: Stop
    loses: bool
    end: str

    def play(self, stage: VoteStage) -> None:
        """Ask, answer, and apply the fault."""
        stage.bot.pass_time(LEASE)
        stage.ask(self.kind)
        *first, last = self.answers
        for who, answer, form in first:
            stage.answer(who, answer, form)
            stage.work_all()
        if self.loses_role:
            stage.bot.team.set_manager(self.loses_role, is_manager=False)
        stage.bot.pass_time(self.waits)
        who, answer, form = last
        stage.answer(who, answer, form, times=self.times)
        if self.at_home:
            for place in (GROUP, *CHATS.values()):
                stage.work(place)
            worker = stage.worker(HOME)
        else:
            worker = stage.worker(CHATS.get(who, GROUP))
        if not stage.go_to(worker, self.stop):
            return
        if self.loses:
            worker.loses = "at once"
            if not stage.steps(worker, 2):
                return
        stage.end(worker, self.end)
        stage.bot.pass_time(LEASE)


@dataclass(frozen=True, slots=True)
class Ended:
    """An action is withdrawn, or its time passes, while answers are on their way."""

    kind: str
    answers: tuple[tuple[str, str, str], ...]
    how: str
    stop: Stop
    end: str
    is_answer_first: bool

    def play(self, stage: VoteStage) -> None:
        """Ask, answer, and end the action."""
        stage.bot.pass_time(LEASE)
        stage.ask(self.kind)
        for who, answer, form in self.answers:
            stage.answer(who, answer, form)
        if self.is_answer_first:
            for place in (GROUP, *CHATS.values()):
                stage.work(place)
        if self.how == "time":
            stage.bot.pass_time(WITHIN)
            stage.bot.overdue()
        else:
            stage.withdraw(self.how)
        worker = stage.worker(HOME)
        if stage.go_to(worker, self.stop):
            stage.end(worker, self.end)
        stage.bot.pass_time(LEASE)
        stage.work_all()


_kinds = st.sampled_from((*RULES, "payout", "payout", "wire", "wire"))
_answer = st.tuples(
    st.sampled_from((*COLLEAGUES, "bea", "bea", "cem", "cem", "ana", "bea2")),
    st.sampled_from(("yes", "yes", "yes", "no")),
    st.sampled_from(("tap", "tap", "words", "in group")),
)
_decided = st.builds(
    Decided,
    kind=_kinds,
    answers=st.lists(_answer, min_size=1, max_size=3).map(tuple),
    loses_role=st.sampled_from(("", "", "bea", "cem")),
    waits=st.sampled_from((0.0, 0.0, 1.0, WITHIN)),
    times=st.integers(1, 2),
    at_home=st.booleans(),
    stop=STOPS,
    loses=st.booleans(),
    end=st.sampled_from(ENDS),
)
_ended = st.builds(
    Ended,
    kind=_kinds,
    answers=st.lists(_answer, max_size=2).map(tuple),
    how=st.sampled_from(("button", "command", "time")),
    stop=STOPS,
    end=st.sampled_from(ENDS),
    is_answer_first=st.booleans(),
)
SCENES: st.SearchStrategy[Scene] = _decided | _decided | _ended
