"""The values of a chat, the same for all platforms.

An adapter parses what a platform sends into a Turn: one act of a person. The bot answers with a
Reply, which travels as a Delivery; the platform's proof of sending is a Receipt. Turns and replies
are immutable, and are stored in Redis as JSON.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Literal

from pydantic import TypeAdapter

from sayso.infra.records import check_version, versioned

#: What a turn means for a pending action: a yes, a no, or neither.
Intent = Literal["confirm", "cancel", "ignore"]
#: What the platform charges for a message. `free`: nothing. `service`: a message that is made of no
#: template. `utility`, `marketing`, `authentication`: a template of this category. `template`: a
#: template whose category is not known.
PriceClass = Literal["free", "service", "utility", "marketing", "authentication", "template"]

#: The `group` of a file that may be part of an album, from a platform that sends each file by
#: itself and names no album. Such files of one person belong together if each came shortly after
#: the one before.
UNNAMED_ALBUM = "unnamed"
#: A language tag that is stored: "de", "pt-BR", "es-419".
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,15}")
#: File extensions that Python's own table lacks or spells unusually.
_EXTENSIONS = {
    "audio/amr": ".amr",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
    "audio/ogg": ".ogg",
    "audio/opus": ".opus",
    "audio/wav": ".wav",
    "audio/wave": ".wav",
    "audio/webm": ".webm",
    "image/webp": ".webp",
    "application/yaml": ".yaml",
    "text/yaml": ".yaml",
    "text/markdown": ".md",
}
#: The zero width non-joiner and the zero width joiner.
_JOINERS = "\u200c\u200d"
#: The Unicode categories of control, format, surrogate and separating characters.
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def storable(text: str) -> str:
    """Return the text with each lone surrogate replaced by "?".

    JSON from a platform may hold lone surrogates. They cannot be written as UTF-8, so neither Redis
    nor a file could store them.
    """
    return text.encode("utf-8", "replace").decode()


def without_invisible(text: str) -> str:
    """Return a name without characters that people cannot see.

    These are line ends, control characters, direction marks and others. The two joiners stay:
    letters of many scripts and parts of emoji have another shape beside them.
    """
    return "".join(
        char for char in text if char in _JOINERS or unicodedata.category(char) not in _INVISIBLE
    )


def _make_storable(value: object, *names: str) -> None:
    """Make texts of a frozen value `storable`, while it is constructed. `names` are its fields."""
    for name in names:
        object.__setattr__(value, name, storable(getattr(value, name)))


@lru_cache(maxsize=4096)
def digest(text: str) -> str:
    """Return the 20 hex digits that stand for an id of a platform in keys and logs.

    They hide the id, which may be a phone number. Results are cached, because one turn asks for the
    same few ids again and again.
    """
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:20]


def content_digest(*parts: str) -> str:
    """Return the 20 hex digits that stand for what people see of a message.

    `parts` are its text, the ids of its files and so on, in a fixed order.
    """
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:20]


def compared_id(user_id: str, *, prefix: str) -> str:
    """Return the id of a person in the form in which ids are compared.

    `prefix`: what ids of the platform may begin with or lack, such as `whatsapp:` before a phone
    number; "" for nothing. Where ids have a prefix, the form is in lower case and without it.
    """
    if prefix:
        return user_id.strip().casefold().removeprefix(prefix)
    return user_id


def owner_of(channel: str, user_id: str) -> str:
    """Return the name of a person in the media store: 20 hex digits.

    It is the same for all conversations of the person on a channel.
    """
    return digest(f"{channel}:{user_id}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The address of replies, and the unit of order: its turns are answered one after the other."""

    #: The channel's name in the YAML.
    channel: str
    #: The platform's id of the chat.
    chat: str
    #: The platform's id of the thread, "" for none.
    thread: str = ""

    @property
    def address(self) -> str:
        """Chat and thread in one string: `conversation_id` in the public API."""
        if self.thread:
            return f"{self.chat}/{self.thread}"
        return self.chat

    @property
    def id(self) -> str:
        """A stable name for keys, jobs and logs: `<channel>:<20 hex digits>`.

        The digits hide the address, which may be a phone number.
        """
        return f"{self.channel}:{digest(self.address)}"

    @property
    def chat_id(self) -> str:
        """The `id` of the chat without a thread. What concerns all threads is stored under it."""
        return f"{self.channel}:{digest(self.chat)}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Who may confirm what, where: one user in one conversation."""

    user_id: str
    conversation: Conversation

    @property
    def id(self) -> str:
        """A stable name for keys, unique within its conversation.

        It is 20 hex digits, which hide the user id.
        """
        return digest(self.user_id)


