"""The selector in a conversation: it is within its budget, and the model gets the tool that it needs."""

from __future__ import annotations

import pytest

from benchmarks.price.units import letters
from benchmarks.selection.conversation import measured, mixed_conversations, ways


@pytest.mark.slow
def test_eight_requests_with_240_tools_are_within_the_budget() -> None:
    """Requests that have nothing in common are the most expensive ones; tools are found as often as by the top five."""
    conversations = mixed_conversations()[:3]
    everything, anew, *_, default = ways()
    figures = measured(default, conversations, letters)
    assert figures.units <= 20_000 < measured(everything, conversations, letters).units
    assert figures.stable >= 0.6
    assert figures.found >= measured(anew, conversations, letters).found
