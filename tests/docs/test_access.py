"""docs/how-to/people-and-access.md: its configuration is valid and its rules hold, and every key has a line."""

from __future__ import annotations

import re
from pathlib import Path

from sayso.channels.types import Conversation, Turn
from sayso.config.settings.channels import AccessSettings
from sayso.config.settings.loader import load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.access import rules_of
from sayso.config.wiring.people import people_config
from sayso.infra.concurrency import run_sync
from sayso.ops.checks.describe import describe
from sayso.ops.cli.people import people
from sayso.pending.approvals.directory import ConfiguredDirectory
from sayso.workers.access import Admitted, Ignored, UnknownSender
from tests.docs.pages import part

PAGE = part("people-and-access.md")
SECRETS = dict.fromkeys(re.findall(r"\$\{(\w+)\}", PAGE), "s")


BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def settings(folder: Path, block: str = BLOCKS[0]) -> Settings:
    """The first configuration of the page, or another one."""
    (folder / "sayso.yaml").write_text(block)
    return load_settings(folder / "sayso.yaml", SECRETS)


def turn(channel: str, user: str, chat: str) -> Turn:
    """Return a message of a user."""
    return Turn("e1", Conversation(channel, chat), user, "hi")


def test_the_people_of_the_page_are_found_by_each_account(tmp_path: Path) -> None:
    """Ada is one person on both channels."""
    block = next(each for each in BLOCKS if "people:" in each)
    directory = ConfiguredDirectory(people_config(settings(tmp_path, block)), {})
    for channel, user_id in (("team", "U0ADA"), ("customers", "whatsapp:+4915100000042")):
        person = run_sync(directory.person_of(channel, [user_id]))
        assert (person.name, person.roles) == ("ada", {"manager"})


def test_the_roles_of_the_page_come_from_groups(tmp_path: Path) -> None:
    """One on each platform."""
    block = next(each for each in BLOCKS if "groups:\n" in each)
    groups = people_config(settings(tmp_path, block)).groups
    assert [each.channel for each in groups["manager"]] == ["team", "desk"]


def test_the_configuration_of_the_page_is_valid(tmp_path: Path) -> None:
    """As `sayso check` checks it."""
    said = str(describe(settings(tmp_path)))
    assert "talks to: 2 named and those an operator approves; only in 3 chats" in said
    assert (
        "talks to: 1 named and those an operator approves, by code; never to 1; 20 turns a minute each; as customer"
        in said
    )


def test_the_rules_of_the_page_hold(tmp_path: Path) -> None:
    """What it says of the people it names."""
    team, customers = (rules_of(channel) for channel in settings(tmp_path).channels.values())
    assert isinstance(team.judge(turn("team", "U0ADA", "C0OPS")), Admitted)
    assert team.judge(turn("team", "U0EVE", "C0OPS")) == UnknownSender()
    assert team.judge(turn("team", "U0ADA", "C0FUN")) == Ignored("chat")
    boss, spam = "whatsapp:+4915100000042", "whatsapp:+4915100000666"
    assert isinstance(customers.judge(turn("customers", boss, boss)), Admitted)
    assert customers.judge(turn("customers", "whatsapp:DE.1", spam), "approved") == Ignored(
        "blocked"
    )


def test_every_key_and_command_has_a_line() -> None:
    """On the page."""
    assert [key for key in AccessSettings.model_fields if f"| `{key}` |" not in PAGE] == []
    assert [name for name in people.commands if f"sayso people {name}" not in PAGE] == []
