"""Emphasis next to text of unspaced scripts, which put no spaces between words.

These scripts are Chinese, Japanese and Korean, those of Southeast Asia, and also Arabic and Hebrew,
which write particles and prefixes without a space.

CommonMark decides by spaces and punctuation whether `**` opens or closes bold text. In "**「A」**です"
the closing mark stands between punctuation and a letter, so CommonMark takes it for an opening one
and shows the asterisks. The parser here treats characters of these scripts on either side of a mark
as it treats spaces.
"""

from __future__ import annotations

import re
import unicodedata

from markdown_it import MarkdownIt
from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token
from markdown_it.utils import EnvType

#: Hebrew and Arabic; Thai, Lao, Tibetan and Burmese; Khmer; the presentation forms of Hebrew and
#: Arabic.
_UNSPACED = re.compile(
    "[\u0590-\u06ff\u0750-\u077f\u08a0-\u08ff\u0e00-\u109f\u1780-\u17ff"
    "\ufb1d-\ufdcf\ufdf0-\ufdff\ufe70-\ufefc]"
)


def is_unspaced(char: str) -> bool:
    """Return whether a character is of a script whose words follow each other without spaces.

    These are wide characters, such as Chinese ones, their half-width forms, and the scripts of
    `_UNSPACED`. False for "", which stands for no character.
    """
    if not char:
        return False
    is_east_asian = unicodedata.east_asian_width(char) in "WFH"
    return is_east_asian or _UNSPACED.match(char) is not None


def is_letter(char: str) -> bool:
    """Return whether a character is a letter, a digit, or a vowel sign of an unspaced script.

    False for "".
    """
    return char.isalnum() or (is_unspaced(char) and unicodedata.category(char).startswith("M"))


def is_inside_word(name: str, neighbor: str) -> bool:
    """Return whether a mark next to this character stands inside a word, as the stars in 2*3*4.

    `name` is the mark's type: "strong", "em" or "s". Between letters of unspaced scripts only a
    single asterisk, as in 单价*数量*折扣, is taken for arithmetic.
    """
    if name == "em":
        return is_letter(neighbor)
    return joins_word(neighbor)


def joins_word(neighbor: str) -> bool:
    """Return whether a character next to a mark is a letter of a script with spaces.

    The mark then touches a word. In an unspaced script no mark can avoid touching letters.
    """
    return is_letter(neighbor) and not is_unspaced(neighbor)


class UnspacedParser(ParserInline):
    """Parses inline Markdown as its base class does, except beside unspaced scripts.

    Keeps no state.
    """

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        """Append the tokens of a text to `tokens` and return them."""
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


class _State(StateInline):
    """The state of one text. The library asks it for each mark whether it opens or closes."""

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:  # noqa: N802, N803  # the library's names
        """Return whether the marks at `start` may open or close emphasis, and how many they are."""
        end = start
        while end < self.posMax and self.src[end] == self.src[start]:
            end += 1

        # The beginning and the end of the text count as spaces.
        before = self.src[start - 1] if start > 0 else " "
        after = self.src[end] if end < self.posMax else " "

        mark = self.src[start]
        marks = mark * (end - start)
        # As in src/_build_ and in __init__.py, the underscores belong to a name.
        continues_path = _continues_path(self.src, start, marks)
        is_continued = mark == "_" and _CONTINUATION.match(self.src, end) is not None
        opens = _may_stand_between(after, before) and not continues_path
        closes = _may_stand_between(before, after) and not is_continued
        return Scanned(
            can_open=opens and (canSplitWord or not closes or _is_punctuation(before)),
            can_close=closes and (canSplitWord or not opens or _is_punctuation(after)),
            length=len(marks),
        )


#: What follows a name such as __init__ in a path or a call.
_CONTINUATION = re.compile(r"\.\w|[/\\(]")


def _continues_path(text: str, start: int, marks: str) -> bool:
    """Return whether the marks at `start` continue a path or a name.

    Examples are src/_build_, src/*/test* and obj.__class__.
    """
    before = text[max(start - 2, 0) : start]
    if before[-1:] in ("/", "\\"):
        return marks == "*" or marks.startswith("_")
    return marks.startswith("_") and re.fullmatch(r"\w\.", before) is not None


def _may_stand_between(inner: str, outer: str) -> bool:
    """Return whether a mark may stand between formatted text and other text.

    `inner` is the character of the formatted text beside the mark, `outer` the one of the other
    text. By CommonMark no space is beside the mark inside. After punctuation inside, there must be
    a space or punctuation outside; here a character of an unspaced script counts as these.
    """
    if isWhiteSpace(ord(inner)):
        return False
    if is_unspaced(inner) or not _is_punctuation(inner):
        return True
    return isWhiteSpace(ord(outer)) or _is_punctuation(outer) or is_unspaced(outer)


def _is_punctuation(char: str) -> bool:
    return isMdAsciiPunct(ord(char)) or isPunctChar(char)
