"""What a run is asked, knows and ends with: RunRequest, RunState, RunEnd.

A *run* answers one request with as many model calls and tool calls as it needs. A *round* is one
answer of the model with the results of its calls; each call ends with a CallOutcome. A run
*pauses* when a call must wait for a decision, and another run *goes on* with it later. `loop.py`
runs the rounds, `resume.py` carries out the decisions when a run goes on.

A call *waits* for a decision in one of four ways:

| who decides                                     | field of CallOutcome | open |
|-------------------------------------------------|----------------------|------|
| a person, before the tool runs                  | `proposals`          | yes  |
| a person, whom the tool's own code asked        | `proposals`          | no   |
| the program that started the run                | `open_call`          | yes  |
| that program, about calls of an agent as a tool | `inner`              | yes  |

An *open* call has no result yet. The run pauses at each call that waits, except where the tool's
own code asked and returned a text: the model reads that at once. In the transcript the result of
each call that waits has an ActionLink without an outcome, and `pause.py` finds it by that.

A worker may die during a run. The Journal has the answers of the model and the outcomes of the
calls, so that the next worker continues the run and no call runs twice.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from sayso.agent.config import DEFAULT_RESULT_TOKENS, DecisionLog
from sayso.agent.decisions import (
    DecidedCall,
    Decision,
    DecisionError,
    OpenCall,
    RunSnapshot,
    check_decisions,
)
from sayso.agent.guards.loop_detection import LoopWatch
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.sessions import Session
from sayso.agent.messages import (
    NO_USAGE,
    ActionLink,
    FailureKind,
    FinishReason,
    Message,
    Picture,
    Role,
    ToolCall,
    UsageStats,
)
from sayso.agent.observability.run_events import RunEvents
from sayso.agent.result import AgentResult, StopReason
from sayso.agent.run.cancellation import CancellationToken
from sayso.agent.run.memory import RunMemory
from sayso.agent.run.pause import RunCounts, open_actions, waiting_id, with_waiting_results
from sayso.agent.run.result_summaries import Compressor
from sayso.agent.run.structured import ResponseFormat
from sayso.agent.run.unknown_outcomes import UNKNOWN_OUTCOME, calls_with_unknown_outcome
from sayso.agent.tools.environment import Artifact, tool_environment
from sayso.agent.tools.timers import TimerChange
from sayso.pending.call_context import ProposedAction

#: Receives the text of a reply while it arrives.
RunTextListener = Callable[[str], Awaitable[None]]

#: Replaces a user's message that a guardrail blocked.
WITHHELD = "(withheld)"
#: Result of a call that had not started when the run was stopped.
NOT_RUN = "Not run: the run was stopped before this call began."
#: Result of a call that follows a terminal one, where calls run one after another.
NOT_RUN_AFTER_TERMINAL = "Not run: the run ended with an earlier call of the same answer."


@dataclass(slots=True)
class CallOutcome:
    """How one call ended: the text for the model, and what the tool produced."""

    call: ToolCall
    #: What the model reads: a result, an error, a proposal or a note.
    content: str
    #: Why the run ends with this call; "" if it goes on. "pending": a person or program must
    #: decide, and `final_text` is the question. "terminal": its result is the reply.
    ends: Literal["", "pending", "terminal"] = ""
    #: The text for the user, if the run ends with this call.
    final_text: str = ""
    #: Whether the outcome is unknown, so that the call may have taken effect or not: the worker
    #: died during the call, the called service never answered, or the call took too long.
    is_unknown: bool = False
    #: Whether the text is a result of the tool, and not an error, a proposal or a note. The preview
    #: of a tool that only reads may give the result, too: then `not_run` is also True.
    has_result: bool = False
    #: Whether the call ended without running its tool, and no question about it is open: it was
    #: denied, answered by its preview in place of a question, invalid, or left out. Steps that
    #: people see show this.
    not_run: bool = False
    #: The files that the tool made.
    artifacts: tuple[Artifact, ...] = ()
    #: The pending actions that the call or its tool has proposed: each waits for a person's yes.
    proposals: tuple[ProposedAction, ...] = ()
    #: What the tool changed in the timers of the conversation.
    timer_changes: tuple[TimerChange, ...] = ()
    #: The answers that the tool offers as buttons.
    choices: tuple[str, ...] = ()
    #: What the model that summarized the result has used, if one did.
    usage: UsageStats = NO_USAGE
    #: The digest of the tool's raw result, if `content` is another text.
    raw_digest: str = ""
    #: The whole result, if `content` summarizes only a part of it.
    full_text: str = ""
    #: The call itself, if it waits for a decision of the program that started the run.
    open_call: OpenCall | None = None
    #: The paused run of the agent that the call asked; None unless the tool is an agent that waits.
    inner: RunSnapshot | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of the raw result, by which two results are recognized as the same.

        It is the digest of what the tool returned, also if the model reads a shortened text.
        """
        return self.raw_digest or text_digest(self.content)

    @property
    def is_open(self) -> bool:
        """Whether the call waits for a decision and has no result before it.

        A tool whose own code asked a person has a result: its call waits, and is not open.
        """
        if self.open_call is not None or self.inner is not None:
            return True
        if not self.proposals:
            return False
        # `asked_by` names the tool whose own code has stored the proposal. A proposal without it
        # was made in place of the call.
        return not any(each.action.asked_by for each in self.proposals)

    @property
    def message(self) -> Message:
        """The outcome as a message of the transcript. That of an open call has no content."""
        content = ""
        if not self.is_open:
            content = self.content
        pictures = [
            Picture(each.mime_type, each.data or b"", each.media)
            for each in self.artifacts
            if each.shown
        ]
        links = [ActionLink(proposed.action.pending_action_id) for proposed in self.proposals]
        return Message(
            Role.TOOL,
            content,
            tool_call_id=self.call.id,
            tool_name=self.call.tool_name,
            pictures=tuple(pictures),
            actions=tuple(links),
            has_result=self.has_result,
            full_text=self.full_text,
        )


