"""What an operator does with a channel at its platform, before and beside the conversations.

`sayso channel connect` and `sayso doctor` use a PlatformSetup, which registers the channel's
webhook and checks what the platform knows of the channel. A webhook is the URL of the bot that the
platform calls for each message. `sayso channel recover` reads a MessageLog, the messages that the
platform stores itself, for those that never reached the bot. A PlatformCommand is a command of one
platform alone.
"""

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
#: What is wrong, and what an operator can do about it.
Problem = tuple[str, str]

#: The header of a health check's answer that names the bot, so that `sayso doctor` notices when
#: another bot answers at the public URL.
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
#: The secret that signs the forged webhook of `sayso doctor`, which the bot must refuse. No
#: channel's secret is so short.
FORGED = "forged"
#: The cure if a platform cannot be reached.
CONNECTION_CURE = "check that this machine may open https connections to the outside, or try again"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of `sayso doctor`. Its text is what the command prints."""

    #: The name of the check.
    check: str
    state: CheckState
    #: What was found, without secrets.
    says: str
    #: What an operator can do. "" if and only if `state` is ok.
    cure: str = ""
    #: The channel that was checked, "" for a check of the bot itself.
    channel: str = ""
    #: The finding, for machines and as a section of PAGE; "" for a result that is ok. If it is left
    #: out, the name of the check is used.
    id: str = ""

    def __post_init__(self) -> None:
        # A platform may repeat a secret that it was sent.
        object.__setattr__(self, "says", redact(self.says))
        if self.state != "ok" and not self.id:
            object.__setattr__(self, "id", re.sub(r"[ _]", "-", self.check))

    @property
    def see(self) -> str:
        """The address of the finding's documentation, "" for a result that is ok."""
        if self.id:
            return manual(PAGE, self.id)
        return ""

    def __str__(self) -> str:
        """Return the rows of the finding: state, name and text, then cure and documentation."""
        name = f"{self.channel} {self.check}".strip()
        rows = [f"{self.state:4}  {name:{WIDTH}}  {one_line(self.says, MAX_CHARS)}"]
        # Below the text, in the same column.
        indent = f"{'':4}  {'':{WIDTH}}  "
        if self.cure:
            rows.append(f"{indent}cure: {one_line(self.cure, MAX_CHARS)}")
        if self.see:
            rows.append(f"{indent}see:  {self.see}")
        return "\n".join(rows)


class SetupError(Exception):
    """Raised when a platform refuses a command.

    `says` is what is wrong, and `cure` what an operator can do about it.
    """

    def __init__(self, says: str, cure: str) -> None:
        super().__init__(f"{says}: {cure}")
        self.says = says
        self.cure = cure


@dataclass(frozen=True, slots=True)
class BotState:
    """Where a bot stores its state."""

    redis: Redis
    #: What all its keys in Redis begin with.
    key_prefix: str
    #: The secrets of the bot. The first one encrypts, and all of them decrypt.
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """What an operator may ask for when a webhook is set or deleted.

    Platforms ignore options that they do not have.
    """

    #: How many updates the platform may send at once.
    max_connections: int = MAX_CONNECTIONS
    #: Whether the platform deletes the updates that wait there for the bot.
    drop_pending: bool = False
    #: Where the bot stores its state, None if the command knows no Redis.
    state: BotState | None = None


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The channel that a PlatformCommand is about. Lives as long as the command."""

    channel: str
    settings: PlatformSettings
    public_url: str
    #: Returns where the bot stores its state. Raises ConfigError and redis.RedisError. It is a
    #: function, so that a command that needs no state runs without a Redis.
    open_state: Callable[[], BotState]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command prints: `value` with --json, else `lines`."""

    value: Any
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlatformCommand:
    """A command of `sayso channel` that only one platform has."""

    #: It must be no other command's: those of all platforms, such as "status", come first, and of
    #: two platforms' commands with one name only one can be called.
    name: str
    #: `run(target, **options)` does it and returns what is printed. Its docstring is the help. It
    #: raises SetupError, click.UsageError and redis.RedisError.
    run: Callable[..., CommandResult]
    #: Lines of its help that show how it is called.
    examples: Sequence[str]
    #: Its parameters without CHANNEL, which every such command takes.
    parameters: Sequence[click.Parameter] = ()
    #: Whether CHANNEL is by default the first one whose app many workspaces install.
    of_workspaces: bool = False
    #: Whether the command stops if a secret of the configuration is missing.
    needs_secrets: bool = True


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """One message in a platform's log."""

    #: The platform's id of the message.
    sid: str
    #: The address of the person who wrote it.
    sender: str
    #: The address that it was sent to.
    to: str
    body: str
    #: How many files it has.
    files: int
    #: In Unix seconds.
    sent_at: float


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file of a message in a platform's log."""

    #: The platform's id of the file.
    sid: str
    #: The same URL as in the webhook of the message.
    url: str
    mime_type: str


