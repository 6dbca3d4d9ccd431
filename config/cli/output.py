"""Errors and rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sayso.channels.redaction import redact

if TYPE_CHECKING:
    from sayso.config.settings.schema import Settings


def load(config: Path | None, data: Path | None = None, *, without_secrets: bool = False) -> Settings:
    """The settings of a file, of the bot that runs on a data folder, or of the default file. Ends the program when they
    cannot be used.
    """
    from sayso.config.server.processes import find_config
    from sayso.config.settings.loader import ConfigError, default_config, load_settings

    try:
        file = find_config(config, data) if data else config or default_config()
        return load_settings(file, without_secrets=without_secrets)
    except ConfigError as exc:
        fail(str(exc))


class clear_errors:  # noqa: N801  # used like a function
    """Turns what an operator can cure into one clear message; anything else keeps its traceback."""

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        from redis.exceptions import RedisError

        from sayso.config.server.embedded_redis import EmbeddedRedisError
        from sayso.config.server.processes import AddressUnusable
        from sayso.config.settings.loader import ConfigError
        from sayso.pending.audit.ledger import LedgerUnusable
        from sayso.pending.redis.client import RedisUnfit
        from sayso.pending.redis.scripts import Halted

        if isinstance(exc, ConfigError | RedisUnfit | AddressUnusable | EmbeddedRedisError | LedgerUnusable | Halted):
            fail(str(exc))
        if isinstance(exc, RedisError):
            fail(f"Redis does not answer ({exc}): check REDIS_URL, or run `sayso up`, which brings its own")


def fail(message: str) -> NoReturn:
    """Say why, and end the program."""
    click.echo(redact(f"Error: {message}"), err=True)
    sys.exit(1)


def plain(words: str, width: int) -> str:
    """The words on one line of at most so many characters, and nothing that would command a terminal."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in redact(words)).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
