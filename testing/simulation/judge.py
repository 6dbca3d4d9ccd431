"""Compare what happened in a simulation with what Sayso promises, and count each breach.

The judge knows three things of each simulated person: the acts (what the person wrote, tapped or
sent), the messages that arrived in the person's chat, and the effects that the tools logged.

* Every act has a number, which is its turn: the answer to a message repeats it as `t5`.
* Every request for an effect names a bill, such as `b5`. It links the question, the decisions (yes
  or no), the messages about the outcome, and the effects.
* A statement is what one message says about one bill. `outcomes.MessageKind` lists its kinds.
* A mark is the line by which Sayso says that a message may be a repeat. The first try is the sending
  that it repeats. It may arrive late, after the marked repeat.
* A stranger is another member of the person's group, who answers questions that are not theirs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

from sayso.pending.stored_limits import FOREIGN_TAPS_IN_ONE_GO, FOREIGN_TAPS_PER_MINUTE
from sayso.testing.percentiles import percentile
from sayso.testing.simulation.deciders import Decision, SimulatedDecider
from sayso.testing.simulation.outcomes import (
    NO_OUTCOME,
    BillResult,
    Breach,
    MessageKind,
    judge_bill,
    least_answers,
    open_seconds,
    says_cancelled,
    says_expired,
    step_outcomes,
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

#: After how many seconds one tap of a stranger is free again.
_TAP_SECONDS = 60.0 / FOREIGN_TAPS_PER_MINUTE
#: After how many seconds all taps of a stranger are free again.
_REFILL_SECONDS = _TAP_SECONDS * FOREIGN_TAPS_IN_ONE_GO


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """One broken promise: in which chat, at which turn, and what happened."""

    kind: Breach
    #: The fake platform's name of the chat; "" if no chat is known.
    chat: str
    #: The number of the turn; 0 if no turn is known.
    number: int
    text: str


@dataclass(slots=True)
class SimulationResult:
    """The counts and findings of one simulation. The judge fills it while it reads."""

    #: The number of acts.
    turns: int = 0
    #: The number of messages that arrived.
    replies: int = 0
    #: The number of actions that the person who was asked agreed to.
    confirmed: int = 0
    #: The number of actions that other people decided, and of those that they agreed to.
    by_others: int = 0
    agreed_by_others: int = 0
    #: The number of requests of several steps that went on after an outcome.
    requests: int = 0
    #: How many decided actions ended with which outcome, by `BillOutcome`.
    endings: Counter[str] = field(default_factory=Counter)
    #: The number of actions that were agreed to in time and not done.
    undone: int = 0
    #: The number of taps of strangers that got no answer and were beyond the limit for taps on
    #: others' buttons.
    dropped: int = 0
    #: The number of replies that came again.
    repeated: int = 0
    #: The number of replies with a mark, whether or not they are repeats, and of replies that ask
    #: whether a file arrived instead of sending it again.
    marked: int = 0
    #: For each act that was answered: when it was sent, and when its first answer came.
    answered: list[tuple[float, float]] = field(default_factory=list)
    #: The seconds from a webhook's 200 to the first sign of life ("typing", or the answer), for
    #: acts that did not wait for an earlier one.
    picked_up: list[float] = field(default_factory=list)
    findings: list[BrokenPromise] = field(default_factory=list)

    def count(self, kind: Breach) -> int:
        """Return how often a promise was broken in this way."""
        return sum(finding.kind == kind for finding in self.findings)

    @property
    def waits(self) -> list[float]:
        """The seconds from the first delivery of each act to its first answer."""
        return [answered_at - sent_at for sent_at, answered_at in self.answered]

    def wait(self, share: float) -> float:
        """Return the seconds within which this share of all acts was answered."""
        return percentile(self.waits, share)


def judge_simulation(
    people: Iterable[SimulatedUser],
    entries: Iterable[EffectEntry],
    deciders: Sequence[SimulatedDecider] = (),
) -> SimulationResult:
    """Return the result of all conversations.

    `people` are the simulated users after everything is over, `entries` all effects of the tools,
    `deciders` those who decided about what the people asked for.
    """
    effects: dict[str, list[EffectEntry]] = defaultdict(list)
    for entry in entries:
        effects[entry.bill].append(entry)

    result = SimulationResult()
    asked_bills = set()
    for person in people:
        _ConversationJudge(
            result=result,
            chat=person.client.chat,
            acts=person.acts,
            messages=correct_first_tries(person.inbox.messages, person.acts),
            effects=effects,
            signs=person.inbox.signs,
            droppable=droppable_taps(person.acts, person.delivery.longest_delay),
            deciders=deciders,
        ).judge()
        asked_bills |= {act.bill for act in person.acts if act.asks}

    for bill in sorted(set(effects) - asked_bills):
        if any(entry.step == "effect" for entry in effects[bill]):
            result.findings.append(
                BrokenPromise("unwanted", "", 0, f"{bill} took effect, and nobody had asked for it")
            )
    return result


class AnsweredAct(NamedTuple):
    """An act and its first answer."""

    act: Act
    answer: ChatMessage


@dataclass(frozen=True, slots=True)
class _ConversationJudge:
    """Judges one conversation and adds what it finds to a result. One for each conversation."""

    result: SimulationResult
    chat: str
    acts: Sequence[Act]
    messages: Sequence[ChatMessage]
    #: The effects of all conversations, by bill.
    effects: Mapping[str, Sequence[EffectEntry]]
    #: The times of "typing".
    signs: Sequence[float]
    #: The numbers of the taps that may go without an answer, see `droppable_taps`.
    droppable: Set[int]
    #: Those who decided about what the person asked for.
    deciders: Sequence[SimulatedDecider] = ()

    def judge(self) -> None:
        """Add all counts and findings of the conversation."""
        answered = [*self._judge_turns(), *self._judge_bills()]
        # An act may have two first answers: a text and a file. The earlier one counts.
        first_by_number: dict[int, AnsweredAct] = {}
        for each in sorted(answered, key=lambda each: each.answer.at):
            first_by_number.setdefault(each.act.number, each)
        first_answers = first_by_number.values()

        self.result.turns += len(self.acts)
        self.result.replies += len(self.messages)
        self.result.marked += sum(_is_marked(message) for message in self.messages)
        self.result.answered += [(each.act.sent_at, each.answer.at) for each in first_answers]
        self.result.picked_up += self._pick_up_seconds(first_answers)
        self._check_order(answered)
        self._check_strays()

    def _add_finding(self, kind: Breach, number: int, text: str) -> None:
        """Add a finding about the turn of this number; 0 for none."""
        self.result.findings.append(BrokenPromise(kind, self.chat, number, text))

    def _pick_up_seconds(self, answered: Iterable[AnsweredAct]) -> Iterator[float]:
        """Yield the seconds to the first sign of life, for acts that did not wait for others."""
        last_answer_at = 0.0
        for act, message in sorted(answered, key=lambda each: each.act.number):
            if act.sent_at > last_answer_at and act.accepted_at:
                sign_at = next((at for at in self.signs if at >= act.sent_at), message.at)
                yield max(0.0, min(sign_at, message.at) - act.accepted_at)
            last_answer_at = max(last_answer_at, message.at)

    def _check_order(self, answered: Sequence[AnsweredAct]) -> None:
        """Check that answers arrive in the order of their acts, and not before them."""
        for act, message in answered:
            if message.at < act.sent_at:
                self._add_finding(
                    "stray",
                    act.number,
                    f"heard {message.text!r} before there was anything to answer",
                )

        # One message may answer several acts, so acts with the same message are taken by number.
        places = {id(message): place for place, message in enumerate(self.messages)}
        by_arrival = sorted(answered, key=lambda each: (places[id(each.answer)], each.act.number))
        latest = 0
        for act, message in by_arrival:
            if act.number < latest:
                self._add_finding(
                    "out of order",
                    act.number,
                    f"{act.verb} was answered after turn {latest}: {message.text!r}",
                )
                return
            latest = act.number

    def _check_strays(self) -> None:
        """Check that every message is about something that was done in this conversation."""
        numbers = {act.number for act in self.acts}
        bills = {act.bill for act in self.acts}
        for message in self.messages:
            about_bill = message.speaks_of_bill and message.bill in bills
            if not about_bill and numbers.isdisjoint(message.turns | message.files):
                self._add_finding("stray", 0, f"heard {message.text!r}, which answers nothing")

    def _judge_turns(self) -> Iterator[AnsweredAct]:
        """Judge the acts whose answers name their turn.

        Yield each with its first text, and with its first file.
        """
        texts = by_number(self.messages, "turns")
        files = by_number(self.messages, "files")
        for act in self.acts:
            if not act.is_answered_by_turn:
                continue
            own_texts = texts[act.number]
            own_files = files[act.number]
            self._count_repeats(act.number, own_texts)
            self._count_repeats(act.number, own_files)
            # Only "want" asks for a file.
            wanted = own_files if act.verb == "want" else own_texts
            if not wanted:
                self._add_finding("lost", act.number, f"{act.verb} was never answered")
            for message in (*own_texts[:1], *own_files[:1]):
                yield AnsweredAct(act, message)

    def _judge_bills(self) -> Iterator[AnsweredAct]:
        """Judge all bills. Yield requests and decisions, each with its first answer."""
        messages = by_bill(self.messages)
        decisions = decisions_by_bill(self.acts)
        for act in self.acts:
            if act.need:
                yield from self._judge_bill_of_others(act, messages.get(act.bill, []))
            elif act.asks:
                yield from self._judge_bill(act, decisions[act.bill], messages.get(act.bill, []))
        for request in requests_of(self.acts):
            self._judge_request(request, messages)

    def _judge_bill(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> Iterator[AnsweredAct]:
        """Judge one bill. Yield its request and its decisions, each with its first answer."""
        questions = _of_kind(messages, "question")
        # A further step is asked about only if the one before was done, so its question may lack.
        if ask.verb == "ask":
            if not questions:
                self._add_finding(
                    "lost", ask.number, f"the question about {ask.bill} was never asked"
                )
            for message in questions[:1]:
                yield AnsweredAct(ask, message)
        self._count_repeats(ask.number, questions)
        self._count_repeats(ask.number, _of_kind(messages, "correction"))

        answers = answers_to_decisions(messages)
        decisions = self._without_dropped_taps(decisions, answers)
        self._check_bill(ask, decisions, messages)
        if decisions:
            self.result.repeated += max(0, len(answers) - len(decisions))
        needed = len(decisions) - _repeated_decisions(decisions, answers)
        if questions and len(answers) < needed:
            self._add_finding(
                "lost",
                ask.number,
                f"{len(decisions)} decisions on {ask.bill}, {needed} need an answer, "
                f"{len(answers)} have one",
            )
        self._check_small_talk(ask, decisions, answers)
        yield from pair_answers(decisions, answers)

    def _judge_bill_of_others(
        self, ask: Act, messages: Sequence[ChatMessage]
    ) -> Iterator[AnsweredAct]:
        """Judge a bill that other people decide. Yield its request with its first answer.

        It takes effect at most once, and only after enough different people have agreed. The
        outcome is told to the person who asked, and to each who decided.
        """
        answers = _of_kind(messages, "question", "nothing")
        if not answers:
            self._add_finding("lost", ask.number, f"nobody was asked about {ask.bill}")
        for message in answers[:1]:
            yield AnsweredAct(ask, message)
        self._count_repeats(ask.number, _of_kind(messages, "question"))

        decisions = [
            each
            for person in self.deciders
            for each in person.decisions
            if each.bill == ask.bill and each.accepted_at
        ]
        entries = self.effects.get(ask.bill, ())
        statements = [message.statement for message in messages]
        bill_result = judge_bill(statements, entries, 1)
        for fault in bill_result.faults:
            if fault.breach != "untold":
                self._add_finding(fault.breach, ask.number, f"{ask.bill}: {fault.text}")
        self._check_others_agreed(ask, decisions, entries)
        self._check_others_told(ask, decisions, bill_result)

    def _check_others_agreed(
        self, ask: Act, decisions: Sequence[Decision], entries: Sequence[EffectEntry]
    ) -> None:
        """Check that enough different people had agreed before the effect."""
        effects_at = [entry.at or inf for entry in entries if entry.step == "effect"]
        if not effects_at:
            return
        agreed = {
            each.person
            for each in decisions
            if each.answer == "yes" and each.sent_at < min(effects_at)
        }
        if len(agreed) < ask.need:
            self._add_finding(
                "unwanted",
                ask.number,
                f"{ask.bill} took effect, and {len(agreed)} of {ask.need} people had agreed",
            )

    def _check_others_told(
        self, ask: Act, decisions: Sequence[Decision], bill_result: BillResult
    ) -> None:
        """Check that the one who asked and those who decided know the end of an action.

        It ends with the first no, or when enough people have agreed.
        """
        agreed = {each.person for each in decisions if each.answer == "yes"}
        is_refused = len(agreed) < len(decisions)
        if not (is_refused or len(agreed) >= ask.need):
            return
        self.result.by_others += 1
        self.result.agreed_by_others += not is_refused
        self.result.endings[bill_result.ending] += 1
        if bill_result.ending == "untold":
            self._add_finding(
                "untold", ask.number, f"{ask.bill} was decided by others and no outcome told"
            )
        for person in self.deciders:
            has_decided = any(each.person == person.name for each in decisions)
            if has_decided and not person.knows_end_of(ask.bill):
                self._add_finding(
                    "untold", ask.number, f"{person.name} decided on {ask.bill} and heard no end"
                )

    def _judge_request(
        self, steps: Sequence[Act], messages: Mapping[str, Sequence[ChatMessage]]
    ) -> None:
        """Check a request of several steps.

        Each outcome must be followed by the next question or by the rest: the line that names all
        steps, or one that says why that line is missing.
        """
        rests: list[ChatMessage] = []
        for step in steps:
            rests += _of_kind(messages.get(step.bill, []), "rest")
        self._count_repeats(steps[0].number, rests)
        for rest in rests:
            self._check_rest(steps, rest)

        first_ended_at = _ended_at(messages.get(steps[0].bill, []))
        self.result.requests += first_ended_at < inf
        next_steps = [*steps[1:], None]
        for step, next_step in zip(steps, next_steps, strict=True):
            ended_at = _ended_at(messages.get(step.bill, []))
            next_questions: Sequence[ChatMessage] = []
            if next_step:
                next_questions = _of_kind(messages.get(next_step.bill, []), "question")
            if next_questions and ended_at > next_questions[0].at:
                self._add_finding(
                    "out of order",
                    step.number,
                    f"{next_questions[0].bill} was asked about before {step.bill} ended",
                )
            goes_on = any(each.at >= ended_at for each in (*next_questions, *rests))
            if ended_at < inf and not goes_on:
                self._add_finding(
                    "untold",
                    step.number,
                    f"{step.bill} ended, and nothing tells the rest of the request",
                )

    def _check_rest(self, steps: Sequence[Act], rest: ChatMessage) -> None:
        """Check that the line that ends a request names all steps, each with its true outcome."""
        outcomes = step_outcomes(rest.statement.text)
        if outcomes and list(outcomes) != [step.bill for step in steps]:
            self._add_finding(
                "untrue",
                steps[0].number,
                f"{rest.statement.text!r} does not name the steps of the request",
            )
        for bill, outcome in outcomes.items():
            is_done = any(
                entry.step == "effect" and entry.at <= rest.at
                for entry in self.effects.get(bill, ())
            )
            if outcome != "unknown" and is_done != (outcome == "done"):
                self._add_finding("untrue", steps[0].number, f"{bill} was told to be {outcome}")

    def _without_dropped_taps(
        self, decisions: Sequence[Act], answers: Sequence[ChatMessage]
    ) -> Sequence[Act]:
        """Return the decisions without the taps of strangers that Sayso has dropped. Count these.

        These are the taps that got no answer and were beyond the limit of their stranger.
        """
        taps = [act.number for act in decisions if act.tapped and act.stranger]
        refusals = _of_kind(without_repeats(answers), "foreign")
        unanswered = max(0, len(taps) - len(refusals))
        dropped = [number for number in taps if number in self.droppable][:unanswered]
        self.result.dropped += len(dropped)
        return [act for act in decisions if act.number not in dropped]

    def _count_repeats(self, number: int, messages: Sequence[ChatMessage]) -> None:
        """Count messages that say the same again, and check that repeats are marked as such."""
        self.result.repeated += max(0, len(messages) - 1)
        unmarked = []
        for message in messages:
            asks_whether_file_arrived = number in _asked_about_instead(message)
            if not message.statement.marked and not asks_whether_file_arrived:
                unmarked.append(message.text)
        if len(unmarked) > 1:
            self._add_finding(
                "unmarked", number, f"heard {unmarked[-1]!r} {len(unmarked)} times without a mark"
            )

    def _check_small_talk(
        self, ask: Act, decisions: Sequence[Act], answers: Sequence[ChatMessage]
    ) -> None:
        """Check that a yes or no is taken for small talk only after another one has decided."""
        kinds = [
            message.statement.kind for message in answers if not message.statement.first_try_for
        ]
        outcomes = [kind for kind in kinds if kind not in NO_OUTCOME]
        # The typed yes of a stranger is small talk at any time.
        if not outcomes or any(act.stranger for act in decisions):
            return
        before_outcome = kinds[: kinds.index(outcomes[0])]
        if "aside" in before_outcome:
            self._add_finding(
                "out of order",
                ask.number,
                f"{ask.bill}: its outcome was told after what followed it",
            )

    def _check_bill(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> None:
        """Check what was said about one bill, and compare it with the effects."""
        entries = self.effects.get(ask.bill, ())
        statements = [message.statement for message in messages]
        # Decisions may be answered, and turns whose answer mentions the bill.
        turn_answers = least_answers(message.statement for message in messages if message.turns)
        bill_result = judge_bill(statements, entries, len(decisions) + turn_answers)
        for fault in bill_result.faults:
            # Whether the person had to be told something is judged in `_check_ending`.
            if fault.breach != "untold":
                self._add_finding(fault.breach, ask.number, f"{ask.bill}: {fault.text}")
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
        """Check that nothing takes effect before the person who was asked has agreed."""
        # An entry without a time counts as the latest.
        effects_at = [entry.at or inf for entry in entries if entry.step == "effect"]
        agreed_at = min((act.sent_at for act in decisions if act.agrees), default=inf)
        if effects_at and agreed_at >= min(effects_at):
            self._add_finding(
                "unwanted", ask.number, f"{ask.bill} took effect, and nobody had agreed"
            )

    def _check_truth(
        self,
        ask: Act,
        decisions: Sequence[Act],
        messages: Sequence[ChatMessage],
        entries: Sequence[EffectEntry],
    ) -> None:
        """Check that no outcome is told without the decision for it, or before it is true."""
        if not any(act.agrees for act in decisions) and _of_kind(messages, "failed", "unknown"):
            self._add_finding(
                "untrue", ask.number, f"{ask.bill} was told to have begun, and nobody had agreed"
            )
        refused = any(act.verb == "refuse" for act in decisions)
        if not refused and any(says_cancelled(message.statement.text) for message in messages):
            self._add_finding(
                "untrue", ask.number, f"{ask.bill} was told to be cancelled, and nobody had refused"
            )
        took_effect_at = min((entry.at for entry in entries if entry.step == "effect"), default=0.0)
        if any(message.at < took_effect_at for message in _of_kind(messages, "done", "correction")):
            self._add_finding("untrue", ask.number, f"{ask.bill} was told to be done before it was")

    def _check_strangers(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> None:
        """Check that strangers are told that a button is not theirs.

        Each tap of a stranger within the limit is answered so, and nothing else is.
        """
        taps = sum(act.tapped and act.stranger > 0 for act in decisions)
        answers = without_repeats(answers_to_decisions(messages))
        refused = len(_of_kind(answers, "foreign"))
        if len(answers) >= len(decisions) and refused != taps:
            self._add_finding(
                "unwanted",
                ask.number,
                f"{taps} strangers tapped on {ask.bill}, and {refused} heard that it is not theirs",
            )

    def _check_outcome_count(
        self, ask: Act, decisions: Sequence[Act], messages: Sequence[ChatMessage]
    ) -> None:
        """Check that the outcome is not told too often.

        Each tap is told the outcome. Of all typed answers only the one that decided is told; later
        ones are small talk. The taps of strangers are included: `_check_strangers` finds an outcome
        that was told to one of them.
        """
        taps = sum(act.tapped for act in decisions)
        deciding = min(len(decisions), taps + 1)
        outcomes = count_unmarked_outcomes(messages)
        if outcomes > deciding:
            self._add_finding(
                "unmarked",
                ask.number,
                f"{ask.bill}: its outcome was told {outcomes} times to {deciding} acts",
            )

    def _check_expiry(self, ask: Act, own: Sequence[Act], messages: Sequence[ChatMessage]) -> None:
        """Check that a person who agreed in time is not told to be late.

        The text of the question says how long it is open. `own` are the decisions of the person who
        was asked.
        """
        spare = _spare_seconds(own, messages)
        # A second of tolerance: Redis does not read its clock when the web accepts the yes.
        if spare > 1 and any(says_expired(message.text) for message in messages):
            self._add_finding(
                "untrue",
                ask.number,
                f"{ask.bill} was agreed to {spare:.0f} s before its time was over, "
                "and told to be late",
            )

    def _check_ending(
        self, ask: Act, own: Sequence[Act], messages: Sequence[ChatMessage], bill_result: BillResult
    ) -> None:
        """Check that the person who decided hears the outcome, and count it.

        A person whose decision was too early is asked again, and decides again. Then there must be
        an outcome, too, unless the person had stopped waiting when they were asked again.
        """
        ending = bill_result.ending
        self.result.confirmed += any(act.agrees for act in own)
        self.result.endings[ending] += 1

        waited_until = max(act.accepted_at or act.sent_at for act in own) + PATIENCE
        is_untold = ending == "untold"
        if ending == "asked again":
            is_untold = _of_kind(messages, "early")[0].at <= waited_until
        if is_untold:
            self._add_finding("untold", ask.number, f"{ask.bill} was decided and no outcome told")

        is_not_done = ending in ("not started", "asked again")
        if is_not_done and all(act.agrees for act in own) and _spare_seconds(own, messages) > 1:
            self.result.undone += 1


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
    """Return the numbers of the taps that Sayso may drop: those of strangers beyond their limit.

    A stranger may tap FOREIGN_TAPS_IN_ONE_GO times at once. Each tap is free again after an
    interval, one after the other, so that there are FOREIGN_TAPS_PER_MINUTE in the long run.

    It is not known when exactly Sayso counted a tap: between its sending and its acceptance, or a
    repeat of its webhook, up to `longest_delay` seconds later. So a tap may be dropped if the taps
    before it had used up the limit, with each of them counted as late as possible.
    """
    limits: dict[int, _TapLimit] = defaultdict(_TapLimit)
    droppable = set[int]()
    for act in sorted(acts, key=lambda act: act.number):
        if not (act.tapped and act.stranger):
            continue
        limit = limits[act.stranger]
        if limit.may_be_used_up(act.sent_at):
            droppable.add(act.number)
        limit.count(max(act.sent_at, act.accepted_at) + longest_delay)
    return droppable


@dataclass(slots=True)
class _TapLimit:
    """The limit of one stranger, with each tap counted as late as possible."""

    counted_at: list[float] = field(default_factory=list)
    #: When the whole limit is free again.
    refilled_at: float = 0.0

    def may_be_used_up(self, at: float) -> bool:
        """Return whether a tap at this time may be beyond the limit."""
        recent = sum(counted_at > at - _REFILL_SECONDS for counted_at in self.counted_at)
        if recent < FOREIGN_TAPS_IN_ONE_GO:
            return False
        return self.refilled_at + _TAP_SECONDS > at + _REFILL_SECONDS

    def count(self, at: float) -> None:
        """Count a tap, at the latest time at which Sayso may have counted it."""
        self.counted_at.append(at)
        refilled_at = max(self.refilled_at, at) + _TAP_SECONDS
        # A tap that Sayso drops is not counted, so no refill takes longer than that of all taps.
        refilled_at = min(refilled_at, at + _REFILL_SECONDS)
        # The tap before may have been counted later than this one.
        self.refilled_at = max(self.refilled_at, refilled_at)


def by_number(
    messages: Iterable[ChatMessage], kind: Literal["turns", "files"]
) -> dict[int, list[ChatMessage]]:
    """Return the messages by the number of the turn that they name.

    `kind` says where they name it: "turns" in their text, "files" in the name of their file.
    """
    numbered: dict[int, list[ChatMessage]] = defaultdict(list)
    for message in messages:
        numbers = message.turns if kind == "turns" else message.files
        for number in numbers:
            numbered[number].append(message)
    return numbered


def answers_to_decisions(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages that answer decisions.

    The others are questions, corrections and the rests of requests, or part of the answer to
    something else.
    """
    answers = []
    for message in messages:
        statement = message.statement
        is_part_of_other = bool(message.turns) or statement.in_passing
        if statement.kind not in ("question", "correction", "rest") and not is_part_of_other:
            answers.append(message)
    return answers


