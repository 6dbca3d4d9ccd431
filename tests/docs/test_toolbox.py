"""docs/how-to/write-tools.md: its example runs, and its table names every tool and parameter there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sayso.agent.toolbox import FAMILIES, open_toolbox
from tests.docs.pages import part

PAGE = part("write-tools.md", begin="Ready-made tools: the toolbox")
#: The rows of the table, without those that only say what they have beside others.
ROWS = [
    line.split(" | ")
    for line in PAGE.splitlines()
    if line.startswith("| ") and line.count(" | ") == 4
]


def test_the_example_prints_what_the_page_shows(capsys) -> None:
    """Word for word."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/how-to/write-tools.md", "exec"), names)
    assert capsys.readouterr().out == printed


def test_the_table_names_every_tool(tmp_path: Path) -> None:
    """And no other."""
    told = {name for row in ROWS[1:] for name in re.findall(r"`(\w+)`", row[1])}
    assert told == {tool.name for tool in open_toolbox(FAMILIES, folder=tmp_path)}


def test_the_table_names_every_family_and_parameter(tmp_path: Path) -> None:
    """Of each family that ships."""
    assert {family for row in ROWS[1:] for family in re.findall(r"`(\w+)`", row[0])} == set(
        FAMILIES
    )
    for tool in open_toolbox(FAMILIES, folder=tmp_path):
        (row,) = [row for row in ROWS if f"`{tool.name}`" in row[1]]
        given = set(tool.schema()["parameters"]["properties"])
        assert tool.name.endswith("_file") or set(re.findall(r"`(\w+)`", row[3])) == given
