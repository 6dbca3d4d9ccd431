"""Read what a person was told about a bill, and compare it with what happened to it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from sayso.channels.i18n.catalogue import catalogue
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.outcome_signs import without_own_sign
from sayso.testing.simulation.model import REST
from sayso.testing.simulation.tools import EffectEntry

#: What one message says about a bill. `foreign`: the button belongs to another person; `nothing`:
#: nothing was done; `aside`: a yes or no without an open question; `rest`: what became of a request
#: of several steps, or that its rest is missing; `odd`: nothing that we know.
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
#: Messages that do not say how the matter stands.
NO_OUTCOME: tuple[MessageKind, ...] = ("question", "early", "foreign", "aside", "rest")
#: What a person knows in the end. `asked again`: the decision was too early,
#: and the person did not decide again.
BillOutcome = Literal[
    "done", "failed", "unknown", "corrected", "not started", "asked again", "untold"
]

_ENGLISH = texts_for("en")


def text_pattern(key: str, **values: str) -> str:
    r"""Return a regular expression for a text of the English catalogue,
    with `values` for its placeholders.

    Asterisks are left out: each platform writes bold differently. So is a preview at the beginning,
    which may be a message of its own if it is long. A placeholder without a value may be anything.
    """
    text = catalogue("en")[key].replace("*", "").removeprefix("{preview}").strip()
    parts = re.split(r"\{(\w+)\}", text)
    values = {"yes": _ENGLISH.yes, "no": _ENGLISH.no, **values}
    return "".join(
        values.get(part, r"[^\0]*") if at % 2 else re.escape(part) for at, part in enumerate(parts)
    )


def _beginning(*keys: str) -> re.Pattern[str]:
    """Return a pattern for messages that begin with one of these texts."""
    return re.compile(f"^(?:{'|'.join(map(text_pattern, keys))})")


#: How people read the messages; the first match counts.
_PATTERNS: tuple[tuple[MessageKind, re.Pattern[str]], ...] = (
    (
        "question",
        re.compile(
            f"{text_pattern('question')}|{text_pattern('unclear')}|{text_pattern('explained')}"
        ),
    ),
    ("early", _beginning("early", "asked_before")),
    ("correction", _beginning("correction")),
    ("unknown", _beginning("unknown")),
    ("failed", _beginning("failed", "not_done")),
    ("done", _beginning("done", "already_done", "undone")),
    ("foreign", _beginning("not_yours")),
    (
        "nothing",
        _beginning("cancelled", "dropped", "expired", "expired_unanswered", "unsafe", "tampered"),
    ),
    ("nothing", _beginning("tool_changed", "overtaken")),
    ("nothing", _beginning("stale", "another_quoted", "asked_elsewhere", "broken")),
    (
        "nothing",
        _beginning("model_away", "model_busy", "model_refused", "model_too_long", "model_cut_off"),
    ),
    ("aside", re.compile(rf"^You said: ({_ENGLISH.yes}|{_ENGLISH.no})(\n|$)")),
)
_NEVER = re.compile(r"(?!)")
_EXPIRED = re.compile(f"{text_pattern('expired')}|{text_pattern('expired_unanswered')}")
_CANCELLED = _beginning("cancelled")
#: What our own tools say when they are done, as a regular expression with {bill} for the bill.
DONE = r"^(Paid|Booked|Charged|Refunded|Settled) {bill}\.$"
_OPEN_FOR = re.compile(text_pattern("question", duration=r"(\d+) (second|minute|hour)s?"))
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
#: At most six digits: the reference of an error may be a `b` and seven.
_BILL = re.compile(r"\bb\d{1,6}\b")
#: An older question that was dropped, at the beginning of a message about something else.
_DROPPED = re.compile(
    "("
    + text_pattern("dropped", preview=text_pattern("quote", text=r".*?\bb\d+\b"))
    + r")\n\n(?=[^\0]*\bb\d+\b)"
)
_REST_LINE = re.compile(REST)
#: Texts that say why the rest of a request is missing.
_REASONS = (
    "rest_missing",
    "model_lost",
    "lost_busy",
    "lost_refused",
    "lost_too_long",
    "interrupted_before",
    "too_long",
)
#: The end of a message that tells the rest of a request,
#: perhaps below an outcome or the answer to something else.
_REST = re.compile(rf"(?:^|\n\n)({REST}|{'|'.join(map(text_pattern, _REASONS))})\Z")
_MARK = re.compile(rf"^{re.escape(_ENGLISH.repeated('').strip())}\s*")


@dataclass(frozen=True, slots=True)
class BillStatement:
    """What one message says about a bill. A `marked` message says that it may be a repeat."""

    kind: MessageKind
    text: str
    marked: bool = False
    #: It is the beginning of a message about something else, and answers nothing.
    in_passing: bool = False
    #: The bill about which the same text came with a mark before. This may be its late first try,
    #: so it counts as marked.
    first_try_for: str = ""


@dataclass(frozen=True, slots=True)
class BillResult:
    """What one person knows about a bill in the end, how often it took effect,
    and every broken promise.
    """

    ending: BillOutcome
    effects: int
    faults: tuple[str, ...]


class ChatReader:
    """Reads the messages of one chat in order. A message without a bill is about the last question.

    A message with several bills, other than one that drops an older question, is `odd`.
    `done` is a regular expression for what tools say when they are done, with {bill} for the bill.
    """

    def __init__(self, done: str = DONE) -> None:
        self._asked = ""
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
        bill = rest[2] or self._asked
        statement = BillStatement("rest", rest[1], marked=mark is not None)
        above = unmarked[: rest.start()].strip()
        if not above:
            return [(bill, statement)]
        told = (mark[0] if mark else "") + above
        return [(bill, replace(statement, in_passing=True)), *self._read_message(told)]

    def _read_message(self, text: str) -> list[tuple[str, BillStatement]]:
        """Return what a message without the rest of a request says."""
        dropped = _DROPPED.search(text.replace("*", ""))
        if dropped is None:
            return [self._read_part(part) for part in _outcome_and_question(text)]
        mark = dropped.string[: dropped.start()]
        bill, aside = self._read_part(mark + dropped[1])
        return [
            (bill, replace(aside, in_passing=True)),
            self._read_part(mark + dropped.string[dropped.end() :]),
        ]

    def _read_part(self, text: str) -> tuple[str, BillStatement]:
        statement = read_statement(text, self._done)
        named = _BILL.findall(text)
        if len(set(named)) > 1:
            statement = replace(statement, kind="odd")
        elif not named and statement.marked:
            self._marked_texts[statement.text] = self._asked
        elif not named and statement.text in self._marked_texts:
            statement = replace(
                statement, marked=True, first_try_for=self._marked_texts.pop(statement.text)
            )
        bill = named[0] if named else self._asked
        if statement.kind == "question" and bill not in self._questioned:
            self._asked = bill
            self._questioned.add(bill)
        return bill, statement


def _outcome_and_question(text: str) -> list[str]:
    """Return the parts of a message: an outcome and the question about the next step,
    or the text as one part.
    """
    plain = text.replace("*", "")
    paragraphs = _MARK.sub("", plain).split("\n\n")
    named = [set(_BILL.findall(paragraph)) for paragraph in paragraphs]
    at = next((at for at in range(1, len(named)) if named[at] and named[at] != named[0]), 0)
    outcome = "\n\n".join(paragraphs[:at])
    question = "\n\n".join(paragraphs[at:])
    is_both = read_statement(outcome).kind in ("done", "failed", "unknown", "nothing")
    if not (at and is_both and read_statement(question).kind == "question"):
        return [text]
    mark = _MARK.match(plain)
    return [(mark[0] if mark else "") + part for part in (outcome, question)]


def steps_told(text: str) -> dict[str, str]:
    """Return what the line that ends a request says of each step;
    nothing for a line that says why it is missing.
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
    """Return how many answers these are at least: a marked one may be a repeat of the same text."""
    unmarked = Counter[str]()
    for statement in statements:
        if not statement.in_passing and not (statement.marked and statement.first_try_for):
            unmarked[statement.text] += not statement.marked
    return sum(max(1, count) for count in unmarked.values())


