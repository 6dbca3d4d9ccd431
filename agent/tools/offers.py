"""Offers: answers that a tool puts under the reply as buttons, for its user to choose from."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from sayso.pending.unseen import readable
from sayso.workers.installed import installed

#: Labels of one offer: more are no choice but a list, and a button says which one it is by one digit.
MAX_CHOICES = 10
#: Characters of a label. Platforms show long ones in fewer, or as a list.
MAX_LABEL_CHARS = 60

_offered: ContextVar[list[str] | None] = ContextVar("sayso_choices", default=None)


def collect_choices() -> AbstractContextManager[list[str]]:
    """Collect what is offered in this context, in the tasks and in the threads started from it."""
    return installed(_offered, [])


def offer_choices(*labels: str) -> None:
    """Offer the user of the current turn these answers, as buttons under its reply.

    A tap on one is a message of theirs that says the label; it never confirms anything. What was offered before in the
    same turn is replaced. Where there are no buttons the labels are listed. Outside a run this is a no-op.

    Raises ValueError for none or more than MAX_CHOICES, for two alike, and for a label that is empty or has more than
    MAX_LABEL_CHARS.
    """
    seen = [" ".join(readable(label).split()) for label in labels]
    if not 1 <= len(seen) <= MAX_CHOICES:
        raise ValueError(f"{len(seen)} choices cannot be offered: give 1 to {MAX_CHOICES}")
    for label in seen:
        if not 1 <= len(label) <= MAX_LABEL_CHARS:
            raise ValueError(f"choice {label!r} has {len(label)} characters: a button has 1 to {MAX_LABEL_CHARS}")
    if len({label.casefold() for label in seen}) < len(seen):
        raise ValueError(f"choices {seen!r} hold one twice: nobody could tell them apart")
    offered = _offered.get()
    if offered is not None:
        offered[:] = seen
