"""Settings of channels: platform, access, policy, selector."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, create_model, model_validator

from sayso.agent.guards.policy import ArgumentForm, problem_of
from sayso.channels.registry import BUILT_IN, find_platform
from sayso.channels.settings import NotBoolean, PlatformSettings, Section
from sayso.config.settings.agent import ChannelAgentSettings
from sayso.config.settings.tools import RolesSettings, Selector


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


class ChannelSettings(PlatformSettings):
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
    confirm_emoji: bool = False
    confirm_ok: bool = False
    messages_per_second: Annotated[float | None, NotBoolean] = Field(default=None, ge=0, le=10_000)
    expiry_notice: bool = False
    streaming: bool = False
    escalate: EscalateSettings | None = None
    agent: ChannelAgentSettings = ChannelAgentSettings()


@cache
def channel_model(platform: str) -> type[ChannelSettings] | None:
    """Return the settings of a channel on this platform: the platform's own keys and those of every channel.

    None for an unknown platform.
    """
    known = find_platform(platform)
    if known is None:
        return None
    name = f"{known.settings.__name__.removesuffix('Settings')}ChannelSettings"
    bases: Any = (known.settings, ChannelSettings)  # pydantic's own types take bases of one class only
    model: type[ChannelSettings] = create_model(name, __base__=bases, __doc__=known.settings.__doc__)
    return model


def _of_its_platform(value: Any) -> ChannelSettings:
    """Validate a channel by the model of its platform. Errors name the platform in their path, as a union's do."""
    if isinstance(value, ChannelSettings):
        return value
    named = value.get("platform") if isinstance(value, dict) else None
    own = [named] if isinstance(named, str) and named not in BUILT_IN and channel_model(named) else []
    settings: ChannelSettings = _any_of(*BUILT_IN, *own).validate_python(value)
    return settings


@cache
def _any_of(*platforms: str) -> TypeAdapter[Any]:
    union: Any = reduce(or_, (channel_model(platform) for platform in platforms))
    return TypeAdapter(Annotated[union, Field(discriminator="platform")])


AnyChannel = Annotated[ChannelSettings, PlainValidator(_of_its_platform)]
