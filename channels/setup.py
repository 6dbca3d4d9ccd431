"""PlatformSetup: registers a channel's webhook, and checks what the platform knows of it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from sayso.channels.types import SignedWebhook, Turn
from sayso.infra.manual import manual
from sayso.infra.redaction import redact
from sayso.infra.terminal import one_line

if TYPE_CHECKING:
    import click
    from redis import Redis

    from sayso.channels.base import PlatformSettings

CheckState = Literal["ok", "warn", "fail"]
#: A problem, and what an operator can do about it.
Problem = tuple[str, str]

#: The header of our health checks that says whose they are.
BOT_HEADER = "X-Sayso-Bot"
#: The page with the cause and the cure of each finding.
PAGE = "reference/doctor.md"
#: How many characters of a text from outside are shown, such as of a platform's last error.
MAX_CHARS = 300
#: The width of the column with a check's name, in characters.
WIDTH = 22
#: How many seconds one command at a platform may take in all.
ASK_SECONDS = 10.0
#: How many updates Telegram sends at once by default.
MAX_CONNECTIONS = 40
#: The secret of the forged webhook that `sayso doctor` sends. No channel's secret is so short.
FORGED = "forged"
#: The cure if a platform cannot be reached.
CONNECTION_CURE = "check that this machine may open https connections to the outside, or try again"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    `channel` is "" if it concerns no channel; `cure` is "" if and only if `state` is ok.

    `id` names what was found, for machines and as a section of PAGE; "" for a result that is ok.
    Without one it is made of the name of the check.
    """

    check: str
    state: CheckState
    says: str
    cure: str = ""
    channel: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        # A platform may repeat a secret that it was sent.
        object.__setattr__(self, "says", redact(self.says))
        if self.state != "ok" and not self.id:
            object.__setattr__(self, "id", re.sub(r"[ _]", "-", self.check))

    @property
    def see(self) -> str:
        """Return the documentation of the finding, "" for a result that is ok."""
        if self.id:
            return manual(PAGE, self.id)
        return ""

    def __str__(self) -> str:
        name = f"{self.channel} {self.check}".strip()
        more = (
            f"cure: {one_line(self.cure, MAX_CHARS)}" if self.cure else "",
            f"see:  {self.see}" if self.see else "",
        )
        lines = "".join(f"\n{'':4}  {'':{WIDTH}}  {line}" for line in more if line)
        return f"{self.state:4}  {name:{WIDTH}}  {one_line(self.says, MAX_CHARS)}{lines}"


class SetupError(Exception):
    """Raised when a platform refuses a command. `cure` is what an operator can do about it."""

    def __init__(self, says: str, cure: str) -> None:
        super().__init__(f"{says}: {cure}")
        self.says = says
        self.cure = cure


@dataclass(frozen=True, slots=True)
class BotState:
    """Where a bot keeps its state: its Redis, what its keys begin with, and the secret keys."""

    redis: Redis
    key_prefix: str
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """What an operator may ask for when a webhook is set or deleted.

    Platforms ignore options that they do not have.
    """

    #: How many updates the platform may send at once.
    max_connections: int = MAX_CONNECTIONS
    #: The platform drops the updates that wait there.
    drop_pending: bool = False
    #: That of the bot, None where it is not known.
    state: BotState | None = None


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The channel that a platform's own command is about. Lives as long as the command.

    `open_state` returns where the bot keeps its state. It raises ConfigError and
    redis.RedisError, so a command that needs no state runs without a Redis.
    """

    channel: str
    settings: PlatformSettings
    public_url: str
    open_state: Callable[[], BotState]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command prints: `value` with --json, else `lines`."""

    value: Any
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlatformCommand:
    """A command of `sayso channel` that only one platform has.

    `run(target, **options)` does it and returns what is printed. Its docstring is the help. It
    raises SetupError, click.UsageError and redis.RedisError.
    """

    name: str
    run: Callable[..., CommandResult]
    examples: Sequence[str]
    #: Those beside CHANNEL, which every such command takes.
    parameters: Sequence[click.Parameter] = ()
    #: Whether CHANNEL is by default the first one whose account many workspaces install.
    of_workspaces: bool = False
    #: Whether the secrets of the configuration must be there.
    needs_secrets: bool = True


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """One message in a platform's log.

    `sent_at` is in Unix seconds, `files` is the number of its files.
    """

    sid: str
    sender: str
    to: str
    body: str
    files: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file of a message, with the URL that its webhook has."""

    sid: str
    url: str
    mime_type: str


#: What became of a message in a platform's log: stored `before`; `missed`; `taken` now; `left` for
#: good; or `refused`, to be tried again.
MessageState = Literal["before", "missed", "taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message of a platform's log and its state. `why` is why it was not stored.

    `sent_at` is in Unix seconds.
    """

    sid: str
    sent_at: float
    conversation: str
    state: MessageState
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """How many files of at most one day were deleted at a platform, and how many were left.

    `begin` is in Unix seconds.
    """

    begin: float
    deleted: int = 0
    #: Files of turns that are not answered yet.
    waiting: int = 0
    #: Files of messages that no webhook delivered.
    missed: int = 0

    @property
    def day(self) -> str:
        """The time of `begin`, in UTC."""
        return f"{datetime.fromtimestamp(self.begin, UTC):%Y-%m-%d %H:%M} UTC"


