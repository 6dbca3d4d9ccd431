"""The tool `fetch_page`: read a web page as text. Only public hosts, only https, only within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sayso.agent.toolbox import need
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.errors import ToolLoadError
from sayso.agent.tools.tool import Tool, tool
from sayso.channels.base import FetchError
from sayso.channels.http import DownloadedFile, Resolve, SafeDownload, addresses_of, decoded
from sayso.pending.concurrency import call_in_tool_thread

if TYPE_CHECKING:
    import httpx

#: Characters of the longest URL.
MAX_URL_CHARS = 2_000
#: Bytes of the largest page.
MAX_PAGE_BYTES = 1_000_000
#: Redirects that are followed. Each target is checked like the first URL.
MAX_REDIRECTS = 5
#: How long one call may take, in seconds. The download alone is limited by `sayso.channels.http.TIMEOUT`.
MAX_SECONDS = 25.0
#: Characters of one part of a page.
MAX_PART_CHARS = 8_000
#: The only port that is allowed: other ports belong to internal services, even on public hosts.
_PORT = 443
_TEXT_TYPE = re.compile(r"text/.+|application/(?:.+\+)?(?:json|xml)|application/(?:x-)?(?:javascript|ndjson|yaml)")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{1,20})", re.IGNORECASE)
#: An allowed host: a name, or `*.` and a name for all hosts below it.
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?", re.IGNORECASE)
#: Elements without text to read; they are skipped with all they contain.
_SKIPPED = frozenset("script style noscript template svg iframe object textarea select math".split())
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
PageUrl = Annotated[
    str, Field(min_length=8, max_length=MAX_URL_CHARS, description="The page's URL; it begins with https://")
]
PagePart = Annotated[
    int, Field(ge=1, le=1000, description="Which part of a long page to read; the answer says how many there are")
]

need("web")


@dataclass(frozen=True, slots=True)
class WebRules:
    """Which hosts the tool may ask: only `hosts`, or every public host if `hosts` is empty."""

    hosts: tuple[str, ...] = ()
    resolve: Resolve = addresses_of
    transport: httpx.AsyncBaseTransport | None = None

    def refusal(self, url: httpx.URL) -> str:
        """Return why a URL is refused, as the rest of a sentence that begins "the address"; "" if it is allowed."""
        if url.userinfo:
            return "holds a name or password: leave out what is before the @"
        if url.port not in (None, _PORT):
            return f"names port {url.port}: only {_PORT} is allowed"
        host = url.raw_host.decode().lower().rstrip(".")
        # `*.example.com` means the hosts below example.com, not example.com itself.
        is_allowed = (host.endswith(each[1:]) if each.startswith("*.") else host == each for each in self.hosts)
        if self.hosts and not any(is_allowed):
            return f"names a host that is not allowed here; allowed: {list(self.hosts)!r}"
        return ""


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
    only = f" (only from {', '.join(rules.hosts)})" if rules.hosts else ""
    decorate = tool(
        name="fetch_page",
        description=f"Fetch a web page or a JSON address and read its text{only}",
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
    if not address.lower().startswith("https://") or any(char.isspace() or not char.isprintable() for char in address):
        raise ValueError(f"{url[:80]!r} cannot be fetched: the URL must begin with https://")
    download = SafeDownload(
        MAX_PAGE_BYTES, MAX_REDIRECTS, resolve=_rules.resolve, transport=_rules.transport, refusal=_rules.refusal
    )
    file = BytesIO()
    try:
        page = await download.save(address, file, None)
    except FetchError as exc:
        raise ValueError(f"the page was not fetched: {exc}") from exc
    # Parsing a large page takes a second.
    return await call_in_tool_thread(lambda: _part_of_page(page, file.getvalue(), part))


def _part_of_page(page: DownloadedFile, data: bytes, part: int) -> str:
    """Return the text of a page, or one part of a long text. Raises ValueError."""
    if not _TEXT_TYPE.fullmatch(page.content_type):
        raise ValueError(f"the page has the type {page.content_type!r}: only text, JSON and XML can be read")
    declared = _META_CHARSET.search(data[:2048])
    text = decoded(data, page.charset or (declared[1].decode("ascii", "replace") if declared else ""))
    text = text_of_html(text) if "html" in page.content_type else text.strip()
    parts = max(1, -(-len(text) // MAX_PART_CHARS))
    if part > parts:
        raise ValueError(f"there is no part {part}: the page has {parts}")
    if not text:
        return "The page holds no text; it may need a browser."
    chosen = text[(part - 1) * MAX_PART_CHARS : part * MAX_PART_CHARS]
    return chosen if parts == 1 else f"[part {part} of {parts}]\n{chosen}"


def text_of_html(page: str) -> str:
    """Return the text of an HTML page: a line for each paragraph, list item and table row, `|` between cells.

    Never raises, whatever the page contains: lxml mends it as browsers do, in time proportional to its length.
    """
    lines = (_BLANKS.sub(" ", line).strip(" |") for line in "".join(_pieces(page)).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _pieces(page: str) -> Iterator[str]:
    """Return the text and the line breaks of a page, in order."""
    from lxml import etree

    # huge_tree: without it, text below 256 open elements is lost.
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    root = etree.fromstring(page.encode("utf-8", "replace") or b" ", parser)
    if root is None:
        return
    preformatted = 0
    walker = etree.iterwalk(root, events=("start", "end"))
    for event, element in walker:
        if event == "start" and element.tag in _SKIPPED:
            walker.skip_subtree()
            continue
        if element.tag in _PARAGRAPHS:
            preformatted += (element.tag == "pre") * (1 if event == "start" else -1)
            yield "\n\n"
        elif event == "start":
            yield _PREFIXES.get(element.tag, "")
        text = (element.text if event == "start" else element.tail) or ""
        yield text if preformatted else text.replace("\n", " ")


#: For `tools: [sayso.agent.toolbox.web]` in the YAML: every public host is allowed.
fetch_page = fetch_tool(WebRules())
