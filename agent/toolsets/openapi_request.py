"""One call of an OpenAPI operation: arguments written into a request, signed, and sent to one origin."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, quote_plus, unquote, urlencode

from sayso.agent.toolsets.base import AnswerLost, SourceError, SourceUnreachable
from sayso.agent.toolsets.openapi_operations import Operation, Place, is_json_type
from sayso.channels.http import (
    NotPublic,
    PinnedRequest,
    Resolve,
    Unreadable,
    addresses_of,
    content_type_of,
    follow_redirects,
    origin_of,
    public_address,
    read,
    silence_url_logs,
)

if TYPE_CHECKING:
    import httpx


#: What separates the values of a list in one query parameter, by style.
_SEPARATORS = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request below a base URL: `path` begins with a slash and includes the query."""

    method: str
    path: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)


def request_for(operation: Operation, arguments: Mapping[str, Any]) -> Request:
    """Return the request of one call. Raises SourceError for arguments that no URL or header can hold."""
    placed = [
        (operation.places[name], value)
        for name, value in arguments.items()
        if name in operation.places and (value is not None or _accepts_null(operation, operation.places[name]))
    ]
    _check_writable(placed)
    path = operation.path
    missing = {place for place in operation.places.values() if place.where == "path"} - {place for place, _ in placed}
    if missing:
        raise SourceError(f"{sorted(place.name for place in missing)!r} must be given: without it there is no path")
    for place, value in _placed_in("path", placed):
        path = path.replace("{" + place.name + "}", _path_segment(place, value))
    query = urlencode(
        [pair for place, value in _placed_in("query", placed) for pair in _query_pairs(place, value)], quote_via=quote
    )
    headers = {place.name: _header_value(place, value) for place, value in _placed_in("header", placed)}
    cookies = "; ".join(
        f"{place.name}={quote(_flat(place, value), safe='')}" for place, value in _placed_in("cookie", placed)
    )
    body = _body(operation, dict(_placed_in("body", placed)))
    if cookies:
        headers["Cookie"] = cookies
    if body is not None:
        headers["Content-Type"] = operation.body_type
    return Request(operation.method.upper(), f"{path}?{query}" if query else path, headers, body)


def _accepts_null(operation: Operation, place: Place) -> bool:
    """Return whether null can be sent in this place. Elsewhere it means that no argument is given."""
    return place.where == "body" and is_json_type(operation.body_type)


def _check_writable(placed: list[tuple[Place, Any]]) -> None:
    """Raise SourceError for a value that cannot be written as JSON in UTF-8."""
    for place, value in placed:
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as exc:
            raise SourceError(f"{place.name!r} cannot be sent: {exc}") from None


def _placed_in(where: str, placed: list[tuple[Place, Any]]) -> Iterator[tuple[Place, Any]]:
    return ((place, value) for place, value in placed if place.where == where)


def _path_segment(place: Place, value: Any) -> str:
    """Return a value as one segment of a path, which it can neither end nor leave."""
    text = _flat(place, value)
    if text in ("", ".", ".."):
        raise SourceError(f"{place.name!r} is {text!r}, which cannot stand in a path")
    return quote(text, safe="")


def _query_pairs(place: Place, value: Any) -> list[tuple[str, str]]:
    if place.is_json:
        return [(place.name, json.dumps(value))]
    if isinstance(value, Mapping):
        if place.style == "deepObject":
            return [(f"{place.name}[{key}]", _plain(each)) for key, each in value.items()]
        if place.explode:
            return [(str(key), _plain(each)) for key, each in value.items()]
        return [(place.name, _flat(place, value))]
    if isinstance(value, list | tuple):
        if place.explode:
            return [(place.name, _plain(each)) for each in value]
        return [(place.name, _SEPARATORS.get(place.style, ",").join(map(_plain, value)))]
    return [(place.name, _plain(value))]


def _header_value(place: Place, value: Any) -> str:
    text = _flat(place, value).strip(" ")
    if not text.isascii() or not text.isprintable():
        raise SourceError(f"{place.name!r} is {text!r}: a header holds printable ASCII only")
    return text


def _flat(place: Place, value: Any) -> str:
    """Return a value as one text in the styles `simple` and `form`."""
    if place.is_json:
        return json.dumps(value)
    if isinstance(value, Mapping):
        pairs = [(str(key), _plain(each)) for key, each in value.items()]
        return ",".join(f"{key}={each}" if place.explode else f"{key},{each}" for key, each in pairs)
    return ",".join(map(_plain, value)) if isinstance(value, list | tuple) else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)


def _body(operation: Operation, parts: Mapping[Place, Any]) -> bytes | None:
    if operation.whole_body:
        return _encoded(operation.body_type, next(iter(parts.values()))) if parts else None
    of_body = {name for name, place in operation.places.items() if place.where == "body"}
    if not parts and not of_body & set(operation.schema["required"]):
        return None
    return _encoded(operation.body_type, {place.name: value for place, value in parts.items()})


def _encoded(content_type: str, value: Any) -> bytes:
    if is_json_type(content_type):
        return json.dumps(value, ensure_ascii=False).encode()
    if content_type.lower().startswith("text/"):
        return str(value).encode()
    pairs = value.items() if isinstance(value, Mapping) else {"value": value}.items()
    return urlencode([pair for name, each in pairs for pair in _form_pairs(str(name), each)]).encode()


def _form_pairs(name: str, value: Any) -> list[tuple[str, str]]:
    return [(name, _plain(each)) for each in value] if isinstance(value, list) else [(name, _plain(value))]


