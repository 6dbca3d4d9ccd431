"""The texts of a call: its preview for the person, the model's reason for it, and its result.

A *preview* says what a call will do. The person reads it before they confirm, so it must not be
possible to hide a part of an argument in it. A *result* is read by the model, and by a person where
no model follows, such as after a yes.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
import string
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from enum import Enum
from itertools import groupby
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.signature import call_method
from sayso.channels.i18n.invisible import readable
from sayso.channels.markdown.literal import Markdown, as_kind_of, as_markdown, escaped_line
from sayso.infra.concurrency import await_isolated
from sayso.pending.action import compute_args_digest
from sayso.pending.error_texts import FATAL_ERRORS
from sayso.pending.executors import (
    PendingConfirmation,
    ToolResult,
    as_json,
)
from sayso.pending.proposals import current_context
from sayso.pending.result_words import effect_in_words, result_in_words
from sayso.pending.tool_context import context_arguments, context_parameters

log = logging.getLogger(__name__)

#: The share of a cut text that is taken from its end, where totals,
#: errors and the last lines of logs are.
TAIL_SHARE = 0.25
#: The share of a cut text within which a better place for the cut is looked for.
BOUNDARY_SHARE = 0.2
#: Where a text can be cut: the ends of a line, of an element of JSON, and of a word, best first.
_BOUNDARIES = ("\n", "}, ", "},", "], ", "],", ", ", " ")
#: The text that a model reads for a tool that returned None.
WITHOUT_VALUE = "done"
#: Receives each chunk of a streaming tool. A sync tool calls it from the tool's thread.
ChunkCallback = Callable[[str], None]
#: Values that contain no Markdown, and that templates may format: {euros:.2f}, {day:%d.%m.%Y}.
_FORMATTED_TYPES = (int, float, Decimal, date, time)
#: Text that could pass for the end of an argument in a list of arguments, and space that would not
#: be visible there.
_LOOKS_LIKE_END = re.compile(r'[,="\n]|^\s|\s$|\s\s')
#: Code blocks, code and links, in which no escape keeps an argument literal.
_CODE_OR_LINK = re.compile(
    r"""
    ^\ {0,3}(```+|~~~+)[^\n]*\n.*?(?:^\ {0,3}\1|\Z)
    | (?<!`)(`+)(?!`).*?(?<!`)\2(?!`)
    | \[[^\]]*\]\([^)]*\)?
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)

#: A note in a result that is for the model alone: its beginning, and a pattern for all of it.
_NOTE_START = "(handed to the user: "
_FILE_NOTE = re.compile(re.escape(_NOTE_START) + r"[^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)\n?")
#: The mark in front of a summary that the model reads instead of a long result. `cut` matches where
#: no summary could be made, and the beginning of the result stands there instead.
_SUMMARY_MARK = re.compile(
    r"\[(?:compressed|(?P<cut>truncated)) from \d+ chars(?:; compression failed)?\] "
)

#: A line break in an argument, shown as ⏎.
_LINE_BREAK = re.compile(r"\s*\n\s*")
#: Several spaces, which a page would show as one.
_SEVERAL_SPACES = re.compile(r"\s{2,}")


@dataclass(frozen=True, slots=True)
class CheckedPreview:
    """A preview that shows data which may change before the yes, such as the balance of an account.

    At the yes the preview is made again. The call runs only if the `values` are the same as when
    the user was asked; the rest of the text may differ. For a preview that is a plain text, the
    whole text must be the same.
    """

    text: str
    #: The values in the text that must not change: anything that JSON can express, such as a list.
    #: An empty list if nothing but the arguments counts. The order of a list counts, the order of a
    #: set or a dict does not.
    values: Any

    @property
    def digest(self) -> str:
        """The digest of the values."""
        return _digest_of_values(self.values)


