"""Shows what a text hides: invisible characters, long gaps, and letters that look like others.

A person agrees to what is visible. With such characters a preview could say more, or something
else. So they are shown as codes, such as `⟨U+202E⟩`, and long gaps as their length.
"""

from __future__ import annotations

import re
import unicodedata

from sayso.channels.i18n.lookalikes import code_of, mark_lookalikes

#: The inside of a character class for controls, direction marks, fillers, blanks, variation
#: selectors, tags, lone surrogates and codes that are no characters, but not line ends and tabs.
#: Mostly Unicode's Default_Ignorable_Code_Point and its format characters; of these the signs
#: before Arabic and Kaithi numbers are visible. No unassigned codes: the next Unicode has emoji
#: there, and fonts show a box meanwhile.
INVISIBLE = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u070f\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U00013430-\U00013442\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
#: The most blanks in a row that stay. More of them push what follows out of sight.
MAX_GAP = 20
#: The most line ends in a row that stay.
MAX_BREAKS = 4
_VISIBLE = re.compile(rf"[^\s{INVISIBLE}]")
_LONG_GAP = re.compile(rf"[^\S\n]{{{MAX_GAP + 1},}}")
_MANY_BREAKS = re.compile(rf"(?:\n[^\S\n]*){{{MAX_BREAKS + 1},}}")
#: One code several times in a row.
_SAME_CODES = re.compile(r"⟨(U\+[0-9A-F]{4,6})⟩(?:⟨\1⟩){3,}")
_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
#: A flag that is spelled in tags, a keycap, or one invisible character.
_SEQUENCE = re.compile(
    f"\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f|[0-9#*]\ufe0f\u20e3|[{INVISIBLE}]"
)
#: Characters that change the shape of their neighbors: the non-joiner and the joiner.
_JOINERS = "\u200c\u200d"
#: Variation selectors: characters that choose one of several shapes of the character before them.
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
#: The Unicode categories of characters that a selector may change.
_VARIED = ("Lo", "So", "Sk", "Sm", "Pd", "Po")
#: Scripts whose letters change their shape beside a joiner.
_JOINING = (
    "ARABIC",
    "BENGALI",
    "DEVANAGARI",
    "GUJARATI",
    "GURMUKHI",
    "KANNADA",
    "KHMER",
    "MALAYALAM",
    "MYANMAR",
    "ORIYA",
    "SINHALA",
    "TAMIL",
    "TELUGU",
)


def shows_nothing(text: str) -> bool:
    """Return whether a text has only blanks and characters that no screen shows.

    Platforms refuse it as empty.
    """
    return _VISIBLE.search(text) is None


def readable(text: str) -> str:
    """Return the text with one kind of line end and with nothing hidden.

    * An invisible character is its code. Joiners and selectors stay where they shape visible
      characters: in emoji and in the scripts that use them.
    * A letter that looks like one of another script is its code, see `mark_lookalikes`.
    * More than MAX_GAP blanks in a row, more than MAX_BREAKS line ends, and more than three equal
      codes are a number: `⟨3000 ␣⟩`.
    """
    if text.isascii() and text.isprintable() and " " * (MAX_GAP + 1) not in text:
        return text
    # This joins the halves of surrogate pairs.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    lines = _LINE_END.sub("\n", whole).replace("\t", " ")
    # Where the last code ends that was written, in `lines`.
    code_end = -1

    def visible(match: re.Match[str]) -> str:
        """Return a sequence unchanged if it shapes a visible character, else its code."""
        nonlocal code_end
        before = lines[max(match.start() - 1, 0) : match.start()]
        # The character before became a code, which ends in a bracket.
        if match.start() == code_end:
            before = "⟩"
        if _is_shaping(match, before):
            return match[0]
        code_end = match.end()
        return code_of(match[0])

    codes = _SEQUENCE.sub(visible, lines)
    return _without_gaps(mark_lookalikes(codes))


def _without_gaps(text: str) -> str:
    """Return the text with long runs of white space, and of one code, as their number."""
    text = _SAME_CODES.sub(lambda run: f"⟨{len(run[0]) // (len(run[1]) + 2)} {run[1]}⟩", text)
    text = _LONG_GAP.sub(lambda run: f"⟨{len(run[0])} ␣⟩", text)
    return _MANY_BREAKS.sub(lambda run: f"\n⟨{run[0].count(chr(10))} ⏎⟩\n", text)


def _is_shaping(match: re.Match[str], before: str) -> bool:
    """Return whether the match shapes visible characters.

    `before` is the character before it, "" at the beginning.
    """
    char = match[0]
    after = match.string[match.end() : match.end() + 1]
    # A whole flag or keycap.
    if len(char) > 1:
        return True
    if char in _JOINERS:
        joins_letters = bool(before) and unicodedata.name(before, "").startswith(_JOINING)
        is_between_pictures = _is_picture(before) and after != "\ufe0f" and _is_picture(after)
        return joins_letters or (char == "\u200d" and is_between_pictures)
    if _SELECTORS.match(char):
        may_vary = not before.isascii() and not _SELECTORS.match(before)
        return may_vary and (before == "\u2139" or unicodedata.category(before) in _VARIED)
    return False


def _is_picture(char: str) -> bool:
    """Return whether a character is a part of an emoji: a symbol, or the selector behind one."""
    if char == "\ufe0f":
        return True
    return not char.isascii() and unicodedata.category(char) in ("So", "Sk", "Sm")
