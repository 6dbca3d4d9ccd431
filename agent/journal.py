"""Journal: what a run has come to so far, kept where the successor of a killed worker finds it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sayso.agent.messages import NO_USAGE, Message, Picture, Role, ToolCall, UsageStats
from sayso.agent.swift import swift
from sayso.agent.tools.artifacts import Artifact
from sayso.agent.tools.timers import TimerChange
from sayso.pending.proposals import Proposed

#: What the model is told of a call that was begun by a worker that died, or that nobody answered.
UNCLEAR = (
    "Outcome unknown: this call was interrupted, and nobody can tell whether it took effect. Do not repeat it without "
    "asking the user."
)

#: What the model is told of a call that follows a terminal one, where calls run one after the other.
NOT_RUN_AFTER_TERMINAL = "Not run: the run ended with an earlier call of the same answer."


@swift
@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What one call came to: the text for the model, what it made and, when the run ends with it, why."""

    call: ToolCall
    content: str
    ends: Literal["", "pending", "terminal"] = ""
    #: What the user reads when the run ends here.
    closing: str = ""
    #: It was begun by a worker that died, or never answered, and nobody knows how it ended.
    unclear: bool = False
    artifacts: tuple[Artifact, ...] = ()
    proposals: tuple[Proposed, ...] = ()
    timers: tuple[TimerChange, ...] = ()
    #: The answers it offers.
    choices: tuple[str, ...] = ()
    #: What it cost to make the text for the model, where another model shortened it.
    usage: UsageStats = NO_USAGE
    #: The digest of the tool's own words, where the text for the model is not those.
    raw_digest: str = ""

    @property
    def fingerprint(self) -> str:
        """A digest of the tool's own words: the same result has the same, however it was shortened or marked."""
        return self.raw_digest or digest(self.content)

    @property
    def message(self) -> Message:
        """The outcome as the model sees it."""
        pictures = tuple(Picture(each.mime_type, each.data or b"", each.kept) for each in self.artifacts if each.shown)
        name = self.call.tool_name
        return Message(Role.TOOL, self.content, tool_call_id=self.call.id, tool_name=name, pictures=pictures)


def digest(text: str) -> str:
    """What a text is told from others by."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


@swift
@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of the model, what it cost, and the names of the tools that it was shown, None for all."""

    message: Message
    usage: UsageStats
    tools: tuple[str, ...] | None = None


@swift
@dataclass(frozen=True, slots=True)
class Recalled:
    """An answer that calls tools, and what is known of its calls, by their index."""

    answered: Answered
    outcomes: Mapping[int, CallOutcome] = field(default_factory=dict)


class Journal(Protocol):
    """Lives as long as one run. What it says of an index means the calls of the answer last recalled or noted."""

    async def recall(self) -> Recalled | None:
        """The next answer that is known from an earlier attempt. None: from here on the model has to be asked."""

    def note(self, answered: Answered) -> bool:
        """Take down an answer that calls tools. False when there is no room for what it may lead to."""

    async def save(self, *begun: int) -> None:
        """Write what was taken down, and that these calls begin: none of them will be begun again. Raises LaneError."""

    async def keep(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Take down what a call came to. Returns it as it is kept, which is how the model must see it."""

    def key(self, at: int) -> str:
        """The idempotency key of a call, the same in every attempt."""


class NoJournal:
    """Where nobody could take over from a killed run, nothing is kept."""

    async def recall(self) -> Recalled | None:
        """Nothing is known."""
        return None

    def note(self, answered: Answered) -> bool:
        """There is always room for nothing."""
        return True

    async def save(self, *begun: int) -> None:
        """Write nothing."""

    async def keep(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """The outcome as it is."""
        return outcome

    def key(self, at: int) -> str:
        """None."""
        return ""
