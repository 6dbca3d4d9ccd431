"""RoleGroups: the roles that people have because they are in a group of a platform.

A group is a user group of Slack, or a Telegram group. In a Telegram group only the administrators
have the role. The members are read again for each decision, because the role at that moment counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sayso.channels.base import Channel, ListsGroupMembers, SendError
from sayso.pending.approvals.people import Account, DirectoryUnavailable

#: For how many seconds the members of a group are cached. One decision reads them several times,
#: and Slack answers about 20 such calls a minute.
MEMBERS_CACHE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RoleGroup:
    """A group of a platform whose people have a role."""

    #: The name of the channel.
    channel: str
    #: The platform's id of the group.
    group: str


class RoleGroups:
    """Reads the groups of platforms. One per process, used from any event loop.

    * `groups`: the groups of each role, by the role in lower case.
    * `channels`: the adapters, by the names of their channels.
    * `clock`: returns seconds that never go back.

    Methods raise DirectoryUnavailable if a platform does not say who is in a group, and
    redis.RedisError. A failure is not remembered: the next call asks again.
    """

    def __init__(
        self,
        groups: Mapping[str, Sequence[RoleGroup]],
        channels: Mapping[str, Channel],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups = groups
        self._channels = channels
        self._clock = clock
        #: The members of each group, and when they were read, in seconds of the clock.
        self._cached: dict[RoleGroup, tuple[float, dict[Account, None]]] = {}

    async def accounts_with(self, role: str) -> list[Account]:
        """Return the accounts that have a role by a group, in the order of the platform.

        `role` is in lower case.
        """
        accounts: list[Account] = []
        for group in self._groups.get(role, ()):
            accounts += await self._members(group)
        return accounts

    async def roles_of(self, accounts: Iterable[Account]) -> set[str]:
        """Return the roles, in lower case, that any of these accounts has by a group.

        Only groups of the accounts' channels are read.
        """
        wanted = frozenset(accounts)
        channels = {account.channel for account in wanted}
        roles = set()
        for role, groups in self._groups.items():
            for group in groups:
                if group.channel not in channels:
                    continue
                members = await self._members(group)
                if any(account in members for account in wanted):
                    roles.add(role)
        return roles

    async def _members(self, group: RoleGroup) -> dict[Account, None]:
        """Return the accounts in a group, in the order of the platform.

        They were read at most MEMBERS_CACHE_SECONDS ago. A group may have thousands of them, so
        they are the keys of a dict.
        """
        now = self._clock()
        if group in self._cached:
            read_at, members = self._cached[group]
            if now - read_at < MEMBERS_CACHE_SECONDS:
                return members

        channel = self._channels.get(group.channel)
        if not isinstance(channel, ListsGroupMembers):
            raise DirectoryUnavailable(f"{group.channel} has no groups of people")
        try:
            ids = await channel.group_members(group.group)
        except SendError as exc:
            problem = f"{group.channel} does not say who is in the group {group.group}: {exc}"
            raise DirectoryUnavailable(problem) from exc
        members = {Account(group.channel, each): None for each in ids}
        self._cached[group] = (now, members)
        return members
