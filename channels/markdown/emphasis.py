"""Emphasis beside Chinese, Japanese and Korean text, which has no spaces between words.

CommonMark decides by spaces and punctuation whether `**` opens or closes bold text. In "**「A」**です" the closing mark
stands between punctuation and a letter, so CommonMark takes it for an opening one and shows the asterisks. The
parser here treats CJK characters on either side of a mark as it treats spaces.
"""

from __future__ import annotations

import unicodedata

from markdown_it import MarkdownIt
from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token
from markdown_it.utils import EnvType


def is_cjk(char: str) -> bool:
    """Return whether a character is as wide as Chinese, Japanese and Korean ones, or a half-width form of these."""
    return bool(char) and unicodedata.east_asian_width(char) in "WFH"


def is_inside_word(name: str, neighbor: str) -> bool:
    """Return whether a mark beside this character stands inside a word, so that 2*3*4 keeps its asterisks.

    `name` is the mark's type: "strong", "em" or "s". Between CJK letters only a single asterisk, as in
    单价*数量*折扣, is taken for arithmetic: these scripts put no spaces around bold words.
    """
    return neighbor.isalnum() and (name == "em" or not is_cjk(neighbor))


class CjkParser(ParserInline):
    """Parses inline Markdown. Works as its base class, except beside CJK characters. Keeps no state."""

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        """Append the tokens of a text to `tokens` and return them."""
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


class _State(StateInline):
    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:  # noqa: N802, N803  # the library's names
        """Return whether the marks at `start` may open or close emphasis, and how many they are."""
        end = start
        while end < self.posMax and self.src[end] == self.src[start]:
            end += 1

        # The beginning and the end of the text count as spaces.
        before = self.src[start - 1] if start > 0 else " "
        after = self.src[end] if end < self.posMax else " "

        opens = _may_face(after, before)
        closes = _may_face(before, after)
        return Scanned(
            opens and (canSplitWord or not closes or _is_punctuation(before)),
            closes and (canSplitWord or not opens or _is_punctuation(after)),
            end - start,
        )


def _may_face(inner: str, outer: str) -> bool:
    """Return whether a mark may stand between text that it formats, which ends in `inner`, and other text."""
    if isWhiteSpace(ord(inner)):
        return False
    if is_cjk(inner) or not _is_punctuation(inner):
        return True
    return isWhiteSpace(ord(outer)) or _is_punctuation(outer) or is_cjk(outer)


def _is_punctuation(char: str) -> bool:
    return isMdAsciiPunct(ord(char)) or isPunctChar(char)
