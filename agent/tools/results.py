"""The results of tools: their values as text for the model, streams joined, long texts cut, injections marked."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from sayso.agent.tools.definition import ToolDefinition
from sayso.agent.tools.screening import marked, suspicions
from sayso.pending.concurrency import await_isolated, call_in_thread
from sayso.pending.executors import Ambiguous, NotFound, ToolResult, as_json, json_as_text

#: The share of a cut text that is taken from its end, where totals, errors and the last lines of logs are.
TAIL_SHARE = 0.25
#: Longest text that is screened in the event loop, in characters: about 5 ms. Longer texts are screened in a thread.
MAX_INLINE_CHARS = 20_000
#: Receives each chunk of a streaming tool. A sync tool calls it from the tool's thread.
ChunkCallback = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The `result` of a call that succeeded, or the `error` of one that failed, in words for the model.

    The seed calls it ToolResult, which is the name of typed results here.
    """

    success: bool
    result: Any = None
    error: str | None = None


def truncate(text: str, most: int | None) -> str:
    """Return the text, or its first and last characters around a marker that says how much is left out.

    `most` counts the characters (code points) of the text, without the marker; None keeps all of them.
    """
    if most is None or len(text) <= most:
        return text
    tail = int(most * TAIL_SHARE)
    head = most - tail
    marker = f"[... {most} of {len(text)} characters are shown: the first {head} and the last {tail} ...]"
    return f"{text[:head]}\n{marker}\n{text[len(text) - tail :]}"


def serialize(value: Any) -> str:
    """Return a tool's value as the text that the model reads."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    try:
        return value.to_json() if isinstance(value, ToolResult) else as_json(value)
    except Exception:  # the tool has acted: its return value must not fail the turn
        return f"done, with a {type(value).__name__} that cannot be written down"


async def result_for_model(
    tool: ToolDefinition, raw: str, *, summary: str | None = None, mark: str = "", whole: bool = False
) -> str:
    """Return a result as the model sees it, or the `summary` of it behind its `mark`.

    The text is fenced if a tool with `screen_output` returned what looks like instructions to the model, and cut to the
    tool's `max_result_size` unless `whole`.
    """
    text = raw if summary is None else summary
    kinds: set[str] = set()
    for each in dict.fromkeys((raw, text)) if tool.screen_output else ():
        kinds.update(suspicions(each) if len(each) <= MAX_INLINE_CHARS else await call_in_thread(suspicions, each))
    text = truncate(text, None if whole else tool.metadata.max_result_size)
    return mark + (marked(tool.name, text, sorted(kinds)) if kinds else text)


def is_async_value(value: Any) -> bool:
    """Return whether the value has to be awaited."""
    return inspect.isawaitable(value) or inspect.isasyncgen(value)


async def await_value(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """Return what an awaitable results in, or the joined chunks of an async generator, also when nested."""
    while is_async_value(value):
        value = await await_isolated(_join(value, chunk_callback) if inspect.isasyncgen(value) else value)
    return join_chunks(value, chunk_callback)


def join_chunks(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """Return the chunks of a generator as one text; any other value as it is."""
    if not inspect.isgenerator(value):
        return value
    return "".join(_passed_on(chunk, chunk_callback) for chunk in value)


async def _join(chunks: AsyncGenerator[Any, Any], chunk_callback: ChunkCallback | None) -> str:
    async with contextlib.aclosing(chunks):  # releases its resources now, also if the caller is cancelled
        return "".join([_passed_on(chunk, chunk_callback) async for chunk in chunks])


def _passed_on(chunk: Any, chunk_callback: ChunkCallback | None) -> str:
    text = str(chunk)
    if chunk_callback:
        chunk_callback(text)
    return text


def result_text(content: str) -> str:
    """Return a tool's result as text for a user: JSON in words, other text as it is."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    if isinstance(value, dict):
        return _object_text(value)
    return (
        "\n".join(f"- {json_as_text(item)}" for item in value)
        if isinstance(value, list) and value
        else json_as_text(value)
    )


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
    return "\n".join(f"{key}: {json_as_text(value)}" for key, value in result.items() if key != "kind") or "nothing"
