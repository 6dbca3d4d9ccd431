"""docs/how-to/tools-from-elsewhere.md: what it shows is run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from sayso.agent.toolsets import embedding, selectors
from sayso.config.settings.loader import load_settings
from sayso.config.settings.tools import SelectorSettings
from sayso.ops.checks.describe import describe
from tests.docs.pages import part

PAGE = part("tools-from-elsewhere.md", begin="Show a model only the tools it needs")


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_python_of_the_page_runs() -> None:
    """One block after the other, with what they assert."""
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/how-to/tools-from-elsewhere.md", "exec"), names)
    assert len(names["everything"].selectors) == 3


def test_the_yaml_of_the_page_is_valid(tmp_path: Path) -> None:
    """As `sayso check` checks it."""
    for block in blocks("yaml"):
        (tmp_path / "sayso.yaml").write_text(block)
        assert "its selector shows" in str(
            describe(load_settings(tmp_path / "sayso.yaml", {"OPENAI_API_KEY": "k"}))
        )


def test_the_entry_point_of_the_page_is_of_our_group() -> None:
    """And well-formed."""
    (block,) = blocks("toml")
    assert "sayso.selector" in tomllib.loads(block)["project"]["entry-points"]


def test_every_selector_and_option_has_a_line() -> None:
    """On the page."""
    endings = ("Selector", "Embedder", "Of", "Open", "Roles")
    classes = [
        name
        for module in (selectors, embedding)
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
        and name.endswith(endings)
        and not name.startswith("_")
    ]
    options = [info.alias or name for name, info in SelectorSettings.model_fields.items()]
    internal = {"ToolSelector", "Embedder"}
    assert [
        name for name in (*classes, *options) if name not in PAGE and name not in internal
    ] == []