#: What became of a message in a platform's log:
#:
#: * `before`: a webhook delivered it, so the bot has it;
#: * `missed`: the bot does not have it, and the command was not asked to store it;
#: * `taken`: the command stored it now;
#: * `left`: the bot does not want it, such as a message of a blocked person;
#: * `refused`: it could not be stored now, so the command can be run again.
MessageState = Literal["before", "missed", "taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message of a platform's log, and what became of it."""

    #: The platform's id of the message.
    sid: str
    #: In Unix seconds.
    sent_at: float
    #: The id of its conversation.
    conversation: str
    state: MessageState
    #: Why it was not stored, "" if it was.
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """How many files of at most one day were deleted at a platform, and how many were not."""

    #: The beginning of the day, in Unix seconds.
    begin: float
    deleted: int = 0
    #: Files that stay because their turns are not answered yet.
    waiting: int = 0
    #: Files that stay because their messages never reached the bot.
    missed: int = 0

    @property
    def day(self) -> str:
        """The beginning of the day as people read it, in UTC."""
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
    """What the search for missed messages uses of the mailbox, the queue of turns in Redis.

    Its functions raise redis.RedisError.
    """

    #: How long after its arrival an answered turn is still known, in seconds.
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
    """Registers and checks one channel at its platform.

    Lives as long as one command and its event loop, which closes its connections. `name` is the
    channel's name in the YAML, `public_url` the address at which platforms reach the bot.
    """

    def __init__(self, name: str, public_url: str) -> None:
        self._name = name
        self._url = hook_url(public_url, name)

    @abstractmethod
    async def set_webhook(self) -> list[str]:
        """Register the channel's webhook at the platform.

        Returns what was done, one sentence each. Raises SetupError.
        """

    @abstractmethod
    async def check(self) -> list[CheckResult]:
        """Check what the platform knows of the channel. A refused call is a failed check.

        The first result is that of the bot's account, and is always there.
        """

    @abstractmethod
    async def delete_webhook(self) -> list[str]:
        """Have the platform send no webhooks any more.

        Returns what was done, one sentence each. Raises SetupError.
        """

    @abstractmethod
    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return a harmless webhook, with which the bot's own server is tested.

        * `now`: when it is sent, in Unix seconds.
        * `forged`: whether it is signed with a wrong secret, and not with the channel's.

        Returns None for a channel that takes no webhooks.
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
        """Return a failed check. Without a `cure`, connecting the channel again helps."""
        if not cure:
            cure = f"run `sayso channel connect {self._name}`"
        return CheckResult(check, "fail", says, cure, self._name, id)


def hook_url(public_url: str, channel: str) -> str:
    """Return the URL to which a platform sends a channel's webhooks."""
    return f"{public_url}/hooks/{channel}"


def bare_url(url: str) -> str:
    """Return a URL without the parts that may be secret: user, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def is_loopback(address: str) -> bool:
    """Return whether an IP address is one of this machine itself; False for a host name."""
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
    """Raise SetupError for any error in this block, and if it takes longer than ASK_SECONDS.

    * `platform`: its name for people, such as "Slack".
    * `explain`: returns what an error of the platform's SDK means, None for an error that any
      platform may have.
    * `unanswered`: the cure if no answer came in time.
    """
    try:
        async with asyncio.timeout(ASK_SECONDS):
            yield
    except SetupError:
        raise
    except TimeoutError:
        raise SetupError(f"{platform} did not answer in {ASK_SECONDS:g} s", unanswered) from None
    except Exception as exc:  # noqa: BLE001  # an SDK may raise anything for an answer that it cannot parse
        says, cure = explain(exc) or connection_problem(platform, exc)
        # Without the cause: it may name a URL with a token in it.
        raise SetupError(says, cure) from None


def connection_problem(platform: str, exc: Exception) -> Problem:
    """Return the problem that an error means if the platform did not refuse the call.

    Either no connection was opened, or the answer could not be parsed.
    """
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
