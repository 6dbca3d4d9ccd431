"""Schema: every key of the YAML, with its type and default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from pending.phrasebook import SHIPPED_LANGUAGES

#: Channel names are parts of URLs, Redis keys and job arguments.
CHANNEL_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
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


def _not_blank(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("is empty: give it a value")
    return secret


def _no_boolean(value: object) -> object:
    """To Python, and so to pydantic, true is the number 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _nothing_if_empty(value: object) -> object:
    """`${NAME:-}` may come to nothing: the key is then as good as left out."""
    return None if value == "" else value


def _web_address(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
        raise ValueError("no URL: write it as https://bots.example.com")
    return url.rstrip("/")


def _redis_address(url: str) -> str:
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("no URL of a Redis: write it as redis://host:6379/0, rediss://... or unix:///path")
    return url


def _shipped(language: str) -> str:
    if language not in SHIPPED_LANGUAGES:
        raise ValueError(f"no table of yes and no for this language: choose from {', '.join(SHIPPED_LANGUAGES)}")
    return language


Secret = Annotated[SecretStr, AfterValidator(_not_blank)]
Url = Annotated[str, AfterValidator(_web_address)]
RedisUrl = Annotated[str, AfterValidator(_redis_address)]
OptionalUrl = Annotated[Url | None, BeforeValidator(_nothing_if_empty)]
NotBoolean = BeforeValidator(_no_boolean)
Language = Annotated[str, AfterValidator(_shipped)]


class Section(BaseModel):
    """A part of the YAML: unknown keys are errors, nothing changes after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class AgentSettings(Section):
    """The model behind all channels."""

    model: str = "offline"
    system_prompt: str = "You are a helpful assistant. Use the tools you have, and say what you did."
    max_iterations: Annotated[int, NotBoolean] = Field(default=6, ge=1, le=100)

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model != "offline":
            raise ValueError("unknown model: write 'offline', which needs no account")
        return model


class WorkerSettings(Section):
    """What one worker process holds.

    `concurrency`: conversations at once. `tool_threads`: sync tools at once. `grace_seconds`: how long a worker that is
    told to stop may go on with what it has begun. `turn_timeout`: seconds one turn may take. `join_bursts`: whether
    several messages in a row, nothing but words, are answered as one.
    """

    concurrency: Annotated[int, NotBoolean] = Field(default=100, ge=1, le=10_000)
    tool_threads: Annotated[int, NotBoolean] = Field(default=32, ge=1, le=1000)
    grace_seconds: Annotated[float, NotBoolean] = Field(default=20.0, ge=0, le=3600)
    turn_timeout: Annotated[float, NotBoolean] = Field(default=120.0, gt=0, le=600)
    join_bursts: bool = True


class LimitSettings(Section):
    """What is refused at the door, as `workers.mailbox.Limits` explains."""

    waiting: Annotated[int, NotBoolean] = Field(default=50, ge=1, le=1000)
    per_minute: Annotated[int, NotBoolean] = Field(default=60, ge=1, le=60_000)
    in_one_go: Annotated[int, NotBoolean] = Field(default=40, ge=1, le=60_000)
    conversations: Annotated[int, NotBoolean] = Field(default=100_000, ge=1)


class PolicySettings(Section):
    """Which tools run at once, which need a yes, which never run. Patterns as in file names."""

    allow: list[str] = []
    review: list[str] = []
    deny: list[str] = []
    deny_when: list[dict[str, str]] = []


class AddressSettings(Section):
    """A conversation, as its platform names it."""

    channel: str
    chat: str = Field(min_length=1)
    thread: str = ""


class EscalateSettings(Section):
    """Who hears of a question that is unanswered so many seconds after it was delivered."""

    after: Annotated[float, NotBoolean] = Field(gt=0, le=86_400)
    to: AddressSettings


class ChannelSettings(Section):
    """What every channel has. `tools` left out means all; `confirm_ttl` is in seconds.

    `messages_per_second` is this account's own pace; 0 says that nobody paces it, not even by conversation.
    People are answered in the language they write, out of `languages`; `language` is for those we know nothing of.
    """

    tools: list[str] | None = None
    policy: PolicySettings | None = None
    confirm_ttl: Annotated[float, NotBoolean] = Field(default=60.0, gt=0, le=86_400)
    languages: list[Language] = Field(default=list(SHIPPED_LANGUAGES), min_length=1)
    language: Annotated[Language | None, BeforeValidator(_nothing_if_empty)] = None
    confirm_emoji: bool = False
    messages_per_second: Annotated[float | None, NotBoolean] = Field(default=None, ge=0, le=10_000)
    expiry_notice: bool = False
    escalate: EscalateSettings | None = None

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
    """WhatsApp through Twilio."""

    platform: Literal["whatsapp"]
    account_sid: str = Field(min_length=1)
    auth_token: Secret
    from_: str = Field(alias="from")
    api_url: OptionalUrl = None

    @field_validator("from_")
    @classmethod
    def _a_sender(cls, sender: str) -> str:
        if not re.fullmatch(r"whatsapp:\+?[0-9]+", sender):
            raise ValueError("no WhatsApp sender: write it as whatsapp:+14155238886")
        return sender


class TelegramSettings(ChannelSettings):
    """A Telegram bot."""

    platform: Literal["telegram"]
    token: Secret
    secret_token: Secret
    api_url: OptionalUrl = None

    @field_validator("secret_token")
    @classmethod
    def _as_telegram_takes_it(cls, secret: SecretStr) -> SecretStr:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret.get_secret_value()):
            raise ValueError("malformed: Telegram takes 1 to 256 letters, digits, _ and -")
        return secret


class SlackSettings(ChannelSettings):
    """A Slack app."""

    platform: Literal["slack"]
    bot_token: Secret
    signing_secret: Secret
    api_url: OptionalUrl = None


class ConsoleSettings(ChannelSettings):
    """The chat page in the browser. Without a password it serves this machine only."""

    platform: Literal["console"]
    password: SecretStr = SecretStr("")
    title: str = "Sayso"
    suggestions: list[str] = []


AnyChannel = Annotated[
    WhatsAppSettings | TelegramSettings | SlackSettings | ConsoleSettings, Field(discriminator="platform")
]


class Settings(Section):
    """The whole file."""

    public_url: str = ""
    redis_url: str = Field(default="", repr=False)  # it may hold a password
    shards: dict[Annotated[str, Field(pattern=CHANNEL_NAME)], RedisUrl] = Field(default={}, repr=False)
    spool: bool = False
    agent: AgentSettings = AgentSettings()
    workers: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    tools: list[str] = []
    channels: dict[Annotated[str, Field(pattern=CHANNEL_NAME)], AnyChannel] = Field(min_length=1)
    _origin: Origin = PrivateAttr(default_factory=Origin)

    def model_post_init(self, context: Any) -> None:
        """Remember where the values were written, when whoever read them says so."""
        if isinstance(context, Origin):
            self._origin = context

    @property
    def origin(self) -> Origin:
        """Where the values were written, for errors that are found later."""
        return self._origin

    @field_validator("public_url", "redis_url", mode="before")
    @classmethod
    def _left_empty(cls, url: object) -> object:
        """`redis_url:` with nothing behind it says as much as no line at all."""
        return "" if url is None else url

    @field_validator("public_url")
    @classmethod
    def _a_base(cls, url: str) -> str:
        return _web_address(url) if url else ""

    @field_validator("redis_url")
    @classmethod
    def _a_redis(cls, url: str) -> str:
        return _redis_address(url) if url else ""

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


def _nowhere(name: str, to: str, channels: Mapping[str, AnyChannel]) -> InitErrorDetails:
    """The error of one channel that escalates to none. It carries the path, so that the very line is told."""
    error = PydanticCustomError("no_channel", "names no channel; known: {known}", {"known": ", ".join(channels)})
    return InitErrorDetails(type=error, loc=(name, "escalate", "to", "channel"), input=to)


def secret_fields() -> set[str]:
    """The keys whose values must come from the environment or a file."""
    models: list[type[BaseModel]] = [WhatsAppSettings, TelegramSettings, SlackSettings, ConsoleSettings]
    return {name for model in models for name, info in model.model_fields.items() if _is_secret(info.annotation)}


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr
