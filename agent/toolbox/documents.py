"""The tools `make_pdf`, which makes a PDF of Markdown, and `make_csv`.

markdown-it parses the Markdown into a tree, and reportlab lays it out. In reportlab's words a block
of a page, such as a paragraph, is a flowable, and all flowables of a document are its story.
"""

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
#: Parts of the largest paragraph that is set with bold, links and so on. The time for changes of
#: font grows with the square of their number.
MAX_INLINE_NODES = 2_000
#: Characters of a table's cell in a PDF; the rest is cut off.
MAX_PDF_CELL_CHARS = 600
#: Characters of the longest cell of a head row that is repeated on every page.
MAX_REPEATED_CHARS = 40
#: Columns of the widest table of a PDF.
MAX_COLUMNS = 12
#: Cells of all tables of a PDF. Each cell is a separate paragraph.
MAX_CELLS = 3_000
#: Headings, paragraphs, list items and other blocks of a text. The paragraph of a list item without
#: blank lines is not counted.
MAX_BLOCKS = 3_000
#: The types of these blocks in markdown-it's tree.
_BLOCKS = frozenset(("heading", "paragraph", "list_item", "fence", "code_block", "hr", "table"))
#: How deeply lists and quotes may be nested.
MAX_NESTING = 12
#: Characters of a line of code that fit on a page, outside of lists and quotes.
_CODE_CHARS = 90
#: By how much each list or quote indents what is in it, in points.
_INDENT = 16
#: How far the mark of a list item stands left of its text, in points.
_MARK_DISTANCE = 12
#: How many characters of code each indent takes away: one is 5.1 points wide.
_CODE_CHARS_OF_INDENT = 4
#: How many characters that the font lacks a message names.
_MAX_NAMED = 10
#: Width and height of a page (A4), in points.
_PAGE = (595.2755905511812, 841.8897637795277)
#: The margin of a page (two centimeters), in points.
_MARGIN = 56.0
#: The names under which reportlab knows the fonts.
_FONT = "SaysoSans"
_MONO = "SaysoMono"
#: The colors of text, of what is less important, of lines and of links.
_DARK = "#111827"
_GREY = "#6b7280"
_LIGHT = "#e5e7eb"
_ACCENT = "#4338ca"
#: The beginning of a cell that a spreadsheet would run as a formula.
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?%?", re.ASCII)
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
#: Type of a node in markdown-it's tree -> the tag that reportlab knows.
_MARKUP_TAGS: Mapping[str, str] = {"strong": "b", "em": "i", "s": "strike"}
#: Invisible characters that choose whether an emoji is in color.
_VARIATION_SELECTORS = frozenset("\ufe0e\ufe0f")
PdfName = Annotated[
    str,
    Field(
        max_length=MAX_STEM_CHARS,
        description="The file's name without its ending; empty: the title",
    ),
]
CsvName = Annotated[
    str,
    Field(max_length=MAX_STEM_CHARS, description="The file's name without its ending"),
]
Cell = str | float | int | bool | None

# Where a library is missing, the import of this module fails with the command that installs it.
need("documents")

#: Held while a PDF is laid out: reportlab has one parser for all threads.
_reportlab_lock = threading.Lock()


