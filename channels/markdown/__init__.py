"""Markdown, parsed and converted to the formatting of each platform.

All that the bot says is Markdown. markdown-it parses it into a tree of blocks (paragraphs, lists,
tables) with inline parts, and a `Dialect` says how a platform writes each of them. Whatever a
platform cannot show, such as a table that is too wide, becomes text without loss.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import unescape

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block, table
from markdown_it.rules_inline import StateInline
from markdown_it.tree import SyntaxTreeNode

from sayso.channels.markdown.dialects import (
    ANSI,
    GAP,
    HTML,
    MAYBE_GAP,
    MRKDWN,
    PLAIN,
    TERMINAL,
    WHATSAPP,
    Dialect,
    bare_link,
    hides_host,
    own_hosts,
    plain_host,
    without_maybe_gaps,
)
from sayso.channels.markdown.emphasis import UnspacedParser, is_inside_word, is_letter, is_unspaced
from sayso.channels.markdown.literal import address_after
from sayso.channels.types import Button

#: The URL schemes of links. All others (javascript:, tg:, relative paths) are shown as text.
SCHEMES = ("http", "https", "mailto", "tel")
ALLOWED = re.compile(rf"(?:{'|'.join(SCHEMES)}):", re.IGNORECASE)
#: The language after a fence, which is not shown: one word.
LANGUAGE = re.compile(r"\s*([\w+#.-]{1,20})(?=\s|$)", re.ASCII)
#: Text that is the same in Markdown and on every platform: one line without marks and addresses.
_PLAIN_TEXT = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;:?'\"()!%])*(?<! )")
#: How many rendered texts a process keeps, a few megabytes: a piece of a reply is rendered to be
#: measured, and to be sent. A reply of 100,000 characters has about 60 pieces.
_KEPT_TEXTS = 64


def telegram_html(md: str) -> str:
    """Return Markdown as Telegram's subset of HTML."""
    return _telegram(md)[0]


def slack_mrkdwn(md: str) -> str:
    """Return Markdown as Slack mrkdwn.

    `& < >` are escaped everywhere, so that no text can notify a channel.
    """
    return _render(md, MRKDWN)


def whatsapp_text(md: str) -> str:
    """Return Markdown as WhatsApp formats it: `*bold* _italic_ ~strike~` and bare links."""
    return _render(md, WHATSAPP)


def plain(md: str) -> str:
    """Return Markdown as plain text."""
    return _render(md, PLAIN)


def button_text(button: Button, limit: int) -> str:
    """Return what a button says: the effect of a tap, or else its label.

    The effect has at most `limit` characters.
    """
    effect = " ".join(plain(button.effect).split())
    if effect and utf16_len(effect) <= limit:
        return effect
    return button.label


def terminal_text(md: str, *, styled: bool = False) -> str:
    """Return Markdown as text for a terminal, with ANSI styles if `styled`.

    Control characters, which could move the cursor or hide text, are shown as visible symbols.
    """
    return _render(md, ANSI if styled else TERMINAL)


def trust_hosts(hosts: Iterable[str]) -> None:
    """Set the hosts whose links need not show their address.

    They are the bot's own host and those in its configuration.
    """
    own_hosts.clear()
    own_hosts.update(plain_host(host) for host in hosts if host)
    _telegram.cache_clear()
    _render.cache_clear()


def utf16_len(text: str) -> int:
    """Return the length as Telegram counts it, in UTF-16 code units."""
    return len(text) + sum(char > "\uffff" for char in text)


def telegram_length(md: str) -> int:
    """Return the length that Telegram counts against its limits.

    It is that of the HTML or of the plain text, whichever is longer.
    """
    html, text = _telegram(md)
    visible = text
    if html is not text:
        visible = unescape(re.sub(r"<[^>]*>", "", html))
    return max(utf16_len(visible), utf16_len(text))


@functools.lru_cache(maxsize=_KEPT_TEXTS)
def _telegram(md: str) -> tuple[str, str]:
    """Return Markdown as HTML and as plain text. It is parsed once."""
    # Without a mark both are the text itself. Parsing would take as long as sending.
    if _PLAIN_TEXT.fullmatch(md):
        return md, md
    tree = SyntaxTreeNode(parser().parse(md))
    return _rendered(md, tree, HTML), _rendered(md, tree, PLAIN)


