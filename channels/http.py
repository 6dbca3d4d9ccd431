"""PooledSessions, SafeDownload: one downloader guarded against SSRF and size."""

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
from ssl import SSLContext
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar
from urllib.request import getproxies

from sayso.channels.base import FetchError as FetchError  # also for those who know no channel

if TYPE_CHECKING:
    import httpx
    from aiohttp import ClientSession


#: Seconds for one file, redirects included.
TIMEOUT = 15.0


#: Bytes that are collected before they are written to a file.
WRITE_BYTES = 128 * 1024


#: Addresses that count as global but belong to a cloud's own machinery: Oracle's old metadata, Azure's wire server.
_MACHINERY = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32"))


#: Charsets that texts are read in. Python has codecs that are none, and some that take the square of a text's length.
_CHARSET = re.compile(
    r"utf-?(?:8|16(?:[bl]e)?)|us-ascii|iso-8859-(?:[1-9]|1[013-6])|latin-?1|windows-125[0-8]|cp125[0-8]"
    r"|koi8-[ru]|shift_jis|euc-(?:jp|kr)|gb(?:2312|k|18030)|big5"
)


#: The addresses a host name stands for, at a port.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


#: What is wrong with a URL, its scheme and its host aside, in words that follow "the address "; "" where nothing is.
UrlCheck = Callable[["httpx.URL"], str]


T = TypeVar("T")


class NotPublic(Exception):
    """Raised when one of a host's addresses is not on the open internet."""


class Unreadable(Exception):
    """Raised when an answer is not read to its end; the words follow "it came "."""


async def addresses_of(host: str, port: int) -> list[str]:
    """What the system's resolver says. Raises OSError or ValueError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: str) -> bool:
    """Whether an address is on the open internet. One that hides an IPv4 address in IPv6 is not."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address) and (ip.sixtofour or ip.is_site_local):
        return False
    # IPv4-mapped and NAT64 addresses are among the reserved ones.
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or any(ip in network for network in _MACHINERY))


async def public_address(url: httpx.URL, resolve: Resolve) -> str:
    """The address to connect to for a URL: a second look-up could tell another.

    Raises NotPublic, and OSError or ValueError for a host without an address.
    """
    addresses = await resolve(host_of(url), url.port or 443)
    public = [is_public(address) for address in addresses]
    if not public or not all(public):
        raise NotPublic
    return addresses[0]


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """What arrived: the bytes, and the type and charset their server claims."""

    data: bytes
    content_type: str
    charset: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """What arrived in a file: its size in bytes, and the type its server claims."""

    size: int
    content_type: str


