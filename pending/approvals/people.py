"""Who a person is on all channels, which roles they have, and where they can be asked.

A person may have an account on several channels. For a decision of several people they count once,
so accounts are not compared: people are. `PeopleDirectory` is the port; the real one reads the YAML,
the links that people made themselves, and the groups of the platforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sayso.channels.types import Conversation


@dataclass(frozen=True, slots=True)
class Account:
    """How a person is known on one channel."""

    channel: str
    #: The platform's id of the person.
    user_id: str


@dataclass(frozen=True, slots=True)
class KnownPerson:
    """One person with all accounts that are known of them. A snapshot."""

    #: The name of the person, the same on all channels. A person whom nobody named has the name
    #: `channel:user_id`.
    name: str
    #: The accounts of the person, the preferred one first.
    accounts: tuple[Account, ...]
    #: The roles of the person in lower case, by the YAML and by the groups of the platforms.
    roles: frozenset[str] = frozenset()
    #: The name of the colleague who decides while the person is away; "" while they are not away,
    #: and if they named no colleague.
    stand_in: str = ""
    #: Until when the person is away, in Unix seconds; 0.0 while they are not.
    away_until: float = 0.0

    @property
    def has_name(self) -> bool:
        """Return whether the YAML names the person. Such a name has no colon."""
        return ":" not in self.name

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return each name that the person may have had: their own, and those of their accounts."""
        names = [self.name, *map(account_name, self.accounts)]
        return tuple(dict.fromkeys(names))

    def account_on(self, channel: str) -> Account | None:
        """Return the account of the person on this channel, None without one."""
        return next((each for each in self.accounts if each.channel == channel), None)


class PeopleDirectory(Protocol):
    """Finds people by their accounts, names and roles. One per process.

    Each call reads the roles anew: what counts is the role at the decision. All methods raise
    redis.RedisError, and DirectoryUnavailable if a platform does not say who is in a group.
    """

    async def person_of(self, channel: str, user_ids: Sequence[str]) -> KnownPerson:
        """Return the person with these ids on a channel, the main id first.

        A person whom nobody named has one account, and the name `channel:user_id`.
        """

    async def named(self, name: str) -> KnownPerson | None:
        """Return the person of this name, None if nobody has it."""

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return the people who have a role, in any case, in the order in which to ask them."""

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the conversation in which the bot talks to this person alone.

        Its chat is named after the person, by the id under which the person's messages come in.
        """


class DirectoryUnavailable(Exception):
    """Raised when a platform does not answer who is in a group. Try again later."""


class AccountsAreVisitors:
    """The directory of a bot whose YAML names no people: each account is a person of its own.

    Nobody has a role, and nobody has a name but that of their account. Lives as long as its agent.
    """

    async def person_of(self, channel: str, user_ids: Sequence[str]) -> KnownPerson:
        """Return the person with only this account."""
        account = Account(channel, user_ids[0])
        return KnownPerson(account_name(account), (account,))

    async def named(self, name: str) -> KnownPerson | None:
        """Return None: nobody has a name."""
        return None

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return (): nobody has a role."""
        return ()

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the chat that platforms name after the person."""
        return Conversation(account.channel, account.user_id)


def account_name(account: Account) -> str:
    """Return the name of a person whom nobody named."""
    return f"{account.channel}:{account.user_id}"
