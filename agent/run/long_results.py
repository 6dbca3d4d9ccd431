"""Long results of tools: what the model reads of one, and the tool `read_result` for the rest.

A long result is shortened twice. In the turn of its call, the model reads as much as the context
window allows (`shorten_message`). In the history, later turns have its beginning and end
(`shorten_for_history`). A mark in the text says what is left out, and names the id by which
`read_result` finds the whole text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from sayso.agent.messages import Message, Role
from sayso.agent.tools.definition import RESULTS, ToolMetadata
from sayso.agent.tools.environment import TextLoader, tool_environment
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.screening import MAX_INLINE_CHARS, fence_parts, fenced, marked, suspicions
from sayso.agent.tools.text_cuts import cut_ends, last_boundary, next_boundary, shorten, truncate
from sayso.agent.tools.tool import Tool, tool
from sayso.infra.concurrency import call_in_thread

#: The longest text that a history keeps in full, in characters: the longest message of Telegram
#: (WhatsApp allows 1,600). Longer texts are pasted, or come from tools.
MAX_WHOLE_CHARS = 4096
#: Characters of a longer result that later turns have in their history, about 400 tokens.
REMEMBERED_CHARS = 1600
#: The longest result that is stored for `read_result`, in characters. The middle of a longer one is
#: lost.
MAX_FULL_CHARS = 500_000
#: Replaces that middle.
_LOST_MIDDLE = (
    "\n[... {lost} characters from here on are not kept, of {total} that the tool gave ...]\n"
)
#: Finds that text again, with its two numbers.
_LOST_MIDDLE_MARK = re.compile(
    r"\n\[\.\.\. (\d+) characters from here on are not kept, of (\d+) that the tool gave \.\.\.\]\n"
)
#: The shortest text in which it is looked for. A shorter text was not cut: if it has such a
#: line, a tool wrote it.
MIN_CUT_CHARS = MAX_FULL_CHARS // 2
#: Bytes of UTF-8 that count as one token. Plain English has more; numbers,
#: JSON and Chinese have about as many.
BYTES_PER_TOKEN = 3
#: The most bytes of one character in UTF-8.
MAX_CHAR_BYTES = 4
#: Hex digits of a result's id.
ID_CHARS = 12

#: The name of the tool that reads the rest of a shortened result.
READ_RESULT = "read_result"
#: Tokens of a page that are left for the lines around its text.
FRAME_TOKENS = 150
#: The fewest tokens of a page's text.
MIN_PAGE_TOKENS = 50
#: Characters before and after a match that are shown with it.
CONTEXT_CHARS = 300
#: The longest text that can be searched for, in characters.
MAX_SEARCH_CHARS = 200

#: How the results begin that Sayso writes itself, for an outcome and for a proposal. They are JSON,
#: and stay valid JSON when they are shortened.
_JSON_STARTS = ('{"outcome": ', '{"kind": "pending_confirmation"')


def text_tokens(text: str) -> int:
    """Return an estimate of the tokens of a text, which is rather too high than too low."""
    return len(text.encode(errors="surrogatepass")) // BYTES_PER_TOKEN + 1


def shorten_for_history(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a finished turn as later turns read them.

    A result of more than MAX_WHOLE_CHARS characters becomes its beginning and end, with the whole
    text as `full_text`. This is done once, when a message is added to a history, so that later
    requests begin with the same text. A reply that repeats such a result, as that of a terminal
    tool does, becomes its beginning.
    """
    shortened: list[Message] = []
    long_results: set[str] = set()
    for message in messages:
        content = message.content
        if message.role is Role.TOOL and is_long(content) and message.text_file is None:
            long_results.add(content)
            shortened.append(_result_for_history(message))
        elif message.role is Role.ASSISTANT and content in long_results:
            shortened.append(replace(message, content=shorten(content, REMEMBERED_CHARS)))
        else:
            shortened.append(message)
    return shortened


def is_long(text: str) -> bool:
    """Return whether a history keeps only a part of a text."""
    return len(text) > MAX_WHOLE_CHARS