def judge_bill(
    statements: Sequence[BillStatement], entries: Sequence[EffectEntry], acts: int
) -> BillResult:
    """Return the result of one bill.

    `acts` is the number of taps and messages that may be answered about it.
    """
    answers = [statement for statement in statements if statement.kind != "question"]
    kinds = [statement.kind for statement in answers if statement.kind not in NO_OUTCOME]
    effects = sum(entry.step == "effect" for entry in entries)
    faults = [
        *_wrong_effects(entries, effects),
        *_untrue_statements(kinds, effects),
        *_contradictions(kinds),
        *(f"told {statement.text!r}" for statement in answers if statement.kind == "odd"),
    ]
    fresh = least_answers(
        statement for statement in answers if statement.kind not in ("correction", "rest")
    )
    if fresh > acts:
        faults.append(f"answered {fresh} times to {acts} acts")
    asked_again = not kinds and not effects and bool(answers) and answers[-1].kind == "early"
    return BillResult("asked again" if asked_again else _ending(kinds), effects, tuple(faults))


def read_statement(text: str, done: re.Pattern[str] = _NEVER) -> BillStatement:
    """Return what a text says.

    The sign of an outcome and asterisks are removed: each platform writes bold differently.

    `done` matches what tools say when they are done; without it no text is taken for that.
    """
    plain = text.replace("*", "")
    unmarked = without_own_sign(_MARK.sub("", plain))
    otherwise: MessageKind = "done" if done.search(unmarked) else "odd"
    kind = next((kind for kind, pattern in _PATTERNS if pattern.search(unmarked)), otherwise)
    return BillStatement(kind, unmarked, marked=_MARK.search(plain) is not None)


