"""PlatformSetup: tells a platform where webhooks go and asks it what it knows of a channel."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from sayso.channels.redaction import redact
from sayso.channels.types import Signed

CheckState = Literal["ok", "warn", "fail"]


#: Characters of anything that somebody else wrote, such as a platform's last error.
MAX_WORDS = 300


#: Columns of a check's name.
WIDTH = 22


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check. `channel` is "" for what is of no channel; `cure` is "" exactly where `state` is ok."""

    check: str
    state: CheckState
    says: str
    cure: str = ""
    channel: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "says", redact(self.says))  # platforms may repeat what they were sent

    def __str__(self) -> str:
        name = f"{self.channel} {self.check}".strip()
        cure = f"\n{'':4}  {'':{WIDTH}}  cure: {plain(self.cure)}" if self.cure else ""
        return f"{self.state:4}  {name:{WIDTH}}  {plain(self.says)}{cure}"


def plain(words: str) -> str:
    """Somebody's words on one line of a terminal, and nothing that would command it."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())
    return line if len(line) <= MAX_WORDS else f"{line[: MAX_WORDS - 1]}…"


def shown(url: str) -> str:
    """An address without what may be secret in it: its user and its query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


#: Seconds that one command to a platform may take in all.
ASK_SECONDS = 10.0


#: Updates at once that Telegram sends unless it is told otherwise.
MAX_CONNECTIONS = 40


#: A webhook signed with this secret is a forgery: no channel's secret is so short.
FORGED = "forged"


#: Where to look when a platform cannot be reached.
NO_WAY = "check that this machine may open https connections to the outside, or try again"


class SetupError(Exception):
    """Raised when a platform would not do or tell what was asked; `cure` is what an operator does about it."""

    def __init__(self, says: str, cure: str) -> None:
        super().__init__(f"{says}: {cure}")
        self.says, self.cure = says, cure


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """What an operator may ask for when a webhook is set or deleted.

    `max_connections`: how many updates the platform may send at once. `drop_pending`: have it drop the updates that
    wait there. Platforms that cannot do either ignore it.
    """

    max_connections: int = MAX_CONNECTIONS
    drop_pending: bool = False


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """One message in a platform's log. `sent_at` is in Unix seconds, `files` is the number of its files."""

    sid: str
    sender: str
    to: str
    body: str
    files: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file of a message, under the address that a webhook would name."""

    sid: str
    url: str
    mime_type: str


class MessageLog(Protocol):
    """The messages and files of a channel that its platform keeps. Lives as long as one command and its event loop."""

    def messages(self, after: float, before: float) -> AsyncIterator[ListedMessage]:
        """Yield what people sent between two moments in Unix seconds, the newest first. Raises SetupError."""

    async def files(self, sid: str) -> list[ListedFile]:
        """Return the files of a message that the platform still has. Raises SetupError."""

    async def delete(self, sid: str, file: ListedFile) -> None:
        """Delete a file for good. Raises SetupError."""


class PlatformSetup(Protocol):
    """One channel at its platform. Lives as long as one command and its event loop, which closes its connections."""

    async def set_webhook(self) -> list[str]:
        """Tell the platform where this channel's webhooks go. Return what was done. Raises SetupError."""

    async def check(self) -> list[CheckResult]:
        """Return what the platform says of the channel. What it would not tell is a failed check."""

    async def delete_webhook(self) -> list[str]:
        """Have the platform send no webhooks any more. Return what was done. Raises SetupError."""

    def probe(self, now: float, *, forged: bool = False) -> Signed | None:
        """Return a harmless webhook, signed by the channel's secret or by a wrong one; None if it takes no webhooks.

        `now` is in Unix seconds.
        """

    def message_log(self) -> MessageLog:
        """Return the platform's log of messages. Raises SetupError for a platform that gives bots none."""


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


def not_told(check: str, channel: str, error: SetupError) -> CheckResult:
    """What a platform would not tell, as a finding."""
    return CheckResult(check, "fail", error.says, error.cure, channel)
