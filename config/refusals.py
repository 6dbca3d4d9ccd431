"""Refusals: what an operator can cure, told in one clear message and exit code 1, never as a traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sayso.channels.redaction import redact

if TYPE_CHECKING:  # commands load only what they need
    from sayso.config.schema import Settings


def load(config: Path | None, data: Path | None = None, *, without_secrets: bool = False) -> Settings:
    """The settings of a file, of the bot that runs on a data folder, or of the default file. Ends the program when they
    cannot be used.
    """
    from sayso.config.loader import ConfigError, default_config, load_settings
    from sayso.config.running import find_config

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

        from sayso.config.address import AddressUnusable
        from sayso.config.embedded import EmbeddedRedisError
        from sayso.config.loader import ConfigError
        from sayso.pending.audit.ledger import LedgerUnusable
        from sayso.workers.redis import Halted, RedisUnfit

        if isinstance(exc, ConfigError | RedisUnfit | AddressUnusable | EmbeddedRedisError | LedgerUnusable | Halted):
            fail(str(exc))
        if isinstance(exc, RedisError):
            fail(f"Redis does not answer ({exc}): check REDIS_URL, or run `sayso up`, which brings its own")


def fail(message: str) -> NoReturn:
    """Say why, and end the program."""
    click.echo(redact(f"Error: {message}"), err=True)
    sys.exit(1)
