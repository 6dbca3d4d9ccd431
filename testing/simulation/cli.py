"""The command `sayso simulate`: break a real Sayso on purpose and count what its users notice."""

from __future__ import annotations

import secrets
import shutil
import sys
from typing import TYPE_CHECKING

import click

from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoCommand,
    clear_errors,
    fail,
    pass_options,
)

if TYPE_CHECKING:  # commands load only what they need
    from sayso.testing.simulation.profile import Profile
    from sayso.testing.simulation.report import SimulationReport


@click.command(
    cls=SaysoCommand,
    examples=[
        "sayso simulate quick",
        "sayso simulate outage --full-size",
        "sayso -c sayso.yaml simulate my-profile.yaml --seconds 60",
    ],
)
@click.argument("profile")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help="Begin nothing new after so long.  [default: all turns]",
)
@click.option(
    "--seed",
    type=int,
    help="Repeat the choices of a run, though not its timing.  [default: a new one]",
)
@click.option(
    "--full-size",
    is_flag=True,
    help="As large as the documentation on reliability promises: up to an hour.",
)
@click.option("--markdown", is_flag=True, help="Print the table in Markdown.")
@pass_options
def simulate(
    options: Options,
    profile: str,
    seconds: float | None,
    seed: int | None,
    *,
    full_size: bool,
    markdown: bool,
) -> None:
    """Break a real Sayso on purpose: users on fake platforms, judged by what they did and heard,
    and what took effect.

    PROFILE says how many users there are and what breaks. It is a YAML file, `matrix` for all rows
    of the page "Test a bot" of the documentation, or one of: quick, nothing, load, idle, workers,
    redis, storage, apart, machines, web, outage, spool, memory, disk, ahead, behind, pauses,
    replies, restarts, platforms, repeats, deliveries, yes, requests, others, strangers,
    everything.

    With --config it runs your bot, with its platforms replaced. --data names a folder to keep;
    without it the folder is temporary. Exits with 1 when a promise was broken, and keeps the
    folder; also when faults cost more than they may.
    """
    from sayso.testing.simulation.profile import InvalidProfile, load_profiles
    from sayso.testing.simulation.report import table

    overrides = {"seconds": seconds, "seed": seed, "config": options.config}
    changes = {key: value for key, value in overrides.items() if value is not None}
    try:
        profiles = load_profiles(profile, full_size=full_size, **changes)
    except InvalidProfile as exc:
        raise click.UsageError(str(exc)) from None

    reports = [_run(each, options) for each in profiles]
    lines = ["", table(reports, markdown=markdown), ""]
    for report in reports:
        lines += report.details()
    options.print([report.as_json() for report in reports], lines)
    has_findings = any(report.broken or report.exceeded for report in reports)
    sys.exit(FINDING if has_findings else 0)


def _run(profile: Profile, options: Options) -> SimulationReport:
    """Run one simulation in a separate folder, and say what it broke.

    The folder is kept if a promise was broken or if --data named its place.
    """
    from sayso.testing.simulation.processes import BotNotRunning
    from sayso.testing.simulation.profile import InvalidStories
    from sayso.testing.simulation.run import Simulation

    folder = options.new_folder("sayso-simulation-")
    if profile.seed is None:
        profile = profile.model_copy(update={"seed": secrets.randbelow(1_000_000)})
    options.say(f"faults: {profile.description()}; seed {profile.seed}; data in {folder}")
    try:
        with clear_errors():
            report = Simulation(profile, folder, options.say).run()
    except (BotNotRunning, InvalidStories) as exc:
        fail(str(exc))

    for line in [*report.broken, *report.evidence()]:
        options.say(f"BROKEN  {line}")
    for line in report.exceeded:
        options.say(f"ABOVE ITS BOUND  {line}")
    if options.data_option is None and not report.broken:
        shutil.rmtree(folder, ignore_errors=True)
    return report
