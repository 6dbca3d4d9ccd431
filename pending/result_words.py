"""Results and errors of tools as text for people. JSON, HTML and XML are put in words."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from sayso.pending.error_texts import own_words, readable_text
from sayso.pending.executors import Ambiguous, EffectFailed, NotFound, as_json
from sayso.pending.json_words import decode, decode_cut, decode_nested, in_line, in_lines
from sayso.pending.markup_words import document_value, is_markup, is_page, markup_start, page_lines

#: Lines of a page of HTML that people read.
MAX_PAGE_LINES = 40
#: Characters of a page that an error quotes.
MAX_QUOTED_PAGE_CHARS = 200
#: Characters of a literal of Python that is read.
MAX_LITERAL_CHARS = 20_000
#: After how many brackets that begin no JSON the rest of a text is not searched. An error of `json`
#: counts the lines before it, which takes time in proportion to the text.
MAX_NO_JSON = 1000
#: Characters at the beginning of a result that are searched for those that no text has.
BINARY_CHARS = 2000
#: The share of such characters from which on a result is binary data.
BINARY_SHARE = 0.1

#: Stands for the rest of a text that was cut off.
_CUT = "[…]"
#: How the rest of a result is marked that was cut for a model.
_CUT_MARK = re.compile(
    r"\s*\[\.\.\. \d+ of \d+ characters are shown:.*| \[cut, was \d+ characters\]\Z| \[…\]\Z",
    re.DOTALL,
)
#: What may stand before the JSON of an answer: a byte order mark, and what keeps a browser from
#: running it.
_BEFORE_JSON = re.compile(r"\A\ufeff?\s*(?:\)\]\}',?\s*)?")
#: The first or last line of a block of code. The first one may name a language.
_FENCE = re.compile(r"^```[ \t]*(\w*)[ \t]*$", re.MULTILINE)
#: Base64 of more than 1,500 bytes. Shorter ones may be a key that a person wants.
_BASE64 = re.compile(r"(?:data:[\w/+.-]{1,100};base64,)?[A-Za-z0-9+/_-]{2000,}={0,2}")
#: Characters that no text has.
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\ufffd]")
#: The beginning of a JSON object, or of a list of objects, at the beginning of a line, perhaps
#: behind a label.
_IN_LINE = re.compile(r"^(?P<label>[^\n{}\[\]\"]{1,80}:)?[ \t]*(?=[{\[])", re.MULTILINE)
#: The same behind any other text.
_BEHIND_TEXT = re.compile(r'(?=\{\s*"[^"\n]*"\s*:|\[\s*\{\s*")(?P<label>)')
_decode = json.JSONDecoder(parse_float=str).raw_decode
#: Results that say no more than that an effect took place, as JSON.
_SAY_NOTHING = frozenset(("true", "null", '""', "[]", "{}"))


def effect_in_words(text: str) -> str:
    """Return the result of an effect as text for people, like `result_in_words`.

    Return "" for a result which says no more than that the effect took place.
    """
    if text.strip() in _SAY_NOTHING:
        return ""
    words = result_in_words(text)
    # "nothing" stands for an empty value, and would read as if nothing was done.
    if words == "nothing" and text != "nothing":
        return ""
    return words


def result_in_words(text: str) -> str:
    """Return a result as text for people: JSON, HTML and XML in words, other text unchanged."""
    bare = _BEFORE_JSON.sub("", text)
    try:
        value = decode_nested(decode(bare))
    except (ValueError, RecursionError):
        return _text_in_words(text, bare)
    if isinstance(value, dict):
        return _object_in_words(value)
    if isinstance(value, list) and value:
        return in_lines(value)
    if isinstance(value, str):
        return _text_in_words(value, value)
    return in_line(value)


def _object_in_words(value: dict[str, Any]) -> str:
    """Return a JSON object in words. It may be a typed result of a tool (`ToolResult`)."""
    kind = value.get("kind")
    entity = str(value.get("entity") or "")
    query = str(value.get("query") or "")
    if kind == "ambiguous":
        return Ambiguous(entity, query, list(value.get("matches") or [])).in_words
    if kind == "not_found":
        return NotFound(entity, query).in_words
    for key in ("preview", "message"):
        if kind and isinstance(value.get(key), str):
            return str(value[key])
    # The first field of a typed result is its kind, which is for models. Anywhere else a field of
    # this name says something.
    first_key = next(iter(value), "")
    if first_key == "kind":
        value.pop("kind")
    return in_lines(value)


def words_for_person(error: BaseException) -> str:
    """Return what an executor's error says to the user.

    Return "" for an unexpected error: its text stays private. EffectFailed says its own text.
    Errors of other packages (`agent.ToolError`) have an attribute of this name.
    """
    if isinstance(error, EffectFailed):
        return readable_text(error) or ""
    words = own_words(error)
    start = markup_start(words)
    if start >= 0:
        # A proxy answered with a page, in place of the API.
        page = " ".join(page_lines(words[start:]))
        if len(page) > MAX_QUOTED_PAGE_CHARS:
            page = f"{page[:MAX_QUOTED_PAGE_CHARS]}…"
        words = f"{words[:start]}{page}"
    return json_in_words(words, is_quoted=True)


def _text_in_words(text: str, bare: str) -> str:
    """Return a text that is no JSON as a whole, for people.

    `bare` is the text without what may stand before JSON.
    """
    beginning = text[:BINARY_CHARS]
    if len(_NO_TEXT.findall(beginning)) > BINARY_SHARE * len(beginning):
        return _left_out(len(text.encode()))
    if is_markup(bare):
        return _markup_in_words(bare)
    page_start = markup_start(text)
    ends_with_page = text.rstrip().lower().endswith("</html>")
    if page_start >= 0 and ends_with_page:
        return text[:page_start] + _markup_in_words(text[page_start:])
    if bare[:1] in ("{", "["):
        rows = _rows(bare)
        if rows:
            return in_lines(rows)
        words = _almost_json_in_words(_CUT_MARK.sub("", bare))
        if words:
            return words

    pieces = []
    rest_start = 0
    for first, last in _code_blocks(text):
        block = text[first.start() : last.end()]
        pieces.append(json_in_words(text[rest_start : first.start()]))
        pieces.append(_code_in_words(block, first, last))
        rest_start = last.end()
    rest = text[rest_start:]
    has_open_block = "```" in rest
    if not has_open_block:
        rest = json_in_words(rest)
    return _BASE64.sub(_base64_left_out, "".join([*pieces, rest]))


def _rows(text: str) -> list[Any]:
    """Return the JSON objects of a text that has one in each line, as logs have.

    Return an empty list for any other text.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        rows = [decode(line) for line in lines]
    except (ValueError, RecursionError):
        return []
    if all(isinstance(row, dict) for row in rows):
        return rows
    return []


