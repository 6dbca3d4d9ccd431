"""The values that people, models and tools exchange: Message, ToolCall, UsageStats.

A *transcript* is a list of messages in order. It is what a model reads of a conversation. A call of
the model (ToolCall) stands in its answer, and the result of the call in a later message of the role
"tool".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, get_args

from sayso.channels.types import Media

#: Name of the only argument of a call whose arguments were not a JSON object.
#: Such a call is refused.
NOT_JSON = "arguments that are not a JSON object"


class Role(StrEnum):
    """Who wrote a message: the program, the user, the model, or a tool with its result."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(slots=True)
class ToolCall:
    """A model's request to call one tool. `id` links the result to the call."""

    tool_name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the call as JSON-ready data."""
        return {"tool_name": self.tool_name, "parameters": dict(self.parameters), "id": self.id}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolCall:
        """Return the call that `to_dict` wrote. Raises TypeError for anything else."""
        call = cls(**data)
        _require_texts(call.tool_name, call.id)
        if not isinstance(call.parameters, dict):
            raise TypeError(
                f"a call of {call.tool_name!r} has {type(call.parameters).__name__!r}"
                " for its parameters"
            )
        return call


@dataclass(frozen=True, slots=True)
class TextReference:
    """The file of a long text: `ref` is the SHA-256 of the text, `chars` its length."""

    ref: str
    chars: int

    def to_dict(self) -> dict[str, Any]:
        """Return the reference as JSON-ready data."""
        return {"ref": self.ref, "chars": self.chars}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TextReference:
        """Return the reference that `to_dict` wrote.

        Raises KeyError, ValueError or TypeError for anything else.
        """
        return cls(str(data["ref"]), int(data["chars"]))


#: What became of a call that was only proposed. "denied": the user said no. "expired": no answer
#: came in time. "replaced": another message or action took its place, so it was not carried out.
#: "unknown": it may have taken effect. "undone": it took effect and was undone.
ActionOutcome = Literal["done", "failed", "denied", "expired", "replaced", "unknown", "undone"]
#: The outcomes after which nothing more happens to an action.
#: An unknown or failed one may turn out otherwise.
FINAL_OUTCOMES: tuple[ActionOutcome, ...] = ("done", "denied", "expired", "replaced", "undone")


@dataclass(frozen=True, slots=True)
class ActionLink:
    """The link from the result of a call to a pending action that the call proposed.

    It says how the action ended, as far as the text of the result says it. If it is older than the
    stored action, the result is written again.
    """

    #: The id of the action. If the calls of one answer became a plan, the id of this call's step.
    id: str
    #: What became of the action; "" while it waits.
    outcome: ActionOutcome | Literal[""] = ""
    #: When the outcome was reached, in Unix seconds; 0.0 if that is not known.
    at: float = 0.0
    #: The id of the action that undid it, or tried to; "" for none.
    undo: str = ""
    #: Whether the outcome cannot change any more, except by an undo.
    is_final: bool = False
    #: The arguments of the action if its person has changed those of the call; None if not.
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the link as JSON-ready data, without empty fields."""
        fields = {
            "id": self.id,
            "outcome": self.outcome,
            "at": self.at,
            "undo": self.undo,
            "is_final": self.is_final,
        }
        data = {name: value for name, value in fields.items() if value}
        if self.arguments is not None:
            data["arguments"] = dict(self.arguments)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ActionLink:
        """Return the link that `to_dict` wrote.

        Raises TypeError or ValueError for anything else.
        """
        link = cls(**data)
        _require_texts(link.id, link.outcome, link.undo)
        if link.outcome and link.outcome not in get_args(ActionOutcome):
            raise ValueError(
                f"{link.outcome!r} is no outcome; known: {sorted(get_args(ActionOutcome))}"
            )
        if not isinstance(link.arguments, dict | None):
            raise TypeError(f"the arguments of {link.id!r} are no object")
        return link


#: Why a model stopped, in the terms of OpenTelemetry's conventions; "" if the vendor does not say.
FinishReason = Literal["", "stop", "length", "tool_call", "content_filter", "error"]

