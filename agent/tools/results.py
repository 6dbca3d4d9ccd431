"""Results for the model; typed results."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sayso.pending.concurrency import contained
from sayso.pending.executors import Ambiguous, NotFound, ToolResult, as_json, plain


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The `result` of a call that succeeded, or the `error` of one that did not, in words for the model.

    The seed calls it ToolResult, a name that typed results have here.
    """

    success: bool
    result: Any = None
    error: str | None = None


#: Of what is shown, the share that is the end: totals, errors and the last lines of logs stand there.
TAIL_SHARE = 0.25


def truncate(text: str, most: int | None) -> str:
    """The text, or so many of its characters around a marker that says how many are shown, of how many.

    `most` counts characters (code points) of the text, None for any number; the marker comes on top.
    """
    if most is None or len(text) <= most:
        return text
    tail = int(most * TAIL_SHARE)
    head = most - tail
    marker = f"[... {most} of {len(text)} characters are shown: the first {head} and the last {tail} ...]"
    return f"{text[:head]}\n{marker}\n{text[len(text) - tail :]}"


#: Hears each chunk of a streaming tool as it comes. For a sync tool it is called from the tool's thread.
ChunkCallback = Callable[[str], None]


def serialise(value: Any) -> str:
    """A tool's value as the text the model reads."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    try:
        return value.to_json() if isinstance(value, ToolResult) else as_json(value)
    except Exception:  # noqa: BLE001  # the tool has acted: what it returned must not undo the turn
        return f"done, with a {type(value).__name__} that cannot be written down"


def is_async_value(value: Any) -> bool:
    """Whether it has to be waited for."""
    return inspect.isawaitable(value) or inspect.isasyncgen(value)


async def awaited(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """What an async function hands back, or the chunks of an async generator as one text; also when one hands back
    another.
    """
    while is_async_value(value):
        value = await contained(_join(value, chunk_callback) if inspect.isasyncgen(value) else value)
    return finished(value, chunk_callback)


def finished(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """The chunks of a generator as one text; anything else as it is."""
    return "".join(_heard(value, chunk_callback)) if inspect.isgenerator(value) else value


def _heard(chunks: Iterator[Any], chunk_callback: ChunkCallback | None) -> Iterator[str]:
    for chunk in chunks:
        if chunk_callback:
            chunk_callback(str(chunk))
        yield str(chunk)


async def _join(chunks: AsyncGenerator[Any, Any], chunk_callback: ChunkCallback | None) -> str:
    heard: list[str] = []
    async with contextlib.aclosing(chunks):  # what it holds is let go of now, also when nobody hears the rest
        async for chunk in chunks:
            heard.extend(_heard(iter([chunk]), chunk_callback))
    return "".join(heard)


def result_text(content: str) -> str:
    """Return a tool's result as text for a user: JSON in words, other text as it is."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    if isinstance(value, dict):
        return _object_text(value)
    return "\n".join(f"- {plain(item)}" for item in value) if isinstance(value, list) and value else plain(value)


def _object_text(result: dict[str, Any]) -> str:
    """Return an object as lines of text, and a typed result (see ToolResult) by its kind."""
    kind, entity, query = (result.get(key) for key in ("kind", "entity", "query"))
    if kind == "ambiguous":
        return Ambiguous(str(entity or ""), str(query), list(result.get("matches") or [])).in_words
    if kind == "not_found":
        return NotFound(str(entity or ""), str(query)).in_words
    for key in ("preview", "message"):
        if kind and isinstance(result.get(key), str):
            return str(result[key])
    return "\n".join(f"{key}: {plain(value)}" for key, value in result.items() if key != "kind") or "nothing"
