"""Access: who may talk on each channel, as it is configured: the rules of the door, and their words for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from redis import Redis

from sayso.config.settings.channels import AccessSettings, AnyChannel
from sayso.config.settings.schema import Settings
from sayso.workers.access.gate import AccessConfig
from sayso.workers.access.people import RedisPeople
from sayso.workers.access.rules import AccessRules, rules

if TYPE_CHECKING:  # it loads its library
    from sayso.workers.access.gate import Quota

_GROUPS = {"mention": "", "always": "every message of a group is for it", "never": "not in groups"}


def rules_of(channel: AnyChannel) -> AccessRules:
    """The rules of a channel; one without `access` has none that would turn anybody away."""
    access = channel.access or AccessSettings()
    return rules(
        allow=access.allow,
        block=access.block,
        pairing=access.pairing,
        groups=access.groups,
        chats=access.chats,
        per_minute=access.per_minute,
        phones=channel.has_phone_numbers,
    )


def guard_of(settings: Settings, client: Redis, url: str) -> AccessConfig | None:
    """What asks who somebody is, None where no channel has `access`."""
    named = {name: rules_of(channel) for name, channel in settings.channels.items() if channel.access}
    if not named:
        return None
    prefix = settings.key_prefix
    return AccessConfig(named, RedisPeople(client, prefix=prefix), _quota(named.values(), client, url, prefix))


def _quota(every: Iterable[AccessRules], client: Redis, url: str, prefix: str) -> Quota | None:
    """Its library is loaded where somebody has a limit."""
    if all(each.per_minute is None for each in every):
        return None
    from sayso.workers.access.gate import redis_quota

    return redis_quota(client, url, prefix=prefix)


def welcome(channel: AnyChannel) -> str:
    """Whom a channel talks to, for whoever checks it."""
    access = channel.access
    if access is None:
        return "talks to: everybody"
    return f"talks to: {'; '.join([_people(access), *_limits(access)])}"


def _people(access: AccessSettings) -> str:
    if access.allow is None and not access.pairing:
        return "everybody"
    named = [f"{len(access.allow)} named"] if access.allow else []
    return " and ".join([*named, f"whom an operator approves{', by code' if access.pairing else ''}"])


def _limits(access: AccessSettings) -> Iterator[str]:
    if access.block:
        yield f"never to {len(access.block)}"
    if _GROUPS[access.groups]:
        yield _GROUPS[access.groups]
    if access.chats is not None:
        yield f"only in {len(access.chats)} chat{'s' if len(access.chats) != 1 else ''}"
    if access.per_minute:
        yield f"{access.per_minute} turns a minute each"
    if access.roles:
        yield f"as {', '.join(access.roles.allowed)}"
