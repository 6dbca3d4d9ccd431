"""A payment that stands still at one point of its run, once, until its worker is killed there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from sayso.agent import ToolContext, tool
from sayso.testing.simulation.tools import effects

#: Where the payment may stand still, in the order of its run.
POINTS = ("claimed", "preparing", "before the effect", "effect begun", "after the effect")


def reached(data: Path, bill: str) -> Path:
    """Return the file that exists once the payment of a bill has reached its point."""
    return data / f"{bill}.reached"


def _stand_still(bill: str, point: str, here: str) -> None:
    """Wait for the end of the worker if this is the point of the bill, and it was not reached before."""
    mark = reached(Path(os.environ["SAYSO_DATA"]), bill)
    if point == here and not mark.exists():
        mark.touch()
        threading.Event().wait()


def preview_remit(bill: str, point: str, context: ToolContext) -> str:
    """Return what the person agrees to. At the yes it is made again: the action is claimed then."""
    if context.confirmed:
        _stand_still(bill, point, "claimed")
    return f"Remit {bill} ({point})"


@tool(requires_approval=True, preview=preview_remit, marks_effect=True)
def remit(bill: str, point: str, context: ToolContext) -> str:
    """Pay a bill, after some preparation."""
    effects().write(bill, "prepare")
    _stand_still(bill, point, "preparing")
    _stand_still(bill, point, "before the effect")
    with context.effect():
        effects().write(bill, "begin")
        _stand_still(bill, point, "effect begun")
        effects().write(bill, "effect")
        _stand_still(bill, point, "after the effect")
    return f"Paid {bill}."
