"""ToolPolicy: which tool calls run, which a person must approve, and which never run.

`effective_decision` is what the policy and the tool together decide about a call.
`require_approval` asks for the approval of a call where no channel can ask.

The second half of the module reads arguments for `deny_when` rules: it finds a forbidden address,
host, path or number in every spelling that a model could use to hide it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import operator
import posixpath
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Literal, TypeAlias, cast, get_args
from urllib.parse import unquote, urlsplit

from sayso.agent.tools.definition import MEMORY, RESULTS, SEARCH, ToolTag
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.invisible import INVISIBLE
from sayso.infra.concurrency import await_isolated, call_foreign
from sayso.pending.action import After

PolicyVerdict = Literal["allow", "review", "deny"]
#: The lists of a policy, in the order in which they are read.
RuleKind = Literal["deny", "deny_when", "review", "allow"]
#: What decided about a call.
#:
#: * "rule": a rule of the policy; "unknown": no rule names the tool; "no_policy": there is none
#: * "requires_approval": the author of the tool; "destructive": the hint of the tool's source
#: * "memory": the tool belongs to the memory of the agent; "search": it is the tool that finds tools
DecidedBy = Literal[
    "rule", "unknown", "requires_approval", "destructive", "no_policy", "memory", "search"
]

#: Asked before a reviewed call runs, with the tool's name, the arguments and the reason.
#: Only `True` approves the call.
ConfirmAction = Callable[[str, dict[str, Any], str], bool | Awaitable[bool]]

#: The form of what a `deny_when` rule looks for in an argument (its key `matches`).
ArgumentForm: TypeAlias = Literal["text", "email", "domain", "path", "number"]
FORMS: tuple[ArgumentForm, ...] = get_args(ArgumentForm)

#: Spellings of a boolean, so that a pattern finds it however a model, Python or JSON wrote it.
_BOOLEAN_SPELLINGS = {
    True: ("true", "yes", "on", "y", "t", "1"),
    False: ("false", "no", "off", "n", "f", "0"),
}
#: The required keys of a `deny_when` rule.
_RULE_KEYS = {"tool", "arg", "pattern"}

#: Characters that look like a space, although Unicode does not count them as white space.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0\x1c-\x1f"
#: White space of any length, as a reader sees it.
_GAPS = re.compile(rf"[\s{_BLANK}]+")
#: A tab, a line end, or a blank character: no reader expects one inside an address or a path.
_BREAKS = re.compile(rf"[\t\n\r\x0b\x0c\x85\u2028\u2029{_BLANK}]")
_UNSEEN = re.compile(f"[{INVISIBLE}]")

#: Characters that stand for the dot of a domain name (IDNA).
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")
#: A comment in a mail address (RFC 5322), as in `eve(x)@example.com`.
_COMMENT = re.compile(r"\([^()]*\)")
#: Characters that end the local part of a mail address, read from its @ backwards.
_NO_LOCAL = frozenset("<>()[],;:\"'@")
#: The domain of a mail address, behind its @.
_DOMAIN = re.compile(r"\s*([^\s<>(),;:\"'@?&]+)")
#: Most characters of an argument that a rule reads, all its spellings together. A call with more is
#: denied.
MAX_READ_CHARS = 1_000_000
#: A longer host cannot exist, and decoding it would take quadratic time.
_MAX_HOST_CHARS = 253
_BETWEEN_HOSTS = re.compile(r"[\s,;<>\"'(){}|]+")

#: The schemes before a host: one, or several as in `jdbc:postgresql://`. The `localhost:` of
#: `localhost:8080` is no scheme.
_SCHEMES = re.compile(r"^(?:[a-z][a-z0-9+.-]*:/*(?!\d+(?:/|$)))+")
#: A pattern that compares numbers, such as `>=500`.
_COMPARED = re.compile(r"\s*(>=|<=|>|<)\s*(.*)", re.DOTALL)
_COMPARISONS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBER = re.compile(r"[+-]?\d[\d.,'\u2019 _]*(?:e[+-]?\d{1,3})?", re.ASCII)

#: How many characters of a text are read as a number. A longer text is no amount; the limit also
#: bounds the work.
_MAX_NUMBER_CHARS = 100


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy: its list, its index in that list, and its pattern.

    The pattern of a `deny_when` rule is the one for the argument.
    """

    kind: RuleKind
    index: int
    pattern: str


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What to do with one call, the reason in words, and the rule that decided, if any."""

    decision: PolicyVerdict
    reason: str
    rule: Rule | None = None
    decided_by: DecidedBy = "rule"


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Rules over tool names (shell patterns), read in the order deny, deny_when, review, allow.

    "allow" runs a call, "review" asks a person first, "deny" refuses it. A tool that no rule names
    is reviewed, so a tool that is added later never runs unseen. In doubt the stricter rule wins:
    `allow` takes a name exactly as written, while the other lists ignore case.

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
    #: `{"refund_*": "say"}`. The first pattern that names the tool counts, before the tool's own
    #: `after`.
    after: Mapping[str, After] = field(default_factory=dict)
    #: The arguments that a person may change before the yes, by patterns of tool names. The first
    #: pattern that names a tool, exactly as written, counts in place of the tool's own `editable`.
    editable: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_lists()
        self._check_deny_when()
        self._check_after()
        self._check_editable()

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
                    f"deny_when rule {dict(rule)!r} needs the keys 'tool', 'arg' and 'pattern', each with text, "
                    "and may have 'matches'"
                )
            if rule.get("matches", "text") not in FORMS:
                known = ", ".join(FORMS)
                raise ValueError(
                    f"deny_when rule {dict(rule)!r}: matches {rule['matches']!r} is none of {known}"
                )
            problem = problem_of(_form_of(rule), rule["pattern"])
            if problem:  # such a rule could never match
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
                f"editable={self.editable!r} must be a dict of patterns, such as {{'refund_*': ['note']}}"
            )
        for pattern, names in self.editable.items():
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise ValueError(
                    f"editable={{{pattern!r}: {names!r}}} must be a list of arguments, such as ['note']"
                )

    def evaluate(self, tool_name: str, args: Mapping[str, Any]) -> PolicyDecision:
        """Return the decision for one call. The arguments must be validated, as JSON values."""
        denial = self.unconditional_denial(tool_name)
        if denial:
            return denial

        for index, rule in enumerate(self.deny_when):
            if not _is_named(tool_name, rule["tool"]):
                continue
            reason = _why_denied(rule, args.get(rule["arg"]))
            if reason:
                return PolicyDecision("deny", reason, Rule("deny_when", index, rule["pattern"]))

        decision = _by_name("review", tool_name, self.review)
        if decision is None:
            decision = _by_name("allow", tool_name, self.allow)
        if decision is None:
            reason = f"no rule names {tool_name!r}"
            decision = PolicyDecision("review", reason, decided_by="unknown")
        return decision

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

    def without_denied(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the tools that may be shown: those that no `deny` rule names."""
        return [tool for tool in tools if self.unconditional_denial(tool.name) is None]


