"""StandingRule: within which bounds a yes may also count for later calls of a tool.

The author of a tool writes the rule (`@tool(standing=...)`), and an operator may narrow it in the
policy. It becomes a signed part of each action whose question offers a standing yes, so that a
later change of the tool or of the YAML cannot change what a person agrees to.

What a rule does not name may differ from call to call: arguments that are in neither `where` nor
`same` are not compared. So the author names every argument that matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, get_args

from sayso.infra.durations import duration_text, seconds_of
from sayso.pending.action import canonical_json

#: The longest time for which a yes can stand, in seconds.
MAX_STANDING_SECONDS = 86_400.0
#: The most calls that one yes can cover, besides the call that was asked about.
MAX_STANDING_TIMES = 100

#: How a value is compared with that of a bound.
BoundComparison = Literal["<=", ">=", "<", ">", "=="]
#: A bound as text: a comparison, and what it compares with.
_COMPARISON = re.compile(r"\s*(<=|>=|==|<|>|=|!=)\s*(.*?)\s*", re.DOTALL)
#: A number as text, in the only form that is compared: an argument of the type Decimal has it.
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?", re.ASCII)
#: The keys of a rule as authors and operators write it.
_KEYS = frozenset({"for", "times", "where", "same"})


@dataclass(frozen=True, slots=True)
class Bound:
    """What the value of one argument must be. Immutable.

    Raises ValueError for an unknown comparison, and for a value that it cannot compare with.
    """

    #: The name of the argument.
    argument: str
    comparison: BoundComparison
    #: A number, or for "==" also a text, True or False.
    value: int | float | str | bool

    def __post_init__(self) -> None:
        if self.comparison not in get_args(BoundComparison):
            known = ", ".join(get_args(BoundComparison))
            raise ValueError(f"{self.comparison!r} is no comparison: give one of {known}")
        if self.comparison != "==" and (isinstance(self.value, str) or not self.is_numeric):
            raise ValueError(
                f"{self.comparison} {self.value!r} compares with no number: "
                "give a number, such as '<= 50'"
            )
        if not isinstance(self.value, str | bool) and not self.is_numeric:
            raise ValueError(f"{self.value!r} is no value of a bound: give a number, text or bool")

    @classmethod
    def parse(cls, argument: str, value: object) -> Bound:
        """Read a bound as an author writes it: `<= 50`, `>= 5`, `< 1`, `== x`, or a plain value.

        A plain value, also a text, must be the same. Behind `==` a number is a number, and `true`
        and `false` are values of a bool. Raises ValueError for anything else.
        """
        if isinstance(value, str):
            match = _COMPARISON.fullmatch(value)
            if match is None:
                return cls(argument, "==", value)
            comparison, operand = match[1], match[2]
            if comparison in ("=", "!=") or not operand:
                raise ValueError(
                    f"{value!r} is no comparison: give '<= 50', '>= 5', '< 1', '> 1', '== x' or a "
                    "plain value"
                )
            return cls(argument, comparison, _operand(operand))  # type: ignore[arg-type]  # checked by the pattern
        if isinstance(value, bool | int | float):
            return cls(argument, "==", value)
        raise ValueError(f"{value!r} is no bound: give a comparison, a text, a number or a bool")

    @property
    def is_numeric(self) -> bool:
        """Return whether the bound compares numbers."""
        return not isinstance(self.value, str) and _number(self.value) is not None

    def holds(self, value: Any) -> bool:
        """Return whether the value of an argument, as exact JSON, is within the bound.

        A number is compared exactly. A text is a number only in the form "50" or "-0.5", which an
        argument of the type Decimal has. None, a bool, a list and NaN are no numbers, and are
        within no numeric bound.
        """
        if not self.is_numeric:
            # `True == 1` in Python.
            return type(value) is type(self.value) and value == self.value
        number = _number(value)
        limit = _number(self.value)
        if number is None or limit is None:
            return False
        match self.comparison:
            case "<=":
                return number <= limit
            case ">=":
                return number >= limit
            case "<":
                return number < limit
            case ">":
                return number > limit
        return number == limit

    def to_text(self) -> str:
        """Return the bound as an author may write it, without the argument: `<= 50`."""
        return f"{self.comparison} {self.value}"


def _operand(text: str) -> int | float | str | bool:
    """Return the value that a comparison is written with."""
    if text in ("true", "false"):
        return text == "true"
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def _number(value: Any) -> Decimal | None:
    """Return a value as an exact number, None for a value that is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, float):
        number = Decimal(repr(value))
        return number if number.is_finite() else None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        try:
            return Decimal(value)
        except InvalidOperation:
            return None
    return None


