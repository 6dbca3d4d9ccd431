"""The `sayso` command. Each group of commands has a module of its own; `config.cli.options` has the common grammar."""

from __future__ import annotations

import click

# These modules import what a command needs inside the command: `sayso up` reacts to signals before it loads anything.
from sayso.config.cli.audit import audit
from sayso.config.cli.channel import channel
from sayso.config.cli.chat import chat
from sayso.config.cli.checks import check, doctor, explain
from sayso.config.cli.deliveries import deliveries
from sayso.config.cli.init import init
from sayso.config.cli.options import RootGroup
from sayso.config.cli.people import people
from sayso.config.cli.redis import redis
from sayso.config.cli.run import demo, poll, up, web, worker

#: Commands of earlier versions, and how they are spelled now.
_MOVED = {
    "webhook": "sayso channel connect|status|disconnect|recover|purge-media CHANNEL",
    "slack": "sayso channel manifest CHANNEL",
}


@click.group(
    cls=RootGroup,
    moved=_MOVED,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    examples=["sayso init mybot && cd mybot && sayso chat", "sayso demo", "sayso -c sayso.yaml check --json"],
    epilog="""\b
Completion of commands and options: add one of these lines to the file of your shell.
  ~/.bashrc                    eval "$(_SAYSO_COMPLETE=bash_source sayso)"
  ~/.zshrc                     eval "$(_SAYSO_COMPLETE=zsh_source sayso)"
  ~/.config/fish/config.fish   _SAYSO_COMPLETE=fish_source sayso | source

Exit codes: 0 done, 1 a finding or a denial, 2 wrong usage, 3 cannot run.
""",
)
@click.version_option(package_name="sayso")
def main() -> None:
    """Chat bots that act only on the user's say-so."""
    from sayso.config.wiring.observability import redact_uncaught

    redact_uncaught()


for _command in (
    init, demo, up, web, worker, poll, chat, check, explain, doctor, channel, people, deliveries, audit, redis
):  # fmt: skip
    main.add_command(_command)


if __name__ == "__main__":
    main()