def editable_names(tool: Tool, policy: ToolPolicy | None) -> tuple[str, ...]:
    """Return the names of the arguments that a person may change before the yes to a call.

    A tool that proposes an action in its own code has none: its arguments are not those of the
    action.
    """
    if tool.proposes:
        return ()
    if policy:
        pattern = policy.editable_rule(tool.name)
        if pattern:
            return tuple(policy.editable[pattern])
    return tuple(tool.editable)


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


_TOOL_SEARCH = PolicyDecision("allow", "it only finds tools", decided_by="search")
_NO_POLICY = PolicyDecision("allow", "there is no policy", decided_by="no_policy")
_READS_ON = PolicyDecision(
    "allow", "it reads more of a result that the model was given", decided_by="memory"
)


def effective_decision(
    tool: Tool, args: Mapping[str, Any], policy: ToolPolicy | None
) -> PolicyDecision:
    """Return what policy and tool together decide about a call.

    The arguments must be validated, as JSON values.

    | tool | decision |
    |---|---|
    | reads the rest of a result | always runs: the policy has let the model read that result |
    | finds other tools | runs unless `deny` names it: it shows only tools that the user may use |
    | its author requires approval | reviewed, even where the policy allows it |
    | its source calls it destructive | reviewed unless a rule names it; `allow` lets it run |
    | belongs to the agent's memory | runs unless a rule names it: the operator turned it on |
    | any other | what the policy says; without a policy it runs |
    """
    if tool.metadata.source == RESULTS:
        return _READS_ON
    if tool.metadata.source == SEARCH and not (policy and policy.unconditional_denial(tool.name)):
        return _TOOL_SEARCH

    decision = _NO_POLICY
    if policy:
        # The source of a tool described by JSON Schema fills in the defaults of missing arguments,
        # so the rules must see these defaults.
        defaults: dict[str, Any] = {}
        if tool.input_schema is not None:
            defaults = {
                each.name: each.default for each in tool.parameters if each.default is not None
            }
        decision = policy.evaluate(tool.name, {**defaults, **args})

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
    if decision.decided_by == "unknown" and tool.metadata.source == MEMORY:
        return PolicyDecision(
            "allow", f"{tool.name!r} is the memory's own, and no rule names it", decided_by="memory"
        )
    return decision


