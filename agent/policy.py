"""ToolPolicy: which tool calls run, which need a yes and which never happen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

Decision = Literal["allow", "review", "deny"]


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What to do with one call, and the rule that said so."""

    decision: Decision
    reason: str


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Rules over tool names (shell patterns, case-sensitive), read in the order deny, deny_when, review, allow.

    A `deny_when` rule is `{"tool": pattern, "arg": name, "pattern": pattern}`: it denies when the argument, or
    anything inside it, matches. What no rule names is reviewed: a tool added later never runs unseen.
    """

    allow: Sequence[str] = ()
    review: Sequence[str] = ()
    deny: Sequence[str] = ()
    deny_when: Sequence[Mapping[str, str]] = ()

    def __post_init__(self) -> None:
        for rule in self.deny_when:
            if set(rule) != {"tool", "arg", "pattern"}:
                raise ValueError(f"deny_when rule {dict(rule)!r} needs exactly the keys 'tool', 'arg' and 'pattern'")

    def evaluate(self, tool_name: str, args: Mapping[str, Any]) -> PolicyDecision:
        """The decision for one call with its arguments."""
        return (
            _by_name("deny", tool_name, self.deny)
            or self._by_argument(tool_name, args)
            or _by_name("review", tool_name, self.review)
            or _by_name("allow", tool_name, self.allow)
            or PolicyDecision("review", f"no rule names {tool_name!r}")
        )

    def _by_argument(self, tool_name: str, args: Mapping[str, Any]) -> PolicyDecision | None:
        for rule in self.deny_when:
            if fnmatchcase(tool_name, rule["tool"]) and _matches(args.get(rule["arg"]), rule["pattern"]):
                return PolicyDecision("deny", f"{rule['arg']!r} matches {rule['pattern']!r}")
        return None


def _by_name(decision: Decision, tool_name: str, patterns: Sequence[str]) -> PolicyDecision | None:
    for pattern in patterns:
        if fnmatchcase(tool_name, pattern):
            return PolicyDecision(decision, f"{tool_name!r} matches the {decision} rule {pattern!r}")
    return None


def _matches(value: Any, pattern: str) -> bool:
    return any(fnmatchcase(leaf, pattern) for leaf in _leaves(value))


def _leaves(value: Any) -> Iterator[str]:
    """Every scalar inside, as text: a forbidden address must not hide in a list."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield str(value)
