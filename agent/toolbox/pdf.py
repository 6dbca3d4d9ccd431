"""Pdf: Markdown set on A4 pages, with an embedded font, in time that grows with the text and nothing else."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from sayso.agent.toolbox.pdf_styles import ACCENT, DARK, FONT, GREY, MONO, indented, rule, styles, table_style

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

#: Characters of the longest paragraph that is set in one piece: breaking lines takes time as its square.
MAX_PARAGRAPH_CHARS = 2_000
#: Characters of the longest word that is set in one piece.
MAX_WORD_CHARS = 60
#: Characters of a table's cell; the rest is cut off.
MAX_CELL_CHARS = 600
#: Characters of the longest cell of a head that is repeated on every page.
MAX_REPEATED_CHARS = 40
#: Columns of the widest table.
MAX_COLUMNS = 12
#: Cells of all tables: each is a paragraph of its own.
MAX_CELLS = 3_000
#: Headings, paragraphs, list items and blocks of a text.
MAX_BLOCKS = 3_000
#: How deeply lists and quotes are set into each other.
MAX_NESTING = 12

_MARGIN = 56.0  # points: two centimetres
#: Characters of a line of code, and lines of a block: more than that would not fit on a page.
_CODE_CHARS, _CODE_LINES = 90, 40
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARS}}}(?=\S)")
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_MARKS: Mapping[str, str] = {"strong": "b", "em": "i", "s": "strike"}


def pdf_of_markdown(title: str, text: str) -> tuple[bytes, int]:
    """The PDF and its number of pages. Raises ValueError when a table is too large."""
    tree = _parsed(text)
    with _one_at_a_time:
        return _set(title, tree)


#: reportlab has one parser for all threads.
_one_at_a_time = threading.Lock()


def _set(title: str, tree: SyntaxTreeNode) -> tuple[bytes, int]:
    from reportlab.platypus import SimpleDocTemplate
    from reportlab.platypus.doctemplate import LayoutError

    story = _Setter(title, styles()).story(tree)
    out = io.BytesIO()
    margins = dict.fromkeys(("leftMargin", "rightMargin", "topMargin", "bottomMargin"), _MARGIN)
    document = SimpleDocTemplate(out, pagesize=_page_size(), title=title, creator="Sayso", invariant=1, **margins)
    try:
        document.build(story, onFirstPage=_number, onLaterPages=_number)
    except LayoutError as exc:  # whose words hold addresses of memory
        raise ValueError("a part of the text is too large for a page: make it shorter, or use make_csv") from exc
    return out.getvalue(), document.page


def _parsed(text: str) -> SyntaxTreeNode:
    """Pictures and HTML stay words: a picture's address would be opened."""
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    reader = MarkdownIt("commonmark", {"html": False, "maxNesting": 4 * MAX_NESTING})
    reader.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    return SyntaxTreeNode(reader.parse(text))


def _page_size() -> tuple[float, float]:
    from reportlab.lib.pagesizes import A4

    return A4[0], A4[1]


def _number(canvas: Any, document: Any) -> None:
    """The number at the foot of a page."""
    canvas.setFont(FONT, 8)
    canvas.setFillColor(GREY)
    canvas.drawRightString(_page_size()[0] - _MARGIN, _MARGIN / 2, str(document.page))


