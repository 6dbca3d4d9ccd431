"""URLs that an operator writes: whether they can be called, and how errors and logs show them."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

#: The scheme of a URL, also of one whose slashes are wrong.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[/\\]+")


def is_http_url(url: str) -> bool:
    """Return whether a request can go to a URL: it has http or https, a host, and a valid port."""
    if re.search(r"\s", url):
        return False

    # Python raises ValueError for half a bracket, for a port that is not a number, and for a letter
    # that Unicode normalizes to a slash.
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port
        if "[" in parts.netloc:
            IPv6Address(host)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and host != "" and port != 0


def has_http_scheme(text: str) -> bool:
    """Return whether a text that may be the path of a file is meant as a URL of the web instead.

    Schemes are read in any case of letters, as in HTTPS://example.com.
    """
    return text.lower().startswith(("http://", "https://"))


def redacted_url(url: str) -> str:
    """Return a URL, which may be malformed, without a login, a query and a fragment.

    A password may have a character that should be encoded, such as / or #. So everything before an
    @ counts as the login.
    """
    before_at, at, after_at = url.rpartition("@")
    if not at:
        return _without_query(url)

    scheme = _SCHEME.match(url)
    shown_scheme = scheme[0] if scheme else ""
    # What follows the @ is the host, or it is the end of a secret in the query.
    if _without_query(before_at) != before_at:
        return f"{shown_scheme}***"
    return shown_scheme + _without_query(after_at)


def _without_query(url: str) -> str:
    return re.split("[?#]", url, maxsplit=1)[0]


def web_address(url: str) -> str:
    """Return an http URL without its last slash.

    Raises ValueError for a text that is not an http URL, and for a URL with a query or a fragment.
    """
    if not is_http_url(url):
        raise ValueError("is not a URL: write it as https://bots.example.com")
    if "?" in url or "#" in url:
        raise ValueError("ends in a query or a fragment: leave that out")
    return url.rstrip("/")


def server_address(url: str) -> str:
    """Return the URL of a server without its last slash.

    Raises ValueError as `web_address` does, and for a URL with a user or a password, which would be
    logged with it.
    """
    _, _, after_scheme = url.partition("://")
    host = after_scheme.partition("/")[0]
    if "@" in host:
        raise ValueError("holds a user: leave it out, and sign in with headers or auth")
    return web_address(url)
