"""The four seeds about tools: what each documents (seeds.toml), and the test that proves it here."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import agent

ROOT = Path(__file__).parents[2]

SEEDS = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())

#: The public names the seeds give, all of them in `agent`.
NAMES = (
    "Ambiguous",
    "Artifact",
    "MockToolProvider",
    "EmbeddingSelector",
    "KeywordSelector",
    "NotFound",
    "PendingConfirmation",
    "RoleBasedSelector",
    "Tool",
    "ToolError",
    "ToolExecutionError",
    "ToolLoader",
    "ToolMetadata",
    "ToolNotFoundError",
    "ToolParameter",
    "ToolOutcome",
    "ToolParameterError",
    "ToolPolicy",
    "ToolProviderProtocol",
    "ToolRegistry",
    "ToolResult",
    "ToolSelector",
    "ToolTag",
    "ToolValidationError",
    "discover_selectors",
    "emit_artifact",
    "tool",
)


@pytest.mark.parametrize("item", [(seed, item) for seed, items in SEEDS.items() for item in items], ids=": ".join)
def test_what_a_seed_documents_has_a_test(item):
    """It exists, under that name; a renamed test takes its line along."""
    seed, what = item
    file, _, name = SEEDS[seed][what].partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert name in {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_name_of_the_seeds_is_exported():
    """From `agent`, as the issue says."""
    assert [name for name in NAMES if not hasattr(agent, name)] == []
