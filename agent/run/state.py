"""Run: what one run of an agent is asked, and what it has come to so far."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.recall import RunMemory
from sayso.agent.messages import NO_USAGE, FinishReason, Message, Role, ToolCall, UsageStats
from sayso.agent.observability.dispatcher import RunEvents
from sayso.agent.providers.base import FailureKind
from sayso.agent.result import AgentResult, StopReason
from sayso.agent.run.cancellation import CancellationToken
from sayso.agent.run.compression import Compressor
from sayso.agent.run.journal import UNCLEAR, CallOutcome, Journal, NoJournal
from sayso.agent.run.loop_detection import LoopWatch
from sayso.agent.run.structured import ResponseFormat
from sayso.agent.swift import swift
from sayso.agent.tools.context import Artifact

#: Hears the text of a reply as it comes.
RunTextListener = Callable[[str], Awaitable[None]]

#: Stands for what a person said that no guardrail has let pass.
WITHHELD = "(withheld)"
#: What the model is told of a call that was not begun when the run was stopped.
NOT_RUN = "Not run: the run was stopped before this call began."


@swift
@dataclass(frozen=True, slots=True)
class RunRequest:
    """What one run is asked to do, and with what.

    `scope` names whose memories it may read and write: "" for those of the run in whose tool it is, else the agent's
    own. `asynchronous` is whether async observers hear of it.
    """

    said: tuple[Message, ...]
    response_format: ResponseFormat | None = None
    parent_run_id: str | None = None
    memory: ConversationMemory | None = None
    journal: Journal = field(default_factory=NoJournal)
    scope: str = ""
    cancellation_token: CancellationToken | None = None
    on_text: RunTextListener | None = None
    asynchronous: bool = True
    #: Whether it is the agent's own, though it has a memory of its own: one of a batch.
    is_of_batch: bool = False

    def in_scope(self, scope: str) -> RunRequest:
        """The request of whoever has this scope, unless it names one itself."""
        return self if self.scope or not scope else replace(self, scope=scope)

    @property
    def is_own(self) -> bool:
        """Whether the agent's own knowledge is its knowledge, rather than what its scope knows."""
        return not self.scope and (self.is_of_batch or self.memory is None)

    @property
    def words(self) -> str:
        """What the person said, without what a program put around it."""
        return "\n".join(message.content for message in self.said if message.role is Role.USER)


