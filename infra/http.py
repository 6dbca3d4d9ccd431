"""HTTP for platforms: safe downloads, and pooled client sessions.

A download is guarded against large files, and against server-side request forgery: a URL from a
stranger must not make this process call a server of the private network (`public_addresses.py`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar
from urllib.request import getproxies

from sayso.infra.public_addresses import is_public

if TYPE_CHECKING:
    import httpx
    from aiohttp import ClientSession

#: Seconds for one download, redirects included.
TIMEOUT = 15.0
#: How many bytes are collected before they are written to a file.
WRITE_BYTES = 128 * 1024
#: How many connections to one platform are open at once. Further calls wait for a free one,
#: as long as a call may take.
POOL_SIZE = 64
#: Seconds to open a connection.
CONNECT_SECONDS = 5.0
#: Seconds to wait for the next bytes of an answer.
ANSWER_SECONDS = 10.0
#: Seconds for a whole call, which may upload a large file.
CALL_SECONDS = 60.0
#: How long an unused connection stays open, in seconds. Less than platforms keep theirs: if the
#: platform closes a connection just when a request is sent on it, it is unknown whether the request
#: was read.
IDLE_SECONDS = 5.0
#: Charsets that are decoded. Python has codecs that are not charsets,
#: and some that need quadratic time.
_CHARSET = re.compile(
    r"utf-?(?:8|16)|utf-16[bl]e|us-ascii|iso-8859-(?:[1-9]|1[013-6])|latin-?1|windows-125[0-8]|cp125[0-8]"
    r"|koi8-[ru]|shift_jis|euc-(?:jp|kr)|gb(?:2312|k|18030)|big5"
)

#: Returns the addresses of a host name and port. Raises OSError or ValueError.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
#: Returns what is wrong with a URL apart from its scheme and host, to follow "the address ";
#: "" if nothing is.
UrlCheck = Callable[["httpx.URL"], str]
T = TypeVar("T")


class NotPublic(Exception):
    """Raised for a host that has an address outside the public internet."""


class DownloadError(Exception):
    """Raised for a file that cannot be downloaded. The message names no URL."""


class Unreadable(Exception):
    """Raised for a response that is not read to its end.

    The message says how the response came, to follow "the file came ".
    """


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses that the system's resolver knows. Raises OSError or ValueError."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """What is known of a downloaded file."""

    #: In bytes.
    size: int
    #: The type that its server claims, in lower case; "" for none.
    content_type: str
    #: The charset that its server claims, "" for none.
    charset: str = ""
    #: Where the file was after all redirects. It may contain a token, so it is not shown in logs.
    url: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SafeDownload:
    """Downloads files by the same rules. Keeps no state.

    A URL that a caller has checked is requested without further checks. All others, among them
    every redirect, must be https on a public host, or at the origin of `home`.
    """

    max_bytes: int
    #: How many redirects are followed.
    redirects: int = 0
    #: The URL of a server that replaces the platform, such as one of a test: redirects may lead to
    #: its origin, too. "" for none.
    home: str = ""
    resolve: Resolve = addresses_of
    #: Replaces the network in tests.
    transport: httpx.AsyncBaseTransport | None = None
    #: One more check of each URL that no caller has checked and that is not of `home`; None for no
    #: other check.
    refusal: UrlCheck | None = None

    async def save(self, url: str, file: BinaryIO, headers: Mapping[str, str]) -> DownloadedFile:
        """Download from a URL that the caller has checked into a file.

        `headers` are sent to this URL, and to no redirect. Raises DownloadError, whose message
        names no URL.
        """

        async def request_to(checked_url: httpx.URL) -> PinnedRequest:
            return PinnedRequest(checked_url, headers)

        return await self._download(url, file, request_to)

    async def save_unchecked(self, url: str, file: BinaryIO) -> DownloadedFile:
        """Download from a URL that may come from a stranger into a file.

        Raises DownloadError, whose message names no URL.
        """
        return await self._download(url, file, self._checked)

    async def _download(
        self,
        url: str,
        file: BinaryIO,
        first_request: Callable[[httpx.URL], Awaitable[PinnedRequest]],
    ) -> DownloadedFile:
        """Download into a file, without holding all of it in memory. Raises DownloadError."""
        import httpx

        try:
            async with asyncio.timeout(TIMEOUT):
                request = await first_request(httpx.URL(url))
                send = functools.partial(self._send, file)
                result = await follow_redirects(request, self.redirects, send, self._checked)
        except TimeoutError:
            raise DownloadError(f"the file took longer than {TIMEOUT:g} s") from None
        # ValueError is raised for malformed punycode.
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            # The cause is left out: it may quote the URL, and with it a token.
            raise DownloadError(f"the file did not arrive: {type(exc).__name__}") from None
        if result is None:
            raise DownloadError(f"redirected more than {self.redirects} times")
        return result

    async def _send(self, file: BinaryIO, request: PinnedRequest) -> DownloadedFile | str:
        """Send a request and save the answer. Return the location of a redirect."""
        async with request.stream("GET", limit=TIMEOUT, transport=self.transport) as response:
            if response.has_redirect_location:
                return response.headers["location"]
            if response.status_code != 200:
                raise DownloadError(f"the file's server answered {response.status_code}")
            try:
                size = await _save(response, file, self.max_bytes)
            except Unreadable as exc:
                raise DownloadError(f"the file came {exc}") from None
            charset = response.charset_encoding or ""
            return DownloadedFile(size, content_type_of(response), charset, str(request.url))

    async def _checked(self, url: httpx.URL) -> PinnedRequest:
        """Return the request for an unchecked URL, pinned to the address that was checked."""
        import httpx

        if self.home and origin_of(url) == origin_of(httpx.URL(self.home)):
            return PinnedRequest(url)
        if url.scheme != "https" or not _host_of(url):
            raise DownloadError("it leads to something that is not https")
        if self.refusal:
            problem = self.refusal(url)
            if problem:
                raise DownloadError(f"the address {problem}")
        try:
            return PinnedRequest(url, address=await public_address(url, self.resolve))
        except NotPublic:
            raise DownloadError("it leads to a host that is not public") from None
        except (OSError, ValueError):
            raise DownloadError("it leads to a host without an address") from None


@dataclass(frozen=True, slots=True)
class PinnedRequest:
    """A request to the address that was checked, whatever the name of the host leads to by now."""

    url: httpx.URL
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The IP address to connect to; "" for a URL that needs no check: its host is looked up.
    address: str = ""

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        body: bytes | None = None,
        *,
        limit: httpx.Timeout | float,
        transport: httpx.AsyncBaseTransport | None,
    ) -> AsyncIterator[httpx.Response]:
        """Send the request and yield the response, not yet read.

        `limit` is the time limit of each step, such as connecting or waiting for the next bytes, in
        seconds. The caller limits the whole request. `transport` replaces the network in tests.
        Each request has a separate client, so any event loop works.

        A checked address is connected to directly: an environment's proxy would look the name up
        again. The certificate must still be for the URL's host.
        """
        import httpx

        silence_url_logs()
        url = self.url
        extensions: dict[str, str] = {}
        if self.address:
            url = self.url.copy_with(host=self.address)
            extensions["sni_hostname"] = _host_of(self.url)
        headers = {"Host": self.url.netloc.decode(), "Accept-Encoding": "identity", **self.headers}
        client = httpx.AsyncClient(
            verify=tls(), timeout=limit, transport=transport, trust_env=not self.address
        )
        async with (
            client,
            client.stream(
                method, url, headers=headers, content=body, extensions=extensions
            ) as response,
        ):
            yield response


async def follow_redirects(
    request: PinnedRequest,
    most: int,
    send: Callable[[PinnedRequest], Awaitable[T | str]],
    next_request: Callable[[httpx.URL], Awaitable[PinnedRequest]],
) -> T | None:
    """Send a request, and return the result after at most `most` redirects; None if there are more.

    `send` returns the result, or the location of a redirect as text, so a result is never a text.
    `next_request` returns the request to that URL, and raises what the caller handles if it must
    not be sent.
    """
    for redirects_left in range(most, -1, -1):
        result = await send(request)
        if not isinstance(result, str):
            return result
        if redirects_left:
            request = await next_request(request.url.join(result))
    return None


async def public_address(url: httpx.URL, resolve: Resolve) -> str:
    """Return the address to connect to for a URL.

    It is the first one, which the resolver prefers on this machine; the others are not tried. The
    caller must connect to it: a second look-up of the name could return another one.

    Raises NotPublic unless all addresses of the host are public, and what `resolve` raises for a
    host without an address.
    """
    addresses = await resolve(_host_of(url), url.port or 443)
    if not addresses or not all(is_public(address) for address in addresses):
        raise NotPublic
    return addresses[0]


async def read(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body.

    Raises Unreadable once it is larger than `max_bytes`, whatever the headers say.
    """
    data = bytearray()
    async for chunk in _chunks(response, max_bytes):
        data += chunk
    return bytes(data)


