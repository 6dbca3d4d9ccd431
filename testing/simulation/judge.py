"""What was promised against what happened."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from sayso.testing.simulation.outcomes import NO_OUTCOME, BillVerdict, MessageKind, judge, least, says_expired, window
from sayso.testing.simulation.tools import EffectEntry
from sayso.testing.simulation.users import PATIENCE, Act, Heard, SimulatedUser, by_bill


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


def answers_to_decisions(told: Iterable[Heard]) -> list[Heard]:
    """What answers decisions. Who changes the subject is told of it in the answer to that."""
    return [heard for heard in told if heard.telling.kind not in ("question", "correction") and not _by_the_way(heard)]


def _by_the_way(heard: Heard) -> bool:
    """Whether it speaks of a bill in the answer to something else."""
    return bool(heard.turns) or heard.telling.in_passing


def credible(heard: Sequence[Heard], diary: Sequence[Act]) -> list[Heard]:
    """What was heard, where words count as a late first try only while an act of that time has no answer of its own."""
    told, decisions = by_bill(heard), decisions_by_bill(diary)
    open_acts = {
        bill: len(acts) - _unmarked(answers_to_decisions(told.get(bill, ()))) for bill, acts in decisions.items()
    }
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


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """One broken promise: whose, at which turn, and what happened."""

    promise: str
    chat: str
    number: int
    words: str


@dataclass(slots=True)
class Review:
    """What came of one simulation. `answered` holds for each answer when what it answers was sent, and when it came.

    `picked_up` are the seconds from a webhook's 200 to the first sign of life, where nothing else was waited for.
    `undone` counts the actions that were agreed to in time, and of which nothing was done; `marked` the replies that
    say that they may be repeats, whether or not they are, and files that are asked about instead.
    """

    turns: int = 0
    replies: int = 0
    confirmed: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    undone: int = 0
    repeated: int = 0
    marked: int = 0
    answered: list[tuple[float, float]] = field(default_factory=list)
    picked_up: list[float] = field(default_factory=list)
    findings: list[BrokenPromise] = field(default_factory=list)

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


def review(people: Iterable[SimulatedUser], entries: Iterable[EffectEntry]) -> Review:
    """The review of all conversations."""
    effects: dict[str, list[EffectEntry]] = defaultdict(list)
    for entry in entries:
        effects[entry.bill].append(entry)
    found, asked = Review(), set()
    for person in people:
        heard = credible(person.inbox.heard, person.diary)
        _Case(found, person.phone.chat, person.diary, heard, effects, person.inbox.signs).judge()
        asked |= {act.bill for act in person.diary if act.verb == "ask"}
    for bill in sorted(set(effects) - asked):
        if any(entry.step == "effect" for entry in effects[bill]):
            found.findings.append(BrokenPromise("unwanted", "", 0, f"{bill} took effect, and nobody had asked for it"))
    return found


@dataclass(frozen=True, slots=True)
class _Case:
    """One conversation on its way into a review."""

    found: Review
    chat: str
    diary: Sequence[Act]
    heard: Sequence[Heard]
    effects: Mapping[str, Sequence[EffectEntry]]
    signs: Sequence[float]

    def judge(self) -> None:
        """Add everything about this conversation to the review."""
        firsts = [*self._turns(), *self._bills()]
        first_of_each: dict[int, tuple[Act, Heard]] = {}
        for act, heard in firsts:
            first_of_each.setdefault(act.number, (act, heard))
        self.found.turns += len(self.diary)
        self.found.replies += len(self.heard)
        self.found.marked += sum(_is_marked(heard) for heard in self.heard)
        self.found.answered += [(act.sent_at, heard.at) for act, heard in first_of_each.values()]
        self.found.picked_up += self._picked_up(first_of_each.values())
        self._order(firsts)
        self._strays()

    def _strays(self) -> None:
        """Everything that is said is about something that was done in this conversation."""
        numbers, bills = {act.number for act in self.diary}, {act.bill for act in self.diary}
        for heard in self.heard:
            about = heard.speaks_of_bill and heard.bill in bills
            if not about and numbers.isdisjoint(heard.turns | heard.files):
                self._fault("stray", 0, f"heard {heard.text!r}, which answers nothing")

    def _picked_up(self, first_of_each: Iterable[tuple[Act, Heard]]) -> Iterator[float]:
        latest = 0.0
        for act, heard in sorted(first_of_each, key=lambda each: each[0].number):
            if act.sent_at > latest and act.taken_at:
                sign = next((at for at in self.signs if at >= act.sent_at), heard.at)
                yield max(0.0, min(sign, heard.at) - act.taken_at)
            latest = max(latest, heard.at)

    def _fault(self, promise: str, number: int, words: str) -> None:
        self.found.findings.append(BrokenPromise(promise, self.chat, number, words))

    def _turns(self) -> Iterator[tuple[Act, Heard]]:
        """The acts whose answers name them, each with its first words and its first file."""
        words, files = by_number(self.heard, "turns"), by_number(self.heard, "files")
        for act in self.diary:
            if not act.is_answered_by_turn:
                continue
            by_words, by_file = words[act.number], files[act.number]
            self._repeats(act.number, by_words)
            self._repeats(act.number, by_file)
            if not (by_file if act.verb == "want" else by_words):
                self._fault("lost", act.number, f"{act.verb} was never answered")
            yield from ((act, heard) for heard in (*by_words[:1], *by_file[:1]))

    def _bills(self) -> Iterator[tuple[Act, Heard]]:
        """Questions and decisions, each with its first answer."""
        told, decisions = by_bill(self.heard), decisions_by_bill(self.diary)
        for act in self.diary:
            if act.verb == "ask":
                yield from self._bill(act, decisions[act.bill], told.get(act.bill, []))

    def _bill(self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard]) -> Iterator[tuple[Act, Heard]]:
        questions = _of_kind(told, "question")
        if not questions:
            self._fault("lost", ask.number, f"the question about {ask.bill} was never asked")
        yield from ((ask, heard) for heard in questions[:1])
        self._repeats(ask.number, questions)
        self._repeats(ask.number, _of_kind(told, "correction"))
        to_decisions = answers_to_decisions(told)
        self._verdict(ask, decisions, told)
        self.found.repeated += max(0, len(to_decisions) - len(decisions)) if decisions else 0
        if questions and len(to_decisions) < len(decisions):
            self._fault("lost", ask.number, f"{len(decisions)} decisions on {ask.bill}, {len(to_decisions)} answers")
        self._small_talk(ask, decisions, to_decisions)
        yield from paired(decisions, to_decisions)

    def _small_talk(self, ask: Act, decisions: Sequence[Act], to_decisions: Sequence[Heard]) -> None:
        """A yes or no is small talk only when another one has decided before it."""
        kinds = [heard.telling.kind for heard in to_decisions if not heard.telling.first_try_for]
        outcomes = [kind for kind in kinds if kind not in NO_OUTCOME]
        strangers = any(act.stranger for act in decisions)
        if outcomes and "aside" in kinds[: kinds.index(outcomes[0])] and not strangers:
            self._fault("out of order", ask.number, f"{ask.bill}: its outcome was told after what followed it")

    def _verdict(self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard]) -> None:
        entries = self.effects.get(ask.bill, ())
        verdict = judge([heard.telling for heard in told], entries, answerable(decisions, told))
        for fault in verdict.faults:
            if fault != "told nothing":
                self._fault(_promise(fault), ask.number, f"{ask.bill}: {fault}")
        self._unwanted(ask, decisions, entries)
        self._impossible(ask, decisions, told, entries)
        self._turned_away(ask, decisions, told)
        own = [act for act in decisions if not act.stranger]
        if own:
            self._said_once(ask, decisions, told)
            self._in_time(ask, own, told)
            self._ending(ask, own, told, verdict)

    def _unwanted(self, ask: Act, decisions: Sequence[Act], entries: Sequence[EffectEntry]) -> None:
        """Nothing takes effect before somebody agreed who was asked."""
        effects = [entry.at or inf for entry in entries if entry.step == "effect"]
        agreed_at = min((act.sent_at for act in decisions if act.agrees), default=inf)
        if effects and agreed_at >= min(effects):
            self._fault("unwanted", ask.number, f"{ask.bill} took effect, and nobody had agreed")

    def _impossible(
        self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard], entries: Sequence[EffectEntry]
    ) -> None:
        """No outcome is told that cannot be: not without the decision that leads to it, and not before it is one."""
        if not any(act.agrees for act in decisions) and _of_kind(told, "failed", "unknown"):
            self._fault("untrue", ask.number, f"{ask.bill} was told to have begun, and nobody had agreed")
        refused = any(act.verb == "refuse" for act in decisions)
        if not refused and any(heard.telling.text.startswith("Cancelled: ") for heard in told):
            self._fault("untrue", ask.number, f"{ask.bill} was told to be cancelled, and nobody had refused")
        took_effect_at = min((entry.at for entry in entries if entry.step == "effect"), default=0.0)
        if any(heard.at < took_effect_at for heard in _of_kind(told, "done", "correction")):
            self._fault("untrue", ask.number, f"{ask.bill} was told to be done before it was")

    def _ending(self, ask: Act, own: Sequence[Act], told: Sequence[Heard], verdict: BillVerdict) -> None:
        """Whoever decided hears of the outcome, or is asked again when nobody waits any more to decide once more."""
        self.found.confirmed += any(act.agrees for act in own)
        self.found.endings[verdict.ending] += 1
        waited_until = max(act.taken_at or act.sent_at for act in own) + PATIENCE
        asked_in_time = verdict.ending == "asked again" and _of_kind(told, "early")[0].at <= waited_until
        if verdict.ending == "untold" or asked_in_time:
            self._fault("untold", ask.number, f"{ask.bill} was decided and no outcome told")
        undone = verdict.ending in ("not started", "asked again") and all(act.agrees for act in own)
        self.found.undone += undone and _spare_seconds(own, told) > 1

    def _said_once(self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard]) -> None:
        """Each tap is told the outcome; of typed words only those that brought it about."""
        taps = sum(act.tapped for act in decisions)
        acts = min(len(decisions), taps + 1)  # typed words after it are small talk
        outcomes = unmarked_outcomes(told)
        if outcomes > acts:
            self._fault("unmarked", ask.number, f"{ask.bill}: its outcome was told {outcomes} times to {acts} acts")

    def _turned_away(self, ask: Act, decisions: Sequence[Act], told: Sequence[Heard]) -> None:
        """Each tap of a stranger is told that the button is not theirs, and nobody else is."""
        taps = sum(act.tapped and act.stranger > 0 for act in decisions)
        to_decisions = without_repeats(answers_to_decisions(told))
        turned_away = len(_of_kind(to_decisions, "foreign"))
        if len(to_decisions) >= len(decisions) and turned_away != taps:
            words = f"{taps} strangers tapped on {ask.bill}, and {turned_away} heard that it is not theirs"
            self._fault("unwanted", ask.number, words)

    def _in_time(self, ask: Act, own: Sequence[Act], told: Sequence[Heard]) -> None:
        """Nobody is told to be late who agreed while the question was open, by what it says."""
        spare = _spare_seconds(own, told)
        if spare > 1 and any(says_expired(heard.text) for heard in told):
            words = f"{ask.bill} was agreed to {spare:.0f} s before its time was over, and told to be late"
            self._fault("untrue", ask.number, words)

    def _repeats(self, number: int, same: Sequence[Heard]) -> None:
        """Count what was said again. Who says a thing again marks it."""
        self.found.repeated += max(0, len(same) - 1)
        unmarked = [heard.text for heard in same if not heard.telling.marked and number not in _instead(heard)]
        if len(unmarked) > 1:
            self._fault("unmarked", number, f"heard {unmarked[-1]!r} {len(unmarked)} times without a mark")

    def _order(self, firsts: Sequence[tuple[Act, Heard]]) -> None:
        """Answers arrive first in the order of what they answer, and not before it."""
        for act, heard in firsts:
            if heard.at < act.sent_at:
                self._fault("stray", act.number, f"heard {heard.text!r} before there was anything to answer")
        places = {id(heard): place for place, heard in enumerate(self.heard)}
        latest = 0
        for act, heard in sorted(firsts, key=lambda each: (places[id(each[1])], each[0].number)):
            if act.number < latest:
                self._fault("out of order", act.number, f"{act.verb} was answered after turn {latest}: {heard.text!r}")
                return
            latest = act.number


def _promise(fault: str) -> str:
    """Which promise is broken by what a verdict names."""
    if fault.endswith(" effects") or fault.startswith("begun"):
        return "doubled"
    return "unmarked" if fault.startswith("answered") else "untrue"


def _of_kind(told: Iterable[Heard], *kinds: MessageKind) -> list[Heard]:
    return [heard for heard in told if heard.telling.kind in kinds]


def _spare_seconds(own: Sequence[Act], told: Sequence[Heard]) -> float:
    """How long before the end of a question, by what it says, the last yes was taken; 0 when that is unknown."""
    closes = min((heard.at + window(heard.text) for heard in _of_kind(told, "question")), default=0.0)
    taken = [act.taken_at for act in own if act.agrees]
    return closes - max(taken) if taken and min(taken) > 0 else 0.0


def _is_marked(heard: Heard) -> bool:
    """Whether it says that it may be a repeat, or asks whether a file arrived instead of sending it again."""
    said_again = heard.telling.marked and not heard.telling.first_try_for and not heard.telling.in_passing
    return said_again or bool(_instead(heard))


def _instead(heard: Heard) -> frozenset[int]:
    """The files that this message asks about instead of sending them again."""
    return heard.files if "I was interrupted while sending" in heard.text else frozenset()
