"""Splits Markdown into pieces within a platform's limit, without losing a character.

A piece is the text of one message. The limit counts what the platform counts, such as the
characters of the formatted text, so only measuring shows how much source fits. Measuring a text
means to format it, which takes nearly all the time: `_Cut` guesses a good end, measures it, and
corrects the guess.

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

from sayso.channels.markdown.list_numbers import with_shown_numbers
from sayso.channels.markdown.tables import inner_bars

#: Returns the length of a piece as the platform counts it.
Measure = Callable[[str], int]
#: How many source characters are examined for each character of the limit: formatted text is mostly
#: shorter than its source.
_WINDOW = 4
#: How many ends of a piece are guessed at most.
_GUESSES = 8
#: The share of the limit that a piece should fill. A guess that does is not corrected.
_FULL = 0.85
#: The share of the limit that a guess aims at, so that it does not exceed the limit.
_AIM = 0.96
#: A line that opens or closes a code block: its marker, and what stands behind the marker.
_FENCE = re.compile(r"^ *(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
#: The beginning of an item of a list.
_ITEM = re.compile(r" *(?:[-+*]|\d{1,9}[.)])(?:\s|$)")
#: How many spaces before a line make it code, unless it belongs to an item of a list.
_CODE_INDENT = 4
#: How many lines before a piece are looked at for the item of a list that it belongs to.
_LINES_OF_ITEM = 200
#: How many characters behind a piece are looked at for the end of a span that begins in it.
_SPAN_CHARS = 2048
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
#: Where a text may be cut, the best places first: after a paragraph, before a line that is not
#: indented, before any line, after a word.
_BOUNDARIES = (
    re.compile(r"\n[ \t]*\n+"),
    re.compile(r"\n(?=\S)"),
    re.compile(r"\n"),
    re.compile(r"\s+"),
)
#: Two of these letters are a flag.
_FLAG_HALVES = "".join(map(chr, range(0x1F1E6, 0x1F200)))
#: The line below the head of a table, such as "|---|:-:|".
_TABLE_RULE = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")


def split(md: str, limit: int, measure: Measure = len) -> list[str]:
    """Split Markdown into pieces whose `measure` is at most `limit`, in linear time.

    Returns no piece for an empty text. Raises ValueError for a limit below 1.

    Cuts are between paragraphs, else lines, else words, else characters. These are the only
    additions, and no visible character is dropped:

    * a code block is closed with a fence, and opened again in the next piece;
    * a table that is cut between two rows gets its head again;
    * the rest of a cut line is escaped if it would begin a heading, a list or the like;
    * a list that repeats one number gets the numbers that it is shown with;
    * the lines of an item of a list that began in an earlier piece lose their indent, since without
      the item they would be code.
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
        cut = _Cut(md, start, opening, limit, lengths, indent=indent)
        piece, start, opening = cut.best()
        pieces.append(piece)
    return pieces


def head(md: str, limit: int, measure: Measure = len) -> str:
    """Return the first piece of `split`, "" for an empty text."""
    if not md:
        return ""
    piece, _, _ = _Cut(md, 0, "", limit, _Lengths(measure)).best()
    return piece


def fits(md: str, limit: int, measure: Measure = len) -> bool:
    """Return whether `split` returns one piece."""
    return len(md) <= _WINDOW * limit and measure(md) <= limit


class _Lengths:
    """Measures texts, each of them once. Lives as long as one text is split."""

    def __init__(self, measure: Measure) -> None:
        #: Returns the length of a text.
        self.of = functools.cache(measure)
        #: The last measured length per source character, 0.0 before the first measurement.
        self.density = 0.0


