"""Invisible characters, which make texts differ that look alike."""

from __future__ import annotations

import re
import unicodedata

#: The inside of a character class for controls, direction marks, fillers, blanks, variation selectors, tags and lone
#: surrogates, but not line ends and tabs. Mostly Unicode's Default_Ignorable_Code_Point.
INVISIBLE = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
#: A flag that is spelled in tags, a keycap, or one invisible character.
_SEQUENCE = re.compile(f"\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f|[0-9#*]\ufe0f\u20e3|[{INVISIBLE}]")
_JOINERS = "\u200c\u200d"
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
#: The Unicode categories of characters that a selector may change.
_VARIED = ("Lo", "So", "Sk", "Sm", "Pd", "Po")
#: Scripts whose letters change their shape beside a joiner.
_JOINING = (
    "ARABIC", "BENGALI", "DEVANAGARI", "GUJARATI", "GURMUKHI", "KANNADA", "KHMER", "MALAYALAM", "MYANMAR", "ORIYA",
    "SINHALA", "TAMIL", "TELUGU",
)  # fmt: skip


def readable(text: str) -> str:
    """Return the text with one kind of line end, and each invisible character as its code, such as `⟨U+202E⟩`.

    Joiners and selectors stay where they shape visible characters: in emoji and in the scripts that use them.
    """
    if text.isascii() and text.isprintable():
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins pairs of surrogates
    lines = _LINE_END.sub("\n", whole).replace("\t", " ")
    end_of_code = -1

    def visible(match: re.Match[str]) -> str:
        nonlocal end_of_code
        before = "⟩" if match.start() == end_of_code else lines[max(match.start() - 1, 0) : match.start()]
        if _is_shaping(match, before):
            return match[0]
        end_of_code = match.end()
        return f"⟨U+{ord(match[0]):04X}⟩"

    return _SEQUENCE.sub(visible, lines)


def _is_shaping(match: re.Match[str], before: str) -> bool:
    """Return whether the match shapes visible characters. `before` is what precedes it, which may be a code."""
    char, after = match[0], match.string[match.end() : match.end() + 1]
    if len(char) > 1:
        return True
    if char in _JOINERS:
        joins_letters = bool(before) and unicodedata.name(before, "").startswith(_JOINING)
        joins_emoji = char == "\u200d" and _is_picture(before) and after != "\ufe0f" and _is_picture(after)
        return joins_letters or joins_emoji
    if _SELECTORS.match(char):
        may_vary = not before.isascii() and not _SELECTORS.match(before)
        return may_vary and (before == "\u2139" or unicodedata.category(before) in _VARIED)
    return False


def _is_picture(char: str) -> bool:
    return char == "\ufe0f" or (not char.isascii() and unicodedata.category(char) in ("So", "Sk", "Sm"))