@dataclass(frozen=True, slots=True)
class SafeDownload:
    """The rules of one platform's downloads: at most `max_bytes`, through at most `redirects` redirects.

    Only the first address, which the adapter has checked, sees the headers. Redirects go to https on public hosts,
    and to the origin of `home`: the server that stands in for the platform. `refusal` is asked about each of them.
    """

    max_bytes: int
    redirects: int = 0
    home: str = ""
    resolve: Resolve = addresses_of
    transport: httpx.AsyncBaseTransport | None = None
    refusal: UrlCheck | None = None

    async def get(self, url: str, headers: Mapping[str, str]) -> DownloadedFile:
        """Download from an address that the caller has checked. Raises FetchError, whose words hold no address."""
        import httpx

        return await self._got(lambda: Redirect(httpx.URL(url), headers), self._read)

    async def get_public(self, url: str) -> DownloadedFile:
        """Download from an address that nobody has checked: the first one is held to what redirects are held to.

        Raises FetchError, whose words hold no address.
        """
        import httpx

        return await self._got(lambda: self._checked(httpx.URL(url)), self._read)

    async def save(self, url: str, headers: Mapping[str, str], file: BinaryIO) -> Saved:
        """Download from a checked address into a file, without ever holding all of it in memory.

        Raises FetchError, whose words hold no address.
        """
        import httpx

        async def write(response: httpx.Response) -> Saved:
            return Saved(await save(response, file, self.max_bytes), content_type_of(response))

        return await self._got(lambda: Redirect(httpx.URL(url), headers), write)

    async def _got(
        self, begin: Callable[[], Redirect | Awaitable[Redirect]], take: Callable[[httpx.Response], Awaitable[T]]
    ) -> T:
        import httpx

        hush()
        try:
            async with asyncio.timeout(TIMEOUT):
                hop = begin()
                return await self._follow(hop if isinstance(hop, Redirect) else await hop, take)
        except TimeoutError:
            raise FetchError(f"the file took longer than {TIMEOUT:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:  # ValueError: punycode that is none
            # The cause is left out: it may quote the address, and with it a token.
            raise FetchError(f"the file did not arrive: {type(exc).__name__}") from None

    async def _follow(self, hop: Redirect, take: Callable[[httpx.Response], Awaitable[T]]) -> T:
        answer = await follow(hop, self.redirects, functools.partial(self._ask, take), self._checked)
        if answer is None:
            raise FetchError(f"redirected more than {self.redirects} times")
        return answer

    async def _ask(self, take: Callable[[httpx.Response], Awaitable[T]], hop: Redirect) -> T | str:
        """What `take` makes of the file, or where the file is said to be."""
        async with hop.asked("GET", limit=TIMEOUT, transport=self.transport) as response:
            if response.has_redirect_location:
                return response.headers["location"]
            if response.status_code != 200:
                raise FetchError(f"the file's server answered {response.status_code}")
            try:
                return await take(response)
            except Unreadable as exc:
                raise FetchError(f"the file came {exc}") from None

    async def _read(self, response: httpx.Response) -> DownloadedFile:
        data = await read(response, self.max_bytes)
        return DownloadedFile(data, content_type_of(response), response.charset_encoding or "")

    async def _checked(self, url: httpx.URL) -> Redirect:
        """An address nobody vouches for, pinned to what was looked at."""
        import httpx

        if self.home and origin_of(url) == origin_of(httpx.URL(self.home)):
            return Redirect(url)
        if url.scheme != "https" or not host_of(url):
            raise FetchError("it leads to something that is not https")
        if words := self.refusal(url) if self.refusal else "":
            raise FetchError(f"the address {words}")
        try:
            return Redirect(url, address=await public_address(url, self.resolve))
        except NotPublic:
            raise FetchError("it leads to a host that is not public") from None
        except (OSError, ValueError):
            raise FetchError("it leads to a host without an address") from None


@dataclass(frozen=True, slots=True)
class Redirect:
    """One request: a URL, the headers it may see, and the address it must connect to if that was checked."""

    url: httpx.URL
    headers: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    @property
    def target(self) -> httpx.URL:
        """What to connect to."""
        return self.url.copy_with(host=self.address) if self.address else self.url

    @property
    def sent(self) -> dict[str, str]:
        """The headers, with the name that the address was looked up by."""
        return {"Host": self.url.netloc.decode(), "Accept-Encoding": "identity", **self.headers}

    @property
    def extensions(self) -> dict[str, str]:
        """The name the certificate must bear."""
        return {"sni_hostname": host_of(self.url)} if self.address else {}

    @asynccontextmanager
    async def asked(
        self,
        method: str,
        body: bytes | None = None,
        *,
        limit: httpx.Timeout | float,
        transport: httpx.AsyncBaseTransport | None,
    ) -> AsyncIterator[httpx.Response]:
        """The response, not yet read, by a client of its own: whoever asks may be on any event loop.

        An address that was checked is connected to directly: an environment's proxy would look the name up again.
        """
        import httpx

        client = httpx.AsyncClient(verify=tls(), timeout=limit, transport=transport, trust_env=not self.address)
        sending = client.stream(method, self.target, headers=self.sent, content=body, extensions=self.extensions)
        async with client, sending as response:
            yield response


async def follow(
    hop: Redirect,
    redirects: int,
    ask: Callable[[Redirect], Awaitable[T | str]],
    onward: Callable[[httpx.URL], Awaitable[Redirect]],
) -> T | None:
    """What is at the end of at most so many redirects; None when there are more. `ask` says a redirect as a text."""
    for left in range(redirects, -1, -1):
        answer = await ask(hop)
        if not isinstance(answer, str):
            return answer
        if left:
            hop = await onward(hop.url.join(answer))
    return None


async def read(response: httpx.Response, max_bytes: int) -> bytes:
    """What arrives, until it is too much: no header is believed. Raises Unreadable."""
    data = bytearray()
    async for chunk in _chunks(response, max_bytes):
        data += chunk
    return bytes(data)


async def save(response: httpx.Response, file: BinaryIO, max_bytes: int) -> int:
    """Write what arrives to a file, until it is too much; return its size. Raises Unreadable and OSError."""
    size, block = 0, bytearray()
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
    """The type its server claims, in lower case and without parameters."""
    claimed: str = response.headers.get("content-type", "")
    return claimed.partition(";")[0].strip().lower()


@functools.lru_cache(maxsize=1)
def tls() -> ssl.SSLContext:
    """One TLS context for all clients: loading the certificates is most of a client's start."""
    import httpx

    return httpx.create_ssl_context()


def decoded(data: bytes, charset: str) -> str:
    """A text in the charset that its server names; in UTF-8 where it names none, or one that is not known."""
    known = _CHARSET.fullmatch(charset.lower())
    return data.decode(known[0] if known else "utf-8", "replace")


def origin_of(url: httpx.URL) -> tuple[str, str, int | None]:
    """Scheme, host and port; the port is None where it is the scheme's own."""
    return url.scheme, host_of(url), url.port


def host_of(url: httpx.URL) -> str:
    """The host as it is looked up: punycode stays punycode."""
    return url.raw_host.decode()


def hush() -> None:
    """Links to files are secrets, and httpx logs every URL at INFO."""
    for name in ("httpx", "httpcore"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))