def _digest_of_values(value: Any) -> str:
    """Return a digest in which the order of lists counts, unlike in `unordered_digest`.

    An object such as a model is digested without any order: its sets look like lists in JSON.
    """
    if isinstance(value, dict):
        digests = {key: _digest_of_values(each) for key, each in value.items()}
        return compute_args_digest(to_jsonable_python(digests, fallback=str))
    if isinstance(value, list | tuple):
        return compute_args_digest({"ordered": [_digest_of_values(each) for each in value]})
    if isinstance(value, set | frozenset):
        return compute_args_digest({"set": sorted(map(_digest_of_values, value))})
    return unordered_digest(to_jsonable_python(value, fallback=str))


#: What a tool's author gives as a preview: a format template over the arguments, or a function of
#: them. A function that returns a ToolResult says that there is nothing to propose.
Preview = str | Callable[..., str | CheckedPreview | ToolResult]


def check_preview(
    tool_name: str,
    preview: Preview | None,
    names: Collection[str],
    hidden: Collection[str] = (),
    *,
    takes_all: bool = True,
) -> None:
    """Raise ToolValidationError for a preview that cannot be made of the arguments of a call.

    `names` are the arguments that a model fills. A template may name no others. A function may
    require no others, besides a ToolContext; with `takes_all` it must take each of them.
    `hidden` are the arguments that are injected: neither may name them.
    """
    if any(_gives_no_text(each) for each in (preview, call_method(preview))):
        cure = "give a plain function, which runs in a thread"
        raise ToolValidationError(f"preview of {tool_name!r} is async or yields: {cure}")
    if isinstance(preview, str):
        _check_template(tool_name, preview, names, hidden)
    elif preview is not None:
        _check_preview_function(tool_name, preview, names, hidden, takes_all=takes_all)


def _gives_no_text(function: Any) -> bool:
    """Return whether a call gives a coroutine or a generator: none of its code has run then."""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
    )


def _check_hidden(tool_name: str, named: Collection[str], hidden: Collection[str]) -> None:
    """Raise ToolValidationError if a preview names an argument that is injected."""
    injected = sorted(set(named) & set(hidden))
    if injected:
        raise ToolValidationError(
            f"preview of {tool_name!r} names the injected {injected!r}: "
            "it gets the stored arguments alone, since they are what a yes is for. "
            "Leave it out, or have a preview function look it up itself; "
            "with the annotation ToolContext it gets a context of its own"
        )


def _check_preview_function(
    tool_name: str,
    preview: Callable[..., Any],
    names: Collection[str],
    hidden: Collection[str],
    *,
    takes_all: bool,
) -> None:
    """Raise ToolValidationError for a function that could not be called with the arguments."""
    try:
        parameters = inspect.signature(preview).parameters
    except (ValueError, TypeError):  # some built-ins have none
        return
    filled_by_sayso = context_parameters(preview)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken_by_name = [name for name, each in parameters.items() if each.kind in by_name]
    taken = [name for name in taken_by_name if name not in filled_by_sayso]
    _check_hidden(tool_name, taken, set(hidden) - set(names))

    required = [name for name in taken if parameters[name].default is inspect.Parameter.empty]
    unknown = sorted(set(required) - set(names))
    if unknown:
        problem = f"needs unknown {unknown!r}; it has {sorted(names)!r}"
        raise ToolValidationError(f"preview of {tool_name!r} {problem}")
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    missing = sorted(set(names) - set(taken))
    if takes_all and missing and not takes_any:
        problem = f"does not take {missing!r} by name"
        cure = "add them to its parameters, or **_ where it shows less than the whole call"
        raise ToolValidationError(f"preview of {tool_name!r} {problem}: {cure}")