@functools.lru_cache(maxsize=_KEPT_TEXTS)
def _render(md: str, dialect: Dialect) -> str:
    if _PLAIN_TEXT.fullmatch(md):
        return md
    md = md.replace(MAYBE_GAP, "\ufffd")
    return dialect.finish(_rendered(md, SyntaxTreeNode(parser().parse(md)), dialect))


def _rendered(md: str, tree: SyntaxTreeNode, dialect: Dialect) -> str:
    blocks = _Blocks(dialect, md.split("\n")).render(tree)
    text = "\n\n".join(block.text for block in blocks if block.text)
    # Markdown that renders to nothing, such as an empty link, is shown as its source.
    if text.strip():
        return text
    return dialect.escape(md)


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    pre: bool = False


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Renders the blocks of a message. `source` is its lines."""

    dialect: Dialect
    source: Sequence[str]

    def render(
        self, container: SyntaxTreeNode, quotes: int = 0, bullets: int = 0
    ) -> Iterator[_Block]:
        """Yield the blocks of a container.

        `quotes` and `bullets` count the quotes and bullet lists around them.
        """
        for node in container.children:
            match node.type:
                case "paragraph":
                    yield _Block(inline(node.children[0], self.dialect))
                case "heading":
                    text = inline(node.children[0], self.dialect, ("strong",))
                    opening, closing = self.dialect.marks["strong"] if text else ("", "")
                    yield _Block(f"{opening}{text}{closing}")
                case "fence" | "code_block":
                    yield self._code(node)
                case "hr":
                    yield _Block("———")
                case "blockquote":
                    inner = "\n\n".join(
                        block.text for block in self.render(node, quotes + 1, bullets)
                    )
                    yield _Block(self.dialect.quote(inner, quotes + 1))
                case "bullet_list" | "ordered_list":
                    yield self._list(node, quotes, bullets)
                case "table":
                    yield self._table(node)

    def _code(self, node: SyntaxTreeNode) -> _Block:
        language = LANGUAGE.match(node.info)
        # A title after the language is part of the text, so it is shown.
        if language:
            title = node.info[language.end() :].strip()
        else:
            title = node.info.strip()
        text = "\n".join(part for part in (title, node.content.rstrip("\n")) if part)
        return _Block(self.dialect.pre(text, language.group(1) if language else ""), pre=True)

    def _list(self, node: SyntaxTreeNode, quotes: int, bullets: int) -> _Block:
        if node.type == "bullet_list":
            # Each level has a bullet of its own, because an indent of
            # two narrow spaces is hard to see.
            markers: Iterator[str] = itertools.repeat(f"{'•◦▪'[bullets % 3]} ")
            bullets += 1
        else:
            markers = iter(list_numbers([(item.info, item.markup) for item in node.children]))
        texts = []
        for item, marker in zip(node.children, markers, strict=False):
            indent = " " * len(marker)
            blocks = self.render(item, quotes, bullets)
            # Code keeps its own margin, everything else is indented under the marker.
            lines = [
                each.text if each.pre else indent + each.text.replace("\n", f"\n{indent}")
                for each in blocks
            ]
            texts.append(marker + "\n".join(lines).removeprefix(indent))
        return _Block("\n".join(texts))

    def _table(self, node: SyntaxTreeNode) -> _Block:
        if node.map:
            lines = self.source[slice(*node.map)]
        else:
            lines = []
        # The parser drops cells beyond the last column, so such a table is shown as its source.
        if is_overfull(lines):
            return _Block(self.dialect.pre("\n".join(lines), ""), pre=True)

        # A table has a head and a body, which have the rows.
        parts = [part.children for part in node.children]
        table = [row.children for row in itertools.chain.from_iterable(parts)]
        rows = [[_cell_text(cell) for cell in row] for row in table]
        separators = 3 * (len(rows[0]) - 1)
        if sum(widths(rows)) + separators > self.dialect.columns:
            return _Block(records(rows, self.dialect))
        rights = ["right" in str(head.attrGet("style") or "") for head in table[0]]
        return _Block(self.dialect.pre(aligned(rows, rights), ""), pre=True)


def _cell_text(cell: SyntaxTreeNode) -> str:
    """Return the text of a cell of a table on one line."""
    return " ".join(inline(cell.children[0], PLAIN).split())


def list_numbers(items: Sequence[tuple[str, str]]) -> list[str]:
    """Return the numbers of an ordered list, each with its sign and a space.

    `items` are the digits and the sign of each item, as they were written. The numbers stay so,
    such as "3. ", "5) " and "007. ". Only a list that repeats one number in each item is counted up
    from that number: this is Markdown's way to leave the counting to the reader.
    """
    digits = [number for number, _ in items]
    if len(set(digits)) == 1:
        digits[1:] = [str(int(digits[0]) + place) for place in range(1, len(digits))]
    return [f"{number}{sign} " for number, (_, sign) in zip(digits, items, strict=True)]


#: The number of an item of an ordered list, behind the signs of the quotes and bullets around it.
_ITEM_NUMBER = re.compile(r"^[ >]*(?:[-+*] +)*(\d{1,9}[.)])(?=\s)", re.MULTILINE)


def with_shown_numbers(md: str) -> str:
    """Return Markdown in which each item of an ordered list has the number that it is shown with.

    A part of the text then shows the same numbers as the whole.
    """
    written = _ITEM_NUMBER.findall(md)
    if len(set(written)) == len(written):
        return md
    lines = md.split("\n")
    for node in SyntaxTreeNode(parser().parse(md)).walk():
        if node.type != "ordered_list":
            continue
        numbers = list_numbers([(item.info, item.markup) for item in node.children])
        for item, number in zip(node.children, numbers, strict=True):
            old = f"{item.info}{item.markup}"
            if item.map and number.rstrip() != old:
                first, end = item.map
                lines[first] = re.sub(
                    rf"(?<!\d){re.escape(old)}", number.rstrip(), lines[first], count=1
                )
                # The other lines of the item stay below its first word.
                wider = " " * (len(number.rstrip()) - len(old))
                for line in range(first + 1, end):
                    if lines[line].startswith(" "):
                        lines[line] = wider + lines[line]
    return "\n".join(lines)


def inline(
    parent: SyntaxTreeNode,
    dialect: Dialect,
    active: tuple[str, ...] = (),
    *,
    in_link: bool = False,
    around: tuple[str, str] = ("", ""),
) -> str:
    """Return the text of a paragraph or a part of it.

    `active` names the marks around it: none is nested in itself. `around` are the characters before
    and after the part, if no mark stands between.
    """
    parts: list[str] = []
    children = _shown_children(parent)
    for node, following in itertools.zip_longest(children, children[1:]):
        match node.type:
            case "softbreak" | "hardbreak":
                parts.append("\n")
            case "code_inline":
                parts.append(dialect.code(node.content))
            case "image":
                parts.append(_image(node, dialect, in_link=in_link))
            case "link":
                text = inline(node, dialect, active, in_link=True)
                # The label of a bare URL is the URL, which must not be formatted.
                if node.markup == "autolink":
                    label = ""
                else:
                    label = text + _title(node, dialect)
                parts.append(_link(dialect, label, str(node.attrGet("href") or "")))
            case "strong" | "em" | "s" as name:
                before = next((part[-1] for part in reversed(parts) if part), around[0])
                after = around[1]
                if following:
                    if following.type == "text":
                        after = following.content[:1]
                    else:
                        after = ""
                opening, closing = _marks(node, dialect, active, before, after)
                is_marked = opening not in ("", node.markup)
                edges = ("", "") if is_marked else (before, after)
                text = inline(node, dialect, (*active, name), in_link=in_link, around=edges)
                if is_marked and dialect.solid:
                    first, last = dialect.marks[name]
                    if re.search(rf"(?<=\S){re.escape(last)}{MAYBE_GAP}(?!\w)", text):
                        opening = ""  # the mark in the text would end it
                        closing = ""
                    else:
                        # No mark reaches into the next line.
                        text = text.replace("\n", f"{last}\n{first}")
                parts.append(f"{opening}{text}{closing}")
            case _:
                parts.append(dialect.escape(node.content))
    return "".join(parts)


def _shown_children(node: SyntaxTreeNode) -> Sequence[SyntaxTreeNode]:
    """Return the parts of a text that are not empty.

    The parser leaves empty ones between marks.
    """
    return [child for child in node.children if child.type != "text" or child.content]


def _marks(
    node: SyntaxTreeNode,
    dialect: Dialect,
    active: tuple[str, ...],
    before: str,
    after: str,
) -> tuple[str, str]:
    """Return what stands before and after a formatted text.

    Its neighbors are the characters `before` and `after`.
    """
    name = node.type
    # A single asterisk may be arithmetic. Three, as in ***bold and italic***, are not.
    is_only_strong = [child.type for child in _shown_children(node)] == ["strong"]
    is_arithmetic = name == "em" and not is_only_strong
    kind = "em" if is_arithmetic else "strong"
    is_between_letters = is_inside_word(kind, before) and is_inside_word(kind, after)
    # Slack and WhatsApp show no marks that touch a word, except with a gap beside letters of
    # unspaced scripts.
    touches_word = is_inside_word("strong", before) or is_inside_word("strong", after)
    is_stuck = dialect.solid and touches_word
    if is_between_letters or (is_stuck and is_arithmetic):
        # 2*3*4 is arithmetic: no preview may show it as 234.
        return node.markup, node.markup
    if name in active or is_stuck:
        return "", ""

    opening, closing = dialect.marks[name]
    if dialect.solid:
        # An invisible character parts the marks from letters of unspaced scripts: the platform
        # would take the letters and the marks for one word.
        if is_letter(before) and is_unspaced(before):
            opening = f"{GAP}{opening}"
        if is_letter(after) and is_unspaced(after):
            closing = f"{closing}{GAP}"
    return opening, closing


def _image(node: SyntaxTreeNode, dialect: Dialect, *, in_link: bool) -> str:
    """Return an image as a link to it."""
    inside = dialect
    # Of two addresses, one inside the other, a platform would show one, or neither.
    if dialect.hides:
        inside = replace(
            dialect, link=lambda label, href: bare_link(label, dialect.escape(href)), hides=False
        )
    alt = inline(node, inside) + _title(node, dialect)
    return _link(inside if in_link else dialect, alt, str(node.attrGet("src") or ""))


def _title(node: SyntaxTreeNode, dialect: Dialect) -> str:
    """Return the title of a link, as it follows the label: chats cannot show it on hovering."""
    title = node.attrGet("title")
    if title:
        return dialect.escape(f' "{title}"')
    return ""


def _link(dialect: Dialect, label: str, href: str) -> str:
    if not ALLOWED.match(href):
        address = dialect.escape(href)
        if without_maybe_gaps(address) in ("", without_maybe_gaps(label)):
            return label
        return f"{label} ({address})".strip()
    link = dialect.link(label, href)
    if dialect.hides and hides_host(label, href):
        return f"{link} ({dialect.address(href)})"
    return link


def aligned(rows: Sequence[Sequence[str]], rights: Sequence[bool]) -> str:
    """Return a table with aligned columns, for a monospaced block."""
    if not rows:
        return ""
    columns = widths(rows)
    lines = []
    for row in rows:
        gaps = [" " * (width - _width(cell)) for cell, width in zip(row, columns, strict=True)]
        cells = (
            gap + cell if right else cell + gap
            for cell, gap, right in zip(row, gaps, rights, strict=True)
        )
        lines.append(" | ".join(cells).rstrip())
    return "\n".join([lines[0], "-+-".join("-" * width for width in columns), *lines[1:]])


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column on the screen."""
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def records(rows: Sequence[Sequence[str]], dialect: Dialect) -> str:
    """Return a table that is too wide: one paragraph per row, one line per cell.

    A line has the name of its column.
    """
    names, *body = rows
    size = sum(len(cell) for row in rows for cell in row)
    # Long names would hide values.
    if not body or len(body) * sum(map(len, names)) > 4 * size + 4000:
        return "\n".join(" | ".join(map(dialect.escape, row)) for row in rows)
    opening, closing = dialect.marks["strong"]
    paragraphs = []
    for row in body:
        lines = []
        for column, (name, cell) in enumerate(zip(names, row, strict=True)):
            label = f"{dialect.escape(name)}: " if name else ""
            text = dialect.escape(cell)
            # The cell of the first column is the title of the paragraph.
            if column == 0 and text:
                text = f"{opening}{text}{closing}"
            lines.append(f"{label}{text}".rstrip())
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _width(text: str) -> int:
    """Return the width on the screen.

    CJK characters and emoji take two columns, combining marks none.
    """
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


