"""Settings of channels: platform, access, policy, selector."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from sayso.agent.guards.policy import ArgumentForm, problem_of
from sayso.config.settings.agent import ChannelAgentSettings
from sayso.config.settings.base import NotBoolean, OptionalSecret, OptionalUrl, Secret, Section, nothing_if_empty
from sayso.config.settings.tools import RolesSettings, Selector
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES

#: Names a console cannot have: they are paths below /console. (Their pages load Flask, which `check` can do without.)
CONSOLE_PATHS = frozenset({"events", "poll", "static"})


def _shipped(language: str) -> str:
    if language not in SHIPPED_LANGUAGES:
        raise ValueError(f"no table of yes and no for this language: choose from {', '.join(SHIPPED_LANGUAGES)}")
    return language


Language = Annotated[str, AfterValidator(_shipped)]


class DenyWhenSettings(Section):
    """A rule over one argument of the tools that its pattern names; `matches` says what the argument holds."""

    tool: str
    arg: str
    pattern: str
    matches: ArgumentForm = "text"

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


def _not_an_empty_access(access: object) -> object:
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


class ChannelSettings(Section):
    """What every channel has. `tools` left out means all; `confirm_ttl` is in seconds.

    `messages_per_second` is this account's own pace; 0 says that nobody paces it, not even by conversation.
    People are answered in the language they write, out of `languages`; `language` is for those we know nothing of.
    Without `commands`, /help and the like go to the model.
    With `streaming` they see an answer while it comes, where the platform can show that and nothing judges it before.
    """

    access: Annotated[AccessSettings | None, BeforeValidator(_not_an_empty_access)] = None
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


def polls(channel: AnyChannel) -> bool:
    """Whether its platform is asked for what people write, and sends nothing."""
    return isinstance(channel, TelegramSettings) and channel.polling
