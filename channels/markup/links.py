"""Links: which of them show their address behind their label, so that no label hides where a link leads."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

#: Hosts whose links may hide behind a label, with all their subdomains. One set for the process: those of its bot.
_own_hosts: frozenset[str] = frozenset()

_MARKS = re.compile(r"<[^>]*>|[*_~`]")


def trust_hosts(hosts: Iterable[str]) -> None:
    """Set the hosts whose links need not show their address: the bot's own and those that its configuration names."""
    global _own_hosts  # noqa: PLW0603  # set once when a process starts, as its configuration says
    _own_hosts = frozenset(_plain_host(host) for host in hosts if host)


def hides_host(label: str, href: str) -> bool:
    """Return whether a label, plain or rendered, hides the host that its link leads to."""
    try:
        parts = urlsplit(href)
        host = _plain_host(parts.hostname or "")
    except ValueError:
        return True
    if parts.scheme.lower() not in ("http", "https"):
        return False
    if any(host == own or host.endswith(f".{own}") for own in _own_hosts):
        return False
    shown = _bare(html.unescape(label))
    return bool(label.strip()) and shown not in (_bare(href), _bare(host))  # without a label the address is shown


def _bare(address: str) -> str:
    """Return an address as a label may write it: without scheme, "www.", last slash and what marks would be."""
    return re.sub(r"^https?://(www\.)?|^www\.", "", _MARKS.sub("", address).strip().casefold()).rstrip("/")


def _plain_host(host: str) -> str:
    return host.casefold().strip(".").removeprefix("www.")
