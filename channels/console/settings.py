"""The settings of a console channel."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sayso.channels.base import OptionalSecret, PlatformSettings


class ConsoleSettings(PlatformSettings):
    """The chat page in the browser. The channel cannot be named `events`, `poll` or `static`."""

    has_page: ClassVar[bool] = True
    #: They are paths of its pages, below /console.
    reserved_names: ClassVar[frozenset[str]] = frozenset({"events", "poll", "static"})

    platform: Literal["console"]
    """The browser page. Example: `console`."""
    password: OptionalSecret = None
    """The password of the page. Without it the page serves this machine only, and `public_url` must be a local address.
    Example: `${CONSOLE_PASSWORD}`.
    """
    title: str = "Sayso"
    """The title of the page. Example: `My bot`."""
    suggestions: list[str] = Field(default=[])
    """Messages that the page offers to a user who has not written yet. Example:
    `[sales chart, list invoices]`.
    """

    @property
    def is_open_page(self) -> bool:
        """Whether the page has no password."""
        return not self.password
