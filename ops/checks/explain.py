"""What would happen if a user had a tool called on a channel,
and which line of the YAML decides it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from sayso.agent import Tool
from sayso.agent.guards.policy import (
    PolicyDecision,
    editable_names,
    effective_after,
    effective_decision,
)
from sayso.agent.tools.call_texts import result_text
from sayso.agent.tools.definition import MEMORY
from sayso.agent.tools.errors import PreviewError, ToolError
from sayso.agent.tools.registry import unknown_tool
from sayso.agent.toolsets.selectors import Visibility, roles_in, would_show
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import channel_after, own_tools, tool_policy
from sayso.config.wiring.tools import OpenTools, build_selector
from sayso.infra.redaction import redact
from sayso.ops.checks.describe import AFTER_TEXTS, DECISIONS
from sayso.pending.action import After
from sayso.pending.call_context import ChannelRun, context_field

#: What becomes of a call: it runs at once, its user is asked first, or it never runs.
ToolVerdict = Literal["runs", "asks", "never"]

_VERDICTS: Mapping[str, ToolVerdict] = {"allow": "runs", "review": "asks", "deny": "never"}
_VERDICT_TEXTS: Mapping[str, str] = {
    "runs": "It runs at once{}.",
    "asks": "It asks first{}.",
    "never": "It never runs.",
}


class ToolUnknown(Exception):
    """Raised when the configuration has no tool of that name."""


@dataclass(frozen=True, slots=True)
class ExplainedReason:
    """Why something is so, and the `file:line:column` that says it; "" where no line does."""

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedQuestion:
    """The question that a user would be asked, how long it stays open,
    and whether it takes a typed code.

    `editable`: the arguments that the user may change before the yes.
    """

    preview: str
    within_seconds: float
    typed_code: bool
    editable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about one call before it is made. Parts that were not reached are None.

    `arguments` are None where none were given and the tool needs some:
    then the decision is made on its name alone.
    """

    channel: str
    user: str
    tool: str
    verdict: ToolVerdict
    has_tool: ExplainedReason
    shown: Visibility | None = None
    shown_because: ExplainedReason | None = None
    arguments: dict[str, Any] | None = None
    problem: str = ""
    decision: PolicyDecision | None = None
    decided_by: ExplainedReason | None = None
    question: ExpectedQuestion | None = None
    undo_seconds: float = 0.0
    #: Whether the tool's own code asks. Its question is known when it runs.
    asks_by_itself: bool = False
    #: Rules over arguments that may still deny the call, where no arguments were given.
    open_rules: tuple[ExplainedReason, ...] = field(default=())
    #: What follows the outcome, and what says so.
    after: After | None = None
    after_because: ExplainedReason | None = None


