"""Suggestions for a misspelled name: of a tool, a channel, a key of the YAML."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name with the most similar spelling; "" if none is similar."""
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """Return "did you mean ...?" in a form such as `"; {}"`; "" if no known name is similar."""
    close = nearest(name, known)
    if close:
        return form.format(f"did you mean {close!r}?")
    return ""