def correct_first_tries(messages: Sequence[ChatMessage], acts: Sequence[Act]) -> list[ChatMessage]:
    """Return the messages, in which only as many as possible are late first tries.

    When the chat was read, each message whose text had come with a mark before was taken for its
    late first try, and counts as marked. But it can be one only while a decision on its bill has no
    other answer. Any further one is a plain repeat: here it counts as unmarked.
    """
    messages_by_bill = by_bill(messages)
    unanswered: dict[str, int] = defaultdict(int)
    for bill, decisions in decisions_by_bill(acts).items():
        answers = answers_to_decisions(messages_by_bill.get(bill, ()))
        unanswered[bill] = len(decisions) - _count_unmarked(answers)

    checked = []
    for message in messages:
        statement = message.statement
        if statement.first_try_for:
            unanswered[statement.first_try_for] -= 1
            if unanswered[statement.first_try_for] < 0:
                statement = replace(statement, marked=False)
        checked.append(replace(message, statement=statement))
    return checked


def _count_unmarked(messages: Iterable[ChatMessage]) -> int:
    return sum(not message.statement.marked for message in messages)


def _repeated_decisions(decisions: Sequence[Act], answers: Sequence[ChatMessage]) -> int:
    """Return how many of the person's own decisions may go without an answer.

    Once an outcome was told, a second yes (or a second no) needs no answer.
    """
    if not any(message.statement.kind not in NO_OUTCOME for message in answers):
        return 0
    own = [act.verb for act in decisions if not act.stranger]
    return len(own) - len(set(own))


