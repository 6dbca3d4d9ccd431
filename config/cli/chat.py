"""The command `sayso chat`: talk to a bot in the terminal."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import ExitStack

import click

from sayso.config.cli.options import Options, SaysoCommand, pass_options
from sayso.config.cli.output import clear_errors


@click.command(cls=SaysoCommand, examples=["sayso chat", "sayso chat shop-wa -c bot.yaml"])
@click.argument("channel", required=False)
@pass_options
def chat(options: Options, channel: str | None) -> None:
    """Talk to the bot in this terminal; nothing else has to run.

    CHANNEL is the channel whose tools and policy are used, by default the first one.
    """
    from sayso.channels.console.terminal import Terminal, TerminalChannel
    from sayso.channels.storage.media import MemoryMediaStore
    from sayso.channels.types import random_id
    from sayso.config.settings.loader import default_config, load_for_terminal
    from sayso.config.wiring.agents import terminal_agent
    from sayso.config.wiring.observability import set_up_logs

    set_up_logs(logging.WARNING)  # INFO lines would stand between the lines of the conversation
    with clear_errors():
        settings = load_for_terminal(options.config or default_config(), channel)
    files, secret = MemoryMediaStore(), random_id()
    bot = terminal_agent(
        settings,
        data=options.data,
        channel=channel,
        media=files,
        report_problem=lambda problem: click.echo(problem, err=True),
    )
    with ExitStack() as stack:
        with clear_errors():
            agent = stack.enter_context(bot)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a byte in a pipe that is no UTF-8 must not end the conversation
        terminal = TerminalChannel(
            "terminal", folder=options.data / "chat", read_file=files.read, print_text=click.echo, secret=secret,
            styled=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        )  # fmt: skip
        Terminal(terminal, secret, agent.take).run(sys.stdin, click.echo)
