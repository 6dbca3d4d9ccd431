"""PDF and CSV files; Markdown -> HTML -> fpdf2 or WeasyPrint."""

from __future__ import annotations

import csv
import functools
import io
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.sax.saxutils import escape, quoteattr

from pydantic import Field

from sayso.agent.toolbox import need
from sayso.agent.tools.context import emit_artifact
from sayso.agent.tools.tool import Tool, tool

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode


#: Characters of the longest name, without its ending.
MAX_STEM_CHARS = 60


def filename(words: str, ending: str) -> str:
    """The words as a file's name: letters of any script, digits and dashes, with this ending and no other."""
    stem = re.sub(rf"\.{ending}$", "", words.strip(), flags=re.IGNORECASE)
    tidy = "-".join(re.findall(r"\w+", stem))[:MAX_STEM_CHARS].strip("-_")
    return f"{tidy or 'file'}.{ending}"


#: Characters that a message names.
NAMED = 10


#: What colours emoji; what joins them is a control character. No loss where it is left out.
_SELECTORS = frozenset("\ufe0e\ufe0f")


def font_file(style: str = "") -> Path:
    """DejaVu Sans (`style` is "", "Bold", "Oblique" or "BoldOblique"), or "Mono", as it comes with matplotlib."""
    import matplotlib

    name = "DejaVuSansMono" if style == "Mono" else f"DejaVuSans-{style}" if style else "DejaVuSans"
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"


@functools.lru_cache(maxsize=4)
def drawable(style: str = "") -> frozenset[int]:
    """The code points that the font has."""
    from matplotlib.font_manager import get_font

    return frozenset(get_font(str(font_file(style))).get_charmap())


def visible(text: str) -> str:
    """The text without control characters and halves of characters, which no font has; lines stay lines."""
    return "".join(char for char in text if char in "\n\t" or not _is_unseen(char))


def _is_unseen(char: str) -> bool:
    return char in _SELECTORS or unicodedata.category(char)[0] == "C"


def undrawable(text: str, style: str = "") -> list[str]:
    """The characters that the font does not have, each once, in their order."""
    known = drawable(style)
    return [char for char in dict.fromkeys(visible(text)) if ord(char) not in known and not char.isspace()]


def refuse_undrawable(what: str, texts: Iterable[str]) -> None:
    """Raise ValueError when any of the texts cannot be drawn."""
    missing = undrawable("".join(texts))
    if missing:
        raise ValueError(
            f"the {what} was not made: its font cannot draw {named(missing)}. It has Latin, Greek, Cyrillic, Arabic "
            "and Hebrew letters; leave out emoji, and write other scripts in Latin letters"
        )


def named(characters: Iterable[str]) -> str:
    """The characters in a message: the first of them, each with its name where it has one."""
    every = list(characters)
    shown = ", ".join(f"{char!r} ({unicodedata.name(char, 'no name').lower()})" for char in every[:NAMED])
    return f"{shown} and {len(every) - NAMED} more" if len(every) > NAMED else shown


#: Characters of the longest text of a PDF: about twenty pages, set in a second or two whatever they say.
MAX_PDF_CHARS = 60_000


#: Rows, columns and characters of a cell of the largest CSV.
MAX_CSV_ROWS, MAX_CSV_COLUMNS, MAX_CELL_CHARS = 2_000, 50, 2_000


#: Characters of the largest CSV.
MAX_CSV_CHARS = 500_000


#: What a spreadsheet reads as a formula that it runs.
_FORMULA = re.compile(r"[=+\-@\t\r]")


_NUMBER = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?%?", re.ASCII)


Title = Annotated[str, Field(min_length=1, max_length=120, description="The title, also shown on top")]


Name = Annotated[
    str, Field(max_length=MAX_STEM_CHARS, description="The file's name without its ending; empty: the title")
]


Cell = str | float | int | bool | None


need("documents", "reportlab", "matplotlib")