def pair_answers(decisions: Sequence[Act], answers: Sequence[ChatMessage]) -> Iterator[AnsweredAct]:
    """Yield the person's own decisions that were answered, with their answers, in order.

    Answers to strangers are left out, because they may come before or after those to the person.
    """
    own = [act for act in decisions if not act.stranger]
    own_answers = list(answers)
    if len(own) < len(decisions):
        own_answers = [
            message for message in answers if message.statement.kind not in ("foreign", "aside")
        ]
    first_answers = _first_answers(own_answers, len(own))
    # The last acts may have no answer.
    for act, answer in zip(own, first_answers, strict=False):
        yield AnsweredAct(act, answer)


def _first_answers(answers: Sequence[ChatMessage], acts: int) -> list[ChatMessage]:
    """Return the answers without surplus ones, until there are as many as `acts`.

    An answer is surplus if it is the late first try of something older. It is also surplus if it
    says the same as the one before it and one of the two is marked as a repeat: a first try may
    arrive after its repeat.
    """
    firsts = [message for message in answers if not message.statement.first_try_for]
    if len(firsts) < acts:
        firsts = list(answers)
    for place in range(len(firsts) - 1, 0, -1):
        before = firsts[place - 1].statement
        statement = firsts[place].statement
        is_repeat = before.text == statement.text and (before.marked or statement.marked)
        if is_repeat and len(firsts) > acts:
            del firsts[place]
    return firsts


