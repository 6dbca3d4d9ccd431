"""The tools `make_pdf` (Markdown to PDF, set by reportlab) and `make_csv`."""

from __future__ import annotations

import csv
import functools
import io
import re
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.sax.saxutils import escape, quoteattr

from pydantic import Field

from sayso.agent.toolbox import need, plural
from sayso.agent.tools.environment import emit_artifact
from sayso.agent.tools.tool import tool

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

#: Characters of the longest text of a PDF: about twenty pages, laid out in one or two seconds.
MAX_PDF_CHARS = 60_000
#: Rows of the largest CSV, without its head.
MAX_CSV_ROWS = 2_000
#: Columns of the widest CSV.
MAX_CSV_COLUMNS = 50
#: Characters of the longest cell of a CSV.
MAX_CELL_CHARS = 2_000
#: Characters of the largest CSV.
MAX_CSV_CHARS = 500_000
#: Characters of the longest file name, without its ending.
MAX_STEM_CHARS = 60
#: Nodes of the largest paragraph that is set with its markup. The time for changes of font grows with
#: the square of their number.
MAX_INLINE_NODES = 2_000
#: Characters of a table's cell in a PDF; the rest is cut off.
MAX_PDF_CELL_CHARS = 600
#: Characters of the longest cell of a head row that is repeated on every page.
MAX_REPEATED_CHARS = 40
#: Columns of the widest table of a PDF.
MAX_COLUMNS = 12
#: Cells of all tables of a PDF: each is a separate paragraph.
MAX_CELLS = 3_000
#: Headings, paragraphs, list items and blocks of a text. The paragraph of a list item without blank
#: lines is not counted.
MAX_BLOCKS = 3_000
_BLOCKS = frozenset(("heading", "paragraph", "list_item", "fence", "code_block", "hr", "table"))
#: How deeply lists and quotes may be nested.
MAX_NESTING = 12
#: Characters of a line of code: more would not fit on a page.
_CODE_CHARS = 90
#: How many characters a message names.
_NAMED_CHARS = 10
#: Width and height of a page (A4), and its margin (two centimeters), in points.
_PAGE = (595.2755905511812, 841.8897637795277)
_MARGIN = 56.0
#: The names under which reportlab knows the fonts.
_FONT = "SaysoSans"
_MONO = "SaysoMono"
_DARK = "#111827"
_GREY = "#6b7280"
_LIGHT = "#e5e7eb"
_ACCENT = "#4338ca"
#: What a spreadsheet would run as a formula.
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?%?", re.ASCII)
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_MARKUP_TAGS: Mapping[str, str] = {"strong": "b", "em": "i", "s": "strike"}
#: Characters that choose the color of an emoji; leaving them out loses nothing.
_VARIATION_SELECTORS = frozenset("\ufe0e\ufe0f")
Name = Annotated[
    str,
    Field(
        max_length=MAX_STEM_CHARS,
        description="The file's name without its ending; empty: the title",
    ),
]
Cell = str | float | int | bool | None

need("documents")

#: reportlab has one parser for all threads.
_reportlab_lock = threading.Lock()


@tool(read_only=True)
def make_pdf(
    title: Annotated[str, Field(min_length=1, max_length=120)],
    text: Annotated[str, Field(min_length=1, max_length=MAX_PDF_CHARS)],
    file_name: Name = "",
) -> str:
    """Make a PDF file for the user from a text in Markdown.

    Args:
        title: The title, also shown on top
        text: Markdown: # headings, **bold**, *italic*, `code`, - and 1. lists, > quotes, | tables |, ---, links. No
            pictures, no HTML
    """
    omitted = _omitted_characters(title + text)
    deletions = dict.fromkeys(map(ord, omitted))
    pdf, pages = pdf_of_markdown(
        visible(title).translate(deletions), visible(text).translate(deletions)
    )
    name = filename(file_name or title, "pdf")
    emit_artifact(pdf, filename=name, mime_type="application/pdf")
    answer = f"{name} is made ({plural(pages, 'page')}) and goes to the user with your reply."
    if omitted:
        return f"{answer} Left out, because its font cannot draw it: {_describe(omitted)}."
    return answer


