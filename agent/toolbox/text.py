"""Tools that count, find, change, compare and encode text.

A model without them only guesses how many words or letters a text has. No regular expression of a
user is run, because some take forever.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal
from urllib.parse import quote, unquote

from pydantic import Field

from sayso.agent.tools.tool import tool

#: Characters of the longest text.
MAX_TEXT_CHARS = 50_000
#: Lines of the longest text that is compared. The time grows with the square of their number.
MAX_COMPARED_LINES = 1_000
#: Places of a word that an answer lists.
MAX_PLACES = 20
#: Characters shown before and after a place.
CONTEXT_CHARS = 30
#: The last mark of a sentence. The expression does not match a row of marks, because a long row
#: without a space after it would be searched again from each of its marks.
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f](?=\s|$)")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS, description="The text")]
TextChange = Literal[
    "upper case",
    "lower case",
    "title case",
    "sort lines",
    "remove duplicate lines",
    "remove empty lines",
    "number lines",
    "reverse lines",
    "reverse characters",
    "trim",
    "single spaces",
    "remove accents",
    "slug",
]
Encoding = Literal["base64 encode", "base64 decode", "url encode", "url decode", "sha256", "md5"]


@tool(read_only=True)
def text_stats(text: Text) -> str:
    """Count the characters, words, sentences, lines and paragraphs of a text."""
    characters = _composed(text)
    words = [word for word in text.split() if any(map(str.isalnum, word))]
    different = len({word.casefold() for word in words})
    not_spaces = sum(not character.isspace() for character in characters)
    parts = re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n"))
    paragraphs = sum(bool(part.strip()) for part in parts)
    # A text with words but without a mark is one sentence.
    sentences = len(_SENTENCE_END.findall(text)) or int(bool(words))
    minutes = max(1, round(len(words) / 200))
    return (
        f"{len(characters)} characters ({not_spaces} without spaces), {len(words)} words ({different} different), "
        f"{sentences} sentences, {len(text.splitlines())} lines, {paragraphs} paragraphs, "
        f"{len(text.encode('utf-8', 'replace'))} bytes; about {minutes} min to read"
    )


@tool(read_only=True)
def find_in_text(
    text: Text,
    words: Annotated[str, Field(min_length=1, max_length=200)],
    whole_words: bool = False,
    match_case: bool = False,
) -> str:
    """Count how often a letter, word or phrase is in a text, and show where.

    Args:
        words: The letter, word or phrase, as it stands there
        whole_words: Whether 'cat' must not be found in 'concatenate'
        match_case: Whether capitals matter
    """
    pattern = re.escape(words)
    if whole_words:
        pattern = rf"(?<!\w){pattern}(?!\w)"
    flags = 0 if match_case else re.IGNORECASE
    places = [match.start() for match in re.finditer(pattern, text, flags)]

    times = {0: "not at all", 1: "once", 2: "twice"}.get(len(places), f"{len(places)} times")
    lines = [f"{words!r} is there {times}."]
    for place in places[:MAX_PLACES]:
        context = text[max(0, place - CONTEXT_CHARS) : place + len(words) + CONTEXT_CHARS]
        lines.append(f"- at character {place + 1}: {' '.join(context.split())!r}")
    if len(places) > MAX_PLACES:
        lines.append(f"... and {len(places) - MAX_PLACES} more")
    return "\n".join(lines)


@tool(read_only=True)
def change_text(
    text: Text, change: Annotated[TextChange, Field(description="What to do with it")]
) -> str:
    """Change a text: case, order of lines, duplicates, spaces, accents."""
    return _CHANGES[change](text)


@tool(read_only=True)
def compare_texts(before: Text, after: Text) -> str:
    """Compare two texts and show which lines differ."""
    if before == after:
        return "The two texts are the same."
    old = before.splitlines()
    new = after.splitlines()
    if max(len(old), len(new)) > MAX_COMPARED_LINES:
        raise ValueError(
            f"texts of {len(old)} and {len(new)} lines: at most {MAX_COMPARED_LINES} are compared, give a part"
        )

    difference = difflib.unified_diff(old, new, lineterm="", n=1)
    lines = list(difference)[2:]  # without the names of two files
    if not lines:
        return "The texts differ only in how their lines end."
    removed = sum(line.startswith("-") for line in lines)
    added = sum(line.startswith("+") for line in lines)
    return f"{removed} lines removed, {added} added:\n" + "\n".join(lines)


@tool(read_only=True)
def encode_text(
    text: Text, how: Annotated[Encoding, Field(description="What to make of it")]
) -> str:
    """Encode, decode or hash a text: base64, URL encoding, SHA-256, MD5."""
    try:
        return _ENCODERS[how](text)
    except ValueError as exc:
        raise ValueError(
            f"cannot {how} {text[:60]!r}: it does not decode to text in UTF-8"
        ) from exc


def _composed(text: str) -> str:
    """Return the text with each letter and its accent as one character, as people see it."""
    return unicodedata.normalize("NFC", text)


def _title_case(text: str) -> str:
    """Return the text with a capital at the beginning of each word, and small letters after it."""
    return _WORD.sub(lambda word: word[0][:1].upper() + word[0][1:].lower(), _composed(text))


def _remove_accents(text: str) -> str:
    """Return the text with plain letters in place of those with accents."""
    decomposed = unicodedata.normalize("NFD", text)
    without_accents = "".join(char for char in decomposed if not unicodedata.combining(char))
    return _composed(without_accents)


def _slug(text: str) -> str:
    """Return the text as it may stand in a URL: small letters, digits, and dashes for blanks."""
    german = text.casefold().replace("ä", "ae").replace("ö", "oe").replace("ü", "ue")
    words = re.findall(r"[^\W_]+", _remove_accents(german))
    return "-".join(words)


def _lines(change: Callable[[list[str]], Iterable[str]]) -> Callable[[str], str]:
    """Return a function that changes a text by changing the list of its lines."""
    return lambda text: "\n".join(change(text.splitlines()))


_CHANGES: Mapping[TextChange, Callable[[str], str]] = {
    "upper case": str.upper,
    "lower case": str.lower,
    "title case": _title_case,
    "sort lines": _lines(lambda lines: sorted(lines, key=str.casefold)),
    "remove duplicate lines": _lines(dict.fromkeys),
    "remove empty lines": _lines(lambda lines: [line for line in lines if line.strip()]),
    "number lines": _lines(
        lambda lines: [f"{number}. {line}" for number, line in enumerate(lines, 1)]
    ),
    "reverse lines": _lines(reversed),
    "reverse characters": lambda text: _composed(text)[::-1],
    "trim": lambda text: "\n".join(line.strip() for line in text.strip().splitlines()),
    "single spaces": lambda text: " ".join(text.split()),
    "remove accents": _remove_accents,
    "slug": _slug,
}
_ENCODERS: Mapping[Encoding, Callable[[str], str]] = {
    "base64 encode": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 decode": lambda text: base64.b64decode("".join(text.split()), validate=True).decode(),
    "url encode": lambda text: quote(text, safe=""),
    "url decode": lambda text: unquote(text, errors="strict"),
    "sha256": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "md5": lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(),
}
