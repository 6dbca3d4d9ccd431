"""The settings of a whole YAML file: every key with its type and its default.

The sections of agents, channels, people and tools are in the other modules of this folder. The
docstring below a field is its text in the reference of the YAML. `Origin` remembers where each
value stands in the file, for errors that are found later. The functions at the end answer questions
about the models: which keys are secrets, and which keys a section has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PrivateAttr,
    SecretStr,
    Tag,
    field_validator,
    model_validator,
)

from sayso.channels.base import Count, Number, Section
from sayso.channels.media_store import MediaLimits
from sayso.channels.registry import BUILT_IN, PlatformUnusable
from sayso.config.settings.agent import (
    AgentSettings,
    FallbackSettings,
    OptionalServerUrl,
    redis_address,
)
from sayso.config.settings.channels import AnyChannel, ChannelSettings, channel_model
from sayso.config.settings.people import (
    PERSON_NAME,
    PersonSettings,
    RoleName,
    RoleSettings,
    refused_people,
    refused_roles,
)
from sayso.config.settings.tools import (
    AnySource,
    AuthSettings,
    BasicSettings,
    EmbeddingSettings,
    RefusedValue,
    YamlPath,
    refuse_values,
)
from sayso.infra.urls import web_address

#: A deployment name is a part of Redis keys, of the RQ queue and of a folder name.
DEPLOYMENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
#: Channel names are parts of URLs, Redis keys and job arguments.
CHANNEL_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
#: The URL of a bucket, with a prefix or without.
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where settings come from. Lives as long as the settings."""

    #: The folder of the YAML file, where relative paths in it begin.
    folder: Path = Path()
    #: `file:line:column` of every value, by its path.
    places: Mapping[YamlPath, str] = field(default_factory=dict)

    def at(self, *path: str | int) -> str:
        """Return the place of a value as the beginning of an error: `file:line:column: `.

        It is "" when the settings come from no file. A value that the file does not have is at the
        place of the nearest section around it.
        """
        while path and path not in self.places:
            path = path[:-1]
        if path in self.places:
            return f"{self.places[path]}: "
        return ""


class WorkerSettings(Section):
    """What one worker process does at the same time, and for how long."""

    concurrency: Count = Field(default=100, ge=1, le=10_000)
    """Conversations that one worker process works on at once. A tenth more is kept free for taps
    and answers to a question. Example: `500`.
    """
    tool_threads: Count = Field(default=32, ge=1, le=1000)
    """Tools without `async` that run at once in one worker process. Example: `64`."""
    grace_seconds: Number = Field(default=20.0, ge=0, le=3600)
    """Seconds for which a worker that is told to stop goes on with its turns. Then they are cut
    off, and another worker takes them up. Example: `60`.
    """
    turn_timeout: Number = Field(default=120.0, gt=0, le=600)
    """The most seconds of one turn. Example: `300`."""
    join_bursts: bool = True
    """Whether several messages in a row, nothing but text, are answered as one. Taps, commands, a
    yes and a no are never joined. Example: `false`.
    """
    still_after: Number = Field(default=30.0, ge=0, le=600)
    """Seconds after which people are told that their turn takes longer; 0 for never. Never on a
    platform that takes money for each message, such as WhatsApp. Example: `10`.
    """


class LimitSettings(Section):
    """The most messages that are accepted."""

    waiting: Count = Field(default=50, ge=1, le=1000)
    """The most turns that wait in one conversation. Taps, /stop and answers to a question
    have room for 10 more. Example: `20`.
    """
    per_minute: Count = Field(default=60, ge=1, le=60_000)
    """The most turns of one person in one conversation in a minute. /stop and answers to a question
    are not counted. Taps on the person's own buttons and /status are counted separately; a tap
    on another person's button counts as a turn. Example: `30`.
    """
    in_one_go: Count = Field(default=40, ge=1, le=60_000)
    """How many of these may come at once. Example: `10`."""
    conversations: Count = Field(default=100_000, ge=1)
    """The most conversations that have work at once. Beyond it no other can begin; taps, /stop and
    answers to a question may exceed it by a fifth. It is kept approximately. Example: `20000`.
    """