@dataclass(frozen=True, slots=True)
class SenderIds:
    """The ids of its sender that one message names; "" for an id that it does not name."""

    #: An id that the platform gave, which never passes to another person.
    user_id: str = ""
    #: A phone number, which may pass to another person.
    number: str = ""
    #: An id like `user_id` that several accounts of the bot's owner share.
    parent: str = ""

    def as_identity(self) -> Identity:
        """Return the person of these ids, as far as one message says.

        That is right if none of the ids came before, or if no id of the person ever changed. Where
        ids may change, `sayso.channels.base.Identities` knows the person.
        """
        names = (self.parent, self.number, self.user_id)
        return Identity(
            key=self.user_id or self.number,
            number=self.number,
            user_id=self.user_id,
            ids=tuple(name for name in names if name),
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """A person with several ids."""

    #: The first id that came, under which everything of the person is stored.
    key: str
    #: The phone number that the person last wrote from, "" if it is unknown or another person has
    #: written from it since.
    number: str = ""
    #: The last id that the platform gave the person, "" if unknown.
    user_id: str = ""
    #: All ids, also numbers of earlier times.
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a message before it is known which person has the sender's ids.

    The mailbox looks the person up and stores the turn in one step.
    """

    channel: str
    ids: SenderIds
    #: Returns the turn of the message under the key of the given person.
    turn_of: Callable[[Identity], Turn]


@dataclass(frozen=True, slots=True)
class Media:
    """A file that comes in or goes out: a reference to its content."""

    #: The media store's id if the file is `stored`, else the platform's own URL or file id.
    ref: str
    mime_type: str
    filename: str = ""
    #: In bytes, 0 if the platform does not say.
    size: int = 0
    #: Whether the media store has the content.
    stored: bool = False

    def __post_init__(self) -> None:
        # The app of the sender chooses both.
        _make_storable(self, "mime_type", "filename")

    @property
    def kind(self) -> str:
        """The first half of the MIME type: image, audio, video, text or application."""
        return self.mime_type.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Tap:
    """A tapped button."""

    #: The opaque data of the button.
    data: str
    #: The platform's id of the tap, with which the tap is acknowledged; "" if it has none.
    callback_id: str = ""
    #: The label that people see, "" if the platform does not say.
    label: str = ""

    def __post_init__(self) -> None:
        _make_storable(self, "data", "label")


#: The kinds of turns that the bot makes itself. No platform sends them.
OWN_KINDS = ("continuation", "vote", "request_timer", "standing")


@dataclass(frozen=True, slots=True)
class Turn:
    """One act of a person, the same for all platforms."""

    #: The platform's id of the act, the same in each redelivery; turns are de-duplicated by it.
    event_id: str
    conversation: Conversation
    user_id: str
    text: str = ""
    #: What the person is called, "" if unknown.
    user_name: str = ""
    #: The tapped button, None for a turn that is not a tap.
    tap: Tap | None = None
    #: The files that came with it.
    media: tuple[Media, ...] = ()
    #: The platform's id of the message; for a tap, of the message with the button.
    message_id: str = ""
    #: False for a group message that does not mention the bot.
    addressed: bool = True
    #: The language of the person's app (BCP 47), "" if it is unknown or malformed.
    language: str = ""
    #: What kind of act it is:
    #:
    #: * `message`: a new message, or a tap;
    #: * `edit`: an edit of an earlier message;
    #: * `choice`: a tap on a button that the business sent without this bot. The text is its label;
    #: * `anonymous`: a message that an admin of a group sent in the group's name;
    #: * `form`: a filled-in form;
    #: * `continuation`: no act of a person. It follows the turn that decided an action, and lets
    #:   the agent go on;
    #: * `vote`: another person's yes or no to an action of this one, from their own conversation;
    #: * `standing`: no act of a person. It runs an action that a standing yes covers;
    #: * `request_timer`: no act of a person. Other people were asked about an action, and a time
    #:   has passed, or a question to one of them did not arrive.
    kind: Literal[
        "message",
        "edit",
        "choice",
        "anonymous",
        "form",
        "continuation",
        "vote",
        "request_timer",
        "standing",
    ] = "message"
    #: The text of the message that this one replies to.
    quoted: str = ""
    #: Descriptions of content that is neither text nor a file: a location, a contact, a sticker.
    notes: tuple[str, ...] = ()
    #: The id of an album: the same for all turns that a platform sends as parts of one act.
    #: UNNAMED_ALBUM where the platform gives no id, "" for a turn that is no part of an album.
    group: str = ""
    #: Whether other people read the conversation.
    in_group: bool = False
    #: Other ids of the same person, such as a phone number beside an account.
    aliases: tuple[str, ...] = ()
    #: The platform's id of the quoted message, "" for none.
    replied_to: str = ""
    #: The data of a button under the quoted message, "" for none.
    replied_to_button: str = ""
    #: Whether the message and its answer are shown to one person only.
    ephemeral: bool = False
    #: A digest of what people see of the message, "" on platforms without edits. A turn with the
    #: message id and the content of an earlier turn is an edit that changed nothing, such as a
    #: reaction or a link preview.
    content: str = field(default="", compare=False)
    #: When it was written, in Unix seconds; 0.0 if the platform does not say.
    written_at: float = field(default=0.0, compare=False)
    #: The chat's id at the platform if it has changed since the conversation began, else "".
    #: `conversation` keeps the first one.
    chat_now: str = ""
    #: What the platform says of the person's surroundings, such as what the person looks at. The
    #: model reads it below the notes. Unlike a note it does not belong to the message, so a text
    #: with a background may be a yes.
    background: tuple[str, ...] = ()
    #: The id of the person whose message the thread begins with. "" if the bot began the thread, or
    #: if that is unknown.
    thread_author: str = field(default="", compare=False)
    #: Whether the address may belong to another person by now, as a phone number may. Then the text
    #: decides nothing, and the answer does not repeat an open question.
    maybe_other_person: bool = False
    #: In a `continuation`, the id of the decided action after which the agent goes on. In a
    #: `standing`, the id of the action to run. Else "".
    continues: str = ""
    #: In a `continuation`, whether the answer must tell the outcome of the action: the person has
    #: not been told yet.
    tells_outcome: bool = False
    #: False in a `continuation` or `standing` whose person said /stop meanwhile. Then a continuation
    #: only tells the outcome, and a `standing` runs nothing.
    asks_model: bool = True
    #: The W3C traceparent of the trace in which the turn was accepted, "" while tracing is off.
    trace: str = field(default="", compare=False)
    #: In a `form`, what was filled in, by the name of the field. The data of the `tap` is then the
    #: token of the button that opens the form.
    form: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: In a `vote` the vote as JSON, in a `request_timer` what has happened; else "".
    request_event: str = ""

    def __post_init__(self) -> None:
        # What people write may hold lone surrogates, on every platform.
        _make_storable(self, "text", "user_name", "quoted", "replied_to_button")
        if self.form:
            form = {storable(name): storable(text) for name, text in self.form.items()}
            object.__setattr__(self, "form", form)
        if self.notes:
            object.__setattr__(self, "notes", tuple(map(storable, self.notes)))
        if self.background:
            object.__setattr__(self, "background", tuple(map(storable, self.background)))

        if not _LANGUAGE.fullmatch(self.language):
            object.__setattr__(self, "language", "")

    @property
    def is_of_sender(self) -> bool:
        """Whether the person of the turn did something. In the other turns the bot goes on."""
        return self.kind not in OWN_KINDS

    @property
    def event_hash(self) -> str:
        """A stable name of the event for logs: 20 hex digits.

        They hide what an event id may contain, such as a phone number.
        """
        return digest(self.event_id)

    @property
    def message_key(self) -> str:
        """The id of the message, unique in its conversation.

        `message_id` may not be: a chat that got another id counts its messages anew.
        """
        if self.chat_now:
            return f"{self.chat_now}:{self.message_id}"
        return self.message_id

    @property
    def user_ids(self) -> tuple[str, ...]:
        """All ids of the person's account, the main one first."""
        return (self.user_id, *self.aliases)

    @property
    def scope(self) -> Scope:
        """The person and the conversation of the turn."""
        return Scope(self.user_id, self.conversation)

    @property
    def decides(self) -> bool:
        """Whether the text may be a yes or a no. Captions, transcripts and edits may not."""
        is_plain = self.kind == "message" and not (self.media or self.notes)
        return is_plain and not self.maybe_other_person

    @property
    def is_stop(self) -> bool:
        """Whether the turn is the command /stop.

        It is the only command that is obeyed while another turn is being answered. It must be typed
        and addressed to this bot: adapters remove the bot's own name, so `/stop@other` belongs to
        another bot. Words after the command are ignored.
        """
        if not self.decides or self.tap is not None:
            return False
        first_word = self.text.casefold().split(maxsplit=1)[:1]
        return first_word == ["/stop"]

    def to_json(self) -> str:
        """Return the turn as JSON, for the mailbox.

        Raises ValueError if a field has another type.
        """
        return versioned(
            _turn_adapter().dump_json(self, exclude_defaults=True, warnings="error").decode()
        )

    @classmethod
    def from_json(cls, text: str) -> Turn:
        """Return the turn that `to_json` wrote.

        Raises OtherVersion, and pydantic.ValidationError for anything else.
        """
        return _turn_adapter().validate_json(check_version(text))


#: The state of a tool call:
#:
#: * `running`, `done`, `failed`: it runs, or has ended with or without success;
#: * `waits`: it asked for a yes and ran no code;
#: * `not_run`: it ran no code and asks nothing, because it was denied, its preview refused, or its
#:   arguments were wrong;
#: * `unknown`: it may have had its effect, because its worker was stopped;
#: * `stopped`: its turn ended before it did.
StepState = Literal["running", "done", "failed", "waits", "not_run", "unknown", "stopped"]


@dataclass(frozen=True, slots=True)
class ToolStep:
    """One tool call of a turn, as people see it.

    It has no arguments and no result, which may hold secrets.
    """

    #: The name of the tool.
    name: str
    state: StepState
    #: For how long it has run.
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Button:
    """A button under a reply."""

    #: The label that people see.
    label: str
    #: The opaque data that a tap sends back, at most 64 bytes.
    data: str
    #: `danger` is for taps that change or destroy something.
    style: Literal["primary", "danger", "default"] = "default"
    #: What a tap does, in Markdown; "" for nothing more than the label says. A platform with room
    #: for it shows it in place of the label.
    effect: str = ""

    def __post_init__(self) -> None:
        # A tool may have read the label from JSON that holds lone surrogates.
        _make_storable(self, "label", "effect")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the bot says: Markdown text, or one file with the text as its caption.

    A channel splits it into pieces, which are replies too, each as large as one platform message.
    """

    text: str = ""
    buttons: tuple[Button, ...] = ()
    media: Media | None = None
    #: The language of the text (BCP 47), "" if unknown. Text that a platform adds is in this
    #: language.
    language: str = ""
    #: A name for replies of one kind, such as notices: the reply replaces one with the same name
    #: that still waits to be sent. "" if it replaces none.
    collapse: str = ""
    #: The platform's id of the message that the reply replaces, "" for a new message. Where a
    #: message cannot be replaced, the reply is sent as a new one, or left out if it is `optional`.
    edits: str = ""
    #: Whether the reply may be left out. One that edits nothing is left out where the platform
    #: charges for each message: it says nothing new.
    optional: bool = False
    #: Whether the message that it `edits` has no more use. A platform that can delete a message
    #: deletes it; elsewhere the text replaces it.
    removes: bool = False
    #: The id of the one person in a group who sees it, where the platform can do that; "" for all.
    only_for: str = ""
    #: The id of the act of that person which the reply answers: the `callback_id` of a tap, or the
    #: id of a message that only the person saw; "" for none. Some platforms show a reply to one
    #: person only in answer to an act.
    only_for_act: str = ""
    #: The `callback_id` of a tap that is answered with this text alone, "" for none. The platform
    #: shows the text to the person who tapped. It is not a message of the chat, and does not count
    #: against the chat's rate limit.
    answers_tap: str = ""
    #: Tells operators why this is not an answer, such as a model's error. People do not see it.
    cause: str = ""
    #: How long its buttons work after it is shown; 0.0 for no known limit.
    answer_seconds: float = 0.0
    #: The part of the text that a yes agrees to, "" if the reply asks for no yes.
    preview: str = ""
    #: Whether the reply asks for a value, which is typed. A typed number is then the value, and
    #: does not choose a button.
    asks_value: bool = False
    #: Whether the reply may wait until its person writes, where the platform takes it only then. A
    #: reply that may not is given up at once.
    may_wait: bool = True
    #: The buttons of a question that is decided, without data; the chosen one has a mark. They are
    #: shown where a platform has disabled buttons.
    decided_buttons: tuple[Button, ...] = ()

    def __post_init__(self) -> None:
        _make_storable(self, "text", "preview", "cause")

    def with_preview(self, format_preview: Callable[[str], str]) -> Reply:
        """Return the reply with its preview formatted in the text.

        `format_preview` returns the preview as the platform shows it. The returned reply has no
        `preview`, so that it is not formatted a second time. A reply whose text does not contain
        its preview, because an adapter has cut the text, is returned unchanged.
        """
        if not self.preview:
            return self
        # The last place: an earlier one is in the text that stands above the question.
        start = self.text.rfind(self.preview)
        if start < 0:
            return self

        end = start + len(self.preview)
        formatted = format_preview(self.preview)
        text = f"{self.text[:start]}{formatted}{self.text[end:]}"
        return replace(self, text=text, preview="")

    def to_json(self) -> str:
        """Return the reply as JSON, for the outbox."""
        return _reply_adapter().dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> Reply:
        """Return the reply that `to_json` wrote.

        Raises pydantic.ValidationError for anything else.
        """
        return _reply_adapter().validate_json(text)


def with_filename(media: Media) -> Media:
    """Return the stored file with a name, built from its type and id if it has none.

    Models and tools use this name.
    """
    if media.filename:
        return media
    kind = media.kind.strip().lower() or "file"
    filename = f"{kind}-{media.ref[:8]}{extension_of(media.mime_type)}"
    return replace(media, filename=filename)


def extension_of(mime_type: str) -> str:
    """Return the file extension of a MIME type, such as ".ogg"; "" for an unknown type."""
    bare_type = mime_type.partition(";")[0].strip().lower()
    return _EXTENSIONS.get(bare_type) or mimetypes.guess_extension(bare_type) or ""


def readable_size(size: int) -> str:
    """Return a size in bytes as people read it: "1.5 MB"."""
    amount = float(size)
    unit = "B"
    for larger_unit in ("KB", "MB", "GB"):
        # What would be rounded to 1024 is shown as 1 of the next unit.
        if amount < 1023.5:
            break
        amount /= 1024
        unit = larger_unit
    if amount < 100:
        return f"{amount:.3g} {unit}"
    # `.3g` would write 1000 as "1e+03".
    return f"{amount:.0f} {unit}"


def joined_labels(buttons: Sequence[Button]) -> str:
    """Return the buttons' labels as the text of a message that has none.

    Platforms refuse a message without text.
    """
    return " / ".join(button.label for button in buttons)


def for_readers_of(turn: Turn, reply: Reply) -> Reply:
    """Return the reply for those who saw the turn: all of its chat, or only its sender."""
    if turn.ephemeral:
        return for_sender_of(turn, reply)
    return reply


def for_sender_of(turn: Turn, reply: Reply) -> Reply:
    """Return the reply for the sender of the turn alone, where the platform can do that."""
    act = ""
    if turn.tap:
        act = turn.tap.callback_id
    elif turn.ephemeral:
        act = turn.message_id
    return replace(reply, only_for=turn.user_id, only_for_act=act)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One reply on its way to one conversation."""

    #: An id that is the same in each attempt, so that an adapter can use it as an idempotency key.
    id: str
    conversation: Conversation
    reply: Reply
    #: The number of the attempt, from 1.
    attempt: int = 1
    #: Seconds since a person last wrote in this conversation; infinite if none ever did, -1 if
    #: unknown.
    silence: float = -1.0


@dataclass(frozen=True, slots=True)
class Receipt:
    """The platform's proof of sending: its id of the message, and when it was sent or edited."""

    #: The platform's id of the message, "" if it gives none.
    message_id: str
    #: When it was sent or edited, in Unix seconds by the platform's clock; 0.0 if it does not say.
    written_at: float = field(default=0.0, compare=False)
    #: What the platform charges the message by.
    price_class: PriceClass = field(default="free", compare=False)


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """What a platform reports later about a message that it accepted."""

    message_id: str
    #: The platform's word for what became of the message, such as "delivered".
    status: str
    #: The platform's code of an error, "" for none.
    error_code: str = ""
    #: The id of the delivery, "" if the platform does not say.
    delivery: str = ""
    #: The id of the approved template that the message was made of, "" for none.
    template: str = ""


@dataclass(frozen=True, slots=True)
class RefusedTemplate:
    """An approved template that the platform refuses.

    A template is a text that WhatsApp must approve before it may be sent to a person who has been
    silent for a day.
    """

    #: The id of the template.
    template: str
    #: Why the platform refuses it.
    reason: str
    #: What an operator has to do.
    cure: str

    @property
    def alert(self) -> str:
        """The text for an operator."""
        return f"template {self.template}: {self.reason}: {self.cure}"


@dataclass(frozen=True, slots=True)
class AddressChange:
    """A platform's report that an address takes no messages any more, or takes them again."""

    conversation: Conversation
    #: Why the address takes no messages, "" if it takes them again.
    closed: str = ""
    #: Whether the report is about a message that the bot sent earlier. If the person has written
    #: since then, the report is outdated.
    late: bool = False
    #: The id of the delivery of that message, "" if the platform does not say. The delivery decides
    #: which conversation the report is about.
    delivery: str = ""
    #: Whether the person wants no messages.
    opted_out: bool = False


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One webhook: an HTTP request of a platform that brings messages."""

    #: The whole URL as the platform was given it: public base, path and raw query.
    url: str
    #: The values of the headers, by the name in lower case.
    headers: dict[str, str]
    body: bytes
    #: What follows `/hooks/<channel>/`, such as "status"; "" for nothing.
    path: str = ""
    #: When the request came, in Unix seconds.
    now: float = 0.0

    def header(self, name: str) -> str:
        """Return the header's value, "" if it is absent."""
        return self.headers.get(name.lower(), "")


#: Headers and body of a webhook that is signed as its platform would sign it.
SignedWebhook = tuple[dict[str, str], bytes]


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The HTTP answer that a platform expects once its webhook is stored."""

    status: int = 200
    body: str = ""
    content_type: str = "text/plain"


@dataclass(frozen=True, slots=True)
class WorkspaceNote:
    """What a webhook says of its workspace, for an app that many workspaces have installed."""

    #: The id of the workspace.
    id: str
    #: The id of the organization whose installation the workspace uses, "" if the workspace has one
    #: itself.
    organization: str = ""
    #: Why the installation is over, "" while it is not.
    removed: str = ""
    #: When the installation was over, in Unix seconds; 0.0 if the platform does not say.
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Received:
    """The content of a verified webhook, or of an update that was polled."""

    turns: tuple[Turn, ...] = ()
    statuses: tuple[StatusUpdate, ...] = ()
    addresses: tuple[AddressChange, ...] = ()
    #: Messages for the operator.
    alerts: tuple[str, ...] = ()
    #: Templates about which the operator gets a message, too.
    refused_templates: tuple[RefusedTemplate, ...] = ()
    #: The HTTP answer to the webhook.
    answer: WebhookResponse = field(default_factory=WebhookResponse)
    #: Why the webhook has no turns, "" if it has some or none was expected.
    ignored: str = ""
    #: Whether the platform answered a poll, with turns or without. This ends an alert that nothing
    #: comes in.
    is_contact: bool = False
    #: The old and the new id of a chat that got another id, None if none did.
    chat_move: tuple[str, str] | None = None
    #: What is new about the webhook's workspace, None for nothing.
    workspace: WorkspaceNote | None = None


@cache
def _turn_adapter() -> TypeAdapter[Turn]:
    """Return the object that reads and writes turns as JSON.

    It is built when it is first needed, because building takes longer than importing this module
    and most commands of an operator read no turn.
    """
    return TypeAdapter(Turn)


@cache
def _reply_adapter() -> TypeAdapter[Reply]:
    """Return the object that reads and writes replies as JSON."""
    return TypeAdapter(Reply)
