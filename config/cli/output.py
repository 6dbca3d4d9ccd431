"""What commands print: results as text or JSON, and errors that name the cure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sayso.channels.redaction import redact
from sayso.config.cli.options import CANNOT_RUN, Options

if TYPE_CHECKING:
    from sayso.channels.setup import CheckResult
    from sayso.config.settings.schema import Settings


def load(config: Path | None, data: Path | None = None, *, without_secrets: bool = False) -> Settings:
    """Return the settings of a file; without one, of the bot that runs on the data folder, else of the default file.

    Exits where the settings cannot be used.
    """
    from sayso.config.server.processes import find_config
    from sayso.config.settings.loader import ConfigError, default_config, load_settings

    try:
        file = find_config(config, data) if data else config or default_config()
        return load_settings(file, without_secrets=without_secrets)
    except ConfigError as exc:
        fail(str(exc))


@contextmanager
def clear_errors() -> Iterator[None]:
    """Exit with one clear message for errors that an operator can cure; all others keep their traceback."""
    from redis.exceptions import RedisError

    from sayso.channels.setup import SetupError
    from sayso.config.server.embedded_redis import EmbeddedRedisError
    from sayso.config.server.processes import AddressUnusable
    from sayso.config.settings.loader import ConfigError, UnknownChannel
    from sayso.pending.audit.ledger import LedgerUnusable
    from sayso.pending.redis.client import RedisUnfit
    from sayso.pending.redis.scripts import Halted

    try:
        yield
    except UnknownChannel as exc:
        raise click.UsageError(str(exc)) from None
    except (ConfigError, RedisUnfit, AddressUnusable, EmbeddedRedisError, LedgerUnusable, Halted, SetupError) as exc:
        fail(str(exc))
    except RedisError as exc:
        fail(f"Redis does not answer ({exc}): check REDIS_URL, or run `sayso up`, which brings its own")


def fail(message: str) -> NoReturn:
    """Print why the command cannot run, and exit with 3."""
    click.echo(redact(f"Error: {message}"), err=True)
    sys.exit(CANNOT_RUN)


def print_result(options: Options, value: Any, lines: Iterable[str]) -> None:
    """Print a result: `value` with --json, else the lines.

    A lone surrogate, which JSON arguments can spell and no encoding can hold, is printed as its escape.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False) if options.as_json else "\n".join(lines)
    if text:
        click.echo(text.encode(errors="backslashreplace").decode())


def print_checks(options: Options, results: list[CheckResult]) -> None:
    """Print what was checked, one line each. Exits with 1 where anything failed; warnings do not count."""
    from dataclasses import asdict

    print_result(options, [asdict(result) for result in results], map(str, results))
    if any(result.state == "fail" for result in results):
        sys.exit(1)


def check_channel(settings: Settings, channel: str) -> None:
    """Raise click.UsageError unless the configuration has a channel of this name."""
    if channel not in settings.channels:
        raise click.UsageError(f"no channel {channel!r}; known: {', '.join(settings.channels)}")


def one_line(text: str, width: int) -> str:
    """Return a text as one line of at most `width` characters, without secrets and without terminal control codes."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in redact(text)).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun, such as `2 entries`."""
    return f"{number:,} {one if number == 1 else many}"
