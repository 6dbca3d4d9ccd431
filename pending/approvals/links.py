"""RedisLinks: stores accounts that people have joined, the codes for it, and links that wait.

A link joins two accounts, on two channels, into one person. What happens to it is decided in
`linking.py`. All keys have one hash tag, so that they are on one node of a cluster:

* `{links}:code:<digest of the code>`: the account that made a code, as JSON.
* `{links}:used:<digest of the code>`: the event in which the code was used.
* `{links}:made:<digest of the account>`: how many codes the account made within an hour.
* `{links}:tries:<digest of the account>`: how many wrong codes it typed within an hour.
* `{links}:accounts`: a hash. Each account of a person has the same record: all their accounts.
* `{links}:waiting`: a hash of links that wait for an operator, by their ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from redis import Redis

from sayso.channels.types import Conversation, digest
from sayso.infra.letter_codes import new_code
from sayso.infra.records import check_version, versioned
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.connections import Connections
from sayso.pending.approvals.people import Account, account_name

#: For how many seconds a code is valid.
CODE_SECONDS = 600
#: How many codes an account may make within an hour.
MAX_CODES = 5
#: How many wrong codes an account may type within an hour.
MAX_TRIES = 5
_HOUR_SECONDS = 3600
#: How many accounts a person may have.
MAX_ACCOUNTS = 8
#: How many accounts may be joined in all.
MAX_LINKED = 10_000
#: How many links may wait for an operator.
MAX_WAITING_LINKS = 1000
#: For how many seconds a link waits for an operator.
WAITING_SECONDS = 7 * 86_400


class TooManyLinks(Exception):
    """Raised when there is no room for another joined account, or for another link that waits."""


@dataclass(frozen=True, slots=True)
class LinkSide:
    """One of the two accounts of a link, and where its person is told how the link ended."""

    channel: str
    #: The id under which the person is stored on the channel. It does not change.
    user_id: str
    #: The direct chat of the person with the bot.
    conversation: Conversation
    #: What the platform called the person, "" if unknown.
    user_name: str = ""
    #: The language in which the person is told, as a BCP 47 tag; "" for English.
    language: str = ""

    @property
    def account(self) -> Account:
        """Return the account."""
        return Account(self.channel, self.user_id)


@dataclass(frozen=True, slots=True)
class WaitingLink:
    """A link that waits until an operator accepts it."""

    #: A code of letters, by which the operator names the link.
    id: str
    #: The account that made the code.
    maker: LinkSide
    #: The account that typed it.
    taker: LinkSide
    #: When the code was typed, in Unix seconds.
    at: float


@dataclass(frozen=True, slots=True)
class _JoinedAccounts:
    """All accounts of one person, the oldest first: the record of each of these accounts."""

    accounts: tuple[Account, ...]


_SIDE = TypeAdapter(LinkSide)
_WAITING_LINK = TypeAdapter(WaitingLink)
_JOINED = TypeAdapter(_JoinedAccounts)

_COUNT_SCRIPT = """
-- Add one to a counter. Return the new count.
-- KEYS[1]: the counter. ARGV: how many seconds after the first call the counter is deleted
local count = redis.call('INCR', KEYS[1])
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return count
"""

_USE_SCRIPT = """
-- Use a code. Return 1 if it is valid and no other event has used it, else 0.
-- KEYS: the code; the event that used it. ARGV: the event; for how many seconds a code is valid
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local event = redis.call('GET', KEYS[2])
if event and event ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
return 1
"""

_REPLACE_SCRIPT = """
-- Replace the records of accounts, if none of them has changed since it was read.
-- Return 'ok', 'changed', or 'full' if too many accounts would be joined.
-- KEYS[1]: the hash of joined accounts. ARGV: how many accounts may be joined; then three values for
--   each account: its field, its record as it was read, its new record; '' stands for no record
local fields = {}
local added = 0
for i = 2, #ARGV, 3 do
  local field, before, after = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if (redis.call('HGET', KEYS[1], field) or '') ~= before then return 'changed' end
  if before == '' and after ~= '' then added = added + 1 end