@tool(read_only=True)
def make_csv(
    columns: Annotated[list[str], Field(min_length=1, max_length=MAX_CSV_COLUMNS)],
    rows: Annotated[list[list[Cell]], Field(max_length=MAX_CSV_ROWS)],
    file_name: Name = "table",
) -> str:
    """Make a CSV file for the user, which opens in a spreadsheet, from rows of cells.

    Args:
        columns: The names of the columns
        rows: The rows; each has one cell for each column: text, number or null
    """
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise ValueError(
                f"row {number} has {len(row)} cells for {len(columns)} columns: give each one, or null"
            )
    text = io.StringIO()
    writer = csv.writer(text)
    all_rows: list[Sequence[Cell]] = [columns, *rows]
    for cells in all_rows:
        writer.writerow([_csv_cell(cell) for cell in cells])
        if text.tell() > MAX_CSV_CHARS:
            raise ValueError(
                f"the table has more than {MAX_CSV_CHARS} characters: make several files"
            )
    name = filename(file_name or "table", "csv")
    # Without the byte order mark, Excel garbles umlauts.
    data = text.getvalue().encode("utf-8-sig", "replace")
    emit_artifact(data, filename=name, mime_type="text/csv")
    return f"{name} is made ({plural(len(rows), 'row')}) and goes to the user with your reply."


