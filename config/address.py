"""Address: where the web listens, as people and processes on this machine reach it."""

from __future__ import annotations

import os
import socket

#: Addresses that mean "all", and where this machine reaches them.
_ALL = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}  # noqa: S104  # a comparison


#: Connections that wait to be accepted at most.
BACKLOG = 1024


class AddressUnusable(Exception):
    """Raised when nothing can listen there. The message names the cure."""


def local_url(host: str, port: int) -> str:
    """Where the web answers on this machine."""
    near = _ALL.get(host, host)
    return f"http://{f'[{near}]' if ':' in near else near}:{port}"


def check_free(host: str, port: int) -> None:
    """Raise AddressUnusable unless a server can listen there now."""
    listen(host, port).close()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; processes that are forked later share it. Raises AddressUnusable."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except socket.gaierror:
        raise AddressUnusable(f"no address {host!r}: give another with --host, such as 127.0.0.1") from None
    except OSError as exc:
        reason = os.strerror(exc.errno or 0)
        raise AddressUnusable(
            f"cannot listen on {host}:{port} ({reason}): stop what uses it, or give another --port or --host"
        ) from None
    return listening
