"""HtmlText: the words of a web page as people read them, in one pass over the page, whatever is in it.

No tree is built: parsers that build one take minutes for a megabyte of `<div>`, or of attributes in one tag.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

#: What holds no words to read; all of it is passed over, to its end tag.
_UNREAD = frozenset(
    {"script", "style", "noscript", "template", "svg", "iframe", "object", "textarea", "select", "math"}
)
_PARAGRAPHS = {
    "address", "article", "aside", "blockquote", "body", "dd", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "main", "nav", "ol",
    "p", "pre", "section", "table", "title", "ul",
}  # fmt: skip
_LINES = frozenset({"br", "li", "tr", "option", "summary", "details", "caption"})
_CELLS = frozenset({"td", "th"})

_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]{0,30})")
#: What holds drawings and formulas of a language of its own, in which a tag may close itself.
_FOREIGN = frozenset({"svg", "math"})
#: To after a value that is not in quotes, or to the quote that begins one: elsewhere a quote is a plain character.
_TAG_PART = re.compile(r"""[^>=]*(?:=\s*(?:(["'])|[^\s>]*))?""")
#: A number that no character has; Python refuses to read very long ones.
_NO_CHARACTER = re.compile(r"&#[xX]?[0-9a-fA-F]{9,};?")
_BLANKS = re.compile(r"[^\S\n]+")


def text_of_html(page: str) -> str:
    """The words of a page: a line for each paragraph, list item and row, `|` between cells, blank lines kept to one."""
    reader = _Reader(page)
    reader.read()
    lines = (_BLANKS.sub(" ", line).strip(" |") for line in "".join(reader.words).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


@dataclass(slots=True)
class _Reader:
    """Where the reading is in a page. It only ever moves on."""

    page: str
    at: int = 0
    words: list[str] = field(default_factory=list)
    preformatted: bool = False
    _small: str = ""

    def read(self) -> None:
        while self.at < len(self.page):
            start = self.page.find("<", self.at)
            if start < 0:
                start = len(self.page)
            self._say(self.page[self.at : start])
            self.at = start
            if start < len(self.page):
                self._markup()

    def _say(self, text: str) -> None:
        if text:
            known = _NO_CHARACTER.sub("\ufffd", text)
            self.words.append(html.unescape(known if self.preformatted else known.replace("\n", " ")))

    def _markup(self) -> None:
        if self.page.startswith("<!--", self.at):
            self._go_past("-->", self.at + 2)  # <!--> is a whole comment
        elif self.page.startswith(("<!", "<?"), self.at):
            self._go_past(">", self.at)
        elif tag := _TAG.match(self.page, self.at):
            self._tag(tag[1].lower(), closes=tag[0].startswith("</"), inside=tag.end())
        else:
            self.words.append("<")
            self.at += 1

    def _tag(self, name: str, *, closes: bool, inside: int) -> None:
        self.at = inside
        self._go_past_attributes()
        closes_itself = name in _FOREIGN and self.page.startswith("/>", self.at - 2)
        if name in _UNREAD and not closes and not closes_itself:
            self._go_past_element(name)
        elif name in _PARAGRAPHS:
            self.preformatted = name == "pre" and not closes
            self.words.append("\n\n")
        elif name in _LINES and not (closes and name != "tr"):
            self.words.append("\n- " if name == "li" else "\n")
        elif name in _CELLS and not closes:
            self.words.append(" | ")

    def _go_past_attributes(self) -> None:
        """To after the tag's `>`, not counting those in quotes; to the end of the page where it has none."""
        while True:
            part = _TAG_PART.match(self.page, self.at)
            self.at = part.end() if part else len(self.page)
            if part and part[1]:
                self._go_past(part[1], self.at)
            elif self.at >= len(self.page) or self.page[self.at] == ">":
                self.at += 1
                return

    def _go_past_element(self, name: str) -> None:
        """To its end tag, or to the end of the page: a page without one is searched once."""
        if not self._small:
            self._small = _ascii_small(self.page)
        end = self._small.find(f"</{name}", self.at)
        self.at = len(self.page) if end < 0 else end

    def _go_past(self, mark: str, start: int) -> None:
        end = self.page.find(mark, start)
        self.at = len(self.page) if end < 0 else end + len(mark)


def _ascii_small(text: str) -> str:
    """In small letters, each where it was: `lower` makes two of some letters."""
    return text.translate({code: code + 32 for code in range(65, 91)})