end
if added > 0 and redis.call('HLEN', KEYS[1]) + added > tonumber(ARGV[1]) then return 'full' end
for i = 2, #ARGV, 3 do
  if ARGV[i + 2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
  end
end
return 'ok'
"""


class RedisLinks:
    """The links of a bot, in Redis. One per process.

    `clock` returns Unix seconds. All methods raise redis.RedisError, and OtherVersion for a record
    of another release. Each call is safe to repeat.
    """

    def __init__(
        self, client: Redis, *, prefix: str = PREFIX, clock: Callable[[], float] = time.time
    ) -> None:
        self._connections = Connections.of(client)
        self._prefix = f"{prefix}{{links}}:"
        self._clock = clock

    async def create_code(self, maker: LinkSide) -> str:
        """Return a new code of an account, "" if it made too many within an hour."""
        if await self._count("made", maker.account) > MAX_CODES:
            return ""
        code = new_code()
        record = versioned(_SIDE.dump_json(maker).decode())
        await self._ask("SET", self._code_key("code", code), record, "EX", CODE_SECONDS)
        return code

    async def may_try(self, account: Account) -> bool:
        """Count one more code that an account typed. Return whether the code may be looked up.

        The code counts before it is looked up. So an account cannot exceed the limit with several
        codes at the same moment.
        """
        return await self._count("tries", account) <= MAX_TRIES

    async def forget_tries(self, account: Account) -> None:
        """Reset the count of codes that an account typed, after a right one."""
        await self._ask("DEL", self._account_key("tries", account))

    async def maker_of(self, code: str) -> LinkSide | None:
        """Return the account that made a code, None for an unknown or expired code.

        `code`: in upper or lower case.
        """
        record = await self._ask("GET", self._code_key("code", code))
        if record is None:
            return None
        return _SIDE.validate_json(check_version(record))

    async def use_code(self, code: str, event_id: str) -> bool:
        """Use up a code. Return whether it was valid.

        A code is used in one event. The same event may use it again, since a worker that died in
        the middle of a turn leaves it to another one.
        """
        keys = (self._code_key("code", code), self._code_key("used", code))
        used = await self._ask("EVAL", _USE_SCRIPT, 2, *keys, digest(event_id), CODE_SECONDS)
        return bool(used)

    async def joined_with(self, accounts: Sequence[Account]) -> list[tuple[Account, ...]]:
        """Return the joined accounts of each person who has one of these, the oldest first.

        Accounts that are joined with no other are left out.
        """
        if not accounts:
            return []
        records = await self._records(accounts)
        return [_accounts_of(record) for record in dict.fromkeys(records) if record]

    async def join(self, one: Account, other: Account) -> tuple[Account, ...]:
        """Join two accounts, with all that each of them is joined with. Return all of them.

        Raises TooManyLinks.
        """
        # An attempt fails only if another process has changed these accounts in between.
        while True:
            # The record of each account. All accounts of one person have the same record.
            before: dict[Account, str] = {}
            records = await self._records([one, other])
            for account, record in zip((one, other), records, strict=True):
                accounts = _accounts_of(record) if record else (account,)
                before |= dict.fromkeys(accounts, record)
            if len(before) > MAX_ACCOUNTS:
                raise TooManyLinks(f"a person has at most {MAX_ACCOUNTS} accounts")
            joined = tuple(before)
            if await self._replace(before, dict.fromkeys(joined, _record_of(joined))):
                return joined

    async def unlink(self, account: Account) -> bool:
        """Separate an account from those that it is joined with. Return whether it was joined.

        Links of the account that wait for an operator are dropped, too.
        """
        await self._drop_waiting(account)
        while True:
            (record,) = await self._records([account])
            if not record:
                return False
            accounts = _accounts_of(record)
            others = tuple(each for each in accounts if each != account)
            # A single account is joined with nothing.
            new_record = _record_of(others) if len(others) > 1 else ""
            after = {account: "", **dict.fromkeys(others, new_record)}
            if await self._replace(dict.fromkeys(accounts, record), after):
                return True

    async def erase(self, account: Account) -> int:
        """Remove an account from all links. Return how many entries were deleted."""
        dropped = await self._drop_waiting(account)
        return dropped + await self.unlink(account)

    async def _drop_waiting(self, account: Account) -> int:
        """Delete the links of an account that wait. Return how many were deleted."""
        waiting = [
            each
            for each in await self.waiting()
            if account in (each.maker.account, each.taker.account)
        ]
        for link in waiting:
            await self.remove_waiting(link.id)
        return len(waiting)

    async def add_waiting(self, maker: LinkSide, taker: LinkSide) -> WaitingLink:
        """Store a link that waits for an operator, and return it.

        If a link of the same accounts waits already, return that one. Raises TooManyLinks.
        """
        waiting = await self.waiting()
        accounts = {maker.account, taker.account}
        for link in waiting:
            if {link.maker.account, link.taker.account} == accounts:
                return link
        if len(waiting) >= MAX_WAITING_LINKS:
            raise TooManyLinks(f"{MAX_WAITING_LINKS} links wait for an operator")

        link = WaitingLink(new_code(), maker, taker, self._clock())
        record = versioned(_WAITING_LINK.dump_json(link).decode())
        key = f"{self._prefix}waiting"
        await self._ask("HSET", key, link.id, record)
        await self._ask("EXPIRE", key, WAITING_SECONDS)
        return link

    async def waiting(self) -> list[WaitingLink]:
        """Return the links that wait, the newest first. Those that waited too long are deleted."""
        key = f"{self._prefix}waiting"
        records = await self._connections.ask_async("HVALS", key)
        links = [_WAITING_LINK.validate_json(check_version(record)) for record in records]
        oldest = self._clock() - WAITING_SECONDS
        for link in links:
            if link.at <= oldest:
                await self._ask("HDEL", key, link.id)
        waiting = [each for each in links if each.at > oldest]
        return sorted(waiting, key=lambda each: (-each.at, each.id))

    async def remove_waiting(self, link_id: str) -> None:
        """Delete a link that waits. Safe to repeat."""
        await self._ask("HDEL", f"{self._prefix}waiting", link_id)

    async def all_joined(self) -> list[tuple[Account, ...]]:
        """Return the joined accounts of each person who has joined some, sorted by name."""
        records = await self._connections.ask_async("HVALS", f"{self._prefix}accounts")
        joined = [_accounts_of(record) for record in dict.fromkeys(records)]
        return sorted(joined, key=lambda accounts: account_name(accounts[0]))

    async def _replace(self, before: Mapping[Account, str], after: Mapping[Account, str]) -> bool:
        """Replace the records of accounts, unless one has changed. Return whether they are replaced.

        `before` has the records as they were read, `after` those to store; "" stands for none.
        Raises TooManyLinks.
        """
        args: list[str | int] = [MAX_LINKED]
        for account, record in before.items():
            args += [account_name(account), record, after[account]]
        key = f"{self._prefix}accounts"
        outcome = await self._ask("EVAL", _REPLACE_SCRIPT, 1, key, *args)
        if outcome == "full":
            raise TooManyLinks(f"{MAX_LINKED} accounts are joined")
        if outcome == "ok":
            return True
        # The command may have been sent twice. The second time it finds the new records.
        return await self._records(list(after)) == list(after.values())

    async def _records(self, accounts: Sequence[Account]) -> list[str]:
        """Return the record of each account, "" for one that is joined with no other."""
        fields = [account_name(each) for each in accounts]
        records = await self._connections.ask_async("HMGET", f"{self._prefix}accounts", *fields)
        return [record or "" for record in records]

    async def _count(self, kind: str, account: Account) -> int:
        """Add one to a counter of an account, which lasts an hour. Return the new count.

        `kind`: the counter, `made` or `tries`.
        """
        key = self._account_key(kind, account)
        return int(await self._ask("EVAL", _COUNT_SCRIPT, 1, key, _HOUR_SECONDS))

    async def _ask(self, *command: str | int) -> Any:
        """Send a command that writes, and return its answer once the replicas have it."""
        return await self._connections.ask_async(*command, durable=True)

    def _code_key(self, kind: str, code: str) -> str:
        # Names of keys are shown by many tools, so they hold neither codes nor phone numbers.
        return f"{self._prefix}{kind}:{digest(code.upper())}"

    def _account_key(self, kind: str, account: Account) -> str:
        return f"{self._prefix}{kind}:{digest(account_name(account))}"


def _record_of(accounts: tuple[Account, ...]) -> str:
    """Return the record of joined accounts."""
    return versioned(_JOINED.dump_json(_JoinedAccounts(accounts)).decode())


def _accounts_of(record: str) -> tuple[Account, ...]:
    """Read what `_record_of` returned. Raises OtherVersion."""
    return _JOINED.validate_json(check_version(record)).accounts