def text_digest(text: str) -> str:
    """Return 32 hex digits that identify a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(slots=True)
class ModelAnswer:
    """An answer of the model."""

    message: Message
    #: What the answer cost, in tokens and dollars.
    usage: UsageStats
    #: The names of the tools that the model was shown, None for all.
    tools: tuple[str, ...] | None = None


@dataclass(slots=True)
class JournaledAnswer:
    """An answer with tool calls that was recorded by an earlier attempt at the same turn."""

    answer: ModelAnswer
    #: The known outcomes of its calls, by the index of the call in the answer.
    outcomes: Mapping[int, CallOutcome] = field(default_factory=dict)


class Journal(Protocol):
    """The record of one run, by which a later attempt at the same turn continues it.

    A worker may be killed in the middle of a run. The next one gets the journaled answers in place
    of new ones from the model, and runs no call that was started before. Lives as long as the run.

    For one answer, the methods are called in this order: `next_answer`; if that returns None,
    `record_answer` with the model's new answer; `save` with the calls that start; `begin_call` and
    `record_outcome` for each of them; and `save` again, or the next `save` of other calls. A tool
    that says where its effect begins is saved as started there, after its `begin_call`.

    `at` and `started` are the indexes of calls in that answer.
    """

    async def next_answer(self) -> JournaledAnswer | None:
        """Return the next answer of an earlier attempt.

        None: the model has to be asked from here on.
        """

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Record an answer with tool calls. `save` writes it.

        Return False if the journal has no room for it: then its calls must not run.
        """

    async def save(self, *started: int) -> None:
        """Write what was recorded, and that the calls `started` start.

        No later attempt starts these calls again: one without a recorded outcome is unknown. Raises
        LeaseLost if another worker has taken over the conversation.
        """

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Record the outcome of a call. Return it as stored, which is what the model must see."""

    def begin_call(self, at: int) -> str:
        """Show that a call begins, where people see the steps. Return its idempotency key.

        The key is the same in every attempt. This writes nothing: see `save`.
        """


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

    def begin_call(self, at: int) -> str:
        """Return "": there is no key."""
        return ""


@dataclass(slots=True)
class RunRequest:
    """What one run is asked to do, and with what. Lives as long as the run, and does not change.

    A run *goes on* if an earlier run paused because calls had to be decided.
    """

    #: The request. Empty only if the run goes on.
    messages: tuple[Message, ...]
    #: The form of the answer; None for free text.
    response_format: ResponseFormat | None = None
    #: The run that this one is a part of, for traces.
    parent_run_id: str | None = None
    #: The conversation that the run reads and continues; None: the agent's own.
    memory: ConversationMemory | None = None
    journal: Journal = field(default_factory=NoJournal)
    #: Whose knowledge the run may read and write. "": that of the run whose tool started this one,
    #: or else the agent's own.
    scope: str = ""
    #: Stops the run from outside.
    cancellation_token: CancellationToken | None = None
    #: Receives the reply while it arrives.
    on_text: RunTextListener | None = None
    #: Whether async observers receive the events of the run, too.
    asynchronous: bool = True
    #: Whether the run has the agent's own knowledge although it has a separate memory, as the runs
    #: of a batch and those inside a tool of another agent.
    has_agents_knowledge: bool = False
    #: The id, iterations and usage of the paused run, which this run counts on from; None for a new
    #: run. With counts alone, the calls of the paused run have their results in the memory.
    paused_counts: RunCounts | None = None
    #: The whole paused run, whose calls `decisions` are about. None for a new run, and on a
    #: channel.
    paused_run: RunSnapshot | None = None
    #: What was decided about the open calls of `paused_run`, by their ids.
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    #: Whether the run is that of an agent which is a tool of another one.
    is_inner: bool = False
    #: Where decisions are noted, in place of the log of the agent's settings; None for that log.
    decision_log: DecisionLog | None = None

    @property
    def user_text(self) -> str:
        """The text of the user's messages, without messages that a program added."""
        return _text_of_user(self.messages)


