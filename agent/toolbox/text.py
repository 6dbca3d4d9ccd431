"""Tools that count, find, change, compare and encode text, which models only guess at.

No regular expression of a user is run: it could take forever.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Annotated, Literal
from urllib.parse import quote, unquote

from pydantic import Field

from sayso.agent.tools.tool import tool

#: Characters of the longest text.
MAX_TEXT_CHARS = 50_000
#: Lines of the longest text that is compared: comparing takes time as the square of them.
MAX_COMPARED_LINES = 1_000
#: Places that an answer lists.
MAX_PLACES = 20
#: Characters shown around a place.
CONTEXT_CHARS = 30
#: The last mark of a sentence. It does not match a whole row of marks: a long row without a space
#: after it would be searched again from each of its marks.
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
    paragraphs = sum(
        bool(part.strip()) for part in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n"))
    )
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
    if whole_words:
        pattern = rf"(?<!\w){re.escape(words)}(?!\w)"
    else:
        pattern = re.escape(words)
    places = [
        match.start() for match in re.finditer(pattern, text, 0 if match_case else re.IGNORECASE)
    ]
    times = {0: "not at all", 1: "once", 2: "twice"}.get(len(places), f"{len(places)} times")
    parts = [
        text[max(0, at - CONTEXT_CHARS) : at + len(words) + CONTEXT_CHARS]
        for at in places[:MAX_PLACES]
    ]
    shown = zip(places, (" ".join(part.split()) for part in parts), strict=False)
    listed = "".join(f"\n- at character {at + 1}: {part!r}" for at, part in shown)
    more = ""
    if len(places) > MAX_PLACES:
        more = f"\n... and {len(places) - MAX_PLACES} more"
    return f"{words!r} is there {times}.{listed}{more}"


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
    lines = list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]
    if not lines:
        return "The texts differ only in how their lines end."
    removed, added = (sum(line.startswith(sign) for line in lines) for sign in "-+")
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


def _remove_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize(
        "NFC", "".join(char for char in decomposed if not unicodedata.combining(char))
    )


def _slug(text: str) -> str:
    german = text.casefold().replace("ä", "ae").replace("ö", "oe").replace("ü", "ue")
    return "-".join(re.findall(r"[^\W_]+", _remove_accents(german)))


_CHANGES: Mapping[TextChange, Callable[[str], str]] = {
    "upper case": str.upper,
    "lower case": str.lower,
    "title case": lambda text: _WORD.sub(
        lambda word: word[0][:1].upper() + word[0][1:].lower(), _composed(text)
    ),
    "sort lines": lambda text: "\n".join(sorted(text.splitlines(), key=str.casefold)),
    "remove duplicate lines": lambda text: "\n".join(dict.fromkeys(text.splitlines())),
    "remove empty lines": lambda text: "\n".join(
        line for line in text.splitlines() if line.strip()
    ),
    "number lines": lambda text: "\n".join(
        f"{at}. {line}" for at, line in enumerate(text.splitlines(), 1)
    ),
    "reverse lines": lambda text: "\n".join(reversed(text.splitlines())),
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
