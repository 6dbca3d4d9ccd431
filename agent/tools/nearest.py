"""Nearest: what somebody probably meant who named something that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is spelled most like it; "" where none is near."""
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """The question for a message, in a form such as `"; {}"`; "" where no known name is near."""
    close = nearest(name, known)
    return form.format(f"did you mean {close!r}?") if close else ""
