"""ConfiguredDirectory: finds people by the YAML, by their links, and by the groups of platforms.

Accounts are compared as the access rules compare them (`compared_id`). An id of the YAML may be a
phone number, which stands for the person who has it now. A link has the id under which the person
is stored, which never passes to another person.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sayso.channels.base import Channel, RecognizesPeople
from sayso.channels.types import Conversation, Turn, compared_id
from sayso.infra.concurrency import call_in_thread
from sayso.pending.approvals.absences import RedisAbsences
from sayso.pending.approvals.links import RedisLinks
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


@dataclass(frozen=True, slots=True)
class _KnownAccount:
    """An account with everything by which it is found."""

    #: With an id that the person has now.
    account: Account
    #: With the id under which the person is stored. Links have this one.
    stored: Account
    #: With each id that the person has now, as accounts are compared.
    compared: tuple[Account, ...]


class ConfiguredDirectory:
    """The people of a bot. One per process, used from any event loop.

    * `config`: what the YAML says.
    * `channels`: the adapters by the names of their channels; {} for a program without platforms,
      such as `sayso chat`.
    * `links`: the accounts that people joined themselves; None without a Redis.
    * `absences`: who is away; None without a Redis.
    * `clock`: returns seconds that never go back.
    """

    def __init__(
        self,
        config: PeopleConfig,
        channels: Mapping[str, Channel],
        *,
        links: RedisLinks | None = None,
        absences: RedisAbsences | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._groups = RoleGroups(config.groups, channels, clock=clock)
        self._links = links
        self._absences = absences
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
        """Return the person with these ids on a channel, the main id first.

        The main id is the one under which the person is stored. On WhatsApp it may be a phone
        number that another person has now. Then it does not count as an id of this person.
        """
        ids = tuple(user_ids)
        adapter = self._recognizing.get(channel)
        if adapter:
            ids = await call_in_thread(adapter.ids_of, user_ids[0]) or ids
        return await self._person_with(self._known(channel, user_ids[0], ids))

    async def named(self, name: str) -> KnownPerson | None:
        """Return the person of this name, None if nobody has it.

        The name of a person whom nobody named is that of their account, `channel:user_id`.
        """
        person = self._by_name.get(name)
        if person:
            return await self._named_person(person)
        account = self._account_named(name)
        if account:
            return await self._owner_of(account)
        return None

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return the people who have a role: first those with a name, in the order of the YAML."""
        role = role.lower()
        people = [await self._named_person(each) for each in self._config.people]
        accounts = [
            account
            for account, account_role in self._config.account_roles.items()
            if account_role == role
        ]
        accounts += await self._groups.accounts_with(role)
        people += [await self._owner_of(each) for each in accounts]
        by_name = {each.name: each for each in people if role in each.roles}
        return tuple(by_name.values())

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the conversation in which the bot talks to this person alone.

        Platforms name that chat after the person. Where the ids of a person change, it is named
        after the id by which the person is known. A person who never wrote is known by this account
        from then on, so that the person's answer comes in under it.
        """
        conversation = Conversation(account.channel, account.user_id)
        channel = self._recognizing.get(account.channel)
        if channel is None:
            return conversation
        as_sender = Turn("", conversation, account.user_id)
        recognized = await call_in_thread(channel.recognize, as_sender, store=True)
        return recognized.conversation

    async def _owner_of(self, account: Account) -> KnownPerson:
        """Return the person who has an account now."""
        return await self._person_with(await self._look_up(account))

    async def _look_up(self, account: Account) -> _KnownAccount:
        """Return everything by which an account is found, given an id that its person has now."""
        conversation = await self.direct_conversation(account)
        return await self._look_up_stored(Account(account.channel, conversation.chat), account)

    async def _look_up_stored(
        self, stored: Account, account: Account | None = None
    ) -> _KnownAccount:
        """Return the same, given the id under which the person is stored.

        `account`: the account as it is written elsewhere, None for the one with the first id that
        the person has now.
        """
        adapter = self._recognizing.get(stored.channel)
        ids: tuple[str, ...] = ()
        if adapter:
            ids = await call_in_thread(adapter.ids_of, stored.user_id)
        known = self._known(stored.channel, stored.user_id, ids or (stored.user_id,))
        if account is None:
            return known
        compared = dict.fromkeys([self._config.compared(account), *known.compared])
        return _KnownAccount(account, stored, tuple(compared))

    def _known(self, channel: str, stored_id: str, ids: Sequence[str]) -> _KnownAccount:
        """Return everything by which an account is found. `ids`: those that the person has now."""
        accounts = [Account(channel, each) for each in ids]
        compared = tuple(map(self._config.compared, accounts))
        return _KnownAccount(accounts[0], Account(channel, stored_id), compared)

    async def _person_with(self, known: _KnownAccount) -> KnownPerson:
        """Return the person who has an account."""
        name, accounts = await self._owner_with(known)
        return await self._person(name, accounts)

    async def _owner_with(self, known: _KnownAccount) -> tuple[str, Sequence[_KnownAccount]]:
        """Return the name and the accounts of the person who has an account."""
        named = self._named_owner(known)
        joined: list[_KnownAccount] = []
        if named is None:
            joined = await self._joined_with([known])
            owners = map(self._named_owner, joined)
            named = next(filter(None, owners), None)
        if named:
            return named.name, await self._accounts_of(named)
        accounts = joined or [known]
        return account_name(accounts[0].account), accounts

    async def _named_person(self, person: NamedPerson) -> KnownPerson:
        """Return a person of the YAML."""
        return await self._person(person.name, await self._accounts_of(person))

    async def _accounts_of(self, person: NamedPerson) -> Sequence[_KnownAccount]:
        """Return the accounts of a person of the YAML, and those that are joined with them."""
        accounts = [await self._look_up(each) for each in person.accounts]
        by_stored = {each.stored: each for each in accounts}
        for each in await self._joined_with(accounts):
            by_stored.setdefault(each.stored, each)
        return list(by_stored.values())

    async def _joined_with(self, accounts: Iterable[_KnownAccount]) -> list[_KnownAccount]:
        """Return all accounts that people have joined with one of these, and these among them.

        A link that joins two people of the YAML does not count. None is made, but the YAML may
        have changed since.
        """
        if self._links is None:
            return []
        joined: list[_KnownAccount] = []
        for stored_accounts in await self._links.joined_with([each.stored for each in accounts]):
            known = [await self._look_up_stored(each) for each in stored_accounts]
            owners = {owner.name for owner in map(self._named_owner, known) if owner}
            if len(owners) < 2:
                joined += known
        return joined

    def _named_owner(self, known: _KnownAccount) -> NamedPerson | None:
        """Return the person to whom the YAML gives an account, None for nobody."""
        owners = map(self._by_account.get, known.compared)
        return next(filter(None, owners), None)

    async def _person(self, name: str, known: Sequence[_KnownAccount]) -> KnownPerson:
        """Return a person of this name with these accounts, their roles and their absence."""
        compared = [account for each in known for account in each.compared]
        roles = await self._groups.roles_of(compared)
        if name in self._by_name:
            roles |= self._by_name[name].roles
        for account in compared:
            role = self._account_roles.get(account)
            if role:
                roles.add(role)

        accounts = tuple(each.account for each in known)
        person = KnownPerson(name, accounts, frozenset(roles))
        if self._absences is None:
            return person
        # The person may have got another name since: from the YAML, or by a link.
        names = person.all_names
        absence = await self._absences.find(names)
        if absence is None:
            return person
        stand_in = await self._name_now(absence.stand_in)
        # A colleague of before may be the same person since they joined their accounts.
        if stand_in == name:
            stand_in = ""
        return replace(person, stand_in=stand_in, away_until=absence.until)

    async def _name_now(self, name: str) -> str:
        """Return the name that a person has now, given an earlier one; "" for nobody any more."""
        if name in self._by_name:
            return name
        account = self._account_named(name)
        if account is None:
            return ""
        name, _ = await self._owner_with(await self._look_up(account))
        return name

    def _account_named(self, name: str) -> Account | None:
        """Return the account of a name `channel:user_id`, None for any other name."""
        channel, _, user_id = name.partition(":")
        if user_id and channel in self._config.id_prefixes:
            return spelled_account(channel, user_id, self._config.id_prefixes[channel])
        return None


def spelled_account(channel: str, user_id: str, prefix: str) -> Account:
    """Return an account with the id as its platform spells it.

    `prefix`: what ids begin with there, such as `whatsapp:`, and what may be left out in
    `user_id`; "" for nothing.
    """
    if not prefix:
        return Account(channel, user_id)
    user_id = user_id.strip()
    if user_id.casefold().startswith(prefix):
        user_id = user_id[len(prefix) :]
    return Account(channel, f"{prefix}{user_id}")
