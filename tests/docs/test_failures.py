"""docs/explanation/failures.md: what it shows is run, and what there is has a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sayso.agent import Tool
from sayso.testing.simulation.cli import simulate
from sayso.testing.simulation.plan import ROWS
from sayso.testing.simulation.report import COLUMNS
from sayso.testing.simulation.users import load_stories

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "failures.md").read_text()


def test_the_stories_of_the_page_can_be_played(tmp_path: Path) -> None:
    """The YAML, as shown."""
    file = tmp_path / "stories.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    told = load_stories(file)
    assert [story.name for story in told.stories] == ["looks something up", "discards"]
    assert told.done == "^Discarded {bill}"


def test_the_tool_of_the_page_is_one() -> None:
    """The Python, as shown."""
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], names)
    assert isinstance(names["discard"], Tool)


def test_every_option_row_and_column_has_a_line() -> None:
    """A fault nobody documents is none that anybody was promised something about."""
    shared = {"-c", "--json", "--no-color"}  # options of every command
    options = [option for parameter in simulate.params for option in parameter.opts if option not in shared]
    assert [option for option in options if f"`{option}" not in PAGE and f"{option} " not in PAGE] == []
    assert [row for row in ROWS if f"| `{row}` |" not in PAGE] == []
    assert [column for column in COLUMNS[4:-1] if column not in PAGE] == []
