"""HTTP for platforms: pooled client sessions, safe downloads, and backoff.

A download is guarded against large files, and against server-side request forgery: a URL of a
stranger must not make this process call a server of the private network.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar
from urllib.request import getproxies

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
#: Seconds to wait for the next bytes of an answer, and for a whole call,
#: which may upload a large file.
ANSWER_SECONDS = 10.0
CALL_SECONDS = 60.0
#: How long an unused connection is kept, in seconds. Less than platforms keep theirs: if the
#: platform closes a connection just when a request is sent on it, it is unknown whether the request
#: was read.
IDLE_SECONDS = 5.0
#: Doublings after which a backoff is at its longest: a number of failures
#: that grows for days would overflow.
_MAX_DOUBLINGS = 32

#: The networks of IANA's registries of special-purpose addresses, globally reachable ones too: no
#: website is there. A table of our own, since `ipaddress` has another one in each patch release of
#: Python.
_SPECIAL_IPV4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "168.63.129.16/32",  # Azure's wire server, which IANA does not know
        ),
    )
)
#: All of the public internet in IPv6. Outside are loopback, IPv4-mapped and IPv4-compatible
#: addresses, NAT64, discard-only, segment routing, unique local, link-local, site-local and
#: multicast.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
#: What is special in it: protocol assignments with Teredo, ORCHID and benchmarks;
#: two for documentation; 6to4; AS112.
_SPECIAL_IPV6 = tuple(
    map(
        ipaddress.IPv6Network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)
#: The upper half of an ISATAP interface id (RFC 5214). The lower half is the IPv4
#: address to which a tunnel leads.
_ISATAP = 0x00005EFE
#: The bits of it that may be set: one tells a unique id from a local one, the other marks a group.
_ISATAP_FLAGS = 0x03000000
#: Charsets that are decoded. Python has codecs that are not charsets,
#: and some that need quadratic time.
_CHARSET = re.compile(
    r"utf-?(?:8|16(?:[bl]e)?)|us-ascii|iso-8859-(?:[1-9]|1[013-6])|latin-?1|windows-125[0-8]|cp125[0-8]"
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
    """Raised for a response that is not read to its end. The message follows "it came "."""


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses that the system's resolver knows. Raises OSError or ValueError."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """What is known of a downloaded file: its size in bytes,
    and the type and charset that its server claims.

    `url` is where it was after all redirects. It may contain a token, so it is not shown in logs.
    """

    size: int
    content_type: str
    charset: str = ""
    url: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SafeDownload:
    """Downloads at most `max_bytes` through at most `redirects` redirects.

    Headers are sent only to the first URL, which the caller has checked. Redirects may lead to
    https on public hosts, and to the origin of `home`, a server that replaces the platform.
    `refusal` checks each of them.
    """

    max_bytes: int
    redirects: int = 0
    home: str = ""
    resolve: Resolve = addresses_of
    transport: httpx.AsyncBaseTransport | None = None
    refusal: UrlCheck | None = None

    async def save(
        self, url: str, file: BinaryIO, headers: Mapping[str, str] | None
    ) -> DownloadedFile:
        """Download into a file, without holding all of it in memory.

        `headers` are sent to `url`, which the caller has checked. None: the URL is unchecked, and
        must obey the rules for redirects. Raises DownloadError, whose message names no URL.
        """
        import httpx

        silence_url_logs()
        try:
            async with asyncio.timeout(TIMEOUT):
                first = httpx.URL(url)
                if headers is None:
                    request = await self._checked(first)
                else:
                    request = PinnedRequest(first, headers)
                send = functools.partial(self._send, file)
                result = await follow_redirects(request, self.redirects, send, self._checked)
        except TimeoutError:
            raise DownloadError(f"the file took longer than {TIMEOUT:g} s") from None
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            OSError,
            ValueError,
        ) as exc:
            # ValueError: malformed punycode.
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
    """A URL, the headers to send there, and the address to connect to if it was checked, else ""."""

    url: httpx.URL
    headers: Mapping[str, str] = field(default_factory=dict)
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

        It has a client of its own, so any event loop works.

        A checked address is connected to directly: an environment's proxy would look the name up
        again. The certificate must still be for the URL's host.
        """
        import httpx

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
    """Return the result after at most `most` redirects, None if there are more.

    `send` returns a redirect as text.
    """
    for left in range(most, -1, -1):
        result = await send(request)
        if not isinstance(result, str):
            return result
        if left:
            request = await next_request(request.url.join(result))
    return None


