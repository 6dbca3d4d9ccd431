"""Schema: every key of the YAML, with its type and default."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    SecretStr,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from sayso.agent.argument_forms import Form, problem_of
from sayso.channels.media_room import MediaLimits
from sayso.config.agent_schema import AgentSettings, ChannelAgentSettings, ModelSettings
from sayso.config.section import (
    NotBoolean,
    OptionalSecret,
    OptionalServerUrl,
    OptionalUrl,
    RedisUrl,
    Secret,
    Section,
    ServerUrl,
    nothing_if_empty,
    redis_address,
    web_address,
)
from sayso.pending.phrasebook import SHIPPED_LANGUAGES

#: A deployment name is a part of Redis keys, of the RQ queue and of a folder name.
DEPLOYMENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
#: Channel names are parts of URLs, Redis keys and job arguments.
CHANNEL_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
#: Namespaces are the beginnings of tools' names, which have 64 characters at most.
NAMESPACE = r"^[A-Za-z0-9_-]{1,32}$"
#: What a section below `tools` is known by: it has exactly one of these keys.
SOURCE_KINDS = ("mcp", "openapi", "toolbox", "module")
#: Names a console cannot have: they are paths below /console. (Their pages load Flask, which `check` can do without.)
CONSOLE_PATHS = frozenset({"events", "poll", "static"})

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where settings were written: the folder of their file, and `file:line:column` of every value."""

    folder: Path = Path()
    places: Mapping[Path_, str] = field(default_factory=dict)

    def at(self, *path: str | int) -> str:
        """What an error about this value begins with; "" when the settings came from no file."""
        while path and path not in self.places:
            path = path[:-1]
        return f"{self.places[path]}: " if path in self.places else ""


def _shipped(language: str) -> str:
    if language not in SHIPPED_LANGUAGES:
        raise ValueError(f"no table of yes and no for this language: choose from {', '.join(SHIPPED_LANGUAGES)}")
    return language


Language = Annotated[str, AfterValidator(_shipped)]


class WorkerSettings(Section):
    """What one worker process holds.

    `concurrency`: conversations at once. `tool_threads`: sync tools at once. `grace_seconds`: how long a worker that is
    told to stop may go on with what it has begun. `turn_timeout`: seconds one turn may take. `join_bursts`: whether
    several messages in a row, nothing but words, are answered as one. `still_after`: seconds after which people are
    told that their turn takes longer, 0 for never.
    """

    concurrency: Annotated[int, NotBoolean] = Field(default=100, ge=1, le=10_000)
    tool_threads: Annotated[int, NotBoolean] = Field(default=32, ge=1, le=1000)
    grace_seconds: Annotated[float, NotBoolean] = Field(default=20.0, ge=0, le=3600)
    turn_timeout: Annotated[float, NotBoolean] = Field(default=120.0, gt=0, le=600)
    join_bursts: bool = True
    still_after: Annotated[float, NotBoolean] = Field(default=30.0, ge=0, le=600)


class LimitSettings(Section):
    """What is refused at the door, as `sayso.workers.mailbox.Limits` explains."""

    waiting: Annotated[int, NotBoolean] = Field(default=50, ge=1, le=1000)
    per_minute: Annotated[int, NotBoolean] = Field(default=60, ge=1, le=60_000)
    in_one_go: Annotated[int, NotBoolean] = Field(default=40, ge=1, le=60_000)
    conversations: Annotated[int, NotBoolean] = Field(default=100_000, ge=1)


class MediaSettings(Section):
    """How much room files have: of one person, of all people, and what stays free on the disk.

    `reserve_bytes` and `reserve_percent`: the larger one counts. A file that does not fit is refused.
    """

    per_person_bytes: Annotated[int, NotBoolean] = Field(default=MediaLimits.per_person_bytes, ge=1)
    total_bytes: Annotated[int, NotBoolean] = Field(default=MediaLimits.total_bytes, ge=1)
    reserve_bytes: Annotated[int, NotBoolean] = Field(default=MediaLimits.reserve_bytes, ge=0)
    reserve_percent: Annotated[float, NotBoolean] = Field(default=MediaLimits.reserve_percent, ge=0, lt=100)


