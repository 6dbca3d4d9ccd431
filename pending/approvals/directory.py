"""ConfiguredDirectory: finds people by the YAML, by their links, and by the groups of platforms.

On WhatsApp a person has several ids, and an id may pass to another person. So there are three forms
of an account:

* as the YAML writes it: the id may be a phone number. It means the person who has the number now.
* as stored: with the id under which the person's messages and links are stored. It never passes to
  another person.
* as compared: with each current id, in the form in which the access rules compare ids
  (`compared_id`).

On other platforms all three have the same id, except for its spelling.
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
    #: The accounts of the person, the preferred one first, with ids as their platforms spell them.
    accounts: tuple[Account, ...]
    #: The roles of the person, in lower case.
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PeopleConfig:
    """What the YAML says about people. Lives as long as the settings."""

    #: For each channel the prefix of the ids there, such as `whatsapp:`, which the YAML may leave
    #: out; "" for none. Has all channels of the bot.
    id_prefixes: Mapping[str, str]
    #: The people in the order of the YAML, which is the order in which they are asked.
    people: tuple[NamedPerson, ...] = ()
    #: The role, in lower case, that `access.roles.users` of a channel gives to an account.
    account_roles: Mapping[Account, str] = field(default_factory=dict)
    #: The groups of platforms whose members have a role, by the role in lower case.
    groups: Mapping[str, tuple[RoleGroup, ...]] = field(default_factory=dict)

    def compared(self, account: Account) -> Account:
        """Return an account as compared (see the head of the module)."""
        prefix = self.id_prefixes.get(account.channel, "")
        return Account(account.channel, compared_id(account.user_id, prefix=prefix))


@dataclass(frozen=True, slots=True)
class _AccountForms:
    """An account in all three forms (see the head of the module)."""

    #: With an id that the person has now: that of the YAML, else their first one.
    account: Account
    #: As stored. Links have this form.
    stored: Account
    #: As compared: one for each id that the person has now.
    compared: tuple[Account, ...]


class ConfiguredDirectory:
    """The people of a bot. One per process, used from any event loop.

    * `config`: what the YAML says about people.
    * `channels`: the adapters by the names of their channels; {} for a program without platforms,
      such as `sayso chat`.
    * `links`: the accounts that people joined themselves. None: links do not count.
    * `absences`: who is away. None: nobody is.
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
        return await self._owner_by_forms(self._forms_of_ids(channel, user_ids[0], ids))

    async def named(self, name: str) -> KnownPerson | None:
        """Return the person with this name, None if nobody has it.

        `name`: of a person in the YAML, or the name of an account, `channel:user_id`.
        """
        person = self._by_name.get(name)
        if person:
            return await self._known_person(person)
        account = self._account_named(name)
        if account:
            return await self._owner_of(account)
        return None

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return the people who have a role: first those whom the YAML names, in its order."""
        role = role.lower()
        people = [await self._known_person(each) for each in self._config.people]
        accounts = [
            account
            for account, account_role in self._config.account_roles.items()
            if account_role == role
        ]
        accounts += await self._groups.accounts_with(role)
        people += [await self._owner_of(each) for each in accounts]
        by_name = {each.name: each for each in people if role in each.roles}
        return tuple(by_name.values())

    async def represented_by(self, person: KnownPerson) -> Sequence[KnownPerson]:
        """Return the people who are away, and for whom this person decides meanwhile."""
        if self._absences is None:
            return ()
        names = person.all_names
        absent = [
            await self.named(absence.person)
            for absence in await self._absences.all()
            if absence.stand_in in names
        ]
        # An absence may have the name that its colleague had before, so the present one is compared.
        by_name = {each.name: each for each in absent if each and each.stand_in == person.name}
        return tuple(by_name.values())

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the direct chat of the bot with the person who has this account.

        Its chat id is the id of the person. On a platform where ids change, it is the id under
        which the person is stored. A person who never wrote is stored under this account from this
        call on, so that their answer comes in under the same id.
        """
        conversation = Conversation(account.channel, account.user_id)
        channel = self._recognizing.get(account.channel)
        if channel is None:
            return conversation
        as_sender = Turn("", conversation, account.user_id)
        recognized = await call_in_thread(channel.recognize, as_sender, store=True)
        return recognized.conversation

    async def _owner_of(self, account: Account) -> KnownPerson:
        """Return the person who has an account now, with an id as the YAML writes it."""
        return await self._owner_by_forms(await self._forms_of(account))

    async def _forms_of(self, account: Account) -> _AccountForms:
        """Return all forms of an account, given with an id that its person has now."""
        conversation = await self.direct_conversation(account)
        return await self._forms_of_stored(Account(account.channel, conversation.chat), account)

    async def _forms_of_stored(
        self, stored: Account, account: Account | None = None
    ) -> _AccountForms:
        """Return all forms of an account, given as stored.

        `account`: the account with the id that the YAML has. None: with the first id that the
        person has now.
        """
        adapter = self._recognizing.get(stored.channel)
        ids: tuple[str, ...] = ()
        if adapter:
            ids = await call_in_thread(adapter.ids_of, stored.user_id)
        forms = self._forms_of_ids(stored.channel, stored.user_id, ids or (stored.user_id,))
        if account is None:
            return forms
        compared = dict.fromkeys([self._config.compared(account), *forms.compared])
        return _AccountForms(account, stored, tuple(compared))

    def _forms_of_ids(self, channel: str, stored_id: str, ids: Sequence[str]) -> _AccountForms:
        """Return all forms of an account. `ids`: all that the person has now, at least one."""
        accounts = [Account(channel, each) for each in ids]
        compared = tuple(map(self._config.compared, accounts))
        return _AccountForms(accounts[0], Account(channel, stored_id), compared)

    async def _owner_by_forms(self, forms: _AccountForms) -> KnownPerson:
        """Return the person who has an account."""
        name, accounts = await self._name_and_accounts(forms)
        return await self._with_roles_and_absence(name, accounts)

    async def _name_and_accounts(self, forms: _AccountForms) -> tuple[str, Sequence[_AccountForms]]:
        """Return the name and the accounts of the person who has an account.

        | the account, or one that is joined with it | the name is that of             |
        |--------------------------------------------|---------------------------------|
        | belongs to a person in the YAML            | that person                     |
        | belongs to nobody in the YAML              | the first of these accounts     |
        """
        named = self._person_in_yaml(forms)
        joined: list[_AccountForms] = []
        if named is None:
            joined = await self._joined_with([forms])
            owners = map(self._person_in_yaml, joined)
            named = next(filter(None, owners), None)
        if named:
            return named.name, await self._accounts_of_named(named)
        accounts = joined or [forms]
        return account_name(accounts[0].account), accounts

    async def _known_person(self, person: NamedPerson) -> KnownPerson:
        """Return a person of the YAML with all accounts, roles and their absence."""
        return await self._with_roles_and_absence(
            person.name, await self._accounts_of_named(person)
        )

    async def _accounts_of_named(self, person: NamedPerson) -> Sequence[_AccountForms]:
        """Return the accounts of a person of the YAML, and those that are joined with them."""
        accounts = [await self._forms_of(each) for each in person.accounts]
        by_stored = {each.stored: each for each in accounts}
        for each in await self._joined_with(accounts):
            by_stored.setdefault(each.stored, each)
        return list(by_stored.values())

    async def _joined_with(self, accounts: Iterable[_AccountForms]) -> list[_AccountForms]:
        """Return all accounts that people have joined with one of these.

        The given accounts are among them, unless they are joined with none. A link between accounts
        of two people in the YAML is ignored: no such link is made, but the YAML may have changed
        since.
        """
        if self._links is None:
            return []
        joined: list[_AccountForms] = []
        for stored_accounts in await self._links.joined_with([each.stored for each in accounts]):
            linked = [await self._forms_of_stored(each) for each in stored_accounts]
            owners = {owner.name for owner in map(self._person_in_yaml, linked) if owner}
            if len(owners) < 2:
                joined += linked
        return joined

    def _person_in_yaml(self, forms: _AccountForms) -> NamedPerson | None:
        """Return the person to whom the YAML gives an account, None for nobody."""
        owners = map(self._by_account.get, forms.compared)
        return next(filter(None, owners), None)

    async def _with_roles_and_absence(
        self, name: str, all_forms: Sequence[_AccountForms]
    ) -> KnownPerson:
        """Return the person with this name and these accounts, with their roles and absence."""
        compared = [account for each in all_forms for account in each.compared]
        roles = await self._groups.roles_of(compared)
        if name in self._by_name:
            roles |= self._by_name[name].roles
        for account in compared:
            role = self._account_roles.get(account)
            if role:
                roles.add(role)

        accounts = tuple(each.account for each in all_forms)
        person = KnownPerson(name, accounts, frozenset(roles))
        if self._absences is None:
            return person
        # The absence is stored under the name that the person had then. The YAML or a link may have
        # given them another name since.
        names = person.all_names
        absence = await self._absences.find(names)
        if absence is None:
            return person
        stand_in = await self._current_name(absence.stand_in)
        # Two people may have become one person by a link, so that one would stand in for oneself.
        if stand_in == name:
            stand_in = ""
        return replace(person, stand_in=stand_in, away_until=absence.until)

    async def _current_name(self, name: str) -> str:
        """Return the current name of a person, given an earlier one; "" if nobody has it now."""
        if name in self._by_name:
            return name
        account = self._account_named(name)
        if account is None:
            return ""
        name, _ = await self._name_and_accounts(await self._forms_of(account))
        return name

    def _account_named(self, name: str) -> Account | None:
        """Return the account that a name `channel:user_id` stands for, None for any other name."""
        channel, _, user_id = name.partition(":")
        if user_id and channel in self._config.id_prefixes:
            return spelled_account(channel, user_id, self._config.id_prefixes[channel])
        return None


def spelled_account(channel: str, user_id: str, prefix: str) -> Account:
    """Return an account with the id as its platform spells it.

    `prefix`: how the ids of the channel begin, such as `whatsapp:`; "" for no prefix. `user_id` may
    lack it.
    """
    if not prefix:
        return Account(channel, user_id)
    user_id = user_id.strip()
    if user_id.casefold().startswith(prefix):
        user_id = user_id[len(prefix) :]
    return Account(channel, f"{prefix}{user_id}")