@dataclass(frozen=True, slots=True)
class StandingLimit:
    """What an operator says about the standing yeses of a tool. None and () limit nothing."""

    for_seconds: float | None = None
    times: int | None = None
    where: tuple[Bound, ...] = ()
    same: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a number that is out of range."""
        if self.for_seconds is not None:
            _check_seconds(self.for_seconds)
        if self.times is not None:
            _check_times(self.times)

    @property
    def as_rule(self) -> StandingRule | None:
        """Return the rule of a tool that has no author here, None without a time or a count."""
        if self.for_seconds is None or self.times is None:
            return None
        return StandingRule(self.for_seconds, self.times, self.where, self.same)


@dataclass(frozen=True, slots=True)
class StandingRule:
    """For how long, how often, and for which calls a yes may stand. Immutable.

    Raises ValueError for a time or a count that is out of range.
    """

    for_seconds: float
    #: How many calls a yes covers, besides the one that was asked about.
    times: int
    #: What the values of arguments must be. All bounds must hold, also several of one argument.
    where: tuple[Bound, ...] = ()
    #: The names of arguments that must have the same values as in the call that was asked about.
    same: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_seconds(self.for_seconds)
        _check_times(self.times)

    @classmethod
    def parse(cls, rule: StandingRule | Mapping[str, Any]) -> StandingRule:
        """Read a rule as an author writes it, with the keys `for`, `times`, `where` and `same`.

        Raises ValueError or TypeError for anything else.
        """
        if isinstance(rule, StandingRule):
            return rule
        limit = parse_limit(rule)
        complete = limit.as_rule
        if complete is None:
            raise ValueError("standing needs 'for' and 'times', such as {'for': '1h', 'times': 10}")
        return complete

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arguments that the rule is about, each once."""
        return tuple(dict.fromkeys([*(bound.argument for bound in self.where), *self.same]))

    def covers(self, args: Mapping[str, Any], confirmed: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments is within the bounds.

        `confirmed` has the arguments of the call that was asked about, at least those of `same`. An
        argument that is missing is within no bound.
        """
        for bound in self.where:
            if bound.argument not in args or not bound.holds(args[bound.argument]):
                return False
        return all(_is_same(name, args, confirmed) for name in self.same)

    def narrowed(self, limit: StandingLimit) -> StandingRule:
        """Return the rule within the limits of an operator. It is never wider."""
        seconds = self.for_seconds
        if limit.for_seconds is not None:
            seconds = min(seconds, limit.for_seconds)
        times = self.times
        if limit.times is not None:
            times = min(times, limit.times)
        return replace(
            self,
            for_seconds=seconds,
            times=times,
            where=tuple(dict.fromkeys([*self.where, *limit.where])),
            same=tuple(dict.fromkeys([*self.same, *limit.same])),
        )

    def summary(self) -> str:
        """Return the rule as one line for operators: `1h, 10 times, amount <= 50, same customer`."""
        parts = [duration_text(self.for_seconds), f"{self.times} times"]
        parts += [f"{bound.argument} {bound.to_text()}" for bound in self.where]
        parts += [f"same {name}" for name in self.same]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as exact JSON, for the signed record of an action."""
        return {
            "for_seconds": float(self.for_seconds),
            "times": self.times,
            "where": [[each.argument, each.comparison, each.value] for each in self.where],
            "same": list(self.same),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StandingRule:
        """Read the result of `to_dict`. Raises KeyError, TypeError or ValueError on anything else."""
        where: Sequence[Sequence[Any]] = data["where"]
        same: Sequence[str] = data["same"]
        bounds = tuple(Bound(*entry) for entry in where)
        return cls(data["for_seconds"], data["times"], bounds, tuple(same))


def offered_rule(
    rule: Mapping[str, Any] | None, args: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the rule that the question of a call offers, None for none.

    `rule` is that of the tool (`StandingRule.to_dict`), None for none. A call that is itself outside
    of the bounds offers nothing: later calls would not be the same.
    """
    if rule is None or not StandingRule.from_dict(rule).covers(args, args):
        return None
    return rule


def parse_limit(rule: Mapping[str, Any]) -> StandingLimit:
    """Read the keys of a rule, of which any may be missing. Raises ValueError or TypeError."""
    if not isinstance(rule, Mapping):
        raise TypeError(f"{rule!r} is no dict with 'for', 'times', 'where' and 'same'")
    unknown = sorted(set(rule) - _KEYS)
    if unknown:
        raise ValueError(f"unknown {unknown!r}: give {sorted(_KEYS)!r}")
    where = rule.get("where") or {}
    same = rule.get("same") or ()
    if not isinstance(where, Mapping):
        raise TypeError(
            f"where={where!r} must be a dict of arguments, such as {{'amount': '<= 50'}}"
        )
    seconds = None
    if rule.get("for") is not None:
        try:
            seconds = seconds_of(rule["for"])
        except ValueError as exc:
            raise ValueError(f"for={rule['for']!r} {exc}") from None
    return StandingLimit(
        for_seconds=seconds,
        times=rule.get("times"),
        where=tuple(Bound.parse(name, value) for name, value in where.items()),
        same=_names(same),
    )


def _names(same: object) -> tuple[str, ...]:
    """Return the names of `same`. A single text would be read as one name a character."""
    if isinstance(same, str) or not isinstance(same, Iterable):
        raise TypeError(f"same={same!r} must be a list of arguments, such as ['customer']")
    names = tuple(same)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"same={same!r} must be a list of names")
    return names


def _is_same(name: str, args: Mapping[str, Any], confirmed: Mapping[str, Any]) -> bool:
    """Return whether an argument has the confirmed value, or is missing in both calls."""
    if name not in args or name not in confirmed:
        return (name in args) == (name in confirmed)
    return canonical_json(args[name]) == canonical_json(confirmed[name])


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= MAX_STANDING_SECONDS:
        raise ValueError(
            f"for is {seconds!r} seconds: "
            f"it must be more than 0 and at most {duration_text(MAX_STANDING_SECONDS)}"
        )


def _check_times(times: int) -> None:
    is_number = isinstance(times, int) and not isinstance(times, bool)
    if not is_number or not 1 <= times <= MAX_STANDING_TIMES:
        raise ValueError(f"times is {times!r}: it must be 1 to {MAX_STANDING_TIMES}")