@functools.lru_cache(maxsize=2)
def parser(*, images: bool = True) -> MarkdownIt:
    """Return a parser for CommonMark with tables and strikethrough.

    Raw HTML stays text. Link references are off, because a line like `[x]: y` would disappear from
    a preview.
    """
    markdown = MarkdownIt("commonmark")
    markdown.inline = UnspacedParser()
    parser = (
        markdown.configure("commonmark", {"html": False, "breaks": True})
        .enable(["table", "strikethrough"])
        .disable(["reference", "html_block", "html_inline"])
    )
    parser.inline.ruler.before("backticks", "bare_url", _bare_url)
    parser.inline.ruler.before("link", "bare_bracket", _bare_bracket)
    parser.inline.ruler2.after("fragments_join", "deep_marks", _flatten)
    ends = ["paragraph", "reference"]
    parser.block.ruler.at("table", _table, {"alt": ends})
    parser.block.ruler.at(
        "blockquote", _up_to(_DEEPEST_QUOTE, blockquote), {"alt": [*ends, "blockquote", "list"]}
    )
    parser.block.ruler.at("list", _up_to(_DEEPEST_LIST, list_block), {"alt": [*ends, "blockquote"]})
    if images:
        return parser
    return parser.disable("image")


#: How deep a quote, a list and marks may be nested; a list counts twice. Deeper ones are shown as
#: their source. The parser itself would drop blocks that are deeper than 20, and each mark takes
#: calls.
_DEEPEST_QUOTE = 6
_DEEPEST_LIST = 10
_DEEPEST_MARK = 20


