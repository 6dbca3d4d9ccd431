"""Answers: which of the messages that a person heard answers which act, and which only repeats another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sayso.config.simulation.inbox import Heard, by_bill
from sayso.config.simulation.people import Act
from sayso.config.simulation.verdict import least


def decisions_by_bill(diary: Iterable[Act]) -> dict[str, list[Act]]:
    """Who decided on each bill, in the order of their acts."""
    decisions: dict[str, list[Act]] = defaultdict(list)
    for act in sorted(diary, key=lambda act: act.number):
        if act.verb in ("agree", "refuse"):
            decisions[act.bill].append(act)
    return decisions


def by_number(heard: Iterable[Heard], kind: str) -> dict[int, list[Heard]]:
    """What was heard by the number of the turn that it names, in words (`turns`) or as a file (`files`)."""
    found: dict[int, list[Heard]] = defaultdict(list)
    for each in heard:
        for number in each.turns if kind == "turns" else each.files:
            found[number].append(each)
    return found


def to_decisions(told: Iterable[Heard]) -> list[Heard]:
    """What answers decisions. Who changes the subject is told of it in the answer to that."""
    return [heard for heard in told if heard.telling.kind not in ("question", "correction") and not _by_the_way(heard)]


def _by_the_way(heard: Heard) -> bool:
    """Whether it speaks of a bill in the answer to something else."""
    return bool(heard.turns) or heard.telling.in_passing


def credible(heard: Sequence[Heard], diary: Sequence[Act]) -> list[Heard]:
    """What was heard, where words count as a late first try only while an act of that time has no answer of its own."""
    told, decisions = by_bill(heard), decisions_by_bill(diary)
    open_acts = {bill: len(acts) - _unmarked(to_decisions(told.get(bill, ()))) for bill, acts in decisions.items()}
    return [_credible(each, open_acts) for each in heard]


def _credible(heard: Heard, open_acts: dict[str, int]) -> Heard:
    bill = heard.telling.first_try_for
    if not bill:
        return heard
    open_acts[bill] = open_acts.get(bill, 0) - 1
    return heard if open_acts[bill] >= 0 else replace(heard, telling=replace(heard.telling, marked=False))


def _unmarked(heard: Iterable[Heard]) -> int:
    return sum(not each.telling.marked for each in heard)


def paired(decisions: Sequence[Act], answers: Sequence[Heard]) -> Iterator[tuple[Act, Heard]]:
    """Decisions with their answers, in order. What strangers did at the same moment may be answered before or after."""
    own = [act for act in decisions if not act.stranger]
    to_own = [heard for heard in answers if heard.telling.kind not in ("foreign", "aside")]
    return zip(own, _firsts(answers if own == decisions else to_own, len(own)), strict=False)


def _firsts(answers: Sequence[Heard], acts: int) -> list[Heard]:
    """The first to arrive of the answers to so many acts. What is too much is the late first try of something older, or
    repeats the one before it, when either is marked: a first try may come after its repeat.
    """
    certain = [heard for heard in answers if not heard.telling.first_try_for]
    kept = certain if len(certain) >= acts else list(answers)
    for place in range(len(kept) - 1, 0, -1):
        before, heard = kept[place - 1].telling, kept[place].telling
        if len(kept) > acts and before.text == heard.text and (before.marked or heard.marked):
            del kept[place]
    return kept


def without_repeats(answers: Iterable[Heard]) -> list[Heard]:
    """The answers without those that say themselves that they repeat the one before."""
    kept: list[Heard] = []
    for heard in answers:
        if not (kept and heard.telling.marked and heard.telling.text == kept[-1].telling.text):
            kept.append(heard)
    return kept


def unmarked_outcomes(answers: Iterable[Heard]) -> int:
    """How often it was said without a mark that an action is done or failed."""
    return _unmarked(heard for heard in answers if heard.telling.kind in ("done", "failed"))


def answerable(decisions: Sequence[Act], told: Iterable[Heard]) -> int:
    """How many acts may be answered by words about a bill: decisions, and what was answered with a word on it too."""
    return len(decisions) + least(heard.telling for heard in told if heard.turns)
