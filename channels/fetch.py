"""Download: an inbound file, from where its platform keeps it, from nothing private and never beyond a cap."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from channels.base import FetchError

if TYPE_CHECKING:
    import httpx

#: Seconds for one file, redirects included.
TIMEOUT = 15.0

#: Addresses that count as global but belong to a cloud's own machinery: Oracle's old metadata, Azure's wire server.
_MACHINERY = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32"))

#: The addresses a host name stands for, at a port.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


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


@dataclass(frozen=True, slots=True)
class File:
    """What arrived: the bytes, and the type their server claims."""

    data: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Download:
    """The rules of one platform's downloads: at most `max_bytes`, through at most `redirects` redirects.

    Only the first address, which the adapter has checked, sees the headers. Redirects go to https on public hosts,
    and to the origin of `home`: the server that stands in for the platform.
    """

    max_bytes: int
    redirects: int = 0
    home: str = ""
    resolve: Resolve = addresses_of
    transport: httpx.AsyncBaseTransport | None = None

    async def get(self, url: str, headers: Mapping[str, str]) -> File:
        """Download a file. Raises FetchError, whose words hold no address."""
        import httpx

        _hush()
        try:
            async with asyncio.timeout(TIMEOUT):
                return await self._follow(_Hop(httpx.URL(url), headers))
        except TimeoutError:
            raise FetchError(f"the file took longer than {TIMEOUT:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:  # ValueError: punycode that is none
            # The cause is left out: it may quote the address, and with it a token.
            raise FetchError(f"the file did not arrive: {type(exc).__name__}") from None

    async def _follow(self, hop: _Hop) -> File:
        for left in range(self.redirects, -1, -1):
            answer = await self._ask(hop)
            if isinstance(answer, File):
                return answer
            if left:
                hop = await self._checked(hop.url.join(answer))
        raise FetchError(f"redirected more than {self.redirects} times")

    async def _ask(self, hop: _Hop) -> File | str:
        """The file, or where it is said to be."""
        import httpx

        # A checked address is connected to directly: an environment's proxy would look the name up again.
        client = httpx.AsyncClient(verify=tls(), timeout=TIMEOUT, transport=self.transport, trust_env=not hop.address)
        async with client, client.stream("GET", hop.target, headers=hop.sent, extensions=hop.extensions) as response:
            if response.has_redirect_location:
                return response.headers["location"]
            if response.status_code != 200:
                raise FetchError(f"the file's server answered {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise FetchError("the file came compressed, which was not asked for")
            content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            return File(await self._capped(response), content_type)

    async def _capped(self, response: httpx.Response) -> bytes:
        """What arrives, until it is too much: no header is believed."""
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > self.max_bytes:
                raise FetchError(f"the file has more than {self.max_bytes} bytes")
        return bytes(data)

    async def _checked(self, url: httpx.URL) -> _Hop:
        """A redirect's target, pinned to an address that was looked at: a second look-up could tell another."""
        import httpx

        if self.home and _origin(url) == _origin(httpx.URL(self.home)):
            return _Hop(url)
        if url.scheme != "https" or not _host(url):
            raise FetchError("redirected to something that is not https")
        try:
            addresses = await self.resolve(_host(url), url.port or 443)
            public = [is_public(address) for address in addresses]
        except (OSError, ValueError):
            raise FetchError("redirected to a host without an address") from None
        if not public or not all(public):
            raise FetchError("redirected to a host that is not public")
        return _Hop(url, address=addresses[0])


@dataclass(frozen=True, slots=True)
class _Hop:
    """One request: a URL, the headers it may see, and the address it must connect to if that was checked."""

    url: httpx.URL
    headers: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    @property
    def target(self) -> httpx.URL:
        return self.url.copy_with(host=self.address) if self.address else self.url

    @property
    def sent(self) -> dict[str, str]:
        return {"Host": self.url.netloc.decode(), "Accept-Encoding": "identity", **self.headers}

    @property
    def extensions(self) -> dict[str, str]:
        """The name the certificate must bear."""
        return {"sni_hostname": _host(self.url)} if self.address else {}


@functools.lru_cache(maxsize=1)
def tls() -> ssl.SSLContext:
    """One TLS context for all clients: loading the certificates is most of a client's start."""
    import httpx

    return httpx.create_ssl_context()


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, _host(url), url.port


def _host(url: httpx.URL) -> str:
    """The host as it is looked up: punycode stays punycode."""
    return url.raw_host.decode()


def _hush() -> None:
    """Links to files are secrets, and httpx logs every URL at INFO."""
    for name in ("httpx", "httpcore"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))
