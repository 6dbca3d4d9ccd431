"""Reads a rich message of Telegram (Bot API 10.1) as text for the model, with its files.

A rich message is a list of blocks, such as paragraphs, tables and lists, which may hold other
blocks. The text keeps all formatting that has a meaning: headings, lists, tables, quotes, code,
formulas, addresses behind words, and words that are struck out. Formatting that only changes the
look, such as bold words, is dropped, as in other messages of Telegram.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sayso.channels.inbound_limits import MAX_MESSAGE_FILES
from sayso.channels.link_addresses import MAX_ADDRESSES, with_address
from sayso.channels.telegram.files import TelegramJson, file_ids, media_of_part
from sayso.channels.types import Media

#: How many levels of nested lists, objects and texts are read. Telegram accepts 16 levels of blocks
#: and formatting, and one of its levels takes up to three of these.
MAX_DEPTH = 48
#: The most characters that are read. Telegram accepts 32,768 characters of text; tables and
#: addresses add some.
MAX_CHARS = 50_000
#: The most columns of a table in Telegram.
_MAX_COLUMNS = 20
#: What is written in place of content that is nested too deep.
TOO_DEEP = "[what is nested deeper is left out]"


@dataclass(frozen=True, slots=True)
class RichContent:
    """What a rich message says."""

    text: str
    #: Its first MAX_MESSAGE_FILES files.
    media: tuple[Media, ...]
    #: The ids of all its files, in the form that edits do not change.
    file_ids: tuple[str, ...]


def read_rich_message(rich: TelegramJson) -> RichContent:
    """Read a rich message.

    Raises AttributeError, KeyError, TypeError or ValueError for a malformed one.
    """
    reader = _Reader()
    text = reader.blocks(rich.get("blocks") or (), 0)
    if len(text) > MAX_CHARS:
        text = f"{text[:MAX_CHARS]}\n[{len(text) - MAX_CHARS} more characters are left out]"
    return RichContent(text, tuple(reader.media), tuple(reader.file_ids))


@dataclass(slots=True)
class _Reader:
    """Reads one rich message, and collects its files.

    The public methods are the readers of `_BLOCKS`: each returns the text of one kind of block.
    `depth` is the number of levels above the block, 0 for the message.
    """

    #: The first MAX_MESSAGE_FILES files so far, and the ids of all files so far.
    media: list[Media] = field(default_factory=list)
    file_ids: list[str] = field(default_factory=list)
    #: How many addresses have been written out, at most MAX_ADDRESSES.
    addresses: int = 0

    def blocks(self, blocks: Sequence[TelegramJson], depth: int, between: str = "\n\n") -> str:
        """Return the text of blocks, with `between` where one follows another."""
        if depth > MAX_DEPTH:
            return TOO_DEEP
        texts = [self._block(block, depth) for block in blocks]
        return between.join(text for text in texts if text)

    def _block(self, block: TelegramJson, depth: int) -> str:
        """Return the text of one block.

        A block of an unknown kind is named, and what is known of it follows.
        """
        kind = str(block.get("type") or "")
        read = _BLOCKS.get(kind)
        if read:
            return read(self, block, depth)
        unknown = f"[a block of the kind {kind!r}, which cannot be read here]"
        return f"{unknown}\n{self.content(block, depth)}".strip()

    def paragraph(self, block: TelegramJson, depth: int) -> str:
        """Return a text."""
        return self._text(block.get("text"), depth)

    def heading(self, block: TelegramJson, depth: int) -> str:
        """Return a heading in Markdown."""
        size = min(max(int(block.get("size") or 1), 1), 6)
        return f"{'#' * size} {self._text(block.get('text'), depth)}"

    def code(self, block: TelegramJson, depth: int) -> str:
        """Return code in a fence that is longer than any run of backticks in it."""
        code = self._text(block.get("text"), depth)
        fence = "```"
        while fence in code:
            fence += "`"
        return f"{fence}{block.get('language') or ''}\n{code}\n{fence}"

    def formula(self, block: TelegramJson, depth: int) -> str:
        """Return a formula in LaTeX."""
        return f"$${block.get('expression') or ''}$$"

    def items(self, block: TelegramJson, depth: int) -> str:
        """Return a list."""
        return "\n".join(self._item(item, depth) for item in block.get("items") or ())

    def quote(self, block: TelegramJson, depth: int) -> str:
        """Return a quote in Markdown, with its source."""
        return _indented(self.content(block, depth), "> ")

    def details(self, block: TelegramJson, depth: int) -> str:
        """Return a part that people may fold, whether it is folded or not."""
        return f"[details: {self._text(block.get('summary'), depth)}]\n{self.content(block, depth)}"

    def map(self, block: TelegramJson, depth: int) -> str:
        """Return the center of a map."""
        location = block.get("location") or {}
        place = f"[map of {location.get('latitude')},{location.get('longitude')}]"
        return f"{place} {self._caption(block, depth)}".rstrip()

    def buttons(self, block: TelegramJson, depth: int) -> str:
        """Return a row of buttons."""
        return " ".join(self._button(button, depth) for button in block.get("buttons") or ())

    def file(self, block: TelegramJson, depth: int) -> str:
        """Return what stands in the text in place of a file, and collect the file."""
        self.file_ids += file_ids(block)
        name = str(block["type"]).replace("voice_note", "voice message")
        if len(self.media) < MAX_MESSAGE_FILES:
            self.media += media_of_part(block)
        else:
            reason = f"only the first {MAX_MESSAGE_FILES} files of a message are read"
            name = f"{name}, left out: {reason}"
        return f"[{name}] {self._caption(block, depth)}".rstrip()

    def table(self, block: TelegramJson, depth: int) -> str:
        """Return a table in Markdown, below its caption.

        The text of a cell that covers several places stands in the first one.
        """
        lines = [self._caption(block, depth)]
        rows_covered: dict[int, int] = {}
        for number, cells in enumerate(block.get("cells") or ()):
            row = self._row(cells, rows_covered, depth)
            lines.append(f"| {' | '.join(row)} |")
            if number == 0 and any(cell.get("is_header") for cell in cells):
                lines.append("|" + " --- |" * len(row))
        return "\n".join(filter(None, lines))

    def content(self, block: TelegramJson, depth: int) -> str:
        """Return the text and the blocks inside a block, with its caption and its source."""
        parts = [
            self._text(block.get("text"), depth),
            self.blocks(block.get("blocks") or (), depth + 1),
            self._caption(block, depth),
        ]
        credit = self._text(block.get("credit"), depth)
        if credit:
            parts.append(f"— {credit}")
        return "\n".join(filter(None, parts))

    def _caption(self, block: TelegramJson, depth: int) -> str:
        """Return the caption of a block: a text, with its source unless the block is a table."""
        caption = block.get("caption")
        if isinstance(caption, dict) and "type" not in caption:
            credit = self._text(caption.get("credit"), depth)
            text = self._text(caption.get("text"), depth)
            if credit:
                return f"{text} — {credit}"
            return text
        return self._text(caption, depth)

    def _item(self, item: TelegramJson, depth: int) -> str:
        """Return an item of a list, with its number or letter and its check mark."""
        label = str(item.get("label") or "")
        marker = label if any(char.isalnum() for char in label) else "-"
        if item.get("has_checkbox"):
            marker += " [x]" if item.get("is_checked") else " [ ]"
        content = self.blocks(item.get("blocks") or (), depth + 1, "\n")
        return f"{marker} {_indented(content, '  ').lstrip(' ')}".rstrip()

    def _row(
        self, cells: Sequence[TelegramJson], rows_covered: dict[int, int], depth: int
    ) -> list[str]:
        """Return the texts of a row, one for each column.

        `rows_covered` says of each column how many rows, from this one on, a cell of an earlier row
        covers. It is changed to what the next row needs.
        """
        row: list[str] = []
        cells_left = list(reversed(cells))
        while len(row) < _MAX_COLUMNS:
            column = len(row)
            is_rest_covered = any(rows_covered.get(at) for at in range(column, _MAX_COLUMNS))
            if not (cells_left or is_rest_covered):
                break

            # A cell above reaches down to here, or all cells are placed and a later column is
            # covered.
            if rows_covered.get(column) or not cells_left:
                rows_covered[column] = max(rows_covered.get(column, 0) - 1, 0)
                row.append("")
                continue

            cell = cells_left.pop()
            width = min(max(int(cell.get("colspan") or 1), 1), _MAX_COLUMNS - column)
            height = max(int(cell.get("rowspan") or 1), 1)
            for place in range(column, column + width):
                rows_covered[place] = height - 1
            text = " ".join(self._text(cell.get("text"), depth).split())
            row.append(text.replace("|", "\\|"))
            row.extend([""] * (width - 1))
        return row

    def _button(self, button: TelegramJson, depth: int) -> str:
        """Return a button, with the address that it opens."""
        label = self._text(button.get("text"), depth)
        return f"[button: {self._linked(label, button.get('url'))}]"

    def _text(self, text: Any, depth: int) -> str:
        """Return a text, which is a string, a list of texts, or a formatted text."""
        if not text:
            return ""
        if isinstance(text, str):
            return text
        if depth > MAX_DEPTH:
            return TOO_DEEP
        if isinstance(text, list):
            return "".join(self._text(part, depth + 1) for part in text)
        return self._formatted(text, depth + 1)

    def _formatted(self, text: TelegramJson, depth: int) -> str:
        """Return a formatted text. Formatting without a meaning is dropped."""
        kind = text.get("type")
        match kind:
            case "button":
                return self._button(text.get("button") or {}, depth)
            case "custom_emoji":
                return str(text.get("alternative_text") or "")
            case "mathematical_expression":
                return f"${text.get('expression') or ''}$"
            case "anchor":
                return ""

        inner = self._text(text.get("text"), depth)
        match kind:
            case "strikethrough":
                return f"~~{inner}~~"
            case "superscript":
                return f"^{inner}"
            case "subscript":
                return f"_{inner}"
            case "url":
                return self._linked(inner, text.get("url"))
        return inner or f"[text of the kind {kind!r}, which cannot be read here]"

    def _linked(self, words: str, address: Any) -> str:
        """Return words with the address that they link to, as in other messages."""
        if not address or self.addresses >= MAX_ADDRESSES:
            return words
        self.addresses += 1
        return with_address(words, str(address))


def _indented(text: str, margin: str) -> str:
    """Return the text with a margin before each line."""
    return "\n".join(f"{margin}{line}".rstrip() for line in text.split("\n"))


#: The kinds of blocks that are a file.
_FILE_KINDS = ("photo", "video", "animation", "audio", "voice_note", "document")
#: How each kind of block is read: a function of the reader, the block and its depth.
_BLOCKS: dict[str, Callable[[_Reader, TelegramJson, int], str]] = {
    "paragraph": _Reader.paragraph,
    "footer": _Reader.paragraph,
    "thinking": _Reader.paragraph,
    "heading": _Reader.heading,
    "pre": _Reader.code,
    "mathematical_expression": _Reader.formula,
    "divider": lambda *_: "---",
    "anchor": lambda *_: "",
    "list": _Reader.items,
    "blockquote": _Reader.quote,
    "expandable_blockquote": _Reader.quote,
    "pullquote": _Reader.quote,
    "table": _Reader.table,
    "details": _Reader.details,
    "map": _Reader.map,
    "buttons": _Reader.buttons,
    "collage": _Reader.content,
    "slideshow": _Reader.content,
    **dict.fromkeys(_FILE_KINDS, _Reader.file),
}
