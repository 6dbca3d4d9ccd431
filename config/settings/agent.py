"""Settings below `agent`, and those that a channel can override.

The docstring below a field is its text in the reference of the YAML. `docs/generate.py` reads it,
and requires that it ends with "Example: `...`.".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from sayso.channels.base import (
    Count,
    Number,
    OptionalSecret,
    Section,
    none_if_empty,
    refuse_none,
)
from sayso.infra.redis.url import RedisUrl
from sayso.infra.urls import server_address

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
    """Check that a model is written as `vendor:model`, and return it. Raises ValueError."""
    vendor, _, name = model.partition(":")
    if vendor not in VENDORS or not name.strip():
        vendors = ", ".join(VENDORS)
        raise ValueError(
            f"unknown model: write vendor:model, such as openai:gpt-5-mini; vendors: {vendors}"
        )
    return model


def _any_model(model: str) -> str:
    """Check that a model is the offline one or `vendor:model`. Raises ValueError."""
    if model == OFFLINE:
        return model
    try:
        return _vendor_model(model)
    except ValueError as exc:
        raise ValueError(f"{exc}; or '{OFFLINE}', which needs no account") from None


def redis_address(url: str) -> str:
    """Check that a URL names a Redis, and return it unchanged. Raises ValueError."""
    if url.partition("://")[0].endswith("+cluster"):
        # Imported here: it imports the classes of clusters, which few bots need.
        from sayso.infra.redis.cluster import ClusterUrl

        ClusterUrl.parse(url)
    else:
        RedisUrl.parse(url)
    return url


#: The URL of a server whose secrets, if any, stand in separate keys.
ServerUrl = Annotated[str, AfterValidator(server_address)]
OptionalServerUrl = Annotated[ServerUrl | None, BeforeValidator(none_if_empty)]
OptionalRedisUrl = Annotated[
    Annotated[str, AfterValidator(redis_address)] | None, BeforeValidator(none_if_empty)
]
VendorModel = Annotated[str, AfterValidator(_vendor_model)]
AnyModel = Annotated[str, AfterValidator(_any_model)]


def _two_or_four(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Check how many prices there are. Raises ValueError."""
    if len(numbers) not in (2, 4):
        raise ValueError(
            "must be two numbers, of input and output, or four: then also of cache reads and cache writes"
        )
    return numbers


#: The prices of a model, in dollars for a million tokens: of input and output, and of cache reads
#: and cache writes.
ModelPrices = Annotated[tuple[Annotated[Number, Field(ge=0)], ...], AfterValidator(_two_or_four)]


class ModelAccess(Section):
    """A model and how to reach it: what all sections that name a model have in common."""

    model: VendorModel | None = None
    """The vendor and its name of the model. Example: `openai:gpt-5-nano`."""
    api_key: OptionalSecret = None
    """The vendor's key. Without it the key comes from the vendor's variable: OPENAI_API_KEY,
    ANTHROPIC_API_KEY or GEMINI_API_KEY; a server at `base_url` is sent no other key than this one.
    Example: `${OPENAI_API_KEY}`.
    """
    base_url: OptionalServerUrl = None
    """Another server than the vendor's. With `openai:` any server that speaks OpenAI's chat
    completions, such as vLLM or a gateway. Example: `http://127.0.0.1:8000/v1`.
    """
    model_settings: dict[str, Any] = Field(default={}, repr=False)
    """Whatever else the vendor takes, for this model alone: fields of its request such as `top_p`,
    `reasoning_effort` and `thinking_budget`; `extra_headers`, `extra_body`. Example: `{top_p: 0.9,
    reasoning_effort: low}`.
    """
    prompt_cache_key: bool | None = None
    """Whether OpenAI's API is sent a key for each conversation, which keeps its prompt in one
    cache. Without it: only without a `base_url`, since other servers may refuse the field. Example:
    `true`.
    """


class FallbackSettings(ModelAccess):
    """A model that is asked when those before it fail."""

    model: VendorModel
    """The vendor and its name of the model. Example: `openai:gpt-5-mini`."""


class SideSettings(ModelAccess):
    """The model for a task outside of the conversation, such as a summary."""

    model: VendorModel | None = None
    """The vendor and its name of the model. Without it the conversation's own model is asked.
    Example: `openai:gpt-5-nano`.
    """

    @model_validator(mode="after")
    def _belongs_to_a_model(self) -> Self:
        has_access = self.api_key or self.base_url or self.prompt_cache_key is not None
        if self.model is None and (has_access or self.model_settings):
            raise ValueError(
                "api_key and base_url are for a model, as model_settings and prompt_cache_key are: "
                "add model: openai:gpt-5-nano, or leave them out"
            )
        return self


