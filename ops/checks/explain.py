"""What would happen if a user had a tool called on a channel, and which line of the YAML decides.

`explain` returns an `Explanation`, which `sayso explain` prints. It goes the way of a real call:
does the channel have the tool, is a model shown the tool, are the arguments valid, what does the
policy decide, what is the user asked. No tool runs.
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
    ToolPolicy,
    editable_names,
    effective_after,
    effective_decision,
)
from sayso.agent.tools.definition import MEMORY
from sayso.agent.tools.errors import PreviewError, ToolError
from sayso.agent.tools.registry import unknown_tool
from sayso.agent.tools.result_texts import result_text
from sayso.agent.toolsets.selectors import Visibility, roles_in, would_show
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import channel_after, own_tools, tool_policy
from sayso.config.wiring.deciders import DecidersOfYaml, check_deciders
from sayso.config.wiring.tools import OpenTools, build_selector
from sayso.infra.redaction import redact
from sayso.ops.checks.approvals import ExpectedApproval, approval_lines, expected_approval
from sayso.ops.checks.describe import AFTER_TEXTS, DECISIONS
from sayso.ops.checks.standing import standing_summary
from sayso.pending.action import After
from sayso.pending.call_context import ChannelRun, context_field

#: What becomes of a call: it runs at once, its user is asked first, or it never runs.
ToolVerdict = Literal["runs", "asks", "never"]

#: The verdict for each decision of a policy.
_VERDICTS: Mapping[str, ToolVerdict] = {"allow": "runs", "review": "asks", "deny": "never"}
#: The last line of an explanation. {} stands for a condition.
_VERDICT_TEXTS: Mapping[str, str] = {
    "runs": "It runs at once{}.",
    "asks": "It asks first{}.",
    "never": "It never runs.",
}


class ToolUnknown(Exception):
    """Raised when the configuration has no tool of that name."""


@dataclass(frozen=True, slots=True)
class ExplainedReason:
    """Why something is so, and what says so."""

    text: str
    #: The `file:line:column` of the YAML that says it, "" where no line does.
    where: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedQuestion:
    """The question that a user would be asked."""

    preview: str
    #: How long the question stays open, in seconds from its delivery.
    within_seconds: float
    #: Whether the user must type a code with the yes.
    typed_code: bool
    #: The arguments that the user may change before the yes.
    editable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about one call before it is made.

    An explanation ends at the first part that stops the call. All later parts are None.
    """

    channel: str
    #: The id of the user, "" for a user who is not in the configuration.
    user: str
    tool: str
    verdict: ToolVerdict
    #: Why the channel has the tool, or has not.
    has_tool: ExplainedReason
    #: Whether a model is shown the tool.
    shown: Visibility | None = None
    shown_because: ExplainedReason | None = None
    #: The arguments as the tool would get them. None where none were given and the tool needs some:
    #: then the decision is made by the tool's name alone.
    arguments: dict[str, Any] | None = None
    #: What is wrong with the arguments or the question, "" for nothing.
    problem: str = ""
    decision: PolicyDecision | None = None
    decided_by: ExplainedReason | None = None
    question: ExpectedQuestion | None = None
    #: The approval of other people that the call needs; None if the user decides.
    approval: ExpectedApproval | None = None
    #: For which later calls a yes to the call may stand, as one line; "" if for none.
    standing: str = ""
    #: For how long the user may undo the call, in seconds from the outcome; 0 for not at all.
    undo_seconds: float = 0.0
    #: Whether the tool's own code asks. Its question is known when it runs.
    asks_by_itself: bool = False
    #: Rules over arguments that may still deny the call, where no arguments were given.
    open_rules: tuple[ExplainedReason, ...] = field(default=())
    #: What follows the outcome.
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
    """Return what would happen if a user had a tool called on a channel.

    `user` is the user's id, "" for one who is not in the configuration; `args` are the arguments
    as a model would give them, None for none. The tool does not run, but its preview function does,
    which may look things up. Raises ToolUnknown, and ConfigError for a selector that cannot be
    built and for an approval that nobody could give.
    """
    check_deciders(settings)
    own = {each.name: each for each in own_tools(settings)}
    known_tools = own | {each.name: each for each in opened.tools}
    if tool not in known_tools:
        raise ToolUnknown(unknown_tool(tool, known_tools))

    channel_settings = settings.channels[channel]
    policy = tool_policy(channel_settings.policy) or ToolPolicy()
    # No question is stored or answered, so the run needs no conversation and no parser of a yes.
    run = ChannelRun(
        user_id=user,
        channel_id=channel,
        conversation_id="",
        ttl_seconds=channel_settings.confirm_ttl,
        parser_version="",
        language=channel_settings.default_language,
        approval=policy.approval_rule,
    )
    call = _Call(settings, channel, channel_settings, known_tools[tool], run)
    is_own = call.tool is own.get(tool)
    if not is_own and call.tool not in opened.select(channel_settings.tools).all():
        reason = ExplainedReason("none of its tools patterns names it", call.where("tools"))
        return Explanation(channel, user, tool, "never", reason)
    with context_field("run", run):
        return call.decide(call.visibility(), args)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of one tool that a channel has."""

    settings: Settings
    #: The name of the channel.
    name: str
    channel: AnyChannel
    tool: Tool
    #: The run of the agent in which the call would be made. A tool that asks adds its question to
    #: the `proposals` of the run.
    run: ChannelRun

    def where(self, *path: str | int) -> str:
        """Return the `file:line:column` of a key of the channel."""
        return self.settings.origin.at("channels", self.name, *path).removesuffix(": ")

    @property
    def knowledge_line(self) -> str:
        """The place of `agent.memory.knowledge`, which gives all channels the tool `remember`."""
        return self.settings.origin.at("agent", "memory", "knowledge").removesuffix(": ")

    def visibility(self) -> Explanation:
        """Return the first part of the explanation: why the channel has the tool, and who sees it.

        Its verdict is "never" until `decide` completes it.
        """
        shown, shown_because = self._shown()
        return Explanation(
            channel=self.name,
            user=self.run.user_id,
            tool=self.tool.name,
            verdict="never",
            has_tool=self._has_tool(),
            shown=shown,
            shown_because=shown_because,
        )

    def _shown(self) -> tuple[Visibility, ExplainedReason]:
        """Return whether a model is shown the tool, and what says so."""
        selector = build_selector(self.settings, self.name)
        # A denial without conditions hides a tool, whatever the selector says.
        policy = tool_policy(self.channel.policy)
        if policy:
            denial = policy.unconditional_denial(self.tool.name)
            if denial and denial.rule:
                where = self.where("policy", "deny", denial.rule.index)
                return "hidden", ExplainedReason(f"deny: {denial.rule.pattern}", where)

        shown = asyncio.run(would_show(selector, self.tool))
        roles = ", ".join(map(repr, asyncio.run(roles_in(selector))))
        text = f"role {roles}" if roles else ""
        where = ""
        if selector:
            access = self.channel.access
            has_roles = access is not None and access.roles is not None
            path = ("access", "roles") if has_roles else ("selector",)
            where = self.where(*path)
        return shown, ExplainedReason(text, where)

    def _has_tool(self) -> ExplainedReason:
        """Return why the channel has the tool."""
        if self.tool.metadata.source == MEMORY:
            return ExplainedReason("agent.memory.knowledge gives it to all", self.knowledge_line)
        for index, pattern in enumerate(self.channel.tools or ()):
            if fnmatchcase(self.tool.name, pattern):
                return ExplainedReason(f"tools: {pattern}", self.where("tools", index))
        return ExplainedReason("it names no tools, so it has all", self.where())

    def decide(self, known: Explanation, raw_args: Mapping[str, Any] | None) -> Explanation:
        """Complete an explanation: the arguments, the decision of the policy, the question."""
        args, problem = self._validate(raw_args)
        if problem:
            return replace(known, problem=problem)

        decision = effective_decision(self.tool, args or {}, tool_policy(self.channel.policy))
        open_rules: tuple[ExplainedReason, ...] = ()
        if args is None and decision.decision != "deny":
            open_rules = tuple(self._open_rules())
        after, after_because = self._after()
        explanation = replace(
            known,
            arguments=args,
            decision=decision,
            decided_by=self._decided_by(decision),
            open_rules=open_rules,
            undo_seconds=self.tool.undo_seconds if self.tool.undo else 0.0,
            asks_by_itself=bool(self.tool.proposes) and decision.decision == "allow",
            after=after,
            after_because=after_because,
        )
        if decision.decision == "review" or explanation.asks_by_itself:
            explanation = replace(explanation, approval=self._approval())
        if decision.decision == "review":
            standing = standing_summary(self.tool, tool_policy(self.channel.policy))
            explanation = replace(explanation, standing=standing)

        if explanation.shown == "hidden" or decision.decision == "deny":
            return explanation
        if decision.decision == "review" and args is not None:
            return self._with_question(explanation, raw_args or {})
        if explanation.asks_by_itself:
            return replace(explanation, verdict="asks")
        return replace(explanation, verdict=_VERDICTS[decision.decision])

    def _approval(self) -> ExpectedApproval | None:
        """Return the approval of other people that the call needs, None if the user decides."""
        deciders = DecidersOfYaml(self.settings)
        asker = None
        if self.run.user_id:
            asker = deciders.person(self.name, self.run.user_id)
        return expected_approval(self.run.approval(self.tool.name), deciders, asker)

    def _validate(self, raw_args: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
        """Return the arguments as the tool would get them, and what is wrong with them.

        The problem is in the words that a model would read, "" for none. The arguments are None
        where there is a problem, and where none were given and the tool needs some; that is not a
        problem.
        """
        try:
            return self.tool.validate_json(raw_args or {}), ""
        except ToolError as exc:
            if raw_args is None:
                return None, ""
            return None, str(exc)

    def _open_rules(self) -> Iterator[ExplainedReason]:
        """Yield the rules that could deny a call of the tool by its arguments."""
        policy = self.channel.policy
        if policy is None:
            return
        name = self.tool.name.casefold()
        for index, rule in enumerate(policy.deny_when):
            if fnmatchcase(name, rule.tool.casefold()):
                where = self.where("policy", "deny_when", index)
                yield ExplainedReason(self._rule_text("deny_when", index), where)

    def _after(self) -> tuple[After, ExplainedReason]:
        """Return what follows the outcome of a confirmed call, and what says so."""
        policy = tool_policy(self.channel.policy)
        default = channel_after(self.settings, self.name)
        after = effective_after(self.tool.name, self.tool, policy) or default
        pattern = ""
        if policy:
            pattern = policy.after_rule(self.tool.name)
        if pattern:
            where = self.where("policy", "after", pattern)
            return after, ExplainedReason(f"after: {pattern}", where)
        if self.tool.after:
            return after, ExplainedReason("the tool's author: after")
        if self.tool.terminal:
            return after, ExplainedReason("the tool's author: terminal")
        if self.channel.after is not None:
            return after, ExplainedReason("the channel's after", self.where("after"))
        return after, ExplainedReason("the default of its model")

    def _decided_by(self, decision: PolicyDecision) -> ExplainedReason:
        """Return what decided: a rule of the policy, the tool's author, or a default."""
        if decision.rule:
            kind = decision.rule.kind
            index = decision.rule.index
            if kind == "approval":
                pattern = decision.rule.pattern
                return ExplainedReason(f"approval: {pattern}", self.where("policy", kind, pattern))
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
        """Return a rule of the channel's policy as the YAML has it.

        `kind` is `allow`, `review`, `deny` or `deny_when`; `index` is the position in that list.
        """
        policy = self.channel.policy
        if policy is None or kind != "deny_when":
            return f"{kind}: {getattr(policy, kind)[index]}"
        rule = policy.deny_when[index]
        matches = ""
        if rule.matches != "text":
            matches = f", matches: {rule.matches}"
        keys = f"tool: {rule.tool}, arg: {rule.arg}, pattern: {rule.pattern}{matches}"
        return f"deny_when: {{{keys}}}"

    def _with_question(self, explanation: Explanation, raw_args: Mapping[str, Any]) -> Explanation:
        """Return the explanation with the exact question that the user would read."""
        try:
            result = self.tool.propose(raw_args)
        except PreviewError as exc:
            # Models and users are not told the error itself, but its author wants to know it.
            return replace(explanation, problem=redact(f"{exc}: {exc.error}"))
        except ToolError as exc:
            return replace(explanation, problem=str(exc))
        # Such as `NotFound` by the preview function.
        if not self.run.proposals:
            reason = result_text(result.to_json())
            return replace(explanation, problem=f"there is nothing to ask: {reason}")
        action = self.run.proposals[0]
        editable = editable_names(self.tool, tool_policy(self.channel.policy))
        question = ExpectedQuestion(action.preview, action.ttl_seconds, bool(action.code), editable)
        return replace(explanation, verdict="asks", question=question)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield an explanation as text: the call, a line for each part, and the verdict."""
    user = explanation.user or "the user who asks"
    arguments = ""
    if explanation.arguments is not None:
        arguments = f" with {json.dumps(explanation.arguments, ensure_ascii=False)}"
    yield f"{user} on {explanation.channel}: {explanation.tool}{arguments}"
    for line in _part_lines(explanation, user):
        yield f"  {line}"

    condition = ""
    if explanation.shown == "depends":
        condition = ", where its selector shows it"
    yield _VERDICT_TEXTS[explanation.verdict].format(condition)


def _part_lines(explanation: Explanation, user: str) -> Iterator[str]:
    """Yield a line for each part of the configuration that mattered, in the order of a call."""
    if explanation.shown is None:
        yield f"channel: does not have it: {_with_place(explanation.has_tool)}"
        return
    yield f"channel: has it: {_with_place(explanation.has_tool)}"
    yield f"shown: {_visibility(explanation, user)}"

    if explanation.decision is None:
        yield f"arguments: {explanation.problem}"
        return
    if explanation.arguments is None:
        yield "arguments: none given; decided by its name alone"
    else:
        yield "arguments: valid"

    decision = DECISIONS[explanation.decision.decision]
    if explanation.asks_by_itself:
        decision = "asks by itself"
    yield f"decision: {decision}: {_with_place(explanation.decided_by)}"
    for rule in explanation.open_rules:
        yield f"decision: may be denied by its arguments: {_with_place(rule)}"

    if explanation.problem:
        yield f"question: {explanation.problem}"
    if explanation.asks_by_itself:
        yield "question: asked by the tool's own code; its text is known when the tool runs"
    if explanation.question:
        yield from _preview_lines(explanation.question)
    if explanation.approval:
        yield from approval_lines(explanation.approval, user)
    elif explanation.question:
        yield from _answer_lines(explanation.question, user)
    if explanation.standing:
        yield f"standing yes: {explanation.standing}"

    if explanation.verdict != "asks":
        return
    if explanation.undo_seconds:
        yield f"undo: for {explanation.undo_seconds:g} s after the outcome"
    if explanation.after:
        after = AFTER_TEXTS[explanation.after]
        yield f"after the outcome: {after}: {_with_place(explanation.after_because)}"


def _preview_lines(question: ExpectedQuestion) -> Iterator[str]:
    """Yield the text of the question as it would be read."""
    first, *others = question.preview.splitlines()
    yield f"preview: {first}"
    for line in others:
        yield f"         {line}"


def _answer_lines(question: ExpectedQuestion, user: str) -> Iterator[str]:
    """Yield how the user could answer the question."""
    code = ""
    if question.typed_code:
        code = ", and only with the code that the question shows"
    seconds = f"{question.within_seconds:g} s"
    yield f"confirm: only {user}, where it was asked, within {seconds} of its delivery{code}"
    if question.editable:
        arguments = ", ".join(question.editable)
        yield f"change: {user} may change {arguments} before the yes, and is asked anew"


def _with_place(reason: ExplainedReason | None) -> str:
    """Return a reason with its place in the YAML, "" for no reason."""
    if reason is None:
        return ""
    if reason.where:
        return f"{reason.text} ({reason.where})"
    return reason.text


def _visibility(explanation: Explanation, user: str) -> str:
    """Return whether the model would see the tool, and why."""
    reason = explanation.shown_because
    cause = ""
    place = ""
    if reason and reason.text:
        cause = f", {reason.text}"
    if reason and reason.where:
        place = f" ({reason.where})"
    match explanation.shown:
        case "hidden":
            return f"not to {user}{cause}{place}"
        case "depends":
            return f"depends on the message{cause}{place}"
    if place:
        return f"to {user}{cause}{place}"
    return "always: the channel has no selector"
