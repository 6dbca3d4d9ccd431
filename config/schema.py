"""Schema: every key of the YAML, with its type and default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

#: Channel names are parts of URLs, Redis keys and job arguments.
CHANNEL_NAME = r"^[A-Za-z0-9_.-]{1,64}$"


class Section(BaseModel):
    """A part of the YAML: unknown keys are errors, nothing changes after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class AgentSettings(Section):
    """The model behind all channels."""

    model: str = "offline"
    system_prompt: str = "You are a helpful assistant. Use the tools you have, and say what you did."
    max_iterations: int = Field(6, ge=1, le=100)

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model != "offline":
            raise ValueError(f"unknown model {model!r}; this version ships 'offline', which needs no account")
        return model


class PolicySettings(Section):
    """Which tools run at once, which need a yes, which never run. Patterns as in file names."""

    allow: list[str] = []
    review: list[str] = []
    deny: list[str] = []
    deny_when: list[dict[str, str]] = []


class ChannelSettings(Section):
    """What every channel has. `tools` left out means all; `confirm_ttl` is in seconds."""

    tools: list[str] | None = None
    policy: PolicySettings | None = None
    confirm_ttl: float = Field(60.0, gt=0, le=86_400)


class WhatsAppSettings(ChannelSettings):
    """WhatsApp through Twilio."""

    platform: Literal["whatsapp"]
    account_sid: str = Field(min_length=1)
    auth_token: SecretStr = Field(min_length=1)
    from_: str = Field(alias="from", pattern=r"^whatsapp:")
    api_url: str | None = None


class TelegramSettings(ChannelSettings):
    """A Telegram bot."""

    platform: Literal["telegram"]
    token: SecretStr = Field(min_length=1)
    secret_token: SecretStr = Field(min_length=1)
    api_url: str | None = None


class SlackSettings(ChannelSettings):
    """A Slack app."""

    platform: Literal["slack"]
    bot_token: SecretStr = Field(min_length=1)
    signing_secret: SecretStr = Field(min_length=1)
    api_url: str | None = None


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
    redis_url: str = ""
    agent: AgentSettings = AgentSettings()
    tools: list[str] = []
    channels: dict[Annotated[str, Field(pattern=CHANNEL_NAME)], AnyChannel] = Field(min_length=1)

    @field_validator("public_url")
    @classmethod
    def _a_base(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no URL: write it as https://bots.example.com")
        return url.rstrip("/")


def secret_fields() -> set[str]:
    """The keys whose values must come from the environment or a file."""
    models: list[type[BaseModel]] = [WhatsAppSettings, TelegramSettings, SlackSettings, ConsoleSettings]
    return {name for model in models for name, info in model.model_fields.items() if _is_secret(info.annotation)}


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr
