"""The tool `fetch_page`: reads a web page as text.

Only public hosts are called, only by https, and size, time and redirects are limited.
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
    decoded,
)

if TYPE_CHECKING:
    import httpx

#: Characters of the longest URL.
MAX_URL_CHARS = 2_000
#: Bytes of the largest page.
MAX_PAGE_BYTES = 1_000_000
#: Redirects that are followed. Each target is checked like the first URL.
MAX_REDIRECTS = 5
#: How long one call may take, in seconds. The download alone is limited by `sayso.infra.http.TIMEOUT`.
MAX_SECONDS = 25.0
#: Characters of one part of a page.
MAX_PART_CHARS = 8_000
#: How many links of one page are written with their addresses. Addresses longer than
#: MAX_ADDRESS_CHARS are never written.
MAX_LINKS = 1_000
#: The only port that is allowed: other ports belong to internal services, even on public hosts.
_PORT = 443
_TEXT_TYPE = re.compile(
    r"text/.+|application/(?:.+\+)?(?:json|xml)|application/(?:x-)?(?:javascript|ndjson|yaml)"
)
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{1,20})", re.IGNORECASE)
#: An allowed host: a name, or `*.` and a name for all hosts below it.
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?", re.IGNORECASE)
#: Elements without text to read; they are skipped with all they contain.
_SKIPPED = frozenset(
    "script style noscript template svg iframe object textarea select math".split()
)
#: Elements that stand between blank lines.
_PARAGRAPHS = frozenset(
    """address article aside blockquote body dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6
    header hr html main nav ol p pre section table title ul""".split()
)
#: What is written before other elements.
_PREFIXES = {
    **dict.fromkeys(("br", "tr", "option", "summary", "details", "caption"), "\n"),
    **dict.fromkeys(("td", "th"), " | "),
    "li": "\n- ",
}
_BLANKS = re.compile(r"[^\S\n]+")
#: Elements that lead elsewhere and have no words: what is written for them, and the attribute with the address.
_WORDLESS_LINKS = {"area": ("link", "href"), "frame": ("frame", "src")}
#: The attributes that name a link without words, and a picture in it.
_LABELS = ("aria-label", "title", "alt")
#: The address to which a page sends its browser on, as in `0; url='https://example.com/'`.
_REFRESH = re.compile(
    r"[\d.\s]{0,20}[;,]?\s{0,20}url\s{0,20}=\s{0,20}[\"']?(.*)", re.IGNORECASE | re.DOTALL
)
#: What browsers leave out of an address, and what they strip from its ends.
_IGNORED_IN_ADDRESS = re.compile(r"[\t\n\r]")
_BEFORE_QUERY = re.compile(r"[^?#]*")
_STRIPPED_FROM_ADDRESS = "".join(map(chr, range(33)))
#: An address is written before at most this many line breaks and blanks at the end of its link. Each
#: of them has to be moved, for each link.
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

need("web")


@dataclass(frozen=True, slots=True)
class WebRules:
    """Which hosts the tool may call: only `hosts`, or every public host if `hosts` is empty.

    `resolve` returns the addresses of a host; `transport` is that of httpx, for tests.
    """

    hosts: tuple[str, ...] = ()
    resolve: Resolve = addresses_of
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
    """Return whether a pattern names the host. `*.example.com` means the hosts below example.com,
    not example.com itself.
    """
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern


def tools(_folder: Path | None = None, hosts: Sequence[str] = ()) -> list[Tool]:
    """Return the tools of this family. Raises ToolLoadError for an invalid host name."""
    for host in hosts:
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise ToolLoadError(
                f"toolbox host {host!r} is not a host name: write it like 'api.example.com' or '*.example.com'"
            )
    return [fetch_tool(WebRules(tuple(host.lower() for host in hosts)))]


def fetch_tool(rules: WebRules) -> Tool:
    """Return the tool `fetch_page`, bound by these rules."""
    only = ""
    if rules.hosts:
        only = f" (only from {', '.join(rules.hosts)})"
    decorate = tool(
        name="fetch_page",
        description=f"Fetch a web page or a JSON address and read its text and where its links lead{only}",
        injected_kwargs={"_rules": rules},
        read_only=True,
        screen_output=True,
        metadata=ToolMetadata(tags={ToolTag.NETWORK}, timeout=MAX_SECONDS),
    )
    return decorate(_fetch_page)


async def _fetch_page(url: PageUrl, part: PagePart = 1, _rules: WebRules = WebRules()) -> str:
    """Return the page as text, or one part of a long page. Raises ValueError."""
    address = url.strip()
    if "://" not in address and re.match(r"[\w-]+(?:\.[\w-]+)+(?:/|$)", address):
        address = f"https://{address}"
    if not address.lower().startswith("https://") or any(
        char.isspace() or not char.isprintable() for char in address
    ):
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
        page = await download.save(address, file, None)
    except DownloadError as exc:
        raise ValueError(f"the page was not fetched: {exc}") from exc
    # Parsing a large page takes a second.
    return await call_in_tool_thread(lambda: _part_of_page(page, file.getvalue(), part))


def _part_of_page(page: DownloadedFile, data: bytes, part: int) -> str:
    """Return the text of a page, or one part of a long text. Raises ValueError."""
    if not _TEXT_TYPE.fullmatch(page.content_type):
        raise ValueError(
            f"the page has the type {page.content_type!r}: only text, JSON and XML can be read"
        )
    charset = page.charset
    declared = _META_CHARSET.search(data[:2048])
    if declared and not charset:
        charset = declared[1].decode("ascii", "replace")
    text = decoded(data, charset).strip()
    if "html" in page.content_type:
        text = text_of_html(text, page.url)
    parts = _parts_of(text)
    if part > len(parts):
        raise ValueError(f"there is no part {part}: the page has {len(parts)}")
    if not text:
        return "The page holds no text; it may need a browser."
    chosen = parts[part - 1]
    if len(parts) == 1:
        return chosen
    return f"[part {part} of {len(parts)}]\n{chosen}"


def _parts_of(text: str) -> list[str]:
    """Return the parts of a text, each of at most MAX_PART_CHARS.

    Parts end at a blank if possible, because an address that is cut in two leads nowhere.
    """
    parts = []
    start = 0
    while len(text) - start > MAX_PART_CHARS:
        end = start + MAX_PART_CHARS
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
    `address` is that of the page, to which relative addresses refer; without it they are left out.
    Never raises, whatever the page contains: lxml mends it as browsers do, in time proportional to
    its length.
    """
    lines = (
        _BLANKS.sub(" ", line).strip(" |") for line in "".join(_pieces(page, address)).split("\n")
    )
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
    base = root.find(".//base[@href]")
    reader = _PageReader(PageLinks(address, "" if base is None else base.get("href")))
    preformatted = 0
    walker = etree.iterwalk(root, events=("start", "end"))
    for event, element in walker:
        if event == "start" and element.tag in _SKIPPED:
            walker.skip_subtree()
            continue
        if event == "end":
            reader.end(element)
        if element.tag in _PARAGRAPHS:
            preformatted += (element.tag == "pre") * (1 if event == "start" else -1)
            reader.pieces.append("\n\n")
        elif event == "start":
            reader.pieces.append(_PREFIXES.get(element.tag, ""))
        if event == "start":
            reader.start(element)
        text = (element.text if event == "start" else element.tail) or ""
        reader.add(text if preformatted else text.replace("\n", " "))
    if reader.links.left_out:
        reader.pieces.append(
            f"\n\n[the addresses of {plural(reader.links.left_out, 'further link')} are left out]"
        )
    return reader.pieces


