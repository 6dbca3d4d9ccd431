"""Parameters: those of one tool, in their order and by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, overload

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.parameter import ToolParameter


class Parameters(tuple[ToolParameter, ...]):
    """A tuple that can also be read as the mapping of names to parameters (seed: Tools Protocol Specification)."""

    __slots__ = ()

    @overload  # type: ignore[override]  # a name is one more way to ask
    def __getitem__(self, key: int | str) -> ToolParameter: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[ToolParameter, ...]: ...
    def __getitem__(self, key: int | str | slice) -> ToolParameter | tuple[ToolParameter, ...]:
        """By place or by name. Raises KeyError for a name that is not there."""
        return dict(self.items())[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys() if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """The names."""
        return [each.name for each in self]

    def values(self) -> list[ToolParameter]:
        """The parameters."""
        return list(self)

    def items(self) -> list[tuple[str, ToolParameter]]:
        """Each with its name."""
        return [(each.name, each) for each in self]

    def get(self, name: str, default: Any = None) -> Any:
        """The parameter of that name, else the default."""
        return dict(self.items()).get(name, default)


def as_parameters(tool_name: str, given: Any) -> Parameters:
    """Parameters as a tool is given them: in any order of their own, or by name. Raises ToolValidationError."""
    try:
        made = [replace(each, name=name) for name, each in given.items()] if isinstance(given, Mapping) else list(given)
    except TypeError:
        made = [given]
    if wrong := [each for each in made if not isinstance(each, ToolParameter)]:
        raise ToolValidationError(
            f"the parameters of {tool_name!r} hold {wrong[0]!r}: give ToolParameters, or one JSON Schema of an object",
            tool_name=tool_name,
        )
    return Parameters(made)