@tool(read_only=True)
def make_pdf(
    title: Annotated[str, Field(min_length=1, max_length=120)],
    text: Annotated[str, Field(min_length=1, max_length=MAX_PDF_CHARS)],
    file_name: PdfName = "",
) -> str:
    """Make a PDF file for the user from a text in Markdown.

    Args:
        title: The title, also shown on top
        text: Markdown: # headings, **bold**, *italic*, `code`, - and 1. lists, > quotes, | tables |, ---, links. No
            pictures, no HTML
    """
    omitted = _omitted_characters(title + text)
    deletions = dict.fromkeys(map(ord, omitted))
    drawable_title = visible(title).translate(deletions)
    drawable_text = visible(text).translate(deletions)
    pdf, pages = pdf_of_markdown(drawable_title, drawable_text)

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
    file_name: CsvName = "table",
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
    """Return the value of a cell as the CSV writer takes it.

    A text that a spreadsheet would run as a formula gets an apostrophe, which makes it text. Raise
    ValueError for a text of more than MAX_CELL_CHARS.
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
    """Return a file name made of a text: letters of any script, digits, dashes, and this ending."""
    stem = re.sub(rf"\.{ending}$", "", text.strip(), flags=re.IGNORECASE)
    # With one code point for each letter and its accent, as file systems and people type it.
    stem = unicodedata.normalize("NFC", stem)
    stem = "".join(char if _is_in_word(char) else " " for char in stem)
    tidy_stem = "-".join(stem.split())[:MAX_STEM_CHARS].strip("-_")
    return f"{tidy_stem or 'file'}.{ending}"


def _is_in_word(char: str) -> bool:
    """Return whether a character belongs to a word: a letter, digit, underscore or vowel sign.

    Scripts such as Devanagari and Thai write vowels as combining marks, which are no letters to
    Python.
    """
    return char == "_" or char.isalnum() or unicodedata.category(char) in ("Mn", "Mc")


def refuse_undrawable(picture: str, texts: Iterable[str]) -> None:
    """Raise ValueError if the font lacks a character of the texts.

    `picture` is what the message calls the picture, such as "chart".
    """
    missing = _undrawable("".join(texts))
    if missing:
        raise ValueError(
            f"the {picture} was not made: its font cannot draw {_describe(missing)}. It has Latin, Greek, Cyrillic, "
            "Arabic and Hebrew letters; leave out emoji, and write other scripts in Latin letters"
        )


def visible(text: str) -> str:
    """Return the text without characters that no font has, such as control characters.

    Line ends and tabs stay.
    """
    return "".join(char for char in text if _is_visible(char))


def _is_visible(char: str) -> bool:
    """Return whether a text keeps a character. Unicode's category C has the control characters."""
    if char in "\n\t":
        return True
    return char not in _VARIATION_SELECTORS and unicodedata.category(char)[0] != "C"


def _undrawable(text: str) -> list[str]:
    """Return the characters that the font lacks, each once, in order."""
    known = _font_characters()
    different = dict.fromkeys(visible(text))
    return [char for char in different if ord(char) not in known and not char.isspace()]


@functools.lru_cache(maxsize=1)
def _font_characters() -> frozenset[int]:
    """Return the code points that the font has."""
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
    """Return the first characters for a message, with their names, and how many follow."""
    first = ", ".join(
        f"{char!r} ({unicodedata.name(char, 'no name').lower()})"
        for char in characters[:_MAX_NAMED]
    )
    if len(characters) > _MAX_NAMED:
        return f"{first} and {len(characters) - _MAX_NAMED} more"
    return first


def _omitted_characters(text: str) -> list[str]:
    """Return the emoji and signs of a text that a PDF leaves out.

    Raise ValueError if letters, their accents or digits would be left out. reportlab sets Arabic
    and Hebrew letter by letter and from the wrong side, so their letters count as missing.
    """
    right_to_left = [
        char for char in visible(text) if unicodedata.bidirectional(char) in ("R", "AL", "AN")
    ]
    missing = list(dict.fromkeys([*_undrawable(text), *right_to_left]))
    # An enclosing mark (category Me) is no letter: it is the frame of an emoji such as 1️⃣.
    letters = [
        char
        for char in missing
        if unicodedata.category(char)[0] in "LMN" and unicodedata.category(char) != "Me"
    ]
    if letters:
        raise ValueError(
            f"no PDF was made: it cannot set {_describe(letters)}. It sets Latin, Greek and Cyrillic letters; "
            "answer in a message instead, or write the words in Latin letters"
        )
    return missing