def effective_after(
    tool_name: str, tool: Tool | None, policy: ToolPolicy | None
) -> After | Literal[""]:
    """Return what follows the outcome of a confirmed call: the policy decides, else the tool.

    Return "" where neither says it, so the channel decides. The result of a `terminal` tool is the
    reply, also after a yes. `tool` is None for a kind of action that is not the name of a tool.
    """
    if policy:
        pattern = policy.after_rule(tool_name)
        if pattern:
            return policy.after[pattern]
    if tool is None:
        return ""
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
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = await await_isolated(call_foreign(confirm, tool.name, args, reason))
    except TimeoutError as exc:
        raise ToolCallRefused(
            f"{tool.name!r} was not approved within {timeout_seconds} seconds"
        ) from exc
    except Exception as exc:
        raise ToolCallRefused(
            f"{tool.name!r} was not approved: asking failed with {type(exc).__name__}"
        ) from exc
    if answer is not True:
        raise ToolCallRefused(f"{tool.name!r} was rejected by the user")


def _by_name(
    decision: Literal["deny", "review", "allow"], tool_name: str, patterns: Sequence[str]
) -> PolicyDecision | None:
    """Return the decision of the first of these patterns that names the tool; None if none does."""
    is_match = fnmatchcase if decision == "allow" else _is_named
    for index, pattern in enumerate(patterns):
        if is_match(tool_name, pattern):
            reason = f"{tool_name!r} matches the {decision} rule {pattern!r}"
            return PolicyDecision(decision, reason, Rule(decision, index, pattern))
    return None


