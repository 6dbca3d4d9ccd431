"""Endings: each way to end a run politely has words."""

from __future__ import annotations

from typing import get_args

import pytest

from sayso.agent.result import StopCause, stop_text
from sayso.channels.i18n.texts import texts_for


def test_every_ending_has_words_of_its_own() -> None:
    """One sentence or two."""
    words = [stop_text(reason) for reason in get_args(StopCause)]
    assert len(set(words)) == len(words) == 5
    assert all(10 < len(said) <= 120 for said in words)


def test_channels_say_the_same() -> None:
    """English is one language of theirs; being stopped has its own words there."""
    texts = texts_for("en")
    assert stop_text("budget_spent") == texts.budget_spent()
    assert stop_text("refused") == texts.refused()
    assert stop_text("loop_detected") == texts.in_circles()


def test_unknown_ending() -> None:
    """It is named, with those there are."""
    with pytest.raises(ValueError, match=r"'bored'; known: .*'budget_spent'"):
        stop_text("bored")  # type: ignore[arg-type]