@tool(read_only=True, description="Make a PDF file for the user from a text in Markdown")
def make_pdf(
    title: Title,
    text: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_PDF_CHARS,
            description=(
                "Markdown: # headings, **bold**, *italic*, `code`, - and 1. lists, > quotes, | tables |, ---, "
                "links. No pictures, no HTML"
            ),
        ),
    ],
    file_name: Name = "",
) -> str:
    """Hand the PDF over and say how many pages it has. Raises ValueError when its letters cannot be drawn."""

    left_out = _left_out(title + text)
    pdf, pages = pdf_of_markdown(_without(title, left_out), _without(text, left_out))
    name = filename(file_name or title, "pdf")
    emit_artifact(data=pdf, filename=name, mime_type="application/pdf")
    told = f"{name} is made ({pages} page{'s' if pages > 1 else ''}) and goes to the user with your reply."
    return f"{told} Left out, because its font cannot draw it: {named(left_out)}." if left_out else told


@tool(read_only=True, description="Make a CSV file for the user, which opens in a spreadsheet, from rows of cells")
def make_csv(
    columns: Annotated[
        list[str], Field(min_length=1, max_length=MAX_CSV_COLUMNS, description="The names of the columns")
    ],
    rows: Annotated[
        list[list[Cell]],
        Field(max_length=MAX_CSV_ROWS, description="The rows; each has one cell for each column: text, number or null"),
    ],
    file_name: Name = "table",
) -> str:
    """Hand the CSV over and say how many rows it has. Raises ValueError."""
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise ValueError(f"row {number} has {len(row)} cells for {len(columns)} columns: give each one, or null")
    text = io.StringIO()
    writer = csv.writer(text)
    every: list[Sequence[Cell]] = [columns, *rows]
    for cells in every:
        writer.writerow([_cell(cell) for cell in cells])
        if text.tell() > MAX_CSV_CHARS:
            raise ValueError(f"the table has more than {MAX_CSV_CHARS} characters: make several files")
    name = filename(file_name or "table", "csv")
    data = text.getvalue().encode("utf-8-sig", "replace")  # without the mark, Excel garbles umlauts
    emit_artifact(data=data, filename=name, mime_type="text/csv")
    return f"{name} is made ({len(rows)} row{'' if len(rows) == 1 else 's'}) and goes to the user with your reply."


def tools(_folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family."""
    return [make_pdf, make_csv]


def _cell(value: Cell) -> str | float | int:
    """A cell's value. What a spreadsheet would run as a formula gets the apostrophe that makes it text."""
    if value is None or isinstance(value, bool) or not isinstance(value, str):
        return "" if value is None else str(value).lower() if isinstance(value, bool) else value
    if len(value) > MAX_CELL_CHARS:
        raise ValueError(f"a cell has {len(value)} characters: at most {MAX_CELL_CHARS}")
    return f"'{value}" if _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value


def _left_out(text: str) -> list[str]:
    """What the PDF has to do without: emoji and signs. Raises ValueError when letters or digits are among it."""
    missing = undrawable(text) + [char for char in dict.fromkeys(text) if _runs_right_to_left(char)]
    letters = [char for char in missing if unicodedata.category(char)[0] in "LMN"]
    if letters:
        raise ValueError(
            f"no PDF was made: it cannot set {named(letters)}. It sets Latin, Greek and Cyrillic letters; "
            "answer in a message instead, or write the words in Latin letters"
        )
    return missing


def _runs_right_to_left(char: str) -> bool:
    """reportlab sets Arabic and Hebrew letter by letter, from the wrong side."""
    return unicodedata.bidirectional(char) in ("R", "AL", "AN")


def _without(text: str, characters: Sequence[str]) -> str:
    return visible(text).translate(dict.fromkeys(map(ord, characters)))


#: The fonts of words and of code, as reportlab knows them.
FONT, MONO = "SaysoSans", "SaysoMono"


#: Colours.
DARK, GREY, LIGHT, ACCENT = "#111827", "#6b7280", "#e5e7eb", "#4338ca"


def rule() -> Any:
    """A line across the page."""
    from reportlab.platypus import HRFlowable

    return HRFlowable(width="100%", thickness=0.7, color=LIGHT, spaceBefore=8, spaceAfter=10)


def table_style() -> Any:
    """Lines beneath the rows, a stronger one beneath the head."""
    from reportlab.platypus import TableStyle

    return TableStyle(
        [
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("LINEBELOW", (0, 0), (-1, 0), 0.9, GREY),
            ("LINEBELOW", (0, 1), (-1, -1), 0.4, LIGHT),
            ("TOPPADDING", (0, 0), (-1, -1), 4),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 5),
        ]
    )