@dataclass(slots=True)
class _Setter:
    """Makes what reportlab sets out of the parts of a text."""

    title: str
    styles: Mapping[str, Any]
    cells: int = 0
    blocks: int = 0

    def story(self, tree: SyntaxTreeNode) -> list[Any]:
        """The title, unless the text begins with it, and everything beneath."""
        first = next(iter(tree.children), None)
        repeats = first is not None and first.type == "heading" and _words(first).strip() == self.title.strip()
        head = [] if repeats else [self._paragraph(_safe(self.title), "h1")]
        return [*head, *self._blocks(tree.children, 0)]

    def _blocks(self, nodes: Sequence[SyntaxTreeNode], depth: int) -> list[Any]:
        return [flowable for node in nodes for flowable in self._block(node, depth)]

    def _block(self, node: SyntaxTreeNode, depth: int) -> list[Any]:
        self._count()
        match node.type:
            case "heading":
                return self._paragraphs(node, f"h{min(int(node.tag[1]), 4)}", depth)
            case "bullet_list" | "ordered_list":
                return self._list(node, depth)
            case "blockquote":
                return self._quote(node, depth)
            case "fence" | "code_block":
                return self._code(node.content, depth)
            case "table":
                return self._table(node)
            case "hr":
                return [rule()]
            case _:
                return self._paragraphs(node, "body", depth)

    def _count(self) -> None:
        self.blocks += 1
        if self.blocks > MAX_BLOCKS:
            raise ValueError(
                f"the text has more than {MAX_BLOCKS} paragraphs, headings and list items: make several files"
            )

    def _paragraphs(self, node: SyntaxTreeNode, style: str, depth: int) -> list[Any]:
        """One paragraph, or several where it is too long for one."""
        return [self._paragraph(piece, style, depth) for piece in _pieces(node)]

    def _paragraph(self, markup: str, style: str, depth: int = 0) -> Any:
        from reportlab.platypus import Paragraph

        return Paragraph(markup, indented(self.styles[style], depth))

    def _list(self, node: SyntaxTreeNode, depth: int) -> list[Any]:
        from reportlab.platypus import Spacer

        start = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else 0
        made: list[Any] = []
        for number, item in enumerate(node.children, start):
            made += self._item(item, f"{number}." if node.type == "ordered_list" else "•", min(depth + 1, MAX_NESTING))
        return made if depth else [*made, Spacer(1, 5)]

    def _item(self, item: SyntaxTreeNode, mark: str, depth: int) -> list[Any]:
        """The mark beside the item's own first words; on a line of its own before anything else, or nothing."""
        from reportlab.platypus import Paragraph

        self._count()
        begins = bool(item.children) and item.children[0].type == "paragraph"
        first, *more = _pieces(item.children[0]) if begins else ["\N{NO-BREAK SPACE}"]
        return [
            Paragraph(first, indented(self.styles["item" if begins else "mark"], depth), bulletText=mark),
            *(self._paragraph(piece, "body", depth) for piece in more),
            *self._blocks(item.children[begins:], depth),
        ]

    def _quote(self, node: SyntaxTreeNode, depth: int) -> list[Any]:
        quoted = []
        for child in node.children:
            deeper = min(depth + 1, MAX_NESTING)
            quoted += (
                self._paragraphs(child, "quote", deeper) if child.type == "paragraph" else self._block(child, deeper)
            )
        return quoted

    def _code(self, code: str, depth: int) -> list[Any]:
        from reportlab.platypus import XPreformatted

        whole = code.rstrip("\n").expandtabs(4).split("\n")
        lines = [line[at : at + _CODE_CHARS] for line in whole for at in range(0, max(1, len(line)), _CODE_CHARS)]
        blocks = ["\n".join(lines[at : at + _CODE_LINES]) for at in range(0, len(lines), _CODE_LINES)]
        return [XPreformatted(escape(block), indented(self.styles["code"], depth)) for block in blocks]

    def _table(self, node: SyntaxTreeNode) -> list[Any]:
        from reportlab.platypus import LongTable

        rows = [row for part in node.children for row in part.children]
        columns = max(len(row.children) for row in rows)
        self.cells += columns * len(rows)
        if columns > MAX_COLUMNS or self.cells > MAX_CELLS:
            raise ValueError(
                f"tables of a PDF have at most {MAX_COLUMNS} columns and {MAX_CELLS} cells in all: use make_csv"
            )
        cells = [[self._cell(cell, head=at == 0) for cell in row.children] for at, row in enumerate(rows)]
        words = [[_words(cell) for cell in row.children] for row in rows]
        return [
            LongTable(
                cells,
                colWidths=_widths(words),
                repeatRows=max(map(len, words[0])) <= MAX_REPEATED_CHARS,
                splitInRow=1,
                style=table_style(),
                spaceBefore=6,
                spaceAfter=12,
                hAlign="LEFT",
            )
        ]

    def _cell(self, node: SyntaxTreeNode, *, head: bool) -> Any:
        from reportlab.platypus import Paragraph

        aligned = str(node.attrs.get("style", "")).rpartition(":")[2] or "left"
        words = _words(node)
        markup = _inline(node) if len(words) <= MAX_CELL_CHARS else _safe(words[:MAX_CELL_CHARS] + "…")
        return Paragraph(markup, self.styles[f"{'head' if head else 'cell'} {aligned}"])


def _words(node: SyntaxTreeNode) -> str:
    """The bare words of a part."""
    return "".join(_content(leaf) for leaf in node.walk() if not leaf.children)


def _content(leaf: SyntaxTreeNode) -> str:
    return " " if leaf.type in ("softbreak", "hardbreak") else leaf.content if not leaf.is_root else ""


def _pieces(node: SyntaxTreeNode) -> Iterator[str]:
    """The markup of a paragraph; bare words in several pieces where there are too many for one."""
    words = _words(node)
    if len(words) <= MAX_PARAGRAPH_CHARS:
        yield _inline(node)
        return
    while words:
        end = words.rfind(" ", 0, MAX_PARAGRAPH_CHARS) if len(words) > MAX_PARAGRAPH_CHARS else -1
        end = end if end > 0 else MAX_PARAGRAPH_CHARS
        yield _safe(words[:end])
        words = words[end:].lstrip()


def _inline(node: SyntaxTreeNode) -> str:
    """The text of a part as reportlab's own markup, with every character of the user's escaped."""
    inside = "".join(map(_inline, node.children))
    match node.type:
        case "text":
            return _safe(node.content)
        case "code_inline":
            return f'<font name="{MONO}" size="9.5" color="{DARK}">{_safe(node.content)}</font>'
        case "softbreak":
            return " "
        case "hardbreak":
            return "<br/>"
        case "link" if _LINK.match(str(node.attrs.get("href", ""))):
            return f'<a href={quoteattr(str(node.attrs["href"]))} color="{ACCENT}">{inside}</a>'
    mark = _MARKS.get(node.type)
    return f"<{mark}>{inside}</{mark}>" if mark else inside


def _safe(text: str) -> str:
    """Escaped; a word without end is broken, because breaking it takes time as the square of its length."""
    return escape(_LONG_WORD.sub(r"\g<0> ", text))


def _widths(rows: Sequence[Sequence[str]]) -> list[float]:
    """Each column as wide as its longest cell asks for, between limits, all of them as wide as the page at most."""
    page = _page_size()[0] - 2 * _MARGIN
    wanted = [
        16.0 + 6.2 * min(40, max(3, *(len(row[at]) for row in rows if at < len(row)))) for at in range(len(rows[0]))
    ]
    return [width * min(1.0, page / sum(wanted)) for width in wanted]
