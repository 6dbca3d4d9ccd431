"""Approvals that nobody could give are refused at the start, each with its line and its cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.config.settings.loader import ConfigError, load_for_terminal, load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.deciders import DecidersOfYaml, check_deciders

#: A channel `shop` with one rule, whose keys follow. Clerks and managers are in `people`; `boss`
#: is the role of a user of `shop`, and only a group of Slack has the role `director`.
YAML = """\
people:
  ana: {accounts: {shop: ana, team: U0ANA}, roles: [manager]}
  ben: {accounts: {team: U0BEN}, roles: [Manager]}
  cleo: {accounts: {shop: cleo}, roles: [clerk]}
  dan: {accounts: {}, roles: [lost]}
roles:
  director: {groups: [{channel: team, group: S0DIRECT}]}
channels:
  shop:
    platform: console
    access: {roles: {allowed: {boss: ["*"], guest: ["*"]}, users: {eve: boss}, default: guest}}
    policy:
      approval:
        refund_*: {%s}
  team: {platform: slack, bot_token: "${SECRET}", signing_secret: "${SECRET}"}
"""
REFUND = "channels.shop.policy.approval.refund_*"


@pytest.fixture
def settings_of(tmp_path: Path):
    """Return a function that reads a file with these keys of the rule."""

    def read(keys: str) -> Settings:
        file = tmp_path / "sayso.yaml"
        file.write_text(YAML % keys)
        return load_settings(file, {"SECRET": "s3cret"})

    return read


IMPOSSIBLE = {
    "unknown person": (
        "by: {people: [ana, benn]}",
        f":14:39: {REFUND}.by.people: 'benn' is not in people, did you mean 'ben'?; known: ana, ben, cleo, dan",
    ),
    "person without an account there": (
        "by: {people: [ana, cleo]}, on: team",
        f":14:39: {REFUND}.by.people: 'cleo' has no account on team: add it to people.cleo.accounts",
    ),
    "person without any account": (
        "by: {people: [dan]}",
        f":14:34: {REFUND}.by.people: 'dan' has no account on any channel: add it to people.dan.accounts",
    ),
    "role of nobody": (
        "by: {role: [manager, manger]}",
        f":14:41: {REFUND}.by.role: nobody has the role 'manger', did you mean 'manager'?: give it to somebody in "
        "people, to a group in roles, or to a user in access.roles of a channel",
    ),
    "short text of a role of nobody": (
        "by: role finance", f":14:20: {REFUND}.by.role: nobody has the role 'finance': give it to",
    ),
    "role by default": ("by: role guest", f"{REFUND}.by.role: nobody has the role 'guest': give it to"),
    "unknown person later": (
        "by: role manager, escalate: {after: 1h, by: {people: [zoe]}}",
        f"{REFUND}.escalate.by.people: 'zoe' is not in people; known: ana, ben, cleo, dan",
    ),
    "too few with the role": (
        "by: role manager, need: 3",
        f":14:38: {REFUND}: 3 people must agree, and only 2 may decide: ana, ben",
    ),
    "too few later, too": (
        "by: role manager, need: 4, escalate: {after: 1h, by: role boss}",
        f"{REFUND}: 4 people must agree, and only 3 may decide: ana, ben, shop:eve",
    ),
    "too few on the channel": (
        "by: role manager, need: 2, on: shop",
        f"{REFUND}: 2 people with an account on shop must agree, and only 1 may decide: ana",
    ),
    "nobody on the channel": (
        "by: role clerk, on: team",
        f"{REFUND}: 1 person with an account on team must agree, and none of those who may decide can be asked",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_approval_that_nobody_can_give_is_refused(settings_of, name):
    """Its actions would only expire. The error has the line, the names that exist, and the cure."""
    keys, problem = IMPOSSIBLE[name]
    with pytest.raises(ConfigError) as caught:
        check_deciders(settings_of(keys))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        "by: role manager, need: 2",
        "by: role MANAGER",
        "by: role boss",
        "by: role director, need: 3",
        "by: {role: [manager, director]}, need: 5",
        "by: role manager, need: 3, escalate: {after: 1h, by: role boss}",
        "by: anyone_else, need: 5",
        "by: asker",
        "by: {people: [ana, ben]}, on: {channel: team, chat: C0123ABCD}, need: 2",
    ],
)
def test_approval_that_can_be_given_is_accepted(settings_of, keys):
    """Who is in a group or in a conversation is not known before the question."""
    check_deciders(settings_of(keys))


def test_process_does_not_start_with_such_a_rule(settings_of, tmp_path):
    """The first question would be too late to find out."""
    with pytest.raises(ConfigError, match="nobody has the role 'finance'"):
        bootstrap(settings_of("by: role finance"), data=tmp_path)


def test_terminal_has_no_other_people_and_starts(tmp_path):
    """`sayso chat` leaves out the other channels, and with them the accounts of people there."""
    file = tmp_path / "sayso.yaml"
    file.write_text(YAML % "by: {people: [ben]}, on: team")
    assert load_for_terminal(file, "shop", {}).channels["shop"].policy


def test_rule_that_fails_when_a_decider_asks_is_worth_a_warning(settings_of):
    """The person who asks cannot decide. Ben cannot ask on this channel, and so is not named."""
    (warning,) = DecidersOfYaml(settings_of("by: role manager, need: 2")).warnings()
    assert warning.endswith(
        f":14:38: warning: {REFUND}: 2 people must agree, and only 2 may decide, so a call that "
        "ana asks for can never be approved: let one more person decide"
    )


@pytest.mark.parametrize(
    "keys",
    [
        "by: role manager",
        "by: {people: [ben]}",
        "by: role director, need: 2",
        "by: anyone_else",
        "by: asker",
        "by: role manager, need: 2, escalate: {after: 1h, by: role boss}",
    ],
)
def test_rule_with_people_to_spare_is_worth_no_warning(settings_of, keys):
    """Enough others may decide, or those who may cannot ask on the channel."""
    assert list(DecidersOfYaml(settings_of(keys)).warnings()) == []
