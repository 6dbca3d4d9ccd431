"""Unseen: characters that nobody sees, and that make two texts differ which look alike."""

from __future__ import annotations

import re
import unicodedata

#: Controls, marks of direction, fillers and blanks, variation selectors, tags, and halves of a character: the inside of
#: a character class. Ends of lines and tabs are no part of it. Mostly Unicode's Default_Ignorable_Code_Point.
UNSEEN = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)

_LINES = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
#: A flag that is spelled in tags, a keycap, or one character that nobody sees.
_SEQUENCE = re.compile(f"\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f|[0-9#*]\ufe0f\u20e3|[{UNSEEN}]")
_JOINERS = "\u200c\u200d"
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
#: Scripts whose letters take another shape beside a joiner.
_JOINING = (
    "ARABIC", "BENGALI", "DEVANAGARI", "GUJARATI", "GURMUKHI", "KANNADA", "KHMER", "MALAYALAM", "MYANMAR", "ORIYA",
    "SINHALA", "TAMIL", "TELUGU",
)  # fmt: skip


def readable(text: str) -> str:
    """The text as it reads: one kind of line end, and what nobody sees by its code, as in `⟨U+202E⟩`.

    Joiners and selectors stay where they shape what is seen: in emoji and in the scripts that know them.
    """
    if text.isascii() and text.isprintable():
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # two halves side by side are one
    lines = _LINES.sub("\n", whole).replace("\t", " ")
    shown_up_to = -1

    def shown(found: re.Match[str]) -> str:
        nonlocal shown_up_to
        before = "⟩" if found.start() == shown_up_to else lines[max(found.start() - 1, 0) : found.start()]
        if _belongs(found, before):
            return found[0]
        shown_up_to = found.end()
        return f"⟨U+{ord(found[0]):04X}⟩"

    return _SEQUENCE.sub(shown, lines)


def _belongs(found: re.Match[str], before: str) -> bool:
    """Whether it is a part of what is seen around it; what is before it may be a code by now."""
    char, after = found[0], found.string[found.end() : found.end() + 1]
    if len(char) > 1:
        return True
    if char in _JOINERS:
        return _joins(before) or (char == "\u200d" and _is_picture(before) and after != "\ufe0f" and _is_picture(after))
    if _SELECTORS.match(char):
        return not before.isascii() and not _SELECTORS.match(before) and _is_shaped(before)
    return False


def _joins(char: str) -> bool:
    return unicodedata.name(char, "").startswith(_JOINING) if char else False


def _is_picture(char: str) -> bool:
    return char == "\ufe0f" or (not char.isascii() and unicodedata.category(char) in ("So", "Sk", "Sm"))


def _is_shaped(char: str) -> bool:
    return char == "\u2139" or unicodedata.category(char) in ("Lo", "So", "Sk", "Sm", "Pd", "Po")
