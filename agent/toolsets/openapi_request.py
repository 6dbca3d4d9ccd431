"""One call of an OpenAPI operation: its request is written, signed and sent to one origin.

`request_for` writes the request of an operation with its arguments. Auth signs it with a key.
OriginClient sends it, and only to the one origin that the operator chose.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, quote_plus, unquote

from sayso.agent.toolsets.base import AnswerLost, SourceError, SourceUnreachable
from sayso.agent.toolsets.openapi_bodies import FORM, MULTIPART, Place, essence_of, is_json_type
from sayso.agent.toolsets.openapi_files import Part, Upload, multipart
from sayso.agent.toolsets.openapi_operations import Operation
from sayso.infra.http import (
    NotPublic,
    PinnedRequest,
    Resolve,
    Unreadable,
    addresses_of,
    follow_redirects,
    origin_of,
    public_address,
    read,
)

if TYPE_CHECKING:
    import httpx


#: What separates the values of a list in one query parameter, by the style of the parameter.
_SEPARATORS = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|"}
#: Characters that a URL cannot hold: spaces, control characters and those outside of ASCII.
_NOT_IN_URL = re.compile(r"[^\x21-\x7e]")
#: Encodes a name or a value for a URL, a form or a header, so that it can stand between separators.
Encode = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Request:
    """A request below a base URL."""

    #: In upper case.
    method: str
    #: It begins with a slash and includes the query.
    path: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: None for no body.
    body: bytes | None = field(default=None, repr=False)


def request_for(operation: Operation, arguments: Mapping[str, Any]) -> Request:
    """Return the request of one call. Files are among the arguments as Uploads.

    Raises SourceError for arguments that cannot be sent, such as those that no URL or header can
    hold, and if the path or the body lacks one.
    """
    values = _values_by_place(operation, arguments)
    path = operation.path
    query: list[tuple[str, str]] = []
    headers: dict[str, str] = {}
    cookies: list[str] = []
    for place, value in values.items():
        match place.where:
            case "path":
                path = path.replace("{" + place.name + "}", _path_segment(place, value))
            case "query":
                query += _query_pairs(place, value, _percent_encoded)
            case "header":
                headers[place.name] = _header_value(place, value)
            case "cookie":
                cookies.append(f"{place.name}={_flat(place, value, _percent_encoded)}")

    # The arguments are encoded already, but the document may have written anything in its path.
    path = _NOT_IN_URL.sub(lambda illegal: quote(illegal[0]), path)
    if query:
        separator = "&" if "?" in operation.path else "?"
        path = f"{path}{separator}{_joined_pairs(query)}"

    if cookies:
        headers["Cookie"] = "; ".join(cookies)

    body_values = {place: value for place, value in values.items() if place.where == "body"}
    body, content_type = _body(operation, body_values)
    if body is not None:
        headers["Content-Type"] = content_type
    return Request(operation.method.upper(), path, headers=headers, body=body)


def _path_segment(place: Place, value: Any) -> str:
    """Return a value as a part of the path.

    Raises SourceError for one that would end the path, or lead out of it.
    """
    text = _flat(place, value, _percent_encoded)
    if text in ("", ".", ".."):
        raise SourceError(f"{place.name!r} is {text!r}, which cannot stand in a path")
    return text


def _header_value(place: Place, value: Any) -> str:
    """Return a value as the text of a header.

    Raises SourceError for one that a header cannot hold.
    """
    text = _flat(place, value, str).strip(" ")
    if not text.isascii() or not text.isprintable():
        raise SourceError(f"{place.name!r} is {text!r}: a header holds printable ASCII only")
    return text


def _values_by_place(operation: Operation, arguments: Mapping[str, Any]) -> dict[Place, Any]:
    """Return the values of the arguments by their places, in the order of the document.

    Raises SourceError for a value that cannot be sent, and if the path lacks one.
    """
    has_json_body = is_json_type(operation.body_type)
    values: dict[Place, Any] = {}
    for name, place in operation.places.items():
        if name not in arguments:
            continue
        # In a body of JSON, null is a value. Elsewhere it means that the argument is left out.
        is_null_sent = has_json_body and place.where == "body"
        if arguments[name] is not None or is_null_sent:
            values[place] = arguments[name]

    for place, value in values.items():
        if place.file_types:
            continue
        # A model may send NaN, or half a character, which neither JSON nor UTF-8 can hold.
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as exc:
            raise SourceError(f"{place.name!r} cannot be sent: {exc}") from None

    path_places = {place for place in operation.places.values() if place.where == "path"}
    missing = path_places - values.keys()
    if missing:
        names = sorted(place.name for place in missing)
        raise SourceError(f"{names!r} must be given: without it there is no path")
    return values


def _percent_encoded(text: str) -> str:
    return quote(text, safe="")


def _joined_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return encoded names and values as the text of a query or a form."""
    return "&".join(f"{name}={value}" for name, value in pairs)


