"""Installed: a value that a context variable has for the length of a block."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class installed(Generic[T]):  # noqa: N801  # used like a function
    """`with installed(variable, value):` inside, also in tasks and threads started there, the variable is this value.

    No `contextmanager`, which takes four times as long: each call of a tool is inside of six.
    """

    __slots__ = ("_token", "_value", "_variable")
    _token: Token[Any]

    def __init__(self, variable: ContextVar[Any], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)