def _check_template(
    tool_name: str,
    preview: str,
    names: Collection[str],
    hidden: Collection[str],
) -> None:
    """Raise ToolValidationError for a malformed template, and for names that no model fills."""
    try:
        parts = _parts_of_template(preview)
    except ValueError as exc:
        raise ToolValidationError(f"preview of {tool_name!r} is no format template: {exc}") from exc

    # A field may name an attribute or an item of an argument: "order.id", "order[id]".
    fields = [part.field for part in parts if part.field is not None]
    used = {re.split(r"[.\[]", field)[0] for field in fields}
    _check_hidden(tool_name, used, set(hidden) - set(names))
    unknown = sorted(used - set(names))
    if unknown:
        raise ToolValidationError(
            f"preview of {tool_name!r} uses unknown {unknown!r}; it has {sorted(names)!r}"
        )

    # A NUL stands for each argument, to see whether one is inside code or a link.
    with_marks = ""
    for part in parts:
        with_marks += part.text
        if part.field is not None:
            with_marks += "\0"
    if any("\0" in match[0] for match in _CODE_OR_LINK.finditer(with_marks)):
        raise ToolValidationError(
            f"preview of {tool_name!r} has an argument inside code or a link, where it could hide "
            "or pass for another: put it in running text, where it stands as it is"
        )


class _TemplatePart(NamedTuple):
    """A piece of a format template: literal text, and the field behind it."""

    text: str
    #: None behind the last text.
    field: str | None


def _parts_of_template(template: str) -> list[_TemplatePart]:
    """Return the parts of a format template. Raises ValueError."""
    return [_TemplatePart(text, field) for text, field, _, _ in string.Formatter().parse(template)]


def preview_text(
    tool_name: str, preview: Preview | None, args: Mapping[str, Any], optional: Collection[str] = ()
) -> CheckedPreview | str | ToolResult:
    """Return the preview of one call.

    Without a template or function it is the tool's name and every argument in full; `optional`
    arguments that are None are left out. Arguments are literal in it and in templates: none can
    hide a part of itself, pass for another argument, or begin a new line. The rest of a template is
    Markdown of the tool's author. What a function returns is text, unless it is `Markdown`.

    Raises TypeError if the preview is no text, ValueError if it is empty, and what a preview
    function raises.
    """
    text: Any
    if isinstance(preview, str):
        text = _LiteralFormatter().vformat(preview, (), args)
    elif preview is not None:
        text = preview(**args, **context_arguments(preview, current_context))
    else:
        text = default_preview(tool_name, args, optional)

    # A PendingConfirmation says that the user has been asked. The run would end, and no question
    # would be stored.
    is_question = isinstance(text, PendingConfirmation)
    if is_question or not isinstance(text, str | CheckedPreview | ToolResult):
        raise TypeError(
            f"the preview of {tool_name!r} returned a value of type {type(text).__name__}: "
            "return text, or a ToolResult to propose nothing"
        )
    words = text.text if isinstance(text, CheckedPreview) else text
    if isinstance(words, str) and not words.strip():
        raise ValueError(f"the preview of {tool_name!r} is empty: say what will happen")

    if callable(preview):
        return _with_text_as_markdown(text)
    if isinstance(text, str):
        return Markdown(text)
    return text


def default_preview(
    tool_name: str,
    args: Mapping[str, Any],
    optional: Collection[str] = (),
) -> Markdown:
    """Return a tool's name and every argument in full, except `optional` ones that are None."""
    arguments = []
    for name, value in args.items():
        if value is not None or name not in optional:
            arguments.append(f"{_listed(name)} = {_listed(value)}")
    if not arguments:
        return Markdown(literal(tool_name))
    return Markdown(f"{literal(tool_name)}: {', '.join(arguments)}")


def _with_text_as_markdown(
    preview: CheckedPreview | str | ToolResult,
) -> CheckedPreview | str | ToolResult:
    """Return what a preview function returned, with plain text as Markdown that shows it."""
    if isinstance(preview, CheckedPreview):
        return replace(preview, text=as_markdown(preview.text))
    if isinstance(preview, str):
        return as_markdown(preview)
    return preview


