"""The tool `fetch_page`: reads a web page as text, with the addresses of its links.

Only public hosts are called, only by https. Size, time and redirects are limited.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urldefrag, urljoin, urlsplit

from pydantic import Field

from sayso.agent.toolbox import need, plural
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.errors import ToolLoadError
from sayso.agent.tools.tool import Tool, tool
from sayso.channels.link_addresses import MAX_ADDRESS_CHARS, address_note
from sayso.infra.concurrency import call_in_tool_thread
from sayso.infra.http import (
    DownloadedFile,
    DownloadError,
    Resolve,
    SafeDownload,
    addresses_of,
    decode_text,
)

if TYPE_CHECKING:
    import httpx

#: Characters of the longest URL.
MAX_URL_CHARS = 2_000
#: Bytes of the largest page.
MAX_PAGE_BYTES = 1_000_000
#: How many redirects are followed. Each target is checked like the first URL.
MAX_REDIRECTS = 5
#: How long one call may take, in seconds. The download has a shorter limit, TIMEOUT in
#: `sayso.infra.http`.
MAX_SECONDS = 25.0
#: Characters of one part of a page.
MAX_PART_CHARS = 8_000
#: How many links of one page are written with their addresses. An address of more than
#: MAX_ADDRESS_CHARS is never written.
MAX_LINKS = 1_000
#: The only port that is allowed. Other ports belong to internal services, also on public hosts.
_PORT = 443
#: The MIME types of pages that can be read.
_TEXT_TYPE = re.compile(
    r"text/.+|application/(?:.+\+)?(?:json|xml)|application/(?:x-)?(?:javascript|ndjson|yaml)"
)
#: The charset that an HTML page declares in its head.
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{1,20})", re.IGNORECASE)
#: An allowed host: a name, or `*.` and a name for all hosts below it.
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?", re.IGNORECASE)
#: Elements without text to read. They are skipped with all that they contain.
_SKIPPED = frozenset(
    "script style noscript template svg iframe object textarea select math".split()
)
#: Elements that stand between blank lines.
_PARAGRAPHS = frozenset(
    """address article aside blockquote body dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6
    header hr html main nav ol p pre section table title ul""".split()
)
#: Other elements -> what is written before each.
_PREFIXES = {
    **dict.fromkeys(("br", "tr", "option", "summary", "details", "caption"), "\n"),
    **dict.fromkeys(("td", "th"), " | "),
    "li": "\n- ",
}
_BLANKS = re.compile(r"[^\S\n]+")
#: Links that have no words of their page -> what is written for each, and its attribute with the
#: address.
_WORDLESS_LINKS = {"area": ("link", "href"), "frame": ("frame", "src")}
#: The attributes that name a link without words, or a picture in a link.
_LABELS = ("aria-label", "title", "alt")
#: The content of a `meta` element that sends the browser on: `0; url='https://example.com/'`.
_REFRESH = re.compile(
    r"[\d.\s]{0,20}[;,]?\s{0,20}url\s{0,20}=\s{0,20}[\"']?(.*)", re.IGNORECASE | re.DOTALL
)
#: What browsers leave out of an address.
_IGNORED_IN_ADDRESS = re.compile(r"[\t\n\r]")
#: What browsers strip from the ends of an address: control characters and blanks.
_STRIPPED_FROM_ADDRESS = "".join(map(chr, range(33)))
_BEFORE_QUERY = re.compile(r"[^?#]*")
#: How many line breaks and blanks at the end of a link are moved behind its address. Without a
#: limit, nested links at the same place would each move all of them.
_MAX_MOVED_BREAKS = 10
PageUrl = Annotated[
    str,
    Field(
        min_length=8,
        max_length=MAX_URL_CHARS,
        description="The page's URL; it begins with https://",
    ),
]
PagePart = Annotated[
    int,
    Field(
        ge=1,
        le=1000,
        description="Which part of a long page to read; the answer says how many there are",
    ),
]

# Where a library is missing, the import of this module fails with the command that installs it.
need("web")


@dataclass(frozen=True, slots=True)
class WebRules:
    """Which hosts the tool may call."""

    #: Names such as `api.example.com` and `*.example.com`, in lower case. Empty: every public host.
    hosts: tuple[str, ...] = ()
    #: Returns the IP addresses of a host.
    resolve: Resolve = addresses_of
    #: How httpx sends requests; None: as usual. For tests.
    transport: httpx.AsyncBaseTransport | None = None

    def refusal(self, url: httpx.URL) -> str:
        """Return why a URL is refused; "" if it is allowed.

        The reason is the rest of a sentence that begins "the address".
        """
        if url.userinfo:
            return "holds a name or password: leave out what is before the @"
        if url.port not in (None, _PORT):
            return f"names port {url.port}: only {_PORT} is allowed"
        host = url.raw_host.decode().lower().rstrip(".")
        if self.hosts and not any(_is_host_of(host, each) for each in self.hosts):
            return f"names a host that is not allowed here; allowed: {list(self.hosts)!r}"
        return ""


def _is_host_of(host: str, pattern: str) -> bool:
    """Return whether a pattern names the host.

    `*.example.com` names the hosts below example.com, and not example.com itself.
    """
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern


def tools(_folder: Path | None = None, hosts: Sequence[str] = ()) -> list[Tool]:
    """Return the tools of this family. Raise ToolLoadError for an invalid host name."""
    for host in hosts:
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise ToolLoadError(
                f"toolbox host {host!r} is not a host name: write it like 'api.example.com' or '*.example.com'"
            )
    return [fetch_tool(WebRules(tuple(host.lower() for host in hosts)))]


def fetch_tool(rules: WebRules) -> Tool:
    """Return the tool `fetch_page`, bound by these rules."""
    description = "Fetch a web page or a JSON address and read its text and where its links lead"
    if rules.hosts:
        description += f" (only from {', '.join(rules.hosts)})"
    decorate = tool(
        name="fetch_page",
        description=description,
        injected_kwargs={"_rules": rules},
        read_only=True,
        screen_output=True,
        metadata=ToolMetadata(tags={ToolTag.NETWORK}, timeout=MAX_SECONDS),
    )
    return decorate(_fetch_page)


async def _fetch_page(url: PageUrl, part: PagePart = 1, _rules: WebRules = WebRules()) -> str:
    """Return a page as text, or one part of a long page. Raise ValueError if it cannot be read."""
    address = url.strip()
    is_host_and_path = re.match(r"[\w-]+(?:\.[\w-]+)+(?:/|$)", address) is not None
    if is_host_and_path and "://" not in address:
        address = f"https://{address}"
    has_odd_characters = any(char.isspace() or not char.isprintable() for char in address)
    if has_odd_characters or not address.lower().startswith("https://"):
        raise ValueError(f"{url[:80]!r} cannot be fetched: the URL must begin with https://")

    download = SafeDownload(
        MAX_PAGE_BYTES,
        MAX_REDIRECTS,
        resolve=_rules.resolve,
        transport=_rules.transport,
        refusal=_rules.refusal,
    )
    file = BytesIO()
    try:
        page = await download.save_unchecked(address, file)
    except DownloadError as exc:
        raise ValueError(f"the page was not fetched: {exc}") from exc
    # In a thread, because parsing a large page takes a second.
    return await call_in_tool_thread(lambda: _part_of_page(page, file.getvalue(), part))


def _part_of_page(page: DownloadedFile, data: bytes, part: int) -> str:
    """Return the text of a page, or one part of a long text. `part` counts from 1.

    Raise ValueError for a page that is not text, and for a part that it does not have.
    """
    if not _TEXT_TYPE.fullmatch(page.content_type):
        raise ValueError(
            f"the page has the type {page.content_type!r}: only text, JSON and XML can be read"
        )
    charset = page.charset
    declared = _META_CHARSET.search(data[:2048])
    if declared and not charset:
        charset = declared[1].decode("ascii", "replace")
    text = decode_text(data, charset).strip()
    if "html" in page.content_type:
        text = text_of_html(text, page.url)

    parts = _parts_of(text)
    if part > len(parts):
        raise ValueError(f"there is no part {part}: the page has {len(parts)}")
    if not text:
        return "The page holds no text; it may need a browser."
    if len(parts) == 1:
        return text
    return f"[part {part} of {len(parts)}]\n{parts[part - 1]}"


def _parts_of(text: str) -> list[str]:
    """Return the parts of a text, each of at most MAX_PART_CHARS, at least one.

    A part ends at a blank if possible, because an address that is cut in two leads nowhere.
    """
    parts = []
    start = 0
    while len(text) - start > MAX_PART_CHARS:
        end = start + MAX_PART_CHARS
        # An address has at most MAX_ADDRESS_CHARS. A longer text without a blank may be cut.
        earliest = end - MAX_ADDRESS_CHARS - 10
        blank = max(text.rfind(" ", earliest, end), text.rfind("\n", earliest, end))
        if blank > 0:
            end = blank + 1
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def text_of_html(page: str, address: str = "") -> str:
    """Return the text of an HTML page: a line for each paragraph, list item and table row.

    `|` stands between the cells of a row, and the address of a link in brackets behind its words.
    `address` is that of the page, to which relative addresses refer. Without it, relative addresses
    are left out.

    Raise nothing for any page: lxml mends it as browsers do, in time proportional to its length.
    """
    text = "".join(_pieces(page, address))
    lines = [_BLANKS.sub(" ", line).strip(" |") for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _pieces(page: str, address: str) -> list[str]:
    """Return the text, the addresses and the line breaks of a page, in order."""
    from lxml import etree

    # huge_tree: without it, text below 256 open elements is lost.
    parser = etree.HTMLParser(
        encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True
    )
    root = etree.fromstring(page.encode("utf-8", "replace") or b" ", parser)
    if root is None:
        return []

    base_element = root.find(".//base[@href]")
    base = ""
    if base_element is not None:
        base = base_element.get("href")
    reader = _PageReader(PageLinks(address, base))
    walker = etree.iterwalk(root, events=("start", "end"))
    for event, element in walker:
        if event == "end":
            reader.end(element)
        elif element.tag in _SKIPPED:
            walker.skip_subtree()
        else:
            reader.start(element)

    omitted_links = reader.links.left_out
    if omitted_links:
        note = f"[the addresses of {plural(omitted_links, 'further link')} are left out]"
        reader.pieces.append(f"\n\n{note}")
    return reader.pieces


class PageLinks:
    """Decides which links of one page are written with their addresses.

    These are the first MAX_LINKS that lead out of the page by https, http or mailto. `address` is
    that of the page, "" if unknown. `base` is the address that relative addresses refer to, if the
    page states one.
    """

    def __init__(self, address: str, base: str = "") -> None:
        #: The address of the page, without a place in it.
        self._page = urldefrag(address)[0]
        #: What relative addresses refer to. The base of a page may be relative itself, to the page.
        self._base = address
        self._base = self._absolute(base) or address
        #: How many addresses were returned.
        self._written = 0
        #: How many links have no address in the text, since there are too many.
        self.left_out = 0

    def next(self, href: str) -> str:
        """Return the absolute address of the next link, "" if it is not to be written.

        A link within the page leads nowhere else, and one that runs code has no address.
        """
        address = self._absolute(href)
        if not address or href.startswith("#") or urldefrag(address)[0] == self._page:
            return ""
        if self._written == MAX_LINKS:
            self.left_out += 1
            return ""
        self._written += 1
        return address

    def _absolute(self, href: str) -> str:
        """Return an absolute address without a name and password in it.

        Return "" for one that leads to no page and no mail address.
        """
        href = _IGNORED_IN_ADDRESS.sub("", href.strip(_STRIPPED_FROM_ADDRESS))
        if not href or len(href) > MAX_ADDRESS_CHARS:
            return ""
        if not href.lower().startswith("mailto:"):
            # Browsers read a backslash before the query as a slash, so the host ends there.
            href = _BEFORE_QUERY.sub(lambda path: path[0].replace("\\", "/"), href, count=1)
        try:
            parts = urlsplit(urljoin(self._base, href))
            if parts.scheme == "mailto":
                return parts.geturl()
            if parts.scheme not in ("https", "http") or not parts.hostname:
                return ""
        except ValueError:  # a malformed host
            return ""
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@dataclass(slots=True)
class _OpenLink:
    """A link whose end has not been read yet."""

    #: The index of its first piece.
    start: int
    #: What is written behind its words, "" for nothing.
    address: str
    #: Its name, or that of a picture in it, in case it has no words.
    label: str


class _PageReader:
    """Collects the text of one page, and writes the address of each link behind its words.

    It is told where each element starts and ends, in the order of the page.
    """

    def __init__(self, links: PageLinks) -> None:
        self.links = links
        #: Texts, addresses and line breaks, in order.
        self.pieces: list[str] = []
        #: The links that contain the next text, the innermost one last.
        self._open_links: list[_OpenLink] = []
        #: The index of the last piece with words, -1 before any.
        self._last_words = -1
        #: How many `pre` elements contain the next text. In them, line breaks are kept.
        self._open_pres = 0

    def start(self, element: Any) -> None:
        """Read the start of an element, and the text between it and the next element."""
        if element.tag in _PARAGRAPHS:
            self.pieces.append("\n\n")
        else:
            self.pieces.append(_PREFIXES.get(element.tag, ""))
        if element.tag == "pre":
            self._open_pres += 1
        self._start_link(element)
        self._add_text(element.text or "")

    def end(self, element: Any) -> None:
        """Read the end of an element, and the text between it and the next element."""
        self._end_link(element)
        if element.tag in _PARAGRAPHS:
            self.pieces.append("\n\n")
        if element.tag == "pre":
            self._open_pres -= 1
        self._add_text(element.tail or "")

    def _add_text(self, text: str) -> None:
        """Add text of the page."""
        if not self._open_pres:
            text = text.replace("\n", " ")
        self._add(text)

    def _add(self, piece: str) -> None:
        """Add a piece that may have words."""
        if piece.strip():
            self._last_words = len(self.pieces)
        self.pieces.append(piece)

    def _start_link(self, element: Any) -> None:
        """Note the start of a link, or write a link that has no words."""
        tag = element.tag
        if tag == "a" and element.get("href"):
            address = self.links.next(element.get("href"))
            self._open_links.append(_OpenLink(len(self.pieces), address, _label_of(element)))
        elif tag == "img" and self._open_links and not self._open_links[-1].label:
            self._open_links[-1].label = _label_of(element)
        elif tag in _WORDLESS_LINKS:
            words, attribute = _WORDLESS_LINKS[tag]
            self._write_link(_label_of(element) or words, element.get(attribute) or "")
        elif tag == "meta" and (element.get("http-equiv") or "").lower() == "refresh":
            target = _REFRESH.match(element.get("content") or "")
            href = target[1].rstrip("\"' ") if target else ""
            self._write_link("This page leads on", href)

    def _end_link(self, element: Any) -> None:
        """Write the address of a link that ends here, before the line breaks at its end."""
        if element.tag != "a" or not element.get("href"):
            return
        link = self._open_links.pop()
        if not link.address:
            return

        has_words = self._last_words >= link.start
        if not has_words and link.label:
            self._add(link.label)
        breaks: list[str] = []
        while has_words and len(breaks) < _MAX_MOVED_BREAKS and not self.pieces[-1].strip():
            breaks.append(self.pieces.pop())

        # An address is not repeated where the words are the address. Words of more pieces than
        # these are not, so they are not joined.
        words = "".join(self.pieces[link.start : link.start + _MAX_MOVED_BREAKS])
        self._add(address_note(words, link.address))
        self.pieces += reversed(breaks)

    def _write_link(self, words: str, href: str) -> None:
        """Write a link with these words, unless its address is not to be written."""
        address = self.links.next(href)
        if address:
            self._add(f"\n{words}{address_note(words, address)}\n")


def _label_of(element: Any) -> str:
    """Return the name of a link or a picture without words, on one line; "" for none."""
    for attribute in _LABELS:
        words = (element.get(attribute) or "").split()
        if words:
            return " ".join(words)
    return ""


#: For `tools: [sayso.agent.toolbox.web]` in the YAML: every public host is allowed.
fetch_page = fetch_tool(WebRules())
