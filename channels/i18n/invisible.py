"""Shows what a text hides: invisible characters, long gaps, and letters that look like others.

A person agrees to what is visible. With such characters a preview could say more, or something
else. So they are shown as codes, such as `⟨U+202E⟩`, and long gaps as their length.
"""

from __future__ import annotations

import re
import unicodedata

from sayso.channels.i18n.lookalikes import code_of, mark_lookalikes

#: The inside of a character class: what no screen shows, but not line ends and tabs. It is mostly
#: Unicode's Default_Ignorable_Code_Point and its format characters. Format characters before Arabic
#: and Kaithi numbers are left out, because they are visible. Unassigned codes are left out too: the
#: next Unicode has emoji there, and fonts show a box meanwhile.
INVISIBLE = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"  # controls
    "\u00ad"  # soft hyphen
    "\u034f"  # combining grapheme joiner
    "\u061c"  # direction mark of Arabic
    "\u070f"  # abbreviation mark of Syriac
    "\u115f\u1160\u3164\uffa0"  # fillers of Korean
    "\u17b4\u17b5"  # inherent vowels of Khmer
    "\u180b-\u180f"  # selectors and vowel separator of Mongolian
    "\u200b-\u200f"  # zero-width space, joiners, direction marks
    "\u202a-\u202e"  # embeddings and overrides of the direction
    "\u2060-\u206f"  # word joiner, signs of formulas, isolates of the direction
    "\u2800"  # blank of Braille
    "\ud800-\udfff"  # lone surrogates
    "\ufdd0-\ufdef\ufffe\uffff"  # codes that are no characters, of the first plane
    "\ufe00-\ufe0f"  # variation selectors
    "\ufeff"  # byte order mark
    "\ufff0-\ufffb"  # reserved codes, marks of annotations
    "\U00013430-\U00013442"  # layout and blanks of hieroglyphs
    "\U00016fe4"  # filler of Khitan
    "\U0001bca0-\U0001bca3"  # layout of shorthand
    "\U0001d159\U0001d173-\U0001d17a"  # empty note head, beams and slurs of music
    "\U000e0000-\U000e0fff"  # tags, more variation selectors
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


def _flag_of(region: str) -> str:
    """Return the flag of a region: a black flag, the region's code in tags, and the last tag."""
    tags = "".join(chr(0xE0000 + ord(letter)) for letter in region)
    return f"\U0001f3f4{tags}\U000e007f"


#: The flags of England, Scotland and Wales. Behind a black flag, fonts show nothing for any other
#: tags, which could spell a whole hidden text.
_REGION_FLAGS = "|".join(_flag_of(region) for region in ("gbeng", "gbsct", "gbwls"))
#: A keycap, such as 1️⃣: a character, a selector, and the key around it.
_KEYCAP = "[0-9#*]\ufe0f\u20e3"
#: The flag of a region, a keycap, or one invisible character.
_SEQUENCE = re.compile(f"{_REGION_FLAGS}|{_KEYCAP}|[{INVISIBLE}]")
#: Characters that change the shape of their neighbors: the non-joiner and the joiner.
_JOINERS = "\u200c\u200d"
#: Variation selectors: characters that choose one of several shapes of the character before them.
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
#: The Unicode categories of characters that a selector may change: Chinese characters (Lo), emoji
#: (So), skin tones (Sk), arrows and signs of formulas (Sm), and the emoji 〰 (Pd) and ‼ (Po).
_VARIED = ("Lo", "So", "Sk", "Sm", "Pd", "Po")
#: Scripts whose letters change their shape beside a joiner. In others that have joiners, such as
#: Syriac, a joiner is shown as its code.
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
    return _VISIBLE.search(_join_surrogates(text)) is None


def readable(text: str) -> str:
    """Return the text with one kind of line end and with nothing hidden.

    * An invisible character is its code. Joiners and selectors stay where they shape visible
      characters: in emoji, and joiners in the scripts of `_JOINING`.
    * A letter that looks like one of another script is its code, see `mark_lookalikes`.
    * More than MAX_GAP blanks in a row, more than MAX_BREAKS line ends, and more than three equal
      codes are a number: `⟨3000 ␣⟩`.
    """
    if text.isascii() and text.isprintable() and " " * (MAX_GAP + 1) not in text:
        return text
    lines = _LINE_END.sub("\n", _join_surrogates(text)).replace("\t", " ")
    # Where the last character ends that became a code, in `lines`.
    code_end = -1

    def sequence_or_code(match: re.Match[str]) -> str:
        """Return what was found unchanged if it shapes a visible character, else its code."""
        nonlocal code_end
        before = lines[max(match.start() - 1, 0) : match.start()]
        # The character before is a code in the result, which ends in a bracket.
        if match.start() == code_end:
            before = "⟩"
        if _is_shaping(match, before):
            return match[0]
        code_end = match.end()
        return code_of(match[0])

    with_codes = _SEQUENCE.sub(sequence_or_code, lines)
    # The letters of a code are in no word: its bracket and its plus sign part them from others.
    return _without_gaps(mark_lookalikes(with_codes))


def _join_surrogates(text: str) -> str:
    """Return the text with two adjacent halves of a surrogate pair as the character they form."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _without_gaps(text: str) -> str:
    """Return the text with long runs of white space, and of one code, as their number."""
    text = _SAME_CODES.sub(_counted_codes, text)
    text = _LONG_GAP.sub(lambda run: f"⟨{len(run[0])} ␣⟩", text)
    return _MANY_BREAKS.sub(lambda run: f"\n⟨{run[0].count(chr(10))} ⏎⟩\n", text)


def _counted_codes(run: re.Match[str]) -> str:
    """Return a run of one code as the number of codes and the code."""
    code = run[1]
    count = len(run[0]) // len(f"⟨{code}⟩")
    return f"⟨{count} {code}⟩"


def _is_shaping(match: re.Match[str], before: str) -> bool:
    """Return whether a match of _SEQUENCE shapes visible characters.

    `before` is the character before it, "" at the beginning.
    """
    found = match[0]
    after = match.string[match.end() : match.end() + 1]
    is_flag_or_keycap = len(found) > 1
    if is_flag_or_keycap:
        return True
    if found in _JOINERS:
        joins_letters = bool(before) and unicodedata.name(before, "").startswith(_JOINING)
        is_between_pictures = _is_picture(before) and after != "\ufe0f" and _is_picture(after)
        return joins_letters or (found == "\u200d" and is_between_pictures)
    if _SELECTORS.match(found):
        may_vary = not before.isascii() and not _SELECTORS.match(before)
        # The emoji "information" (U+2139) is a letter to Unicode.
        return may_vary and (before == "\u2139" or unicodedata.category(before) in _VARIED)
    return False


def _is_picture(char: str) -> bool:
    """Return whether a character is a part of an emoji: a symbol, or the selector behind one."""
    if char == "\ufe0f":
        return True
    return not char.isascii() and unicodedata.category(char) in ("So", "Sk", "Sm")
