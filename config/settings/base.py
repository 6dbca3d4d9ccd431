"""Section: a part of the YAML, and the kinds of values that sections have."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr


def _not_blank(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("is empty: give it a value")
    return secret


def _not_nothing(secret: object) -> object:
    if secret is None:
        raise ValueError("is empty: give it a value, or leave the key out")
    return secret


def _no_boolean(value: object) -> object:
    """To Python, and so to pydantic, true is the number 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def nothing_if_empty(value: object) -> object:
    """`${NAME:-}` may come to nothing: the key is then as good as left out."""
    return None if value == "" else value


def web_address(url: str) -> str:
    """The URL without a slash at its end. Raises ValueError."""
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
        raise ValueError("no URL: write it as https://bots.example.com")
    return url.rstrip("/")


def redis_address(url: str) -> str:
    """The URL as it is. Raises ValueError."""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("no URL of a Redis: write it as redis://host:6379/0, rediss://... or unix:///path")
    return url


def _without_user(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("holds a user: leave it out, and sign in with headers or auth")
    return url


Secret = Annotated[SecretStr, AfterValidator(_not_blank)]


#: A secret that may be left out, but not left empty: a variable that is not filled would turn a lock into an open door.
OptionalSecret = Annotated[Secret | None, BeforeValidator(_not_nothing)]


Url = Annotated[str, AfterValidator(web_address)]


#: The URL of a server whose secrets, if any, stand beside it.
ServerUrl = Annotated[Url, AfterValidator(_without_user)]


OptionalServerUrl = Annotated[ServerUrl | None, BeforeValidator(nothing_if_empty)]


RedisUrl = Annotated[str, AfterValidator(redis_address)]


OptionalRedisUrl = Annotated[RedisUrl | None, BeforeValidator(nothing_if_empty)]


OptionalUrl = Annotated[Url | None, BeforeValidator(nothing_if_empty)]


NotBoolean = BeforeValidator(_no_boolean)


class Section(BaseModel):
    """A part of the YAML: unknown keys are errors, nothing changes after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


#: Namespaces are the beginnings of tools' names, which have 64 characters at most.
NAMESPACE = r"^[A-Za-z0-9_-]{1,32}$"


Path_ = tuple[str | int, ...]
