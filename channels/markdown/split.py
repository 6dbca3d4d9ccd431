"""Splits Markdown into pieces within a platform's limit, without losing a character.

A cut may fall into a code block, a table or a list. Then the next piece begins with an `opening`,
the line of the fence or the head of the table, so that it looks as it would in one piece.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sayso.channels.markdown import inner_bars, with_shown_numbers

#: Returns the length of a piece as the platform counts it.
Measure = Callable[[str], int]
#: How many source characters per unit of the limit are examined:
#: formatted text is mostly shorter than its source.
_WINDOW = 4
#: How many ends are guessed, and how full a piece should be.
_GUESSES = 8
_FULL = 0.85
_FENCE = re.compile(r"^ *(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
#: The beginning of an item of a list.
_ITEM = re.compile(r" *(?:[-+*]|\d{1,9}[.)])(?:\s|$)")
#: How many spaces before a line make it code, unless it belongs to an item of a list.
_CODE_INDENT = 4
#: How many lines before a piece are looked at for the item of a list that it belongs to.
_LINES_OF_ITEM = 200
#: Spans that a cut would break: links, inline code, text between marks, addresses.
_SPAN = re.compile(
    r"""\[[^\[\]\n]*\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*\) | `[^`\n]+`
        | \*\*(?:[^*\n]|\*(?!\*))+\*\* | ~~[^~\n]+~~ | __[^_\n]+__
        | (?<![*\\\w])\*(?=[^\s*])[^*\n]+\* | (?<![_\\\w])_(?=[^\s_])[^_\n]+_(?!\w)
        | https?://\S+""",
    re.VERBOSE,
)
#: A text that at the beginning of a line would be a heading, quote, list, rule, code or link
#: reference. The escape belongs behind the first group, the digits of a numbered list.
_BLOCK_START = re.compile(
    r"""([\ \t]*(?:\d{1,9}(?=[.)](?:\s|$))|))
    (?=(?<=\d)[.)] | \#{1,6}(?:\s|$) | > | [-+*](?:\s|$) | ([-*_=])[\ \t]*(?:\2[\ \t]*)*$
        | `{3} | ~{3} | \[[^\]\n]*\]:)""",
    re.MULTILINE | re.VERBOSE,
)
_BOUNDARIES = (
    re.compile(r"\n[ \t]*\n+"),
    re.compile(r"\n(?=\S)"),
    re.compile(r"\n"),
    re.compile(r"\s+"),
)
#: Two of these letters are a flag.
_FLAG_HALVES = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_TABLE_RULE = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")


def split(md: str, limit: int, measure: Measure = len) -> list[str]:
    """Split Markdown into pieces whose `measure` is at most `limit`, in linear time.

    Cuts are between paragraphs, else lines, else words, else characters. A fenced code block is
    closed and opened again, a table that is cut between two rows gets its head again, and the rest
    of a cut line is escaped if it would begin a heading, list or the like. A list that repeats one
    number gets the numbers that it is shown with. Lines of an item that began in the piece before
    move to the left, or they would be code. Nothing else is added and no visible character is
    dropped. Raises ValueError for a limit below 1.
    """
    if limit < 1:
        raise ValueError(f"limit {limit!r} is too small: use at least 1")
    if not fits(md, limit, measure):
        md = with_shown_numbers(md)
    pieces: list[str] = []
    start = 0
    opening = ""
    lengths = _Lengths(measure)
    while start < len(md):
        indent = _lost_indent(md, start, opening)
        piece, start, opening = _Cut(md, start, opening, limit, lengths, indent=indent).best()
        pieces.append(piece)
    return pieces


def head(md: str, limit: int, measure: Measure = len) -> str:
    """Return the first piece of `split`, "" for an empty text."""
    if md:
        return _Cut(md, 0, "", limit, _Lengths(measure)).best()[0]
    return ""


def fits(md: str, limit: int, measure: Measure = len) -> bool:
    """Return whether `split` returns one piece."""
    return len(md) <= _WINDOW * limit and measure(md) <= limit


class _Lengths:
    """Measures each text only once, since measuring takes nearly all the time.

    `density` is the last measured length per source character, 0 before the first measurement.
    """

    def __init__(self, measure: Measure) -> None:
        self.of = functools.cache(measure)
        self.density = 0.0


@dataclass(frozen=True, slots=True)
class _Cut:
    """Finds the end of one piece."""

    md: str
    #: Its begin, `opening` the fence line or table head that it must repeat.
    start: int
    opening: str
    limit: int
    lengths: _Lengths
    escapes: bool = True
    #: The number of spaces that its lines lose.
    indent: int = 0

    def best(self) -> tuple[str, int, str]:
        """Return the piece, its end, and the opening of the next piece."""
        # With the escape not even one character fits.
        if self.escapes and not self._fits(self.start + 1):
            return replace(self, escapes=False).best()
        left = len(self.md) - self.start
        may_be_last = left <= _WINDOW * self.limit and left * self.lengths.density <= 2 * self.limit
        if may_be_last and self._fits(len(self.md)):
            return self._piece(len(self.md)), len(self.md), ""
        end = self._guess() or self._whole_character(self._furthest())
        if self.opening and not self._fits(end):
            # Not even one character fits beside the repeated lines, so they are left out.
            return replace(self, opening="").best()
        return self._piece(end), end, self._open_fence(end).lstrip(" ") or self._table_head(end)

    def _guess(self) -> int:
        """Return a good place to cut that nearly fills the limit, 0 if none was found.

        It is estimated from the density, which mostly takes one measurement instead of a dozen.
        """
        low = self.start
        high = min(len(self.md), self.start + _WINDOW * self.limit) + 1
        best = 0
        size = self._size()
        for number in range(_GUESSES):
            far = self.start + size
            if not low < far < high or number > _GUESSES // 2:
                far = (low + high) // 2
            if far > low:
                end = self._place(far)
            else:
                end = self.start
            if end <= max(self.start, best):
                break
            measured = self._length(end)
            if measured > self.limit:
                high = far
            else:
                low = far
                best = end
                if measured * (far - self.start) >= _FULL * self.limit * (end - self.start):
                    break
            size = self._size()
        return best

    def _size(self) -> int:
        """Return how many source characters should fill the limit."""
        density = self.lengths.density
        if density in (0, 1):
            return self.limit
        return max(1, int(0.96 * self.limit / density))

    def _place(self, far: int) -> int:
        """Return the best place to cut at or before `far`."""
        if far >= len(self.md):
            return len(self.md)
        return next(self._boundaries(far), None) or self._whole_character(far)

    def _furthest(self) -> int:
        """Return the furthest end that fits, by bisection.

        A longer text is longer, apart from a marker.
        """
        low = self.start + 1
        high = min(len(self.md), self.start + _WINDOW * self.limit)
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _boundaries(self, end: int) -> Iterator[int]:
        """Yield good places to cut, best first.

        They are the last paragraph, line or word in the second half of the piece.
        """
        middle = self.start + (end - self.start) // 2
        spans = [
            match.span()
            for match in _SPAN.finditer(self.md, self.start, min(len(self.md), end + 2048))
        ]
        for pattern in _BOUNDARIES:
            cuts = [
                match.end()
                for match in pattern.finditer(self.md, middle, end)
                if match.end() > self.start
            ]
            for cut in reversed(cuts):
                # The last span that begins before the cut.
                span = bisect.bisect_left(spans, (cut, 0)) - 1
                if (span < 0 or spans[span][1] <= cut) and not _joined(self.md, cut, self.start):
                    yield cut

    def _whole_character(self, end: int) -> int:
        """Return the last cut between two characters up to `end`.

        Inside a character longer than the piece it is `end` itself.
        """
        cut = end
        while cut > self.start and _joined(self.md, cut, self.start):
            cut -= 1
        return cut if cut > self.start else end

    def _fits(self, end: int) -> bool:
        if end - self.start > _WINDOW * self.limit:
            return False
        return self._length(end) <= self.limit

    def _length(self, end: int) -> int:
        measured = self.lengths.of(self._piece(end))
        if end - self.start > 1:
            self.lengths.density = measured / (end - self.start)
        return measured

    def _piece(self, end: int) -> str:
        text = self.opening + self._text(end)
        if end < len(self.md):
            fence = self._open_fence(end)
        else:
            fence = ""
        if not fence:
            return text
        # In an item of a list the fence is closed where it was opened:
        # further left the item would end.
        closing = " " * _indent_at(fence, 0) + _marker(fence)
        return text + ("" if text.endswith("\n") else "\n") + closing + "\n"

    def _text(self, end: int) -> str:
        text = self.md[self.start : end]
        if self.indent:
            text = _moved_left(text, self.indent)
        if not self.escapes or self.opening or not self.start or self.md[self.start - 1] == "\n":
            return text
        match = _BLOCK_START.match(text)
        if match and match.end() < len(text):
            return f"{match[0]}\\{text[match.end() :]}"
        return text

    def _open_fence(self, end: int) -> str:
        """Return the line that opened the code block in which a cut at `end` falls, or ""."""
        opened = ""
        for match in _FENCE.finditer(self.opening + self._text(end)):
            marker = match.group(1)
            if not opened:
                is_code_in_line = marker[0] == "`" and "`" in match.group(2)
                if not is_code_in_line:
                    opened = match.group().rstrip(" ") + "\n"
            elif marker.startswith(_marker(opened)) and not match.group(2).strip():
                opened = ""
        # A long fence line is not repeated.
        is_short = len(opened) + len(_marker(opened)) < self.limit // 2
        return opened if is_short else ""

    def _table_head(self, end: int) -> str:
        """Return the head of the table in which a cut at `end` falls between two rows, or ""."""
        below = self.md.find("\n", end)
        bar = self.md.find("|", end, below if below >= 0 else len(self.md))
        if bar < 0 or self.md[end - 1] != "\n" or self._open_fence(end):
            return ""
        lines = (self.opening + self._text(end)).split("\n")[:-1]
        head = ""
        for name, rule in itertools.pairwise(lines):
            if "|" not in rule:
                head = ""
            elif (
                not head
                and "|" in name
                and _TABLE_RULE.fullmatch(rule)
                and inner_bars(name) == inner_bars(rule)
            ):
                head = f"{name}\n{rule}\n"
        # A long head is not repeated.
        return head if len(head) < self.limit // 2 else ""


def _lost_indent(md: str, start: int, opening: str) -> int:
    """Return how many spaces the lines of a piece lose.

    The item of a list that they belong to is in an earlier piece.
    """
    begins_line = not start or md[start - 1] == "\n"
    if begins_line:
        first = start
    else:
        first = md.find("\n", start) + 1
    if opening[:1] in ("`", "~"):
        first = _line_start(md, max(md.rfind(opening.rstrip("\n"), 0, start), 0))
    indent = _indent_at(md, first)
    if not start or indent < _CODE_INDENT or (first == 0 and not begins_line):
        return 0

    least = indent
    end = first - 1
    for _ in range(_LINES_OF_ITEM):
        if end < 0:
            break
        line = _line_start(md, end)
        width = _indent_at(md, line)
        if line + width < end and width < least:  # a line with text
            if _ITEM.match(md, line, end):
                return indent
            least = width
        end = line - 1
    return 0


def _line_start(md: str, place: int) -> int:
    """Return where the line that a place is in, or that ends there, begins."""
    return md.rfind("\n", 0, place) + 1


def _indent_at(md: str, place: int) -> int:
    """Return the number of spaces from a place on."""
    end = place
    while md.startswith(" ", end):
        end += 1
    return end - place


def _moved_left(text: str, spaces: int) -> str:
    """Return the lines of an item of a list without so many spaces before each.

    The next item stays unchanged.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        width = min(_indent_at(line, 0), spaces)
        if line.strip() and not width and number:
            break
        lines[number] = line[width:]
    return "\n".join(lines)


def _marker(fence: str) -> str:
    """Return the run of backticks or tildes that opens and closes a fence."""
    fence = fence.lstrip(" ")
    if fence:
        return fence[: len(fence) - len(fence.lstrip(fence[0]))]
    return ""


def _joined(text: str, cut: int, start: int) -> bool:
    """Return whether a cut here would split what people see as one character.

    The piece begins at `start`.
    """
    if not 0 < cut < len(text):
        return False
    before = text[cut - 1]
    after = text[cut]
    return (
        unicodedata.category(after).startswith("M")
        or "\u200d" in (before, after)
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        or (before == "\r" and after == "\n")
        or (before == "\\" and not after.isalnum() and _has_odd_run(text[start:cut], "\\"))
        or (after in _FLAG_HALVES and _has_odd_run(text[start:cut], _FLAG_HALVES))
    )


def _has_odd_run(piece: str, chars: str) -> bool:
    """Return whether an odd number of these characters ends the piece."""
    return (len(piece) - len(piece.rstrip(chars))) % 2 == 1