async def _save(response: httpx.Response, file: BinaryIO, max_bytes: int) -> int:
    """Write the body to a file and return its size. Raises Unreadable and OSError."""
    size = 0
    block = bytearray()
    async for chunk in _chunks(response, max_bytes):
        block += chunk
        size += len(chunk)
        if len(block) >= WRITE_BYTES:
            await asyncio.to_thread(file.write, block)
            block = bytearray()
    file.write(block)
    return size


async def _chunks(response: httpx.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the pieces of a body. Raises Unreadable for one that is compressed or too large."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Unreadable("compressed, which was not asked for")
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > max_bytes:
            raise Unreadable(f"with more than {max_bytes} bytes")
        yield chunk


def content_type_of(response: httpx.Response) -> str:
    """Return the type that the server claims, in lower case and without parameters."""
    claimed: str = response.headers.get("content-type", "")
    return claimed.partition(";")[0].strip().lower()


def decode_text(data: bytes, charset: str) -> str:
    """Return the text in the charset that its server names.

    It is UTF-8 for "" and for a charset that _CHARSET lacks. Invalid bytes become U+FFFD.
    """
    codec = "utf-8"
    known = _CHARSET.fullmatch(charset.lower())
    if known:
        codec = known[0]
    return data.decode(codec, "replace")


def origin_of(url: httpx.URL) -> tuple[str, str, int | None]:
    """Return scheme, host and port. The port is None if it is the default of the scheme."""
    return url.scheme, _host_of(url), url.port


def _host_of(url: httpx.URL) -> str:
    """Return the host name as the resolver needs it: in punycode, which `url.host` would decode."""
    return url.raw_host.decode()


@functools.lru_cache(maxsize=1)
def tls() -> ssl.SSLContext:
    """Return the TLS context of all clients of httpx, which trusts the certificates of certifi.

    It is shared, since loading the certificates takes most of the time to make a client.
    """
    import httpx

    return httpx.create_ssl_context()


def silence_url_logs() -> None:
    """Silence httpx, which logs every URL at INFO: links to files are secrets.

    `PinnedRequest.stream` does it for its callers.
    """
    for name in ("httpx", "httpcore"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))


