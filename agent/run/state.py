"""RunRequest and RunState: what one run is asked to do, and its state while it lasts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sayso.agent.guards.loop_detection import LoopWatch
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import NO_USAGE, FailureKind, FinishReason, Message, Role, ToolCall, UsageStats
from sayso.agent.observability.trace import RunEvents
from sayso.agent.result import AgentResult, StopReason
from sayso.agent.run.cancellation import CancellationToken
from sayso.agent.run.journal import UNCLEAR, CallOutcome, Journal, NoJournal
from sayso.agent.run.memory import RunMemory
from sayso.agent.run.structured import ResponseFormat
from sayso.agent.run.tool_results import Compressor
from sayso.agent.tools.context import Artifact

#: Receives the text of a reply while it arrives.
RunTextListener = Callable[[str], Awaitable[None]]

#: Replaces a user's message that a guardrail blocked.
WITHHELD = "(withheld)"
#: Result of a call that had not started when the run was stopped.
NOT_RUN = "Not run: the run was stopped before this call began."


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What one run is asked to do, and with what.

    `scope` names whose memories the run may read and write. "" means the scope of the run whose tool started this one,
    or else the agent's own. With `asynchronous`, async observers are told of the run.
    """

    messages: tuple[Message, ...]
    response_format: ResponseFormat | None = None
    parent_run_id: str | None = None
    memory: ConversationMemory | None = None
    journal: Journal = field(default_factory=NoJournal)
    scope: str = ""
    cancellation_token: CancellationToken | None = None
    on_text: RunTextListener | None = None
    asynchronous: bool = True
    #: Whether the run is one of a batch: it has a memory of its own, but the agent's knowledge.
    is_of_batch: bool = False

    @property
    def uses_agent_knowledge(self) -> bool:
        """Return whether the run has the agent's own knowledge rather than that of its scope."""
        return not self.scope and (self.is_of_batch or self.memory is None)

    @property
    def user_text(self) -> str:
        """Return the text of the user's messages, without messages that a program added."""
        return "\n".join(message.content for message in self.messages if message.role is Role.USER)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ends, and the text for the user."""

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
    """The tool calls of one answer while they run: the known outcomes by index, and the calls that were started."""

    answer: Message
    outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)

    def final_outcomes(self) -> list[CallOutcome]:
        """Return an outcome for every call. A call that was started and has no outcome is unclear."""
        started = self.started
        return [
            self.outcomes.get(at) or CallOutcome(call, UNCLEAR if at in started else NOT_RUN, unclear=at in started)
            for at, call in enumerate(self.answer.tool_calls)
        ]


@dataclass(slots=True)
class RunState:
    """The state of one run. `messages` grows only by whole rounds: a call and its result are added together."""

    request: RunRequest
    events: RunEvents
    run_memory: RunMemory
    memory: ConversationMemory | None = None
    history: list[Message] = field(default_factory=list)
    compressor: Compressor | None = None
    loop_watch: LoopWatch | None = None
    #: Receives the reply while it arrives. None without a listener, and if a check of the complete reply comes first.
    on_text: RunTextListener | None = None
    messages: list[Message] = field(default_factory=list)
    #: Answers of the wrong form, each with its correction. Only the model sees them, until an answer fits.
    rejected: list[Message] = field(default_factory=list)
    #: Text after the system prompt: knowledge of earlier conversations, and the form of the answer.
    context: str = ""
    iterations: int = 0
    #: The text of the last answer.
    answer_text: str = ""
    model: str = ""
    #: Tokens that the transcript may take after the model rejected it as too long; None before that.
    max_transcript_tokens: int | None = None
    #: Whether files are only named, because the vendor rejected a request with files.
    names_files_only: bool = False
    #: The cache key of the last answer.
    cache_key: str = ""
    usage: UsageStats = NO_USAGE
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    unclear: list[ToolCall] = field(default_factory=list)
    #: The replies of terminal tools.
    terminal_texts: list[str] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    #: The answers that were last offered as buttons.
    choices: tuple[str, ...] = ()
    open_round: OpenRound | None = None
    #: Whether observers have been told how the run ends.
    is_end_reported: bool = False

    @property
    def journal(self) -> Journal:
        """Return the journal of the run."""
        return self.request.journal

    @property
    def user_text(self) -> str:
        """Return the text of the user's messages after the guardrails."""
        return "\n".join(message.content for message in self.messages if message.role is Role.USER)

    @property
    def transcript(self) -> list[Message]:
        """Return everything the model may know: earlier turns and this one."""
        return [*self.history, *self.messages, *self.rejected]

    def set_memory(self, memory: ConversationMemory | None) -> None:
        """Set the conversation that the run belongs to, and read its history."""
        self.memory = self.run_memory.memory = memory
        self.history = [] if memory is None else memory.get_history()

    def close(self, content: str) -> None:
        """End the transcript with the reply. A user's message that a guardrail blocked is replaced by WITHHELD."""
        for message in self.request.messages[len(self.messages) :]:
            is_blocked = message.role is Role.USER
            self.messages.append(Message(Role.USER, WITHHELD) if is_blocked else message)
        self.messages.append(Message(Role.ASSISTANT, content))
        self.messages = [
            replace(each, details=None, pictures=()) if each.details or each.pictures else each
            for each in self.messages
        ]

    def close_round(self, outcomes: Sequence[CallOutcome], *, note: str = "") -> None:
        """Add the calls of one answer and their results to the transcript. The note is appended to the last result."""
        if self.open_round is None:
            return
        answer, self.open_round = self.open_round.answer, None
        self.messages.append(answer)
        usage = NO_USAGE
        for outcome in outcomes:
            usage += outcome.usage
            self.messages.append(outcome.message)
            self.artifacts += outcome.artifacts
            self.choices = outcome.choices or self.choices
            if outcome.unclear:
                self.unclear.append(outcome.call)
            if outcome.ends == "terminal":
                self.terminal_texts.append(outcome.final_text)
        if note:
            last = self.messages[-1]
            self.messages[-1] = replace(last, content=f"{last.content}\n\n{note}")
        self.usage = usage + self.usage
        self.tool_calls += answer.tool_calls

    def result(self, end: RunEnd) -> AgentResult:
        """Return the result of the finished run."""
        return AgentResult(
            content=end.content,
            artifacts=tuple(self.artifacts),
            parsed=end.parsed,
            reasoning=next(filter(None, reversed(self.reasoning)), ""),
            reasoning_history=list(self.reasoning),
            iterations=self.iterations,
            trace=self.events.trace,
            usage=self.events.side_usage + self.usage,
            provider_used=self.usage.provider,
            tool_calls=tuple(self.tool_calls),
            messages=tuple(self.messages),
            stop_reason=end.reason,
            unclear=tuple(self.unclear),
            beside=tuple(self.terminal_texts) if end.reason == "pending" else (),
            structured_error=end.structured_error,
            failure=end.failure,
            failure_cause=end.failure_cause,
            refusal=end.refusal,
            finish_reason=end.finish_reason,
            choices=self.choices,
        )


def to_messages(messages: str | Sequence[Message]) -> tuple[Message, ...]:
    """Return the input of a run as messages. Raises TypeError for another type, and ValueError if there are none."""
    checked = (Message(Role.USER, messages),) if isinstance(messages, str) else tuple(messages)
    for message in checked:
        if not isinstance(message, Message):
            raise TypeError(f"{message!r} is no Message: give a text or a list of Message(role=Role.USER, content=...)")
    if not checked:
        raise ValueError("there is no message to answer: give a text or at least one Message")
    return checked
