"""Auth: how a source signs its requests in. Its values are secrets, and stay out of every text."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, quote_plus, unquote

from sayso.agent.sources.openapi_call import Request


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
        """The value in the forms in which it might come back."""
        bare = self.value.rpartition(" ")[2]
        return [
            form
            for value in (self.value, bare, self.password)
            for form in (value, quote(value, safe=""), quote_plus(value))
        ]

    def fills(self, where: str, name: str) -> bool:
        """Whether a parameter of this name, in that place, is what it puts there."""
        if self.where == "header":
            return where == "header" and name.lower() == self.name.lower()
        return (where, name) == (self.where, self.name)

    def sign(self, request: Request) -> Request:
        """The request with the value in its place."""
        match self.where:
            case "header":
                return _with_headers(request, {self.name: self.value})
            case "cookie":
                cookies = f"{self.name}={quote(self.value, safe='')}"
                before = request.headers.get("Cookie")
                return _with_headers(request, {"Cookie": f"{before}; {cookies}" if before else cookies})
            case "query":
                path, _, query = request.path.partition("?")
                # A value that stands there under this name already would be read first.
                others = [pair for pair in query.split("&") if pair and unquote(pair.partition("=")[0]) != self.name]
                own = f"{quote(self.name, safe='')}={quote(self.value, safe='')}"
                return Request(request.method, f"{path}?{'&'.join([*others, own])}", request.headers, request.body)


def _with_headers(request: Request, more: Mapping[str, str]) -> Request:
    lowered = {name.lower() for name in more}
    kept = {name: value for name, value in request.headers.items() if name.lower() not in lowered}
    return Request(request.method, request.path, {**kept, **more}, request.body)