def _is_named(name: str, pattern: str) -> bool:
    """Return whether a restricting rule names this tool. Case makes no difference."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.casefold(), pattern.casefold())


def _why_denied(rule: Mapping[str, str], argument: Any) -> str:
    """Return why a `deny_when` rule denies a call with this argument, "" if it does not."""
    name = rule["arg"]
    pattern = rule["pattern"]
    form = _form_of(rule)
    read_chars = 0
    for leaf in _leaves(argument):
        for text in _spellings(leaf):
            read_chars += len(text)
            if read_chars > MAX_READ_CHARS:
                return (
                    f"{name!r} is longer than the {MAX_READ_CHARS:,} characters that a rule reads"
                )
            if (
                matches_text(text, pattern)
                or matches_form(form, text, pattern)
                or _is_same_number(leaf, pattern)
            ):
                return f"{name!r} matches {pattern!r}"
    return ""


def _form_of(rule: Mapping[str, str]) -> ArgumentForm:
    """Return the form that a rule looks for.

    If the rule does not state one, a pattern with an @ looks for an address.
    """
    form = cast("ArgumentForm", rule.get("matches", "text"))
    if form == "text" and "@" in rule["pattern"]:
        return "email"
    return form


def _leaves(value: Any) -> Iterator[Any]:
    """Yield every key and scalar inside a value.

    A forbidden address must not hide in a list or in a key. An empty object is yielded as "{}", an
    empty list as "[]".
    """
    waiting = [value]  # no recursion: a model may nest deeper than Python can
    while waiting:
        match waiting.pop():
            case Mapping() as pairs:
                if not pairs:
                    yield "{}"
                yield from pairs
                waiting.extend(pairs.values())
            case list() | tuple() | set() | frozenset() as items:
                if not items:
                    yield "[]"
                waiting.extend(items)
            case None:
                pass
            case scalar:
                yield scalar


def _spellings(leaf: Any) -> list[str]:
    """Return the texts in which a pattern may name this scalar."""
    if isinstance(leaf, bool):
        return [str(leaf), *_BOOLEAN_SPELLINGS[leaf]]
    spellings = [str(leaf)]
    if isinstance(leaf, float):
        spellings.append(json.dumps(leaf))
        spellings.append(format(Decimal(str(leaf)), "f"))  # without an exponent
        if leaf.is_integer():
            spellings.append(str(int(leaf)))
    return spellings


def _is_same_number(leaf: Any, pattern: str) -> bool:
    """Return whether a number, also one in text, has the value of the pattern.

    5, 5.0, 05 and 5e0 are the same.
    """
    if isinstance(leaf, bool):
        return False
    try:
        return Decimal(str(leaf).strip()) == Decimal(pattern.strip())
    except InvalidOperation:
        return False


def plain_texts(text: str) -> set[str]:
    """Return the plain forms of a text: how it looks to a reader.

    In a plain form, compatibility forms and case are folded, white space is one space, and
    invisible characters are removed. There are two: a reader may take a tab or line end for a
    space, or overlook it, so the second form is without them.
    """
    return {_folded(_GAPS.sub(" ", text)), _folded(_BREAKS.sub("", text))}


def matches_text(text: str, pattern: str) -> bool:
    """Return whether the text matches the shell pattern, as written or in one of their plain forms."""
    if fnmatchcase(text, pattern):
        return True
    patterns = plain_texts(pattern)
    return any(fnmatchcase(plain, each) for plain in plain_texts(text) for each in patterns)


def matches_form(form: ArgumentForm, text: str, pattern: str) -> bool:
    """Return whether something of this form in the text matches the pattern."""
    match form:
        case "email":
            local, at, domain = _plain(pattern).strip("<>").rpartition("@")
            wanted = f"{local}@{_host(domain)}" if at else domain
            return any(fnmatchcase(address, wanted) for address in _addresses(text))
        case "domain":
            wanted = _host(_plain(pattern))
            return any(
                fnmatchcase(host, wanted) or fnmatchcase(host, f"*.{wanted}")
                for host in _hosts(text)
            )
        case "path":
            wanted = _path(_plain(pattern))
            for path in map(_path, _readings(text)):
                # Also with a final slash, so that `/etc/*` holds for /etc itself.
                if fnmatchcase(path, wanted) or fnmatchcase(f"{path}/", wanted):
                    return True
            return False
        case "number":
            compare, limit_text = _compared(pattern)
            pairs = product(_numbers(text), _numbers(limit_text))
            return any(compare(number, limit) for number, limit in pairs)
    return False


def problem_of(form: ArgumentForm, pattern: str) -> str:
    """Return why a pattern can never match its form, or "" if it can."""
    if form == "number":
        _, limit = _compared(pattern)
        if not _numbers(limit):
            return f"{pattern!r} is no number: write 500, or >500, >=500, <0, <=0"
    if form == "email" and "@" not in pattern and "*" not in pattern:
        return f"{pattern!r} is no address: write eve@example.com or *@example.com"
    return ""


def _folded(text: str) -> str:
    """Return the text with compatibility forms and case folded, and without invisible characters.

    Each run of white space becomes one space.
    """
    compatible = unicodedata.normalize("NFKC", text)
    lower = _UNSEEN.sub("", compatible).casefold()
    # Folding the case may give new compatibility forms and invisible characters.
    folded = _UNSEEN.sub("", unicodedata.normalize("NFKC", lower))
    return _GAPS.sub(" ", folded).strip()


def _plain(text: str) -> str:
    """Return the plain form without tabs and line ends: addresses and paths contain no gaps."""
    return _folded(_BREAKS.sub("", text))


def _readings(text: str) -> set[str]:
    """Return the plain forms of a text, each as written and with its percent codes decoded."""
    readings = plain_texts(text)
    return readings | {_folded(unquote(plain)) for plain in readings}


def _addresses(text: str) -> Iterator[str]:
    """Yield the mail addresses in a text, each also without the tag behind a plus sign."""
    for reading in _readings(text):
        for local, domain in _address_parts(_COMMENT.sub("", reading)):
            name = local.strip('"').strip()
            host = _host(domain)
            yield f"{name}@{host}"
            yield f"{name.partition('+')[0]}@{host}"


@dataclass(frozen=True, slots=True, order=True)
class _AddressSpan:
    """Where an address is in a text: its beginning, the end of its local part, and its domain."""

    start: int
    local_end: int
    domain_start: int
    end: int
    is_quoted: bool


def _address_parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the local part and the domain of each address in a text, from left to right.

    Addresses do not overlap: where two claim the same characters, the first one has them.

    The time is proportional to the length of the text: each @ is looked at once, with the text
    between its neighbors. A regular expression would try each character as the beginning of a local
    part, and read on to the next @ each time.
    """
    position = 0
    for span in sorted(_address_spans(text)):
        start = span.start
        if start < position:
            if span.is_quoted or position >= span.local_end:
                continue
            start = position  # the domain before it took the beginning of its local part
        yield text[start : span.local_end], text[span.domain_start : span.end]
        position = span.end


