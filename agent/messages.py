"""Message: one entry of a transcript, as people, models and tools exchange it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from sayso.agent.swift import swift
from sayso.channels.types import Media

#: The only argument of a call whose arguments were no JSON object: it is refused, whatever its tool would take.
NOT_JSON = "arguments that are not a JSON object"


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@swift
@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model's wish to call one tool; `id` ties the result to it."""

    tool_name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The call as JSON-ready data."""
        return {"tool_name": self.tool_name, "parameters": dict(self.parameters), "id": self.id}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolCall:
        """The call that `to_dict` wrote. Raises TypeError on anything else."""
        call = cls(**data)
        _demand_texts(call.tool_name, call.id)
        if not isinstance(call.parameters, dict):
            raise TypeError(f"a call of {call.tool_name!r} has {type(call.parameters).__name__!r} for its parameters")
        return call


@dataclass(frozen=True, slots=True)
class KeptText:
    """Where the whole of a long text is kept, and how many characters it has."""

    ref: str
    chars: int

    def to_dict(self) -> dict[str, Any]:
        """The reference as JSON-ready data."""
        return {"ref": self.ref, "chars": self.chars}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KeptText:
        """The reference that `to_dict` wrote. Raises KeyError, ValueError or TypeError on anything else."""
        return cls(str(data["ref"]), int(data["chars"]))


#: Why a model stopped, in the words of OpenTelemetry's conventions; "" where nobody says.
FinishReason = Literal["", "stop", "length", "tool_call", "content_filter", "error"]


@swift
@dataclass(frozen=True, slots=True)
class AnswerDetails:
    """What a vendor says of an answer besides its text, calls and tokens. `response_id` is the vendor's own.

    `reasoning` is what the model thought before its calls, as JSON that only its vendor reads: it is sent back while
    the run lasts.
    """

    finish_reason: FinishReason = ""
    response_id: str = ""
    reasoning: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that a tool made, for a model to look at: its bytes, or where the media store has them."""

    mime_type: str
    data: bytes = field(default=b"", repr=False)
    media: Media | None = None


@swift
@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a transcript. A tool's message carries the id and name of the call it answers.

    Where `kept` names a text, the content is only its beginning. `tool_result` is what a program wants to keep of a
    tool's own result (seed: History Management), as JSON; models read `content`. A model's answer has `details`.
    `pictures` of a result are seen while the run lasts; they are kept with no transcript.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    tool_name: str = ""
    media: tuple[Media, ...] = ()
    kept: KeptText | None = None
    tool_result: Any = None
    details: AnswerDetails | None = field(default=None, compare=False)
    pictures: tuple[Picture, ...] = field(default=(), compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON-ready data; empty fields are left out."""
        # Written out: `asdict` copies what is only read, and takes ten times as long.
        data: dict[str, Any] = {"role": self.role.value}
        if self.content:
            data["content"] = self.content
        if self.tool_calls:
            data["tool_calls"] = tuple(call.to_dict() for call in self.tool_calls)
        if self.tool_call_id:
            data["tool_call_id"] = self.tool_call_id
        if self.tool_name:
            data["tool_name"] = self.tool_name
        if self.media:
            data["media"] = tuple(asdict(media) for media in self.media)
        if self.kept:
            data["kept"] = self.kept.to_dict()
        if self.tool_result is not None:
            data["tool_result"] = self.tool_result
        if self.details is not None and self.details.reasoning:
            data["reasoning"] = dict(self.details.reasoning)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """The message that `to_dict` wrote. Raises ValueError or TypeError on anything else."""
        fields = {name: value for name, value in data.items() if name != "reasoning"} | {
            "role": Role(data["role"]),
            "tool_calls": tuple(ToolCall.from_dict(call) for call in data.get("tool_calls", ())),
            "media": tuple(Media(**media) for media in data.get("media", ())),
            "kept": KeptText.from_dict(data["kept"]) if "kept" in data else None,
            "details": AnswerDetails(reasoning=_mapping(data["reasoning"])) if "reasoning" in data else None,
        }
        message = cls(**fields)
        _demand_texts(message.content, message.tool_call_id, message.tool_name)
        return message


@swift
@dataclass(frozen=True, slots=True)
class UsageStats:
    """What model calls consumed. Adding two keeps the later one's model and provider.

    `cache_read_tokens` and `cache_write_tokens` are the part of `prompt_tokens` that the vendor's prompt cache gave,
    and took in.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cost_usd: float = 0.0
    model: str = ""
    provider: str = ""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The usage as JSON-ready data."""
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


#: Where nothing was consumed, which most sums begin with.
NO_USAGE = UsageStats()


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"a message has {type(value).__name__!r} for its reasoning")
    return value


def _demand_texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"a message has {type(value).__name__!r} where a text belongs")
