"""What all commands share: options, classes, the printing of results, and errors with a cure.

`-c/--config`, `--data`, `--json` and `--no-color` stand before or after the name of any command;
the last one given counts. Exit codes: 0 done, 1 a finding or a denial, 2 wrong usage, 3 cannot run.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sayso.infra.redaction import redact

if TYPE_CHECKING:
    from sayso.channels.setup import CheckResult
    from sayso.config.settings.schema import Settings
    from sayso.workers.data_loss.resume import Resumed

#: Exit codes. Wrong usage is click's 2.
FINDING = 1
CANNOT_RUN = 3
#: The data folder if neither --data nor SAYSO_DATA names one.
DEFAULT_DATA = Path(".sayso")


@dataclass(slots=True)
class Options:
    """The options that every command takes. One per invocation; `_save_option` fills it."""

    #: The file of --config, None where it was not given.
    config: Path | None = None
    #: The folder of --data, None where it was not given.
    data_option: Path | None = None
    as_json: bool = False
    no_color: bool = False

    @property
    def data(self) -> Path:
        """The data folder: of --data, of SAYSO_DATA, or `.sayso`."""
        return self.data_option or Path(os.environ.get("SAYSO_DATA") or DEFAULT_DATA)

    def file(self, *, prefer_running: bool = True) -> Path:
        """Return the configuration file: that of --config, else the default one.

        With `prefer_running` the file of a bot that runs on the data folder comes before the
        default. A command that asks about a bot wants that one; a command that starts a bot does
        not. Raises ConfigError without any file.
        """
        from sayso.config.settings.loader import default_config
        from sayso.ops.server.processes import find_config

        if prefer_running:
            return find_config(self.config, self.data)
        return self.config or default_config()

    def load(self, *, prefer_running: bool = True, without_secrets: bool = False) -> Settings:
        """Return the settings in the file that `file` returns. Exits where they cannot be used.

        With `without_secrets` no secret is looked up, so that it may be missing here.
        """
        from sayso.config.settings.loader import ConfigError, load_settings

        try:
            return load_settings(
                self.file(prefer_running=prefer_running), without_secrets=without_secrets
            )
        except ConfigError as exc:
            fail(str(exc))

    def say(self, line: str) -> None:
        """Print a line of progress, to stderr with --json."""
        click.echo(line, err=self.as_json)

    def new_folder(self, prefix: str) -> Path:
        """Create a separate folder for this run, and return it. Exits where that is impossible.

        It lies below the folder of --data, without that option below the temporary folder.
        """
        try:
            if self.data_option is not None:
                self.data_option.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=prefix, dir=self.data_option))
        except OSError as exc:
            parent = str(self.data_option or tempfile.gettempdir())
            fail(f"data folder {parent!r}: {exc.strerror}: give one you may write to with --data")

    def print(self, value: Any, lines: Iterable[str]) -> None:
        """Print a result: `value` with --json, else the lines. Exits where it cannot be written.

        A lone surrogate, which JSON can write and no encoding can hold, is printed as its escape.
        """
        if self.as_json:
            text = json.dumps(value, indent=2, ensure_ascii=False)
        else:
            text = "\n".join(lines)
        if not text:
            return

        printable = text.encode(errors="backslashreplace").decode()
        try:
            click.echo(printable)
        except BrokenPipeError:
            raise  # a reader such as `head` has closed the pipe: click exits quietly
        except OSError as exc:
            fail(f"the result cannot be written ({exc.strerror}): make room for it")


#: Passes the `Options` of the invocation to a command, as its first argument.
pass_options = click.make_pass_decorator(Options, ensure=True)


def _save_option(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Save an option that was given.

    Click calls this for the group first and for the command after it, so the last one counts.
    """
    if not value or parameter.name is None:
        return
    options = context.ensure_object(Options)
    setattr(options, parameter.name, value)

    if options.no_color:
        context.find_root().color = False
        # For the processes that a command starts, and the libraries it uses.
        os.environ["NO_COLOR"] = "1"


class SaysoCommand(click.Command):
    """A command with the common options. `examples` are command lines, printed below its help."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        path = click.Path(path_type=Path)
        shared: dict[str, Any] = {"expose_value": False, "callback": _save_option}
        # New objects for each command: click keeps state of a command in its options.
        self.params = [
            *self.params,
            click.Option(
                ["-c", "--config"],
                type=path,
                metavar="FILE",
                **shared,
                help="The YAML file.  [default: SAYSO_CONFIG, the bot that runs on the data folder, or ./sayso.yaml]",
            ),
            click.Option(
                ["--data", "data_option"],
                type=path,
                metavar="FOLDER",
                **shared,
                help="The folder for everything Sayso stores.  [default: SAYSO_DATA, or .sayso]",
            ),
            click.Option(
                ["--json", "as_json"], is_flag=True, **shared, help="Print the result as JSON."
            ),
            click.Option(
                ["--no-color"],
                is_flag=True,
                **shared,
                help="Print without colors, like NO_COLOR=1.",
            ),
        ]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below everything else."""
        if self.examples:
            heading = "Examples" if len(self.examples) > 1 else "Example"
            with formatter.section(heading):
                indent = " " * formatter.current_indent
                for example in self.examples:
                    formatter.write(f"{indent}{example}\n")
        super().format_epilog(ctx, formatter)


