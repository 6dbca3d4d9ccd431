"""Verdict: what a person was told of one bill held against what happened, by the ledger and the platform alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from sayso.testing.simulation.tools import EffectEntry

#: What one message says of a bill. `foreign`: that a button is somebody else's; `nothing`: that nothing was done;
#: `aside`: a yes or no that nothing waited for; `odd`: nothing we know.
MessageKind = Literal[
    "question", "early", "done", "failed", "unknown", "correction", "foreign", "nothing", "aside", "odd"
]
#: What says nothing of how the matter stands.
NO_OUTCOME: tuple[MessageKind, ...] = ("question", "early", "foreign", "aside")
#: What a person knows in the end. `asked again`: whoever was told that it was too early did not decide once more.
BillOutcome = Literal["done", "failed", "unknown", "corrected", "not started", "asked again", "untold"]

#: How people read them, in this order. Written out here: the catalogue is what is judged.
_WORDS: tuple[tuple[MessageKind, re.Pattern[str]], ...] = (
    ("question", re.compile(r"Reply yes to confirm or no to cancel")),
    ("early", re.compile(r"^I had not asked yet when you said that")),
    ("correction", re.compile(r"^Correction: it had finished after all\. ")),
    ("unknown", re.compile(r"^I was interrupted [^\0]* cannot tell whether it finished, and I will not repeat it")),
    ("failed", re.compile(r"^Confirmed, but this failed|^I was interrupted, and have checked: this was not done")),
    ("done", re.compile(r"^Done: ")),
    ("foreign", re.compile(r"^That button is for the person who asked\. Nothing was done")),
    ("nothing", re.compile(r"[Nn]othing was (done|confirmed)|I did nothing|^Cancelled: |^Not confirmed, so I dropped")),
    ("aside", re.compile(r"^You said: (yes|no)(\n|$)")),
)
#: What our own tools say when they are done, at a regular expression's words for the bill.
DONE = r"^(Paid|Booked|Charged|Refunded) {bill}\.$"
_WINDOW = re.compile(r"within (\d+) (second|minute|hour)s?\b")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
#: No more digits than a bill has: the reference of an error may be a `b` and seven.
_BILL = re.compile(r"\bb\d{1,6}\b")
#: What else a message may begin with: an older question that it answers by the way.
_DROPPED = re.compile(r"(Not confirmed, so I dropped this: .*?\bb\d+\b\.)\n\n(?=[^\0]*\bb\d+\b)")
_MARK = re.compile(r"^\(sent again, the first try may have arrived\)\s*")


@dataclass(frozen=True, slots=True)
class Telling:
    """One message about a bill. A `marked` one says itself that it may be the second of its kind.

    `in_passing`: it is but the beginning of a message about something else, and answers nothing. `first_try_for`: the
    bill about which the same words came marked before: perhaps this is their first try, and counts as marked.
    """

    kind: MessageKind
    text: str
    marked: bool = False
    in_passing: bool = False
    first_try_for: str = ""


@dataclass(frozen=True, slots=True)
class BillVerdict:
    """What one person knows of one bill in the end, how often it took effect, and every promise that was broken."""

    ending: BillOutcome
    effects: int
    faults: tuple[str, ...]


class ChatReader:
    """Reads the messages of one chat in order. One that names no bill is about the last that was asked about.

    One that names several bills, other than to drop one by the way, says nothing we know.
    `done` is a regular expression for what tools say when they are done, with {bill} for the bill.
    """

    def __init__(self, done: str = DONE) -> None:
        self._asked = ""
        #: Whose question was heard. One that is said again, however late, is about nothing new.
        self._heard: set[str] = set()
        #: Words that name no bill, said again in case they had not arrived: the first try may still arrive, when
        #: another question was asked already. Nobody can tell it from an answer to that. By words, the bill.
        self._again: dict[str, str] = {}
        self._done = re.compile(done.replace("{bill}", r"\bb\d+\b"))

    def read(self, text: str) -> list[tuple[str, Telling]]:
        """What a message is about: each bill, "" for none so far, and what it says of it."""
        dropped = _DROPPED.search(text.replace("*", ""))
        if dropped is None:
            return [self._one(text)]
        mark = dropped.string[: dropped.start()]
        bill, aside = self._one(mark + dropped[1])
        return [(bill, replace(aside, in_passing=True)), self._one(mark + dropped.string[dropped.end() :])]

    def _one(self, text: str) -> tuple[str, Telling]:
        telling, named = _read(text, self._done), _BILL.findall(text)
        if len(set(named)) > 1:
            telling = replace(telling, kind="odd")
        elif not named and telling.marked:
            self._again[telling.text] = self._asked
        elif not named and telling.text in self._again:
            telling = replace(telling, marked=True, first_try_for=self._again.pop(telling.text))
        bill = named[0] if named else self._asked
        if telling.kind == "question" and bill not in self._heard:
            self._asked = bill
            self._heard.add(bill)
        return bill, telling


def window(question: str) -> float:
    """For how many seconds a question says that it is open; 0 when it does not say."""
    said = _WINDOW.search(question)
    return int(said[1]) * _SECONDS[said[2]] if said else 0.0


def says_expired(text: str) -> bool:
    """Whether somebody is told that a yes came too late."""
    return "confirmation expired" in text


def tellings(texts: Iterable[str]) -> dict[str, list[Telling]]:
    """The messages of one chat by bill."""
    reader = ChatReader()
    told: dict[str, list[Telling]] = defaultdict(list)
    for bill, telling in chain.from_iterable(map(reader.read, texts)):
        told[bill].append(telling)
    return told


def least(told: Iterable[Telling]) -> int:
    """How many answers these are at least: a marked one may only repeat what was said in the same words."""
    unmarked = Counter[str]()
    for telling in told:
        if not telling.in_passing and not (telling.marked and telling.first_try_for):
            unmarked[telling.text] += not telling.marked
    return sum(max(1, count) for count in unmarked.values())


def judge(told: Sequence[Telling], entries: Sequence[EffectEntry], acts: int) -> BillVerdict:
    """The verdict on one bill. `acts` counts the different taps and words that may be answered by words about it."""
    answers = [telling for telling in told if telling.kind != "question"]
    kinds = [telling.kind for telling in answers if telling.kind not in NO_OUTCOME]
    effects = sum(entry.step == "effect" for entry in entries)
    faults = [
        *_wrong_effects(entries, effects),
        *_lies(kinds, effects),
        *_contradictions(kinds),
        *(f"told {telling.text!r}" for telling in answers if telling.kind == "odd"),
    ]
    fresh = least(telling for telling in answers if telling.kind != "correction")
    if fresh > acts:
        faults.append(f"answered {fresh} times to {acts} acts")
    asked_again = not kinds and not effects and bool(answers) and answers[-1].kind == "early"
    return BillVerdict("asked again" if asked_again else _ending(kinds), effects, tuple(faults))


def _read(text: str, done: re.Pattern[str]) -> Telling:
    """Platforms show bold words each in their own way; people read over it."""
    plain = text.replace("*", "")
    words = _MARK.sub("", plain)
    kind = next((kind for kind, pattern in _WORDS if pattern.search(words)), "done" if done.search(words) else "odd")
    return Telling(kind, words, marked=words != plain)


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
    faults = [f"{effects} effects"] if effects > 1 else [f"begun {begun} times"] if begun > 1 else []
    if len({entry.key for entry in entries}) > 1:
        faults.append("its idempotency key changed")
    return faults


def _lies(kinds: Sequence[MessageKind], effects: int) -> list[str]:
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
    """One word for ever, or unknown or failed and then, last, the correction."""
    said = list(dict.fromkeys(kinds))
    if "correction" not in said:
        return [f"told {' and '.join(said)}"] if len(said) > 1 else []
    before, after = kinds[: kinds.index("correction")], kinds[kinds.index("correction") :]
    if not before or not set(before) <= {"unknown", "failed"} or not set(after) <= {"correction", "done"}:
        return [f"told {' and '.join(kinds)}"]
    return []
