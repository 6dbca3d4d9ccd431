"""ToolPolicy, effective decision, approval without a channel."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import operator
import posixpath
import re
import socket
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, cast, get_args
from urllib.parse import unquote, urlsplit

from sayso.agent.swift import swift
from sayso.channels.i18n.invisible import UNSEEN

#: What an argument holds, as far as its rule says so.
ArgumentForm: TypeAlias = Literal["text", "email", "domain", "path", "number"]


FORMS: tuple[ArgumentForm, ...] = get_args(ArgumentForm)


#: Characters that show nothing but a gap, although Unicode does not count them as white space.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0\x1c-\x1f"


_GAPS = re.compile(rf"[\s{_BLANK}]+")


_BREAKS = re.compile(rf"[\t\n\r\x0b\x0c\x85\u2028\u2029{_BLANK}]")


_UNSEEN = re.compile(f"[{UNSEEN}]")


#: Dots that stand for the dot of a domain name (IDNA).
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")


_COMMENT = re.compile(r"\([^()]*\)")


_ADDRESS = re.compile(r"(\"[^\"]*\"|[^\s<>()\[\],;:\"'@]+)\s*@\s*([^\s<>(),;:\"'@?&]+)")


_BETWEEN_HOSTS = re.compile(r"[\s,;<>\"'(){}|]+")


#: What stands before a host: one scheme, or several, as in `jdbc:postgresql://`. A host with a port has none.
_SCHEMES = re.compile(r"^(?:[a-z][a-z0-9+.-]*:/*(?!\d+(?:/|$)))+")


_COMPARED = re.compile(r"\s*(>=|<=|>|<)\s*(.*)", re.DOTALL)


_COMPARISONS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


_NUMBER = re.compile(r"[+-]?\d[\d.,'\u2019 _]*(?:e[+-]?\d{1,3})?", re.ASCII)


#: Longer texts hold no number that a rule is about; the cap also bounds the work.
_MAX_NUMBER_CHARS = 100


def plain_texts(text: str) -> set[str]:
    """Return the text as it looks: compatibility forms and case folded, white space as one space, nothing invisible.

    A tab or line end may stand for a gap or be overlooked, so there is a second form without them.
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
            wanted = _address_pattern(pattern)
            return any(fnmatchcase(address, wanted) for address in _addresses(text))
        case "domain":
            wanted = _host(_plain(pattern))
            return any(fnmatchcase(host, wanted) or fnmatchcase(host, f"*.{wanted}") for host in _hosts(text))
        case "path":
            wanted = _path(_plain(pattern))
            return any(fnmatchcase(path, wanted) for path in _paths(text))
        case "number":
            return _matches_number(text, pattern)
    return False


def problem_of(form: ArgumentForm, pattern: str) -> str:
    """Return why a pattern can match nothing of its form, "" when it can."""
    if form == "number" and not _numbers(_compared(pattern)[1]):
        return f"{pattern!r} is no number: write 500, or >500, >=500, <0, <=0"
    if form == "email" and "@" not in pattern and "*" not in pattern:
        return f"{pattern!r} is no address: write eve@example.com or *@example.com"
    return ""


def _folded(text: str) -> str:
    compatible = unicodedata.normalize("NFKC", _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).casefold())
    return _GAPS.sub(" ", _UNSEEN.sub("", compatible)).strip()


def _plain(text: str) -> str:
    """Return the form with nothing in the place of tabs and line ends: addresses and paths have no gaps."""
    return _folded(_BREAKS.sub("", text))


def _readings(text: str) -> set[str]:
    """Return the plain forms, as written and with percent codes decoded."""
    return {read for plain in plain_texts(text) for read in (plain, _folded(unquote(plain)))}


def _addresses(text: str) -> Iterator[str]:
    """Yield the mail addresses in a text, each also without the tag behind a plus sign."""
    for reading in _readings(text):
        for local, domain in _ADDRESS.findall(_COMMENT.sub("", reading)):
            name, host = local.strip('"').strip(), _host(domain)
            yield f"{name}@{host}"
            yield f"{name.partition('+')[0]}@{host}"


def _address_pattern(pattern: str) -> str:
    local, at, domain = _plain(pattern).strip("<>").rpartition("@")
    return f"{local}@{_host(domain)}" if at else domain


def _hosts(text: str) -> Iterator[str]:
    """Yield the hosts that a text may name: of its addresses, its URLs, and each of its words as a host."""
    for reading in _readings(text):
        for word in _BETWEEN_HOSTS.split(reading.replace("\\", "/")):
            rest = _SCHEMES.sub("", word).lstrip("/")
            if "@" in word:
                yield _host(re.split("[/?#&]", word.rpartition("@")[2])[0])
            with contextlib.suppress(ValueError):
                yield _host(urlsplit(f"//{rest}").hostname or "")


def _host(name: str) -> str:
    """Return a host in one spelling: Unicode rather than Punycode, no final dot, IP addresses in the usual notation."""
    host = name.translate(_DOTS).strip(".[]")
    with contextlib.suppress(UnicodeError):
        host = host.encode("ascii").decode("idna") if "xn--" in host else host
    if re.fullmatch(r"[0-9a-fx.]+", host) and host[:1].isdigit():
        with contextlib.suppress(OSError):
            return socket.inet_ntoa(socket.inet_aton(host))
    if ":" in host:
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv6Address(host)
            return str(address.ipv4_mapped or address)
    return host


def _paths(text: str) -> Iterator[str]:
    """Yield a path without detours, and with a final slash, so that `/etc/*` holds for /etc itself."""
    for reading in _readings(text):
        path = _path(reading)
        yield from (path, f"{path}/")


def _path(written: str) -> str:
    local = re.sub(r"^file:(?://(?:localhost)?(?=/))?", "", written.replace("\\", "/").strip("\"'"))
    return posixpath.normpath(re.sub("/+", "/", local)) if local else ""


def _matches_number(text: str, pattern: str) -> bool:
    compare, wanted = _compared(pattern)
    return any(compare(number, limit) for number in _numbers(text) for limit in _numbers(wanted))


def _compared(pattern: str) -> tuple[Callable[[Decimal, Decimal], bool], str]:
    found = _COMPARED.fullmatch(unicodedata.normalize("NFKC", pattern))
    return (_COMPARISONS[found[1]], found[2]) if found else (operator.eq, pattern)


def _numbers(text: str) -> set[Decimal]:
    """Return what a number may mean as people write it: 1.000 is one and a thousand. No number: an empty set."""
    written = _plain(text)[:_MAX_NUMBER_CHARS].replace("\u2212", "-")
    digits = "".join(str(unicodedata.decimal(char, char)) for char in written)
    bare = re.sub(r"^[^\d+\-.,]+|[^\d]+$", "", digits)
    bare = re.sub(r"^([+-])[^\d.,]+", r"\1", bare)
    if not _NUMBER.fullmatch(bare.lstrip(".,") if bare[:1] in ".," else bare):
        return set()
    solid = re.sub("['\u2019 _]", "", bare)
    readings = {solid, solid.replace(",", ""), solid.replace(".", "").replace(",", ".")}
    numbers = set()
    for reading in readings:
        with contextlib.suppress(InvalidOperation):
            numbers.add(Decimal(reading))
    return numbers


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


def _form_of(rule: Mapping[str, str]) -> ArgumentForm:
    """Return the form that a rule looks for; a pattern with an @ means an address where the rule does not say."""
    form = cast("ArgumentForm", rule.get("matches", "text"))
    return "email" if form == "text" and "@" in rule["pattern"] else form


def _matches(value: Any, pattern: str, form: ArgumentForm) -> bool:
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