def part_to_store(text: str, max_chars: int = MAX_FULL_CHARS) -> str:
    """Return what is stored of a result for `read_result`.

    That is the whole text, or its beginning and end in `max_chars` characters. The end matters
    because totals, errors and the last lines of logs are there. If the text is in a *fence* (two
    lines that mark it as data for the model), the fence stays around it.
    """
    if len(text) <= max_chars:
        return text
    opening, body, closing = fence_parts(text)
    room = max_chars - len(opening) - len(closing) - len(_LOST_MIDDLE) - 2 * len(str(len(body)))
    head, tail = cut_ends(body, max(0, room))
    mark = _LOST_MIDDLE.format(lost=len(body) - len(head) - len(tail), total=len(body))
    return f"{opening}{head}{mark}{tail}{closing}"


def _result_for_history(message: Message) -> Message:
    """Return a long result as its beginning and end, with the whole text as `full_text`.

    A page of `read_result` can be read again, so it needs no full text.
    """
    if message.tool_name == READ_RESULT:
        return replace(message, content=shorten_result(message.content, REMEMBERED_CHARS))
    full_text = part_to_store(message.full_text or message.content)
    content = shorten_result(message.content, REMEMBERED_CHARS, digest_id(full_text))
    return replace(message, content=content, full_text=full_text)


def shorten_message(message: Message, max_tokens: int) -> Message:
    """Return a result in about `max_tokens` tokens, with the whole text as `full_text`.

    A result that fits is returned unchanged.
    """
    if text_tokens(message.content) <= max_tokens:
        return message
    text = message.full_text or message.content
    max_chars = len(text) * max_tokens // text_tokens(text)
    # Only the text in the file is whole, and a mark in this one names it already.
    if message.text_file is not None:
        return replace(message, content=truncate(text, max_chars))
    # A page of `read_result` can be read again itself, so it gets no reference.
    reference = ""
    if message.tool_name != READ_RESULT:
        reference = digest_id(text)
    return replace(message, content=shorten_result(text, max_chars, reference), full_text=text)


def shorten_result(text: str, max_chars: int, result_id: str = "") -> str:
    """Return beginning and end of a result in about `max_chars` characters, with a mark between.

    The mark says what is left out and, with a `result_id`, how to read on; "" for no id. The text
    is cut between lines, elements of JSON or words. The outcome of an action stays valid JSON, and
    a fence stays around its text.
    """
    if len(text) <= max_chars:
        return text
    if text.startswith(_JSON_STARTS):
        value = _shorten_json(text, max_chars, result_id)
        if value is not None:
            return value

    opening, body, closing = fence_parts(text)
    head, tail = cut_ends(body, max(0, max_chars - len(opening) - len(closing)))
    mark = _mark(len(head), len(tail), len(body), result_id)
    head = head.removesuffix("\n")
    if not opening:
        return f"{head}\n{mark}\n{tail}"
    # The model must not follow what a fence contains, so the mark is put behind it.
    return f"{opening}{head}\n[...]\n{tail}{closing}\n{mark}"


def _mark(head_chars: int, tail_chars: int, total_chars: int, result_id: str) -> str:
    """Return the mark of a result that is shown with its first and its last characters.

    `result_id`: "" where nothing can be read on.
    """
    shown = f"{head_chars + tail_chars} of {total_chars} characters are shown"
    extent = f"{shown}: the first {head_chars} and the last {tail_chars}"
    if not result_id:
        return f"[... {extent} ...]"
    call = f'{READ_RESULT}(result_id="{result_id}", offset={head_chars})'
    return f"[... {extent}. {call} reads on ...]"


def part_note(full_text: str) -> str:
    """Return what the model reads below a summary that covers only a part of a result."""
    call = f'{READ_RESULT}(result_id="{digest_id(full_text)}")'
    return f"[this is about a part of the result; {call} reads it]"