def without_repeats(answers: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the answers without those that are marked and repeat the one before."""
    distinct: list[ChatMessage] = []
    for message in answers:
        is_same = bool(distinct) and message.statement.text == distinct[-1].statement.text
        if not (is_same and message.statement.marked):
            distinct.append(message)
    return distinct


def count_unmarked_outcomes(messages: Iterable[ChatMessage]) -> int:
    """Return how often a message says, without a mark, that an action is done or failed."""
    return _count_unmarked(
        message for message in messages if message.statement.kind in ("done", "failed")
    )


def _ended_at(messages: Iterable[ChatMessage]) -> float:
    """Return when the outcome of a step was told; infinity if it was not."""
    return min((message.at for message in messages if _ends_step(message)), default=inf)


def _ends_step(message: ChatMessage) -> bool:
    """Return whether a message tells the outcome of a step, so that its request goes on or ends."""
    statement = message.statement
    if statement.kind == "nothing":
        return says_cancelled(statement.text) or says_expired(statement.text)
    return statement.kind in ("done", "failed", "unknown")


def _of_kind(messages: Iterable[ChatMessage], *kinds: MessageKind) -> list[ChatMessage]:
    return [message for message in messages if message.statement.kind in kinds]


def _spare_seconds(own: Sequence[Act], messages: Sequence[ChatMessage]) -> float:
    """Return how many seconds before the question's end the last yes was accepted.

    The text of the question names its end. Negative if the yes came later, 0 if it is not known.
    """
    questions = _of_kind(messages, "question")
    closes_at = min((message.at + open_seconds(message.text) for message in questions), default=0.0)
    accepted_at = [act.accepted_at for act in own if act.agrees]
    # An act that no web process has accepted has the time 0.
    if accepted_at and min(accepted_at) > 0:
        return closes_at - max(accepted_at)
    return 0.0


def _is_marked(message: ChatMessage) -> bool:
    """Return whether a message has a mark, or asks whether a file arrived.

    A late first try only counts as marked. Of a message with two parts, the second one counts.
    """
    statement = message.statement
    has_mark = statement.marked and not statement.first_try_for and not statement.in_passing
    return has_mark or bool(_asked_about_instead(message))


def _asked_about_instead(message: ChatMessage) -> frozenset[int]:
    """Return the files that this message asks about instead of sending them again."""
    if ASKED_INSTEAD.search(message.text):
        return message.files
    return frozenset()
