"""Settings below `agent`, and those that a channel can override."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sayso.channels.settings import NotBoolean, OptionalSecret, Section
from sayso.config.settings.base import OptionalRedisUrl, OptionalServerUrl

#: The model that needs no account: it matches messages to tools, and is no language model.
OFFLINE = "offline"
#: The vendors of models, and the variable that usually holds the key; "" where no key is needed.
VENDORS = {
    "openai": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "ollama": "",
}


def _vendor_model(model: str) -> str:
    vendor, _, name = model.partition(":")
    if vendor not in VENDORS or not name.strip():
        vendors = ", ".join(VENDORS)
        raise ValueError(f"unknown model: write vendor:model, such as openai:gpt-5-mini; vendors: {vendors}")
    return model


def _any_model(model: str) -> str:
    try:
        return model if model == OFFLINE else _vendor_model(model)
    except ValueError as exc:
        raise ValueError(f"{exc}; or '{OFFLINE}', which needs no account") from None


VendorModel = Annotated[str, AfterValidator(_vendor_model)]
AnyModel = Annotated[str, AfterValidator(_any_model)]
Count = Annotated[int, NotBoolean]
Number = Annotated[float, NotBoolean]


class ModelSettings(Section):
    """A model and how to reach it. Without `api_key` the key comes from the vendor's usual variable; with `base_url`
    only the `api_key` beside it is sent.
    """

    model: VendorModel
    api_key: OptionalSecret = None
    base_url: OptionalServerUrl = None
    model_settings: dict[str, Any] = Field(default={}, repr=False)


class SideSettings(Section):
    """The model for a task beside the conversation. Without `model` it is the conversation's own."""

    model: VendorModel | None = None
    api_key: OptionalSecret = None
    base_url: OptionalServerUrl = None
    model_settings: dict[str, Any] = Field(default={}, repr=False)

    @model_validator(mode="after")
    def _belongs_to_a_model(self) -> Self:
        if self.model is None and (self.api_key or self.base_url or self.model_settings):
            raise ValueError(
                "api_key and base_url are for a model, as model_settings are: "
                "add model: openai:gpt-5-nano, or leave them out"
            )
        return self


def _section_if_true(value: object) -> object:
    """Return an empty section for true, and None for false."""
    return {} if value is True else None if value is False else value


Side = Annotated[SideSettings | None, BeforeValidator(_section_if_true)]


class MemorySettings(Section):
    """What a conversation remembers, and what is remembered beyond it."""

    max_messages: Count = Field(default=20, ge=1, le=1000)
    max_tokens: Count | None = Field(default=None, ge=1)
    summarize: Side = None
    entities: Side = None
    relationships: Side = None
    knowledge: bool = False


class CacheSettings(Section):
    """A cache of the model's answers. With `redis_url` it has a Redis of its own, else it uses the bot's."""

    ttl: Number = Field(default=300.0, gt=0)
    max_entries: Count = Field(default=1000, ge=1)
    store: Literal["memory", "redis"] = "memory"
    redis_url: OptionalRedisUrl = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _of_its_store(self) -> Self:
        other = {"memory": "redis_url", "redis": "max_entries"}[self.store]
        if other in self.model_fields_set:
            raise ValueError(f"{other} is not for store: {self.store}: remove it")
        return self


class ResultSettings(SideSettings):
    """Results of tools: the most tokens that the model is shown, and whether long ones are summarized, by which model,
    and cached.
    """

    compress: bool = False
    threshold: Count = Field(default=2000, ge=1)
    cache: bool = False
    max_tokens: Count | None = Field(default=None, ge=100)


class BudgetSettings(Section):
    """The most that may be spent on models: by one run, by one conversation in a day, by all together in a day."""

    run_tokens: Count | None = Field(default=None, ge=1)
    run_usd: Number | None = Field(default=None, gt=0)
    conversation_tokens: Count | None = Field(default=None, ge=1)
    conversation_usd: Number | None = Field(default=None, gt=0)
    day_tokens: Count | None = Field(default=None, ge=1)
    day_usd: Number | None = Field(default=None, gt=0)

    @property
    def in_dollars(self) -> bool:
        """Whether any limit is in dollars, so that prices must be known."""
        return any(limit is not None for limit in (self.run_usd, self.conversation_usd, self.day_usd))


class LengthSettings(Section):
    """The length of a text, in characters."""

    max: Count | None = Field(default=None, ge=1)
    min: Count = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.max is None and not self.min:
            raise ValueError("it lets every text through: give max, min or both")
        return self


def _list_of_one(value: object) -> object:
    return [value] if isinstance(value, str) else value


TextList = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_list_of_one), Field(min_length=1)]


class GuardrailSettings(Section):
    """One check of a text, of one kind, and the action for a text that does not pass."""

    topic: TextList | None = None
    pattern: TextList | None = None
    length: LengthSettings | None = None
    injection: Literal[True] | None = None
    plugin: str | None = None
    action: Literal["block", "rewrite", "warn"] | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in GUARDRAILS) != 1:
            raise ValueError(f"choose one of {', '.join(GUARDRAILS)} for each guardrail")
        if self.plugin is not None and self.action is not None:
            raise ValueError("a plugin says itself what it does: remove action")
        return self


#: The kinds of guardrails, by their keys.
GUARDRAILS = ("topic", "pattern", "length", "injection", "plugin")


class CoherenceSettings(SideSettings):
    """The check whether calls fit the user's message. `fail_closed`: refuse a call that cannot be checked."""

    fail_closed: bool = False


def _none_if_off(value: object) -> object:
    if value is None or not (value == "off" or str(value).isdecimal()):
        raise ValueError("must be a whole number such as 3, or off")
    return None if value == "off" else value


class GuardSettings(Section):
    """Checks of texts and calls. `loop`: how often a round of calls may repeat in a run, None for no limit."""

    input: list[GuardrailSettings] = []
    output: list[GuardrailSettings] = []
    coherence: Annotated[CoherenceSettings | None, BeforeValidator(_section_if_true)] = None
    loop: Annotated[Count | None, Field(ge=2, le=100), BeforeValidator(_none_if_off)] = 3


class ObserveSettings(Section):
    """Observers of runs: the log, OpenTelemetry, and observers of the operator's own (`module:Class`)."""

    log: bool = False
    otel: bool = False
    plugin: Annotated[list[str], BeforeValidator(_list_of_one)] = []


class AgentSettings(Section):
    """The model behind all channels, and everything around it."""

    model: AnyModel = OFFLINE
    api_key: OptionalSecret = None
    base_url: OptionalServerUrl = None
    model_settings: dict[str, Any] = Field(default={}, repr=False)
    fallback: list[ModelSettings] = []
    system_prompt: str = "You are a helpful assistant. Use the tools you have, and say what you did."
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = 0.0
    max_tokens: Count = Field(default=1000, ge=1)
    context_tokens: Count | None = Field(default=None, ge=1000)
    max_iterations: Count = Field(default=6, ge=1, le=100)
    max_retries: Count = Field(default=2, ge=0, le=10)
    request_timeout: Number = Field(default=30.0, gt=0, le=600)
    tool_timeout: Number | None = Field(default=None, gt=0, le=600)
    cache_prompt: bool = True
    native_tools: bool = True
    prices: dict[str, tuple[Annotated[Number, Field(ge=0)], Annotated[Number, Field(ge=0)]]] = {}
    memory: MemorySettings = MemorySettings()
    cache: Annotated[CacheSettings | None, BeforeValidator(_section_if_true)] = None
    results: ResultSettings = ResultSettings()
    budget: BudgetSettings = BudgetSettings()
    guards: GuardSettings = GuardSettings()
    observe: ObserveSettings = ObserveSettings()


class ChannelAgentSettings(SideSettings):
    """What one channel overrides of `agent`."""

    system_prompt: str | None = None

    def over(self, agent: AgentSettings) -> AgentSettings:
        """Return the agent's settings on this channel. A key is never sent to another vendor."""
        changed: dict[str, object] = {} if self.system_prompt is None else {"system_prompt": self.system_prompt}
        if self.model is not None:
            changed["model"], changed["model_settings"] = self.model, self.model_settings
            if self.api_key or self.base_url or vendor_of(self.model) != vendor_of(agent.model):
                changed |= {"api_key": self.api_key, "base_url": self.base_url}
        return agent.model_copy(update=changed)


def vendor_of(model: str) -> str:
    """Return the vendor of a model, "" for the offline one."""
    return model.rpartition(":")[0].partition(":")[0]


def name_of(model: str) -> str:
    """Return the vendor's own name of a model."""
    return model.partition(":")[2] or model
