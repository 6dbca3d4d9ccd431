"""The command `sayso simulate`: break a real Sayso on purpose and count what its users notice."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sayso.config.cli.options import Options, SaysoCommand, pass_options
from sayso.config.cli.output import clear_errors, fail

if TYPE_CHECKING:  # commands load only what they need
    from sayso.testing.simulation.plan import Plan
    from sayso.testing.simulation.report import SimulationReport


@click.command(cls=SaysoCommand, examples=["sayso simulate --turns 200 --kill worker", "sayso simulate --matrix"])
@click.option("--turns", default=1000, show_default=True, type=click.IntRange(1), help="Things that people do, in all.")
@click.option("--conversations", default=50, show_default=True, type=click.IntRange(1, 20_000))
@click.option("--workers", default=3, show_default=True, type=click.IntRange(1, 64), help="Worker processes.")
@click.option("--machines", default=1, show_default=True, type=click.IntRange(1, 8), help="Data folders of workers.")
@click.option("--webs", default=1, show_default=True, type=click.IntRange(1, 8), help="Web processes.")
@click.option(
    "--strangers",
    is_flag=False,
    flag_value=-1,
    default=0,
    type=click.IntRange(-1, 50),
    metavar="[NUMBER]",
    help="In groups, so many others tap and type yes to each question, at once.",
)
@click.option("--minutes", default=0.0, help="Begin nothing new after so long.  [default: all turns]")
@click.option("--rate", default=0.0, help="Turns a second at most.  [default: as fast as people are answered]")
@click.option("--seed", type=int, help="Repeats the choices of a run, though not its timing.  [default: a new one]")
@click.option("--model-ms", default="20-200", show_default=True, help="How long the language model takes.")
@click.option(
    "--kill", multiple=True, metavar="PART[=SECONDS]", help="kill -9 a worker, machine, web or redis so often."
)
@click.option(
    "--pause",
    is_flag=False,
    flag_value=-1.0,
    default=0.0,
    metavar="[SECONDS]",
    help="Stop a worker for twice its lease so often.",
)
@click.option(
    "--restart",
    is_flag=False,
    flag_value=-1.0,
    default=0.0,
    metavar="[SECONDS]",
    help="Replace all workers and the web by SIGTERM so often.",
)
@click.option(
    "--outage",
    is_flag=False,
    flag_value=-1.0,
    default=0.0,
    metavar="[SECONDS]",
    help="Redis is away once, for so long.",
)
@click.option("--spool", is_flag=True, help="The webs keep on their own disk what Redis cannot take.")
@click.option(
    "--full", multiple=True, metavar="ROOM[=SECONDS]", help="Redis has no memory or disk left for 5 s, so often."
)
@click.option(
    "--skew", default=0.0, metavar="SECONDS", help="The webs' clocks are ahead by so much, workers' either way."
)
@click.option("--window", default=0.0, metavar="SECONDS", help="Questions stay open for so long.")
@click.option(
    "--cut",
    is_flag=False,
    flag_value=-1.0,
    default=0.0,
    metavar="[CHANCE]",
    help="Lose the reply of Redis to a command, and its connection.",
)
@click.option(
    "--slow", is_flag=False, flag_value=-1.0, default=0.0, metavar="[MS]", help="Make replies of Redis so late at most."
)
@click.option(
    "--redeliver", is_flag=False, flag_value=-1.0, default=0.0, metavar="[CHANCE]", help="Deliver webhooks 2-5 times."
)
@click.option(
    "--shuffle",
    is_flag=False,
    flag_value=-1.0,
    default=0.0,
    metavar="[SHARE]",
    help="Of the repeated webhooks, all or this share come late, in any order.",
)
@click.option("--late", default=20.0, show_default=True, metavar="SECONDS", help="How late these come at most.")
@click.option("--flaky-platforms", is_flag=True, help="Platforms hang up, answer 429 or 503 to 45 % of sends.")
@click.option("--everything", is_flag=True, help="Kill workers and Redis, pause, cut, redeliver and shuffle at once.")
@click.option("--matrix", is_flag=True, help="One run for each row of docs/explanation/failures.md, and one table.")
@click.option("--row", multiple=True, help="Only this row of the matrix; may be given again.")
@click.option("--full-size", is_flag=True, help="Rows of the matrix as large as is promised: hours in all.")
@click.option("--stories", type=click.Path(path_type=Path), help="A YAML file of your own stories.")
@click.option("--markdown", is_flag=True, help="Print the table as docs/explanation/failures.md has it.")
@pass_options
def simulate(
    common: Options, /, markdown: bool, matrix: bool, full_size: bool, row: tuple[str, ...], **options: Any
) -> None:
    """Break a real Sayso on purpose: people on fake platforms, judged by what they did, heard, and what took effect.

    With --config it runs your bot, with its platforms replaced. --data names a folder to keep; without it the folder is
    temporary. Exits with 1 when a promise was broken, and keeps the folder; also when faults cost more than they may.
    """
    from sayso.testing.simulation.report import table

    plan = _plan({**options, "config": common.config})
    reports = [_run(each, common.data_option) for each in _plans(plan, row, matrix=matrix, full_size=full_size)]
    click.echo(f"\n{table(reports, markdown=markdown)}\n")
    for line in (line for report in reports for line in report.details()):
        click.echo(line)
    sys.exit(1 if any(report.broken or report.exceeded for report in reports) else 0)


def _plan(options: dict[str, Any]) -> Plan:
    from sayso.testing.simulation import plan
    from sayso.testing.simulation.plan import EVERYTHING

    defaults = {
        "pause": plan.PAUSE_SECONDS, "restart": plan.RESTART_SECONDS, "cut": plan.CUT_CHANCE, "slow": plan.SLOW_MS,
        "outage": plan.OUTAGE_SECONDS,
        "redeliver": plan.REDELIVER_CHANCE, "shuffle": plan.LATE_CHANCE, "strangers": plan.STRANGERS,
    }  # fmt: skip
    given: dict[str, Any] = {
        name: defaults[name] if name in defaults and value < 0 else value for name, value in options.items()
    }
    if given.pop("everything"):
        given |= EVERYTHING
    else:
        given["kill"] = _parse_intervals("--kill", given["kill"], plan.KILL_SECONDS)
    given["full"] = _parse_intervals("--full", given["full"], dict.fromkeys(plan.STORAGE_KINDS, plan.FULL_SECONDS))
    given["seed"] = secrets.randbelow(1_000_000) if given["seed"] is None else given["seed"]
    given["slow_ms"], given["model_ms"] = given.pop("slow"), _parse_range(given["model_ms"])
    given["stories"] = given["stories"] or plan.STORIES
    return plan.Plan(**given)


def _parse_intervals(option: str, words: Sequence[str], defaults: Mapping[Any, float]) -> dict[str, float]:
    """Return the seconds by name. A word is NAME or NAME=SECONDS; the names are those of the defaults."""
    intervals = {}
    for word in words:
        name, _, seconds = word.partition("=")
        if name not in defaults:
            fail(f"{option} {word!r}: one of {', '.join(defaults)}")
        intervals[name] = _number(seconds, f"{option} {word!r}") if seconds else defaults[name]
    return intervals


def _parse_range(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    return _number(low, "--model-ms"), _number(high or low, "--model-ms")


def _number(word: str, place: str) -> float:
    try:
        return float(word)
    except ValueError:
        fail(f"{place}: {word!r} is not a number")


def _plans(given: Plan, rows: tuple[str, ...], *, matrix: bool, full_size: bool) -> list[Plan]:
    from sayso.testing.simulation.plan import ROWS, plan_of_row

    for row in rows:
        if row not in ROWS:
            fail(f"--row {row!r}: one of {', '.join(ROWS)}")
    chosen = rows or (tuple(ROWS) if matrix else ())
    if full_size and not chosen:
        fail("--full-size is of rows of the matrix: add --matrix, or --row and a name")
    return [plan_of_row(row, given, full_size=full_size) for row in chosen] or [given]


def _run(plan: Plan, data: Path | None) -> SimulationReport:
    """Run one simulation. Its folder is kept if a promise was broken or if it was named."""
    from sayso.testing.simulation.processes import MachineError
    from sayso.testing.simulation.run import Simulation
    from sayso.testing.simulation.users import InvalidStories

    folder = _new_folder(data)
    click.echo(f"faults: {plan.description()}; seed {plan.seed}; data in {folder}")
    try:
        with clear_errors():
            report = Simulation(plan, folder, click.echo).run()
    except (MachineError, InvalidStories) as exc:
        fail(str(exc))
    for word, lines in (("BROKEN", [*report.broken, *report.evidence()]), ("ABOVE ITS BOUND", report.exceeded)):
        for line in lines:
            click.echo(f"{word}  {line}")
    if data is None and not report.broken:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def _new_folder(data: Path | None) -> Path:
    """Return a new folder, below the named one if any, so that rows of a matrix do not share one."""
    try:
        if data is not None:
            data.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="sayso-simulation-", dir=data))
    except OSError as exc:
        fail(
            f"data folder {str(data or tempfile.gettempdir())!r}: {exc.strerror}: give one you may write to with --data"
        )
