"""Desk: where a platform keeps what it knows of one channel's webhook, and how it is asked.

SetupError      a platform would not do or tell what was asked, or must not be asked
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Callable
from typing import Protocol
from urllib.parse import urlsplit

from sayso.config.setup.finding import Finding

#: Seconds that one command to a platform may take in all.
ASK_SECONDS = 10.0
#: Updates at once that Telegram sends unless it is told otherwise.
MAX_CONNECTIONS = 40
#: Where to look when a platform cannot be reached.
NO_WAY = "check that this machine may open https connections to the outside, or try again"


class SetupError(Exception):
    """Raised when a platform would not do or tell what was asked; `cure` is what an operator does about it."""

    def __init__(self, says: str, cure: str) -> None:
        super().__init__(f"{says}: {cure}")
        self.says, self.cure = says, cure


class Desk(Protocol):
    """One channel's desk. Lives as long as one command, and its event loop: that closes the connections."""

    async def point(self) -> list[str]:
        """Tell the platform where this channel's webhooks go. Returns what was done. Raises SetupError."""

    async def look(self) -> list[Finding]:
        """What the platform says of the channel. What it would not tell is a finding too."""

    async def leave(self) -> list[str]:
        """Have the platform send nothing any more. Returns what was done. Raises SetupError."""


def hook_url(public_url: str, channel: str) -> str:
    """Where a platform sends a channel's webhooks."""
    return f"{public_url}/hooks/{channel}"


def is_local(url: str) -> bool:
    """Whether nobody outside reaches this address: it is this machine's, or of a private network."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return True
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(host).is_global
    return False


def check_outside(url: str) -> None:
    """Refuse an address that no platform can reach. Raises SetupError."""
    if is_local(url):
        cure = "set public_url to the https address at which your proxy or tunnel answers from outside"
        raise SetupError(f"{url} is an address that no platform can reach", cure)


def check_https(platform: str, url: str) -> None:
    """Refuse an address that is not https, for a platform that sends nowhere else. Raises SetupError."""
    scheme = urlsplit(url).scheme
    if scheme != "https":
        raise SetupError(f"public_url is {scheme}, and {platform} takes https only", "set public_url to https://…")


@contextlib.asynccontextmanager
async def asking(
    platform: str, why: Callable[[Exception], tuple[str, str]], *, unanswered: str = NO_WAY
) -> AsyncIterator[None]:
    """Ask a platform in the time there is. Raises SetupError: `why` says what its SDK's error means, and the cure;
    `unanswered` is the cure where no answer came.
    """
    try:
        async with asyncio.timeout(ASK_SECONDS):
            yield
    except SetupError:
        raise
    except TimeoutError:
        raise SetupError(f"{platform} did not answer in {ASK_SECONDS:g} s", unanswered) from None
    except Exception as exc:  # noqa: BLE001  # an SDK raises anything on an answer that it cannot read
        # The cause is left out: it may name an address with a token in it.
        raise SetupError(*why(exc)) from None


def not_told(check: str, channel: str, error: SetupError) -> Finding:
    """What a platform would not tell, as a finding."""
    return Finding(check, "fail", error.says, error.cure, channel)
