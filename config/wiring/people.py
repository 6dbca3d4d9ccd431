"""The people of a bot: what the YAML says of them, and the directory that finds them."""

from __future__ import annotations

from sayso.config.settings.schema import Settings
from sayso.pending.approvals.directory import NamedPerson, PeopleConfig
from sayso.pending.approvals.people import Account
from sayso.pending.approvals.role_groups import RoleGroup


def people_config(settings: Settings) -> PeopleConfig:
    """Return what the YAML says of people: their accounts and their roles."""
    return PeopleConfig(
        id_prefixes={name: each.user_id_prefix for name, each in settings.channels.items()},
        people=_named_people(settings),
        account_roles=_account_roles(settings),
        groups=_groups(settings),
    )


def _named_people(settings: Settings) -> tuple[NamedPerson, ...]:
    """Return the people of the section `people`, in its order."""
    people = []
    for name, person in settings.people.items():
        accounts = tuple(
            account_on(settings, channel, user_id) for channel, user_id in person.accounts.items()
        )
        roles = frozenset(role.lower() for role in person.roles)
        people.append(NamedPerson(name, accounts, roles))
    return tuple(people)


def _account_roles(settings: Settings) -> dict[Account, str]:
    """Return the role of each account to which a channel's `access.roles` gives one."""
    roles = {}
    for name, channel in settings.channels.items():
        if channel.access is None or channel.access.roles is None:
            continue
        for user_id, role in channel.access.roles.users.items():
            roles[account_on(settings, name, user_id)] = role.lower()
    return roles


def _groups(settings: Settings) -> dict[str, tuple[RoleGroup, ...]]:
    """Return the groups of each role."""
    groups = {}
    for role, section in settings.roles.items():
        groups[role.lower()] = tuple(RoleGroup(each.channel, each.group) for each in section.groups)
    return groups


def account_on(settings: Settings, channel: str, user_id: str) -> Account:
    """Return an account whose id stands in the YAML, with the id as the platform spells it."""
    prefix = settings.channels[channel].user_id_prefix
    if not prefix:
        return Account(channel, user_id)
    user_id = user_id.strip()
    if user_id.casefold().startswith(prefix):
        user_id = user_id[len(prefix) :]
    return Account(channel, f"{prefix}{user_id}")