def pdf_of_markdown(title: str, text: str) -> tuple[bytes, int]:
    """Return the PDF and its number of pages.

    Raise ValueError if a table or another part is too large.
    """
    from reportlab.platypus import SimpleDocTemplate
    from reportlab.platypus.doctemplate import LayoutError

    tree = _parse(text)
    file = io.BytesIO()
    margins = dict.fromkeys(("leftMargin", "rightMargin", "topMargin", "bottomMargin"), _MARGIN)
    with _reportlab_lock:
        story = _story(title, tree)
        # `invariant`: the same text gives the same bytes, without the time.
        document = SimpleDocTemplate(
            file, pagesize=_PAGE, title=title, creator="Sayso", invariant=1, **margins
        )
        try:
            document.build(story, onFirstPage=_draw_page_number, onLaterPages=_draw_page_number)
        except LayoutError as exc:  # its own message has memory addresses in it
            raise ValueError(
                "a part of the text is too large for a page: make it shorter, or use make_csv"
            ) from exc
    return file.getvalue(), document.page


def _parse(text: str) -> SyntaxTreeNode:
    """Return the tree of a Markdown text. Raise ValueError for one with too many parts.

    Pictures and HTML stay text. The URL of a picture would be opened.
    """
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 4 * MAX_NESTING})
    parser.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline"])
    tree = SyntaxTreeNode(parser.parse(text))
    nodes = list(tree.walk())
    # A hidden node is the paragraph of a list item without blank lines.
    blocks = [node for node in nodes if node.type in _BLOCKS and not node.hidden]
    if len(blocks) > MAX_BLOCKS:
        raise ValueError(
            f"the text has more than {MAX_BLOCKS} paragraphs, headings and list items: make several files"
        )

    cells_by_row = [len(node.children) for node in nodes if node.type == "tr"]
    if max(cells_by_row, default=0) > MAX_COLUMNS or sum(cells_by_row) > MAX_CELLS:
        raise ValueError(
            f"tables of a PDF have at most {MAX_COLUMNS} columns and {MAX_CELLS} cells in all: use make_csv"
        )
    return tree


def _draw_page_number(canvas: Any, document: Any) -> None:
    """Write the number of a page into its lower right corner. reportlab calls this."""
    canvas.setFont(_FONT, 8)
    canvas.setFillColor(_GREY)
    canvas.drawRightString(_PAGE[0] - _MARGIN, _MARGIN / 2, str(document.page))


@functools.lru_cache(maxsize=1)
def _styles() -> Mapping[str, Any]:
    """Return the paragraph styles by name. The first call in a process registers their fonts."""
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
        # The line with the mark of a list item that begins with no text, such as with a table.
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
    """Tell reportlab where the fonts are, and which one is the bold one of the other."""
    from reportlab.pdfbase.pdfmetrics import registerFont, registerFontFamily
    from reportlab.pdfbase.ttfonts import TTFont

    registerFont(TTFont(_FONT, str(_font_file())))
    for style in ("Bold", "Oblique", "BoldOblique"):
        registerFont(TTFont(f"{_FONT}-{style}", str(_font_file(style))))
    registerFont(TTFont(_MONO, str(_font_file("Mono"))))
    registerFontFamily(
        _FONT,
        normal=_FONT,
        bold=f"{_FONT}-Bold",
        italic=f"{_FONT}-Oblique",
        boldItalic=f"{_FONT}-BoldOblique",
    )


def _story(title: str, tree: SyntaxTreeNode) -> list[Any]:
    """Return the flowables of a document: its title and all blocks of the text.

    The title is left out if the text begins with it as a heading.
    """
    flowables = _blocks(tree.children, 0)
    if tree.children:
        first = tree.children[0]
        if first.type == "heading" and _text(first).strip() == title.strip():
            return flowables
    return [_paragraph(escape(title), "h1"), *flowables]


def _blocks(
    nodes: Sequence[SyntaxTreeNode], depth: int, paragraph_style: str = "body"
) -> list[Any]:
    """Return the flowables of several blocks; see `_block`."""
    flowables: list[Any] = []
    for node in nodes:
        flowables += _block(node, depth, paragraph_style)
    return flowables


def _block(node: SyntaxTreeNode, depth: int, paragraph_style: str) -> list[Any]:
    """Return the flowables of one block.

    `depth` is the number of lists and quotes around it. `paragraph_style` is the style of a
    paragraph in it.
    """
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
    """Return the flowable of a paragraph. `markup` is in reportlab's markup."""
    from reportlab.platypus import Paragraph

    return Paragraph(markup, _indented(style, depth), **options)