class _LiteralFormatter(string.Formatter):
    """Fills a template with literal values, also of attributes and items of arguments."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return one value as literal text."""
        if isinstance(value, str):
            return str(format(literal(value), format_spec))
        if isinstance(value, _FORMATTED_TYPES):
            return str(format(value, format_spec))
        if format_spec:
            return literal(str(format(value, format_spec)))
        return literal(_plain_text(value))


def _listed(value: Any) -> str:
    """Return a value in a list of arguments, in quotes if its end would not be visible.

    Any single value may hold a text of the model, a path or an address for example. JSON shows its
    end itself.
    """
    text = _plain_text(value)
    is_unclear = not text.strip() or _LOOKS_LIKE_END.search(text)
    if is_unclear and _collection_as_json(value) is None:
        text = json.dumps(text, ensure_ascii=False)
    return literal(text)


def _plain_text(value: Any) -> str:
    """Return a value as text."""
    collection = _collection_as_json(value)
    if collection is not None:
        return collection
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)


def _collection_as_json(value: Any) -> str | None:
    """Return a collection or a model as the JSON that is stored, so that no part is left out.

    None for a single value.
    """
    as_stored = to_jsonable_python(value, fallback=str)
    if isinstance(as_stored, list | dict):
        return json.dumps(as_stored, ensure_ascii=False)
    return None


def literal(text: str) -> str:
    """Return the text on one line, as Markdown that shows it literally.

    Invisible characters become their codes.
    """
    line = _LINE_BREAK.sub(" ⏎ ", readable(text).strip())
    return escaped_line(_SEVERAL_SPACES.sub(_as_visible_spaces, line))


def _as_visible_spaces(match: re.Match[str]) -> str:
    """Return as many spaces: a usual one, then no-break spaces, which a page does not join."""
    return " " + "\u00a0" * (len(match[0]) - 1)


#: The argument that `think_augment` adds to a tool: why the model calls it.
REASON = "toolcall_reason"
_REASON_SCHEMA = {
    "type": "string",
    "description": "Why you call this tool, and what you expect of it.",
}


