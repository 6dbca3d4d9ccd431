"""AgentResult: what a run returns, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sayso.agent.decisions import DecidedCall, OpenCall, RunSnapshot
from sayso.agent.messages import (
    NO_USAGE,
    FailureKind,
    FinishReason,
    Message,
    Role,
    ToolCall,
    UsageStats,
)
from sayso.agent.tools.environment import Artifact
from sayso.agent.trace import AgentTrace

#: Why a run ended early: its budget is spent, a guardrail blocked it ("refused"), it was cancelled,
#: it repeated itself, or no model answered.
StopCause = Literal["budget_spent", "refused", "cancelled", "loop_detected", "model_away"]

#: English texts for callers without a channel. Channels use the person's language
#: (`sayso.channels.i18n.texts`).
_STOP_TEXTS: dict[StopCause, str] = {
    "budget_spent": "I have used up my budget for now, so I stopped. Please try again later.",
    "refused": "I am not allowed to answer that. Please ask for something else.",
    "cancelled": "This was stopped. What had already begun may have finished.",
    "loop_detected": (
        "I kept repeating the same steps, so I stopped. Please try asking differently."
    ),
    "model_away": "The language model did not answer. Please try again shortly.",
}


def stop_text(cause: StopCause) -> str:
    """Return the English text that the user reads when a run ends early.

    Raises ValueError for an unknown cause.
    """
    if cause not in _STOP_TEXTS:
        raise ValueError(
            f"a run does not end because of {cause!r}; known: {sorted(get_args(StopCause))}"
        )
    return _STOP_TEXTS[cause]


#: Why a run ended.
#:
#: * "answer": the model answered.
#: * "pending": a proposal waits for a yes.
#: * "terminal": the result of a terminal tool is the reply, or the stop condition ended the run.
#: * "routing": tools were chosen and not run (`routing_only`).
#: * "max_iterations": there was no answer after the last allowed iteration.
#: * "guardrail": a guardrail blocked a message or the answer.
#: * "budget": a budget is spent.
#: * "cancelled": the cancellation token stopped it.
#: * "loop": it repeated the same calls.
#: * "provider_error": no answer came from the model.
#: * "invalid_answer": no answer had the required form.
#: * "error": a run of a batch raised an exception.
StopReason = Literal[
    "answer",
    "pending",
    "terminal",
    "routing",
    "max_iterations",
    "guardrail",
    "budget",
    "cancelled",
    "loop",
    "provider_error",
    "invalid_answer",
    "error",
]


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """A piece of the reply's text while it arrives."""

    content: str
    #: Whether this piece begins a new answer because the one before it broke off. Discard the
    #: pieces of that one.
    restarts: bool = False


@dataclass(slots=True)
class AgentResult:
    """The reply of a run, and what was produced and spent for it.

    A run never raises for what a model, a tool or an observer does: `stop_reason` and the fields
    that belong to it say what happened.
    """

    #: The reply, or why there is none.
    content: str
    stop_reason: StopReason = "answer"
    #: The reply in the form of `response_format`; None without a format, and if no answer had it.
    parsed: Any = None
    #: Why the reply does not have the form; "" if it does.
    structured_error: str = ""
    #: Why there was no answer. It means something only if `stop_reason` is "provider_error".
    failure: FailureKind = "away"
    #: For operators: status, code and model of a failure or of an empty answer; "" for neither.
    failure_cause: str = ""
    #: The model's own text when it refused to answer; "" if it did not.
    refusal: str = ""
    #: Why the model stopped, as far as the vendor reports it; "length" for an incomplete answer.
    finish_reason: FinishReason = ""
    #: The files that tools made, in order.
    artifacts: tuple[Artifact, ...] = ()
    #: The last text of `reasoning_history` that is not empty.
    reasoning: str = ""
    #: One text per iteration: what the model wrote together with its tool calls; "" if it wrote
    #: nothing or called no tool.
    reasoning_history: list[str] = field(default_factory=list)
    #: How often the model was asked.
    iterations: int = 0
    trace: AgentTrace = field(default_factory=AgentTrace)
    #: What all model calls of the run used, those for summaries and checks included.
    usage: UsageStats = NO_USAGE
    #: The name of the provider that answered last.
    provider_used: str = ""
    #: All calls of the run, in order; with `routing_only` those that were only chosen.
    tool_calls: tuple[ToolCall, ...] = ()
    #: The transcript of this run alone, including the user's messages: the addition to the history.
    messages: tuple[Message, ...] = ()
    #: The calls with an unknown outcome: a killed or stopped attempt had started them, the called
    #: service never answered, or they took longer than their time limit.
    unknown_outcomes: tuple[ToolCall, ...] = ()
    #: The replies of terminal tools in the same answer as a proposal: the run ends with the
    #: proposal, so these texts are not in `content`.
    terminal_texts: tuple[str, ...] = ()
    #: The answers that tools offered as buttons; the last offer counts.
    choices: tuple[str, ...] = ()
    #: The calls that wait for a decision (`pause_for_approval`).
    open_calls: tuple[OpenCall, ...] = ()
    #: The run that goes on once the open calls are decided; None if the run is over. If a run that
    #: went on ends before its model could answer, it has one, too: that goes on without decisions,
    #: and no call runs again.
    paused: RunSnapshot | None = None
    #: What became of the calls that this run was given decisions about.
    decided: tuple[DecidedCall, ...] = ()

    @property
    def message(self) -> Message:
        """The reply as a message of a transcript."""
        return Message(Role.ASSISTANT, self.content)

    @property
    def role(self) -> Role:
        """The role of the assistant, as of any reply."""
        return Role.ASSISTANT

    @property
    def tool_name(self) -> str | None:
        """The name of the last tool that was called or chosen; None without one."""
        return self.tool_calls[-1].tool_name if self.tool_calls else None

    @property
    def tool_args(self) -> dict[str, Any]:
        """The arguments of the last tool that was called or chosen; empty without one."""
        if self.tool_calls:
            return dict(self.tool_calls[-1].parameters)
        return {}
