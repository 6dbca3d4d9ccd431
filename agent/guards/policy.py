"""ToolPolicy: which tool calls run, which a person must approve, and which never run.

An operator writes a policy as lists of patterns for the names of tools. `effective_decision` is
what the policy and the tool together decide about a call. A call that needs an approval is
proposed, and the channel asks the person; `require_approval` asks where no channel can ask.

How a `deny_when` rule finds a forbidden value in an argument is in `argument_patterns.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args

from sayso.agent.guards.argument_patterns import (
    FORMS,
    MAX_READ_CHARS,
    ArgumentForm,
    ArgumentTooLong,
    argument_matches,
    pattern_problem,
)
from sayso.agent.tools.definition import FOREIGN_SOURCES, MEMORY, RESULTS, SEARCH, ToolTag
from sayso.agent.tools.tool import Tool
from sayso.infra.concurrency import await_isolated, call_foreign
from sayso.pending.action import After
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.standing_rule import StandingLimit, StandingRule

#: What happens to a call: it runs, a person is asked first, or it never runs.
PolicyVerdict = Literal["allow", "review", "deny"]
#: The lists of a policy, in the order in which they are read.
RuleKind = Literal["deny", "deny_when", "approval", "review", "allow"]
#: What decided about a call:
#:
#: * rule: a rule of the policy.
#: * unknown: no rule of the policy names the tool.
#: * no_policy: the agent has no policy.
#: * requires_approval: the author of the tool requires an approval.
#: * destructive: the source of the tool, such as an MCP server, calls it destructive.
#: * memory: the tool belongs to the memory of the agent, or reads more of a result.
#: * search: the tool finds other tools.
DecidedBy = Literal[
    "rule", "unknown", "requires_approval", "destructive", "no_policy", "memory", "search"
]

#: Asked before a reviewed call runs, with the tool's name, the arguments and the reason.
#: Only `True` approves the call.
ConfirmAction = Callable[[str, dict[str, Any], str], bool | Awaitable[bool]]

#: The required keys of a `deny_when` rule. The key `matches` may be added.
_RULE_KEYS = {"tool", "arg", "pattern"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy, as traces and operators name it."""

    #: The list that the rule is in.
    kind: RuleKind
    #: Its index in that list, from 0; of an `approval` rule its position among the patterns.
    index: int
    #: Its pattern; of a `deny_when` rule the pattern for the argument.
    pattern: str


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What to do with one call, and why."""

    decision: PolicyVerdict
    #: The reason in words. The model and the operator read it.
    reason: str
    #: The rule that decided; None if something else did.
    rule: Rule | None = None
    decided_by: DecidedBy = "rule"


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The rules of an agent for tool calls. One policy serves all runs.

    `allow`, `review` and `deny` are lists of shell patterns for the names of tools. The rules are
    read in the order deny, deny_when, approval, review, allow, and the first rule that names the
    tool decides: "allow" runs a call, "review" asks a person first, "deny" refuses it. A tool that
    no rule names is reviewed, so a tool that is added later never runs unseen. In doubt the
    stricter rule wins: `allow` takes a name exactly as written, while the other lists ignore case.

    `approval` says who decides about the calls of a tool: people with a role, named people, or the
    person who asked (`ApprovalRule`). Such a tool is always reviewed, even where `allow` names it.
    Only a channel can ask other people. Outside of channels, `confirm_action` or the program that
    started the run decides about the call, as about any other call under review.

    A `deny_when` rule is `{"tool": pattern, "arg": name, "pattern": pattern}`. It denies a call
    when the argument, or anything inside it, matches. With `"matches": "email"` (or "domain",
    "path", "number") the rule also finds an address, a host, a path or a number that the argument
    contains, in any spelling. A pattern with an @ is always searched as an address too.

    A `deny_when` rule reads the arguments that will run, validated and as JSON: each value, and
    each key and value inside it, in every spelling. Case, compatibility forms, invisible characters
    and white space make no difference. A number is compared by value, also inside text, so "5"
    finds 5.0. A boolean is true, yes, on, ...; an empty list is `[]`. None counts as not given.

    Raises ValueError for a rule that is malformed or could never match.
    """

    allow: Sequence[str] = ()
    review: Sequence[str] = ()
    deny: Sequence[str] = ()
    deny_when: Sequence[Mapping[str, str]] = ()
    #: What follows the outcome of a confirmed call, by patterns of tool names, such as
    #: `{"refund_*": "say"}`. The first pattern that names the tool counts, in any case, before the
    #: tool's own `after`.
    after: Mapping[str, After] = field(default_factory=dict)
    #: The arguments that a person may change before the yes, by patterns of tool names. The first
    #: pattern that names the tool exactly as written counts, before the tool's own `editable`: like
    #: `allow`, it permits something.
    editable: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Who decides about the calls of a tool, by patterns of tool names. The first pattern that names
    #: the tool counts, in any case. Calls that no pattern names are decided by the person who asked.
    approval: Mapping[str, ApprovalRule] = field(default_factory=dict)
    #: Limits for standing yeses, by patterns of tool names; None forbids them. The first pattern
    #: that names the tool counts, in any case. They only narrow what the author of a tool allows.
    #: Tools from elsewhere (MCP, OpenAPI) have no author here: for them the limit is the rule, if it
    #: has a time and a count.
    standing: Mapping[str, StandingLimit | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_lists()
        self._check_deny_when()
        self._check_after()
        self._check_editable()
        self._check_approval()
        self._check_standing()

    def _check_lists(self) -> None:
        for kind in ("allow", "review", "deny"):
            patterns = getattr(self, kind)
            # A single text would be read as one pattern a character.
            is_text = isinstance(patterns, str)
            if is_text or not all(isinstance(pattern, str) for pattern in patterns):
                raise ValueError(
                    f"{kind}={patterns!r} must be a list of patterns, such as ['delete_*']"
                )

    def _check_deny_when(self) -> None:
        for rule in self.deny_when:
            has_keys = set(rule) - {"matches"} == _RULE_KEYS
            if not has_keys or not all(isinstance(part, str) for part in rule.values()):
                raise ValueError(
                    f"deny_when rule {dict(rule)!r} needs the keys 'tool', 'arg' and 'pattern', "
                    "each with text, and may have 'matches'"
                )
            if rule.get("matches", "text") not in FORMS:
                known = ", ".join(FORMS)
                raise ValueError(
                    f"deny_when rule {dict(rule)!r}: matches {rule['matches']!r} is none of {known}"
                )
            # A rule that could never match would be a false sense of safety.
            problem = pattern_problem(_form_of(rule), rule["pattern"])
            if problem:
                raise ValueError(f"deny_when rule {dict(rule)!r}: {problem}")

    def _check_after(self) -> None:
        if not isinstance(self.after, Mapping):
            raise ValueError(
                f"after={self.after!r} must be a dict of patterns, such as {{'refund_*': 'say'}}"
            )
        for pattern, after in self.after.items():
            if not isinstance(pattern, str) or after not in get_args(After):
                raise ValueError(
                    f"after={{{pattern!r}: {after!r}}} must be a pattern with 'continue' or 'say'"
                )

    def _check_editable(self) -> None:
        if not isinstance(self.editable, Mapping):
            raise ValueError(
                f"editable={self.editable!r} must be a dict of patterns, "
                "such as {'refund_*': ['note']}"
            )
        for pattern, names in self.editable.items():
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise ValueError(
                    f"editable={{{pattern!r}: {names!r}}} must be a list of arguments, "
                    "such as ['note']"
                )

    def _check_approval(self) -> None:
        if not isinstance(self.approval, Mapping):
            raise ValueError(
                f"approval={self.approval!r} must be a dict of patterns, "
                "such as {'refund_*': ApprovalRule(Deciders('role', ('manager',)))}"
            )
        for pattern, rule in self.approval.items():
            if not isinstance(pattern, str) or not isinstance(rule, ApprovalRule):
                raise ValueError(
                    f"approval={{{pattern!r}: {rule!r}}} must be a pattern with an ApprovalRule"
                )

    def _check_standing(self) -> None:
        if not isinstance(self.standing, Mapping):
            raise ValueError(
                f"standing={self.standing!r} must be a dict of patterns, "
                "such as {'refund_*': StandingLimit(times=3)}"
            )
        for pattern, limit in self.standing.items():
            if not isinstance(pattern, str) or not isinstance(limit, StandingLimit | None):
                raise ValueError(
                    f"standing={{{pattern!r}: {limit!r}}} must be a pattern with a StandingLimit "
                    "or None"
                )

    def evaluate(
        self, tool_name: str, args: Mapping[str, Any], *, asks_itself: bool = False
    ) -> PolicyDecision:
        """Return the decision for one call. The arguments must be validated, as JSON values.

        `asks_itself`: the code of the tool asks for a yes. A rule of `approval` then says who gets
        that question, and lets the code run.
        """
        denial = self.unconditional_denial(tool_name)
        if denial:
            return denial

        for index, rule in enumerate(self.deny_when):
            if not _is_named(tool_name, rule["tool"]):
                continue
            reason = _denial_reason(rule, args.get(rule["arg"]))
            if reason:
                return PolicyDecision("deny", reason, Rule("deny_when", index, rule["pattern"]))

        approval = _by_name("approval", tool_name, tuple(self.approval))
        if approval and asks_itself:
            return replace(approval, decision="allow")
        if approval:
            return approval
        review = _by_name("review", tool_name, self.review)
        if review:
            return review
        allowance = _by_name("allow", tool_name, self.allow)
        if allowance:
            return allowance
        return PolicyDecision("review", f"no rule names {tool_name!r}", decided_by="unknown")

    def unconditional_denial(self, tool_name: str) -> PolicyDecision | None:
        """Return the decision of the `deny` rule that names the tool, whatever its arguments.

        Return None if no `deny` rule names it.
        """
        return _by_name("deny", tool_name, self.deny)

    def after_rule(self, tool_name: str) -> str:
        """Return the pattern of `after` that names the tool, "" if none does."""
        return next((pattern for pattern in self.after if _is_named(tool_name, pattern)), "")

    def editable_rule(self, tool_name: str) -> str:
        """Return the pattern of `editable` that names the tool, "" if none does."""
        return next((pattern for pattern in self.editable if fnmatchcase(tool_name, pattern)), "")

    def approval_rule(self, tool_name: str) -> ApprovalRule | None:
        """Return the rule of `approval` for the tool, None if no pattern names the tool."""
        for pattern, rule in self.approval.items():
            if _is_named(tool_name, pattern):
                return rule
        return None

    def standing_pattern(self, tool_name: str) -> str:
        """Return the pattern of `standing` that names the tool, "" if none does."""
        return next((pattern for pattern in self.standing if _is_named(tool_name, pattern)), "")

    def without_denied(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the tools that may be shown: those that no `deny` rule names."""
        return [tool for tool in tools if self.unconditional_denial(tool.name) is None]


def editable_names(tool: Tool, policy: ToolPolicy | None) -> tuple[str, ...]:
    """Return the names of the arguments that a person may change before the yes to a call.

    A tool that proposes an action in its own code has none: its arguments are not those of the
    action. A tool about whose calls other people decide has none either: they would decide about
    another call than the one that the person asked for.
    """
    if tool.proposes:
        return ()
    if policy:
        approval = policy.approval_rule(tool.name)
        if approval and approval.asks_others:
            return ()
        pattern = policy.editable_rule(tool.name)
        if pattern:
            return tuple(policy.editable[pattern])
    return tuple(tool.editable)


def effective_standing(tool: Tool, policy: ToolPolicy | None) -> StandingRule | None:
    """Return for which later calls of a tool a yes may stand, None if for none.

    It reads the schema of the tool, so the first call for a tool with a `config_injector` may block.

    | the tool                                         | the rule                            |
    |--------------------------------------------------|-------------------------------------|
    | asks in its own code, or asks for a code         | none                                |
    | other people decide about its calls              | none                                |
    | the policy says that no yes may stand            | none                                |
    | comes from elsewhere, such as an MCP server      | what the policy says, if it is whole |
    | any other                                        | the author's, narrowed by the policy |

    A rule that does not fit the arguments of the tool counts as none.
    """
    if tool.proposes or tool.typed_code:
        return None
    limit = StandingLimit()
    if policy:
        approval = policy.approval_rule(tool.name)
        if approval and approval.asks_others:
            return None
        pattern = policy.standing_pattern(tool.name)
        if pattern:
            own_limit = policy.standing[pattern]
            if own_limit is None:
                return None
            limit = own_limit

    rule = tool.standing_rule
    if rule is not None:
        rule = rule.narrowed(limit)
    elif tool.metadata.source in FOREIGN_SOURCES:
        rule = limit.as_rule
    if rule is None or tool.standing_problem(rule):
        return None
    return rule


def check_injected(policy: ToolPolicy, tools: Iterable[Tool]) -> None:
    """Raise ValueError for a `deny_when` rule over an argument that Sayso injects.

    A rule reads the arguments that a model sends, so such a rule would silently deny nothing.
    """
    if not policy.deny_when:
        return
    for tool in tools:
        for rule in policy.deny_when:
            name = rule["arg"]
            if _is_named(tool.name, rule["tool"]) and name in tool.hidden_names:
                raise ValueError(
                    f"deny_when rule {dict(rule)!r}: {name!r} of {tool.name!r} is injected, "
                    "and a rule reads what a model sends: have the tool refuse it, with ToolError"
                )


#: Decisions that no rule makes, and that are the same for every tool and its arguments.
_TOOL_SEARCH = PolicyDecision("allow", "it only finds tools", decided_by="search")
_NO_POLICY = PolicyDecision("allow", "there is no policy", decided_by="no_policy")
_READS_RESULT = PolicyDecision(
    "allow", "it reads more of a result that the model was given", decided_by="memory"
)


def effective_decision(
    tool: Tool, args: Mapping[str, Any], policy: ToolPolicy | None
) -> PolicyDecision:
    """Return what policy and tool together decide about a call.

    The arguments must be validated, as JSON values.

    A rule that denies the call always wins, except over the first line. Otherwise the first line
    that fits counts.

    | tool | decision |
    |---|---|
    | reads the rest of a result | runs even if `deny` names it: the model was given that result |
    | finds other tools | runs unless `deny` names it: it shows only tools that the user may use |
    | its author requires approval | reviewed, even where the policy allows it |
    | its source calls it destructive | reviewed unless a rule names it; `allow` lets it run |
    | its own code asks, and `approval` names it | runs: its question goes to those people |
    | belongs to the agent's memory | runs unless a rule names it: the operator turned it on |
    | any other | what the policy says; without a policy it runs |
    """
    if tool.metadata.source == RESULTS:
        return _READS_RESULT
    if tool.metadata.source == SEARCH:
        is_denied = policy is not None and policy.unconditional_denial(tool.name) is not None
        if not is_denied:
            return _TOOL_SEARCH

    decision = _NO_POLICY
    if policy:
        # The source of a tool that JSON Schema describes, such as an MCP server, fills in the
        # defaults of missing arguments. So the rules must see these defaults. An explicit null is
        # not missing: the source gets it. For all other tools, validation has filled them in.
        defaults: dict[str, Any] = {}
        if tool.input_schema is not None:
            for parameter in tool.parameters:
                if parameter.default is not None:
                    defaults[parameter.name] = parameter.default
        decision = policy.evaluate(tool.name, {**defaults, **args}, asks_itself=bool(tool.proposes))

    if tool.requires_approval and decision.decision == "allow":
        return PolicyDecision(
            "review", f"{tool.name!r} requires approval", decided_by="requires_approval"
        )
    if decision.rule is None and ToolTag.DESTRUCTIVE in tool.metadata.tags:
        return PolicyDecision(
            "review",
            f"{tool.name!r} is destructive, and no rule names it",
            decided_by="destructive",
        )
    is_unknown = decision.decided_by == "unknown"
    if is_unknown and tool.metadata.source == MEMORY and not tool.requires_approval:
        return PolicyDecision(
            "allow", f"{tool.name!r} is the memory's own, and no rule names it", decided_by="memory"
        )
    return decision


def effective_after(
    tool_name: str, tool: Tool | None, policy: ToolPolicy | None
) -> After | Literal[""]:
    """Return what follows the outcome of a confirmed call: "say" it, or let the agent "continue".

    The policy decides, else the tool; "" if neither does, so that the channel decides. `tool` is
    None for a kind of action that is not the name of a tool.
    """
    if policy:
        pattern = policy.after_rule(tool_name)
        if pattern:
            return policy.after[pattern]
    if tool is None:
        return ""
    # The result of a `terminal` tool is the reply, also after a yes.
    if tool.terminal and not tool.after:
        return "say"
    return tool.after


class ToolCallRefused(Exception):
    """Raised when a call must not run. The text tells the model why."""


async def require_approval(
    tool: Tool,
    args: dict[str, Any],
    reason: str,
    confirm: ConfirmAction | None,
    timeout_seconds: float,
) -> None:
    """Return once a person has approved the call.

    `confirm` asks the person; None if no person can be asked. `timeout_seconds` limits the wait
    for the answer. Raises ToolCallRefused for a no, no answer in time, or an error of `confirm`.
    """
    if confirm is None:
        raise ToolCallRefused(
            f"{tool.name!r} needs an approval that no user can give here: {reason}"
        )
    time_limit = asyncio.timeout(timeout_seconds)
    try:
        async with time_limit:
            # Isolated, so that this code of the bot's author cannot cancel or end the whole run.
            answer = await await_isolated(call_foreign(confirm, tool.name, args, reason))
    except Exception as exc:
        # `confirm` may raise a TimeoutError, too, such as that of its HTTP call.
        if isinstance(exc, TimeoutError) and time_limit.expired():
            raise ToolCallRefused(
                f"{tool.name!r} was not approved within {timeout_seconds} seconds"
            ) from exc
        raise ToolCallRefused(
            f"{tool.name!r} was not approved: asking failed with {type(exc).__name__}"
        ) from exc
    if answer is not True:
        raise ToolCallRefused(f"{tool.name!r} was rejected by the user")


def _by_name(
    kind: Literal["deny", "approval", "review", "allow"], tool_name: str, patterns: Sequence[str]
) -> PolicyDecision | None:
    """Return the decision of the first of these patterns that names the tool; None if none does.

    `kind` is the list that the patterns are in.
    """
    is_match = fnmatchcase if kind == "allow" else _is_named
    verdict: PolicyVerdict = "review" if kind == "approval" else kind
    for index, pattern in enumerate(patterns):
        if is_match(tool_name, pattern):
            reason = f"{tool_name!r} matches the {kind} rule {pattern!r}"
            return PolicyDecision(verdict, reason, Rule(kind, index, pattern))
    return None


def _is_named(name: str, pattern: str) -> bool:
    """Return whether a pattern names this tool in any case.

    The names are compared as written, too: in lower case, `[!a-z]*` would not match "Delete".
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name.casefold(), pattern.casefold())


def _denial_reason(rule: Mapping[str, str], argument: Any) -> str:
    """Return why a `deny_when` rule denies a call with this argument, "" if it does not."""
    name = rule["arg"]
    pattern = rule["pattern"]
    try:
        is_match = argument_matches(argument, pattern, _form_of(rule))
    except ArgumentTooLong:
        # What was not read may contain what the rule forbids.
        return f"{name!r} is longer than the {MAX_READ_CHARS:,} characters that a rule reads"
    return f"{name!r} matches {pattern!r}" if is_match else ""


def _form_of(rule: Mapping[str, str]) -> ArgumentForm:
    """Return the form that a rule looks for.

    If the rule does not state one, a pattern with an @ looks for an address.
    """
    form = cast("ArgumentForm", rule.get("matches", "text"))
    if form == "text" and "@" in rule["pattern"]:
        return "email"
    return form