class DenyWhenSettings(Section):
    """A rule over one argument of the tools that its pattern names; `matches` says what the argument holds."""

    tool: str
    arg: str
    pattern: str
    matches: Form = "text"

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        if problem := problem_of(self.matches, self.pattern):
            raise ValueError(problem)
        return self


class PolicySettings(Section):
    """Which tools run at once, which need a yes, which never run. Patterns as in file names."""

    allow: list[str] = []
    review: list[str] = []
    deny: list[str] = []
    deny_when: list[DenyWhenSettings] = []


class AddressSettings(Section):
    """A conversation, as its platform names it."""

    channel: str
    chat: str = Field(min_length=1)
    thread: str = ""


class EscalateSettings(Section):
    """Who hears of a question that is unanswered so many seconds after it was delivered."""

    after: Annotated[float, NotBoolean] = Field(gt=0, le=86_400)
    to: AddressSettings


class RolesSettings(Section):
    """Which tools each role may use, and who has which role. Whoever is not named has the `default`; "" is none."""

    allowed: dict[str, list[str]] = Field(min_length=1)
    users: dict[str, str] = {}
    default: str = ""

    @field_validator("allowed")
    @classmethod
    def _each_once(cls, allowed: dict[str, list[str]]) -> dict[str, list[str]]:
        if len({role.lower() for role in allowed}) < len(allowed):
            raise ValueError("a role is given twice, in upper and lower case: keep one")
        return allowed

    @model_validator(mode="after")
    def _of_known_roles(self) -> Self:
        places: dict[Path_, str] = {("users", user): role for user, role in self.users.items()}
        if self.default:
            places["default",] = self.default
        known = {role.lower() for role in self.allowed}
        lost = [_no_role(path, role, self.allowed) for path, role in places.items() if role.lower() not in known]
        if lost:
            raise ValidationError.from_exception_data(type(self).__name__, lost)
        return self


def _not_nothing(access: object) -> object:
    if access is None:
        raise ValueError("access has nothing below it: write `access: {}`, or leave it out")
    return access


class AccessSettings(Section):
    """Who may talk on a channel.

    `allow`: only these people; left out, everybody. `block`: never. `pairing`: strangers get a code, with which an
    operator lets them in. `groups`: whether a message of a group is for the bot where it is addressed (`mention`),
    `always` or `never`. `chats`: only in these. `per_minute`: turns of one person, over all conversations. `roles`:
    which tools they may use.
    """

    allow: list[Annotated[str, Field(min_length=1)]] | None = None
    block: list[Annotated[str, Field(min_length=1)]] = []
    pairing: bool = False
    groups: Literal["mention", "always", "never"] = "mention"
    chats: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1)
    per_minute: Annotated[int | None, NotBoolean] = Field(default=None, ge=1, le=60_000)
    roles: RolesSettings | None = None


class EmbeddingSettings(Section):
    """How many tools are shown, and what compares them: words and letters, or the server at `base_url`."""

    top_k: Annotated[int, NotBoolean] = Field(default=5, ge=1, le=1000)
    model: str = Field(default="text-embedding-3-small", min_length=1)
    base_url: OptionalUrl = None
    api_key: OptionalSecret = None

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.base_url is None and self.model_fields_set & {"model", "api_key"}:
            raise ValueError("model and api_key are for a server: add base_url: https://api.openai.com/v1")
        return self


def _list_means_all(value: object) -> object:
    """A list of selectors: each one chooses from what the one before it left."""
    return {"all": value} if isinstance(value, list) else value


