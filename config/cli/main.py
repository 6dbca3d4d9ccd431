"""The `sayso` command. Each group of commands has a module of its own; `config.cli.options` has the common grammar."""

from __future__ import annotations

import click

from sayso.config.cli.options import RootGroup

#: The module of each command, in `sayso.config.cli`. It is imported when the command is used.
_MODULES = {
    "audit": "audit",
    "channel": "channel",
    "chat": "chat",
    "check": "checks",
    "deliveries": "deliveries",
    "demo": "run",
    "doctor": "checks",
    "explain": "checks",
    "init": "init",
    "people": "people",
    "poll": "run",
    "redis": "redis",
    "up": "run",
    "web": "run",
    "worker": "run",
}
#: Commands of earlier versions, and how they are spelled now.
_MOVED = {
    "webhook": "sayso channel connect|status|disconnect|recover|purge-media CHANNEL",
    "slack": "sayso channel manifest CHANNEL",
}


@click.group(
    cls=RootGroup,
    modules=_MODULES,
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


if __name__ == "__main__":
    main()
