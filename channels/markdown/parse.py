"""Markdown as tokens, with own rules where the parser would hide or guess something."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block, table
from markdown_it.rules_inline import StateInline

#: The URL schemes of links. All others (javascript:, tg:, relative paths) are shown as text.
SCHEMES = ("http", "https", "mailto", "tel")
ALLOWED = re.compile(rf"(?:{'|'.join(SCHEMES)}):", re.IGNORECASE)


@functools.lru_cache(maxsize=2)
def parser(*, images: bool = True) -> MarkdownIt:
    """Return a parser for CommonMark with tables and strikethrough.

    Raw HTML stays text. Link references are off, because a line like `[x]: y` would disappear from a preview.
    """
    parser = (
        MarkdownIt("commonmark", {"html": False, "breaks": True})
        .enable(["table", "strikethrough"])
        .disable(["reference", "html_block", "html_inline"])
    )
    parser.inline.ruler.before("backticks", "bare_url", _bare_url)
    parser.inline.ruler.before("link", "bare_bracket", _bare_bracket)
    ends = ["paragraph", "reference"]
    parser.block.ruler.at("table", _table, {"alt": ends})
    parser.block.ruler.at("blockquote", _quote, {"alt": [*ends, "blockquote", "list"]})
    parser.block.ruler.at("list", _list, {"alt": [*ends, "blockquote"]})
    return parser if images else parser.disable("image")


#: How deep a quote and a list may be nested; a list counts twice. Deeper ones are shown as their source. The parser
#: itself would drop what is deeper than 20.
_DEEPEST_QUOTE, _DEEPEST_LIST = 6, 10


def _quote(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    return state.level < _DEEPEST_QUOTE and blockquote(state, line, end, silent)


def _list(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    return state.level < _DEEPEST_LIST and list_block(state, line, end, silent)


def _table(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Parse a table unless most of its cells are missing: the parser would add hundreds of cells to short rows."""
    begins = table(state, line, end, True)
    return begins and (silent or (not _is_hollow(state, line, end) and table(state, line, end, False)))


def _is_hollow(state: StateBlock, line: int, end: int) -> bool:
    """Return whether the table that begins here lacks more cells than it has."""
    columns = _count_cells(state, line)
    present, missing = 2 * columns, 0
    for row in range(line + 2, end):
        if state.isEmpty(row):
            return False
        cells = _count_cells(state, row)
        present, missing = present + cells, missing + max(0, columns - cells)
        if missing > present + _FEW_CELLS:
            return True
    return False


#: How many cells may be missing in any table.
_FEW_CELLS = 16


def _count_cells(state: StateBlock, line: int) -> int:
    text = state.src[state.bMarks[line] : state.eMarks[line]].strip()
    return text.count("|") + 1 - text.startswith("|") - text.endswith("|")


#: The key in the parser's cache for the last place where a link may end. Other keys are places in the text.
_LAST_ADDRESS = -1
_URL = re.compile(r"://[^\s<>\"`|\\\[\]]+")
_SCHEME_BEFORE = re.compile(r"(?<![A-Za-z0-9])https?$", re.IGNORECASE)


def _bare_url(state: StateInline, silent: bool) -> bool:
    """Parse a bare URL as one link, so that `_` and `*` inside it are not emphasis."""
    if state.src[state.pos] != ":":
        return False
    scheme = _SCHEME_BEFORE.search(state.src, max(0, state.pos - 6), state.pos)
    match = _URL.match(state.src, state.pos, state.posMax) if scheme else None
    rest = match.group() if match else ""
    # The punctuation of the sentence and the closing bracket around the URL are not part of it.
    while rest and (rest[-1] in ".,;:!?*_~'" or (rest[-1] == ")" and rest.count(")") > rest.count("("))):
        rest = rest[:-1]
    if scheme is None or len(rest) <= len("://"):
        return False
    state.pos += len(rest)
    if not silent and (state.linkLevel or not state.pending.endswith(scheme[0])):
        state.pending += rest
    elif not silent:
        state.pending = state.pending[: -len(scheme[0])]
        state.push("link_open", "a", 1).attrs = {"href": scheme[0] + rest}
        state.push("text", "", 0).content = scheme[0] + rest
        state.push("link_close", "a", -1).markup = "autolink"
    return True


def _bare_bracket(state: StateInline, silent: bool) -> bool:
    """Parse a bracket that no link address follows as text. The parser would search for its partner."""
    char = state.src[state.pos]
    if char not in "[!" or state.pos < state.cache.setdefault(_LAST_ADDRESS, state.src.rfind("](")):
        return False
    if not silent:
        state.pending += char
    state.pos += 1
    return True


#: The language after a fence, which is not shown: one word.
LANGUAGE = re.compile(r"\s*([\w+#.-]{1,20})(?=\s|$)", re.ASCII)


def is_overfull(lines: Sequence[str]) -> bool:
    """Return whether a row of the table has cells beyond its last column."""
    return any(inner_bars(line) > inner_bars(lines[0]) for line in lines[2:])


def inner_bars(line: str) -> int:
    """Return the number of bars between the cells of a row."""
    return len(re.findall(r"(?<!\\)\|", line.strip().strip("|")))