def _query_pairs(place: Place, value: Any, encode: Encode) -> list[tuple[str, str]]:
    """Return the encoded names and values of a query parameter, or of a field of a form."""
    if place.style == "deepObject" and not place.is_json:
        pairs = list(_deep_pairs(place.name, value))
    elif isinstance(value, Mapping) and place.explode and not place.is_json:
        pairs = [(str(key), _plain(each)) for key, each in value.items() if each is not None]
    elif isinstance(value, list | tuple) and place.explode and not place.is_json:
        pairs = [(place.name, _plain(each)) for each in value]
    else:
        return [(encode(place.name), _flat(place, value, encode))]
    return [(encode(name), encode(text)) for name, text in pairs]


def _deep_pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values in an object by their path: `item[price][currency]`.

    OpenAPI defines this for one level only. Below it, and for lists, servers expect what PHP, Rails
    and Stripe read: `items[0][price]` for objects in a list, `expand[]` for other values.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _deep_pairs(f"{name}[{key}]", each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            is_nested = isinstance(each, Mapping | list | tuple)
            position = str(index) if is_nested else ""
            yield from _deep_pairs(f"{name}[{position}]", each)
    elif value is not None:
        yield name, _plain(value)


def _flat(place: Place, value: Any, encode: Encode) -> str:
    """Return a value as one encoded text: a list and an object with separators between their parts.

    Raises SourceError for a part that contains a separator, so that a server would read two.
    """
    if place.is_json:
        return encode(json.dumps(value))
    if isinstance(value, list | tuple):
        return _joined(place, map(_plain, value), encode)
    if not isinstance(value, Mapping):
        return encode(_plain(value))

    pairs = [(str(key), _plain(each)) for key, each in value.items()]
    if not place.explode:
        return _joined(place, chain.from_iterable(pairs), encode)
    encoded_pairs = []
    for key, text in pairs:
        encoded_key = _encoded_part(place, key, "=,", encode)
        encoded_text = _encoded_part(place, text, ",", encode)
        encoded_pairs.append(f"{encoded_key}={encoded_text}")
    return ",".join(encoded_pairs)


def _joined(place: Place, texts: Iterable[str], encode: Encode) -> str:
    """Return encoded texts with the separator of the place's style between them."""
    separator = _SEPARATORS.get(place.style, ",")
    parts = [_encoded_part(place, text, separator, encode) for text in texts]
    # A comma is not encoded, because servers expect it as a comma in a URL.
    if separator == ",":
        return ",".join(parts)
    return encode(separator).join(parts)


def _encoded_part(place: Place, text: str, separators: str, encode: Encode) -> str:
    """Return an encoded text that stands between separators.

    Raises SourceError for a text that contains a separator itself. Most servers decode before they
    split, so they would read two values.
    """
    contained = [each for each in separators if each in text]
    if contained:
        rule = f"no value of this list may contain {contained[0]!r}"
        raise SourceError(f"{place.name!r} has {text!r}: {rule}")
    return encode(text)


def _plain(value: Any) -> str:
    """Return a single value as the text for a URL, a header or a form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        # A model may write 3.0 for an integer, and in JSON it is one.
        return str(int(value))
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    return str(value)


def _body(operation: Operation, values: Mapping[Place, Any]) -> tuple[bytes | None, str]:
    """Return the encoded body and its media type; None and "" for an optional one without values.

    Raises SourceError if a needed field is missing.
    """
    content_type = operation.body_type
    if not values and not operation.is_body_required:
        return None, ""

    needed = [place for place in operation.places.values() if place.is_needed]
    missing = [place.name for place in needed if place not in values]
    if missing:
        rule = "its body is sent with all of its required fields"
        raise SourceError(f"{rule}: {missing!r} must be given, too")

    if essence_of(content_type) == MULTIPART:
        return _multipart(operation, values)
    whole = next((place for place in values if place.is_whole_body), None)
    if whole is not None:
        return _whole_body(content_type, values[whole])
    if is_json_type(content_type):
        fields = {place.name: value for place, value in values.items()}
        return json.dumps(fields, ensure_ascii=False).encode(), content_type
    return _form(values), content_type


def _form(values: Mapping[Place, Any]) -> bytes:
    """Return the fields of a form, encoded."""
    pairs: list[tuple[str, str]] = []
    for place, value in values.items():
        pairs += _field_pairs(place, value)
    return _joined_pairs(pairs).encode()


def _whole_body(content_type: str, value: Any) -> tuple[bytes, str]:
    """Return a body that is one argument, and its media type. Raises SourceError."""
    if isinstance(value, Upload):
        return value.content, value.content_type
    if is_json_type(content_type):
        return json.dumps(value, ensure_ascii=False).encode(), content_type
    if essence_of(content_type) != FORM:
        return _plain(value).encode(), content_type
    if not isinstance(value, Mapping):
        raise SourceError(f"'body' is {value!r}: a form is an object of fields")
    return _form({Place(str(name), "body"): each for name, each in value.items()}), content_type


def _field_pairs(place: Place, value: Any) -> list[tuple[str, str]]:
    """Return the encoded names and values of one field of a form. A list repeats the name."""
    if place.style or place.is_json:
        return _query_pairs(place, value, quote_plus)
    values = value if isinstance(value, list | tuple) else [value]
    # An empty field would be a value. So null is left out.
    return [
        (quote_plus(place.name), quote_plus(_plain(each))) for each in values if each is not None
    ]


def _multipart(operation: Operation, values: Mapping[Place, Any]) -> tuple[bytes, str]:
    """Return the fields of a multipart form, and its media type. Raises SourceError without any."""
    parts: list[Part] = []
    for place, value in values.items():
        parts += _parts(place, value)
    if not parts:
        names = sorted(name for name, place in operation.places.items() if place.where == "body")
        raise SourceError(f"its form needs a part: give one of {names!r}")
    body, boundary = multipart(parts)
    return body, f"{MULTIPART}; boundary={boundary}"


def _parts(place: Place, value: Any) -> Iterator[Part]:
    """Yield the parts of one field. A list is one part for each element."""
    if place.style or place.is_json:
        for name, text in _query_pairs(place, value, str):
            yield Part(name, text.encode(), place.part_type)
        return
    values = value if isinstance(value, list | tuple) else [value]
    for each in values:
        if isinstance(each, Upload):
            yield Part(
                place.name, each.content, content_type=each.content_type, filename=each.filename
            )
        elif isinstance(each, Mapping | list):
            text = json.dumps(each, ensure_ascii=False)
            yield Part(place.name, text.encode(), "application/json")
        else:
            yield Part(place.name, _plain(each).encode(), place.part_type)


@dataclass(frozen=True, slots=True)
class Auth:
    """A key that signs requests: a value in a header, in the query or in a cookie."""

    where: Literal["header", "query", "cookie"]
    #: The name of the header, the parameter or the cookie.
    name: str
    value: str = field(repr=False)
    #: A secret that `value` contains in another form, so that an answer may repeat it; "" for none.
    password: str = field(default="", repr=False)

    @classmethod
    def bearer(cls, token: str) -> Auth:
        """Return the header `Authorization: Bearer ...` (RFC 6750)."""
        return cls(where="header", name="Authorization", value=f"Bearer {token}")

    @classmethod
    def basic(cls, user: str, password: str) -> Auth:
        """Return the header `Authorization: Basic ...` (RFC 7617)."""
        both = base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls(where="header", name="Authorization", value=f"Basic {both}", password=password)

    @property
    def secrets(self) -> list[str]:
        """The value in all forms in which an answer might repeat it."""
        without_scheme = self.value.rpartition(" ")[2]  # of "Bearer ..."
        forms: list[str] = []
        for value in (self.value, without_scheme, self.password):
            forms += [value, quote(value, safe=""), quote_plus(value)]
        return forms

    def fills(self, where: str, name: str) -> bool:
        """Return whether this key is the value of the parameter of this name in this place."""
        if self.where == "header":
            return where == "header" and name.lower() == self.name.lower()
        return (where, name) == (self.where, self.name)

    def sign(self, request: Request) -> Request:
        """Return the request with the key added, in place of a value of the same name."""
        encoded = quote(self.value, safe="")
        match self.where:
            case "header":
                others = {
                    name: each
                    for name, each in request.headers.items()
                    if name.lower() != self.name.lower()
                }
                return replace(request, headers={**others, self.name: self.value})

            case "cookie":
                cookie = f"{self.name}={encoded}"
                other_cookies = request.headers.get("Cookie")
                if other_cookies:
                    cookie = f"{other_cookies}; {cookie}"
                return replace(request, headers={**request.headers, "Cookie": cookie})

            case "query":
                path, _, query = request.path.partition("?")
                # A value of the same name is removed, because the server might read it first.
                pairs = [
                    pair
                    for pair in query.split("&")
                    if pair and unquote(pair.partition("=")[0]) != self.name
                ]
                pairs.append(f"{quote(self.name, safe='')}={encoded}")
                return replace(request, path=f"{path}?{'&'.join(pairs)}")


#: Most redirects that are followed. They must stay within the origin. Only a request that reads
#: follows any.
MAX_REDIRECTS = 3
#: Time limit to connect, in seconds.
CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OriginClient:
    """Sends requests to one origin. Lives as long as its provider.

    An origin is a scheme, a host and a port. A document, or an answer, can so never make this
    process call an address inside the operator's network.
    """

    #: The URL that all paths are below.
    base: httpx.URL = field(repr=False)
    #: Whether the operator configured this host. Then its addresses may be private, and plain http
    #: is allowed.
    trusted: bool
    #: Time limit of a request.
    seconds: float
    #: Largest answer.
    max_bytes: int
    #: Returns the addresses of a host.
    resolve: Resolve = addresses_of

    @property
    def host(self) -> str:
        """Host and port, for errors."""
        return self.base.netloc.decode()

    async def send(self, request: Request, *, reads_only: bool) -> httpx.Response:
        """Send one request below the base URL, and return the response with its body read.

        With `reads_only` redirects are followed. Raises SourceError for a request that must not be
        sent, such as for a path that leads out of the base URL, SourceUnreachable if nothing could
        be sent, and AnswerLost otherwise. Errors hold no URL, since it may contain a secret.
        """
        import httpx

        max_redirects = MAX_REDIRECTS if reads_only else 0
        try:
            base_path = self.base.raw_path.rstrip(b"/")
            # httpx resolves ".." in a path.
            url = self.base.copy_with(raw_path=base_path + request.path.encode())
            if not url.raw_path.startswith(base_path + b"/"):
                raise SourceError(f"its path leads out of {self.host}")
            async with asyncio.timeout(self.seconds):
                return await self._follow(url, request, max_redirects)
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            raise SourceUnreachable(
                f"{self.host} cannot be reached ({type(exc).__name__}): does it run?"
            ) from None
        except TimeoutError:
            raise AnswerLost(f"{self.host} gave no answer within {self.seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as exc:
            raise AnswerLost(f"{self.host} gave no whole answer ({type(exc).__name__})") from None

    async def _follow(self, url: httpx.URL, request: Request, max_redirects: int) -> httpx.Response:
        """Return the answer of a request, after at most `max_redirects` redirects.

        Raises AnswerLost for more of them, and for one that leads to another origin.
        """

        async def next_hop(target: httpx.URL) -> PinnedRequest:
            if origin_of(target) != origin_of(url):
                raise AnswerLost(
                    f"{self.host} redirects elsewhere, which is not followed: "
                    "if it moved, mend base_url"
                )
            return await self._pinned(target, request.headers)

        first_hop = await self._pinned(url, request.headers)
        answer = await follow_redirects(
            first_hop, max_redirects, lambda hop: self._send_to(hop, request), next_hop
        )
        if answer is None:
            where = "for ever" if max_redirects else "here"
            raise AnswerLost(f"{self.host} redirects, which is not followed {where}")
        return answer

    async def _pinned(self, url: httpx.URL, headers: Mapping[str, str]) -> PinnedRequest:
        """Return the request to a URL, pinned to a public address of its host.

        So the name cannot stand for another address when the request is sent. It is not pinned if
        the operator configured the host. Raises SourceError for a host that is not public, and
        SourceUnreachable for one without an address.
        """
        if self.trusted:
            return PinnedRequest(url, headers)
        if url.scheme != "https":
            raise SourceError(
                f"{self.host} is reached without https: if you mean it, write it as base_url"
            )
        try:
            return PinnedRequest(url, headers, await public_address(url, self.resolve))
        except NotPublic:
            raise SourceError(
                f"{self.host} is not public: if you mean it, write it as base_url"
            ) from None
        except (OSError, ValueError):
            raise SourceUnreachable(f"{self.host} has no address: check its name") from None

    async def _send_to(self, hop: PinnedRequest, request: Request) -> httpx.Response | str:
        """Return the response, or the location it redirects to."""
        import httpx

        limit = httpx.Timeout(None, connect=min(CONNECT_SECONDS, self.seconds))
        async with hop.stream(
            request.method, request.body, limit=limit, transport=None
        ) as response:
            if response.has_redirect_location:
                return str(response.headers["location"])
            try:
                body = await read(response, self.max_bytes)
            except Unreadable as exc:
                raise AnswerLost(f"{self.host} answered {exc}") from None
            return httpx.Response(response.status_code, headers=response.headers, content=body)
