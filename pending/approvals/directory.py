"""ConfiguredDirectory: finds people by what the YAML and the groups of platforms say of them.

Accounts are compared as the access rules compare them (`compared_id`). An id of the YAML may be a
phone number, which stands for the person who has it now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sayso.channels.base import Channel, RecognizesPeople
from sayso.channels.types import Conversation, compared_id
from sayso.infra.concurrency import call_in_thread
from sayso.pending.approvals.people import Account, KnownPerson, account_name
from sayso.pending.approvals.role_groups import RoleGroup, RoleGroups


@dataclass(frozen=True, slots=True)
class NamedPerson:
    """A person whom the YAML names."""

    name: str
    #: The person's accounts, the preferred one first, with ids as their platforms spell them.
    accounts: tuple[Account, ...]
    #: In lower case.
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PeopleConfig:
    """What the YAML says of people. Lives as long as the settings."""

    #: The names of all channels, each with what ids there may begin with or lack, such as
    #: `whatsapp:`; "" for nothing.
    id_prefixes: Mapping[str, str]
    #: In the order of the YAML, which is the order in which people are asked.
    people: tuple[NamedPerson, ...] = ()
    #: The role, in lower case, that the access rules of a channel give to an account.
    account_roles: Mapping[Account, str] = field(default_factory=dict)
    #: The groups of platforms whose people have a role, by the role in lower case.
    groups: Mapping[str, tuple[RoleGroup, ...]] = field(default_factory=dict)

    def compared(self, account: Account) -> Account:
        """Return an account in the form in which accounts are compared."""
        prefix = self.id_prefixes.get(account.channel, "")
        return Account(account.channel, compared_id(account.user_id, prefix=prefix))


class ConfiguredDirectory:
    """The people of a bot. One per process, used from any event loop.

    * `config`: what the YAML says.
    * `channels`: the adapters by the names of their channels; {} for a program without platforms,
      such as `sayso chat`.
    * `clock`: returns seconds that never go back.
    """

    def __init__(
        self,
        config: PeopleConfig,
        channels: Mapping[str, Channel],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._groups = RoleGroups(config.groups, channels, clock=clock)
        #: The adapters of platforms on which the ids of a person change.
        self._recognizing = {
            name: channel
            for name, channel in channels.items()
            if isinstance(channel, RecognizesPeople)
        }
        self._by_name = {each.name: each for each in config.people}
        self._by_account = {
            config.compared(account): person
            for person in config.people
            for account in person.accounts
        }
        self._account_roles = {
            config.compared(account): role for account, role in config.account_roles.items()
        }

    async def person_of(self, channel: str, user_ids: Sequence[str]) -> KnownPerson:
        """Return the person with these ids on a channel, the main id first."""
        current_ids = await self._current_ids(channel, user_ids)
        accounts = [Account(channel, each) for each in current_ids]
        for account in accounts:
            named = self._by_account.get(self._config.compared(account))
            if named:
                return await self._person(named.name, named.accounts, accounts)
        return await self._person(account_name(accounts[0]), accounts[:1], accounts)

    async def named(self, name: str) -> KnownPerson | None:
        """Return the person of this name, None if nobody has it.

        The name of a person whom nobody named is that of their account, `channel:user_id`.
        """
        named = self._by_name.get(name)
        if named:
            return await self._person(named.name, named.accounts)
        channel, _, user_id = name.partition(":")
        if user_id and channel in self._config.id_prefixes:
            return await self.person_of(channel, [user_id])
        return None

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return the people who have a role: first those with a name, in the order of the YAML."""
        role = role.lower()
        people = [await self._person(each.name, each.accounts) for each in self._config.people]
        accounts = [
            account
            for account, account_role in self._config.account_roles.items()
            if account_role == role
        ]
        accounts += await self._groups.accounts_with(role)
        people += [await self.person_of(each.channel, [each.user_id]) for each in accounts]
        by_name = {each.name: each for each in people if role in each.roles}
        return tuple(by_name.values())

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the conversation in which the bot talks to this person alone.

        Platforms name that chat after the person. Where the ids of a person change, it is stored
        under the id by which the person is known.
        """
        conversation = Conversation(account.channel, account.user_id)
        channel = self._recognizing.get(account.channel)
        if channel:
            return await call_in_thread(channel.conversation_of, conversation)
        return conversation

    async def _current_ids(self, channel: str, user_ids: Sequence[str]) -> Sequence[str]:
        """Return the ids without the main id if that has passed to another person.

        The main id is the one under which the person is stored. On WhatsApp it may be a phone number
        that somebody else has now, and that the YAML gives to this somebody.
        """
        adapter = self._recognizing.get(channel)
        main_id, *other_ids = user_ids
        if adapter is None or not other_ids:
            return user_ids
        stored = Conversation(channel, main_id)
        current = await call_in_thread(adapter.conversation_of, stored)
        return user_ids if current == stored else other_ids

    async def _person(
        self, name: str, accounts: Sequence[Account], other_ids: Sequence[Account] = ()
    ) -> KnownPerson:
        """Return a person with these accounts.

        `other_ids`: other ids of the same accounts, by which the YAML may give the person a role.
        """
        roles = await self._groups.roles_of((*accounts, *other_ids))
        if name in self._by_name:
            roles |= self._by_name[name].roles
        for account in (*accounts, *other_ids):
            role = self._account_roles.get(self._config.compared(account))
            if role:
                roles.add(role)
        return KnownPerson(name, tuple(accounts), frozenset(roles))
