"""docs/how-to/let-others-decide.md: its bot loads, and the commands answer as the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.ops.cli.main import main
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "how-to" / "let-others-decide.md").read_text()
EXAMPLES = re.findall(r"^    \$ sayso (.*)\n((?:    .*\n)+?)(?=\n)", PAGE, re.MULTILINE)
SECRETS = {
    "TWILIO_ACCOUNT_SID": f"AC{'0' * 32}",
    "TWILIO_AUTH_TOKEN": "twilio-secret",
    "SLACK_BOT_TOKEN": "xoxb-secret",
    "SLACK_SIGNING_SECRET": "slack-secret",
}


@pytest.fixture
def bot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the two files of the page into the present folder."""
    for name, language in (("sayso.yaml", "yaml"), ("orders.py", "python")):
        block, *_ = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / name).write_text(block)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("command", "answer"), EXAMPLES)
@pytest.mark.usefixtures("bot")
def test_explain_answers_as_the_page_says(command: str, answer: str) -> None:
    """To the letter."""
    result = CliRunner().invoke(main, shlex.split(command))
    assert [line.rstrip() for line in result.output.splitlines()] == [
        line[4:] for line in answer.splitlines()
    ]


@pytest.mark.usefixtures("bot")
def test_check_names_who_decides() -> None:
    """The rules of both stories can be fulfilled."""
    result = CliRunner().invoke(main, ["check", "--offline"])
    assert result.exit_code == 0
    assert "refund_order: asks 1 of the people with the role manager (bea, cem)" in result.output
    assert "pay_out: asks 2 of the people with the role finance (cem, dan, eve)" in result.output


@pytest.mark.usefixtures("bot")
def test_tool_with_a_standing_yes_loads() -> None:
    """Behind the imports of the first block."""
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("orders.py").write_text(first + second)
    assert CliRunner().invoke(main, ["check", "--offline"]).exit_code == 0


def test_the_page_has_an_example() -> None:
    """A pattern that finds none would test none."""
    assert len(EXAMPLES) == 1