def _section_if_true(value: object) -> object:
    """Return an empty section for true, and None for false. Raises ValueError for None."""
    refuse_none(value)
    if value is True:
        return {}
    if value is False:
        return None
    return value


#: A side task: off, on with the conversation's model, or on with the model of a section.
Side = Annotated[
    SideSettings | None,
    BeforeValidator(_section_if_true, json_schema_input_type=bool | SideSettings | None),
]


class MemorySettings(Section):
    """What a conversation remembers, and what is remembered beyond it."""

    max_messages: Count = Field(default=40, ge=1, le=1000)
    """The most messages of a conversation that are kept for the model. When they are exceeded, half
    of them stay: whole exchanges are dropped, oldest first. Example: `60`.
    """
    max_tokens: Count | None = Field(default=None, ge=1)
    """The most tokens of a conversation that are kept for the model, besides `max_messages`. When
    they are exceeded, half of them stay. Example: `8000`.
    """
    summarize: Side = None
    """Whether a model summarizes what is dropped: `true` for the conversation's model, or a section
    with another. One summary serves many turns. Example: `true`.
    """
    entities: Side = None
    """Whether a model notes who and what was named.

    It is asked once more in each turn. Example: `true`.
    """
    relationships: Side = None
    """Whether a model notes how people and things are related. It is asked once more in each turn.
    Example: `{model: openai:gpt-5-nano}`.
    """
    knowledge: bool = False
    """Whether the model may save, with the tool `remember`, what a person asks it to keep.

    Example: `true`.
    """


class CacheSettings(Section):
    """Answers of the model that are given again."""

    ttl: Number = Field(default=300.0, gt=0)
    """Seconds for which an answer is given again. Example: `3600`."""
    max_entries: Count = Field(default=1000, ge=1)
    """The most answers that are kept, in memory only. Example: `5000`."""
    store: Literal["memory", "redis"] = "memory"
    """Where answers are kept: in each worker's memory, or in Redis for all workers.

    Example: `redis`.
    """
    redis_url: OptionalRedisUrl = Field(default=None, repr=False)
    """A Redis of the cache's own, with `store: redis` only. Without it the bot's Redis is used.
    Example: `redis://127.0.0.1:6380/0`.
    """

    @model_validator(mode="after")
    def _of_its_store(self) -> Self:
        key_of_other_store = "max_entries" if self.store == "redis" else "redis_url"
        if key_of_other_store in self.model_fields_set:
            raise ValueError(f"{key_of_other_store} is not for store: {self.store}: remove it")
        return self


class ResultSettings(SideSettings):
    """What becomes of the results of tools.

    `model` summarizes long ones; without it the agent's own model does.
    """

    compress: bool = False
    """Whether a model summarizes results of tools that are longer than `threshold`.

    Example: `true`.
    """
    threshold: Count = Field(default=2000, ge=1)
    """The characters from which a result counts as long. Example: `4000`."""
    cache: bool = False
    """Whether results of tools that are marked as `cacheable` are used again. Example: `true`."""
    max_tokens: Count = Field(default=8000, ge=100)
    """The most tokens of one result that the model reads in the turn of the call, at most a quarter
    of its context window. It reads the rest with the tool `read_result`, and later turns the
    beginning and the end. Example: `12000`.
    """


class BudgetSettings(Section):
    """The most that may be spent on models. What exceeds it ends the run politely."""

    run_tokens: Count | None = Field(default=None, ge=1)
    """The most tokens of one run. Example: `50000`."""
    run_usd: Number | None = Field(default=None, gt=0)
    """The most dollars of one run. Example: `0.10`."""
    conversation_tokens: Count | None = Field(default=None, ge=1)
    """The most tokens of one person's conversation in a day (UTC). Example: `200000`."""
    conversation_usd: Number | None = Field(default=None, gt=0)
    """The most dollars of one person's conversation in a day (UTC). Example: `0.50`."""
    day_tokens: Count | None = Field(default=None, ge=1)
    """The most tokens of all conversations together in a day (UTC). Example: `5000000`."""
    day_usd: Number | None = Field(default=None, gt=0)
    """The most dollars of all conversations together in a day (UTC). Example: `20`."""

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, limit: object) -> object:
        return refuse_none(limit)

    @property
    def in_dollars(self) -> bool:
        """Whether any limit is in dollars, so that prices must be known."""
        limits = (self.run_usd, self.conversation_usd, self.day_usd)
        return any(limit is not None for limit in limits)


class LengthSettings(Section):
    """The length of a text, in characters."""

    max: Count | None = Field(default=None, ge=1)
    """The most characters. Example: `4000`."""
    min: Count = Field(default=0, ge=0)
    """The fewest characters. Example: `2`."""

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        # A `min` above `max` is refused by LengthGuardrail, which is built from these settings.
        if self.max is None and not self.min:
            raise ValueError("it lets every text through: give max, min or both")
        return self


