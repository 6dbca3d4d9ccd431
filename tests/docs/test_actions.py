"""docs/how-to/ask-before-acting.md: what it shows is run."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any, get_args

from sayso import Decision, OpenCall
from tests.docs.pages import part

PAGE = part("ask-before-acting.md", begin="Ask in a chat", end="Say something later")
DECISIONS = part("ask-before-acting.md", end="Ask in a chat")


def test_the_decisions_of_a_program_print_what_the_page_says(capsys, tmp_path, monkeypatch) -> None:
    """One block after the other, to the letter."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", DECISIONS, re.DOTALL)
    assert len(shown) == DECISIONS.count("```python\n") > 1
    for code, printed in shown:
        exec(compile(code, "docs/how-to/ask-before-acting.md", "exec", dont_inherit=True), names)
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


def test_every_decision_has_a_line_with_its_fields() -> None:
    """And so has each field of an open call, apart from those that the library compares."""
    for kind in get_args(Decision):
        given = [
            each.name
            if each.default is MISSING
            else f"{each.name}={each.default!r}".replace("'", '"')
            for each in fields(kind)
        ]
        assert f"`{kind.__name__}({', '.join(given)})`" in DECISIONS
    compared = {"call_id", "tool_digest", "values_digest"}
    assert [each.name for each in fields(OpenCall) if f"`{each.name}`" not in DECISIONS] == sorted(
        compared
    )


def test_the_tools_of_the_page_ask_before_they_act(capsys) -> None:
    """Both blocks, one after the other: a question, a yes, an effect; and a code where one is asked for."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/how-to/ask-before-acting.md", "exec"), names)
    question, outcome = capsys.readouterr().out.strip().rsplit("\n", 1)[0], names["BALANCE"]
    assert "Pay 5 EUR to bob" in question
    assert outcome == {"ana": 100, "bob": 25}
    assert names["covered"].startswith("Done under your standing yes (1 of 10, until ")
    assert "Refund 40 EUR to c1" in names["covered"]
    assert "Reply **yes**" in names["asked"]
    ask = names["bot"].ask_channel
    code = re.search(r"\b[0-9]{4}\b", ask("ana", "/close_account who=bob").content)[0]
    assert code in ask("ana", "yes").content
    assert ask("ana", f"yes {code}").content == "The account of bob is closed."


def test_every_option_of_a_tool_that_asks_has_a_line() -> None:
    """On the page, as every option must have."""
    options = (
        "requires_approval",
        "preview",
        "undo",
        "undo_seconds",
        "idempotent",
        "reconcile",
        "typed_code",
        "version",
        "standing",
    )
    assert [option for option in options if f"`{option}" not in PAGE] == []
