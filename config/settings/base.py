"""The base class of all sections of the YAML, and the kinds of values in them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr


def _not_blank(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("is empty: give it a value")
    return secret


def _not_none(secret: object) -> object:
    if secret is None:
        raise ValueError("is empty: give it a value, or leave the key out")
    return secret


def _not_boolean(value: object) -> object:
    """Refuse true and false: to Python, and so to pydantic, true is the number 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def nothing_if_empty(value: object) -> object:
    """Return None for an empty text: a key with `${NAME:-}` counts as left out while the variable is not set."""
    return None if value == "" else value


def web_address(url: str) -> str:
    """Return a URL without a slash at its end. Raises ValueError for a malformed one."""
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
        raise ValueError("no URL: write it as https://bots.example.com")
    return url.rstrip("/")


def redis_address(url: str) -> str:
    """Return the URL of a Redis unchanged. Raises ValueError for any other."""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("no URL of a Redis: write it as redis://host:6379/0, rediss://... or unix:///path")
    return url


def _without_user(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("holds a user: leave it out, and sign in with headers or auth")
    return url


Secret = Annotated[SecretStr, AfterValidator(_not_blank)]


#: A secret that may be left out, but not be empty: an empty variable would silently remove a password.
OptionalSecret = Annotated[Secret | None, BeforeValidator(_not_none)]


Url = Annotated[str, AfterValidator(web_address)]


#: The URL of a server. Its secrets, if any, are keys of their own.
ServerUrl = Annotated[Url, AfterValidator(_without_user)]


OptionalServerUrl = Annotated[ServerUrl | None, BeforeValidator(nothing_if_empty)]


RedisUrl = Annotated[str, AfterValidator(redis_address)]


OptionalRedisUrl = Annotated[RedisUrl | None, BeforeValidator(nothing_if_empty)]


OptionalUrl = Annotated[Url | None, BeforeValidator(nothing_if_empty)]


NotBoolean = BeforeValidator(_not_boolean)


class Section(BaseModel):
    """A part of the YAML. Unknown keys are errors, and values never change after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


#: A namespace is the beginning of a tool's name, which has at most 64 characters.
NAMESPACE = r"^[A-Za-z0-9_-]{1,32}$"


Path_ = tuple[str | int, ...]
