"""What adapters are built from in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sayso.channels.base import AdapterDeps
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.console.store import Feed, Logins
from tests.memory_stores import MemoryChats, MemoryLogins


def adapter_deps(
    media: Any,
    *,
    cache: Any = None,
    identities: Any = None,
    keys: Sequence[str] = ("key",),
    public_url: str = "http://127.0.0.1:9",
) -> AdapterDeps:
    """What an adapter may use. There is no Redis, and nothing answers at the public URL."""
    nothing: Any = None
    return AdapterDeps(
        cache=cache,
        identities=identities,
        media=media,
        keys=keys,
        public_url=public_url,
        redis=nothing,
        connect=lambda _: nothing,
        key_prefix="x:",
    )


def console_channel(
    name: str,
    *,
    feed: Feed,
    media: Any,
    keys: Sequence[str],
    logins: Logins | None = None,
    **settings: Any,
) -> ConsoleChannel:
    """A console that stores in this process."""
    told = ConsoleSettings(platform="console", **settings)
    return ConsoleChannel(
        name,
        told,
        adapter_deps(media, keys=keys),
        feed=feed,
        chats=MemoryChats(),
        logins=logins or MemoryLogins(),
    )
