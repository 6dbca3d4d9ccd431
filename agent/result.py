"""AgentResult."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sayso.agent.messages import NO_USAGE, FinishReason, Message, Role, ToolCall, UsageStats
from sayso.agent.observability.trace import AgentTrace
from sayso.agent.providers.base import FailureKind
from sayso.agent.swift import swift
from sayso.agent.tools.context import Artifact

#: Why a run was ended politely: its budget is spent, a guardrail blocked, somebody cancelled it, it went in circles,
#: its model was not to be had.
StopCause = Literal["budget_spent", "refused", "cancelled", "loop_detected", "model_away"]


#: In English, for callers without a channel; channels say it in the person's language (`sayso.channels.i18n.texts`).
_WORDS: dict[StopCause, str] = {
    "budget_spent": "I have used up what I may spend on this for now, so I stopped. Please try again later.",
    "refused": "I may not answer that. Please ask for something else.",
    "cancelled": "This was stopped. What had already begun may have finished.",
    "loop_detected": "I kept repeating the same steps, so I stopped. Please ask in another way.",
    "model_away": "The language model did not answer. Please try again shortly.",
}


def ending_words(reason: StopCause) -> str:
    """What the user reads. Raises ValueError for a reason that has no words."""
    if reason not in _WORDS:
        raise ValueError(f"a run does not end because of {reason!r}; known: {sorted(get_args(StopCause))}")
    return _WORDS[reason]


#: Why a run ended. The model answered; a proposal waits for a yes; a terminal tool or the stop condition ended it; its
#: tools were chosen and not run (`routing_only`); a limit, a guardrail, a budget, the person or a loop ended it; the
#: model could not be asked; its answers never had the form that was asked for; or, in a batch, the run broke.
StopReason = Literal[
    "answer", "pending", "terminal", "routing", "max_iterations", "guardrail", "budget", "cancelled", "loop",
    "provider_error", "invalid_answer", "error",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """A piece of the reply's text, as it comes. Where it `restarts`, the answer before it broke off and its pieces are
    void.
    """

    content: str
    restarts: bool = False


@swift
@dataclass(frozen=True, slots=True)
class AgentResult:
    """The reply, and what was made and spent on the way to it.

    `parsed` is the reply as `response_format` has it; None without one, and where the model never gave one, which
    `structured_error` then explains. `reasoning_history` has one string per iteration: what the model said beside its
    tool calls, "" where it said or called nothing. `reasoning` is the last that is not "". `provider_used`
    names who answered last.
    `messages` is the transcript of this run alone, the user's words included: what a conversation's history grows by.
    `unclear` are the calls of which nobody knows how they ended: a killed or stopped attempt at this run had begun
    them, or who was asked never answered. `beside` is what terminal tools said in the same answer as a proposal.
    `choices` are the answers that tools put under the reply: those of the call that offered last.
    `failure` is why there was no answer, where `stop_reason` is "provider_error". `failure_cause` is what operators
    look for then, and for an answer without a word: status, code, model. `refusal` is what a model said itself when it
    refused. `finish_reason` is why the model ended its answer, as far as its vendor says: an answer that is not
    complete has "length".
    """

    content: str
    artifacts: tuple[Artifact, ...] = ()
    parsed: Any = None
    reasoning: str = ""
    reasoning_history: list[str] = field(default_factory=list)
    iterations: int = 0
    trace: AgentTrace = field(default_factory=AgentTrace)
    usage: UsageStats = NO_USAGE
    provider_used: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    messages: tuple[Message, ...] = ()
    stop_reason: StopReason = "answer"
    unclear: tuple[ToolCall, ...] = ()
    beside: tuple[str, ...] = ()
    structured_error: str = ""
    choices: tuple[str, ...] = ()
    failure: FailureKind = "away"
    failure_cause: str = ""
    refusal: str = ""
    finish_reason: FinishReason = ""

    @property
    def message(self) -> Message:
        """The reply as an entry of a transcript."""
        return Message(Role.ASSISTANT, self.content)

    @property
    def role(self) -> Role:
        """The assistant's."""
        return Role.ASSISTANT

    @property
    def tool_name(self) -> str | None:
        """The tool that was called, or chosen, last."""
        return self.tool_calls[-1].tool_name if self.tool_calls else None

    @property
    def tool_args(self) -> dict[str, Any]:
        """Its arguments."""
        return dict(self.tool_calls[-1].parameters) if self.tool_calls else {}
