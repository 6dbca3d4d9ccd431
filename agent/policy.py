"""ToolPolicy: which tool calls run, which need a yes and which never happen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from sayso.agent.argument_forms import FORMS, Form, matches_form, matches_text, problem_of
from sayso.agent.swift import swift

Decision = Literal["allow", "review", "deny"]
#: The lists of a policy, in the order in which they are read.
RuleKind = Literal["deny", "deny_when", "review", "allow"]
#: Who decided: a rule; nobody, as no rule names the tool; the tool's author; its source's hint; no policy at all; or
#: whoever turned on the memory that the tool belongs to.
DecidedBy = Literal["rule", "unknown", "requires_approval", "destructive", "no_policy", "memory"]

#: What a boolean may be called, so that a pattern finds it however a model, Python or JSON wrote it.
_WORDS = {True: ("true", "yes", "on", "y", "t", "1"), False: ("false", "no", "off", "n", "f", "0")}
#: The keys that each `deny_when` rule has.
_RULE_KEYS = {"tool", "arg", "pattern"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy: the list it is in, its place there, and its pattern (of a `deny_when`, the argument's)."""

    kind: RuleKind
    index: int
    pattern: str


@swift
@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What to do with one call, why in words, and the rule that said so, if one did."""

    decision: Decision
    reason: str
    rule: Rule | None = None
    decided_by: DecidedBy = "rule"


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Rules over tool names (shell patterns), read in the order deny, deny_when, review, allow (seed: Tool Policy).

    A `deny_when` rule is `{"tool": pattern, "arg": name, "pattern": pattern}`: it denies when the argument, or
    anything inside it, matches. What no rule names is reviewed: a tool added later never runs unseen. With
    `"matches": "email"` (or "domain", "path", "number") the rule also looks for what the argument holds in this form,
    however it is written; a pattern with an @ is looked for as an address in any case.

    What is in doubt goes to the stricter rule: `allow` takes a name exactly as it is written, the others whatever its
    case. The arguments are those that will run, validated and as JSON. Of each value, and of each key and value inside
    it, `deny_when` sees every spelling: as it is, and with case, compatibility forms, invisible characters and white
    space made equal; a number by its value, in text too, so that "5" finds 5.0; a boolean as true, yes, on, ...; an
    empty list as `[]`. None counts as not given.
    """

    allow: Sequence[str] = ()
    review: Sequence[str] = ()
    deny: Sequence[str] = ()
    deny_when: Sequence[Mapping[str, str]] = ()

    def __post_init__(self) -> None:
        for kind in ("allow", "review", "deny"):
            patterns = getattr(self, kind)
            if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
                raise ValueError(f"{kind}={patterns!r} must be a list of patterns, such as ['delete_*']")
        for rule in self.deny_when:
            _check_rule(rule)

    def evaluate(self, tool_name: str, args: Mapping[str, Any]) -> PolicyDecision:
        """The decision for one call with its arguments, validated and as JSON values."""
        return (
            self.unconditional_denial(tool_name)
            or self._by_argument(tool_name, args)
            or _by_name("review", tool_name, self.review)
            or _by_name("allow", tool_name, self.allow)
            or PolicyDecision("review", f"no rule names {tool_name!r}", decided_by="unknown")
        )

    def unconditional_denial(self, tool_name: str) -> PolicyDecision | None:
        """Return the decision of the `deny` rule that names the tool, whatever it is called with; None without one."""
        return _by_name("deny", tool_name, self.deny)

    def _by_argument(self, tool_name: str, args: Mapping[str, Any]) -> PolicyDecision | None:
        for index, rule in enumerate(self.deny_when):
            value, pattern = args.get(rule["arg"]), rule["pattern"]
            if _named(tool_name, rule["tool"]) and _matches(value, pattern, _form_of(rule)):
                said = f"{rule['arg']!r} matches {rule['pattern']!r}"
                return PolicyDecision("deny", said, Rule("deny_when", index, rule["pattern"]))
        return None


def _by_name(
    decision: Literal["deny", "review", "allow"], tool_name: str, patterns: Sequence[str]
) -> PolicyDecision | None:
    names = fnmatchcase if decision == "allow" else _named
    for index, pattern in enumerate(patterns):
        if names(tool_name, pattern):
            said = f"{tool_name!r} matches the {decision} rule {pattern!r}"
            return PolicyDecision(decision, said, Rule(decision, index, pattern))
    return None


def _named(name: str, pattern: str) -> bool:
    """Whether a restricting rule means this tool: also where only the case differs."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.casefold(), pattern.casefold())


def _check_rule(rule: Mapping[str, str]) -> None:
    """Raise ValueError for a rule that could match nothing."""
    if set(rule) - {"matches"} != _RULE_KEYS or not all(isinstance(part, str) for part in rule.values()):
        raise ValueError(
            f"deny_when rule {dict(rule)!r} needs the keys 'tool', 'arg' and 'pattern', each with text, "
            "and may have 'matches'"
        )
    if rule.get("matches", "text") not in FORMS:
        raise ValueError(f"deny_when rule {dict(rule)!r}: matches {rule['matches']!r} is none of {', '.join(FORMS)}")
    problem = problem_of(_form_of(rule), rule["pattern"])
    if problem:
        raise ValueError(f"deny_when rule {dict(rule)!r}: {problem}")


def _form_of(rule: Mapping[str, str]) -> Form:
    """Return the form that a rule looks for; a pattern with an @ means an address where the rule does not say."""
    form = cast("Form", rule.get("matches", "text"))
    return "email" if form == "text" and "@" in rule["pattern"] else form


def _matches(value: Any, pattern: str, form: Form) -> bool:
    return any(
        matches_text(said, pattern) or matches_form(form, said, pattern) or _equal(leaf, pattern)
        for leaf in _leaves(value)
        for said in _spellings(leaf)
    )


def _leaves(value: Any) -> Iterator[Any]:
    """Every key and scalar inside: a forbidden address must not hide in a list, nor before a colon."""
    left = [value]  # no recursion: a model may nest deeper than Python does
    while left:
        match left.pop():
            case Mapping() as pairs:
                yield from pairs or ("{}",)
                left.extend(pairs.values())
            case list() | tuple() | set() | frozenset() as items:
                yield from () if items else ("[]",)
                left.extend(items)
            case None:
                pass
            case scalar:
                yield scalar


def _spellings(leaf: Any) -> tuple[str, ...]:
    if isinstance(leaf, bool):
        return (str(leaf), *_WORDS[leaf])
    if isinstance(leaf, float):
        whole = (str(int(leaf)),) if leaf.is_integer() else ()
        return (str(leaf), json.dumps(leaf), format(Decimal(str(leaf)), "f"), *whole)
    return (str(leaf),)


def _equal(leaf: Any, pattern: str) -> bool:
    """Whether a number, also one in text, is the one that the pattern writes, in whatever way: 5, 5.0, 05 or 5e0."""
    if isinstance(leaf, bool):
        return False
    try:
        return Decimal(str(leaf).strip()) == Decimal(pattern.strip())
    except InvalidOperation:
        return False
