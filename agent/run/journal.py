"""Journal: records the steps of a run, so that another worker can continue after this one is killed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sayso.agent.messages import NO_USAGE, Message, Picture, Role, ToolCall, UsageStats
from sayso.agent.tools.context import Artifact, TimerChange
from sayso.pending.proposals import ProposedAction

#: Result of a call that a worker had started when it died, or that the called service never answered.
UNCLEAR = (
    "Outcome unknown: this call was interrupted, and nobody can tell whether it took effect. Do not repeat it without "
    "asking the user."
)

#: Result of a call that follows a terminal one, where calls run one after another.
NOT_RUN_AFTER_TERMINAL = "Not run: the run ended with an earlier call of the same answer."


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of one call: the text for the model, what the tool produced and, if the run ends with it, why."""

    call: ToolCall
    content: str
    ends: Literal["", "pending", "terminal"] = ""
    #: The text for the user, if the run ends with this call.
    final_text: str = ""
    #: Whether the outcome is unknown: the worker died during the call, or the called service never answered.
    unclear: bool = False
    artifacts: tuple[Artifact, ...] = ()
    proposals: tuple[ProposedAction, ...] = ()
    timers: tuple[TimerChange, ...] = ()
    #: The answers that the tool offers as buttons.
    choices: tuple[str, ...] = ()
    #: Usage of the model that summarized the result, if one did.
    usage: UsageStats = NO_USAGE
    #: The digest of the tool's raw result, if `content` is another text.
    raw_digest: str = ""

    @property
    def fingerprint(self) -> str:
        """Return a digest of the raw result. It does not depend on how the result was shortened or marked."""
        return self.raw_digest or text_digest(self.content)

    @property
    def message(self) -> Message:
        """Return the outcome as a message for the model."""
        pictures = tuple(Picture(each.mime_type, each.data or b"", each.kept) for each in self.artifacts if each.shown)
        name = self.call.tool_name
        return Message(Role.TOOL, self.content, tool_call_id=self.call.id, tool_name=name, pictures=pictures)


def text_digest(text: str) -> str:
    """Return 32 hex digits that identify a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """An answer of the model, its usage, and the names of the tools that the model was shown; None for all."""

    message: Message
    usage: UsageStats
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JournaledAnswer:
    """An answer with tool calls, and the known outcomes of its calls, by index."""

    answer: ModelAnswer
    outcomes: Mapping[int, CallOutcome] = field(default_factory=dict)


class Journal(Protocol):
    """The journal of one run. An index means a call of the answer that was last returned or recorded."""

    async def next_answer(self) -> JournaledAnswer | None:
        """Return the next answer of an earlier attempt. None: the model has to be asked from here on."""

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Record an answer with tool calls. Return False if the journal has no room for its results."""

    async def save(self, *started: int) -> None:
        """Write what was recorded, and that these calls start: they are never started again. Raises LeaseLost."""

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Record the outcome of a call. Return it as stored, which is what the model must see."""

    def idempotency_key(self, at: int) -> str:
        """Return the idempotency key of a call. It is the same in every attempt."""


class NoJournal:
    """Journal that stores nothing, for runs that no other worker can continue."""

    async def next_answer(self) -> JournaledAnswer | None:
        """Return None: there was no earlier attempt."""
        return None

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Return True: there is always room."""
        return True

    async def save(self, *started: int) -> None:
        """Do nothing."""

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Return the outcome unchanged."""
        return outcome

    def idempotency_key(self, at: int) -> str:
        """Return "": there is no key."""
        return ""