@swift
@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ends, and what its person is told."""

    reason: StopReason
    content: str
    parsed: Any = None
    structured_error: str = ""
    failure: FailureKind = "away"
    failure_cause: str = ""
    refusal: str = ""
    finish_reason: FinishReason = ""


@dataclass(slots=True)
class OpenRound:
    """The tool calls of one answer while they run: what is known of each, and which were begun."""

    answer: Message
    outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)

    def closed(self) -> list[CallOutcome]:
        """An outcome for every call: nobody knows how one ended that was begun and has none."""
        return [self.outcomes.get(at) or self._broken_off(at, call) for at, call in enumerate(self.answer.tool_calls)]

    def _broken_off(self, at: int, call: ToolCall) -> CallOutcome:
        return CallOutcome(call, UNCLEAR, unclear=True) if at in self.begun else CallOutcome(call, NOT_RUN)


@dataclass(slots=True)
class RunState:
    """Lives as long as one run. `messages` grows only by whole rounds: a call and its result come together."""

    request: RunRequest
    chronicle: RunEvents
    remembering: RunMemory
    memory: ConversationMemory | None = None
    history: list[Message] = field(default_factory=list)
    compressor: Compressor | None = None
    loop_watch: LoopWatch | None = None
    #: Hears the reply while it comes; None where nobody does, or only the whole of it, once it is checked.
    on_text: RunTextListener | None = None
    messages: list[Message] = field(default_factory=list)
    #: Answers of a wrong form, and what was wrong with them: for the model alone, until one is right.
    drafts: list[Message] = field(default_factory=list)
    #: What the model is told of earlier conversations and of the form of its answer, behind the system prompt.
    context: str = ""
    iterations: int = 0
    #: The text of the last answer.
    said: str = ""
    model: str = ""
    #: Tokens that the transcript may take, once the model has refused it as too long; None before.
    room: int | None = None
    #: Whether files are only named, because the model's vendor has refused a request with one of them.
    names_files: bool = False
    #: What the last answer is cached under.
    cache_key: str = ""
    usage: UsageStats = NO_USAGE
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    unclear: list[ToolCall] = field(default_factory=list)
    #: What terminal tools said.
    closings: list[str] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    #: The answers offered last.
    choices: tuple[str, ...] = ()
    open_round: OpenRound | None = None
    #: Whether its observers know how it ends.
    is_told: bool = False

    @property
    def journal(self) -> Journal:
        """Where the run is kept while it lasts."""
        return self.request.journal

    @property
    def words(self) -> str:
        """What the person said, as the guardrails let it pass."""
        return "\n".join(message.content for message in self.messages if message.role is Role.USER)

    @property
    def transcript(self) -> list[Message]:
        """All the model is to know: earlier turns and this one."""
        return [*self.history, *self.messages, *self.drafts]

    def recall(self, memory: ConversationMemory | None) -> None:
        """This is the conversation that the run belongs to."""
        self.memory = self.remembering.memory = memory
        self.history = [] if memory is None else memory.get_history()

    def close(self, content: str) -> None:
        """The reply ends the transcript, which has a place for each of the person's messages, let through or not."""
        for message in self.request.said[len(self.messages) :]:
            is_held_back = message.role is Role.USER
            self.messages.append(Message(Role.USER, WITHHELD) if is_held_back else message)
        self.messages.append(Message(Role.ASSISTANT, content))
        self.messages = [
            replace(each, details=None, pictures=()) if each.details or each.pictures else each
            for each in self.messages
        ]

    def close_round(self, outcomes: Sequence[CallOutcome], *, note: str = "") -> None:
        """Take the calls of one answer into the transcript, each with its result; the last one's bears the note."""
        if self.open_round is None:
            return
        answer, self.open_round = self.open_round.answer, None
        self.messages.append(answer)
        usage = NO_USAGE
        for outcome in outcomes:
            self._take(outcome)
            usage += outcome.usage
        if note:
            last = self.messages[-1]
            self.messages[-1] = replace(last, content=f"{last.content}\n\n{note}")
        self.usage = usage + self.usage
        self.tool_calls += answer.tool_calls

    def _take(self, outcome: CallOutcome) -> None:
        self.messages.append(outcome.message)
        self.artifacts += outcome.artifacts
        self.choices = outcome.choices or self.choices
        if outcome.unclear:
            self.unclear.append(outcome.call)
        if outcome.ends == "terminal":
            self.closings.append(outcome.closing)

    def result(self, ending: RunEnd) -> AgentResult:
        """The finished run."""
        return AgentResult(
            content=ending.content,
            artifacts=tuple(self.artifacts),
            parsed=ending.parsed,
            reasoning=next(filter(None, reversed(self.reasoning)), ""),
            reasoning_history=list(self.reasoning),
            iterations=self.iterations,
            trace=self.chronicle.trace,
            usage=self.chronicle.side_usage + self.usage,
            provider_used=self.usage.provider,
            tool_calls=tuple(self.tool_calls),
            messages=tuple(self.messages),
            stop_reason=ending.reason,
            unclear=tuple(self.unclear),
            beside=tuple(self.closings) if ending.reason == "pending" else (),
            structured_error=ending.structured_error,
            failure=ending.failure,
            failure_cause=ending.failure_cause,
            refusal=ending.refusal,
            finish_reason=ending.finish_reason,
            choices=self.choices,
        )


def said_in(messages: str | Sequence[Message]) -> tuple[Message, ...]:
    """What is given to a run, checked. Raises TypeError and ValueError."""
    said = (Message(Role.USER, messages),) if isinstance(messages, str) else tuple(messages)
    for message in said:
        if not isinstance(message, Message):
            raise TypeError(f"{message!r} is no Message: give a text or a list of Message(role=Role.USER, content=...)")
    if not said:
        raise ValueError("there is no message to answer: give a text or at least one Message")
    return said
