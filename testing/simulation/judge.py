"""Hold what happened in a simulation against what Sayso promises: lost, doubled, unwanted,
out of order and so on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf

from sayso.pending.limits import FOREIGN_TAPS_IN_ONE_GO, FOREIGN_TAPS_PER_MINUTE
from sayso.testing.simulation.outcomes import (
    NO_OUTCOME,
    BillResult,
    MessageKind,
    judge_bill,
    least_answers,
    open_seconds,
    says_cancelled,
    says_expired,
    steps_told,
)
from sayso.testing.simulation.tools import EffectEntry
from sayso.testing.simulation.users import (
    ASKED_INSTEAD,
    PATIENCE,
    Act,
    ChatMessage,
    SimulatedUser,
    by_bill,
)


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """One broken promise: in which chat, at which turn, and what happened."""

    promise: str
    chat: str
    number: int
    text: str


@dataclass(slots=True)
class SimulationResult:
    """The counts and findings of one simulation.

    `answered` holds, for each first answer, when the act was sent and when the answer came.
    """

    turns: int = 0
    replies: int = 0
    confirmed: int = 0
    #: `requests` counts requests of several steps that went on after an outcome.
    requests: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    #: `undone` counts actions that were agreed to in time and not done.
    undone: int = 0
    #: `dropped` counts taps of strangers that got no answer and were beyond the limit for taps on
    #: others' buttons.
    dropped: int = 0
    repeated: int = 0
    #: `marked` counts replies that say that they may be repeats, whether or not they are, and files
    #: that are asked about instead of being sent again.
    marked: int = 0
    answered: list[tuple[float, float]] = field(default_factory=list)
    #: `picked_up` holds the seconds from a webhook's 200 to the first sign of life, for acts that
    #: did not wait for another one.
    picked_up: list[float] = field(default_factory=list)
    findings: list[BrokenPromise] = field(default_factory=list)

    def count(self, promise: str) -> int:
        """Return how often a promise was broken."""
        return sum(finding.promise == promise for finding in self.findings)

    @property
    def waits(self) -> list[float]:
        """The seconds from the first delivery of each act to its first answer."""
        return [answered_at - sent_at for sent_at, answered_at in self.answered]

    def wait(self, share: float) -> float:
        """Return the seconds within which this share of all acts was answered."""
        return percentile(self.waits, share)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 if there are none."""
    if values:
        return sorted(values)[min(len(values) - 1, int(share * len(values)))]
    return 0.0


def judge_simulation(
    people: Iterable[SimulatedUser], entries: Iterable[EffectEntry]
) -> SimulationResult:
    """Return the result of all conversations."""
    effects: dict[str, list[EffectEntry]] = defaultdict(list)
    for entry in entries:
        effects[entry.bill].append(entry)
    result = SimulationResult()
    asked_bills = set()
    for person in people:
        messages = check_first_tries(person.inbox.messages, person.acts)
        droppable = droppable_taps(person.acts, person.delivery.longest_delay)
        _ConversationJudge(
            result,
            person.client.chat,
            person.acts,
            messages,
            effects,
            person.inbox.signs,
            droppable,
        ).judge()
        asked_bills |= {act.bill for act in person.acts if act.asks}
    for bill in sorted(set(effects) - asked_bills):
        if any(entry.step == "effect" for entry in effects[bill]):
            result.findings.append(
                BrokenPromise("unwanted", "", 0, f"{bill} took effect, and nobody had asked for it")
            )
    return result


