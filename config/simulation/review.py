"""Review: every promise held against every conversation, by diaries, chats and effects alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from config.simulation.effects import Entry
from config.simulation.inbox import Heard, by_bill
from config.simulation.people import Act, Person
from config.simulation.verdict import judge, says_expired, window


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise: whose, at which turn, and what happened."""

    promise: str
    chat: str
    number: int
    words: str


@dataclass(slots=True)
class Review:
    """What came of one simulation. `answered` holds for each answer when what it answers was sent, and when it came.

    `picked_up` are the seconds from a webhook's 200 to the first sign of life, where nothing else was waited for.
    """

    turns: int = 0
    replies: int = 0
    confirmed: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    answered: list[tuple[float, float]] = field(default_factory=list)
    picked_up: list[float] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def count(self, promise: str) -> int:
        """How often a promise was broken."""
        return sum(finding.promise == promise for finding in self.findings)

    @property
    def waits(self) -> list[float]:
        """Seconds from the first delivery to the first answer."""
        return [heard_at - sent_at for sent_at, heard_at in self.answered]

    def wait(self, share: float) -> float:
        """How long the slowest of the fastest such share had to wait, in seconds."""
        return percentile(self.waits, share)


def percentile(values: Sequence[float], share: float) -> float:
    """The largest of the smallest such share of them; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def review(people: Iterable[Person], entries: Iterable[Entry]) -> Review:
    """The review of all conversations."""
    effects: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        effects[entry.bill].append(entry)
    found = Review()
    for person in people:
        _Case(found, person.phone.chat, person.diary, person.inbox.heard, effects, person.inbox.signs).judge()
    return found


@dataclass(frozen=True, slots=True)
class _Case:
    """One conversation on its way into a review."""

    found: Review
    chat: str
    diary: Sequence[Act]
    heard: Sequence[Heard]
    effects: Mapping[str, Sequence[Entry]]
    signs: Sequence[float]

    def judge(self) -> None:
        """Add everything about this conversation to the review."""
        answers = [*self._turns(), *self._bills()]
        self.found.turns += len(self.diary)
        self.found.replies += len(self.heard)
        self.found.answered += [(act.sent_at, heard.at) for act, heard in answers]
        self.found.picked_up += self._picked_up(answers)
        self._order(answers)
        for heard in self.heard:
            if heard.is_stray:
                self._fault("stray", 0, f"heard {heard.text!r}, which answers nothing")

    def _picked_up(self, answers: Sequence[tuple[Act, Heard]]) -> Iterator[float]:
        latest = 0.0
        for act, heard in sorted(answers, key=lambda each: each[0].number):
            if act.sent_at > latest and act.taken_at:
                sign = next((at for at in self.signs if at >= act.sent_at), heard.at)
                yield max(0.0, min(sign, heard.at) - act.taken_at)
            latest = max(latest, heard.at)

    def _fault(self, promise: str, number: int, words: str) -> None:
        self.found.findings.append(Finding(promise, self.chat, number, words))

    def _turns(self) -> Iterator[tuple[Act, Heard]]:
        """The acts whose answers name them, each with its first answer."""
        words, files = _by_number(self.heard, "turns"), _by_number(self.heard, "files")
        for act in self.diary:
            if not act.is_answered_by_turn:
                continue
            by_words, by_file = words[act.number], files[act.number]
            self._repeats(act.number, by_words)
            self._repeats(act.number, by_file)
            if not (by_file if act.verb == "want" else by_words):
                self._fault("lost", act.number, f"{act.verb} was never answered")
            first = [*by_words[:1], *by_file[:1]]
            if first:
                yield act, first[0]

    def _bills(self) -> Iterator[tuple[Act, Heard]]:
        """Questions and decisions, each with its first answer."""
        told = by_bill(self.heard)
        decisions: dict[str, list[Act]] = defaultdict(list)
        for act in sorted(self.diary, key=lambda act: act.number):
            if act.verb in ("agree", "refuse"):
                decisions[act.bill].append(act)
        for act in self.diary:
            if act.verb == "ask":
                yield from self._bill(act, decisions[act.bill], told.get(act.bill, []))

    def _bill(self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard]) -> Iterator[tuple[Act, Heard]]:
        if told:
            yield ask, told[0]
        else:
            self._fault("lost", ask.number, f"the question about {ask.bill} was never asked")
        self._repeats(ask.number, [heard for heard in told if heard.telling.kind == "question"])
        answers = _answers(told)
        self._verdict(ask, decisions, told)
        self.found.repeated += max(0, len(answers) - len(decisions)) if decisions else 0
        if told and len(answers) < len(decisions):
            self._fault("lost", ask.number, f"{len(decisions)} decisions on {ask.bill}, {len(answers)} answers")
        yield from _paired(decisions, _without_repeats(answers))

    def _verdict(self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard]) -> None:
        entries = self.effects.get(ask.bill, ())
        verdict = judge([heard.telling for heard in told], entries, len(decisions))
        own = [act for act in decisions if not act.stranger]
        agreed = any(act.agrees for act in decisions)
        if verdict.effects > 1:
            self._fault("doubled", ask.number, f"{ask.bill} took effect {verdict.effects} times")
        if verdict.effects and not agreed:
            self._fault("unwanted", ask.number, f"{ask.bill} took effect, and nobody agreed")
        self._turned_away(ask, decisions, told)
        self._in_time(ask, own, told)
        if not own:
            return
        self.found.confirmed += agreed
        self.found.endings[verdict.ending] += 1
        if verdict.ending == "untold":
            self._fault("untold", ask.number, f"{ask.bill} was decided and no outcome told")
        for fault in verdict.faults:
            if not fault.endswith(" effects") and fault != "told nothing":
                promise = "unmarked" if fault.startswith("answered") else "untrue"
                self._fault(promise, ask.number, f"{ask.bill}: {fault}")

    def _turned_away(self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard]) -> None:
        """Each tap of a stranger is told that the button is not theirs, and nobody else is."""
        taps = sum(act.tapped and act.stranger > 0 for act in decisions)
        answers = _without_repeats(_answers(told))
        turned_away = sum(heard.telling.kind == "foreign" for heard in answers)
        if len(answers) >= len(decisions) and turned_away != taps:
            words = f"{taps} strangers tapped on {ask.bill}, and {turned_away} heard that it is not theirs"
            self._fault("unwanted", ask.number, words)

    def _in_time(self, ask: Act, own: Sequence[Act], told: Sequence[Heard]) -> None:
        """Nobody is told to be late who agreed while the question was open, by what it says."""
        closes = min((heard.at + window(heard.text) for heard in told if heard.telling.kind == "question"), default=0.0)
        taken = [act.taken_at for act in own if act.agrees]
        if taken and min(taken) > 0 and max(taken) < closes - 1 and any(says_expired(heard.text) for heard in told):
            words = (
                f"{ask.bill} was agreed to {closes - max(taken):.0f} s before its time was over, and told to be late"
            )
            self._fault("untrue", ask.number, words)

    def _repeats(self, number: int, same: Sequence[Heard]) -> None:
        """Count what was said again. Who says a thing again marks it."""
        self.found.repeated += max(0, len(same) - 1)
        unmarked = [heard.text for heard in same if not heard.telling.marked and number not in _instead(heard)]
        if len(unmarked) > 1:
            self._fault("unmarked", number, f"heard {unmarked[-1]!r} {len(unmarked)} times without a mark")

    def _order(self, answers: Sequence[tuple[Act, Heard]]) -> None:
        """Answers arrive first in the order of what they answer."""
        places = {id(heard): place for place, heard in enumerate(self.heard)}
        latest = 0
        for act, heard in sorted(answers, key=lambda each: (places[id(each[1])], each[0].number)):
            if act.number < latest:
                self._fault("out of order", act.number, f"{act.verb} was answered after turn {latest}: {heard.text!r}")
                return
            latest = act.number


def _by_number(heard: Sequence[Heard], kind: str) -> dict[int, list[Heard]]:
    found: dict[int, list[Heard]] = defaultdict(list)
    for each in heard:
        for number in each.turns if kind == "turns" else each.files:
            found[number].append(each)
    return found


def _answers(told: Sequence[Heard]) -> list[Heard]:
    """What answers decisions. Who changes the subject is told of it in the answer to that."""
    return [heard for heard in told if heard.telling.kind not in ("question", "correction") and not heard.turns]


def _paired(decisions: Sequence[Act], answers: Sequence[Heard]) -> Iterator[tuple[Act, Heard]]:
    """Decisions with their answers, in order. What strangers did at the same moment may be answered before or after."""
    own = [act for act in decisions if not act.stranger]
    to_own = [heard for heard in answers if heard.telling.kind not in ("foreign", "aside")]
    return zip(own, answers if own == decisions else to_own, strict=False)


def _without_repeats(answers: Sequence[Heard]) -> list[Heard]:
    """The answers without those that say themselves that they repeat the one before; where one more of the same comes
    later, they were its first to arrive.
    """
    kept: list[Heard] = []
    again: list[Heard] = []
    for heard in answers:
        same = bool(kept) and heard.telling.text == kept[-1].telling.text
        if same and heard.telling.marked:
            again.append(heard)
        else:
            kept.append(again.pop(0) if same and again else heard)
    return kept


def _instead(heard: Heard) -> frozenset[int]:
    """The files that this message asks about instead of sending them again."""
    return heard.files if "I was interrupted while sending" in heard.text else frozenset()
