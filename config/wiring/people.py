"""The people of a bot: what the YAML says about them, and the parts that find and change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sayso.channels.base import Channel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.redis_parts import RedisParts
from sayso.pending.approvals.absences import RedisAbsences
from sayso.pending.approvals.directory import (
    ConfiguredDirectory,
    NamedPerson,
    PeopleConfig,
    spelled_account,
)
from sayso.pending.approvals.linking import AccountLinking
from sayso.pending.approvals.links import RedisLinks
from sayso.pending.approvals.people import Account
from sayso.pending.approvals.role_groups import RoleGroup
from sayso.pending.approvals.self_service import SelfService
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import RedisOutbox


@dataclass(frozen=True, slots=True)
class PeopleParts:
    """The parts that know the people of a bot. Lives as long as a process or a command."""

    directory: ConfiguredDirectory
    links: RedisLinks
    absences: RedisAbsences
    #: Joins accounts, for people and for operators.
    linking: AccountLinking
    #: Carries out commands of people about themselves. None for a bot that knows no people
    #: (`Settings.knows_people`).
    self_service: SelfService | None

    @classmethod
    def open(
        cls, settings: Settings, redis: RedisParts, channels: Mapping[str, Channel]
    ) -> PeopleParts:
        """Return the parts of a process.

        * `channels`: the adapters, by the names of their channels. {} for a command of an operator,
          which reads no groups of platforms.
        """
        links = RedisLinks(redis.client, prefix=redis.key_prefix)
        absences = RedisAbsences(redis.client, prefix=redis.key_prefix)
        config = people_config(settings)
        if not channels:
            config = replace(config, groups={})
        # A bot that knows no people needs no look-ups in Redis.
        known_links = None
        known_absences = None
        if settings.knows_people:
            known_absences = absences
            if settings.links != "off":
                known_links = links
        directory = ConfiguredDirectory(
            config, channels, links=known_links, absences=known_absences
        )

        outbox = RedisOutbox(redis.scripts(CONVERSATION_SCRIPTS), redis.wake_up)
        linking = AccountLinking(
            links, directory, send=outbox.forward, is_reviewed=settings.links == "reviewed"
        )
        self_service = None
        if settings.knows_people:
            self_service = SelfService(
                directory,
                absences,
                linking=None if settings.links == "off" else linking,
                id_problem=lambda channel, user_id: settings.channels[channel].problem_with_id(
                    user_id
                ),
            )
        return cls(directory, links, absences, linking, self_service)


def open_people_parts(settings: Settings, data: Path) -> PeopleParts:
    """Return the parts that know people, for a command. Raises ConfigError."""
    return PeopleParts.open(settings, RedisParts.find(settings, data), channels={})


def people_config(settings: Settings) -> PeopleConfig:
    """Return what the YAML says about people: their accounts and their roles."""
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
    """Return the role of each account that has one by `access.roles.users` of its channel."""
    roles = {}
    for name, channel in settings.channels.items():
        if channel.access is None or channel.access.roles is None:
            continue
        for user_id, role in channel.access.roles.users.items():
            roles[account_on(settings, name, user_id)] = role.lower()
    return roles


def _groups(settings: Settings) -> dict[str, tuple[RoleGroup, ...]]:
    """Return the groups of each role, by the role in lower case."""
    groups = {}
    for role, section in settings.roles.items():
        groups[role.lower()] = tuple(RoleGroup(each.channel, each.group) for each in section.groups)
    return groups


def account_on(settings: Settings, channel: str, user_id: str) -> Account:
    """Return the account with an id from the YAML, with the id as the platform spells it."""
    return spelled_account(channel, user_id, settings.channels[channel].user_id_prefix)
