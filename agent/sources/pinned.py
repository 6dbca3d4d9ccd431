"""Pinned: requests to one origin and no other, by addresses that were looked at, never beyond a cap."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sayso.agent.sources.errors import AnswerLost, SourceError, SourceUnreachable
from sayso.channels.fetch import (
    Hop,
    NotPublic,
    Resolve,
    Unreadable,
    addresses_of,
    content_type_of,
    follow,
    hush,
    origin_of,
    public_address,
    read,
)

if TYPE_CHECKING:
    import httpx

#: Redirects within the origin that are followed, of requests that change nothing.
MAX_REDIRECTS = 3
#: Seconds to connect.
CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    content_type: str
    data: bytes = field(repr=False)
    filename: str = ""
    charset: str = ""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One origin. `trusted` says that the operator wrote this very host down: then its addresses may be private, and
    it may speak http.
    """

    base_url: str = field(repr=False)
    trusted: bool
    seconds: float
    max_bytes: int
    resolve: Resolve = addresses_of
    transport: Any = None

    @property
    def host(self) -> str:
        """Its host and port, for errors."""
        import httpx

        url = httpx.URL(self.base_url)
        return url.netloc.decode()

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, *, reads_only: bool
    ) -> Answer:
        """Send one request below the base URL. Raises SourceUnreachable before anything was sent, else AnswerLost.

        Errors hold no URL: there may be a secret in it.
        """
        import httpx

        hush()
        try:
            async with asyncio.timeout(self.seconds):
                return await self._follow(self._url(path), method, headers, body, reads_only=reads_only)
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            raise SourceUnreachable(f"{self.host} cannot be reached ({type(exc).__name__}): does it run?") from None
        except TimeoutError:
            raise AnswerLost(f"{self.host} gave no answer within {self.seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as exc:
            raise AnswerLost(f"{self.host} gave no whole answer ({type(exc).__name__})") from None

    def _url(self, path: str) -> httpx.URL:
        import httpx

        base = httpx.URL(self.base_url)
        url = httpx.URL(self.base_url.rstrip("/") + path)
        if origin_of(url) != origin_of(base) or not url.raw_path.startswith(base.raw_path.rstrip(b"/") + b"/"):
            raise SourceError(f"its path leads out of {self.host}")
        return url

    async def _follow(
        self, url: httpx.URL, method: str, headers: Mapping[str, str], body: bytes | None, *, reads_only: bool
    ) -> Answer:
        async def onward(target: httpx.URL) -> Hop:
            if origin_of(target) != origin_of(url):
                raise AnswerLost(f"{self.host} redirects elsewhere, which is not followed: if it moved, mend base_url")
            return await self._checked(target, headers)

        hop = await self._checked(url, headers)
        answer = await follow(
            hop, MAX_REDIRECTS if reads_only else 0, lambda hop: self._send(hop, method, body), onward
        )
        if answer is None:
            raise AnswerLost(f"{self.host} redirects, which is not followed" + (" for ever" if reads_only else " here"))
        return answer

    async def _checked(self, url: httpx.URL, headers: Mapping[str, str]) -> Hop:
        """The way to a URL: by an address that was looked at, unless the operator named the host."""
        if self.trusted:
            return Hop(url, headers)
        if url.scheme != "https":
            raise SourceError(f"{self.host} is reached without https: if you mean it, write it as base_url")
        try:
            return Hop(url, headers, await public_address(url, self.resolve))
        except NotPublic:
            raise SourceError(f"{self.host} is not public: if you mean it, write it as base_url") from None
        except (OSError, ValueError):
            raise SourceUnreachable(f"{self.host} has no address: check its name") from None

    async def _send(self, hop: Hop, method: str, body: bytes | None) -> Answer | str:
        """The answer, or where it is said to be."""
        import httpx

        limit = httpx.Timeout(None, connect=min(CONNECT_SECONDS, self.seconds))
        async with hop.asked(method, body, limit=limit, transport=self.transport) as response:
            if response.has_redirect_location:
                return str(response.headers["location"])
            try:
                data = await read(response, self.max_bytes)
            except Unreadable as exc:
                raise AnswerLost(f"{self.host} answered {exc}") from None
            name = _filename(response.headers.get("content-disposition", ""))
            charset = response.charset_encoding or ""
            return Answer(response.status_code, content_type_of(response), data, name, charset)


def _filename(disposition: str) -> str:
    """The name a download is to have, without any path."""
    from email.message import Message

    header = Message()
    header["content-disposition"] = disposition or "inline"
    return (header.get_filename() or "").replace("\\", "/").rpartition("/")[2][:200]
