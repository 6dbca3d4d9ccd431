"""Explanation: what would happen if a person had a tool called on a channel, and which line of the YAML decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from sayso.agent import AgentConfig, Tool
from sayso.agent.policy import PolicyDecision
from sayso.agent.run.approval import effective_decision
from sayso.agent.tools.definition import MEMORY
from sayso.agent.tools.errors import ToolError, did_you_mean
from sayso.agent.tools.registry import unknown_tool
from sayso.agent.toolsets.selectors import Foreseen, roles_in, would_show
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import own_tools, tool_policy
from sayso.config.wiring.tools import OpenTools, build_selector
from sayso.pending.proposals import ChannelRun, channel_run

#: What becomes of a call: it runs at once, its user is asked first, or neither.
ToolVerdict = Literal["runs", "asks", "never"]

_VERDICTS: Mapping[str, ToolVerdict] = {"allow": "runs", "review": "asks", "deny": "never"}


class BadQuestionError(Exception):
    """Raised when there is nothing to explain: no channel, or no tool, of that name."""


@dataclass(frozen=True, slots=True)
class ExplainedReason:
    """Why something is so, and `file:line:column` of what says it; "" where no line does."""

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedQuestion:
    """What a person would be asked: the exact words, and what a yes takes."""

    preview: str
    within_seconds: float
    typed_code: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known about one call before it is made. Parts that were not reached are None.

    `arguments` are None where none were given and the tool needs some: then the decision is that on its name alone.
    """

    channel: str
    user: str
    tool: str
    verdict: ToolVerdict
    has_tool: ExplainedReason
    shown: Foreseen | None = None
    shown_because: ExplainedReason | None = None
    arguments: dict[str, Any] | None = None
    problem: str = ""
    decision: PolicyDecision | None = None
    decided_by: ExplainedReason | None = None
    question: ExpectedQuestion | None = None
    undo_seconds: float = 0.0
    #: Whether the tool's own code asks, in words that are known when it runs.
    asks_by_itself: bool = False
    #: Rules over arguments that may yet deny it, where no arguments were given.
    open_rules: tuple[ExplainedReason, ...] = field(default=())


def explain(
    settings: Settings, opened: OpenTools, channel: str, user: str, tool: str, args: Mapping[str, Any] | None
) -> Explanation:
    """What would happen. No tool is run; a tool's preview function is, which may look things up.

    Raises BadQuestionError, and ConfigError for a selector that cannot be made.
    """
    if channel not in settings.channels:
        raise BadQuestionError(_unknown_channel(channel, settings))
    own = {each.name: each for each in own_tools(settings)}
    found = own | {each.name: each for each in opened.tools}
    if tool not in found:
        raise BadQuestionError(unknown_tool(tool, found))
    case = _Case(settings, channel, user, found[tool])
    if found[tool] is not own.get(tool) and found[tool] not in opened.select(case.settings_of.tools).all():
        return case.without_tool()
    run = ChannelRun(user, channel, "", case.settings_of.confirm_ttl, "", case.settings_of.speaks)
    with channel_run(run):
        return case.explain(args, run)


def _unknown_channel(channel: str, settings: Settings) -> str:
    hint = did_you_mean(channel, settings.channels, "{} ")
    return f"no channel {channel!r}; {hint}known: {', '.join(settings.channels)}"


@dataclass(frozen=True, slots=True)
class _Case:
    """One tool on one channel, and who asks for it."""

    settings: Settings
    channel: str
    user: str
    tool: Tool

    @property
    def settings_of(self) -> AnyChannel:
        return self.settings.channels[self.channel]

    def where(self, *path: str | int) -> str:
        return self.settings.origin.at("channels", self.channel, *path).removesuffix(": ")

    @property
    def of_memory(self) -> str:
        """Where knowledge is turned on."""
        return self.settings.origin.at("agent", "memory", "knowledge").removesuffix(": ")

    def without_tool(self) -> Explanation:
        reason = ExplainedReason("none of its tools patterns names it", self.where("tools"))
        return Explanation(self.channel, self.user, self.tool.name, "never", reason)

    def explain(self, args: Mapping[str, Any] | None, run: ChannelRun) -> Explanation:
        selector = build_selector(self.settings, self.channel)
        shown = asyncio.run(would_show(selector, self.tool))
        roles = ", ".join(map(repr, asyncio.run(roles_in(selector))))
        because = ExplainedReason(f"role {roles}" if roles else "", self.where(*self._chooses) if selector else "")
        policy = tool_policy(self.settings_of.policy)
        denial = policy.unconditional_denial(self.tool.name) if policy else None
        if denial and denial.rule:
            shown = "hidden"
            because = ExplainedReason(f"deny: {denial.rule.pattern}", self.where("policy", "deny", denial.rule.index))
        known = Explanation(
            channel=self.channel,
            user=self.user,
            tool=self.tool.name,
            verdict="never",
            has_tool=self._named(),
            shown=shown,
            shown_because=because,
        )
        return _Judged(self, known, run).judge(args)

    @property
    def _chooses(self) -> tuple[str, ...]:
        """Where it stands who may use what."""
        access = self.settings_of.access
        return ("access", "roles") if access and access.roles else ("selector",)

    def _named(self) -> ExplainedReason:
        """Which pattern gives the channel this tool."""
        if self.tool.metadata.source == MEMORY:
            return ExplainedReason("agent.memory.knowledge gives it to all", self.of_memory)
        for index, pattern in enumerate(self.settings_of.tools or ()):
            if fnmatchcase(self.tool.name, pattern):
                return ExplainedReason(f"tools: {pattern}", self.where("tools", index))
        return ExplainedReason("it names no tools, so it has all", self.where())