def _indented(style: str, depth: int) -> Any:
    """Return the paragraph style of this name, with the indent of a block at this depth."""
    base = _styles()[style]
    if not depth:
        return base
    indent = _INDENT * depth
    return base.clone(
        f"{style} {depth}",
        leftIndent=indent + base.leftIndent,
        bulletIndent=indent - _MARK_DISTANCE,
    )


def _list(node: SyntaxTreeNode, depth: int) -> list[Any]:
    """Return the flowables of a list, and some space after one that is not nested."""
    from reportlab.platypus import Spacer

    first_number = int(node.attrs.get("start", 1))
    flowables: list[Any] = []
    item_depth = min(depth + 1, MAX_NESTING)
    for number, item in enumerate(node.children, first_number):
        mark = "•"
        if node.type == "ordered_list":
            mark = f"{number}."

        # The mark stands on the first line of the item's text. An item that begins with something
        # else, such as a table, gets an empty line for it.
        other_blocks = item.children
        if item.children and item.children[0].type == "paragraph":
            markup = _markup(item.children[0])
            flowables.append(_paragraph(markup, "item", item_depth, bulletText=mark))
            other_blocks = item.children[1:]
        else:
            empty_line = "\N{NO-BREAK SPACE}"
            flowables.append(_paragraph(empty_line, "lone mark", item_depth, bulletText=mark))
        flowables += _blocks(other_blocks, item_depth)
    if depth:
        return flowables
    return [*flowables, Spacer(1, 5)]


def _code(code: str, depth: int) -> Any:
    """Return the flowable of a block of code, with long lines broken."""
    from reportlab.platypus import XPreformatted

    line_chars = _CODE_CHARS - _CODE_CHARS_OF_INDENT * depth
    lines: list[str] = []
    for line in code.rstrip("\n").expandtabs(4).split("\n"):
        # An empty line stays: it has one part, which is empty.
        starts = range(0, max(1, len(line)), line_chars)
        lines += [line[start : start + line_chars] for start in starts]
    return XPreformatted(escape("\n".join(lines)), _indented("code", depth))


def _table(node: SyntaxTreeNode) -> Any:
    """Return the flowable of a table. Its first row is the head."""
    from reportlab.platypus import LongTable

    rows: list[SyntaxTreeNode] = []
    for head_or_body in node.children:
        rows += head_or_body.children
    cells = []
    for number, row in enumerate(rows):
        cells.append([_cell(cell, is_head=number == 0) for cell in row.children])

    # A column is as wide as its longest cell, from 3 to 40 characters of 6.2 points each, and the
    # space at both sides. All together are at most as wide as the page.
    lengths = [[len(_text(cell)) for cell in row.children] for row in rows]
    widths = [16.0 + 6.2 * min(40, max(3, *column)) for column in zip(*lengths, strict=True)]
    scale = min(1.0, (_PAGE[0] - 2 * _MARGIN) / sum(widths))

    # The head is repeated on every page, unless it would fill much of it.
    repeated_rows = 1 if max(lengths[0]) <= MAX_REPEATED_CHARS else 0
    return LongTable(
        cells,
        colWidths=[width * scale for width in widths],
        repeatRows=repeated_rows,
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


def _cell(node: SyntaxTreeNode, *, is_head: bool) -> Any:
    """Return the flowable of a table's cell. A text that is too long is cut off."""
    # markdown-it gives the alignment as CSS: "text-align:right".
    side = str(node.attrs.get("style", "")).rpartition(":")[2] or "left"
    kind = "head" if is_head else "cell"
    text = _text(node)
    if len(text) > MAX_PDF_CELL_CHARS:
        markup = escape(text[:MAX_PDF_CELL_CHARS] + "…")
    else:
        markup = _markup(node)
    return _paragraph(markup, f"{kind} {side}")


def _text(node: SyntaxTreeNode) -> str:
    """Return the text of a node on one line, without markup."""
    text = ""
    for leaf in node.walk():
        if leaf.children or leaf.is_root:
            continue
        if leaf.type in ("softbreak", "hardbreak"):
            text += " "
        else:
            text += leaf.content
    return text


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
