"""Types every channel speaks: what a person did (`Turn`) and what the bot says (`Reply`), free of any platform."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import TypeAdapter

Intent = Literal["confirm", "cancel", "ignore"]


#: A language tag we are willing to keep: "de", "pt-BR", "es-419".
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,15}")


#: Extensions for which Python's own table has none or an unusual one.
_EXTENSIONS = {
    "audio/amr": ".amr", "audio/flac": ".flac", "audio/mp4": ".m4a", "audio/ogg": ".ogg", "audio/opus": ".opus",
    "audio/wav": ".wav", "audio/wave": ".wav", "audio/webm": ".webm", "image/webp": ".webp",
    "application/yaml": ".yaml", "text/yaml": ".yaml", "text/markdown": ".md",
}  # fmt: skip


_COLLAPSE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def storable(text: str) -> str:
    """The text without lone surrogates, which JSON can spell but UTF-8 cannot: each becomes "?"."""
    return text.encode("utf-8", "replace").decode()


def owner_of(channel: str, user_id: str) -> str:
    """Return the name that a person's files are kept under, over all conversations of a channel: 20 hex digits."""
    return hashlib.sha256(f"{channel}:{user_id}".encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The address replies go to, and the unit of order: channel, chat and, where the platform has it, thread."""

    channel: str
    chat: str
    thread: str = ""

    @property
    def address(self) -> str:
        """Chat and thread in one string: the seeds' `conversation_id`."""
        return f"{self.chat}/{self.thread}" if self.thread else self.chat

    @property
    def id(self) -> str:
        """A stable name for keys, jobs and logs. It holds no phone number: `<channel>:<20 hex digits>`."""
        return f"{self.channel}:{hashlib.sha256(self.address.encode()).hexdigest()[:20]}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Who may confirm what, where: one user in one conversation."""

    user_id: str
    conversation: Conversation

    @property
    def id(self) -> str:
        """A stable name for keys, unique inside its conversation: 20 hex digits, no user id in clear."""
        return hashlib.sha256(self.user_id.encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class Media:
    """A file in or out.

    `ref` is the media store's id once the bytes are stored, else the platform's own handle (URL or file id).
    `size` is in bytes, 0 when the platform did not say.
    """

    ref: str
    mime_type: str
    filename: str = ""
    size: int = 0
    stored: bool = False

    @property
    def kind(self) -> str:
        """The first half of the MIME type: image, audio, video, text or application."""
        return self.mime_type.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Tap:
    """A tapped button: its opaque `data`, what the platform needs to acknowledge the tap, and the label that people see
    ("" where the platform does not say).
    """

    data: str
    callback_id: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One inbound human act, normalised.

    `event_id` is the platform's own id of the act, the same on every redelivery: the de-duplication key.
    `addressed` is False for group chatter that did not name the bot: it counts only in a conversation the bot is in.
    `language` is the platform's hint (BCP 47), "" when it gives none or something that does not look like a tag.
    `kind` tells new words from an earlier message that was edited, from a `choice` (the label of a button that is not
    ours) and from what a group's admin says as `anonymous`. An `ephemeral` message and its answer are shown to one
    person only. `quoted` is what was said in the message it replies to. `notes` are what came along that is neither
    words nor a file, in words: a location, a contact, a sticker.
    Turns of one `group` are one act that its platform sends in parts: an album. `in_group` says that others read along.
    `aliases` are other ids of the same person, such as a phone number beside an account.
    `replied_to` is the platform's id of the message that this one quotes, and `replied_to_button` the data of a button
    under that message; "" for none. `written_at` is when the platform says it was written, in Unix seconds; 0.0 where
    the platform does not say.
    """

    event_id: str
    conversation: Conversation
    user_id: str
    text: str = ""
    user_name: str = ""
    tap: Tap | None = None
    media: tuple[Media, ...] = ()
    message_id: str = ""
    addressed: bool = True
    language: str = ""
    kind: Literal["message", "edit", "choice", "anonymous"] = "message"
    quoted: str = ""
    notes: tuple[str, ...] = ()
    group: str = ""
    in_group: bool = False
    aliases: tuple[str, ...] = ()
    replied_to: str = ""
    replied_to_button: str = ""
    ephemeral: bool = False
    written_at: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", storable(self.text))
        object.__setattr__(self, "user_name", storable(self.user_name))
        object.__setattr__(self, "quoted", storable(self.quoted))
        object.__setattr__(self, "replied_to_button", storable(self.replied_to_button))
        if self.notes:
            object.__setattr__(self, "notes", tuple(map(storable, self.notes)))
        if not _LANGUAGE.fullmatch(self.language):
            object.__setattr__(self, "language", "")

    @property
    def scope(self) -> Scope:
        """Whose turn it is, and where."""
        return Scope(self.user_id, self.conversation)

    @property
    def decides(self) -> bool:
        """Whether its words may be a yes or a no: those of a caption, a transcript or an edit are neither."""
        return self.kind == "message" and not (self.media or self.notes)

    @property
    def is_stop(self) -> bool:
        """Whether the turn is the command /stop, the only one that is obeyed while another turn is being answered.

        It must be typed and addressed to this bot: adapters remove the bot's own name, so `/stop@other` belongs to
        another bot. Words after the command are ignored.
        """
        return self.decides and self.tap is None and self.text.casefold().split(maxsplit=1)[:1] == ["/stop"]

    def to_json(self) -> str:
        """The turn as JSON, for the mailbox. Raises ValueError when a field is not of its type."""
        return _TURN.dump_json(self, exclude_defaults=True, warnings="error").decode()

    @classmethod
    def from_json(cls, text: str) -> Turn:
        """The turn that `to_json` wrote. Raises pydantic.ValidationError on anything else."""
        return _TURN.validate_json(text)


@dataclass(frozen=True, slots=True)
class Button:
    """A button under a reply: the label people see and the opaque data (at most 64 bytes) a tap sends back.

    A tap on a `danger` one changes or destroys something. `effect` is what a tap does, in Markdown: a platform with
    room for it shows it in place of the label.
    """

    label: str
    data: str
    style: Literal["primary", "danger", "default"] = "default"
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the bot says, as one platform message: Markdown text, or one file with the text as its caption.

    `language` is what it is written in (BCP 47), "" when nobody knows: what must be added on the way is said in it.

    A reply takes the place of one that still waits and has the same `collapse`, such as an earlier word of progress:
    1 to 64 of `A-Z a-z 0-9 _ . : -`. Raises ValueError for any other.

    `edits` is the platform's id of a message that this one takes the place of. Where that cannot be, it is sent as a
    message of its own; an `optional` one is left out then. `only_for` is the id of the one person in a group who sees
    it, where the platform can do that. `cause` says for operators why it is no answer, such as a model's error; no
    person sees it.

    Its buttons count for `answer_seconds` after it is shown, 0.0 for no known limit. `outcome_elsewhere` is the text of
    an edit without the outcome that its next message tells again: a platform that shows both to everybody takes it.
    """

    text: str = ""
    buttons: tuple[Button, ...] = ()
    media: Media | None = None
    language: str = ""
    collapse: str = ""
    edits: str = ""
    optional: bool = False
    only_for: str = ""
    cause: str = ""
    answer_seconds: float = 0.0
    outcome_elsewhere: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", storable(self.text))
        if self.collapse and not _COLLAPSE.fullmatch(self.collapse):
            raise ValueError(f"collapse is {self.collapse!r}: use 1 to 64 of A-Z a-z 0-9 _ . : -")

    def to_json(self) -> str:
        """The reply as JSON, for the outbox."""
        return _REPLY.dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> Reply:
        """The reply that `to_json` wrote. Raises pydantic.ValidationError on anything else."""
        return _REPLY.validate_json(text)


def named(media: Media) -> Media:
    """Return the stored file with a name: where it came without one, a name made of its type and content.

    Models and tools call the file by this name.
    """
    if media.filename:
        return media
    group = media.mime_type.partition("/")[0].strip().lower()
    return replace(media, filename=f"{group or 'file'}-{media.ref[:8]}{extension_of(media.mime_type)}")


def extension_of(mime_type: str) -> str:
    """Return the file extension of a MIME type, such as ".ogg"; "" for an unknown type."""
    kind = mime_type.partition(";")[0].strip().lower()
    return _EXTENSIONS.get(kind) or mimetypes.guess_extension(kind) or ""


def shown_to(turn: Turn, reply: Reply) -> Reply:
    """Return the reply. If only its sender saw the turn, only the sender sees the reply."""
    return replace(reply, only_for=turn.user_id) if turn.ephemeral else reply


@dataclass(frozen=True, slots=True)
class Delivery:
    """One reply on its way to one conversation.

    `id` is the same each time the delivery is tried; `attempt` counts from 1, so an adapter whose platform knows
    idempotency can use both. `silence`: seconds since anybody last wrote in this conversation, infinite where nobody
    ever did, -1 where nobody knows.
    """

    id: str
    conversation: Conversation
    reply: Reply
    attempt: int = 1
    silence: float = -1.0


@dataclass(frozen=True, slots=True)
class Receipt:
    """The platform's proof of sending: its id of the message ("" where it gives none), and when it was shown as it is
    now, in Unix seconds by the platform's clock (0.0 where the platform does not say).
    """

    message_id: str
    written_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """What a platform says later about a message it had accepted, in its own words.

    `delivery` is the id of the delivery it was, "" where the platform does not tell.
    """

    message_id: str
    status: str
    error_code: str = ""
    delivery: str = ""


@dataclass(frozen=True, slots=True)
class AddressChange:
    """What a platform says of an address without being asked: `closed` is why nothing arrives there, "" for open.

    `late`: it is about an earlier message, and whoever wrote since proves it wrong.
    """

    conversation: Conversation
    closed: str = ""
    late: bool = False


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One webhook request as it came in.

    `url` is the address the platform was configured with (public base, path, raw query), `headers` has lower-case
    names, `body` the raw bytes, `path` what follows `/hooks/<channel>/` ("" or "status"), `now` Unix seconds.
    """

    url: str
    headers: dict[str, str]
    body: bytes
    path: str = ""
    now: float = 0.0

    def header(self, name: str) -> str:
        """The header's value, "" when absent."""
        return self.headers.get(name.lower(), "")


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The HTTP answer a platform wants to hear once its webhook is stored."""

    status: int = 200
    body: str = ""
    content_type: str = "text/plain"


@dataclass(frozen=True, slots=True)
class Received:
    """What a verified webhook holds: turns to accept, statuses and addresses to note, what the operator must hear,
    the answer to give, why it was ignored.
    """

    turns: tuple[Turn, ...] = ()
    statuses: tuple[StatusUpdate, ...] = ()
    addresses: tuple[AddressChange, ...] = ()
    alerts: tuple[str, ...] = ()
    answer: WebhookResponse = field(default_factory=WebhookResponse)
    ignored: str = ""


_TURN = TypeAdapter(Turn)


_REPLY = TypeAdapter(Reply)


#: Headers and body of a webhook.
Signed = tuple[dict[str, str], bytes]
