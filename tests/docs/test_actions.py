"""docs/how-to/ask-before-acting.md: what it shows is run."""

from __future__ import annotations

import re
from typing import Any

from tests.docs.pages import part

PAGE = part("ask-before-acting.md", end="Say something later")


def test_the_tools_of_the_page_ask_before_they_act(capsys) -> None:
    """Both blocks, one after the other: a question, a yes, an effect; and a code where one is asked for."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/how-to/ask-before-acting.md", "exec"), names)
    question, outcome = capsys.readouterr().out.strip().rsplit("\n", 1)[0], names["BALANCE"]
    assert "Pay 5 EUR to bob" in question
    assert outcome == {"ana": 100, "bob": 25}
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
    )
    assert [option for option in options if f"`{option}" not in PAGE] == []
