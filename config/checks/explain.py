"""What would happen if a user had a tool called on a channel, and which line of the YAML decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from sayso.agent import Tool
from sayso.agent.guards.policy import PolicyDecision, effective_decision
from sayso.agent.tools.definition import MEMORY
from sayso.agent.tools.errors import ToolError, did_you_mean
from sayso.agent.tools.registry import unknown_tool
from sayso.agent.toolsets.selectors import Visibility, roles_in, would_show
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import own_tools, tool_policy
from sayso.config.wiring.tools import OpenTools, build_selector
from sayso.pending.proposals import ChannelRun, channel_run

#: What becomes of a call: it runs at once, its user is asked first, or it never runs.
ToolVerdict = Literal["runs", "asks", "never"]

_VERDICTS: Mapping[str, ToolVerdict] = {"allow": "runs", "review": "asks", "deny": "never"}


class BadQuestionError(Exception):
    """Raised when the configuration has no channel or no tool of that name."""


@dataclass(frozen=True, slots=True)
class ExplainedReason:
    """Why something is so, and the `file:line:column` that says it; "" where no line does."""

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedQuestion:
    """The question that a user would be asked, how long it stays open, and whether it takes a typed code."""

    preview: str
    within_seconds: float
    typed_code: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about one call before it is made. Parts that were not reached are None.

    `arguments` are None where none were given and the tool needs some: then the decision is made on its name alone.
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


def explain(
    settings: Settings, opened: OpenTools, channel: str, user: str, tool: str, args: Mapping[str, Any] | None
) -> Explanation:
    """Return what would happen. No tool is run; a tool's preview function is, and it may look things up.

    Raises BadQuestionError, and ConfigError for a selector that cannot be built.
    """
    if channel not in settings.channels:
        hint = did_you_mean(channel, settings.channels, "{} ")
        raise BadQuestionError(f"no channel {channel!r}; {hint}known: {', '.join(settings.channels)}")
    own = {each.name: each for each in own_tools(settings)}
    known_tools = own | {each.name: each for each in opened.tools}
    if tool not in known_tools:
        raise BadQuestionError(unknown_tool(tool, known_tools))
    call = _Call(settings, channel, user, known_tools[tool])
    if call.tool is not own.get(tool) and call.tool not in opened.select(call.channel_settings.tools).all():
        return call.without_tool()
    run = ChannelRun(user, channel, "", call.channel_settings.confirm_ttl, "", call.channel_settings.speaks)
    with channel_run(run):
        return call.explain(args, run)


@dataclass(frozen=True, slots=True)
class _Call:
    """One tool on one channel, and the user who asks for it."""

    settings: Settings
    channel: str
    user: str
    tool: Tool

    @property
    def channel_settings(self) -> AnyChannel:
        return self.settings.channels[self.channel]

    def where(self, *path: str | int) -> str:
        """Return the line of a key of the channel."""
        return self.settings.origin.at("channels", self.channel, *path).removesuffix(": ")

    @property
    def knowledge_line(self) -> str:
        """The line that turns knowledge on, and with it the memory's own tool."""
        return self.settings.origin.at("agent", "memory", "knowledge").removesuffix(": ")

    def without_tool(self) -> Explanation:
        """Return the explanation of a channel that does not have the tool."""
        reason = ExplainedReason("none of its tools patterns names it", self.where("tools"))
        return Explanation(self.channel, self.user, self.tool.name, "never", reason)

    def explain(self, args: Mapping[str, Any] | None, run: ChannelRun) -> Explanation:
        """Return the explanation of a channel that has the tool."""
        selector = build_selector(self.settings, self.channel)
        shown = asyncio.run(would_show(selector, self.tool))
        roles = ", ".join(map(repr, asyncio.run(roles_in(selector))))
        access = self.channel_settings.access
        path = ("access", "roles") if access and access.roles else ("selector",)
        place = self.where(*path) if selector else ""
        because = ExplainedReason(f"role {roles}" if roles else "", place)
        policy = tool_policy(self.channel_settings.policy)
        denial = policy.unconditional_denial(self.tool.name) if policy else None
        if denial and denial.rule:
            shown = "hidden"
            because = ExplainedReason(f"deny: {denial.rule.pattern}", self.where("policy", "deny", denial.rule.index))
        explanation = Explanation(
            channel=self.channel, user=self.user, tool=self.tool.name, verdict="never", has_tool=self._has_tool(),
            shown=shown, shown_because=because,
        )  # fmt: skip
        return _Decision(self, explanation, run).explain(args)

    def _has_tool(self) -> ExplainedReason:
        """Return which pattern gives the channel this tool."""
        if self.tool.metadata.source == MEMORY:
            return ExplainedReason("agent.memory.knowledge gives it to all", self.knowledge_line)
        for index, pattern in enumerate(self.channel_settings.tools or ()):
            if fnmatchcase(self.tool.name, pattern):
                return ExplainedReason(f"tools: {pattern}", self.where("tools", index))
        return ExplainedReason("it names no tools, so it has all", self.where())