@dataclass(frozen=True, slots=True)
class _ConversationJudge:
    """Adds one conversation to a result. Made for each conversation."""

    result: SimulationResult
    chat: str
    acts: Sequence[Act]
    messages: Sequence[ChatMessage]
    effects: Mapping[str, Sequence[EffectEntry]]
    signs: Sequence[float]
    droppable: Set[int]

    def judge(self) -> None:
        """Add all counts and findings of the conversation."""
        first_answers = [*self._judge_turns(), *self._judge_bills()]
        by_act: dict[int, tuple[Act, ChatMessage]] = {}
        for act, message in first_answers:
            by_act.setdefault(act.number, (act, message))
        self.result.turns += len(self.acts)
        self.result.replies += len(self.messages)
        self.result.marked += sum(_is_marked(message) for message in self.messages)
        self.result.answered += [(act.sent_at, message.at) for act, message in by_act.values()]
        self.result.picked_up += self._pick_up_seconds(by_act.values())
        self._check_order(first_answers)
        self._check_strays()

    def _fault(self, promise: str, number: int, text: str) -> None:
        self.result.findings.append(BrokenPromise(promise, self.chat, number, text))

    def _pick_up_seconds(self, first_answers: Iterable[tuple[Act, ChatMessage]]) -> Iterator[float]:
        latest = 0.0
        for act, message in sorted(first_answers, key=lambda pair: pair[0].number):
            if act.sent_at > latest and act.taken_at:
                sign = next((at for at in self.signs if at >= act.sent_at), message.at)
                yield max(0.0, min(sign, message.at) - act.taken_at)
            latest = max(latest, message.at)

    def _check_order(self, first_answers: Sequence[tuple[Act, ChatMessage]]) -> None:
        """Answers arrive in the order of their acts, and not before them."""
        for act, message in first_answers:
            if message.at < act.sent_at:
                self._fault(
                    "stray",
                    act.number,
                    f"heard {message.text!r} before there was anything to answer",
                )
        places = {id(message): place for place, message in enumerate(self.messages)}
        latest = 0
        for act, message in sorted(
            first_answers, key=lambda pair: (places[id(pair[1])], pair[0].number)
        ):
            if act.number < latest:
                self._fault(
                    "out of order",
                    act.number,
                    f"{act.verb} was answered after turn {latest}: {message.text!r}",
                )
                return
            latest = act.number

    def _check_strays(self) -> None:
        """Every message is about something that was done in this conversation."""
        numbers = {act.number for act in self.acts}
        bills = {act.bill for act in self.acts}
        for message in self.messages:
            about_bill = message.speaks_of_bill and message.bill in bills
            if not about_bill and numbers.isdisjoint(message.turns | message.files):
                self._fault("stray", 0, f"heard {message.text!r}, which answers nothing")

    def _judge_turns(self) -> Iterator[tuple[Act, ChatMessage]]:
        """Return the acts whose answers name their turn,
        each with its first text and its first file.
        """
        texts = by_number(self.messages, "turns")
        files = by_number(self.messages, "files")
        for act in self.acts:
            if not act.is_answered_by_turn:
                continue
            by_text = texts[act.number]
            by_file = files[act.number]
            self._count_repeats(act.number, by_text)
            self._count_repeats(act.number, by_file)
            if not (by_file if act.verb == "want" else by_text):
                self._fault("lost", act.number, f"{act.verb} was never answered")
            yield from ((act, message) for message in (*by_text[:1], *by_file[:1]))

    def _judge_bills(self) -> Iterator[tuple[Act, ChatMessage]]:
        """Return questions and decisions, each with its first answer."""
        messages = by_bill(self.messages)
        decisions = decisions_by_bill(self.acts)
        for act in self.acts:
            if act.asks:
                yield from self._judge_bill(act, decisions[act.bill], messages.get(act.bill, []))
        for request in requests_of(self.acts):
            self._judge_request(request, messages)

    def _judge_bill(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> Iterator[tuple[Act, ChatMessage]]:
        questions = _of_kind(messages, "question")
        # Whether a further step must be asked about depends on the one before.
        if ask.verb == "ask":
            if not questions:
                self._fault("lost", ask.number, f"the question about {ask.bill} was never asked")
            yield from ((ask, message) for message in questions[:1])
        self._count_repeats(ask.number, questions)
        self._count_repeats(ask.number, _of_kind(messages, "correction"))
        answers = answers_to_decisions(messages)
        decisions = self._without_dropped_taps(decisions, answers)
        self._check_bill(ask, decisions, messages)
        self.result.repeated += max(0, len(answers) - len(decisions)) if decisions else 0
        needed = len(decisions) - _repeated_decisions(decisions, answers)
        if questions and len(answers) < needed:
            text = f"{len(decisions)} decisions on {ask.bill}, {needed} need an answer, {len(answers)} have one"
            self._fault("lost", ask.number, text)
        self._check_small_talk(ask, decisions, answers)
        yield from pair_answers(decisions, answers)

    def _judge_request(
        self, steps: Sequence[Act], messages: Mapping[str, Sequence[ChatMessage]]
    ) -> None:
        """Check a request of several steps: each outcome is followed by the next question,
        or by the rest.

        The rest is the line that names all steps, or one that says why it is missing.
        """
        rests: list[ChatMessage] = []
        for step in steps:
            rests += _of_kind(messages.get(step.bill, []), "rest")
        self._count_repeats(steps[0].number, rests)
        for rest in rests:
            self._check_rest(steps, rest)
        self.result.requests += _ended_at(messages.get(steps[0].bill, [])) < inf
        followed_by = [*steps[1:], None]
        for step, following in zip(steps, followed_by, strict=True):
            ended_at = _ended_at(messages.get(step.bill, []))
            asked: Sequence[ChatMessage] = []
            if following:
                asked = _of_kind(messages.get(following.bill, []), "question")
            if asked and ended_at > asked[0].at:
                self._fault(
                    "out of order",
                    step.number,
                    f"{asked[0].bill} was asked about before {step.bill} ended",
                )
            if ended_at < inf and not any(each.at >= ended_at for each in (*asked, *rests)):
                self._fault(
                    "untold",
                    step.number,
                    f"{step.bill} ended, and nothing tells the rest of the request",
                )

    def _check_rest(self, steps: Sequence[Act], rest: ChatMessage) -> None:
        """The line that ends a request names all steps, and says of each what is true."""
        told = steps_told(rest.statement.text)
        if told and list(told) != [step.bill for step in steps]:
            self._fault(
                "untrue",
                steps[0].number,
                f"{rest.statement.text!r} does not name the steps of the request",
            )
        for bill, outcome in told.items():
            is_done = any(
                entry.step == "effect" and entry.at <= rest.at
                for entry in self.effects.get(bill, ())
            )
            if outcome != "unknown" and is_done != (outcome == "done"):
                self._fault("untrue", steps[0].number, f"{bill} was told to be {outcome}")

    def _without_dropped_taps(
        self, decisions: Sequence[Act], answers: Sequence[ChatMessage]
    ) -> Sequence[Act]:
        """Return the decisions without the taps of strangers that got no
        answer and were beyond their limit.
        """
        taps = [act.number for act in decisions if act.tapped and act.stranger]
        unanswered = len(taps) - len(_of_kind(without_repeats(answers), "foreign"))
        dropped = [number for number in taps if number in self.droppable][: max(0, unanswered)]
        self.result.dropped += len(dropped)
        return [act for act in decisions if act.number not in dropped]

    def _count_repeats(self, number: int, messages: Sequence[ChatMessage]) -> None:
        """Count messages that say the same again. Each repeat must be marked as one."""
        self.result.repeated += max(0, len(messages) - 1)
        unmarked = [
            message.text
            for message in messages
            if not message.statement.marked and number not in _asked_about_instead(message)
        ]
        if len(unmarked) > 1:
            self._fault(
                "unmarked", number, f"heard {unmarked[-1]!r} {len(unmarked)} times without a mark"
            )

    def _check_small_talk(
        self, ask: Act, decisions: Sequence[Act], answers: Sequence[ChatMessage]
    ) -> None:
        """A yes or no may be taken for small talk only after another one has decided."""
        kinds = [
            message.statement.kind for message in answers if not message.statement.first_try_for
        ]
        outcomes = [kind for kind in kinds if kind not in NO_OUTCOME]
        strangers = any(act.stranger for act in decisions)
        if outcomes and "aside" in kinds[: kinds.index(outcomes[0])] and not strangers:
            self._fault(
                "out of order",
                ask.number,
                f"{ask.bill}: its outcome was told after what followed it",
            )

    def _check_bill(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> None:
        entries = self.effects.get(ask.bill, ())
        statements = [message.statement for message in messages]
        # Decisions may be answered, and turns whose answer mentions the bill.
        turn_answers = least_answers(message.statement for message in messages if message.turns)
        bill_result = judge_bill(statements, entries, len(decisions) + turn_answers)
        for fault in bill_result.faults:
            if fault != "told nothing":
                self._fault(_promise_of_fault(fault), ask.number, f"{ask.bill}: {fault}")
        self._check_agreement(ask, decisions, entries)
        self._check_truth(ask, decisions, messages, entries)
        self._check_strangers(ask, decisions, messages)
        own = [act for act in decisions if not act.stranger]
        if own:
            self._check_outcome_count(ask, decisions, messages)
            self._check_expiry(ask, own, messages)
            self._check_ending(ask, own, messages, bill_result)

    def _check_agreement(
        self, ask: Act, decisions: Sequence[Act], entries: Sequence[EffectEntry]
    ) -> None:
        """Nothing takes effect before the person who was asked has agreed."""
        effects = [entry.at or inf for entry in entries if entry.step == "effect"]
        agreed_at = min((act.sent_at for act in decisions if act.agrees), default=inf)
        if effects and agreed_at >= min(effects):
            self._fault("unwanted", ask.number, f"{ask.bill} took effect, and nobody had agreed")

    def _check_truth(
        self,
        ask: Act,
        decisions: Sequence[Act],
        messages: Sequence[ChatMessage],
        entries: Sequence[EffectEntry],
    ) -> None:
        """No outcome is told without the decision that leads to it, or before it is true."""
        if not any(act.agrees for act in decisions) and _of_kind(messages, "failed", "unknown"):
            self._fault(
                "untrue", ask.number, f"{ask.bill} was told to have begun, and nobody had agreed"
            )
        refused = any(act.verb == "refuse" for act in decisions)
        if not refused and any(says_cancelled(message.statement.text) for message in messages):
            self._fault(
                "untrue", ask.number, f"{ask.bill} was told to be cancelled, and nobody had refused"
            )
        took_effect_at = min((entry.at for entry in entries if entry.step == "effect"), default=0.0)
        if any(message.at < took_effect_at for message in _of_kind(messages, "done", "correction")):
            self._fault("untrue", ask.number, f"{ask.bill} was told to be done before it was")

    def _check_strangers(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> None:
        """Each tap of a stranger within the limit, and nothing else,
        is answered with "that button is not yours".
        """
        taps = sum(act.tapped and act.stranger > 0 for act in decisions)
        answers = without_repeats(answers_to_decisions(messages))
        refused = len(_of_kind(answers, "foreign"))
        if len(answers) >= len(decisions) and refused != taps:
            text = (
                f"{taps} strangers tapped on {ask.bill}, and {refused} heard that it is not theirs"
            )
            self._fault("unwanted", ask.number, text)

    def _check_outcome_count(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> None:
        """Each tap is told the outcome, and of all typed answers only the one that decided."""
        taps = sum(act.tapped for act in decisions)
        deciding = min(len(decisions), taps + 1)  # later typed answers are small talk
        outcomes = count_unmarked_outcomes(messages)
        if outcomes > deciding:
            self._fault(
                "unmarked",
                ask.number,
                f"{ask.bill}: its outcome was told {outcomes} times to {deciding} acts",
            )

    def _check_expiry(self, ask: Act, own: Sequence[Act], messages: Sequence[ChatMessage]) -> None:
        """A person who agreed while the question was open, by its own text, is not told to be late."""
        spare = _spare_seconds(own, messages)
        if spare > 1 and any(says_expired(message.text) for message in messages):
            text = f"{ask.bill} was agreed to {spare:.0f} s before its time was over, and told to be late"
            self._fault("untrue", ask.number, text)

    def _check_ending(
        self, ask: Act, own: Sequence[Act], messages: Sequence[ChatMessage], bill_result: BillResult
    ) -> None:
        """Each person who decided hears the outcome.

        Being asked again counts only if it came after their patience.
        """
        ending = bill_result.ending
        self.result.confirmed += any(act.agrees for act in own)
        self.result.endings[ending] += 1
        waited_until = max(act.taken_at or act.sent_at for act in own) + PATIENCE
        asked_in_time = (
            ending == "asked again" and _of_kind(messages, "early")[0].at <= waited_until
        )
        if ending == "untold" or asked_in_time:
            self._fault("untold", ask.number, f"{ask.bill} was decided and no outcome told")
        undone = ending in ("not started", "asked again") and all(act.agrees for act in own)
        self.result.undone += undone and _spare_seconds(own, messages) > 1


def decisions_by_bill(acts: Iterable[Act]) -> dict[str, list[Act]]:
    """Return the decisions on each bill, in the order of their acts."""
    decisions: dict[str, list[Act]] = defaultdict(list)
    for act in sorted(acts, key=lambda act: act.number):
        if act.verb in ("agree", "refuse"):
            decisions[act.bill].append(act)
    return decisions


def requests_of(acts: Iterable[Act]) -> list[list[Act]]:
    """Return the requests of several steps, each with its steps in order."""
    requests: dict[str, list[Act]] = defaultdict(list)
    for act in acts:
        if act.request:
            requests[act.request].append(act)
    return [steps for steps in requests.values() if len(steps) > 1]


def droppable_taps(acts: Iterable[Act], longest_delay: float) -> set[int]:
    """Return the numbers of the taps of strangers that the limit
    for taps on others' buttons may drop.

    When exactly a tap was counted is not known: between its sending and its acceptance, or a repeat
    up to `longest_delay` seconds later. So a tap may be dropped if, counted as late as possible,
    those before it had used up the limit. The first few within the time in which the limit is free
    again are never dropped.
    """
    interval = 60.0 / FOREIGN_TAPS_PER_MINUTE
    free_again = interval * FOREIGN_TAPS_IN_ONE_GO
    counted: dict[int, list[float]] = defaultdict(list)
    whole_at: dict[int, float] = defaultdict(float)
    droppable = set[int]()
    for act in sorted(acts, key=lambda act: act.number):
        if not (act.tapped and act.stranger):
            continue
        recent = sum(at > act.sent_at - free_again for at in counted[act.stranger])
        used_up = whole_at[act.stranger] + interval > act.sent_at + free_again
        if used_up and recent >= FOREIGN_TAPS_IN_ONE_GO:
            droppable.add(act.number)
        latest = max(act.sent_at, act.taken_at) + longest_delay
        counted[act.stranger].append(latest)
        whole = min(max(whole_at[act.stranger], latest) + interval, latest + free_again)
        whole_at[act.stranger] = max(whole_at[act.stranger], whole)
    return droppable


def by_number(messages: Iterable[ChatMessage], kind: str) -> dict[int, list[ChatMessage]]:
    """Return the messages by the number of the turn that they name,
    in their text (`turns`) or as a file (`files`).
    """
    numbered: dict[int, list[ChatMessage]] = defaultdict(list)
    for message in messages:
        for number in message.turns if kind == "turns" else message.files:
            numbered[number].append(message)
    return numbered


def answers_to_decisions(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages that answer decisions: neither questions,
    nor part of the answer to something else.
    """
    return [
        message
        for message in messages
        if message.statement.kind not in ("question", "correction", "rest")
        and not (message.turns or message.statement.in_passing)
    ]


def check_first_tries(messages: Sequence[ChatMessage], acts: Sequence[Act]) -> list[ChatMessage]:
    """Return the messages.

    One stays a late first try only while an act of that time has no other answer.
    """
    messages_by_bill = by_bill(messages)
    unanswered = {
        bill: len(decisions) - _count_unmarked(answers_to_decisions(messages_by_bill.get(bill, ())))
        for bill, decisions in decisions_by_bill(acts).items()
    }
    checked = []
    for message in messages:
        bill = message.statement.first_try_for
        if bill:
            unanswered[bill] = unanswered.get(bill, 0) - 1
        is_too_many = bool(bill) and unanswered[bill] < 0
        unmarked = replace(message.statement, marked=False)
        checked.append(replace(message, statement=unmarked) if is_too_many else message)
    return checked


def _count_unmarked(messages: Iterable[ChatMessage]) -> int:
    return sum(not message.statement.marked for message in messages)


def _repeated_decisions(decisions: Sequence[Act], answers: Sequence[ChatMessage]) -> int:
    """Return how many of the person's own decisions may go without an answer.

    They repeat one whose outcome was told.
    """
    if not any(message.statement.kind not in NO_OUTCOME for message in answers):
        return 0
    own = [act.verb for act in decisions if not act.stranger]
    return len(own) - len(set(own))


def pair_answers(
    decisions: Sequence[Act], answers: Sequence[ChatMessage]
) -> Iterator[tuple[Act, ChatMessage]]:
    """Return the person's own decisions with their answers, in order.

    Strangers may be answered before or after.
    """
    own = [act for act in decisions if not act.stranger]
    to_own = [message for message in answers if message.statement.kind not in ("foreign", "aside")]
    return zip(own, _first_answers(answers if own == decisions else to_own, len(own)), strict=False)


def _first_answers(answers: Sequence[ChatMessage], acts: int) -> list[ChatMessage]:
    """Return the answers to this many acts, as they arrived first.

    A surplus answer is the late first try of something older, or it repeats the one before it and
    either is marked: a first try may arrive after its repeat.
    """
    certain = [message for message in answers if not message.statement.first_try_for]
    if len(certain) >= acts:
        firsts = certain
    else:
        firsts = list(answers)
    for place in range(len(firsts) - 1, 0, -1):
        before = firsts[place - 1].statement
        statement = firsts[place].statement
        if (
            len(firsts) > acts
            and before.text == statement.text
            and (before.marked or statement.marked)
        ):
            del firsts[place]
    return firsts


def without_repeats(answers: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the answers without those that say themselves that they repeat the one before."""
    distinct: list[ChatMessage] = []
    for message in answers:
        if not (
            distinct
            and message.statement.marked
            and message.statement.text == distinct[-1].statement.text
        ):
            distinct.append(message)
    return distinct


def count_unmarked_outcomes(messages: Iterable[ChatMessage]) -> int:
    """Return how often a message says, without a mark, that an action is done or failed."""
    return _count_unmarked(
        message for message in messages if message.statement.kind in ("done", "failed")
    )


def _promise_of_fault(fault: str) -> str:
    """Return the promise that is broken by a fault of `judge_bill`."""
    if fault.endswith(" effects") or fault.startswith("begun"):
        return "doubled"
    return "unmarked" if fault.startswith("answered") else "untrue"


def _ended_at(messages: Iterable[ChatMessage]) -> float:
    """Return when the outcome was told with which a request goes on or ends;
    infinity if it was not.
    """
    return min((message.at for message in messages if _ends_step(message)), default=inf)


def _ends_step(message: ChatMessage) -> bool:
    statement = message.statement
    is_ended = says_cancelled(statement.text) or says_expired(statement.text)
    return statement.kind in ("done", "failed", "unknown") or (
        statement.kind == "nothing" and is_ended
    )


def _of_kind(messages: Iterable[ChatMessage], *kinds: MessageKind) -> list[ChatMessage]:
    return [message for message in messages if message.statement.kind in kinds]


def _spare_seconds(own: Sequence[Act], messages: Sequence[ChatMessage]) -> float:
    """Return how long before the question's end, by its own text, the last yes was accepted;
    0 if unknown.
    """
    questions = _of_kind(messages, "question")
    closes = min((message.at + open_seconds(message.text) for message in questions), default=0.0)
    accepted_at = [act.taken_at for act in own if act.agrees]
    if accepted_at and min(accepted_at) > 0:
        return closes - max(accepted_at)
    return 0.0


def _is_marked(message: ChatMessage) -> bool:
    """Return whether a message says that it may be a repeat, or asks whether a file arrived."""
    statement = message.statement
    said_again = statement.marked and not statement.first_try_for and not statement.in_passing
    return said_again or bool(_asked_about_instead(message))


def _asked_about_instead(message: ChatMessage) -> frozenset[int]:
    """Return the files that this message asks about instead of sending them again."""
    if ASKED_INSTEAD.search(message.text):
        return message.files
    return frozenset()