def _ending(kinds: Sequence[MessageKind]) -> BillOutcome:
    if "correction" in kinds:
        return "corrected"
    match next((kind for kind in reversed(kinds) if kind != "odd"), None):
        case "done" | "failed" | "unknown" as ending:
            return ending
        case "nothing":
            return "not started"
    return "untold"


def _wrong_effects(entries: Sequence[EffectEntry], effects: int) -> list[str]:
    begun = sum(entry.step == "begin" and not entry.key for entry in entries)
    if effects > 1:
        faults = [f"{effects} effects"]
    elif begun > 1:
        faults = [f"begun {begun} times"]
    else:
        faults = []
    if len({entry.key for entry in entries}) > 1:
        faults.append("its idempotency key changed")
    return faults


def _untrue_statements(kinds: Sequence[MessageKind], effects: int) -> list[str]:
    if not kinds:
        return ["told nothing"]
    faults = []
    if not effects and {"done", "correction"} & set(kinds):
        faults.append("told done without an effect")
    if effects and "nothing" in kinds:
        faults.append("told that nothing was done, with an effect")
    if effects and "failed" in kinds and "correction" not in kinds:
        faults.append("told failed, with an effect")
    return faults


def _contradictions(kinds: Sequence[MessageKind]) -> list[str]:
    """A person hears one outcome; or unknown or failed, and the correction last."""
    distinct = list(dict.fromkeys(kinds))
    if "correction" not in distinct:
        if len(distinct) > 1:
            return [f"told {' and '.join(distinct)}"]
        return []
    before = kinds[: kinds.index("correction")]
    after = kinds[kinds.index("correction") :]
    if (
        not before
        or not set(before) <= {"unknown", "failed"}
        or not set(after) <= {"correction", "done"}
    ):
        return [f"told {' and '.join(kinds)}"]
    return []
