"""Page: the tables of docs/explanation/comparison.md, from the published results."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers_under_faults.results import Figures, Published
from benchmarks.peers_under_faults.systems import NAMES

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "comparison.md"
#: The lines of the page between which the tables stand.
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def write(run: Published, page: Path = PAGE) -> None:
    """Write the tables into the page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{tables(run)}{after}", encoding="utf-8")


def tables(run: Published) -> str:
    """Return the part of the page that comes from the results."""
    count = f"{run.count} runs of each cell"
    minutes = max(1, round(run.seconds / 60))
    head = f"{count}, {run.date}, {run.machine}, Python {run.python}, in {minutes} minutes."
    return "\n".join([BEGIN, "", head, "", *_verdicts(run), "", *_setups(run), "", END])


def _verdicts(run: Published) -> list[str]:
    rows = [f"| fault | {' | '.join(NAMES)} |", f"|---|{'---|' * len(NAMES)}"]
    for fault, systems in run.results.items():
        cells = [_cell(systems.get(name)) for name in NAMES]
        rows.append(f"| {fault} | {' | '.join(cells)} |")
    return rows


def _cell(figures: Figures | None) -> str:
    """Return one cell: one verdict, or each with how often it was reached."""
    if figures is None:
        return "not run"
    if len(figures.verdicts) == 1:
        return next(iter(figures.verdicts))
    return ", ".join(f"{verdict} {count}" for verdict, count in figures.verdicts.items())


def _setups(run: Published) -> list[str]:
    rows = ["| system | versions | lines of the app |", "|---|---|---|"]
    for name in NAMES:
        installed = ", ".join(f"{each} {number}" for each, number in run.versions[name].items())
        rows.append(f"| {name} | {installed} | {run.lines[name]} |")
    return rows
