"""The settings of a console channel: the chat page in the browser.

The docstrings of the fields are printed in the reference of the YAML.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from sayso.channels.base import OptionalSecret, PlatformSettings


def _a_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is not a network ({exc}): write it as in 172.18.0.0/16, or 10.0.0.5"
        ) from None
    return text


class ConsoleSettings(PlatformSettings):
    """The chat page in the browser. The channel cannot be named `events`, `poll` or `static`."""

    has_page: ClassVar[bool] = True
    #: They are paths of its pages, below /console.
    reserved_names: ClassVar[frozenset[str]] = frozenset({"events", "poll", "static"})

    platform: Literal["console"]
    """The browser page. Example: `console`."""
    password: OptionalSecret = None
    """The password of the page. Without it the page serves this machine only, and `public_url` must
    be a local address. Example: `${CONSOLE_PASSWORD}`.
    """
    title: str = "Sayso"
    """The title of the page. Example: `My bot`."""
    suggestions: list[str] = Field(default=[])
    """Messages that the page offers to a user who has not written yet. Example:
    `[sales chart, list invoices]`.
    """
    steps: bool = True
    """Whether the page shows which tools a turn calls: their names, how long they run and how they
    end, never their arguments. Example: `false`.
    """
    trusted_proxies: list[Annotated[str, AfterValidator(_a_network)]] = Field(default=[])
    """Addresses and networks of reverse proxies on other machines or in other containers. The last
    address in their `X-Forwarded-For` is the client's, for which wrong passwords count. Proxies on
    the same machine always count. Example: `[172.16.0.0/12]`.
    """

    @property
    def is_open_page(self) -> bool:
        """Whether the page has no password."""
        return not self.password