_Rule = Callable[[StateBlock, int, int, bool], bool]


def _up_to(deepest: int, rule: _Rule) -> _Rule:
    """Return a rule of the parser that works in blocks above the level `deepest` only."""
    return lambda state, line, end, silent: state.level < deepest and rule(state, line, end, silent)


def _table(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Parse a table unless most of its cells are missing.

    The parser would add hundreds of cells to short rows. With `silent`, return only whether a table
    begins here.
    """
    begins = table(state, line, end, True)
    if silent or not begins:
        return begins
    if _is_hollow(state, line, end):
        return False
    return table(state, line, end, False)


def _is_hollow(state: StateBlock, line: int, end: int) -> bool:
    """Return whether the table that begins here lacks more cells than it has."""
    columns = _count_cells(state, line)
    present = 2 * columns
    missing = 0
    for row in range(line + 2, end):
        if state.isEmpty(row):
            return False
        cells = _count_cells(state, row)
        present = present + cells
        missing = missing + max(0, columns - cells)
        if missing > present + _FEW_CELLS:
            return True
    return False


#: How many cells may be missing in any table.
_FEW_CELLS = 16


def _count_cells(state: StateBlock, line: int) -> int:
    text = state.src[state.bMarks[line] : state.eMarks[line]].strip()
    return text.count("|") + 1 - text.startswith("|") - text.endswith("|")


#: The key in the parser's cache for the last place where a link may end.
#: Other keys are places in the text.
_LAST_ADDRESS = -1
_SCHEME_BEFORE = re.compile(r"(?<![A-Za-z0-9])https?$", re.IGNORECASE)


def _bare_url(state: StateInline, silent: bool) -> bool:
    """Parse a bare URL as one link, so that `_` and `*` inside it are not emphasis."""
    if state.src[state.pos] != ":":
        return False
    scheme = _SCHEME_BEFORE.search(state.src, max(0, state.pos - 6), state.pos)
    if scheme is None:
        return False
    rest = address_after(state.src, state.pos, state.posMax)
    if not rest:
        return False
    state.pos += len(rest)
    if not silent and (state.linkLevel or not state.pending.endswith(scheme[0])):
        state.pending += rest
    elif not silent:
        state.pending = state.pending[: -len(scheme[0])]
        link = state.push("link_open", "a", 1)
        link.attrs = {"href": scheme[0] + rest}
        link.markup = "autolink"
        state.push("text", "", 0).content = scheme[0] + rest
        state.push("link_close", "a", -1)
    return True


def _bare_bracket(state: StateInline, silent: bool) -> bool:
    """Parse a bracket that no link address follows as text.

    The parser would search for its partner.
    """
    char = state.src[state.pos]
    if char not in "[!" or state.pos < state.cache.setdefault(_LAST_ADDRESS, state.src.rfind("](")):
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


def is_overfull(lines: Sequence[str]) -> bool:
    """Return whether a row of the table has cells beyond its last column."""
    return any(inner_bars(line) > inner_bars(lines[0]) for line in lines[2:])


def inner_bars(line: str) -> int:
    """Return the number of bars between the cells of a row."""
    return len(re.findall(r"(?<!\\)\|", line.strip().strip("|")))