class MediaSettings(Section):
    """Where files and long texts are kept, and the most space for them."""

    store: str = ""
    """The bucket for files and long texts, on Amazon S3 or a server that speaks its protocol, and a
    prefix in it. The extra `s3` has the library; credentials come from the environment. Without it:
    the data folder. Example: `s3://my-bucket/shop`.
    """
    endpoint: OptionalServerUrl = None
    """The address of a server that is not Amazon's. Without it: AWS_ENDPOINT_URL, else Amazon.
    Example: `https://minio.example.com`.
    """
    region: str = ""
    """The region of the bucket.

    Without it: AWS_REGION, else `us-east-1`. Example: `eu-central-1`.
    """

    per_person_bytes: Count = Field(default=MediaLimits.per_person_bytes, ge=1)
    """The most bytes of one person's files. A file is kept for a week and counts with at least
    4,096 bytes. Example: `104857600`.
    """
    total_bytes: Count = Field(default=MediaLimits.total_bytes, ge=1)
    """The most bytes of all files. A file that does not fit is not fetched: the person's words are
    answered without it, and the console's page says why. Example: `53687091200`.
    """
    reserve_bytes: Count = Field(default=MediaLimits.reserve_bytes, ge=0)
    """Bytes that files leave free on the disk of the data folder, for Redis and the audit log.
    Example: `1073741824`.
    """
    reserve_percent: Number = Field(default=MediaLimits.reserve_percent, ge=0, lt=100)
    """The same in percent of the disk. The larger one counts. Example: `10`."""

    @field_validator("region")
    @classmethod
    def _a_region(cls, region: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9-]*", region):
            raise ValueError(
                "is not a region: write letters, digits and hyphens, as in eu-central-1"
            )
        return region

    @field_validator("store")
    @classmethod
    def _a_bucket(cls, store: str) -> str:
        if "@" in store:
            raise ValueError(
                "holds credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
            )
        if store and not _BUCKET.fullmatch(store):
            raise ValueError("is not a bucket: write it as s3://bucket or s3://bucket/prefix")
        return store

    @model_validator(mode="after")
    def _has_a_bucket(self) -> Self:
        if not self.store and (self.endpoint or self.region):
            raise ValueError(
                "endpoint and region belong to a bucket: add store, such as s3://my-bucket/shop"
            )
        return self

    @property
    def limits(self) -> MediaLimits:
        """The limits of the media store."""
        return MediaLimits(
            self.per_person_bytes, self.total_bytes, self.reserve_bytes, self.reserve_percent
        )


def _a_host(host: str) -> str:
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", host):
        raise ValueError(
            f"{host!r} is not a host: write it as in example.com, without https:// and without a path"
        )
    return host


LinkHost = Annotated[str, AfterValidator(_a_host)]