def explain(
    settings: Settings,
    opened: OpenTools,
    channel: str,
    user: str,
    tool: str,
    args: Mapping[str, Any] | None,
) -> Explanation:
    """Return what would happen.

    No tool is run; a tool's preview function is, and it may look things up.

    Raises ToolUnknown, and ConfigError for a selector that cannot be built.
    """
    own = {each.name: each for each in own_tools(settings)}
    known_tools = own | {each.name: each for each in opened.tools}
    if tool not in known_tools:
        raise ToolUnknown(unknown_tool(tool, known_tools))
    of_channel = settings.channels[channel]
    run = ChannelRun(user, channel, "", of_channel.confirm_ttl, "", of_channel.default_language)
    call = _Call(settings, channel, of_channel, known_tools[tool], run)
    if call.tool is not own.get(tool) and call.tool not in opened.select(of_channel.tools).all():
        reason = ExplainedReason("none of its tools patterns names it", call.where("tools"))
        return Explanation(channel, user, tool, "never", reason)
    with context_field("run", run):
        return call.decide(call.visibility(), args)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of one tool that a channel has, and the run of the user who asks for it."""

    settings: Settings
    name: str
    channel: AnyChannel
    tool: Tool
    run: ChannelRun

    def where(self, *path: str | int) -> str:
        """Return the line of a key of the channel."""
        return self.settings.origin.at("channels", self.name, *path).removesuffix(": ")

    @property
    def knowledge_line(self) -> str:
        """The line that turns knowledge on, and with it the memory's own tool."""
        return self.settings.origin.at("agent", "memory", "knowledge").removesuffix(": ")

    def visibility(self) -> Explanation:
        """Return the explanation of why the channel has the tool, and whether a model is shown it."""
        selector = build_selector(self.settings, self.name)
        shown = asyncio.run(would_show(selector, self.tool))
        roles = ", ".join(map(repr, asyncio.run(roles_in(selector))))
        access = self.channel.access
        path = ("access", "roles") if access and access.roles else ("selector",)
        because = ExplainedReason(
            f"role {roles}" if roles else "", self.where(*path) if selector else ""
        )
        policy = tool_policy(self.channel.policy)
        if policy:
            denial = policy.unconditional_denial(self.tool.name)
        else:
            denial = None
        if denial and denial.rule:
            shown = "hidden"
            because = ExplainedReason(
                f"deny: {denial.rule.pattern}", self.where("policy", "deny", denial.rule.index)
            )
        patterns = [
            each
            for each in enumerate(self.channel.tools or ())
            if fnmatchcase(self.tool.name, each[1])
        ]
        has_tool = ExplainedReason("it names no tools, so it has all", self.where())
        if self.tool.metadata.source == MEMORY:
            has_tool = ExplainedReason(
                "agent.memory.knowledge gives it to all", self.knowledge_line
            )
        elif patterns:
            index, pattern = patterns[0]
            has_tool = ExplainedReason(f"tools: {pattern}", self.where("tools", index))
        return Explanation(
            channel=self.name,
            user=self.run.user_id,
            tool=self.tool.name,
            verdict="never",
            has_tool=has_tool,
            shown=shown,
            shown_because=because,
        )

    def decide(self, known: Explanation, raw_args: Mapping[str, Any] | None) -> Explanation:
        """Complete an explanation: the arguments, the policy's decision,
        and the question to the user.
        """
        args, problem = self._validated(raw_args)
        if problem:
            return replace(known, problem=problem)
        policy = self.channel.policy
        decision = effective_decision(self.tool, args or {}, tool_policy(policy))
        is_open = args is None and decision.decision != "deny"
        after, after_because = self._after()
        explanation = replace(
            known,
            arguments=args,
            decision=decision,
            decided_by=self._decided_by(decision),
            open_rules=tuple(
                ExplainedReason(
                    self._rule_text("deny_when", index), self.where("policy", "deny_when", index)
                )
                for index, rule in enumerate(policy.deny_when if policy and is_open else ())
                if fnmatchcase(self.tool.name.casefold(), rule.tool.casefold())
            ),
            undo_seconds=self.tool.undo_seconds if self.tool.undo else 0.0,
            asks_by_itself=bool(self.tool.proposes) and decision.decision == "allow",
            after=after,
            after_because=after_because,
        )
        if explanation.shown == "hidden" or decision.decision == "deny":
            return explanation
        if decision.decision == "review" and args is not None:
            return self._with_question(explanation, raw_args or {})
        return replace(
            explanation,
            verdict="asks" if explanation.asks_by_itself else _VERDICTS[decision.decision],
        )

    def _validated(self, raw_args: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
        """Return the arguments as the tool would get them,
        or what a model would be told is wrong with them.
        """
        try:
            return self.tool.validate_json(raw_args or {}), ""
        except ToolError as exc:
            if raw_args is None:
                return (None, "")
            return (None, str(exc))

    def _after(self) -> tuple[After, ExplainedReason]:
        """Return what follows the outcome of a confirmed call, and what says so."""
        policy = tool_policy(self.channel.policy)
        default = channel_after(self.settings, self.name)
        after = effective_after(self.tool.name, self.tool, policy) or default
        if policy:
            pattern = policy.after_rule(self.tool.name)
        else:
            pattern = ""
        if pattern:
            return after, ExplainedReason(
                f"after: {pattern}", self.where("policy", "after", pattern)
            )
        if self.tool.after:
            return after, ExplainedReason("the tool's author: after")
        if self.tool.terminal:
            return after, ExplainedReason("the tool's author: terminal")
        if self.channel.after is not None:
            return after, ExplainedReason("the channel's after", self.where("after"))
        return after, ExplainedReason("the default of its model")

    def _decided_by(self, decision: PolicyDecision) -> ExplainedReason:
        if decision.rule:
            kind = decision.rule.kind
            index = decision.rule.index
            return ExplainedReason(self._rule_text(kind, index), self.where("policy", kind, index))
        match decision.decided_by:
            case "requires_approval":
                return ExplainedReason(
                    "the tool's author: requires_approval, which no allow rule overrules"
                )
            case "destructive":
                return ExplainedReason(
                    "hint: destructive, and no rule names it; an allow rule would let it run"
                )
            case "memory":
                return ExplainedReason(
                    "it is the memory's own, and no rule names it", self.knowledge_line
                )
            case "no_policy":
                return ExplainedReason("the channel has no policy", self.where())
        return ExplainedReason("no rule names it, so it is asked for", self.where("policy"))

    def _rule_text(self, kind: str, index: int) -> str:
        policy = self.channel.policy
        if policy is not None and kind == "deny_when":
            rule = policy.deny_when[index]
            if rule.matches == "text":
                form = ""
            else:
                form = f", matches: {rule.matches}"
            return (
                f"deny_when: {{tool: {rule.tool}, arg: {rule.arg}, pattern: {rule.pattern}{form}}}"
            )
        return f"{kind}: {getattr(policy, kind)[index]}"

    def _with_question(self, explanation: Explanation, raw_args: Mapping[str, Any]) -> Explanation:
        """Add the exact question that the user would read and the action would be sealed with."""
        try:
            result = self.tool.propose(raw_args)
        except PreviewError as exc:  # models and users do not read the error itself
            return replace(explanation, problem=redact(f"{exc}: {exc.error}"))
        except ToolError as exc:
            return replace(explanation, problem=str(exc))
        if not self.run.proposals:
            reason = result_text(result.to_json())
            return replace(explanation, problem=f"there is nothing to ask: {reason}")
        action = self.run.proposals[0]
        editable = editable_names(self.tool, tool_policy(self.channel.policy))
        question = ExpectedQuestion(action.preview, action.ttl_seconds, bool(action.code), editable)
        return replace(explanation, verdict="asks", question=question)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield an explanation as text: a line for each part of the configuration that had a say,
    the verdict last.
    """
    user = explanation.user or "the user who asks"
    arguments = explanation.arguments
    if arguments is None:
        call = ""
    else:
        call = f" with {json.dumps(arguments, ensure_ascii=False)}"
    yield f"{user} on {explanation.channel}: {explanation.tool}{call}"
    yield from map("  {}".format, _parts(explanation, user))
    if explanation.shown == "depends":
        condition = ", where its selector shows it"
    else:
        condition = ""
    yield _VERDICT_TEXTS[explanation.verdict].format(condition)


def _parts(explanation: Explanation, user: str) -> Iterator[str]:
    if explanation.shown is None:
        yield f"channel: does not have it: {_cited(explanation.has_tool)}"
        return
    yield f"channel: has it: {_cited(explanation.has_tool)}"
    yield f"shown: {_visibility(explanation, user)}"
    if explanation.decision is None:
        yield f"arguments: {explanation.problem}"
        return
    yield (
        "arguments: none given; decided by its name alone"
        if explanation.arguments is None
        else "arguments: valid"
    )
    if explanation.asks_by_itself:
        decision = "asks by itself"
    else:
        decision = DECISIONS[explanation.decision.decision]
    yield f"decision: {decision}: {_cited(explanation.decided_by)}"
    yield from (
        f"decision: may be denied by its arguments: {_cited(rule)}"
        for rule in explanation.open_rules
    )
    if explanation.problem:
        yield f"question: {explanation.problem}"
    if explanation.asks_by_itself:
        yield "question: asked by the tool's own code; its text is known when the tool runs"
    if explanation.question:
        question = explanation.question
        first, *others = question.preview.splitlines()
        yield f"preview: {first}"
        yield from (f"         {line}" for line in others)
        if question.typed_code:
            code = ", and only with the code that the question shows"
        else:
            code = ""
        yield f"confirm: only {user}, where it was asked, within {question.within_seconds:g} s of its delivery{code}"
        if question.editable:
            yield f"change: {user} may change {', '.join(question.editable)} before the yes, and is asked anew"
    if explanation.undo_seconds and explanation.verdict == "asks":
        yield f"undo: for {explanation.undo_seconds:g} s after the outcome"
    if explanation.after and explanation.verdict == "asks":
        yield f"after the outcome: {AFTER_TEXTS[explanation.after]}: {_cited(explanation.after_because)}"


def _cited(reason: ExplainedReason | None) -> str:
    if reason is None:
        return ""
    if reason.where:
        return f"{reason.text} ({reason.where})"
    return reason.text


def _visibility(explanation: Explanation, user: str) -> str:
    """Return whether the model would see the tool, and why."""
    reason = explanation.shown_because
    if reason and reason.text:
        cause = f", {reason.text}"
    else:
        cause = ""
    if reason and reason.where:
        place = f" ({reason.where})"
    else:
        place = ""
    match explanation.shown:
        case "hidden":
            return f"not to {user}{cause}{place}"
        case "depends":
            return f"depends on the message{cause}{place}"
    if place:
        return f"to {user}{cause}{place}"
    return "always: the channel has no selector"
