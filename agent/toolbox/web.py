"""Read a page: html-text/trafilatura in place of an own HTML reader."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.errors import ToolLoadError
from sayso.agent.tools.tool import Tool, tool
from sayso.channels.base import FetchError
from sayso.channels.http import DownloadedFile, Resolve, SafeDownload, addresses_of, decoded
from sayso.pending.concurrency import in_thread

if TYPE_CHECKING:
    import httpx


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


#: Characters of the longest address.
MAX_URL_CHARS = 2_000


#: Bytes of the largest page.
MAX_PAGE_BYTES = 1_000_000


#: Redirects that are followed; each is checked like the first address.
MAX_REDIRECTS = 5


#: Seconds that one call may take; what is downloaded has `sayso.channels.http.TIMEOUT` of them.
MAX_SECONDS = 25.0


#: Characters of one part of a page.
MAX_PART_CHARS = 8_000


#: The only port: others belong to machinery, also on public hosts.
_PORT = 443


_TEXT = re.compile(r"text/.+|application/(?:.+\+)?(?:json|xml)|application/(?:x-)?(?:javascript|ndjson|yaml)")


_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{1,20})", re.IGNORECASE)


#: A host that is allowed: a name, or all names beneath one.
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?", re.IGNORECASE)


PageUrl = Annotated[
    str, Field(min_length=8, max_length=MAX_URL_CHARS, description="The page's address; it begins with https://")
]


PagePart = Annotated[
    int, Field(ge=1, le=1000, description="Which part of a long page to read; the answer says how many there are")
]


@dataclass(frozen=True, slots=True)
class WebRules:
    """Whom the tool may ask: `hosts` and nobody else, or every public host where there are none."""

    hosts: tuple[str, ...] = ()
    resolve: Resolve = addresses_of
    transport: httpx.AsyncBaseTransport | None = None

    def refusal(self, url: httpx.URL) -> str:
        """What is wrong with an address, in words that follow "the address "; "" where nothing is."""
        if url.userinfo:
            return "holds a name or password: leave out what is before the @"
        if url.port not in (None, _PORT):
            return f"names port {url.port}: only {_PORT} is asked"
        if self.hosts and not any(_allows(allowed, url.raw_host.decode()) for allowed in self.hosts):
            return f"names a host that is not allowed here; allowed: {list(self.hosts)!r}"
        return ""


async def _fetched(url: PageUrl, part: PagePart = 1, _rules: WebRules = WebRules()) -> str:
    """The page as text, a part of it if it is long. Raises ValueError."""
    rules = SafeDownload(
        MAX_PAGE_BYTES, MAX_REDIRECTS, resolve=_rules.resolve, transport=_rules.transport, refusal=_rules.refusal
    )
    try:
        page = await rules.get_public(_https(url))
    except FetchError as exc:
        raise ValueError(f"the page was not fetched: {exc}") from exc
    return await in_thread(lambda: _part(_readable(page), part))  # a large page takes a second to read


def tools(_folder: Path | None = None, hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family. Raises ToolLoadError when a host is none."""
    for host in hosts:
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise ToolLoadError(
                f"toolbox host {host!r} is no host name: write it like 'api.example.com' or '*.example.com'"
            )
    return [_fetching(WebRules(tuple(host.lower() for host in hosts)))]


def _fetching(rules: WebRules) -> Tool:
    about = "Fetch a web page or a JSON address and read its text"
    only = f" (only from {', '.join(rules.hosts)})" if rules.hosts else ""
    options = tool(
        name="fetch_page",
        description=about + only,
        injected_kwargs={"_rules": rules},
        read_only=True,
        screen_output=True,
        metadata=ToolMetadata(tags={ToolTag.NETWORK}, timeout=MAX_SECONDS),
    )
    return options(_fetched)


def _https(url: str) -> str:
    """The address. One without a scheme means https; others are refused before anybody is asked."""
    address = url.strip()
    if "://" not in address and re.match(r"[\w-]+(?:\.[\w-]+)+(?:/|$)", address):
        address = f"https://{address}"
    if not address.lower().startswith("https://") or any(char.isspace() or not char.isprintable() for char in address):
        raise ValueError(f"{url[:80]!r} is no address that can be fetched: it must begin with https://")
    return address


def _allows(allowed: str, host: str) -> bool:
    """`*.example.com` are the hosts beneath example.com, and not itself."""
    bare = host.lower().rstrip(".")
    return bare.endswith(allowed[1:]) if allowed.startswith("*.") else bare == allowed


def _readable(page: DownloadedFile) -> str:
    if not _TEXT.fullmatch(page.content_type):
        raise ValueError(f"the page is {page.content_type or 'of no type'!r}: only text, JSON and XML are read")
    text = decoded(page.data, page.charset or _named_inside(page.data[:2048]))
    return text_of_html(text) if "html" in page.content_type else text.strip()


def _named_inside(head: bytes) -> str:
    """The charset that a page names itself."""
    found = _META_CHARSET.search(head)
    return found[1].decode("ascii", "replace") if found else ""


def _part(text: str, part: int) -> str:
    parts = max(1, -(-len(text) // MAX_PART_CHARS))
    if part > parts:
        raise ValueError(f"there is no part {part}: the page has {parts}")
    if not text:
        return "The page holds no text; it may need a browser."
    some = text[(part - 1) * MAX_PART_CHARS : part * MAX_PART_CHARS]
    return some if parts == 1 else f"[part {part} of {parts}]\n{some}"


#: For `tools: [agent.toolbox.fetch]`: every public host.
fetch_page = _fetching(WebRules())