class Settings(Section):
    """The whole file."""

    name: str = ""
    """The name of this deployment: 1 to 32 lower-case letters, digits, `-` and `_`. It is part of
    every Redis key (`sayso:<name>:...`), of the queue's name (`sayso-<name>`) and of the data folder
    (`bots/<name>/`), so that several bots can share a Redis. Without it: the file's name. Under
    another name a bot starts from nothing, so set it before you rename the file. A start is refused
    while workers of another bot use the name. Example: `shop`.
    """
    public_url: str = ""
    """The address at which platforms reach the bot. Signatures and links to files are made from it.
    Without it: SAYSO_PUBLIC_URL, else the address that the server listens on. Example:
    `https://bots.example.com`.
    """
    # The URLs of Redis are not in the `repr`, as they may hold a password.
    redis_url: str = Field(default="", repr=False)
    """The Redis in which everything is kept: redis://, rediss:// (TLS), unix://, redis+sentinel://
    or redis+cluster:// (with a `queue_url`). Without it: REDIS_URL, else a server that `sayso up`
    starts. Example: `redis://127.0.0.1:6379/0`.
    """
    redis_wait_replicas: int = Field(default=0, ge=0, le=10)
    """How many replicas must have a write before a message is acknowledged, an answer is sent or an
    action runs, so that a failover loses none of them. While fewer confirm it within a second, the
    web answers 503. Example: `1`.
    """
    queue_url: str = Field(default="", repr=False)
    """A separate Redis for the queue that wakes workers (RQ's keys), not a Cluster. Required with a
    Redis Cluster, which RQ does not run on. If its data is lost, no message is. Without it:
    QUEUE_URL, else the Redis of `redis_url`. Example: `redis://127.0.0.1:6380/0`.
    """
    allow_open_redis: bool = False
    """Whether a Redis on another machine may be used that needs no login.
    Without it every start refuses one. Example: `true`.
    """
    spool: bool = False
    """Whether the web process keeps messages on its own disk while Redis is away, instead of
    answering 503. The disk must be local and outlive the process. Example: `true`.
    """
    link_hosts: list[LinkHost] = []
    """Hosts, with their subdomains, whose links may stand behind a label, besides the host of
    `public_url`. Other links show their address. Example: `[example.com]`.
    """
    agent: AgentSettings = AgentSettings()
    """The model behind all channels. Example: `{model: openai:gpt-5-mini}`."""
    workers: WorkerSettings = WorkerSettings()
    """What one worker process does at once. Example: `{concurrency: 500}`."""
    limits: LimitSettings = LimitSettings()
    """How many messages are accepted. Example: `{per_minute: 30}`."""
    media: MediaSettings = MediaSettings()
    """Where files are kept, and how much space they may take.

    Example: `{store: "s3://my-bucket/shop"}`.
    """
    tools: list[AnySource] = []
    """Where tools come from: a module, a file or a folder (from the YAML's folder), or a section
    with one of `module`, `mcp`, `openapi` and `toolbox`. Example: `[./tools.py]`.
    """
    channels: dict[Annotated[str, Field(pattern=CHANNEL_NAME)], AnyChannel] = Field(min_length=1)
    """The chats that the bot is on, by names of your choice: 1 to 64 letters, digits, `.`, `_` and
    `-`. A name is part of the addresses of webhooks. Example: `{web: {platform: console}}`.
    """
    people: dict[Annotated[str, Field(pattern=PERSON_NAME)], PersonSettings] = {}
    """People with a name, their accounts and their roles. A person with several accounts is one
    person to the bot: they count once where several people must agree. Example: `{ada: {accounts:
    {team: U0ADA}, roles: [manager]}}`.
    """
    roles: dict[RoleName, RoleSettings] = {}
    """Roles that people have because they are in a group of a platform. Other roles need no line
    here. Example: `{manager: {groups: [{channel: team, group: S0MANAGERS}]}}`.
    """
    links: Literal["off", "reviewed", "open"] = "reviewed"
    """Whether people may join their accounts on two channels by `/link`: once an operator accepts
    it (`reviewed`), at once (`open`), or not at all (`off`). With `off`, accounts that were joined
    before are separate people. Who joins accounts has the roles of both. Example: `open`.
    """
    _origin: Origin = PrivateAttr(default_factory=Origin)

    def model_post_init(self, context: Any) -> None:
        """Keep the places of the values, which the loader passes as the context of validation."""
        if isinstance(context, Origin):
            self._origin = context

    def agent_of(self, channel: str) -> AgentSettings:
        """Return the settings of a channel's agent: the bot's, with what the channel overrides."""
        return self.channels[channel].agent.over(self.agent)

    @property
    def origin(self) -> Origin:
        """The places of the values, for errors that are found later."""
        return self._origin

    def problem(self, path: YamlPath, text: str, *below: str | int) -> str:
        """Return a line for an error: the place in the file, the key, and the text.

        The key is `path`. The place is that of the value at `path`, or of the one at `below` inside
        it, such as an item of a list.
        """
        key = ".".join(map(str, path))
        return f"{self._origin.at(*path, *below)}{key}: {text}"

    @property
    def knows_people(self) -> bool:
        """Whether it matters who a person is: the YAML names people, roles, links or approvals.

        Then people may join accounts and say that they are away.
        """
        if self.people or self.roles or "links" in self.model_fields_set:
            return True
        policies = [channel.policy for channel in self.channels.values()]
        return any(policy and policy.approval for policy in policies)

    @property
    def key_prefix(self) -> str:
        """How every Redis key of this deployment begins."""
        if self.name:
            return f"sayso:{self.name}:"
        return "sayso:"

    @property
    def queue(self) -> str:
        """The name of the RQ queue of this deployment."""
        if self.name:
            return f"sayso-{self.name}"
        return "sayso"

    def state_folder(self, data: Path) -> Path:
        """Return the folder in a data folder that belongs to this deployment alone.

        Several bots may share the rest of the data folder.
        """
        if self.name:
            return data / "bots" / self.name
        return data

    @field_validator("name", "public_url", "redis_url", "queue_url", mode="before")
    @classmethod
    def _left_empty(cls, url: object) -> object:
        """Read `name:` or `redis_url:` without a value as if the line were left out."""
        return "" if url is None else url

    @field_validator("name")
    @classmethod
    def _a_deployment_name(cls, name: str) -> str:
        if name and not DEPLOYMENT_NAME.fullmatch(name):
            raise ValueError(
                "a name has 1 to 32 lower-case letters, digits and - _, and begins with a letter or digit"
            )
        return name

    @field_validator("public_url")
    @classmethod
    def _a_base(cls, url: str) -> str:
        return web_address(url) if url else ""

    @field_validator("redis_url", "queue_url")
    @classmethod
    def _a_redis(cls, url: str) -> str:
        return redis_address(url) if url else ""

    @field_validator("queue_url")
    @classmethod
    def _no_cluster(cls, url: str) -> str:
        if url.partition("://")[0].endswith("+cluster"):
            raise ValueError("names a Redis Cluster, and RQ does not run there: name one server")
        return url

    @field_validator("channels")
    @classmethod
    def _channels_fit_together(cls, channels: dict[str, AnyChannel]) -> dict[str, AnyChannel]:
        refuse_values(cls, _conflicts(channels))
        return channels

    @model_validator(mode="after")
    def _accounts_exist(self) -> Self:
        refused = [
            each._replace(path=("people", *each.path))
            for each in refused_people(self.people, self.channels)
        ]
        refused += [
            each._replace(path=("roles", *each.path))
            for each in refused_roles(self.roles, self.channels)
        ]
        refuse_values(type(self), refused)
        return self

    @model_validator(mode="after")
    def _channels_know_their_groups(self) -> Self:
        for role in self.roles.values():
            for each in role.groups:
                self.channels[each.channel].note_role_group(each.group)
        return self