@dataclass(frozen=True, slots=True)
class _Judged:
    """A call that its channel could make: its arguments, the decision on it, and what its user would be asked."""

    case: _Case
    known: Explanation
    run: ChannelRun

    def judge(self, given: Mapping[str, Any] | None) -> Explanation:
        args, problem = self._checked(given)
        if problem:
            return replace(self.known, problem=problem)
        decision = effective_decision(self.case.tool, args or {}, self._config)
        explained = replace(
            self.known,
            arguments=args,
            decision=decision,
            decided_by=self._decided_by(decision),
            open_rules=self._open_rules() if args is None and decision.decision != "deny" else (),
            undo_seconds=self.case.tool.undo_seconds if self.case.tool.undo else 0.0,
            asks_by_itself=bool(self.case.tool.proposes) and decision.decision == "allow",
        )
        if explained.shown == "hidden" or decision.decision == "deny":
            return explained
        if decision.decision == "review" and args is not None:
            return self._asked(explained, given or {})
        return replace(explained, verdict="asks" if explained.asks_by_itself else _VERDICTS[decision.decision])

    @property
    def _config(self) -> AgentConfig:
        return AgentConfig(tool_policy=tool_policy(self.case.settings_of.policy))

    def _checked(self, given: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
        """The arguments as they would run, or what a model would be told is wrong with them."""
        try:
            return self.case.tool.validate_json(given or {}), ""
        except ToolError as exc:
            return (None, "") if given is None else (None, str(exc))

    def _decided_by(self, decision: PolicyDecision) -> ExplainedReason:
        if decision.rule:
            kind, index = decision.rule.kind, decision.rule.index
            return ExplainedReason(self._text_of(kind, index), self.case.where("policy", kind, index))
        match decision.decided_by:
            case "requires_approval":
                return ExplainedReason("the tool's author: requires_approval, which no allow rule overrules")
            case "destructive":
                return ExplainedReason("hint: destructive, and no rule names it; an allow rule would let it run")
            case "memory":
                return ExplainedReason("it is the memory's own, and no rule names it", self.case.of_memory)
            case "no_policy":
                return ExplainedReason("the channel has no policy", self.case.where())
        return ExplainedReason("no rule names it, so it is asked for", self.case.where("policy"))

    def _text_of(self, kind: str, index: int) -> str:
        policy = self.case.settings_of.policy
        if policy is not None and kind == "deny_when":
            rule = policy.deny_when[index]
            form = "" if rule.matches == "text" else f", matches: {rule.matches}"
            return f"deny_when: {{tool: {rule.tool}, arg: {rule.arg}, pattern: {rule.pattern}{form}}}"
        return f"{kind}: {getattr(policy, kind)[index]}"

    def _open_rules(self) -> tuple[ExplainedReason, ...]:
        policy = self.case.settings_of.policy
        return tuple(
            ExplainedReason(self._text_of("deny_when", index), self.case.where("policy", "deny_when", index))
            for index, rule in enumerate(policy.deny_when if policy else ())
            if fnmatchcase(self.case.tool.name.casefold(), rule.tool.casefold())
        )

    def _asked(self, explained: Explanation, given: Mapping[str, Any]) -> Explanation:
        """What its user would read, in the words that would be sealed."""
        try:
            said = self.case.tool.propose(given)
        except ToolError as exc:
            return replace(explained, problem=str(exc))
        if not self.run.proposals:
            return replace(explained, problem=f"there is nothing to ask: {said.to_json()}")
        action = self.run.proposals[0]
        question = ExpectedQuestion(action.preview, action.ttl_seconds, bool(action.code))
        return replace(explained, verdict="asks", question=question)
