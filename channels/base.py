"""The Channel protocol that every platform adapter implements, and the errors it may raise.

ChannelError
├── Forbidden         a webhook whose signature or secret is wrong: answer 403
├── BadHook           an authentic webhook that cannot be parsed: answer 400
├── FetchError        an inbound file that cannot be downloaded: answer without it
├── WebhookConflict   another receiver gets the updates: poll again later, and tell the operator
└── SendError         a delivery that did not arrive
    ├── RateLimited   the platform asks to wait: try again after `retry_after` seconds
    ├── Unreachable   certainly not accepted: try again with backoff
    ├── ChannelDown   the platform refuses this channel: keep the message and tell the operator
    ├── WindowClosed  the platform takes no message before the person writes: keep it until then
    ├── DeliveryUncertain  the answer was lost: the message may have arrived
    └── Refused       the message will never be accepted: give up and tell the operator
        └── AddressClosed  no message is accepted at this address until its person writes again

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
    """The base of all errors of a channel."""


class Forbidden(ChannelError):
    """Raised when a webhook is not signed by the platform it claims to come from."""


class BadHook(ChannelError):
    """Raised when an authentic webhook cannot be parsed."""


class FetchError(ChannelError):
    """Raised when an inbound file cannot be downloaded. The message is safe to log: no token or address."""


class WebhookConflict(ChannelError):
    """Raised when a polled platform sends its updates to another receiver. The message names the cure."""


class SendError(ChannelError):
    """Raised when it is not certain that a reply arrived. The message is safe to log: no token, address or text."""


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
    """Raised when the platform takes no message for this address: it is blocked, gone, or its window is closed."""


class NotStored(Exception):
    """Raised when a turn was not stored. The platform must send it again."""


class Overloaded(NotStored):
    """Raised when a turn was refused because too many are waiting."""


class StorageDown(NotStored):
    """Raised when the storage of turns, sessions or files cannot be used. The message is for the log only."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How fast a platform accepts messages, as far as it says so.

    `per_second`: messages of the whole channel, 0 for no limit. `chat_gap`: seconds between two messages into one
    conversation, after the first `burst` messages. `draft_gap`: seconds between two drafts of one answer, 0 if the
    platform shows no drafts.
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
        """Verify a webhook, then parse it. No I/O. Raises Forbidden or BadHook."""

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return how fast the platform accepts messages, in all and into this conversation."""

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split a reply into platform messages, in order, each within the platform's limits. Loses no character.

        If the reply `edits` a message, its first piece does. An optional reply that the platform cannot show has none.
        """

    async def show_typing(self, turn: Turn) -> float:
        """Show that the turn is being worked on: typing, or an acknowledged tap. Best effort; never raises.

        Returns the seconds after which it must be shown again, 0 for never.
        """

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Show the unfinished answer to a turn, in place of the earlier draft with the id `shown`.

        Returns the id of the message that shows it, which the answer must edit; "" if the draft disappears by itself.
        Raises SendError.
        """

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Download an inbound file into an open file. Raises FetchError."""

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece. Text that the platform refuses to format is sent again as plain text. Raises SendError."""


class MediaSource(Protocol):
    """Gives adapters the bytes and the public URL of a stored file."""

    def read(self, ref: str) -> bytes:
        """Return the stored bytes. Raises KeyError if the file is gone."""

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """Return a signed, expiring, absolute URL that a platform can download."""


class MediaStore(MediaSource, Protocol):
    """Stores files that no platform stores."""

    def put(self, data: bytes, *, mime_type: str, filename: str, owner: str) -> Media:
        """Store the bytes for `owner`. Their content decides the media type. Raises TooLarge, NoRoom, OSError."""

    def open(self, ref: str) -> BinaryIO:
        """Open a stored file. Raises KeyError if it is gone."""


@runtime_checkable
class QuoteSource(Protocol):
    """An adapter whose webhooks give only the id of a quoted message, without its text."""

    async def quoted(self, turn: Turn) -> str:
        """Return the text of the message that the turn replies to. Raises FetchError if it cannot be found."""


class SharedCache(Protocol):
    """A small cache that all processes share, for ids at a vendor that are costly to get and safe to lose."""

    def get(self, key: str) -> str | None:
        """Return the value of a key, or None."""

    def put(self, key: str, value: str) -> None:
        """Store a value."""


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