@dataclass(frozen=True, slots=True)
class Auth:
    """A value in a header, in the query or in a cookie."""

    where: Literal["header", "query", "cookie"]
    name: str
    value: str = field(repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def bearer(cls, token: str) -> Auth:
        """`Authorization: Bearer ...` (RFC 6750)."""
        return cls("header", "Authorization", f"Bearer {token}")

    @classmethod
    def basic(cls, user: str, password: str) -> Auth:
        """`Authorization: Basic ...` (RFC 7617)."""
        both = base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls("header", "Authorization", f"Basic {both}", password)

    @property
    def secrets(self) -> list[str]:
        """The value in the forms in which an answer might repeat it."""
        bare = self.value.rpartition(" ")[2]
        return [
            form
            for value in (self.value, bare, self.password)
            for form in (value, quote(value, safe=""), quote_plus(value))
        ]

    def fills(self, where: str, name: str) -> bool:
        """Return whether it fills the parameter of this name in this place."""
        if self.where == "header":
            return where == "header" and name.lower() == self.name.lower()
        return (where, name) == (self.where, self.name)

    def sign(self, request: Request) -> Request:
        """Return the request with the value added."""
        match self.where:
            case "header":
                return _with_headers(request, {self.name: self.value})
            case "cookie":
                cookies = f"{self.name}={quote(self.value, safe='')}"
                before = request.headers.get("Cookie")
                return _with_headers(request, {"Cookie": f"{before}; {cookies}" if before else cookies})
            case "query":
                path, _, query = request.path.partition("?")
                # Remove a value of this name: the server might read it first.
                others = [pair for pair in query.split("&") if pair and unquote(pair.partition("=")[0]) != self.name]
                own = f"{quote(self.name, safe='')}={quote(self.value, safe='')}"
                return Request(request.method, f"{path}?{'&'.join([*others, own])}", request.headers, request.body)


def _with_headers(request: Request, more: Mapping[str, str]) -> Request:
    lowered = {name.lower() for name in more}
    kept = {name: value for name, value in request.headers.items() if name.lower() not in lowered}
    return Request(request.method, request.path, {**kept, **more}, request.body)


#: Most redirects that are followed: within the origin, for requests that only read.
MAX_REDIRECTS = 3
#: Time limit to connect, in seconds.
CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer. `data` is its body."""

    status: int
    content_type: str
    data: bytes = field(repr=False)
    filename: str = ""
    charset: str = ""


@dataclass(frozen=True, slots=True)
class OriginClient:
    """Sends requests to one origin.

    `trusted` says that the operator configured this very host: then its addresses may be private, and plain http is
    allowed.
    """

    base_url: str = field(repr=False)
    trusted: bool
    seconds: float
    max_bytes: int
    resolve: Resolve = addresses_of
    transport: Any = None

    @property
    def host(self) -> str:
        """Host and port, for errors."""
        import httpx

        url = httpx.URL(self.base_url)
        return url.netloc.decode()

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, *, reads_only: bool
    ) -> HttpResponse:
        """Send one request below the base URL. Raises SourceUnreachable if nothing was sent, else AnswerLost.

        Errors hold no URL, since it may contain a secret.
        """
        import httpx

        silence_url_logs()
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
    ) -> HttpResponse:
        async def next_hop(target: httpx.URL) -> PinnedRequest:
            if origin_of(target) != origin_of(url):
                raise AnswerLost(f"{self.host} redirects elsewhere, which is not followed: if it moved, mend base_url")
            return await self._checked(target, headers)

        hop = await self._checked(url, headers)
        answer = await follow_redirects(
            hop, MAX_REDIRECTS if reads_only else 0, lambda hop: self._send_to(hop, method, body), next_hop
        )
        if answer is None:
            raise AnswerLost(f"{self.host} redirects, which is not followed" + (" for ever" if reads_only else " here"))
        return answer

    async def _checked(self, url: httpx.URL, headers: Mapping[str, str]) -> PinnedRequest:
        """Return the hop to a URL, pinned to a public address unless the operator configured the host."""
        if self.trusted:
            return PinnedRequest(url, headers)
        if url.scheme != "https":
            raise SourceError(f"{self.host} is reached without https: if you mean it, write it as base_url")
        try:
            return PinnedRequest(url, headers, await public_address(url, self.resolve))
        except NotPublic:
            raise SourceError(f"{self.host} is not public: if you mean it, write it as base_url") from None
        except (OSError, ValueError):
            raise SourceUnreachable(f"{self.host} has no address: check its name") from None

    async def _send_to(self, hop: PinnedRequest, method: str, body: bytes | None) -> HttpResponse | str:
        """Return the answer, or the location it redirects to."""
        import httpx

        limit = httpx.Timeout(None, connect=min(CONNECT_SECONDS, self.seconds))
        async with hop.stream(method, body, limit=limit, transport=self.transport) as response:
            if response.has_redirect_location:
                return str(response.headers["location"])
            try:
                data = await read(response, self.max_bytes)
            except Unreadable as exc:
                raise AnswerLost(f"{self.host} answered {exc}") from None
            name = _filename(response.headers.get("content-disposition", ""))
            charset = response.charset_encoding or ""
            return HttpResponse(response.status_code, content_type_of(response), data, name, charset)


def _filename(disposition: str) -> str:
    """Return the file name of a download, without any path."""
    from email.message import Message

    header = Message()
    header["content-disposition"] = disposition or "inline"
    return (header.get_filename() or "").replace("\\", "/").rpartition("/")[2][:200]
