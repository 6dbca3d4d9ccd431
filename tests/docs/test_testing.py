"""docs/how-to/test-a-bot.md and extend.md: what they show is run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sayso.channels import base
from sayso.examples.json_webhook.sayso_json_webhook import JsonWebhookSettings
from tests.docs.pages import part

ROOT = Path(__file__).parents[2]


def block(page: str, language: str, number: int = 0) -> str:
    """Return a block of a page in one language, the first one without a number."""
    return re.findall(rf"```{language}\n(.*?)```", part(page), re.DOTALL)[number]


@pytest.mark.parametrize("number", [0, 1])
def test_the_tests_of_the_page_pass(tmp_path: Path, number: int) -> None:
    """Saved beside a bot, and run by pytest."""
    (tmp_path / "test_bot.py").write_text(block("test-a-bot.md", "python", number))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_bot.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_platform_of_the_page_is_that_of_the_example() -> None:
    """Its entry point, its settings, and errors that exist."""
    shown = tomllib.loads(block("extend.md", "toml"))["project"]
    example = tomllib.loads((ROOT / "examples/json_webhook/pyproject.toml").read_text())["project"]
    assert (shown["name"], shown["entry-points"]) == (example["name"], example["entry-points"])
    names: dict[str, type] = {}
    exec(compile(block("extend.md", "python"), "extend.md", "exec"), names)
    assert (
        names["JsonWebhookSettings"].__annotations__.keys()
        == JsonWebhookSettings.__annotations__.keys()
    )
    errors = (
        part("extend.md", begin="Add a platform", end="Add a language")
        .split("### 4.")[0]
        .split("### 3.")[1]
    )
    raised = re.findall(r"^\| `(\w+)(?:\(\w+\))?` \| [^|]+ \| [^|]+ \|$", errors, re.MULTILINE)
    assert len(raised) == 11
    assert [name for name in raised if not hasattr(base, name)] == []