class PageLinks:
    """The addresses of the links of one page: at most MAX_LINKS, only https, http and mailto.

    `address` is that of the page, "" if unknown. `base` is the address that relative addresses refer
    to, if the page states one.
    """

    def __init__(self, address: str, base: str = "") -> None:
        self._page = urldefrag(address)[0]
        self._base = address
        self._base = self._absolute(base) or address
        self._written = 0
        #: How many links have no address in the text, since there are too many.
        self.left_out = 0

    def next(self, href: str) -> str:
        """Return the absolute address of the next link; "" if it is not to be written out.

        A link within the page leads nowhere else. What runs code in a browser is no address.
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


class _PageReader:
    """Collects the text of one page, and writes the address of each link behind its words."""

    def __init__(self, links: PageLinks) -> None:
        self.links = links
        self.pieces: list[str] = []
        #: Where the words of the open links begin, their addresses, and their names, in case they have no words.
        self._open: list[tuple[int, str, str]] = []
        #: The place of the last piece with words.
        self._last_words = -1

    def add(self, text: str) -> None:
        """Add text of the page."""
        if text.strip():
            self._last_words = len(self.pieces)
        self.pieces.append(text)

    def start(self, element: Any) -> None:
        """Note the beginning of a link, or write a link that has no words."""
        if element.tag == "a" and element.get("href"):
            self._open.append(
                (len(self.pieces), self.links.next(element.get("href")), _label_of(element))
            )
        elif element.tag == "img" and self._open and not self._open[-1][2]:
            self._open[-1] = (*self._open[-1][:2], _label_of(element))
        elif element.tag in _WORDLESS_LINKS:
            words, attribute = _WORDLESS_LINKS[element.tag]
            self._write_link(_label_of(element) or words, element.get(attribute) or "")
        elif element.tag == "meta" and (element.get("http-equiv") or "").lower() == "refresh":
            target = _REFRESH.match(element.get("content") or "")
            self._write_link("This page leads on", target[1].rstrip("\"' ") if target else "")

    def end(self, element: Any) -> None:
        """Write the address of a link that ends here, before the line breaks at its end."""
        if element.tag != "a" or not element.get("href"):
            return
        start, address, label = self._open.pop()
        if not address:
            return
        has_words = self._last_words >= start
        if not has_words and label:
            self.add(label)
        breaks: list[str] = []
        while has_words and len(breaks) < _MAX_MOVED_BREAKS and not self.pieces[-1].strip():
            breaks.append(self.pieces.pop())
        # Longer words are no address, and need not be compared with it.
        words = "".join(self.pieces[start : start + _MAX_MOVED_BREAKS])
        self.add(address_note(words, address))
        self.pieces += reversed(breaks)

    def _write_link(self, words: str, href: str) -> None:
        address = self.links.next(href)
        if address:
            self.add(f"\n{words}{address_note(words, address)}\n")


def _label_of(element: Any) -> str:
    """Return the name of a link or a picture that shows no words, in one line; "" for none."""
    labels = (" ".join((element.get(name) or "").split()) for name in _LABELS)
    return next((label for label in labels if label), "")


#: For `tools: [sayso.agent.toolbox.web]` in the YAML: every public host is allowed.
fetch_page = fetch_tool(WebRules())
