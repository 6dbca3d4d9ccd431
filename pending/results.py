"""Typed results: what a tool may return so that the next model call can reason over it (seed: Tools, Typed Results).

They live here, below the agent, because the pending room's `PendingConfirmation` is one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from pydantic_core import to_json


@dataclass(frozen=True)
class ToolResult:
    """Base of typed results. Subclasses are frozen dataclasses that set `kind`."""

    kind: ClassVar[str] = "result"

    def to_json(self) -> str:
        """The result as the model sees it: `kind` first, then the fields, and so for each result inside it."""
        return as_json(self)


def as_json(value: Any) -> str:
    """A value as JSON text: dates, models, sets and typed results, too. Numbers that JSON lacks are words."""
    try:
        return _written(value)
    except (TypeError, ValueError):  # a NaN, or a key that is no text
        return _written(_jsonable(value))


def _plain(value: Any) -> Any:
    if isinstance(value, ToolResult):
        return {"kind": type(value).kind, **{each.name: getattr(value, each.name) for each in fields(value)}}
    return _jsonable(value)


def _jsonable(value: Any) -> Any:
    return json.loads(to_json(value, fallback=str, inf_nan_mode="strings"))


_written = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode


@dataclass(frozen=True)
class Ambiguous(ToolResult):
    """Several things match `query`; `matches` lets the model ask which."""

    kind: ClassVar[str] = "ambiguous"

    entity: str = ""
    query: str = ""
    matches: list[Any] = field(default_factory=list)

    @property
    def in_words(self) -> str:
        """What a person is told of it."""
        matches = "; ".join(plain(_jsonable(match)) for match in self.matches)
        return f'Several {_plural(self.entity or "thing")} match "{self.query}": {matches}: which one?'


@dataclass(frozen=True)
class NotFound(ToolResult):
    """This tool saw no match for `query`, here and now. It does not claim that none exists."""

    kind: ClassVar[str] = "not_found"

    entity: str = ""
    query: str = ""

    @property
    def in_words(self) -> str:
        """What a person is told of it."""
        return f'I found no {self.entity or "match"} for "{self.query}".'


@dataclass(frozen=True)
class PendingConfirmation(ToolResult):
    """The tool did nothing yet: `preview` waits for the user's yes.

    A `user_prompt` of the tool's own is shown below the preview. The default one is said in the person's language.
    """

    kind: ClassVar[str] = "pending_confirmation"

    action: str = ""
    preview: str = ""
    user_prompt: str = "Reply 'yes' to confirm or 'no' to cancel."

    @property
    def own_prompt(self) -> str:
        """The tool's own words below the preview; "" where it gave none."""
        return "" if self.user_prompt == PendingConfirmation.user_prompt else self.user_prompt.strip()


def plain(value: Any) -> str:
    """A JSON value in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _plural(noun: str) -> str:
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