@dataclass(slots=True)
class OpenRound:
    """The round that runs now: an answer of the model, and how far its calls have got."""

    answer: Message
    #: The outcomes known so far, by the index of the call in the answer.
    outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    #: The indexes of the calls that were started.
    started: set[int] = field(default_factory=set)

    def final_outcomes(self) -> list[CallOutcome]:
        """Return an outcome for every call of a run that was stopped.

        A call that was started and has no outcome may have taken effect: its outcome is unknown.
        """
        outcomes = []
        for at, call in enumerate(self.answer.tool_calls):
            outcome = self.outcomes.get(at)
            if outcome is None and at in self.started:
                outcome = CallOutcome(call, UNKNOWN_OUTCOME, is_unknown=True)
            elif outcome is None:
                outcome = CallOutcome(call, NOT_RUN, not_run=True)
            outcomes.append(outcome)
        return outcomes


class RunEnd(NamedTuple):
    """How a run ends: some fields of its AgentResult, with the same names and meanings."""

    content: str
    stop_reason: StopReason
    parsed: Any = None
    structured_error: str = ""
    #: Means nothing unless the stop reason is "provider_error".
    failure: FailureKind = "away"
    failure_cause: str = ""
    refusal: str = ""
    finish_reason: FinishReason = ""


@dataclass(slots=True)
class RunState:
    """What one run knows and has done so far. Lives as long as the run; only its loop changes it.

    Its messages are in four lists, from the oldest to the newest:

    * `history`: the earlier turns of the conversation. In a run that goes on with a RunSnapshot, it
      also has `earlier` at its end once the decisions are carried out (`resume.py`).
    * `earlier`: what a paused run had added before it paused. Empty without a RunSnapshot.
    * `messages`: what this run adds: the user's messages, as the guardrails passed them, and its
      rounds. It grows only by whole rounds, since vendors refuse a call without its result.
    * `rejected`: answers of the wrong form, each with its correction. Only the model sees them,
      until an answer fits.

    The *transcript*, which is what the model may know, is `history`, `messages` and `rejected`.
    """

    request: RunRequest
    events: RunEvents
    #: What the memories know and learn: facts, entities, relationships.
    run_memory: RunMemory

    # The conversation and the messages.

    #: The conversation that the run belongs to; None: the run begins without a history.
    memory: ConversationMemory | None = None
    #: Where the conversation is stored; None if it is not.
    session: Session | None = None
    history: list[Message] = field(default_factory=list)
    #: The calls that were decided since the pause have their results here.
    earlier: list[Message] = field(default_factory=list)
    #: Whether the memory has the messages of `earlier` already, so that they are not added again.
    remembers_earlier: bool = False
    messages: list[Message] = field(default_factory=list)
    rejected: list[Message] = field(default_factory=list)

    # What the model is shown in the next call.

    #: The instruction of the form of the answer, behind the system prompt; "" without a form.
    schema_instruction: str = ""
    #: What is remembered and seldom changes: the summary, the facts and the notes. The model reads
    #: it before the history; "" for nothing.
    stable_context: str = ""
    #: What is remembered and may change with every turn: entities and relationships. The model
    #: reads it before the user's last message; "" for nothing.
    changing_context: str = ""
    #: The names of the tools that the conversation has needed so far, in the order in which they
    #: are shown.
    shown_tools: list[str] = field(default_factory=list)
    #: Whether the model is shown the tool that reads the rest of a result.
    can_read_on: bool = False
    #: Tokens that the model reads of one result.
    result_tokens: int = DEFAULT_RESULT_TOKENS
    #: Tokens that the transcript may take after the vendor refused it as too long; None before
    #: that.
    max_transcript_tokens: int | None = None
    #: Whether files are only named, because the vendor refused a request with files.
    names_files_only: bool = False

    # Where the run is now.

    #: The number of the present iteration, from 1; an iteration is one model call with the calls of
    #: its answer. A run that goes on counts on from the paused one.
    iterations: int = 0
    #: The model that was asked last.
    model: str = ""
    #: The text of the last answer.
    answer_text: str = ""
    #: The cache key of the last answer.
    cache_key: str = ""
    #: Whether the model was asked again because its answer was empty.
    has_asked_again: bool = False
    #: The round whose calls run now; None while the model is asked.
    open_round: OpenRound | None = None
    #: Whether the end of the run was reported to observers.
    is_end_reported: bool = False

    # What works for the run.

    #: Receives the reply while it arrives. None without a listener, and if a check of the complete
    #: reply comes first.
    on_text: RunTextListener | None = None
    #: Summarizes long results; None: they are cut.
    compressor: Compressor | None = None
    #: Notices that the run repeats itself, from its first round on.
    loop_watch: LoopWatch | None = None

    # What the run has produced and used.

    #: For each iteration what the model wrote together with its tool calls; "" for nothing.
    reasoning: list[str] = field(default_factory=list)
    #: All calls of the run, in order.
    tool_calls: list[ToolCall] = field(default_factory=list)
    #: The calls of the run whose outcome is unknown.
    unknown_outcomes: list[ToolCall] = field(default_factory=list)
    #: The replies of terminal tools.
    terminal_texts: list[str] = field(default_factory=list)
    #: The files that tools made.
    artifacts: list[Artifact] = field(default_factory=list)
    #: The answers that were last offered as buttons.
    choices: tuple[str, ...] = ()
    #: What the model calls of the loop have used, and those that summarize the results of its
    #: calls (`CallOutcome.usage`). All other model calls of the run, such as those of the memories,
    #: are in `events.side_usage`. The usage of the run is the sum of both.
    usage: UsageStats = NO_USAGE

    # Calls that wait for a decision of the program that started the run.

    #: Whether a call that needs an approval may wait for such a decision.
    may_pause: bool = False
    #: The open calls about which the program decides, also those of the paused run.
    open_calls: list[OpenCall] = field(default_factory=list)
    #: The paused runs of agents that are tools, by the id of the call that asked the agent.
    inner: dict[str, RunSnapshot] = field(default_factory=dict)
    #: What became of the calls that were decided at the beginning of this run.
    decided: list[DecidedCall] = field(default_factory=list)

    @property
    def user_text(self) -> str:
        """The text of the user's messages as the guardrails passed them.

        For a run that goes on without new messages it is `request_text`.
        """
        if not self.request.messages:
            return self.request_text
        return _text_of_user(self.messages)

    @property
    def request_text(self) -> str:
        """The text that the run answers, before the guardrails.

        For a run that goes on without new messages it is the message that the paused run answered,
        until `resume.py` adds DECIDED_MESSAGE to the request.
        """
        if self.request.messages:
            return self.request.user_text
        # Once the decisions are carried out, `history` has `earlier`, too. Then it is read twice,
        # with the same result.
        for message in reversed([*self.history, *self.earlier]):
            if message.role is Role.USER:
                return message.content
        return ""

    @property
    def transcript(self) -> list[Message]:
        """Everything that the model may know: earlier turns and this one."""
        return [*self.history, *self.messages, *self.rejected]

    def with_context(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages of a model call, with what is remembered added to them.

        `messages` is the transcript that is sent. It ends with `self.messages` and `self.rejected`;
        long texts in them may be cut.
        """
        with_context = list(messages)
        # What changes from turn to turn is put behind the history: a vendor's cache knows only what
        # precedes the first change.
        if self.changing_context:
            place = self._place_of_changing_context(messages)
            with_context.insert(place, Message(Role.SYSTEM, self.changing_context))
        if self.stable_context:
            with_context.insert(0, Message(Role.SYSTEM, self.stable_context))
        return with_context

    def _place_of_changing_context(self, messages: Sequence[Message]) -> int:
        """Return the index in these messages where the changing context is inserted.

        It is that of the last user message that this run answers.
        """
        # The messages of the request are the first of `self.messages`. If a guardrail blocks one,
        # there are fewer, and no rounds behind them.
        request_count = min(len(self.request.messages), len(self.messages))
        if request_count:
            first = len(messages) - len(self.messages) - len(self.rejected)
            candidates = range(first, first + request_count)
        else:
            # The run goes on without new messages. The context stands where the model calls before
            # the pause had it, so that the vendor's cache still fits.
            candidates = range(len(messages))

        for at in reversed(candidates):
            if messages[at].role is Role.USER:
                return at
        return candidates.start

    def set_memory(self, memory: ConversationMemory | None) -> None:
        """Set the conversation that the run belongs to, and read its history.

        None: the run has no conversation, and begins without a history.
        """
        self.memory = memory
        self.run_memory.memory = memory
        self.history = []
        if memory is None:
            return
        self.history = with_waiting_results(memory.shown())
        # The reasoning and the pictures in a history are only for the run that added them, when it
        # goes on.
        is_new_run = self.request.paused_counts is None
        if is_new_run:
            self.history = [_without_details(message) for message in self.history]

    def close(self, content: str) -> None:
        """End the transcript with the reply `content`, and remove what only the run needed.

        A user's message that no guardrail has passed is replaced by WITHHELD. If a call waits, the
        run is not over: the transcript ends with that call, and the models' reasoning stays.
        """
        # The messages of the request pass the guardrails one after another, before the first round.
        # If one was blocked, it and all behind it are missing in `self.messages`. If all passed,
        # `self.messages` has at least as many messages as the request, and nothing is missing.
        passed_count = len(self.messages)
        for message in self.request.messages[passed_count:]:
            if message.role is Role.USER:
                self.messages.append(Message(Role.USER, WITHHELD))
            else:
                self.messages.append(message)

        # If calls of `earlier` still wait, a run has messages of its own only if the user wrote
        # again. `content` then answers these messages, and is added although those calls wait.
        waiting = self.waiting_ids
        if self.messages:
            waiting = open_actions(self.messages)
        if waiting:
            self.messages = [replace(each, pictures=()) for each in self.messages]
            return

        self.messages.append(Message(Role.ASSISTANT, content))
        self.messages = [_without_details(each) for each in self.messages]

    @property
    def waiting_ids(self) -> tuple[str, ...]:
        """The ids in the links of all calls that wait, also those of the paused run.

        They are ids of pending actions, or where a program decides those of `waiting_id`.
        """
        return open_actions([*self.earlier, *self.messages])

    @property
    def counts(self) -> RunCounts:
        """What the run counts, for another run that goes on with it after a decision."""
        return RunCounts(
            run_id=self.events.run_id,
            iterations=self.iterations,
            usage=self.events.side_usage + self.usage,
            actions=self.waiting_ids,
        )

    def close_round(self, outcomes: Sequence[CallOutcome], *, note: str = "") -> None:
        """Add the calls of the open round and their results to the transcript.

        `outcomes` has one for each call, in order. `note` is added to the last result, for the
        model; "" for none. Without an open round nothing happens.
        """
        if self.open_round is None:
            return
        answer = self.open_round.answer
        self.open_round = None

        self.messages.append(answer)
        self.messages += [self._message_of(outcome) for outcome in outcomes]
        if note:
            last = self.messages[-1]
            self.messages[-1] = replace(last, content=f"{last.content}\n\n{note}")

        self.tool_calls += answer.tool_calls
        usage = NO_USAGE
        for outcome in outcomes:
            usage += outcome.usage
            self._collect(outcome)
        # A sum has the provider and the model of its last part. That must be the model of the loop,
        # and not the one that writes summaries.
        self.usage = usage + self.usage

    def _message_of(self, outcome: CallOutcome) -> Message:
        """Return an outcome as a message of the transcript, with what only the run knows of it."""
        message = outcome.message
        if outcome.open_call is not None or outcome.inner is not None:
            link = ActionLink(waiting_id(self.events.run_id, outcome.call.id))
            message = replace(message, actions=(link,))
        if outcome.is_unknown:
            # If the model repeats such a call, the question about it names the time of the first.
            message = replace(message, at=_time_of_turn())
        return message

    def _collect(self, outcome: CallOutcome) -> None:
        """Add what the call has produced to what the run returns."""
        self.artifacts += outcome.artifacts
        self.choices = outcome.choices or self.choices
        if outcome.is_unknown:
            self.unknown_outcomes.append(outcome.call)
        if outcome.ends == "terminal":
            self.terminal_texts.append(outcome.final_text)
        if outcome.open_call is not None:
            self.open_calls.append(outcome.open_call)
        if outcome.inner is not None:
            self.inner[outcome.call.id] = outcome.inner

    def restore(self, snapshot: RunSnapshot) -> None:
        """Continue from a paused run: set what its snapshot has.

        Its counts are in the request, and the loop sets them. Its files, choices and reasoning are
        in no snapshot: the AgentResult of the paused run has handed them over.
        """
        self.earlier = list(snapshot.messages)
        self.open_calls = list(snapshot.calls)
        self.inner = dict(snapshot.inner)
        self.tool_calls = []
        for message in self.earlier:
            self.tool_calls += message.tool_calls
        self.unknown_outcomes = [each.call for each in calls_with_unknown_outcome(self.earlier)]

    @property
    def snapshot(self) -> RunSnapshot:
        """The run as a program stores it.

        Read it before `close`: that adds the reply, which a paused run does not have.
        """
        counts = self.counts
        messages = [*self.earlier, *self.messages]
        return RunSnapshot(
            run_id=counts.run_id,
            iterations=counts.iterations,
            usage=counts.usage,
            messages=tuple(replace(each, pictures=()) for each in messages),
            calls=tuple(self.open_calls),
            inner=dict(self.inner),
        )

    def result(self, end: RunEnd, paused: RunSnapshot | None = None) -> AgentResult:
        """Return the end of the run with everything that the run has produced and spent.

        `paused` is the run as it can go on; None if it is over.
        """
        texts_with_calls = [text for text in self.reasoning if text]
        last_reasoning = texts_with_calls[-1] if texts_with_calls else ""
        # A run with a question does not end with the replies of its terminal tools. So they are
        # handed over beside the question.
        terminal_texts: tuple[str, ...] = ()
        if end.stop_reason == "pending":
            terminal_texts = tuple(self.terminal_texts)
        open_calls: tuple[OpenCall, ...] = ()
        if paused is not None:
            open_calls = paused.open_calls

        return AgentResult(
            **end._asdict(),
            artifacts=tuple(self.artifacts),
            reasoning=last_reasoning,
            reasoning_history=list(self.reasoning),
            iterations=self.iterations,
            trace=self.events.trace,
            usage=self.events.side_usage + self.usage,
            provider_used=self.usage.provider,
            tool_calls=tuple(self.tool_calls),
            messages=(*map(_without_details, self.earlier), *self.messages),
            unknown_outcomes=tuple(self.unknown_outcomes),
            terminal_texts=terminal_texts,
            choices=self.choices,
            open_calls=open_calls,
            paused=paused,
            decided=tuple(self.decided),
        )


def _time_of_turn() -> float:
    """Return when the turn came in, in Unix seconds by the clock of the store.

    Without a worker, return the present time.
    """
    timers = tool_environment().timers
    if timers is None:
        return time.time()
    return timers.now


def _text_of_user(messages: Iterable[Message]) -> str:
    """Return the texts of the messages that the user wrote, one below the other."""
    return "\n".join([message.content for message in messages if message.role is Role.USER])


def _without_details(message: Message) -> Message:
    """Return a message as a history keeps it after the run: without reasoning and pictures."""
    if not (message.details or message.pictures):
        return message
    return replace(message, details=None, pictures=())


def with_paused_run(
    request: RunRequest,
    paused: RunSnapshot | RunCounts | None,
    decisions: Mapping[str, Decision] | None,
) -> RunRequest:
    """Return the request as one that goes on with a paused run; unchanged if `paused` is None.

    A program gives a RunSnapshot with `decisions` about its open calls. A channel gives RunCounts:
    there the decisions were carried out before, and their results are in the memory. Raises
    DecisionError for decisions that do not fit the open calls of that run, and TypeError for
    anything but a paused run.
    """
    if isinstance(paused, RunSnapshot):
        check_decisions(paused.open_calls, decisions or {})
        # Without `actions`: they only tell a channel which counts belong to a decided action.
        counts = RunCounts(paused.run_id, paused.iterations, paused.usage)
        return replace(
            request,
            paused_counts=counts,
            paused_run=paused,
            decisions=dict(decisions or {}),
        )
    if paused is not None and not isinstance(paused, RunCounts):
        raise TypeError(
            f"paused={paused!r} is no paused run: read stored data with RunSnapshot.from_dict(data)"
        )
    if decisions:
        raise DecisionError(
            f"decisions about {sorted(decisions)} need the run that waits:"
            " give paused=result.paused"
        )
    return replace(request, paused_counts=paused)


def to_messages(
    messages: str | Sequence[Message], *, may_be_empty: bool = False
) -> tuple[Message, ...]:
    """Return the input of a run as messages. A text is a message of the user, also an empty text.

    `may_be_empty`: the run goes on, so that no new messages are needed; an empty text is none then.
    Raises TypeError for anything but messages, and ValueError if there are none.
    """
    if may_be_empty and not messages:
        return ()
    if isinstance(messages, str):
        return (Message(Role.USER, messages),)

    how_to = "give a text or a list of Message(role=Role.USER, content=...)"
    # Code without type checks may give one Message without a list around it.
    if not isinstance(messages, Iterable):
        raise TypeError(f"{messages!r} is no list of messages: {how_to}")
    checked_messages = tuple(messages)
    for message in checked_messages:
        if not isinstance(message, Message):
            raise TypeError(f"{message!r} is no Message: {how_to}")
    if not checked_messages:
        raise ValueError("there is no message to answer: give a text or at least one Message")
    return checked_messages
