"""Settings below `policy.standing`: for which later calls a yes may stand.

`StandingSettings.limit` makes the limit of them that a ToolPolicy has. The docstring below a field
is its text in the reference of the YAML.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from sayso.channels.base import Section
from sayso.config.settings.durations import Duration
from sayso.pending.standing_rule import (
    MAX_STANDING_SECONDS,
    MAX_STANDING_TIMES,
    Bound,
    StandingLimit,
)


class StandingSettings(Section):
    """For how long, how often and within which bounds a yes to a tool may also count later.

    What is left out here limits nothing. Nothing here widens what the author of a tool allows.
    Tools of an MCP server or an OpenAPI document have no author here: for them `for` and `times` are
    needed.
    """

    for_: Duration | None = Field(default=None, alias="for", gt=0, le=MAX_STANDING_SECONDS)
    """The longest time: seconds, or text such as `1h`; at most a day. Example: `30m`."""
    times: int | None = Field(default=None, ge=1, le=MAX_STANDING_TIMES)
    """The most calls, besides the one that was asked about. Example: `3`."""
    where: dict[str, str | bool | int | float] = {}
    """What the values of arguments must be: `<= 50`, `>= 5`, `< 1`, `> 0`, `== x` or a plain value.
    Example: `{amount: '<= 20'}`.
    """
    same: list[str] = []
    """Arguments that must have the values of the call that was asked about. Example: `[customer]`."""

    @model_validator(mode="after")
    def _can_be_compared(self) -> Self:
        # Raises ValueError for a bound that cannot be read.
        _ = self.limit
        return self

    @property
    def limit(self) -> StandingLimit:
        """The limit of a ToolPolicy."""
        return StandingLimit(
            for_seconds=self.for_,
            times=self.times,
            where=tuple(Bound.parse(name, value) for name, value in self.where.items()),
            same=tuple(self.same),
        )


def _read_standing(value: Any) -> StandingSettings | Literal["off"]:
    """Return the section, or "off". YAML reads `off` as false.

    Raises ValueError for another word, and pydantic.ValidationError for a malformed section.
    """
    if isinstance(value, StandingSettings):
        return value
    if value is False or value == "off":
        return "off"
    if not isinstance(value, dict):
        raise ValueError("is no limit: write off, or a section such as {for: 30m, times: 3}")
    return StandingSettings.model_validate(value)


#: The limit of a tool's standing yeses, or `off`.
AnyStanding = Annotated[
    StandingSettings | Literal["off"],
    PlainValidator(_read_standing, json_schema_input_type=StandingSettings | Literal["off"]),
]


def limit_of(settings: StandingSettings | Literal["off"]) -> StandingLimit | None:
    """Return the limit of a ToolPolicy, None if no yes may stand."""
    if isinstance(settings, StandingSettings):
        return settings.limit
    return None
