"""docs/how-to/guard-the-agent.md: what it shows is run, and answers as it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.ops.cli.main import main
from tests.docs.pages import part

PAGE = part(
    "guard-the-agent.md", begin="Decide what runs: the policy", end="Guardrails, budgets and loops"
)
EXAMPLES = re.findall(r"^    \$ sayso (.*)\n((?:    .*\n)+?)(?=\n)", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "answer"), EXAMPLES)
def test_explain_answers_as_the_page_says(
    tmp_path: Path, monkeypatch, command: str, answer: str
) -> None:
    """To the letter, with the two files of the page beside it."""
    for name, language in (("sayso.yaml", "yaml"), ("letters.py", "python")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, shlex.split(command))
    assert [line.rstrip() for line in result.output.splitlines()] == [
        line[4:] for line in answer.splitlines()
    ]


def test_the_page_has_examples() -> None:
    """A pattern that finds none would test none."""
    assert len(EXAMPLES) == 2