def _conflicts(channels: Mapping[str, AnyChannel]) -> Iterator[RefusedValue]:
    """Yield the values that channels cannot have together, with paths below `channels`."""
    # The first channel of each bot on a platform.
    first_of: dict[str, str] = {}
    polled = {each.update_source for each in channels.values() if each.polls}
    for name, each in channels.items():
        if name in each.reserved_names:
            problem = "this name is a page of the console's own: choose another, such as web"
            yield RefusedValue((name,), problem, name)

        # A polled platform gives each update once: a second channel of the bot would wait for ever.
        first = first_of.setdefault(each.update_source, name)
        if first != name and each.update_source in polled - {""}:
            problem = f"has the same bot as {first}: give each channel a bot of its own where one of them polls"
            yield RefusedValue((name,), problem, name)

        if each.escalate and each.escalate.to.channel not in channels:
            problem = f"names no channel; known: {', '.join(channels)}"
            path = (name, "escalate", "to", "channel")
            yield RefusedValue(path, problem, each.escalate.to.channel)
        yield from _ids_without_effect(name, each, channels)
        yield from _wrong_approval_places(name, each, channels)


def _ids_without_effect(
    name: str,
    channel: AnyChannel,
    channels: Mapping[str, AnyChannel],
) -> Iterator[RefusedValue]:
    """Yield the ids of people and chats that the platform of a channel cannot have.

    A rule for such an id would have no effect, and no one would notice. Paths are below `channels`.
    """
    ids_by_path: dict[YamlPath, str] = {}
    access = channel.access
    if access:
        for key in ("allow", "block", "chats"):
            for index, each in enumerate(getattr(access, key) or ()):
                ids_by_path["access", key, index] = each
    if access and access.roles:
        for user in access.roles.users:
            ids_by_path["access", "roles", "users", user] = user
    for path, each in ids_by_path.items():
        problem = channel.problem_with_id(each)
        if problem:
            yield RefusedValue((name, *path), problem, each)

    if channel.escalate is None:
        return
    to = channel.escalate.to
    if to.channel in channels:
        problem = channels[to.channel].problem_with_id(to.chat)
        if problem:
            yield RefusedValue((name, "escalate", "to", "chat"), problem, to.chat)


