"""The end of a run after the calls of one answer: what waits comes before what is final."""

from __future__ import annotations

import pytest

from sayso.agent.messages import ToolCall
from sayso.agent.run.loop import end_after_calls
from sayso.agent.run.state import CallOutcome

READ = ("", "")
ASKS = ("pending", "Pay 5 euros")
ASKS_TOO = ("pending", "Pay 7 euros")
FINAL = ("terminal", "done")
FINAL_TOO = ("terminal", "done, too")


@pytest.mark.parametrize(
    ("calls", "may_pause", "end"),
    [
        ([], False, None),
        ([READ, READ], False, None),
        ([READ, ASKS], False, ASKS),
        ([ASKS, ASKS_TOO], False, ASKS),
        ([ASKS, ASKS_TOO], True, ("pending", "Pay 5 euros\n\nPay 7 euros")),
        ([FINAL, FINAL_TOO], False, FINAL),
        ([FINAL, ASKS], False, ASKS),
        ([FINAL, ASKS], True, ASKS),
        ([READ, FINAL], True, FINAL),
    ],
)
def test_run_ends_after_its_calls(calls, may_pause, end):
    """A proposal comes first: its person must see what waits for a yes."""
    outcomes = [
        CallOutcome(ToolCall("tool", {}), "result", ends=ends, final_text=text)
        for ends, text in calls
    ]
    found = end_after_calls(outcomes, may_pause=may_pause)
    assert (found and (found.stop_reason, found.content)) == end