def indented(style: Any, depth: int) -> Any:
    """The style, as deep in lists and quotes as that."""
    if not depth:
        return style
    return style.clone(f"{style.name} {depth}", leftIndent=16 * depth + style.leftIndent, bulletIndent=16 * depth - 12)


@functools.lru_cache(maxsize=1)
def styles() -> Mapping[str, Any]:
    """Made once per process, with the font they need."""
    from reportlab.lib.enums import TA_CENTER, TA_LEFT, TA_RIGHT
    from reportlab.lib.styles import ParagraphStyle

    _register_fonts()
    body = ParagraphStyle(
        "body",
        fontName=FONT,
        fontSize=10.5,
        leading=15.5,
        spaceAfter=7,
        textColor=DARK,
        bulletFontName=FONT,
        bulletFontSize=10.5,
    )
    made = {"body": body, "quote": body.clone("quote", textColor=GREY, fontName=f"{FONT}-Oblique")}
    made["item"] = body.clone("item", spaceAfter=3)
    made["mark"] = body.clone("mark", spaceAfter=0, keepWithNext=1)
    made["code"] = body.clone(
        "code",
        fontName=MONO,
        fontSize=8.5,
        leading=12,
        backColor="#f3f4f6",
        borderPadding=6,
        spaceBefore=12,
        spaceAfter=14,
    )
    for level, size in enumerate((20, 15, 12.5, 11), 1):
        made[f"h{level}"] = body.clone(
            f"h{level}",
            fontName=f"{FONT}-Bold",
            fontSize=size,
            leading=size * 1.3,
            spaceBefore=size * 0.7,
            spaceAfter=size * 0.45,
            keepWithNext=1,
        )
    for side, alignment in (("left", TA_LEFT), ("center", TA_CENTER), ("right", TA_RIGHT)):
        made[f"cell {side}"] = body.clone(f"cell {side}", fontSize=9, leading=12.5, spaceAfter=0, alignment=alignment)
        made[f"head {side}"] = made[f"cell {side}"].clone(f"head {side}", fontName=f"{FONT}-Bold")
    return made


def _register_fonts() -> None:
    from reportlab.pdfbase.pdfmetrics import registerFont, registerFontFamily
    from reportlab.pdfbase.ttfonts import TTFont

    for style in ("", "Bold", "Oblique", "BoldOblique"):
        registerFont(TTFont(f"{FONT}-{style}" if style else FONT, str(font_file(style))))
    registerFont(TTFont(MONO, str(font_file("Mono"))))
    registerFontFamily(
        FONT, normal=FONT, bold=f"{FONT}-Bold", italic=f"{FONT}-Oblique", boldItalic=f"{FONT}-BoldOblique"
    )


#: Characters of the longest paragraph that is set in one piece: breaking lines takes time as its square.
MAX_PARAGRAPH_CHARS = 2_000


#: Characters of the longest word that is set in one piece.
MAX_WORD_CHARS = 60


#: Characters of a table's cell; the rest is cut off.
MAX_PDF_CELL_CHARS = 600


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
        markup = _inline(node) if len(words) <= MAX_PDF_CELL_CHARS else _safe(words[:MAX_PDF_CELL_CHARS] + "…")
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