#: The tasks that close sessions when their loops end. A loop does not keep its tasks alive: without
#: this set, the task of a PooledSessions that is no longer used would be destroyed, and its session
#: would stay open.
_CLOSING: set[asyncio.Task[None]] = set()


class PooledSessions(Generic[T]):
    """One client of a platform per event loop, each on a session with pooled connections.

    One instance serves a whole process, from any thread and across forks. A session is closed when
    its loop ends, which cancels the calls in progress. `make` returns the client for a session.

    `tls_context` returns the TLS context. None, right for a new platform, trusts the certificates
    of the operating system. Telegram trusts those of `tls()`, as its SDK does by itself.
    """

    def __init__(
        self,
        make: Callable[[ClientSession], T],
        *,
        tls_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._make = make
        self._tls_context = tls_context
        self._clients: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop in self._clients:
            return self._clients[loop]

        session = self._new_session()
        client = self._make(session)
        closing = loop.create_task(_close_with_loop(session))
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)

        # The dict is replaced as a whole: a thread with another loop may be reading it. If that
        # thread replaces it at the same moment, one of the two clients is lost. Its loop makes
        # another at its next call, and both sessions end with the loop. So no lock is needed.
        open_clients = {each: it for each, it in self._clients.items() if not each.is_closed()}
        self._clients = {loop: client, **open_clients}
        return client

    def _new_session(self) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        context = self._tls_context() if self._tls_context else True
        return ClientSession(
            connector=TCPConnector(limit=POOL_SIZE, keepalive_timeout=IDLE_SECONDS, ssl=context),
            timeout=ClientTimeout(
                total=CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS
            ),
            cookie_jar=DummyCookieJar(),
            # aiohttp's search for a proxy takes as long as a request,
            # so it is left out if the environment names none.
            trust_env=bool(getproxies()),
        )


async def _close_with_loop(session: ClientSession) -> None:
    """Close a session when its loop ends: that cancels all tasks of the loop, as this one."""
    try:
        await asyncio.Event().wait()
    finally:
        await session.close()


def never_sent(exc: BaseException) -> bool:
    """Return whether an error of a session proves that the request was not sent.

    That is so if there was no connection.
    """
    from aiohttp import ClientConnectorError, ClientHttpProxyError, ConnectionTimeoutError

    return isinstance(exc, (ClientConnectorError, ClientHttpProxyError, ConnectionTimeoutError))


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that the header Retry-After asks for.

    1.0 if it is missing, or no whole number: HTTP also allows a date.
    """
    for name, value in headers.items():
        if name.lower() == "retry-after" and value.isdecimal():
            return float(value)
    return 1.0
