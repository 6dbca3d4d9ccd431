"""The command `sayso chat`: talk to a bot in the terminal."""

from __future__ import annotations

import io
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from sayso.config.wiring.observability import set_up_logs
from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, pass_options
from sayso.ops.cli.process_options import log_options


@click.command(cls=SaysoCommand, examples=["sayso chat", "sayso chat shop-wa -c bot.yaml"])
@click.argument("channel", required=False)
@log_options
@pass_options
def chat(options: Options, channel: str | None) -> None:
    """Talk to the bot in this terminal; nothing else has to run.

    CHANNEL is the channel whose tools and policy are used, by default the first one.
    """
    # Imported here, so that `sayso --help` is quick.
    from sayso.channels.console.terminal import Terminal
    from sayso.channels.media_store import LocalMediaStore
    from sayso.config.settings.loader import load_for_terminal
    from sayso.config.wiring.agents import terminal_agent

    # INFO lines would stand between the lines of the conversation.
    set_up_logs(default="warning")
    with clear_errors():
        # This command starts a bot, so it does not take the file of a bot that already runs.
        file = options.file(prefer_running=False)
        # The chosen channel is the only one in these settings.
        settings = load_for_terminal(file, channel)

    with ExitStack() as stack:
        # Files that tools make are stored in this folder while the conversation lasts. Those of
        # replies are copied to `chat` in the data folder, where the person finds them afterwards.
        media_folder = stack.enter_context(TemporaryDirectory(prefix="sayso-chat-"))
        # The terminal reads them from the folder. Key and address would be those of links to files,
        # which only platforms use.
        files = LocalMediaStore(Path(media_folder), keys=["unused"], public_url="")
        bot = terminal_agent(
            settings,
            data=options.data,
            media=files,
            report_problem=lambda problem: click.echo(problem, err=True),
        )
        # Entering it loads the tools, which may fail; the call above does nothing yet.
        with clear_errors():
            agent = stack.enter_context(bot)

        # A byte in a pipe that is not UTF-8 must not end the conversation.
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")

        terminal = Terminal(
            folder=options.data / "chat",
            read_file=files.read,
            print_text=click.echo,
            styled=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        )
        terminal.talk(sys.stdin, agent.take)