def with_reason(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with the reason first: a model decides better after it has written why."""
    if REASON in schema["properties"]:
        return dict(schema)
    return {**schema, "properties": {REASON: _REASON_SCHEMA, **schema["properties"]}}


def unordered_digest(value: Any) -> str:
    """Return a digest of a JSON value that does not depend on the order of its lists.

    A set has no order, and JSON writes it as a list.
    """
    if isinstance(value, dict):
        return compute_args_digest({key: unordered_digest(each) for key, each in value.items()})
    if isinstance(value, list):
        return compute_args_digest({"list": sorted(map(unordered_digest, value))})
    return compute_args_digest({"value": value})


def definition_digest(definition: Any) -> str:
    """Return a digest of the definition of a tool.

    `definition` is any value that JSON can express; other values count by their text. The order of
    lists and the white space in texts do not count: they mean nothing to a reader, and many sources
    write them in another way at each start, since a set has no order and a docstring is indented.
    """
    return unordered_digest(_without_layout(to_jsonable_python(definition, fallback=str)))


def _without_layout(value: Any) -> Any:
    """Return a JSON value with single spaces as the only white space in its texts."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {name: _without_layout(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_layout(each) for each in value]
    return value


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


def truncate(text: str, most: int | None) -> str:
    """Return the text, or its beginning and end with a marker that says how much is left out.

    `most` counts characters (code points) without the marker; None for the whole text.
    """
    if most is None or len(text) <= most:
        return text
    head, tail = cut_ends(text, most)
    shown = f"the first {len(head)} and the last {len(tail)}"
    marker = f"[... {len(head) + len(tail)} of {len(text)} characters are shown: {shown} ...]"
    return "\n".join((head.removesuffix("\n"), marker, tail))


def cut_ends(text: str, most: int) -> tuple[str, str]:
    """Return the beginning and the end of a text, together at most `most` characters.

    Both are cut between lines, elements of JSON or words, where there is such a place nearby.
    """
    most = min(most, len(text))
    tail_chars = int(most * TAIL_SHARE)
    end = last_boundary(text, 0, most - tail_chars)
    start = next_boundary(text, len(text) - tail_chars, len(text))
    return text[:end], text[start:]


def last_boundary(text: str, start: int, end: int) -> int:
    """Return where to end a part of a text that goes from `start` to about `end`.

    It is the last boundary in the last fifth of the part, or `end` if there is none.
    """
    if end >= len(text):
        return end
    earliest = end - int((end - start) * BOUNDARY_SHARE)
    for boundary in _BOUNDARIES:
        at = text.rfind(boundary, earliest, end)
        if at >= 0:
            return at + len(boundary)
    return end


def next_boundary(text: str, start: int, end: int) -> int:
    """Return where to begin a part of a text that goes from about `start` to `end`.

    It is behind the first boundary in the first fifth of the part, or `start` if there is none.
    """
    if start <= 0:
        return start
    latest = start + int((end - start) * BOUNDARY_SHARE)
    for boundary in _BOUNDARIES:
        at = text.find(boundary, start, latest)
        if at >= 0:
            return at + len(boundary)
    return start


def shorten(text: str, max_chars: int) -> str:
    """Return the text in at most `max_chars` characters.

    A note at the end tells how many it had.
    """
    if len(text) <= max_chars:
        return text
    note = f" [cut, was {len(text)} characters]"
    return text[: max(0, max_chars - len(note))] + note


#: The text that the model reads for a value that cannot be written as text.
_WITHOUT_TEXT = "done, with a {} that cannot be written down"
_IS_WITHOUT_TEXT = re.compile(_WITHOUT_TEXT.format(r"\w+"))
#: The JSON of an object whose class has no text of its own: Python's default names its address.
_IS_ADDRESS = re.compile(r'"<[^<>]+ object at 0x[0-9a-f]+>"')


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


def is_async_value(value: Any) -> bool:
    """Return whether the value has to be awaited."""
    return inspect.isawaitable(value) or inspect.isasyncgen(value)


async def await_value(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """Return the result of an awaitable, or the joined chunks of an async generator.

    Each of the two may give the other, which is awaited then.
    """
    while is_async_value(value):
        if inspect.isasyncgen(value):
            value = _join_async_chunks(value, chunk_callback)
        value = await await_isolated(value)
    return join_chunks(value, chunk_callback)


def join_chunks(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    """Return the chunks of a generator as one text; any other value unchanged."""
    if not inspect.isgenerator(value):
        return value
    return _joined([_pass_on(chunk, chunk_callback) for chunk in value])


async def _join_async_chunks(
    chunks: AsyncGenerator[Any, Any], chunk_callback: ChunkCallback | None
) -> str:
    # `aclosing` releases the generator's resources now, also if the caller is cancelled.
    async with contextlib.aclosing(chunks):
        return _joined([_pass_on(chunk, chunk_callback) async for chunk in chunks])


def _joined(chunks: Sequence[str]) -> str:
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
    """Return a tool's result as text for a user: without notes for the model, and JSON in words.

    "" if nothing is left, such as for a result that was only a file.
    """
    text = _without_notes(content)
    if isinstance(text, Markdown):
        return text
    return result_in_words(text)


def effect_text(content: str) -> str:
    """Return the result of a confirmed call as text for its user, like `result_text`.

    "" also if the result says no more than that the call was done: the user is told that anyway.
    """
    text = _without_notes(content)
    if isinstance(text, Markdown):
        return text
    if _IS_WITHOUT_TEXT.fullmatch(text):
        return ""
    return effect_in_words(text)


def _without_notes(content: str) -> str:
    """Return a result without notes for the model. Markdown stays Markdown."""
    text = content
    if _NOTE_START in content:
        text = _FILE_NOTE.sub("", content).strip()
    mark = _SUMMARY_MARK.match(text)
    if mark:
        text = text[mark.end() :]
        if mark["cut"]:
            text += " […]"
    return as_kind_of(content, text)