def _markup_in_words(text: str) -> str:
    """Return a page of HTML as the lines that people see, a document of XML as its fields."""
    if not is_page(text):
        return in_lines(document_value(text))
    lines = page_lines(text)
    more = len(lines) - MAX_PAGE_LINES
    if more > 0:
        lines = [*lines[:MAX_PAGE_LINES], f"and {more} more lines"]
    return "\n".join(lines)


def _almost_json_in_words(text: str) -> str:
    """Return an object or list that Python has printed, or whose end is cut off, in words.

    Return "" for any other text.
    """
    for read, ending in ((_python_literal, ""), (decode_cut, f"\n{_CUT}")):
        try:
            value = read(text)
        except (ValueError, RecursionError):
            continue
        if value and _is_object(value):
            return in_lines(value) + ending
    return ""


def _python_literal(text: str) -> Any:
    """Return the JSON value of an object or list as Python prints it.

    Raises ValueError for any other text.
    """
    if len(text) > MAX_LITERAL_CHARS:
        raise ValueError(f"{len(text):,} characters are more than are read")
    try:
        return decode(as_json(ast.literal_eval(text)))
    except (SyntaxError, TypeError, MemoryError) as exc:
        raise ValueError("no literal") from exc


def _code_blocks(text: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Yield the first and the last line of each block of code."""
    first = None
    for line in _FENCE.finditer(text):
        if first is None:
            first = line
        elif not line[1]:
            yield first, line
            first = None


def _code_in_words(block: str, first: re.Match[str], last: re.Match[str]) -> str:
    """Return a block of JSON in words. Any other block is unchanged: it may be an example."""
    if first[1].lower() != "json":
        return block
    try:
        value = decode(first.string[first.end() : last.start()])
    except (ValueError, RecursionError):
        return block
    if isinstance(value, dict | list):
        return in_lines(value)
    return block


def _base64_left_out(match: re.Match[str]) -> str:
    """Return the note that stands in place of base64.

    A long row of one kind of characters is no base64, and is returned unchanged.
    """
    data = match[0].rpartition(",")[2]
    is_base64 = all(re.search(kind, data) for kind in ("[A-Z]", "[a-z]", "[0-9]"))
    if not is_base64:
        return match[0]
    return _left_out(len(data) * 3 // 4)


def _left_out(size: int) -> str:
    return f"(binary data, {size} bytes, is left out)"


def json_in_words(text: str, *, is_quoted: bool = False) -> str:
    """Return a text with the JSON objects that end their lines in words, for people.

    Each begins a line, perhaps behind a label such as "Created:". With `is_quoted`
    the text is an error that quotes an answer of another system: then an object may stand behind
    any text, and one that is cut off is left out.

    A part that is no JSON is not read again from a bracket inside it. After MAX_NO_JSON such parts
    the rest of the text is unchanged. So the work grows with the text, not with its square.
    """
    start_pattern = _BEHIND_TEXT if is_quoted else _IN_LINE
    decode_at = _decode_one if is_quoted else _decode_row
    pieces: list[str] = []
    rest_start = 0  # the text before it is in `pieces`
    no_json_until = 0  # a part before it is no JSON
    failures = 0
    for start in start_pattern.finditer(text):
        is_inside_object = start.end() < rest_start
        if is_inside_object or start.end() < no_json_until:
            continue
        try:
            values, end = decode_at(text, start.end())
        except (ValueError, RecursionError) as exc:
            if is_quoted:
                return "".join([*pieces, text[rest_start : start.end()], _CUT])
            failures += 1
            if failures == MAX_NO_JSON:
                break
            # Errors of deep nesting and of very long numbers do not say where they are. Then the
            # rest of the text is unchanged.
            no_json_until = getattr(exc, "pos", len(text))
            continue

        is_in_place = is_quoted or _ends_line(text, end)
        if is_in_place and all(map(_is_object, values)):
            write = in_line if is_quoted or start["label"] else in_lines
            pieces.append(text[rest_start : start.end()])
            pieces.append("\n".join(map(write, values)))
            rest_start = end
    return "".join([*pieces, text[rest_start:]])


def _decode_one(text: str, at: int) -> tuple[list[Any], int]:
    """Return the JSON value at a place, and where it ends. Raises ValueError and RecursionError."""
    value, end = _decode(text, at)
    return [value], end


def _decode_row(text: str, at: int) -> tuple[list[Any], int]:
    """Return the JSON values that directly follow each other, and where the last one ends.

    Raises ValueError and RecursionError.
    """
    values, end = _decode_one(text, at)
    while text[end : end + 1] in ("{", "["):
        value, end = _decode(text, end)
        values.append(value)
    return values, end


def _is_object(value: Any) -> bool:
    """Return whether a value is a JSON object or a list with one."""
    if isinstance(value, list):
        return any(isinstance(each, dict) for each in value)
    return isinstance(value, dict)


def _ends_line(text: str, at: int) -> bool:
    """Return whether only white space follows in the line of this position."""
    line_end = text.find("\n", at)
    if line_end < 0:
        line_end = len(text)
    return not text[at:line_end].strip()
