"""Results: what a tool gave as the model is shown it, screened and no longer than it may be."""

from __future__ import annotations

from sayso.agent.tools.screening import marked, suspicions
from sayso.agent.tools.tool import Tool
from sayso.agent.tools.truncation import truncate
from sayso.workers.offload import offload

#: Characters that are screened in the event loop, in about 5 ms; longer texts in a thread.
MAX_INLINE_CHARS = 20_000


async def shown(tool: Tool, raw: str, *, summary: str | None = None, mark: str = "", whole: bool = False) -> str:
    """A result, or the `summary` that stands for it behind its `mark`, as the model sees it: fenced if either tries to
    instruct it, and cut to the tool's `max_result_size` unless the `whole` is asked for.
    """
    text = raw if summary is None else summary
    found = await _found(raw, text) if tool.screen_output else ()
    text = truncate(text, None if whole else tool.metadata.max_result_size)
    return mark + (marked(tool.name, text, found) if found else text)


async def _found(*texts: str) -> list[str]:
    kinds: set[str] = set()
    for text in dict.fromkeys(texts):
        kinds.update(suspicions(text) if len(text) <= MAX_INLINE_CHARS else await offload(suspicions, text))
    return sorted(kinds)