class SaysoGroup(SaysoCommand, click.Group):
    """A group of commands with the common options."""

    command_class = SaysoCommand

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command that is named. The error for an unknown one names the nearest."""
        from sayso.infra.spelling import did_you_mean

        name = args[0]
        # Completion in a shell parses resiliently: it must not fail on an unfinished name.
        is_unknown = not ctx.resilient_parsing and self.get_command(ctx, name) is None
        if is_unknown:
            hint = did_you_mean(name, self.list_commands(ctx))
            if hint:
                ctx.fail(f"No such command {name!r}: {hint}")
        return super().resolve_command(ctx, args)


#: Log events with these endings, such as `mcp.tool_left_out`, report what a command prints itself
#: with its line and cure.
_OWN_FINDINGS = ("_left_out", "_incomplete")


@contextmanager
def log_warnings_except_findings() -> Iterator[None]:
    """Log warnings to stderr, except those that the command prints itself as findings.

    A finding is a tool that is left out or incomplete (`_OWN_FINDINGS`). The commands that use this
    set up no logs. Python would print the bare names of events then.
    """
    from sayso.config.wiring.observability import EventFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter())
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not str(record.msg).endswith(_OWN_FINDINGS))
    logger = logging.getLogger("sayso")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Exit with one clear message for errors that an operator can cure.

    All other errors keep their traceback. Raises click.UsageError for an unknown channel.
    """
    from redis.exceptions import RedisError

    from sayso.channels.setup import SetupError
    from sayso.config.settings.loader import ConfigError, UnknownChannel
    from sayso.infra.metrics_endpoint import MetricsUnusable
    from sayso.infra.records import OtherVersion
    from sayso.infra.redis.checks import explain
    from sayso.infra.redis.client import RedisUnfit
    from sayso.infra.redis.connections import Halted
    from sayso.infra.redis.sentinel import NoPrimary, PrimarySilent
    from sayso.ops.server.embedded_redis import EmbeddedRedisError
    from sayso.ops.server.processes import AddressUnusable
    from sayso.pending.audit.ledger import LedgerUnusable
    from sayso.workers.deliveries import NotRepeatable
    from sayso.workers.erasure import ErasureBusy

    try:
        yield
    except UnknownChannel as exc:
        raise click.UsageError(str(exc)) from None
    except (
        AddressUnusable,
        ConfigError,
        EmbeddedRedisError,
        ErasureBusy,
        Halted,
        LedgerUnusable,
        MetricsUnusable,
        NotRepeatable,
        OtherVersion,
        RedisUnfit,
        SetupError,
    ) as exc:
        fail(str(exc))
    except (NoPrimary, PrimarySilent) as exc:
        fail(f"no Redis: {exc}")
    except RedisError as exc:
        fail(str(explain(exc)))


def fail(message: str) -> NoReturn:
    """Print why the command cannot run, and exit with 3."""
    click.echo(redact(f"Error: {message}"), err=True)
    sys.exit(CANNOT_RUN)


def exit_on_failure(results: Iterable[CheckResult]) -> None:
    """Exit with 1 where a check failed; warnings do not count."""
    if any(result.state == "fail" for result in results):
        sys.exit(FINDING)


def check_channel(settings: Settings, channel: str) -> None:
    """Raise click.UsageError unless the configuration has a channel of this name."""
    from sayso.infra.spelling import did_you_mean

    if channel not in settings.channels:
        hint = did_you_mean(channel, settings.channels, "{} ")
        raise click.UsageError(
            f"no channel {channel!r}; {hint}known: {', '.join(settings.channels)}"
        )


def check_id(settings: Settings, channel: str, user_id: str) -> None:
    """Raise click.UsageError for an id that no person of the channel can have.

    The command would do nothing, or answer for a person who does not exist.
    """
    problem = settings.channels[channel].problem_with_id(user_id)
    if problem:
        raise click.UsageError(f"{user_id!r} {problem}")


def with_noun(number: int, one: str, many: str) -> str:
    """Return a number with its noun, such as `2 entries`. `one` is the singular."""
    noun = one if number == 1 else many
    return f"{number:,} {noun}"


def resumed_parts(resumed: Resumed) -> str:
    """Return as a sentence what was changed in a Redis before it went on after a loss of data."""
    conversations = with_noun(
        resumed.conversations, "conversation has new numbers", "conversations have new numbers"
    )
    replies = with_noun(resumed.replies, "waiting reply goes out", "waiting replies go out")
    actions = with_noun(resumed.actions, "open question is closed", "open questions are closed")
    return f"{conversations}, {replies} marked as perhaps repeated, {actions}; what they asked may have run"
