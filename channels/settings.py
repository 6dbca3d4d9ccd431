"""The settings that a platform needs: base classes of its own model, and the kinds of values in the YAML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from sayso.channels.i18n.texts import LANGUAGES


class Section(BaseModel):
    """A part of the YAML: unknown keys are errors, and nothing changes after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def nothing_if_empty(value: object) -> object:
    """Return None for "": `${NAME:-}` may yield an empty text, and the key then counts as left out."""
    return None if value == "" else value


def web_address(url: str) -> str:
    """Return the URL without a slash at its end. Raises ValueError."""
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
        raise ValueError("no URL: write it as https://bots.example.com")
    return url.rstrip("/")


def _not_blank(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("is empty: give it a value")
    return secret


def _not_none(secret: object) -> object:
    if secret is None:
        raise ValueError("is empty: give it a value, or leave the key out")
    return secret


def _not_boolean(value: object) -> object:
    if isinstance(value, bool):  # in Python, True is the number 1
        raise ValueError("must be a number")
    return value


def _shipped(language: str) -> str:
    if language not in LANGUAGES:
        raise ValueError(f"no table of yes and no for this language: choose from {', '.join(LANGUAGES)}")
    return language


#: A secret. It comes from the environment or a file, never in clear.
Secret = Annotated[SecretStr, AfterValidator(_not_blank)]
#: A secret that may be left out but not empty: a variable that is not set must not turn protection off.
OptionalSecret = Annotated[Secret | None, BeforeValidator(_not_none)]
Url = Annotated[str, AfterValidator(web_address)]
OptionalUrl = Annotated[Url | None, BeforeValidator(nothing_if_empty)]
#: Put this on a number, so that `true` is refused.
NotBoolean = BeforeValidator(_not_boolean)
Language = Annotated[str, AfterValidator(_shipped)]


class PlatformSettings(Section):
    """What a platform may read of its channel's settings. Each platform has a subclass with its own keys.

    The configuration adds the keys that concern no platform, such as `tools` and `policy`.
    """

    #: Whether user ids are phone numbers, with or without a prefix such as `whatsapp:`.
    has_phone_numbers: ClassVar[bool] = False
    #: Whether people use the channel on a web page of ours, at /console/<name>.
    has_page: ClassVar[bool] = False
    #: Names that a channel of the platform cannot have.
    reserved_names: ClassVar[frozenset[str]] = frozenset()
    #: Whether the platform can be told to drop the updates that wait there.
    can_drop_updates: ClassVar[bool] = False

    platform: str
    """The platform: `whatsapp`, `telegram`, `slack`, `console`, or one that an installed distribution brings. Example:
    `telegram`.
    """
    languages: list[Language] = Field(default=list(LANGUAGES), min_length=1)
    """The languages in which a yes or no is read. Name yours: some words mean yes in one language and something else in
    another, and then decide nothing in either. Example: `[de, en]`.
    """
    language: Annotated[Language | None, BeforeValidator(nothing_if_empty)] = None
    """The language for people of whom nothing is known yet. Everybody else is answered in the language they write.
    Without it: English, or the first of `languages`. Example: `de`.
    """
    commands: bool = True
    """Whether /help, /tools, /status, /whoami and /reset are answered without the model. /stop always is. Example:
    `false`.
    """

    @model_validator(mode="after")
    def _language_is_among_languages(self) -> Self:
        if self.language and self.language not in self.languages:
            raise ValueError(f"language is {self.language!r}: it must be one of languages, {', '.join(self.languages)}")
        return self

    @property
    def speaks(self) -> str:
        """The language for people whose language is unknown: `language`, else English, else the first."""
        return self.language or ("en" if "en" in self.languages else self.languages[0])

    @property
    def account_id(self) -> str:
        """What tells the channel's account from another one. It stays the same when a token is renewed."""
        return ""

    @property
    def polls(self) -> bool:
        """Whether we ask the platform for what people write, instead of getting webhooks."""
        return False

    @property
    def update_source(self) -> str:
        """The queue of updates that two polled channels would take from each other; "" if there is none."""
        return ""

    @property
    def needs_public_url(self) -> bool:
        """Whether a server outside this network must reach the bot."""
        return not (self.polls or self.has_page)

    @property
    def is_open_page(self) -> bool:
        """Whether the channel is a web page that everybody who reaches it may use."""
        return False

    def user_ids(self, channel: str, user: str, get_note: Callable[[str], str | None]) -> tuple[str, ...]:
        """Return all ids under which a person's turns may be stored. `get_note` reads the shared cache."""
        return (user,)


class VendorSettings(PlatformSettings):
    """A platform behind a vendor's HTTP API."""

    api_url: OptionalUrl = None
    """Another server in the vendor's place. Example: `http://127.0.0.1:8081`."""

    @property
    def needs_public_url(self) -> bool:
        """Whether a server outside this network must reach the bot. One at `api_url` may be on this network."""
        return not (self.polls or self.api_url)
