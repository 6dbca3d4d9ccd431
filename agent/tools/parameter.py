"""ToolParameter: one argument of a tool, as the model sees it."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One argument: `param_type` is any type hint, `element_type` what a bare list or dict holds."""

    name: str
    param_type: Any = str
    description: str = ""
    required: bool = True
    enum: Sequence[Any] | None = None
    default: Any = None
    element_type: Any = None

    @property
    def annotation(self) -> Any:
        """The type hint that arguments are validated against."""
        hint = lenient(Literal[tuple(self.enum)] if self.enum else self._collection())
        return hint if self.required or self.default is not None else Union[hint, None]  # noqa: UP007  # not a class

    def to_schema(self) -> dict[str, Any]:
        """The JSON schema of this one argument."""
        from agent.tools.schema import build_model, json_schema  # schema is built from parameters

        schema: dict[str, Any] = json_schema(build_model("parameter", [self]))["properties"][self.name]
        return schema

    def _collection(self) -> Any:
        if self.element_type is None:
            return self.param_type
        return dict[str, self.element_type] if self.param_type is dict else list[self.element_type]  # type: ignore[name-defined]


def is_union(hint: Any) -> bool:
    """Whether the hint is `A | B`, in either spelling."""
    return get_origin(hint) in (Union, types.UnionType)


def lenient(hint: Any) -> Any:
    """The hint, with Literal numbers and booleans also read from text: small models quote everything."""
    if get_origin(hint) is Literal:
        return Annotated[hint, BeforeValidator(_from_text(get_args(hint)))]
    if is_union(hint):
        return Union[tuple(lenient(part) for part in get_args(hint))]  # noqa: UP007  # built at run time
    return hint


def _from_text(choices: Sequence[Any]) -> Callable[[Any], Any]:
    by_text = {str(choice).lower(): choice for choice in choices if not isinstance(choice, str)}

    def read(value: Any) -> Any:
        return by_text.get(value.lower(), value) if isinstance(value, str) and value not in choices else value

    return read