class SelectorSettings(Section):
    """What chooses the tools that a model is shown: one kind, and what belongs to it.

    `always` are tools that are shown besides what is chosen; `on_error` says what is shown while a plugin fails.
    """

    keyword: dict[str, list[Annotated[str, Field(min_length=1)]]] | None = None
    whole_words: bool = False
    roles: RolesSettings | None = None
    embedding: EmbeddingSettings | None = None
    any_of: list[Selector] | None = Field(default=None, alias="any", min_length=1)
    all_of: list[Selector] | None = Field(default=None, alias="all", min_length=1)
    plugin: str | None = None
    options: dict[str, Any] = {}
    on_error: Literal["none", "all"] = "none"
    always: list[str] = []

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if "embedding" in self.model_fields_set and self.embedding is None:
            raise ValueError("embedding has nothing below it: write `embedding: {}`")
        kinds = [kind for kind in _SELECTORS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError("choose one of keyword, roles, embedding, any, all, plugin; write several as a list")
        for option, kind in _SELECTOR_OPTIONS.items():
            if option in self.model_fields_set and kind != kinds[0]:
                raise ValueError(f"{option} belongs to {kind}: remove it")
        if self.always and self.restricts:
            raise ValueError("always would give the tools of roles to everybody: name them in allowed, for each role")
        return self

    @property
    def restricts(self) -> bool:
        """Whether it decides who may use what, by roles here or in a part of it."""
        return self.roles is not None or any(part.restricts for part in (*(self.any_of or ()), *(self.all_of or ())))


#: The kinds of selectors, by their fields; and the options that only one of them has.
_SELECTORS = ("keyword", "roles", "embedding", "any_of", "all_of", "plugin")
_SELECTOR_OPTIONS = {"whole_words": "keyword", "options": "plugin", "on_error": "plugin"}

Selector = Annotated[SelectorSettings, BeforeValidator(_list_means_all)]


class ChannelSettings(Section):
    """What every channel has. `tools` left out means all; `confirm_ttl` is in seconds.

    `messages_per_second` is this account's own pace; 0 says that nobody paces it, not even by conversation.
    People are answered in the language they write, out of `languages`; `language` is for those we know nothing of.
    Without `commands`, /help and the like go to the model.
    With `streaming` they see an answer while it comes, where the platform can show that and nothing judges it before.
    """

    access: Annotated[AccessSettings | None, BeforeValidator(_not_nothing)] = None
    tools: list[str] | None = None
    policy: PolicySettings | None = None
    selector: Selector | None = None
    confirm_ttl: Annotated[float, NotBoolean] = Field(default=60.0, gt=0, le=86_400)
    languages: list[Language] = Field(default=list(SHIPPED_LANGUAGES), min_length=1)
    language: Annotated[Language | None, BeforeValidator(nothing_if_empty)] = None
    confirm_emoji: bool = False
    confirm_ok: bool = False
    messages_per_second: Annotated[float | None, NotBoolean] = Field(default=None, ge=0, le=10_000)
    expiry_notice: bool = False
    commands: bool = True
    streaming: bool = False
    escalate: EscalateSettings | None = None
    agent: ChannelAgentSettings = ChannelAgentSettings()

    @model_validator(mode="after")
    def _speaks_what_it_reads(self) -> Self:
        if self.language and self.language not in self.languages:
            raise ValueError(f"language is {self.language!r}: it must be one of languages, {', '.join(self.languages)}")
        return self

    @property
    def speaks(self) -> str:
        """The language for those of whom nothing is known: English, unless it is said or left out."""
        return self.language or ("en" if "en" in self.languages else self.languages[0])


class WhatsAppSettings(ChannelSettings):
    """WhatsApp through Twilio: sent from one number, or by a Messaging Service.

    `shared_key` signs webhooks in the auth token's place, once it is turned on at Twilio. `template` is an approved
    Content with the words as {{1}}, for whoever has been silent for 24 hours; `confirm_template` an approved quick
    reply with the question as {{1}}, whose buttons have the ids {{2}}, which confirms, and {{3}}, which cancels.
    """

    platform: Literal["whatsapp"]
    account_sid: str = Field(min_length=1)
    auth_token: Secret
    from_: Annotated[str | None, BeforeValidator(nothing_if_empty)] = Field(default=None, alias="from")
    messaging_service_sid: Annotated[str | None, BeforeValidator(nothing_if_empty)] = None
    shared_key: OptionalSecret = None
    template: Annotated[str | None, BeforeValidator(nothing_if_empty)] = None
    confirm_template: Annotated[str | None, BeforeValidator(nothing_if_empty)] = None
    api_url: OptionalUrl = None

    @field_validator("from_")
    @classmethod
    def _a_sender(cls, sender: str | None) -> str | None:
        if sender is not None and not re.fullmatch(r"whatsapp:\+?[0-9]+", sender):
            raise ValueError("no WhatsApp sender: write it as whatsapp:+14155238886")
        return sender

    @field_validator("messaging_service_sid", "template", "confirm_template")
    @classmethod
    def _an_id(cls, sid: str | None, info: ValidationInfo) -> str | None:
        start = "MG" if info.field_name == "messaging_service_sid" else "HX"
        if sid is not None and not re.fullmatch(rf"{start}[0-9a-fA-F]{{32}}", sid):
            raise ValueError(f"no id of this kind: write {start} and the 32 digits that Twilio's Console shows")
        return sid

    @model_validator(mode="after")
    def _sends_from_somewhere(self) -> Self:
        if self.from_ is None and self.messaging_service_sid is None:
            raise ValueError("from is missing: give the sender as from, or a messaging_service_sid")
        return self


class TelegramSettings(ChannelSettings):
    """A Telegram bot. Its `username` tells in groups which @name is its own; without it any that ends in bot is.

    One that is `polling` asks Telegram for what people write and takes no webhooks: it needs no address and no secret.
    """

    platform: Literal["telegram"]
    token: Secret
    secret_token: OptionalSecret = None
    polling: bool = False
    username: Annotated[str, Field(pattern=r"^(@?[A-Za-z0-9_]{4,32})?$")] = ""
    api_url: OptionalUrl = None

    @field_validator("secret_token")
    @classmethod
    def _as_telegram_takes_it(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret and not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret.get_secret_value()):
            raise ValueError("malformed: Telegram takes 1 to 256 letters, digits, _ and -")
        return secret

    @model_validator(mode="after")
    def _hears_somehow(self) -> Self:
        if not (self.polling or self.secret_token):
            raise ValueError("secret_token is missing: give one for its webhooks, or write polling: true")
        return self

    @property
    def bot_id(self) -> str:
        """What its token begins with."""
        return self.token.get_secret_value().strip().partition(":")[0]

    @property
    def webhook_secret(self) -> str | None:
        """What its webhooks carry; None where it takes none."""
        return None if self.polling or not self.secret_token else self.secret_token.get_secret_value()


class SlackSettings(ChannelSettings):
    """A Slack app."""

    platform: Literal["slack"]
    bot_token: Secret
    signing_secret: Secret
    api_url: OptionalUrl = None


class ConsoleSettings(ChannelSettings):
    """The chat page in the browser. Without a password it serves this machine only."""

    platform: Literal["console"]
    password: OptionalSecret = None
    title: str = "Sayso"
    suggestions: list[str] = []


AnyChannel = Annotated[
    WhatsAppSettings | TelegramSettings | SlackSettings | ConsoleSettings, Field(discriminator="platform")
]


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, whatever a name server says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def polls(channel: AnyChannel) -> bool:
    """Whether its platform is asked for what people write, and sends nothing."""
    return isinstance(channel, TelegramSettings) and channel.polling


class SourceSettings(Section):
    """What every source of tools has: a prefix for their names, which are taken, which ask first, and for how many
    seconds a call may go on.
    """

    namespace: Annotated[str, Field(pattern=NAMESPACE)] | None = None
    include: list[str] | None = None
    exclude: list[str] = []
    confirm: Literal["hints", "always", "never"] | list[str] = "hints"
    timeout: Annotated[float | None, NotBoolean] = Field(default=None, gt=0, le=600)

    @field_validator("confirm", mode="before")
    @classmethod
    def _known_word(cls, confirm: object) -> object:
        if not isinstance(confirm, list) and confirm not in ("hints", "always", "never"):
            raise ValueError("unknown: write hints, always, never, or a list of patterns such as [delete_*]")
        return confirm


class McpSettings(Section):
    """An MCP server: a program to start, or a URL. Its environment and its headers are secrets."""

    command: list[str] | None = Field(default=None, min_length=1, repr=False)
    cwd: str | None = None
    env: dict[str, Secret] = {}
    url: Annotated[ServerUrl | None, Field(repr=False)] = None
    headers: dict[str, Secret] = {}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server is either a command, such as [npx, some-server], or a url: give one of them")
        if self.url is not None and (self.env or self.cwd):
            raise ValueError("env and cwd are for a command: a url takes headers")
        if self.command is not None and self.headers:
            raise ValueError("headers are for a url: a command takes env")
        return self


class McpSource(SourceSettings):
    """The tools of an MCP server."""

    mcp: McpSettings


class BasicSettings(Section):
    """A name and a password."""

    user: str
    password: Secret


class AuthSettings(Section):
    """How calls are signed in: with one of bearer, header, query, cookie or basic."""

    bearer: OptionalSecret = None
    header: str | None = None
    query: str | None = None
    cookie: str | None = None
    basic: BasicSettings | None = None
    value: OptionalSecret = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        named = [name for name in ("bearer", "header", "query", "cookie", "basic") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError("calls are signed in one way: give one of bearer, header, query, cookie, basic")
        if (self.value is None) == (named[0] in ("header", "query", "cookie")):
            raise ValueError("header, query and cookie name where the key goes: the key itself is value: ${KEY}")
        return self


class OpenApiSource(SourceSettings):
    """The operations of an OpenAPI document: a file beside the configuration, or a URL."""

    openapi: str = Field(min_length=1)
    base_url: OptionalServerUrl = None
    auth: AuthSettings | None = None
    arguments: dict[str, str | int | float | bool] = {}


class ToolboxSource(SourceSettings):
    """Families of the tools that come along."""

    toolbox: list[str] = Field(min_length=1)
    folder: str | None = None
    hosts: list[str] = []


class ModuleSource(SourceSettings):
    """A module, file or folder, whose tools get a prefix, or of which some are left out."""

    module: str = Field(min_length=1)


def _kind_of_source(source: object) -> str | None:
    """Which of the sections it is; the words cannot be keys, so that errors keep their place."""
    if isinstance(source, str):
        return "a module"
    if isinstance(source, SourceSettings):
        return next(f"an {kind} section" for kind in SOURCE_KINDS if hasattr(source, kind))
    kinds = [kind for kind in SOURCE_KINDS if isinstance(source, dict) and kind in source]
    return f"an {kinds[0]} section" if len(kinds) == 1 else None


AnySource = Annotated[
    Annotated[str, Tag("a module")]
    | Annotated[McpSource, Tag("an mcp section")]
    | Annotated[OpenApiSource, Tag("an openapi section")]
    | Annotated[ToolboxSource, Tag("an toolbox section")]
    | Annotated[ModuleSource, Tag("an module section")],
    Discriminator(
        _kind_of_source,
        custom_error_type="source_kind",
        custom_error_message="write a module, a file, or a section with one of mcp, openapi, toolbox, module",
    ),
]


def _a_host(host: str) -> str:
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", host):
        raise ValueError(f"{host!r} is no host: write it as in example.com, without https:// and without a path")
    return host


LinkHost = Annotated[str, AfterValidator(_a_host)]


class Settings(Section):
    """The whole file. `name` is the deployment's: it stands in every key and queue in Redis."""

    name: str = ""
    public_url: str = ""
    redis_url: str = Field(default="", repr=False)  # it may hold a password
    allow_open_redis: bool = False
    shards: dict[Annotated[str, Field(pattern=CHANNEL_NAME)], RedisUrl] = Field(default={}, repr=False)
    spool: bool = False
    link_hosts: list[LinkHost] = []
    agent: AgentSettings = AgentSettings()
    workers: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    media: MediaSettings = MediaSettings()
    tools: list[AnySource] = []
    channels: dict[Annotated[str, Field(pattern=CHANNEL_NAME)], AnyChannel] = Field(min_length=1)
    _origin: Origin = PrivateAttr(default_factory=Origin)

    def model_post_init(self, context: Any) -> None:
        """Remember where the values were written, when whoever read them says so."""
        if isinstance(context, Origin):
            self._origin = context

    def agent_of(self, channel: str) -> AgentSettings:
        """The agent's settings as they are on one channel."""
        return self.channels[channel].agent.over(self.agent)

    @property
    def origin(self) -> Origin:
        """Where the values were written, for errors that are found later."""
        return self._origin

    @property
    def key_prefix(self) -> str:
        """What every Redis key of this deployment begins with."""
        return f"sayso:{self.name}:" if self.name else "sayso:"

    @property
    def queue(self) -> str:
        """The RQ queue of this deployment."""
        return f"sayso-{self.name}" if self.name else "sayso"

    def open_consoles(self, address: str) -> list[str]:
        """Return the consoles that lack a password where platforms and people reach the bot at this address."""
        return _open_consoles(self.channels, address)

    def state_folder(self, data: Path) -> Path:
        """The part of a data folder that belongs to this deployment alone. The rest may be shared."""
        return data / "bots" / self.name if self.name else data

    @field_validator("name", "public_url", "redis_url", mode="before")
    @classmethod
    def _left_empty(cls, url: object) -> object:
        """`name:` or `redis_url:` with nothing behind it says as much as no line at all."""
        return "" if url is None else url

    @field_validator("name")
    @classmethod
    def _a_deployment_name(cls, name: str) -> str:
        if name and not DEPLOYMENT_NAME.fullmatch(name):
            raise ValueError("a name has 1 to 32 lower-case letters, digits and - _, and begins with a letter or digit")
        return name

    @field_validator("public_url")
    @classmethod
    def _a_base(cls, url: str) -> str:
        return web_address(url) if url else ""

    @field_validator("redis_url")
    @classmethod
    def _a_redis(cls, url: str) -> str:
        return redis_address(url) if url else ""

    @field_validator("shards", mode="before")
    @classmethod
    def _left_out(cls, urls: object) -> object:
        """`shards:` with nothing below it says as much as no line at all."""
        return {} if urls is None else urls

    @field_validator("shards")
    @classmethod
    def _different_servers(cls, urls: dict[str, str]) -> dict[str, str]:
        if len(set(urls.values())) < len(urls):
            raise ValueError("two names have the same URL: each primary is a server of its own")
        return urls

    @field_validator("channels")
    @classmethod
    def _consoles_have_pages(cls, channels: dict[str, AnyChannel]) -> dict[str, AnyChannel]:
        taken = [name for name in CONSOLE_PATHS & channels.keys() if isinstance(channels[name], ConsoleSettings)]
        if taken:
            raise ValidationError.from_exception_data(cls.__name__, [_taken(name) for name in sorted(taken)])
        return channels

    @field_validator("channels")
    @classmethod
    def _consoles_are_locked(cls, channels: dict[str, AnyChannel], info: ValidationInfo) -> dict[str, AnyChannel]:
        address = info.data.get("public_url", "")
        if address:
            wrong = [_unlocked(name, address) for name in _open_consoles(channels, address)]
            if wrong:
                raise ValidationError.from_exception_data(cls.__name__, wrong)
        return channels

    @field_validator("channels")
    @classmethod
    def _bot_that_polls_has_one_channel(cls, channels: dict[str, AnyChannel]) -> dict[str, AnyChannel]:
        """Telegram tells an update once: a second channel of the bot would wait for ever."""
        bots: defaultdict[tuple[str | None, str], list[str]] = defaultdict(list)
        for name, each in channels.items():
            if isinstance(each, TelegramSettings) and each.bot_id.isdecimal():  # no secret that was left unread
                bots[each.api_url, each.bot_id].append(name)
        shared = [names for names in bots.values() if any(polls(channels[name]) for name in names)]
        twins = [_twin(name, first) for first, *others in shared for name in others]
        if twins:
            raise ValidationError.from_exception_data(cls.__name__, twins)
        return channels

    @field_validator("channels")
    @classmethod
    def _operators_can_be_reached(cls, channels: dict[str, AnyChannel]) -> dict[str, AnyChannel]:
        targets = {name: each.escalate.to.channel for name, each in channels.items() if each.escalate}
        lost = [_nowhere(name, to, channels) for name, to in targets.items() if to not in channels]
        if lost:
            raise ValidationError.from_exception_data(cls.__name__, lost)
        return channels


def _taken(name: str) -> InitErrorDetails:
    """The error of one console's name. It carries the path, so that the channel's own line is told."""
    words = "this name is a page of the console's own: choose another, such as web"
    return InitErrorDetails(type=PydanticCustomError("console_name", words), loc=(name,), input=name)


def _unlocked(name: str, address: str) -> InitErrorDetails:
    """The error of a console that a proxy would open to everybody. It carries the path, so that its line is told."""
    return InitErrorDetails(type=PydanticCustomError("console_open", no_password(address)), loc=(name,), input=name)


def no_password(address: str) -> str:
    """Return why a console without a password may not be behind an address, and the cure."""
    cure = "write `password: ${CONSOLE_PASSWORD}` there"
    return f"this console has no password, and the bot's address {address} is not this machine: {cure}"


def _open_consoles(channels: Mapping[str, AnyChannel], address: str) -> list[str]:
    """Return the consoles without a password that may not be behind this address: all of them, unless it is local."""
    if is_loopback(urlsplit(address).hostname or ""):
        return []
    return [name for name, each in channels.items() if isinstance(each, ConsoleSettings) and not each.password]


def _twin(name: str, first: str) -> InitErrorDetails:
    """The error of a channel whose bot has one already. It carries the path, so that the channel's own line is told."""
    words = "has the same bot as {first}: give each channel a bot of its own where one of them polls"
    return InitErrorDetails(type=PydanticCustomError("one_bot", words, {"first": first}), loc=(name,), input=name)


def _nowhere(name: str, to: str, channels: Mapping[str, AnyChannel]) -> InitErrorDetails:
    """The error of one channel that escalates to none. It carries the path, so that the very line is told."""
    error = PydanticCustomError("no_channel", "names no channel; known: {known}", {"known": ", ".join(channels)})
    return InitErrorDetails(type=error, loc=(name, "escalate", "to", "channel"), input=to)


def _no_role(path: Path_, role: str, allowed: Mapping[str, Any]) -> InitErrorDetails:
    """The error of a user whose role nobody described. It carries the path, so that the very line is told."""
    error = PydanticCustomError("no_role", "names no role of allowed; known: {known}", {"known": ", ".join(allowed)})
    return InitErrorDetails(type=error, loc=path, input=role)


def secret_fields() -> set[str]:
    """The keys whose values must come from the environment or a file."""
    models: list[type[BaseModel]] = [
        WhatsAppSettings, TelegramSettings, SlackSettings, ConsoleSettings, EmbeddingSettings, AuthSettings,
        BasicSettings, ModelSettings,
    ]  # fmt: skip
    return {name for model in models for name, info in model.model_fields.items() if _is_secret(info.annotation)}


def is_secret_place(path: Path_) -> bool:
    """Whether a value is a secret by where it stands, under a key of its author's choice."""
    return path[:1] == ("tools",) and len(path) > 4 and path[2:4] in (("mcp", "env"), ("mcp", "headers"))


def keys_beside(loc: Path_) -> list[str]:
    """Return the keys of the section in which pydantic found an unknown one. `loc` is the error's: it ends with the
    unknown key, and names the branch of each union that it went through.
    """
    sections = dict.fromkeys(_sections(Settings, loc[:-1]))
    return [info.alias or name for section in sections for name, info in section.model_fields.items()]


def _sections(hint: Any, loc: Path_) -> Iterator[type[BaseModel]]:
    """Yield the sections that values of a type may be, at a place inside them."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        if not loc:
            yield hint
        for name, info in hint.model_fields.items():
            if loc[:1] == (info.alias or name,):
                yield from _sections(info.annotation, loc[1:])
        return
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _sections(parts[0], loc)
    elif origin in (Union, UnionType):
        branches = [part for part in parts if loc and _is_branch(part, loc[0])]
        for part in branches or parts:
            yield from _sections(part, loc[1:] if branches else loc)
    elif loc and parts:
        yield from _sections(parts[-1], loc[1:])  # an item of a list, a value of a mapping


def _is_branch(hint: Any, name: str | int) -> bool:
    """Whether pydantic calls a type of a union by this name: by its tag, or by the literal that tells it apart."""
    if get_origin(hint) is Annotated:
        return any(isinstance(part, Tag) and part.tag == name for part in get_args(hint))
    fields = hint.model_fields.values() if isinstance(hint, type) and issubclass(hint, BaseModel) else ()
    return any(get_origin(info.annotation) is Literal and name in get_args(info.annotation) for info in fields)


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_is_secret(part) for part in get_args(annotation))
