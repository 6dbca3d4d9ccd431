"""Judge: one verdict for each run, from the effects on disk and from what the person read.

| verdict | the person's yes (or no) had |
|---|---|
| once and told | exactly the effects that were approved, and the person read so |
| refused | no effect where none should be, and the person read so |
| cannot tell | no wrong effect, and the person read that the outcome is not known |
| doubled | an effect twice |
| wrong | an effect that was not approved, or the person read what is not true |
| lost | no effect although it was approved, and the person read nothing of it |
| not told | the right effects or a right refusal, and the person (or for a reason the model) read nothing of it |
| stuck | the right effects or none, and the chat answers nothing any more |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal[
    "once and told",
    "refused",
    "cannot tell",
    "doubled",
    "wrong",
    "lost",
    "not told",
    "stuck",
]
#: The verdicts, the best first.
VERDICTS: tuple[Verdict, ...] = (
    "once and told",
    "refused",
    "cannot tell",
    "not told",
    "stuck",
    "lost",
    "wrong",
    "doubled",
)
#: The verdicts that keep what an approval promises.
GOOD: tuple[Verdict, ...] = VERDICTS[:3]
#: What a text says of an order. "closed": the question is no longer open, and nothing of the order.
Statement = Literal["done", "not done", "cannot tell", "closed"]

_CLOSED = re.compile(r"no longer (open|applies)|already done|expired", re.IGNORECASE)
_NOTHING_DONE = re.compile(
    r"nothing was done|button is for the person who asked|could not safely|has changed since",
    re.IGNORECASE,
)
_CANNOT_TELL = re.compile(r"cannot tell whether|may already have happened", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run left behind.

    `approved` are the orders that the person's yes was for; `refusable` says that a refusal is as
    right as the effect. `effects` counts orders and meanings. `texts` are what the person read
    after the first answer. `is_alive` is whether the chat answered a plain message afterwards.
    """

    orders: tuple[int, ...]
    approved: tuple[int, ...]
    effects: Counter[tuple[int, str]]
    texts: Sequence[str]
    is_alive: bool = True
    refusable: bool = False
    #: Words that the model had to read, such as the reason of a no, and whether it did.
    reason: str = ""
    reason_read: bool = True
    notes: list[str] = field(default_factory=list)


def statements(text: str, order: int) -> set[Statement]:
    """Return what one text says of an order."""
    found: set[Statement] = set()
    number = str(order)
    if _CANNOT_TELL.search(text) and number in text:
        found.add("cannot tell")
    done = (
        rf"refunded order {number}\."
        rf"|(?<!whether )order {number} is refunded"
        rf"|(?<!nothing was )\bdone: [^\n]*{number}"
    )
    if re.search(rf"order {number} is not refunded", text):
        found.add("not done")
    elif re.search(done, text, re.IGNORECASE):
        found.add("done")
    if _NOTHING_DONE.search(text):
        found.add("not done")
    elif not found and _CLOSED.search(text):
        found.add("closed")
    return found


def judge(run: Run) -> Verdict:
    """Return the verdict of one run."""
    counts = {order: run.effects[order, "refund"] for order in run.orders}
    strange = [each for each in run.effects if each[1] != "refund" or each[0] not in run.orders]
    if any(count > 1 for count in run.effects.values()):
        return "doubled"
    if strange or any(counts[order] for order in run.orders if order not in run.approved):
        return "wrong"
    verdicts = [_of_order(order, bool(counts[order]), run) for order in run.approved]
    if not run.approved:
        verdicts = [_of_refusal(run)]
    worst = max(verdicts, key=VERDICTS.index)
    is_silent = worst in ("lost", "not told")
    return "stuck" if not run.is_alive and (is_silent or worst != "wrong") else worst


def _of_order(order: int, is_done: bool, run: Run) -> Verdict:
    """Return the verdict of one approved order."""
    said: set[Statement] = set()
    for text in run.texts:
        said |= statements(text, order)
    if "cannot tell" in said:
        # A later text may know better. What then contradicts the effect is wrong.
        if "done" in said:
            return "once and told" if is_done else "wrong"
        return "cannot tell"
    if is_done:
        if "not done" in said and "done" not in said:
            return "wrong"
        if "done" in said:
            return "once and told"
        return "wrong" if "closed" in said else "not told"
    if "done" in said:
        return "wrong"
    if "not done" in said:
        return "refused" if run.refusable else "lost"
    if "closed" in said:
        return "refused" if run.refusable else "wrong"
    return "not told" if run.refusable else "lost"


def _of_refusal(run: Run) -> Verdict:
    """Return the verdict where nothing may happen, and nothing happened."""
    said: set[Statement] = set()
    for order in run.orders:
        for text in run.texts:
            said |= statements(text, order)
    if "done" in said:
        return "wrong"
    if not said or not run.reason_read:
        return "not told"
    return "cannot tell" if said == {"cannot tell"} else "refused"