@dataclass(frozen=True, slots=True)
class _Decision:
    """Completes the explanation of a call: its arguments, the policy's decision, and the question to the user."""

    call: _Call
    known: Explanation
    run: ChannelRun

    def explain(self, raw_args: Mapping[str, Any] | None) -> Explanation:
        args, problem = self._validated(raw_args)
        if problem:
            return replace(self.known, problem=problem)
        tool = self.call.tool
        decision = effective_decision(tool, args or {}, tool_policy(self.call.channel_settings.policy))
        explanation = replace(
            self.known,
            arguments=args,
            decision=decision,
            decided_by=self._decided_by(decision),
            open_rules=self._open_rules() if args is None and decision.decision != "deny" else (),
            undo_seconds=tool.undo_seconds if tool.undo else 0.0,
            asks_by_itself=bool(tool.proposes) and decision.decision == "allow",
        )
        if explanation.shown == "hidden" or decision.decision == "deny":
            return explanation
        if decision.decision == "review" and args is not None:
            return self._with_question(explanation, raw_args or {})
        return replace(explanation, verdict="asks" if explanation.asks_by_itself else _VERDICTS[decision.decision])

    def _validated(self, raw_args: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
        """Return the arguments as the tool would get them, or what a model would be told is wrong with them."""
        try:
            return self.call.tool.validate_json(raw_args or {}), ""
        except ToolError as exc:
            return (None, "") if raw_args is None else (None, str(exc))

    def _decided_by(self, decision: PolicyDecision) -> ExplainedReason:
        if decision.rule:
            kind, index = decision.rule.kind, decision.rule.index
            return ExplainedReason(self._rule_text(kind, index), self.call.where("policy", kind, index))
        match decision.decided_by:
            case "requires_approval":
                return ExplainedReason("the tool's author: requires_approval, which no allow rule overrules")
            case "destructive":
                return ExplainedReason("hint: destructive, and no rule names it; an allow rule would let it run")
            case "memory":
                return ExplainedReason("it is the memory's own, and no rule names it", self.call.knowledge_line)
            case "no_policy":
                return ExplainedReason("the channel has no policy", self.call.where())
        return ExplainedReason("no rule names it, so it is asked for", self.call.where("policy"))

    def _rule_text(self, kind: str, index: int) -> str:
        policy = self.call.channel_settings.policy
        if policy is not None and kind == "deny_when":
            rule = policy.deny_when[index]
            form = "" if rule.matches == "text" else f", matches: {rule.matches}"
            return f"deny_when: {{tool: {rule.tool}, arg: {rule.arg}, pattern: {rule.pattern}{form}}}"
        return f"{kind}: {getattr(policy, kind)[index]}"

    def _open_rules(self) -> tuple[ExplainedReason, ...]:
        policy = self.call.channel_settings.policy
        return tuple(
            ExplainedReason(self._rule_text("deny_when", index), self.call.where("policy", "deny_when", index))
            for index, rule in enumerate(policy.deny_when if policy else ())
            if fnmatchcase(self.call.tool.name.casefold(), rule.tool.casefold())
        )

    def _with_question(self, explanation: Explanation, raw_args: Mapping[str, Any]) -> Explanation:
        """Add the exact question that the user would read and the action would be sealed with."""
        try:
            result = self.call.tool.propose(raw_args)
        except ToolError as exc:
            return replace(explanation, problem=str(exc))
        if not self.run.proposals:
            return replace(explanation, problem=f"there is nothing to ask: {result.to_json()}")
        action = self.run.proposals[0]
        question = ExpectedQuestion(action.preview, action.ttl_seconds, bool(action.code))
        return replace(explanation, verdict="asks", question=question)