@dataclass(frozen=True, slots=True)
class _Cut:
    """Finds the end of one piece: the place in `md` of the first character behind it."""

    #: The whole text.
    md: str
    #: Where the piece begins.
    start: int
    #: The line of a fence or the head of a table that the piece must repeat, "" for none.
    opening: str
    limit: int
    lengths: _Lengths
    #: Whether the rest of a cut line is escaped where it needs it.
    escapes: bool = True
    #: The number of spaces that the piece's lines lose.
    indent: int = 0

    def best(self) -> tuple[str, int, str]:
        """Return the piece, its end, and the opening of the next piece."""
        if self.escapes and not self._fits(self.start + 1):
            # With the escape not even one character fits.
            return replace(self, escapes=False).best()

        # Measuring a rest that is certainly too long would take time for nothing.
        rest = len(self.md) - self.start
        may_fit = rest <= _WINDOW * self.limit and rest * self.lengths.density <= 2 * self.limit
        if may_fit and self._fits(len(self.md)):
            return self._piece(len(self.md)), len(self.md), ""

        end = self._guess() or self._whole_character(self._furthest())
        if self.opening and not self._fits(end):
            # Not even one character fits beside the repeated lines, so they are left out.
            return replace(self, opening="").best()
        opening = self._open_fence(end).lstrip(" ") or self._table_head(end)
        return self._piece(end), end, opening

    def _guess(self) -> int:
        """Return a good place to cut that nearly fills the limit, 0 if none was found.

        The density of the text measured last says how much source should fit. That mostly takes one
        measurement, where bisection takes a dozen. What fits is between `low` and `high`.
        """
        low = self.start
        high = min(len(self.md), self.start + _WINDOW * self.limit) + 1
        best = 0
        for number in range(_GUESSES):
            far = self.start + self._expected_size()
            # A guess that is known to be wrong, or half of the guesses missed: bisect.
            if not low < far < high or number > _GUESSES // 2:
                far = (low + high) // 2
            if far <= low:
                break
            end = self._place(far)
            if end <= max(self.start, best):
                break

            measured = self._length(end)
            if measured > self.limit:
                high = far
                continue
            low = far
            best = end
            # The good place may be far before `far`, so what `far` would fill is compared.
            expected = measured * (far - self.start) / (end - self.start)
            if expected >= _FULL * self.limit:
                break
        return best

    def _expected_size(self) -> int:
        """Return how many source characters should fill the limit."""
        density = self.lengths.density
        if density in (0, 1):
            return self.limit
        return max(1, int(_AIM * self.limit / density))

    def _place(self, far: int) -> int:
        """Return the best place to cut at or before `far`."""
        if far >= len(self.md):
            return len(self.md)
        return next(self._boundaries(far), None) or self._whole_character(far)

    def _furthest(self) -> int:
        """Return the furthest end that fits, by bisection.

        That is right because a longer source has a longer piece, but for a mark that is closed.
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

        They are the last paragraph, line or word in the second half of the piece, outside of links
        and the other spans.
        """
        middle = self.start + (end - self.start) // 2
        # A span that begins in the piece may end behind it.
        spans_end = min(len(self.md), end + _SPAN_CHARS)
        spans = [match.span() for match in _SPAN.finditer(self.md, self.start, spans_end)]
        for pattern in _BOUNDARIES:
            cuts = [match.end() for match in pattern.finditer(self.md, middle, end)]
            for cut in reversed(cuts):
                if cut <= self.start:
                    continue
                # The last span that begins before the cut.
                index = bisect.bisect_left(spans, (cut, 0)) - 1
                is_in_span = index >= 0 and spans[index][1] > cut
                if not is_in_span and not _joined(self.md, cut, self.start):
                    yield cut

    def _whole_character(self, end: int) -> int:
        """Return the last place up to `end` that is between two characters as people see them.

        Inside a character that is longer than the piece it is `end` itself.
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
        """Return the length of the piece up to `end`, as the platform counts it."""
        measured = self.lengths.of(self._piece(end))
        if end - self.start > 1:
            self.lengths.density = measured / (end - self.start)
        return measured

    def _piece(self, end: int) -> str:
        """Return the piece up to `end` with all additions."""
        text = self.opening + self._text(end)
        fence = ""
        if end < len(self.md):
            fence = self._open_fence(end)
        if not fence:
            return text

        # In an item of a list the fence is closed where it was opened: further left the item would
        # end.
        closing = " " * _indent_at(fence, 0) + _marker(fence)
        line_end = "" if text.endswith("\n") else "\n"
        return f"{text}{line_end}{closing}\n"

    def _text(self, end: int) -> str:
        """Return the source of the piece, without lost indents and with the escape it needs."""
        text = self.md[self.start : end]
        if self.indent:
            text = _moved_left(text, self.indent)

        continues_line = self.start > 0 and self.md[self.start - 1] != "\n"
        if not (self.escapes and continues_line) or self.opening:
            return text
        match = _BLOCK_START.match(text)
        if match and match.end() < len(text):
            return f"{match[0]}\\{text[match.end() :]}"
        return text

    def _open_fence(self, end: int) -> str:
        """Return the line that opened the code block in which a cut at `end` falls, or ""."""
        opening_line = ""
        for match in _FENCE.finditer(self.opening + self._text(end)):
            marker = match.group(1)
            if not opening_line:
                is_code_in_line = marker[0] == "`" and "`" in match.group(2)
                if not is_code_in_line:
                    opening_line = match.group().rstrip(" ") + "\n"
            elif marker.startswith(_marker(opening_line)) and not match.group(2).strip():
                opening_line = ""

        # A long line would leave too little room for the text, so it is not repeated.
        is_short = len(opening_line) + len(_marker(opening_line)) < self.limit // 2
        return opening_line if is_short else ""

    def _table_head(self, end: int) -> str:
        """Return the head of the table in which a cut at `end` falls between two rows, or ""."""
        line_end = self.md.find("\n", end)
        if line_end < 0:
            line_end = len(self.md)
        is_row_next = self.md.find("|", end, line_end) >= 0
        if not is_row_next or self.md[end - 1] != "\n" or self._open_fence(end):
            return ""

        lines = (self.opening + self._text(end)).split("\n")[:-1]
        head = ""
        for names, rule in itertools.pairwise(lines):
            if "|" not in rule:
                # The table ended here.
                head = ""
            elif not head and _is_table_head(names, rule):
                head = f"{names}\n{rule}\n"
        # A long head would leave too little room for rows, so it is not repeated.
        return head if len(head) < self.limit // 2 else ""


def _is_table_head(names: str, rule: str) -> bool:
    """Return whether two lines are the head of a table: the names of its columns, and a rule."""
    if "|" not in names or not _TABLE_RULE.fullmatch(rule):
        return False
    return inner_bars(names) == inner_bars(rule)


def _lost_indent(md: str, start: int, opening: str) -> int:
    """Return how many spaces the lines of a piece lose, 0 for none.

    They lose their indent if they belong to an item of a list that began in an earlier piece.
    `start` is where the piece begins in the text, and `opening` what it repeats.
    """
    # The first whole line of the piece, or the line of its fence, decides.
    begins_line = not start or md[start - 1] == "\n"
    first = start if begins_line else md.find("\n", start) + 1
    if opening[:1] in ("`", "~"):
        fence = md.rfind(opening.rstrip("\n"), 0, start)
        first = _line_start(md, max(fence, 0))
    indent = _indent_at(md, first)
    if not start or indent < _CODE_INDENT or (first == 0 and not begins_line):
        return 0

    # Go back to the line that has the marker of the item. Each line in between must be indented at
    # least as far as the text of an item.
    least = indent
    end = first - 1
    for _ in range(_LINES_OF_ITEM):
        if end < 0:
            break
        line = _line_start(md, end)
        width = _indent_at(md, line)
        has_text = line + width < end
        if has_text and width < least:
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
    """Return the lines of an item of a list, each without up to `spaces` spaces before it.

    What follows the item stays unchanged: the first line that is not indented, and all below it.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        width = min(_indent_at(line, 0), spaces)
        # The first line may be the rest of a cut one, which has no indent.
        ends_item = line.strip() and not width and number > 0
        if ends_item:
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

    # An accent, a part of an emoji, the color of a skin.
    if unicodedata.category(after).startswith("M") or "\u200d" in (before, after):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff":
        return True
    # The halves of a surrogate pair, and of the end of a line.
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    if before == "\r" and after == "\n":
        return True
    # An escaped character, and the second half of a flag.
    if before == "\\" and not after.isalnum():
        return _has_odd_run(text[start:cut], "\\")
    return after in _FLAG_HALVES and _has_odd_run(text[start:cut], _FLAG_HALVES)


def _has_odd_run(piece: str, chars: str) -> bool:
    """Return whether an odd number of these characters stands at the end of the piece."""
    return (len(piece) - len(piece.rstrip(chars))) % 2 == 1
