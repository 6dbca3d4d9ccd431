"""HTML and XML as text for people: the lines of a page, and the fields of a document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, NamedTuple

#: Characters of a page or document that are read.
MAX_MARKUP_CHARS = 100_000
#: How many elements inside each other are read as fields.
MAX_ELEMENT_DEPTH = 50

#: Elements whose text is for browsers, with a pattern of their closing tags. It is searched in the
#: text itself: a copy in small letters may be longer, as that of "İ" is.
_UNSEEN = {
    name: re.compile(f"</{name}", re.IGNORECASE | re.ASCII)
    for name in ("script", "style", "svg", "template", "noscript")
}
#: Elements inside a line. All others begin one.
_INSIDE_LINES = frozenset(
    "a abbr b bdi bdo code em font i label mark q s small span strong sub sup td th u".split()
)
#: The first elements of a page of HTML, or of a part of one. Any other first element is one of XML.
_OF_PAGES = _INSIDE_LINES | frozenset(
    "article body center div h1 h2 h3 h4 h5 h6 head header html main ol p pre section table title ul".split()
)
_FIRST_ELEMENT = re.compile(r"\s*(?:<[!?][^<>]*>\s*)*<([A-Za-z_][\w:.-]*)(?=[\s/>])")
_DECLARATION = re.compile(r"\s*<(?:!doctype\s+html|\?xml)\b", re.IGNORECASE)
_ELEMENT_NAME = re.compile(r"/?([A-Za-z_][\w:.-]*)")
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*("[^"]*"|'[^']*')""")


class _Part(NamedTuple):
    """A piece of markup: either a tag, or a text between two tags. The other one is ""."""

    #: The inside of a tag: "a href=x", "/a" or "br/".
    tag: str = ""
    text: str = ""


class _Element(NamedTuple):
    """An element of a document, while it is read."""

    name: str
    #: Its attributes and the elements inside it, as far as they have been read.
    fields: dict[str, Any]
    #: The texts between the elements inside it.
    texts: list[str]

    @property
    def value(self) -> Any:
        """Return the value of the element: its text alone, or its fields and the text."""
        words = " ".join("".join(self.texts).split())
        if not self.fields:
            return words
        if not words:
            return dict(self.fields)
        return {"value": words, **self.fields}


def is_markup(text: str) -> bool:
    """Return whether a text is a page of HTML or a document of XML.

    A text that only names a tag is neither.
    """
    if _DECLARATION.match(text):
        return True
    first = _FIRST_ELEMENT.match(text)
    return first is not None and text.rstrip().lower().endswith(f"</{first[1].lower()}>")


def markup_start(text: str) -> int:
    """Return where a page begins that an error quotes behind its own words, -1 if there is none."""
    start = re.search(r"<(?:!doctype\s+html|\?xml|html)\b", text, re.IGNORECASE)
    return start.start() if start else -1


def is_page(text: str) -> bool:
    """Return whether markup is HTML, rather than XML."""
    first = _FIRST_ELEMENT.match(text)
    return first is None or first[1].lower() in _OF_PAGES


def page_lines(text: str) -> list[str]:
    """Return the lines of a page of HTML that people see.

    No line is repeated, such as the title of the page in its heading.
    """
    # A line is a list of the texts that belong to it.
    lines: list[list[str]] = [[]]
    for part in _parts(text[:MAX_MARKUP_CHARS]):
        # A tag of an element that stands in no line ends the line before it.
        name = _name_of(part.tag)
        if name and name.lower() not in _INSIDE_LINES:
            lines.append([])
        lines[-1].append(unescape(part.text))

    seen: dict[str, None] = {}
    for texts in lines:
        line = " ".join("".join(texts).split())
        if line:
            seen[line] = None
    return list(seen)


def document_value(text: str) -> dict[str, Any]:
    """Return a document of XML as a JSON value.

    Attributes and elements are fields. Several elements of one name are a list. Names lose their
    namespaces. Of elements that are nested too deep only the texts are read.
    """
    root = _Element("", {}, [])
    # The elements that are open, the innermost last.
    path = [root]
    for part in _parts(text[:MAX_MARKUP_CHARS]):
        path[-1].texts.append(unescape(part.text))
        name = _name_of(part.tag).rpartition(":")[2]
        is_closing = part.tag.startswith("/")
        if name and not is_closing and len(path) <= MAX_ELEMENT_DEPTH:
            path.append(_Element(name, _attributes(part.tag), []))
            is_closing = part.tag.endswith("/")

        # A closing tag closes elements from the innermost one to the one of its name: those inside
        # were never closed. A tag that closes no open element closes nothing.
        if is_closing and any(each.name == name for each in path[1:]):
            while path[-1].name != name:
                _close_last(path)
            _close_last(path)
    while len(path) > 1:
        _close_last(path)
    return root.fields


def _close_last(path: list[_Element]) -> None:
    """Take the innermost open element off the path, and add it to the one around it."""
    element = path.pop()
    _add(path[-1].fields, element.name, element.value)


def _parts(text: str) -> Iterator[_Part]:
    """Yield the tags and texts of markup, without comments and what browsers do not show.

    Each character is read once.
    """
    position = 0
    while True:
        start = text.find("<", position)
        if start < 0:
            yield _Part(text=text[position:])
            return
        yield _Part(text=text[position:start])

        # A comment, a CDATA section (literal text) or a tag. `end` is where it ends, -1 if the text
        # ends before it: then this is the last part.
        if text.startswith("<!--", start):
            end = text.find("-->", start)
            position = end + len("-->")
        elif text.startswith("<![CDATA[", start):
            end = text.find("]]>", start)
            inside = text[start + len("<![CDATA[") :]
            if end >= 0:
                inside = text[start + len("<![CDATA[") : end]
            # Its text is literal: the reader of the parts must not unescape it.
            yield _Part(text=inside.replace("&", "&amp;"))
            position = end + len("]]>")
        else:
            end = text.find(">", start)
            tag = ""
            if end >= 0:
                tag = text[start + 1 : end]
            yield _Part(tag=tag)
            position = end + 1

            # What browsers do not show is skipped up to the closing tag, which is the next part.
            # "</script" closes it, and "<svg/" has nothing inside.
            closing_tag = _UNSEEN.get(_name_of(tag).lower())
            if closing_tag and not (tag.startswith("/") or tag.endswith("/")):
                match = closing_tag.search(text, position)
                end = match.start() if match else -1
                position = end
        if end < 0:
            return


def _name_of(tag: str) -> str:
    """Return the name of an element by its opening or closing tag, "" for a declaration."""
    name = _ELEMENT_NAME.match(tag)
    return name[1] if name else ""


def _attributes(tag: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, value in _ATTRIBUTE.findall(tag):
        if not name.startswith("xmlns"):
            attributes[name.rpartition(":")[2]] = unescape(value[1:-1])
    return attributes


def _add(fields: dict[str, Any], name: str, value: Any) -> None:
    """Add an element to the fields of the one around it. Several of one name become a list."""
    if name not in fields:
        fields[name] = value
    elif isinstance(fields[name], list):
        fields[name].append(value)
    else:
        fields[name] = [fields[name], value]
