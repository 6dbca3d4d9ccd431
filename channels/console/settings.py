"""The settings of a console channel."""

from __future__ import annotations

from typing import ClassVar, Literal

from sayso.channels.settings import OptionalSecret, PlatformSettings

#: Names that a console cannot have: they are paths of its pages, below /console.
RESERVED_NAMES = frozenset({"events", "poll", "static"})


class ConsoleSettings(PlatformSettings):
    """The chat page in the browser. Without a password it serves this machine only."""

    has_page: ClassVar[bool] = True
    reserved_names: ClassVar[frozenset[str]] = RESERVED_NAMES

    platform: Literal["console"]
    password: OptionalSecret = None
    title: str = "Sayso"
    suggestions: list[str] = []  # noqa: RUF012  # pydantic copies defaults

    @property
    def is_open_page(self) -> bool:
        """Whether the page has no password."""
        return not self.password
