"""Tells whether a request comes from a browser on this machine, or from elsewhere."""

from __future__ import annotations

from urllib.parse import urlsplit

import flask

from sayso.channels.setup import is_loopback

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
#: Headers that a reverse proxy adds. Behind one, a loopback peer proves nothing.
_PROXY_HEADERS = (
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Real-IP",
    "Via",
    "CF-Connecting-IP",
)


def is_local(request: flask.Request) -> bool:
    """Return whether the client runs on this machine, with no proxy in between."""
    # The host is checked too. A hostile site can point its own name at 127.0.0.1, and a tunnel that
    # adds no header of a proxy still passes the public name on.
    if any(header in request.headers for header in _PROXY_HEADERS):
        return False
    try:
        hostname = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(request.remote_addr or "") and hostname in _LOOPBACK_HOSTS
