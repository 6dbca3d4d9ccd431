"""Whether the people who may decide by a rule of the YAML can be asked now, for `sayso doctor`.

`config/wiring/deciders.py` refuses rules that nobody could ever fulfill. This module checks what
changes while a bot runs: people may be away, or may have blocked the bot. Whether the groups of a
platform can be read is a check of that platform.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import RedisError

from sayso.channels.setup import CheckResult
from sayso.channels.types import Conversation
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.deciders import ConfiguredRule, DecidersOfYaml
from sayso.config.wiring.people import PeopleParts
from sayso.config.wiring.redis_parts import RedisParts
from sayso.infra.concurrency import call_in_thread
from sayso.infra.records import OtherVersion
from sayso.pending.approvals.approvers import ActionPlace, Approvers, AskedPlace, can_be_decided
from sayso.pending.approvals.people import KnownPerson
from sayso.pending.sharded_scripts import shard_of

#: An asker who is none of the people who may decide: the check knows no asker.
_NO_ASKER = KnownPerson("", ())


@dataclass(frozen=True, slots=True)
class _Reach:
    """Who can be asked by a rule now."""

    #: Where people and groups would be asked.
    places: Sequence[AskedPlace]
    #: The places that take no messages, with the platform's reason.
    closed: Sequence[tuple[AskedPlace, str]]

    @property
    def open(self) -> list[AskedPlace]:
        """The places that take messages, as far as is known."""
        closed = [place for place, _ in self.closed]
        return [place for place in self.places if place not in closed]


async def check_deciders_now(
    settings: Settings, data: Path, now: float
) -> AsyncIterator[CheckResult]:
    """Yield a result for each rule by which other people decide. `now`: in Unix seconds.

    While Redis is away, which another check reports, there is none.
    """
    rules = list(DecidersOfYaml(settings).rules())
    if not rules:
        return
    try:
        redis = RedisParts.find(settings, data)
        approvers = Approvers(PeopleParts.open(settings, redis, {}).directory)
        for rule in rules:
            for result in _judge(settings, rule, await _reach(redis, approvers, rule, now)):
                yield result
    except (ConfigError, RedisError, OtherVersion):
        return


async def _reach(
    redis: RedisParts, approvers: Approvers, configured: ConfiguredRule, now: float
) -> _Reach:
    """Return who can be asked by a rule. Raises redis.RedisError and OtherVersion."""
    home = ActionPlace(Conversation(configured.channel, ""), _NO_ASKER)
    places: dict[Conversation, AskedPlace] = {}
    for _, deciders in configured.deciders:
        for place in await approvers.places_to_ask(deciders, configured.rule.on, home, now):
            places[place.to] = place
    closed = []
    for place in places.values():
        reason = await call_in_thread(_closed_address, redis, place.to)
        if reason:
            closed.append((place, reason))
    return _Reach(list(places.values()), closed)


def _closed_address(redis: RedisParts, to: Conversation) -> str:
    """Return why an address takes no messages, "" if it does or never got one."""
    key = f"{redis.key_prefix}{{{shard_of(to.id)}}}:conversation:{to.id}"
    return str(redis.client.hget(key, "closed_address") or "")


def _judge(settings: Settings, configured: ConfiguredRule, reach: _Reach) -> list[CheckResult]:
    """Return what an operator must know of a rule: at least one result."""
    tool = configured.path[-1]
    unreachable = [
        f"{place.person or 'the group'} cannot be reached on {place.to.channel} ({reason})"
        for place, reason in reach.closed
    ]
    need = configured.rule.need
    # Of a role that comes from a group, only the platform knows the people.
    roles_of_groups = {role.lower() for role in settings.roles}
    named_roles: set[str] = set()
    for _, deciders in configured.deciders:
        if deciders.kind == "role":
            named_roles.update(role.lower() for role in deciders.names)
    has_groups = not roles_of_groups.isdisjoint(named_roles)
    if has_groups or can_be_decided(reach.open, need):
        if not unreachable:
            says = f"{tool}: those who decide can be asked"
            return [CheckResult("deciders", "ok", says, channel=configured.channel)]
        says = f"{tool}: {'; '.join(unreachable)}; the others can still decide"
        cure = "let them write to the bot again, or unblock it"
        return [CheckResult("deciders", "warn", says, cure, configured.channel)]

    names = ", ".join(place.person for place in reach.open) or "nobody"
    says = f"{tool}: {need} must agree, and only these can be asked now: {names}"
    if unreachable:
        says = f"{says}; {'; '.join(unreachable)}"
    cure = "give more people the role, or see who is away with `sayso people absences`"
    return [CheckResult("deciders", "fail", says, cure, configured.channel)]
