"""Profiles of `sayso simulate`: the shipped ones, the full size of each, and a user's own files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sayso.testing.simulation.cli import simulate
from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.profile import (
    NOT_IN_MATRIX,
    STORIES,
    InvalidProfile,
    Profile,
    load_profiles,
    load_stories,
    ready_names,
)
from sayso.testing.simulation.report import SimulationReport


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "load",
            {
                "turns_per_second": 100.0,
                "seconds": 600.0,
                "turns": 60_000,
                "conversations": 500,
                "measures": "speed",
            },
        ),
        ("workers", {"kill_every": {"worker": 1.0}, "workers": 3, "turns": 30_000}),
        ("outage", {"outage_seconds": 300.0, "conversations": 1000}),
        ("memory", {"turns_per_second": 0.0, "turns": 20_000}),
        ("pauses", {"pause_every": 3.0, "seconds": 660.0, "workers": 9}),
        ("replies", {"lost_replies": 0.08, "redis_delay_ms": 5.0}),
        ("restarts", {"restart_every": 20.0, "turns_per_second": 100.0, "seconds": 600.0}),
        ("deliveries", {"late_seconds": 600.0, "webs": 2, "late_repeats": 0.3}),
        ("strangers", {"strangers": 45, "only_stories": ("taps five times at once",)}),
        ("idle", {"turns": 12_000, "conversations": 12_000}),
        ("platforms", {"turns": 20_000, "conversations": 500, "workers": 4}),
    ],
)
def test_profile_at_full_size_has_its_documented_size(name: str, expected: dict[str, Any]) -> None:
    """The faults stay the same; only their number changes."""
    (profile,) = load_profiles(name, full_size=True)
    assert {key: getattr(profile, key) for key in expected} == expected


@pytest.mark.parametrize("full_size", [False, True])
def test_matrix_has_every_other_profile_and_their_stories_exist(*, full_size: bool) -> None:
    """A misspelled story would show only hours later."""
    rows = load_profiles("matrix", full_size=full_size)
    assert len(rows) == len(ready_names()) - len(NOT_IN_MATRIX)
    assert all(load_stories(STORIES, row.only_stories).stories for row in rows)


def test_the_help_names_every_profile() -> None:
    """Users find a profile only if the help lists it."""
    text = " ".join(CliRunner().invoke(simulate, ["--help"]).output.split()).replace(".", ",")
    assert [name for name in ready_names() if f" {name}," not in text] == []


def test_profile_file_has_paths_relative_to_itself(tmp_path: Path) -> None:
    """Options on the command line override the file."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{turns: 5, outage_seconds: 9, stories: stories.yaml, config: sayso.yaml, full_size: {turns: 50}}"
    )
    (profile,) = load_profiles(str(file), config=Path("other.yaml"), seconds=60.0)
    assert (profile.turns, profile.outage_seconds, profile.seconds) == (5, 9.0, 60.0)
    assert (profile.stories, profile.config) == (tmp_path / "stories.yaml", Path("other.yaml"))
    (full,) = load_profiles(str(file), full_size=True)
    assert (full.turns, full.conversations, full.config) == (50, 500, tmp_path / "sayso.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "no profile: write keys such as `turns: 1000`"),
        ("{turn: 5}", "turn: unknown key: did you mean 'turns'? known: turns, "),
        ("{turns: 0}", "turns: must be greater than or equal to 1 (it is 0)"),
        (
            "{kill_every: {printer: 1}}",
            "kill_every.printer.[key]: must be 'worker', 'machine', 'web' or 'redis'",
        ),
        ("{repeated_webhooks: 2}", "repeated_webhooks: must be less than or equal to 1 (it is 2)"),
        (
            "{full_size: {turns: x}}",
            "turns: must be a valid integer, unable to parse string as an integer (it is 'x')",
        ),
        ("{", "expected the node content"),
    ],
)
def test_invalid_profile_file_is_refused_with_its_problem(
    tmp_path: Path, text: str, problem: str
) -> None:
    """The message names the file, the key and the fix."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(InvalidProfile) as refused:
        load_profiles(str(file), full_size=True)
    assert str(refused.value).startswith(f"{file}: ")
    assert problem in str(refused.value)


def test_unknown_profile_is_a_usage_error_that_names_the_nearest() -> None:
    """The command ends before anything starts."""
    result = CliRunner().invoke(simulate, ["worker"])
    assert (result.exit_code, "no profile 'worker': did you mean 'workers'?" in result.output) == (
        2,
        True,
    )


def test_run_with_too_few_faults_or_acts_is_a_finding() -> None:
    """The report compares the counts of faults and acts with the profile's minimum."""
    profile = Profile(at_least={"pauses": 200, "confirmed": 10, "lost replies": 3})
    few = SimulationReport(
        profile, SimulationResult(confirmed=9), 0, Counter(pauses=200), lost_replies=3
    )
    assert few.exceeded == ["confirmed: 9, too few: 10 were asked for"]
    assert few.as_json()["exceeded"] == few.exceeded