def _list_of_one(value: object) -> object:
    """Return a text as a list, and everything else unchanged."""
    if isinstance(value, str):
        return [value]
    return value


#: One text or several.
TextList = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(_list_of_one, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]


class GuardrailSettings(Section):
    """One check of a text, and what happens to a text that does not pass.

    It has exactly one of `topic`, `pattern`, `length`, `injection` and `plugin`. All but a plugin
    may have an action.
    """

    topic: TextList | None = None
    """Words and phrases that a text may not contain, as whole words, whatever their case and
    accents. Example: `[lawsuit, legal advice]`.
    """
    pattern: TextList | None = None
    r"""Regular expressions that a text may not match. Example: `'\b\d{16}\b'`."""
    length: LengthSettings | None = None
    """How long or short a text may be. Example: `{max: 4000}`."""
    injection: Literal[True] | None = None
    """Whether texts with phrases of known prompt injections are stopped. Example: `true`."""
    plugin: str | None = None
    """Your own guardrail, as `module:Class`. It says itself what it does, so it has no
    `action`. Example: `my_guards:NoPrices`.
    """
    action: Literal["block", "rewrite", "warn"] | None = None
    """What happens to a text that does not pass: `block` ends the run, `warn` only tells observers.
    `rewrite` replaces each match of a `pattern` by "[redacted]", and shortens a text that exceeds
    the `max` of a `length`; nothing else can be rewritten. Without it: `block`. Example: `warn`.
    """

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        # What cannot be built, such as a `pattern` that is no regular expression, is refused at the
        # start by `config/wiring/agents.py`, which builds the guardrails.
        kinds = [kind for kind in GUARDRAILS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"choose one of {', '.join(GUARDRAILS)} for each guardrail")
        if self.plugin is not None and self.action is not None:
            raise ValueError("a plugin says itself what it does: remove action")
        return self


#: The kinds of guardrails, by their keys.
GUARDRAILS = ("topic", "pattern", "length", "injection", "plugin")


class CoherenceSettings(SideSettings):
    """The check whether calls of tools fit the user's message, and the model that makes it."""

    fail_closed: bool = False
    """Whether calls are refused when the model that should check them does not answer.

    Example: `true`.
    """


def _none_if_off(value: object) -> object:
    """Return None for `off`, and a number unchanged. Raises ValueError for everything else.

    The loader reads YAML 1.2, where `off` is a text and not false.
    """
    if value == "off":
        return None
    if str(value).isdecimal():
        return value
    raise ValueError("must be a whole number such as 3, or off")


class GuardSettings(Section):
    """Checks of texts and calls."""

    input: list[GuardrailSettings] = []
    """The checks of what people write, in this order. Each sees what the one before it left.
    Example: `[{length: {max: 4000}}]`.
    """
    output: list[GuardrailSettings] = []
    """The checks of answers, in this order. Example: `[{topic: [lawsuit], action: block}]`."""
    coherence: Annotated[
        CoherenceSettings | None,
        BeforeValidator(_section_if_true, json_schema_input_type=bool | CoherenceSettings | None),
    ] = None
    """Whether a model checks that calls of tools serve what the person asked for: `true`,
    or a section. Example: `true`.
    """
    loop: Annotated[
        Count | None,
        Field(ge=2, le=100),
        BeforeValidator(
            _none_if_off,
            json_schema_input_type=Annotated[int, Field(ge=2, le=100)] | Literal["off"],
        ),
    ] = 3
    """How often a run may repeat the same calls before the model is told and the run is ended;
    `off` for no limit. Example: `5`.
    """


class ObserveSettings(Section):
    """Observers of runs."""

    log: bool = False
    """Whether the events of runs are written to the log. Example: `true`."""
    otel: bool = False
    """Whether messages are traced with OpenTelemetry from the webhook to the receipt,
    with model calls and tools. Example: `true`.
    """
    plugin: Annotated[
        list[str], BeforeValidator(_list_of_one, json_schema_input_type=str | list[str])
    ] = []
    """Your own observers, each as `module:Class`: one, or a list.

    Example: `[my_observers:Costs]`.
    """


