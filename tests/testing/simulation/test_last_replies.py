"""How long a simulation waits for the last replies before it trusts the judge."""

from __future__ import annotations

from itertools import count

from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.run import result_after_last_replies


def test_bot_that_never_stops_replying_is_judged_when_the_time_is_over() -> None:
    """A reply that is repeated for ever does not hold the simulation."""
    result = SimulationResult()
    replies = count()
    assert result_after_last_replies(lambda: next(replies), lambda: result, 0.0) is result
