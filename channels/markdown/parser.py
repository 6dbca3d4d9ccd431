"""The parser of Markdown: markdown-it, with some rules changed.

A text must show all that it says: nothing of it may disappear. And a text that an attacker made
must not take long to parse.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block
from markdown_it.rules_block import table as library_table
from markdown_it.rules_inline import StateInline

from sayso.channels.markdown.emphasis import UnspacedParser
from sayso.channels.markdown.literal import address_after


@functools.lru_cache(maxsize=2)
def parser(*, images: bool = True) -> MarkdownIt:
    """Return a parser for CommonMark with tables and strikethrough.

    Raw HTML stays text, and so do images without `images`. Link references are off, because a line
    like `[x]: y` would disappear from a preview.
    """
    markdown = MarkdownIt("commonmark")
    markdown.inline = UnspacedParser()
    markdown.configure("commonmark", {"html": False, "breaks": True})
    markdown.enable(["table", "strikethrough"])
    markdown.disable(["reference", "html_block", "html_inline"])
    if not images:
        markdown.disable("image")

    # The rules of `ruler` parse a text. Those of `ruler2` change its tokens when it is parsed.
    markdown.inline.ruler.before("backticks", "bare_url", _bare_url)
    markdown.inline.ruler.before("link", "bare_bracket", _bare_bracket)
    markdown.inline.ruler2.after("fragments_join", "deep_marks", _flatten)

    # `alt` names the blocks that such a block may interrupt.
    interrupted = ["paragraph", "reference"]
    quote_rule = _up_to(_DEEPEST_QUOTE, blockquote)
    list_rule = _up_to(_DEEPEST_LIST, list_block)
    rules = markdown.block.ruler
    rules.at("table", _table_rule, {"alt": interrupted})
    rules.at("blockquote", quote_rule, {"alt": [*interrupted, "blockquote", "list"]})
    rules.at("list", list_rule, {"alt": [*interrupted, "blockquote"]})
    return markdown


def source_lines(md: str) -> list[str]:
    """Return the lines of Markdown, which the `map` of a token counts.

    As for the parser, a carriage return ends a line too.
    """
    return re.split(r"\r\n?|\n", md)


#: How many levels quotes may be nested. Deeper ones are shown as their source, as are lists and
#: marks: the parser would drop blocks below 20 levels.
_DEEPEST_QUOTE = 6
#: How many levels lists may be nested. Each list counts twice: itself and its item.
_DEEPEST_LIST = 10
#: How many levels marks may be nested. `inline` calls itself at each level.
_DEEPEST_MARK = 20

#: A rule of the parser: it parses a block from a line on, and returns whether one begins there.
_Rule = Callable[[StateBlock, int, int, bool], bool]


def _up_to(deepest: int, rule: _Rule) -> _Rule:
    """Return a rule that works only in blocks above the level `deepest`."""

    def limited(state: StateBlock, line: int, end: int, silent: bool) -> bool:
        """Parse a block unless it is nested too deep."""
        return state.level < deepest and rule(state, line, end, silent)

    return limited


def _table_rule(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Parse a table unless most of its cells are missing.

    The parser would add hundreds of cells to short rows. With `silent`, return only whether a table
    begins here.
    """
    begins = library_table(state, line, end, True)
    if silent or not begins:
        return begins
    if _is_hollow(state, line, end):
        return False
    return library_table(state, line, end, False)


def _is_hollow(state: StateBlock, line: int, end: int) -> bool:
    """Return whether the table that begins here lacks more cells than it has.

    `line` and `end` are the numbers of the first line and of the line where the search ends.
    """
    columns = _count_cells(state, line)
    # The head and the rule below it.
    present = 2 * columns
    missing = 0
    for row in range(line + 2, end):
        if state.isEmpty(row):
            return False
        cells = _count_cells(state, row)
        present += cells
        missing += max(0, columns - cells)
        if missing > present + _FEW_CELLS:
            return True
    return False


#: How many cells may be missing in any table.
_FEW_CELLS = 16


def _count_cells(state: StateBlock, line: int) -> int:
    """Return about how many cells a row of a table has.

    Unlike `inner_bars` this counts an escaped bar, too. It is called for each row of a text that an
    attacker may have made, and need not be exact.
    """
    text = state.src[state.bMarks[line] : state.eMarks[line]].strip()
    return text.count("|") + 1 - text.startswith("|") - text.endswith("|")


#: The key in the parser's cache for the last "](" of the text, where the address of a link begins.
#: The parser's own keys are places in the text, which are not negative.
_LAST_ADDRESS = -1
_SCHEME_BEFORE = re.compile(r"(?<![A-Za-z0-9])https?$", re.IGNORECASE)


def _bare_url(state: StateInline, silent: bool) -> bool:
    """Parse a bare URL as one link, so that `_` and `*` inside it are not emphasis.

    The parser calls this at each ":". With `silent` nothing is added.
    """
    if state.src[state.pos] != ":":
        return False
    scheme = _SCHEME_BEFORE.search(state.src, max(0, state.pos - 6), state.pos)
    if scheme is None:
        return False
    rest = address_after(state.src, state.pos, state.posMax)
    if not rest:
        return False
    state.pos += len(rest)
    if silent:
        return True

    # Inside the label of a link there is no other link. And if the pending text does not end with
    # the scheme, its letters were used already, by an escape such as "\http". Then the URL stays
    # text.
    if state.linkLevel or not state.pending.endswith(scheme[0]):
        state.pending += rest
        return True

    # The scheme was added to the pending text already.
    state.pending = state.pending[: -len(scheme[0])]
    link = state.push("link_open", "a", 1)
    link.attrs = {"href": scheme[0] + rest}
    link.markup = "autolink"
    state.push("text", "", 0).content = scheme[0] + rest
    state.push("link_close", "a", -1)
    return True


def _bare_bracket(state: StateInline, silent: bool) -> bool:
    """Parse a bracket that no address of a link follows as text.

    The parser would search for the closing bracket, and take very long for thousands of brackets.
    With `silent` nothing is added.
    """
    char = state.src[state.pos]
    if char not in "[!":
        return False
    if _LAST_ADDRESS not in state.cache:
        state.cache[_LAST_ADDRESS] = state.src.rfind("](")
    if state.pos < state.cache[_LAST_ADDRESS]:
        return False
    if not silent:
        state.pending += char
    state.pos += 1
    return True


def _flatten(state: StateInline) -> None:
    """Turn marks that are nested too deep back into text."""
    for token in state.tokens:
        if token.level >= _DEEPEST_MARK and token.tag in ("strong", "em", "s"):
            token.type = "text"
            token.tag = ""
            token.nesting = 0
            token.content = token.markup
