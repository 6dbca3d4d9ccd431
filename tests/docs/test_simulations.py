"""docs/how-to/test-a-bot.md, simulations: what it shows is run, and what there is has a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sayso.agent import Tool
from sayso.testing.simulation.profile import Profile, load_profiles, load_stories, ready_names
from sayso.testing.simulation.report import COLUMNS
from tests.docs.pages import part

PAGE = part("test-a-bot.md", begin="Break it on purpose")


def test_the_stories_of_the_page_can_be_played(tmp_path: Path) -> None:
    """The YAML, as shown."""
    file = tmp_path / "stories.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    told = load_stories(file)
    assert [story.name for story in told.stories] == ["looks something up", "discards"]
    assert told.done == "^Discarded {bill}"


def test_the_request_of_the_page_can_be_played(tmp_path: Path) -> None:
    """The YAML of several steps, as shown."""
    file = tmp_path / "stories.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    (story,) = load_stories(file).stories
    assert [step.verb for step in story.steps] == ["ask", "agree", "next", "refuse", "next"]


def test_the_tool_of_the_page_is_one() -> None:
    """The Python, as shown."""
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], names)
    assert isinstance(names["discard"], Tool)


def test_the_profile_of_the_page_is_one(tmp_path: Path) -> None:
    """The YAML, as shown."""
    file = tmp_path / "profile.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[2])
    (profile,) = load_profiles(str(file))
    assert (profile.outage_seconds, profile.stories) == (30.0, tmp_path / "stories.yaml")


def test_every_key_profile_and_column_has_a_line() -> None:
    """Every fault, every ready profile, and every count of the report."""
    assert [key for key in Profile.model_fields if f"`{key}" not in PAGE] == []
    assert [name for name in ready_names() if f"| `{name}` |" not in PAGE] == []
    assert [column for column in COLUMNS[4:-1] if column not in PAGE] == []
