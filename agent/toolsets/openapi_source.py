"""DocumentSource: where an OpenAPI document lies, and which server its calls go to.

A document is not trusted to send calls anywhere. Every request goes to one origin: that of the
configured `base_url`, else of the document's first server, which must then be the document's own
origin if the document comes from a URL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sayso.agent.toolsets.base import SourceError, SourceUnreachable
from sayso.agent.toolsets.openapi_document import MAX_DOCUMENT_BYTES, Document, server_url
from sayso.agent.toolsets.openapi_request import OriginClient, Request
from sayso.infra.concurrency import call_in_thread
from sayso.infra.http import Resolve, origin_of
from sayso.infra.urls import has_http_scheme, is_http_url, redacted_url, server_address

if TYPE_CHECKING:
    import httpx


class DocumentSource:
    """The place of one OpenAPI document, and the server of its operations. Lives as long as its provider.

    * `address`: the path of a file, or a URL.
    * `base_url`: the address that calls go to; "" for the one in the document. Private addresses
      and plain http are allowed only at the origin (scheme, host and port) of `base_url`.
    * `seconds`: the time limit of a request.
    * `resolve`: returns the addresses of a host.

    Raises ValueError for a malformed URL.
    """

    def __init__(self, address: str, base_url: str, *, seconds: float, resolve: Resolve) -> None:
        self._address = address
        self._base_url = _legal_base_url(base_url)
        self._seconds = seconds
        self._resolve = resolve
        if self.is_remote and not is_http_url(address):
            raise ValueError(
                f"{redacted_url(address)!r} is not a URL: "
                "write the document's URL as https://api.example.com/openapi.json"
            )

    @property
    def is_remote(self) -> bool:
        """Whether the document has a URL."""
        return has_http_scheme(self._address)

    @property
    def name(self) -> str:
        """The host of the document, or the name of its file without the ending; "" for none."""
        if self.is_remote:
            return urlsplit(self._address).hostname or ""
        return Path(self._address).stem

    @property
    def label(self) -> str:
        """The document's name in errors, without its URL, which may hold a secret."""
        if self.is_remote:
            return f"the document of {urlsplit(self._address).hostname}"
        return self._address

    @cached_property
    def url(self) -> httpx.URL | None:
        """The document's own URL; None for a file.

        None also for a URL that httpx, which sends the request, cannot parse.
        """
        if self.is_remote:
            return _parsed_url(self._address)
        return None

    async def read_text(self) -> str:
        """Return the text of the document. Redirects are followed. Raises SourceError."""
        if not self.is_remote:
            return await call_in_thread(_read_file, Path(self._address))
        url = self.url
        if url is None:
            raise SourceError(f"{self.label} has no address that can be used: correct it")
        headers = {"Accept": "application/json, application/yaml, */*"}
        request = Request("GET", url.raw_path.decode(), headers)
        client = self.client(url.join("/"), MAX_DOCUMENT_BYTES)
        answer = await client.send(request, reads_only=True)
        # The server may answer later, so this is no error of the configuration.
        if answer.status_code != 200:
            raise SourceUnreachable(
                f"{self.label}: its server answered {answer.status_code}: check the address"
            )
        return answer.content.decode(errors="replace")

    def server(self, document: Document) -> httpx.URL:
        """Return the address that all calls go to. Raises SourceError if it cannot be used."""
        if self._base_url:
            url = _parsed_url(self._base_url)
        else:
            url = _parsed_url(server_url(document), self.url)
        # Errors and logs name the server, so it must not hold a user or a password.
        if url is None or url.userinfo:
            raise SourceError(
                f"{self.label} names no server that can be used: write its address as base_url"
            )

        # A document from a URL may send calls, and the keys that sign them, to its own origin only.
        host = url.netloc.decode()
        if self.url and not self._base_url and origin_of(url) != origin_of(self.url):
            raise SourceError(
                f"{self.label} sends its calls to {host!r}: if you mean it, write it as base_url"
            )
        # The client would refuse each call without https, and only after a person's yes.
        if url.scheme != "https" and not self._base_url:
            raise SourceError(
                f"{self.label} has its server at {host!r}, without https: "
                "if you mean it, write it as base_url"
            )
        if url.query or url.fragment:
            raise SourceError(
                f"{self.label} names a server with a query or a fragment, "
                "which no call would carry: write its address without that as base_url"
            )
        return url

    def client(self, url: httpx.URL, max_bytes: int) -> OriginClient:
        """Return a client for this URL.

        It may reach a private address or use plain http only at the origin of `base_url`.
        """
        base = _parsed_url(self._base_url)
        return OriginClient(
            base=url,
            trusted=base is not None and origin_of(url) == origin_of(base),
            seconds=self._seconds,
            max_bytes=max_bytes,
            resolve=self._resolve,
        )

    def own_servers(self, document: Document, url: httpx.URL) -> Callable[[str], bool]:
        """Return a function that gets the URL of a server and returns whether all calls go there.

        `url` is where all calls go. The function returns True also for the document's first server,
        because a `base_url` replaces that one. An operation of any other server is not offered.
        """

        def address(each: httpx.URL | None) -> str:
            if each is None:
                return ""
            return str(each.copy_with(query=None, fragment=None)).rstrip("/")

        # A relative server of a document in a file has no address, so the texts are compared too.
        def server_text(each: str) -> str:
            if each == "/":  # the default, which is not ""
                return each
            return each.rstrip("/")

        try:
            first_server = server_url(document)
        except SourceError:  # it has a variable that only `base_url` fills
            first_server = ""
        first_address = address(_parsed_url(first_server, self.url))
        own_addresses = {address(url), first_address, server_text(first_server)} - {""}

        def is_own(server: str) -> bool:
            if server_text(server) in own_addresses:
                return True
            return address(_parsed_url(server, self.url)) in own_addresses

        return is_own


def _legal_base_url(url: str) -> str:
    """Return a `base_url`; "" stays "". Raises ValueError for one that is no address."""
    if not url:
        return ""
    try:
        return server_address(url)
    except ValueError as exc:
        raise ValueError(f"base_url {redacted_url(url)!r} {exc}") from None


def _read_file(path: Path) -> str:
    """Return the text of a document in a file. Raises SourceError."""
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise SourceError(
                f"{path}: larger than {MAX_DOCUMENT_BYTES} bytes: cut it down to what is used"
            )
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read ({exc.strerror}): check the path") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: not text in UTF-8") from None


def _parsed_url(text: str, base: httpx.URL | None = None) -> httpx.URL | None:
    """Return the URL in a text, which may be relative to a base.

    Return None if no request can be sent to it.
    """
    import httpx

    try:
        url = base.join(text) if base else httpx.URL(text)
        is_web_address = url.scheme in ("http", "https") and bool(url.host)
        has_legal_port = url.port is None or 0 < url.port < 65_536
    except (ValueError, httpx.InvalidURL):
        return None
    return url if is_web_address and has_legal_port else None