def _shorten_json(text: str, max_chars: int, result_id: str) -> str | None:
    """Return a JSON object with its long values shortened, each to a text.

    Return None if the text is no JSON object, or has so many values that it stays too long. If it
    has several actions (`actions`), each of them gets an equal share of `max_chars`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    actions = value.get("actions")
    entries = [value]
    if isinstance(actions, list):
        entries = [each for each in actions if isinstance(each, dict)]
    share = max(max_chars // max(len(entries), 1), MIN_PAGE_TOKENS)
    for entry in entries:
        for name, part in entry.items():
            part_text = part
            if not isinstance(part, str):
                part_text = json.dumps(part, ensure_ascii=False)
            if len(part_text) > share:
                entry[name] = _shorten_value(part_text, share, result_id)

    shortened = json.dumps(value, ensure_ascii=False)
    # An object of very many short values: to shorten each of them is not enough.
    if len(shortened) > 2 * max_chars:
        return None
    return shortened


def _shorten_value(text: str, max_chars: int, result_id: str) -> str:
    """Return a value of a shortened object, with a line that says how to read all of it.

    The id is that of the whole object, so no offset can be named.
    """
    value = shorten_result(text, max_chars)
    if not result_id:
        return value
    return f'{value}\n[{READ_RESULT}(result_id="{result_id}") reads it]'


def digest_id(text: str) -> str:
    """Return the id of a result: the first digits of the SHA-256 of its text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARS]


def result_id(message: Message) -> str:
    """Return the id by which `read_result` finds the whole text of a result."""
    if message.text_file is not None:
        return message.text_file.ref[:ID_CHARS]
    return digest_id(message.full_text or message.content)


def has_shortened_result(messages: Iterable[Message], max_tokens: int) -> bool:
    """Return whether the model reads only a part of any result, with `max_tokens` of each."""
    for message in messages:
        if message.role is not Role.TOOL or message.tool_name == READ_RESULT:
            continue
        if message.text_file is not None or message.full_text:
            return True
        # The exact count needs the bytes of the text. A short text is not encoded, to save time.
        may_be_long = len(message.content) * MAX_CHAR_BYTES > max_tokens * BYTES_PER_TOKEN
        if may_be_long and text_tokens(message.content) > max_tokens:
            return True
    return False


async def find_result(
    messages: Sequence[Message], wanted: str, load: TextLoader | None = None
) -> tuple[str, str]:
    """Return the name of the tool and the whole text of a result, by its id.

    `messages` are all that the model of a run may know. `load` reads the texts of earlier turns
    from their files; None: there are no files. Raises ToolError, with words for the model.
    """
    wanted = wanted.strip().lower()
    ids: dict[str, None] = {}
    for message in reversed(messages):
        if message.role is not Role.TOOL or message.tool_name == READ_RESULT:
            continue
        id_ = result_id(message)
        if id_ == wanted:
            return message.tool_name, await _whole_text(message, load)
        if message.text_file or message.full_text:
            ids[id_] = None
    known_ids = ""
    if ids:
        known_ids = f"; there are: {', '.join(ids)}"
    raise ToolError(
        f"this conversation has no result {wanted!r}{known_ids}."
        " Call its tool again if it is still needed"
    )


async def _whole_text(message: Message, load: TextLoader | None) -> str:
    """Return the whole text of a result, from its file if it has one. Raises ToolError."""
    if message.text_file is None:
        return message.full_text or message.content
    text = None
    if load is not None:
        text = await load(message.text_file)
    if text is None:
        raise ToolError(
            f"the rest of this result of {message.tool_name!r} is not stored any more."
            " Call the tool again"
        )
    return text


