"""AccountLinking: people join their accounts on two channels into one person, by a code.

A person asks for a code on one channel (`/link`): this is the *maker* of the code. The person types
it on another channel (`/link CODE`): this is the *taker*. Both accounts belong to one person then,
with the roles of both.

An attacker could persuade a person to type a code, and would get the roles of that person.
Therefore a link waits by default until an operator accepts it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Delivery, Reply, digest
from sayso.pending.approvals.links import LinkSide, RedisLinks, TooManyLinks, WaitingLink
from sayso.pending.approvals.people import Account, PeopleDirectory, account_name

log = logging.getLogger(__name__)

#: Whether people may join their accounts: not at all, once an operator accepts it, or at once.
LinkPolicy = Literal["off", "reviewed", "open"]
#: Sends a reply to a conversation. A delivery with an id that was sent before is ignored. Raises
#: redis.RedisError.
SendTo = Callable[[Delivery], Awaitable[object]]
#: What becomes of a code that a person typed:
#:
#: * linked: the accounts are joined;
#: * waits: an operator must accept the link;
#: * unknown_code: it is wrong, expired or used;
#: * too_many_tries: the person typed too many codes within an hour;
#: * same_channel: the code was made on this channel;
#: * same_person: the accounts are joined already;
#: * two_people: the YAML names two people who have these accounts;
#: * too_many_accounts: there is no room for another account, or for another link that waits.
LinkState = Literal[
    "linked",
    "waits",
    "unknown_code",
    "too_many_tries",
    "same_channel",
    "same_person",
    "two_people",
    "too_many_accounts",
]


class UnknownLink(Exception):
    """Raised when an operator names a link that is not among those that wait."""


@dataclass(frozen=True, slots=True)
class LinkResult:
    """What became of a code that a person typed."""

    state: LinkState
    #: The accounts of maker and taker: joined, or to be joined. () where the code was refused.
    accounts: tuple[Account, ...] = ()
    #: The names of both people for the state `two_people`, else ().
    names: tuple[str, ...] = ()


class AccountLinking:
    """Joins and separates the accounts of people. One per process.

    * `links`: where links are stored.
    * `people`: says who has an account now.
    * `send`: sends the reply that tells a side how the link ended.
    * `is_reviewed`: whether an operator must accept each link.

    Methods raise redis.RedisError, and DirectoryUnavailable where they look up people.
    """

    def __init__(
        self, links: RedisLinks, people: PeopleDirectory, *, send: SendTo, is_reviewed: bool
    ) -> None:
        self._links = links
        self._people = people
        self._send = send
        self._is_reviewed = is_reviewed

    async def begin(self, maker: LinkSide) -> str:
        """Return a code for the other channel, "" if the account made too many within an hour."""
        return await self._links.create_code(maker)

    async def finish(self, taker: LinkSide, code: str, event_id: str) -> LinkResult:
        """Join the account that made a code with the one that typed it, or ask an operator.

        `event_id`: the event id of the turn in which the code was typed. The same turn may be
        answered again, after the first worker died.
        """
        if not await self._links.may_try(taker.account):
            return LinkResult("too_many_tries")
        maker = await self._links.maker_of(code)
        if maker is None:
            return LinkResult("unknown_code")
        if maker.channel == taker.channel:
            return LinkResult("same_channel")
        obstacle = await self._obstacle(maker, taker)
        if obstacle and obstacle.state == "two_people":
            return obstacle
        if not await self._links.use_code(code, event_id):
            return LinkResult("unknown_code")
        await self._links.forget_tries(taker.account)
        if obstacle:
            return obstacle

        accounts = (maker.account, taker.account)
        try:
            if self._is_reviewed:
                link = await self._links.add_waiting(maker, taker)
                log.info("people.link_waits", extra={"link": link.id, **_log_ids(maker, taker)})
                return LinkResult("waits", accounts)
            await self._join(maker, taker)
        except TooManyLinks:
            return LinkResult("too_many_accounts")
        await self._tell(maker, accounts, f"link:{digest(code.upper())}", is_joined=True)
        return LinkResult("linked", accounts)

    async def unlink(self, account: Account) -> bool:
        """Separate an account from those that it is joined with. Return whether it was joined."""
        is_separated = await self._links.unlink(account)
        if is_separated:
            log.info("people.unlinked", extra={"account": _log_id(account)})
        return is_separated

    async def accept(self, link_id: str) -> WaitingLink:
        """Join the accounts of a link that waits, and tell both sides. Safe to repeat.

        Raises UnknownLink, and TooManyLinks. Raises ValueError if the YAML names two people who
        have these accounts.
        """
        link = await self._find_waiting(link_id)
        maker = link.maker
        taker = link.taker
        obstacle = await self._obstacle(maker, taker)
        if obstacle and obstacle.state == "two_people":
            one, other = obstacle.names
            raise ValueError(
                f"the accounts are those of {one} and {other} in `people`: reject the link, "
                "or name one person there"
            )
        await self._join(maker, taker)
        await self._tell_both(link, is_joined=True)
        return link

    async def reject(self, link_id: str) -> WaitingLink:
        """Drop a link that waits, and tell both sides. Raises UnknownLink."""
        link = await self._find_waiting(link_id)
        log.info("people.link_rejected", extra={"link": link.id})
        await self._tell_both(link, is_joined=False)
        return link

    async def _find_waiting(self, link_id: str) -> WaitingLink:
        """Return the link with this id, in upper or lower case. Raises UnknownLink."""
        for link in await self._links.waiting():
            if link.id == link_id.upper():
                return link
        raise UnknownLink(f"no link {link_id!r} waits: see `sayso people links`")

    async def _obstacle(self, maker: LinkSide, taker: LinkSide) -> LinkResult | None:
        """Return why the accounts cannot or need not be joined, None if they can."""
        one = await self._people.person_of(maker.channel, [maker.user_id])
        other = await self._people.person_of(taker.channel, [taker.user_id])
        accounts = (maker.account, taker.account)
        if one.name == other.name:
            return LinkResult("same_person", accounts)
        if one.has_name and other.has_name:
            return LinkResult("two_people", accounts, (one.name, other.name))
        return None

    async def _join(self, maker: LinkSide, taker: LinkSide) -> None:
        """Join both accounts. Raises TooManyLinks."""
        await self._links.join(maker.account, taker.account)
        log.info("people.linked", extra=_log_ids(maker, taker))

    async def _tell_both(self, link: WaitingLink, *, is_joined: bool) -> None:
        """Tell both sides of a link what an operator decided, then delete the link."""
        sides = (link.maker, link.taker)
        accounts = (link.maker.account, link.taker.account)
        for number, side in enumerate(sides, start=1):
            await self._tell(side, accounts, f"link:{link.id}:{number}", is_joined=is_joined)
        await self._links.remove_waiting(link.id)

    async def _tell(
        self, side: LinkSide, accounts: tuple[Account, ...], delivery_id: str, *, is_joined: bool
    ) -> None:
        """Tell one side of a link how the link ended. Repeated calls with the id send nothing."""
        texts = texts_for(side.language)
        names = account_names(accounts)
        text = texts.link_done(names) if is_joined else texts.link_rejected(names)
        reply = Reply(text, language=side.language)
        await self._send(Delivery(delivery_id, side.conversation, reply))


def account_names(accounts: tuple[Account, ...]) -> str:
    """Return the names of accounts (`account_name`), as Markdown in one line."""
    return ", ".join(f"`{account_name(each)}`" for each in accounts)


def _log_ids(maker: LinkSide, taker: LinkSide) -> dict[str, str]:
    """Return the log fields that name both accounts. They have no id of a platform."""
    return {"account": _log_id(maker.account), "other": _log_id(taker.account)}


def _log_id(account: Account) -> str:
    """Return an account for the log: the channel, and a digest of the id."""
    return f"{account.channel}:{digest(account.user_id)}"
