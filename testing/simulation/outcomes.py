"""Read what a person was told about a bill, and compare it with what happened to it.

In a simulation every request for an effect names a bill, such as `b5`: "Pay b5". A person asks for
it, is asked back, and decides; then a tool pays it. The judge cannot look into Sayso. It reads the
messages as a person would, by the texts of Sayso's English catalogue, and compares them with the
effects that the tools logged.

If Sayso cannot know whether a message arrived, it sends the message again with a mark: a line that
says that it may be a repeat. The first try may still arrive, even after the repeat. The rest of a
request of several steps is the line at its end that names each step with its outcome.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple, get_args

from sayso.channels.i18n.catalogue import catalogue
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.outcome_signs import without_own_sign
from sayso.testing.simulation.language_model import REST
from sayso.testing.simulation.tools import EffectEntry

#: What one message says about a bill:
#:
#: * question: whether to do it.
#: * early: the answer came before the question was shown, so it is asked about again.
#: * done, failed, unknown: the outcome; unknown means that Sayso cannot tell whether it finished.
#: * correction: an outcome that was told as unknown or failed is done after all.
#: * nothing: nothing was done: cancelled, expired, changed meanwhile and the like.
#: * foreign: the button belongs to another person.
#: * aside: a yes or no without an open question, answered like any other message.
#: * rest: what became of each step of a request, or why that is missing.
#: * odd: nothing that the judge knows.
MessageKind = Literal[
    "question",
    "early",
    "done",
    "failed",
    "unknown",
    "correction",
    "foreign",
    "nothing",
    "aside",
    "rest",
    "odd",
]
#: Messages that tell no outcome.
NO_OUTCOME: tuple[MessageKind, ...] = ("question", "early", "foreign", "aside", "rest")
#: What a person knows in the end. `corrected` is unknown or failed, and then the correction. With
#: `asked again` the decision was too early, and the person did not decide again.
BillOutcome = Literal[
    "done", "failed", "unknown", "corrected", "not started", "asked again", "untold"
]

#: The ways to break a promise. These must never happen:
#:
#: * lost: something that must be answered was not.
#: * doubled: an action took effect twice.
#: * unwanted: an effect without a yes, in time, of the person who was asked.
#: * out of order: answers came in another order than the acts.
#: * untold: a decision was made, and the person did not hear the outcome.
#: * untrue: a message says something about an effect that is not so.
#: * unmarked: a text came again and did not say that it may be a repeat.
#: * stray: a message answers nothing.
Breach = Literal[
    "lost", "doubled", "unwanted", "out of order", "untold", "untrue", "unmarked", "stray"
]
BREACHES: tuple[Breach, ...] = get_args(Breach)

_ENGLISH = texts_for("en")


def text_pattern(key: str, **values: str) -> str:
    r"""Return a regular expression for the text of this key in the English catalogue.

    `values` are regular expressions for its placeholders; any other placeholder matches anything.
    Asterisks are left out, because each platform writes bold differently. So is a preview at the
    beginning, which is sent as a separate message if it is long.
    """
    text = catalogue("en")[key].replace("*", "").removeprefix("{preview}").strip()
    values = {"yes": _ENGLISH.yes, "no": _ENGLISH.no, **values}
    pattern = ""
    # The names of the placeholders stand between the parts of the text.
    for at, part in enumerate(re.split(r"\{(\w+)\}", text)):
        is_placeholder = at % 2 == 1
        if is_placeholder:
            pattern += values.get(part, r"[^\0]*")
        else:
            pattern += re.escape(part)
    return pattern


def _any_of(*keys: str) -> str:
    """Return a regular expression for any of these texts of the catalogue."""
    return "|".join(text_pattern(key) for key in keys)


def _beginning(*keys: str) -> re.Pattern[str]:
    """Return a pattern for messages that begin with one of these texts."""
    return re.compile(f"^(?:{_any_of(*keys)})")


#: How people read the messages. The first pattern that matches counts.
_PATTERNS: tuple[tuple[MessageKind, re.Pattern[str]], ...] = (
    ("question", re.compile(_any_of("question", "unclear", "explained"))),
    ("question", _beginning("others_asked", "others_asked_many", "others_asked_too")),
    ("early", _beginning("early", "asked_before")),
    ("correction", _beginning("correction")),
    ("unknown", _beginning("unknown")),
    ("failed", _beginning("failed", "not_done")),
    ("done", _beginning("done", "already_done", "undone")),
    ("foreign", _beginning("not_yours")),
    (
        "nothing",
        _beginning(
            "cancelled",
            "dropped",
            "expired",
            "expired_unanswered",
            "unsafe",
            "tampered",
            "tool_changed",
            "overtaken",
            "stale",
            "another_quoted",
            "refusal",
            "undecided",
            "nobody_to_ask",
            "deciders_unknown",
            "too_many_requests",
            "asked_elsewhere",
            "broken",
            "model_away",
            "model_busy",
            "model_refused",
            "model_too_long",
            "model_cut_off",
        ),
    ),
    ("aside", re.compile(rf"^You said: ({_ENGLISH.yes}|{_ENGLISH.no})(\n|$)")),
)
#: Matches no text.
_NEVER = re.compile(r"(?!)")
_EXPIRED = re.compile(_any_of("expired", "expired_unanswered"))
_CANCELLED = _beginning("cancelled")
#: What our own tools say when they are done, as a regular expression with {bill} for the bill.
DONE = r"^(Paid|Booked|Charged|Refunded|Settled|Wired|Transferred) {bill}\.$"
#: How long a question says that it is open: a number and a unit.
_OPEN_FOR = re.compile(text_pattern("question", duration=r"(\d+) (second|minute|hour)s?"))
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
#: The name of a bill. It has at most six digits, because the reference of an error may be a `b`
#: and seven digits.
_BILL = re.compile(r"\bb\d{1,6}\b")
#: The text that an older question was dropped, at the beginning of a message about another bill.
#: Its group is that text.
_DROPPED = re.compile(
    "("
    + text_pattern("dropped", preview=text_pattern("quote", text=r".*?\bb\d+\b"))
    + r")\n\n(?=[^\0]*\bb\d+\b)"
)
#: The line that ends a request and names all its steps.
_REST_LINE = re.compile(REST)
#: The texts that say why that line is missing.
_REASONS = (
    "rest_missing",
    "lost_away",
    "lost_busy",
    "lost_refused",
    "lost_too_long",
    "interrupted_before",
    "too_long",
)
#: The end of a message that tells the rest of a request: the line, or why it is missing. Above it
#: may stand an outcome or the answer to something else. Its groups: the line or the reason, and in
#: a line the bill of the first step.
_REST = re.compile(rf"(?:^|\n\n)({REST}|{_any_of(*_REASONS)})\Z")
#: The line above the outcome of an action that other people decided.
_AGREED = re.compile("^" + text_pattern("agreed_by", names=r"[^\n]*", time=r"[^\n]*") + r"\n+")
#: The mark of a message that may be a repeat.
_MARK = re.compile(rf"^{re.escape(_ENGLISH.repeated('').strip())}\s*")


@dataclass(frozen=True, slots=True)
class BillStatement:
    """What one message says about a bill."""

    kind: MessageKind
    #: The text without asterisks and without a mark.
    text: str
    #: Whether the message says that it may be a repeat.
    marked: bool = False
    #: Whether it is part of a message about something else, and answers nothing.
    in_passing: bool = False
    #: The bill about which the same text came with a mark before; "" if none did. This message may
    #: be the first sending of that one, which arrived late. So it counts as marked.
    first_try_for: str = ""


class BillFault(NamedTuple):
    """One broken promise about a bill."""

    breach: Breach
    #: What happened, in words.
    text: str


@dataclass(frozen=True, slots=True)
class BillResult:
    """What became of a bill."""

    #: What the person knows in the end.
    ending: BillOutcome
    #: How often the bill took effect.
    effects: int
    #: The broken promises.
    faults: tuple[BillFault, ...]


class ChatReader:
    """Reads the messages of one chat in order, and says which bill each is about.

    A message that names no bill is about the last question. A message that names several bills has
    parts: what ended, and the next question. If its parts cannot be told apart, it is `odd`.

    `done` is a regular expression for what tools say when they are done, with {bill} for the bill.
    """

    def __init__(self, done: str = DONE) -> None:
        #: The bill of the last question; "" before the first one.
        self._last_asked = ""
        #: Bills whose question came. If it is repeated, however late, it is not a new question.
        self._questioned: set[str] = set()
        #: Marked texts without a bill, and the bill they were about. Their first try may still
        #: arrive after the next question, where it looks like an answer to that.
        self._marked_texts: dict[str, str] = {}
        self._done = re.compile(done.replace("{bill}", r"\bb\d+\b"))

    def read(self, text: str) -> list[tuple[str, BillStatement]]:
        """Return the bills of a message ("" for none so far) and what it says about each.

        The rest of a request that stands below something else comes first.
        """
        plain = text.replace("*", "")
        mark = _MARK.match(plain)
        unmarked = _MARK.sub("", plain)
        rest = _REST.search(unmarked)
        if rest is None:
            return self._read_message(text)
        # The line names the bill of the first step. A text that says why it is missing does not.
        bill = rest[2] or self._last_asked
        statement = BillStatement("rest", rest[1], marked=mark is not None)
        above = unmarked[: rest.start()].strip()
        if not above:
            return [(bill, statement)]
        # The mark at the beginning counts for both parts.
        above = (mark[0] if mark else "") + above
        return [(bill, replace(statement, in_passing=True)), *self._read_message(above)]

    def _read_message(self, text: str) -> list[tuple[str, BillStatement]]:
        """Return what a message without the rest of a request says."""
        plain = text.replace("*", "")
        dropped = _DROPPED.search(plain)
        if dropped is None:
            return [self._read_part(part) for part in _outcome_and_question(text)]
        # The message begins with the text that an older question was dropped. A mark before it
        # counts for both parts.
        mark = plain[: dropped.start()]
        bill, statement = self._read_part(mark + dropped[1])
        answer = self._read_part(mark + plain[dropped.end() :])
        return [(bill, replace(statement, in_passing=True)), answer]

    def _read_part(self, text: str) -> tuple[str, BillStatement]:
        """Return the bill of a part of a message and what it says about it."""
        statement = read_statement(text, self._done)
        bills = _BILL.findall(text)
        if len(set(bills)) > 1:
            statement = replace(statement, kind="odd")
        elif not bills and statement.marked:
            self._marked_texts[statement.text] = self._last_asked
        elif not bills and statement.text in self._marked_texts:
            older_bill = self._marked_texts.pop(statement.text)
            statement = replace(statement, marked=True, first_try_for=older_bill)

        bill = bills[0] if bills else self._last_asked
        if statement.kind == "question" and bill not in self._questioned:
            self._last_asked = bill
            self._questioned.add(bill)
        return bill, statement


def _outcome_and_question(text: str) -> list[str]:
    """Return the parts of a message: an outcome, and the question about the next step.

    A message without both is returned as one part. A mark at the beginning counts for both parts.
    """
    plain = text.replace("*", "")
    paragraphs = _MARK.sub("", plain).split("\n\n")
    bills = [set(_BILL.findall(paragraph)) for paragraph in paragraphs]
    # The question begins with the first paragraph that names another bill.
    others = [at for at in range(1, len(bills)) if bills[at] and bills[at] != bills[0]]
    if not others:
        return [text]
    outcome = "\n\n".join(paragraphs[: others[0]])
    question = "\n\n".join(paragraphs[others[0] :])
    has_outcome = read_statement(outcome).kind in ("done", "failed", "unknown", "nothing")
    if not has_outcome or read_statement(question).kind != "question":
        return [text]
    mark = _MARK.match(plain)
    marked_as = mark[0] if mark else ""
    return [marked_as + outcome, marked_as + question]


def step_outcomes(text: str) -> dict[str, str]:
    """Return the outcome of each step, by bill, as the line that ends a request names it.

    Empty for a text that says why that line is missing.
    """
    line = _REST_LINE.search(text)
    if line is None:
        return {}
    return dict(step.split() for step in line[2].split(", "))


def open_seconds(question: str) -> float:
    """Return for how many seconds a question says that it is open; 0 if it does not say."""
    match = _OPEN_FOR.search(question.replace("*", ""))
    if match:
        return int(match[1]) * _SECONDS[match[2]]
    return 0.0


def says_expired(text: str) -> bool:
    """Return whether a message says that a yes came too late."""
    return _EXPIRED.search(text) is not None


def says_cancelled(text: str) -> bool:
    """Return whether a message says that the action was cancelled."""
    return _CANCELLED.search(text) is not None


def statements_by_bill(texts: Iterable[str]) -> dict[str, list[BillStatement]]:
    """Return what the messages of one chat say, by bill."""
    reader = ChatReader()
    grouped: dict[str, list[BillStatement]] = defaultdict(list)
    for bill, statement in chain.from_iterable(map(reader.read, texts)):
        grouped[bill].append(statement)
    return grouped


def least_answers(statements: Iterable[BillStatement]) -> int:
    """Return how many different answers these are at least.

    A marked one may be a repeat of the same text. So each text counts as often as it came without a
    mark, and once if it came only with marks.
    """
    unmarked = Counter[str]()
    for statement in statements:
        is_late_first_try = statement.marked and bool(statement.first_try_for)
        if not statement.in_passing and not is_late_first_try:
            unmarked[statement.text] += not statement.marked
    return sum(max(1, count) for count in unmarked.values())


def judge_bill(
    statements: Sequence[BillStatement], entries: Sequence[EffectEntry], acts: int
) -> BillResult:
    """Return the result of one bill.

    `statements` is what one chat says about it, in order, and `entries` are its effects. `acts` is
    the number of taps and messages that may be answered about it.
    """
    answers = [statement for statement in statements if statement.kind != "question"]
    kinds = [statement.kind for statement in answers if statement.kind not in NO_OUTCOME]
    effects = sum(entry.step == "effect" for entry in entries)
    faults = [
        *_wrong_effects(entries, effects),
        *_untrue_statements(kinds, effects),
        *_contradictions(kinds),
    ]
    odd_texts = [statement.text for statement in answers if statement.kind == "odd"]
    faults += [BillFault("untrue", f"told {text!r}") for text in odd_texts]

    # Corrections and rests come without an act.
    answered = least_answers(
        statement for statement in answers if statement.kind not in ("correction", "rest")
    )
    if answered > acts:
        faults.append(BillFault("unmarked", f"answered {answered} times to {acts} acts"))

    ending = _ending(kinds)
    if not kinds and not effects and answers and answers[-1].kind == "early":
        ending = "asked again"
    return BillResult(ending, effects, tuple(faults))


def read_statement(text: str, done: re.Pattern[str] = _NEVER) -> BillStatement:
    """Return what a text says about a bill.

    Asterisks and the sign of an outcome are removed, because each platform writes them differently.
    `done` matches what tools say when they are done. Without it no text is taken for that.
    """
    plain = text.replace("*", "")
    unmarked = without_own_sign(_AGREED.sub("", _MARK.sub("", plain)))
    otherwise: MessageKind = "done" if done.search(unmarked) else "odd"
    kind = next((kind for kind, pattern in _PATTERNS if pattern.search(unmarked)), otherwise)
    return BillStatement(kind, unmarked, marked=_MARK.search(plain) is not None)


def _ending(kinds: Sequence[MessageKind]) -> BillOutcome:
    """Return what a person knows in the end, by the kinds of the messages in order."""
    if "correction" in kinds:
        return "corrected"
    match next((kind for kind in reversed(kinds) if kind != "odd"), None):
        case "done" | "failed" | "unknown" as ending:
            return ending
        case "nothing":
            return "not started"
    return "untold"


def _wrong_effects(entries: Sequence[EffectEntry], effects: int) -> list[BillFault]:
    """Return what is wrong with the effects of one bill: too many, or another idempotency key."""
    begun = sum(entry.step == "begin" and not entry.key for entry in entries)
    faults = []
    if effects > 1:
        faults.append(BillFault("doubled", f"{effects} effects"))
    elif begun > 1:
        faults.append(BillFault("doubled", f"begun {begun} times"))
    if len({entry.key for entry in entries}) > 1:
        faults.append(BillFault("untrue", "its idempotency key changed"))
    return faults


def _untrue_statements(kinds: Sequence[MessageKind], effects: int) -> list[BillFault]:
    """Return which outcomes were told that the number of effects contradicts."""
    if not kinds:
        return [BillFault("untold", "told nothing")]
    faults = []
    if not effects and {"done", "correction"} & set(kinds):
        faults.append(BillFault("untrue", "told done without an effect"))
    if effects and "nothing" in kinds:
        faults.append(BillFault("untrue", "told that nothing was done, with an effect"))
    if effects and "failed" in kinds and "correction" not in kinds:
        faults.append(BillFault("untrue", "told failed, with an effect"))
    return faults


def _contradictions(kinds: Sequence[MessageKind]) -> list[BillFault]:
    """Check that a person hears one outcome, or "unknown" or "failed" and then its correction."""
    distinct = list(dict.fromkeys(kinds))
    if "correction" not in distinct:
        if len(distinct) > 1:
            return [BillFault("untrue", f"told {' and '.join(distinct)}")]
        return []

    corrected_at = kinds.index("correction")
    before = set(kinds[:corrected_at])
    since = set(kinds[corrected_at:])
    is_consistent = before <= {"unknown", "failed"} and since <= {"correction", "done"}
    if not before or not is_consistent:
        return [BillFault("untrue", f"told {' and '.join(kinds)}")]
    return []