def with_read_result(schemas: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the schemas of tools and behind them that of `read_result`.

    If another tool has its name, return the schemas unchanged.

    The tools are the first part of a request, and the vendor's cache knows only what precedes the
    first change. So `read_result` comes last, is shown only once it is needed, and then stays for
    the rest of the conversation.
    """
    if any(schema["name"] == READ_RESULT for schema in schemas):
        return list(schemas)
    return [*schemas, read_result_tool().schema()]


@cache
def read_result_tool() -> Tool:
    """Return the tool that reads the rest of a shortened result. It works only inside of runs."""
    return tool(name=READ_RESULT, read_only=True, metadata=ToolMetadata(source=RESULTS))(
        _read_result
    )


async def _read_result(
    result_id: Annotated[str, Field(description="As named where the result was shortened")],
    offset: Annotated[int, Field(ge=0, description="First character to read")] = 0,
    search: Annotated[str, Field(description="Words to find from there on")] = "",
) -> str:
    """Read more of a tool's result that was shortened."""
    find = tool_environment().find_result
    if find is None:
        raise ToolError("there are no results to read here")
    result = await find(result_id)
    _, text, _ = fence_parts(result.text)

    max_bytes = max(result.max_tokens - FRAME_TOKENS, MIN_PAGE_TOKENS) * BYTES_PER_TOKEN
    words = search.strip()[:MAX_SEARCH_CHARS]
    if words:
        heading, page = _matches(text, words, offset, max_bytes)
    else:
        heading, page = _page(text, offset, max_bytes)

    # Of a very long result the middle was not stored.
    lost_middle: re.Match[str] | None = None
    if len(text) >= MIN_CUT_CHARS:
        lost_middle = _LOST_MIDDLE_MARK.search(text)
    if lost_middle is not None:
        not_kept = f"{lost_middle[1]} of them, after character {lost_middle.start()}, are not kept"
        heading = f"Its tool gave {lost_middle[2]}; {not_kept}. {heading}"

    # An injected instruction may begin on one page and end on the next, so the whole text is
    # screened, and not only this page.
    if len(text) <= MAX_INLINE_CHARS:
        kinds = suspicions(text)
    else:
        kinds = await call_in_thread(suspicions, text)
    if kinds:
        shown_page = marked(result.tool_name, page, kinds)
    else:
        shown_page = fenced(page)
    first_words = f"Result {result_id.strip().lower()} of {result.tool_name}"
    return f"{first_words}, {len(text)} characters. {heading}\n{shown_page}"


def _page(text: str, offset: int, max_bytes: int) -> tuple[str, str]:
    """Return a heading, and the text from `offset` on in at most `max_bytes` bytes.

    Raises ToolError for an offset behind the text.
    """
    if offset >= len(text):
        raise ToolError(f"the result has {len(text)} characters: give an offset below that")
    most = _chars_within(text[offset : offset + max_bytes], max_bytes)
    end = offset + most
    if end < len(text):
        end = last_boundary(text, offset, end)
    following = "This is its end."
    if end < len(text):
        following = f"The next ones: offset={end}."
    return f"Characters {offset} to {end}. {following}", text[offset:end]


def _matches(text: str, words: str, offset: int, max_bytes: int) -> tuple[str, str]:
    """Return a heading, and the passages from `offset` on with these words, within `max_bytes`."""
    where = "in it"
    if offset:
        where = f"from character {offset} on"
    count = sum(1 for _ in _occurrences(text, words, offset))
    if not count:
        return f"{words!r} does not occur {where}. It begins:", text[:CONTEXT_CHARS]

    passages: list[str] = []
    room = max_bytes
    # The first character that the model is not shown; None if it is shown all passages.
    unread: int | None = None
    for start, end in _places(text, words, offset):
        frame = f"[from character {start}]\n"
        room -= len(frame)
        passage = text[start:end]
        fitting = _chars_within(passage, max(room, 0))
        is_whole = fitting == len(passage)
        # Only the first passage may be shown in part: a later one can be read from its beginning.
        if not is_whole and passages:
            unread = start
            break
        passages.append(frame + passage[:fitting])
        if not is_whole:
            unread = start + fitting
            break
        room -= len(passage.encode(errors="surrogatepass"))

    heading = f"Matches of {words!r} {where}: {count}."
    if unread is not None:
        heading += f" Those before character {unread} are shown; the next ones: offset={unread}."
    return heading, "\n".join(passages)


def _occurrences(text: str, words: str, offset: int) -> Iterator[re.Match[str]]:
    """Return the places of these words in a text from `offset` on, in capitals or not."""
    return re.compile(re.escape(words), re.IGNORECASE).finditer(text, offset)


def _places(text: str, words: str, offset: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each passage with these words. Passages that overlap are one."""
    passage: tuple[int, int] | None = None
    for match in _occurrences(text, words, offset):
        earliest = max(offset, match.start() - CONTEXT_CHARS)
        latest = min(len(text), match.end() + CONTEXT_CHARS)
        start = next_boundary(text, earliest, match.start())
        end = last_boundary(text, match.end(), latest)

        if passage is None:
            passage = (start, end)
        elif start <= passage[1]:
            passage = (passage[0], end)
        else:
            yield passage
            passage = (start, end)
    if passage is not None:
        yield passage


def _chars_within(text: str, max_bytes: int) -> int:
    """Return how many characters of a text fit into this number of bytes of UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= max_bytes:
        return len(text)
    end = max_bytes
    while end and data[end] & 0xC0 == 0x80:  # this byte continues a character
        end -= 1
    return len(data[:end].decode("utf-8", "surrogatepass"))
