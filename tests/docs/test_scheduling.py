"""docs/how-to/ask-before-acting.md: what it shows is run."""

from __future__ import annotations

import re
from typing import Any

from sayso.agent.tools.environment import ToolEnvironment
from sayso.agent.tools.timers import TurnTimers
from sayso.pending.call_context import own_context
from tests.docs.pages import part

PAGE = part("ask-before-acting.md", begin="Say something later")


def test_the_tool_of_the_page_sets_its_timers() -> None:
    """Two, in the book of its turn; and words for the user where there is none."""
    names: dict[str, Any] = {}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "docs/how-to/ask-before-acting.md", "exec"), names)
    book = TurnTimers("ana", 1000.0, "en")
    with own_context(ToolEnvironment) as own:
        own.timers = book
        assert names["call_back"](about="the offer") == "I will."
    assert [(timer.at, timer.text) for timer in book.added] == [
        (4600.0, "Reminder: the offer"),
        (8200.0, "Scheduled message: And now it is over."),
    ]
    assert "needs a channel" in names["call_back"](about="the offer")