#: What a failed model call means for the user who waits.
#:
#: * "away": no answer came at all.
#: * "no_access": a wrong key, an unknown model or a spent quota, which only the operator can mend.
#: * "busy": the vendor has too many requests.
#: * "refused": the vendor rejects this request.
#: * "too_long": the conversation is too long for the model.
#: * "cut_off": the answer ended too early.
FailureKind = Literal["away", "no_access", "busy", "refused", "too_long", "cut_off"]


@dataclass(slots=True)
class AnswerDetails:
    """What a vendor reports about an answer besides text, calls and tokens."""

    finish_reason: FinishReason = ""
    #: The vendor's id of the answer; "" for none.
    response_id: str = ""
    #: The model's reasoning before its calls, as JSON that only its vendor understands; None for
    #: none. It is sent back to the vendor for the rest of the run.
    reasoning: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that a tool made for the model to look at.

    `media` is its place in the media store. Until it is stored, `data` has its bytes.
    """

    mime_type: str
    data: bytes = field(default=b"", repr=False)
    media: Media | None = None


# Not frozen: that would triple the time to create one, and a run creates many. Do not change one.
@dataclass(slots=True, unsafe_hash=True)
class Message:
    """One entry of a transcript: of the user, of the model, of a tool, or of the program."""

    role: Role
    #: The text that a model reads. "" for a call that still waits for a decision.
    content: str = ""
    #: The calls in an answer of the model.
    tool_calls: tuple[ToolCall, ...] = ()
    #: The call that the result of a tool answers: its id and the name of its tool.
    tool_call_id: str = ""
    tool_name: str = ""
    #: The files that the user sent.
    media: tuple[Media, ...] = ()
    #: The file of a long text; None for a text that is here in full. With a file, `content` is only
    #: the beginning of the text, for a result also its end.
    text_file: TextReference | None = None
    #: JSON that a program stores with a tool's result. No model reads it.
    tool_result: Any = None
    #: What the vendor says of an answer: the model's reasoning, why it stopped.
    details: AnswerDetails | None = field(default=None, compare=False)
    #: Images of a result. The model sees them until the run ends; transcripts do not store them.
    pictures: tuple[Picture, ...] = field(default=(), compare=False)
    #: The pending actions that the call proposed. Once they have ended, `content` says how.
    actions: tuple[ActionLink, ...] = field(default=(), compare=False)
    #: Whether the tool ran to its end, so that `content` is its result and no error. Known only
    #: within a run.
    has_result: bool = field(default=False, compare=False)
    #: A result in full where `content` has only a part of it; "" elsewhere.
    full_text: str = field(default="", compare=False, repr=False)
    #: When a call was made whose outcome is unknown, in Unix seconds; 0 for all others.
    at: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the message as JSON-ready data, without empty fields."""
        # Not `asdict`, which copies everything and takes ten times as long.
        data: dict[str, Any] = {"role": self.role.value}
        for name in ("content", "full_text", "tool_call_id", "tool_name"):
            text = getattr(self, name)
            if text:
                data[name] = text
        if self.tool_calls:
            data["tool_calls"] = tuple(call.to_dict() for call in self.tool_calls)
        if self.media:
            data["media"] = tuple(asdict(media) for media in self.media)
        if self.text_file:
            data["text_file"] = self.text_file.to_dict()
        if self.tool_result is not None:
            data["tool_result"] = self.tool_result
        if self.actions:
            data["actions"] = tuple(link.to_dict() for link in self.actions)
        if self.at:
            data["at"] = self.at
        if self.details is not None and self.details.reasoning:
            data["reasoning"] = dict(self.details.reasoning)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """Return the message that `to_dict` wrote.

        Raises ValueError or TypeError for anything else.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"a message is {type(data).__name__!r}")
        reasoning = data.get("reasoning", {})
        if not isinstance(reasoning, Mapping):
            raise TypeError(f"a message has {type(reasoning).__name__!r} for its reasoning")
        text_file = None
        if "text_file" in data:
            text_file = TextReference.from_dict(data["text_file"])
        details = None
        if "reasoning" in data:
            details = AnswerDetails(reasoning=reasoning)
        fields = {name: value for name, value in data.items() if name != "reasoning"}
        fields.update(
            role=Role(data["role"]),
            tool_calls=tuple(map(ToolCall.from_dict, data.get("tool_calls", ()))),
            media=tuple(Media(**media) for media in data.get("media", ())),
            text_file=text_file,
            actions=tuple(map(ActionLink.from_dict, data.get("actions", ()))),
            details=details,
        )
        message = cls(**fields)
        _require_texts(message.content, message.tool_call_id, message.tool_name, message.full_text)
        return message


# Not frozen, for the same reason as Message. Do not change one.
@dataclass(slots=True, unsafe_hash=True)
class UsageStats:
    """What model calls consumed. The sum of two has the model and provider of the later one."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    #: In US dollars, 0.0 if it is not known.
    cost_usd: float = 0.0
    #: The model that answered; "" if the vendor does not say.
    model: str = ""
    #: The name of the provider that answered; "" if it is not known.
    provider: str = ""
    #: The part of `prompt_tokens` that the vendor read from its prompt cache.
    cache_read_tokens: int = 0
    #: The part of `prompt_tokens` that the vendor wrote to its prompt cache.
    cache_write_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the usage as JSON-ready data."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __add__(self, other: UsageStats) -> UsageStats:
        if self is NO_USAGE:
            return other
        if other is NO_USAGE:
            return self
        return UsageStats(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.cost_usd + other.cost_usd,
            other.model or self.model,
            other.provider or self.provider,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


#: The largest number of tokens or dollars that is credible for one call. Up to this number, a float
#: represents each integer exactly.
MAX_CREDIBLE = 2**53
#: No usage at all, the start of most sums.
NO_USAGE = UsageStats()


def countable(usage: UsageStats) -> UsageStats:
    """Return the usage with only credible numbers: one wrong number would spoil every later sum.

    Negative and absurdly large numbers become 0, and the total is at least the sum of its parts. A
    usage with a field of the wrong type counts as empty.
    """
    if not has_valid_types(usage):
        return UsageStats()

    # Nearly all usages are credible. They are returned without a copy.
    parts = (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
    )
    has_credible_cost = 0 <= usage.cost_usd <= MAX_CREDIBLE
    are_credible = min(parts) >= 0 and max(parts) <= MAX_CREDIBLE and has_credible_cost
    parts_of_total = usage.prompt_tokens + usage.completion_tokens
    if are_credible and parts_of_total <= usage.total_tokens <= MAX_CREDIBLE:
        return usage

    prompt = _credible(usage.prompt_tokens)
    completion = _credible(usage.completion_tokens)
    return replace(
        usage,
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=max(_credible(usage.total_tokens), prompt + completion),
        cost_usd=usage.cost_usd if has_credible_cost else 0.0,
        cache_read_tokens=_credible(usage.cache_read_tokens),
        cache_write_tokens=_credible(usage.cache_write_tokens),
    )


def _credible(tokens: int) -> int:
    """Return the number of tokens, or 0 if it cannot be true."""
    if 0 <= tokens <= MAX_CREDIBLE:
        return tokens
    return 0


def has_valid_types(usage: UsageStats) -> bool:
    """Return whether each field has its type. A cost may be an integer."""
    # Written out rather than looped: it runs for each answer.
    prompt = type(usage.prompt_tokens)
    completion = type(usage.completion_tokens)
    total = type(usage.total_tokens)
    cache_read = type(usage.cache_read_tokens)
    cache_write = type(usage.cache_write_tokens)
    has_counts = prompt is completion is total is cache_read is cache_write is int
    has_names = isinstance(usage.model, str) and isinstance(usage.provider, str)
    return has_counts and has_names and isinstance(usage.cost_usd, int | float)


def without_notes(content: str) -> str:
    """Return the user's own text of a message.

    The leading lines in brackets, which the channel adds, are left out.
    """
    lines = content.split("\n")
    while lines and lines[0].startswith("[") and lines[0].endswith("]"):
        lines.pop(0)
    return "\n".join(lines)


def _require_texts(*values: object) -> None:
    """Raise TypeError for a value that is no text."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"a message has {type(value).__name__!r} where a text belongs")
