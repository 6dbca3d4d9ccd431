"""AccountLinking: people join their accounts on two channels into one person, by a code.

A person asks for a code on one channel (`/link`) and types it on another one (`/link CODE`). Who
has both accounts is one person then, with the roles of both. Whoever persuades a person to type a
code gets the roles of that person. Therefore a link waits by default until an operator accepts it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Delivery, Reply, digest
from sayso.pending.approvals.links import LinkRequest, LinkSide, RedisLinks, TooManyLinks
from sayso.pending.approvals.people import Account, PeopleDirectory, account_name

log = logging.getLogger(__name__)

#: Whether people may join their accounts: not at all, once an operator accepts it, or at once.
LinkPolicy = Literal["off", "reviewed", "open"]
#: Sends a reply to a conversation, once for its delivery id. Raises redis.RedisError.
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
#: * too_many_accounts: there is no room for another account or request.
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


class UnknownRequest(Exception):
    """Raised when an operator names a link that does not wait."""


@dataclass(frozen=True, slots=True)
class LinkResult:
    """What became of a code that a person typed."""

    state: LinkState
    #: The accounts that are joined, or that are to be.
    accounts: tuple[Account, ...] = ()
    #: The names of both people, for the state `two_people`.
    names: tuple[str, ...] = ()


class AccountLinking:
    """Joins and separates the accounts of people. One per process.

    * `links`: where links are stored.
    * `people`: says who has an account now.
    * `send`: tells the other side of a link.
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
        return await self._links.new_code(maker)

    async def finish(self, taker: LinkSide, code: str, event_id: str) -> LinkResult:
        """Join the account that made a code with the one that typed it, or ask an operator.

        `event_id`: the turn in which the code was typed. The same turn may be answered again.
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
                request = await self._links.add_request(maker, taker)
                log.info("people.link_waits", extra={"link": request.id, **_log_ids(maker, taker)})
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

    async def accept(self, request_id: str) -> LinkRequest:
        """Join the accounts of a link that waits, and tell both sides. Safe to repeat.

        Raises UnknownRequest, and TooManyLinks. Raises ValueError if the YAML names two people who
        have these accounts.
        """
        request = await self._request(request_id)
        maker, taker = request.maker, request.taker
        obstacle = await self._obstacle(maker, taker)
        if obstacle and obstacle.state == "two_people":
            one, other = obstacle.names
            raise ValueError(
                f"the accounts are those of {one} and {other} in `people`: reject the link, "
                "or name one person there"
            )
        await self._join(maker, taker)
        await self._end(request, is_joined=True)
        return request

    async def reject(self, request_id: str) -> LinkRequest:
        """Drop a link that waits, and tell both sides. Raises UnknownRequest."""
        request = await self._request(request_id)
        log.info("people.link_rejected", extra={"link": request.id})
        await self._end(request, is_joined=False)
        return request

    async def _request(self, request_id: str) -> LinkRequest:
        """Return the link of this id, in any case. Raises UnknownRequest."""
        for request in await self._links.requests():
            if request.id == request_id.upper():
                return request
        raise UnknownRequest(f"no link {request_id!r} waits: see `sayso people links`")

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

    async def _end(self, request: LinkRequest, *, is_joined: bool) -> None:
        """Tell both sides of a link what an operator decided, then forget it."""
        sides = (request.maker, request.taker)
        accounts = (request.maker.account, request.taker.account)
        for number, side in enumerate(sides, start=1):
            await self._tell(side, accounts, f"link:{request.id}:{number}", is_joined=is_joined)
        await self._links.remove_request(request.id)

    async def _tell(
        self, side: LinkSide, accounts: tuple[Account, ...], delivery_id: str, *, is_joined: bool
    ) -> None:
        """Tell one side of a link how it ended, once for the delivery id."""
        texts = texts_for(side.language)
        names = names_of(accounts)
        text = texts.link_done(names) if is_joined else texts.link_rejected(names)
        reply = Reply(text, language=side.language)
        await self._send(Delivery(delivery_id, side.conversation, reply))


def names_of(accounts: tuple[Account, ...]) -> str:
    """Return the names of accounts in a line of Markdown."""
    return ", ".join(f"`{account_name(each)}`" for each in accounts)


def _log_ids(maker: LinkSide, taker: LinkSide) -> dict[str, str]:
    """Return which accounts a line of the log is about, without their ids at the platforms."""
    return {"account": _log_id(maker.account), "other": _log_id(taker.account)}


def _log_id(account: Account) -> str:
    return f"{account.channel}:{digest(account.user_id)}"