class MessageLog(Protocol):
    """The messages and files of a channel that its platform stores.

    Lives as long as one command and its event loop.
    """

    def messages(self, after: float, before: float) -> AsyncIterator[ListedMessage]:
        """Yield what people sent between two times in Unix seconds, the newest first.

        Raises SetupError.
        """

    async def files(self, sid: str) -> list[ListedFile]:
        """Return the files of a message that the platform still has. Raises SetupError."""

    async def delete(self, sid: str, file: ListedFile) -> None:
        """Delete a file for good. Raises SetupError."""


@dataclass(frozen=True, slots=True)
class RecoveryInbox:
    """What may be asked of the mailbox where messages of a platform's log are examined.

    Its functions raise redis.RedisError.
    """

    #: How many seconds after its arrival an answered turn is still known.
    remembered_seconds: float
    #: Returns "waits" or "done", or "unknown" for a turn that never arrived or is not known any
    #: more.
    turn_status: Callable[[Turn], str]
    #: Returns why the channel's access rules refuse the sender, "" if they do not.
    why_not: Callable[[Turn], str]
    #: Stores a turn that was written this many seconds ago. Returns "new" or "duplicate", or why
    #: the turn was refused.
    accept: Callable[[Turn, float], str]


class PlatformSetup(ABC):
    """One channel at its platform.

    Lives as long as one command and its event loop, which closes its connections.
    """

    def __init__(self, name: str, public_url: str) -> None:
        self._name = name
        self._url = hook_url(public_url, name)

    @abstractmethod
    async def set_webhook(self) -> list[str]:
        """Register the channel's webhook at the platform.

        Return what was done. Raises SetupError.
        """

    @abstractmethod
    async def check(self) -> list[CheckResult]:
        """Check what the platform knows of the channel. A refused call is a failed check."""

    @abstractmethod
    async def delete_webhook(self) -> list[str]:
        """Have the platform send no webhooks any more. Return what was done. Raises SetupError."""

    @abstractmethod
    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return a harmless webhook, signed by the channel's secret or by a wrong one.

        None if it takes no webhooks.

        `now` is in Unix seconds.
        """

    @abstractmethod
    def message_log(self) -> MessageLog:
        """Return the platform's log of messages.

        Raises SetupError for a platform that gives bots none.
        """

    def _ok(self, check: str, says: str) -> CheckResult:
        return CheckResult(check, "ok", says, channel=self._name)

    def _warn(self, check: str, says: str, cure: str, id: str = "") -> CheckResult:
        return CheckResult(check, "warn", says, cure, self._name, id)

    def _fail(self, check: str, says: str, cure: str = "", id: str = "") -> CheckResult:
        return CheckResult(
            check, "fail", says, cure or f"run `sayso channel connect {self._name}`", self._name, id
        )


def hook_url(public_url: str, channel: str) -> str:
    """Return the URL to which a platform sends a channel's webhooks."""
    return f"{public_url}/hooks/{channel}"


def bare_url(url: str) -> str:
    """Return a URL without the parts that may be secret: its user and its query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_loopback(address: str) -> bool:
    """Return whether an IP address is this machine's own; False for a name."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def is_local(url: str) -> bool:
    """Return whether the URL can be reached only from this machine or its private network."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return True
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(host).is_global
    return False


def check_outside(url: str) -> None:
    """Raise SetupError for a URL that no platform can reach."""
    if is_local(url):
        cure = (
            "set public_url to the https address at which your proxy or tunnel answers from outside"
        )
        raise SetupError(f"{url} is an address that no platform can reach", cure)


def check_https(platform: str, url: str) -> None:
    """Raise SetupError for a URL without https, for a platform that requires it."""
    scheme = urlsplit(url).scheme
    if scheme != "https":
        raise SetupError(
            f"public_url is {scheme}, and {platform} takes https only",
            "set public_url to https://…",
        )


@contextlib.asynccontextmanager
async def platform_calls(
    platform: str,
    explain: Callable[[Exception], Problem | None],
    *,
    unanswered: str = CONNECTION_CURE,
) -> AsyncIterator[None]:
    """Run calls to a platform within ASK_SECONDS, and translate its SDK's errors.

    Raises SetupError.

    `explain` returns what an error of the platform means, None for an error that could be of any
    platform. `unanswered` is the cure if no answer came.
    """
    try:
        async with asyncio.timeout(ASK_SECONDS):
            yield
    except SetupError:
        raise
    except TimeoutError:
        raise SetupError(f"{platform} did not answer in {ASK_SECONDS:g} s", unanswered) from None
    except Exception as exc:  # noqa: BLE001  # an SDK may raise anything for an answer that it cannot parse
        # The cause is left out: it may name a URL with a token in it.
        raise SetupError(*(explain(exc) or connection_problem(platform, exc))) from None


def connection_problem(platform: str, exc: Exception) -> Problem:
    """Return the problem of an error that is not the platform's own."""
    from aiohttp import ClientConnectionError

    if isinstance(exc, (ClientConnectionError, OSError)):
        return no_connection(platform)
    return (
        f"{platform}'s answer makes no sense ({type(exc).__name__})",
        "try again; if api_url is set, check it",
    )


def no_connection(platform: str) -> Problem:
    """Return the problem that no connection to a platform could be opened."""
    return f"no connection to {platform}", CONNECTION_CURE


def too_many_calls(platform: str) -> Problem:
    """Return the problem that a platform limits the rate of calls."""
    return f"{platform} was asked too often", "wait a minute, then run it again"
