"""The result of a call as a text: for the model, and for a person.

The value that a tool returns may have to be awaited, or be streamed in chunks (`await_value`,
`join_chunks`). `serialize` makes of it the text that the model reads. Where no model follows, such
as after a yes, a person reads the same text without what is for the model alone (`result_text`,
`effect_text`).
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sayso.channels.markdown.literal import Markdown, as_kind_of, as_markdown
from sayso.infra.concurrency import await_isolated
from sayso.pending.error_texts import FATAL_ERRORS
from sayso.pending.executors import ToolResult, as_json
from sayso.pending.result_words import effect_in_words, result_in_words

#: The text that a model reads for a tool that returned None.
WITHOUT_VALUE = "done"
#: Receives each chunk of a streaming tool. A sync tool calls it from the tool's thread.
ChunkCallback = Callable[[str], None]
#: The text that the model reads for a value that cannot be written as text.
_WITHOUT_TEXT = "done, with a {} that cannot be written down"
_IS_WITHOUT_TEXT = re.compile(_WITHOUT_TEXT.format(r"\w+"))
#: The JSON of an object whose class has no text of its own: Python's default names its address.
_IS_ADDRESS = re.compile(r'"<[^<>]+ object at 0x[0-9a-f]+>"')
#: A note in a result that is for the model alone: its beginning, and a pattern for all of it.
_NOTE_START = "(handed to the user: "
_FILE_NOTE = re.compile(re.escape(_NOTE_START) + r"[^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)\n?")
#: The mark in front of a summary that the model reads instead of a long result. `cut` matches where
#: no summary could be made, and the beginning of the result stands there instead.
_SUMMARY_MARK = re.compile(
    r"\[(?:compressed|(?P<cut>truncated)) from \d+ chars(?:; compression failed)?\] "
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool provider returns for a call.

    Do not confuse it with a ToolResult, which is a typed result that a tool returns.
    """

    success: bool
    #: The tool's value; None for a call that failed.
    result: Any = None
    #: Why the call failed, in words for the model; None for a success.
    error: str | None = None


def is_async_value(value: Any) -> bool:
    """Return whether the value has to be awaited."""
    return inspect.isawaitable(value) or inspect.isasyncgen(value)


async def await_value(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """Return the result of an awaitable, or the chunks of a generator as one text.

    An awaitable may give another one or a generator, which is then read in turn.
    """
    while is_async_value(value):
        if inspect.isasyncgen(value):
            value = _join_async_chunks(value, chunk_callback)
        value = await await_isolated(value)
    return join_chunks(value, chunk_callback)


async def _join_async_chunks(
    chunks: AsyncGenerator[Any, Any], chunk_callback: ChunkCallback | None
) -> str:
    # `aclosing` releases the generator's resources now, also if the caller is cancelled.
    async with contextlib.aclosing(chunks):
        return _join([_pass_on(chunk, chunk_callback) async for chunk in chunks])


def join_chunks(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """Return the chunks of a generator as one text; any other value unchanged."""
    if not inspect.isgenerator(value):
        return value
    return _join([_pass_on(chunk, chunk_callback) for chunk in value])


def _join(chunks: Sequence[str]) -> str:
    """Return the chunks as one text: as Markdown if one of them is Markdown.

    Plain chunks are shown literally, whether or not others are Markdown.
    """
    if not any(isinstance(chunk, Markdown) for chunk in chunks):
        return "".join(chunks)
    text = ""
    for is_markdown, group in groupby(chunks, key=lambda chunk: isinstance(chunk, Markdown)):
        joined = "".join(group)
        text += joined if is_markdown else as_markdown(joined)
    return Markdown(text)


def _pass_on(chunk: Any, chunk_callback: ChunkCallback | None) -> str:
    """Give a chunk to the callback, and return it as text."""
    text = chunk if isinstance(chunk, Markdown) else str(chunk)
    if chunk_callback:
        chunk_callback(text)
    return text


def serialize(value: Any) -> str:
    """Return a tool's value as the text that the model reads. Raises nothing."""
    if isinstance(value, Markdown):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may have code of its own
    if value is None:
        return WITHOUT_VALUE
    try:
        text = _as_json(value)
    except (Exception, *FATAL_ERRORS):
        # The tool has acted: its value must not fail the turn.
        log.exception("tool.result_unreadable", extra={"type": type(value).__name__})
        # The kind of a ToolResult may say that nothing was done, so "done" would be false.
        if isinstance(value, ToolResult):
            return as_json({"kind": str(value.kind)})
        return _WITHOUT_TEXT.format(type(value).__name__)
    if _IS_ADDRESS.fullmatch(text):
        return _WITHOUT_TEXT.format(type(value).__name__)
    return text


def _as_json(value: Any) -> str:
    if isinstance(value, ToolResult):
        return value.to_json()
    return as_json(value)


def file_note(what: str) -> str:
    """Return the note that tells a model that a file of a result went to the user.

    `what` describes the file. The note is removed from a text that the user reads, so it must have
    the form that _FILE_NOTE finds: the brackets of a name such as "a(.pdf" become spaces.
    """
    note = f"{_NOTE_START}{what})"
    if _FILE_NOTE.fullmatch(note):
        return note
    readable_what = re.sub(r"[()\s]", " ", what)
    return f"{_NOTE_START}{readable_what})"


def result_text(content: str) -> str:
    """Return a tool's result as text for a user.

    It has JSON in words, and nothing of what is for the model alone. "" if nothing is left, such as for a result that was only a file.
    """
    text = _without_parts_for_model(content)
    if isinstance(text, Markdown):
        return text
    return result_in_words(text)


def effect_text(content: str) -> str:
    """Return the result of a confirmed call as text for its user, like `result_text`.

    "" also if the result says no more than that the call was done: the user is told that anyway.
    """
    text = _without_parts_for_model(content)
    if isinstance(text, Markdown):
        return text
    if _IS_WITHOUT_TEXT.fullmatch(text):
        return ""
    return effect_in_words(text)


def _without_parts_for_model(content: str) -> str:
    """Return a result without notes of files, and without the mark in front of a summary.

    Markdown stays Markdown.
    """
    text = content
    if _NOTE_START in content:
        text = _FILE_NOTE.sub("", content).strip()
    mark = _SUMMARY_MARK.match(text)
    if mark:
        text = text[mark.end() :]
        if mark["cut"]:
            text += " […]"
    return as_kind_of(content, text)
