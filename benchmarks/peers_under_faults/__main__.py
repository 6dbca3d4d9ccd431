"""The same faults for everybody: Sayso, LangGraph, pydantic-ai with DBOS, OpenAI Agents, Agno.

    make peers                                            all of it, and the page with the table

    python -m benchmarks.peers_under_faults               all of it, printed
    python -m benchmarks.peers_under_faults --count 20 --publish
    python -m benchmarks.peers_under_faults --system Agno --fault "a late yes" --show
    python -m benchmarks.peers_under_faults page          the page from the published results

The package's modules, in the order to read them: `profiles` (the faults), `judge` (the verdicts),
`cell` (one run), `platform` and `model` (what each bot talks to), `systems` and `supervisor` (the
processes), `apps` (the bots).
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime

from benchmarks.peers_under_faults import page, results
from benchmarks.peers_under_faults.cell import Cell, Result
from benchmarks.peers_under_faults.profiles import FAULTS, Fault
from benchmarks.peers_under_faults.systems import NAMES, versions

#: Runs of each cell, bots that run at once, and on how many bots the faults of a system are shared.
COUNT, JOBS, LANES = 3, 6, 3

#: What one bot goes through, and the results of a fault.
Lane = tuple[str, list[Fault]]
Found = tuple[str, Fault, list[Result]]


def main() -> None:
    """Run what the command line asks for."""
    chosen = _parser().parse_args()
    if chosen.what == "page":
        page.write(results.read())
        return
    faults = [fault for fault in FAULTS if not chosen.fault or fault.name in chosen.fault]
    names = chosen.system or NAMES
    began = time.monotonic()
    found: dict[str, dict[str, results.Figures]] = defaultdict(dict)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        lanes = [
            pool.submit(_run_lane, lane, chosen.count, chosen.seed, chosen.show)
            for lane in _lanes(names, faults)
        ]
        for done in as_completed(lanes):
            for name, fault, runs in done.result():
                notes = [note for run in runs for note in run.notes]
                found[fault.name][name] = results.figures([run.verdict for run in runs], notes)
    if chosen.publish:
        _publish(found, chosen.count, chosen.seed, time.monotonic() - began)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers_under_faults")
    parser.add_argument("what", nargs="?", choices=["run", "page"], default="run")
    parser.add_argument("--system", action="append", choices=NAMES, help="all by default")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--fault", action="append", choices=names, help="all by default")
    parser.add_argument("--count", type=int, default=COUNT, help="runs of each cell")
    parser.add_argument("--jobs", type=int, default=JOBS, help="bots that run at once")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument("--show", action="store_true", help="print what each person read")
    help_text = "write the results, and keep those of the cells that did not run"
    parser.add_argument("--publish", action="store_true", help=help_text)
    return parser


def _lanes(names: Sequence[str], faults: Sequence[Fault]) -> list[Lane]:
    """Return the bots to start. A fault that needs settings of its own has a bot of its own."""
    lanes: list[Lane] = []
    for name in names:
        usual = [fault for fault in faults if not fault.expiry]
        lanes += [(name, usual[number::LANES]) for number in range(LANES) if usual[number::LANES]]
        lanes += [(name, [fault]) for fault in faults if fault.expiry]
    # The bots of one system wait for the same things: they run beside those of others.
    return sorted(lanes, key=lambda lane: len(lane[1]), reverse=True)


def _run_lane(lane: Lane, count: int, seed: int, show: bool) -> list[Found]:
    """Run some faults against one bot, one run after the other."""
    name, faults = lane
    found: list[Found] = []
    number = 0
    with Cell(name, expiry=faults[0].expiry, seed=seed) as cell:
        for fault in faults:
            runs = []
            for _ in range(count):
                number += 1
                runs.append(cell.run(fault.profile, number))
            found.append((name, fault, runs))
            _print(name, fault, runs, show)
    return found


def _print(name: str, fault: Fault, runs: Sequence[Result], show: bool) -> None:
    verdicts = results.figures([run.verdict for run in runs], []).verdicts
    said = ", ".join(f"{verdict} {count}" for verdict, count in verdicts.items())
    seconds = sum(run.seconds for run in runs)
    shown = [f"    {json.dumps(asdict(run), ensure_ascii=False)}" for run in runs if show]
    print("\n".join([f"{fault.name:44} {name:19} {said} ({seconds:.0f} s)", *shown]), flush=True)


def _publish(
    found: dict[str, dict[str, results.Figures]], count: int, seed: int, seconds: float
) -> None:
    """Write the results. Cells that did not run keep the figures of the last file."""
    whole = found
    is_whole = all(len(found.get(fault.name, ())) == len(NAMES) for fault in FAULTS)
    if not is_whole and results.PUBLISHED.exists():
        old = results.read()
        whole = results.merged(old, found)
        seconds += old.seconds
    run = results.Published(
        date=datetime.now(UTC).date().isoformat(),
        machine=results.machine(),
        python=platform.python_version(),
        count=count,
        seed=seed,
        seconds=round(seconds),
        versions=versions(),
        lines=results.lines(),
        results={fault.name: whole[fault.name] for fault in FAULTS if fault.name in whole},
    )
    results.write(run)


if __name__ == "__main__":
    main()