#: Connections to one platform at once; further calls wait for one that is free, as long as a call may take.
POOL_SIZE = 64


#: Seconds until a connection stands.
CONNECT_SECONDS = 5.0


#: Seconds for which an answer may say nothing, and for a whole call: a large file may take its time on its way out.
ANSWER_SECONDS, CALL_SECONDS = 10.0, 60.0


#: Seconds that a connection is kept unused. Shorter than platforms keep theirs: what is sent on one that they are just
#: hanging up is lost, and nobody knows whether it was read.
IDLE_SECONDS = 5.0


class PooledSessions(Generic[T]):
    """A platform's client for each event loop, made of a session of its own. It is closed when its loop ends, which
    cancels what still runs on it. One instance serves a whole process, from any thread and across forks. Without `tls`
    the system's certificates count.
    """

    def __init__(self, make: Callable[[ClientSession], T], *, tls: Callable[[], SSLContext] | None = None) -> None:
        self._make, self._tls = make, tls
        self._kept: dict[asyncio.AbstractEventLoop, tuple[T, asyncio.Task[None]]] = {}

    def here(self) -> T:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            session = _new_session(self._tls() if self._tls else True)
            mine = self._make(session), loop.create_task(_close_at_the_end(session))
            # Replaced as a whole, so that threads with loops of their own need no lock.
            self._kept = {old: kept for old, kept in self._kept.items() if not old.is_closed()} | {loop: mine}
        return self._kept[loop][0]


def never_sent(exc: BaseException) -> bool:
    """Whether this error of a session says that its request certainly did not leave: there was no connection."""
    from aiohttp import ClientConnectorError, ClientHttpProxyError, ConnectionTimeoutError

    return isinstance(exc, (ClientConnectorError, ClientHttpProxyError, ConnectionTimeoutError))


def _new_session(tls: SSLContext | bool) -> ClientSession:
    from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

    times = ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS)
    connector = TCPConnector(limit=POOL_SIZE, keepalive_timeout=IDLE_SECONDS, ssl=tls)
    # Looking for a proxy costs as much as a request: where none is named, nobody looks.
    proxied = bool(getproxies())
    return ClientSession(connector=connector, timeout=times, cookie_jar=DummyCookieJar(), trust_env=proxied)


async def _close_at_the_end(session: ClientSession) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await session.close()
