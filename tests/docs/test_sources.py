"""docs/how-to/tools-from-elsewhere.md: what it shows is run."""

from __future__ import annotations

import re
from pathlib import Path

from sayso.agent.toolsets import mcp, openapi, openapi_answers
from sayso.agent.toolsets.base import MAX_DESCRIPTION_CHARS, MAX_PATTERNS, MAX_TOOLS
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.tools import OPEN_SECONDS
from tests.docs.pages import part, run

PAGE = part("tools-from-elsewhere.md", end="Show a model only the tools it needs")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_configuration_of_the_page_is_valid(tmp_path: Path) -> None:
    """Every kind of source, as shown."""
    file = tmp_path / "sayso.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    settings = load_settings(file, {"FILES_TOKEN": "a", "MCP_TOKEN": "b", "PETS_KEY": "c"})
    assert len(settings.tools) == 6


def test_the_providers_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    """A Python provider and the mock."""
    assert run(BLOCKS[0], tmp_path) == [
        "ToolOutcome(success=True, result=3, error=None)",
        "Tool 'stok' not found. Available tools: ['stock']",
        "It is sunny.",
        "[('weather', {})]",
    ]


def test_the_server_of_the_page_is_one(tmp_path: Path) -> None:
    """Saved, started and called."""
    (tmp_path / "clock.py").write_text(BLOCKS[1])
    assert run(BLOCKS[2], tmp_path) == ["clock-noon True", "12:00 in Lima"]


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    """So that no limit on the page is out of date."""
    assert f"{mcp.CALL_SECONDS:g} (MCP), {openapi.CALL_SECONDS:g} (OpenAPI)" in PAGE
    assert (
        f"at most {MAX_TOOLS} tools. Descriptions are cut after {MAX_DESCRIPTION_CHARS:,} characters"
        in PAGE
    )
    assert f"waits {OPEN_SECONDS:g} seconds" in PAGE
    assert f"Connecting may take {mcp.CONNECT_SECONDS:g} seconds" in PAGE
    assert f"up to {openapi.MAX_ANSWER_BYTES // 1_000_000} MB" in PAGE
    assert f"cut to {openapi_answers.MAX_ERROR_CHARS} characters" in PAGE
    assert f"the first {MAX_PATTERNS} patterns of a schema" in PAGE
