"""What a platform implements: the Channel protocol, its errors, and the base of its settings.

A channel is one account of the bot at a platform, as the YAML configures it. An adapter is the
class that speaks with the platform.

Every adapter is a Channel. An ability that only some platforms have is a small protocol:
QuoteSource, RemovesTyping, ShowsState, ShowsSteps, ShowsForms, HasAliases, KeepsFirstAddress,
FollowsMoves, InManyWorkspaces, RecognizesPeople, ListsGroupMembers. The rest of Sayso asks with `isinstance` whether a
channel has an ability, and never which platform it is. Adapters in other packages may have them too
(docs/how-to/extend.md).

ChannelError
├── Forbidden         a webhook whose signature or secret is wrong: answer 403
├── BadHook           an authentic webhook that cannot be parsed: answer 400
├── FetchError        an inbound file that cannot be downloaded: answer without it
├── WebhookConflict   another receiver gets the updates: poll again later, and tell the operator
└── SendError         a delivery that did not arrive
    ├── RateLimited   the platform asks to wait: try again after `retry_after` seconds
    │   └── ConversationRateLimited  only in this conversation: the others go on
    ├── Unreachable   certainly not accepted: try again with backoff
    ├── ChannelDown   the platform refuses this channel: keep the message and tell the operator
    ├── WindowClosed  the platform takes no message before the person writes: keep it until then
    │   └── TemplateRefused  the platform refuses an approved template: tell the operator too
    ├── DeliveryUncertain  the answer was lost: the message may have arrived
    └── Refused       the message will never be accepted: give up and tell the operator
        └── AddressClosed  the address takes no message until its person writes again
            ├── OptedOut       the person asked for no messages
            └── AddressBarred  the bot may not write there, even if its person writes again
                └── ChatBarred  the bot may not write in any thread of the chat

NotStored               what came in was not stored: answer 503, so that the platform sends it again
├── Overloaded          too many turns are waiting
└── StorageDown         the storage cannot be used
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    BinaryIO,
    ClassVar,
    Literal,
    Protocol,
    Self,
    runtime_checkable,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    model_validator,
)

from sayso.channels.edit_form import EditForm
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.types import (
    Conversation,
    Delivery,
    Identity,
    Media,
    Receipt,
    Received,
    RefusedTemplate,
    Reply,
    Sender,
    SenderIds,
    ToolStep,
    Turn,
    WebhookRequest,
    WebhookResponse,
    WorkspaceNote,
)
from sayso.infra.http import DownloadError, never_sent
from sayso.infra.urls import web_address

if TYPE_CHECKING:
    from redis import Redis

    from sayso.infra.redis.shared_cache import SharedCache

#: Stores what a channel received. The first argument is the channel's name. Raises Overloaded,
#: StorageDown and redis.RedisError: then the platform must send it again.
StoreReceived = Callable[[str, Received], None]
#: Returns the form of the question whose button a turn names, None if its person cannot change
#: it now. Raises redis.RedisError.
FindForm = Callable[[Turn], Awaitable[EditForm | None]]


class ChannelError(Exception):
    """The base of all errors of a channel."""


class Forbidden(ChannelError):
    """Raised for a webhook that is not signed by the platform it claims to come from."""


class BadHook(ChannelError):
    """Raised when an authentic webhook cannot be parsed."""


class FetchError(ChannelError):
    """Raised when an inbound file or a quoted message cannot be fetched.

    The message is safe to log: it has no token and no address.
    """


class WebhookConflict(ChannelError):
    """Raised when a polled platform sends its updates to another receiver.

    The message names the cure.
    """


class SendError(ChannelError):
    """Raised unless a reply certainly arrived.

    The message is safe to log: it has no token, no address and no text of people.
    """


class RateLimited(SendError):
    """Raised when the platform asks to wait `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"rate limited, retry after {retry_after:g} s")
        self.retry_after = retry_after


class ConversationRateLimited(RateLimited):
    """Raised when the platform asks to wait in this conversation, and not in the whole channel."""


class Unreachable(SendError):
    """Raised when the platform certainly did not accept the message but may accept it later."""


class ChannelDown(SendError):
    """Raised when the platform refuses this channel itself.

    Its token is wrong or revoked, or its account is closed.
    """


class WindowClosed(SendError):
    """Raised when the platform takes the message only once the person has written again."""


class TemplateRefused(WindowClosed):
    """Raised when the platform refuses an approved template.

    The reply waits until the person writes. `refusal` names the template, the reason, and what an
    operator has to do.
    """

    def __init__(self, refusal: RefusedTemplate) -> None:
        super().__init__(f"template {refusal.template}: {refusal.reason}")
        self.refusal = refusal


class DeliveryUncertain(SendError):
    """Raised when the connection broke after the message was sent: it may have arrived."""


class Refused(SendError):
    """Raised when the platform will never accept this message to this address."""


class AddressClosed(Refused):
    """Raised when the platform takes no message for this address, until its person writes again.

    The person has blocked the bot, or the chat is gone.
    """


class OptedOut(AddressClosed):
    """Raised when the person wants no messages. Nothing is sent there until they write again."""


class AddressBarred(AddressClosed):
    """Raised when people can write at this address and the bot cannot.

    The bot lacks the right, or the topic is closed. Each message of people there would cost a
    model's answer that no person could read, so it is not answered.
    """


class ChatBarred(AddressBarred):
    """Raised when the bot can write nowhere in the chat, whatever the thread.

    The bot is not a member, or lacks the right.
    """


#: What parsing a malformed webhook may raise. Its JSON has other types, keys or numbers than its
#: platform documents, or is nested too deep.
PARSE_ERRORS = (
    KeyError,
    TypeError,
    AttributeError,
    ValueError,
    IndexError,
    OverflowError,
    RecursionError,
)


class NotStored(Exception):
    """Raised when a turn was not stored. The platform must send it again."""


class Overloaded(NotStored):
    """Raised when a turn was refused because too many are waiting."""


class StorageDown(NotStored):
    """Raised when the storage of turns, sessions or files cannot be used.

    The message is for the log only.
    """


@contextlib.contextmanager
def fetch_errors() -> Iterator[None]:
    """Raise FetchError for a download that fails in this block."""
    try:
        yield
    except DownloadError as exc:
        # Without the cause: its text may name the URL, which may hold a token.
        raise FetchError(str(exc)) from None


def network_error(platform: str, exc: BaseException) -> SendError:
    """Return the SendError for an error of an HTTP session: Unreachable or DeliveryUncertain.

    Only an error before the request was sent proves that the message did not arrive. `platform` is
    its name for people, such as "Slack".
    """
    if never_sent(exc):
        return Unreachable(f"no connection to {platform}")
    return DeliveryUncertain(f"the connection to {platform} broke before its answer")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How fast a platform accepts messages, as far as it says so."""

    #: Messages of the whole channel, 0 for no limit.
    per_second: float = 0.0
    #: Seconds between two messages into one conversation, after the first `burst` messages. 0 for
    #: no limit.
    chat_gap: float = 0.0
    #: Messages that may follow each other at once, at least 1.
    burst: int = 1
    #: Seconds between two drafts of one answer, 0 if the platform shows no drafts.
    draft_gap: float = 0.0
    #: Seconds that a turn takes before its first draft, where drafts count as messages and few are
    #: allowed; 0 to show the first words at once.
    draft_delay: float = 0.0
    #: Whether the draft also shows the notice that a turn takes longer. If not, the notice is a
    #: separate message, so that the answer makes a sound.
    notice_in_draft: bool = True


class Channel(Protocol):
    """One account of the bot at a platform: parses what comes in, and sends replies.

    Every adapter is one. One instance serves a whole process, from any thread.

    It has eight members because each platform has all of them, and a worker cannot serve a platform
    that lacks one. What only some platforms can do is a separate protocol, such as `ShowsSteps`.
    """

    @property
    def name(self) -> str:
        """The channel's name in the YAML, as in `/hooks/<name>`."""

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify a webhook, then parse it. Does no I/O. Raises Forbidden or BadHook."""

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return how fast the platform accepts messages: in all, and into this conversation."""

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split a reply into pieces: one platform message each, in order, within the limits.

        No character is lost. If the reply `edits` a message, its first piece does. An optional
        reply that the platform cannot show has no pieces.
        """

    async def show_typing(self, turn: Turn) -> float:
        """Show that the bot works on the turn: a typing sign, or an acknowledged tap.

        Returns the seconds after which this must be called again, 0 for never. Best effort: never
        raises.
        """

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Show the unfinished answer to a turn.

        * `text`: the whole answer so far, as Markdown.
        * `shown_id`: the id of the message that shows an earlier draft, which this one replaces; ""
          for the first draft.

        Returns the id of the message that shows the draft, which the answer must edit; "" if the
        draft disappears by itself. Raises SendError. Raises redis.RedisError if the adapter could
        not read what it needs, before anything is shown.
        """

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Download the content of an inbound file into an open file. Raises FetchError."""

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece of a reply.

        Text that the platform refuses to format is sent again as plain text. Raises SendError, and
        redis.RedisError if the adapter could not read what it needs.
        """


class MediaStore(Protocol):
    """What an adapter uses of the media store, `MediaFiles` of media_store.py."""

    @property
    def spool_folder(self) -> Path | None:
        """The folder on this machine where a file waits while it comes in. It may not exist yet.

        None for the system's folder of temporary files.
        """

    def put(self, content: bytes | BinaryIO, *, mime_type: str, filename: str, owner: str) -> Media:
        """Store bytes, or a file from its beginning, for `owner` (see `owner_of`).

        The content decides the media type where it can be recognized; else it is `mime_type`.
        Raises TooLarge, NoRoom, OSError.
        """

    def open(self, ref: str) -> BinaryIO:
        """Open a stored file. Raises KeyError if it is gone."""

    def read(self, ref: str) -> bytes:
        """Return the stored bytes. Raises KeyError if the file is gone."""

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """Return a signed, expiring, absolute URL that a platform can download."""


@runtime_checkable
class HasAliases(Protocol):
    """A channel on which a conversation may have two addresses at the same time.

    On Slack the id of a person is an address too, beside the direct message with that person.
    """

    async def main_address(self, conversation: Conversation) -> Conversation:
        """Return the address under which the person writes. It may be `conversation` itself.

        May ask the platform. Raises SendError and redis.RedisError.
        """


@runtime_checkable
class RemovesTyping(Protocol):
    """A channel whose typing sign stays until it is removed.

    Elsewhere the sign ends with the reply or by itself.
    """

    async def remove_typing(self, turn: Turn, *, replied: bool) -> None:
        """Remove what `show_typing` shows for the turn.

        Best effort: never raises. It is called once a turn is over. `replied` says whether a new
        message follows in the conversation at once.
        """


#: What a conversation waits for:
#:
#: * `processing`: for the bot, which works on a turn;
#: * `suspended`: for a person's yes or no;
#: * `active`: for the next message;
#: * `closed`: for nothing, since a person has ended it.
ShownState = Literal["processing", "suspended", "active", "closed"]


@runtime_checkable
class ShowsState(Protocol):
    """A channel that shows the state of each conversation.

    That the bot begins to work on a turn is shown by `show_typing`.
    """

    async def show_state(
        self,
        conversation: Conversation,
        state: ShownState,
        *,
        after: str = "",
    ) -> None:
        """Show the state until another one is shown. Best effort: never raises.

        `after` is the event id of the turn that led to the state, "" for none. While this process
        works on a later turn of the conversation, nothing changes.
        """


@runtime_checkable
class ShowsSteps(Protocol):
    """A channel that shows which tools a turn calls, and which calls run, ended or failed."""

    async def show_steps(self, turn: Turn, steps: Sequence[ToolStep], shown_id: str = "") -> str:
        """Show all tool calls of a turn so far.

        `shown_id` is the id of the message that shows earlier calls of the turn, which is replaced;
        "" for none. Returns the id of the message that shows the calls. Raises SendError.
        """


@runtime_checkable
class ShowsForms(Protocol):
    """A channel on which people fill in the forms of questions.

    Elsewhere, and where a form cannot be shown, the bot asks for each value in a message.
    """

    async def open_form(self, turn: Turn, find: FindForm) -> WebhookResponse | None:
        """Show the form that a tap asks for. Never raises.

        `find` looks up the form by the tap's turn. Returns the answer to the tap's webhook, None if
        no form is shown.
        """

    def form_errors(self, errors: Mapping[str, str]) -> WebhookResponse:
        """Return the answer to a filled-in form that shows each error at its field.

        `errors` holds the text of each error, by the name of its field.
        """


@runtime_checkable
class KeepsFirstAddress(Protocol):
    """A channel whose platform may give a conversation a new address in place of the old one."""

    def at_first_address(self, turn: Turn) -> Turn:
        """Return the turn under the address that its conversation began with.

        Everything that is stored of a conversation stays under its first address: questions, whose
        MAC covers it, history, timers and replies. Reads and writes the shared cache, and raises
        what that raises.
        """


@runtime_checkable
class FollowsMoves(KeepsFirstAddress, Protocol):
    """A channel whose platform may give a chat another id: a group becomes a supergroup."""

    def note_moves(self, received: Received) -> Received:
        """Remember which chat got another id.

        Returns `received` with each address change under the first address of its conversation.
        Turns do not change: `at_first_address` is called for each when it is stored. Reads and
        writes the shared cache, and raises what that raises.
        """


@runtime_checkable
class InManyWorkspaces(Protocol):
    """A channel whose app many workspaces have installed. Each workspace has its own token."""

    def note_workspace(self, workspace: WorkspaceNote) -> None:
        """Store what a webhook says of its workspace. Raises redis.RedisError."""


@runtime_checkable
class RecognizesPeople(Protocol):
    """A channel on which a person has several ids that may change, such as a phone number."""

    def recognize(self, turn: Turn, *, store: bool, briefly: bool = False) -> Turn:
        """Return the turn under the id that its sender's questions, history and replies have.

        * `store`: whether the ids that the turn names are remembered as those of the sender.
        * `briefly`: whether they are remembered for an hour only, for a sender whom the access
          rules refuse.

        Raises redis.RedisError.
        """

    def sender(self, turn: Turn) -> Sender | None:
        """Return the ids that a turn names of its sender, None if it names none.

        With them the mailbox finds the person and stores the turn in one step.
        """

    def conversation_of(self, conversation: Conversation) -> Conversation:
        """Return the conversation of the person who has this address now.

        Raises redis.RedisError.
        """

    def ids_of(self, user_id: str) -> tuple[str, ...]:
        """Return the ids that a person has now.

        `user_id` is the id under which everything of the person is stored. It is the first one,
        unless it has passed to another person. () for an unknown person. Raises redis.RedisError.
        """


@runtime_checkable
class ListsGroupMembers(Protocol):
    """A channel whose platform has groups of people, from which a role may come.

    The settings of the platform say what a group is (`problem_with_group`).
    """

    async def group_members(self, group: str) -> Sequence[str]:
        """Return the ids of the people in a group now, without bots.

        Raises SendError if the platform does not say, and redis.RedisError.
        """


def note_workspace(channel: object, received: Received) -> None:
    """Have the channel store what a webhook says of its workspace. Raises redis.RedisError."""
    if received.workspace and isinstance(channel, InManyWorkspaces):
        channel.note_workspace(received.workspace)


def note_moves(channel: object, received: Received) -> Received:
    """Return `received` with each address change under the address of the stored conversation.

    An address change says that an address takes no messages any more, or takes them again. The
    platform names the address of today, while the conversation may be stored under an earlier one.
    A channel that follows moves also remembers which chat got another id. Raises redis.RedisError.
    """
    if not (received.chat_move or received.addresses):
        return received

    if isinstance(channel, FollowsMoves):
        return channel.note_moves(received)
    if not isinstance(channel, RecognizesPeople):
        return received

    addresses = []
    for change in received.addresses:
        # A change that names a delivery needs no look-up: the delivery names its conversation.
        if change.delivery:
            addresses.append(change)
        else:
            conversation = channel.conversation_of(change.conversation)
            addresses.append(replace(change, conversation=conversation))
    return replace(received, addresses=tuple(addresses))


class Identities(Protocol):
    """Remembers which ids belong to one person of a channel. All processes share it.

    The id of a person that came first is the person's key: everything of the person stays stored
    under it, whatever ids the person gets later. All methods raise redis.RedisError.
    """

    def recognize(
        self,
        channel: str,
        ids: SenderIds,
        *,
        store: bool,
        briefly: bool = False,
    ) -> Identity:
        """Return the sender of a message with these ids.

        With `store` the ids are remembered, and with `briefly` for an hour only. With neither,
        nothing is stored.
        """

    def find_by_id(self, channel: str, name: str) -> Identity | None:
        """Return the person who has the id `name` now, None for an unknown id."""

    def find_by_key(self, channel: str, key: str) -> Identity | None:
        """Return the person whose data is stored under `key`, None for an unknown key."""

    def forget(self, channel: str, key: str) -> None:
        """Forget the ids of the person whose data is stored under `key`."""


@runtime_checkable
class QuoteSource(Protocol):
    """An adapter whose webhooks give only the id of a quoted message, without its text."""

    async def quoted(self, turn: Turn) -> str:
        """Return the text of the message that the turn replies to.

        Raises FetchError if it cannot be found.
        """


@dataclass(frozen=True, slots=True)
class AdapterDeps:
    """What an adapter may use besides its own settings. One per process."""

    #: Small values that expire, shared by all processes.
    cache: SharedCache
    identities: Identities
    media: MediaStore
    #: Secrets that sign cookies and links. The first one signs, and all of them verify.
    keys: Sequence[str]
    #: The URL at which platforms reach the bot, without a last slash.
    public_url: str
    redis: Redis
    #: Opens a Redis client whose answers may take the given number of seconds, for reads that
    #: block.
    connect: Callable[[float], Redis]
    #: What all Redis keys of the bot begin with.
    key_prefix: str


class Section(BaseModel):
    """A part of the YAML. Unknown keys are errors, and values do not change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def none_if_empty(value: object) -> object:
    """Return None for "", so that a key with an empty `${NAME:-}` counts as left out."""
    return None if value == "" else value


def refuse_none(value: object) -> object:
    """Return the value of a key that may be left out, but not be empty.

    Raises ValueError for None, which YAML makes of a key without a value. It is used for keys that
    protect or restrict something. An empty one is a mistake, and would protect nothing. Pydantic
    does not validate defaults, so None can still be the default.
    """
    if value is None:
        raise ValueError("is empty: give it a value, or leave the key out")
    return value


def refuse_bare_section(section: object, info: ValidationInfo) -> object:
    """Do the same as `refuse_none`, for a section that may be `{}`."""
    if section is None:
        key = info.field_name
        raise ValueError(f"{key} has nothing below it: write `{key}: {{}}`, or leave it out")
    return section


def _not_blank(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("is empty: give it a value")
    return secret


def _not_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _supported_language(language: str) -> str:
    if language not in LANGUAGES:
        raise ValueError(f"this language is not supported: choose from {', '.join(LANGUAGES)}")
    return language


#: A secret, which the YAML takes from the environment or from a file.
Secret = Annotated[SecretStr, AfterValidator(_not_blank)]
#: A secret that may be left out but not be empty: a missing environment variable must not turn
#: protection off.
OptionalSecret = Annotated[Secret | None, BeforeValidator(refuse_none)]
Url = Annotated[str, AfterValidator(web_address)]
OptionalUrl = Annotated[Url | None, BeforeValidator(none_if_empty)]
#: A whole number, and a number. Pydantic's `int` and `float` would read `true` as 1.
Count = Annotated[int, BeforeValidator(_not_boolean)]
Number = Annotated[float, BeforeValidator(_not_boolean)]
Language = Annotated[str, AfterValidator(_supported_language)]


class PlatformSettings(Section):
    """The settings of a channel that its adapter can read: its part of the YAML.

    Each platform has a subclass with its own keys. The package `config` adds the keys that no
    adapter needs, such as `tools` and `policy`. The docstrings of the fields are printed in the
    reference of the YAML.
    """

    #: The prefix that a user id may be written with or without, such as `whatsapp:` before a phone
    #: number; "" for a platform whose ids have one spelling.
    user_id_prefix: ClassVar[str] = ""
    #: Whether people use the channel on a web page of this bot, at /console/<name>.
    has_page: ClassVar[bool] = False
    #: Names that a channel of the platform cannot have.
    reserved_names: ClassVar[frozenset[str]] = frozenset()
    #: Whether the platform takes money for each message. Then people get as few messages as
    #: possible: no notice that a turn takes longer, and replies that fit into one message are
    #: joined.
    charges_per_message: ClassVar[bool] = False
    #: The most buttons that the platform shows under a question as buttons.
    max_buttons: ClassVar[int] = 4
    #: Whether the platform can drop updates that it has not delivered yet.
    can_drop_updates: ClassVar[bool] = False

    platform: str
    """The platform: `whatsapp`, `telegram`, `slack`, `console`, or one that an installed
    distribution brings. Example: `telegram`.
    """
    languages: list[Language] = Field(default=list(LANGUAGES), min_length=1)
    """The languages in which a yes or no is read. Name yours: some words mean yes in one language
    and something else in another, and then decide nothing in either. Example: `[de, en]`.
    """
    language: Annotated[Language | None, BeforeValidator(none_if_empty)] = None
    """The language for people whose language is not known yet. Others are answered in the language
    that they write. Without it: English, or the first of `languages`. Example: `de`.
    """
    commands: bool = True
    """Whether commands such as /help, /whoami and /reset are answered without the model. /stop
    always is. Example: `false`.
    """

    _role_groups: tuple[str, ...] = PrivateAttr(default=())

    @property
    def role_groups(self) -> tuple[str, ...]:
        """The ids of the channel's groups from which a role comes. It may need more rights then."""
        return self._role_groups

    def note_role_group(self, group: str) -> None:
        """Note that a role comes from a group of the channel.

        The settings of the whole file call it, since they know the roles.
        """
        self._role_groups = tuple(dict.fromkeys([*self._role_groups, group]))

    @model_validator(mode="after")
    def _language_is_among_languages(self) -> Self:
        if self.language and self.language not in self.languages:
            known = ", ".join(self.languages)
            raise ValueError(f"language is {self.language!r}: it must be one of languages, {known}")
        return self

    @property
    def default_language(self) -> str:
        """The language for people whose language is unknown.

        It is `language`, else English if `languages` has it, else the first of `languages`.
        """
        if self.language:
            return self.language
        if "en" in self.languages:
            return "en"
        return self.languages[0]

    @property
    def account_id(self) -> str:
        """The id of the channel's account at the platform, "" for a platform without accounts.

        It stays the same when a token is renewed.
        """
        return ""

    @property
    def polls(self) -> bool:
        """Whether the bot asks the platform for messages, instead of getting webhooks."""
        return False

    @property
    def update_source(self) -> str:
        """The id of the queue that the channel polls, "" for none.

        Two channels must not poll the same queue.
        """
        return ""

    @property
    def has_many_workspaces(self) -> bool:
        """Whether many workspaces install the channel's account, each with its own token."""
        return False

    def problem_with_id(self, given_id: str) -> str:
        """Return why no person and no chat of the channel can have this id, "" if one can.

        The access rules are checked with it: a misspelled id would block no one.
        """
        return ""

    def problem_with_group(self, given_id: str) -> str:
        """Return why no group of the platform can have this id, "" if one can.

        Groups are what roles may come from. A platform with groups has an adapter with
        `ListsGroupMembers`.
        """
        return f"{self.platform} has no groups of people: give each person the role in `people`"

    @property
    def needed_library(self) -> tuple[str, str]:
        """The extra of Sayso's package that the channel needs, and a module that it installs.

        Both are "" for a channel that needs no extra.
        """
        return "", ""

    @property
    def needs_public_url(self) -> bool:
        """Whether a server outside this network must reach the bot."""
        return not (self.polls or self.has_page)

    @property
    def is_open_page(self) -> bool:
        """Whether the channel is a web page without a password."""
        return False

    def user_ids(self, channel: str, user: str, identities: Identities) -> tuple[str, ...]:
        """Return all ids under which turns of the person `user` may be stored.

        They are several where a person's ids change, as on WhatsApp. Raises redis.RedisError.
        """
        return (user,)


class VendorSettings(PlatformSettings):
    """The settings of a platform with a vendor's HTTP API."""

    api_url: OptionalUrl = None
    """Another server in the vendor's place. Example: `http://127.0.0.1:8081`."""

    @property
    def needs_public_url(self) -> bool:
        """Whether a server outside this network must reach the bot.

        A server at `api_url` may be on this network.
        """
        return not (self.polls or self.api_url)
