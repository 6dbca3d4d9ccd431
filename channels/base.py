"""The channel port: what every adapter promises, and the errors it may raise.

ChannelError
├── Forbidden         a webhook whose signature or secret is wrong: answer 403
├── BadHook           an authentic webhook that makes no sense: answer 400
├── FetchError        an inbound file that cannot be had: answer without it
├── Elsewhere         somebody else is given what comes in: ask again later, and tell the operator
└── SendError         a delivery that did not arrive
    ├── RateLimited   the platform asks to wait: try again after `retry_after` seconds
    ├── Unreachable   certainly not accepted: try again with backoff
    ├── ChannelDown   the platform does not know this channel any more: keep the message and tell the operator
    ├── WindowClosed  nothing may be said before the person writes: keep the message until then
    ├── Ambiguous     the answer was lost, the message may have arrived
    └── Refused       will never be accepted as it is: give up and tell the operator
        └── AddressClosed  nothing will be accepted at this address until its person writes again

NotStored               what came in was not stored: answer 503, so that the platform sends it again
├── Overloaded          too many turns are waiting
└── StorageDown         the storage cannot be used
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, runtime_checkable

from sayso.channels.types import Conversation, Delivery, Media, Receipt, Received, Reply, Turn, WebhookRequest

if TYPE_CHECKING:
    from redis import Redis


class ChannelError(Exception):
    """Raised when a channel cannot do what was asked."""


class Forbidden(ChannelError):
    """Raised when a webhook is not signed by the platform it claims to come from."""


class BadHook(ChannelError):
    """Raised when an authentic webhook cannot be understood."""


class FetchError(ChannelError):
    """Raised when the bytes of an inbound file cannot be had. The message is safe to log: no token or address."""


class WebhookConflict(ChannelError):
    """Raised when a platform that is asked what came in tells somebody else. The message names the cure."""


class SendError(ChannelError):
    """Raised when a reply did not certainly arrive. The message is safe to log: no token, address or text."""


class RateLimited(SendError):
    """Raised when the platform asks us to wait `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"rate limited, retry after {retry_after:g} s")
        self.retry_after = retry_after


class Unreachable(SendError):
    """Raised when the platform certainly did not accept the message, and may later."""


class ChannelDown(SendError):
    """Raised when the platform refuses this channel itself: its token is wrong or revoked, its account is closed."""


class WindowClosed(SendError):
    """Raised when the platform takes the message only once the person has written again."""


class DeliveryUncertain(SendError):
    """Raised when the connection broke after the message was sent: it may or may not have arrived."""


class Refused(SendError):
    """Raised when the platform will never accept this message to this address."""


class AddressClosed(Refused):
    """Raised when the platform takes nothing for this address: blocked, gone, or its window is closed."""


class NotStored(Exception):
    """Raised when a turn was not stored. The platform must send it again."""


class Overloaded(NotStored):
    """Raised when a turn was refused because too many are waiting."""


class StorageDown(NotStored):
    """Raised when the storage of turns, sessions or files cannot be used. The message is for the log only."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How fast a platform takes messages, as far as it says.

    `per_second`: messages of the whole channel, 0 where there is no such limit. `chat_gap`: seconds between two
    messages into one conversation, once `burst` of them went out at once. `draft_gap`: seconds between two drafts of
    one answer, 0 where the platform shows none.
    """

    per_second: float = 0.0
    chat_gap: float = 0.0
    burst: int = 1
    draft_gap: float = 0.0


class Channel(Protocol):
    """One configured channel. One instance serves a whole process, from any thread."""

    @property
    def name(self) -> str:
        """The channel's name in the YAML, as in `/hooks/<name>`."""

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify a webhook, then read it. No I/O. Raises Forbidden or BadHook."""

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """How fast the platform takes messages, and into this conversation."""

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split a reply into platform messages, in order, each within the platform's limits. Loses no character.

        Of one that `edits` the first piece does; an optional one that a platform cannot show has no pieces.
        """

    async def show_typing(self, turn: Turn) -> float:
        """Show that work on the turn goes on: typing, a tap acknowledged. Best effort, never raises.

        Returns after how many seconds it must be shown again, 0 for never.
        """

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Show what the answer to a turn has come to, in place of the draft `shown`.

        Returns the id of the message that shows it, which the answer is to edit; "" where the draft goes by itself.
        Raises SendError.
        """

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Write the bytes of an inbound file, as they arrive, to an open file. Raises FetchError."""

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece. Raises SendError; words that the platform will not format are sent plain once."""


class MediaSource(Protocol):
    """Where adapters get the bytes and the public address of a stored file."""

    def read(self, ref: str) -> bytes:
        """The stored bytes. Raises KeyError when the file is gone."""

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """A signed, expiring, absolute URL a platform can fetch."""


class MediaStore(MediaSource, Protocol):
    """Where a channel keeps files that no platform keeps for it."""

    def put(self, data: bytes, *, mime_type: str, filename: str, owner: str) -> Media:
        """Keep the bytes of this person, typed by what they are. Raises TooLarge, NoRoom, OSError."""

    def open(self, ref: str) -> BinaryIO:
        """Open a stored file. Raises KeyError when it is gone."""


@runtime_checkable
class QuoteSource(Protocol):
    """An adapter whose webhooks name the message that somebody quotes, and not its words."""

    async def quoted(self, turn: Turn) -> str:
        """Return the words of the message that the turn replies to. Raises FetchError when nobody has them."""


class SharedCache(Protocol):
    """A small shared memory for adapters: vendor-side ids that are costly to make and safe to lose."""

    def get(self, key: str) -> str | None:
        """The value noted under `key`, or None."""

    def put(self, key: str, value: str) -> None:
        """Note a value for later, for all processes."""


@dataclass(frozen=True, slots=True)
class AdapterDeps:
    """What an adapter may use besides its own settings.

    `keys` sign cookies and links. Redis keys of the bot begin with `key_prefix`. `connect` opens a Redis client whose
    answers may take that many seconds, for reads that block.
    """

    cache: SharedCache
    media: MediaStore
    keys: Sequence[str]
    public_url: str
    redis: Redis
    connect: Callable[[float], Redis]
    key_prefix: str


__all__ = [
    "AdapterDeps",
    "AddressClosed",
    "BadHook",
    "Channel",
    "ChannelDown",
    "ChannelError",
    "DeliveryUncertain",
    "FetchError",
    "Forbidden",
    "MediaSource",
    "MediaStore",
    "NotStored",
    "Overloaded",
    "RateLimit",
    "RateLimited",
    "Refused",
    "SendError",
    "SharedCache",
    "StorageDown",
    "Unreachable",
    "WebhookConflict",
    "WindowClosed",
]