def _csv_cell(value: Cell) -> str | float | int:
    """Return the value of a cell.

    A text that a spreadsheet would run as a formula gets an apostrophe, which makes it text.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    if len(value) > MAX_CELL_CHARS:
        raise ValueError(f"a cell has {len(value)} characters: at most {MAX_CELL_CHARS}")
    if _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def filename(text: str, ending: str) -> str:
    """Return a file name made of the text: letters of any script, digits, dashes, and this ending."""
    stem = re.sub(rf"\.{ending}$", "", text.strip(), flags=re.IGNORECASE)
    tidy = "-".join(re.findall(r"\w+", stem))[:MAX_STEM_CHARS].strip("-_")
    return f"{tidy or 'file'}.{ending}"


def refuse_undrawable(what: str, texts: Iterable[str]) -> None:
    """Raise ValueError if the font lacks a character of the texts.

    `what` names the picture in the message.
    """
    missing = _undrawable("".join(texts))
    if missing:
        raise ValueError(
            f"the {what} was not made: its font cannot draw {_describe(missing)}. It has Latin, Greek, Cyrillic, "
            "Arabic and Hebrew letters; leave out emoji, and write other scripts in Latin letters"
        )


def visible(text: str) -> str:
    """Return the text without characters that no font has: control characters, lone surrogates.

    Line ends and tabs stay.
    """
    return "".join(char for char in text if _is_visible(char))


def _is_visible(char: str) -> bool:
    if char in "\n\t":
        return True
    return char not in _VARIATION_SELECTORS and unicodedata.category(char)[0] != "C"


def _undrawable(text: str) -> list[str]:
    """Return the characters that the font lacks, each once, in order."""
    known = _font_characters()
    return [
        char
        for char in dict.fromkeys(visible(text))
        if ord(char) not in known and not char.isspace()
    ]


@functools.lru_cache(maxsize=1)
def _font_characters() -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(str(_font_file())).get_charmap())


def _font_file(style: str = "") -> Path:
    """Return the path of the font DejaVu Sans that comes with matplotlib.

    `style` is "", "Bold", "Oblique", "BoldOblique" or "Mono".
    """
    import matplotlib

    if style == "Mono":
        name = "DejaVuSansMono"
    elif style:
        name = f"DejaVuSans-{style}"
    else:
        name = "DejaVuSans"
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"


def _describe(characters: Sequence[str]) -> str:
    """Return the first characters for a message, each with its Unicode name."""
    first = ", ".join(
        f"{char!r} ({unicodedata.name(char, 'no name').lower()})"
        for char in characters[:_NAMED_CHARS]
    )
    if len(characters) > _NAMED_CHARS:
        return f"{first} and {len(characters) - _NAMED_CHARS} more"
    return first


def _omitted_characters(text: str) -> list[str]:
    """Return the emoji and signs that a PDF leaves out.

    Raises ValueError if it would have to leave out letters. reportlab sets Arabic and Hebrew letter
    by letter and from the wrong side, so they count as missing.
    """
    right_to_left = [
        char for char in dict.fromkeys(text) if unicodedata.bidirectional(char) in ("R", "AL", "AN")
    ]
    missing = _undrawable(text) + right_to_left
    letters = [char for char in missing if unicodedata.category(char)[0] in "LMN"]
    if letters:
        raise ValueError(
            f"no PDF was made: it cannot set {_describe(letters)}. It sets Latin, Greek and Cyrillic letters; "
            "answer in a message instead, or write the words in Latin letters"
        )
    return missing


def pdf_of_markdown(title: str, text: str) -> tuple[bytes, int]:
    """Return the PDF and its number of pages.

    Raises ValueError if a table or another part is too large.
    """
    from reportlab.platypus import SimpleDocTemplate
    from reportlab.platypus.doctemplate import LayoutError

    tree = _parse(text)
    out = io.BytesIO()
    margins = dict.fromkeys(("leftMargin", "rightMargin", "topMargin", "bottomMargin"), _MARGIN)
    with _reportlab_lock:
        story = _story(title, tree)
        document = SimpleDocTemplate(
            out, pagesize=_PAGE, title=title, creator="Sayso", invariant=1, **margins
        )
        try:
            document.build(story, onFirstPage=_draw_page_number, onLaterPages=_draw_page_number)
        except LayoutError as exc:  # its message holds memory addresses
            raise ValueError(
                "a part of the text is too large for a page: make it shorter, or use make_csv"
            ) from exc
    return out.getvalue(), document.page


def _parse(text: str) -> SyntaxTreeNode:
    """Return the tree of a Markdown text. Raises ValueError for one with too many parts.

    Pictures and HTML stay text: the URL of a picture would be opened.
    """
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 4 * MAX_NESTING})
    parser.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    tree = SyntaxTreeNode(parser.parse(text))
    nodes = list(tree.walk())
    if sum(node.type in _BLOCKS and not node.hidden for node in nodes) > MAX_BLOCKS:
        raise ValueError(
            f"the text has more than {MAX_BLOCKS} paragraphs, headings and list items: make several files"
        )
    rows = [len(node.children) for node in nodes if node.type == "tr"]
    if max(rows, default=0) > MAX_COLUMNS or sum(rows) > MAX_CELLS:
        raise ValueError(
            f"tables of a PDF have at most {MAX_COLUMNS} columns and {MAX_CELLS} cells in all: use make_csv"
        )
    return tree


def _draw_page_number(canvas: Any, document: Any) -> None:
    canvas.setFont(_FONT, 8)
    canvas.setFillColor(_GREY)
    canvas.drawRightString(_PAGE[0] - _MARGIN, _MARGIN / 2, str(document.page))


@functools.lru_cache(maxsize=1)
def _styles() -> Mapping[str, Any]:
    """Return the paragraph styles by name. Made once per process, with the fonts they need."""
    from reportlab.lib.enums import TA_CENTER, TA_LEFT, TA_RIGHT
    from reportlab.lib.styles import ParagraphStyle

    _register_fonts()
    font = {"fontName": _FONT, "fontSize": 10.5, "bulletFontName": _FONT, "bulletFontSize": 10.5}
    body = ParagraphStyle("body", leading=15.5, spaceAfter=7, textColor=_DARK, **font)
    code = {"fontName": _MONO, "fontSize": 8.5, "leading": 12, "spaceBefore": 12, "spaceAfter": 14}
    styles = {
        "body": body,
        "quote": body.clone("quote", textColor=_GREY, fontName=f"{_FONT}-Oblique"),
        "item": body.clone("item", spaceAfter=3),
        "lone mark": body.clone("lone mark", spaceAfter=0, keepWithNext=1),
        "code": body.clone("code", backColor="#f3f4f6", borderPadding=6, **code),
    }
    for level, size in enumerate((20, 15, 12.5, 11), 1):
        space = {
            "leading": size * 1.3,
            "spaceBefore": size * 0.7,
            "spaceAfter": size * 0.45,
            "keepWithNext": 1,
        }
        styles[f"h{level}"] = body.clone(
            f"h{level}", fontName=f"{_FONT}-Bold", fontSize=size, **space
        )
    for side, alignment in (("left", TA_LEFT), ("center", TA_CENTER), ("right", TA_RIGHT)):
        cell = body.clone(
            f"cell {side}", fontSize=9, leading=12.5, spaceAfter=0, alignment=alignment
        )
        styles[cell.name] = cell
        styles[f"head {side}"] = cell.clone(f"head {side}", fontName=f"{_FONT}-Bold")
    return styles


def _register_fonts() -> None:
    from reportlab.pdfbase.pdfmetrics import registerFont, registerFontFamily
    from reportlab.pdfbase.ttfonts import TTFont

    for style in ("", "Bold", "Oblique", "BoldOblique"):
        registerFont(TTFont(f"{_FONT}-{style}" if style else _FONT, str(_font_file(style))))
    registerFont(TTFont(_MONO, str(_font_file("Mono"))))
    registerFontFamily(
        _FONT,
        normal=_FONT,
        bold=f"{_FONT}-Bold",
        italic=f"{_FONT}-Oblique",
        boldItalic=f"{_FONT}-BoldOblique",
    )


def _story(title: str, tree: SyntaxTreeNode) -> list[Any]:
    """Return what reportlab lays out, its flowables: the title and all blocks of the text.

    The title is left out if the text begins with it as a heading.
    """
    blocks = _blocks(tree.children, 0)
    first = next(iter(tree.children), None)
    if first is not None and first.type == "heading" and _text(first).strip() == title.strip():
        return blocks
    return [_paragraph(escape(title), "h1"), *blocks]


def _blocks(
    nodes: Sequence[SyntaxTreeNode], depth: int, paragraph_style: str = "body"
) -> list[Any]:
    return [flowable for node in nodes for flowable in _block(node, depth, paragraph_style)]


def _block(node: SyntaxTreeNode, depth: int, paragraph_style: str) -> list[Any]:
    from reportlab.platypus import HRFlowable

    match node.type:
        case "heading":
            return [_paragraph(_markup(node), f"h{min(int(node.tag[1]), 4)}", depth)]
        case "bullet_list" | "ordered_list":
            return _list(node, depth)
        case "blockquote":
            return _blocks(node.children, min(depth + 1, MAX_NESTING), "quote")
        case "fence" | "code_block":
            return [_code(node.content, depth)]
        case "table":
            return [_table(node)]
        case "hr":
            return [
                HRFlowable(width="100%", thickness=0.7, color=_LIGHT, spaceBefore=8, spaceAfter=10)
            ]
    return [_paragraph(_markup(node), paragraph_style, depth)]


def _paragraph(markup: str, style: str, depth: int = 0, **options: Any) -> Any:
    from reportlab.platypus import Paragraph

    return Paragraph(markup, _indented(style, depth), **options)


def _indented(style: str, depth: int) -> Any:
    base = _styles()[style]
    if not depth:
        return base
    left = 16 * depth + base.leftIndent
    return base.clone(f"{style} {depth}", leftIndent=left, bulletIndent=16 * depth - 12)


def _list(node: SyntaxTreeNode, depth: int) -> list[Any]:
    from reportlab.platypus import Spacer

    start = int(node.attrs.get("start", 1))
    flowables: list[Any] = []
    deeper = min(depth + 1, MAX_NESTING)
    for number, item in enumerate(node.children, start):
        if node.type == "ordered_list":
            mark = f"{number}."
        else:
            mark = "•"
        # The mark stands beside the item's first paragraph, or on a line of its own if it has none.
        has_text = bool(item.children) and item.children[0].type == "paragraph"
        first = "\N{NO-BREAK SPACE}"
        style = "lone mark"
        if has_text:
            first = _markup(item.children[0])
            style = "item"
        flowables.append(_paragraph(first, style, deeper, bulletText=mark))
        flowables += _blocks(item.children[has_text:], deeper)
    if depth:
        return flowables
    return [*flowables, Spacer(1, 5)]


def _code(code: str, depth: int) -> Any:
    from reportlab.platypus import XPreformatted

    whole = code.rstrip("\n").expandtabs(4).split("\n")
    lines = [
        line[at : at + _CODE_CHARS]
        for line in whole
        for at in range(0, max(1, len(line)), _CODE_CHARS)
    ]
    return XPreformatted(escape("\n".join(lines)), _indented("code", depth))


def _table(node: SyntaxTreeNode) -> Any:
    from reportlab.platypus import LongTable

    rows = [row for part in node.children for row in part.children]
    lengths = [[len(_text(cell)) for cell in row.children] for row in rows]
    # A column is as wide as its longest cell, within limits, and all together at most as wide as the page.
    widths = [16.0 + 6.2 * min(40, max(3, *column)) for column in zip(*lengths, strict=True)]
    share = min(1.0, (_PAGE[0] - 2 * _MARGIN) / sum(widths))
    return LongTable(
        [[_cell(cell, head=at == 0) for cell in row.children] for at, row in enumerate(rows)],
        colWidths=[width * share for width in widths],
        repeatRows=max(lengths[0]) <= MAX_REPEATED_CHARS,
        splitInRow=1,
        style=[
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("LINEBELOW", (0, 0), (-1, 0), 0.9, _GREY),
            ("LINEBELOW", (0, 1), (-1, -1), 0.4, _LIGHT),
            ("TOPPADDING", (0, 0), (-1, -1), 4),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 5),
        ],
        spaceBefore=6,
        spaceAfter=12,
        hAlign="LEFT",
    )


def _cell(node: SyntaxTreeNode, *, head: bool) -> Any:
    side = str(node.attrs.get("style", "")).rpartition(":")[2] or "left"
    text = _text(node)
    if len(text) <= MAX_PDF_CELL_CHARS:
        markup = _markup(node)
    else:
        markup = escape(text[:MAX_PDF_CELL_CHARS] + "…")
    return _paragraph(markup, f"{'head' if head else 'cell'} {side}")


def _text(node: SyntaxTreeNode) -> str:
    """Return the text of a node, without markup."""
    leaves = [leaf for leaf in node.walk() if not leaf.children and not leaf.is_root]
    return "".join(
        " " if leaf.type in ("softbreak", "hardbreak") else leaf.content for leaf in leaves
    )


def _markup(node: SyntaxTreeNode) -> str:
    """Return a node as reportlab's markup. Every character of the user's text is escaped."""
    if len(list(node.walk())) > MAX_INLINE_NODES:
        return escape(_text(node))
    inside = "".join(map(_markup, node.children))
    match node.type:
        case "text":
            return escape(node.content)
        case "code_inline":
            return f'<font name="{_MONO}" size="9.5" color="{_DARK}">{escape(node.content)}</font>'
        case "softbreak":
            return " "
        case "hardbreak":
            return "<br/>"
        case "link" if _LINK.match(str(node.attrs.get("href", ""))):
            return f'<a href={quoteattr(str(node.attrs["href"]))} color="{_ACCENT}">{inside}</a>'
    tag = _MARKUP_TAGS.get(node.type)
    if tag:
        return f"<{tag}>{inside}</{tag}>"
    return inside