async def public_address(url: httpx.URL, resolve: Resolve) -> str:
    """Return the address to connect to for a URL.

    The caller must connect to this address: a second look-up of the name could return another one.

    Raises NotPublic, and OSError or ValueError for a host without an address.
    """
    addresses = await resolve(_host_of(url), url.port or 443)
    public = [is_public(address) for address in addresses]
    if not public or not all(public):
        raise NotPublic
    return addresses[0]


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet. Raises ValueError for something else.

    IPv6 addresses that embed an IPv4 address are not: a gateway would lead to that one. A NAT64
    gateway with a prefix of its own cannot be told from other networks.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in _SPECIAL_IPV4)
    is_isatap = (int(ip) >> 32) & 0xFFFFFFFF & ~_ISATAP_FLAGS == _ISATAP
    return (
        ip in _GLOBAL_UNICAST
        and not is_isatap
        and not any(ip in network for network in _SPECIAL_IPV6)
    )


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


def decoded(data: bytes, charset: str) -> str:
    """Return the text in the charset that its server names, in UTF-8 for none or an unknown one."""
    known = _CHARSET.fullmatch(charset.lower())
    return data.decode(known[0] if known else "utf-8", "replace")


def origin_of(url: httpx.URL) -> tuple[str, str, int | None]:
    """Return scheme, host and port. The port is None if it is the default of the scheme."""
    return url.scheme, _host_of(url), url.port


def _host_of(url: httpx.URL) -> str:
    return url.raw_host.decode()  # `url.host` would decode punycode, and the resolver needs it


@functools.lru_cache(maxsize=1)
def tls() -> ssl.SSLContext:
    """Return the TLS context of all clients.

    Loading the certificates takes most of the time to make a client.
    """
    import httpx

    return httpx.create_ssl_context()


def silence_url_logs() -> None:
    """Silence httpx, which logs every URL at INFO: links to files are secrets."""
    for name in ("httpx", "httpcore"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))


#: The tasks that close sessions when their loops end. The loop itself holds its tasks weakly: one
#: of a PooledSessions that is no longer used would be destroyed, and its session left open.
_CLOSING: set[asyncio.Task[None]] = set()


class PooledSessions(Generic[T]):
    """One client of a platform per event loop, built on a pooled session.

    One instance serves a whole process.

    The session is closed when its loop ends, which cancels the calls in progress. Works from any
    thread and across forks. Without `tls` the system's certificates are used.
    """

    def __init__(
        self, make: Callable[[ClientSession], T], *, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._make = make
        self._tls = tls
        self._clients: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop in self._clients:
            return self._clients[loop]
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        times = ClientTimeout(
            total=CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS
        )

        context = self._tls() if self._tls else True
        connector = TCPConnector(limit=POOL_SIZE, keepalive_timeout=IDLE_SECONDS, ssl=context)
        # aiohttp's search for a proxy takes as long as a request,
        # so it is left out if the environment names none.
        proxied = bool(getproxies())
        session = ClientSession(
            connector=connector, timeout=times, cookie_jar=DummyCookieJar(), trust_env=proxied
        )
        client = self._make(session)
        # Replaced as a whole, so that threads with loops of their own need no lock.
        others = {other: it for other, it in self._clients.items() if not other.is_closed()}
        closing = loop.create_task(_close_with_loop(session))
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)
        self._clients = {loop: client, **others}
        return client


async def _close_with_loop(session: ClientSession) -> None:
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
    """Return the seconds that the header Retry-After asks for, 1.0 if it names no number."""
    seconds = next((value for name, value in headers.items() if name.lower() == "retry-after"), "1")
    if seconds.isdecimal():
        return float(seconds)
    return 1.0


def backoff_seconds(failures: int, *, first: float, longest: float, chance: float = 1.0) -> float:
    """Return the seconds to wait after a number of failures in a row, at least 1.

    The pause is `first` after one failure, and doubles with each further one up to `longest`.
    `chance`, a random number from 0 to 1, takes up to half of the pause away (jitter), so that
    clients that failed together do not try again together.
    """
    doublings = min(failures - 1, _MAX_DOUBLINGS)
    pause = min(first * 2.0**doublings, longest)
    return pause * (0.5 + chance / 2)
