"""Settings below `channels`: who may talk on a channel, what its tools may do, how it asks.

A channel has the keys of `ChannelSettings` and those of its platform, which the platform's folder
defines. `channel_model` puts both together. The docstring below a field is its text in the
reference of the YAML.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    create_model,
    model_validator,
)

from sayso.channels.base import (
    Count,
    Number,
    PlatformSettings,
    Section,
    refuse_bare_section,
    refuse_none,
)
from sayso.channels.registry import BUILT_IN, find_platform
from sayso.config.settings.agent import ChannelAgentSettings
from sayso.config.settings.approval import ApprovalSettings
from sayso.config.settings.standing import AnyStanding
from sayso.config.settings.tools import RolesSettings, Selector
from sayso.pending.action import DEFAULT_TTL_SECONDS, MAX_TTL_SECONDS


class DenyWhenSettings(Section):
    """A value of an argument with which tools never run."""

    tool: str
    """The name or pattern of the tools. Example: `send_*`."""
    arg: str
    """The argument that is looked at. Example: `to`."""
    pattern: str
    """What the argument may not match: a pattern as in file names, or a comparison where `matches`
    is `number`. Example: `'*@external.com'`.
    """
    matches: Literal["text", "email", "domain", "path", "number"] = "text"
    """What the argument holds, which says how it is read before it is compared.

    Example: `email`.
    """

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        # Imported here: it imports the agent, which takes longer than a whole operator's command.
        from sayso.agent.guards.argument_patterns import pattern_problem

        problem = pattern_problem(self.matches, self.pattern)
        if problem:
            raise ValueError(problem)
        return self


class PolicySettings(Section):
    """Which tools run at once, need a yes, or never run.

    Patterns are those of file names. The rules are read in the order `deny`, `deny_when`,
    `approval`, `review`, `allow`, and the first rule that fits a call decides. The patterns of
    `allow` and `editable` must have the case of the tool's name; all others ignore case.
    """

    allow: list[str] = []
    """Tools that run at once, unless their author requires a yes. Example: `[find_*]`."""
    review: list[str] = []
    """Tools that need a yes. So does every tool that no list names. Example: `[delete_*]`."""
    deny: list[str] = []
    """Tools that never run. Example: `[drop_*]`."""
    deny_when: list[DenyWhenSettings] = []
    """Arguments with which a tool never runs. Example:
    `[{tool: send_*, arg: to, pattern: '*@external.com', matches: email}]`.
    """
    approval: dict[str, ApprovalSettings] = {}
    """Tools about whose calls other people decide, even where `allow` names the tool. The first
    pattern that names the tool counts. Example: `{refund_*: {by: {role: manager}, need: 2}}`.
    """
    after: dict[str, Literal["continue", "say"]] = {}
    """What follows the outcome of a confirmed call: the model goes on with the request
    (`continue`), or the bot's own text is all (`say`). The first pattern that names the tool
    counts, before what the tool itself says. Example: `{refund_*: say}`.
    """
    standing: dict[str, AnyStanding] = {}
    """Limits for standing yeses, which also count for later calls; `off` forbids them. The first
    pattern that names the tool counts. They only narrow what the author of a tool allows. For tools
    of MCP servers and OpenAPI documents, which have no author here, they are the rule.
    Example: `{refund_*: {for: 30m, times: 3, where: {amount: '<= 20'}}, delete_*: 'off'}`.
    """
    editable: dict[str, list[str]] = {}
    """The arguments that a person may change before the yes. The first pattern that names the tool
    counts, before what the tool itself says. Example: `{refund_*: [amount, note]}`.
    """


class AddressSettings(Section):
    """A conversation, as its platform names it."""

    channel: str
    """The name of the channel. Example: `ops`."""
    chat: str = Field(min_length=1)
    """The id of the chat on its platform. Example: `C123`."""
    thread: str = ""
    """The id of the thread, if it is in one. Example: `'1700000000.000100'`."""


class EscalateSettings(Section):
    """Who is told of a question that stays unanswered."""

    after: Number = Field(gt=0, le=86_400)
    """Seconds from the moment the question was delivered. A question that ends earlier is told of
    at its end. Example: `300`.
    """
    to: AddressSettings
    """The conversation that is told. Example: `{channel: ops, chat: C123}`."""


#: Ids of people or chats, as their platform names them.
Ids = list[Annotated[str, Field(min_length=1)]]


class AccessSettings(Section):
    """Who may talk on a channel."""

    allow: Annotated[Ids | None, BeforeValidator(refuse_none)] = None
    """The ids of the people who may talk. Without it: all people. Example: `[U1, U2]`."""
    block: Ids = []
    """The ids of people who may never talk, and are not told so. Example: `[U9]`."""
    pairing: bool = False
    """Whether strangers get a code with which an operator lets them in:
    `sayso people approve CHANNEL CODE`. Example: `true`.
    """
    groups: Literal["mention", "always", "never"] = "mention"
    """Whether a message of a group is for the bot: where it is mentioned, always, or never.

    Example: `always`.
    """
    chats: Annotated[Ids | None, BeforeValidator(refuse_none)] = Field(default=None, min_length=1)
    """The only chats in which the bot talks. Without it: all. Example: `[C123]`."""
    per_minute: Count | None = Field(default=None, ge=1, le=60_000)
    """The most turns of one person in a minute, over all conversations of the channel.

    Example: `20`.
    """
    roles: Annotated[RolesSettings | None, BeforeValidator(refuse_none)] = None
    """Which tools each role may use. It is decided before any selector. Without it: all tools for
    all. Example: `{allowed: {staff: ['*']}, users: {U1: staff}}`.
    """


class ChannelSettings(PlatformSettings):
    """The keys that every channel has."""

    access: Annotated[AccessSettings | None, BeforeValidator(refuse_bare_section)] = None
    """Who may talk on the channel. Without it: all people. Example: `{allow: [U1]}`."""
    tools: Annotated[list[str] | None, BeforeValidator(refuse_none)] = None
    """Names and patterns of the tools that the channel may use. Without it: all. Example:
    `[find_*, delete_invoice]`.
    """
    policy: Annotated[PolicySettings | None, BeforeValidator(refuse_bare_section)] = None
    """Which tools run at once, need a yes, or never run. Without it: tools run at once, except
    those that ask by themselves. Example: `{allow: [find_*], review: [delete_*]}`.
    """
    selector: Annotated[Selector | None, BeforeValidator(refuse_none)] = None
    """Which of the channel's tools a model is shown before each call: a selector, or a list of
    them, each choosing from what the one before it left. Without it: all. Example: `{embedding:
    {top_k: 8}}`.
    """
    confirm_ttl: Number = Field(default=DEFAULT_TTL_SECONDS, gt=0, le=MAX_TTL_SECONDS)
    """Seconds to answer a question, from the moment it was delivered. Example: `120`."""
    confirm_emoji: bool = False
    """Whether a message that is only 👍 or ✅ is a yes, and 👎 or ❌ a no. Example: `true`."""
    confirm_ok: bool = False
    """Whether a plain "ok" is a yes where the open question is the last thing that was said.

    Example: `true`.
    """
    after: Literal["continue", "say"] | None = None
    """What follows the outcome of a confirmed action, where neither policy nor tool say: the model
    goes on with the request (`continue`), or the bot's own text is all (`say`). Without it:
    `continue`, and `say` with the offline model. Example: `say`.
    """
    other_message: Literal["drop", "keep"] = "drop"
    """What a message about something else does to an open question, where its tool does not say: it
    ends the question (`drop`), or is answered while the question stays open (`keep`). Example:
    `keep`.
    """
    messages_per_second: Number | None = Field(default=None, ge=0, le=10_000)
    """How fast this account may send, all workers together. Without it: the platform's own rate. 0:
    without any limit, for your own server in the vendor's place. Example: `20`.
    """
    expiry_notice: bool = False
    """Whether people are told when a question of theirs ends unanswered. Example: `true`."""
    streaming: bool = False
    """Whether people see an answer while it is written, where the platform can show that. With
    `agent.guards.output` or `agent.guards.coherence` they see it only when it is complete and
    checked. A streamed answer is not taken from `agent.cache`, and a model that fails in the middle
    of it is not asked again. Example: `true`.
    """
    escalate: EscalateSettings | None = None
    """The conversation that is told of a question that stays unanswered. Example:
    `{after: 300, to: {channel: ops, chat: C123}}`.
    """
    agent: ChannelAgentSettings = ChannelAgentSettings()
    """What this channel overrides of `agent`. Example: `{system_prompt: Be brief.}`."""


@cache
def channel_model(platform: str) -> type[ChannelSettings] | None:
    """Return the class of a channel's settings on this platform, None for an unknown platform.

    It has the keys of every channel and the platform's own. If both have a key, the platform's
    counts.
    """
    known_platform = find_platform(platform)
    if known_platform is None:
        return None
    name = f"{known_platform.settings.__name__.removesuffix('Settings')}ChannelSettings"
    # Any: the types of pydantic's `create_model` know no bases of two classes.
    bases: Any = (known_platform.settings, ChannelSettings)
    model: type[ChannelSettings] = create_model(
        name, __base__=bases, __doc__=known_platform.settings.__doc__
    )
    return model


def _of_its_platform(value: Any) -> ChannelSettings:
    """Validate a channel by the model of its platform. Raises pydantic.ValidationError."""
    if isinstance(value, ChannelSettings):
        return value

    # The models form a union: then the error for an unknown platform names the known ones, and each
    # other error has the platform in its path. Another distribution is imported only if the channel
    # is on its platform.
    platforms = list(BUILT_IN)
    platform = None
    if isinstance(value, dict):
        platform = value.get("platform")
    if isinstance(platform, str) and platform not in BUILT_IN and channel_model(platform):
        platforms.append(platform)
    settings: ChannelSettings = _any_of(*platforms).validate_python(value)
    return settings


@cache
def _any_of(*platforms: str) -> TypeAdapter[Any]:
    """Return the validator of channels on these platforms, which must be known.

    It chooses the model by the channel's key `platform`.
    """
    union: Any = reduce(or_, (channel_model(platform) for platform in platforms))
    return TypeAdapter(Annotated[union, Field(discriminator="platform")])


#: A channel of any platform.
AnyChannel = Annotated[ChannelSettings, PlainValidator(_of_its_platform)]
