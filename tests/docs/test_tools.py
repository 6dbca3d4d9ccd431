"""docs/how-to/write-tools.md: what it shows is run, and every option has a line."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sayso.agent import Agent, Tool, ToolMetadata
from tests.docs.pages import part

PAGE = part("write-tools.md", end="What the model reads of a result")


def test_the_blocks_of_the_page_run() -> None:
    """One after the other, with what they claim."""
    names: dict[str, Any] = {"__name__": "docs_tools"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/how-to/write-tools.md", "exec"), names)
    assert names["outcomes"][1].error.startswith("Unknown tool 'ad'. Available: ")
    assert names["menu"] == "Which size?\n\n- Small\n- Large"
    agent = Agent([names["guest_list"]])
    assert [artifact.filename for artifact in agent.run("/guest_list").artifacts] == ["guests.csv"]


def test_every_option_has_a_line() -> None:
    """On the page, as every option must have."""
    internal = {"function", "callable", "parameters", "is_async", "input_schema", "source"}
    options = {
        field.name for kind in (Tool, ToolMetadata) for field in dataclasses.fields(kind)
    } - internal
    assert [option for option in sorted(options) if f"`{option}`" not in PAGE] == []
