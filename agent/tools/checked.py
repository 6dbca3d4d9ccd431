"""Checked: the arguments of one call, as its tool has read them, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Checked:
    """Lives as long as its call. `values` are what the function is called with, once: it may change them."""

    __slots__ = ("_json", "_write", "values")

    def __init__(self, values: dict[str, Any], write: Callable[[], dict[str, Any]]) -> None:
        self.values = values
        self._write = write
        self._json: dict[str, Any] | None = None

    @property
    def json(self) -> dict[str, Any]:
        """The same as exact JSON values; ask before the call begins. Raises ToolParameterError."""
        if self._json is None:
            self._json = self._write()
        return self._json
