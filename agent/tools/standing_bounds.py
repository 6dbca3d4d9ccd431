"""Whether the bounds of a standing yes fit the arguments of a tool, by its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.agent.tools.edits import without_null
from sayso.pending.standing_rule import StandingRule

#: The types of numbers in a JSON Schema.
_NUMERIC = ("integer", "number")


def standing_problem(properties: Mapping[str, Any], rule: StandingRule) -> str:
    """Return what is wrong with a rule for a tool with these arguments, "" if nothing is.

    `properties` is that of the JSON Schema of the tool's parameters, as a model reads them.

    A rule must name at least one argument of a tool that has any: what it does not name may be
    anything. A comparison of numbers must be about a number, since in a text "50" may mean anything.
    """
    unknown = sorted(set(rule.names) - set(properties))
    if unknown:
        return f"standing names {unknown!r}; a model fills {sorted(properties)!r}"
    if properties and not rule.names:
        return (
            "standing bounds no argument, so a yes would stand for any call: name those that "
            f"matter of {sorted(properties)!r} in 'where' or 'same'"
        )
    for bound in rule.where:
        if bound.is_numeric and not _is_number(properties[bound.argument]):
            return (
                f"standing compares {bound.argument!r} with the number {bound.value!r}, "
                "and the argument is no number"
            )
        if not bound.is_numeric and _is_number(properties[bound.argument]):
            return (
                f"standing compares {bound.argument!r} with {bound.value!r}, "
                "and the argument is a number"
            )
    return ""


def _is_number(schema: Mapping[str, Any]) -> bool:
    """Return whether an argument is a number, or the text of a Decimal."""
    part, _ = without_null(schema)
    return part.get("type") in _NUMERIC or part.get("format") == "decimal"
