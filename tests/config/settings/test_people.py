"""`people` in the YAML: each mistake is reported at its line, with the cure."""

from __future__ import annotations

import pytest

from sayso.config.settings.loader import ConfigError, load_for_terminal, load_settings
from sayso.config.wiring.people import people_config
from sayso.pending.approvals.people import Account
from sayso.pending.approvals.role_groups import RoleGroup

CHANNELS = """channels:
  web: {platform: console}
  desk: {platform: telegram, token: "${TOKEN}", polling: true}
  wa:
    platform: whatsapp
    account_sid: ACx
    auth_token: ${TOKEN}
    from: whatsapp:+14155238886
    access: {roles: {allowed: {Staff: ['*']}, users: {+4915: STAFF}}}
"""
ENVIRON = {"TOKEN": "1:x"}

MISTAKES = {
    "channel": (
        "people:\n  ada: {accounts: {chat: U1}}\n",
        ":11:20: people.ada.accounts.chat: names no channel; known: web, desk, wa (it is 'chat')",
    ),
    "id": (
        "people:\n  ada: {accounts: {desk: '@ada'}}\n",
        ":11:20: people.ada.accounts.desk: is not an id of Telegram: write the number",
    ),
    "same account": (
        "people:\n  ada: {accounts: {wa: '+4915'}}\n  bob: {accounts: {wa: 'whatsapp:+4915'}}\n",
        ":12:20: people.bob.accounts.wa: is the account of ada, too: give each account to one",
    ),
    "name": (
        "people:\n  a b: {accounts: {}}\n",
        "people.a b: a name has 1 to 64 letters, digits and . _ - (it is 'a b')",
    ),
    "group channel": (
        "roles:\n  manager: {groups: [{channel: chat, group: S1}]}\n",
        ":11:23: roles.manager.groups.0.channel: names no channel; known: web, desk, wa",
    ),
    "group id": (
        "roles:\n  manager: {groups: [{channel: desk, group: '5'}]}\n",
        ":11:38: roles.manager.groups.0.group: is not the id of a group of Telegram: write its",
    ),
    "no groups there": (
        "roles:\n  manager: {groups: [{channel: wa, group: '5'}]}\n",
        "roles.manager.groups.0.group: whatsapp has no groups of people: give each person the role",
    ),
    "a role twice": (
        "roles:\n  a: {groups: [{channel: desk, group: '-5'}]}\n"
        "  A: {groups: [{channel: desk, group: '-6'}]}\n",
        ":12:3: roles.A: is the role a, too, as case is ignored: keep one of them (it is 'A')",
    ),
    "role without groups": ("roles:\n  a: {groups: []}\n", "roles.a.groups: is empty: add one"),
    "no accounts": (
        "people:\n  ada: {roles: [manager]}\n",
        ":11:3: people.ada.accounts: missing: add it",
    ),
    "empty role": (
        "people:\n  ada: {accounts: {}, roles: ['']}\n",
        "people.ada.roles.0: is empty: give",
    ),
}


def _load(tmp_path, people, load=load_settings, *args):
    file = tmp_path / "sayso.yaml"
    file.write_text(CHANNELS + people)
    return load(file, *args, ENVIRON)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_line_and_cure(tmp_path, name):
    """Nobody would notice a person who is never asked."""
    people, problem = MISTAKES[name]
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, people)
    assert problem in str(caught.value)


def test_people_have_their_accounts_in_order_and_their_roles(tmp_path):
    """The first account is where they are asked. Ids get the spelling of their platform."""
    people = "people:\n  ada: {accounts: {wa: +4915, desk: '7'}, roles: [Manager]}\n"
    config = people_config(_load(tmp_path, people))
    (ada,) = config.people
    assert ada.accounts == (Account("wa", "whatsapp:+4915"), Account("desk", "7"))
    assert ada.roles == {"manager"}
    assert config.account_roles == {Account("wa", "whatsapp:+4915"): "staff"}


def test_an_unquoted_number_is_refused(tmp_path):
    """YAML reads it as a number, which may have lost digits."""
    with pytest.raises(ConfigError, match="must be text: put it in quotes"):
        _load(tmp_path, "people:\n  ada: {accounts: {desk: 7}}\n")


def test_a_terminal_has_people_without_accounts_on_other_channels(tmp_path):
    """`sayso chat` keeps one channel, and must not fail for the accounts on the others."""
    people = "people:\n  ada: {accounts: {web: a1, desk: '7'}}\n  bob: {accounts: {desk: '8'}}\n"
    settings = _load(tmp_path, people, load_for_terminal, "web")
    assert settings.people["ada"].accounts == {"web": "a1"}
    assert settings.people["bob"].accounts == {}


def test_roles_name_their_groups_in_lower_case(tmp_path):
    """Channels without such a role need no right to read groups."""
    settings = _load(tmp_path, "roles:\n  Manager: {groups: [{channel: desk, group: '-5'}]}\n")
    assert people_config(settings).groups == {"manager": (RoleGroup("desk", "-5"),)}
    assert settings.channels["desk"].role_groups == ("-5",)
    assert settings.channels["web"].role_groups == ()


def test_a_terminal_reads_no_groups(tmp_path):
    """Its channel is connected to no platform."""
    roles = "roles:\n  manager: {groups: [{channel: desk, group: '-5'}]}\n"
    settings = _load(tmp_path, roles, load_for_terminal, "desk")
    assert people_config(settings).groups == {}
