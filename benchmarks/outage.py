"""What a Redis outage costs people who write during it: messages lost, doubled or reordered, and seconds to catch up.

    python -m benchmarks.outage --minutes 5 --messages 1000

The whole system as processes, with the spool: Redis is killed (kill -9) while people on three platforms write to two
web processes, and restarted after the given minutes. The first message of two in three people is the yes to a
question from before. Without a spool such a yes is too late; `sayso simulate outage` measures that case.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import timeit
from pathlib import Path

from sayso.workers.spool import SpoolFile
from tests.flows.outage import Outage, Tally
from tests.flows.system import System

LOOKS = 20_000


def main() -> None:
    """Run one outage, print the result, and fail if a message was lost, doubled, reordered or left unanswered."""
    asked = _arguments()
    with (
        tempfile.TemporaryDirectory(prefix="sayso-outage-") as folder,
        System(Path(folder), spool=True) as system,
    ):
        tally = Outage(system, asked.conversations).run(asked.messages, asked.minutes * 60)
    report(tally, asked.minutes)
    sys.exit(any(tally.faults))


def report(tally: Tally, minutes: float) -> None:
    """Print the row of one run, and the cost of the spool while Redis is up."""
    columns = {
        "minutes": f"{minutes:g}",
        "messages": tally.messages,
        "conversations": tally.conversations,
        "heard 503": tally.refused,
        "lost": tally.lost,
        "doubled": tally.doubled,
        "out of order": tally.out_of_order,
        "untold": tally.untold,
        "effects doubled": tally.effects_doubled,
        "replies marked as repeated": tally.marked,
        "drained after": f"{tally.drained_seconds:.1f} s",
        "all answered after": f"{tally.answered_seconds:.1f} s",
    }
    for row in (columns.keys(), ["---"] * len(columns), columns.values()):
        print(f"| {' | '.join(map(str, row))} |")
    print(f"\na webhook's look at an empty spool: {look_microseconds():.1f} us")


def look_microseconds() -> float:
    """Return the best of five means."""
    with tempfile.TemporaryDirectory(prefix="sayso-outage-") as folder:
        file = SpoolFile(Path(folder))
        return (
            min(timeit.repeat(lambda: file.holds("chat:1"), number=LOOKS, repeat=5)) / LOOKS * 1e6
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One Redis outage, judged from outside.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--conversations", type=int, default=60)
    return parser.parse_args()


if __name__ == "__main__":
    main()
