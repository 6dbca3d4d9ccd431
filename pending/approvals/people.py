"""Who a person is on all channels, which roles they have, and where they can be asked.

A person may have an account on several channels. Where several people must agree, such a person
counts once. So approvals compare people, not accounts.

`PeopleDirectory` is the port. `ConfiguredDirectory` (`directory.py`) reads the YAML, the links that
people made themselves, and the groups of the platforms. `EmptyDirectory` knows accounts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sayso.channels.types import Conversation, digest


@dataclass(frozen=True, slots=True)
class Account:
    """One identity of a person: their id on one channel."""

    channel: str
    #: The platform's id of the person.
    user_id: str


@dataclass(frozen=True, slots=True)
class KnownPerson:
    """One person with all their known accounts. A snapshot: the next look-up may differ."""

    #: The name of the person, the same on all channels. A person whom the YAML does not name has
    #: the name `channel:user_id`.
    name: str
    #: The accounts of the person, the preferred one first.
    accounts: tuple[Account, ...]
    #: The roles of the person in lower case, by the YAML and by the groups of the platforms.
    roles: frozenset[str] = frozenset()
    #: The name of the colleague who decides while the person is away. "": the person is not away,
    #: or named no colleague.
    stand_in: str = ""
    #: Until when the person is away, in Unix seconds; 0.0 while they are not.
    away_until: float = 0.0

    @property
    def has_name(self) -> bool:
        """Return whether the YAML names the person. Such a name has no colon."""
        return ":" not in self.name

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return all names that the person may have had: their name and those of the accounts."""
        names = [self.name, *map(account_name, self.accounts)]
        return tuple(dict.fromkeys(names))

    @property
    def known_as(self) -> frozenset[str]:
        """Return digests of all names of the person, by which they are recognized later.

        A person who separates their accounts is two people from then on. What they asked for or
        answered before keeps these digests, so that they stay one person there.
        """
        return frozenset(map(digest, self.all_names))

    def account_on(self, channel: str) -> Account | None:
        """Return the account of the person on this channel, None without one."""
        return next((each for each in self.accounts if each.channel == channel), None)


class PeopleDirectory(Protocol):
    """Finds people by their accounts, names and roles. One per process.

    Each call reads the roles again, because the role at the time of a decision counts. All methods
    raise redis.RedisError, and DirectoryUnavailable if a platform does not say who is in a group.
    """

    async def person_of(self, channel: str, user_ids: Sequence[str]) -> KnownPerson:
        """Return the person with these ids on a channel, the main id first.

        A person whom the YAML does not name has the name `channel:user_id`.
        """

    async def named(self, name: str) -> KnownPerson | None:
        """Return the person with this name, None if nobody has it."""

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return the people who have a role, in the order in which to ask them.

        `role`: in upper or lower case.
        """

    async def represented_by(self, person: KnownPerson) -> Sequence[KnownPerson]:
        """Return the people who are away, and for whom this person decides meanwhile."""

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the direct chat of the bot with the person who has this account.

        The chat has the id under which the person's messages come in.
        """


class DirectoryUnavailable(Exception):
    """Raised when a platform does not say who is in a group. The caller may try again later."""


class EmptyDirectory:
    """The directory of an agent without a YAML: each account is one person.

    Nobody has a role. Each person is named after their account. Lives as long as its agent.
    """

    async def person_of(self, channel: str, user_ids: Sequence[str]) -> KnownPerson:
        """Return the person who has this account and no other."""
        account = Account(channel, user_ids[0])
        return KnownPerson(account_name(account), (account,))

    async def named(self, name: str) -> KnownPerson | None:
        """Return None: the directory knows no names."""
        return None

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return (): nobody has a role."""
        return ()

    async def represented_by(self, person: KnownPerson) -> Sequence[KnownPerson]:
        """Return (): nobody can say that they are away."""
        return ()

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the direct chat. Its id is that of the person, as on most platforms."""
        return Conversation(account.channel, account.user_id)


def account_name(account: Account) -> str:
    """Return the name of a person whom the YAML does not name: `channel:user_id`."""
    return f"{account.channel}:{account.user_id}"
