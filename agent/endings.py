"""Endings: what a run says when it ends before there is an answer."""

from __future__ import annotations

from typing import Literal, get_args

#: Why a run was ended politely: its budget is spent, a guardrail blocked, somebody cancelled it, it went in circles,
#: its model was not to be had.
Ending = Literal["budget_spent", "refused", "cancelled", "loop_detected", "model_away"]

#: In English, for callers without a channel; channels say it in the person's language (`sayso.pending.texts`).
_WORDS: dict[Ending, str] = {
    "budget_spent": "I have used up what I may spend on this for now, so I stopped. Please try again later.",
    "refused": "I may not answer that. Please ask for something else.",
    "cancelled": "This was stopped. What had already begun may have finished.",
    "loop_detected": "I kept repeating the same steps, so I stopped. Please ask in another way.",
    "model_away": "The language model did not answer. Please try again shortly.",
}


def ending_words(reason: Ending) -> str:
    """What the user reads. Raises ValueError for a reason that has no words."""
    if reason not in _WORDS:
        raise ValueError(f"a run does not end because of {reason!r}; known: {sorted(get_args(Ending))}")
    return _WORDS[reason]