class AgentSettings(ModelAccess):
    """The model behind all channels, and everything around it."""

    model: AnyModel = OFFLINE
    """The vendor and its name of the model. Vendors: `openai`, `openai-responses`, `anthropic`,
    `gemini`, `ollama`. `offline` matches messages to tools by their words; it is not a language
    model and needs no account. Example: `openai:gpt-5-mini`.
    """
    fallback: list[FallbackSettings] = []
    """Models that are asked, in this order, when the first one fails.

    Example: `[{model: ollama:llama3.2}]`.
    """
    system_prompt: str = (
        "You are a helpful assistant. Use the tools you have, and say what you did."
    )
    """What the model is told before the conversation.

    Example: `You help the people of a fruit shop.`.
    """
    # `model_fields_set` tells a 0.0 that was set from the default.
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = 0.0
    """How freely the model writes. `null` sends none. A model that no price list knows may refuse
    the default, so it is sent a temperature only if you set one. Example: `0.7`.
    """
    max_tokens: Count = Field(default=1000, ge=1)
    """The most tokens of one answer. Thinking counts. Example: `4000`."""
    context_tokens: Count | None = Field(default=None, ge=1000)
    """How many tokens the model can read at once. Longer conversations are shortened. Without it:
    what the vendor says, else 200,000. Set it for your own server. Example: `32000`.
    """
    max_iterations: Count = Field(default=6, ge=1, le=100)
    """The most model calls in one turn. Example: `10`."""
    max_retries: Count = Field(default=2, ge=0, le=10)
    """How often a model that failed is asked again. Example: `3`."""
    request_timeout: Number = Field(default=30.0, gt=0, le=600)
    """The most seconds for one whole answer; of a streamed answer, the most seconds of silence
    between two pieces. Example: `60`.
    """
    tool_timeout: Number | None = Field(default=None, gt=0, le=600)
    """The most seconds for one call of a tool. Example: `20`."""
    cache_prompt: bool | Literal["explicit"] = True
    """Whether requests ask the vendor to cache the prompt: with marks for Anthropic, with a key for
    OpenAI. Gemini and most other servers do it by themselves; `explicit` also rents caches from
    Gemini while they pay. Example: `false`.
    """
    native_tools: bool = True
    """Set it to false for a model without tool calling: tools are then described in the prompt, and
    calls are read from its text. Example: `false`.
    """
    prices: dict[str, ModelPrices] = {}
    """Dollars for a million tokens of input and of output, for models that no price list has; then,
    if they cost something else, of the input that was read from and written to the vendor's prompt
    cache. Example: `{my-model: [1.0, 2.0, 0.1, 1.25]}`.
    """
    memory: MemorySettings = MemorySettings()
    """What a conversation remembers. Example: `{max_messages: 60}`."""
    cache: Annotated[
        CacheSettings | None,
        BeforeValidator(_section_if_true, json_schema_input_type=bool | CacheSettings | None),
    ] = None
    """Whether answers of the model are given again: `true`, or a section. Example: `true`."""
    results: ResultSettings = ResultSettings()
    """What becomes of the results of tools. Example: `{compress: true}`."""
    budget: BudgetSettings = BudgetSettings()
    """What may be spent on models. Example: `{day_usd: 20}`."""
    guards: GuardSettings = GuardSettings()
    """Checks of texts and calls. Example: `{loop: 5}`."""
    observe: ObserveSettings = ObserveSettings()
    """Who is told of runs. Example: `{log: true}`."""


class ChannelAgentSettings(SideSettings):
    """What one channel overrides of `agent`."""

    system_prompt: str | None = None
    """What the model is told before the conversation on this channel.

    Example: `You talk to customers. Be brief.`.
    """

    def over(self, agent: AgentSettings) -> AgentSettings:
        """Return the bot's settings of its agent, with what this channel changes.

        A channel's model is reached with the key and at the address of `agent`. If the channel has
        a key or an address, or a model of another vendor, neither is taken from `agent`: a key is
        never sent to another vendor or server. `openai` and `openai-responses` are two vendors.
        """
        changed: dict[str, object] = {}
        if self.system_prompt is not None:
            changed["system_prompt"] = self.system_prompt
        if self.model is not None:
            changed["model"] = self.model
            changed["model_settings"] = self.model_settings
            is_other_vendor = vendor_of(self.model) != vendor_of(agent.model)
            if self.api_key or self.base_url or is_other_vendor:
                changed["api_key"] = self.api_key
                changed["base_url"] = self.base_url
                # The default depends on the server.
                changed["prompt_cache_key"] = self.prompt_cache_key
            elif self.prompt_cache_key is not None:
                changed["prompt_cache_key"] = self.prompt_cache_key
        return agent.model_copy(update=changed)


def vendor_of(model: str) -> str:
    """Return the vendor of a model as the YAML has it, "" for the offline one."""
    if ":" not in model:
        return ""
    return model.partition(":")[0]


def name_of(model: str) -> str:
    """Return the vendor's own name of a model as the YAML has it, such as `gpt-5-mini`."""
    return model.partition(":")[2] or model