def _address_spans(text: str) -> Iterator[_AddressSpan]:
    """Yield where the address around each @ is.

    The local part is a run of letters or a quoted text before the @, the domain what follows it.
    """
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)

        local_end = at
        while local_end and text[local_end - 1].isspace():
            local_end -= 1

        start = local_end
        is_quoted = text[local_end - 1 : local_end] == '"'
        if is_quoted:
            start = text.rfind('"', 0, local_end - 1)
        else:
            while start and text[start - 1] not in _NO_LOCAL and not text[start - 1].isspace():
                start -= 1

        if domain and 0 <= start < local_end:
            yield _AddressSpan(start, local_end, domain.start(1), domain.end(), is_quoted)
        at = text.find("@", at + 1)


def _hosts(text: str) -> Iterator[str]:
    """Yield the hosts that a text may name: in its mail addresses, in its URLs, and as plain words."""
    for reading in _readings(text):
        for word in _BETWEEN_HOSTS.split(reading.replace("\\", "/")):
            rest = _SCHEMES.sub("", word).lstrip("/")
            if "@" in word:
                _, _, behind_at = word.rpartition("@")
                yield _host(re.split("[/?#&]", behind_at)[0])
            with contextlib.suppress(ValueError):
                yield _host(urlsplit(f"//{rest}").hostname or "")


def _host(name: str) -> str:
    """Return a host in one spelling.

    A name is in Unicode rather than Punycode, without a final dot. An IP address is in the usual
    notation.
    """
    host = name.translate(_DOTS).strip(".[]")
    if len(host) > _MAX_HOST_CHARS:
        return host

    with contextlib.suppress(UnicodeError):
        if "xn--" in host:
            host = host.encode("ascii").decode("idna")

    # `inet_aton` also reads 127.1, 0x7f000001 and 2130706433, as HTTP clients do.
    if re.fullmatch(r"[0-9a-fx.]+", host) and host[:1].isdigit():
        with contextlib.suppress(OSError):
            return socket.inet_ntoa(socket.inet_aton(host))

    if ":" in host:
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv6Address(host)
            return str(address.ipv4_mapped or address)
    return host


def _path(written: str) -> str:
    """Return a path, also of a `file:` URL, with single slashes and without `.` and `..`."""
    slashed = written.replace("\\", "/").strip("\"'")
    local = re.sub(r"^file:(?://(?:localhost)?(?=/))?", "", slashed)
    if not local:
        return ""
    return posixpath.normpath(re.sub("/+", "/", local))


def _compared(pattern: str) -> tuple[Callable[[Decimal, Decimal], bool], str]:
    """Return how a pattern compares a number, and the text of the number to compare with.

    `>=500` compares with 500. A pattern without a sign asks for an equal number.
    """
    match = _COMPARED.fullmatch(unicodedata.normalize("NFKC", pattern))
    if match:
        return _COMPARISONS[match[1]], match[2]
    return operator.eq, pattern


def _numbers(text: str) -> set[Decimal]:
    """Return the numbers that a text may mean; an empty set if it is no number.

    `1.000` may be one or a thousand, so both are returned.
    """
    written = _plain(text)[:_MAX_NUMBER_CHARS].replace("\u2212", "-")
    # The digits of all scripts become those of ASCII.
    digits = "".join(str(unicodedata.decimal(char, char)) for char in written)

    # Without a currency or unit before and after the number, and between its sign and its digits.
    bare = re.sub(r"^[^\d+\-.,]+|[^\d]+$", "", digits)
    bare = re.sub(r"^([+-])[^\d.,]+", r"\1", bare)
    if not _NUMBER.fullmatch(bare.lstrip(".,")):
        return set()

    solid = re.sub("['\u2019 _]", "", bare)
    comma_groups = solid.replace(",", "")
    comma_decimals = solid.replace(".", "").replace(",", ".")
    readings = {solid, comma_groups, comma_decimals}
    numbers = set()
    for reading in readings:
        with contextlib.suppress(InvalidOperation):
            numbers.add(Decimal(reading))
    return numbers