def _wrong_approval_places(
    name: str,
    channel: AnyChannel,
    channels: Mapping[str, AnyChannel],
) -> Iterator[RefusedValue]:
    """Yield the channels and chats in which nobody can be asked about the calls of tools.

    The channel is unknown, or its platform cannot have a chat of that id. Paths are below
    `channels`.
    """
    if channel.policy is None:
        return
    for pattern, approval in channel.policy.approval.items():
        if approval.on is None:
            continue
        path = (name, "policy", "approval", pattern, "on")
        asking_channel = channels.get(approval.on.channel)
        if asking_channel is None:
            problem = f"names no channel; known: {', '.join(channels)}"
            yield RefusedValue((*path, "channel"), problem, approval.on.channel)
            continue
        chat = approval.on.chat
        problem = asking_channel.problem_with_id(chat) if chat else ""
        if problem:
            yield RefusedValue((*path, "chat"), problem, chat)


def secret_fields(platforms: Iterable[str] = ()) -> set[str]:
    """Return the keys whose values must come from the environment or a file.

    `platforms` are names of platforms besides the built-in ones. Unknown ones, and those that do
    not load, are ignored.
    """
    models: list[type[BaseModel]] = [
        EmbeddingSettings,
        AuthSettings,
        BasicSettings,
        FallbackSettings,
    ]
    for platform in {*BUILT_IN, *platforms}:
        with suppress(PlatformUnusable):
            platform_model = channel_model(platform)
            if platform_model:
                models.append(platform_model)

    keys = set()
    for model in models:
        keys |= {name for name, info in model.model_fields.items() if _is_secret(info.annotation)}
    return keys


def is_secret_place(path: YamlPath) -> bool:
    """Return whether a value is a secret by its place, whatever its key is called.

    These are the variables and headers of MCP servers: `tools[0].mcp.env.TOKEN`.
    """
    is_below_mcp = path[2:4] in (("mcp", "env"), ("mcp", "headers"))
    return path[:1] == ("tools",) and is_below_mcp and len(path) > 4


def keys_beside(loc: YamlPath) -> list[str]:
    """Return the keys of the section in which pydantic found an unknown key.

    `loc` is that of pydantic's error: it ends with the unknown key, and names the branch of each
    union on the way to it.
    """
    keys = []
    for section in dict.fromkeys(_sections(Settings, loc[:-1])):
        keys += [info.alias or name for name, info in section.model_fields.items()]
    return keys


def _sections(hint: Any, loc: YamlPath) -> Iterator[type[BaseModel]]:
    """Yield the classes of sections that may stand at a place inside a value of a type.

    `hint` is the type, and `loc` the path from its value to the place. For `Settings` and
    `("agent", "memory")` it is `MemorySettings`. Types without a section there yield nothing.
    """
    # A channel's class depends on its platform, which pydantic names in the path.
    platform_model = None
    if hint is ChannelSettings and loc:
        platform_model = channel_model(str(loc[0]))
    if platform_model:
        yield from _sections(platform_model, loc[1:])
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        if not loc:
            yield hint
        for name, info in hint.model_fields.items():
            if loc[:1] == (info.alias or name,):
                yield from _sections(info.annotation, loc[1:])
        return

    # The types around sections: `Annotated[...]`, `A | B`, `list[...]`, `dict[..., ...]`.
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin is Annotated:
        yield from _sections(parts[0], loc)
    elif origin in (Union, UnionType):
        # The path names the branch of the union, if pydantic could tell which one is meant.
        branches = [part for part in parts if loc and _is_branch(part, loc[0])]
        for part in branches:
            yield from _sections(part, loc[1:])
        if not branches:
            for part in parts:
                yield from _sections(part, loc)
    elif loc and parts:
        # An item of a list, or a value of a mapping.
        yield from _sections(parts[-1], loc[1:])


def _is_branch(hint: Any, name: str | int) -> bool:
    """Return whether pydantic calls a branch of a union by this name.

    The name is the tag of the type, or the value of its discriminating literal.
    """
    if get_origin(hint) is Annotated:
        return any(isinstance(part, Tag) and part.tag == name for part in get_args(hint))
    if not (isinstance(hint, type) and issubclass(hint, BaseModel)):
        return False
    annotations = [info.annotation for info in hint.model_fields.values()]
    literals = [each for each in annotations if get_origin(each) is Literal]
    return any(name in get_args(literal) for literal in literals)


def _is_secret(annotation: Any) -> bool:
    """Return whether a value of this type is a secret, or may be one."""
    return annotation is SecretStr or any(_is_secret(part) for part in get_args(annotation))
