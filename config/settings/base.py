"""Kinds of values that only the configuration has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator, BeforeValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from sayso.channels.base import Url, nothing_if_empty


def redis_address(url: str) -> str:
    """Return the URL as it is. Raises ValueError."""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("no URL of a Redis: write it as redis://host:6379/0, rediss://... or unix:///path")
    return url


def _without_user(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("holds a user: leave it out, and sign in with headers or auth")
    return url


#: The URL of a server whose secrets, if any, stand in keys of their own.
ServerUrl = Annotated[Url, AfterValidator(_without_user)]
OptionalServerUrl = Annotated[ServerUrl | None, BeforeValidator(nothing_if_empty)]
RedisUrl = Annotated[str, AfterValidator(redis_address)]
OptionalRedisUrl = Annotated[RedisUrl | None, BeforeValidator(nothing_if_empty)]

#: A namespace is the beginning of tool names, which have at most 64 characters.
NAMESPACE = r"^[A-Za-z0-9_-]{1,32}$"

#: The path of a value in the YAML, from the root.
Path_ = tuple[str | int, ...]


def refuse_values(section: type, kind: LiteralString, problems: Iterable[tuple[Path_, str, Any]]) -> None:
    """Raise pydantic.ValidationError where there are problems: each is a path below the section, a text and a value.

    Each is reported with the line of its own value.
    """
    errors = [
        InitErrorDetails(type=PydanticCustomError(kind, "{problem}", {"problem": text}), loc=path, input=value)
        for path, text, value in problems
    ]
    if errors:
        raise ValidationError.from_exception_data(section.__name__, errors)
